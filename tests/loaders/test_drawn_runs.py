"""Runs that are drawn, against a naive model: mixtures, chains, damage, quarantine, caches, readers, worlds and resumes.

The order of the samples is that of a plain dataset in one process; all else is computed sample by sample, in plain Python.
``pytest tests/loaders/test_drawn_runs.py --drawn-runs 5000`` draws as many as one likes. One that fails is named by its seed,
and by a smaller one that fails as well.
"""

from __future__ import annotations

import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from patience import PATIENCE
from stoker import (
    Adaptive,
    BadSamples,
    HashSplit,
    MDSWriter,
    ReadOptions,
    SkipIds,
    Stream,
    StreamingConfig,
    StreamingDataLoader,
    StreamingDataset,
    StreamingShardLoader,
    Where,
    World,
)
from stoker.errors import ConfigError

SIZES: Final = (61, 150, 97)
TOGETHER: Final = 20
"""Runs of one test."""
STOPS: Final = 6
"""Times that a run stops, and goes on in another world."""

Row: TypeAlias = dict[str, Any]
_T = TypeVar("_T")
Made: TypeAlias = list[Row] | str
"""What becomes of a sample: rows, ``"bad"``, or ``"replaced"``."""


def row_of(x: int) -> Row:
    return {"x": x, "u": x % 1000 * 7 % 13, "s": f"c{x % 7} {x}"}


def ids_of(stream: int) -> list[int]:
    return [stream * 1000 + number for number in range(SIZES[stream])]


def is_damaged(x: int) -> bool:
    return x % 7 == 4


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
        others = [{"x": x, "caption": f"of {x}"} for x in reversed(ids_of(stream)) if x % 5 != 3]
        write(root / "others" / str(stream), "mds", others)
        write(root / "beside" / str(stream), "jsonl", [{"z": -x} for x in ids_of(stream)])
    return root


# -- what samples become, for stoker and for the model -----------------------------------------------------------------


def doubled(sample: Row) -> Row:
    return {**sample, "m": sample["x"] * 2 + 1}


def third(sample: Row) -> bool:
    return bool(sample["x"] % 3)


def copies(sample: Row) -> list[Row]:
    return [{**sample, "w": turn} for turn in range(sample["x"] % 3)]


def failing(sample: Row) -> Row:
    if sample["x"] % 9 == 4:
        raise ValueError(sample["x"])
    return sample


def perhaps(sample: Row) -> Row:
    return {**sample, "o": None if sample["x"] % 4 == 0 else sample["x"]}


def dice(sample: Row, generator: np.random.Generator) -> Row:
    return {**sample, "r": float(generator.random())}


def told(columns: dict[str, Any]) -> dict[str, Any]:
    """Columns with the number of rows of their batch, and a sum of them."""
    count = len(columns["x"])
    return {**columns, "n": np.full(count, count), "c": np.full(count, sum(map(int, columns["x"])))}


class Anything:
    """A value that the model does not know."""


ANY: Final = Anything()


@dataclass(frozen=True)
class Kind:
    """A step: how a dataset takes it, given other datasets by folder, and what it makes of a row."""

    add: Callable[[StreamingDataset, Callable[[str], StreamingDataset]], StreamingDataset]
    make: Callable[[Row], Made]
    counts: bool = False
    nulls: bool = False


def _joined(row: Row) -> Row:
    return {**row, "caption": f"of {row['x']}"}


