"""Planted bottlenecks are named rightly: a store, function, consumer, buffer or rank is slow, and a trace says which.

Time is data here: that of a loader in this thread is a :class:`~simulated_clock.SimulatedClock`, and that of workers and
threads is in spans that a test makes up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simulated_clock import MICROSECOND, MILLISECOND, SimulatedClock, SimulatedStore

from slow_store import slow_store
from stoker import ReadOptions, StreamingDataset, Trace, World
from stoker.concurrency.spans.recorder import WHOLE, Stage
from stoker.errors import ConfigError
from stoker.formats.mds.encodings.text import Json
from stoker.pipeline.stats.bottleneck import Profile, find_bottleneck
from stoker.pipeline.stats.trace import profile_traces
from stoker.pipeline.stats.trace_files import SPAN, SettingsByLoader, TracedProcess, TraceFacts, write_trace
from support import write_columns, write_samples

SAMPLES, SHARD, BATCH = 960, 8, 8

HERE: dict[str, Any] = {"read_threads": 0, "tune": "off"}
"""Options of what is read by this thread, whatever a tuner would measure."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 shards of 8 samples of 4 kB."""
    folder = tmp_path_factory.mktemp("planted")
    x = np.repeat(np.arange(0, SAMPLES, SHARD) % 251, SHARD * 4096).astype(np.uint8).reshape(SAMPLES, 4096)
    write_columns(folder / "data", {"x": x}, shard=SHARD)
    return folder


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimulatedClock:
    return SimulatedClock(monkeypatch)


# -- loaders by a simulated clock --------------------------------------------------------------------------------------------


def profiled(path: Path, loader: Any, batches: Iterable[Any], clock: SimulatedClock, step: int = 0) -> Profile:
    """The profile of a run whose training step takes some ns."""
    with loader.trace(path) as trace:
        for _ in batches:
            clock.computes(step)
    found: Profile = trace.profile()
    assert profile_traces([trace.path]).kind == found.kind
    return found


def far(data: Path, cache: Path, **settings: Any) -> StreamingDataset:
    """The dataset in its own order, in which its shards are fetched into a cache."""
    return StreamingDataset(f"file://{data}/data", local=cache, batch_size=BATCH, **settings)


def test_a_slow_store(data: Path, tmp_path: Path, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch) -> None:
    SimulatedStore(clock, 100 * MILLISECOND, monkeypatch)
    dataset = far(data, tmp_path / "cache", read=ReadOptions(download_threads=1, **HERE))
    found = profiled(tmp_path / "trace.json", dataset, dataset.batches(), clock)
    assert found.kind == "store", found
    assert found.stages[0].stage == "fetch"
    assert "download_threads=" in found.sentence


@pytest.mark.parametrize(("predownload", "kind"), [(BATCH, "buffer"), (None, "store")])
def test_a_small_buffer(
    data: Path,
    tmp_path: Path,
    clock: SimulatedClock,
    monkeypatch: pytest.MonkeyPatch,
    predownload: int | None,
    kind: str,
) -> None:
    """Of the 8 downloads that may run, two or three are asked for; by default all are."""
    SimulatedStore(clock, 100 * MILLISECOND, monkeypatch)
    read = ReadOptions(download_threads=8, **HERE)
    dataset = far(data, tmp_path / "cache", predownload=predownload, read=read)
    found = profiled(tmp_path / "trace.json", dataset, dataset.batches(), clock, 4 * MILLISECOND)
    assert found.kind == kind, found
    assert ("predownload=" in found.sentence) == (kind == "buffer")


@pytest.mark.parametrize(("step", "kind"), [(30, "consumer"), (20, "consumer"), (10, "transform")])
def test_a_slow_consumer(data: Path, tmp_path: Path, clock: SimulatedClock, step: int, kind: str) -> None:
    """Each batch takes 1.6 ms of the loader: less than a tenth of the time, or more."""

    def quick(sample: dict[str, Any]) -> dict[str, Any]:
        clock.computes(50 * MICROSECOND)
        return sample

    read = ReadOptions(**HERE)
    dataset = StreamingDataset(data / "data", batch_size=4 * BATCH, shuffle=True, transform=quick, read=read)
    found = profiled(tmp_path / "trace.json", dataset, dataset.batches(), clock, step * MILLISECOND)
    assert found.kind == kind, found


