"""Sample orders as a whole: every partition, shuffle, batching method, weight, subset and remainder with every other.

What is promised is checked on the samples themselves, rank by rank and epoch by epoch, not on positions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product, zip_longest
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker.order.global_batches import Remainder
from stoker.order.mixture.schedule import Schedule
from stoker.order.mixture.weights import StreamWeight
from stoker.order.native import NativeOrder
from stoker.order.number_sets import Listed, Without
from stoker.order.partition import Elastic, Partition
from stoker.order.partition_strategies import Contiguous, HashBased, RangeBased, RoundRobin, Stratified
from stoker.order.sample_order import DataRank, EpochPosition, EpochStart, Plan, Run
from stoker.order.selection import Everything, Selection, Split, dense_starts
from stoker.order.settings import NativeSettings, StreamSource
from stoker.order.shuffle.shard_table import ShardTable
from stoker.order.shuffle.shuffle import SHUFFLES
from stoker.types import Ids
from support import batches_of_workers

METHODS: Final = ("random", "stratified", "per_stream", "device_per_stream")
REMAINDERS: Final[tuple[Remainder, ...]] = ("pad", "drop", "uneven")
PLAIN: Final = StreamWeight()


# -- what there is -----------------------------------------------------------------------------------------------------


def selection_of(kind: str, table: ShardTable, seed: int = 0) -> Selection:
    """Some samples of a table, chosen in one of the ways that there are."""
    if kind == "split":
        return Split(table, 0.2, 0.9, seed)
    ids = np.arange(table.total, dtype=np.int64)
    if kind == "listed":
        return Listed(Everything(table), ids[ids % 4 != 1])
    if kind == "without":
        return Without(Split(table, 0, 0.8, seed), ids[::5])
    return Everything(table)


def source_of(
    number: int, sizes: Sequence[int], weight: StreamWeight = PLAIN, kind: str = "everything"
) -> StreamSource:
    """A stream of shards of these sizes; its labels are of five classes, or of 64 different values to hash."""
    table = ShardTable(np.array(sizes, dtype=np.int64))
    labels = np.random.default_rng(number).integers(0, 64, table.total)
    return StreamSource(f"s{number}", table, selection_of(kind, table, number), weight, f"data {number}", labels)


def chosen_ids(table: ShardTable, selection: Selection) -> Ids:
    """Ids of a selection's samples."""
    starts = dense_starts(selection)
    places = np.arange(starts[-1])
    shards = np.searchsorted(starts, places, side="right") - 1
    return np.sort(table.starts[shards] + selection.rows(shards, places - starts[shards]))


# -- reading -----------------------------------------------------------------------------------------------------------


def batches_of(plan: Plan, workers: int = 1, samples: int = 13) -> list[Ids]:
    return batches_of_workers(plan, workers, samples)


@dataclass(frozen=True)
class Reader:
    """Reads a sample order; samples are named by ids that count through all streams."""

    sample_order: NativeOrder

    @property
    def starts(self) -> Ids:
        """Id of each shard's first sample."""
        sizes = np.concatenate([source.table.sizes for source in self.sample_order.sources])
        starts: Ids = np.cumsum(sizes) - sizes
        return starts

    def firsts(self) -> list[int]:
        """Id of each stream's first sample, and the number of all."""
        firsts: list[int] = np.cumsum([0, *(source.table.total for source in self.sample_order.sources)]).tolist()
        return firsts

    def run(self, data_rank: DataRank, epoch: int = 0, position: int = 0, start: EpochStart | None = None) -> Run:
        """What one rank reads."""
        return self.sample_order.run(EpochPosition(epoch, position, start=start), data_rank)

    def ids(self, run: Run, places: Ids) -> list[int]:
        """The samples at places."""
        shards, rows = run.order.locate(places)
        sizes = np.concatenate([source.table.sizes for source in self.sample_order.sources])
        assert ((rows >= 0) & (rows < sizes[shards])).all()
        ids: list[int] = (self.starts[shards] + rows).tolist()
        return ids

    def rank(self, run: Run) -> list[list[int]]:
        """All batches of a rank."""
        batches = batches_of(run.plan)
        if not batches:
            return []
        ids = self.ids(run, np.concatenate(batches))
        ends = np.cumsum([0, *map(len, batches)]).tolist()
        return [ids[first:end] for first, end in pairwise(ends)]

    def world(self, world: int, batch: int, epoch: int = 0, position: int = 0) -> list[list[list[int]]]:
        """All batches of each rank of a world."""
        return [self.rank(self.run(DataRank(rank, world, 1, batch), epoch, position)) for rank in range(world)]


