"""Parses and checks index files, entry by entry."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stoker.errors import IndexFileError, IndexSyntaxError
from stoker.formats.base import ShardInfo
from stoker.formats.common.entries import check_empty
from stoker.formats.litdata.index import Sizes, is_litdata, shards_of
from stoker.formats.registry import format_names, get_format


def parse_index(
    data: bytes, where: str, sizes: Sizes | None = None, block_size: int | None = None
) -> tuple[Iterator[ShardInfo], dict[str, Any]]:
    """The shards of an index file, parsed and checked one by one, and its other keys.

    See :meth:`stoker.index.index.Index.from_json`.
    """
    obj = _parse_json(data, where)
    if is_litdata(obj):
        obj = shards_of(obj, where, sizes or _no_sizes(where), block_size)
    version = obj.pop("version", None)
    if version != 2 or isinstance(version, bool):
        raise IndexFileError(f"{where}: index version {version!r} is not supported, only 2")
    entries = obj.pop("shards", None)
    if not isinstance(entries, list):
        raise IndexFileError(f"{where}: 'shards' should be a list, found {type(entries).__name__}")
    entries.reverse()  # entries are taken from the end, so each is freed once it is parsed
    return parse_entries(entries, where), obj


def parse_entries(reversed_entries: list[Any], where: str) -> Iterator[ShardInfo]:
    """Parse and check entries of shards, the last one first; each is taken from the list.

    Raises:
        IndexFileError, CorruptDataError, FormatError: see :meth:`~stoker.index.index.Index.from_json`.
    """
    number = 0
    shared: dict[str, Mapping[str, Any]] = {}
    while reversed_entries:
        entry = reversed_entries.pop()
        here = f"{where}: shard {number}"
        if not isinstance(entry, dict):
            raise IndexFileError(f"{here}: should be an object, found {type(entry).__name__}")
        name = entry.get("format")
        if not isinstance(name, str) or name not in format_names():
            raise IndexFileError(f"{here}: shard format {name!r} is unknown; known: {', '.join(format_names())}")
        info = get_format(name).parse_shard(entry, here)
        if not info.samples:
            check_empty(info, here)
        if info.format != "mds":  # MDS shares the specs of equal columns itself
            key = repr(info.spec)
            info = ShardInfo(
                info.format,
                info.samples,
                info.raw,
                info.zip,
                info.compression,
                shared.setdefault(key, info.spec),
            )
        yield info
        number += 1


def _no_sizes(where: str) -> Sizes:
    def sizes(names: Sequence[str]) -> Mapping[str, int]:
        raise IndexFileError(f"{where}: the sizes of {len(names)} compressed chunks of litdata are not known here")

    return sizes


def _parse_json(data: bytes, where: str) -> dict[str, Any]:
    try:
        obj = json.loads(data)
    except json.JSONDecodeError as error:
        text = f"{where}: not an index, for it is not JSON: {error.msg}"
        raise IndexSyntaxError(text, error.doc, error.pos) from None
    except (ValueError, RecursionError) as error:
        raise IndexFileError(f"{where}: not an index, for it is not JSON: {error}") from None
    if not isinstance(obj, dict):
        raise IndexFileError(f"{where}: not an index: a JSON {type(obj).__name__}, not an object")
    return obj