def test_a_slow_transform(data: Path, tmp_path: Path, clock: SimulatedClock) -> None:
    def works(sample: dict[str, Any]) -> dict[str, Any]:
        clock.computes(MILLISECOND)
        return sample

    read = ReadOptions(**HERE)
    dataset = StreamingDataset(data / "data", batch_size=BATCH, shuffle=True, transform=works, read=read)
    found = profiled(tmp_path / "trace.json", dataset, dataset.batches(), clock, MILLISECOND // 2)
    assert found.kind == "transform", found
    assert "transform" in found.sentence


@pytest.mark.parametrize("columnar", [True, False])
def test_slow_decoding(
    tmp_path: Path, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch, *, columnar: bool
) -> None:
    write_samples(tmp_path / "data", ({"x": [number] * 10} for number in range(200)), size_limit="2kb")
    decode = Json.decode

    def slow(encoding: Json, text: bytes) -> Any:
        clock.computes(3 * MILLISECOND)
        return decode(encoding, text)

    monkeypatch.setattr(Json, "decode", slow)
    dataset = StreamingDataset(tmp_path / "data", batch_size=4, shuffle=True, read=ReadOptions(**HERE))
    batches = dataset.batches() if columnar else dataset
    found = profiled(tmp_path / "trace.json", dataset, batches, clock, MILLISECOND // 2)
    assert found.kind == "decoding", found


def test_one_slow_rank(data: Path, tmp_path: Path) -> None:
    ranks = range(3)
    for rank in ranks:
        with pytest.MonkeyPatch.context() as patch:
            clock = SimulatedClock(patch)
            SimulatedStore(clock, (200 if rank == 1 else 10) * MILLISECOND, patch)
            read = ReadOptions(download_threads=1, **HERE)
            dataset = far(data, tmp_path / str(rank), world=World(rank, len(ranks)), read=read)
            profiled(tmp_path / "trace.json", dataset, dataset.batches(), clock, 10 * MILLISECOND)
    found = profile_traces([tmp_path / f"trace.rank{rank}.json" for rank in ranks])
    assert (found.rank, found.kind) == (1, "store"), found
    assert found.sentence.startswith("Rank 1 is slower than the others")


# It must measure: in all others the clock and the store are made up, and only a real store shows that its real time is in the
# trace. It takes 3 seconds, and it is enough that nothing else takes as long.
@pytest.mark.timing
@pytest.mark.processes
def test_a_store_that_is_slow_by_the_clock_of_the_machine(data: Path, tmp_path: Path) -> None:
    read = ReadOptions(download_threads=4)
    with slow_store(data, 0.1) as options:
        settings: dict[str, Any] = {"storage_options": options, "batch_size": BATCH, "shuffle": True, "read": read}
        dataset = StreamingDataset("s3://any/data", local=tmp_path / "cache", **settings)
        with dataset.trace(tmp_path / "trace.json") as trace:
            assert sum(len(batch["x"]) for batch in dataset.batches()) == SAMPLES
    found = trace.profile()
    assert (found.kind, found.stages[0].stage) == ("store", "fetch"), found


# -- spans that are made up --------------------------------------------------------------------------------------------------

Row = tuple[int, int, int, Stage, int, int, int]
"""A span as in :data:`~stoker.pipeline.stats.trace_files.SPAN`, in ms."""


def made_up(
    rows: Iterable[Row], *, rank: int = 0, worker: int | None = None, loaders: SettingsByLoader | None = None
) -> TracedProcess:
    """A process of which a trace has these spans."""
    spans = np.array(sorted(rows, key=lambda row: (row[0], -row[1])), SPAN)
    spans["begin"] *= MILLISECOND
    spans["end"] *= MILLISECOND
    number = 10 * rank + (0 if worker is None else 1 + worker)
    return TracedProcess(number, rank, worker, spans, loaders=loaders or {})


def judged(processes: Sequence[TracedProcess], cores: int, folder: Path) -> Profile:
    """The profile of a rank's processes, which is that of their trace, too."""
    found = find_bottleneck(processes, cores)
    write_trace(folder / "trace.json", processes, TraceFacts(0, 1, 0, cores), folder)
    assert profile_traces([folder / "trace.json"]).kind == found.kind
    return found


def test_a_busy_machine_hides_no_slow_rank() -> None:
    """Others have the processors while the ranks compute: by the clock, rank 1 waits for less than 10 % of its time."""
    processes = []
    for rank, wait in enumerate((0, 4, 0)):
        rows: list[Row] = [(0, 1, 1, Stage.WAIT, 0, 0, 1)]
        for begin in range(1, 5001, 100):
            asked, got = begin + 90, begin + 92 + wait
            rows += [(begin, asked, 1, Stage.PROCESSOR, 0, WHOLE * 8 // 9, 2), (asked, got, 1, Stage.WAIT, 0, 0, 8)]
            if wait:
                rows += [(asked + 2, got, 1, Stage.OPEN, 0, 0, 0), (asked + 2, got, 2, Stage.FETCH, 0, 8, 9)]
            rows.append((asked, asked + 2, 1, Stage.DECODE, 0, 0, 8))
        processes.append(made_up(rows, rank=rank))
    found = find_bottleneck(processes, 2)
    assert found.ranks[1].waited < 0.1 * found.ranks[1].elapsed
    assert (found.rank, found.kind) == (1, "store"), found
    assert "other programs or threads had the processors" in found.sentence


@pytest.mark.parametrize(("stage", "kind"), [(Stage.TRANSFORM, "transform"), (Stage.DECODE, "decoding")])
def test_a_slow_stage_of_workers(tmp_path: Path, stage: Stage, kind: str) -> None:
    """Each of 2 workers makes a batch in 40 ms, of which one stage takes 30; the consumer takes 1 ms for it."""
    loaders = {"StreamingDataLoader": {"num_workers=": 2}}
    waits: list[Row] = [(begin, begin + 19, 1, Stage.WAIT, 0, 0, 8) for begin in range(0, 2000, 20)]
    processes = [made_up(waits, loaders=loaders)]
    for worker in range(2):
        rows: list[Row] = []
        for begin in range(20 * worker, 2000, 40):
            others = (Stage.DECODE if stage is Stage.TRANSFORM else Stage.TRANSFORM, Stage.COLLATE, Stage.SEND)
            rows += [(begin + 2 * n, begin + 2 * n + 2, 1, other, 0, 0, 8) for n, other in enumerate(others)]
            rows.append((begin + 6, begin + 36, 1, stage, 0, 0, 8))
            rows.append((begin, begin + 40, 1, Stage.PROCESSOR, 0, 0, 40 * MILLISECOND))
        processes.append(made_up(rows, worker=worker))
    found = judged(processes, 2, tmp_path)
    assert found.kind == kind, found
    assert found.ranks[0].workers == 2
    assert "give the rank more than its 2 processors" in found.sentence


@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("threads", [1, 4])
def test_a_function_that_waits_wants_threads_and_not_processors(tmp_path: Path, threads: int, *, waits: bool) -> None:
    """Threads call it all the time: each waits for 19 of 20 ms, or they compute in turns."""
    setting = "read=ReadOptions(read_threads=)"
    computed = MILLISECOND if waits else 20 * MILLISECOND // threads
    rows: list[Row] = []
    for begin in range(0, 2000, 20):
        rows.append((begin, begin + 19, 1, Stage.WAIT, 0, 0, 8))
        for thread in range(2, 2 + threads):
            rows.append((begin, begin + 20, thread, Stage.TRANSFORM, 0, 0, 8))
            rows.append((begin, begin + 20, thread, Stage.PROCESSOR, 0, 0, computed))
    found = judged([made_up(rows, loaders={"StreamingDataset": {setting: threads}})], 4, tmp_path)
    assert found.kind == "transform", found
    raised = f"raise {setting} of the StreamingDataset above {threads}, beyond the number of processors"
    assert (raised in found.sentence) == waits
    assert ("more than its 4 processors" in found.sentence) == (threads == 4 and not waits)


def test_a_trace_of_nothing_says_so(data: Path, tmp_path: Path) -> None:
    with Trace(tmp_path / "trace.json") as trace:
        pass
    with pytest.raises(ConfigError, match="no span of a consumer"):
        trace.profile()
