"""Runs that are drawn by lot, against a naive model: mixtures, chains, damage, quarantine, caches, worlds and resumes.

The order of the samples is that of a plain dataset in one process; all else is computed sample by sample, in plain Python.
``pytest tests/loaders/test_drawn_runs.py --drawn-runs 5000`` runs as many as one likes; one that fails is named by its seed.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import BadSamples, HashSplit, MDSWriter, ReadOptions, SkipIds, Stream, StreamingDataset, Where, World
from stoker.errors import ConfigError

SIZES: Final = (61, 150, 97)
TOGETHER: Final = 10
"""Runs of one test."""

Row = dict[str, Any]


def row_of(x: int) -> Row:
    return {"x": x, "u": x % 1000 * 7 % 13, "s": f"c{x % 7} {x}"}


def ids_of(stream: int) -> list[int]:
    return [stream * 1000 + number for number in range(SIZES[stream])]


def is_damaged(x: int) -> bool:
    return x % 31 == 11


def write(path: Path, form: str, rows: list[Row]) -> None:
    if form == "mds":
        columns = {name: "int" if isinstance(value, int) else "str" for name, value in rows[0].items()}
        with MDSWriter(columns, str(path), size_limit="900") as out:
            for row in rows:
                out.write(row)
        return
    path.mkdir(parents=True)
    size = len(rows) // 3 + 1
    for first in range(0, len(rows), size):
        part = rows[first : first + size]
        if form == "parquet":
            pq.write_table(pa.Table.from_pylist(part), path / f"{first:04}.parquet", row_group_size=size // 2)
        else:
            lines = [json.dumps(row) for row in part]
            if form == "damaged":  # at the same sizes
                lines = [
                    "}" + line[1:] if is_damaged(row["x"]) else line for line, row in zip(lines, part, strict=True)
                ]
            (path / f"{first:04}.jsonl").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("drawn")
    for stream in range(len(SIZES)):
        for form in ("mds", "parquet", "jsonl", "damaged"):
            write(root / form / str(stream), form, [row_of(x) for x in ids_of(stream)])
        others = [{"x": x, "caption": f"of {x}"} for x in reversed(ids_of(stream)) if x % 11 != 3]
        write(root / "others" / str(stream), "mds", others)
    return root


# -- what samples become, for stoker and for the model -----------------------------------------------------------------


def doubled(sample: Row) -> Row:
    return {**sample, "m": sample["x"] * 2 + 1}


def third(sample: Row) -> bool:
    return bool(sample["x"] % 3)


def copies(sample: Row) -> Iterator[Row]:
    return ({**sample, "w": turn} for turn in range(sample["x"] % 3))


def failing(sample: Row) -> Row:
    if sample["x"] % 23 == 4:
        raise ValueError(sample["x"])
    return sample


def perhaps(sample: Row) -> Row:
    return {**sample, "o": None if sample["x"] % 4 == 0 else sample["x"]}


def sevens(columns: dict[str, Any]) -> dict[str, Any]:
    return {**columns, "n": np.full(len(columns["x"]), 7)}


STEPS: Final = ("map", "filter", "filter by another", "flat_map", "fail", "rename", "perhaps", "join", "join or none")
COUNTING: Final = {"filter", "flat_map", "join"}


@dataclass
class Run:
    """A dataset that is drawn: its streams and formats, the arguments, the chain, and ids in quarantine."""

    streams: list[tuple[int, str, dict[str, Any]]]
    options: dict[str, Any]
    steps: list[str]
    bad: str
    quarantine: list[int] = field(default_factory=list)

    @classmethod
    def draw(cls, lot: random.Random) -> Run:
        several = lot.random() < 0.45
        numbers = lot.sample(range(3), lot.choice((2, 3))) if several else [lot.randrange(3)]
        damaged = lot.random() < 0.25
        weight = lot.choice((None, "proportion", "repeat", "choose")) if several else None
        drawn = {"proportion": (0.5, 0.3), "repeat": (0.3, 1, 2), "choose": (20, 50, 130)}
        streams = [
            (
                number,
                "damaged" if damaged else lot.choice(("mds", "parquet", "jsonl")),
                {weight: lot.choice(drawn[weight])} if weight else {},
            )
            for number in numbers
        ]
        options: dict[str, Any] = {"shuffle_seed": lot.randrange(50), "remainder": lot.choice(("pad", "pad", "drop"))}
        if weight == "proportion" or (weight is None and lot.random() < 0.15):
            options["epoch_size"] = lot.choice((40, 100, 333))
        if lot.random() < 0.8:
            options |= {"shuffle": True, "shuffle_algo": lot.choice(("block", "block", "global", "shard"))}
        if lot.random() < 0.3:
            options["num_canonical_nodes"] = lot.choice((1, 2, 4))
        if several:
            options["batching_method"] = lot.choice(("random", "random", "stratified"))
        if lot.random() < 0.25:
            chosen = (HashSplit(0, 0.5, seed=3), SkipIds([1, 2, 3, 50]), Where("u", "<", 9))
            # A damaged sample is of every Where: the model has none to compare with.
            options["subset"] = lot.choice(chosen[:2] if damaged else chosen)
        steps = [*dict.fromkeys(lot.choice(STEPS) for _ in range(lot.randrange(5)))]
        if "flat_map" in steps and "filter by another" in steps:
            steps.remove("filter by another")
        if "join" in steps and "join or none" in steps:
            steps.remove("join")
        if lot.random() < 0.15:
            steps.append("batch_map")
        fails = damaged or "fail" in steps
        bad = lot.choice(("skip", "replace") if fails else ("raise", "skip", "replace"))
        if "flat_map" in steps and bad == "replace":
            bad = "skip"
        quarantine = [lot.randrange(SIZES[numbers[0]]) for _ in range(4)] if lot.random() < 0.25 else []
        return cls(streams, options, steps, bad, quarantine)

    @property
    def leaves_out(self) -> bool:
        """Whether batches may have fewer samples than others, so that samples alone are refused."""
        return bool(COUNTING & set(self.steps)) or self.bad == "skip"

    def plain(self, data: Path, batch_size: int) -> StreamingDataset:
        streams = [
            Stream(str(data / form.replace("damaged", "jsonl") / str(number)), **weight)
            for number, form, weight in self.streams
        ]
        return StreamingDataset(streams=streams, batch_size=batch_size, world=World(0, 1), **self.options)

    def opened(self, data: Path, cache: Path, world: World, batch_size: int, lot: random.Random) -> StreamingDataset:
        how: dict[str, Any] = {"read": ReadOptions(read_threads=lot.choice((0, 1, 3)))}
        streams = []
        kind = lot.choice(("here", "disk", "memory"))
        for number, form, weight in self.streams:
            url = str(data / form / str(number))
            if kind == "here":
                streams.append(Stream(url, **weight))
            else:
                local = str(cache / form / str(number)) if kind == "disk" else None
                streams.append(Stream(f"file://{url}", local=local, **weight))
                how["cache"] = kind
        if self.quarantine:
            how["quarantine"] = [SkipIds(self.quarantine)]
        if self.bad != "raise":
            how["on_bad_sample"] = BadSamples(self.bad, max_share=None)  # type: ignore[arg-type]
        dataset = StreamingDataset(streams=streams, batch_size=batch_size, world=world, **how, **self.options)
        for step in self.steps:
            dataset = self._with(dataset, step, data)
        return dataset

    def _with(self, dataset: StreamingDataset, step: str, data: Path) -> StreamingDataset:
        match step:
            case "map":
                return dataset.map(doubled)
            case "filter":
                return dataset.filter(third)
            case "filter by another":
                return dataset.filter(third, name="third or another", dropped="replace")
            case "flat_map":
                return dataset.flat_map(copies)
            case "fail":
                return dataset.map(failing)
            case "rename":
                return dataset.rename({"u": "v"})
            case "perhaps":
                return dataset.map(perhaps)
            case "batch_map":
                return dataset.batch_map(sevens)
            case _:
                others = StreamingDataset(streams=[Stream(str(data / "others" / str(n))) for n, *_ in self.streams])
                return dataset.join(others, on="x", missing="leave_out" if step == "join" else "none")

    def made(self, x: int) -> list[Row] | str:
        """What becomes of a sample: rows, ``"bad"``, or ``"replaced"``."""
        if self.streams[0][1] == "damaged" and is_damaged(x):
            return "bad"
        rows = [row_of(x)]
        for step in self.steps:
            match step:
                case "map":
                    rows = [doubled(row) for row in rows]
                case "filter":
                    rows = [row for row in rows if third(row)]
                case "filter by another":
                    if not third(rows[0]):
                        return "replaced"
                case "flat_map":
                    rows = [one for row in rows for one in copies(row)]
                case "fail":
                    if x % 23 == 4:
                        return "bad"
                case "rename":
                    rows = [{("v" if name == "u" else name): value for name, value in row.items()} for row in rows]
                case "perhaps":
                    rows = [perhaps(row) for row in rows]
                case "batch_map":
                    rows = [{**row, "n": 7} for row in rows]
                case "join" if x % 11 == 3:
                    rows = []
                case _:
                    rows = [{**row, "caption": None if x % 11 == 3 else f"of {x}"} for row in rows]
            if not rows:
                return []
        return rows

    def check(self, wanted: list[int], got: list[Row]) -> None:
        """Compare the rows of a step with the samples that a plain dataset has there."""
        out = {ids_of(self.streams[0][0])[number] for number in self.quarantine}
        assert not out & {row["x"] for row in got}, "a sample in quarantine came"
        rest = iter(got)
        for x in wanted:
            made = self.made(x)
            if x in out or made == "replaced" or (made == "bad" and self.bad == "replace"):
                if x in out and self.leaves_out:
                    return  # another comes in its place, or none: that one is left out itself
                other = next(rest)
                made = self.made(other["x"])
                assert isinstance(made, list), f"{other}, which is {made}, is in the place of {x}"
                assert made.pop(0) == other
            for row in made if isinstance(made, list) else ():
                assert next(rest, None) == row
        assert next(rest, None) is None


def plain_value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def steps_of(dataset: StreamingDataset, batch_size: int, *, by_sample: bool) -> Iterator[list[Row]]:
    if by_sample:
        samples = iter(dataset)
        while part := list(islice(samples, batch_size)):
            yield [{name: plain_value(value) for name, value in sample.items()} for sample in part]
        return
    for batch in dataset.batches():
        lengths = {len(column) for column in batch.values()}
        assert len(lengths) <= 1
        yield [
            {name: plain_value(column[at]) for name, column in batch.items()} for at in range(max(lengths, default=0))
        ]


def run(seed: int, data: Path, cache: Path) -> bool:
    """Draw a run, stop and resume it in other worlds through two epochs; whether it was not refused."""
    lot = random.Random(seed)
    drawn = Run.draw(lot)
    state: dict[str, Any] | None = None
    plain_state: dict[str, Any] = {}
    for _ in range(3):
        ranks, batch_size = lot.choice((1, 1, 2, 3)), lot.choice((1, 3, 4, 8, 16))
        by_sample = not drawn.leaves_out and "batch_map" not in drawn.steps and lot.random() < 0.25
        shutil.rmtree(cache, ignore_errors=True)
        plain = drawn.plain(data, ranks * batch_size)
        try:
            world = [drawn.opened(data, cache, World(rank, ranks), batch_size, lot) for rank in range(ranks)]
            if state is not None:
                plain.load_state_dict(plain_state)
                for dataset in world:
                    dataset.load_state_dict(state)
            readers = [steps_of(dataset, batch_size, by_sample=by_sample) for dataset in world]
            wanted = (list(map(int, batch["x"])) for batch in plain.batches())
            for _ in range(lot.randrange(min(len(plain) + 2, 30))):
                step = [next(reader, None) for reader in readers]
                samples = next(wanted, None)
                assert len({one is None for one in step}) == 1, "ranks are out of step"
                if step[0] is None:
                    assert samples is None, "the epoch ended before its samples"
                    break
                assert samples is not None, "more came than there is"
                if len(samples) >= ranks:  # else ranks repeat samples, to have one each
                    drawn.check(samples, [row for part in step if part is not None for row in part])
            states = [json.loads(json.dumps(dataset.state_dict())) for dataset in world]
        except ConfigError as error:
            if state is None or "no batch for any" in str(error):
                return state is not None
            raise AssertionError(f"refused in a later world: {error}") from error
        assert all(one == states[0] for one in states), "the ranks' states differ"
        state, plain_state = states[0], plain.state_dict()
        if drawn.options["remainder"] == "pad":
            assert (state["epoch"], state["position"]) == (plain_state["epoch"], plain_state["position"])
        plain_state |= {"epoch": state["epoch"], "position": state["position"]}
        if state["epoch"] >= 2:
            break
    return True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "first" in metafunc.fixturenames:
        metafunc.parametrize("first", range(0, metafunc.config.getoption("drawn_runs"), TOGETHER))


def test_drawn_runs_are_those_of_the_model(data: Path, tmp_path: Path, first: int) -> None:
    taken = 0
    for seed in range(first, first + TOGETHER):
        try:
            taken += run(seed, data, tmp_path / "cache")
        except Exception as error:
            raise AssertionError(f"run {seed} failed: {Run.draw(random.Random(seed))}: {error!r}") from error
    assert taken >= TOGETHER // 2
