"""Files that others wrote as shards: which bytes of which file each is read from, and what it is called in a cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from stoker.catalog.unindexed.file_facts import UnindexedFile
from stoker.catalog.unindexed.found_files import FoundFile
from stoker.errors import CorruptDataError
from stoker.formats.base import UNKNOWN, FileInfo, FilePart, ShardInfo
from stoker.formats.common.compression import codec_of
from stoker.formats.common.inspect_header import PieceDetail
from stoker.storage.versions import stable_version

__all__ = ["describe_file", "packed_file", "whole_file"]

_NO_HASHES: Final[Mapping[str, str]] = {}


def describe_file(
    format_name: str, one: UnindexedFile, spec: Mapping[str, Any], *, in_place: bool
) -> Iterator[ShardInfo]:
    """The shards of a file: one, or as many as it has pieces.

    Args:
        format_name: the files' format.
        one: the file.
        spec: of all files together.
        in_place: whether files are mapped where they lie.

    Raises:
        CorruptDataError: the file's data ends before its last piece does.
    """
    file = FoundFile(one.key, one.size, one.version)
    if one.unpacked is not None:
        yield from _unpacked_shards(format_name, one, file, spec)
        return
    *heads, data = file, *one.beside
    if not one.pieces:
        files = tuple(whole_file(file, in_place=in_place) for file in (*heads, data))
        yield ShardInfo(format_name, one.samples, files, (), None, spec)
        return
    if one.pieces[-1][1] > data.size:
        raise CorruptDataError(
            f"{data.key} has {data.size} bytes, but its samples end at byte {one.pieces[-1][1]}. Was it written to the end?"
        )
    before = tuple(whole_file(file, in_place=in_place) for file in heads)
    kind = _kind(spec)
    first = 0
    for start, end, samples in one.pieces:
        part = FilePart(data.key, data.size, data.version, (start,), (end,), in_place=in_place)
        name = data.key if in_place else f"{_cached(data)}.pieces/{start}-{end}"
        detail = PieceDetail(end - start, f"{data.key}\0{data.size}\0{start}-{end}\0{kind}", first)
        yield ShardInfo(
            format_name, samples, (*before, FileInfo(name, end - start, _NO_HASHES, part)), (), None, spec, detail
        )
        first += samples


def _unpacked_shards(
    format_name: str, one: UnindexedFile, file: FoundFile, spec: Mapping[str, Any]
) -> Iterator[ShardInfo]:
    """The shards of a compressed file: all are windows of what comes out of it, which lies in the cache."""
    assert one.unpacked is not None
    kind, first = _kind(spec), 0
    for start, end, samples in one.pieces or ((0, one.unpacked, one.samples),):
        raw, packed = packed_file(file, one.unpacked, start, end)
        detail = PieceDetail(end - start, f"{one.key}\0{one.size}\0{start}-{end} of {one.unpacked}\0{kind}", first)
        yield ShardInfo(format_name, samples, (raw,), (packed,), codec_of(one.key), spec, detail)
        first += samples


def packed_file(file: FoundFile, size: int = UNKNOWN, start: int = 0, end: int = 0) -> tuple[FileInfo, FileInfo]:
    """A window of what comes out of a compressed file, in the cache, and the file itself.

    Args:
        file: the compressed file.
        size: bytes of all that comes out of it; :data:`~stoker.formats.base.UNKNOWN` for all of it, whatever that is.
        start: first byte of the window.
        end: the byte after its last.
    """
    stem, suffix = os.path.splitext(os.path.splitext(file.key)[0])
    part = FilePart(file.key, size, "", (start,), (end,), in_place=True)
    return FileInfo(f"{stem}.{_mark(file)}{suffix}", end - start, _NO_HASHES, part), whole_file(file, in_place=False)


def _kind(spec: Mapping[str, Any]) -> str:
    return hashlib.blake2b(repr(spec).encode(), digest_size=8).hexdigest()


def whole_file(file: FoundFile, *, in_place: bool) -> FileInfo:
    """A file that is read whole. That it is still the one that was found is checked when it is mapped or fetched."""
    part = FilePart(file.key, file.size, file.version, (0,), (file.size,), in_place=in_place)
    return FileInfo(file.key if in_place else _cached(file), file.size, _NO_HASHES, part)


def _cached(file: FoundFile) -> str:
    """A file's name in a cache: its own, and what tells it from one that replaces it."""
    if not file.version:
        return file.key
    stem, suffix = os.path.splitext(file.key)
    return f"{stem}.{_mark(file)}{suffix}"


def _mark(file: FoundFile) -> str:
    """What tells a file from one that replaces it, as a part of a name."""
    return hashlib.blake2b(f"{stable_version(file.version)}\0{file.size}".encode(), digest_size=8).hexdigest()
