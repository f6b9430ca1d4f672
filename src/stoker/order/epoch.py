"""The order of one epoch: the stretch of one endless line that is its.

Epoch e is the numbers ``[e * epoch_size, (e + 1) * epoch_size)`` of a
:class:`~stoker.order.shuffle.shuffle.ShuffledStream`. So with an epoch size other than the number of samples, each epoch
goes on where the last one ended, and no sample comes twice before all came once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from stoker.errors import ConfigError
from stoker.integers import mix
from stoker.order.shuffle.shard_table import ShardTable
from stoker.order.shuffle.shuffle import ShuffledStream, ShuffleName, ShuffleSettings
from stoker.types import Ids

__all__ = ["EpochOrder", "OrderSettings", "ShuffleName"]

_TAG_LINE: Final = 4


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """Everything beside the shards and the epoch number that the order depends on.

    Attributes:
        shuffle: see :class:`~stoker.order.shuffle.shuffle.ShuffleSettings`, as for the next two.
        seed: any integer.
        num_canonical_nodes: C.
        block_size: K.
        epoch_size: positions in an epoch.
    """

    shuffle: ShuffleName
    seed: int
    num_canonical_nodes: int
    block_size: int
    epoch_size: int

    def __post_init__(self) -> None:
        ShuffleSettings(self.shuffle, self.num_canonical_nodes, self.block_size)
        if self.epoch_size < 0:
            raise ConfigError(f"epoch_size must be at least 0, got {self.epoch_size}")

    @classmethod
    def resolve(
        cls,
        table: ShardTable,
        *,
        shuffle: ShuffleName,
        seed: int,
        num_canonical_nodes: int | None = None,
        block_size: int | None = None,
        epoch_size: int | None = None,
    ) -> OrderSettings:
        """Fill in defaults as :meth:`ShuffleSettings.resolve <stoker.order.shuffle.shuffle.ShuffleSettings.resolve>` does.

        Without ``epoch_size`` an epoch has as many positions as there are samples.
        """
        line = ShuffleSettings.resolve(
            table, shuffle=shuffle, num_canonical_nodes=num_canonical_nodes, block_size=block_size
        )
        size = table.total if epoch_size is None else epoch_size
        return cls(line.shuffle, seed, line.num_canonical_nodes, line.block_size, size)

    def line(self, table: ShardTable) -> ShuffledStream:
        """The line that all epochs are stretches of."""
        settings = ShuffleSettings(self.shuffle, self.num_canonical_nodes, self.block_size)
        return ShuffledStream(table, settings, mix(self.seed, _TAG_LINE))

    def as_dict(self) -> dict[str, Any]:
        """The settings by name, JSON-serialisable."""
        return {name: getattr(self, name) for name in self.__slots__}


class EpochOrder:
    """The order of one epoch.

    Args:
        table: the shards' sizes.
        settings: see :class:`OrderSettings`.
        epoch: the epoch's number, from 0.

    Raises:
        ConfigError: an epoch of samples was asked of shards that have none.
    """

    def __init__(self, table: ShardTable, settings: OrderSettings, epoch: int) -> None:
        if settings.epoch_size and not table.total:
            raise ConfigError(f"an epoch of {settings.epoch_size} samples was asked of a dataset that has none")
        self.table = table
        self.settings = settings
        self.epoch = epoch
        self._line = settings.line(table)
        self._first = epoch * settings.epoch_size

    def __len__(self) -> int:
        return self.settings.epoch_size

    def ids(self, positions: Ids) -> Ids:
        """Sample id at each position; int64 of the shape of ``positions``, which lie in ``[0, epoch_size)``."""
        shards, rows = self.locate(positions)
        return self.table.starts[shards] + rows

    def locate(self, positions: Ids) -> tuple[Ids, Ids]:
        """Shard number and row in the shard at each position; two int64 arrays of the shape of ``positions``."""
        return self._line.locate(positions + self._first)
