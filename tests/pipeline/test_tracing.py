"""Traces: all processes and threads take part, the file is what Perfetto reads, and times are divided rightly."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from operator import length_hint
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from simulated_clock import MICROSECOND, MILLISECOND, SimulatedClock

from patience import PATIENCE
from stoker import (
    ReadOptions,
    StreamingConfig,
    StreamingDataLoader,
    StreamingDataset,
    StreamingParquetLoader,
    StreamingShardLoader,
    Trace,
    World,
)
from stoker.cache.disk.disk_cache import DiskCache
from stoker.concurrency.spans import recorder as spans
from stoker.concurrency.spans import sample_clock
from stoker.concurrency.spans.recorder import WHOLE, Recorder, Stage, WaitClock
from stoker.concurrency.spans.sample_clock import SampleClock
from stoker.concurrency.spans.thread_times import ReadTimes
from stoker.errors import ConfigError
from stoker.formats.base import ShardInfo
from stoker.pipeline.stats.rank_times import Activity, Intervals
from stoker.pipeline.stats.trace import profile_traces
from stoker.pipeline.stats.trace_files import SPAN, nest, read_recorded, read_trace
from stoker.storage.files.locked_folder import LockedFolder
from support import run_script, write_columns, write_samples


@pytest.fixture
def data(tmp_path: Path) -> Path:
    samples = ({"id": number, "x": np.full(1000, number % 251, np.uint8)} for number in range(400))
    return write_samples(tmp_path / "data", samples, size_limit="40kb", compression="zstd")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimulatedClock:
    return SimulatedClock(monkeypatch)


def dataset_of(data: Path, **settings: Any) -> StreamingDataset:
    return StreamingDataset(str(data), local=data.with_name("cache"), batch_size=16, shuffle=True, **settings)


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def events_of(path: Path) -> list[dict[str, Any]]:
    """Events of a trace, checked against the format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU"""
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    named, nested = set(), defaultdict(list)
    for event in events:
        assert {"name", "ph", "pid", "tid"} <= event.keys()
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "process_sort_index", "thread_name")
            named.add((event["pid"], event["tid"] if event["name"] == "thread_name" else event["name"]))
        else:
            assert event["ph"] == "X"
            assert event["ts"] >= 0 <= event["dur"]
            nested[event["pid"], event["tid"]].append(
                (round(event["ts"] * 1e3), round((event["ts"] + event["dur"]) * 1e3))
            )
    for (pid, tid), times in nested.items():
        assert {(pid, "process_name"), (pid, tid)} <= named
        around: list[int] = []
        for begin, end in sorted(
            times, key=lambda one: (one[0], -one[1])
        ):  # spans of a thread lie apart or in each other
            while around and around[-1] <= begin + 1:
                around.pop()
            assert not around or end <= around[-1] + 1
            around.append(end)
    return events


def stages(events: list[dict[str, Any]]) -> set[str]:
    return {event["name"] for event in events if event["ph"] == "X"}


def test_a_trace_of_threads_is_what_perfetto_reads(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch, turns, together = DiskCache.fetch, itertools.count(), threading.Barrier(2, timeout=PATIENCE)
    fetched_by = set()

    def first_two_together(cache: DiskCache, info: ShardInfo, **settings: Any) -> bool:
        if next(turns) < 2:
            fetched_by.add(threading.get_native_id())
            together.wait()
        return fetch(cache, info, **settings)

    monkeypatch.setattr(DiskCache, "fetch", first_two_together)
    dataset = dataset_of(data, transform=lambda sample: {**sample, "y": 1})
    with Trace(tmp_path / "trace.json") as trace:
        dataset_of(data)
        rows = sum(len(batch["y"]) for batch in dataset.batches())
    events = events_of(trace.path)
    # Whether a reader has to wait for a shard is a matter of time, and whether a thread lives long enough to be looked at.
    assert stages(events) - {"open", "processor"} == {
        "list",
        "fetch",
        "decompress",
        "decode",
        "transform",
        "collate",
        "wait",
    }
    assert len(fetched_by) == 2
    assert fetched_by <= {event["tid"] for event in events if event["name"] == "fetch"}
    read = sum(event["args"]["samples"] for event in events if event["name"] == "collate")
    assert rows == read == 400
    assert set(os.listdir(tmp_path)) == {"data", "cache", "trace.json"}


@pytest.mark.processes
@pytest.mark.parametrize(("start", "columnar"), [("fork", True), ("fork", False), ("spawn", True)])
def test_workers_take_part(data: Path, tmp_path: Path, start: str, columnar: bool) -> None:
    dataset = dataset_of(data, transform=same)
    loader = StreamingDataLoader(dataset, num_workers=2, columnar=columnar, multiprocessing_context=start)
    with loader.trace(tmp_path / "trace.json.gz") as trace:
        rows = sum(len(batch["id"]) for batch in loader)
    assert rows == 400
    processes, facts = read_trace(trace.path)
    assert (facts.rank, facts.world_size) == (0, 1)
    assert sorted((one.worker is not None, one.worker) for one in processes) == [(False, None), (True, 0), (True, 1)]
    assert all(one.pid != os.getpid() for one in processes if one.worker is not None)
    for one in processes:
        made = {Stage(number) for number in np.unique(one.spans["stage"])}
        if one.worker is None:
            assert Stage.WAIT in made
        else:
            assert {Stage.DECODE, Stage.TRANSFORM, Stage.SEND if columnar else Stage.COLLATE} <= made


def test_all_loaders_have_it(data: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"input_ids": pa.array([[1] * 50] * 200, pa.list_(pa.uint32()))}), tmp_path / "0.parquet")
    tokens = StreamingParquetLoader(tmp_path / "0.parquet", batch_size=4, seq_len=16, eos_id=0, pad_id=0)
    leased = StreamingShardLoader(dataset_of(data), StreamingConfig(rank=0, world_size=1))
    for loader, made in (
        (tokens, {"decode", "collate", "wait"}),
        (leased, {"decode", "wait"}),
        (dataset_of(data), {"wait"}),
    ):
        with loader.trace(tmp_path / "trace.json") as trace, loader:
            assert sum(1 for _ in loader) > 100
        assert made <= stages(events_of(trace.path)), loader
        assert trace.profile().ranks[0].elapsed > 0


def test_what_is_delivered_is_the_same(data: Path, tmp_path: Path) -> None:
    plain, traced = dataset_of(data, columns=["id"]), dataset_of(data, columns=["id"])
    state = traced.state_dict()
    with traced.trace(tmp_path / "trace.json"):
        half = []
        for sample in traced:
            half.append(sample["id"])
            if len(half) == 150:
                state = traced.state_dict()
                break
    traced.load_state_dict(state)
    assert half + [sample["id"] for sample in traced] == [sample["id"] for sample in plain]


def test_of_many_short_samples_some_are_measured_and_stand_for_all(tmp_path: Path, clock: SimulatedClock) -> None:
    """The clock goes on by a nanosecond each time that it is asked, and by what a test says that a sample takes."""
    running = Recorder(str(tmp_path))

    def decoded(count: int, takes: int) -> Iterator[int]:
        for number in range(count):
            clock.passes(takes)
            yield number

    def slow(number: int) -> int:
        clock.passes(MILLISECOND)
        return number

    begun, samples = clock.now, range(5000)
    remaining = iter(samples)
    taken = zip(decoded(5000, MICROSECOND), remaining, strict=True)
    assert [sample for sample, _ in SampleClock(running).made(taken, remaining)] == list(samples)
    asked = clock.now - begun - 5000 * MICROSECOND
    assert 5000 / 64 < asked < 5000 / 8
    (found,) = read_recorded(tmp_path, 0, 0)
    assert set(found.spans["stage"].tolist()) == {Stage.DECODE}
    assert found.spans["amount"].sum() == 5000
    assert abs((found.spans["end"] - found.spans["begin"]).sum() - 5000 * MICROSECOND) <= 5000

    remaining, timed = iter(range(20)), SampleClock(running)
    taken = zip(decoded(20, MICROSECOND), remaining, strict=True)
    made = timed.made(taken, remaining, partial(map, lambda pair: slow(pair[0])))
    assert list(made) == list(range(20))
    (found,) = read_recorded(tmp_path, 0, 0)
    long = found.spans[found.spans["stage"] == Stage.TRANSFORM]
    assert (long["end"] - long["begin"]).tolist() == [MILLISECOND + 1] * 20
    running.close()


def test_short_waits_before_a_long_one_are_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([1_000_000, 1_010_000, 1_100_000, 1_120_000, 1_200_000, 1_500_000, 2_000_000, 2_020_000, 2_100_000])
    monkeypatch.setattr(spans, "perf_counter_ns", lambda: next(now))
    running, waits = Recorder(str(tmp_path)), WaitClock()
    spans.record(running)
    try:
        for amount in (1, 2, 4, 8):  # of 10, 20, 300 and 20 µs
            waits.begin()
            waits.end(amount)
        waits.flush()
    finally:
        spans.record(None)
    (found,) = read_recorded(tmp_path, 0, 0)
    rows = [(int(one["begin"]), int(one["end"]), int(one["amount"])) for one in found.spans]
    assert rows == [(1_000_000, 1_010_000, 1), (1_180_000, 1_500_000, 6), (2_080_000, 2_100_000, 8)]
    running.close()


@pytest.mark.parametrize("threads", [0, 1])
def test_what_threads_have_of_the_processors_is_recorded(
    data: Path, tmp_path: Path, clock: SimulatedClock, threads: int
) -> None:
    """Each sample takes 300 µs of its thread, of which it computes 200 and waits for a processor 50."""
    moments: list[tuple[int, int, int]] = []
    readers = set()

    def computes(sample: dict[str, Any]) -> dict[str, Any]:
        clock.passes(300 * MICROSECOND, computed=200 * MICROSECOND, displaced=50 * MICROSECOND)
        here = threading.get_ident()
        moments.append((clock.now, clock.computed[here], clock.displaced[here]))
        readers.add(threading.get_native_id())
        return sample

    dataset = dataset_of(data, transform=computes, read=ReadOptions(read_threads=threads, tune="off"))
    with dataset.trace(tmp_path / "trace.json") as trace:
        for _ in dataset.batches():
            clock.passes(MILLISECOND)
    (reader,) = readers
    (process,), _ = read_trace(trace.path)
    spans = process.spans[(process.spans["stage"] == Stage.PROCESSOR) & (process.spans["thread"] == reader)]
    assert len(spans) > 1
    totals = np.array([(0, 0, 0), *moments])
    for begin, end, *_, part, computed in spans.tolist():
        before, after = totals[np.searchsorted(totals[:, 0], [trace._origin + begin, trace._origin + end], "right") - 1]
        assert computed == after[1] - before[1]
        assert part == pytest.approx(WHOLE * (after[2] - before[2]) / (end - begin), abs=2)


def test_the_time_of_samples_made_in_one_go_is_known_as_a_whole(tmp_path: Path, clock: SimulatedClock) -> None:
    running = Recorder(str(tmp_path))
    stretches, source = SampleClock(running, together=True), iter(range(3000))

    def one_is_slow(number: int) -> int:
        clock.passes(30 * MILLISECOND if number == 1000 else MICROSECOND)  # none of those that are measured
        if number == 2999:
            raise ValueError(number)
        return number

    begin = clock.now
    assert next(iter(stretches.made(iter([]), iter([]))), None) is None
    with pytest.raises(ValueError, match="2999"):
        list(stretches.made(source, source, partial(map, one_is_slow)))
    took = clock.now - begin
    gc.collect()
    (found,) = read_recorded(tmp_path, 0, 0)
    for stage in (Stage.DECODE, Stage.TRANSFORM):
        assert found.spans["amount"][found.spans["stage"] == stage].sum() == 3000
    lengths = found.spans["end"] - found.spans["begin"]
    assert (lengths >= 0).all()
    assert 30 * MILLISECOND <= lengths.sum() <= took
    running.close()


def test_samples_that_are_not_measured_are_counted(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_clock, "_TRIVIAL", 1 << 60)
    running, known = Recorder(str(tmp_path)), ReadTimes()
    for taken in (5000, 1000, 1):  # of the last two steps none is measured
        clock, source = SampleClock(running, known), iter(range(5000))
        got = list(islice(chain(clock.first_decoded(source, source), source), taken))
        clock.end(length_hint(source))
        assert got == list(range(taken))
    (found,) = read_recorded(tmp_path, 0, 0)
    assert found.spans["amount"][found.spans["stage"] == Stage.DECODE].sum() == 6001
    assert (found.spans["end"] >= found.spans["begin"]).all()
    running.close()
    dataset = dataset_of(data)
    for _ in range(2):
        with dataset.trace(tmp_path / "trace.json") as trace:
            assert len(list(dataset)) == 400
        decoded = read_trace(trace.path)[0][0].spans
        assert decoded["amount"][decoded["stage"] == Stage.DECODE].sum() == 400


def test_an_error_of_a_sample_passes_and_the_trace_is_written(data: Path, tmp_path: Path) -> None:
    def fails(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["id"] == 7:
            raise ValueError("seven")
        return sample

    dataset = dataset_of(data, transform=fails)
    earlier = tmp_path / "trace.json"
    earlier.write_text("of a run that was good")
    with pytest.raises(Exception, match="seven") as raised, dataset.trace(earlier) as trace:
        list(dataset)
    assert trace.path == tmp_path / "partial.trace.json"
    assert raised.value.__notes__ == [f"the trace until then is in {trace.path}"]
    assert "transform" in stages(events_of(trace.path))
    assert spans.recorder() is None
    assert earlier.read_text() == "of a run that was good"
    with trace:
        list(islice(dataset_of(data), 4))
    assert trace.path == earlier
    assert "decode" in stages(events_of(earlier))


def test_ranks_write_files_of_their_own(data: Path, tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        dataset = dataset_of(data, world=World(rank, 2))
        with dataset.trace(tmp_path / "trace.json.gz") as trace:
            list(dataset.batches())
        assert trace.path == tmp_path / f"trace.rank{rank}.json.gz"
        paths.append(trace.path)
    assert [one.rank for one in profile_traces(paths).ranks] == [0, 1]
    json.dumps(profile_traces(paths).as_dict())
    with pytest.raises(ConfigError, match="both of rank 0"):
        profile_traces([paths[0], paths[0]])


def test_times_are_divided_among_the_innermost_spans() -> None:
    rows = [(0, 100, 1, Stage.WAIT, 0, 0, 0), (10, 60, 1, Stage.OPEN, 0, 0, 0), (20, 50, 1, Stage.FETCH, 0, 0, 0)]
    rows += [(60, 70, 1, Stage.DECODE, 0, 0, 0), (150, 170, 1, Stage.WAIT, 0, 0, 0)]
    activity = Activity.of(np.array(rows, SPAN))
    everything = activity.during(Intervals(np.array([0.0]), np.array([200.0])))
    assert everything[[Stage.WAIT, Stage.OPEN, Stage.FETCH, Stage.DECODE]].tolist() == [60, 20, 30, 10]
    part = activity.during(Intervals.union(np.array([160, 15, 30]), np.array([165, 40, 55])))
    assert part[[Stage.WAIT, Stage.OPEN, Stage.FETCH, Stage.DECODE]].tolist() == [5, 10, 30, 0]


def test_a_sum_of_short_samples_ends_where_something_else_begins() -> None:
    rows = [(0, 100, 1, Stage.WAIT, 0, 0, 0), (10, 60, 1, Stage.DECODE, 0, 0, 9), (40, 90, 1, Stage.COLLATE, 0, 0, 9)]
    rows += [(50, 60, 1, Stage.SEND, 0, 0, 0), (20, 200, 2, Stage.FETCH, 0, 0, 0)]
    spans_of_all = np.array(sorted(rows), SPAN)
    nest(spans_of_all)
    ends = dict(zip(spans_of_all["stage"].tolist(), spans_of_all["end"].tolist(), strict=True))
    assert ends == {Stage.WAIT: 100, Stage.DECODE: 40, Stage.COLLATE: 90, Stage.SEND: 60, Stage.FETCH: 200}


def test_faults_are_told(data: Path, tmp_path: Path) -> None:
    with Trace(tmp_path / "trace.json") as trace:
        with pytest.raises(ConfigError, match="runs in this process already"), Trace(tmp_path / "other.json"):
            pass
        with pytest.raises(ConfigError, match="leave its with block first"):
            trace.profile()
    with pytest.raises(ConfigError, match="can not be written: a directory is there"), Trace(tmp_path):
        raise AssertionError
    with (
        pytest.raises(ConfigError, match=r"trace s3://bucket/trace\.json can not be written"),
        Trace("s3://bucket/trace.json"),
    ):
        raise AssertionError
    with pytest.raises(ConfigError, match="can not be written: No such file"), Trace(tmp_path / "no" / "trace.json"):
        pass
    for text in ("{}", "no JSON", '{"traceEvents": [], "otherData": {"stoker": 99}}'):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(ConfigError, match=r"bad\.json is (not )?a trace"):
            profile_traces([tmp_path / "bad.json"])
    with pytest.raises(ConfigError, match="can not be read"):
        profile_traces([tmp_path / "none.json"])


_NOT_LEFT = """
import sys
from stoker import StreamingDataset
def batches():
    dataset = StreamingDataset(sys.argv[1], batch_size=16)
    with dataset.trace(sys.argv[2]):
        yield from dataset.batches()
