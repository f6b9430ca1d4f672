"""accelerate: each sample comes once an epoch over ranks, however the loader is prepared; what can not be so is refused.

``table.py`` tests the usual ways, with 1 and 2 ranks, and resumed; here are the others.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import ChainDataset, DataLoader

from stoker import StreamingDataset, World
from stoker.errors import ConfigError
from trainers.launch import Outcome, launch

HERE = Path(__file__).parent


@pytest.fixture
def said(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """What this process and its workers have logged."""
    handler, logger = logging.FileHandler(tmp_path / "said"), logging.getLogger("stoker")
    logger.addHandler(handler)
    yield (tmp_path / "said").read_text
    logger.removeHandler(handler)
    handler.close()


def run(data: Path, variant: str, workers: int, *more: object, ranks: int = 2) -> Outcome:
    script = HERE / "accelerate_run.py"
    return launch(
        Path(sys.executable), script, ranks, "--data", data, "--variant", variant, "--workers", workers, *more
    )


@pytest.mark.parametrize(
    ("variant", "workers", "unique", "twice"),
    [
        ("split", 2, 100, 0),
        ("shard split", 2, 100, 4),
        ("drop_last", 2, 96, 0),
        ("shard drop_last", 0, 96, 0),
        ("spawn", 2, 100, 0),
        ("shard spawn", 2, 100, 4),
        ("columnar", 2, 100, 0),
        ("parquet", 2, 100, 0),
        ("columnar own drop_last", 2, 96, 0),
        ("loader shard", 0, 100, 4),
        ("ahead told", 0, 100, 0),
        ("ahead told shard", 1, 100, 4),
        ("map shard", 0, 100, 4),
        ("chain", 1, 100, 0),
        ("there told spawn", 1, 100, 0),
    ],
)
def test_each_sample_comes_once(data: Path, variant: str, workers: int, unique: int, twice: int) -> None:
    """accelerate itself repeats samples where each rank reads (``shard``) and the last batch is not full."""
    seen = run(data, variant, workers)
    assert not seen.error
    assert (seen.unique, seen.twice, seen.steps_equal) == (unique, twice, True)


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ("columnar shard", "divides single samples, and this loader, with batch_size=None, has whole batches"),
        ("stateful", "for use_stateful_dataloader=True, let each rank read its own part"),
        ("columnar drop_last", "is not told of drop_last=True with columnar=True"),
        ("static", "partition_algo='round_robin' says which rank gets which samples"),
    ],
)
def test_what_would_lose_samples_is_refused(data: Path, variant: str, said: str) -> None:
    seen = run(data, variant, 0)
    assert said in seen.error
    assert "num_processes=1" in seen.error


@pytest.mark.parametrize(
    ("variant", "workers", "said"),
    [
        ("ahead", 0, "world=World() where a wrapper divides"),
        ("ahead shard", 2, "world=World() where a wrapper divides"),
        ("ahead told", 2, "one of 2 DataLoader workers, which accelerate.data_loader may divide"),
    ],
)
def test_a_thread_between_is_refused_where_who_divides_is_not_known(
    data: Path, variant: str, workers: int, said: str
) -> None:
    """accelerate is not on the thread's stack."""
    assert said in run(data, variant, workers).error.replace("\n", " ")


def test_a_dataset_made_in_a_spawned_worker_is_refused_where_nobody_says_who_divides(data: Path) -> None:
    assert "world=World() where accelerate divides" in run(data, "there spawn", 1).error.replace("\n", " ")


def test_what_accelerate_would_lose_of_unequal_workers_is_refused(data: Path) -> None:
    assert "use num_workers=1 or 0, or dispatch_batches=False" in run(data, "chain", 2).error


def test_ranks_that_are_to_read_the_same_samples_are_told_of(data: Path) -> None:
    """Along ``tp`` accelerate sends all ranks the same batches, or leaves it to the dataset."""
    assert "the ranks along tp=2 of the device mesh" in run(data, "tp shard", 0).error
    for variant in ("tp", "tp shard replicated"):
        seen = run(data, variant, 0)
        assert not seen.error
        assert seen.unique == 100
        assert seen.ranks[0] == seen.ranks[1]


