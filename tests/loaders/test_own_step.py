"""A step of a kind that stoker has not: written as docs/chains.md says, it goes with all that a chain goes with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from stoker import (
    BadSamples,
    Chain,
    MDSWriter,
    ReadOptions,
    Step,
    StreamingConfig,
    StreamingDataset,
    StreamingShardLoader,
    World,
)
from stoker.errors import ConfigError, StateError, TransformError
from stoker.reading.steps import Map

SAMPLES: Final = 300
KEYS: Final = tuple(number % 7 for number in range(SAMPLES))
BAD: Final = 44


@cache
def kept_of(epoch: int, most: int) -> frozenset[int]:
    """The samples of an epoch: so many of each key, others in each epoch."""
    counts: Counter[int] = Counter()
    kept = []
    for number in np.random.default_rng(epoch).permutation(SAMPLES).tolist():
        counts[KEYS[number]] += 1
        if counts[KEYS[number]] <= most:
            kept.append(number)
    return frozenset(kept)


@dataclass(frozen=True)
class Cap(Step):
    """At most so many samples of each key in an epoch."""

    most: int
    kind = "cap"
    by_place = drops = True

    def apply_at(self, sample: Any, place: Any, generators: Any) -> Any:
        return sample if place.number in kept_of(place.epoch, self.most) else self.LEFT_OUT

    @property
    def told(self) -> str:
        return f"cap({self.name}, {self.most})"


def failing(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] == BAD:
        raise ValueError("bad")
    return sample


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "data"
    with MDSWriter({"id": "int"}, folder, size_limit="1kb") as out:
        out.write_batch({"id": list(range(SAMPLES))})
    return folder


def opened(data: Path, rank: int = 0, ranks: int = 1, **options: Any) -> StreamingDataset:
    world = World(rank=rank, world_size=ranks)
    return StreamingDataset(local=data, shuffle=True, batch_size=24 // ranks, world=world, **options)


def ids_of(batches: Iterable[Any]) -> list[int]:
    return [int(number) for batch in batches for number in batch["id"]]


def test_it_makes_batches_and_samples_of_every_epoch(data: Path) -> None:
    dataset = opened(data).apply(Cap("few", 5))
    assert len(kept_of(0, 5)) == 35
    for epoch in range(2):
        assert sorted(ids_of(dataset.batches())) == sorted(kept_of(epoch, 5))
    assert sorted(sample["id"] for sample in dataset) == sorted(kept_of(2, 5))
    assert dataset.stats().filtered == 3 * (SAMPLES - 35)


def test_it_goes_on_on_another_cluster(data: Path) -> None:
    first = opened(data).apply(Cap("few", 5))
    batches = first.batches()
    begun = ids_of(next(batches) for _ in range(4))
    state = first.state_dict()
    rest = []
    for rank in range(3):
        dataset = opened(data, rank, 3).apply(Cap("few", 5))
        dataset.load_state_dict(state)
        rest += ids_of(dataset.batches())
    assert sorted(begun + rest) == sorted(kept_of(0, 5))


def test_a_state_of_another_one_is_refused(data: Path) -> None:
    first = opened(data).apply(Cap("few", 5))
    next(first.batches())
    with pytest.raises(StateError, match="cap"):
        opened(data).apply(Cap("few", 6)).load_state_dict(first.state_dict())


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("choice", ["skip", "replace"])
def test_it_goes_with_bad_samples(data: Path, choice: Any, threads: int) -> None:
    dataset = opened(
        data, transform=failing, on_bad_sample=BadSamples(choice), read=ReadOptions(read_threads=threads)
    ).apply(Cap("few", 40))
    found = ids_of(dataset.batches())
    assert BAD not in found
    assert set(found) == kept_of(0, 40) - {BAD}
    assert dataset.stats().bad_samples == 1


def test_where_samples_must_come_one_for_one_it_is_refused(data: Path) -> None:
    dataset = opened(data).apply(Cap("few", 5))
    with pytest.raises(ConfigError, match="cap"):
        dataset[0]
    loader = StreamingShardLoader(dataset, StreamingConfig(rank=0, world_size=1))
    assert [sample["id"] for sample in loader] == [sample["id"] for sample in dataset]


@pytest.mark.processes
@pytest.mark.parametrize("columnar", [False, True])
def test_it_goes_with_workers(data: Path, columnar: bool) -> None:
    from stoker import StreamingDataLoader

    dataset = opened(data).apply(Cap("few", 40))
    loader = StreamingDataLoader(dataset, num_workers=2, columnar=columnar)
    for epoch in range(2):
        assert sorted(ids_of(loader)) == sorted(kept_of(epoch, 40))


@dataclass(frozen=True)
class Total(Step):
    """The sum of two columns as a third."""

    kind = "total"
    calls = False

    def change(self, values: dict[str, Any], positions: Any) -> dict[str, Any]:
        return {**values, "total": values["id"] + values["twice"]}


def twice(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "twice": 2 * sample["id"]}


def test_one_that_changes_columns_does_so_wherever_it_stands(data: Path) -> None:
    def after() -> StreamingDataset:
        return opened(data).map(twice).apply(Total("sum"))

    def before() -> StreamingDataset:
        return opened(data).rename({"id": "twice"}).zip(opened(data)).apply(Total("sum")).map(dict)

    for dataset, factor in ((after(), 3), (before(), 2)):
        assert {sample["total"] / sample["id"] for sample in dataset if sample["id"]} == {factor}
    for dataset, factor in ((after(), 3), (before().apply(Total("again")).select(["id", "total"]), 2)):
        for batch in dataset.batches():
            assert np.asarray(batch["total"]).tolist() == [
                factor * number for number in np.asarray(batch["id"]).tolist()
            ]


@dataclass(frozen=True)
class Odd(Step):
    replaces = False
    kind = "odd"

    def apply(self, sample: Any) -> Any:
        return sample if sample["id"] % 2 else self.LEFT_OUT


@dataclass(frozen=True)
class Replaced(Odd):
    kind = "replaced"
    drops = replaces = True


@dataclass(frozen=True)
class Placed(Step):
    """Gives each sample its position."""

    kind = "placed"
    positioned = True

    def apply_at(self, sample: Any, place: Any, generators: Any) -> Any:
        return {**sample, "at": place.position}


@dataclass(frozen=True)
class Halves(Step):
    """Leaves the first half of each batch."""

    kind = "halves"
    calls = False
    takes_batch = True

    def change_batch(self, batch: Any, positions: Any, first: Any) -> Any:
        return {name: column[: len(positions) // 2] for name, column in batch.items()}


@dataclass(frozen=True)
class Doubled(Map):
    """A function of stoker's own step, called twice."""

    kind = "doubled"

    def apply(self, sample: Any) -> Any:
        return self.function(self.function(sample))


