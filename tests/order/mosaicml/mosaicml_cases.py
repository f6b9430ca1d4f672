"""Random questions about the reference's orders, and stoker's answers to them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from stoker.order.mixture.weights import BATCHING_METHODS, Mixture, StreamWeight
from stoker.order.mosaicml.partition import MosaicmlPartition
from stoker.order.mosaicml.sample_order import MosaicmlPlan
from stoker.order.mosaicml.settings import MosaicmlSettings, MosaicmlStart, MosaicmlWorld
from stoker.order.mosaicml.shuffles import MOSAICML_SHUFFLES
from stoker.order.sample_order import EpochPosition
from stoker.types import Ids

Case = dict[str, Any]

ALGOS = tuple(MOSAICML_SHUFFLES)
METHODS = tuple(BATCHING_METHODS)


def shuffle_case(rng: random.Random) -> Case:
    """Arguments of ``get_shuffle``."""
    most = rng.choice([1, 5, 60, 300])
    return {
        "algo": rng.choice(ALGOS),
        "shard_sizes": [rng.randint(0 if rng.random() < 0.2 else 1, most) for _ in range(rng.randint(1, 40))],
        "num_canonical_nodes": rng.choice([1, 2, 3, 4, 8, 64]),
        "seed": rng.choice([0, 9176, rng.randrange(2**40)]),
        "epoch": rng.randint(0, 5),
        "block_size": rng.choice([1, 2, 3, 7, 20, 100, 1000, 1 << 18]),
    }


def partition_case(rng: random.Random) -> Case:
    """Arguments of ``get_partitions``."""
    nodes = rng.randint(1, 6)
    ranks = rng.randint(1, 5)
    samples = rng.choice([rng.randint(1, 12), rng.randint(1, 100), rng.randint(1, 3000)])
    initial = rng.choice([None, rng.randint(1, 6)])
    canonical = [1, nodes, nodes * rng.randint(1, 8), rng.randint(1, 12), (initial or 1) * rng.randint(1, 3)]
    return {
        "algo": rng.choice(["orig", "relaxed"]),
        "num_samples": samples,
        "num_canonical_nodes": rng.choice(canonical),
        "num_physical_nodes": nodes,
        "ranks_per_node": ranks,
        "workers_per_rank": rng.randint(1, 4),
        "batch_size": rng.choice([rng.randint(1, 12), (initial or 1) * rng.randint(1, 3)]),
        "drop_first": rng.choice([0, rng.randint(0, samples + nodes * ranks + 1)]),
        "initial_physical_nodes": initial,
    }


def sampling_case(rng: random.Random) -> Case:
    """Arguments of ``get_sampling``."""
    sizes = [rng.randint(0 if rng.random() < 0.05 else 1, 80) for _ in range(rng.randint(1, 20))] + [7]
    return {
        "samples_per_shard": sizes,
        "choose": rng.choice([sum(sizes), rng.randint(0, 3 * sum(sizes))]),
        "granularity": rng.choice([1, 2, 10, 1000]),
        "seed": rng.randrange(2**20),
        "epoch": rng.randint(0, 3),
        "use_epoch": rng.random() < 0.5,
    }


def work_case(rng: random.Random) -> Case:
    """A dataset, a world, settings, and a position in an epoch."""
    nodes, ranks = rng.randint(1, 4), rng.randint(1, 4)
    replication = rng.choice([1, 1, rng.choice([k for k in range(1, nodes * ranks + 1) if not nodes * ranks % k])])
    seen = MosaicmlWorld(0, nodes, ranks).replicate(replication)
    streams = rng.choice([1, 2, 2, 3, 3, rng.randint(4, 9)])
    most = rng.choice([4, 40, 120])
    sizes = [[rng.randint(1, most) for _ in range(rng.randint(1, 8))] for _ in range(streams)]
    weights: list[dict[str, float]] = [{} for _ in sizes]
    epoch_size: int | None = rng.choice([None, rng.randint(1, 1500)])
    kind = rng.choice(["proportion", "absolute", "plain"])
    if kind == "proportion":
        weights = [{"proportion": rng.choice([1, 0.3, 2.5, rng.random()])} for _ in sizes]
    elif kind == "absolute":
        epoch_size = None
        weights = [
            rng.choice([{}, {"repeat": rng.choice([0.5, 1, 2, 3 * rng.random()])}, {"choose": rng.randint(0, 400)}])
            for _ in sizes
        ]
    elif streams > 1 and rng.random() < 0.5:
        epoch_size = None
    batch = rng.randint(1, 6)
    world_batch = batch * seen.num_ranks
    reached = rng.choice([0, rng.randint(0, 30) * world_batch, rng.randint(0, 900)])
    seed = rng.choice([9176, rng.randrange(2**31)])
    return {
        "shard_sizes": sizes,
        "weights": weights,
        "weights_seed": rng.choice([seed, 9176]),
        "epoch_size": epoch_size,
        "nodes": nodes,
        "ranks_per_node": ranks,
        "replication": replication,
        "workers": rng.randint(1, 3),
        "epoch": rng.randint(0, 4),
        "sample_in_epoch": reached,
        "settings": {
            "batch_size": batch,
            "num_canonical_nodes": seen.num_nodes * rng.choice([1, 1, 2, 4])
            if rng.random() < 0.9
            else rng.randint(1, 9),
            "shuffle": rng.random() < 0.8,
            "shuffle_algo": rng.choice(ALGOS),
            "shuffle_seed": seed,
            "shuffle_block_size": rng.choice([None, 5, 50, 500]),
            "sampling_method": rng.choice(["balanced", "balanced", "fixed"]),
            "sampling_granularity": rng.choice([1, 1, 3, 50]),
            "partition_algo": rng.choice(["orig", "relaxed"]),
            "batching_method": rng.choice(METHODS),
            "initial_physical_nodes": rng.choice([None, rng.randint(1, 4)]),
        },
    }


def mixture_of(case: Case) -> Mixture:
    """The streams of a :func:`work_case`."""
    sizes = [np.array(stream) for stream in case["shard_sizes"]]
    weights = [StreamWeight(**weight) for weight in case["weights"]]
    return Mixture.resolve(sizes, weights, case["epoch_size"], case["weights_seed"])


def plan_of(case: Case, rank: int = 0) -> MosaicmlPlan:
    """The plan of a :func:`work_case`, of a rank of its world."""
    world = MosaicmlWorld(rank, case["nodes"], case["ranks_per_node"]).replicate(case["replication"])
    settings = MosaicmlSettings(**case["settings"])
    return MosaicmlPlan(mixture_of(case), settings, world, case["epoch"], case["sample_in_epoch"])


def worker_ids(plan: MosaicmlPlan, worker: int, workers: int, together: int) -> Ids:
    """All that one loader worker reads, in order."""
    batches = [batch for chunk in plan.chunks(together, worker, workers) for batch in chunk]
    return np.concatenate(batches) if batches else np.zeros(0, dtype=np.int64)


def partition_array(partition: MosaicmlPartition, workers: int) -> Ids:
    """The samples of all ranks, as the reference's ``get_partitions`` has them.

    Returns:
        int64 of shape (nodes, ranks of a node, workers of a rank, batches of a worker, batch size), filled up with -1.
    """
    rows = -(-partition.batches // workers) * workers
    every = np.stack([partition.ids(rank, np.arange(rows)) for rank in range(partition.num_ranks)])
    shape = (partition.num_physical_nodes, partition.ranks_per_node, rows // workers, workers, partition.batch_size)
    return every.reshape(shape).transpose(0, 1, 3, 2, 4)


def work_array(plan: MosaicmlPlan, workers: int) -> Ids:
    """The samples of all ranks, as the reference's ``generate_work`` has them; shaped as :func:`partition_array` does."""
    layout, world = plan._layout, plan.world
    filled = -(-layout.rows // workers) * workers
    every = np.full((plan.world_size, filled, plan.batch_size), -1, dtype=np.int64)
    by_rank = [layout.entries(rank, np.arange(layout.rows)) for rank in range(plan.world_size)]
    sequences = np.stack([np.broadcast_to(sequences, entries.shape) for sequences, entries in by_rank])
    every[:, : layout.rows] = plan._to_ids(sequences, np.stack([entries for _, entries in by_rank]))
    shape = (world.num_nodes, world.ranks_per_node, filled // workers, workers, plan.batch_size)
    return every.reshape(shape).transpose(0, 1, 3, 2, 4)


def state_after(plan: MosaicmlPlan, batches: int) -> dict[str, int]:
    """The state that the reference's loader, on rank 0, has after ``batches`` batches."""
    settings, began = plan.settings, plan.settings.initial_physical_nodes
    return {
        "epoch": plan.epoch,
        "sample_in_epoch": plan.position_after(batches) - plan.first + plan.start,
        "num_canonical_nodes": settings.num_canonical_nodes,
        "shuffle_seed": settings.shuffle_seed,
        "initial_physical_nodes": plan.world.num_nodes if began is None else began,
    }


def start_of(position: EpochPosition) -> MosaicmlStart:
    """The start of the run of a state of the reference."""
    assert isinstance(position.start, MosaicmlStart)
    return position.start
