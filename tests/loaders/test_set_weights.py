"""Weights of streams that are set while an epoch is read: through samples, batches and loaders, over resumes and worlds."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from torch.utils.data import DataLoader

from stoker import (
    Lengths,
    LMStream,
    MDSWriter,
    Schedule,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    StreamingParquetLoader,
    World,
)
from stoker.errors import ConfigError, StateError
from stoker.order.mixture.schedule import divide
from stoker.tokens import DatasetSource

SIZES: Final = {"web": 300, "books": 120, "notes": 36}
NAMES: Final = list(SIZES)
FIRST: Final = {"web": 0, "books": 1000, "notes": 2000}
NEW: Final = {"web": 0.2, "books": 0.5, "notes": 0.3}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("weights")
    for name, count in SIZES.items():
        numbers = np.arange(FIRST[name], FIRST[name] + count)
        with MDSWriter({"id": "int", "tokens": "ndarray:int64:3"}, root / name, size_limit="1kb") as out:
            out.write_batch({"id": numbers, "tokens": np.stack([numbers] * 3, 1)})
    return root


def opened(
    root: Path, rank: int = 0, world: int = 1, batch_size: int = 5, names: list[str] = NAMES, **options: Any
) -> StreamingDataset:
    shares = options.pop("shares", {"web": 0.7, "books": 0.2, "notes": 0.1})
    streams = [Stream(local=str(root / name), proportion=shares and shares[name]) for name in names]
    options = {"shuffle": True, "epoch_size": 300, **options}
    kind: type[StreamingDataset] = options.pop("kind", StreamingDataset)
    return kind(streams=streams, world=World(rank, world), batch_size=batch_size, **options)


def ids(batch: Any) -> list[int]:
    return [int(one) for one in batch["id"]]


def stream_of(number: int) -> str:
    return next(name for name in reversed(NAMES) if number >= FIRST[name])


def counts(numbers: list[int]) -> list[int]:
    found = Counter(map(stream_of, numbers))
    return [found[name] for name in NAMES]


def shares(weights: Mapping[str, float]) -> list[Fraction]:
    whole = sum(Fraction(str(weight)) for weight in weights.values())
    return [Fraction(str(weights[name])) / whole for name in NAMES]


@pytest.mark.parametrize("batching", ["random", "stratified"])
def test_the_rest_of_an_epoch_and_later_ones_have_the_new_proportions(data: Path, batching: str) -> None:
    dataset = opened(data, batching_method=batching, world=1)
    batches = dataset.batches()
    begin = list(chain.from_iterable(map(ids, islice(batches, 20))))
    dataset.set_weights(NEW)
    rest = list(chain.from_iterable(map(ids, batches)))
    assert len(begin) + len(rest) == 300
    assert counts(rest) == list(divide(200, shares(NEW)))
    assert [one.proportion for one in dataset.streams] == list(NEW.values())
    later = list(chain.from_iterable(map(ids, dataset.batches())))
    assert counts(later) == list(divide(300, shares(NEW)))
    seen = Counter([*begin, *rest, *later])
    for name in NAMES:  # none comes again before all came
        had = [seen[number] for number in range(FIRST[name], FIRST[name] + SIZES[name])]
        assert max(had) - min(had) <= 1
    if batching == "stratified":  # also inside, where no batch is far from its shares
        for at in range(0, len(rest) - 50, 50):
            expected = [50 * share for share in shares(NEW)]
            assert all(abs(a - b) < 5 for a, b in zip(counts(rest[at : at + 50]), expected, strict=True))


class History:
    """A run of several ranks whose weights are set, and which is resumed in other worlds, by lot.

    ``had``: how often each sample was delivered. ``in_order``: whether each stream comes pass after pass; else small ones are
    scrambled in windows that are larger than a pass.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.root = root
        self.options: dict[str, Any] = {
            "shuffle": self.draw.random() < 0.8,
            "epoch_size": self.draw.choice([120, 300, 456]),
            "batching_method": self.draw.choice(["random", "stratified"]),
            "num_canonical_nodes": self.draw.choice([1, 2]),
        }
        if self.draw.random() < 0.3:  # each sample once, until weights are set
            self.options |= {"shares": None, "epoch_size": None}
        self.in_order = not self.options["shuffle"] or self.options["batching_method"] == "stratified"
        self.had: Counter[int] = Counter()
        self.open(None)

    def open(self, state: dict[str, Any] | None, across: int = 12) -> None:
        """Begin or resume with global batches that an epoch is a multiple of, so that none is filled up."""
        world = self.draw.choice([1, 2, 4]) if across > 1 else 1
        size = across // world
        self.ranks = [opened(self.root, rank, world, size, **self.options) for rank in range(world)]
        for rank in self.ranks if state is not None else ():
            rank.load_state_dict(json.loads(json.dumps(state)))
        self.running = [rank.batches() for rank in self.ranks]

    def step(self) -> None:
        """Deliver a step of all ranks; of the next epoch where nothing is left."""
        steps = [next(rank, None) for rank in self.running]
        if None in steps:
            assert set(map(type, steps)) == {type(None)}
            self.running = [rank.batches() for rank in self.ranks]
        for batch in filter(None, steps):
            self.had.update(ids(batch))

    def set_weights(self, weights: dict[str, float]) -> None:
        for rank in self.ranks:
            rank.set_weights(weights)
        states = [json.dumps(rank.state_dict(), sort_keys=True) for rank in self.ranks]
        assert len(set(states)) == 1

    def of(self, name: str) -> list[int]:
        return [self.had[number] for number in range(FIRST[name], FIRST[name] + SIZES[name])]


