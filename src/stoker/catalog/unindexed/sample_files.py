"""Files that are a sample each, listed as arrays: those of a directory, and very many objects of a store.

A listing is all that there is to know of them. It is kept in a file of the cache, which all processes of a machine map.

Of a directory, a kept listing serves as long as no folder has changed. A folder changes when a file in it is made, removed,
renamed or replaced by another; so each is asked for its times and its inode, and no file. That a file was not written over is
seen when it is opened (:mod:`stoker.cache.disk.disk_cache`). A listing is kept only where this can be relied on:

* on file systems that are known to keep the times of folders;
* where the last change of every folder was so long before the listing that a later one has another time.

Of a store, each start lists all the same: it tells in no other way that an object was replaced. The kept listing serves
where the store can not be reached.

Only plain directories are listed here: regular files and folders of usual names, without links; and only objects that are
many, and of such names. Of all others :mod:`stoker.catalog.unindexed.find_files` makes the list, and says what is wrong with
it.
"""

from __future__ import annotations

import heapq
import logging
import os
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, islice, pairwise, repeat
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.catalog.splits import refuse_splits
from stoker.catalog.unindexed.file_facts import keep_side_file
from stoker.catalog.unindexed.find_files import images_beside
from stoker.concurrency.shared.bytes import SharedBytes, pack_arrays, unpack_arrays
from stoker.errors import ConfigError, StorageTimeoutError
from stoker.formats.common.checks import check_basename
from stoker.formats.format import Format
from stoker.formats.one_file import FileFormat
from stoker.index.file_index import WRITTEN, FileShards, ObjectShards, SampleFiles
from stoker.index.index import INDEX_NAME, Index
from stoker.storage import ObjectInfo, Store
from stoker.storage.files.mounts import LOCAL_FILE_SYSTEMS, file_system_of, read_shared
from stoker.storage.files.own import CACHE_NAME, PRIVATE, REMOVED_CACHE
from stoker.storage.unfinished import MARK
from stoker.storage.url import is_hidden
from stoker.storage.versions import digest_of_lines, file_line, version_of_files
from stoker.types import Ids

logger = logging.getLogger(__name__)

# The number at the end rises when the arrays or the header change.
_OF_FILES: Final = b"stokfil\2"
_OF_OBJECTS: Final = b"stokobj\1"
MANY: Final = 1 << 16
"""Objects from which on they are held as arrays."""
_PIECE: Final = 1 << 16
# A folder that changed less than so many seconds before it was listed may change again within the same tick of its clock.
_SETTLED: Final = 5.0
# File systems that keep the times of folders. What is in user space (FUSE) makes them up, as object stores have none.
_KNOWN: Final = LOCAL_FILE_SYSTEMS | {"nfs", "nfs4", "lustre", "ceph"}
# Bytes of a folder's path for which no file in it can have too long a one.
_LONGEST: Final = 700
_FACTS: Final = [attrgetter(name) for name in ("st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")]


@dataclass(frozen=True, slots=True)
class ListedFiles:
    """The files of a listing.

    Attributes:
        shards: a shard each.
        listed: see :class:`~stoker.catalog.location.DatasetLocation`.
        remembered: where the listing of a directory is kept; ``None`` where it is not.
        replaced: objects that were listed at the last start, and are gone or others now.
    """

    shards: SampleFiles
    index: Index
    listed: str
    remembered: Path | None = None
    replaced: Iterable[ObjectInfo] = ()

    @classmethod
    def of(cls, shards: SampleFiles, listed: str, fingerprint: str | None = None) -> ListedFiles:
        """Files without hashes, which have no content to compare."""
        return cls(shards, Index.checked(shards, {}, fingerprint, {}), listed)

    def keep(self, magic: bytes, directory: Path, where: str, name: str, parts: Sequence[Any], **more: Any) -> bool:
        """Keep the listing, of which ``parts`` are the arrays, and ``more`` is in the header; whether it could be kept."""
        header = {
            "spec": self.shards.spec,
            "files": len(self.shards),
            "fingerprint": self.index.fingerprint,
            "listed": self.listed,
        }
        return keep_side_file(directory, where, name, pack_arrays(magic, {**header, **more}, parts))


class _NotPlainError(Exception):
    """There is something that :mod:`~stoker.catalog.unindexed.find_files` must look at."""


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
    reader: Format, root: str, settings: Mapping[str, Any], directory: Path, name: str, *, remembered: bool = True
) -> ListedFiles | None:
    """All files of a format below a directory of this machine; ``None`` where that is not a plain one.

    ConfigError if the settings make no sense. ``reader``: the format; :func:`are_plain` holds of it. ``directory``: of the
    cache that the listing is kept in. ``name``: of the listing there; another for other files or settings. ``remembered``:
    whether the one that is kept serves.
    """
    path = directory / PRIVATE / name
    found = read_shared(path, partial(_remembered, path, reader, root, settings)) if remembered else None
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
    shards = FileShards(SharedBytes.of(parts), 0, len(facts) // 8 // len(_FACTS), reader.name, spec)
    made = ListedFiles.of(shards, digest_of_lines(shards.lines(file_line("%s", "%d", "file:%d"), WRITTEN)))
    told = [(folder.prefix, folder.first, *folder.times) for folder in folders]
    if _settled(root, folders, begun) and made.keep(_OF_FILES, directory, root, name, parts, folders=told):
        return replace(made, remembered=path)
    return made


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


def _in_order(
    paths: bytearray, facts: bytearray, filled: Sequence[_Folder]
) -> tuple[list[bytes | bytearray], list[Ids]]:
    """Paths and facts of all files of folders, which come in the order of their prefixes, in the order of their paths."""
    table = np.frombuffer(facts, np.int64).reshape(-1, len(_FACTS))
    if not any(after.prefix.startswith(before.prefix) for before, after in pairwise(filled)):
        return [paths], [table]
    each = paths.split(b"\0")[:-1]
    order = sorted(range(len(each)), key=each.__getitem__)  # bytes of UTF-8 are in the order of characters
    return [b"".join([each[number] + b"\0" for number in order])], [table[order]]


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
) -> ListedFiles | None:
    """The listing that is kept, if all folders are as they were."""
    header, at = unpack_arrays(_OF_FILES, data)
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
    return replace(ListedFiles.of(shards, header["listed"], header["fingerprint"]), remembered=path)


