"""The result of a simulation."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.types import Ids
from stoker_bench.simulate.cache import NodeCache
from stoker_bench.simulate.clock import StepClock
from stoker_bench.simulate.quality import StepQuality
from stoker_bench.simulate.settings import Cluster, CostModel
from stoker_bench.simulate.shard_access import Sampling

# Entries of the time line that JSON gets.
_MOMENTS = 200


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node.

    Attributes:
        node: its number.
        samples: samples that its ranks take.
        bytes: bytes that it fetches, refetches included.
        refetched: bytes of these that it had fetched before.
        shared: number of its shards that another node fetches too.
        shared_bytes: bytes of them, fetched once.
        cache: what its cache does: first and last use of each shard, fetches, evictions.
    """

    node: int
    samples: int
    bytes: int
    refetched: int
    shared: int
    shared_bytes: int
    cache: NodeCache


@dataclass(frozen=True, slots=True)
class Sharing:
    """Shards that several nodes fetch.

    Attributes:
        shards: how many.
        extra_bytes: bytes that are fetched over and above once each, over all nodes.
        most_nodes: nodes that fetch the same shard, at most.
    """

    shards: int
    extra_bytes: int
    most_nodes: int


@dataclass(frozen=True, slots=True)
class Balance:
    """The evenness of the ranks' shares.

    Attributes:
        samples: samples of each rank; int64, shape ``(ranks,)``.
        steps: steps of each rank; int64, shape ``(ranks,)``.
        padding: samples that come twice, over all ranks.
    """

    samples: Ids
    steps: Ids
    padding: int