@pytest.mark.parametrize("seed", range(60))
def test_drawn_histories_lose_and_repeat_nothing(data: Path, seed: int) -> None:
    history = History(data, seed)
    draw = history.draw
    for _ in range(20):
        for _ in range(draw.randint(0, 15)):
            history.step()
        if draw.random() < 0.3:
            history.open(history.ranks[0].state_dict())
        else:
            history.set_weights(
                {name: draw.choice([0.0, 0.1, 0.25, 1.0, 3.0]) for name in NAMES} | {draw.choice(NAMES): 0.5}
            )
            consumed = history.ranks[0].state_dict()["origin"]["consumed"]
            assert consumed == {name: sum(history.of(name)) for name in NAMES}
        if history.in_order:
            assert all(max(history.of(name)) - min(history.of(name)) <= 1 for name in NAMES)
    # What is left of each stream alone comes before anything else of it.
    history.open(history.ranks[0].state_dict(), 1)
    for name in NAMES:
        history.set_weights({other: float(other == name) for other in NAMES})
        steps = 0
        while len(set(history.of(name))) > 1 or not steps:
            history.step()
            steps += 1
            assert steps < 20 * SIZES[name]


@pytest.mark.parametrize("through", ["samples", "batches", "loader"])
def test_a_loop_that_runs_gives_what_a_resumed_one_would(data: Path, through: str) -> None:
    def read(dataset: StreamingDataset) -> tuple[Iterator[int], Any]:
        if through == "samples":
            return (sample["id"] for sample in dataset), dataset
        loader = StreamingDataLoader(dataset, columnar=True) if through == "loader" else dataset
        batches = iter(loader) if through == "loader" else dataset.batches()
        return chain.from_iterable(map(ids, batches)), loader

    dataset = opened(data)
    numbers, owner = read(dataset)
    begin = list(islice(numbers, 35))
    owner.set_weights(NEW)
    owner.set_weights(weights := {"web": 1, "books": 3, "notes": 0})  # the second holds
    state = json.loads(json.dumps(owner.state_dict()))
    middle = list(islice(numbers, 60))
    later = owner.state_dict()
    rest = list(numbers)
    assert next(numbers, None) is None  # the epoch has ended, and no other begins
    assert len(begin) + len(middle) + len(rest) == 300
    assert counts([*middle, *rest]) == list(divide(265, shares(weights)))
    other = opened(data)
    other.load_state_dict(state)
    assert [one.proportion for one in other.streams] == [one.proportion for one in dataset.streams]
    assert list(chain.from_iterable(map(ids, other.batches()))) == [*middle, *rest]
    other.load_state_dict(later)
    assert list(chain.from_iterable(map(ids, other.batches()))) == rest
    other.set_weights(NEW)
    assert other.state_dict()["order"]["weights"] == NEW


def test_a_small_stream_has_its_share_over_many_changes(data: Path) -> None:
    dataset = opened(data, batching_method="stratified", epoch_size=1200)
    numbers: list[int] = []
    for number, batch in enumerate(dataset.batches()):
        numbers += ids(batch)
        dataset.set_weights({"web": 0.6 + number % 2 / 10, "books": 0.33, "notes": 0.02})
    assert len(numbers) == 1200
    assert abs(counts(numbers)[2] - 1195 * 0.02) < 10


def test_a_dataset_that_others_count_is_changed_by_these(data: Path) -> None:
    dataset = opened(data)
    StreamingDataLoader(dataset)
    with pytest.raises(ConfigError, match="the StreamingDataLoader over it counts its batches"):
        dataset.set_weights(NEW)
    dataset = opened(data)
    LMStream(dataset, "id", 4, 8)
    with pytest.raises(ConfigError, match="StreamingParquetLoader"):
        dataset.set_weights(NEW)


class Noting(StreamingDataset):
    """Keeps its state inside of one of its own."""

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> dict[str, Any]:
        return {"inner": super().state_dict(num_samples, from_beginning), "note": 1}


