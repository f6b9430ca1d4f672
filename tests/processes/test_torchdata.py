"""torchdata's StatefulDataLoader, which saves each worker's state apart."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from stoker import StreamingDataset, World
from stoker.errors import StateError
from support import write_columns


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::UserWarning")  # torchdata's own, and more workers than processors
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("taken", [0, 1, 7, 31])
def test_it_continues_where_it_stopped(tmp_path: Path, workers: int, taken: int) -> None:
    write_columns(str(tmp_path), {"id": np.arange(500)}, size_limit=1024)

    def loader() -> StatefulDataLoader:
        return StatefulDataLoader(
            StreamingDataset(local=tmp_path, shuffle=True, batch_size=16), batch_size=16, num_workers=workers
        )

    def ids(batches: object) -> list[list[int]]:
        return [batch["id"].tolist() for batch in batches]  # type: ignore[attr-defined]

    whole = ids(loader())
    assert sorted(number for batch in whole for number in batch) == list(range(500))
    first = loader()
    head = ids(islice(iter(first), taken))
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert head + ids(second) == whole
    following = ids(second)
    assert sorted(number for batch in following for number in batch) == list(range(500))
    assert following != whole


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::UserWarning")  # torchdata's own, and more workers than processors
@pytest.mark.parametrize("size", [3, 7, 16])
def test_a_loaders_batches_may_have_another_size_than_the_datasets(tmp_path: Path, size: int) -> None:
    write_columns(str(tmp_path), {"id": np.arange(46)}, size_limit=1024)

    def loader() -> StatefulDataLoader:
        return StatefulDataLoader(
            StreamingDataset(local=tmp_path, shuffle=True, batch_size=4), batch_size=size, num_workers=2
        )

    whole = [batch["id"].tolist() for batch in loader()]
    for taken in (1, len(whole) // 2, len(whole) - 1, len(whole)):
        first, second = loader(), loader()
        head = [batch["id"].tolist() for batch in islice(iter(first), taken)]
        second.load_state_dict(first.state_dict())
        assert head + [batch["id"].tolist() for batch in second] == whole


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::UserWarning")  # torchdata's own, and more workers than processors
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_after_an_epochs_end_comes_the_next(tmp_path: Path, workers: int, persistent: bool) -> None:
    write_columns(str(tmp_path), {"id": np.arange(46)}, size_limit=1024)

    def loader() -> StatefulDataLoader:
        dataset = StreamingDataset(local=tmp_path, shuffle=True, batch_size=4)
        return StatefulDataLoader(dataset, batch_size=4, num_workers=workers, persistent_workers=persistent)

    def ids(loader: StatefulDataLoader) -> list[list[int]]:
        return [batch["id"].tolist() for batch in loader]

    first, second = loader(), loader()
    ids(first)
    state = first.state_dict()
    following = [ids(first), ids(first)]
    second.load_state_dict(state)
    assert [ids(second), ids(second)] == following


def test_a_workers_state_is_refused_elsewhere(tmp_path: Path) -> None:
    write_columns(str(tmp_path), {"id": np.arange(50)})
    dataset = StreamingDataset(local=tmp_path)
    state = {**dataset.state_dict(), "worker": {"number": 0, "count": 2, "batches": 3}}
    with pytest.raises(StateError, match="state of DataLoader worker 0 of 2"):
        dataset.load_state_dict(json.loads(json.dumps(state)))


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore::UserWarning")  # torchdata's own
def test_a_workers_state_is_refused_in_another_world(tmp_path: Path) -> None:
    """Its batches are counted, and those of another world are other samples."""
    write_columns(str(tmp_path), {"id": np.arange(64)})

    def loader(world: World) -> StatefulDataLoader:
        return StatefulDataLoader(
            StreamingDataset(local=tmp_path, batch_size=4, world=world), batch_size=4, num_workers=1
        )

    first = loader(World())
    assert len(list(islice(iter(first), 3))) == 3
    second = loader(World(0, 2))
    second.load_state_dict(first.state_dict())
    with pytest.raises(StateError, match="on 1 ranks with batch_size 4; this run has 2 and batch_size 4"):
        list(second)
