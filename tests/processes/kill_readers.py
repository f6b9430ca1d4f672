"""Readers to be killed: alone or with another on the same cold cache, which must get every sample right."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stoker import StreamingDataset
from stoker.types import StorageOptions
from support import check_sample, ids_of, make_dataset

__all__ = ["READERS", "ReaderJob", "write_remote"]

SIZE_LIMIT = 2048
# Bytes of all raw shards, and a limit that keeps evicting, yet holds what two readers have open.
_LIMIT = 90_000

READERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "packed": {},
    "packed kept": {"keep_zip": True},
    "limited": {"cache_limit": _LIMIT, "predownload": 64},
    "checked": {"validate_hash": "sha1"},
}
"""Names of readers, and their options."""


def write_remote(root: str, storage_options: StorageOptions | None = None, samples: int = 600) -> None:
    """The datasets that all rounds read."""
    options: dict[str, Any] = {"size_limit": SIZE_LIMIT, "hashes": ["sha1", "xxh64"]}
    make_dataset(f"{root}/plain", samples, storage_options=storage_options, **options)
    make_dataset(f"{root}/packed", samples, storage_options=storage_options, compression="zstd", **options)


@dataclass(frozen=True)
class ReaderJob:
    """A reader of one epoch through a cache.

    Attributes:
        name: one of :data:`READERS`.
        remote: what :func:`write_remote` wrote to.
        cache: the cache's directory.
        storage_options: of the remote.
        samples: how many there are.
    """

    name: str
    remote: str
    cache: Path
    storage_options: StorageOptions | None = None
    samples: int = 600

    def dataset(self, **more: Any) -> StreamingDataset:
        which = "packed" if self.name.startswith("packed") else "plain"
        options: dict[str, Any] = {"storage_options": self.storage_options, "shuffle": True, "batch_size": 8}
        return StreamingDataset(
            remote=f"{self.remote}/{which}", local=self.cache, **{**options, **READERS[self.name], **more}
        )

    def read(self, seed: int) -> None:
        """Read everything, in an order and by a way that the seed chooses, and check every byte."""
        draw = random.Random(seed)
        dataset = self.dataset(shuffle_seed=seed)
        way = draw.choice(["samples", "batches", "ids"])
        if way == "samples":
            ids = ids_of(dataset)
        elif way == "batches":
            ids = ids_of(dataset.batches())
        else:
            ids = [check_sample(dataset[number]) for number in draw.sample(range(self.samples), self.samples)]
        assert sorted(ids) == list(range(self.samples)), way

    def look(self) -> None:
        """Check that a new reader finds the cache sound, hashes of what lies there included, and tidies it."""
        self.read_again()
        files = {file.basename for shard in self.dataset().index.shards for file in (*shard.raw, *shard.zip)}
        (version,) = self.cache.iterdir()
        found = {path.relative_to(version).as_posix() for path in version.rglob("*") if path.is_file()}
        left = found - files - {"index.json", ".stoker/claims", ".stoker/in_use", ".stoker/origin", ".stoker/room"}
        assert not left, f"debris in the cache: {sorted(left)}"

    def read_again(self) -> None:
        dataset = self.dataset(validate_hash="sha1", shuffle=False)
        assert ids_of(dataset) == list(range(self.samples))
