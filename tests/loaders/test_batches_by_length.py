"""Batches by length: every sample once, bounded cost, the same samples in any world, resumed anywhere, and little padding."""

from __future__ import annotations

import json
import pickle
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker import (
    BadSamples,
    Lengths,
    MDSWriter,
    ReadOptions,
    Schedule,
    SkipIds,
    SkipSteps,
    Stream,
    StreamingDataLoader,
    StreamingDataset,
    StreamingShardLoader,
    Where,
    World,
)
from stoker.errors import ConfigError, CorruptDataError, StateError
from stoker.order import DataRank, EpochPosition, NativeOrder, NativeSettings, ShardTable, StreamSource
from stoker.order.by_length import ByLengthOrder, ByLengthPlan
from stoker.types import Ids
from support import files_of

MOST = 300
FITTING = (1, 2, 4)


def lengths_of(samples: int, seed: int = 0, most: int = MOST) -> Ids:
    found: Ids = np.random.default_rng(seed).lognormal(3.5, 0.9, samples).astype(np.int64)
    return np.minimum(found, most)


def order_of(lengths: Ids, shards: int = 7, order: Any = (), **options: Any) -> ByLengthOrder:
    sizes = [part.size for part in np.array_split(lengths, shards)]
    table = ShardTable(np.array(sizes))
    base = NativeOrder([StreamSource.whole("data", table)], NativeSettings(**{"shuffle": "block", **dict(order)}))
    return ByLengthOrder(
        base,
        table,
        lengths,
        Lengths(lengths, **{"max_tokens": MOST, "buckets": 5, "ranks": 4, "window": 100, **options}),
    )


def plan_of(order: ByLengthOrder, rank: int, world: int, epoch: int = 0, position: int = 0) -> ByLengthPlan:
    plan = order.run(EpochPosition(epoch, position), DataRank(rank, world)).plan
    assert isinstance(plan, ByLengthPlan)
    return plan


def steps_of(
    order: ByLengthOrder, world: int, epoch: int = 0, position: int = 0, most: int | None = None
) -> list[list[Ids]]:
    """The ids of each rank's batch, step by step."""
    ranks = []
    for rank in range(world):
        run = order.run(EpochPosition(epoch, position), DataRank(rank, world))
        batches = [batch for some in run.plan.chunks(50) for batch in some]
        assert len(batches) == len(run.plan)
        assert sum(map(len, batches)) == run.plan.samples
        ranks.append([order.table.ids(*run.order.locate(batch)) for batch in batches])
    longest = max(map(len, ranks))
    return [[rank[step] for rank in ranks if step < len(rank)] for step in range(longest)][:most]


def ids_of(steps: Sequence[Sequence[Ids]]) -> list[int]:
    return [int(one) for step in steps for batch in step for one in batch]


# -- the naive model -----------------------------------------------------------------------------------------------------


