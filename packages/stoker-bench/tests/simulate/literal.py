"""Simulation as one would do it by hand: shard by shard, step by step, with sets and lists. Slow, and plain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from stoker.types import Ids
from stoker_bench.simulate import CostModel

__all__ = ["LiteralNode", "TablePlan", "literal_run"]


class TableOrder:
    """Places are ``step * 1000 + number``; where they lie stands in a table."""

    def __init__(self, batches: list[list[int]]) -> None:
        self._batches = batches

    def locate(self, places: Ids, /) -> tuple[Ids, Ids]:
        shards = [self._batches[place // 1000][place % 1000] for place in places.tolist()]
        return np.array(shards, dtype=np.int64), np.zeros(len(shards), dtype=np.int64)


@dataclass
class TablePlan:
    """A rank whose batches are given as lists of shards, a shard for each sample."""

    batches: list[list[int]]
    batch_size: int
    rank: int = 0
    world_size: int = 1
    padding: int = 0
    end: int = 0

    @property
    def order(self) -> TableOrder:
        return TableOrder(self.batches)

    @property
    def samples(self) -> int:
        return sum(map(len, self.batches))

    @property
    def full_batches(self) -> int:
        return sum(len(batch) == self.batch_size for batch in self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def full_steps(self) -> int:
        return self.full_batches

    @property
    def longest(self) -> int:
        return self.rank

    def position_after(self, batches: int) -> int:
        raise NotImplementedError

    def position_at(self, samples: int) -> int:
        raise NotImplementedError

    def chunks(self, samples: int, worker: int = 0, workers: int = 1, skip: int = 0) -> Iterator[list[Ids]]:
        steps = list(range(worker + skip * workers, len(self.batches), workers))
        together = max(1, samples // self.batch_size)
        for first in range(0, len(steps), together):
            yield [
                step * 1000 + np.arange(len(self.batches[step]), dtype=np.int64)
                for step in steps[first : first + together]
            ]


@dataclass
class LiteralNode:
    """A node: its cache and its link."""

    uses: list[set[int]]
    inside: dict[int, float] = field(default_factory=dict)
    fetched: list[tuple[int, int]] = field(default_factory=list)
    link: float = 0.0
    evictions: int = 0
    over: int = 0
    held: list[int] = field(default_factory=list)

    def ask(self, step: int, target: int, now: float, raw: list[int], seconds: list[float], model: CostModel) -> None:
        """At ``step``, fetch what ``target``, the step that has come into the lookahead, needs."""
        for shard in sorted(self.uses[target]):
            if shard in self.inside:
                continue
            self.inside[shard] = np.inf
            limit = model.cache_limit
            if limit is not None and self._bytes(raw) > limit:
                while self._bytes(raw) > limit - limit // 32:
                    spare = [
                        (self._last_use(other, step), other)
                        for other in self.inside
                        if other != shard and not self._open(other, shard, step, target)
                    ]
                    if not spare:
                        break
                    del self.inside[min(spare)[1]]
                    self.evictions += 1
                self.over = max(self.over, self._bytes(raw) - limit)
            self.link = max(self.link, now) + seconds[shard]
            self.inside[shard] = self.link + model.latency
            self.fetched.append((shard, target))
            self.held.append(self._bytes(raw))

    def _open(self, other: int, shard: int, step: int, target: int) -> bool:
        """Whether a shard is open at ``step``, when ``shard`` is fetched for ``target``."""
        if any(other in self.uses[near] for near in range(step, target)):
            return True
        # Of the target's shards, those that are fetched already, and those that were open when it came into sight.
        return other in self.uses[target] and (other < shard or (step > 0 and other in self.uses[step - 1]))

    def _bytes(self, raw: list[int]) -> int:
        return sum(raw[shard] for shard in self.inside)

    def _last_use(self, shard: int, step: int) -> int:
        return max(before for before in range(step) if shard in self.uses[before])


def literal_run(
    uses: list[list[set[int]]], raw: list[int], stored: list[int], model: CostModel, lookaheads: list[int]
) -> tuple[list[LiteralNode], list[float], list[float]]:
    """Run all nodes; ``uses[node][step]`` are shards.

    Returns:
        The nodes, when each step begins, and how long it was waited for.
    """
    nodes = [LiteralNode(steps) for steps in uses]
    seconds = [
        max(0.0 if model.bandwidth is None else size / model.bandwidth, model.latency / model.connections)
        for size in stored
    ]
    begin: list[float] = []
    waits: list[float] = []
    now = 0.0
    seen = [-1] * len(nodes)
    for step in range(len(uses[0])):
        for number, node in enumerate(nodes):
            while seen[number] < min(step + lookaheads[number], len(uses[0]) - 1):
                seen[number] += 1
                node.ask(step, seen[number], now, raw, seconds, model)
        ready = max((node.inside[shard] for node in nodes for shard in node.uses[step]), default=0.0)
        begin.append(max(now, ready))
        waits.append(begin[-1] - now)
        now = begin[-1] + model.step_time
    return nodes, begin, waits