def flat(ranks: list[list[list[int]]]) -> list[int]:
    """All samples of all ranks."""
    return [sample for batches in ranks for batch in batches for sample in batch]


# -- what is promised --------------------------------------------------------------------------------------------------


def check_plan(plan: Plan, start: int) -> None:
    """What a plan says of itself is so, and loader workers share it."""
    batches = batches_of(plan)
    lengths = [batch.size for batch in batches]
    assert len(plan) == len(batches)
    assert plan.samples == sum(lengths)
    assert sum(length == plan.batch_size for length in lengths) in (plan.full_batches, plan.full_batches + 1)
    assert all(length == plan.batch_size for length in lengths[: plan.full_batches])
    assert all(0 < length <= plan.batch_size for length in lengths)
    assert len(lengths) - plan.full_batches in (0, 1)
    for workers in (2, 3):
        for ours, theirs in zip(batches_of(plan, workers, 5), batches, strict=True):
            assert np.array_equal(ours, theirs)
        for worker, skip in product(range(workers), (1, 2)):
            rest = [batch for chunk in plan.chunks(9, worker, workers, skip) for batch in chunk]
            for ours, theirs in zip(rest, batches[worker + skip * workers :: workers], strict=True):
                assert np.array_equal(ours, theirs)
    reached = [plan.position_after(steps) for steps in range(len(plan) + 2)]
    assert reached[0] == start or reached[0] == plan.end
    assert reached == sorted(reached)
    assert reached[-1] <= plan.end


def check_epoch(reader: Reader, world: int, batch: int, epoch: int) -> Counter[int]:
    """An epoch of all ranks is as its plans and its remainder say; returns how often each sample counts in it."""
    sample_order = reader.sample_order
    runs = [reader.run(DataRank(rank, world, 1, batch), epoch) for rank in range(world)]
    ranks = [reader.rank(run) for run in runs]
    for run in runs:
        if not epoch and run.plan.rank in (0, world - 1):
            check_plan(run.plan, 0)
        assert (run.plan.batch_size, run.plan.world_size) == (batch, world)
        assert run.plan.end == sample_order.epoch_size
    assert max(run.plan.position_after(len(run.plan)) for run in runs) == sample_order.epoch_size
    places = [np.concatenate([np.zeros(0, np.int64), *batches_of(run.plan)]).tolist() for run in runs]
    distinct = {place for rank in places for place in rank}
    steps = {len(run.plan) for run in runs}
    padding = {run.plan.padding for run in runs}
    remainder = sample_order.settings.remainder
    assert sum(map(len, places)) - len(distinct) == padding.pop()
    assert not padding
    if remainder != "drop":
        assert len(distinct) == sample_order.epoch_size
    if remainder != "uneven":
        assert len(steps) == 1
    if remainder == "drop":
        assert all(len(drawn) == batch for rank in ranks for drawn in rank)
    counted: Counter[int] = Counter()
    for run, rank in zip(runs, places, strict=True):
        fresh = [place for place in dict.fromkeys(rank) if place in distinct]
        distinct.difference_update(fresh)
        counted.update(reader.ids(run, np.array(fresh, dtype=np.int64)))
    return counted