def test_one_that_needs_a_place_is_refused_where_there_is_none(data: Path) -> None:
    dataset = opened(data).apply(Placed("at"))
    assert [sample["at"] for sample in dataset] == list(range(SAMPLES))
    loader = StreamingShardLoader(dataset, StreamingConfig(rank=0, world_size=1))
    assert [sample["at"] for sample in loader] == list(range(SAMPLES))
    with pytest.raises(ConfigError, match=r"placed\(\)"):
        Chain().apply(Placed("at"))({"id": 1})


def test_one_of_whole_batches_makes_them_wherever_they_are_read(data: Path) -> None:
    from stoker import StreamingDataLoader

    dataset = opened(data).apply(Halves("half"))
    whole = [ids_of([batch]) for batch in opened(data).batches()]
    assert [ids_of([batch]) for batch in dataset.batches()] == [batch[: len(batch) // 2] for batch in whole]
    loader = StreamingDataLoader(dataset, num_workers=0)
    assert len(ids_of(loader)) == SAMPLES // 2
    with pytest.raises(ConfigError, match=r"halves\(\)"):
        StreamingDataLoader(dataset, drop_last=True)
    with pytest.raises(ConfigError, match=r"halves\(\)"):
        StreamingDataLoader(dataset, collate_fn=list)


def test_a_subclass_of_a_step_is_asked_itself(data: Path) -> None:
    dataset = opened(data).apply(Doubled("twice", lambda sample: {"id": 2 * sample["id"]}))
    assert sorted(sample["id"] for sample in dataset) == [4 * number for number in range(SAMPLES)]
    assert sorted(ids_of(dataset.batches())) == [4 * number for number in range(SAMPLES)]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.processes)])
