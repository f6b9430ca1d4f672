"""The ``index.json`` of litdata, as the index of shards that stoker reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stoker.errors import ConfigError, FormatError
from stoker.formats.common.checks import MAX_OFFSET, refuse, require
from stoker.formats.common.entries import Sizes

TREES: Final = "PyTreeLoader"
TOKENS: Final = "TokensLoader"
_LEVELS: Final = ("chunk", "batch", "sample")
_KEPT: Final = ("data_format", "data_spec", "types", "item_loader")


def shards_of(index: Mapping[str, Any], where: str, sizes: Sizes, block_size: int | None = None) -> dict[str, Any]:
    """The index of stoker's own kind that says the same.

    IndexFileError if it is not valid, FormatError if the chunks are encrypted, or of a loader that is not read, ConfigError
    for a block size, and chunks that are not of tokens. ``sizes``: asked for the bytes of files that are compressed whole,
    which litdata's index does not tell. ``block_size``: tokens of a sample, of chunks that ``TokensLoader`` reads. ``None``:
    a sample is what was written.
    """
    config = require(index, "config", dict, where)
    chunks = require(index, "chunks", list, where)
    loader = config.get("item_loader") or TREES
    _check_readable(config, loader, where)
    if block_size is not None and loader != TOKENS:
        raise ConfigError(f"{where}: block_size= is for chunks of tokens (TokensLoader), and these are of {loader}")
    level = config.get("compression_level") or "chunk"
    if level not in _LEVELS:
        refuse(where, f"compression_level {level!r} is unknown; known: {', '.join(_LEVELS)}")
    spec = {key: config.get(key) for key in _KEPT} | {"item_loader": loader, "compression_level": level}
    spec["block_size"] = block_size
    codec = config.get("compression") if level == "chunk" else None
    ends = f".{codec}"
    names = [require(chunk, "filename", str, where) for chunk in chunks if isinstance(chunk, dict)]
    if len(names) != len(chunks):
        refuse(where, "'chunks' should be a list of objects")
    packed = [name for name in names if codec and ends in name]
    known = sizes(packed) if packed else {}
    shards = []
    for number, chunk in enumerate(chunks):
        here, name = f"{where}: chunk {number}", names[number]
        count: int = require(chunk, "chunk_size", int, here)
        if block_size is not None:
            count = require(chunk, "dim", int, here) // block_size
        if count < 0 or count > MAX_OFFSET:
            refuse(here, f"{count} samples is impossible")
        if not count:
            continue
        raw = name.replace(ends, "") if name in known else name
        entry: dict[str, Any] = {
            **spec,
            "format": "litdata",
            "version": 2,
            "samples": count,
            "compression": codec if name in known else None,
            "raw_data": {"basename": raw, "bytes": require(chunk, "chunk_bytes", int, here), "hashes": {}},
            "zip_data": {"basename": name, "bytes": known[name], "hashes": {}} if name in known else None,
        }
        shards.append(entry)
    return {"version": 2, "shards": shards}


def _check_readable(config: Mapping[str, Any], loader: str, where: str) -> None:
    if config.get("encryption"):
        algorithm = (
            config["encryption"].get("algorithm") if isinstance(config["encryption"], dict) else "some algorithm"
        )
        raise FormatError(
            f"{where}: the chunks are encrypted ({algorithm}), which stoker can not read: write them again without "
            "encryption=, by litdata's optimize over its StreamingDataset(..., encryption=...)"
        )
    if loader == "ParquetLoader":
        raise FormatError(f"{where}: the chunks are Parquet files: read them by format='parquet'")
    if loader not in (TREES, TOKENS):
        raise FormatError(f"{where}: chunks of {loader} are not read, only of {TREES} and {TOKENS}")
