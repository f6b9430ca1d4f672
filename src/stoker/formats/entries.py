"""Shard descriptions back to the entries of an index: the inverse of ``Format.parse_shard``."""

from __future__ import annotations

from typing import Any

from stoker.errors import FormatError
from stoker.formats.base import FileInfo, ShardInfo

__all__ = ["column_names", "entry_of", "identity_of", "roles_of"]

_SETTINGS = ("hashes", "size_limit")
_ONE_FILE = ("files", "images", "jpeg", "mds", "parquet", "png")


def roles_of(format_name: str) -> tuple[str, ...]:
    """What the files of a shard are called in its entry, after ``raw_`` and ``zip_``."""
    return ("data",) if format_name in _ONE_FILE else ("data", "meta")


def entry_of(info: ShardInfo) -> dict[str, Any]:
    """The shard's entry in an index's ``shards`` list.

    Raises:
        FormatError: shards of its format are indexed from their files and have no entry.
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
    if info.format in ("csv", "tsv"):
        del entry["separator"]
    for number, role in enumerate(roles_of(info.format)):
        entry[f"raw_{role}"] = _file(info.raw[number])
        entry[f"zip_{role}"] = _file(info.zip[number]) if info.zip else None
    return entry


def identity_of(info: ShardInfo) -> dict[str, Any]:
    """What of a shard's description decides how its bytes are read; not what its writer was merely told."""
    if info.detail is not None:  # the detail has an identity of its own, whatever columns are read
        return {"format": info.format}
    identity = {key: value for key, value in info.spec.items() if key not in _SETTINGS}
    if info.format in ("csv", "tsv"):
        identity.pop("separator", None)
    return {"format": info.format, **identity}


def column_names(info: ShardInfo) -> tuple[str, ...]:
    """Names of the shard's columns, in its order."""
    return tuple(info.spec["columns"] if "columns" in info.spec else info.spec["column_names"])


def _file(info: FileInfo) -> dict[str, Any]:
    return {"basename": info.basename, "bytes": info.bytes, "hashes": info.hashes}
