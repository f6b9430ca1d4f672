"""In an order of mosaicml-streaming, StreamingDataset delivers what that of mosaicml-streaming 0.13.0, run beside it, does.

Both read the same files. Runs that are begun there go on here, and back.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest

from patience import PATIENCE
from peer import PYTHON, Peer, needs_peer
from stoker import MDSWriter, Stream, StreamingDataset, World
from stoker.errors import ConfigError, StateError

pytestmark = [needs_peer, pytest.mark.processes]

Case = dict[str, Any]

SEED: Final = int(os.environ.get("STOKER_TEST_SEED", "0"))
CASES: Final = 50
ALGOS: Final = ("naive", "py1s", "py2s", "py1br", "py1e")
METHODS: Final = ("random", "stratified", "per_stream", "device_per_stream")
STREAMS: Final = {"a": (0, 90), "b": (90, 50), "c": (140, 23)}
"""First sample and number of samples of each stream."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Streams whose samples hold their own numbers, in uneven shards."""
    root = tmp_path_factory.mktemp("streams")
    for name, (first, count) in STREAMS.items():
        with MDSWriter(out=str(root / name), columns={"id": "int", "fill": "bytes"}, size_limit=700) as sink:
            for number in range(first, first + count):
                sink.write({"id": number, "fill": bytes(number * 7 % 90)})
    return root


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    """mosaicml-streaming, which reads as any rank that it is told to be."""
    tmp = tmp_path_factory.mktemp("peer")
    environment = {**os.environ, "TMPDIR": str(tmp), "PYTHONWARNINGS": "ignore"}
    with (tmp / "peer.log").open("wb") as log:
        process = subprocess.Popen(
            [str(PYTHON), str(Path(__file__).parents[1] / "peer_runs.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Peer(process)
        finally:
            process.stdin.close()
            process.wait(timeout=PATIENCE)
            process.stdout.close()


def make_case(rng: random.Random) -> Case:
    """A dataset's arguments, by the names that both have, and its streams' weights."""
    names = rng.choice(["a", "b", "ab", "abc", "abc"])
    kind = rng.choice(["plain", "proportion", "absolute"])
    weights: list[dict[str, Any]] = [{} for _ in names]
    if kind == "proportion":
        weights = [{"proportion": rng.choice([1, 0.4, 2.5])} for _ in names]
    elif kind == "absolute":
        weights = [
            rng.choice([{}, {"repeat": rng.choice([0.6, 1.7, 2])}, {"choose": rng.randint(5, 120)}]) for _ in names
        ]
    options: dict[str, Any] = {
        "batch_size": rng.randint(1, 6),
        "shuffle": rng.random() < 0.85,
        "shuffle_algo": rng.choice(ALGOS),
        "shuffle_seed": rng.randrange(2**31),
        "batching_method": rng.choice(METHODS),
        "sampling_method": rng.choice(["balanced", "balanced", "fixed"]),
        "sampling_granularity": rng.choice([1, 1, 4]),
        "num_canonical_nodes": rng.choice([None, None, 6, 12]),
        "partition_algo": rng.choice(["relaxed", "relaxed", "orig"]),
        "shuffle_block_size": rng.choice([None, 11, 40, 300]),
    }
    if kind != "absolute" and rng.random() < 0.5:
        options["epoch_size"] = rng.randint(20, 250)
    return {"names": names, "weights": weights, "options": {n: v for n, v in options.items() if v is not None}}


def make_leg(rng: random.Random, state: dict[str, Any] | None, epochs: int = 0, steps: int | None = None) -> Case:
    """A world, and how far it reads."""
    nodes, ranks = rng.choice([(1, 1), (1, 2), (2, 1), (2, 2), (3, 1), (1, 3)])
    replication = 2 if nodes * ranks % 2 == 0 and rng.random() < 0.25 else 1
    return {
        "nodes": nodes,
        "ranks_per_node": ranks,
        "replication": replication,
        "state": state,
        "steps": steps,
        "epochs": epochs,
    }


def theirs(peer: Peer, data: Path, case: Case, leg: Case) -> list[Any] | None:
    """What the peer reads; ``None`` where it refuses."""
    streams = [
        {"local": str(data / name), **weight} for name, weight in zip(case["names"], case["weights"], strict=True)
    ]
    try:
        answer: list[Any] = peer.call("read", options=case["options"], streams=streams, leg=leg)
    except AssertionError:
        return None
    return answer


def open_here(data: Path, case: Case, leg: Case, rank: int) -> StreamingDataset:
    """The same dataset, here."""
    return StreamingDataset(
        streams=[
            Stream(local=data / name, **weight) for name, weight in zip(case["names"], case["weights"], strict=True)
        ],
        world=World(rank, leg["nodes"] * leg["ranks_per_node"], leg["ranks_per_node"]),
        replication=leg["replication"],
        columns=["id"],
        **case["options"],
    )


def ours(data: Path, case: Case, leg: Case) -> list[Any]:
    """What is read here: as the peer's, but that the state is stoker's."""
    told: list[Any] = []
    for rank in range(leg["nodes"] * leg["ranks_per_node"]):
        dataset = open_here(data, case, leg, rank)
        if leg["state"] is not None:
            dataset.load_state_dict(leg["state"])
        expected = len(dataset)
        batches = [list(map(int, batch["id"])) for batch in islice(dataset.batches(), leg["steps"])]
        assert all(len(batch) == case["options"]["batch_size"] for batch in batches[:-1])
        first = [number for batch in batches for number in batch]
        if leg["state"] is None and leg["steps"] is None:
            assert len(first) == expected
        state = json.loads(json.dumps(dataset.state_dict()))
        epochs = [first, *([sample["id"] for sample in dataset] for _ in range(leg["epochs"]))]
        told.append((epochs, state))
    return told


def ours_or_refused(data: Path, case: Case, leg: Case) -> list[Any] | None:
    """What is read here; ``None`` where the world can not go on with an epoch that another one divided."""
    try:
        return ours(data, case, leg)
    except StateError as error:
        if "another division has other batches" not in str(error):
            raise
        return None


def check_same(here: list[Any], told: list[Any], said: Any) -> None:
    """Each rank's epochs are the same, but that a rank which has a batch less there repeats one sample here."""
    for (ours, _), (theirs, _) in zip(here, told, strict=True):
        for mine, its in zip(ours, theirs, strict=True):
            assert mine[: len(its)] == its, said
            assert len(mine) <= len(its) + 1, said
            assert set(mine[len(its) :]) <= {number for epochs, _ in told for epoch in epochs for number in epoch}, said


def test_runs_are_the_same_there_and_here_and_continue_there_and_here(peer: Peer, data: Path) -> None:
    rng = random.Random(SEED)
    seen: Counter[str] = Counter()
    for _ in range(CASES):
        case = make_case(rng)
        # The first epoch, and as much of it or of the next one as is read before the run stops.
        begin = make_leg(rng, None, steps=rng.choice([None, rng.randint(1, 8)]))
        told = theirs(peer, data, case, begin)
        if told is None:
            with pytest.raises(ConfigError):
                ours(data, case, begin)
            seen["refused"] += 1
            continue
        here = ours(data, case, begin)
        check_same(here, told, (case, begin))
        state, foreign = told[0][1], here[0][1]["mosaicml-streaming"]
        if begin["steps"] is None or here[0][1]["epoch"]:
            # There, a state at an epoch's end is of that epoch; here, of the next.
            assert (foreign["epoch"], foreign["sample_in_epoch"]) == (1, 0), (case, begin, foreign)
        else:
            assert foreign == state, (case, begin)
        seen.update([case["options"]["batching_method"]])
        seen["shuffled" if case["options"]["shuffle"] else "in order"] += 1
        if case["options"]["shuffle"]:
            seen[case["options"]["shuffle_algo"]] += 1
        seen["mixed"] += len(case["names"]) > 1
        seen.update({next(iter(weight), "all") for weight in case["weights"]})
        # From the state of there, and from that of here, in another world; and one epoch more.
        follow = make_leg(rng, foreign, epochs=1)
        told = theirs(peer, data, case, follow)
        if told is None:
            if foreign["sample_in_epoch"] <= here[0][1]["order"]["epoch_size"]:
                with pytest.raises((ConfigError, StateError)):
                    ours(data, case, follow)
            continue
        one = rng.choice([foreign, here[0][1], foreign if foreign["epoch"] else state])
        resumed = ours_or_refused(data, case, {**follow, "state": one})
        if resumed is None:
            # A state of this side says how the epoch was divided, and is refused where the reference loses samples.
            assert "order" in one
            assert case["options"].get("batching_method", "random") != "random"
            seen["refused here"] += 1
            resumed = ours(data, case, {**follow, "state": foreign})
        check_same(resumed, told, (case, begin, follow, one))
        seen["resumed"] += 1
        seen["replicated"] += follow["replication"] > 1
    assert all(seen[kind] >= 4 for kind in (*METHODS, *ALGOS, "mixed", "proportion", "repeat", "choose")), seen
    assert seen["resumed"] >= CASES // 2, seen


def test_a_run_continues_where_only_repeated_samples_seem_to_be_left(peer: Peer, data: Path) -> None:
    # 12 parts of 13 samples have two each, so that 24 are read. After 14 of them samples of the epoch are still to come.
    options = {
        "batch_size": 1,
        "shuffle": True,
        "shuffle_algo": "py1s",
        "epoch_size": 13,
        "num_canonical_nodes": 12,
        "partition_algo": "orig",
    }
    case: Case = {"names": "a", "weights": [{}], "options": options}
    leg = {"nodes": 1, "ranks_per_node": 2, "replication": 1, "state": None, "steps": 7, "epochs": 0}
    begun, told = ours(data, case, leg), theirs(peer, data, case, leg)
    assert told is not None
    assert begun[0][1]["position"] == told[0][1]["sample_in_epoch"] == 14
    assert begun[0][1]["mosaicml-streaming"] == told[0][1]
    rest = {**leg, "steps": None, "epochs": 1}
    expected = theirs(peer, data, case, {**rest, "state": told[0][1]})
    assert expected is not None
    assert [len(epochs[0]) for epochs, _ in expected] == [5, 5]
    for state in (begun[0][1], told[0][1]):
        assert [e for e, _ in ours(data, case, {**rest, "state": state})] == [e for e, _ in expected]
    read = {number for one in (begun, expected) for epochs, _ in one for number in epochs[0]}
    assert len(read) == 13


def test_a_state_of_the_peer_belongs_to_its_own_orders(data: Path) -> None:
    state = {
        "epoch": 0,
        "sample_in_epoch": 8,
        "num_canonical_nodes": 1,
        "shuffle_seed": 5,
        "initial_physical_nodes": 1,
    }
    StreamingDataset(local=data / "a", shuffle=True, shuffle_algo="py1e", batch_size=2).load_state_dict(state)
    with pytest.raises(ConfigError, match='shuffle_algo="py1e" is its default'):
        StreamingDataset(local=data / "a", shuffle=True, batch_size=2).load_state_dict(state)
    dataset = StreamingDataset(local=data / "a", shuffle=True, shuffle_algo="py1e", batch_size=2)
    with pytest.raises(StateError, match="lacks shuffle_seed"):
        dataset.load_state_dict({name: value for name, value in state.items() if name != "shuffle_seed"})
