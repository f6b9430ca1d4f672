"""A transform may read another data set, in any process and thread; a worker may open a data set of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, IterableDataset

from s3server import Bucket
from stoker import ReadOptions, StreamingDataLoader, StreamingDataset
from support import write_samples

pytestmark = [pytest.mark.processes]

_OUTER, _INNER = 40, 60
# Spawned workers, which each import torch, start with one cache here and with the other below.
COMMON = [(method, cache) for method in (None, "fork") for cache in ("disk", "memory")]


class Reads:
    """A transform that opens a data set where it first runs, and reads all of it, by id and in order."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._inner: StreamingDataset | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_inner": None}

    def __call__(self, sample: Any) -> Any:
        if self._inner is None:
            self._inner = StreamingDataset(batch_size=7, **self._options)
        total = -1
        if int(sample["id"]) % 10 == 0:
            total = sum(int(one["id"]) for one in self._inner)
        return {"id": sample["id"], "same": self._inner[int(sample["id"])]["id"], "total": np.int64(total)}


def _write(folder: Path, samples: int) -> Path:
    write_samples(str(folder), ({"id": number} for number in range(samples)), size_limit=200)
    return folder


@pytest.fixture
def outer(tmp_path: Path) -> Path:
    """Samples to be transformed."""
    return _write(tmp_path / "outer", _OUTER)


def check(dataset: StreamingDataset, method: str | None) -> None:
    """All samples come, and each was transformed with all of the other data set."""
    batches: Any = dataset.batches()
    if method is not None:
        batches = StreamingDataLoader(dataset, num_workers=2, multiprocessing_context=method)
    found = []
    for batch in batches:
        found += [tuple(map(int, row)) for row in zip(batch["id"], batch["same"], batch["total"], strict=True)]
    whole = sum(range(_INNER))
    assert sorted(found) == [(number, number, whole if number % 10 == 0 else -1) for number in range(_OUTER)]


@pytest.mark.parametrize(("method", "cache"), [*COMMON, ("spawn", "disk")])
def test_a_transform_reads_another_data_set(outer: Path, tmp_path: Path, method: str | None, cache: Any) -> None:
    inner = _write(tmp_path / "inner", _INNER)
    options: dict[str, Any] = {"remote": inner.as_uri(), "read": ReadOptions(cache=cache)}
    if cache == "disk":
        options["local"] = str(tmp_path / "cache")
    check(StreamingDataset(local=outer, transform=Reads(options), batch_size=4), method)


@pytest.mark.s3
@pytest.mark.parametrize(("method", "cache"), [*COMMON, ("spawn", "memory")])
def test_a_transform_reads_another_data_set_of_a_bucket(
    tmp_path: Path, bucket: Bucket, method: str | None, cache: Any
) -> None:
    for name, samples in (("outer", _OUTER), ("inner", _INNER)):
        rows = ({"id": number} for number in range(samples))
        write_samples(f"{bucket.url}/{name}", rows, size_limit=200, storage_options=bucket.storage_options)

    def options(name: str) -> dict[str, Any]:
        place = {} if cache == "memory" else {"local": str(tmp_path / name)}
        return {
            "remote": f"{bucket.url}/{name}",
            "storage_options": bucket.storage_options,
            "read": ReadOptions(cache=cache),
            **place,
        }

    check(StreamingDataset(transform=Reads(options("inner")), batch_size=4, **options("outer")), method)


class Opens(IterableDataset[Any]):
    """A data set that is opened in the worker that reads it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __iter__(self) -> Iterator[Any]:
        return iter(StreamingDataset(local=self._folder, batch_size=4))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_share_a_data_set_that_each_of_them_opens(outer: Path, method: str) -> None:
    loader = DataLoader(Opens(outer), batch_size=4, num_workers=2, multiprocessing_context=method)
    assert sorted(int(number) for batch in loader for number in batch["id"]) == list(range(_OUTER))
