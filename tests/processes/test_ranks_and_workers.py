"""The same global batches in the same order, on any number of ranks and DataLoader workers, stopped and resumed anywhere."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import StreamingDataLoader, StreamingDataset, World
from stoker.errors import StateError
from stoker.order.sample_order import DataRank, EpochPosition
from support import check_batch, ids_of, make_dataset

pytestmark = [
    pytest.mark.processes,
    pytest.mark.usefixtures("no_debris"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]

RANKS = (1, 2, 3, 4, 6, 8)
WORKERS = (0, 1, 3)
GLOBAL = 24
# 20 whole global batches and 16 samples, which all of these numbers of ranks can share without repeating any.
SAMPLES = 20 * GLOBAL + 16
BATCHES = 21
# A last batch of 5, which 6 and 8 ranks can not.
ODD_SAMPLES = 6 * GLOBAL + 5

Batches = list[list[int]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About 40 shards."""
    return make_dataset(tmp_path_factory.mktemp("ranks") / "data", SAMPLES, size_limit=1500)


@pytest.fixture(scope="module")
def odd_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("ranks") / "odd", ODD_SAMPLES, size_limit=1500)


def flat(batches: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(batches))


def keep(samples: list[Any]) -> list[Any]:
    return samples


class Rank:
    """One rank of a world, with its dataset and loader."""

    def __init__(
        self, data: Path, rank: int, ranks: int, workers: int, *, columnar: bool = False, **options: Any
    ) -> None:
        self.dataset = StreamingDataset(
            local=data, batch_size=GLOBAL // ranks, world=World(rank, ranks, ranks), **options
        )
        # fork, for speed: that spawned workers do the same is shown elsewhere.
        how: dict[str, Any] = {"multiprocessing_context": "fork"} if workers else {}
        if not columnar:
            how["collate_fn"] = keep
        self.loader = StreamingDataLoader(self.dataset, columnar=columnar, num_workers=workers, **how)
        self._running: Iterator[Any] | None = None

    def take(self, count: int | None = None) -> Batches:
        """The ids of the next batches, at most ``count``, of the epoch that is under way."""
        if self._running is None:
            self._running = iter(self.loader)
        batches = [ids_of(batch) for batch in islice(self._running, count)]
        if count is None:
            self._running = None
        return batches


class Cluster:
    """All ranks of a world, one after the other."""

    def __init__(self, data: Path, ranks: int, workers: int, **options: Any) -> None:
        self.ranks = [Rank(data, rank, ranks, workers, **options) for rank in range(ranks)]

    def take(self, count: int | None = None) -> Batches:
        """Global batches: the parts of the ranks, one behind the other."""
        parts = [rank.take(count) for rank in self.ranks]
        assert len({len(part) for part in parts}) == 1, "ranks differ in their number of steps"
        return [flat(batch) for batch in zip(*parts, strict=True)]

    def state(self) -> Any:
        """The state, which is the same on every rank and survives JSON."""
        states = [json.dumps(rank.loader.state_dict(), sort_keys=True) for rank in self.ranks]
        assert len(set(states)) == 1, states
        return json.loads(states[0])

    def load(self, state: Any) -> Cluster:
        for rank in self.ranks:
            rank.loader.load_state_dict(state)
        return self


def expected(data: Path, epoch: int = 0, **options: Any) -> Batches:
    """Global batches as one process without a DataLoader sees them; by sets, as the order alone says."""
    dataset = StreamingDataset(local=data, batch_size=GLOBAL, **options)
    for _ in range(epoch):
        next(iter(dataset.batches()))
    batches = [check_batch(batch) for batch in dataset.batches()]
    shards, rows = dataset.epoch_reader.sample_order.run(EpochPosition(epoch), DataRank()).order.locate(
        np.arange(dataset.epoch_size)
    )
    ids = (dataset._opened.table.starts[shards] + rows).tolist()
    assert [sorted(batch) for batch in batches] == [
        sorted(ids[start : start + GLOBAL]) for start in range(0, len(ids), GLOBAL)
    ]
    return batches


