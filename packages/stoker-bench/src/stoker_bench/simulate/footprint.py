"""Predicts what a node of a cluster fetches, opens and holds, for a dataset and a cluster that need not exist.

Nothing is as large here as there: a smaller dataset, of shards of the same size, is laid out with the real order, some of the
nodes are followed, and what they fetch of it is scaled up. Samples a shard, batches, canonical nodes and blocks are those of
the run, so that a node needs as many shards at once, and as many new ones a step, as it will there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from stoker.errors import ConfigError
from stoker.index.columnar_shards import FEW
from stoker.order.sample_order import DataRank, EpochPosition, Run, SampleOrder
from stoker.order.shuffle.shard_table import ShardTable
from stoker.policy import SMALL_OBJECT, small_shards_held
from stoker.types import Ids
from stoker_bench.simulate.cache import run_cache
from stoker_bench.simulate.settings import Cluster, Shards
from stoker_bench.simulate.shard_access import Sampling, node_uses

# Of a smaller dataset the borders between canonical nodes' shards would count too much.
_SHARDS_A_CANONICAL_NODE: Final = 128
_LEAST_SHARDS: Final = 1024
# Steps of each rank, and samples of each node, that are followed.
_STEPS: Final = 64
_SAMPLES: Final = 1 << 21
_HEAD: Final = 16
_MOST_SHARDS: Final = 1 << 20

# Private bytes of a process that reads through a cache: at least, with what it imports; of a shard in the index and order;
# of an open one and of each of its rows; of a sample that is located ahead. `tests/simulate/test_footprint.py` compares.
_AT_LEAST: Final = 26 << 20
_OF_SHARD: Final = 1_850
_OF_KEPT_SHARD: Final = 280  # of an index that is kept as arrays, which processes share
_OF_OPEN_SHARD: Final = 2_000
_OF_OPEN_ROW: Final = 4
_OF_LOCATED: Final = 28
# Descriptors of a process that reads from one cache, and of each fetch: a connection, and a file unless the shard is small.
_DESCRIPTORS: Final = 18
_OF_FETCH: Final = 2
_OF_SMALL_FETCH: Final = 1
# Bytes of an index: one request of each rank.
_INDEX_OF_SHARD: Final = 340


@dataclass(frozen=True, slots=True)
class TotalSizes:
    """A dataset, as far as its size goes.

    Attributes:
        shards: how many.
        samples: of all shards.
        bytes: of all shards, as they are fetched.

    Raises:
        ConfigError: a number below 1, or fewer samples than shards.
    """

    shards: int
    samples: int
    bytes: int

    def __post_init__(self) -> None:
        if not 1 <= self.shards <= self.samples or self.bytes < 1:
            raise ConfigError(
                f"{self.shards} shards of {self.samples} samples and {self.bytes} bytes: there is at least a sample a shard, "
                "and a byte"
            )

    def part(self, shards: int) -> Shards:
        """So many shards of the same average sizes."""
        samples, size = (
            np.diff(np.round(np.linspace(0, shards * (whole / self.shards), shards + 1))).astype(np.int64)
            for whole in (self.samples, self.bytes)
        )
        return Shards(samples, size, size)


@dataclass(frozen=True, slots=True)
class ReadAhead:
    """The reading of one process.

    Attributes:
        samples: of its own, ahead of the one delivered, whose shards are fetched.
        chunk: samples that it reads in one step.
        open_shards: shards that it keeps open, needed or not.
        fetches: shards that it fetches at once.
        cache_limit: bytes that the node's cache may hold; ``None`` for no limit.
    """

    samples: int
    chunk: int
    open_shards: int
    fetches: int
    cache_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Footprint:
    """Figures of an average node in an epoch, and of its processes.

    Attributes:
        nodes: nodes that were followed, of how many.
        exact: whether the whole dataset was laid out.
        steps: of each rank.
        samples: of the node.
        fetched_shards: shards that it fetches, again where a cache limit had removed them.
        requests: those for them, and for the index by each rank.
        bytes: fetched: of shards and of the index.
        cached_bytes: most that its cache holds.
        cache_needed: bytes that its cache must hold to fetch each shard once.
        processes: that read.
        open_shards: most shards that a process has open.
        descriptors: of a process at most.
        process_memory: private bytes of a process, without the packages of its trainer.
        memory: of all processes.
    """

    nodes: tuple[int, int]
    exact: bool
    steps: int
    samples: int
    fetched_shards: int
    requests: int
    bytes: int
    cached_bytes: int
    cache_needed: int
    processes: int
    open_shards: int
    descriptors: int
    process_memory: int
    memory: int


def predict(
    make_order: Callable[[ShardTable, float], SampleOrder],
    size: TotalSizes,
    cluster: Cluster,
    ahead: ReadAhead,
    *,
    batch_size: int,
    canonical_nodes: int | None = None,
    workers: int = 0,
) -> Footprint:
    """Predict what a node fetches, opens and holds in the first epoch.

    Args:
        make_order: the sample order of some shards, which are a part of the dataset of this size (1: all of it).
        size: the dataset.
        cluster: the machines.
        ahead: how a process reads.
        batch_size: of a rank.
        canonical_nodes: C where it was chosen.
        workers: loader workers of a rank.

    Raises:
        ConfigError: no rank has a batch.
    """
    lookahead = ahead.samples * max(1, workers) // batch_size
    shards = _enough_shards(size, cluster, batch_size, max(_STEPS, 4 * lookahead), canonical_nodes or 1)
    scale = size.shards / shards
    part = size.part(shards)
    order = make_order(ShardTable(part.samples), 1 / scale)

    def rank_run(rank: int) -> Run:
        data_rank = DataRank(rank, cluster.world_size, cluster.ranks_per_node, batch_size)
        return order.run(EpochPosition(0), data_rank)

    chosen = sorted({0, cluster.nodes // 2, cluster.nodes - 1})
    fetched, needed, held, samples, steps, grows = [], [], [], [], 0, 1.0
    for node in chosen:
        first = node * cluster.ranks_per_node
        runs = [rank_run(rank) for rank in range(first, first + cluster.ranks_per_node)]
        steps = max(steps, *(len(run.plan) for run in runs))
        if not steps:
            raise ConfigError("there is nothing to predict: no rank has a batch")
        samples.append(sum(run.plan.samples for run in runs))
        stride = max(1, -(-samples[-1] // _SAMPLES))
        sampling = Sampling(steps, samples[-1], steps if stride == 1 else min(_HEAD, steps), stride)
        uses = node_uses(runs, sampling, part)
        cache = run_cache(uses, part.raw, lookahead, None)
        used = int(part.raw[cache.fetched].sum())
        # What is needed at once does not grow with the dataset, unless it is most of it: then the limit is a part, too.
        grows = scale if 2 * cache.needed > used else 1.0
        if ahead.cache_limit is not None:
            cache = run_cache(uses, part.raw, lookahead, max(1, int(ahead.cache_limit / grows)))
        fetched.append(cache.fetched.size)
        needed.append(cache.needed * grows)
        held.append(used * scale)
    opened = _open_at_once(rank_run(0), ahead, max(1, workers), shards)
    if grows > 1:  # samples of any shards: in more shards more of them are different
        opened = round(size.shards * -math.expm1(-(ahead.samples + ahead.chunk) / size.shards))
    opened = min(math.ceil(max(fetched) * scale), max(opened, ahead.open_shards))
    processes = cluster.ranks_per_node * max(1, workers)
    shards_a_node = float(np.mean(fetched)) * scale
    shard_bytes = size.bytes / size.shards
    # Small ones are held as they were fetched.
    as_fetched = shard_bytes <= SMALL_OBJECT and ahead.cache_limit is None
    memory = (
        _AT_LEAST
        + (min(opened * shard_bytes, small_shards_held(processes)) if as_fetched else 0)
        + (_OF_SHARD if size.shards < FEW else _OF_KEPT_SHARD) * size.shards
        + opened * (_OF_OPEN_SHARD + _OF_OPEN_ROW * size.samples / size.shards)
        + _OF_LOCATED * (ahead.samples + ahead.chunk)
        + 2 * ahead.chunk * size.bytes / size.samples
    )
    cached = float(np.mean(held))
    if ahead.cache_limit is not None:
        cached = min(cached, ahead.cache_limit)
    return Footprint(
        nodes=(len(chosen), cluster.nodes),
        exact=scale == 1,
        steps=round(steps * scale),
        samples=round(float(np.mean(samples)) * scale),
        fetched_shards=round(shards_a_node),
        requests=round(shards_a_node) + cluster.ranks_per_node,
        bytes=round(shards_a_node * size.bytes / size.shards + cluster.ranks_per_node * _INDEX_OF_SHARD * size.shards),
        cached_bytes=round(cached),
        cache_needed=round(max(needed)),
        processes=processes,
        open_shards=opened,
        descriptors=_DESCRIPTORS + (_OF_SMALL_FETCH if as_fetched else _OF_FETCH) * ahead.fetches,
        process_memory=round(memory),
        memory=round(memory) * processes,
    )


def _enough_shards(size: TotalSizes, cluster: Cluster, batch_size: int, steps: int, canonical_nodes: int) -> int:
    """Shards of the dataset that is laid out: enough for these steps of all ranks, and for borders not to count."""
    for_steps = math.ceil(steps * cluster.world_size * batch_size * size.shards / size.samples)
    least = max(_LEAST_SHARDS, _SHARDS_A_CANONICAL_NODE * canonical_nodes, min(for_steps, _MOST_SHARDS))
    return min(size.shards, least)


def _open_at_once(run: Run, ahead: ReadAhead, workers: int, shards: int) -> int:
    """Most shards that the first worker of a rank needs at once."""
    window = max(1, (ahead.samples + ahead.chunk) // run.plan.batch_size)
    most, found = 0, 0
    for batches in run.plan.chunks(min(_SAMPLES, window * run.plan.batch_size), 0, workers, 0):
        numbers: Ids = run.order.locate(np.concatenate(batches))[0]
        most = max(most, int(np.count_nonzero(np.bincount(numbers, minlength=shards))))
        found += numbers.size
        if found >= _SAMPLES:
            break
    return most