def spread(counts: Counter[int], ids: Ids, times: int) -> None:
    """Each of the samples came as often as any other, or once more, and together they came ``times`` times."""
    least, more = divmod(times, ids.size) if ids.size else (0, 0)
    found = Counter(counts[sample] for sample in ids.tolist())
    expected = Counter({least: ids.size - more, least + 1: more})
    assert found == +expected, (found, expected)


def check_course(sample_order: NativeOrder, world: int, batch: int, epochs: int = 3) -> None:
    """Epochs go on in each stream (or each rank's part of it), pass after pass, and have of each what weights say."""
    reader = Reader(sample_order)
    firsts = reader.firsts()
    counts = [sample_order.as_dict()["streams"][source.name]["choose"] for source in sample_order.sources]
    assert sum(counts) == sample_order.epoch_size
    fixed = sample_order.settings.sampling_method == "fixed"
    before: Counter[int] = Counter()
    first_epoch: Counter[int] | None = None
    for epoch in range(epochs):
        counted = check_epoch(reader, world, batch, epoch)
        if sample_order.settings.remainder == "drop":
            continue
        first_epoch = first_epoch or counted
        if fixed:
            assert counted == first_epoch
        before += counted
        for number, source in enumerate(sample_order.sources):
            ids = chosen_ids(source.table, source.selection) + firsts[number]
            its = Counter({sample: n for sample, n in before.items() if firsts[number] <= sample < firsts[number + 1]})
            assert set(its) <= set(ids.tolist())
            assert its.total() == counts[number] * (epoch + 1)
            if not sample_order.settings.partition.static:
                if not fixed:
                    spread(its, ids, counts[number] * (epoch + 1))
                continue
            if fixed and counts[number] % ids.size:
                continue  # only the sample order knows the parts of drawn samples
            for rank in range(world):
                part = sample_order.settings.partition.part(source.table, source.selection, rank, world, source.labels)
                own = chosen_ids(source.table, part) + firsts[number]
                spread(its, own, sum(its[sample] for sample in own.tolist()))


# -- every combination -------------------------------------------------------------------------------------------------

STREAMS: Final = (
    ([7, 0, 12, 5, 9, 1, 8], StreamWeight(proportion=0.5), "everything"),
    ([20, 3], StreamWeight(proportion=0.2), "split"),
    ([0, 11, 6, 6], StreamWeight(proportion=0.3), "listed"),
)
"""Streams whose shares of an epoch are in turn more than, less than, and about all of them."""


