"""The sample order of a run over all its epochs, and the fields that a checkpoint needs to resume it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from stoker.errors import ConfigError
from stoker.order.protocols import Order, Plan

__all__ = ["SampleOrder", "Leg", "Run", "DataRank", "Terms"]

Terms: TypeAlias = tuple[int, ...]
"""Three to six numbers from 0 that a state holds next to its settings. Each sample order defines its own."""


@dataclass(frozen=True, slots=True)
class DataRank:
    """Who reads.

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
class Leg:
    """The rest of an epoch, from a position to its end.

    Attributes:
        epoch: the epoch's number, from 0.
        position: first position that is delivered.
        terms: what a state says beside its settings, as :meth:`SampleOrder.terms` gave it; zeros in a run that is not
            resumed.
    """

    epoch: int
    position: int = 0
    terms: Terms = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Run:
    """What one reader reads of a leg.

    Attributes:
        order: where places lie.
        plan: the reader's batches, as places.
    """

    order: Order
    plan: Plan


class SampleOrder(Protocol):
    """Pure: the same arguments give the same samples, in any process."""

    @property
    def epoch_size(self) -> int:
        """Positions in an epoch."""
        ...

    @property
    def shards_at_once(self) -> int:
        """About how many shards are read at once, by all readers together."""
        ...

    def run(self, leg: Leg, data_rank: DataRank) -> Run:
        """What a reader reads."""
        ...

    def terms(self, leg: Leg, data_rank: DataRank) -> Terms:
        """What a state of this leg must say beside :meth:`as_dict`, for its rest to be delivered as it was begun."""
        ...

    def ended(self, leg: Leg, data_rank: DataRank) -> bool:
        """Whether nothing of the epoch is left at the leg's position."""
        ...

    def beyond(self, leg: Leg) -> bool:
        """Whether the leg's position is one that no run can have got to."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Everything that decides which sample comes when, JSON-serialisable, by name.

        ``streams`` is a dict by name, ``order`` has all else; where there are several streams, ``order["streams"]`` are
        their names in order.
        """
        ...

    @property
    def urls(self) -> Mapping[str, str]:
        """Where the streams' data is, by name, for messages; may lack any."""
        ...

    def consumed(self, leg: Leg) -> dict[str, int]:
        """Stream name to how many samples of it are used up when the leg's epoch ends, or before it if it is whole."""
        ...

    @property
    def origin(self) -> dict[str, Any]:
        """Where the sample order was begun anew: what :meth:`continued` took, by name; empty if it was not."""
        ...

    def continued(
        self, epoch: int, consumed: Mapping[str, int], samples: int, away: Sequence[Mapping[str, Any]] = ()
    ) -> SampleOrder:
        """The same sample order begun anew at an epoch.

        Args:
            epoch: the epoch.
            consumed: stream name to how many samples of it came before; names that are not there do not count.
            samples: samples of training before.
            away: what states remember of streams that are left out now; handed on in :attr:`origin`.

        Raises:
            ConfigError: an order that has no such beginning.
        """
        ...

    def read_foreign(self, state: Mapping[str, Any]) -> Leg | None:
        """Where to go on from a state that another program left behind, or ``None`` if it is none."""
        ...

    def write_foreign(self, leg: Leg, data_rank: DataRank) -> dict[str, Any]:
        """What a state carries for another program to go on with; empty where there is no such program."""
        ...
