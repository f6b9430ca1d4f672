"""The first samples of a shard, from as few bytes as its format allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from stoker.display import error_text
from stoker.errors import CorruptDataError, MissingPackageError, StokerError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.compression import parse_compression
from stoker.formats.registry import get_format
from stoker.inspection.facts import Shown, printable, show
from stoker.inspection.read_files import FileReader
from stoker.storage import is_local
from stoker.types import Buffer

LARGEST: Final = 256 << 20
"""More bytes of a remote dataset than these are not fetched to show samples."""

_Preview = tuple[list[Mapping[str, Shown]], list[str]]


def preview_shard(files: FileReader, info: ShardInfo, count: int) -> _Preview:
    """The first samples of a shard of a dataset with an index, and what hindered."""
    where = files.store.url_of(info.stored[0].basename)
    count = min(count, info.samples)
    try:
        if (
            not info.zip
            and (info.format == "mds" or get_format(info.format).text)
            and is_local(files.store.url) is None
        ):
            small, data = _excerpt(files, info, count)
        elif sum(file.bytes for file in info.stored) > LARGEST and is_local(files.store.url) is None:
            return [], [f"no samples are shown: the first shard, {where}, would have to be fetched whole"]
        else:
            small, data = info, _whole(files, info)
    except (StokerError, OSError) as error:
        return [], [f"no samples are shown: {error}"]
    return preview_files(small, data, count, where)


def preview_files(info: ShardInfo, data: Sequence[Buffer], count: int, where: str) -> _Preview:
    """The first samples of an open shard's files."""
    notes: list[str] = []
    try:
        reader = get_format(info.format).open(info, data, where=where, options=ReadOptions(views=True))
        unsafe = reader.unsafe
        rows = np.arange(min(count, info.samples), dtype=np.int64)
    except MissingPackageError:
        raise
    except Exception as error:  # noqa: BLE001 - other packages' formats may raise anything
        return [], [f"no samples are shown: {error_text(error)}"]
    notes += [f"column {name!r} is not shown: reading it runs code from the data" for name in unsafe]
    columns: dict[str, list[Shown]] = {}
    for name in reader.columns:
        if name in unsafe:
            continue
        try:
            columns[name] = [show(value) for value in reader.read(rows, [name])[name]]
        except Exception as error:  # noqa: BLE001 - as above, and of one column only
            columns[name] = [Shown("error", printable(error_text(error), 200))] * len(rows)
    return [{name: values[row] for name, values in columns.items()} for row in range(len(rows))], notes


def _whole(files: FileReader, info: ShardInfo) -> list[Buffer]:
    """A shard's raw files, decompressed in memory if need be."""
    stored = [files.read(file.basename) for file in info.stored]
    for file, data in zip(info.stored, stored, strict=True):
        if len(data) != file.bytes:
            raise CorruptDataError(
                f"{files.store.url_of(file.basename)} has {len(data)} bytes, the index says {file.bytes}"
            )
    if not info.zip:
        return stored
    assert info.compression is not None
    compression = parse_compression(info.compression)
    return [
        bytes(compression.decompress(memoryview(data), file.bytes)) for data, file in zip(stored, info.raw, strict=True)
    ]


def _excerpt(files: FileReader, info: ShardInfo, count: int) -> tuple[ShardInfo, list[Buffer]]:
    """A smaller shard that holds the first samples, made of ranges of a shard's files."""
    data, head = info.raw[0], info.raw[-1]
    end = 4 + 4 * (count + 1)
    if head.bytes < end:
        raise CorruptDataError(f"{files.store.url_of(head.basename)}: too small for {count} samples")
    words = np.frombuffer(files.store.get_range(head.basename, 0, end), "<u4").astype(np.int64)
    offsets = words[1:]
    first, last = int(offsets[0]), int(offsets[-1])
    if int(words[0]) != info.samples or (np.diff(offsets) < 0).any() or last > data.bytes:
        raise CorruptDataError(f"{files.store.url_of(head.basename)}: its offsets contradict the index or each other")
    parts: list[Any]
    if info.format == "mds":
        body = files.store.get_range(data.basename, first, last)
        parts = [_table(count, offsets - first + end) + body]
    else:
        parts = [files.store.get_range(data.basename, 0, last), _table(count, offsets)]
    raw = tuple(replace(file, bytes=len(part)) for file, part in zip(info.raw, parts, strict=True))
    return replace(info, samples=count, raw=raw), parts


def _table(count: int, offsets: np.ndarray[Any, Any]) -> bytes:
    return np.concatenate([[count], offsets]).astype("<u4").tobytes()
