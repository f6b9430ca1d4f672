"""The time at which steps begin: links that carry shards in the order of need, and ranks that step together.

Time is kept in *ticks*. The first step is a tick of its own; the others are one step each, or several where there are very
many. A shard that is needed anywhere in a tick is then taken to be needed at its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stoker.types import Ids
from stoker_bench.simulate.cache import NodeCache
from stoker_bench.simulate.settings import CostModel

Floats = NDArray[np.float64]

_MOST_TICKS = 1 << 14
_MOST_CELLS = 1 << 22


@dataclass(frozen=True, slots=True)
class Ticks:
    """Groups of steps.

    Attributes:
        steps: number of steps.
        width: steps in a tick, but for the first, which is one step, and the last.
    """

    steps: int
    width: int

    @classmethod
    def of(cls, steps: int, nodes: int) -> Ticks:
        """As fine as memory and time allow."""
        most = max(2, min(_MOST_TICKS, _MOST_CELLS // nodes))
        return cls(steps, max(1, -(-(steps - 1) // (most - 1))))

    def __len__(self) -> int:
        return 1 + -(-(self.steps - 1) // self.width)

    @property
    def first(self) -> Ids:
        """First step of each tick, and then the number of steps; int64, shape ``(ticks + 1,)``."""
        steps = 1 + self.width * np.arange(-1, len(self), dtype=np.int64)
        steps[0] = 0
        steps[-1] = self.steps
        return steps

    def of_steps(self, steps: Ids) -> Ids:
        """The tick of each step."""
        return np.where(steps == 0, 0, 1 + (steps - 1) // self.width)


@dataclass(frozen=True, slots=True)
class StepClock:
    """The course of a run in time.

    Attributes:
        ticks: its time's resolution.
        begin: second at which the first step of each tick begins; float64, shape ``(ticks,)``.
        stall: seconds that all ranks wait before each tick; the first entry is the time to the first batch.
        fetched: second at which each node's fetches for each tick are through the link; shape ``(ticks, nodes)``.
        busy: seconds that they hold the link; the same shape.
        total: seconds from the start to the end of the last step.
    """

    ticks: Ticks
    begin: Floats
    stall: Floats
    fetched: Floats
    busy: Floats
    total: float

    @property
    def first_batch(self) -> float:
        """Seconds until the first step begins on all ranks."""
        return float(self.stall[0])

    @property
    def waiting(self) -> float:
        """Seconds that all ranks wait after the first step."""
        return float(self.stall[1:].sum())


def run_clock(caches: Sequence[NodeCache], stored: Ids, steps: int, model: CostModel) -> StepClock:
    """Let the nodes fetch and the ranks step.

    Args:
        caches: what each node fetches, for which steps.
        stored: bytes that each shard's download has.
        steps: number of steps.
        model: what takes how long.
    """
    ticks = Ticks.of(steps, len(caches))
    busy = _link_time(caches, stored, ticks, model, model.bandwidth)
    first = ticks.first
    lasts = np.diff(first) * model.step_time
    ahead = np.array([cache.lookahead for cache in caches], dtype=np.int64)
    begin = np.zeros(len(ticks))
    requested = np.zeros(len(ticks))
    fetched = np.zeros(busy.shape)
    link = np.zeros(len(caches))
    for tick, seconds in enumerate(busy):
        if tick:
            requested[tick] = begin[tick - 1] + lasts[tick - 1]
        if not seconds.any():
            fetched[tick], begin[tick] = link, requested[tick]
            continue
        # Each node may begin with these shards when the batch of step `since` is asked for.
        since = np.maximum(first[tick] - ahead, 0)
        at = ticks.of_steps(since)
        inside = since - first[at]
        released = np.where(inside == 0, requested[at], begin[at] + inside * model.step_time)
        needed = seconds > 0
        link = np.where(needed, np.maximum(link, released) + seconds, link)
        fetched[tick] = link
        arrived = float((link + model.latency)[needed].max(initial=0.0))
        begin[tick] = max(requested[tick], arrived)
    return StepClock(ticks, begin, begin - requested, fetched, busy, float(begin[-1] + lasts[-1]))


def first_batches(own: Sequence[Ids], stored: Ids, model: CostModel) -> Floats:
    """The time at which each of a node's ranks has its first batch; float64, shape ``(ranks,)``.

    The ranks' shards are fetched in turn: the first of each rank, the second of each rank, and so on.

    Args:
        own: the shards of each rank's first batch, in the order in which it asks for them.
        stored: bytes that each shard's download has.
        model: what takes how long.
    """
    counts = [len(shards) for shards in own]
    rank = np.repeat(np.arange(len(own)), counts)
    turn = np.concatenate([np.arange(count) for count in counts])
    shards = np.concatenate(own)
    in_turn = np.lexsort((rank, turn))
    distinct, at = np.unique(shards[in_turn], return_index=True)
    queue = distinct[np.argsort(at)]
    there = np.zeros(stored.size)
    there[queue] = np.cumsum(model.seconds(stored[queue], model.bandwidth)) + model.latency
    ready = np.zeros(len(own))
    np.maximum.at(ready, rank, there[shards])
    return ready


def least_bandwidth(caches: Sequence[NodeCache], stored: Ids, steps: int, model: CostModel) -> float | None:
    """Bytes a second of a node's link with which no step after the first waits, to a thousandth; 0 if nothing is fetched
    after the first step, ``None`` if no bandwidth is enough."""
    ticks = Ticks.of(steps, len(caches))
    if not _link_time(caches, stored, ticks, model, 1.0)[1:].any():
        return 0.0
    if not _never_waits(caches, stored, ticks, model, None):
        return None
    low = high = 1.0
    while not _never_waits(caches, stored, ticks, model, high):
        low, high = high, high * 16
        if high > 1e18:
            return None
    while high > low * 1.001:
        middle = (low * high) ** 0.5
        if _never_waits(caches, stored, ticks, model, middle):
            high = middle
        else:
            low = middle
    return high


def _never_waits(
    caches: Sequence[NodeCache], stored: Ids, ticks: Ticks, model: CostModel, bandwidth: float | None
) -> bool:
    """Whether no step after the first waits. Then it is known when each step begins, so links can be followed at once."""
    busy = _link_time(caches, stored, ticks, model, bandwidth)
    needed = busy > 0
    start = float((busy[0] + model.latency * needed[0]).max())
    begin = start + ticks.first[:-1] * model.step_time
    ahead = np.array([cache.lookahead for cache in caches], dtype=np.int64)
    since = ticks.first[:-1, None] - ahead
    released = np.where(since <= 0, 0.0, start + since * model.step_time)
    total = np.cumsum(busy, axis=0)
    # A link is through with a tick's shards at the latest, over all earlier ticks, of their release and what came since.
    fetched = total + np.maximum.accumulate(np.where(needed, released - total + busy, -np.inf), axis=0)
    late = fetched + model.latency > begin[:, None] * (1 + 1e-12)
    return not bool((late & needed)[1:].any())


def _link_time(
    caches: Sequence[NodeCache], stored: Ids, ticks: Ticks, model: CostModel, bandwidth: float | None
) -> Floats:
    """Seconds that each node's link is held by the shards that are needed first in each tick; ``(ticks, nodes)``."""
    columns = []
    for cache in caches:
        seconds = model.seconds(stored[cache.fetched], bandwidth)
        columns.append(np.bincount(ticks.of_steps(cache.needed_at), weights=seconds, minlength=len(ticks)))
    return np.stack(columns, axis=1)
