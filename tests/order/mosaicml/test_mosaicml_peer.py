"""Orders equal those of mosaicml-streaming 0.13.0, which runs beside, number for number."""

from __future__ import annotations

import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mosaicml_cases import (
    ALGOS,
    METHODS,
    Case,
    mixture_of,
    partition_array,
    partition_case,
    plan_of,
    sampling_case,
    shuffle_case,
    work_array,
    work_case,
    worker_ids,
)

from patience import PATIENCE
from peer import PYTHON, Peer, needs_peer
from stoker.errors import ConfigError
from stoker.order.mosaicml.partition import MosaicmlPartition
from stoker.order.mosaicml.shuffles import sample_counts, shuffle_ids

pytestmark = needs_peer

SEED = int(os.environ.get("STOKER_TEST_SEED", "0"))


@contextmanager
def run_orders(tmp: Path, **environ: str) -> Iterator[Peer]:
    """A peer that answers questions about orders, with these variables in its environment."""
    script = Path(__file__).with_name("peer_orders.py")
    environment = {**os.environ, "TMPDIR": str(tmp), "PYTHONWARNINGS": "ignore", **environ}
    with (tmp / "peer.log").open("wb") as log:
        process = subprocess.Popen(
            [str(PYTHON), str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Peer(process)
        finally:
            process.stdin.close()
            process.wait(timeout=PATIENCE)
            process.stdout.close()


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """One peer for all tests here."""
    with run_orders(tmp_path_factory.mktemp("peer")) as running:
        yield running


def ask(peer: Peer, function: str, **arguments: Any) -> Any:
    """The peer's answer, or ``None`` where it refuses."""
    try:
        return peer.call(function, **arguments)
    except AssertionError:
        return None


def test_shuffles(peer: Peer) -> None:
    rng = random.Random(SEED)
    seen: Counter[str] = Counter()
    for _ in range(300):
        case = shuffle_case(rng)
        theirs = ask(peer, "shuffle", **case)
        if theirs is None:
            with pytest.raises(ConfigError):
                shuffle_ids(**{**case, "shard_sizes": np.array(case["shard_sizes"])})
            seen["refused"] += 1
            continue
        ours = shuffle_ids(**{**case, "shard_sizes": np.array(case["shard_sizes"])})
        assert ours.dtype == np.int64
        assert np.array_equal(ours, theirs), case
        seen[case["algo"]] += 1
    assert all(seen[algo] >= 20 for algo in ALGOS), seen


def test_partitions(peer: Peer) -> None:
    rng = random.Random(SEED)
    seen: Counter[str] = Counter()
    for _ in range(600):
        case = partition_case(rng)
        theirs = ask(peer, "partition", **case)
        ours = {name: value for name, value in case.items() if name != "workers_per_rank"}
        if theirs is None and case["drop_first"] > case["num_samples"]:
            continue  # the reference can not go on where some of its repeats were read; this can, or says why not
        if theirs is None:
            with pytest.raises(ConfigError):
                MosaicmlPartition(**ours)
            seen["refused"] += 1
            continue
        partition = MosaicmlPartition(**ours)
        array = partition_array(partition, case["workers_per_rank"])
        assert array.shape == theirs.shape, case
        assert np.array_equal(array, theirs), case
        counts = [partition.count(rank) for rank in range(partition.num_ranks)]
        assert counts == (theirs >= 0).sum(axis=(2, 3, 4)).ravel().tolist(), case
        seen[case["algo"]] += 1
        seen["regrouped"] += partition.regrouped
    assert min(seen["orig"], seen["relaxed"]) >= 100, seen
    assert seen["regrouped"] >= 10, seen


def test_sampling(peer: Peer) -> None:
    rng = random.Random(SEED)
    for _ in range(200):
        case = sampling_case(rng)
        theirs = peer.call("sampling", **case)
        seed = case["seed"] + case["epoch"] * case["use_epoch"]
        ours = sample_counts(np.array(case["samples_per_shard"]), case["choose"], case["granularity"], seed)
        assert np.array_equal(ours, theirs), case


def test_work(peer: Peer) -> None:
    rng = random.Random(SEED)
    seen: Counter[str] = Counter()
    for number in range(1000):
        case = work_case(rng)
        theirs = ask(peer, "work", case=case)
        if theirs is None and case["sample_in_epoch"] > mixture_of(case).epoch_size:
            continue  # likewise
        if theirs is None:
            with pytest.raises(ConfigError):
                work_array(plan_of(case), case["workers"])
            seen["refused"] += 1
            continue
        ids, epoch_size, choose = theirs
        mixture = mixture_of(case)
        assert (mixture.epoch_size, list(mixture.choose)) == (epoch_size, choose), case
        ours = work_array(plan_of(case), case["workers"])
        assert ours.shape == ids.shape, case
        assert np.array_equal(ours, ids), case
        if number % 4 == 0:
            check_ranks(case, ids)
        settings = case["settings"]
        seen[settings["batching_method"]] += 1
        seen["resumed"] += case["sample_in_epoch"] > 0
        seen["mixed"] += len(choose) > 1
        seen["replicated"] += case["replication"] > 1
        if settings["shuffle"]:
            seen[settings["shuffle_algo"]] += 1
    assert sum(seen[method] for method in METHODS) >= 400, seen
    assert all(seen[kind] >= 60 for kind in (*METHODS, *ALGOS, "resumed", "mixed", "replicated")), seen


def check_ranks(case: Case, ids: Any) -> None:
    """Each rank's and worker's part, taken in batches, is what the reference's worker would yield.

    Where the reference gives a rank a batch less than others, it repeats a sample here.
    """
    ranks_per_node = ids.shape[1]
    for rank in range(case["nodes"] * case["ranks_per_node"]):
        plan = plan_of(case, rank)
        node, local = divmod(plan.rank, ranks_per_node)
        parts = [ids[node, local, worker].ravel() for worker in range(case["workers"])]
        total = again = 0
        for worker, part in enumerate(parts):
            ours, real = worker_ids(plan, worker, case["workers"], 1 + 7 * worker), part[part >= 0]
            assert np.array_equal(ours[: len(real)], real), case
            assert set(ours[len(real) :]) <= set(ids[0, 0].ravel().tolist())
            again += len(ours) - len(real)
            total += len(ours)
        assert plan.samples == total
        batches = int((ids[0, 0] >= 0).any(axis=-1).sum())
        assert len(plan) == batches
        assert again == batches - int((ids[node, local] >= 0).any(axis=-1).sum())
