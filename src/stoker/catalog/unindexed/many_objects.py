"""Very many objects of a store that are a sample each: listed as arrays, which all processes of a machine map.

A listing is all that there is to know of them. It is kept in a file of the cache, so that processes share one copy, and so
that it serves where the store can not be reached. Each start lists all the same: an object store tells in no other way that
an object was replaced. Few objects, and listings that need a closer look, are for
:mod:`stoker.catalog.unindexed.find_files`.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, islice, repeat
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.catalog.splits import refuse_splits
from stoker.catalog.unindexed.file_facts import keep_side_file
from stoker.catalog.unindexed.find_files import images_beside
from stoker.concurrency.shared.bytes import SharedBytes, cut_arrays, pack_arrays, unpack_arrays
from stoker.errors import StorageTimeoutError
from stoker.formats.base import ShardInfo
from stoker.formats.common.checks import check_basename
from stoker.formats.common.file_shards import whole_file
from stoker.formats.format import Format
from stoker.index.file_index import FileIndex, SampleFiles
from stoker.index.index import INDEX_NAME
from stoker.storage import ObjectInfo, Store
from stoker.storage.files.mounts import read_shared
from stoker.storage.files.own import PRIVATE
from stoker.storage.recorded_versions import version_of_files
from stoker.storage.unfinished import MARK
from stoker.storage.url import is_hidden
from stoker.types import Ids

_CHUNK: Final = 4096

logger = logging.getLogger(__name__)
MANY: Final = 1 << 16
"""Objects from which on they are held as arrays."""
# The number at its end rises when the arrays or the header change.
_MAGIC: Final = b"stokobj\1"
_PIECE: Final = 1 << 16


class ObjectShards(SampleFiles):
    """Objects of a store.

    The memory holds the end of each object's text (int64), its bytes (int64), and the texts as UTF-8: key and version, each
    ended by a zero byte.
    """

    def __init__(self, data: SharedBytes, at: int, count: int, format: str, spec: Mapping[str, Any]) -> None:  # noqa: A002
        super().__init__(data, at, count, format, spec)
        self._ends, self._sizes, self._texts = cut_arrays(data.view, at, [("q", count), ("q", count)])
        self.file_bytes = np.frombuffer(self._sizes, np.int64)
        ends = np.frombuffer(self._ends, np.int64)
        if (
            min(self.file_bytes.min(), ends[0]) < 0
            or bool((ends[1:] <= ends[:-1]).any())
            or ends[-1] != len(self._texts)
        ):
            raise ValueError("the arrays of objects do not go together")

    @staticmethod
    def pack(texts: Sequence[bytes], sizes: Sequence[Ids]) -> list[bytes | memoryview]:
        """The bytes that the memory holds, in parts.

        ``texts``: key and version of each object, both ended by a zero byte, in any number of pieces of whole objects.
        ``sizes``: bytes of each object, in the same pieces.
        """
        ends, begin = [], 0
        for piece in texts:
            zeros = np.flatnonzero(np.frombuffer(piece, np.uint8) == 0)
            ends.append(zeros[1::2] + (begin + 1))
            begin += len(piece)
        return [*(one.astype(np.int64).data.cast("B") for one in (*ends, *sizes)), *texts]

    def size(self, number: int) -> int:
        """An object's bytes."""
        return self._sizes[number]

    def lines(self, template: str) -> Iterator[str]:
        """See :class:`~stoker.index.file_index.SampleFiles`."""
        for chunk in self.chunks():
            yield "".join([template % (key, size) for key, size, _ in chunk])

    def chunks(self) -> Iterator[Iterator[tuple[str, int, str]]]:
        """Key, size and version of some thousand objects at a time, all in order."""
        begin = 0
        for low in range(0, len(self), _CHUNK):
            high = min(len(self), low + _CHUNK)
            end = self._ends[high - 1]
            texts = str(self._texts[begin:end], "utf-8").split("\0")
            yield zip(texts[0:-1:2], self.file_bytes[low:high].tolist(), texts[1:-1:2], strict=True)
            begin = end

    def _get(self, number: int) -> ShardInfo:
        text = str(self._texts[self._ends[number - 1] if number else 0 : self._ends[number]], "utf-8")
        key, version, _ = text.split("\0")
        file = ObjectInfo(key, self._sizes[number], version)
        return ShardInfo(self.format, 1, (whole_file(file, in_place=False),), (), None, self.spec)


@dataclass(frozen=True, slots=True)
class ManyObjects:
    """The objects.

    Attributes:
        index: their index.
        shards: its shards.
        listed: see :class:`~stoker.catalog.location.DatasetLocation`.
        replaced: objects that were listed at the last start, and are gone or others now.
    """

    index: FileIndex
    shards: ObjectShards
    listed: str
    replaced: Iterable[ObjectInfo] = ()


class _NotPlainError(Exception):
    """Objects that :mod:`~stoker.catalog.unindexed.find_files` must look at."""


def many_objects(
    reader: Format, store: Store, settings: Mapping[str, Any], directory: Path, name: str
) -> ManyObjects | Iterable[ObjectInfo] | None:
    """All objects of a format in a store, where they are very many.

    Args:
        reader: the format; :func:`~stoker.catalog.unindexed.plain_files.are_plain` holds of it.
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
    listed = version_of_files(chain.from_iterable(shards.chunks()))
    if before is not None and before.listed == listed and before.index.shards.spec == spec:
        return before
    index = FileIndex(shards)
    header = {"spec": spec, "files": count, "fingerprint": index.fingerprint, "listed": listed}
    replaced = () if before is None else _replaced(before.shards, shards)
    keep_side_file(directory, store.url, name, pack_arrays(_MAGIC, header, parts))
    kept = read_shared(path, load)
    if kept is None or kept.listed != listed:  # it can not be kept, or another process wrote one meanwhile
        kept = ManyObjects(index, shards, listed)
    return replace(kept, replaced=replaced)


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


def _kept(reader: Format, data: SharedBytes) -> ManyObjects:
    """The listing that is kept."""
    header, at = unpack_arrays(_MAGIC, data)
    shards = ObjectShards(data, at, header["files"], reader.name, header["spec"])
    return ManyObjects(FileIndex(shards, header["fingerprint"]), shards, header["listed"])


def _replaced(before: ObjectShards, now: ObjectShards) -> Iterator[ObjectInfo]:
    """Objects of one listing that another, also in order, has not, or in another version."""
    sides = [zip(chain.from_iterable(shards.chunks()), repeat(side)) for side, shards in enumerate((before, now))]
    for _, each in groupby(heapq.merge(*sides, key=_key), key=_key):
        found = {side: one for one, side in each}
        if 0 in found and found.get(1) != found[0]:
            yield ObjectInfo(*found[0])


def _key(told: tuple[tuple[str, int, str], int]) -> str:
    return told[0][0]