def many_objects(
    reader: Format, store: Store, settings: Mapping[str, Any], directory: Path, name: str
) -> ListedFiles | Iterable[ObjectInfo] | None:
    """All objects of a format in a store, where they are very many.

    Args:
        reader: the format; :func:`are_plain` holds of it.
        directory: of the cache that the listing is kept in.
        name: of the listing there; another for other objects or settings.

    Returns:
        The listing as it is, where it is short; ``None`` where it is long and needs a closer look.

    Raises:
        ConfigError: the settings make no sense, or the folders are splits.
        StorageTimeoutError: the store can not be reached, and no listing is kept.
    """
    path = directory / PRIVATE / name
    load = partial(_kept, reader)
    before = read_shared(path, load)
    try:
        listing = store.list()
        first = list(islice(listing, MANY))
        if len(first) < MANY:
            return first
        texts, sizes, folders = _packed(reader, chain(first, listing))
        del first
    except StorageTimeoutError as error:
        if before is None:
            raise
        logger.warning("%s; using what was listed at the last start", error)
        return before
    except _NotPlainError:
        return None
    refuse_splits(folders, store.url, folders_only=True)
    spec = reader.inspect_names(folders, settings)
    count = sum(map(len, sizes))
    parts = ObjectShards.pack(texts, sizes)
    del texts, sizes
    shards = ObjectShards(SharedBytes.of(parts), 0, count, reader.name, spec)
    made = ListedFiles.of(shards, version_of_files(shards.objects()))
    if before is not None and before.listed == made.listed and before.shards.spec == spec:
        return before
    made.keep(_OF_OBJECTS, directory, store.url, name, parts)
    kept = read_shared(path, load)
    if kept is None or kept.listed != made.listed:  # it can not be kept, or another process wrote one meanwhile
        kept = made
    return kept if before is None else replace(kept, replaced=_replaced(before.shards, shards))


def _packed(reader: Format, listing: Iterable[ObjectInfo]) -> tuple[list[bytes], list[Any], list[str]]:
    """Texts and sizes of the objects, for :meth:`ObjectShards.pack`, and the first key in each folder."""
    suffixes, images = reader.file_suffixes, images_beside(reader)
    texts: list[bytes] = []
    sizes: list[Any] = []
    folders: dict[str, str] = {}
    last = ""
    listing = iter(listing)
    while piece := list(islice(listing, _PIECE)):
        chosen = []
        for one in piece:
            key = one.key
            if suffixes and not key.lower().endswith(suffixes):
                if key.endswith(MARK) or (images and key.lower().endswith(images)):
                    raise _NotPlainError
                continue
            if key.endswith(MARK):
                raise _NotPlainError
            if is_hidden(key) or key == INDEX_NAME:
                continue
            if key <= last or check_basename(key) is not None:
                raise _NotPlainError
            last = key
            folders.setdefault(key[: key.rfind("/") + 1], key)
            chosen.append(one)
        text = "".join([f"{one.key}\0{one.version}\0" for one in chosen])
        if text.count("\0") != 2 * len(chosen):
            raise _NotPlainError
        texts.append(text.encode())
        sizes.append(np.array([one.size for one in chosen], np.int64))
    if not folders:
        raise _NotPlainError
    return texts, sizes, list(folders.values())


def _kept(reader: Format, data: SharedBytes) -> ListedFiles:
    """The listing that is kept."""
    header, at = unpack_arrays(_OF_OBJECTS, data)
    shards = ObjectShards(data, at, header["files"], reader.name, header["spec"])
    return ListedFiles.of(shards, header["listed"], header["fingerprint"])


def _replaced(*shards: SampleFiles) -> Iterator[ObjectInfo]:
    """Objects of the first of two listings that the second, also in order, has not, or in another version."""
    objects = (one.objects() for one in shards if isinstance(one, ObjectShards))
    sides = [zip(each, repeat(side)) for side, each in enumerate(objects)]
    for _, each in groupby(heapq.merge(*sides, key=_key), key=_key):
        found = {side: one for one, side in each}
        if 0 in found and found.get(1) != found[0]:
            yield ObjectInfo(*found[0])


def _key(told: tuple[tuple[str, int, str], int]) -> str:
    return told[0][0]