def test_columns_that_go_backwards_make_tensors(data: Path, workers: int) -> None:
    from stoker import StreamingDataLoader

    backwards = opened(data).batch_map(lambda batch: {name: column[::-1] for name, column in batch.items()}, "back")
    found = ids_of(StreamingDataLoader(backwards, num_workers=workers))
    there = [number for batch in opened(data).batches() for number in reversed(ids_of([batch]))]
    assert sorted(found) == sorted(there)
    assert workers or found == there


@dataclass(frozen=True)
class At(Step):
    """A column of positions."""

    kind = "at"
    calls = False
    positioned = True

    def change(self, values: dict[str, Any], positions: Any) -> dict[str, Any]:
        return {**values, "at": positions}


def test_one_that_changes_columns_has_positions_wherever_it_stands(data: Path) -> None:
    for dataset in (opened(data).apply(At("at")), opened(data).apply(At("at")).map(dict)):
        found = [int(number) for batch in dataset.batches() for number in batch["at"]]
        assert found == list(range(SAMPLES)) == [int(sample["at"]) for sample in dataset]


@dataclass(frozen=True)
class Seen(Step):
    """A column of what it is told of the place of each sample."""

    kind = "seen"
    by_place = True

    def apply_at(self, sample: Any, place: Any, generators: Any) -> Any:
        return {**sample, "epoch": place.epoch, "position": place.position}


@dataclass(frozen=True)
class SeenColumns(Total):
    kind = "seen_columns"

    def change(self, values: dict[str, Any], positions: Any) -> dict[str, Any]:
        assert positions is None
        return dict(values)


def test_one_that_does_not_ask_for_positions_is_told_none(data: Path) -> None:
    dataset = opened(data).apply(SeenColumns("no")).apply(Seen("place"))
    assert {sample["position"] for sample in dataset} == {None}
    known = opened(data).apply(Seen("place")).apply(At("at"))
    assert [sample["position"] for sample in known] == list(range(SAMPLES))
    opened(data).apply(SeenColumns("no"))[0]


def test_one_of_another_dataset_makes_its_columns_in_the_epoch(data: Path) -> None:
    other = opened(data).rename({"id": "twice"}).map(dict).apply(Seen("place")).select(["twice", "epoch"])
    dataset = opened(data).zip(other)
    for epoch in range(2):
        assert {sample["epoch"] for sample in dataset} == {epoch}
    loader = StreamingShardLoader(dataset, StreamingConfig(rank=0, world_size=1))
    for epoch in range(2):
        assert {sample["epoch"] for sample in loader} == {epoch}


@pytest.mark.parametrize("key", [None, "id"])
def test_one_that_changes_columns_of_another_dataset_does_so(data: Path, key: str | None) -> None:
    other = opened(data).zip(opened(data).rename({"id": "twice"})).apply(Total("sum"))
    if key is None:
        dataset = opened(data).zip(other.select(["total"]))
    else:
        dataset = opened(data).join(other, on="id").select(["id", "total"])
    found = {
        int(row): total for batch in dataset.batches() for row, total in zip(batch["id"], batch["total"], strict=True)
    }
    assert found == {number: 2 * number for number in range(SAMPLES)}
    assert dataset[7] == {"id": 7, "total": 14}
    loader = StreamingShardLoader(dataset, StreamingConfig(rank=0, world_size=1))
    assert {sample["id"]: sample["total"] for sample in loader} == found


@dataclass(frozen=True)
class Undeclared(Step):
    kind = "undeclared"
    by_place = True

    def apply_at(self, sample: Any, place: Any, generators: Any) -> Any:
        return {**sample, "x": generators(place, self.name, "numpy").random()}


class Hidden(Cap):
    kind = "hidden"

    def __init__(self, name: str, limit: int) -> None:
        super().__init__(name, 5)
        self.limit = limit


@pytest.mark.parametrize("flat", [False, True])
def test_one_that_draws_says_so(data: Path, flat: bool) -> None:
    dataset = opened(data).flat_map(lambda sample: [sample]) if flat else opened(data)
    with pytest.raises(TransformError, match=r"undeclared\(x\) asks for a generator.*Undeclared needs draws = True"):
        next(dataset.apply(Undeclared("x")).batches())