STEPS: Final[dict[str, Kind]] = {
    "map": Kind(lambda dataset, _: dataset.map(doubled), lambda row: [doubled(row)]),
    "filter": Kind(lambda dataset, _: dataset.filter(third), lambda row: [row] if third(row) else [], counts=True),
    "filter by another": Kind(
        lambda dataset, _: dataset.filter(third, name="third or another", dropped="replace"),
        lambda row: [row] if third(row) else "replaced",
    ),
    "flat_map": Kind(lambda dataset, _: dataset.flat_map(copies), copies, counts=True),
    "fail": Kind(lambda dataset, _: dataset.map(failing), lambda row: "bad" if row["x"] % 9 == 4 else [row]),
    "rename": Kind(
        lambda dataset, _: dataset.rename({"u": "v"}),
        lambda row: [{("v" if name == "u" else name): value for name, value in row.items()}],
    ),
    "perhaps": Kind(lambda dataset, _: dataset.map(perhaps), lambda row: [perhaps(row)], nulls=True),
    "random_map": Kind(lambda dataset, _: dataset.random_map(dice), lambda row: [{**row, "r": ANY}]),
    "enumerate": Kind(lambda dataset, _: dataset.enumerate("at"), lambda row: [{**row, "at": ANY}]),
    "zip": Kind(lambda dataset, other: dataset.zip(other("beside")), lambda row: [{**row, "z": -row["x"]}]),
    "join": Kind(
        lambda dataset, other: dataset.join(other("others"), on="x", missing="leave_out"),
        lambda row: [] if row["x"] % 5 == 3 else [_joined(row)],
        counts=True,
    ),
    "join or none": Kind(
        lambda dataset, other: dataset.join(other("others"), on="x", missing="none"),
        lambda row: [{**_joined(row), "caption": None} if row["x"] % 5 == 3 else _joined(row)],
        nulls=True,
    ),
    "join or bad": Kind(
        lambda dataset, other: dataset.join(other("others"), on="x"),
        lambda row: "bad" if row["x"] % 5 == 3 else [_joined(row)],
    ),
    "batch_map": Kind(lambda dataset, _: dataset.batch_map(told), lambda row: [{**row, "n": ANY, "c": ANY}]),
}
OF_SAMPLES: Final = ("map", "fail", "rename", "perhaps", "random_map", "enumerate")
"""Steps of chains that are made as samples are asked for."""
FAILING: Final = {"fail", "join or bad"}
BEFORE_BATCHES: Final = {"enumerate", "zip", "filter by another"}
"""Steps that need samples, which rows of a batch need not be."""


class Lot:
    """Draws numbers by a seed, or gives those of a run that is made smaller, and zeros after them."""

    def __init__(self, seed: int, given: Sequence[int] | None = None) -> None:
        self._random, self._given = random.Random(seed), given
        self.drawn: list[int] = []

    def randrange(self, end: int) -> int:
        at = len(self.drawn)
        number = self._random.randrange(end)
        if self._given is not None:
            number = self._given[at] % end if at < len(self._given) else 0
        self.drawn.append(number)
        return number

    def choice(self, options: Sequence[_T]) -> _T:
        """One of them: the first is that of the smaller run."""
        return options[self.randrange(len(options))]

    def sample(self, options: Iterable[_T], count: int) -> list[_T]:
        left = list(options)
        return [left.pop(self.randrange(len(left))) for _ in range(count)]

    def chance(self, percent: int) -> bool:
        """So many of a hundred."""
        return self.randrange(100) >= 100 - percent


