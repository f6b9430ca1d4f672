"""Subclasses of StreamingDataset: what they override is what every way of iterating gives."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import (
    MDSWriter,
    StreamingConfig,
    StreamingDataset,
    StreamingShardLoader,
    World,
)
from stoker.errors import ConfigError, StateError, TransformError

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Subset  # noqa: E402

from stoker import StreamingDataLoader  # noqa: E402

ROWS = 203


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("data")
    with MDSWriter({"id": "int", "text": "str", "row": "ndarray:int32:4"}, out, size_limit="1kb") as writer:
        for number in range(ROWS):
            writer.write({"id": number, "text": f"text {number}", "row": np.full(4, number, np.int32)})
    return out


def double(number: int) -> int:
    return 2 * number


class Doubled(StreamingDataset):
    """Overrides ``__getitem__``, and calls an attribute named ``transform``."""

    def __init__(self, *args: Any, transform: Callable[[int], int] = double, **kwargs: Any) -> None:
        self.before = "set before the dataset is open"
        super().__init__(*args, **kwargs)
        self.transform = transform

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        sample["doubled"] = self.transform(sample["id"])
        sample["text"] = sample["text"].upper()
        return sample


class ByGetItem(StreamingDataset):
    """Overrides ``get_item``, as the vision classes do."""

    def get_item(self, sample_id: int, retry: int | None = 7) -> Any:
        sample = super().get_item(sample_id, retry)
        return sample["id"], double(sample["id"])


def check(sample: dict[str, Any]) -> int:
    number = int(sample["id"])
    assert sample["doubled"] == 2 * number
    assert sample["text"] == f"TEXT {number}"
    assert sample["row"].tolist() == [number] * 4
    return number


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "shuffle_algo": "py1e", "batch_size": 8}])
def test_iteration_gives_what_the_override_makes(data: Path, options: dict[str, Any]) -> None:
    ours, plain = Doubled(local=data, **options), StreamingDataset(local=data, **options)
    for _ in range(2):
        assert [check(sample) for sample in ours] == [sample["id"] for sample in plain]


@pytest.mark.parametrize("options", [{}, {"shuffle": True}])
def test_an_override_of_get_item_is_used_everywhere(data: Path, options: dict[str, Any]) -> None:
    ours = ByGetItem(local=data, **options)
    assert sorted(ours) == [(number, 2 * number) for number in range(ROWS)]
    assert ours[7] == ours[np.int64(7)] == ours[7 - ROWS] == (7, 14)
    assert ours[[3, 1]] == [(3, 6), (1, 2)]
    assert ours[5:8] == [(5, 10), (6, 12), (7, 14)]


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_data_loaders_give_what_the_override_makes(data: Path, workers: int, context: str) -> None:
    if not workers and context == "spawn":
        pytest.skip("no workers to start")
    more: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": context} if workers else {}
    plain = [sample["id"] for sample in StreamingDataset(local=data, shuffle=True, batch_size=8)]
    for make in (DataLoader, StreamingDataLoader):
        batches = list(make(Doubled(local=data, shuffle=True, batch_size=8), batch_size=8, **more))
        found = [
            check({name: column[k] for name, column in batch.items()})
            for batch in batches
            for k in range(len(batch["id"]))
        ]
        assert found == plain


def test_a_map_style_subset_reads_by_id(data: Path) -> None:
    subset = Subset(Doubled(local=data), range(10, 14))
    assert [check(sample) for sample in (subset[k] for k in range(4))] == [10, 11, 12, 13]


def test_readers_of_columns_refuse_what_they_would_read_past(data: Path) -> None:
    for kind in (Doubled, ByGetItem, Iterated):
        dataset = kind(local=data, batch_size=8)
        name = kind.__name__
        reads: list[Any] = [lambda dataset=dataset: StreamingShardLoader(dataset, StreamingConfig())]
        if kind is Iterated:
            reads += [dataset.batches, lambda dataset=dataset: StreamingDataLoader(dataset, columnar=True)]
        for read in reads:
            with pytest.raises(ConfigError, match=rf"would not call {name}\..*transform="):
                read()


def test_batches_are_of_what_the_override_makes(data: Path) -> None:
    ours = Doubled(local=data, shuffle=True, batch_size=8)
    wanted = [sample["id"] for sample in StreamingDataset(local=data, shuffle=True, batch_size=8)]
    found = [
        check({name: column[k] for name, column in batch.items()})
        for batch in ours.batches()
        for k in range(len(batch["id"]))
    ]
    assert found == wanted
    with pytest.raises(TransformError, match=r"__getitem__\(\) of the subclass returned tuple|returned a tuple"):
        next(ByGetItem(local=data, batch_size=8).batches())


class Sees(StreamingDataset):
    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return {**sample, "seen": " ".join(sample)}


def doubled(batch: Any) -> Any:
    return {**batch, "id": 2 * batch["id"]}


def test_an_override_has_samples_as_all_steps_make_them_before_batches_are_made(data: Path) -> None:
    dataset = Sees(local=data, batch_size=8).rename({"text": "words"}).select(["words", "id"])
    of_batches = dataset.batch_map(doubled)
    assert {sample["seen"] for sample in dataset} == {"words id"}
    for batch in of_batches.batches():
        assert set(batch["seen"]) == {"words id"}
        assert [f"text {number // 2}" for number in np.asarray(batch["id"]).tolist()] == batch["words"]


def test_a_sample_that_an_override_fails_for_is_a_bad_one_of_batches(data: Path) -> None:

    class Failing(Fails):
        error = ValueError("mine")

    with pytest.raises(TransformError, match=r"sample 5\): __getitem__\(\) of the subclass raised ValueError: mine"):
        list(Failing(local=data, batch_size=8).batches())
    dataset = Failing(local=data, batch_size=8, on_bad_sample="skip")
    assert [int(number) for batch in dataset.batches() for number in batch["id"]] == [
        number for number in range(ROWS) if number != 5
    ]


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
def test_columnar_workers_send_what_the_override_makes(data: Path, workers: int) -> None:
    loader = StreamingDataLoader(Doubled(local=data, shuffle=True, batch_size=8), columnar=True, num_workers=workers)
    found = [
        check({name: column[k] for name, column in batch.items()}) for batch in loader for k in range(len(batch["id"]))
    ]
    assert sorted(found) == list(range(ROWS))


class Pairs(StreamingDataset):
    """Asks for other samples than the one that it is asked for, and for that one twice."""

    def __getitem__(self, index: Any) -> Any:
        first = super().__getitem__(index)
        first["text"] = "changed"
        again, other = super().__getitem__(index), super().__getitem__((index + 1) % ROWS)
        return first["id"], again["text"], other["id"]


def test_an_override_may_ask_for_any_samples(data: Path) -> None:
    expected = [(number, f"text {number}", (number + 1) % ROWS) for number in range(ROWS)]
    assert sorted(Pairs(local=data, shuffle=True)) == expected


class Inner(Doubled):
    """A subclass of a subclass."""

    def __getitem__(self, index: Any) -> Any:
        return check(super().__getitem__(index))


def test_a_subclass_of_a_subclass_and_two_iterations_at_a_time(data: Path) -> None:
    dataset = Inner(local=data)
    assert list(zip(dataset, dataset, strict=True)) == [(number, number) for number in range(ROWS)]
    assert pickle.loads(pickle.dumps(dataset))[5] == 5


class Fails(StreamingDataset):
    error: Exception = ValueError("mine")

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        if sample["id"] == 5:
            raise self.error
        return sample


def test_an_error_of_an_override_is_the_users_own_and_a_state_stays_before_it(data: Path) -> None:
    dataset = Fails(local=data, batch_size=4)
    samples = iter(dataset)
    assert [next(samples)["id"] for _ in range(5)] == list(range(5))
    with pytest.raises(ValueError, match="mine") as raised:
        next(samples)
    assert raised.value.__notes__ == ["raised for sample 5 of the dataset"]
    resumed = StreamingDataset(local=data, batch_size=4)
    resumed.load_state_dict(dataset.state_dict())
    assert next(iter(resumed))["id"] == 5


def test_an_override_can_not_end_an_epoch(data: Path) -> None:
    class Ends(Fails):
        error = StopIteration()

    with pytest.raises(TransformError, match="sample 5: __getitem__ raised StopIteration"):
        list(Ends(local=data))


def test_transform_is_a_users_attribute_only_where_an_override_can_call_it(data: Path) -> None:
    assert Doubled(local=data).transform is double
    assert Doubled(local=data, transform=None).transform is None  # type: ignore[arg-type]
    given = StreamingDataset(local=data, transform=len)
    assert given.transform is len
    with pytest.raises(ConfigError, match=r"give it to the constructor, transform=\.\.\., or override __getitem__"):
        given.transform = double


class Both(StreamingDataset):
    def __getitem__(self, index: Any) -> Any:
        return -super().__getitem__(index)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_transform_comes_before_the_override(data: Path, threads: int) -> None:
    from stoker import ReadOptions

    dataset = Both(local=data, transform=lambda sample: sample["id"] + 1, read=ReadOptions(read_threads=threads))
    assert list(dataset) == [-number - 1 for number in range(ROWS)]
    assert dataset[3] == -4


class Iterated(StreamingDataset):
    """One sample for one."""

    def __iter__(self) -> Iterator[Any]:
        for sample in super().__iter__():
            yield {"id": -sample["id"]}


class Even(StreamingDataset):
    """Leaves samples out."""

    def __iter__(self) -> Iterator[Any]:
        return (sample for sample in super().__iter__() if sample["id"] % 2 == 0)

    def __len__(self) -> int:
        return (super().__len__() + 1) // 2


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 1])
def test_an_override_of_iter_is_what_loaders_give(data: Path, workers: int) -> None:
    for kind, expected in (
        (Iterated, [-number for number in range(ROWS)]),
        (Even, list(range(0, ROWS, 2))),
    ):
        for make in (DataLoader, StreamingDataLoader):
            loader = make(kind(local=data, batch_size=8), batch_size=8, num_workers=workers)
            batches = list(loader)
            assert [int(number) for batch in batches for number in batch["id"]] == expected
            assert len(batches) == len(loader)


@pytest.mark.processes
def test_a_state_where_batches_do_not_tell_how_far_the_dataset_is_is_refused(data: Path) -> None:
    loader = StreamingDataLoader(Iterated(local=data, batch_size=8))
    batches = iter(loader)
    next(batches)
    resumed = StreamingDataLoader(Iterated(local=data, batch_size=8))
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed))["id"].tolist() == [-number for number in range(8, 16)]
    for kind, workers in ((Even, 0), (Even, 1), (Iterated, 1)):
        loader = StreamingDataLoader(kind(local=data, batch_size=8), num_workers=workers)
        batches = iter(loader)
        next(batches)
        with pytest.raises(StateError, match="override __getitem__ instead"):
            loader.state_dict()
        loader.close()


class Kept(StreamingDataset):
    """A state of its own, that takes what mosaicml-streaming's takes."""

    ratio = 1.0
    noted = ""

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:  # type: ignore[override]
        found = super().state_dict(num_samples=int(num_samples * self.ratio), from_beginning=from_beginning)
        return {"inner": found, "samples": num_samples, "noted": "mine"}

    def load_state_dict(self, state: Any, **more: Any) -> None:
        self.noted = state["noted"]
        super().load_state_dict(state["inner"], **more)


