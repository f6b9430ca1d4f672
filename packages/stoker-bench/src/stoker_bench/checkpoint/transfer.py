"""Moving the bytes of a file of a checkpoint: from where they are made to storage, and back. Memory is a few parts."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.request_observer import ServedBy
from stoker.errors import ConfigError, CorruptDataError
from stoker.storage import Store, is_local
from stoker.storage.files.file_errors import file_errors
from stoker_bench.checkpoint.content import PART, CheckpointContent
from stoker_bench.measure.request_counts import RequestCounts

_ALIGNED: Final = 4096
"""O_DIRECT wants addresses, offsets and lengths that are multiples of the device's block."""
_DIRECT: Final = getattr(os, "O_DIRECT", 0)

Buffer = NDArray[np.uint8]


@dataclass(slots=True)
class Spent:
    """Seconds of a thread.

    Attributes:
        fill: making content.
        io: writing or reading.
        fsync: until the device had it.
        verify: comparing.
    """

    fill: float = 0.0
    io: float = 0.0
    fsync: float = 0.0
    verify: float = 0.0


class Moving(NamedTuple):
    """A file, and what is in it."""

    key: str
    bytes: int
    content: CheckpointContent
    first_block: int


class Mover:
    """Saves and loads files of one store.

    Args:
        store: where they are.
        threads: parts in flight at once.
        direct: files by O_DIRECT, past the page cache.
        fsync: files are on the device before they count as written.
        verify: what is read is compared to what was written.
        check: called before each part; raises where another rank has failed.

    Attributes:
        requests: counts of the parts that were written and read; those that a store writes for itself are not among them.
    """

    def __init__(
        self, store: Store, *, threads: int, direct: bool, fsync: bool, verify: bool, check: Callable[[], object]
    ) -> None:
        self._store, self._check, self.requests = store, check, RequestCounts()
        self._local = bool(is_local(store.url))
        if direct and not (self._local and _DIRECT):
            raise ConfigError(f"checkpoint.direct: {store.url} has no O_DIRECT, which is for files on Linux")
        self._direct, self._fsync, self._verify = direct, fsync, verify
        self._buffers = [_aligned() for _ in range(threads)]
        self._expected = [_aligned() for _ in range(threads)] if verify else []
        self._spent = [Spent() for _ in range(threads)]

    def spent(self) -> Spent:
        """Seconds since this was asked last, added up over all threads."""
        total = Spent(*map(sum, zip(*map(astuple, self._spent), strict=True)))
        self._spent = [Spent() for _ in self._spent]
        return total

    # -- saving ----------------------------------------------------------------------------------------------------

    def save(self, file: Moving) -> None:
        """Write a file.

        Raises:
            StorageError: it could not be written.
            ConfigError: the file system refuses O_DIRECT.
        """
        if self._local:
            self._save_file(file)
        else:
            self._save_object(file)

    def _save_file(self, file: Moving) -> None:
        path = self._store.url_of(file.key)
        with _errors(path, self._direct):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | (_DIRECT if self._direct else 0)
            fd = os.open(path, flags, 0o666)
            try:

                def write(buffer: Buffer, start: int, length: int, thread: int) -> None:
                    self._fill(file, buffer[:length], start, thread)
                    begun = time.perf_counter_ns()
                    _write_at(fd, buffer[: self._padded(length)].data, start)
                    took = time.perf_counter_ns() - begun
                    self._spent[thread].io += took * 1e-9
                    self.requests.add(ServedBy.DEVICE if self._direct else ServedBy.PAGE_CACHE, took, length)

                self._all_parts(file.bytes, write)
                if self._direct and file.bytes % _ALIGNED:
                    os.ftruncate(fd, file.bytes)
                if self._fsync:
                    self._sync(fd)
            finally:
                os.close(fd)

    def sync_folder(self, folder: str) -> None:
        """Make the names of files durable, where that was asked for."""
        if not (self._local and self._fsync):
            return
        path = self._store.url_of(folder)
        with _errors(path, direct=False):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with contextlib.suppress(OSError):  # some network file systems can not
                    self._sync(fd)
            finally:
                os.close(fd)

    def _sync(self, fd: int) -> None:
        begun = time.perf_counter()
        try:
            os.fsync(fd)
        finally:
            self._spent[0].fsync += time.perf_counter() - begun

    def _save_object(self, file: Moving) -> None:
        buffer, spent = self._buffers[0], self._spent[0]
        before = spent.fill

        def chunks() -> Iterator[memoryview]:
            for start in range(0, file.bytes, PART):
                self._check()
                part = buffer[: min(PART, file.bytes - start)]
                self._fill(file, part, start, 0)
                yield part.data

        begun = time.perf_counter()
        self._store.put_stream(file.key, chunks)
        spent.io += time.perf_counter() - begun - (spent.fill - before)

    def _fill(self, file: Moving, out: Buffer, start: int, thread: int) -> None:
        begun = time.perf_counter()
        file.content.fill(out, file.first_block, start)
        self._spent[thread].fill += time.perf_counter() - begun

    # -- loading ---------------------------------------------------------------------------------------------------

    def load(self, file: Moving) -> None:
        """Read a file.

        Raises:
            CorruptDataError: it has another size, or with ``verify`` other bytes than were written.
            StorageError: it could not be read.
            ConfigError: the file system refuses O_DIRECT.
        """
        if self._local:
            self._load_file(file)
        else:
            self._load_object(file)

    def _load_file(self, file: Moving) -> None:
        path = self._store.url_of(file.key)
        with _errors(path, self._direct):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (_DIRECT if self._direct else 0))
            try:
                self._same_size(file, os.fstat(fd).st_size)

                def read(buffer: Buffer, start: int, length: int, thread: int) -> None:
                    begun, counted = time.perf_counter(), self.requests.begin()
                    _read_at(fd, buffer[: self._padded(length)].data, start, length)
                    self.requests.end(counted, length)
                    self._spent[thread].io += time.perf_counter() - begun
                    self._compare(file, buffer[:length], start, thread)

                self._all_parts(file.bytes, read)
            finally:
                os.close(fd)

    def _load_object(self, file: Moving) -> None:
        self._same_size(file, self._store.head(file.key).size)

        def read(buffer: Buffer, start: int, length: int, thread: int) -> None:  # noqa: ARG001
            begun = time.perf_counter_ns()
            data = self._store.get_range(file.key, start, start + length)
            took = time.perf_counter_ns() - begun
            self._spent[thread].io += took * 1e-9
            self.requests.add(ServedBy.NETWORK, took, length)
            self._compare(file, np.frombuffer(data, np.uint8), start, thread)

        self._all_parts(file.bytes, read)

    def _same_size(self, file: Moving, size: int) -> None:
        if size != file.bytes:
            raise CorruptDataError(
                f"{self._store.url_of(file.key)} has {size:,} bytes, its checkpoint says {file.bytes:,}: it was changed since"
            )

    def _compare(self, file: Moving, data: Buffer, start: int, thread: int) -> None:
        if not self._verify:
            return
        begun = time.perf_counter()
        expected = self._expected[thread][: len(data)]
        file.content.fill(expected, file.first_block, start)
        same = np.array_equal(data, expected)
        self._spent[thread].verify += time.perf_counter() - begun
        if not same:
            at = start + int(np.argmax(data != expected))
            raise CorruptDataError(
                f"{self._store.url_of(file.key)}: byte {at:,} is not what was written: the storage, or someone, changed it"
            )

    # -- parts -----------------------------------------------------------------------------------------------------

    def _padded(self, length: int) -> int:
        return -(-length // _ALIGNED) * _ALIGNED if self._direct else length

    def _all_parts(self, size: int, work: Callable[[Buffer, int, int, int], None]) -> None:
        """Call ``work(buffer, start, length, thread)`` for all parts of a file, in threads where there are several."""
        starts = iter(range(0, size, PART))
        lock, failed = threading.Lock(), list[BaseException]()

        def run(thread: int) -> None:
            try:
                while not failed:
                    with lock:
                        start = next(starts, None)
                    if start is None:
                        return
                    self._check()
                    work(self._buffers[thread], start, min(PART, size - start), thread)
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)

        others = [
            threading.Thread(target=run, args=[number], daemon=True)
            for number in range(1, min(len(self._buffers), -(-size // PART)))
        ]
        try:
            for one in others:
                one.start()
        except BaseException as error:  # noqa: BLE001 - Ctrl-C
            failed.append(error)
        run(0)
        for one in others:
            while one.is_alive():
                try:
                    one.join()
                except BaseException as error:  # noqa: BLE001 - Ctrl-C; they end with their part, before the file is closed
                    failed.append(error)
        if failed:
            raise failed[0]


def _aligned() -> Buffer:
    """A part's memory, at the begin of a page."""
    return np.frombuffer(mmap.mmap(-1, PART), np.uint8)


def _write_at(fd: int, data: memoryview, start: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], start + done)


def _read_at(fd: int, into: memoryview, start: int, length: int) -> None:
    """At least ``length`` bytes; more is asked for where O_DIRECT wants a whole block at the end of a file."""
    done = 0
    while done < length:
        count = os.preadv(fd, [into[done:]], start + done)
        if not count:
            raise OSError(errno.EIO, "the file shrank while it was read")
        done += count


@contextlib.contextmanager
def _errors(path: str, direct: bool) -> Iterator[None]:
    with file_errors(path):
        try:
            yield
        except OSError as error:
            if direct and error.errno == errno.EINVAL:
                raise ConfigError(f"{path}: this file system refuses O_DIRECT: set checkpoint.direct=false") from None
            raise
