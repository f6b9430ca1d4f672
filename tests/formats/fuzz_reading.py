"""How damaged files of a format are read: as a dataset reads them, without the dataset."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from stoker.cache.decompress import unpack_file
from stoker.catalog.unindexed.file_facts import parse_facts
from stoker.catalog.unindexed.inspect_headers import span_array
from stoker.errors import ConfigError, CorruptDataError, FormatError
from stoker.formats.base import UNKNOWN, FileInfo, FilePart, ReadOptions, ShardInfo
from stoker.formats.common.compression import parse_compression
from stoker.formats.common.file_shards import UnindexedFile
from stoker.formats.common.inspect_header import HeaderFacts, MappedSource
from stoker.formats.parquet.footer import read_facts, read_footer
from stoker.formats.parquet.predicate import Predicate
from stoker.formats.registry import get_format
from stoker.index.index import Index
from stoker.storage import ObjectInfo, open_store
from stoker.types import Ids

__all__ = [
    "WHERE",
    "facts_of",
    "read_index",
    "read_indexed",
    "read_packed",
    "read_parquet",
    "read_side",
    "read_inspected",
    "told_of",
    "unindexed_file",
]

WHERE = "the shard"
"""What errors have to name."""

_COPIES, _VIEWS = ReadOptions(), ReadOptions(views=True)
_FEW = 1 << 12
_PIXELS = 1 << 16


@lru_cache(256)
def _rows(samples: int) -> tuple[Ids, Ids, Ids]:
    """Rows to read of so many, with some of them twice; and whether each is of the first or of the second reader."""
    rows = np.array([samples - 1, samples // 2, 0, 0][: 4 if samples else 0], np.int64)
    if samples <= _FEW:
        rows = np.concatenate([rows, np.arange(samples)])
    which = np.arange(len(rows), dtype=np.int64) % 2
    return rows, which, which * 0


def read_shard(form: Any, info: ShardInfo, files: Sequence[bytes], bits: int) -> None:
    """Open a shard and read it, in one of the ways in which datasets do; ``bits`` choose which."""
    reader = form.open(info, files, where=WHERE, options=_VIEWS if bits & 1 else _COPIES)
    rows, which, first = _rows(info.samples)
    way = bits >> 1 & 3
    if way == 0:
        values: Mapping[str, Any] = form.read_many([reader, reader], which, rows)
    elif way == 1:
        found = form.iterate_many([reader], first, rows)
        values = {name: list(column) for name, column in found.items()}
        if info.format in ("images", "jpeg", "png"):
            _decode(values["image"][0])
    elif way == 2:
        values = reader.read(np.arange(min(info.samples, _FEW)) if info.samples <= _FEW else rows)
        rows = rows[4:] if 0 < info.samples <= _FEW else rows
    else:
        values = reader.read(rows, reader.columns[: 1 + (bits >> 3) % max(1, len(reader.columns))])
    assert all(len(column) == len(rows) for column in values.values())


def _decode(image: Any) -> None:
    """The pixels, which Pillow decodes when they are asked for; whatever it raises then is not stoker's any more."""
    if image.size[0] * image.size[1] < _PIXELS:
        try:
            image.load()
        except Exception:
            return


def read_indexed(info: ShardInfo, files: Sequence[bytes], bits: int) -> None:
    """Read a shard that stoker wrote; mostly as large as the index says, whatever was cut off or put in."""
    if bits & 56:
        raw = tuple([FileInfo(f"f{turn}", len(file), {}) for turn, file in enumerate(files)])
        info = ShardInfo(info.format, info.samples, raw, (), None, info.spec)
    read_shard(get_format(info.format), info, files, bits)


def inspected(name: str, settings: Mapping[str, Any], files: Sequence[bytes]) -> HeaderFacts:
    """What a file says of itself."""
    form: Any = get_format(name)
    found: HeaderFacts = form.inspect_header(MappedSource(files[0], WHERE), settings)
    return found