def naive_groups(order: ByLengthOrder, lengths: Ids, epoch: int) -> list[set[int]]:
    """The groups of all windows: each window sorted by bucket, and cut one after the other."""
    bounds = order.as_dict()["order"]["batch_by"]["buckets"]
    base = order.base.run(EpochPosition(epoch), DataRank())
    ids = order.table.ids(*base.order.locate(np.arange(lengths.size))).tolist()
    count = max(1, len(ids) // order.window)
    begins = [number * order.window for number in range(count)]
    groups: list[set[int]] = []
    for begin, end in zip(begins, [*begins[1:], len(ids)], strict=True):
        rest: list[int] = []
        for bucket, bound in enumerate(bounds):
            low = bounds[bucket - 1] if bucket else -1
            mine = [one for one in ids[begin:end] if low < lengths[one] <= bound]
            rest += mine
            each = order.ranks * (MOST // bound)
            while mine and len(rest) >= each:
                groups.append(set(rest[:each]))
                rest = rest[each:]
        groups += [set(rest)] if rest else []
    return groups


@pytest.mark.parametrize("shuffle", ["none", "block", "global"])
@pytest.mark.parametrize("samples", [3, 96, 100, 401, 777])
def test_groups_are_those_of_the_naive_model(shuffle: str, samples: int) -> None:
    lengths = lengths_of(samples)
    order = order_of(lengths, order={"shuffle": shuffle})
    for epoch in (0, 3):
        run = order.run(EpochPosition(epoch), DataRank())
        windows: Any = run.order
        found, position = [], 0
        while position < samples:
            end, _ = next(windows.groups(position))
            found.append(set(order.table.ids(*run.order.locate(np.arange(position, end))).tolist()))
            position = end
        expected = naive_groups(order, lengths, epoch)
        assert sorted(map(sorted, found)) == sorted(map(sorted, expected))
        assert found != expected or shuffle == "none" or len(found) < 3


def check_step(lengths: Ids, step: Sequence[Ids], most: int = MOST) -> None:
    for batch in step:
        assert len(batch)
        assert int(lengths[batch].max()) * len(batch) <= most or len(batch) == 1


@pytest.mark.parametrize("remainder", ["pad", "uneven", "drop"])
@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 8])
def test_every_sample_comes_once_and_no_batch_costs_more(world: int, remainder: str) -> None:
    for samples in (1, 5, 398, 403):
        lengths = lengths_of(samples)
        order = order_of(lengths, order={"remainder": remainder})
        for epoch in range(2):
            steps = steps_of(order, world, epoch)
            plan = plan_of(order, 0, world, epoch)
            for step in steps:
                check_step(lengths, step)
            times = Counter(ids_of(steps))
            assert all(len(step) == world for step in steps[: plan.full_steps])
            if remainder == "pad":
                assert all(len(step) == world for step in steps)
                assert times.total() - samples == plan.padding < world
                assert len(times) == samples
            elif remainder == "uneven":
                assert sorted(times.elements()) == list(range(samples))
            else:
                assert set(times.values()) <= {1}
                assert samples - times.total() < world
                assert len(steps) == plan.full_steps
                assert plan.position_after(len(steps)) == samples


def test_all_batches_of_a_step_are_of_one_bucket_and_equally_many_samples() -> None:
    lengths = lengths_of(800)
    order = order_of(lengths, order={"remainder": "drop"})
    bounds = np.array(order.as_dict()["order"]["batch_by"]["buckets"])
    for world in FITTING:
        for step in steps_of(order, world):
            assert len({len(batch) for batch in step}) == 1
            bound = bounds[np.searchsorted(bounds, max(int(lengths[batch].max()) for batch in step))]
            assert len(step[0]) * bound <= MOST