class Skipping(StreamingDataset):
    """Gives every other sample."""

    def __iter__(self) -> Iterator[Any]:
        return islice(super().__iter__(), 0, None, 2)


def test_a_subclass_with_states_of_its_own_is_changed_by_what_came(data: Path) -> None:
    dataset = opened(data, kind=Noting)
    loader = StreamingDataLoader(dataset)
    batches = iter(loader)
    begin = [one for _ in range(7) for one in ids(next(batches))]
    assert set(loader.state_dict()) == {"inner", "note"}
    loader.set_weights(NEW)
    rest = [one for batch in batches for one in ids(batch)]
    assert counts(rest) == list(divide(265, shares(NEW)))
    assert not {one for one in begin if one < 1000} & set(rest)  # the epoch has fewer of the web than there are


def test_a_subclass_whose_batches_do_not_tell_is_refused(data: Path) -> None:
    loader = StreamingDataLoader(opened(data, kind=Skipping))
    batches = iter(loader)
    next(batches)
    with pytest.raises(StateError, match=r"Skipping.__iter__\(\) may take another number"):
        loader.set_weights(NEW)


def test_a_state_of_many_streams_holds_their_weights(data: Path) -> None:
    def make() -> StreamingDataset:
        streams = [Stream(local=str(data / "notes"), proportion=1, name=f"stream {number}") for number in range(80)]
        return StreamingDataset(streams=streams, batch_size=8, shuffle=True)

    dataset = make()
    batches = dataset.batches()
    next(batches)
    weights = {name: float(number % 3) for number, name in enumerate(dataset.stream_names)}
    dataset.set_weights(weights)
    state = json.dumps(dataset.state_dict())
    rest = [ids(batch) for batch in batches]
    assert "packed" in state
    assert "weights" not in json.loads(state)["order"]  # but in what is packed
    other = make()
    other.load_state_dict(json.loads(state))
    assert [ids(batch) for batch in other.batches()] == rest


def test_weights_set_between_epochs_hold_for_the_next_one(data: Path) -> None:
    dataset = opened(data)
    first = list(dataset.batches())
    assert len(first) == 60
    dataset.set_weights(NEW)
    assert counts(list(chain.from_iterable(map(ids, dataset.batches())))) == list(divide(300, shares(NEW)))
    assert dataset.next_epoch == 2


@pytest.mark.parametrize("through", ["batches", "loader"])
def test_weights_set_behind_the_last_batch_end_the_epoch(data: Path, through: str) -> None:
    dataset = opened(data)
    owner: Any = StreamingDataLoader(dataset, columnar=True) if through == "loader" else dataset
    had = []
    for number, batch in enumerate(owner if through == "loader" else dataset.batches()):
        had += ids(batch)
        if number == 59:
            owner.set_weights(NEW)
    assert len(had) == 300
    assert owner.state_dict()["epoch"] == 1


def test_a_state_from_before_the_change_has_the_first_weights(data: Path) -> None:
    dataset = opened(data)
    batches = dataset.batches()
    first = [ids(next(batches)) for _ in range(4)]
    state = dataset.state_dict()
    expected = [ids(batch) for batch in batches]
    dataset.load_state_dict(state)
    dataset.set_weights(NEW)
    dataset.load_state_dict(state)
    assert [ids(batch) for batch in dataset.batches()] == expected
    assert "weights" not in dataset.state_dict()["order"]
    assert [one.proportion for one in dataset.streams] == pytest.approx([0.7, 0.2, 0.1])
    assert len(first) == 4


def test_other_weights_in_the_script_are_named_and_can_be_taken(data: Path) -> None:
    dataset = opened(data)
    next(dataset.batches())
    dataset.set_weights(NEW)
    state = dataset.state_dict()
    other = opened(data, shares={"web": 0.5, "books": 0.4, "notes": 0.1})
    with pytest.raises(StateError, match=r"weights.*change_streams=True"):
        other.load_state_dict(state)
    other.load_state_dict(state, change_streams=True)
    rest = list(chain.from_iterable(map(ids, other.batches())))
    assert counts(rest) == list(divide(295, shares({"web": 0.5, "books": 0.4, "notes": 0.1})))


def test_an_earlier_loop_does_not_come_back(data: Path) -> None:
    dataset = opened(data)
    first = dataset.batches()
    next(first)
    dataset.set_weights(NEW)
    second = dataset.batches()
    next(second)
    with pytest.raises(StateError, match="has ended"):
        next(first)
    dataset.load_state_dict(dataset.state_dict())
    with pytest.raises(StateError, match="has ended"):
        next(second)


