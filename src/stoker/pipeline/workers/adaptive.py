"""``Adaptive``: a partition whose ranges workers lease on demand, and the positions that these ranges have.

The epoch's order is cut into *splits*, ranges of positions. Which worker reads a split is settled while it runs; what
a split holds never changes, as it follows from the order alone. With an elastic base any worker may lease any split. With a
static base rank r's part is the r-th run of positions, r leases from it first, and others take whole splits of it
when finish times come to differ too much, or when r is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

import numpy as np

from stoker.arguments import checked, must_be
from stoker.coordination.checkpoint import Assignment
from stoker.errors import ConfigError
from stoker.order.native import NativeOrder
from stoker.order.part_plan import PART_BITS, DealtPlan, PartPlan
from stoker.order.partition import Elastic, Partition
from stoker.order.sample_order import DataRank, EpochPosition, Run, SampleOrder
from stoker.types import Ids

if TYPE_CHECKING:
    from stoker.pipeline.execution.chunk_process import MakeRun

_THRESHOLD: Final = 0.2


@checked(base="Elastic(), or a static strategy such as RoundRobin()")
@dataclass(frozen=True)
class Adaptive:
    """A partition in which workers lease splits of the epoch from a coordinator; faster workers lease more.

    For jobs whose workers do not run in lockstep: embedding, evaluation, preprocessing, rollouts. Only for
    :class:`~stoker.loaders.shard_loader.StreamingShardLoader`. Every sample is committed exactly once an epoch. It is
    delivered once, and again only if its worker was lost before committing it; that is counted.

    Attributes:
        base: the first owners of splits. ``Elastic()``: none, all workers lease from one order. A static strategy: rank r
            has its part to itself, until the threshold is passed.
        rebalance_threshold: with a static base, whole splits move to other ranks while the coefficient of variation of the
            ranks' expected finish times is above this. Default 0.2.
        replay: a recorded assignment (``loader.assignment()``, also when it was written and read as JSON): each rank gets the
            ranges that it had then, in the same order, without a coordinator.

    Raises:
        ConfigError: a threshold where there are no parts to move, or a base of this kind.
    """

    name: ClassVar[str] = "adaptive"

    base: Partition = field(default_factory=Elastic)
    rebalance_threshold: float | None = None
    replay: Assignment | None = None

    def __init__(
        self,
        base: Partition | None = None,
        rebalance_threshold: float | None = None,
        replay: Mapping[str, Any] | Assignment | None = None,
    ) -> None:
        base = base or Elastic()
        if rebalance_threshold is not None:
            if not base.static:
                raise ConfigError(
                    "Adaptive: an elastic base has no parts that could be moved: leave rebalance_threshold out, or give a "
                    "static base such as RoundRobin()"
                )
            fits = 0 <= rebalance_threshold < float("inf")
            must_be("a number from 0", fits, rebalance_threshold=rebalance_threshold)
        elif base.static:
            rebalance_threshold = _THRESHOLD
        object.__setattr__(self, "base", base)
        object.__setattr__(self, "rebalance_threshold", rebalance_threshold)
        if replay is not None and not isinstance(replay, Assignment):
            replay = Assignment.from_dict(replay)
        object.__setattr__(self, "replay", replay)

    @property
    def static(self) -> NoReturn:
        """Raises ConfigError, for everything else that takes a partition."""
        raise ConfigError(
            "Adaptive is a partition for StreamingShardLoader; a StreamingDataset can not lease its samples"
        )

    @property
    def column(self) -> str | None:
        """The column whose values the base needs."""
        return self.base.column

    def as_dict(self) -> dict[str, Any]:
        """The settings that decide the positions, JSON-serialisable. A replay has the same positions."""
        return {"name": self.name, "base": self.base.as_dict()}


def adaptive_order(sample_order: SampleOrder, adaptive: Adaptive) -> NativeOrder:
    """The order in which workers lease the splits of an epoch.

    Every position comes once, so nothing is padded. Without a number of canonical nodes by the user there is one, for
    neighbouring positions to lie in few shards.

    ConfigError for an order that has no positions which could be handed out one by one.
    """
    if not isinstance(sample_order, NativeOrder):
        raise ConfigError(
            "Adaptive divides stoker's own orders, not those of mosaicml-streaming: use shuffle_algo='block', 'global' or "
            "'shard'"
        )
    settings = sample_order.settings
    if len(sample_order.sources) > 1 and settings.batching_method != "random":
        raise ConfigError(
            f"Adaptive needs batching_method='random', got {settings.batching_method!r}, whose batches need all ranks"
        )
    nodes = settings.num_canonical_nodes or 1
    settings = replace(settings, partition=adaptive.base, num_canonical_nodes=nodes, remainder="uneven")
    return NativeOrder(sample_order.sources, settings, sample_order.origin)


def planned_order(sample_order: SampleOrder) -> NativeOrder:
    """The order from which a plan divides each global batch among ranks.

    ConfigError for an order that has no global batches of all ranks' positions in a row.
    """
    if isinstance(sample_order, NativeOrder) and sample_order.settings.partition.static:
        raise ConfigError(
            f"global_batch_size= divides batches of all ranks together, and the dataset has partition "
            f"{sample_order.settings.partition.name!r}, by which each rank owns its data: give it Elastic()"
        )
    return adaptive_order(sample_order, Adaptive())


class Splits:
    """The positions of one epoch, as they are leased, and where their samples lie.

    ``sample_order``: see :func:`adaptive_order`. ``epoch``: the epoch. ``world_size``: most workers that take part.

    Attributes:
        parts: samples of each rank's part where the base is static, else of the whole epoch alone.
        total: samples of all.
        epoch: as given.
        run: order and plan of the epoch, of some rank.
        again: makes the same in another process.
    """

    def __init__(self, sample_order: NativeOrder, epoch: int, world_size: int) -> None:
        data_rank = DataRank(0, world_size) if sample_order.settings.partition.static else DataRank()
        run = sample_order.run(EpochPosition(epoch), data_rank)
        self.run, self.epoch = run, epoch
        self.again: MakeRun = partial(_run_again, sample_order, epoch, world_size)
        self._static = sample_order.settings.partition.static
        if self._static:
            assert isinstance(run.plan, PartPlan | DealtPlan)
            rounds = run.plan.rounds
            self.parts = [rounds.size(part) for part in range(rounds.parts)]
        else:
            self.parts = [sample_order.epoch_size]
        self._starts: Ids = np.cumsum([0, *self.parts], dtype=np.int64)
        self.total = int(self._starts[-1])

    def positions(self, begin: int, end: int) -> Ids:
        """Positions ``[begin, end)`` as the order has them; int64."""
        positions = np.arange(begin, end, dtype=np.int64)
        if not self._static:
            return positions
        part = np.searchsorted(self._starts, positions, side="right") - 1
        return part << PART_BITS | positions - self._starts[part]

    def locate(self, begin: int, end: int) -> tuple[Ids, Ids]:
        """Shards and rows of the samples at positions ``[begin, end)``; two int64 arrays of that length."""
        return self.run.order.locate(self.positions(begin, end))


def _run_again(sample_order: NativeOrder, epoch: int, world_size: int) -> Run:
    return Splits(sample_order, epoch, world_size).run