def test_worlds_have_the_same_samples_wherever_a_group_ends() -> None:
    order = order_of(lengths_of(800))
    expected = steps_of(order, 4)
    for world in FITTING:
        steps = steps_of(order, world)
        assert len(steps) == len(expected) * 4 // world
        for number, step in enumerate(expected):
            again = steps[number * 4 // world : (number + 1) * 4 // world]
            assert ids_of(again) == ids_of([step])


def test_epochs_differ_and_windows_keep_their_samples() -> None:
    lengths = lengths_of(800)
    order, same = order_of(lengths), order_of(lengths)
    first, second = (ids_of(steps_of(order, 4, epoch)) for epoch in range(2))
    assert first == ids_of(steps_of(same, 4, 0)) == ids_of(steps_of(pickle.loads(pickle.dumps(order)), 4, 0))
    assert first != second
    base = order.base.run(EpochPosition(0), DataRank()).order
    for begin in range(0, 700, 100):
        window = np.arange(begin, begin + 100)
        assert sorted(order.table.ids(*base.locate(window)).tolist()) == sorted(first[begin : begin + 100])


def test_without_shuffling_short_samples_of_a_window_come_first() -> None:
    lengths = lengths_of(400)
    order = order_of(lengths, order={"shuffle": "none"})
    bounds = np.array(order.as_dict()["order"]["batch_by"]["buckets"])
    for begin in range(0, 400, 100):
        found = np.array(ids_of(steps_of(order, 4, position=begin))[:100])
        assert sorted(found.tolist()) == list(range(begin, begin + 100))
        assert (np.diff(np.searchsorted(bounds, lengths[found])) >= 0).mean() > 0.9  # in a group they lie by node


# -- drawn histories -----------------------------------------------------------------------------------------------------


@dataclass
class History:
    """An epoch of one order, begun and resumed in several worlds."""

    order: ByLengthOrder
    lengths: Ids
    most: int

    def run(self, worlds: Sequence[tuple[int, int]]) -> None:
        position, had = 0, list[int]()
        for world, steps in [*worlds, (worlds[0][0], 10**6)]:
            found = steps_of(self.order, world, 1, position, steps)
            whole = steps_of(self.order, world, 1, position)
            assert [ids_of([step]) for step in found] == [ids_of([step]) for step in whole[: len(found)]]
            plan = plan_of(self.order, world - 1, world, 1, position)
            for number, step in enumerate(found):
                check_step(self.lengths, step, self.most)
                assert len(step) == world or number == plan.full_steps
            position = plan.position_after(len(found))
            if len(found) <= plan.full_steps:  # a step goes on where the one before ended, in the same world too
                resumed = plan_of(self.order, 0, world, 1, position)
                assert resumed.full_steps == plan.full_steps - len(found)
            if len(found) > plan.full_steps:
                position = plan.end
            had += ids_of(found)
            if position == plan.end:
                break
        assert sorted(had) == list(range(self.lengths.size))


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 400),
    st.integers(0, 10**6),
    st.integers(1, 9),
    st.integers(1, 120),
    st.sampled_from([40, 100, MOST, 3000]),
    st.sampled_from([None, 1, 3]),
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12)), min_size=1, max_size=5),
)
def test_histories_have_every_sample_once(
    samples: int,
    seed: int,
    ranks: int,
    window: int,
    most: int,
    max_samples: int | None,
    worlds: list[tuple[int, int]],
) -> None:
    lengths = np.minimum(lengths_of(samples, seed), most)
    order = order_of(
        lengths,
        order={"seed": seed, "remainder": "uneven"},
        max_tokens=most,
        ranks=ranks,
        window=window,
        max_samples=max_samples,
    )
    History(order, lengths, most).run(worlds)
    if max_samples is not None:
        assert all(len(batch) <= max_samples for step in steps_of(order, ranks) for batch in step)


@pytest.mark.parametrize("samples", [4, 5, 6, 7, 30, 31])
def test_a_plan_knows_its_number_of_batches_from_each_position(samples: int) -> None:
    """Also inside of a group, from where steps end elsewhere than groups do."""
    order = order_of(lengths_of(samples, most=40), order={"remainder": "uneven"}, max_tokens=40, ranks=2, window=1)
    for position in range(samples):
        for world in (1, 2, 3):
            assert sum(map(len, steps_of(order, world, 0, position))) > 0


def test_workers_take_turns_and_skip_what_was_delivered() -> None:
    order = order_of(lengths_of(777))
    for world in (2, 3):
        plan = plan_of(order, 1, world)
        whole = [batch.tolist() for some in plan.chunks(1) for batch in some]
        for workers in (1, 2, 3, 5):
            for skip in (0, 1, 4):
                for worker in range(workers):
                    some = [batch.tolist() for some in plan.chunks(64, worker, workers, skip) for batch in some]
                    assert some == whole[worker::workers][skip:]


@pytest.mark.parametrize("position", [0, 500_017])
def test_a_resume_divides_the_window_that_it_is_in(position: int) -> None:
    lengths = lengths_of(1_000_000)
    order = order_of(lengths, shards=100, window=1 << 14)
    divided: list[int] = []
    run = order.run(EpochPosition(5, position), DataRank(0, 4))
    base: Any = order._windows[5]._order
    locate = base.locate

    class Counting:
        def locate(self, positions: Ids) -> tuple[Ids, Ids]:
            divided.append(positions.size)
            found: tuple[Ids, Ids] = locate(positions)
            return found

    order._windows[5]._order = Counting()
    assert run.plan
    assert next(run.plan.chunks(500))
    assert run.plan.position_after(3) > position
    assert divided == [1 << 14]
    assert run.plan.padding >= 0  # and the last one, which is up to twice as large
    assert len(divided) <= 3


