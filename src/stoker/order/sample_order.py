"""The sample order of a run over all its epochs: what every order has, and the positions that it is read from.

An order of one's own is any object with the three members of :class:`SampleOrder`. What it may offer beyond that is in
:mod:`stoker.order.capabilities`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol, Self, cast

import numpy as np

from stoker.arguments import at_least
from stoker.errors import ConfigError, StateError
from stoker.integers import is_count
from stoker.types import Ids


class Order(Protocol):
    """Locates the samples of an epoch."""

    def locate(self, positions: Ids, /) -> tuple[Ids, Ids]:
        """Shard number and row in the shard of each position that a plan names; two int64 arrays of the same shape."""
        ...


class Batches(Protocol):
    """Batches of positions, as a loader asks for them."""

    @property
    def batch_size(self) -> int:
        """Samples in a full batch of this rank."""
        ...

    def chunks(self, samples: int, worker: int = 0, workers: int = 1, skip: int = 0) -> Iterator[list[Ids]]:
        """This rank's batches, or those of one of its loader workers, several at a time.

        Worker w of W takes batches ``w, w + W, ...``, which is the order in which torch's DataLoader asks its workers.

        Args:
            samples: about how many samples to put together.
            worker: number of the loader worker, in ``[0, workers)``.
            workers: number of loader workers.
            skip: batches of this worker to leave out at the beginning.

        Yields:
            Lists of int64 arrays of positions, an array a batch, which the epoch's :class:`Order` locates.
        """
        ...


class Plan(Batches, Protocol):
    """The batches of one rank from a position to the epoch's end.

    All but the last have ``batch_size`` samples, unless the order makes batches
    (:func:`~stoker.order.capabilities.makes_batches`): then these have about so many.
    """

    @property
    def rank(self) -> int:
        """This rank, in ``[0, world_size)``."""
        ...

    @property
    def world_size(self) -> int:
        """Number of ranks that read different samples."""
        ...

    @property
    def end(self) -> int:
        """Position after the last batch."""
        ...

    @property
    def full_batches(self) -> int:
        """Number of this rank's batches that have ``batch_size`` samples."""
        ...

    @property
    def full_steps(self) -> int:
        """Batches of this rank with partial ones left out: the same number for every rank, if all take equally many steps."""
        ...

    @property
    def longest(self) -> int:
        """A rank that takes the most batches."""
        ...

    @property
    def samples(self) -> int:
        """Number of samples that this rank takes."""
        ...

    @property
    def padding(self) -> int:
        """Samples over all ranks that are repeated so that all ranks take the same number of steps."""
        ...

    def __len__(self) -> int:
        """Number of batches that this rank takes."""
        ...

    def position_after(self, batches: int) -> int:
        """The position that a resume starts from after ``batches`` batches of every rank."""
        ...

    def position_at(self, samples: int) -> int:
        """The position that a resume starts from after ``samples`` of all ranks together, repeated ones counted.

        ConfigError if some of them are repeated, and this is no whole number of steps.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Ranges that have every position of an epoch, and none that the epoch's order can not locate.

    They follow from the epoch alone: not from the rank, the world or where a run resumed. So what is found in them is the
    same in each run.

    ``begins``, ``ends``: int64, shape ``(spans,)``, rising and apart. ``alone``: whether a sample may only be replaced by one
    of its own span.
    """

    begins: Ids
    ends: Ids
    alone: bool = False

    @classmethod
    def one(cls, end: int) -> Spans:
        """All positions below ``end``."""
        return cls(np.zeros(1, np.int64), np.array([end], np.int64))

    def bounds_of(self, positions: Ids) -> tuple[Ids, Ids]:
        """Begin and end of the span that each position is in; int64 of the same shape."""
        numbers = np.searchsorted(self.begins, positions, side="right") - 1
        return self.begins[numbers], self.ends[numbers]

    def span(self, position: int) -> range:
        """The span that a position is in."""
        return self._span(self._number(position))

    def others(self, position: int) -> Iterator[range]:
        """The spans from which a sample may come where that of a position has none: those after it, and then the first."""
        if not self.alone:
            count, own = len(self.begins), self._number(position)
            for step in range(1, count):
                yield self._span((own + step) % count)

    def _number(self, position: int) -> int:
        return int(np.searchsorted(self.begins, position, side="right")) - 1

    def _span(self, number: int) -> range:
        return range(int(self.begins[number]), int(self.ends[number]))


class SpannedPlan(Protocol):
    """A :class:`~stoker.order.sample_order.Plan` that knows the spans of its epoch."""

    def spans(self) -> Spans:
        """The spans of the whole epoch, the same for every rank and wherever the plan begins."""
        ...


