"""Global batches in which each rank's batch is of one stream.

A unit is ``batch_size`` positions of the epoch that a :class:`~stoker.order.mixture.mixing.Mixing` has taken from one
stream. A global batch is as many units in a row as there are ranks, arranged by the units' canonical node, and each rank
takes one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stoker.errors import ConfigError
from stoker.order.global_batches import BatchPlan
from stoker.types import Ids

__all__ = ["DevicePlan"]


@dataclass(frozen=True, slots=True)
class DevicePlan(BatchPlan):
    """A :class:`~stoker.order.global_batches.BatchPlan` that keeps units whole. Its last, partial batch does not.

    For batches to be of one stream, ``batch_size`` must be the unit of the mixings, whose first positions, less their
    offsets, are multiples of it. ``start`` must be a multiple of it or the end of the epoch.
    """

    def __post_init__(self) -> None:
        BatchPlan.__post_init__(self)
        if self.start % self.batch_size and self.start != self.end:
            raise ConfigError(
                f"position {self.start} is inside a batch of {self.batch_size} samples of one stream: go on with the "
                "batch_size that the epoch was begun with"
            )

    def positions(self, first: int, last: int, step: int = 1) -> Ids:
        """Positions of this rank's full batches ``first, first + step, ...`` below ``last``.

        Returns:
            int64 of shape ``(batches, batch_size)``.
        """
        begun = self.start // self.batch_size
        units = BatchPlan(
            begun,
            begun + self.full_batches * self.world_size,
            1,
            self.rank,
            self.world_size,
            self.num_canonical_nodes,
        ).positions(first, last, step)
        return units * self.batch_size + np.arange(self.batch_size, dtype=np.int64)
