"""Shard descriptions back to the entries of an index: the inverse of ``Format.parse_shard``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from stoker.errors import CorruptDataError, FormatError
from stoker.formats.base import FileInfo, ShardInfo
from stoker.formats.registry import get_format

Sizes: TypeAlias = Callable[[Sequence[str]], Mapping[str, int]]
"""Gives the bytes of files by their names."""

_HEAD: Final = 8  # count and offset
_SETTINGS: Final = ("hashes", "size_limit", "inferred")


def entry_of(info: ShardInfo) -> dict[str, Any]:
    """The shard's entry in an index's ``shards`` list.

    FormatError if shards of its format are indexed from their files and have no entry.
    """
    if info.detail is not None:
        raise FormatError(f"{info.format} datasets have no index.json: they are indexed from their own files")
    entry: dict[str, Any] = {
        **info.spec,
        "compression": info.compression,
        "format": info.format,
        "samples": info.samples,
        "version": 2,
    }
    form = get_format(info.format)
    for key in form.implied:
        del entry[key]
    for number, role in enumerate(form.roles):
        entry[f"raw_{role}"] = _file(info.raw[number])
        entry[f"zip_{role}"] = _file(info.zip[number]) if info.zip else None
    return entry


def check_empty(info: ShardInfo, where: str) -> None:
    """Check that a shard of no samples is as large as such a shard is: a reader never opens it.

    Its header, the only file of MDS and the meta file of others, is ``u32 0 | u32 offset | config JSON``, and the config is
    the shard's entry without its count and files. ``info``: a shard of 0 samples. CorruptDataError if its header has another
    size, so there are samples, or the config is another.
    """
    left_out = {"samples"} | {f"{kind}_{role}" for kind in ("raw", "zip") for role in get_format(info.format).roles}
    config = {name: value for name, value in entry_of(info).items() if name not in left_out}
    header, size = info.raw[-1], _HEAD + len(json.dumps(config, sort_keys=True).encode())
    if header.bytes != size:
        raise CorruptDataError(
            f"{where}: the index says 0 samples, but {header.basename} has {header.bytes} bytes, where a shard without "
            f"samples has {size}: its samples would be left out. Rebuild the index from the shards: stoker verify "
            "--repair"
        )


def identity_of(info: ShardInfo) -> dict[str, Any]:
    """The part of a shard's description that decides how its bytes are read; settings of the writer are left out."""
    if info.detail is not None:  # the detail has an identity of its own, whatever columns are read
        return {"format": info.format}
    left_out = (*_SETTINGS, *get_format(info.format).implied)
    return {"format": info.format, **{key: value for key, value in info.spec.items() if key not in left_out}}


def identity_text(shard: ShardInfo) -> str:
    """The text of a fingerprint for all shards that are read as this one is."""
    return json.dumps(identity_of(shard), sort_keys=True)


def identity_line(files: str, samples: int | str, kind: int) -> str:
    """The text of a fingerprint for one shard.

    ``files``: name and bytes of each raw file. ``samples``: how many it holds, or what stands for it in a template. ``kind``:
    number of its :func:`identity_text` among those before it.
    """
    return f"{files}\0{samples}\0{kind}\n"


def column_names(info: ShardInfo) -> tuple[str, ...]:
    """Names of the shard's columns, in its order."""
    return tuple(info.spec["columns"] if "columns" in info.spec else info.spec["column_names"])


def _file(info: FileInfo) -> dict[str, Any]:
    return {"basename": info.basename, "bytes": info.bytes, "hashes": info.hashes}