@pytest.mark.slow
@pytest.mark.parametrize(("shuffle", "columnar"), [(False, False), (True, False), (True, True)])
def test_all_worlds_and_workers_see_the_same_global_batches(data: Path, shuffle: bool, columnar: bool) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "num_canonical_nodes": 4 if shuffle else None}
    reference = expected(data, **options)
    assert sorted(flat(reference)) == list(range(SAMPLES))
    assert shuffle == (flat(reference) != list(range(SAMPLES)))
    for ranks in RANKS:
        for workers in WORKERS if columnar else WORKERS[ranks % 3 :: 2]:
            found = Cluster(data, ranks, workers, columnar=columnar, **options).take()
            assert found == reference, f"{ranks} ranks, {workers} workers"


@pytest.mark.parametrize("remainder", ["pad", "drop", "uneven"])
def test_a_last_batch_smaller_than_the_world_is_padded_dropped_or_uneven(odd_data: Path, remainder: Any) -> None:
    options: dict[str, Any] = {"shuffle": True, "remainder": remainder}
    reference = expected(odd_data, shuffle=True)
    for ranks in RANKS:
        for workers in (0, 3) if ranks > 5 else (0,):
            cluster = [Rank(odd_data, rank, ranks, workers, **options) for rank in range(ranks)]
            parts = [rank.take() for rank in cluster]
            assert [len(rank.loader) for rank in cluster] == [len(part) for part in parts]
            assert [len(rank.dataset) for rank in cluster] == [sum(map(len, part)) for part in parts]
            full = [flat(part[k] for part in parts) for k in range(len(reference) - 1)]
            assert full == reference[:-1]
            last = flat(batch for part in parts for batch in part[len(full) :])
            if remainder == "drop":
                assert last == []
            elif remainder == "uneven" or ranks <= 5:
                assert last == reference[-1]
            else:
                assert len(last) == ranks
                assert set(last) == set(reference[-1])
            assert len({len(part) for part in parts}) == (2 if remainder == "uneven" and ranks > 5 else 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_stop_between_any_two_batches_continues_in_any_world(data: Path, seed: int) -> None:
    # Workers have run ahead of what was yielded; the state counts what was yielded.
    draw = random.Random(seed)
    options: dict[str, Any] = {"shuffle": True, "shuffle_seed": seed}
    reference = expected(data, **options)
    state, done = None, 0
    while done < len(reference):
        cluster = Cluster(data, draw.choice(RANKS), draw.choice(WORKERS), columnar=draw.random() < 0.5, **options)
        if state is not None:
            cluster.load(state)
            assert cluster.state() == state
        steps = draw.randint(1, 9)
        assert cluster.take(steps) == reference[done : done + steps], f"from batch {done}"
        done += steps
        state = cluster.state()
    assert state is not None
    assert (state["epoch"], state["position"]) == (1, 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_the_last_batch_continues_with_the_next_epoch(data: Path, workers: int) -> None:
    options: dict[str, Any] = {"shuffle": True}
    inside, after = Cluster(data, 2, workers, **options), Cluster(data, 2, workers, **options)
    inside.take(BATCHES)  # the loop has had its last batch, and has not found out that it was the last
    after.take()
    assert inside.state() == after.state()
    assert Cluster(data, 3, 1, **options).load(inside.state()).take() == expected(data, epoch=1, **options)


def test_a_dropped_remainder_is_not_left_for_the_resumed_run(odd_data: Path) -> None:
    options: dict[str, Any] = {"shuffle": True, "remainder": "drop"}
    cluster = Cluster(odd_data, 2, 2, **options)
    cluster.take(6)
    assert cluster.state()["epoch"] == 1
    assert len(Cluster(odd_data, 2, 0, **options).load(cluster.state()).take()) == 6


@pytest.mark.parametrize("persistent", [False, True])
def test_stops_in_later_epochs_and_several_loads_on_one_loader(data: Path, persistent: bool) -> None:
    options: dict[str, Any] = {"shuffle": True}
    epochs = [expected(data, epoch=epoch, **options) for epoch in range(4)]
    rank = Rank(data, 0, 1, 0, **options)
    rank.loader = StreamingDataLoader(
        rank.dataset, num_workers=3, collate_fn=keep, multiprocessing_context="fork", persistent_workers=persistent
    )
    assert rank.take() == epochs[0]
    assert rank.take() == epochs[1]
    assert rank.take(7) == epochs[2][:7]
    state = rank.loader.state_dict()
    assert (state["epoch"], state["position"]) == (2, 7 * GLOBAL)
    rank._running = None
    assert rank.take() == epochs[3], "a new loop is a new epoch"
    for _ in range(2):
        rank.loader.load_state_dict(state)
        assert rank.take(3) == epochs[2][7:10]
        assert rank.loader.state_dict()["position"] == 10 * GLOBAL
        rank._running = None
    rank.loader.load_state_dict(state)
    assert rank.take() == epochs[2][7:]
    assert rank.take() == epochs[3]


def test_samples_of_a_plain_iteration_resume_inside_a_batch(data: Path) -> None:
    options: dict[str, Any] = {"local": data, "shuffle": True, "batch_size": 10}
    everything = [sample["id"] for sample in StreamingDataset(**options)]
    for count in (0, 1, 9, 10, 11, 57, SAMPLES - 7, SAMPLES - 6, SAMPLES - 1):
        first = StreamingDataset(**options)
        running = iter(first)
        taken = ids_of(islice(running, count))
        state = json.loads(json.dumps(first.state_dict()))
        second = StreamingDataset(**options)
        second.load_state_dict(state)
        assert taken + ids_of(second) == everything, count
        if count % 10:
            with pytest.raises(StateError, match="inside a batch"):
                StreamingDataLoader(StreamingDataset(**options)).load_state_dict(state)
            with pytest.raises(StateError, match="inside a batch"):
                StreamingDataset(**{**options, "batch_size": 5}).load_state_dict(state)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"shuffle_seed": 1}, "seed was 0 and is 1"),
        ({"shuffle": False}, "shuffle was 'block' and is 'none'"),
        ({"epoch_size": 100}, "epoch_size was 496 and is 100"),
        ({"num_canonical_nodes": 3}, "num_canonical_nodes was"),
        ({"shuffle_block_size": 7}, "block_size was"),
    ],
)
def test_a_state_of_another_order_is_refused_with_what_differs(data: Path, other: dict[str, Any], named: str) -> None:
    options: dict[str, Any] = {"local": data, "shuffle": True, "shuffle_seed": 0, "batch_size": 8}
    state = StreamingDataLoader(StreamingDataset(**options)).state_dict()
    loader = StreamingDataLoader(StreamingDataset(**{**options, **other}))
    before = loader.state_dict()
    with pytest.raises(StateError, match=named):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


def test_a_state_of_another_dataset_or_of_nothing_is_refused(data: Path, odd_data: Path) -> None:
    state = StreamingDataLoader(StreamingDataset(local=data, batch_size=8)).state_dict()
    loader = StreamingDataLoader(StreamingDataset(local=odd_data, batch_size=8))
    with pytest.raises(StateError, match="another dataset"):
        loader.load_state_dict(state)
    loader = StreamingDataLoader(StreamingDataset(local=data, batch_size=8))
    bad: Any
    for bad in (
        *({}, None, [1], {"version": 1}, {**state, "version": 9}, {**state, "order": 3}),
        *({**state, "position": position} for position in (-1, 10**9, True, "1", 1.0)),
        *({**state, "epoch": epoch} for epoch in (-1, 1 << 63, True, "1", None)),
        {**state, "partial": {"samples": 8, "batch_size": 8, "world_size": 1}},
        *({**state, "worker": own} for own in (3, [1], {}, {"number": 0, "count": 1, "batches": -1})),
    ):
        with pytest.raises(StateError):
            StreamingDataset(local=data, batch_size=8).load_state_dict(bad)
        with pytest.raises(StateError):
            loader.load_state_dict(bad)
