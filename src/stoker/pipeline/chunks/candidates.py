"""Positions whose samples may come in the place of a bad or filtered one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stoker.order.global_batches import BatchPlan
from stoker.order.partition.part_positions import PART_BITS
from stoker.order.protocols import Plan
from stoker.pipeline.outer_plan import OuterPlan

_NEAR: Final = 1000
"""Positions on each side of a bad sample that are all tried before none is said to be good."""


def candidates(position: int, plan: Plan | OuterPlan) -> Iterator[int]:
    """Positions whose samples may replace that of another: those before it, near ones first, and then those after it.

    They are in the same part of an epoch that a partition divides. Where it divides nothing, they are the same in any world.
    """
    number = position & ((1 << PART_BITS) - 1)
    for distance in _distances(number):
        yield position - distance
    whole = plan.whole if isinstance(plan, OuterPlan) else plan
    if type(whole) is BatchPlan:
        for distance in _distances(whole.end - 1 - position):
            yield position + distance
        return
    for distance in _distances(len(whole)):
        for batch in next(whole.chunks(1, skip=distance - 1), []):
            yield int(batch[-1])


def _distances(most: int) -> Iterator[int]:
    """Distances up to ``most``, ever wider apart, so that few lead out of a damaged shard; and then all short ones."""
    distance = 1
    while distance <= most:
        yield distance
        distance += max(1, distance // 2)
    yield from range(1, min(most, _NEAR) + 1)