@pytest.mark.parametrize("shards", [40, 400])
def test_a_cache_of_the_shards_that_are_read_at_once_fetches_each_once(shards: int) -> None:
    order = order_of(lengths_of(100_000), shards=shards, window=4096)
    run = order.run(EpochPosition(1), DataRank())
    found = np.concatenate([run.order.locate(np.concatenate(some))[0] for some in run.plan.chunks(1 << 16)])
    held, fetched = OrderedDict[int, None](), 0
    for shard in found.tolist():
        fetched += shard not in held
        held[shard] = None
        held.move_to_end(shard)
        if len(held) > order.shards_at_once:
            held.popitem(last=False)
    assert order.shards_at_once < shards
    assert fetched <= 1.1 * shards


# -- padding -------------------------------------------------------------------------------------------------------------


def dynamic_bucketing(lengths: Ids, bounds: Ids, most: int, buffer: int) -> list[list[int]]:
    """Batches of one reader as a sampler with a buffer makes them: from a full bucket drawn by lot, filled up."""
    rng, waiting = np.random.default_rng(0), [deque[int]() for _ in bounds]
    coming, held, batches = deque(lengths.tolist()), 0, []
    while coming or held:
        while coming and held < buffer:
            waiting[int(np.searchsorted(bounds, coming[0]))].append(coming.popleft())
            held += 1
        full = [number for number, one in enumerate(waiting) if len(one) * bounds[number] >= most] or [
            number for number, one in enumerate(waiting) if one
        ]
        queue, batch = waiting[int(rng.choice(full))], list[int]()
        while queue and max(*batch, queue[0], 0) * (len(batch) + 1) <= most:
            batch.append(queue.popleft())
        held -= len(batch)
        batches.append(batch)
    return batches


def test_padding_is_that_of_dynamic_bucketing_and_costs_of_ranks_are_alike() -> None:
    most, world = 4000, 8
    lengths = lengths_of(300_000, most=2000)
    order = order_of(lengths, shards=60, max_tokens=most, buckets=12, ranks=world, window=None)
    steps = steps_of(order, world)
    costs = np.array([[int(lengths[batch].max()) * len(batch) for batch in step] for step in steps])
    ours = lengths.sum() / costs.sum()
    bounds = np.array(order.as_dict()["order"]["batch_by"]["buckets"])
    dynamic = [max(batch) * len(batch) for batch in dynamic_bucketing(lengths, bounds, most, 5000)]
    theirs = lengths.sum() / sum(dynamic)
    print(f"useful: {ours:.3f}, dynamic bucketing {theirs:.3f}; steps {len(steps)} and {len(dynamic) / world:.0f}")
    spread = costs.max(axis=1) / costs.mean(axis=1)
    print(f"largest cost of a rank, by the mean: {spread.mean():.3f}; batches are {costs.mean() / most:.3f} full")
    assert ours > theirs - 0.03
    assert len(steps) < 1.05 * len(dynamic) / world
    assert spread.mean() < 1.05
    assert np.mean([len({len(batch) for batch in step}) == 1 for step in steps]) > 0.99


# -- datasets ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("by_length")
    lengths = lengths_of(500)
    with MDSWriter({"id": "int", "n": "int", "text": "str"}, root, size_limit="4kb") as out:
        out.write_batch({"id": np.arange(500), "n": lengths, "text": ["x" * int(n) for n in lengths]})
    return root


def by_length(lengths: Any = "n", **options: Any) -> Lengths:
    return Lengths(lengths, **{"max_tokens": MOST, "buckets": 5, "ranks": 4, "window": 100, **options})


def opened(folder: Path, rank: int = 0, world: int = 1, lengths: Any = "n", **options: Any) -> StreamingDataset:
    return StreamingDataset(
        folder,
        **{"batch_by": by_length(lengths), "shuffle": True, "world": World(rank, world), **options},
    )


