"""Samples that are left out of an order: others of the epoch come in their places, and all others stay where they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.order.global_batches import BatchPlan, DevicePlan
from stoker.order.sample_order import Order, Run, Spans, spans_of
from stoker.order.shuffle.shard_table import ShardTable
from stoker.types import Ids

_NEAR: Final = 1000
"""Positions on each side of a sample that are all tried before none is said to be good."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The samples that an epoch leaves out.

    ``ids``: their ids; int64, shape ``(n,)``, rising. ``begins``, ``ends``: ranges of positions whose samples are left out;
    int64, shape ``(m,)``, rising and apart.
    """

    ids: Ids
    begins: Ids
    ends: Ids

    def among(self, ids: Ids, positions: Ids) -> NDArray[np.bool_]:
        """Whether each of the samples with these ids at these positions is left out."""
        found = np.searchsorted(self.ids, ids)
        listed = np.zeros(len(ids), np.bool_)
        inside = found < len(self.ids)
        listed[inside] = self.ids[found[inside]] == ids[inside]
        return listed | (self.lengths(positions) > 0)

    def lengths(self, positions: Ids) -> Ids:
        """The length of the range that each position is in; 0 where it is in none."""
        if not len(self.begins):
            return np.zeros_like(positions)
        number = np.searchsorted(self.begins, positions, side="right") - 1
        inside = (number >= 0) & (positions < self.ends[number])
        return np.where(inside, (self.ends - self.begins)[number], 0)


class OrderWithout:
    """An order in which other samples come in the places of those that are left out.

    In the place of each comes the sample at the first position of :func:`candidates` that is not left out; for a range of
    positions, at first that which lies the range's length before, or after, where the epoch has none before.

    ConfigError if a range of positions is to be left out, and the plan does not count them through global batches, or the
    epoch has none of them; or it is a plan of one's own that has no :meth:`~stoker.order.sample_order.SpannedPlan.spans`.
    ``run``: the order, and the reader's batches. ``table``: where the ids of each shard begin. ``left_out``: what is left
    out.
    """

    def __init__(self, run: Run, table: ShardTable, left_out: Exclusion) -> None:
        if len(left_out.begins) and type(run.plan) not in (BatchPlan, DevicePlan):
            raise ConfigError(
                "steps or positions can only be excluded from an order of stoker's own with partition_algo='elastic': "
                "exclude the samples by their ids"
            )
        if type(run.plan) in (BatchPlan, DevicePlan) and len(left_out.begins) and left_out.begins[-1] >= run.plan.end:
            raise ConfigError(
                f"positions from {left_out.begins[-1]} on are to be left out (quarantine=), and the epoch has only "
                f"{run.plan.end}: steps and positions count from the epoch's beginning, and a step takes global_batch of them"
            )
        self._order: Order = run.order
        self._spans = spans_of(run.plan, "quarantine=")
        self._table, self._left_out = table, left_out

    def locate(self, positions: Ids, /) -> tuple[Ids, Ids]:
        """Shard number and row of the sample at each position.

        ConfigError if every sample that was tried in the place of one is left out, too.
        """
        shards, rows = self._order.locate(positions)
        out = np.flatnonzero(self._out(positions, shards, rows))
        if not len(out):
            return shards, rows
        shards, rows = shards.copy(), rows.copy()
        for towards in (-1, 1):
            here = positions[out]
            lengths = self._left_out.lengths(here)
            begins, ends = self._spans.bounds_of(here)
            most = here - begins if towards < 0 else np.where(lengths > 0, ends - 1 - here, 0)
            for distance in distances(int(most.max()), near=False):
                away = distance * np.maximum(lengths, 1)
                tried = most >= away
                out_tried, there = out[tried], here[tried] + towards * away[tried]
                found_shards, found_rows = self._order.locate(there) if len(there) else (shards[:0], rows[:0])
                fine = ~self._out(there, found_shards, found_rows)
                shards[out_tried[fine]], rows[out_tried[fine]] = found_shards[fine], found_rows[fine]
                tried[tried] = fine
                out, here, lengths, most = out[~tried], here[~tried], lengths[~tried], most[~tried]
                if not len(out):
                    return shards, rows
        for number in out.tolist():
            shards[number], rows[number] = self._instead(int(positions[number]))
        return shards, rows

    def _out(self, positions: Ids, shards: Ids, rows: Ids) -> NDArray[np.bool_]:
        return self._left_out.among(self._table.ids(shards, rows), positions)

    def _instead(self, position: int) -> tuple[int, int]:
        for candidate in candidates(position, self._spans):
            here = np.array([candidate], np.int64)
            shards, rows = self._order.locate(here)
            if not self._out(here, shards, rows)[0]:
                return int(shards[0]), int(rows[0])
        raise ConfigError(
            f"all samples that were tried in the place of that at position {position} of the epoch are left out, too: "
            "leave out fewer (quarantine=), or give subset= what is to be read"
        )


def run_without(run: Run, table: ShardTable, left_out: Exclusion) -> Run:
    """A reader's samples without some; args and errors are those of :class:`OrderWithout`."""
    return Run(OrderWithout(run, table, left_out), run.plan)


def candidates(position: int, spans: Spans) -> Iterator[int]:
    """Positions whose samples may replace that of another: those before it, near ones first, and then those after it.

    They are in its span of the epoch, and then in others where samples may come from another one. They are the same after
    any resume and in any world.
    """
    own = spans.span(position)
    for distance in distances(position - own.start):
        yield position - distance
    for distance in distances(own.stop - 1 - position):
        yield position + distance
    for other in spans.others(position):
        for distance in distances(len(other)):
            yield other.start + distance - 1


def distances(most: int, *, near: bool = True) -> Iterator[int]:
    """Distances up to ``most``, ever wider apart, so that few lead out of a damaged shard; and then all short ones."""
    distance = 1
    while distance <= most:
        yield distance
        distance += max(1, distance // 2)
    if near:
        yield from range(1, min(most, _NEAR) + 1)
