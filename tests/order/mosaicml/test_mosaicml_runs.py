"""Runs of mosaicml-streaming 0.13.0, with its own loader and workers, deliver what plans say; plans go on where they stop."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mosaicml_cases import start_of, state_after
from test_mosaicml_peer import run_orders

from peer import needs_peer
from stoker.index.index import load_index
from stoker.order.mixture.weights import Mixture, StreamWeight
from stoker.order.mosaicml.sample_order import MosaicmlPlan
from stoker.order.mosaicml.settings import MosaicmlSettings, MosaicmlStart, MosaicmlWorld, read_mosaicml_state
from stoker.order.sample_order import EpochPosition
from stoker.storage import open_store
from stoker.types import Ids
from support import write_samples

pytestmark = [needs_peer, pytest.mark.processes, pytest.mark.slow]


def write(root: Path, first: int, count: int) -> Ids:
    """A dataset whose samples hold their own numbers, in uneven shards; returns the shards' sizes."""
    samples = ({"id": number, "fill": bytes(number * 7 % 90)} for number in range(first, first + count))
    write_samples(str(root), samples, size_limit=1500)
    return load_index(open_store(root)).sizes


Pass = tuple[list[list[int]], list[dict[str, Any]]]


@contextmanager
def running_world(tmp: Path, ranks: int) -> Iterator[Callable[[dict[str, Any]], list[list[Pass]]]]:
    """The ranks of one node: a function that has them read, and returns each rank's batches and states, a pass at a time."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ExitStack() as stack:
        peers = []
        for rank in range(ranks):
            home = tmp / f"rank{rank}"
            home.mkdir()
            numbers = {
                "RANK": rank,
                "WORLD_SIZE": ranks,
                "LOCAL_WORLD_SIZE": ranks,
                "LOCAL_RANK": rank,
                "MASTER_PORT": port,
            }
            environ = {name: str(number) for name, number in numbers.items()}
            peers.append(stack.enter_context(run_orders(home, MASTER_ADDR="127.0.0.1", **environ, TMPDIR=str(tmp))))
        pool = stack.enter_context(ThreadPoolExecutor(ranks))
        yield lambda case: list(pool.map(lambda peer: peer.call("iterate", case=case), peers))


def batches_of(plan: MosaicmlPlan, workers: int) -> list[list[int]]:
    """A rank's batches in the order in which a loader with this many workers gives them."""
    parts = [[batch.tolist() for chunk in plan.chunks(20, w, workers) for batch in chunk] for w in range(workers)]
    return [parts[k % workers][k // workers] for k in range(sum(map(len, parts)))]


def check_pass(plan: MosaicmlPlan, workers: int, batches: list[list[int]], states: list[dict[str, Any]]) -> None:
    """A pass of the reference's is the plan's beginning."""
    assert batches_of(plan, workers)[: len(batches)] == batches
    for number, state in enumerate(states, 1):
        assert state_after(plan, number) == state
        begun = MosaicmlStart(
            *(state[name] for name in ("num_canonical_nodes", "shuffle_seed", "initial_physical_nodes"))
        )
        assert read_mosaicml_state(state) == EpochPosition(state["epoch"], state["sample_in_epoch"], start=begun)


@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ({"shuffle_algo": "py1e", "num_canonical_nodes": 2, "shuffle_block_size": 60}, 0),
        ({"shuffle_algo": "py1s"}, 2),
        ({"shuffle_algo": "py1br", "shuffle_block_size": 50, "num_canonical_nodes": 4, "epoch_size": 300}, 3),
        ({"shuffle": False, "epoch_size": 500}, 2),
    ],
)
def test_one_process(tmp_path: Path, options: dict[str, Any], workers: int) -> None:
    sizes = write(tmp_path / "data", 0, 211)
    options = {"batch_size": 7, "shuffle": True, "shuffle_seed": 11, **options}
    case = {
        "options": {**options, "local": str(tmp_path / "data")},
        "workers": workers,
        "state": None,
        "passes": [0, 9],
    }
    with running_world(tmp_path, 1) as read_in:
        ((whole, stopped),) = read_in(case)
        state = stopped[1][-1]
        ((resumed, after),) = read_in({**case, "state": state, "passes": [0, 3]})
    mixture = Mixture.resolve([sizes], None, options.pop("epoch_size", None), 11)
    settings = MosaicmlSettings.resolve(MosaicmlWorld(), **options)
    check_pass(MosaicmlPlan(mixture, settings), max(1, workers), *whole)
    assert len(whole[0]) == len(MosaicmlPlan(mixture, settings))
    check_pass(MosaicmlPlan(mixture, settings, epoch=1), max(1, workers), *stopped)
    read = read_mosaicml_state(state)
    plan = MosaicmlPlan(mixture, settings.resumed(start_of(read)), epoch=read.epoch, start=read.position)
    check_pass(plan, max(1, workers), *resumed)
    assert len(resumed[0]) == len(plan)
    assert stopped[0] + resumed[0] == batches_of(MosaicmlPlan(mixture, settings, epoch=1), 1)
    check_pass(MosaicmlPlan(mixture, settings.resumed(start_of(read)), epoch=2), max(1, workers), *after)


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        ({"batching_method": "random", "shuffle_algo": "py2s", "num_canonical_nodes": 4}, 2),
        ({"batching_method": "stratified", "shuffle_algo": "py1e", "shuffle_block_size": 90}, 2),
        ({"batching_method": "per_stream", "shuffle_algo": "naive", "sampling_method": "fixed"}, 2),
        ({"batching_method": "device_per_stream", "shuffle_algo": "py1br", "shuffle_block_size": 80}, 2),
        ({"batching_method": "random", "shuffle_algo": "py1s", "replication": 2}, 2),
    ],
)
def test_a_mixture_on_ranks(tmp_path: Path, options: dict[str, Any], ranks: int) -> None:
    sizes = [write(tmp_path / "a", 0, 150), write(tmp_path / "b", 150, 90), write(tmp_path / "c", 240, 40)]
    weights: list[dict[str, Any]] = [{"repeat": 0.7}, {"repeat": 2.3}, {"choose": 55}]
    options = {"batch_size": 4, "shuffle": True, "shuffle_seed": 5, **options}
    case = {
        "options": options,
        "streams": [{"local": str(tmp_path / name), **weight} for name, weight in zip("abc", weights, strict=True)],
        "workers": 2,
        "state": None,
        "passes": [5],
    }
    with running_world(tmp_path, ranks) as read_in:
        first = read_in(case)
        state = first[0][0][1][-1]
        second = read_in({**case, "state": state, "passes": [0]})
    mixture = Mixture.resolve(sizes, [StreamWeight(**weight) for weight in weights], None, 5)
    read = read_mosaicml_state(state)
    replication = options.pop("replication", 1)
    for rank in range(ranks):
        world = MosaicmlWorld(rank, 1, ranks).replicate(replication)
        settings = MosaicmlSettings.resolve(world, **options)
        check_pass(MosaicmlPlan(mixture, settings, world), 2, *first[rank][0])
        plan = MosaicmlPlan(mixture, settings.resumed(start_of(read)), world, read.epoch, read.position)
        batches, states = second[rank][0]
        ours = batches_of(plan, 2)
        assert ours[: len(batches)] == batches
        # A rank that has a batch less than rank 0 there repeats one sample here, so that all end together.
        assert len(ours) == len(batches) or (rank and [len(batch) for batch in ours[len(batches) :]] == [1])
        # States are rank 0's; others differ from it where they have fewer batches.
        check_pass(plan, 2, ours, states if rank == 0 else [])