def batches_of(dataset: Any) -> list[dict[str, Any]]:
    return list(dataset.batches())


def all_batches(folder: Path, world: int = 1, **options: Any) -> list[list[list[int]]]:
    return [
        [batch["id"].tolist() for batch in batches_of(opened(folder, rank, world, **options))] for rank in range(world)
    ]


def test_batches_of_a_dataset_cost_no_more_than_they_may(folder: Path) -> None:
    dataset = opened(folder)
    seen = list[int]()
    for batch in batches_of(dataset):
        assert batch["n"].max() * len(batch["n"]) <= MOST
        assert [len(text) for text in batch["text"]] == batch["n"].tolist()
        seen += batch["id"].tolist()
    assert sorted(seen) == list(range(500))
    assert len(dataset) == 500
    assert dataset.batch_size == 1
    step = dataset.ids_of(3, epoch=0)
    assert step.tolist() == all_batches(folder)[0][3]


def test_a_state_resumes_in_any_world(folder: Path) -> None:
    options: dict[str, Any] = {"remainder": "uneven"}
    state, had = None, list[int]()
    for world, steps in ((4, 5), (1, 3), (3, 4), (8, 2), (2, 10**6)):
        states = []
        for rank in range(world):
            dataset = opened(folder, rank, world, **options)
            if state is not None:
                dataset.load_state_dict(state)
            taken: Any = dataset.batches()
            for number, batch in enumerate(taken):
                had += batch["id"].tolist()
                if number + 1 == steps:
                    states.append(json.dumps(dataset.state_dict()))
                    break
        if states:
            assert len(states) == world
            assert len(set(states)) == 1
            state = json.loads(states[0])
    assert sorted(had) == list(range(500))


def test_an_epoch_follows_another(folder: Path) -> None:
    dataset = opened(folder)
    epochs = [[batch["id"].tolist() for batch in batches_of(dataset)] for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert dataset.state_dict()["epoch"] == 2
    again = opened(folder)
    again.set_epoch(1)
    assert [batch["id"].tolist() for batch in batches_of(again)] == epochs[1]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.processes)])
def test_a_loader_gives_the_same_batches_and_states(folder: Path, workers: int) -> None:
    for rank in range(2):
        expected = all_batches(folder, 2)[rank]
        with StreamingDataLoader(opened(folder, rank, 2), num_workers=workers) as loader:
            assert len(loader) == len(expected)
            found, state = list[Any](), None
            for batch in loader:
                found.append(batch["id"].tolist())
                if len(found) == 7:
                    state = loader.state_dict()
                    break
            with StreamingDataLoader(opened(folder, rank, 2), num_workers=workers) as resumed:
                assert state is not None
                resumed.load_state_dict(state)
                found += [batch["id"].tolist() for batch in resumed]
        assert found == expected


def test_batch_map_gets_each_batch_whole(folder: Path) -> None:
    def pad(batch: dict[str, Any]) -> dict[str, Any]:
        longest = int(batch["n"].max())
        return {"id": batch["id"], "text": np.array([list(text.ljust(longest)) for text in batch["text"]])}

    found = batches_of(opened(folder).batch_map(pad))
    assert [batch["id"].tolist() for batch in found] == all_batches(folder)[0]
    assert all(batch["text"].size <= MOST for batch in found)


def test_lengths_are_read_of_columns_once_or_given(folder: Path, tmp_path: Path) -> None:
    lengths = lengths_of(500)
    np.save(tmp_path / "lengths.npy", lengths)
    expected = all_batches(folder)
    calls = deque[int]()  # of which a function's hash has the type alone

    def count(texts: list[str]) -> Any:
        calls.append(len(texts))
        return np.array(list(map(len, texts)))

    function = by_length(count, columns="text")
    for one in ("text", lengths, lengths.tolist(), tmp_path / "lengths.npy", str(tmp_path / "lengths.npy")):
        assert all_batches(folder, lengths=one) == expected
    assert all_batches(folder, batch_by=function) == expected
    assert sum(calls) == 500
    before = files_of(folder)
    assert all_batches(folder, batch_by=by_length(count, columns=["text"])) == expected
    assert sum(calls) == 500
    assert files_of(folder) == before
    assert all_batches(folder, columns=["id"]) == expected


