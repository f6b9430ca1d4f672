"""Locks that tell other processes which files of a cache are in use, without a descriptor for each file.

A cache has one file ``.stoker/in_use``, of no bytes. A process that has files of the cache mapped holds it open once, with
a shared lock on one byte for each of them, whose offset is a hash of the file's name. The kernel drops the locks with the
process, however it ends. To remove a file, a process asks whether its byte is locked, and locks nothing. So readers wait for
nobody; a file that is mapped just before it is removed can still be read.

What is fetched to be mapped is marked from before its first byte on: a shard may be several files, and each would be removed
to make room for the next one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from stoker.concurrency.shared.byte_locks import is_byte_locked, lock_byte, unlock_byte
from stoker.digests import blake2b
from stoker.storage.files.own import PRIVATE

_End: TypeAlias = "weakref.finalize[Any, Any]"

_NAME: Final = "in_use"
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(slots=True)
class _Held:
    """The files of one cache that this process uses: the descriptor of the locks, and the number of maps for each byte."""

    descriptor: int
    maps: dict[int, int] = field(default_factory=dict)


_held: dict[Path, _Held] = {}
_lock = threading.Lock()
# Dropped maps, to be unlocked later: the garbage collector may drop one while this thread has the lock.
_dropped: deque[tuple[Path, int]] = deque()


# Ends of what threads of this process hold until it is open.
_opening: set[_End] = set()


def hold(root: Path, name: str, user: object) -> _End | None:
    """Mark a file of a cache as in use while ``user`` lives: its map, or what stands for who is about to map it.

    OSError if the process can not open one more file. Gives what ends it sooner, when called; ``None`` where nothing can be
    marked.
    """
    offset = lock_offset(name)
    with _lock:
        held = _held.get(root)
        if held is None:
            descriptor = _open(root)
            if descriptor is None:
                return None
            held = _held[root] = _Held(descriptor)
        maps = held.maps.get(offset, 0)
        if not maps:
            lock_byte(held.descriptor, offset, "shared")
        held.maps[offset] = maps + 1
        end = weakref.finalize(user, _drop, root, offset)
        end.atexit = False
    _settle()
    return end


class _Opener:
    """Stands for a thread that is about to map files."""

    __slots__ = ("__weakref__",)


@contextlib.contextmanager
def held(root: Path, names: Iterable[str]) -> Iterator[None]:
    """Mark files of a cache as in use, also those that are yet to be fetched: until this ends, and the files are mapped.

    OSError if the process can not open one more file.
    """
    opener, ends = _Opener(), list[_End]()
    try:
        for name in names:
            end = hold(root, name, opener)
            if end is not None:
                ends.append(end)
                _opening.add(end)
        yield
    finally:
        for end in ends:
            _opening.discard(end)
            end()


class Users:
    """Tells which files are in use. For one pass over files: it holds a descriptor for each cache that it has met."""

    def __init__(self) -> None:
        self._descriptors: dict[Path, int | None] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self._descriptors.values():
            if descriptor is not None:
                os.close(descriptor)
        self._descriptors.clear()

    def uses(self, path: Path) -> bool:
        """Whether a process has a file in use, as a file of any of the caches whose directories it is in."""
        for root in path.parents:
            if root not in self._descriptors:
                with contextlib.suppress(OSError):
                    self._descriptors[root] = os.open(root / PRIVATE / _NAME, _READ)
                self._descriptors.setdefault(root, None)
            descriptor = self._descriptors[root]
            if descriptor is not None and is_byte_locked(descriptor, lock_offset(path.relative_to(root).as_posix())):
                return True
        return False

    def remove(self, path: Path) -> bool:
        """Unlink a file unless a process has it in use; returns whether this call removed it."""
        if self.uses(path):
            return False
        try:
            os.unlink(path)
        except OSError:
            return False
        return True


def lock_offset(name: str) -> int:
    """The byte that stands for a file in files of locks."""
    return int.from_bytes(blake2b(name.encode(errors="surrogateescape"), 8).digest(), "little") >> 2


def _open(root: Path) -> int | None:
    """The file of locks, made if need be; ``None`` where it is not there and can not be made."""
    path = root / PRIVATE / _NAME
    for flags in (_READ, _READ | os.O_CREAT):
        try:
            return os.open(path, flags, 0o666)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise
    return None


def _drop(root: Path, offset: int) -> None:
    """Note that a map was dropped."""
    _dropped.append((root, offset))
    _settle()


def _settle() -> None:
    """Unlock dropped maps. If the lock is taken, its holder does so before it releases it."""
    while _dropped and _lock.acquire(blocking=False):
        try:
            while _dropped:
                root, offset = _dropped.popleft()
                held = _held.get(root)
                if held is None:
                    continue
                held.maps[offset] -= 1
                if held.maps[offset]:
                    continue
                del held.maps[offset]
                unlock_byte(held.descriptor, offset)
                if not held.maps:
                    del _held[root]
                    os.close(held.descriptor)
        finally:
            _lock.release()


def _after_fork_in_child() -> None:
    """Take locks of the child's own: locks shared with the parent would end when either of them drops a map."""
    global _lock
    _lock = threading.Lock()
    for root, held in list(_held.items()):
        mine = None
        with contextlib.suppress(OSError):
            mine = _open(root)
        os.close(held.descriptor)
        if mine is None:
            del _held[root]
            continue
        held.descriptor = mine
        for offset in held.maps:
            with contextlib.suppress(OSError):
                lock_byte(mine, offset, "shared")
    for end in _opening:  # of threads that are not here
        end()
    _opening.clear()
    _settle()


os.register_at_fork(after_in_child=_after_fork_in_child)
