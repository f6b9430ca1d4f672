"""Counts the bytes that a cache holds, and divides a limit among caches.

The count is in a file next to the downloads and is written under its lock, so that a download need not list the
files that are there. It can only be too high (a killed process reserved space and did not use it); then the files are
counted again.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from stoker.cache.disk.in_use import Users
from stoker.errors import ConfigError
from stoker.index.index import INDEX_NAME
from stoker.storage.files.own import PRIVATE, open_own
from stoker.storage.files.part_files import PART, release, remove_unlocked, try_lock
from stoker.types import Ids

logger = logging.getLogger(__name__)

_PART_NAME = re.compile(r"(?P<name>.+?)(?:\.[0-9a-f]{16})?" + re.escape(PART))
# A directory must hold the shard that is read and the next one.
_LEAST_SHARDS = 2
# An eviction frees at least this part of the limit, so that files are seldom counted.
_SLACK = 32


class CacheQuota:
    """The limit of one cache, and the bytes that its files take.

    ``private``: the directory below it where files are made; it must be there before :meth:`take`. ``limit``: most bytes of
    shard files, those under way included. ``patience``: seconds to wait for a process that has the count locked. ``known``:
    basename to size of every file of the dataset, for those that are being made. All files below the root and outside of the
    private directory are counted and may be removed, but the index.

    ``others``: gives directories of other versions of the dataset, which count, too.
    """

    def __init__(
        self,
        root: Path,
        private: Path,
        limit: int,
        patience: float,
        known: Callable[[], Mapping[str, int]],
    ) -> None:
        self.limit = limit
        self._root = root
        self._private = private
        self._patience = patience
        self._known = known
        self._sizes: Mapping[str, int] | None = None
        self._counted = False
        self.others: Callable[[], Iterable[Path]] = tuple

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_sizes": None, "_counted": False}

    def take(self, needed: int, *, evict: bool = True) -> bool:
        """Reserve space for a file that is about to be made, removing files that are not in use if ``evict``.

        The caller holds the lock of the file's part file, and so is seen by others that count. OSError if the count can not
        be kept in this directory. Gives whether there was space. If not, the caller does not make the file, or exceeds the
        limit.
        """
        with self._count() as descriptor:
            used = _read(descriptor) if self._counted else None
            if used is None or used + needed > self.limit:
                used = self._evict() if evict else self._files()[0]
                self._counted = True
            else:
                used += needed
            os.pwrite(descriptor, used.to_bytes(8, "little"), 0)
            return used <= self.limit

    def _files(self) -> tuple[int, list[tuple[int, int, Path]]]:
        """Bytes of all files, those under way included; and those that are whole: when each was last mapped, bytes, path."""
        if self._sizes is None:
            self._sizes = self._known()
        used = 0
        candidates: list[tuple[int, int, Path]] = []
        # Files that are being made are counted first: one that is renamed in between is counted twice, not missed.
        for path, status in files_below(self._private):
            match = _PART_NAME.fullmatch(path.name)
            if match is not None and not remove_unlocked(path):
                # It counts with its full size, although it has less so far.
                used += self._sizes.get(unquote(match["name"]), status.st_size)
        for root in (self._root, *self.others()):
            for path, status in shard_files(root):
                used += status.st_size
                candidates.append((status.st_mtime_ns, status.st_size, path))
        return used, candidates

    def _evict(self) -> int:
        """Count the files, evict as many as needed; returns the bytes that are left."""
        used, candidates = self._files()
        if used > self.limit:
            with Users() as users:
                # Those opened longest ago first, of those opened at one time the small ones.
                for _, size, path in sorted(candidates):
                    if used <= self.limit - self.limit // _SLACK:
                        break
                    if users.remove(path):
                        used -= size
        return used

    @contextlib.contextmanager
    def _count(self) -> Iterator[int]:
        """The file of the count, locked."""
        path = self._private / "room"
        descriptor = open_own(path)
        try:
            end = time.monotonic() + self._patience
            while not try_lock(descriptor, fcntl.LOCK_EX):
                if time.monotonic() > end:
                    logger.warning("a process has held %s for %g s; continuing without it", path, self._patience)
                    break
                time.sleep(0.002)
            yield descriptor
        finally:
            release(descriptor)


def _read(descriptor: int) -> int | None:
    data = os.pread(descriptor, 8, 0)
    return int.from_bytes(data, "little") if len(data) == 8 else None


def shard_files(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every file of a cache directory that is a copy of a dataset's file: all but the index and the private directory."""
    for path, status in files_below(root):
        name = path.relative_to(root)
        if name.parts[0] != PRIVATE and name != Path(INDEX_NAME):
            yield path, status


def files_below(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every regular file below ``root``; files that vanish meanwhile are passed over."""
    stack = [root]
    while stack:
        try:
            entries = list(os.scandir(stack.pop()))
        except OSError:
            continue
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    stack.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    yield Path(entry.path), entry.stat(follow_symlinks=False)


def divide_limit(limit: int, shard_bytes: Sequence[Ids], names: Sequence[str]) -> list[int]:
    """Divide a limit among cache directories: equal parts, but none more than it can fill, and each at least two shards.

    A stream uses a fixed number of shards at a time, whatever its size, so parts by size would starve the small
    streams of a mixture, which are repeated most often. The large ones get what the small ones do not fill.

    ConfigError if the limit can not hold two of the largest shards of each. ``shard_bytes``: for each directory, bytes of
    each of its shards. Gives bytes for each; their sum is at most ``limit``.
    """
    totals = [int(sizes.sum()) for sizes in shard_bytes]
    least = [
        min(total, _LEAST_SHARDS * int(sizes.max(initial=0))) for total, sizes in zip(totals, shard_bytes, strict=True)
    ]
    if sum(least) > limit:
        worst = max(range(len(least)), key=least.__getitem__)
        raise ConfigError(
            f"cache_limit={limit} can not hold two shards of each of {len(least)} caches, which take {sum(least)} bytes; "
            f"{names[worst]} takes most of them, {least[worst]}"
        )
    spare = limit - sum(totals)
    if spare >= 0:
        return [total + spare // len(totals) for total in totals]

    def parts(level: int) -> list[int]:
        return [max(low, min(level, high)) for low, high in zip(least, totals, strict=True)]

    # Water filling: the highest equal level that the limit allows.
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if sum(parts(middle)) <= limit else (low, middle - 1)
    return parts(low)