def test_one_whose_facts_contradict_is_refused(data: Path) -> None:
    for fact in ("drops", "makes_several"):
        with pytest.raises(ConfigError, match=r"total\(sum\): Both has calls = False.*give it apply\(sample\)"):
            opened(data).apply(type("Both", (Total,), {fact: True})("sum"))
        with pytest.raises(ConfigError, match="Both has calls = False"):
            Chain((type("Both", (Total,), {fact: True})("sum"),))
    with pytest.raises(ConfigError, match=r"Hidden has 'limit', which is not a field.*@dataclass"):
        opened(data).apply(Hidden("few", 5))


@pytest.mark.parametrize("read", [list, lambda dataset: list(dataset.batches())])
def test_an_error_names_one_that_changes_columns(data: Path, read: Any) -> None:
    for dataset in (opened(data).apply(Total("sum")), opened(data).map(dict).apply(Total("sum"))):
        with pytest.raises(TransformError, match=r"total\(sum\).* raised KeyError"):
            read(dataset)


@dataclass(frozen=True)
class Changed(Step):
    """Columns that a function makes of those of many samples."""

    function: Any
    kind = "changed"
    calls = False

    def change(self, values: dict[str, Any], positions: Any) -> dict[str, Any]:
        changed: dict[str, Any] = self.function(values)
        return changed


@dataclass(frozen=True)
class ChangedBatch(Changed):
    kind = "changed_batch"
    takes_batch = True


@pytest.mark.parametrize("kind", [Changed, ChangedBatch])
@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda values: values["nothing"], "raised KeyError"),
        (lambda _: None, "returned None: return a dict of columns"),
        (lambda _: {}, "returned an empty dict"),
        (lambda values: {**values, "y": 1}, "'y': int: return a dict of columns"),
        (lambda values: {**values, "y": [1]}, "columns of different lengths"),
        (lambda values: {"id": values["id"][:3]}, "returned 3 rows of"),
    ],
)
def test_columns_that_do_not_belong_to_the_samples_are_refused(data: Path, kind: Any, function: Any, why: str) -> None:
    batches = opened(data).apply(kind("one", function)).batches()
    if kind is ChangedBatch and why.startswith("returned 3"):
        assert {len(batch["id"]) for batch in batches} == {3}
        return
    with pytest.raises(TransformError, match=rf"changed(_batch)?\(one\).*{why}.*begins with"):
        list(batches)


@dataclass(frozen=True)
class Cut(Step):
    """Drops samples with an even number, and the second of the two that others make."""

    kind = "cut"
    makes_several = drops = True

    def apply(self, sample: Any) -> Any:
        return [sample, self.LEFT_OUT] if sample["id"] % 2 else self.LEFT_OUT


def test_one_that_makes_several_may_drop_all_or_some_of_them(data: Path) -> None:
    for read in (list, lambda dataset: [{"id": number} for number in ids_of(dataset.batches())]):
        dataset = opened(data).apply(Cut("cut"))
        assert sorted(sample["id"] for sample in read(dataset)) == list(range(1, SAMPLES, 2))
        assert dataset.stats().filtered == SAMPLES
    with pytest.raises(ConfigError, match=r"cut_and_fill\(\) makes any number of samples"):
        opened(data).apply(type("CutAndFill", (Cut,), {"kind": "cut_and_fill", "replaces": True})("one"))


def test_what_a_step_must_say_of_itself_is_asked_for(data: Path) -> None:
    with pytest.raises(TransformError, match="Odd needs drops = True"):
        next(opened(data).apply(Odd("odd")).batches())
    found = ids_of(opened(data).apply(Replaced("odd")).batches())
    assert len(found) == SAMPLES
    assert all(number % 2 for number in found)
    with pytest.raises(ConfigError, match="kind of its own"):
        opened(data).apply(type("Map", (Odd,), {"kind": "map"})("odd"))
    with pytest.raises(TransformError, match="lacks apply"):
        next(opened(data).apply(type("Nothing", (Step,), {"kind": "nothing"})("one")).batches())
    assert repr(opened(data).apply(Cap("few", 5)).chain) == "Chain().cap(few, 5)"
