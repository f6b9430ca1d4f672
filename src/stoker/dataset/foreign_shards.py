"""Files that others wrote as shards: which bytes of which file each is read from, and what it is called in a cache."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from stoker.dataset.foreign_facts import ForeignFile
from stoker.dataset.parquet_files import FoundFile
from stoker.errors import CorruptDataError
from stoker.formats.base import FileInfo, FilePart, ShardInfo
from stoker.formats.survey import PieceDetail

__all__ = ["describe_file", "whole_file"]

_NO_HASHES: Final[Mapping[str, str]] = {}


def describe_file(
    format_name: str, one: ForeignFile, spec: Mapping[str, Any], *, in_place: bool
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
    *heads, data = FoundFile(one.key, one.size, one.version), *one.beside
    if not one.pieces:
        files = tuple(whole_file(file, in_place=in_place) for file in (*heads, data))
        yield ShardInfo(format_name, one.samples, files, (), None, spec)
        return
    if one.pieces[-1][1] > data.size:
        raise CorruptDataError(
            f"{data.key} has {data.size} bytes, but its samples end at byte {one.pieces[-1][1]}. Was it written to the end?"
        )
    before = tuple(whole_file(file, in_place=in_place) for file in heads)
    kind = hashlib.blake2b(repr(spec).encode(), digest_size=8).hexdigest()
    first = 0
    for start, end, samples in one.pieces:
        part = FilePart(data.key, data.size, data.version, (start,), (end,), in_place=in_place)
        name = data.key if in_place else f"{_cached(data)}.pieces/{start}-{end}"
        detail = PieceDetail(end - start, f"{data.key}\0{data.size}\0{start}-{end}\0{kind}", first)
        yield ShardInfo(
            format_name, samples, (*before, FileInfo(name, end - start, _NO_HASHES, part)), (), None, spec, detail
        )
        first += samples


def whole_file(file: FoundFile, *, in_place: bool) -> FileInfo:
    """A file that is read whole. That it is still the one that was found is checked when it is mapped or fetched."""
    part = FilePart(file.key, file.size, file.version, (0,), (file.size,), in_place=in_place)
    return FileInfo(file.key if in_place else _cached(file), file.size, _NO_HASHES, part)


def _cached(file: FoundFile) -> str:
    """A file's name in a cache: its own, and what tells it from one that replaces it."""
    if not file.version:
        return file.key
    stem, suffix = os.path.splitext(file.key)
    return f"{stem}.{hashlib.blake2b(file.version.encode(), digest_size=4).hexdigest()}{suffix}"
