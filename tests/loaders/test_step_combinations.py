"""Steps that change counts together with ids, a quarantine and bad samples: batches are those of a plain reference."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_data import write_with_bad

from stoker import Chain, ReadOptions, StreamingDataLoader, StreamingDataset
from stoker.cluster import World
from stoker.errors import StateError

SAMPLES = 90
GLOBAL_BATCH = 12
STEPS = -(-SAMPLES // GLOBAL_BATCH)
UNDECODABLE = frozenset({2, 31, 32, 33, 60})
Row = tuple[int, int, int, int]
"""The columns ``id`` and ``number``, which both say which sample it is, ``at`` and ``turn``."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_with_bad(tmp_path_factory.mktemp("combined") / "data", SAMPLES, UNDECODABLE, size_limit=500)


def fails(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["id"]) % 11 == 5:
        raise ValueError("eleven")
    return sample


def kept(sample: dict[str, Any]) -> bool:
    return int(sample["id"]) % 3 != 1


def copies(sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for turn in range(int(sample["id"]) % 4):
        yield {**sample, "turn": np.int64(turn)}


def even_turns(sample: dict[str, Any]) -> bool:
    return int(sample["turn"]) % 2 == 0


@dataclass(frozen=True)
class Case:
    """Steps and settings that are drawn.

    Attributes:
        steps: letters of the chain's steps: ``f``: fails, ``l``: a filter that leaves out, ``r``: one that replaces, ``m``:
            flat_map, ``t``: a filter of what flat_map made.
        first: whether ``enumerate`` is the first step, not the last.
        on_bad_sample: see the dataset.
        undecodable: whether the column that does not decode is read.
        quarantine: ids.
    """

    steps: str
    first: bool
    on_bad_sample: str
    undecodable: bool
    quarantine: tuple[int, ...]

    @classmethod
    def draw(cls, chosen: random.Random) -> Case:
        return cls(
            steps="".join(
                [chosen.choice(["", "f"]), chosen.choice(["", "l", "r"]), chosen.choice(["", "", "m", "mt"])],
            ),
            first=chosen.random() < 0.5,
            on_bad_sample=chosen.choice(["skip", "replace"]),
            undecodable=chosen.random() < 0.5,
            quarantine=tuple(chosen.sample(range(SAMPLES), chosen.choice([0, 9, 40]))),
        )

    def chain(self) -> Chain:
        chain = Chain().enumerate("at") if self.first else Chain()
        for step in self.steps:
            match step:
                case "f":
                    chain = chain.map(fails)
                case "l":
                    chain = chain.filter(kept)
                case "r":
                    chain = chain.filter(kept, dropped="replace")
                case "m":
                    chain = chain.flat_map(copies)
                case _:
                    chain = chain.filter(even_turns)
        return chain if self.first else chain.enumerate("at")

    def opened(self, data: Path, file: Path, world: World = World(0, 1, 1), threads: int = 0) -> StreamingDataset:  # noqa: B008
        file.write_text("".join(f"{number}\n" for number in self.quarantine))
        return StreamingDataset(
            data,
            shuffle=True,
            num_canonical_nodes=1,
            batch_size=GLOBAL_BATCH // world.world_size,
            world=world,
            transform=self.chain(),
            on_bad_sample=self.on_bad_sample,  # type: ignore[arg-type]
            columns=["id", "doc"] if self.undecodable else ["id"],
            read=ReadOptions(ids="number", quarantine=file, read_threads=threads),
        )


class Reference:
    """The batches of a case, sample by sample.

    Args:
        case: the case.
        order: ids of the epoch's samples, by position.
    """

    def __init__(self, case: Case, order: list[int]) -> None:
        self.case = case
        out = set(case.quarantine)
        self.located = [
            next(order[one] for one in [at, *candidates(at, len(order))] if order[one] not in out)
            for at in range(len(order))
        ]

    def steps(self) -> list[list[Row]]:
        rows = [self.row(at) for at in range(SAMPLES)]
        return [
            [row for part in rows[at : at + GLOBAL_BATCH] for row in part] for at in range(0, SAMPLES, GLOBAL_BATCH)
        ]

    def row(self, at: int) -> list[Row]:
        found = self.made(at)
        if (found == "bad" and self.case.on_bad_sample == "replace") or found == "replaced":
            found = next(
                one
                for one in (self.made(other) for other in candidates(at, SAMPLES))
                if one not in ("bad", "replaced", "left out")
            )
        return [] if isinstance(found, str) else found

    def made(self, at: int) -> str | list[Row]:
        number, steps = self.located[at], self.case.steps
        if (self.case.undecodable and number in UNDECODABLE) or ("f" in steps and number % 11 == 5):
            return "bad"
        if number % 3 == 1 and ("l" in steps or "r" in steps):
            return "left out" if "l" in steps else "replaced"
        if "m" not in steps:
            return [(number, number, at, 0)]
        return [(number, number, at, turn) for turn in range(number % 4) if "t" not in steps or turn % 2 == 0]


def candidates(at: int, count: int) -> list[int]:
    def distances(most: int) -> Iterator[int]:
        distance = 1
        while distance <= most:
            yield distance
            distance += max(1, distance // 2)
        yield from range(1, most + 1)

    return [*(at - one for one in distances(at)), *(at + one for one in distances(count - 1 - at))]


def rows_of(batches: Iterable[Any]) -> list[list[Row]]:
    found = []
    for batch in batches:
        ids = [int(one) for one in batch.get("id", ())]
        turns = [int(one) for one in batch.get("turn", [0] * len(ids))]
        found.append(
            list(zip(ids, map(int, batch.get("number", ())), map(int, batch.get("at", ())), turns, strict=True))
        )
    return found


def row_of(sample: Any) -> Row:
    ((row,),) = rows_of([{name: [one] for name, one in sample.items()}])
    return row


def order_of(data: Path) -> list[int]:
    plain = StreamingDataset(
        data, shuffle=True, num_canonical_nodes=1, batch_size=GLOBAL_BATCH, world=World(0, 1, 1), columns=["id"]
    )
    return [int(number) for batch in plain.batches() for number in batch["id"]]


@pytest.mark.parametrize("seed", range(30))
def test_batches_are_those_of_the_reference_and_resume_in_any_world(data: Path, tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    case, file = Case.draw(chosen), tmp_path / "quarantine"
    reference = Reference(case, order_of(data))
    wanted = reference.steps()
    dataset = case.opened(data, file, threads=chosen.choice([0, 2]))
    for step in range(STEPS):
        here = slice(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH)
        assert dataset.ids_of(step).tolist() == reference.located[here]
    assert rows_of(dataset.batches()) == wanted, case
    rows = [row for batch in wanted for row in batch]
    assert list(map(row_of, case.opened(data, file))) == rows, case
    first, taken = case.opened(data, file), chosen.randrange(1, len(rows))
    begun_rows = list(map(row_of, islice(first, taken)))
    places = [at for at in range(SAMPLES) for _ in reference.row(at)]
    if places[taken] == places[taken - 1]:
        with pytest.raises(StateError, match="between samples that flat_map"):
            first.state_dict()
    else:
        second = case.opened(data, file)
        second.load_state_dict(first.state_dict())
        assert begun_rows + list(map(row_of, second)) == rows, (case, taken)

    ranks, others, stop = chosen.choice([1, 2]), chosen.choice([1, 2, 3]), chosen.randrange(STEPS)
    begun, rest = [], []
    for rank in range(ranks):
        first = case.opened(data, file, World(rank, ranks, ranks))
        begun.append(rows_of(islice(first.batches(), stop)))
        if not rank:
            state = first.state_dict()
    for rank in range(others):
        second = case.opened(data, file, World(rank, others, others))
        second.load_state_dict(state)
        rest.append(rows_of(second.batches()))
    found = [[row for part in parts for row in part] for parts in [*zip(*begun, strict=True), *zip(*rest, strict=True)]]
    assert found == wanted, (case, ranks, stop, others)


@pytest.mark.processes
@pytest.mark.parametrize("columnar", [False, True])
@pytest.mark.parametrize("seed", range(100, 104))
def test_loaders_resume_with_other_workers(data: Path, tmp_path: Path, columnar: bool, seed: int) -> None:
    chosen = random.Random(seed)
    file, order = tmp_path / "quarantine", order_of(data)
    wanted: list[list[Row]] = [[]]
    while [] in wanted:  # torch can not make a batch of no samples: an error, which test_chain_steps.py tests
        case = Case.draw(chosen)
        wanted = Reference(case, order).steps()
    found: list[list[Row]] = []
    with StreamingDataLoader(case.opened(data, file), num_workers=2, columnar=columnar) as loader:
        found += rows_of(islice(loader, 3))
        state = loader.state_dict()
    with StreamingDataLoader(case.opened(data, file), num_workers=0, columnar=columnar) as loader:
        loader.load_state_dict(state)
        found += rows_of(loader)
    assert found == wanted, case