def partition_of(kind: str, total: int) -> Partition:
    """A partition of each kind, of streams of equally many samples."""
    kinds: dict[str, Partition] = {
        "elastic": Elastic(),
        "round_robin": RoundRobin(),
        "contiguous": Contiguous(),
        "hash": HashBased(12, 3),
        "hash_key": HashBased(200, 3, "user"),
        "range": RangeBased([(0, 1), (1, total // 3), (total // 3, total)]),
        "stratified": Stratified("label"),
    }
    return kinds[kind]


PARTITIONS: Final = ("elastic", "round_robin", "contiguous", "hash", "hash_key", "range", "stratified")


SAMPLINGS: Final = ("balanced", "fixed")
# A third of all combinations, with all those of any three settings among them.
COMBINATIONS: Final = [
    (PARTITIONS[p], sorted(SHUFFLES)[s], METHODS[b], SAMPLINGS[g], REMAINDERS[r])
    for p, s, b, g, r in np.ndindex(*map(len, (PARTITIONS, SHUFFLES, METHODS, SAMPLINGS, REMAINDERS)))
    if (p + s + b + g + r) % 3 == 0
]


@pytest.mark.parametrize(("partition", "shuffle", "batching", "sampling", "remainder"), COMBINATIONS)
def test_each_combination(partition: str, shuffle: str, batching: str, sampling: str, remainder: Remainder) -> None:
    # Ranges are of one number of samples, so there the streams are equally large and all of each is wanted.
    if partition == "range":
        sources = [source_of(k, sizes) for k, sizes in enumerate([[9, 0, 21], [30], [6, 6, 6, 6, 6]])]
        if sampling == "fixed":
            sources = [replace(source, weight=StreamWeight(repeat=2)) for source in sources]
    else:
        sources = [source_of(k, *stream) for k, stream in enumerate(STREAMS)]
    sample_order = NativeOrder(
        sources,
        NativeSettings(
            shuffle=shuffle,
            epoch_size=None if partition == "range" else 103,
            num_canonical_nodes=2 if shuffle != "none" else None,
            partition=partition_of(partition, 30),
            batching_method=batching,
            sampling_method=sampling,
            remainder=remainder,
        ),
    )
    check_course(sample_order, world=3, batch=4, epochs=2)


# -- any sample order --------------------------------------------------------------------------------------------------------

SIZES: Final = st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(lambda sizes: sum(sizes) >= 8)


@st.composite
def weights_of(draw: st.DrawFn, streams: int) -> list[StreamWeight]:
    """Weights that go together."""
    if draw(st.booleans()):
        parts = draw(st.lists(st.sampled_from([0, 0.1, 1, 2.5]), min_size=streams, max_size=streams).filter(any))
        return [StreamWeight(proportion=part) for part in parts]
    each = st.one_of(
        st.just(StreamWeight()),
        st.builds(StreamWeight, repeat=st.sampled_from([0.3, 1, 1.5, 2.2])),
        st.builds(StreamWeight, choose=st.integers(8, 70)),
    )
    return draw(st.lists(each, min_size=streams, max_size=streams))


@st.composite
def sample_orders(draw: st.DrawFn, *, static: bool | None = None) -> NativeOrder:
    """Any sample order; its parts may be those of up to four ranks."""
    streams = draw(st.integers(1, 4))
    weights = draw(weights_of(streams))
    sources = [
        source_of(number, draw(SIZES), weight, draw(st.sampled_from(["everything", "split", "listed", "without"])))
        for number, weight in enumerate(weights)
    ]
    sampling = draw(st.sampled_from(["balanced", "balanced", "fixed"]))
    partition: Partition = Elastic()
    if static or (static is None and draw(st.booleans())):
        # What parts need: a sample each at the least, which a few drawn ones may not have. See below.
        partition = draw(st.sampled_from([RoundRobin(), Contiguous(), HashBased(7, 1), Stratified("label")]))
    sized = all(weight.proportion is not None or weight == StreamWeight() for weight in weights)
    return NativeOrder(
        sources,
        NativeSettings(
            shuffle=draw(st.sampled_from(sorted(SHUFFLES))),
            seed=draw(st.integers(0, 99)),
            num_canonical_nodes=draw(st.sampled_from([None, 1, 2, 3, 8])),
            block_size=draw(st.sampled_from([None, 1, 5, 64])),
            epoch_size=draw(st.one_of(st.none(), st.integers(20, 150))) if sized else None,
            partition=partition,
            batching_method=draw(st.sampled_from(METHODS)),
            sampling_method=sampling,
            sampling_granularity=draw(st.sampled_from([1, 3])),
            remainder=draw(st.sampled_from(REMAINDERS)),
        ),
    )


def fits(sample_order: NativeOrder, world: int) -> bool:
    """Whether all parts of all tracks have samples, in the first epochs."""
    if not sample_order.settings.partition.static:
        return True
    try:
        for epoch in range(4):  # which are not alike
            sample_order.run(EpochPosition(epoch), DataRank(0, world, 1, 1))
        parts = sample_order._static_epochs.counts(0, world)[0].sum(axis=0)
    except ConfigError:
        return False
    return sample_order.settings.remainder != "pad" or bool(parts.all())


@given(sample_order=sample_orders(), world=st.integers(1, 4), batch=st.integers(1, 6))
@settings(deadline=None, max_examples=70, suppress_health_check=[HealthCheck.too_slow])
def test_any_order_delivers_what_its_weights_and_remainder_say(
    sample_order: NativeOrder, world: int, batch: int
) -> None:
    if fits(sample_order, world):
        check_course(sample_order, world, batch)


@given(
    sample_order=sample_orders(static=False),
    world=st.integers(2, 4),
    batch=st.integers(1, 4),
    epoch=st.integers(0, 3),
)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_worlds_of_one_global_batch_see_the_same_batches(
    sample_order: NativeOrder, world: int, batch: int, epoch: int
) -> None:
    if sample_order.settings.batching_method == "device_per_stream":
        sample_order = NativeOrder(sample_order.sources, replace(sample_order.settings, batching_method="random"))
    reader = Reader(sample_order)
    ranks = reader.world(world, batch, epoch)
    alone = reader.world(1, batch * world, epoch)[0]
    together = [[sample for part in step if part for sample in part] for step in zip_longest(*ranks)]
    if sample_order.settings.remainder == "pad" and together and len(together[-1]) > len(alone[-1]):
        assert set(together.pop()) == set(alone.pop())
    assert together == alone


@given(sample_order=sample_orders(), world=st.integers(1, 3), batch=st.integers(1, 4), steps=st.integers(0, 12))
@settings(deadline=None, max_examples=70, suppress_health_check=[HealthCheck.too_slow])
def test_a_stopped_run_continues_with_the_very_batches_that_were_left(
    sample_order: NativeOrder, world: int, batch: int, steps: int
) -> None:
    if not fits(sample_order, world):
        return
    reader = Reader(sample_order)
    for rank in range(world):
        data_rank = DataRank(rank, world, 1, batch)
        whole = reader.run(data_rank, 1)
        position = whole.plan.position_after(steps)
        left = reader.run(data_rank, 1, position, sample_order.epoch_start(EpochPosition(1), data_rank))
        if sample_order.settings.remainder != "pad":  # what pads the end depends on where a run began
            assert reader.rank(left) == reader.rank(whole)[steps:]
        full = whole.plan.full_batches
        assert reader.rank(left)[: max(0, full - steps)] == reader.rank(whole)[steps:full]
        check_plan(left.plan, position)


# -- what can not be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": "random"}, "shuffle algorithm 'random' is unknown; known: none, block, shard, global"),
        (
            {"batching_method": "x"},
            "batching_method 'x' is unknown; known: random, stratified, per_stream",
        ),
        ({"sampling_method": "x"}, "sampling_method 'x' is unknown; known: balanced, fixed"),
        ({"remainder": "x"}, "remainder 'x' is unknown; known: pad, drop, uneven"),
        ({"num_canonical_nodes": 0}, "num_canonical_nodes must be at least 1, got 0"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"epoch_size": -1}, "epoch_size must be at least 0, got -1"),
        ({"sampling_granularity": 0}, "sampling_granularity must be at least 1, got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NativeSettings(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling_method": "fixed"}, "a schedule goes with sampling_method balanced, not fixed"),
        (
            {"batching_method": "per_stream"},
            "a schedule goes with batching_method random or stratified, not per_stream",
        ),
        ({"partition": RoundRobin()}, "a schedule goes with the elastic partition, not round_robin"),
    ],
)
def test_what_a_schedule_does_not_go_with_is_refused(options: dict[str, Any], message: str) -> None:
    schedule = Schedule.parse({0: {"s0": 1, "s1": 2}})
    with pytest.raises(ConfigError, match=message):
        NativeSettings(schedule=schedule, **options)


