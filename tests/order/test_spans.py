"""Spans have the positions that all ranks of an epoch read, whatever rank, world and position a plan is of."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.errors import ConfigError
from stoker.order.global_batches import BatchPlan, DevicePlan
from stoker.order.left_out import Exclusion, run_without
from stoker.order.mixture.mixing import EpochMixture, Mixing
from stoker.order.mixture.stratified_batches import StratifiedPlan
from stoker.order.mixture.weights import Mixture, StreamWeight
from stoker.order.mosaicml.sample_order import MosaicmlPlan
from stoker.order.mosaicml.settings import MosaicmlSettings, MosaicmlWorld
from stoker.order.part_plan import Rounds, plan_parts
from stoker.order.sample_order import Plan, Run, spans_of
from stoker.order.shuffle.shard_table import ShardTable

COUNTS = (37, 0, 23)
BEGUN = (5, 9, 0)
TOTAL = sum(COUNTS)


def native(kind: type[BatchPlan], start: int, rank: int, world: int) -> Plan:
    return kind(start, TOTAL, 4, rank, world)


def stratified(start: int, rank: int, world: int) -> Plan:
    mixture = EpochMixture([0], [0], [Mixing(COUNTS, BEGUN)])
    return StratifiedPlan(start, TOTAL, 4, rank, world, strata=mixture)


def parts(start: int, rank: int, world: int) -> Plan:
    return plan_parts(Rounds(np.array([20, 3, 37])), start, 4, rank, world, "uneven")


def mosaicml(start: int, rank: int, world: int) -> Plan:
    weights = [StreamWeight(), StreamWeight(choose=0), StreamWeight()]
    mixture = Mixture.resolve([np.array([30, 7]), np.array([9]), np.array([23])], weights)
    settings = MosaicmlSettings.resolve(MosaicmlWorld(rank, 1, world), batch_size=4, shuffle=True)
    return MosaicmlPlan(mixture, settings, MosaicmlWorld(rank, 1, world), 0, start)


MAKERS = {
    "native": lambda *where: native(BatchPlan, *where),
    "per device": lambda *where: native(DevicePlan, *where),
    "stratified": stratified,
    "parts": parts,
    "mosaicml": mosaicml,
}


@pytest.mark.parametrize("kind", MAKERS)
def test_spans_are_the_epoch(kind: str) -> None:
    make = MAKERS[kind]
    spans = spans_of(make(0, 0, 1), "a test")
    read = np.concatenate([batch for batches in make(0, 0, 1).chunks(64) for batch in batches])
    whole = np.concatenate([np.arange(*pair) for pair in zip(spans.begins.tolist(), spans.ends.tolist(), strict=True)])
    assert np.array_equal(np.unique(read), whole)
    for position in read.tolist():
        own = spans.span(position)
        assert position in own
        assert [bound.tolist() for bound in spans.bounds_of(np.array([position]))] == [[own.start], [own.stop]]
        covered = [own, *spans.others(position)]
        if kind != "parts":
            assert sorted(one for span in covered for one in span) == whole.tolist()
    for start, rank, world in ((24, 0, 1), (0, 1, 3), (24, 1, 2), (24, 2, 3)):
        other = spans_of(make(start, rank, world), "a test")
        assert np.array_equal(other.begins, spans.begins)
        assert np.array_equal(other.ends, spans.ends)
        assert other.alone == spans.alone == (kind == "parts")


class OwnPlan:
    """A plan without spans."""

    def __init__(self) -> None:
        self._plan = BatchPlan(0, 10, 2, 0, 1)

    def __getattr__(self, name: str) -> object:
        if name == "spans":
            raise AttributeError(name)
        return getattr(self._plan, name)


def test_a_plan_that_does_not_know_its_spans_is_refused() -> None:
    table, none = ShardTable(np.array([10])), np.zeros(0, np.int64)
    with pytest.raises(
        ConfigError, match=r"quarantine= takes other samples of the epoch, and OwnPlan .* method spans\(\)"
    ):
        run_without(Run(table, OwnPlan()), table, Exclusion(np.array([3]), none, none))  # type: ignore[arg-type]