@pytest.mark.parametrize("skipped", [0, 3])
@pytest.mark.parametrize("dispatch", [None, False])
def test_the_epoch_after_one_that_was_resumed_is_the_next(data: Path, dispatch: bool | None, skipped: int) -> None:
    """``skip_first_batches`` makes another loader; that of before would name the same epoch once more."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))

    def prepared() -> Any:
        return accelerator.prepare(
            DataLoader(StreamingDataset(str(data), shuffle=True, batch_size=4, epoch_size=50), batch_size=4)
        )

    def ids(loader: Any) -> list[int]:
        return [one for batch in loader for one in batch["id"].tolist()]

    whole, resumed = prepared(), prepared()
    epochs = [ids(whole) for _ in range(4)]
    resumed.set_epoch(1)
    assert ids(accelerator.skip_first_batches(resumed, skipped)) == epochs[1][4 * skipped :]
    assert [ids(resumed), ids(resumed)] == epochs[2:]
    resumed.set_epoch(1)  # of which a user may want to have all
    assert ids(resumed) == epochs[1]


@pytest.mark.parametrize("dispatch", [None, False])
def test_what_a_state_leaves_out_is_not_left_out_twice(data: Path, dispatch: bool | None) -> None:
    accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    dataset = StreamingDataset(str(data), batch_size=4)
    loader = accelerator.prepare(DataLoader(dataset, batch_size=4))
    dataset.load_state_dict(dataset.state_dict(num_samples=40))
    with pytest.raises(ConfigError, match="leaves out 10 batches, and the dataset resumes from a state at position 40"):
        list(accelerator.skip_first_batches(loader, 10))


@pytest.mark.parametrize(("direct", "workers"), [(True, 0), (False, 2)])
def test_more_batches_than_an_epoch_has_are_not_left_out(
    data: Path, direct: bool, workers: int, said: Callable[[], str]
) -> None:
    dataset = StreamingDataset(str(data), batch_size=4, world=World(0, 2))
    loader = prepare_data_loader(
        DataLoader(dataset if direct else ChainDataset([dataset]), batch_size=4, num_workers=workers),
        num_processes=2,
        process_index=0,
        dispatch_batches=False,
    )
    assert not list(skip_first_batches(loader, 13))
    if direct:
        with pytest.raises(ConfigError, match="leaves out 14 batches, and epoch 1 has 13"):
            list(skip_first_batches(loader, 14))
    else:
        assert not list(skip_first_batches(loader, 14))
        assert "leaves out 14 batches, and epoch 1 has 13" in said()


@pytest.mark.parametrize("workers", [0, 2])
def test_warnings_come_once(data: Path, workers: int, said: Callable[[], str]) -> None:
    """Not in each epoch by each worker."""
    dataset = StreamingDataset(str(data), batch_size=4, world=World(0, 2))
    loader = prepare_data_loader(
        DataLoader(dataset, batch_size=4, num_workers=workers),
        num_processes=2,
        process_index=0,
        dispatch_batches=False,
    )
    for _ in range(3):
        assert len(list(loader)) == 13
    assert said().count("repeats 4 samples to fill its last batch") == 1


@pytest.mark.parametrize("variant", ["", "own"])
def test_metrics_epochs_and_accumulation(data: Path, tmp_path: Path, variant: str) -> None:
    """What accelerate knows of the loader: the last batch, and which gathered samples are no repetition."""
    script = HERE / "accelerate_metrics.py"
    said = tmp_path / "said.json"
    seen = launch(Path(sys.executable), script, 2, "--data", data, "--variant", variant, "--checkpoint", said)
    assert not seen.error
    assert sorted(seen.ids) == sorted([*range(100)] * 2)
    found = json.loads(said.read_text())
    assert found["gathered"] == [100, 100]
    assert found["orders_differ"]
    assert found["length"] == 13
    assert found["updates"] == 14  # 13 steps an epoch, two at a time, and the last one alone
    assert found["refused"] == [True, True]
