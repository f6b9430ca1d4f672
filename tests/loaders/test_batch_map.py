"""``batch_map`` anywhere in a chain: its function has one batch, and what follows has the rows of it as samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker import Chain, MDSWriter, ReadOptions, StreamingDataLoader, StreamingDataset
from stoker.cluster import World
from stoker.errors import ConfigError, TransformError

SAMPLES = 203


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("batch_map")
    for folder, columns in (("data", {"id": "int", "v": "float32"}), ("names", {"id": "int", "name": "str"})):
        with MDSWriter(columns, root / folder, size_limit="500") as out:
            for number in range(SAMPLES):
                out.write({"id": number, "v": number / 4} if folder == "data" else {"id": number, "name": f"n{number}"})
    return root


def opened(data: Path, ranks: int = 1, rank: int = 0, size: int = 24, **settings: Any) -> StreamingDataset:
    world = World(rank, ranks, ranks)
    return StreamingDataset(data / "data", shuffle=True, batch_size=size, world=world, **settings)


def centred(columns: dict[str, Any]) -> dict[str, Any]:
    return {**columns, "v": columns["v"] - columns["v"].mean(), "n": np.full(len(columns["id"]), len(columns["id"]))}


def every_second(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: column[::2] for name, column in columns.items()}


def twice(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: np.concatenate([column, column]) for name, column in columns.items()}


def none_of_some(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: column[: int(columns["id"][0]) % 3] for name, column in columns.items()}


def not_thirds(sample: dict[str, Any]) -> bool:
    return int(sample["id"]) % 3 != 1


def copies(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**sample, "turn": turn} for turn in range(int(sample["id"]) % 3)]


def more(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "m": 2 * int(sample["id"])}


def noise(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": int(rng.integers(1 << 40))}


def failing(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["id"]) % 10 == 7:
        raise ValueError("seven")
    return sample


CHAINS = {
    "first": Chain().batch_map(centred).map(more).filter(not_thirds),
    "between": Chain().filter(not_thirds).batch_map(centred).flat_map(copies).rename({"v": "w"}),
    "twice": Chain().map(more).batch_map(every_second).filter(not_thirds).batch_map(centred).map(more, "m"),
    "fewer": Chain().flat_map(copies).batch_map(every_second).select(["id", "v"]).filter(not_thirds),
    "further": Chain().batch_map(twice).map(more).batch_map(centred),
    "none": Chain().batch_map(none_of_some).map(more),
}


def expected(chain: Chain, ids: list[int]) -> list[dict[str, Any]]:
    """The rows of a batch, one step after the other, in plain Python."""
    rows: list[dict[str, Any]] = [{"id": number, "v": np.float32(number / 4)} for number in ids]
    for step in chain.steps:
        if step.takes_batch and rows:
            made = step.change({name: np.array([row[name] for row in rows]) for name in rows[0]}, None)
            rows = [dict(zip(made, values, strict=True)) for values in zip(*made.values(), strict=True)]
        elif step.kind == "filter":
            rows = [row for row in rows if step.function(row)]  # type: ignore[attr-defined]
        elif step.kind == "flat_map":
            rows = [one for row in rows for one in step.function(row)]  # type: ignore[attr-defined]
        else:
            rows = [step.apply(row) for row in rows]
    return rows


def rows_of(batch: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]


def assert_same(batches: Iterator[dict[str, Any]], chain: Chain, plain: Iterator[dict[str, Any]]) -> None:
    for batch, wanted in zip(batches, plain, strict=True):
        found, rows = rows_of(batch), expected(chain, list(map(int, wanted["id"])))
        assert [{name: float(value) for name, value in row.items()} for row in found] == [
            {name: float(value) for name, value in row.items()} for row in rows
        ]


@pytest.mark.parametrize("name", CHAINS)
def test_a_function_has_one_batch_and_later_steps_its_rows(data: Path, name: str) -> None:
    chain = CHAINS[name]
    for ranks, size in ((1, 24), (2, 7)):
        for rank in range(ranks):
            for threads in (0, 3):
                read = ReadOptions(read_threads=threads)
                dataset = opened(data, ranks, rank, size, transform=chain, read=read)
                plain = opened(data, ranks, rank, size)
                batches = dataset.batches()
                assert_same(islice(batches, 3), chain, islice(plain.batches(), 3))
                state = dataset.state_dict()
                batches.close()  # type: ignore[attr-defined]
                rest, plain_rest = opened(data, ranks, rank, size, transform=chain), opened(data, ranks, rank, size)
                rest.load_state_dict(state)
                plain_rest.load_state_dict({**plain.state_dict(), "position": state["position"]})
                assert_same(rest.batches(), chain, plain_rest.batches())


@pytest.mark.processes
@pytest.mark.parametrize("name", ["between", "twice", "further"])
def test_in_workers_and_processes(data: Path, name: str) -> None:
    chain = CHAINS[name]
    for workers in (0, 2):
        with StreamingDataLoader(opened(data, transform=chain), num_workers=workers) as loader:
            assert_same(iter(loader), chain, opened(data).batches())
    read = ReadOptions(run_in="processes", read_processes=2, start_method="fork")
    assert_same(opened(data, transform=chain, read=read).batches(), chain, opened(data).batches())


def test_random_numbers_stay_those_of_the_sample(data: Path) -> None:
    """Where a function of batches gives as many rows as it got, in any world."""
    chain = Chain().batch_map(centred).random_map(noise)
    found = []
    for ranks, size in ((1, 24), (3, 8), (2, 5)):
        parts = [opened(data, ranks, rank, size, transform=chain).batches() for rank in range(ranks)]
        rows = [row for part in parts for batch in part for row in rows_of(batch)]
        found.append({int(row["id"]): int(row["noise"]) for row in rows})
    assert found[0] == found[1] == found[2]
    assert len(set(found[0].values())) == SAMPLES
    further = next(opened(data, transform=Chain().batch_map(twice).random_map(noise)).batches())
    assert len(set(further["noise"])) == 48


def test_a_join_by_key_follows_a_function_of_batches(data: Path) -> None:
    names = StreamingDataset(data / "names")
    joined = opened(data).batch_map(every_second).join(names, on="id").map(more)
    for batch in joined.batches():
        assert batch["name"] == [f"n{number}" for number in list(batch["id"])]


def test_bad_rows_of_a_batch_are_left_out(data: Path) -> None:
    chain = Chain().map(failing, "before").batch_map(centred).map(more)
    later = Chain().batch_map(centred).map(failing, "after").map(more)
    for one, reached in ((chain, False), (later, True)):
        dataset = opened(data, transform=one, on_bad_sample="skip")
        for batch, wanted in zip(dataset.batches(), opened(data).batches(), strict=True):
            good = [number for number in list(wanted["id"]) if number % 10 != 7]
            assert list(batch["id"]) == good
            assert set(batch["n"]) == {len(wanted["id"]) if reached else len(good)}
        assert dataset.stats().bad_samples == 20
    replacing = opened(data, transform=Chain().map(failing, "before").batch_map(centred), on_bad_sample="replace")
    assert all(set(batch["n"]) == {len(batch["id"])} for batch in replacing.batches())
    with pytest.raises(TransformError, match=r"map\(after\) raised ValueError: seven"):
        list(opened(data, transform=later).batches())


REFUSED: dict[str, tuple[Callable[[StreamingDataset, StreamingDataset], Any], str]] = {
    "enumerate": (lambda dataset, _: dataset.batch_map(centred).enumerate(), r"call enumerate\(\) before it"),
    "zip": (lambda dataset, other: dataset.batch_map(centred).zip(other), r"call zip\(\) before it"),
    "filter": (
        lambda dataset, _: dataset.batch_map(centred).filter(not_thirds, dropped="replace"),
        r"batch_map\(\) makes any number of samples of a batch.*use dropped='leave_out'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_samples_comes_before(data: Path, name: str) -> None:
    wrong, message = REFUSED[name]
    with pytest.raises(ConfigError, match=message):
        wrong(opened(data), StreamingDataset(data / "names", columns=["name"]))


def test_no_sample_takes_the_place_of_a_row(data: Path) -> None:
    with pytest.raises(ConfigError, match=r"map\(more\) has rows of a whole batch, .* use on_bad_sample='skip'"):
        opened(data, transform=Chain().batch_map(centred).map(more), on_bad_sample="replace")