def test_a_mixture_of_streams_and_a_subset(folder: Path, tmp_path: Path) -> None:
    more = lengths_of(300, 1)
    with MDSWriter({"id": "int", "n": "int", "text": "str"}, tmp_path, size_limit="4kb") as out:
        out.write_batch({"id": 1000 + np.arange(300), "n": more, "text": ["y"] * 300})
    both = [Stream(local=str(folder)), Stream(local=str(tmp_path))]
    assert StreamingDataset(streams=both).stream_names == (folder.name, tmp_path.name)

    def batches(**options: Any) -> list[Any]:
        dataset = StreamingDataset(streams=both, batch_by=by_length(), shuffle=True, **options)
        return batches_of(dataset)

    found = [one for batch in batches() for one in batch["id"].tolist()]
    assert sorted(found) == [*range(500), *range(1000, 1300)]
    assert all(batch["n"].max() * len(batch["n"]) <= MOST for batch in batches())
    short = batches(subset=Where("n", "<=", 60))
    every = np.concatenate([np.arange(500), 1000 + np.arange(300)])[np.concatenate([lengths_of(500), more]) <= 60]
    assert sorted(one for batch in short for one in batch["id"].tolist()) == every.tolist()
    few = Schedule(((0, ((str(folder.name), 1.0), (str(tmp_path.name), 3.0))),))
    drawn = batches(sampling_method=few, epoch_size=200)
    assert sum(one >= 1000 for batch in drawn for one in batch["id"].tolist()) == 150
    assert sum(len(batch["id"]) for batch in drawn) == 200
    with pytest.raises(ConfigError, match="longer than max_tokens=60"):
        StreamingDataset(streams=both, batch_by=by_length(max_tokens=60))
    cut = StreamingDataset(streams=both, batch_by=by_length(max_tokens=60), subset=Where("n", "<=", 60))
    assert all(batch["n"].max() * len(batch["n"]) <= 60 for batch in batches_of(cut))


def test_bad_samples_leave_batches_shorter(folder: Path) -> None:
    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] % 50 == 7:
            raise ValueError("no")
        return sample

    expected = [[one for one in batch if one % 50 != 7] for batch in all_batches(folder)[0]]
    found = all_batches(folder, transform=fail, on_bad_sample=BadSamples("skip"))
    assert found == [expected]


