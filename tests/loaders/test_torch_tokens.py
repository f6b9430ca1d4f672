"""``StreamingDataLoader`` over a ``StreamingParquetLoader``: its batches, from workers, and on from any of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loader_cases import rows_of, write_parquet

from stoker import LMStream, StreamingDataset
from stoker.errors import ConfigError
from stoker.loaders.parquet_loader import ShardConfig, StreamingParquetLoader
from stoker.tokens.batch import LMBatch

torch_module = pytest.importorskip("stoker.loaders.dataloader")
StreamingDataLoader = torch_module.StreamingDataLoader
DataLoader = pytest.importorskip("torch.utils.data").DataLoader


def opened(folder: Path, rank: int = 0, world: int = 1, batch_size: int = 2) -> StreamingParquetLoader:
    return StreamingParquetLoader(
        folder, ShardConfig(rank, world, 7), batch_size, 4, granularity="row", eos_id=1, pad_id=0
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "tokens"
    folder.mkdir()
    write_parquet(
        folder / "a.parquet", [[[k * 100 + i for i in range(k % 7 + 2)] for k in range(1, 9)] for _ in range(4)]
    )
    return folder


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_loaders_and_continue_where_a_state_was_taken(folder: Path, workers: int) -> None:
    straight = opened(folder)
    epochs = [rows_of(straight) for _ in range(3)]
    loader = StreamingDataLoader(opened(folder), num_workers=workers)
    assert len(loader) == len(straight)
    assert rows_of(loader) == epochs[0]
    assert loader.state_dict()["epoch"] == 1  # between epochs
    running = iter(loader)
    begun = [next(running) for _ in range(5)]
    state = loader.state_dict()
    del running
    for others in (0, 1, 2):
        resumed = StreamingDataLoader(opened(folder), num_workers=others)
        resumed.load_state_dict(state)
        assert rows_of(begun) + rows_of(resumed) == epochs[1]
        assert rows_of(resumed) == epochs[2]


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_state_continues_in_another_world(folder: Path) -> None:
    ranks = [StreamingDataLoader(opened(folder, rank, 2), num_workers=1) for rank in range(2)]
    whole = sorted(row for rank in range(2) for row in rows_of(opened(folder, rank, 2)))
    runs = [iter(loader) for loader in ranks]
    begun = [next(run) for run in runs for _ in range(3)]
    states = [loader.state_dict() for loader in ranks]
    assert states[0] == states[1]
    rest: list[Any] = []
    for rank in range(3):
        loader = StreamingDataLoader(opened(folder, rank, 3, batch_size=1), num_workers=2)
        loader.load_state_dict(states[0])
        rest += rows_of(loader)
    assert set(map(tuple, rows_of(begun) + rest)) == set(map(tuple, whole))


def test_batches_become_what_collate_fn_makes_of_them(folder: Path) -> None:
    loader = StreamingDataLoader(opened(folder), 2, collate_fn=lambda batch: batch.torch("input_ids", "labels"))
    for made, batch in zip(loader, opened(folder), strict=True):
        assert list(made) == ["input_ids", "labels"]
        assert (made["input_ids"].numpy() == batch.input_ids).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columnar": True}, "columnar= and drop_last= have no meaning"),
        ({"drop_last": True}, "columnar= and drop_last= have no meaning"),
        ({"batch_size": 3}, "batch_size=3 of the StreamingDataLoader differs from batch_size=2"),
        ({"shuffle": True}, "takes no shuffle="),
    ],
)
def test_what_has_no_meaning_is_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StreamingDataLoader(opened(folder), **options)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.processes)])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_data_loader_that_makes_batches_of_batches_is_told_so(folder: Path, workers: int) -> None:
    dataset = StreamingDataset(folder, format="parquet", columns=["input_ids"])
    for loader in (opened(folder), LMStream(dataset, "input_ids", batch_size=2, seq_len=4)):
        with pytest.raises(ConfigError, match=r"DataLoader\(loader, batch_size=None\)"):
            list(DataLoader(loader, num_workers=workers))
        batches = list(DataLoader(loader, batch_size=None, num_workers=workers))
        assert all(isinstance(batch, LMBatch) for batch in batches)
        assert batches