def test_streams_that_do_not_go_together_are_refused() -> None:
    plain, empty = source_of(0, [9]), source_of(1, [0, 0])
    weighted = source_of(1, [9], StreamWeight(proportion=1))
    schedule = Schedule.parse({0: {"s0": 1, "s1": 2}})
    with pytest.raises(ConfigError, match="stream 's1' has no samples"):
        NativeOrder([plain, empty], NativeSettings())
    with pytest.raises(ConfigError, match="an epoch of 5 samples was asked of a dataset that has none"):
        NativeOrder([empty], NativeSettings(epoch_size=5))
    with pytest.raises(ConfigError, match="give streams no proportion"):
        NativeOrder([plain, weighted], NativeSettings(schedule=schedule))
    with pytest.raises(ConfigError, match="give every stream a proportion, or none"):
        NativeOrder([plain, weighted], NativeSettings())
    with pytest.raises(ConfigError, match="lack 's2'"):
        NativeOrder([plain, source_of(1, [9]), source_of(2, [9])], NativeSettings(schedule=schedule))


def test_a_dataset_without_samples_is_an_epoch_without_batches() -> None:
    for options in ({}, {"shuffle": "block"}, {"epoch_size": 0}):
        sample_order = NativeOrder([source_of(0, [0, 0])], NativeSettings(**options))
        assert Reader(sample_order).world(2, 3) == [[], []]
        assert sample_order.consumed(EpochPosition(0)) == {}
    assert Reader(NativeOrder([source_of(0, [5])], NativeSettings(epoch_size=0))).world(2, 3) == [[], []]