def check_spanned(plan: Plan, setting: str) -> None:
    """See that a plan knows the spans of its epoch; args and errors are those of :func:`spans_of`."""
    if not callable(getattr(plan, "spans", None)):  # as isinstance() of a protocol, which takes ten times as long
        raise ConfigError(
            f"{setting} takes other samples of the epoch, and {type(plan).__name__} does not say where they are: give the "
            "plan a method spans(), as stoker.order.sample_order.SpannedPlan has it, or leave samples out"
        )


def spans_of(plan: Plan, setting: str) -> Spans:
    """The spans of a plan's epoch.

    ConfigError if the plan is one's own, and does not know them. ``plan``: of any rank. ``setting``: what asks for other
    samples, for the message.
    """
    check_spanned(plan, setting)
    return cast(SpannedPlan, plan).spans()


def check_rank(rank: int, world_size: int, batch_size: int = 1) -> None:
    """Check that a rank is one of a world, and its batches have samples. ConfigError if it is not, or they have none."""
    at_least(1, batch_size=batch_size)
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} is not in a world of {world_size}: ranks are numbered from 0 to world_size - 1")


@dataclass(frozen=True, slots=True)
class DataRank:
    """This process among those that read different samples.

    Attributes:
        rank: number of the reader among those that read different samples.
        world_size: number of such readers.
        ranks_per_node: processes on a node, those that read the same samples included.
        batch_size: samples in a batch of each.
        replication: processes that read the same samples, one after the other in rank order.
    """

    rank: int = 0
    world_size: int = 1
    ranks_per_node: int = 1
    batch_size: int = 1
    replication: int = 1

    def __post_init__(self) -> None:
        check_rank(self.rank, self.world_size, self.batch_size)


@dataclass(frozen=True, slots=True)
class EpochStart:
    """The circumstances in which an epoch began, as far as its order depends on them.

    An order whose epochs depend on the world in which they began has a subclass of its own, whose fields are integers from
    0. A state keeps them by name, so that the epoch can be finished in any world as it was begun.
    """

    def as_dict(self) -> dict[str, int]:
        """The fields by name, JSON-serialisable."""
        return asdict(self)

    @classmethod
    def read(cls, values: Any) -> Self:
        """The start that a state holds: a dict by name, or a list of numbers in the order of the fields, as states had.

        StateError if it is neither, or has other fields or other values.
        """
        names = [field.name for field in fields(cls)]
        if isinstance(values, Sequence) and not isinstance(values, str) and 3 <= len(values) <= 6:
            values = asdict(cls()) | dict(zip(names, values, strict=False))
        if not isinstance(values, Mapping) or values.keys() != set(names):
            raise StateError(f"this state's start of the epoch should have {', '.join(names)}, found {values!r}")
        for name, value in values.items():
            if not is_count(value):
                raise StateError(f"this state's start of the epoch: {name} must be an integer from 0, found {value!r}")
        return cls(**values)


@dataclass(frozen=True, slots=True)
class EpochPosition:
    """A position in a run, from which the rest of its epoch is read.

    Attributes:
        epoch: the epoch's number, from 0.
        position: first position of the epoch that is delivered.
        partial: samples of the first batch that each rank has had already; 0 where reading stopped between batches.
        start: how the epoch began, as :func:`~stoker.order.capabilities.with_epoch_start` gave it; ``None`` in a run that is
            not resumed, and for orders that depend on nothing of the kind. Later epochs inherit it; the order knows for how
            long its fields hold.
    """

    epoch: int
    position: int = 0
    partial: int = 0
    start: EpochStart | None = None

    def next_epoch(self) -> EpochPosition:
        """The beginning of the next epoch of the same run."""
        return EpochPosition(self.epoch + 1, start=self.start)

    def epoch_begin(self) -> EpochPosition:
        """The beginning of this epoch."""
        return EpochPosition(self.epoch, start=self.start)


@dataclass(frozen=True, slots=True)
class Run:
    """The samples of one reader from a position to the end of its epoch.

    Attributes:
        order: locates the positions.
        plan: the reader's batches, as positions.
    """

    order: Order
    plan: Plan


class SampleOrder(Protocol):
    """The samples of all epochs in their order, for any reader. The same arguments give the same samples in any process."""

    @property
    def epoch_size(self) -> int:
        """Positions in an epoch."""
        ...

    def run(self, position: EpochPosition, data_rank: DataRank) -> Run:
        """The samples of one reader from ``position`` to the end of its epoch.

        Raises:
            ConfigError: this world can not read the rest of that epoch; says why.
        """
        ...

    def as_dict(self) -> dict[str, Any]:
        """All settings that decide which sample comes when, JSON-serialisable; a state of others is refused.

        ``streams`` is a dict from stream name to what identifies its data (``fingerprint``) and weight, ``order`` a dict of
        everything else; with several streams, ``order["streams"]`` lists their names.
        """
        ...