reader = batches()
next(reader)
"""


@pytest.mark.processes
def test_a_trace_that_nobody_ends_is_written_at_exit(tmp_path: Path) -> None:
    write_columns(tmp_path / "plain", {"id": np.arange(100)})
    path = tmp_path / "trace.json"
    assert run_script(["-c", _NOT_LEFT, tmp_path / "plain", path]) == []
    assert "decode" in stages(events_of(path))
    assert not list(tmp_path.glob(".trace.json*"))


@pytest.mark.processes
def test_what_a_killed_process_left_of_a_trace_goes_with_the_next_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    def begin_and_be_killed() -> None:
        pid = os.fork()
        if not pid:
            try:
                with Trace(path):
                    with spans.span(Stage.WAIT):
                        pass
                    os.kill(os.getpid(), signal.SIGKILL)
            finally:
                os._exit(1)
        assert os.waitpid(pid, 0)[1] == signal.SIGKILL

    begin_and_be_killed()
    (left,) = tmp_path.iterdir()
    assert list(left.glob("*.spans"))
    (tmp_path / ".trace.json.emptyone").mkdir()
    others = [tmp_path / ".trace.json.backups_of_mine", tmp_path / ".trace.json.abcdefgh.json"]
    for other in others:
        other.mkdir()
    lives = LockedFolder(tmp_path, ".trace.json.")
    assert not left.exists()
    with Trace(path):
        assert lives.path.is_dir()
    lives.remove()
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


def test_a_recorder_without_room_stops_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "MOST_SPANS", 1 << 14)
    running = Recorder(str(tmp_path))
    for number in range((1 << 14) + 5):
        running.add(Stage.WAIT, number + 1, number + 2)
    (found,) = read_recorded(tmp_path, 0, 0)
    assert (len(found.spans), found.full) == (1 << 14, True)
    running.close()
    running.add(Stage.WAIT, 1, 2)  # of a thread that is late


def test_a_thread_that_begins_when_the_trace_has_ended_is_not_in_it(tmp_path: Path) -> None:
    running = Recorder(str(tmp_path))
    running.add(Stage.WAIT, 1, 2)
    running.close()
    late = threading.Thread(target=running.add, args=(Stage.DECODE, 3, 4))
    late.start()
    late.join(PATIENCE)
    assert not late.is_alive()
    (found,) = read_recorded(tmp_path, 0, 0)
    assert found.spans["stage"].tolist() == [Stage.WAIT]
    assert set(found.spans["thread"].tolist()) == set(found.threads)


def test_many_spans_keep_few_files_open(tmp_path: Path) -> None:
    running, before = Recorder(str(tmp_path)), len(os.listdir("/proc/self/fd"))
    for number in range(1 << 17):
        running.add(Stage.WAIT, number + 1, number + 2)
    assert len(os.listdir("/proc/self/fd")) <= before + 12
    (found,) = read_recorded(tmp_path, 0, 0)
    assert found.spans["begin"].tolist() == list(range(1, (1 << 17) + 1))
    running.close()


def test_settings_of_a_loader_are_written_where_they_are_new(tmp_path: Path) -> None:
    running = Recorder(str(tmp_path))
    for size in (8, 8, 4, 8, 8):
        running.note_loader("StreamingDataset", {"batch_size=": size})
    running.note_loader("LMStream", {"batch_size=": 8})
    running.add(Stage.WAIT, 1, 2)
    (notes,) = tmp_path.glob("*.jsonl")
    sizes = [
        told["settings"]["batch_size="] for told in map(json.loads, notes.read_text().splitlines()) if "loader" in told
    ]
    assert sizes == [8, 4, 8, 8]
    running._renew()  # a child's file has them, too
    running.note_loader("StreamingDataset", {"batch_size=": 8})
    running.add(Stage.WAIT, 1, 2)
    assert sorted(len(one.loaders) for one in read_recorded(tmp_path, 0, 0)) == [1, 2]
    running.close()