def made_smaller(drawn: Sequence[int], fails: Callable[[Sequence[int]], bool]) -> Sequence[int]:
    """Numbers that are lower, or fewer, of which a run fails as well; what is found while patience lasts."""
    until = time.monotonic() + PATIENCE
    changed = True
    while changed:
        changed = False
        for at in range(len(drawn)):
            for number in (0, drawn[at] // 2, drawn[at] - 1):
                if time.monotonic() > until:
                    return drawn
                lower = [*drawn[:at], number, *drawn[at + 1 :]]
                if 0 <= number < drawn[at] and fails(lower):
                    drawn, changed = lower, True
                    break
    return drawn


@dataclass
class Run:
    """A dataset that is drawn: its streams and formats, the arguments, the chain, and ids in quarantine."""

    streams: list[tuple[int, str, dict[str, Any]]]
    options: dict[str, Any]
    steps: list[str]
    bad: str
    quarantine: list[int]
    ids: str | None
    drawn_numbers: dict[Any, float] = field(default_factory=dict, repr=False)
    positions: dict[Any, int] = field(default_factory=dict, repr=False)

    @classmethod
    def draw(cls, lot: Lot) -> Run:
        several = lot.chance(45)
        numbers = lot.sample(range(3), lot.choice((2, 3))) if several else [lot.randrange(3)]
        damaged = lot.chance(25)
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
        if weight == "proportion" or (weight is None and lot.chance(15)):
            options["epoch_size"] = lot.choice((40, 100, 333))
        if lot.chance(80):
            options |= {"shuffle": True, "shuffle_algo": lot.choice(("block", "block", "global", "shard"))}
        if lot.chance(30):
            options["num_canonical_nodes"] = lot.choice((1, 2, 4))
        if several:
            options["batching_method"] = lot.choice(("random", "random", "stratified"))
        if lot.chance(25):
            chosen = (HashSplit(0, 0.5, seed=3), SkipIds([1, 2, 3, 50]), Where("u", "<", 9))
            # A damaged sample is of every Where: the model has none to compare with.
            options["subset"] = lot.choice(chosen[:2] if damaged else chosen)
        alone = [name for name in STEPS if name != "batch_map"]
        kinds = OF_SAMPLES if lot.chance(50) else alone
        steps = [*dict.fromkeys(lot.choice(kinds) for _ in range(lot.randrange(6)))]
        joins = [name for name in steps if name.startswith("join")]
        steps = [name for name in steps if name not in joins[1:]]  # all of them add the same column
        if "flat_map" in steps and "filter by another" in steps:
            steps.remove("filter by another")
        if lot.chance(25):
            last = max((number for number, name in enumerate(steps, 1) if name in BEFORE_BATCHES), default=0)
            steps.insert(len(steps) - lot.randrange(len(steps) - last + 1), "batch_map")
        fails = damaged or bool(FAILING & {*steps})
        bad = lot.choice(("skip", "replace") if fails else ("raise", "skip", "replace"))
        later = steps[steps.index("batch_map") + 1 :] if "batch_map" in steps else []
        if bad == "replace" and ("flat_map" in steps or {*later} - {"rename"}):
            bad = "skip"
        quarantine = [lot.randrange(SIZES[numbers[0]]) for _ in range(4)] if lot.chance(25) else []
        return cls(streams, options, steps, bad, quarantine, "number" if lot.chance(20) else None)

    @property
    def counts(self) -> bool:
        """Whether batches may have fewer samples than others, so that samples alone are refused but for one rank."""
        return any(STEPS[step].counts for step in self.steps) or self.bad == "skip"

    @property
    def leaves_out_after_batch(self) -> bool:
        """Whether what follows the function of batches may leave out a sample, also one that came in another's place."""
        later = self.steps[self.steps.index("batch_map") + 1 :] if "batch_map" in self.steps else []
        return any(STEPS[step].counts or step in FAILING for step in later)

    @property
    def repeats(self) -> bool:
        """Whether an epoch may have a sample more than once."""
        return "epoch_size" in self.options or any(weight for *_, weight in self.streams)

    def plain(self, data: Path, batch_size: int) -> StreamingDataset:
        streams = [
            Stream(str(data / form.replace("damaged", "jsonl") / str(number)), **weight)
            for number, form, weight in self.streams
        ]
        return StreamingDataset(streams=streams, batch_size=batch_size, world=World(0, 1), **self.options)

    def opened(
        self, data: Path, cache: Path, world: World, batch_size: int, read: ReadOptions, lot: Lot
    ) -> StreamingDataset:
        how: dict[str, Any] = {"read": replace(read, ids=self.ids)}
        streams = []
        kind = lot.choice(("here", "disk", "memory"))
        if kind != "here":
            how["read"] = replace(how["read"], cache=kind)
            how["cache_limit"] = lot.choice((None, "1mb", "100kb")) if kind == "disk" else None
        for number, form, weight in self.streams:
            url = str(data / form / str(number))
            if kind == "here":
                streams.append(Stream(url, **weight))
            else:
                local = str(cache / form / str(number)) if kind == "disk" else None
                streams.append(Stream(f"file://{url}", local=local, **weight))
        if self.quarantine:
            how["read"] = replace(how["read"], quarantine=[SkipIds(self.quarantine)])
        if self.bad != "raise":
            how["on_bad_sample"] = BadSamples(self.bad, max_share=None)  # type: ignore[arg-type]
        dataset = StreamingDataset(streams=streams, batch_size=batch_size, world=world, **how, **self.options)
        for step in self.steps:
            dataset = STEPS[step].add(
                dataset,
                lambda folder: StreamingDataset(
                    streams=[Stream(str(data / folder / str(n))) for n, *_ in self.streams]
                ),
            )
        return dataset

    # -- the model -----------------------------------------------------------------------------------------------------

    def number(self, x: int) -> int:
        """The id of a sample in the dataset."""
        order = [number for number, *_ in self.streams]
        return sum(SIZES[number] for number in order[: order.index(x // 1000)]) + x % 1000

    def made(self, x: int, steps: Sequence[str] | None = None) -> Made:
        if self.streams[0][1] == "damaged" and is_damaged(x):
            return "bad"
        rows = [row_of(x)]
        if self.ids is not None:
            rows[0][self.ids] = self.number(x)
        for step in self.steps if steps is None else steps:
            made = [STEPS[step].make(row) for row in rows]
            marks = [one for one in made if isinstance(one, str)]
            if marks:
                return marks[0]
            rows = [row for one in made if not isinstance(one, str) for row in one]
            if not rows:
                return []
        return rows

    def like_made(self, found: Row) -> Row:
        """A row that came, with the unknown values of what the model makes of its sample."""
        made = self.made(found["x"])
        assert isinstance(made, list), f"{found} came, which is {made}"
        assert made[0].keys() == found.keys()
        return {name: ANY if made[0][name] is ANY else value for name, value in found.items()}

    def check_batch(self, wanted: Sequence[int], rows: Sequence[Row]) -> None:
        """See that the function of batches had the samples of one, as the steps before it make them."""
        before = [self.made(x, self.steps[: self.steps.index("batch_map")]) for x in wanted]
        if self.quarantine or "replaced" in before or ("bad" in before and self.bad == "replace"):
            return  # others came in places of theirs
        reached = [row["x"] for made in before if not isinstance(made, str) for row in made]
        assert {(row["n"], row["c"]) for row in rows} <= {(len(reached), sum(reached))}

    def take(self, x: int, epoch: int, step: range, rows: Iterator[Row]) -> int | None:
        """Take the rows of a sample, which must come next: how many; ``None``: another in its place is unknown.

        ``step``: the positions of its step, which has them in another order.
        """
        made = self.made(x)
        out = self.number(x) in self.quarantine
        if out or made == "replaced" or (made == "bad" and self.bad == "replace"):
            if (out and self.counts) or (made == "replaced" and self.leaves_out_after_batch):
                return None  # another comes in its place, or none: that one is left out itself
            other = next(rows, None)
            assert other is not None, f"no other came in the place of {x}"
            made = self.made(other["x"])
            assert isinstance(made, list), f"{other}, which is {made}, is in the place of {x}"
            self.agree(other, made[0], None, None)
            return 1
        if isinstance(made, str):
            return 0
        for row in made:
            found = next(rows, None)
            assert found is not None, f"{row} did not come"
            self.agree(found, row, None if self.repeats else (epoch, x, row.get("w")), step)
        return len(made)

    def agree(self, found: Row, made: Row, key: Any, step: range | None) -> None:
        """Compare a row with that of the model. ``key``: what its random number and its position belong to."""
        known = {name: value for name, value in made.items() if value is not ANY}
        assert found.keys() == made.keys(), f"{[*found]} came, and not {[*made]}"
        assert {name: found[name] for name in known} == known
        if "r" in made and key is not None:
            assert self.drawn_numbers.setdefault(key, found["r"]) == found["r"], f"another random number of {known}"
        if "at" in made and step is not None and not self.quarantine:
            assert found["at"] in step, f"{found} is in the step {step}"
            if key is not None:
                at = self.positions.setdefault(key, found["at"])
                assert found["at"] == at, f"{found} was at {at}"

    def check(self, wanted: Sequence[int], got: Iterable[Row], epoch: int, first: int) -> None:
        """Compare the rows of a step with the samples that a plain dataset has there, from a position on."""
        rows = iter(got)
        for x in wanted:
            if self.take(x, epoch, range(first, first + len(wanted)), rows) is None:
                return
        assert next(rows, None) is None, "more came than there is"


# -- reading -----------------------------------------------------------------------------------------------------------


def plain_value(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) or hasattr(value, "numpy") else value


def rows_of(batch: dict[str, Any]) -> list[Row]:
    lengths = {len(column) for column in batch.values()}
    assert len(lengths) <= 1
    return [{name: plain_value(column[at]) for name, column in batch.items()} for at in range(max(lengths, default=0))]


def samples_of(dataset: StreamingDataset) -> Iterator[Row]:
    return ({name: plain_value(value) for name, value in sample.items()} for sample in dataset)


def groups_of(samples: Iterator[Row], count: int) -> Iterator[list[Row]]:
    while part := list(islice(samples, count)):
        yield part


class Reader:
    """Reads a dataset of one rank in one way or another."""

    def __init__(self, dataset: StreamingDataset, mode: str, batch_size: int, lot: Lot) -> None:
        self._dataset, self._mode, self._batch_size = dataset, mode, batch_size
        self.stateful: Any = dataset
        if mode in ("loader", "columnar"):
            workers = lot.choice((0, 1, 2))
            self.stateful = StreamingDataLoader(dataset, num_workers=workers, columnar=mode == "columnar")

    def __iter__(self) -> Iterator[list[Row]]:
        if self._mode == "samples":
            return groups_of(samples_of(self._dataset), self._batch_size)
        return map(rows_of, self._dataset.batches() if self.stateful is self._dataset else self.stateful)


class Journey:
    """A run that stops and goes on: in other worlds, or inside of a batch in the same one."""

    def __init__(self, lot: Lot, data: Path, cache: Path, *, processes: bool) -> None:
        self.lot, self.data, self.cache, self.processes = lot, data, cache, processes
        self.run = Run.draw(lot)
        self.told = [repr(self.run)]
        self.state: dict[str, Any] | None = None
        self.plain_state: dict[str, Any] = {}
        self.epoch = self.position = 0

    def modes(self, ranks: int) -> list[str]:
        run = self.run
        modes = ["batches"]
        if "batch_map" not in run.steps and (ranks == 1 or not run.counts):
            modes += ["samples"] * (2 if ranks == 1 else 1)
        if self.processes:
            modes.append("columnar")
            if not any(STEPS[step].nulls for step in run.steps):
                modes.append("loader")
        return modes

    def go(self) -> bool:
        """Read, stop and go on, through two epochs; whether that was not refused."""
        lot, inside = self.lot, 0
        for _ in range(STOPS):
            ranks, batch_size = (1, inside) if inside else (lot.choice((1, 1, 2, 3)), lot.choice((1, 3, 4, 8, 16)))
            mode = "samples" if inside else lot.choice(self.modes(ranks))
            shutil.rmtree(self.cache, ignore_errors=True)
            try:
                readers = [self.reader(World(rank, ranks), batch_size, mode) for rank in range(ranks)]
                self.told.append(f"{mode} of {ranks} ranks of {batch_size} from {self.epoch}, {self.position}")
                if mode == "samples" and ranks == 1:
                    self.read_samples(readers[0], batch_size)
                else:
                    self.read_steps(readers, batch_size)
            except ConfigError as error:
                if self.state is None or not (self.epoch or self.position) or "has no batches" in str(error):
                    return self.state is not None
                raise AssertionError(f"refused in a later world: {error}") from error
            assert self.state is not None
            self.epoch, self.position = self.state["epoch"], self.state["position"]
            inside = batch_size if "partial" in self.state else 0
            if self.epoch >= 2:
                break
        return True

    def reader(self, world: World, batch_size: int, mode: str) -> Reader:
        lot = self.lot
        how: dict[str, Any] = {"read_threads": lot.choice((0, 0, 1, 3)), "views": lot.chance(20)}
        if self.processes and lot.chance(20):
            how = {"run_in": "processes", "start_method": "fork", "read_processes": 2}
        dataset = self.run.opened(self.data, self.cache, world, batch_size, ReadOptions(**how), lot)
        made = Reader(dataset, mode, batch_size, lot)
        if self.state is not None:
            made.stateful.load_state_dict(self.state)
        return made

    def plain(self, batch_size: int) -> StreamingDataset:
        made = self.run.plain(self.data, batch_size)
        if self.state is not None:
            made.load_state_dict(self.plain_state)
        return made

    def read_steps(self, readers: Sequence[Reader], batch_size: int) -> None:
        """Read steps of all ranks, and stop after one."""
        run, ranks = self.run, len(readers)
        plain = self.plain(ranks * batch_size)
        wanted = (list(map(int, batch["x"])) for batch in plain.batches())
        steps, position = list(map(iter, readers)), self.position
        for _ in range(self.lot.randrange(min(len(plain) + 2, 30))):
            step = [next(one, None) for one in steps]
            samples = next(wanted, None)
            assert len({one is None for one in step}) == 1, "ranks are out of step"
            if step[0] is None:
                assert samples is None, "the epoch ended before its samples"
                break
            assert samples is not None, "more came than there is"
            if len(samples) >= ranks:  # else ranks repeat samples, to have one each
                run.check(samples, [row for part in step if part is not None for row in part], self.epoch, position)
            if len(samples) == ranks * batch_size and "batch_map" in run.steps:
                for rank, part in enumerate(step):
                    run.check_batch(samples[rank * batch_size : (rank + 1) * batch_size], part or [])
            position += len(samples)
        states = [json.loads(json.dumps(one.stateful.state_dict())) for one in readers]
        assert all(one == states[0] for one in states), "the ranks' states differ"
        found = plain.state_dict()
        if run.options["remainder"] == "pad":
            assert (states[0]["epoch"], states[0]["position"]) == (found["epoch"], found["position"])
        self.state = states[0]
        self.plain_state = found | {"epoch": self.state["epoch"], "position": self.state["position"]}

    def read_samples(self, reader: Reader, batch_size: int) -> None:
        """Read samples one by one, and stop after any of them."""
        run, dataset = self.run, reader.stateful
        wanted = [int(sample["x"]) for sample in self.plain(batch_size)]
        begun = self.position + (self.state or {}).get("partial", {}).get("samples", 0)
        samples = samples_of(dataset)
        taken, most = 0, self.lot.randrange(len(wanted) + 2)
        known = True
        for number, x in enumerate(wanted[:most]):
            step = self.position + (begun - self.position + number) // batch_size * batch_size
            rows = run.take(x, self.epoch, range(step, step + batch_size), samples)
            known = rows is not None
            if not known:
                break
            if rows:
                taken = number + 1
        if most > len(wanted) and known:
            assert next(samples, None) is None, "more came than there is"
        plain = self.plain(batch_size)
        state = json.loads(json.dumps(dataset.state_dict()))
        if not known:  # how many were left out is not: go on from where it is
            taken = state["position"] + state.get("partial", {}).get("samples", 0) - begun
        for _ in islice(plain, taken):
            pass
        found = plain.state_dict()
        if most <= len(wanted) and known:
            places = [(one["epoch"], one["position"], one.get("partial")) for one in (state, found)]
            assert places[0] == places[1], f"{taken} samples were taken"
        self.state = state
        self.plain_state = {name: value for name, value in found.items() if name != "partial"}
        self.plain_state |= {name: state[name] for name in ("epoch", "position", "partial") if name in state}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "first" in metafunc.fixturenames:
        metafunc.parametrize("first", range(0, metafunc.config.getoption("drawn_runs"), TOGETHER))


def travel(data: Path, cache: Path, first: int, count: int, *, processes: bool) -> None:
    """Draw so many runs, and make one that fails smaller."""
    taken = 0
    for seed in range(first, first + count):
        lot = Lot(seed)
        try:
            taken += Journey(lot, data, cache, processes=processes).go()
        except Exception as error:
            told, why = smaller_run(lot.drawn, data, cache, processes=processes)
            raise AssertionError("\n".join((f"run {seed} failed, and a smaller one:", *told, repr(why)))) from error
    assert taken >= count // 2, "most of what is drawn is refused"


def smaller_run(
    drawn: Sequence[int], data: Path, cache: Path, *, processes: bool
) -> tuple[list[str], Exception | None]:
    found: tuple[list[str], Exception | None] = ["it does not fail again"], None

    def fails(numbers: Sequence[int]) -> bool:
        nonlocal found
        journey = Journey(Lot(0, numbers), data, cache, processes=processes)
        try:
            journey.go()
        except Exception as error:
            found = journey.told, error
            return True
        return False

    if fails(drawn):
        made_smaller(drawn, fails)
    return found


def test_drawn_runs_are_those_of_the_model(data: Path, tmp_path: Path, first: int) -> None:
    travel(data, tmp_path / "cache", first, TOGETHER, processes=False)


def leased(lot: Lot, data: Path, cache: Path, name: str) -> None:
    """What two workers have of leased work that is drawn is what the model makes of the samples of the epoch."""
    run = Run.draw(lot)
    run.quarantine = []
    run.options |= {"remainder": "uneven", "num_canonical_nodes": 1}
    if "zip" in run.steps:
        run.steps = [step for step in run.steps if not step.startswith("join")]  # of datasets of one name
    run.options.pop("batching_method", None)
    batch_size = lot.choice((None, 1, 4, 7)) if "batch_map" not in run.steps else lot.choice((1, 4, 7))
    loaders = []
    for rank in range(2):
        dataset = run.opened(data, cache, World(rank, 2), 4, ReadOptions(read_threads=lot.choice((0, 2))), lot)
        config = StreamingConfig(2, rank, Adaptive(), coordinator=f"memory://{name}", batch_size=batch_size)
        loaders.append(StreamingShardLoader(dataset, config))
    with ThreadPoolExecutor(2) as pool:
        taken: list[Any] = list(chain.from_iterable(pool.map(list, loaders)))
    assert loaders[0].progress().finished
    for one in loaders:
        one.close()
    got = [row for part in taken for row in ([part] if batch_size is None else rows_of(part))]
    unknown, wanted = 0, Counter[frozenset[Any]]()
    for sample in run.plain(data, 4):
        made = run.made(int(sample["x"]))
        unknown += made == "replaced" or (made == "bad" and run.bad == "replace")
        wanted.update(map(known_of, made if isinstance(made, list) else ()))
    others = Counter(known_of(run.like_made({name: plain_value(value) for name, value in row.items()})) for row in got)
    assert not wanted - others, f"{run}: these did not come: {wanted - others}"
    assert (others - wanted).total() == unknown, f"{run}: these came beside: {others - wanted}"


def known_of(row: Row) -> frozenset[Any]:
    return frozenset((name, value) for name, value in row.items() if value is not ANY)


@pytest.mark.parametrize("seed", range(40))
def test_drawn_leased_work_is_that_of_the_model(data: Path, tmp_path: Path, seed: int) -> None:
    leased(Lot(2_000_000 + seed), data, tmp_path / "cache", f"drawn{seed}")


@pytest.mark.processes
def test_drawn_runs_in_processes_are_those_of_the_model(data: Path, tmp_path: Path, first: int) -> None:
    travel(data, tmp_path / "cache", 1_000_000 + first, TOGETHER // 4, processes=True)
