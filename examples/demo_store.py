"""Writes rows of tokens as MDS shards into an object store, and reports sizes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demo_text import Rows
from stoker import MDSWriter

__all__ = ["Fetched", "Written", "write"]

_ROWS_PER_WRITE = 256


@dataclass(frozen=True, slots=True)
class Fetched:
    """Shards that a job downloaded: their number, and bytes as moved (compressed) and as kept."""

    shards: int
    moved: int
    kept: int


@dataclass(frozen=True, slots=True)
class Written:
    """A dataset in the store.

    Attributes:
        url: its URL.
        shards: the entries of the index, one per shard.
        seconds: time to write it, with compression, hashes and upload.
    """

    url: str
    shards: list[dict[str, Any]]
    seconds: float

    @property
    def raw(self) -> int:
        """Bytes of all shards before compression."""
        return sum(shard["raw_data"]["bytes"] for shard in self.shards)

    @property
    def stored(self) -> int:
        """Bytes of all shards in the store."""
        return sum(shard["zip_data"]["bytes"] for shard in self.shards)

    def fetched(self, cache: Path) -> Fetched:
        """The shards in the cache of a job that began with an empty one: in its folder for this dataset."""
        names = {file.name for file in cache.glob("*/*.mds")}
        there = [shard for shard in self.shards if shard["raw_data"]["basename"] in names]
        moved = sum(shard["zip_data"]["bytes"] for shard in there)
        return Fetched(len(there), moved, sum(shard["raw_data"]["bytes"] for shard in there))


def write(rows: Rows, store: Path, shard: str, tick: Callable[[int], None]) -> Written:
    """Write rows with their numbers and files as shards of at most ``shard`` bytes each, compressed and hashed.

    Args:
        rows: the samples.
        store: a folder, used through its ``file://`` URL, as a bucket would be through ``s3://``.
        shard: most bytes of a shard before compression, such as ``"64mb"``.
        tick: called with the number of rows that were given to the writer.
    """
    length = rows.tokens.shape[1]
    columns = {"id": "int", "file": "str", "tokens": f"ndarray:uint16:{length}"}
    url = store.as_uri()
    began = time.perf_counter()
    with MDSWriter(columns=columns, out=url, compression="zstd", hashes=["sha1", "xxh64"], size_limit=shard) as writer:
        for first in range(0, len(rows), _ROWS_PER_WRITE):
            ids = np.arange(first, min(first + _ROWS_PER_WRITE, len(rows)))
            part = slice(first, first + len(ids))
            writer.write_batch({"id": ids, "file": rows.files[part], "tokens": rows.tokens[part]})
            tick(len(ids))
    seconds = time.perf_counter() - began
    index = json.loads((store / "index.json").read_text(encoding="utf-8"))
    return Written(url, index["shards"], seconds)
