"""Mixtures of token sources: shares, each token once a pass, any world, and weights and sources that change in mid-run."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_cases import FIRST, MemorySource, write_parquet

from stoker import Schedule, ShardConfig, StreamingDataLoader, StreamingParquetLoader
from stoker.errors import ConfigError, StateError
from stoker.tokens.batch import LMBatch

PAD = 0
APART = 10**6
"""Tokens of a source are ``number * APART`` and more, so that a token tells its source."""
NAMES = ("web", "books", "code", "more")


def source(number: int, tokens: int = 600, files: int = 3) -> MemorySource:
    rng = np.random.default_rng(number)
    lengths: list[int] = []
    while sum(lengths) < tokens:
        lengths.append(int(rng.integers(0, 25)))
    groups = np.array_split(np.array(lengths), 2 * files)
    made = MemorySource([[group.tolist() for group in groups[2 * k : 2 * k + 2]] for k in range(files)])
    for group in made._groups:
        group.values[...] += number * APART
    return made


def sources(*numbers: int, **options: Any) -> dict[str, MemorySource]:
    return {NAMES[number]: source(number, **options) for number in numbers}


def long_and_short() -> dict[str, MemorySource]:
    given = {"long": MemorySource([[[20] * 400]]), "short": MemorySource([[[4] * 1500]])}
    for group in given["short"]._groups:
        group.values[...] += APART
    return given


def opened(given: Any, world: int = 1, **options: Any) -> list[StreamingParquetLoader]:
    chosen: dict[str, Any] = {"batch_size": 4, "seq_len": 7, "pad_id": PAD, "shuffle_tokens": 60, **options}
    return [StreamingParquetLoader(given, ShardConfig(rank, world, 5), **chosen) for rank in range(world)]


def rows_of(batch: LMBatch) -> list[tuple[int, ...]]:
    return [tuple(token for token in row if token != PAD) for row in batch.input_ids.tolist()]


def source_of(row: Sequence[int]) -> str:
    return NAMES[row[0] // APART]


@dataclass
class Model:
    """What a run has had: of each source every token as often as any other, or once more."""

    given: Mapping[str, MemorySource]
    had: Counter[int] = field(default_factory=Counter)

    def take(self, rows: Sequence[tuple[int, ...]]) -> None:
        self.had.update(token for row in rows for token in row)
        for number, (name, one) in enumerate(self.given.items()):
            number = NAMES.index(name)
            times = [self.had[FIRST + number * APART + token] for token in range(one.total)]
            assert max(times) - min(times) <= 1, f"a token of {name} came again before all had come"


class Ranks:
    """The ranks of a world in one iteration, which step together, and begin the next epoch where one ends."""

    def __init__(self, loaders: Sequence[StreamingParquetLoader]) -> None:
        self.loaders, self._running = loaders, [iter(loader) for loader in loaders]

    def steps(self, count: int) -> list[list[tuple[int, ...]]]:
        """The rows of the next steps, of all ranks together; fewer where the epoch ends."""
        steps: list[list[tuple[int, ...]]] = []
        for _ in range(count):
            batches = [next(one, None) for one in self._running]
            rows = [row for batch in batches if batch is not None for row in rows_of(batch)]
            if None in batches:
                assert batches == [None] * len(batches) or self.loaders[0].remainder == "uneven"
                assert [next(one, None) for one in self._running] == [None] * len(batches)
                epoch = max(loader.current_epoch for loader in self.loaders) + 1
                for loader in self.loaders:
                    loader.reset_epoch(epoch)
                self._running = [iter(loader) for loader in self.loaders]
                return [*steps, *([rows] if rows else [])]
            steps.append(rows)
        return steps


def steps_of(loaders: Sequence[StreamingParquetLoader], count: int) -> list[list[tuple[int, ...]]]:
    return Ranks(loaders).steps(count)


# -- shares ----------------------------------------------------------------------------------------------------------


def test_every_global_batch_has_the_shares_that_were_asked_for() -> None:
    weights = {"web": 0.5, "books": 0.3, "code": 0.2}
    for world in (1, 2, 5):
        steps = steps_of(opened(sources(0, 1, 2, tokens=3000), world, weights=weights, batch_size=20 // world), 60)
        assert len(steps) == 60
        had: Counter[str] = Counter()
        for number, rows in enumerate(steps, 1):
            had.update(map(source_of, rows))
            for name, share in weights.items():
                assert abs(had[name] - share * 20 * number) < 3


@pytest.mark.parametrize("layout", ["concat", "pack", "pad"])
def test_shares_are_of_tokens_whatever_rows_hold(layout: Any) -> None:
    """Documents of one source are five times as long as the other's."""
    given = {"long": MemorySource([[[20] * 300]]), "short": MemorySource([[[4] * 1500]])}
    for group in given["short"]._groups:
        group.values[...] += APART
    (loader,) = opened(given, layout=layout, seq_len=20, weights={"long": 0.7, "short": 0.3}, epoch_tokens="20k")
    tokens: Counter[bool] = Counter()
    for batch in loader:
        for row in rows_of(batch):
            tokens[row[0] >= APART] += len(row)
    assert abs(tokens[True] / tokens.total() - 0.3) < 0.005


