"""All sample orders of stoker's own, and mosaicml-streaming's, by the tests that a third party subclasses."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from stoker.order.mixture.schedule import Schedule
from stoker.order.mixture.weights import Mixture, StreamWeight
from stoker.order.mosaicml.sample_order import MosaicmlOrder
from stoker.order.native import NativeOrder
from stoker.order.partition_strategies import Contiguous, HashBased, RangeBased, RoundRobin, Stratified
from stoker.order.sample_order import DataRank, EpochPosition, Order, Run, SampleOrder
from stoker.order.selection import Everything, Split
from stoker.order.settings import NativeSettings, StreamSource
from stoker.order.shuffle.shard_table import ShardTable
from stoker.order.shuffle.shuffle import SHUFFLES
from stoker.testing import OrderTests
from stoker.tokens.order.division import RowGroupRuns
from stoker.tokens.order.mixture import MixedUnits, SourceWeights, TokenMixture
from stoker.tokens.order.token_order import TokenOrder, TokenSampleOrder, TokenSettings
from stoker.types import Ids

SIZES = (30, 7, 0, 24, 19, 33, 1, 30)


def source_of(number: int, weight: StreamWeight | None = None, split: bool = False) -> StreamSource:
    table = ShardTable(np.array(SIZES[: 5 + number], dtype=np.int64))
    return StreamSource(
        f"s{number}",
        table,
        Split(table, 0.1, 0.9, 3) if split else Everything(table),
        weight or StreamWeight(),
        f"data {number}",
        np.random.default_rng(number).integers(0, 40, table.total),
    )


class OwnOrderTests(OrderTests):
    """Orders of stoker's own: one stream, or as many as there are weights."""

    settings: ClassVar[dict[str, Any]] = {}
    weights: tuple[StreamWeight, ...] = (StreamWeight(),)
    split = False

    def make(self) -> SampleOrder:
        sources = [source_of(number, weight, self.split) for number, weight in enumerate(self.weights)]
        return NativeOrder(sources, NativeSettings(**{"shuffle": "block", **self.settings}))

    def large(self) -> SampleOrder | None:
        source = StreamSource.whole("large", ShardTable(np.full(1000, 1 << 21)))
        if self.settings.get("schedule") or getattr(self.settings.get("partition"), "column", None):
            return None  # other streams, or a label for each sample
        return NativeOrder([source], NativeSettings(**{"shuffle": "block", **self.settings, "epoch_size": None}))


def test_every_shuffle_is_tested_here() -> None:
    tested = {one.settings["shuffle"] for one in OwnOrderTests.__subclasses__() if "shuffle" in one.settings}
    assert tested == set(SHUFFLES)


class TestBlock(OwnOrderTests):
    settings: ClassVar[dict[str, Any]] = {"shuffle": "block", "num_canonical_nodes": 3, "block_size": 16}


class TestShard(OwnOrderTests):
    settings: ClassVar[dict[str, Any]] = {"shuffle": "shard"}


class TestGlobal(OwnOrderTests):
    settings: ClassVar[dict[str, Any]] = {"shuffle": "global"}


class TestNone(OwnOrderTests):
    settings: ClassVar[dict[str, Any]] = {"shuffle": "none"}
    shuffled = False


class TestSubset(OwnOrderTests):
    split = True


class TestPartOfAllInEachEpoch(OwnOrderTests):
    settings: ClassVar[dict[str, Any]] = {"epoch_size": 40}


class TestUneven(OwnOrderTests):
    settings: ClassVar[dict[str, Any]] = {"remainder": "uneven"}
    equal_steps = False


class TestDrop(OwnOrderTests):
    settings: ClassVar[dict[str, Any]] = {"remainder": "drop"}
    complete = False


class TestStreams(OwnOrderTests):
    weights = (StreamWeight(), StreamWeight())


class TestStratifiedBatches(TestStreams):
    settings: ClassVar[dict[str, Any]] = {"batching_method": "stratified"}


class TestPerStream(TestStreams):
    settings: ClassVar[dict[str, Any]] = {"batching_method": "per_stream"}
    any_world = False  # another global batch would be of several streams


class TestDevicePerStream(TestStreams):
    settings: ClassVar[dict[str, Any]] = {"batching_method": "device_per_stream"}
    same_global_batches = False  # with another batch size of a rank


class TestWeights(OwnOrderTests):
    weights = (StreamWeight(proportion=2.5), StreamWeight(proportion=1))
    distinct = False


class TestFixedSampling(OwnOrderTests):
    weights = (StreamWeight(repeat=0.4), StreamWeight(repeat=1.7))
    settings: ClassVar[dict[str, Any]] = {"sampling_method": "fixed", "sampling_granularity": 3}
    distinct = False