@pytest.mark.parametrize(
    ("options", "weights", "message"),
    [
        ({"names": ["web"]}, {"web": 1.0}, "one stream"),
        ({"shares": None, "sampling_method": Schedule.parse({0: {"web": 1, "books": 1, "notes": 1}})}, NEW, "Schedule"),
        ({"sampling_method": "fixed"}, NEW, "fixed"),
        ({"shuffle_algo": "py1s"}, NEW, "mosaicml-streaming"),
        ({"batch_size": None, "batch_by": Lengths("id", max_tokens=5000)}, NEW, "batch_by="),
        ({}, {"web": 1.0}, r"\['books', 'notes'\] are missing"),
        ({}, {**NEW, "wbe": 1.0}, "wbe"),
        ({}, {**NEW, "web": -1.0}, "negative"),
        ({}, {**NEW, "web": float("nan")}, "must be a number, got nan"),
        ({}, dict.fromkeys(NAMES, 0.0), "not all be 0"),
        ({}, {**NEW, "web": "0.5"}, "set_weights"),
    ],
)
def test_what_can_not_be_changed_is_refused(
    data: Path, options: dict[str, Any], weights: dict[str, Any], message: str
) -> None:
    dataset = opened(data, **options)
    state = dataset.state_dict()
    with pytest.raises(ConfigError, match=message):
        dataset.set_weights(weights)
    assert dataset.state_dict() == state  # nothing is half changed


def test_a_static_partition_changes_between_epochs(data: Path) -> None:
    dataset = opened(data, partition_algo="contiguous")
    batches = dataset.batches()
    next(batches)
    with pytest.raises(StateError, match="where an epoch has ended"):
        dataset.set_weights(NEW)
    assert len(list(batches)) == 59
    dataset.set_weights(NEW)
    assert counts(list(chain.from_iterable(map(ids, dataset.batches())))) == list(divide(300, shares(NEW)))


@pytest.mark.processes
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("columnar", [False, True])
def test_workers_read_on_with_the_new_weights(data: Path, persistent: bool, columnar: bool) -> None:
    def read(make: Callable[[StreamingDataset], Any]) -> list[int]:
        numbers, source = [], make(opened(data))
        for _ in range(2):
            for number, batch in enumerate(source if isinstance(source, StreamingDataLoader) else source.batches()):
                numbers.append(ids(batch))
                if number in (7, 8, 30):
                    source.set_weights({**NEW, "web": 0.1 * number})
        return list(chain.from_iterable(numbers))

    def loader(dataset: StreamingDataset) -> StreamingDataLoader:
        return StreamingDataLoader(dataset, num_workers=2, persistent_workers=persistent, columnar=columnar)

    assert read(loader) == read(lambda dataset: dataset)


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
def test_a_mixture_of_tokens_is_changed_through_its_loader(data: Path, workers: int) -> None:
    def tokens() -> StreamingParquetLoader:
        sources = {name: DatasetSource(StreamingDataset(local=data / name), "tokens") for name in NAMES}
        return StreamingParquetLoader(sources, None, 2, 8, weights={"web": 0.7, "books": 0.2, "notes": 0.1}, seed=3)

    def read(source: Any, owner: Any) -> list[list[list[int]]]:
        rows = []
        for number, batch in enumerate(source):
            rows.append(batch.input_ids.tolist())
            if number in (3, 4, 10):
                owner.set_weights({**NEW, "web": number / 10})
        return rows

    loader = StreamingDataLoader(tokens(), num_workers=workers)
    alone = tokens()
    assert read(loader, loader) == read(alone, alone)


@pytest.mark.processes
def test_workers_that_live_on_take_a_state_with_other_streams(data: Path) -> None:
    dataset = opened(data)
    next(dataset.batches())
    state = dataset.state_dict()
    other = opened(data, shares=NEW)
    loader = StreamingDataLoader(other, num_workers=1, persistent_workers=True, columnar=True)
    assert len(list(loader)) == 60
    other.load_state_dict(state, change_streams=True)
    rest = [ids(batch) for batch in loader]
    loader.close()
    other = opened(data, shares=NEW)
    other.load_state_dict(state, change_streams=True)
    assert rest == [ids(batch) for batch in other.batches()]


@pytest.mark.processes
def test_workers_of_torchs_loader_that_live_on_say_that_they_can_not(data: Path) -> None:
    dataset = opened(data)
    loader: DataLoader[Any] = DataLoader(dataset, batch_size=5, num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 60
    with pytest.raises(StateError, match="workers of a DataLoader"):
        dataset.set_weights(NEW)
    state = dataset.state_dict(300)
    dataset.load_state_dict(state)  # the same streams: they go on
    assert len(list(loader)) == 60
    dataset.change_weights(NEW, dataset.state_dict(300))
    with pytest.raises(StateError, match="persistent_workers=True"):
        list(loader)
    del loader
    again: DataLoader[Any] = DataLoader(dataset, batch_size=5, num_workers=1)
    assert counts([int(one) for batch in again for one in batch["id"]]) == list(divide(300, shares(NEW)))