def test_without_weights_all_tokens_come_once_and_repeat_says_how_often() -> None:
    given = sources(0, 1)
    (loader,) = opened(given)
    had = Counter(token for batch in loader for row in rows_of(batch) for token in row)
    assert set(had.values()) == {1}
    assert len(had) == given["web"].total + given["books"].total
    (loader,) = opened(given, repeat={"books": 2})
    had = Counter(token for batch in loader for row in rows_of(batch) for token in row)
    assert {token // APART: times for token, times in had.items()} == {0: 1, 1: 2}


def test_a_schedule_counts_tokens() -> None:
    weights = Schedule.parse({0: {"web": 1, "books": 0}, 1400: {"web": 1, "books": 1}})
    (loader,) = opened(sources(0, 1), weights=weights, epoch_tokens=2800)
    rows = [row for batch in loader for row in rows_of(batch)]
    assert {source_of(row) for row in rows[:200]} == {"web"}
    assert abs(Counter(map(source_of, rows[200:]))["books"] - 100) < 3


# -- any world, and changes --------------------------------------------------------------------------------------------


def test_batches_tell_their_sources_and_where_documents_lie() -> None:
    given = sources(0, 1, 2)
    (loader,) = opened(given, weights={"web": 1, "books": 1, "code": 2})
    assert loader.sources == ("books", "code", "web")
    for batch in islice(iter(loader), 20):
        ids, numbers = batch.input_ids, batch.source_ids
        by_name = np.array([2, 0, 1])  # web, books, code
        assert np.array_equal(numbers, np.where(ids == PAD, -1, by_name[ids // APART]))
        document = int(batch.document_ids[0, 0])
        place = loader.where(document)
        name = loader.sources[int(numbers[0, 0])]
        assert place.shard is not None
        assert place.row is not None
        assert int(ids[0, 0]) in given[name]._groups[place.shard][place.row].tolist()
    assert loader.ids_of(3).size
    with pytest.raises(IndexError, match="documents are numbered"):
        loader.where(9 << 42)


@pytest.mark.parametrize("layout", ["concat", "pack"])
def test_global_batches_are_the_same_in_every_world(layout: Any) -> None:
    weights = {"web": 3, "books": 2, "code": 1}
    begun = opened(sources(0, 1, 2), 3, weights=weights, layout=layout)
    steps_of(begun, 5)
    state = json.loads(json.dumps(begun[0].state_dict()))
    assert all(loader.state_dict() == state for loader in begun)
    found = []
    for world in (1, 2, 4, 12):
        loaders = opened(sources(0, 1, 2), world, weights=weights, layout=layout, batch_size=12 // world)
        for loader in loaders:
            loader.load_state_dict(state)
        found.append([sorted(rows) for rows in steps_of(loaders, 15)])
    assert all(other == found[0] for other in found[1:])


def test_a_change_and_a_resume_give_the_same_global_batches_in_every_world() -> None:
    found = []
    for worlds in ((1, 1), (2, 4), (12, 3)):
        steps: list[list[tuple[int, ...]]] = []
        weights, state = {"web": 3, "books": 2, "code": 1}, None
        for world in worlds:
            loaders = opened(sources(0, 1, 2, tokens=3000), world, weights=weights, batch_size=12 // world)
            for loader in loaders:
                if state is not None:
                    loader.load_state_dict(state)
            run = Ranks(loaders)
            steps += run.steps(7)
            for loader in loaders:
                loader.set_weights({"web": 1, "books": 2, "code": 3 + len(steps)})
            steps += run.steps(7)
            state = loaders[-1].state_dict()
        found.append([sorted(rows) for rows in steps])
    assert found[0] == found[1] == found[2]


EDITS = st.sampled_from(["go on", "other world", "weights", "weights by state", "remove", "add"])


@settings(deadline=None)
@given(
    st.lists(st.tuples(EDITS, st.integers(1, 4), st.integers(1, 5), st.integers(0, 40)), min_size=1, max_size=7),
    st.sampled_from(["concat", "pack"]),
    st.booleans(),
    st.sampled_from([None, 350, 3000]),
    st.integers(0, 1 << 30),
)
def test_any_history_has_each_token_once_a_pass(
    history: list[tuple[str, int, int, int]], layout: Any, shuffle: bool, epoch_tokens: int | None, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    given = sources(0, 1, 2, 3, tokens=200)
    here = list(NAMES[:2])
    weights = {name: int(rng.integers(1, 9)) for name in here}
    made = weights
    options: dict[str, Any] = {
        "layout": layout,
        "shuffle": shuffle,
        "epoch_tokens": epoch_tokens,
        "remainder": "uneven",
    }
    model = Model(given)
    world, batch_size = 2, 3
    loaders = opened({name: given[name] for name in here}, world, weights=weights, batch_size=batch_size, **options)
    run = Ranks(loaders)
    for edit, other_world, other_batch, steps in history:
        if edit == "weights":
            weights = {name: int(rng.integers(1, 9)) for name in here}
            for loader in loaders:
                loader.set_weights(weights)
        elif edit == "remove" and len(here) > 1:
            name = here.pop(int(rng.integers(len(here))))
            weights = {other: weight for other, weight in weights.items() if other != name}
            for loader in loaders:
                loader.remove(name)
        elif edit == "add" and len(here) < len(NAMES):
            name = next(name for name in NAMES if name not in here)
            here.append(name)
            weights = {**weights, name: int(rng.integers(1, 9))}
            for loader in loaders:
                loader.add(name, given[name], weights)
        elif edit in ("other world", "weights by state"):
            state = json.loads(json.dumps(loaders[0].state_dict()))
            world, batch_size, before = other_world, other_batch, weights
            if edit == "weights by state":
                weights = {name: int(rng.integers(1, 9)) for name in here}
            changed = set(here) != set(made) or edit == "weights by state"
            made = weights if changed else made
            chosen = {name: given[name] for name in made}
            here = list(made)
            loaders = opened(chosen, world, weights=made, batch_size=batch_size, **options)
            for loader in loaders:
                loader.load_state_dict(state, change_streams=changed)
            run = Ranks(loaders)
            if not changed:
                assert before == weights
        for rows in run.steps(steps):
            model.take(rows)
            assert {source_of(row) for row in rows} <= set(here)


def test_weights_change_in_a_loop_that_runs() -> None:
    given = sources(0, 1, tokens=3000)
    loaders = opened(given, 2, weights={"web": 1, "books": 1})
    iterators = [iter(loader) for loader in loaders]
    seen: list[Counter[str]] = []
    for step in range(60):
        if step == 30:
            for loader in loaders:
                loader.set_weights({"web": 1, "books": 0})
        rows = [row for one in iterators for row in rows_of(next(one))]
        seen.append(Counter(map(source_of, rows)))
    assert sum(seen[:30], Counter()) == {"web": 120, "books": 120}
    assert sum(seen[30:], Counter()) == {"web": 240}
    left = [len(list(one)) for one in iterators]
    assert left[0] == left[1] == len(loaders[0]) - 60
    # The state of such a run says its weights, so the loader may be made as before.
    state = loaders[0].state_dict()
    (resumed,) = opened(given, weights={"web": 1, "books": 1})
    resumed.load_state_dict(state)
    assert {source_of(row) for batch in islice(iter(resumed), 30) for row in rows_of(batch)} == {"web"}


def test_a_change_behind_the_last_batch_ends_the_epoch() -> None:
    (loader,) = opened(sources(0, 1), weights={"web": 1, "books": 1})
    count = 0
    for _ in loader:
        count += 1
        if count == len(loader):
            loader.set_weights({"web": 1, "books": 3})
    assert count == len(loader)
    assert loader.is_epoch_exhausted
    assert loader.state_dict()["epoch"] == 1
    assert abs(Counter(source_of(row) for batch in loader for row in rows_of(batch))["web"] - count) < 3


def test_states_of_other_weights_are_refused_unless_they_are_to_change() -> None:
    given = sources(0, 1)
    (loader,) = opened(given, weights={"web": 1, "books": 1})
    steps_of([loader], 3)
    state = loader.state_dict()
    (other,) = opened(given, weights={"web": 1, "books": 3})
    with pytest.raises(StateError, match=r"weights\.shares\.books was 1 and is 3.*change_streams=True"):
        other.load_state_dict(state)
    other.load_state_dict(state, change_streams=True)
    rows = [row for rows in steps_of([other], 10) for row in rows]
    assert Counter(map(source_of, rows)) == {"web": 10, "books": 30}
    (alone,) = opened({"web": given["web"]})
    with pytest.raises(StateError, match="'books' is gone"):
        alone.load_state_dict(state)


def test_damaged_weights_in_a_state_are_refused() -> None:
    (loader,) = opened(sources(0, 1), weights={"web": 1, "books": 1})
    steps_of([loader], 3)
    damages: list[Any] = [{"shares": {"web": number, "books": 1}} for number in (-1, None, 10**400)]
    for damage in (
        *damages,
        {"shares": 5},
        7,
        {"other": 1},
        {"epoch_tokens": "a"},
        {"unit": "words"},
        {"most_epochs": {"web": -1}},
        {"repeat": 5},
        {"repeat": {"web": "a"}},
    ):
        state = loader.state_dict()
        state["order"]["weights"] = damage
        with pytest.raises(StateError):
            loader.load_state_dict(state)
    orders: list[Any] = [None, [], 5]
    for order in orders:
        with pytest.raises(StateError):
            loader.load_state_dict({**loader.state_dict(), "order": order})


@pytest.mark.parametrize("mixed", [False, True])
def test_a_batch_goes_to_another_process_without_what_it_was_made_of(mixed: bool) -> None:
    given = sources(0, 1, tokens=20_000)
    (loader,) = opened(given if mixed else given["web"], shuffle=False, shuffle_tokens="1m")
    batch = next(iter(loader))
    data = pickle.dumps(batch)
    assert len(data) < 4000
    assert np.array_equal(pickle.loads(data).document_ids, batch.document_ids)


def test_shares_hold_in_the_long_run_however_often_weights_are_set() -> None:
    weights = {"web": 0.9, "books": 0.06, "code": 0.04}
    (loader,) = opened(sources(0, 1, 2, tokens=3000), weights=weights, batch_size=8, epoch_tokens="40k")
    had: Counter[str] = Counter()
    for batch in loader:
        had.update(map(source_of, rows_of(batch)))
        loader.set_weights(weights)
    assert had.total() == 5714
    for name, share in weights.items():
        assert abs(had[name] / had.total() - share) < 0.015


def test_a_state_that_is_refused_leaves_the_loader_as_it_was() -> None:
    given = sources(0, 1)
    (loader,) = opened(given, weights={"web": 1, "books": 1})
    running = iter(loader)
    next(running)
    loader.set_weights({"web": 1, "books": 9})
    next(running)
    state = loader.state_dict()
    state["streams"]["web"]["fingerprint"] = "0" * 32
    (other,) = opened(given, weights={"web": 1, "books": 1})
    running = iter(other)
    next(running)
    before = other.state_dict()
    for _ in range(2):
        with pytest.raises(StateError, match="belongs to another dataset"):
            other.load_state_dict(state)
        assert other.state_dict() == before
    rows = [row for batch in islice(running, 10) for row in rows_of(batch)]
    assert Counter(map(source_of, rows)) == {"web": 20, "books": 20}


def test_a_dict_of_weights_that_is_changed_later_changes_nothing() -> None:
    weights = {"web": 1, "books": 1}
    (loader,) = opened(sources(0, 1), weights=weights)
    before = loader.state_dict()
    weights["web"] = 9
    assert loader.state_dict() == before


def test_of_steps_before_a_change_nothing_is_told() -> None:
    (loader,) = opened(sources(0, 1), weights={"web": 1, "books": 1})
    for step, _ in enumerate(loader):
        if step == 9:
            loader.set_weights({"web": 1, "books": 3})
        if step == 12:
            break
    for step in (0, 9):
        with pytest.raises(
            ConfigError, match="comes before position 40 of its epoch, where streams or weights were changed"
        ):
            loader.ids_of(step)
    assert loader.ids_of(11).size
    loader.reset_epoch(0)
    with pytest.raises(ConfigError, match="comes before position 40"):
        next(iter(loader))


def test_a_change_goes_on_in_the_iteration_that_began_last() -> None:
    (loader,) = opened(sources(0, 1), weights={"web": 1, "books": 1})
    first = iter(loader)
    next(first)
    second = iter(loader)
    next(second)
    loader.set_weights({"web": 1, "books": 3})
    with pytest.raises(StateError, match="this iterator has ended"):
        next(first)
    assert len(list(second)) == len(loader) - 1
    (loader,) = opened(sources(0, 1), weights={"web": 1, "books": 1})
    running = iter(loader)
    next(running)
    state = loader.state_dict()
    loader.load_state_dict(state, change_streams=True)
    with pytest.raises(StateError, match="this iterator has ended"):
        next(running)


def test_a_schedule_may_become_another_where_it_was_not_reached_yet() -> None:
    given, weights = sources(0, 1, tokens=3000), {"web": 1, "books": 1}
    (loader,) = opened(given, weights=Schedule.parse({0: weights, 1400: {"web": 1, "books": 0}}), epoch_tokens=2800)
    steps_of([loader], 20)
    (other,) = opened(given, weights=Schedule.parse({0: weights, 700: {"web": 0, "books": 1}}), epoch_tokens=2800)
    other.load_state_dict(loader.state_dict())
    rows = [row for batch in other for row in rows_of(batch)]
    assert len(rows) == 320
    assert abs(Counter(map(source_of, rows))["books"] - 310) < 3


def test_epoch_tokens_are_tokens_also_where_a_row_is_a_document() -> None:
    given = {"long": MemorySource([[[20] * 300]]), "short": MemorySource([[[4] * 1500]])}
    for group in given["short"]._groups:
        group.values[...] += APART
    (loader,) = opened(given, layout="pad", seq_len=100, weights={"long": 0.7, "short": 0.3}, epoch_tokens=5000)
    assert abs(sum(batch.num_tokens for batch in loader) - 5000) < 60


@pytest.mark.parametrize("layout", ["concat", "pack", "pad", "truncate"])
@pytest.mark.parametrize("weights", [{"long": 1, "short": 3}, Schedule.parse({0: {"long": 1, "short": 3}})])
def test_weights_of_samples_count_documents(layout: Any, weights: Any) -> None:
    given = long_and_short()
    most = {"truncate": 10, "pad": 20}.get(layout, 40)
    options: dict[str, Any] = {"layout": layout, "seq_len": most, "epoch_tokens": 4000, "unit": "samples"}
    (loader,) = opened(given, weights=weights, **options)
    rows = [row for batch in loader for row in rows_of(batch)]
    tokens = Counter(token >= APART for row in rows for token in row)
    long, short = tokens[False] / min(20, most), tokens[True] / 4
    assert abs(long / (long + short) - 0.25) < 0.01
    assert loader.state_dict()["order"]["weights"]["unit"] == "samples"
    with pytest.raises(StateError, match="weights"):
        opened(given, weights=weights, **options | {"unit": "tokens"})[0].load_state_dict(loader.state_dict())


@pytest.mark.parametrize("unit", ["tokens", "samples"])
@pytest.mark.parametrize("layout", ["pad", "concat"])
def test_a_schedule_counts_tokens_whatever_rows_hold(layout: Any, unit: Any) -> None:
    options: dict[str, Any] = {"layout": layout, "seq_len": 20, "epoch_tokens": 4000, "unit": unit}
    weights = {"long": 1, "short": 1}
    (plain,), (fixed,) = (
        opened(long_and_short(), weights=one, **options) for one in (weights, Schedule.parse({0: weights}))
    )
    assert abs(sum(batch.num_tokens for batch in plain) - sum(batch.num_tokens for batch in fixed)) < 100
    schedule = Schedule.parse({0: {"long": 0, "short": 1}, 2000: {"long": 1, "short": 0}})
    (loader,) = opened(long_and_short(), weights=schedule, **options)
    rows = [row for batch in loader for row in rows_of(batch)]
    change = next(number for number, row in enumerate(rows) if row[0] < APART)
    assert abs(sum(map(len, rows[:change])) - 2000) <= 80


@pytest.mark.parametrize(("layout", "unit"), [("pad", "tokens"), ("pad", "samples"), ("concat", "samples")])
def test_weights_that_go_over_are_the_weights_half_way(layout: Any, unit: Any) -> None:
    schedule = Schedule.parse({0: {"long": 1, "short": 9}, 4000: {"long": 9, "short": 1}}, interpolate=20)
    options: dict[str, Any] = {"layout": layout, "seq_len": 20, "epoch_tokens": 8000, "unit": unit}
    (loader,) = opened(long_and_short(), weights=schedule, **options)
    had, before = Counter[bool](), 0
    for row in (row for batch in loader for row in rows_of(batch)):
        if 1600 <= before < 2400:
            had[row[0] < APART] += len(row)
        before += len(row)
    long, short = (had[True], had[False]) if unit == "tokens" else (had[True] / 20, had[False] / 4)
    assert abs(long / (long + short) - 0.5) < 0.06


@pytest.mark.parametrize("layout", ["concat", "pack"])
@pytest.mark.parametrize("weights", [{"web": 1, "books": 3, "code": 1}, None])
def test_a_source_comes_at_most_so_many_epochs(layout: Any, weights: Any) -> None:
    given = sources(0, 1, 2, tokens=200)
    shares = weights or Schedule.parse({0: {"web": 1, "books": 3, "code": 1}, 900: {"web": 1, "books": 2, "code": 0}})
    options: dict[str, Any] = {"weights": shares, "layout": layout, "epoch_tokens": 500, "remainder": "uneven"}
    options["most_epochs"] = {"books": 2, "code": 1.5}
    loaders = opened(given, 2, **options)
    model = Model(given)
    for world, batch_size in ((3, 2), (1, 8), (2, 4), (4, 1)):
        run = Ranks(loaders)
        for _ in range(3):
            model.take([row for step in run.steps(7) for row in step])
        state = json.loads(json.dumps(loaders[0].state_dict()))
        loaders = opened(given, world, batch_size=batch_size, **options)
        for loader in loaders:
            loader.load_state_dict(state)
            if weights and world == 1:
                loader.set_weights({"web": 2, "books": 1, "code": 1})
    times = {
        name: [model.had[FIRST + NAMES.index(name) * APART + token] for token in range(one.total)]
        for name, one in given.items()
    }
    assert sum(times["books"]) > 0.97 * 2 * given["books"].total
    assert max(times["books"]) == 2
    assert max(times["code"]) <= 2
    assert sum(times["code"]) <= 1.5 * given["code"].total
    assert min(times["web"]) > 2
    del options["most_epochs"]
    with pytest.raises(StateError, match="most"):
        opened(given, **options)[0].load_state_dict(state)


def test_a_source_is_named_before_its_state_is_resumed() -> None:
    given = sources(0, 1, 2)
    (loader,) = opened(given, weights={"web": 1, "books": 1, "code": 1})
    steps_of([loader], 3)
    state = loader.state_dict()
    loader.remove("web")
    with pytest.raises(StateError, match=r"stream 'web' is gone.*change_streams=True"):
        loader.load_state_dict(state)
    loader.add("web", given["web"], {"web": 1, "books": 1, "code": 1})
    loader.load_state_dict(state)
    with pytest.raises(ConfigError, match="name must be one of several sources"):
        opened({"web": given["web"]})[0].remove("web")


def test_names_of_sources_do_not_leave_the_cache(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data" / "a.parquet", [[[1, 2, 3]] * 20])
    (loader,) = opened({"../esc": f"file://{tmp_path}/data"}, local=tmp_path / "cache" / "of")
    assert len(list(loader)) == len(loader)
    assert not (tmp_path / "cache" / "esc").exists()
    with pytest.raises(ConfigError, match="sources must be names"):
        opened({"..": f"file://{tmp_path}/data"}, local=tmp_path / "cache" / "of")


# -- bad rows, workers, arguments ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["skip", "replace"])
def test_bad_rows_of_a_source_are_left_out_or_replaced(kind: Any) -> None:
    given = sources(0, 1)
    damaged = source(1)
    damaged._groups[2].values[5:9] = -1
    (whole,) = opened(given, weights={"web": 1, "books": 1})
    (loader,) = opened({**given, "books": damaged}, weights={"web": 1, "books": 1}, on_bad_sample=kind)
    good, found = list(whole), list(loader)
    assert loader.stats().bad_samples > 0
    assert len(good) == len(found)
    short = sum(len(batch) for batch in good) - sum(len(batch) for batch in found)
    assert (short > 0) == (kind == "skip")
    for one, other in zip(good, found, strict=True):
        kept = [row for row in rows_of(other) if source_of(row) == "web"]
        assert kept == [row for row in rows_of(one) if source_of(row) == "web"]


@pytest.mark.processes
def test_shares_hold_in_workers_of_a_data_loader(tmp_path: Path) -> None:
    for number, name in enumerate(("web", "books")):
        (tmp_path / name).mkdir()
        documents = [[number * APART + 1 + k] * (3 + k % 5) for k in range(400)]
        write_parquet(tmp_path / name / "a.parquet", [documents[:200], documents[200:]])
    given = {name: tmp_path / name for name in ("web", "books")}
    (loader,) = opened(given, weights={"web": 3, "books": 1})
    expected = [rows_of(batch) for batch in loader]
    for workers in (0, 2):
        (again,) = opened(given, weights={"web": 3, "books": 1})
        loading = StreamingDataLoader(again, num_workers=workers)
        assert [rows_of(batch) for batch in islice(iter(loading), 20)] == expected[:20]
        state = loading.state_dict()
        (resumed,) = opened(given, weights={"web": 3, "books": 1})
        loading = StreamingDataLoader(resumed, num_workers=workers)
        loading.load_state_dict(state)
        assert [rows_of(batch) for batch in loading] == expected[20:]
    with pytest.raises(ConfigError, match="workers of a DataLoader, or the trainer around"):
        resumed.set_weights({"web": 1, "books": 1})
    copy = pickle.loads(pickle.dumps(opened(given, weights={"web": 3, "books": 1})[0]))
    assert [rows_of(batch) for batch in copy] == expected


@pytest.mark.parametrize(
    ("given", "options", "told"),
    [
        (sources(0, 1), {"weights": {"web": 1}}, "weights must be of all sources, 0 to turn one off: .*are missing"),
        (sources(0, 1), {"weights": {"web": 1, "books": 1, "x": 1}}, "weights=: source 'x' is unknown"),
        (sources(0, 1), {"weights": {"web": 0, "books": 0}}, "weights must be above 0 for at least one source"),
        (
            sources(0, 1),
            {"weights": {"web": -1, "books": 1}},
            r"weights\['web'\] must be a finite number from 0, got -1",
        ),
        (
            sources(0, 1),
            {"weights": {"web": 1, "books": 1}, "repeat": {"web": 2}},
            "repeat must be left out with weights=",
        ),
        (sources(0, 1), {"granularity": "file"}, "granularity must be left out for a mixture, whose rows"),
        (sources(0), {"repeat": {"books": 2}}, "repeat=: source 'books' is unknown"),
        (source(0), {"weights": {"web": 1}}, "weights= needs a mixture"),
        (source(0), {"epoch_tokens": 100}, "epoch_tokens= needs a mixture"),
        (sources(0, 1), {"weights": {"web": 10**400, "books": 1}}, r"weights\['web'\] must be a finite number"),
        (sources(0, 1), {"weights": {"web": float("nan"), "books": 1}}, r"weights\['web'\] must be a number"),
        (sources(0, 1), {"repeat": {"web": float("inf")}}, r"repeat\['web'\] must be a finite number"),
        (sources(0, 1), {"most_epochs": {"web": 1}}, "most_epochs must be left out without weights="),
        (sources(0, 1), {"weights": {"web": 1, "books": 1}, "most_epochs": {"wob": 1}}, "most_epochs=: .*'web'"),
        (
            sources(0, 1),
            {"weights": {"web": 1, "books": 1}, "most_epochs": {"web": 1, "books": 2}},
            "most must be left out for a stream that has a share to the end",
        ),
        (sources(0, 1), {"unit": "samples"}, "unit must be left out without weights="),
        (MemorySource([[[5]]]), {"unit": "samples"}, "unit must be left out without a mixture"),
        (sources(0, 1), {"epoch_tokens": 0}, "epoch_tokens must be at least 1"),
        (sources(0, 1), {"num_canonical_nodes": 10**9}, "num_canonical_nodes must be from 1 to 16384"),
        ({}, {}, "must be a dict of at least one source"),
        (sources(0, 1), {"column": "ids"}, "column= is for Parquet files, and has no meaning for MemorySource"),
        (sources(0, 1), {"seq_len": 5000, "pad_id": None}, "'books' has fewer tokens than a row of 5000"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(given: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        opened(given, **options)


def test_what_counts_in_files_is_refused_and_only_mixtures_change() -> None:
    (loader,) = opened(sources(0, 1))
    assert loader.sources == ("books", "web")
    assert next(iter(loader)).as_dict("source_ids")["source_ids"].shape == (4, 7)
    for call in (
        lambda: loader.current_file_index,
        lambda: loader.my_files,
        lambda: loader.resume_from(1),
        loader.next_batches,
        lambda: loader.granularity,
    ):
        with pytest.raises(ConfigError, match="not its files"):
            call()
    assert loader.total_files == 6
    (alone,) = opened(source(0))
    with pytest.raises(ConfigError, match="only a mixture can be changed"):
        alone.set_weights({"web": 1})
    with pytest.raises(ConfigError, match="only a mixture can be changed"):
        alone.remove("web")
    with pytest.raises(ConfigError, match="source 'code' is unknown; known: books, web"):
        loader.remove("code")
    with pytest.raises(ConfigError, match="name must be another name than those of the sources, got 'web'"):
        loader.add("web", source(2))