class TestSchedule(OwnOrderTests):
    weights = (StreamWeight(), StreamWeight())
    settings: ClassVar[dict[str, Any]] = {
        "schedule": Schedule.parse({0: {"s0": 3, "s1": 1}, 60: {"s0": 1, "s1": 1}}, 2),
        "epoch_size": 100,
    }
    distinct = False


class StaticTests(OwnOrderTests):
    """Partitions of which each rank owns a part."""

    same_global_batches = False


class TestRoundRobin(StaticTests):
    settings: ClassVar[dict[str, Any]] = {"partition": RoundRobin()}


class TestContiguous(StaticTests):
    settings: ClassVar[dict[str, Any]] = {"partition": Contiguous(), "shuffle": "shard"}


class TestHashed(StaticTests):
    settings: ClassVar[dict[str, Any]] = {"partition": HashBased(8, 1)}


class TestHashedByValue(StaticTests):
    settings: ClassVar[dict[str, Any]] = {"partition": HashBased(8, 1, "user"), "remainder": "uneven"}
    equal_steps = False


class TestStratifiedParts(StaticTests):
    settings: ClassVar[dict[str, Any]] = {"partition": Stratified("label"), "remainder": "uneven"}
    equal_steps = False


class TestRanges(StaticTests):
    settings: ClassVar[dict[str, Any]] = {"partition": RangeBased([(0, 30), (30, 50), (50, 80)])}

    def large(self) -> SampleOrder | None:
        return None


class TestPartsOfStreams(StaticTests):
    weights = (StreamWeight(), StreamWeight())
    settings: ClassVar[dict[str, Any]] = {"partition": RoundRobin(), "batching_method": "stratified"}


class MosaicmlTests(OrderTests):
    """Orders of mosaicml-streaming. The epoch of a world that its global batch does not divide repeats some samples."""

    options: ClassVar[dict[str, Any]] = {}
    same_global_batches = False  # but where it repeats none

    def make(self) -> SampleOrder:
        sizes = [np.array([30, 7, 24, 19]), np.array([33, 11, 30])]
        options = {"shuffle_algo": "py1e", "shuffle": True, "num_canonical_nodes": 2, "shuffle_block_size": 60}
        about = [("a", {"fingerprint": "a"}), ("b", {"fingerprint": "b"})]
        return MosaicmlOrder(Mixture.resolve(sizes), about, {**options, **self.options})


class TestPy1e(MosaicmlTests):
    pass


class TestPy1br(MosaicmlTests):
    options: ClassVar[dict[str, Any]] = {"shuffle_algo": "py1br"}


class TestPy2s(MosaicmlTests):
    options: ClassVar[dict[str, Any]] = {"shuffle_algo": "py2s"}


class TestNaive(MosaicmlTests):
    options: ClassVar[dict[str, Any]] = {"shuffle_algo": "naive"}


class TestPy1s(MosaicmlTests):
    options: ClassVar[dict[str, Any]] = {"shuffle_algo": "py1s"}


class TestMosaicmlUnshuffled(MosaicmlTests):
    options: ClassVar[dict[str, Any]] = {"shuffle": False}
    shuffled = False

    def large(self) -> SampleOrder | None:
        mixture = Mixture.resolve([np.full(1000, 1 << 21)])
        return MosaicmlOrder(mixture, [("a", {"fingerprint": "a"})], {"shuffle": False, "num_canonical_nodes": 8})