def test_too_few_samples_for_the_ranks_say_of_which_stream() -> None:
    sources = [source_of(0, [90]), source_of(1, [2])]
    sample_order = NativeOrder(sources, NativeSettings(partition=RoundRobin()))
    with pytest.raises(ConfigError, match=r"stream 's1': .*2 samples can not be divided among 3 ranks"):
        sample_order.run(EpochPosition(0), DataRank(0, 3))
    drawn = NativeOrder(
        [source_of(0, [90], StreamWeight(choose=91)), source_of(1, [9])],
        NativeSettings(partition=RoundRobin(), sampling_method="fixed"),
    )
    with pytest.raises(
        ConfigError, match=r"stream 's0', 1 samples drawn of it: .*1 samples can not be divided among 3"
    ):
        drawn.run(EpochPosition(0), DataRank(0, 3))


def test_padding_a_rank_without_samples_is_refused_by_all_ranks_alike() -> None:
    sample_order = NativeOrder([source_of(0, [30])], NativeSettings(partition=RoundRobin(), epoch_size=2))
    for rank in range(4):
        with pytest.raises(ConfigError, match="without samples"):
            sample_order.run(EpochPosition(0), DataRank(rank, 4))


@pytest.mark.parametrize("partition", [Elastic(), RoundRobin()])
def test_an_epoch_in_units_is_finished_as_it_was_begun(partition: Partition) -> None:
    sources = [source_of(0, [40]), source_of(1, [40])]
    device = NativeOrder(sources, NativeSettings(batching_method="device_per_stream", partition=partition))
    start = device.epoch_start(EpochPosition(0), DataRank(0, 2, 1, 4))
    with pytest.raises(ConfigError, match="begun with batches of 4 samples of one stream; resume it with batch_size=4"):
        device.run(EpochPosition(0, 8, start=start), DataRank(0, 2, 1, 2))
    # The next epoch may be begun otherwise.
    device.run(EpochPosition(1, start=start), DataRank(0, 2, 1, 2))
    if partition == Elastic():
        together = NativeOrder(sources, NativeSettings(batching_method="per_stream"))
        with pytest.raises(ConfigError, match="begun with global batches of 8 samples of one stream, here they have 6"):
            together.run(EpochPosition(0, 8, start=start), DataRank(0, 3, 1, 2))
        together.run(EpochPosition(0, 8, start=start), DataRank(0, 1, 1, 8))


