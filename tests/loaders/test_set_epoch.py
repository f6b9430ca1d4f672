"""``set_epoch``: trainers call it with a count of their own, which must not undo a state that was loaded."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import DataLoader

from stoker import StreamingDataLoader, StreamingDataset, StreamingParquetLoader, errors
from support import make_dataset


@pytest.fixture
def make(tmp_path: Path) -> Callable[[], StreamingDataset]:
    """Opens a shuffled dataset of 40 samples."""
    make_dataset(tmp_path, 40)
    return lambda: StreamingDataset(str(tmp_path), shuffle=True, batch_size=4)


def ids(samples: Any) -> list[int]:
    return [int(sample["id"]) for sample in samples]


def test_it_names_the_next_epoch(make: Callable[[], StreamingDataset]) -> None:
    dataset, other = make(), make()
    epochs = [ids(dataset) for _ in range(3)]
    other.set_epoch(2)
    assert ids(other) == epochs[2]
    other.set_epoch(0)
    assert ids(other) == epochs[0]
    other.set_epoch(1)
    assert ids(other) == epochs[1]
    with pytest.raises(errors.ConfigError, match="epoch must be at least 0"):
        other.set_epoch(-1)


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loaded_state_holds_and_the_caller_s_count_goes_on_from_it(
    make: Callable[[], StreamingDataset], workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    whole = make()
    epochs = [ids(whole) for _ in range(5)]
    source = make()
    source.set_epoch(3)
    samples = iter(source)
    for _ in range(12):
        next(samples)
    state = source.state_dict()

    loader = StreamingDataLoader(make(), num_workers=workers)
    loader.load_state_dict(state)
    loader.set_epoch(0)
    assert "state of epoch 3" in caplog.text
    loader.set_epoch(0)
    assert sum((batch["id"].tolist() for batch in loader), []) == epochs[3][12:]  # noqa: RUF017
    loader.set_epoch(1)
    assert sum((batch["id"].tolist() for batch in loader), []) == epochs[4]  # noqa: RUF017
    loader.set_epoch(0)
    assert sum((batch["id"].tolist() for batch in loader), []) == epochs[3]  # noqa: RUF017
    loader.close()


def test_a_caller_that_counts_as_the_state_does_is_not_warned(
    make: Callable[[], StreamingDataset], caplog: pytest.LogCaptureFixture
) -> None:
    source = make()
    source.set_epoch(3)
    next(iter(source))
    dataset = make()
    dataset.load_state_dict(source.state_dict())
    dataset.set_epoch(3)
    assert len(ids(dataset)) == 39
    assert not caplog.records


@pytest.mark.processes
def test_workers_that_live_on_follow_it(make: Callable[[], StreamingDataset]) -> None:
    whole = make()
    epochs = [ids(whole) for _ in range(4)]
    dataset = make()
    loader: Any = DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True, collate_fn=ids)
    for epoch in (0, 3, 1):
        dataset.set_epoch(epoch)
        assert sum(loader, []) == epochs[epoch]  # noqa: RUF017


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batches", [3, None])
def test_a_state_after_it_is_of_the_epoch_that_was_named(
    make: Callable[[], StreamingDataset], workers: int, batches: int | None
) -> None:
    first = ids(make())
    dataset = make()
    loader = StreamingDataLoader(dataset, num_workers=workers)
    for _ in itertools.islice(loader, batches):
        pass
    dataset.set_epoch(0)
    state = loader.state_dict()
    assert state == dataset.state_dict()
    other = make()
    other.load_state_dict(state)
    assert ids(other) == first
    loader.close()


def test_the_parquet_loader_has_it_too(tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": [np.arange(k, k + 16) for k in range(64)]}), tmp_path / "a.parquet")
    loader = StreamingParquetLoader(str(tmp_path), batch_size=2, seq_len=16)
    epochs = [[batch.input_ids.tolist() for batch in loader] for _ in range(3)]
    loader.set_epoch(1)
    batches = iter(loader)
    assert [next(batches).input_ids.tolist() for _ in range(3)] == epochs[1][:3]
    state = loader.state_dict()
    again = StreamingParquetLoader(str(tmp_path), batch_size=2, seq_len=16)
    again.load_state_dict(state)
    again.set_epoch(0)
    assert [batch.input_ids.tolist() for batch in again] == epochs[1][3:]


def test_an_iteration_that_another_epoch_ends_says_who_may_have_named_it(make: Callable[[], StreamingDataset]) -> None:
    dataset = make()
    batches = iter(dataset.batches(4))
    next(batches)
    dataset.set_epoch(3)
    with pytest.raises(errors.StateError, match=r"set_epoch\(\) was called.*use another dataset object"):
        next(batches)