class TokenTests(OrderTests):
    """Rows of tokens, by file, row group or row."""

    granularity: Any = None
    step = 7
    same_global_batches = False

    def make(self) -> SampleOrder:
        return self._order(np.array([90, 40, 75, 0, 61, 130, 44, 80, 95], dtype=np.int64))

    def identify(self, run: Run, positions: Ids) -> list[Hashable]:
        """Group and row in it: sequences and blocks depend on the world."""
        order = run.order
        assert isinstance(order, TokenOrder)
        blocks, inside = order.locate(positions)
        found: list[Hashable] = []
        for sequence, block, row in zip(*(part.tolist() for part in order.split(blocks)), inside.tolist(), strict=True):
            cells = order.sequence(sequence).members(block)
            ends = np.cumsum(order.cells.amounts[cells])
            number = int(np.searchsorted(ends, row, side="right"))
            found.append((int(cells[number]), int(ends[number]) - row))
        return found

    def _order(self, tokens: Ids) -> TokenSampleOrder:
        owners = np.arange(tokens.size, dtype=np.int64) // 2
        cells = RowGroupRuns(np.arange(tokens.size + 1, dtype=np.int64), owners, tokens, -(-tokens // self.step))
        seed = 5 if self.shuffled else None
        settings = TokenSettings("pack", 1, True, 0, seed, self.granularity, 100, "pad", {})
        files = [f"{number:02}" for number in range(int(owners[-1]) + 1)]
        return TokenSampleOrder("tokens", {"fingerprint": "tokens"}, cells, files, settings)

    def large(self) -> SampleOrder | None:
        return self._order(np.full(1000, 1 << 24, dtype=np.int64))


class TestTokens(TokenTests):
    pass


class TestTokensByFile(TokenTests):
    granularity = "file"


class TestTokensByRowGroup(TokenTests):
    granularity = "row_group"


class TestTokensByRow(TokenTests):
    granularity = "row"


class TestTokensInOrder(TokenTests):
    shuffled = False


class TestTokenMixture(TokenTests):
    """Rows of two sources, each once."""

    granularity = "row"
    same_global_batches = True
    weights = SourceWeights()

    def identify(self, run: Run, positions: Ids) -> list[Hashable]:
        order = run.order
        assert isinstance(order, MixedUnits)
        blocks, inside = order.locate(positions)
        found: list[Hashable] = []
        for sequence, block, row in zip(*(part.tolist() for part in order.split(blocks)), inside.tolist(), strict=True):
            way = order.sequence(sequence)
            found.append((order.source(sequence), int(way.members(block)[0]), row))
        return found

    def make(self) -> SampleOrder:
        sizes = ([90, 40, 75, 0, 61, 130, 44, 80, 95], [300, 20, 150])
        return self._mixed({name: np.array(size, dtype=np.int64) for name, size in zip("ab", sizes, strict=True)})

    def large(self) -> SampleOrder | None:
        return self._mixed({name: np.full(1000, 1 << 24, dtype=np.int64) for name in "ab"})

    def _mixed(self, tokens: dict[str, Ids]) -> TokenMixture:
        orders = {name: self._order(sizes) for name, sizes in tokens.items()}
        for name, order in orders.items():
            order.tokens, order.about = int(tokens[name].sum()), {"fingerprint": name}
        return TokenMixture(orders, self.step, self.weights, self.weights, 3)


class TestOneTokenSource(TestTokenMixture):
    def make(self) -> SampleOrder:
        return self._mixed({"a": np.array([90, 40, 75, 0, 61, 130, 44, 80, 95], dtype=np.int64)})


class TestTokensInOrderMixed(TestTokenMixture):
    shuffled = False


class TestLeastOrder(OrderTests):
    """An order with no more than an order must have."""

    shuffled = False

    class Least:
        """Whole shards in id order, a batch after the other."""

        def __init__(self) -> None:
            self._order = NativeOrder([source_of(0)], NativeSettings())

        @property
        def epoch_size(self) -> int:
            return self._order.epoch_size

        def run(self, position: EpochPosition, data_rank: DataRank) -> Run:
            return self._order.run(position, data_rank)

        def as_dict(self) -> dict[str, Any]:
            return {"streams": {"data": {"fingerprint": "x"}}, "order": {"name": "least"}}

    def make(self) -> SampleOrder:
        return self.Least()


class _Lossy:
    """Locates two positions at one sample."""

    def __init__(self, order: Order) -> None:
        self._order = order

    def locate(self, positions: Ids) -> tuple[Ids, Ids]:
        return self._order.locate(np.where(positions == 17, 16, positions))


class Faulty(TestLeastOrder.Least):
    """Orders that break one promise each."""

    made = 0

    def __init__(self, fault: str) -> None:
        super().__init__()
        Faulty.made += 1
        self._fault, self._number = fault, Faulty.made

    def run(self, position: EpochPosition, data_rank: DataRank) -> Run:
        fault, plan = self._fault, data_rank
        if fault == "resumes elsewhere" and position.position:
            position = replace(position, position=position.position - 4)
        if fault == "steps differ" and plan.rank:
            plan = replace(plan, batch_size=plan.batch_size + 3)
        if fault == "another batch in each world":
            plan = replace(plan, rank=(plan.rank + 1) % plan.world_size)
        run = super().run(position, plan)
        if fault == "loses a sample":
            return Run(_Lossy(run.order), run.plan)
        if fault == "not reproducible":
            order = NativeOrder([source_of(0)], NativeSettings(shuffle="global", seed=self._number))
            return order.run(position, plan)
        return run

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "made": self._number if self._fault == "names its instance" else 0}


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ("loses a sample", "test_an_epoch_has_all_samples_in_any_world"),
        ("loses a sample", "test_an_epoch_is_finished_by_a_world_of_another_size"),
        ("resumes elsewhere", "test_a_run_resumes_after_any_step_with_the_batches_that_were_left"),
        ("steps differ", "test_all_ranks_take_as_many_steps_as_is_said"),
        ("another batch in each world", "test_a_plan_says_what_it_delivers"),
        ("not reproducible", "test_the_same_arguments_give_the_same_samples"),
        ("names its instance", "test_what_decides_the_order_is_json"),
    ],
)
def test_a_broken_promise_is_found(fault: str, test: str) -> None:
    class Tests(OrderTests):
        shuffled = False

        def make(self) -> SampleOrder:
            return Faulty(fault)

    with pytest.raises(AssertionError):
        getattr(Tests(), test)()
