"""Planted bottlenecks are named rightly: a store, function, consumer, buffer or rank is slow, and a trace says which."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slow_store import slow_store, started
from stoker import MDSWriter, ReadOptions, StreamingDataLoader, StreamingDataset, Trace
from stoker.concurrency.spans.recorder import WHOLE, Stage
from stoker.errors import ConfigError
from stoker.pipeline.stats.bottleneck import Profile, find_bottleneck
from stoker.pipeline.stats.trace import profile_traces
from stoker.pipeline.stats.trace_files import SPAN, TracedProcess
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

from stoker import ReadOptions, StreamingDataset

remote, local, trace, *options = sys.argv[1:]
options = dict(one.split("=", 1) for one in options)
# By itself it would fetch as many shards at once as hide 0.2 s, and wait for the first ones alone.
read = ReadOptions(download_threads=4)
dataset = StreamingDataset(remote, local=local, storage_options=options, batch_size=8, shuffle=True, read=read)
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


def test_a_busy_machine_hides_no_slow_rank() -> None:
    """Others have the processors while the ranks compute: by the clock, rank 1 waits for less than 10 % of its time."""
    processes = []
    for rank, wait in enumerate((0, 4, 0)):
        rows: list[tuple[int, ...]] = [(0, 1, 1, Stage.WAIT, 0, 0, 1)]
        for begin in range(1, 5001, 100):
            asked, got = begin + 90, begin + 92 + wait
            rows += [(begin, asked, 1, Stage.PROCESSOR, 0, WHOLE * 8 // 9, 2), (asked, got, 1, Stage.WAIT, 0, 0, 8)]
            if wait:
                rows += [(asked + 2, got, 1, Stage.OPEN, 0, 0, 0), (asked + 2, got, 2, Stage.FETCH, 0, 8, 9)]
            rows.append((asked, asked + 2, 1, Stage.DECODE, 0, 0, 8))
        spans = np.array(sorted(rows, key=lambda row: (row[0], -row[1])), SPAN)
        spans["begin"] *= 1_000_000
        spans["end"] *= 1_000_000
        processes.append(TracedProcess(rank, rank, None, spans))
    found = find_bottleneck(processes, 2)
    assert found.ranks[1].waited < 0.1 * found.ranks[1].elapsed
    assert (found.rank, found.kind) == (1, "store"), found
    assert "other programs or threads had the processors" in found.sentence


@pytest.mark.parametrize("threads", [1, 4])
def test_a_function_that_waits_wants_threads_and_not_processors(data: Path, tmp_path: Path, threads: int) -> None:
    def asks_a_service(sample: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.002)
        return sample

    read = ReadOptions(read_threads=threads)
    dataset = StreamingDataset(data / "data", batch_size=BATCH, shuffle=True, transform=asks_a_service, read=read)
    found = profiled(tmp_path / "trace.json", dataset, dataset.batches)
    assert found.kind == "transform", found
    setting = "read=ReadOptions(read_threads=) of the StreamingDataset"
    assert f"raise {setting} above {threads}, beyond the number of processors" in found.sentence
    assert "more than its" not in found.sentence


def test_a_trace_of_nothing_says_so(data: Path, tmp_path: Path) -> None:
    with Trace(tmp_path / "trace.json") as trace:
        pass
    with pytest.raises(ConfigError, match="no span of a consumer"):
        trace.profile()
