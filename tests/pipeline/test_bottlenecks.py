"""Planted bottlenecks are named rightly: a store, function, consumer, buffer or rank is slow, and a trace says which."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slow_store import slow_store, started
from stoker import MDSWriter, StreamingDataLoader, StreamingDataset, Trace
from stoker.errors import ConfigError
from stoker.pipeline.stats.bottleneck import Profile
from stoker.pipeline.stats.trace import profile_traces
from support import run_script

SAMPLES, SHARD, BATCH = 960, 8, 8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 shards of 8 samples of 4 kB."""
    folder = tmp_path_factory.mktemp("planted")
    with MDSWriter({"x": "ndarray:uint8:4096"}, folder / "data", size_limit=None) as out:
        for number in range(0, SAMPLES, SHARD):
            out.write_batch({"x": np.full((SHARD, 4096), number % 251, np.uint8)})
            out.flush_shard()
    return folder


def profiled(path: Path, loader: Any, batches: Any, step: float = 0.0) -> Profile:
    """The profile of a run whose training step sleeps."""
    with loader.trace(path) as trace:
        for _ in batches():
            if step:
                time.sleep(step)
    found: Profile = trace.profile()
    assert profile_traces([trace.path]).kind == found.kind
    return found


def work(sample: dict[str, Any]) -> dict[str, Any]:
    """A transform of about a millisecond."""
    value = sample["x"].astype(np.float64)
    for _ in range(30):
        value = np.sqrt(value + 1.0)
    return {"x": value.astype(np.float32)}


@pytest.mark.processes
def test_a_slow_store(data: Path, tmp_path: Path) -> None:
    with slow_store(data, 0.1) as options:
        dataset = StreamingDataset(
            "s3://any/data", local=tmp_path / "cache", storage_options=options, batch_size=BATCH, shuffle=True
        )
        found = profiled(tmp_path / "trace.json", dataset, dataset.batches)
    assert found.kind == "store", found
    assert found.stages[0].stage == "fetch"
    assert "download_threads=" in found.sentence


@pytest.mark.processes
def test_a_small_buffer(data: Path, tmp_path: Path) -> None:
    """The store has time enough for each shard; some come late, and nothing was asked for in time."""
    with started(str(Path(__file__).with_name("jittery_store.py")), data, 0.004) as options:
        settings: dict[str, Any] = {"storage_options": options, "batch_size": BATCH}
        dataset = StreamingDataset("s3://any/data", local=tmp_path / "cache", predownload=BATCH, **settings)
        found = profiled(tmp_path / "trace.json", dataset, dataset.batches, 0.004)
        assert found.kind == "buffer", found
        assert "predownload=" in found.sentence
        remedied = StreamingDataset("s3://any/data", local=tmp_path / "other", **settings)
        after = profiled(tmp_path / "trace.json", remedied, remedied.batches, 0.004)
    assert after.ranks[0].waited < found.ranks[0].waited / 2


def test_a_slow_consumer(data: Path, tmp_path: Path) -> None:
    dataset = StreamingDataset(data / "data", batch_size=4 * BATCH, shuffle=True)
    found = profiled(tmp_path / "trace.json", dataset, dataset.batches, 0.03)
    assert found.kind == "consumer", found
    assert found.ranks[0].elapsed > 5 * found.ranks[0].waited


@pytest.mark.processes
@pytest.mark.parametrize("workers", [0, 2])
def test_a_slow_transform(data: Path, tmp_path: Path, workers: int) -> None:
    dataset = StreamingDataset(data / "data", batch_size=BATCH, shuffle=True, transform=work)
    if not workers:
        found = profiled(tmp_path / "trace.json", dataset, dataset.batches, 0.0005)
    else:
        loader = StreamingDataLoader(dataset, num_workers=workers)
        found = profiled(tmp_path / "trace.json", loader, lambda: loader, 0.0005)
        assert found.ranks[0].workers == workers
    assert found.kind == "transform", found
    assert "transform" in found.sentence


@pytest.mark.processes
def test_slow_decoding(tmp_path: Path) -> None:
    with MDSWriter({"x": "json"}, tmp_path / "data", size_limit="2mb") as out:
        for number in range(200):
            out.write({"x": [float(value) / 7 for value in range(number, number + 4000)]})
    dataset = StreamingDataset(tmp_path / "data", batch_size=4, shuffle=True)
    found = profiled(tmp_path / "trace.json", dataset, dataset.batches)
    assert found.kind == "decoding", found
    loader = StreamingDataLoader(dataset, num_workers=2, collate_fn=len)
    assert profiled(tmp_path / "trace.json", loader, lambda: loader).kind == "decoding"


_RANK = """
import sys, time

from stoker import StreamingDataset

remote, local, trace, *options = sys.argv[1:]
options = dict(one.split("=", 1) for one in options)
dataset = StreamingDataset(remote, local=local, storage_options=options, batch_size=8, shuffle=True)
with dataset.trace(trace):
    for batch in dataset.batches():
        time.sleep(0.01)
"""


@pytest.mark.processes
def test_one_slow_rank(data: Path, tmp_path: Path) -> None:
    ranks = 3
    with slow_store(data, 0.0) as fast, slow_store(data, 0.2) as slow:

        def run(rank: int) -> None:
            options = [f"{name}={value}" for name, value in (slow if rank == 1 else fast).items()]
            places = ("s3://any/data", tmp_path / str(rank), tmp_path / "trace.json")
            run_script(["-c", _RANK, *places, *options], RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE="1")

        with ThreadPoolExecutor(ranks) as threads:
            list(threads.map(run, range(ranks)))
    found = profile_traces([tmp_path / f"trace.rank{rank}.json" for rank in range(ranks)])
    assert (found.rank, found.kind) == (1, "store"), found
    assert found.sentence.startswith("Rank 1 is slower than the others")


def test_a_trace_of_nothing_says_so(data: Path, tmp_path: Path) -> None:
    with Trace(tmp_path / "trace.json") as trace:
        pass
    with pytest.raises(ConfigError, match="no span of a consumer"):
        trace.profile()
