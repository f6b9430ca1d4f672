"""The simulation: every node's uses, its cache, and the time that all takes."""

from __future__ import annotations

import numpy as np

from stoker.order.shuffle.shard_table import ShardTable
from stoker.types import Ids
from stoker_bench.simulate.cache import NodeCache, run_cache
from stoker_bench.simulate.clock import first_batches, least_bandwidth, run_clock
from stoker_bench.simulate.quality import measure_quality
from stoker_bench.simulate.report import Balance, NodeReport, Report, Sharing
from stoker_bench.simulate.settings import Cluster, CostModel, RankRun, Shards
from stoker_bench.simulate.shard_access import choose_batches, node_uses

_BUDGET = 1 << 24


def simulate(
    rank_run: RankRun, shards: Shards, cluster: Cluster, model: CostModel, *, budget: int = _BUDGET, search: bool = True
) -> Report:
    """Follow an epoch, or what is left of one, on a cluster.

    The order and the plans are those that the loader would use; no data is read. Where the epoch has more samples than
    ``budget``, a part of the batches is evaluated (:class:`~stoker_bench.simulate.shard_access.Sampling`) and first uses
    come out a few steps late.

    Args:
        rank_run: from rank and world size to the rank's order and plan. Called once for each rank.
        shards: sizes of the shards.
        cluster: the machines.
        model: what takes how long.
        budget: about how many samples are evaluated.
        search: also look for the least bandwidth with which training never waits.

    Raises:
        ConfigError: no rank has any sample.
    """
    runs = [rank_run(rank, cluster.world_size) for rank in range(cluster.world_size)]
    sampling = choose_batches(runs, budget)
    lookahead = model.lookahead // runs[0].plan.batch_size
    caches: list[NodeCache] = []
    own: list[Ids] = []
    ready = []
    for node in range(cluster.nodes):
        here = runs[node * cluster.ranks_per_node : (node + 1) * cluster.ranks_per_node]
        uses = node_uses(here, sampling, shards)
        caches.append(run_cache(uses, shards.raw, lookahead, model.cache_limit))
        ready.append(first_batches(uses.first_batches, shards.stored, model))
        own.append(np.array([run.plan.samples for run in here], dtype=np.int64))
    users = np.zeros(len(shards), dtype=np.int64)
    for cache in caches:
        users[cache.shards] += 1
    used = np.flatnonzero(users)
    shared = users > 1
    return Report(
        cluster=cluster,
        model=model,
        sampling=sampling,
        batch_size=runs[0].plan.batch_size,
        lookahead=lookahead,
        shards=int(used.size),
        bytes=int(shards.stored[used].sum()),
        nodes=tuple(
            _node(number, cache, int(samples.sum()), shards, shared)
            for number, (cache, samples) in enumerate(zip(caches, own, strict=True))
        ),
        sharing=Sharing(
            shards=int(shared.sum()),
            extra_bytes=int(((users[used] - 1) * shards.stored[used]).sum()),
            most_nodes=int(users.max(initial=0)),
        ),
        balance=Balance(
            samples=np.concatenate(own),
            steps=np.array([len(run.plan) for run in runs], dtype=np.int64),
            padding=runs[0].plan.padding,
        ),
        quality=measure_quality(runs, ShardTable(shards.samples)),
        clock=run_clock(caches, shards.stored, sampling.steps, model),
        first_batches=np.concatenate(ready),
        least_bandwidth=least_bandwidth(caches, shards.stored, sampling.steps, model) if search else None,
        stored=shards.stored,
    )


def _node(number: int, cache: NodeCache, samples: int, shards: Shards, shared: np.ndarray) -> NodeReport:
    fetched = int(shards.stored[cache.fetched].sum())
    common = cache.shards[shared[cache.shards]]
    return NodeReport(
        node=number,
        samples=samples,
        bytes=fetched,
        refetched=fetched - int(shards.stored[cache.shards].sum()),
        shared=int(common.size),
        shared_bytes=int(shards.stored[common].sum()),
        cache=cache,
    )