def read_inspected(
    name: str, settings: Mapping[str, Any], known: HeaderFacts, files: Sequence[bytes], bits: int
) -> None:
    """Read a file's shards as they would be fetched: by what it says of itself, or by what was ``known`` of it before."""
    form: Any = get_format(name)
    # Text is mostly understood when its header is read, other formats again when they are opened.
    found = known if bits & (16 if len(known.spans) else 48) else inspected(name, settings, files)
    if not len(found.spans):
        raw = tuple([FileInfo(f"f{turn}", len(file), {}) for turn, file in enumerate(files)])
        read_shard(form, ShardInfo(name, found.samples, raw, (), None, found.spec), files, bits)
        return
    one = unindexed_file(found, *map(len, files))
    for info in form.describe_shards([one], found.spec, in_place=bool(bits & 8)):
        read_shard(form, info, [_cut(data, file.part) for data, file in zip(files, info.raw, strict=True)], bits)


def unindexed_file(found: HeaderFacts, size: int, *beside: int) -> UnindexedFile:
    """What a dataset keeps of a file."""
    more = tuple(ObjectInfo(f"{WHERE}.{turn}", length) for turn, length in enumerate(beside))
    return UnindexedFile(ObjectInfo(WHERE, size), found.samples, found.spec, span_array(found), more)


def _cut(data: bytes, part: FilePart | None) -> bytes:
    """What would be opened of a file: a window of it where it lies, else its ranges one after the other."""
    if part is None:
        return data
    if part.in_place:
        return data[part.window[0] : part.window[1]]
    return part.head + b"".join([data[begin:end] for begin, end in zip(part.starts, part.ends, strict=True)])


def read_parquet(schemas: Mapping[Any, Any], filters: Sequence[Any] | None, files: Sequence[bytes], bits: int) -> None:
    """Read a file's footer and its row groups, sometimes only those that ``filters`` leave."""
    (data,) = files
    found = facts_of(data, dict(schemas), None if bits & 48 else filters)
    form: Any = get_format("parquet")
    for info in form.describe_shards([unindexed_file(found, len(data))], found.spec, in_place=bool(bits & 8)):
        read_shard(form, info, [_cut(data, info.raw[0].part)], bits)


def facts_of(data: bytes, schemas: dict[Any, Any], filters: Sequence[Any] | None = None) -> HeaderFacts:
    """What a dataset keeps of a Parquet file; ``schemas`` are those that were met before, and get the file's."""
    try:
        footer = read_footer(MappedSource(data, WHERE))
        return read_facts(footer, len(data), predicate=Predicate.parse(filters), schemas=schemas)
    except (FormatError, ConfigError) as error:  # the file's name is given by who reads headers
        raise FormatError(f"{WHERE}: {error}") from error


def read_index(files: Sequence[bytes], bits: int) -> None:
    """Read an ``index.json``, and ask it what a dataset asks."""
    index = Index.from_json(files[0], WHERE)
    if bits & 1:
        assert index.fingerprint
        assert index.samples == sum(shard.samples for shard in index.shards)
        assert len(index.columns) >= 0
        assert index.total_bytes >= index.largest_shard * 0
    if bits & 2:
        assert Index.from_json(index.to_json(), WHERE).fingerprint == index.fingerprint


def read_side(files: Sequence[bytes], bits: int) -> None:
    """Read what a dataset keeps of files of others, which is made anew if it is not what was written.

    The first file is what is kept, an archive; the second one is the text of what it says.
    """
    data, expected = files
    told = told_of(parse_facts(data).values())
    if not told:
        raise CorruptDataError(WHERE)
    assert told == expected


def told_of(files: Iterable[UnindexedFile]) -> bytes:
    """All that is known of files, as text."""
    return "; ".join(
        repr((one.files, one.mark, one.samples, one.spec, one.spans.tolist(), one.unpacked)) for one in files
    ).encode()


def read_packed(codec: str, size: int, files: Sequence[bytes], bits: int) -> None:
    """Decompress a file of a known size, one of an unknown size, or one of others from disk to disk."""
    (data,) = files
    if codec in ("gz", "zstd") and bits & 3 == 3:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, WHERE).write_bytes(data)
            store, into = open_store(folder), Path(folder, "into")
            part = FilePart(WHERE, len(data), "", (0,), (len(data),), in_place=False)
            unpack_file(store, part, codec, size if bits & 4 else UNKNOWN, into, Path(folder, "scratch"))
            assert into.stat().st_size == size or not bits & 4
        return
    try:
        if bits & 1:
            assert len(parse_compression(codec).decompress(data, size)) == size
        else:
            assert len(parse_compression(codec).decompress_unsized(data, 1 << 24)) <= 1 << 24
    except CorruptDataError as error:  # the file's name is given by who fetches shards
        raise CorruptDataError(f"{WHERE}: {error}") from error