@dataclass(frozen=True, slots=True)
class Report:
    """The result for a whole run.

    Attributes:
        cluster: the machines.
        model: what takes how long.
        sampling: which batches were evaluated.
        batch_size: samples in a full batch of a rank.
        lookahead: steps ahead whose shards are fetched, where no cache limit makes it less.
        shards: number of different shards that are used.
        bytes: bytes of them as they are fetched, once each.
        nodes: the nodes, by number.
        sharing: shards that several nodes fetch.
        balance: the ranks' shares.
        quality: how well the order is shuffled.
        clock: when steps begin.
        first_batches: second at which each rank has its first batch; float64, shape ``(ranks,)``.
        least_bandwidth: bytes a second of a node with which no step after the first waits; ``None`` if none is enough.
        stored: bytes of every shard as it is fetched.
    """

    cluster: Cluster
    model: CostModel
    sampling: Sampling
    batch_size: int
    lookahead: int
    shards: int
    bytes: int
    nodes: tuple[NodeReport, ...]
    sharing: Sharing
    balance: Balance
    quality: StepQuality
    clock: StepClock
    first_batches: NDArray[np.float64]
    least_bandwidth: float | None
    stored: Ids = field(repr=False)

    @property
    def samples_a_second(self) -> float:
        """Samples of all ranks in a second, the wait for the first batch and all later waits included."""
        return int(self.balance.samples.sum()) / self.clock.total

    @property
    def samples_a_step(self) -> int:
        """Samples of all ranks in a full step."""
        return self.batch_size * self.cluster.world_size

    @property
    def cache_needed(self) -> int:
        """Bytes that the node which needs most must hold to fetch each shard once."""
        return max(node.cache.needed for node in self.nodes)

    def as_dict(self, *, shards: bool = False) -> dict[str, Any]:
        """Everything, JSON-serialisable.

        Args:
            shards: list every node's shards, and the step of the first use of each.
        """
        moments = np.linspace(0, self.clock.total, _MOMENTS + 1)
        rates = self.rates(moments)
        held = self.held(moments[1:])
        return {
            "cluster": {**asdict(self.cluster), "ranks": self.cluster.world_size},
            "model": asdict(self.model),
            "evaluated": {**asdict(self.sampling), "exact": self.sampling.exact, "text": str(self.sampling)},
            "steps": self.sampling.steps,
            "samples": self.sampling.samples,
            "shards": self.shards,
            "bytes": self.bytes,
            "batch_size": self.batch_size,
            "lookahead_steps": self.lookahead,
            "nodes": [self._node(node, shards=shards) for node in self.nodes],
            "sharing": asdict(self.sharing),
            "balance": {
                "samples": self.balance.samples.tolist(),
                "steps": self.balance.steps.tolist(),
                "padding": self.balance.padding,
            },
            "quality": asdict(self.quality),
            "time": {
                "first_batch": self.clock.first_batch,
                "first_batch_of_ranks": self.first_batches.tolist(),
                "waiting": self.clock.waiting,
                "total": self.clock.total,
                "samples_a_second": self.samples_a_second,
                "least_bandwidth": self.least_bandwidth,
                "waits": self.waits(),
            },
            "timeline": {
                "seconds": moments.tolist(),
                "bytes_a_second": np.round(rates.T).astype(np.int64).tolist(),
                "cache_bytes": held.T.tolist(),
            },
        }

    def _node(self, node: NodeReport, *, shards: bool) -> dict[str, Any]:
        cache = node.cache
        found: dict[str, Any] = {
            "node": node.node,
            "samples": node.samples,
            "shards": int(cache.shards.size),
            "fetches": int(cache.fetched.size),
            "bytes": node.bytes,
            "refetched_bytes": node.refetched,
            "shared_shards": node.shared,
            "shared_bytes": node.shared_bytes,
            "in_use_bytes": cache.live,
            "cache_needed": cache.needed,
            "evictions": cache.evictions,
            "over_limit_bytes": cache.over,
        }
        if shards:
            found["first_use"] = {"shards": cache.shards.tolist(), "steps": cache.first.tolist()}
        return found

    def waits(self, most: int = 10) -> list[dict[str, float]]:
        """The steps at which training waits after its first step: runs of ticks that wait, the longest waits first.

        Returns:
            Up to ``most`` dicts of ``first`` and ``last`` step and ``seconds``.
        """
        stall = self.clock.stall.copy()
        stall[0] = 0.0
        first = self.clock.ticks.first
        waits = np.concatenate([[False], stall > 0, [False]])
        begins = np.flatnonzero(waits[1:] & ~waits[:-1])
        ends = np.flatnonzero(~waits[1:] & waits[:-1])
        total = np.concatenate([[0.0], np.cumsum(stall)])
        seconds = total[ends] - total[begins]
        longest = np.argsort(-seconds, kind="stable")[:most]
        return [
            {"first": int(first[begins[k]]), "last": int(first[ends[k]]) - 1, "seconds": float(seconds[k])}
            for k in longest.tolist()
        ]

    def rates(self, moments: NDArray[np.float64]) -> NDArray[np.float64]:
        """Bytes a second through each node's link between two moments; float64, shape ``(moments - 1, nodes)``."""
        rates = np.zeros((len(moments) - 1, len(self.nodes)))
        clock = self.clock
        for number, node in enumerate(self.nodes):
            sizes = self._bytes_of_ticks(node)
            done = np.cumsum(sizes)
            ends = clock.fetched[:, number]
            # What a tick fetches flows evenly while it holds the link.
            times = np.stack([ends - clock.busy[:, number], ends], axis=1).reshape(-1)
            through = np.stack([done - sizes, done], axis=1).reshape(-1)
            rates[:, number] = np.diff(np.interp(moments, times, through)) / np.diff(moments)
        return rates

    def held(self, moments: NDArray[np.float64]) -> Ids:
        """Bytes in each node's cache at some moments; int64, shape ``(moments, nodes)``."""
        held = np.zeros((len(moments), len(self.nodes)), dtype=np.int64)
        for number, node in enumerate(self.nodes):
            ticks = self.clock.ticks.of_steps(node.cache.needed_at)
            times = self.clock.fetched[ticks, number]
            before = np.searchsorted(times, moments, side="right")
            held[:, number] = np.concatenate([[0], node.cache.held])[before]
        return held

    def _bytes_of_ticks(self, node: NodeReport) -> Ids:
        ticks = self.clock.ticks
        at = ticks.of_steps(node.cache.needed_at)
        sizes = self.stored[node.cache.fetched]
        summed: Ids = np.bincount(at, weights=sizes, minlength=len(ticks)).astype(np.int64)
        return summed
