"""Many files of this machine that are a sample each: listed as arrays, and remembered from one start to the next.

A remembered listing serves as long as no folder has changed. A folder changes when a file in it is made, removed, renamed
or replaced by another; so each is asked for its times and its inode, and no file. That a file was not written over is seen
when it is opened (:mod:`stoker.cache.disk.disk_cache`). A listing is remembered only where this can be relied on:

* on file systems that are known to keep the times of folders;
* where the last change of every folder was so long before the listing that a later one has another time.

Only plain directories are listed here: regular files and folders of usual names, without links. Of all others
:mod:`stoker.catalog.unindexed.find_files` makes the list, and says what is wrong with it.
"""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.catalog.splits import refuse_splits
from stoker.catalog.unindexed.file_facts import keep_side_file
from stoker.catalog.unindexed.find_files import images_beside
from stoker.concurrency.shared.bytes import SharedBytes, pack_arrays, unpack_arrays
from stoker.errors import ConfigError
from stoker.formats.format import Format
from stoker.formats.one_file import FileFormat
from stoker.index.file_index import WRITTEN, FileIndex, FileShards
from stoker.index.index import INDEX_NAME
from stoker.storage.files.mounts import LOCAL_FILE_SYSTEMS, file_system_of, read_shared
from stoker.storage.files.own import CACHE_NAME, PRIVATE, REMOVED_CACHE
from stoker.storage.recorded_versions import digest_of_lines, file_line
from stoker.storage.unfinished import MARK
from stoker.types import Ids

logger = logging.getLogger(__name__)

# The number at its end rises when the arrays or the header change.
_MAGIC: Final = b"stokfil\1"
# A folder that changed less than so many seconds before it was listed may change again within the same tick of its clock.
_SETTLED: Final = 5.0
# File systems that keep the times of folders. What is in user space (FUSE) makes them up, as object stores have none.
_KNOWN: Final = LOCAL_FILE_SYSTEMS | {"nfs", "nfs4", "lustre", "ceph"}
# Bytes of a folder's path for which no file in it can have too long a one.
_LONGEST: Final = 700
_FACTS: Final = [attrgetter(name) for name in ("st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")]


@dataclass(frozen=True, slots=True)
class PlainFiles:
    """The files of a plain directory.

    Attributes:
        index: their index.
        listed: see :class:`~stoker.catalog.location.DatasetLocation`.
        remembered: where the listing is remembered; ``None`` where it is not.
    """

    index: FileIndex
    listed: str
    remembered: Path | None


class _NotPlainError(Exception):
    """There is something that is no plain file or folder."""


def are_plain(reader: Format) -> bool:
    """Whether names of folders tell all of the files of a format: stoker's own formats with a sample a file."""
    kind = type(reader)
    return (
        isinstance(reader, FileFormat)
        and kind.inspect_names is FileFormat.inspect_names
        and kind.describe_shards is Format.describe_shards
        and not reader.beside
    )


def plain_files(
    reader: Format, root: str, settings: Mapping[str, Any], directory: Path, name: str
) -> PlainFiles | None:
    """All files of a format below a directory of this machine; ``None`` where that is not a plain one.

    ConfigError if the settings make no sense. ``reader``: the format; :func:`are_plain` holds of it. ``directory``: of the
    cache that the listing is remembered in. ``name``: of the listing there; another for other files or settings.
    """
    path = directory / PRIVATE / name
    found = read_shared(path, partial(_remembered, path, reader, root, settings))
    if found is not None:
        return found
    begun = time.time_ns()
    # They grow, as the pieces of all folders would take as much memory again.
    paths, facts = bytearray(), bytearray()
    folders: list[_Folder] = []
    try:
        for folder, its_paths, its_facts in _walk(root, reader):
            folders.append(folder)
            paths += its_paths
            facts += its_facts
        filled = [folder for folder in folders if folder.first]
        # One file of a folder tells of which split all in it are.
        refuse_splits((folder.first for folder in filled), root, folders_only=True)
    except (_NotPlainError, ConfigError, OSError, OverflowError):  # an inode may be beyond 63 bits
        return None
    if not filled:
        return None
    spec = reader.inspect_names([folder.first for folder in filled], settings)
    parts = FileShards.pack(*_in_order(paths, facts, filled))
    count = len(facts) // 8 // len(_FACTS)
    shards = FileShards(SharedBytes.of(parts), 0, count, reader.name, spec)
    index = FileIndex(shards)
    listed = digest_of_lines(shards.lines(file_line("%s", "%d", "file:%d"), WRITTEN))
    if not _settled(root, folders, begun):
        return PlainFiles(index, listed, None)
    header = {
        "spec": spec,
        "files": len(shards),
        "fingerprint": index.fingerprint,
        "listed": listed,
        "folders": [(folder.prefix, folder.first, *folder.times) for folder in folders],
    }
    kept = keep_side_file(directory, root, name, pack_arrays(_MAGIC, header, parts))
    return PlainFiles(index, listed, path if kept else None)


