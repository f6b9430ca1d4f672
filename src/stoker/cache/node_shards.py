"""Shards in memory that the processes of a node share: one of them fetches a shard, all of them map it.

Each process keeps what it fetched in anonymous files of its own, and writes into a table that all have which shard is where.
To read a shard that another process has fetched, a process opens that file by way of ``/proc`` and maps it.
Bytes of these files are written once, before the table names them. So what is mapped stays as it is, whatever becomes of the
process that fetched it. What only that process had is gone with it, and is fetched again.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np

from stoker.concurrency.forks import ProcessFile, ProcessLocal, ProcessLock
from stoker.concurrency.shared.node_file import NodeFile, open_file_of
from stoker.digests import blake2b
from stoker.formats.common.gather import populate
from stoker.policy import SHARED_SHARDS, most_shared_shards
from stoker.storage.files.mapped import MappedFile
from stoker.types import PooledBuffer

# Changes with the layout of the table: processes with another version of this library have one of their own.
_TABLE: Final = "stoker-shards-1"
_BUCKETS: Final = 1 << 13
_WAYS: Final = 8
_LINE: Final = struct.Struct("<16sIIQQQQ")
_CHECK: Final = 8
_SIZE: Final = _LINE.size + _CHECK

_ALIGNED: Final = 64


class _Entry(NamedTuple):
    """A line of the table: where a shard is.

    Attributes:
        process, number: the process that keeps its file, and the descriptor there.
        nonce: tells this file from all others.
        start, size: the shard's bytes in it.
        time: when they were there.
    """

    key: bytes
    process: int
    number: int
    nonce: int
    start: int
    size: int
    time: int

    @classmethod
    def of(cls, line: bytes) -> _Entry | None:
        """The entry of a line; ``None`` where it is empty, or two processes have written to it at once."""
        found = cls(*_LINE.unpack_from(line))
        return found if found.nonce and found.line() == line else None

    def line(self) -> bytes:
        said = _LINE.pack(*self)
        return said + blake2b(said, _CHECK).digest()


@dataclass(slots=True, eq=False)
class _KeptFile:
    """A file with shards that this process has fetched.

    Attributes:
        file: its descriptor.
        nonce: tells it from all others.
        size: its bytes, and of them those that shards take.
        keys: the shards that the table has of it.
        written: the maps by which it is being written to.
    """

    file: ProcessFile
    nonce: int
    size: int
    used: int = 0
    keys: list[bytes] = field(default_factory=list)
    written: weakref.WeakSet[mmap.mmap] = field(default_factory=weakref.WeakSet)

    @property
    def number(self) -> int:
        return self.file.number


class SharedAllocation:
    """Memory for one shard, which this process fetches. What is not published goes with this object.

    ``data``: the memory, to be filled.
    """

    def __init__(self, file: _KeptFile, start: int, size: int) -> None:
        self.file, self.start, self.size = file, start, size
        first = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        mapped = mmap.mmap(file.number, start + size - first, offset=first)
        file.written.add(mapped)
        self.data: PooledBuffer = np.frombuffer(mapped, np.uint8)[start - first :].view(PooledBuffer)
        self.data.shared = file.number, start

    def reserve(self) -> None:
        """Take the memory.

        OSError if there is none, which otherwise would end the process where it is first touched (SIGBUS).
        """
        os.posix_fallocate(self.file.number, self.start, self.size)
        populate(self.data)


class _ReadFile:
    """A file of shards that is read: arrays are made on it, and it lives as long as one of them."""

    __slots__ = ("__weakref__", "_whole")

    def __init__(self, mapped: MappedFile) -> None:
        self._whole = np.frombuffer(mapped, np.uint8)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        found: dict[str, Any] = self._whole.__array_interface__
        return found


class _KeptMap(NamedTuple):
    """The map of a file that may be read again: to take one down costs half as much as to fill the file.

    ``mapped``: the map. ``place``, ``entry``: a shard of it in the table, which says whether the file is still kept.
    """

    mapped: MappedFile
    place: int
    entry: _Entry


def open_table(name: str = _TABLE) -> NodeFile:
    """The table that the processes of this user on this node have. Raises what :class:`NodeFile` does."""
    return NodeFile(name, _BUCKETS * _WAYS * _SIZE)


class NodeShards(ProcessLocal):
    """The shards in memory of this process, and of the others of its user on this node. Thread-safe.

    In a forked child it has no files, and finds none: the parent keeps them, and the child what it has mapped. ``spare``:
    bytes that this process keeps for others although it does not read them now. The file that it has used last stays in any
    case. So many bytes at most stay mapped of files that others keep.
    """

    def __init__(self, table: NodeFile) -> None:
        self.spare = 0
        self._table = table
        self._lock = threading.RLock()
        self._claimed: set[bytes] = set()
        self._read: weakref.WeakValueDictionary[int, _ReadFile] = weakref.WeakValueDictionary()
        self._kept_maps: OrderedDict[int, _KeptMap] = OrderedDict()  # the least recently used first
        self._filled: _KeptFile | None = None
        self._kept: OrderedDict[int, _KeptFile] = OrderedDict()  # the least recently used first

    def offer(self) -> None:
        """Let processes that start from now on find the table, although the one that made it may have ended."""
        self._table.offer()

    # -- reading ---------------------------------------------------------------------------------------------------

    def find(self, key: bytes) -> PooledBuffer | None:
        """A shard's bytes, read-only, if a process has them."""
        for place, entry in self._bucket(key):
            if entry is None or entry.key != key:
                continue
            try:
                return _window(self._opened(entry, place), entry)
            except (FileNotFoundError, ProcessLookupError):  # its process has ended, or has let go of it
                self._table.write(place, bytes(_SIZE))
            except OSError:  # this process may not open or map it, or can have no more; others can
                continue
        return None

    def _bucket(self, key: bytes) -> Iterator[tuple[int, _Entry | None]]:
        """The lines of the table where a shard may be, and their places."""
        first = int.from_bytes(key[8:], "little") % _BUCKETS * _WAYS * _SIZE
        lines = self._table.read(first, _WAYS * _SIZE)
        for at in range(0, len(lines), _SIZE):
            yield first + at, _Entry.of(lines[at : at + _SIZE])

    def _opened(self, entry: _Entry, place: int) -> _ReadFile:
        """A shard's file, to be read; ``place`` is where the table has the shard."""
        with self._lock:
            mine = self._kept.get(entry.nonce)
            if mine is not None:
                self._kept.move_to_end(entry.nonce)
            read = self._read.get(entry.nonce)
            if read is not None:
                return read
            if entry.nonce not in self._kept_maps:
                self._trim_maps()
                self._kept_maps[entry.nonce] = _KeptMap(self._map(entry, mine), place, entry)
            self._kept_maps.move_to_end(entry.nonce)
            read = self._read[entry.nonce] = _ReadFile(self._kept_maps[entry.nonce].mapped)
            return read

    def _map(self, entry: _Entry, mine: _KeptFile | None) -> MappedFile:
        """The map of a shard's file, which is one of this process where ``mine`` is given."""
        with contextlib.ExitStack() as after:
            if mine is None:
                number = open_file_of(entry.process, entry.number, _name(entry.nonce))
                after.callback(os.close, number)
            else:
                number = mine.number
            status = os.fstat(number)
            return MappedFile(number, 0, status.st_size, _name(entry.nonce), status)

    # -- fetching --------------------------------------------------------------------------------------------------

    def claim(self, key: bytes) -> bool:
        """Claim to fetch a shard, until :meth:`release` or the end of this process; whether nobody else does."""
        with self._lock:
            if key in self._claimed or not self._table.claim(_number(key)):
                return False
            self._claimed.add(key)
            return True

    def release(self, key: bytes) -> None:
        """Give up a claim."""
        with self._lock:
            self._claimed.discard(key)
            self._table.release(_number(key))

    def allocate(self, size: int) -> SharedAllocation:
        """Memory for a shard of so many bytes, at least one. It is to be reserved, or written to as a file.

        OSError if there is none, or the process can have no more files.
        """
        with self._lock:
            file = self._filled
            if size >= SHARED_SHARDS // 4:
                file = self._new_file(size)
            elif file is None or file.used + size > file.size:
                file = self._filled = self._new_file(SHARED_SHARDS)
            start, file.used = file.used, -(-(file.used + size) // _ALIGNED) * _ALIGNED
            return SharedAllocation(file, start, size)

    def leave(self, allocation: SharedAllocation) -> None:
        """Let go of memory that no shard has come into."""
        with self._lock:
            file = allocation.file
            if file is not self._filled and not file.keys and file.nonce in self._kept:
                self._drop(file)

    def _new_file(self, size: int) -> _KeptFile:
        nonce = (int.from_bytes(os.urandom(8), "little") >> 1) + 1
        file = ProcessFile(os.memfd_create(_name(nonce), os.MFD_CLOEXEC))
        os.ftruncate(file.number, size)
        kept = self._kept[nonce] = _KeptFile(file, nonce, size)
        return kept

    def publish(self, key: bytes, allocation: SharedAllocation) -> PooledBuffer:
        """Let all processes have a shard that has arrived; its bytes, read-only."""
        file = allocation.file
        entry = _Entry(
            key, os.getpid(), file.number, file.nonce, allocation.start, allocation.size, time.monotonic_ns()
        )
        with self._lock:
            lines = list(self._bucket(key))
            old = [place for place, one in lines if one is not None and one.key == key]
            free = [place for place, one in lines if one is None]
            by_age = sorted((one.time, place) for place, one in lines if one is not None)
            place = [*old, *free, *(place for _, place in by_age)][0]
            self._table.write(place, entry.line())
            file.keys.append(key)
            try:
                return _window(self._opened(entry, place), entry)
            except OSError:
                allocation.data.setflags(write=False)
                return allocation.data
            finally:
                self.trim()

    def forget(self, key: bytes) -> None:
        """Let no process find a shard that has turned out to be corrupt."""
        for place, entry in self._bucket(key):
            if entry is not None and entry.key == key:
                self._table.write(place, bytes(_SIZE))

    def trim(self) -> None:
        """Let go of files beyond the spare ones that this process does not read; others keep what they have mapped."""
        with self._lock:
            unread = [
                file
                for file in self._kept.values()
                if file is not self._filled and not file.written and file.nonce not in self._read
            ]
            spare = sum(file.used for file in unread)
            for file in unread[:-1]:
                if spare > self.spare:
                    spare -= file.used
                    self._drop(file)
            for file in list(self._kept.values()):
                if len(self._kept) > most_shared_shards() and file is not self._filled and not file.written:
                    self._drop(file)
            self._trim_maps()

    def _trim_maps(self) -> None:
        """Take down maps of others' files that are not read: of those that are not kept any more, and beyond spare bytes."""
        unread = [one for nonce, one in self._kept_maps.items() if nonce not in self._read and nonce not in self._kept]
        size = sum(len(one.mapped) for one in unread)
        for _, place, entry in unread:
            if size > self.spare or _Entry.of(self._table.read(place, _SIZE)) != entry:
                size -= len(self._kept_maps.pop(entry.nonce).mapped)

    def _drop(self, file: _KeptFile) -> None:
        del self._kept[file.nonce]
        self._kept_maps.pop(file.nonce, None)
        file.file.close()
        for key in file.keys:
            for place, entry in self._bucket(key):
                if entry is not None and entry.nonce == file.nonce and entry.key == key:
                    self._table.write(place, bytes(_SIZE))


def shard_key(*parts: object) -> bytes:
    """The key of a shard: another one for other parts."""
    return blake2b(repr(parts).encode(errors="surrogatepass"), 16).digest()


def _number(key: bytes) -> int:
    """The number by which a shard is claimed."""
    return int.from_bytes(key[:8], "little") >> 2


def _name(nonce: int) -> str:
    return f"stoker-shard-{nonce:016x}"


def _window(read: _ReadFile, entry: _Entry) -> PooledBuffer:
    return np.asarray(read)[entry.start : entry.start + entry.size].view(PooledBuffer)


_lock: Final = ProcessLock()
_by_process: Final[weakref.WeakValueDictionary[int, NodeShards]] = weakref.WeakValueDictionary()


def node_shards() -> NodeShards:
    """The shards of this node, which are there as long as anything in this process has them.

    StokerError or OSError if nothing can be shared here; says why.
    """
    with _lock:
        found = _by_process.get(os.getpid())
        if found is None:
            found = _by_process[os.getpid()] = NodeShards(open_table())
        return found
