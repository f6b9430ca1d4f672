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
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.bench.measure.call_times import CallTimer
from stoker.errors import ConfigError, CorruptDataError
from stoker.generation.noise import BLOCK, noise_of
from stoker.integers import GOLDEN, MASK
from stoker.storage import Store
from stoker.storage.file_errors import file_errors

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
    """A thread's memory for one part of an entry: random bytes, of which each 512 begin with 8 that are theirs alone.

    Args:
        size: in bytes, a multiple of 4096.
        seed: of the random bytes and of the words, so that no block of 512 bytes is ever written twice.

    Attributes:
        bytes: the memory.
        view: the same, for system calls.
    """

    def __init__(self, size: int, seed: int) -> None:
        memory = mmap.mmap(-1, size)
        self.bytes: NDArray[np.uint8] = np.frombuffer(memory, np.uint8)
        self.view = memoryview(memory)
        noise = noise_of(seed)
        for at in range(0, size, BLOCK):
            noise.fill(self.bytes[at : at + BLOCK], 0, 0, at // BLOCK)
        self._seed = seed
        self._blocks: NDArray[np.uint64] = np.arange(size // _BLOCK, dtype=np.uint64)
        self._words = np.empty_like(self._blocks)

    def stamp(self, entry: int, start: int, length: int, into: NDArray[np.uint8] | None = None) -> None:
        """Make bytes ``[start, start + length)`` of an entry, here or in other memory of ``length`` bytes."""
        target = self.bytes if into is None else into
        if into is not None:
            into[:] = self.bytes[:length]
        words = self._expected(entry, start, length)
        target[: len(words) * _BLOCK].view(np.uint64)[:: _BLOCK // 8] = words

    def check(self, entry: int, start: int, length: int, url: str) -> None:
        """Check that memory holds what :meth:`stamp` made.

        Raises:
            CorruptDataError: the storage gave other bytes.
        """
        words = self._expected(entry, start, length, _CHECKED)
        found = self.bytes[: length // _BLOCK * _BLOCK].view(np.uint64)[:: _CHECKED * _BLOCK // 8]
        if not np.array_equal(found, words):
            at = start + _CHECKED * _BLOCK * int(np.argmax(found != words))
            raise CorruptDataError(f"{url}: byte {at:,} is not what was written: the storage, or someone, changed it")

    def _expected(self, entry: int, start: int, length: int, every: int = 1) -> NDArray[np.uint64]:
        """The first word of each block, or of one in ``every``; one-to-one, so that no two blocks of a run begin alike."""
        base = ((self._seed << 48) + (entry << 32) + start // _BLOCK) * GOLDEN & MASK
        blocks = self._blocks[: length // _BLOCK : every]
        words = self._words[: len(blocks)]
        np.multiply(blocks, np.uint64(GOLDEN), out=words)
        np.add(words, np.uint64(base), out=words)
        return words


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
            for start in range(0, size, len(buffer.view)):
                self._check()
                length = min(len(buffer.view), padded(size) - start)
                if held is None:
                    buffer.stamp(number, start, length)
                part = buffer.view[:length] if held is None else held[start : start + length]
                done = 0
                while done < length:
                    done += timer.call(os.pwrite, fd, part[done:], start + done)
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
            for start in range(0, size, len(buffer.view)):
                self._check()
                length = min(len(buffer.view), padded(size) - start)
                done = 0
                while done < length:
                    count = timer.call(os.preadv, fd, [buffer.view[done:length]], start + done)
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
            for start in range(0, size, len(buffer.view)):
                self._check()
                begun = time.perf_counter_ns()
                length = min(len(buffer.view), padded(size) - start)
                if held is None:
                    buffer.stamp(number, start, length)
                part = buffer.view[:length] if held is None else held[start : start + length]
                timer.own(time.perf_counter_ns() - begun)
                yield part[: size - start]

        timer.call(self._store.put_stream, self._key(number), parts)

    def read(self, number: int, size: int, buffer: PartBuffer, timer: CallTimer) -> None:
        key = self._key(number)
        for start in range(0, size, len(buffer.view)):
            self._check()
            length = min(len(buffer.view), size - start)
            info = timer.call(self._store.read_into, key, buffer.view[:length], start=start)
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
