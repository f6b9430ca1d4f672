"""Batches that workers send together: the same batches, in the same order, with the same types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stoker import StreamingDataLoader, StreamingDataset
from stoker.cluster import LoaderWorker
from stoker.errors import StateError
from stoker.pipeline.batch_groups import BatchGroup, to_message, ungroup
from stoker.pipeline.collate import as_tensors
from support import make_dataset

ROWS = 11
COLUMNS: dict[str, Any] = {
    "int": np.arange(ROWS),
    "strided": np.arange(2 * ROWS, dtype=np.int16)[::2],
    "bool": np.arange(ROWS) % 2 == 0,
    "half": np.array([-1, np.inf] + [0.1] * (ROWS - 2), np.float16).reshape(ROWS, 1),
    "nan": np.full((ROWS, 3, 5), np.nan),
    "complex": np.arange(ROWS) * 1j,
    "fortran": np.asfortranarray(np.arange(ROWS * 7, dtype=np.uint8).reshape(ROWS, 7)),
    "no values": np.zeros((ROWS, 0), np.int64),
    "big-endian": np.arange(ROWS, dtype=">i4"),
    "time": np.arange(ROWS).astype("datetime64[s]"),
    "text": ["", "ä\0\r\n", *"abcdefghi"],
    "null": [None] * ROWS,
    "ragged": [np.arange(n) for n in range(ROWS)],
}


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, list):
        return isinstance(other, list) and all(map(equal, one, other)) and len(one) == len(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and np.array_equal(
            one.numpy(), other.numpy(), equal_nan=one.dtype.is_floating_point
        )
    return np.array_equal(one, other) and getattr(one, "dtype", None) == getattr(other, "dtype", None)


@pytest.mark.parametrize("lengths", [[ROWS], [1] * ROWS, [4, 4, 3], [0, 8, 3]])
@pytest.mark.parametrize("names", [list(COLUMNS), ["text"], ["no values"]])
def test_a_group_gives_the_tensors_of_its_batches(lengths: list[int], names: list[str]) -> None:
    group = BatchGroup({name: COLUMNS[name] for name in names}, lengths)
    expected = [as_tensors(batch) for batch in group.batches()]
    found = list(ungroup([to_message(group)]))
    assert [list(batch) for batch in found] == [list(batch) for batch in expected]
    for one, other in zip(found, expected, strict=True):
        for name in names:
            assert equal(one[name], other[name]), name
    if "int" in names:
        found[0]["int"][:] = -1
        assert all((batch["int"] >= 0).all() for batch in found[1:])


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("workers", [1, 3])
def test_workers_send_small_batches_together(tmp_path: Path, workers: int) -> None:
    make_dataset(tmp_path / "data", 500, size_limit=2000)

    def opened(workers: int) -> StreamingDataLoader:
        dataset = StreamingDataset(tmp_path / "data", shuffle=True, batch_size=6)
        return StreamingDataLoader(dataset, num_workers=workers, columnar=True)

    alone, loader = opened(0), opened(workers)
    for _ in range(2):
        expected, found = list(alone), list(loader)
        assert len(found) == len(expected) == len(loader)
        for one, other in zip(found, expected, strict=True):
            assert list(one) == list(other)
            assert all(equal(one[name], other[name]) for name in one)
    whole = [batch["id"].untyped_storage().data_ptr() // 4096 for batch in found]
    assert len(set(whole)) < len(found) // 2
    half = iter(loader)
    begun = [next(half)["id"].tolist() for _ in range(21)]
    resumed = opened(workers)
    resumed.load_state_dict(loader.state_dict())
    assert begun + [batch["id"].tolist() for batch in resumed] == [batch["id"].tolist() for batch in alone]


def test_groups_do_not_begin_after_some_batches_of_a_worker(tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", 50)
    reader = StreamingDataset(tmp_path / "data", batch_size=5).epoch_reader
    run = reader.sample_order.run(reader.resume.upcoming(), reader.data_rank(5))
    pipeline = reader.pipeline(run, LoaderWorker(), sharers=1, threads=0, skip=2)
    with pytest.raises(StateError, match="2 batches"):
        pipeline.groups()
