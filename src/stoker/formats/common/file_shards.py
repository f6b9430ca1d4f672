"""Files without an index as shards: what is known of each, which bytes a shard is read from, and its name in a cache."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stoker.digests import blake2b
from stoker.errors import CorruptDataError
from stoker.formats.base import NO_HASHES, UNKNOWN, FileInfo, FilePart, ShardInfo
from stoker.formats.common.compression import codec_of, unpacked_name
from stoker.storage import ObjectInfo
from stoker.storage.versions import stable_version
from stoker.types import Array, Ids


def file_mark(file: ObjectInfo) -> tuple[str, int, str]:
    """Key, size and version of a file, which tell it from one that replaces it between two runs."""
    return file.key, file.size, stable_version(file.version)


@dataclass(frozen=True, slots=True, eq=False)
class UnindexedFile:
    """A file of a dataset without an index, and the facts that its header tells.

    Attributes:
        file: its key relative to the dataset's root, its size and its version.
        spec: what its format needs to read it; JSON values. Files that are alike share one.
        spans: the shards that it is read as; int64, shape ``(shards, numbers)``. The numbers are first byte, end and
            samples, unless the format describes its shards itself. No shards stand for one, which is all of the file.
        beside: files that belong to it, as its format has them; the last of them holds the data, then.
        unpacked: bytes of what comes out of a compressed file, which ``spans`` are of; ``None`` for others.
    """

    file: ObjectInfo
    samples: int
    spec: Mapping[str, Any]
    spans: Ids
    beside: tuple[ObjectInfo, ...] = ()
    unpacked: int | None = None

    @property
    def key(self) -> str:
        """Its path relative to the dataset's root."""
        return self.file.key

    @property
    def files(self) -> tuple[ObjectInfo, ...]:
        """The file and those that belong to it."""
        return (self.file, *self.beside)

    @property
    def shards(self) -> int:
        """Number of shards that the file is read as."""
        return len(self.spans) or int(self.samples > 0)

    @property
    def mark(self) -> tuple[tuple[str, int, str], ...]:
        """The marks of the file and of those that belong to it."""
        return tuple(map(file_mark, self.files))


@dataclass(frozen=True, slots=True)
class SpanDetail:
    """The span of a file that is a shard; see :class:`stoker.formats.base.ShardDetail`.

    Attributes:
        bytes: of the span.
        identity: tells it from other spans of other files.
        first: number of its first sample in the file.
    """

    bytes: int
    identity: str
    first: int


def describe_file(
    format_name: str, one: UnindexedFile, spec: Mapping[str, Any], *, in_place: bool
) -> Iterator[ShardInfo]:
    """The shards of a file: one, or as many as it has spans; those of a compressed one are windows of what comes out of it.

    CorruptDataError if the file's data ends before its last span does. ``spec``: of all files together. ``in_place``: whether
    files are mapped where they lie.
    """
    *heads, data = one.files
    before = tuple(whole_file(file, in_place=in_place) for file in heads)
    if not len(one.spans) and one.unpacked is None:
        yield ShardInfo(format_name, one.samples, (*before, whole_file(data, in_place=in_place)), (), None, spec)
        return
    if one.unpacked is None and one.spans[-1, 1] > data.size:
        raise CorruptDataError(
            f"{data.key} has {data.size} bytes, but its samples end at byte {one.spans[-1, 1]}. Was it written to the end?"
        )
    kind, of = blake2b(repr(spec).encode(), 8).hexdigest(), "" if one.unpacked is None else f" of {one.unpacked}"
    zipped: tuple[FileInfo, ...] = ()
    first = 0
    for start, end, samples in one.spans.tolist() or ((0, one.unpacked or 0, one.samples),):
        if one.unpacked is not None:
            raw, packed = packed_file(data, one.unpacked, start, end)
            zipped = (packed,)
        else:
            part = FilePart(data.key, data.size, data.version, (start,), (end,), in_place=in_place)
            name = data.key if in_place else f"{_cached(data)}.pieces/{start}-{end}"
            raw = FileInfo(name, end - start, NO_HASHES, part)
        detail = SpanDetail(end - start, f"{data.key}\0{data.size}\0{start}-{end}{of}\0{kind}", first)
        codec = codec_of(data.key) if zipped else None
        yield ShardInfo(format_name, samples, (*before, raw), zipped, codec, spec, detail)
        first += samples


def span_bytes(info: ShardInfo, data: Array, where: str) -> Array:
    """The bytes of a shard that is a span, from what was opened: the span itself, or the window that it is mapped in.

    CorruptDataError if it is not as long as it should be. ``info``: the shard's description; its last file is the one that
    has spans. ``data``: what was opened of that file; uint8.
    """
    part: FilePart | None = info.raw[-1].part
    skip = part.starts[0] - part.window[0] if part is not None and part.in_place else 0
    found = data[skip:]
    if len(found) != info.raw[-1].bytes:
        raise CorruptDataError(
            f"{where}: the file has {len(found)} bytes, and had {info.raw[-1].bytes} when it was indexed"
        )
    return found


def packed_file(file: ObjectInfo, size: int = UNKNOWN, start: int = 0, end: int = 0) -> tuple[FileInfo, FileInfo]:
    """A window of what comes out of a compressed file, in the cache, and the file itself.

    ``file``: the compressed file. ``size``: bytes of all that comes out of it; :data:`~stoker.formats.base.UNKNOWN` for all
    of it, whatever that is. ``start``: first byte of the window. ``end``: the byte after its last.
    """
    stem, suffix = os.path.splitext(unpacked_name(file.key))
    part = FilePart(file.key, size, "", (start,), (end,), in_place=True)
    return FileInfo(f"{stem}.{_mark(file)}{suffix}", end - start, NO_HASHES, part), whole_file(file, in_place=False)


def whole_file(file: ObjectInfo, *, in_place: bool) -> FileInfo:
    """A file that is read whole. That it is still the one that was found is checked when it is mapped or fetched."""
    part = FilePart(file.key, file.size, file.version, (0,), (file.size,), in_place=in_place)
    return FileInfo(file.key if in_place else _cached(file), file.size, NO_HASHES, part)


def _cached(file: ObjectInfo) -> str:
    """A file's name in a cache: its own, and what tells it from one that replaces it."""
    if not file.version:
        return file.key
    stem, suffix = os.path.splitext(file.key)
    return f"{stem}.{_mark(file)}{suffix}"


def _mark(file: ObjectInfo) -> str:
    """The part of a name that tells a file from one that replaces it."""
    return blake2b(f"{stable_version(file.version)}\0{file.size}".encode(), 8).hexdigest()