def pack(samples: list[Any]) -> Any:
    """Half as many rows as samples."""
    return torch.tensor([[a["id"], b["id"]] for a, b in zip(samples[::2], samples[1::2], strict=True)])


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ratio", [1.0, 2.0])
def test_a_loaders_state_is_that_of_the_override(
    data: Path, workers: int, ratio: float, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> tuple[Kept, Any]:
        dataset = Kept(local=data, batch_size=8, shuffle=True, world=World(0, 2))
        dataset.ratio = ratio
        return dataset, StreamingDataLoader(dataset, num_workers=workers, collate_fn=pack)

    _, whole = make()
    expected = [batch.tolist() for _, batch in zip(range(6), whole, strict=False)]
    _, loader = make()
    assert loader.state_dict()["samples"] == 0
    for _ in zip(range(3), loader, strict=False):
        pass
    state = loader.state_dict()
    loader.close()
    assert (state["samples"], state["noted"]) == (48, "mine")
    dataset, resumed = make()
    resumed.load_state_dict(state)
    assert dataset.noted == "mine"
    assert [batch.tolist() for _, batch in zip(range(3), resumed, strict=False)] == expected[3:]
    resumed.close()
    whole.close()
    asked = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert any("asks for the state after 96 samples; the loader has delivered 48" in text for text in asked) == (
        ratio != 1
    )
