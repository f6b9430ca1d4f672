"""Entries of the cache in storage: written and read whole, through one aligned buffer of a thread, without copies."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError, CorruptDataError
from stoker.integers import GOLDEN, MASK
from stoker.storage import Store
from stoker.storage.files.file_errors import file_errors
from stoker_bench.generation.noise import BLOCK, noise_of
from stoker_bench.measure.call_times import CallTimer

PAGE: Final = 4096
"""O_DIRECT wants addresses, offsets and lengths that are multiples of the device's block."""
_BLOCK: Final = 512
"""Storage that finds equal blocks does so for blocks of this size or more."""
_CHECKED: Final = 4 * PAGE // _BLOCK
"""Of so many blocks the first is checked when it is read: it has to be fetched from memory, which takes time."""
_DIRECT: Final = getattr(os, "O_DIRECT", 0)


def padded(size: int) -> int:
    """Bytes that an entry takes in a file: whole pages."""
    return -(-size // PAGE) * PAGE


class PartBuffer:
    """A thread's memory for two parts of an entry: random bytes, of which each 512 begin with 8 that are theirs alone.

    Args:
        size: of a part in bytes, a multiple of 4096.
        seed: of the random bytes and of the words, so that no block of 512 bytes is ever written twice.

    Attributes:
        bytes: the memory of the part that is written or read.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.bytes, self._next = _large_pages(size), _large_pages(size)
        noise = noise_of(seed)
        for at in range(0, size, BLOCK):
            noise.fill(self.bytes[at : at + BLOCK], 0, 0, at // BLOCK)
        self._next[:] = self.bytes
        self._maker = ThreadPoolExecutor(1, "kv-part")
        self._seed = seed
        # Of each block of a part, what the part's first word is to be added to; and of those that are checked.
        self._steps: NDArray[np.uint64] = np.arange(size // _BLOCK, dtype=np.uint64) * np.uint64(GOLDEN)
        self._checked = self._steps[::_CHECKED].copy()

    def parts(self, entry: int, size: int) -> Iterator[memoryview]:
        """The parts of an entry in whole pages, each valid until the next is asked for.

        A part is made while the one before is written: the storage would wait while a word of each 512 bytes is changed.
        """
        spans = [(start, min(len(self.bytes), padded(size) - start)) for start in range(0, size, len(self.bytes))]
        making: Future[None] | None = None
        for (start, length), after in zip(spans, [*spans[1:], None], strict=True):
            if making is None:
                self._stamp(self.bytes, entry, start, length)
            else:
                making.result()
                self.bytes, self._next = self._next, self.bytes
            making = None if after is None else self._maker.submit(self._stamp, self._next, entry, *after)
            yield self.bytes.data[:length]

    def fill(self, entry: int, start: int, into: NDArray[np.uint8]) -> None:
        """Make a part of an entry in other memory of its length."""
        into[:] = self.bytes[: len(into)]
        self._stamp(into, entry, start, len(into))

    def _stamp(self, part: NDArray[np.uint8], entry: int, start: int, length: int) -> None:
        """Make bytes ``[start, start + length)`` of an entry of what :class:`PartBuffer` holds."""
        blocks = length // _BLOCK
        words = part[: blocks * _BLOCK].view(np.uint64)[:: _BLOCK // 8]
        np.add(self._steps[:blocks], self._first_word(entry, start), out=words)

    def check(self, entry: int, start: int, length: int, url: str) -> None:
        """Check that memory holds what was written.

        Raises:
            CorruptDataError: the storage gave other bytes.
        """
        found = self.bytes[: length // _BLOCK * _BLOCK].view(np.uint64)[:: _CHECKED * _BLOCK // 8]
        words = self._checked[: len(found)] + self._first_word(entry, start)
        if not np.array_equal(found, words):
            at = start + _CHECKED * _BLOCK * int(np.argmax(found != words))
            raise CorruptDataError(f"{url}: byte {at:,} is not what was written: the storage, or someone, changed it")

    def _first_word(self, entry: int, start: int) -> np.uint64:
        """Of a part; words are one-to-one to blocks, so that no two blocks of a run begin alike."""
        return np.uint64(((self._seed << 48) + (entry << 32) + start // _BLOCK) * GOLDEN & MASK)


def _large_pages(size: int) -> NDArray[np.uint8]:
    """Aligned memory. Small pages are looked up in tables, which would be a part of the host's time."""
    memory = mmap.mmap(-1, size)
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def _cut(held: memoryview, size: int) -> Iterator[memoryview]:
    """Parts of so many bytes of an entry in memory."""
    return (held[start : start + size] for start in range(0, len(held), size))


class EntryStore(ABC):
    """Whole entries in storage. Threads may share it; each has its buffer and its timer."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the folder of the entries, where they need one."""

    @abstractmethod
    def write(
        self, number: int, size: int, buffer: PartBuffer, timer: CallTimer, held: memoryview | None = None
    ) -> None:
        """Write an entry: random bytes that are its own, or what memory holds.

        Raises:
            StorageError: it could not be written.
        """

    @abstractmethod
    def read(self, number: int, size: int, buffer: PartBuffer, timer: CallTimer) -> None:
        """Read all of an entry, part by part, into the buffer.

        Raises:
            StorageError: it could not be read.
            CorruptDataError: the storage gave other bytes than were written.
        """

    @abstractmethod
    def delete(self, number: int) -> None:
        """Remove an entry."""

    @abstractmethod
    def clear(self) -> None:
        """Remove all entries.

        Raises:
            StorageError: an entry could not be removed.
        """


class FileEntries(EntryStore):
    """Entries as files of one folder.

    Args:
        folder: of this rank and run.
        direct: by O_DIRECT, past the page cache; else pages leave the cache after writing and before reading.
        fsync: an entry is on the device before it counts as written.
        check: called before each part; raises where the run has ended.
    """

    def __init__(self, folder: str, *, direct: bool, fsync: bool, check: Callable[[], object]) -> None:
        if direct and not _DIRECT:
            raise ConfigError("kv_cache.direct: this operating system has no O_DIRECT: set kv_cache.direct=false")
        self._folder, self._direct, self._fsync, self._check = folder, direct, fsync, check

    def prepare(self) -> None:
        with file_errors(self._folder):
            os.makedirs(self._folder)

    def write(
        self, number: int, size: int, buffer: PartBuffer, timer: CallTimer, held: memoryview | None = None
    ) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with self._opened(number, flags, timer) as (fd, _):
            start = 0
            for part in buffer.parts(number, size) if held is None else _cut(held, len(buffer.bytes)):
                self._check()
                done = 0
                while done < len(part):
                    done += timer.call(os.pwrite, fd, part[done:], start + done)
                start += done
            if self._fsync:
                timer.call(os.fdatasync, fd)
            if not self._direct:
                timer.call(os.posix_fadvise, fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def read(self, number: int, size: int, buffer: PartBuffer, timer: CallTimer) -> None:
        with self._opened(number, os.O_RDONLY | os.O_CLOEXEC, timer) as (fd, found):
            path = self._path(number)
            if found != padded(size):
                raise CorruptDataError(
                    f"{path} has {found:,} bytes, {padded(size):,} were written: it was changed since"
                )
            if not self._direct:
                timer.call(os.posix_fadvise, fd, 0, 0, os.POSIX_FADV_DONTNEED)
            for start in range(0, size, len(buffer.bytes)):
                self._check()
                length = min(len(buffer.bytes), padded(size) - start)
                done = 0
                while done < length:
                    count = timer.call(os.preadv, fd, [buffer.bytes.data[done:length]], start + done)
                    if not count:
                        raise OSError(errno.EIO, "the file shrank while it was read")
                    done += count
                buffer.check(number, start, length, path)

    def delete(self, number: int) -> None:
        with file_errors(self._path(number)):
            os.unlink(self._path(number))

    def clear(self) -> None:
        with file_errors(self._folder):
            shutil.rmtree(self._folder)
        for above in (os.path.dirname(self._folder), os.path.dirname(os.path.dirname(self._folder))):
            with contextlib.suppress(OSError):  # another rank's, or another run's
                os.rmdir(above)

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:09d}.kv"

    @contextlib.contextmanager
    def _opened(self, number: int, flags: int, timer: CallTimer) -> Iterator[tuple[int, int]]:
        path = self._path(number)
        with file_errors(path):
            try:
                fd = timer.call(os.open, path, flags | (_DIRECT if self._direct else 0), 0o666)
                try:
                    yield fd, timer.probe(os.fstat, fd).st_size
                finally:
                    timer.call(os.close, fd)
            except OSError as error:
                if self._direct and error.errno == errno.EINVAL:
                    raise ConfigError(f"{path}: this file system refuses O_DIRECT: set kv_cache.direct=false") from None
                raise


class ObjectEntries(EntryStore):
    """Entries as objects, through stoker's own store: a stream to write one, and a request for each part to read it.

    Args:
        store: where they are.
        prefix: of their keys, of this rank and run.
        check: as of :class:`FileEntries`.
    """

    def __init__(self, store: Store, prefix: str, *, check: Callable[[], object]) -> None:
        self._store, self._prefix, self._check = store, prefix, check

    def prepare(self) -> None:
        """Objects need no folder."""

    def write(
        self, number: int, size: int, buffer: PartBuffer, timer: CallTimer, held: memoryview | None = None
    ) -> None:
        def parts() -> Iterator[memoryview]:
            left = size
            made = buffer.parts(number, size) if held is None else _cut(held, len(buffer.bytes))
            while left > 0:
                self._check()
                begun = time.perf_counter_ns()
                part = next(made)
                timer.own(time.perf_counter_ns() - begun)
                yield part[:left]
                left -= len(part)

        timer.call(self._store.put_stream, self._key(number), parts)

    def read(self, number: int, size: int, buffer: PartBuffer, timer: CallTimer) -> None:
        key = self._key(number)
        for start in range(0, size, len(buffer.bytes)):
            self._check()
            length = min(len(buffer.bytes), size - start)
            info = timer.call(self._store.read_into, key, buffer.bytes.data[:length], start=start)
            url = self._store.url_of(key)
            if info.size != size:
                raise CorruptDataError(f"{url} has {info.size:,} bytes, {size:,} were written: it was changed since")
            buffer.check(number, start, length, url)

    def delete(self, number: int) -> None:
        self._store.delete(self._key(number))

    def clear(self) -> None:
        for one in list(self._store.list(self._prefix)):
            self._store.delete(one.key)

    def _key(self, number: int) -> str:
        return f"{self._prefix}/{number:09d}.kv"
