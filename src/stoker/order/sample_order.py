"""The sample order of a run over all its epochs: what every order has, and the positions that it is read from.

An order of one's own is any object with the three members of :class:`SampleOrder`. What it may offer beyond that is in
:mod:`stoker.order.capabilities`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol, Self

from stoker.errors import ConfigError, StateError
from stoker.integers import is_count
from stoker.order.protocols import Order, Plan


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
        if self.batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank {self.rank} is not in a world of {self.world_size}")


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

        Raises:
            StateError: it is neither, or has other fields or other values.
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
        start: how the epoch began, as the order's :func:`~stoker.order.capabilities.settled` gave it; ``None`` in a run that
            is not resumed, and for orders that depend on nothing of the kind. Later epochs inherit it; the order knows for
            how long its fields hold.
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