@dataclass(frozen=True, slots=True)
class _Folder:
    """A folder of plain files.

    Attributes:
        prefix: its path below the root, with a slash at the end; empty for the root.
        times: when it changed, in nanoseconds by both clocks of its status, and its inode, before it was listed.
        device: number of its file system.
        first: path of its first file; empty where it has none.
    """

    prefix: str
    times: tuple[int, int, int]
    device: int
    first: str


def _times(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _walk(root: str, reader: Format) -> Iterator[tuple[_Folder, bytes, bytes]]:
    """All folders below a plain directory that are not hidden, in the order of their prefixes.

    Yields a folder, the paths of its files in order, as UTF-8, each ended by a zero byte, and their facts, see
    :class:`~stoker.index.file_index.FileShards`.
    """
    suffixes, others = reader.file_suffixes, images_beside(reader)
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        path = f"{root}/{prefix}"
        status = os.stat(path)  # before it is read: what changes meanwhile is a change since
        with os.scandir(path) as found:
            entries = list(found)
        files = [entry for entry in entries if entry.is_file(follow_symlinks=False)]
        files.sort(key=attrgetter("name"))
        if len(files) < len(entries):
            waiting += sorted(_folders_among(entries, prefix), reverse=True)
        names = [entry.name for entry in files]
        if len(prefix.encode()) > _LONGEST or not _are_usual(names) or (not prefix and INDEX_NAME in names):
            raise _NotPlainError
        if suffixes or any(name.startswith(mark) for mark in "._" for name in names[bisect_left(names, mark) :][:1]):
            lowered = [name.lower() for name in names]
            if others and any(name.endswith(others) for name in lowered):
                raise _NotPlainError
            files = [
                entry
                for entry, name in zip(files, lowered, strict=True)
                if not _is_hidden(entry.name) and (not suffixes or name.endswith(suffixes))
            ]
            names = [entry.name for entry in files]
        statuses = [entry.stat(follow_symlinks=False) for entry in files]
        facts = np.empty((len(files), len(_FACTS)), np.int64)
        for column, fact in enumerate(_FACTS):
            facts[:, column] = np.fromiter(map(fact, statuses), np.int64, len(files))
        paths = "".join([f"{prefix}{name}\0" for name in names]).encode()
        folder = _Folder(prefix, _times(status), status.st_dev, prefix + names[0] if names else "")
        yield folder, paths, facts.tobytes()


def _folders_among(entries: Sequence[os.DirEntry[str]], prefix: str) -> Iterator[str]:
    """Prefixes of the folders among the entries of a folder that are not hidden."""
    for entry in entries:
        if entry.is_file(follow_symlinks=False):
            continue
        if not entry.is_dir(follow_symlinks=False):
            raise _NotPlainError
        if not _is_hidden(entry.name):
            if not _are_usual([entry.name]) or CACHE_NAME.match(entry.name) or REMOVED_CACHE.match(entry.name):
                raise _NotPlainError
            yield f"{prefix}{entry.name}/"


def _is_hidden(name: str) -> bool:
    """Whether readers ignore a file or folder of this name."""
    if name[0] not in "._":
        return False
    if name == MARK or (name[0] == "_" and "=" in name):
        raise _NotPlainError
    return True


def _are_usual(names: Sequence[str]) -> bool:
    """Whether names are such that nobody need look at them one by one."""
    text = "".join(names)
    return text.isprintable() and "\\" not in text and ":" not in text


def _in_order(paths: bytearray, facts: bytearray, filled: Sequence[_Folder]) -> tuple[bytes | bytearray, Ids]:
    """Paths and facts of all files of folders, which come in the order of their prefixes, in the order of their paths."""
    table = np.frombuffer(facts, np.int64).reshape(-1, len(_FACTS))
    if not any(after.prefix.startswith(before.prefix) for before, after in pairwise(filled)):
        return paths, table
    each = paths.split(b"\0")[:-1]
    order = sorted(range(len(each)), key=each.__getitem__)  # bytes of UTF-8 are in the order of characters
    return b"".join([each[number] + b"\0" for number in order]), table[order]


def _settled(root: str, folders: Sequence[_Folder], begun: int) -> bool:
    """Whether any later change of a folder will be seen by its times."""
    last = max(max(folder.times[:2]) for folder in folders)
    return (
        last < begun - _SETTLED * 1e9
        and len({folder.device for folder in folders}) == 1
        and file_system_of(root) in _KNOWN
    )


def _remembered(
    path: Path, reader: Format, root: str, settings: Mapping[str, Any], data: SharedBytes
) -> PlainFiles | None:
    """The listing that is remembered, if all folders are as they were."""
    header, at = unpack_arrays(_MAGIC, data)
    device = os.stat(root).st_dev
    for prefix, _, *times in header["folders"]:
        status = os.stat(f"{root}/{prefix}")
        if [*_times(status)] != times or status.st_dev != device:
            return None
    if file_system_of(root) not in _KNOWN:
        return None
    spec = reader.inspect_names([first for _, first, *_ in header["folders"] if first], settings)
    if spec != header["spec"]:
        return None
    shards = FileShards(data, at, header["files"], reader.name, spec)
    return PlainFiles(FileIndex(shards, header["fingerprint"]), header["listed"], path)