@pytest.mark.parametrize("seed", [-1, -(2**70), 2**80, 0])
def test_any_integer_is_a_seed(seed: int) -> None:
    sources = [source_of(0, [9], StreamWeight(proportion=1)), source_of(1, [9], StreamWeight(proportion=2))]
    for shuffle, sampling in product(SHUFFLES, ("balanced", "fixed")):
        check_course(
            NativeOrder(sources, NativeSettings(shuffle=shuffle, seed=seed, epoch_size=31, sampling_method=sampling)),
            world=2,
            batch=3,
        )


# -- batching methods --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", [Elastic(), RoundRobin(), Stratified("label")])
def test_batches_are_of_the_streams_that_the_method_says(partition: Partition) -> None:
    sources = [source_of(0, [60, 60]), source_of(1, [50, 10]), source_of(2, [20])]
    ends = [120, 180, 200]

    def streams(batch: Sequence[int]) -> set[int]:
        return set(np.searchsorted(ends, batch, side="right").tolist())

    def sample_order(method: str) -> Reader:
        return Reader(
            NativeOrder(
                sources,
                NativeSettings(shuffle="block", batching_method=method, partition=partition, remainder="uneven"),
            )
        )

    device = sample_order("device_per_stream").world(3, 4)
    # Of each stream less than a batch for each rank (or canonical node) does not fill one, and comes last.
    whole = [[len(streams(batch)) == 1 for batch in rank] for rank in device]
    assert all(all(rank[:14]) for rank in whole), whole
    step = sample_order("per_stream").world(3, 4)
    together = [set().union(*(streams(batch) for batch in parts)) for parts in zip(*step, strict=False)]
    assert all(len(found) == 1 for found in together[:14]), together
    assert set().union(*together[:14]) == {0, 1, 2}
    even = sample_order("stratified").world(3, 20)
    for parts in list(zip(*even, strict=False))[:3]:
        counts = np.bincount(np.searchsorted(ends, [s for part in parts for s in part], side="right"), minlength=3)
        assert np.abs(counts - 60 * np.array([0.6, 0.3, 0.1])).max() < 3


# -- a schedule --------------------------------------------------------------------------------------------------------


@given(
    shuffle=st.sampled_from(sorted(SHUFFLES)),
    batching=st.sampled_from(["random", "stratified"]),
    world=st.integers(1, 3),
    batch=st.integers(1, 5),
    points=st.lists(st.tuples(st.integers(1, 160), st.integers(0, 3), st.integers(1, 3)), max_size=3),
    interpolate=st.integers(0, 4),
)
@settings(deadline=None, max_examples=60)
def test_scheduled_epochs_continue_in_each_stream(
    shuffle: Any,
    batching: str,
    world: int,
    batch: int,
    points: list[tuple[int, int, int]],
    interpolate: int,
) -> None:
    weights: dict[int | str, dict[str, float]] = {time: {"s0": a, "s1": b} for time, a, b in sorted(points)}
    begin: dict[int | str, dict[str, float]] = {0: {"s0": 1, "s1": 1}}
    schedule = Schedule.parse(begin | weights, interpolate)
    sources = [source_of(0, [10, 0, 13]), source_of(1, [17])]
    sample_order = NativeOrder(
        sources, NativeSettings(shuffle=shuffle, batching_method=batching, schedule=schedule, epoch_size=50)
    )
    reader = Reader(sample_order)
    seen: Counter[int] = Counter()
    for epoch in range(4):
        seen += check_epoch(reader, world, batch, epoch)
        first = Counter({sample: n for sample, n in seen.items() if sample < 23})
        second = seen - first
        assert first.total() + second.total() == 50 * (epoch + 1)
    # At the end of the last point's first whole period all that was begun is spread evenly.
    done = sample_order.consumed(EpochPosition(4))
    assert sum(done.values()) == 200
    if schedule.points[-1][0] == 0:
        assert done == {"s0": first.total(), "s1": second.total()}
        spread(first, np.arange(23), first.total())
        spread(second, np.arange(23, 40), second.total())
