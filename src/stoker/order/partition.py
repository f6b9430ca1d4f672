"""Partitions of an epoch among ranks: global batches that all ranks share, or parts that a rank owns.

With :class:`Elastic`, the default, no rank owns anything: each global batch is cut into equal parts
(:class:`~stoker.order.global_batches.BatchPlan`), so an epoch is the same in every world. The *static* strategies
(:mod:`stoker.order.partition_strategies`) give each rank a part of the dataset of its own, a
:class:`~stoker.order.selection.Selection`, which it reads in an order of its own.
:mod:`stoker.order.part_plan` runs such an epoch, and finishes it in another world.

All are plain values: the same value, dataset and world give the same parts in any process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol

from stoker.arguments import checked
from stoker.errors import ConfigError, StateError
from stoker.order.selection import Selection
from stoker.order.shuffle.shard_table import ShardTable
from stoker.types import Array, Ids


class Partition(Protocol):
    """A way to divide an epoch among ranks.

    A strategy of one's own needs what is here, and nothing else: the loader asks each rank for its ``part``, and for
    the ``sizes`` of all. The parts of all ranks must be disjoint and together be ``whole``, and must follow from the
    arguments alone, as every rank works them out by itself. A strategy whose parts depend on something that was
    observed (throughput, losses) must hold that as a plain value that is the same on all ranks, and name it in
    ``as_dict``, so that a resumed run divides as the first did.
    """

    @property
    def name(self) -> str:
        """Short name, unique among strategies; a state and the command line know the strategy by it."""
        ...

    @property
    def static(self) -> bool:
        """Whether each rank owns a part. If not, ``part`` and ``sizes`` raise ConfigError."""
        ...

    @property
    def even(self) -> bool:
        """Whether sizes always differ by one at most, the larger first, so that they need not be asked for."""
        ...

    @property
    def column(self) -> str | None:
        """The column whose values it needs, as ``labels``."""
        ...

    def part(
        self, table: ShardTable, whole: Selection, rank: int, world_size: int, labels: Array | None = None
    ) -> Selection:
        """The samples of one rank.

        Args:
            table: the shards.
            whole: what is divided: the samples of the table that take part in the run at all.
            rank: in ``[0, world_size)``.
            world_size: number of ranks.
            labels: a number for each sample of the table, by id; needed where ``column`` is not None.

        Raises:
            ConfigError: the samples can not be divided so.
        """
        ...

    def sizes(self, table: ShardTable, whole: Selection, world_size: int, labels: Array | None = None) -> Ids:
        """Samples of each rank, as the sizes of all parts would be; int64, shape ``(world_size,)``."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """The strategy by name and arguments, JSON-serialisable, for :func:`partition_from_dict`."""
        ...


@checked
@dataclass(frozen=True)
class Elastic:
    """Nobody owns anything: ranks share each global batch, and an epoch is the same in every world."""

    name: ClassVar[str] = "elastic"
    static: ClassVar[bool] = False
    even: ClassVar[bool] = False
    column: ClassVar[str | None] = None

    def part(self, *_: object, **__: object) -> NoReturn:
        """There are none: raises ConfigError."""
        raise ConfigError("the elastic partition has no parts: its ranks share every global batch")

    sizes = part

    def as_dict(self) -> dict[str, Any]:
        """The strategy by name, JSON-serialisable."""
        return {"name": self.name}


def strategies() -> dict[str, Callable[..., Partition]]:
    """The classes of stoker's strategies, by name."""
    # Few datasets are read by one of them.
    from stoker.order.partition_strategies import STATIC

    kinds: tuple[type[Partition], ...] = (Elastic, *STATIC)
    return {str(kind.name): kind for kind in kinds}


def partition_from_dict(values: Mapping[str, Any]) -> Partition:
    """The strategy that ``as_dict`` described. StateError if there is no such strategy, or it has other arguments."""
    known = strategies()
    name = str(values.get("name"))
    if name not in known:
        raise StateError(f"partition {name!r} is unknown; known: {', '.join(known)}")
    try:
        return known[name](**{key: value for key, value in values.items() if key != "name"})
    except ConfigError as error:
        raise StateError(f"partition {name!r} does not have these arguments: {error}") from error