# -- what is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 4}, "batch_size= and batch_by="),
        ({"on_bad_sample": "replace"}, "on_bad_sample='skip'"),
        ({"read": ReadOptions(quarantine=[SkipIds([1])])}, "subset=SkipIds"),
        ({"read": ReadOptions(quarantine=[SkipSteps(1, 2, epoch=0, global_batch=3)])}, "subset=SkipIds"),
        ({"partition_algo": "round_robin"}, "partition_algo='elastic'"),
        ({"shuffle_algo": "py1e"}, "batch_by= cannot be combined with"),
        ({"batch_by": Lengths("missing", max_tokens=MOST)}, "no column 'missing'"),
        ({"batch_by": Lengths("n", max_tokens=50)}, "longer than max_tokens=50"),
        ({"batch_by": Lengths("n", max_tokens=MOST, buckets=[10, 100])}, "the longest sample, 300"),
        (
            {"batch_by": Lengths(range(5), max_tokens=MOST)},
            "lengths of 500 samples are 500 integers, found int64 of shape",
        ),
        ({"batch_by": Lengths(np.full(500, -1), max_tokens=MOST)}, "lengths are from 0"),
        ({"batch_by": Lengths(np.full(500, 0.5), max_tokens=MOST)}, "500 integers, found float64"),
        ({"batch_by": Lengths("/nowhere/lengths.npy", max_tokens=MOST)}, "can not be read as a file of lengths"),
        ({"batch_by": Lengths(lambda n: n[:1], columns="n", max_tokens=MOST)}, "found int64 of shape"),
    ],
)
def test_what_does_not_go_together_is_refused(folder: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        opened(folder, **options)


@pytest.mark.parametrize("batching", ["stratified", "per_stream", "device_per_stream"])
def test_other_batching_methods_are_refused(folder: Path, batching: str) -> None:
    both = [Stream(local=str(folder)), Stream(local=str(folder), subset=Where("n", ">", 20))]
    with pytest.raises(ConfigError, match="batching_method='random'"):
        StreamingDataset(streams=both, batch_by=by_length(), batching_method=batching)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"buckets": 0}, "buckets=0"),
        ({"buckets": [5, 5]}, "rising"),
        ({"buckets": 1000}, "1 to 256"),
        ({"ranks": 0}, "ranks must be at least 1"),
        ({"columns": "n"}, "give both, or neither"),
        ({"window": 0}, "window must be at least 1"),
    ],
)
def test_lengths_check_their_numbers(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Lengths("n", **{"max_tokens": 10, **arguments})


def test_what_takes_samples_one_by_one_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"batches\(\) or a StreamingDataLoader"):
        next(iter(opened(folder)))
    with pytest.raises(ConfigError, match="leave batch_size out"):
        next(opened(folder).batches(8))
    with pytest.raises(ConfigError, match="batch_size=8 of the StreamingDataLoader has no meaning, as batch_by="):
        StreamingDataLoader(opened(folder), batch_size=8)
    with pytest.raises(ConfigError, match="collate_fn"):
        StreamingDataLoader(opened(folder), collate_fn=list)
    with pytest.raises(ConfigError, match="StreamingShardLoader"):
        StreamingShardLoader(opened(folder))


def test_a_state_of_other_lengths_or_settings_is_refused(folder: Path) -> None:
    dataset = opened(folder)
    next(dataset.batches())
    state = dataset.state_dict()
    for other in (by_length(max_tokens=301), by_length(lengths_of(500)[::-1]), by_length(ranks=8)):
        with pytest.raises(StateError, match="batch_by"):
            opened(folder, batch_by=other).load_state_dict(state)
    with pytest.raises(StateError, match="batch_by"):
        StreamingDataset(folder, shuffle=True, batch_size=4).load_state_dict(state)


def test_a_world_that_does_not_fit_is_told(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    next(opened(folder, 0, 4).batches())
    assert "is not a multiple of the" not in caplog.text
    next(opened(folder, 0, 3).batches())
    assert "Lengths(ranks=4) is not a multiple of the 3 ranks" in caplog.text


def test_a_column_without_lengths_is_refused(tmp_path: Path) -> None:
    with MDSWriter({"f": "float64", "json": "json"}, tmp_path) as out:
        for number in range(10):
            out.write({"f": 0.5, "json": None if number == 7 else [1, 2]})
    for column, said in (("f", "found float64"), ("json", "no length")):
        with pytest.raises(ConfigError, match=said):
            StreamingDataset(tmp_path, batch_by=Lengths(column, max_tokens=10))


def test_samples_that_can_not_be_read_are_an_error_where_they_come(tmp_path: Path) -> None:
    with MDSWriter({"id": "int", "json": "json"}, tmp_path, hashes=[]) as out:
        for number in range(10):
            out.write({"id": number, "json": [f"broken{number}"] * 3})
    shard = tmp_path / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes().replace(b'["broken7"', b'!"broken7"'))
    dataset = StreamingDataset(tmp_path, batch_by=Lengths("json", max_tokens=10))
    with pytest.raises(CorruptDataError):
        list(dataset.batches())
    left = StreamingDataset(tmp_path, batch_by=Lengths("json", max_tokens=10), on_bad_sample="skip")
    assert sorted(one for batch in batches_of(left) for one in batch["id"].tolist()) == [0, 1, 2, 3, 4, 5, 6, 8, 9]
