"""The stage kv_cache: MLPerf Storage's users, operations and bytes, on real files and objects, timed and checked."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench_example import reasons, run_stage
from bench_faults import end_started, pid_of, small_disk, start, wait_for

from patience import PATIENCE
from s3server import Bucket
from stoker.errors import ConfigError, CorruptDataError
from stoker_bench.kv_cache.entries import EntryStore, FileEntries, PartBuffer
from stoker_bench.kv_cache.requests import KvUser, draw_requests, draw_users
from stoker_bench.kv_cache.stage import check_capacity
from stoker_bench.kv_cache.tiers import TierTable
from stoker_bench.kv_cache.workers import KvRun, plan_request
from stoker_bench.measure.call_times import CallTime, CallTimer
from stoker_bench.settings.sources import read_workload
from stoker_bench.settings.workload import Workload


@pytest.fixture(autouse=True)
def _ends() -> Iterator[None]:
    yield
    end_started()


SMALL = (
    *("model.layers=2", "model.hidden_size=256", "model.attention_heads=4", "model.kv_heads=2"),
    *("kv_cache.users=6", "kv_cache.seconds=0", "kv_cache.paced=false", "kv_cache.part_bytes=65536"),
    "kv_cache.kinds=[{name: short, context: [50, 100]}, {name: long, context: [200, 400]}]",
)
"""A model of 1,024 bytes a token, entries of up to 400 KiB."""


def settings(*given: str) -> Workload:
    return read_workload(
        None, ["stages=[kv_cache]", *SMALL, "kv_cache.requests=1", *given], environ={}, dotenv=None
    ).workload


bench = partial(run_stage, "kv_cache", SMALL)


def planned(workload: Workload, requests: int, rank: int = 0) -> tuple[Counter[str], Counter[str]]:
    """Operations and their bytes, by kind and where they go."""
    cache = workload.kv_cache
    table = TierTable(cache.accelerator_bytes, cache.memory_bytes, cache.capacity_bytes or 1 << 60)
    counts, sizes = Counter[str](), Counter[str]()
    for request in itertools.islice(draw_requests(cache, rank), requests):
        for one in plan_request(request, cache, workload.model.kv_bytes, table)[0]:
            counts[f"{one.kind} {one.to}"] += 1
            sizes[f"{one.kind} {one.to}"] += one.entry.size
    return counts, sizes


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("tiny-1b", 24_576),
        ("mistral-7b", 131_072),
        ("llama2-7b", 524_288),
        ("llama-8b", 131_072),
        ("llama-8b-memory", 131_072),
        ("llama-70b", 327_680),
        ("deepseek-v3", 70_272),
        ("qwen3-32b", 262_144),
        ("gpt-oss-120b", 73_728),
        ("gpt-oss-20b", 49_152),
    ],
)
def test_a_token_of_each_published_model_has_the_published_bytes(name: str, size: int) -> None:
    workload = read_workload(f"kv-cache-{name}", environ={}, dotenv=None).workload
    assert workload.model.kv_bytes == size
    assert workload.stages == ("kv_cache",)


def test_users_are_those_that_mlperf_storage_draws_of_the_seed() -> None:
    """Drawn by its own benchmark (April 2026), of seed 42."""
    cache = read_workload("kv-cache-llama-8b", environ={}, dotenv=None).workload.kv_cache
    assert draw_users(cache.kinds, 3, cache.seed) == [
        KvUser("document", 3, 16245, 481, 0.5938702245641714),
        KvUser("chatbot", 1, 3283, 189, 0.13477553305176648),
        KvUser("coding", 3, 7166, 211, 0.3861287147125917),
    ]
    assert (cache.users, cache.writers, cache.seconds, cache.phase) == (200, 16, 300.0, "both")


def test_operations_and_bytes_are_those_of_mlperf_storages_benchmark() -> None:
    """Of the same requests its own tiers and evictions made these, entry by entry: benchmarks/kv_cache_reference.py."""
    workload = read_workload("kv-cache-llama-8b-memory", environ={}, dotenv=None).workload
    counts, sizes = planned(workload, 500)
    assert counts == {"write memory": 500, "read memory": 2537, "move storage": 493, "read storage": 706}
    assert sum(sizes.values()) + sizes["move storage"] == 2_327_171_301_376  # it reads what it moves, too
    gib = 1 << 30
    given = [
        f"kv_cache.{name}_bytes={size * gib}" for name, size in (("accelerator", 8), ("memory", 16), ("capacity", 64))
    ]
    tiny = read_workload("kv-cache-tiny-1b", ["kv_cache.users=50", *given], environ={}, dotenv=None).workload
    counts, sizes = planned(tiny, 1500)
    assert counts == {
        "write accelerator": 1500,
        "read accelerator": 10_620,
        "move memory": 1418,
        "read memory": 1629,
        "move storage": 1296,
        "read storage": 589,
        "delete storage": 580,
    }
    assert sizes["read storage"] == 101_279_391_744


def test_a_seed_gives_the_same_requests_and_each_rank_has_its_own() -> None:
    cache = settings().kv_cache
    first, again, other = (list(itertools.islice(draw_requests(cache, rank), 50)) for rank in (0, 0, 1))
    assert first == again
    assert first != other
    assert [one.arrival for one in first] == sorted(one.arrival for one in first)
    assert all(set(one.earlier) <= set(range(one.number)) for one in first)


def test_tiers_never_hold_more_than_their_budget() -> None:
    table = TierTable(100_000, 300_000, 1_000_000)
    cache = settings().kv_cache
    for request in itertools.islice(draw_requests(cache, 0), 300):
        for one in plan_request(request, cache, 100, table)[0]:
            assert one.entry.size <= 95_000 or one.to != "accelerator"
        held = Counter[str]()
        for entry in table.entries():
            held[entry.tier] += entry.size
        assert {tier: size for tier, size in table.used.items() if size} == dict(held)
        assert held["accelerator"] <= 100_000
        assert held["memory"] <= 300_000
        assert held["storage"] <= 1_000_000


def test_an_entry_larger_than_the_storage_is_an_error() -> None:
    with pytest.raises(
        ConfigError, match=r"does not fit the storage, which may hold 10 bytes: kv_cache.capacity_bytes, or"
    ):
        TierTable(0, 0, 10).write(0, 11)


@pytest.mark.parametrize("workers", [1, 8])
def test_a_run_does_the_operations_of_its_seed_whatever_the_number_of_threads(tmp_path: Path, workers: int) -> None:
    given = [
        f"kv_cache.{name}" for name in ("memory_bytes=1048576", "capacity_bytes=2097152", "requests=60", "repeats=2")
    ]
    result = bench(tmp_path, *given, f"kv_cache.workers={workers}")
    counts, sizes = planned(settings(*given), 60)
    assert len(result["kv_cache"]["repeats"]) == 2
    for repeat in result["kv_cache"]["repeats"]:
        done = repeat["tiers"]
        assert repeat["requests"] == 60
        assert repeat["moves"] == counts["move storage"] > 0
        assert repeat["deletes"] == counts["delete storage"] > 0
        assert done["memory"]["write"]["count"] == counts["write memory"] > 0
        assert done["storage"]["write"]["count"] == counts["move storage"] + counts["write storage"]
        assert done["storage"]["read"]["count"] == counts["read storage"] > 0
        assert done["storage"]["read"]["bytes"] == sizes["read storage"]
        assert done["storage"]["read"]["bytes"] <= repeat["device_bytes"]
        assert repeat["held"]["memory"] <= 1 << 20
    assert result["valid"], result["findings"]
    assert "capacity" in reasons(result, invalid=False)
    assert not list((tmp_path / "data").iterdir())


def test_ranks_add_up(tmp_path: Path) -> None:
    result = bench(tmp_path, "kv_cache.requests=10", "kv_cache.workers=2", ranks=2)
    repeat = result["kv_cache"]["repeats"][0]
    both = [planned(settings(), 10, rank)[0] for rank in (0, 1)]
    assert repeat["requests"] == 20
    assert repeat["tiers"]["storage"]["read"]["count"] == sum(counts["read storage"] for counts in both)
    assert sum(result["kv_cache"]["users"].values()) == 12
    told = json.loads((tmp_path / "results" / "summary.json").read_text())["metric"]
    read = repeat["tiers"]["storage"]["read"]
    assert told["kvcache_aggregated_read_bandwidth_gbps"] == pytest.approx(read["bytes_per_second"] / 2**30)
    assert told["kvcache_aggregated_device_read_p95_ms"] == pytest.approx(1e3 * read["device_latency"]["p95"])
    assert told["kvcache_aggregated_avg_throughput_tokens_per_sec"] == repeat["generated_tokens"] / repeat["seconds"]


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_phase_alone_only_writes_or_only_reads(tmp_path: Path, phase: str) -> None:
    given = ("kv_cache.users=1", "kv_cache.requests=5", "kv_cache.turns=1", f"kv_cache.phase={phase}")
    done = bench(tmp_path, *given)["kv_cache"]["repeats"][0]["tiers"]["storage"]
    assert done["write" if phase == "decode" else "read"] is None
    assert done["read" if phase == "decode" else "write"]["count"] >= 5


def test_time_alone_ends_a_run_and_nothing_is_left(tmp_path: Path) -> None:
    result = bench(tmp_path, "kv_cache.seconds=0.2", "kv_cache.paced=true")
    assert result["complete"]
    assert not list((tmp_path / "data").iterdir())


def test_objects(tmp_path: Path, bucket: Bucket) -> None:
    options = f"storage.options={json.dumps(dict(bucket.storage_options))}"
    result = bench(tmp_path, "kv_cache.requests=8", "kv_cache.workers=2", options, url=bucket.url)
    assert not bucket.keys()
    read = result["kv_cache"]["repeats"][0]["tiers"]["storage"]["read"]
    counts, sizes = planned(settings(), 8)
    assert (read["count"], read["bytes"]) == (counts["read storage"], sizes["read storage"])
    assert "not known" in reasons(result, invalid=False)["page cache"]


def test_what_is_not_on_a_device_is_invalid(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        memory = bench(tmp_path, "kv_cache.requests=3", "kv_cache.direct=false", url=folder)
    assert "is in memory (tmpfs)" in reasons(memory, invalid=True)["kv cache storage"]
    given = ("kv_cache.requests=3", "kv_cache.direct=false", "kv_cache.fsync=false")
    cached = reasons(bench(tmp_path, *given, name="cached"), invalid=True)
    assert "kv_cache.fsync is false" in cached["fsync"]
    assert "too few to tell" in cached["page cache"]


def test_a_run_that_never_reads_the_storage_is_invalid(tmp_path: Path) -> None:
    result = bench(tmp_path, "kv_cache.requests=3", "kv_cache.accelerator_bytes=1073741824")
    assert "the tiers above it hold all" in reasons(result, invalid=True)["kv cache"]


@pytest.mark.processes
def test_a_disk_that_is_small_is_not_filled(tmp_path: Path) -> None:
    settings = ("kv_cache.requests=80", "kv_cache.direct=false", "kv_cache.workers=8")
    with small_disk(tmp_path / "disk", "3m") as folder:
        result = bench(tmp_path, *settings, url=str(folder))
    assert result["kv_cache"]["repeats"][0]["requests"] == 80
    assert "the storage was full" in reasons(result, invalid=False)["capacity"]


class NumberedEntries(EntryStore):
    """Entries that exist in the numbers alone.

    Attributes:
        most: bytes that were there at once.
        begun, ended: operations.
    """

    def __init__(self) -> None:
        self._lock, self._there, self.most, self.begun, self.ended = threading.Lock(), dict[int, int](), 0, 0, 0

    def prepare(self) -> None:
        pass

    def operate(self) -> None:
        """In the midst of an operation."""

    @contextlib.contextmanager
    def _operation(self) -> Iterator[None]:
        with self._lock:
            self.begun += 1
        self.operate()
        with self._lock:
            yield
            self.ended += 1

    def write(self, number: int, size: int, *_: object, **__: object) -> None:
        with self._lock:
            self._there[number] = size
            self.most = max(self.most, sum(self._there.values()))
        with self._operation():
            pass

    def read(self, number: int, size: int, *_: object) -> None:
        with self._operation():
            assert self._there[number] == size

    def delete(self, number: int) -> None:
        with self._operation():
            del self._there[number]

    def clear(self) -> None:
        self._there.clear()


class TimedEntries(NumberedEntries):
    """An operation takes a second of a clock that is data; after the end of the run's time it waits until the run is told."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.now, self.seconds, self.late = 0.0, seconds, 0
        self.told = threading.Event()

    def operate(self) -> None:
        with self._lock:
            self.now += 1
            self.late += self.now > self.seconds
        if self.now >= self.seconds:
            assert self.told.wait(PATIENCE)


@pytest.mark.parametrize("workers", [1, 4])
def test_time_ends_a_run_between_whole_entries(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker ends what it has begun, and begins nothing more."""
    given = (f"kv_cache.workers={workers}", "kv_cache.seconds=50", "kv_cache.requests=100000")
    entries = TimedEntries(50)
    run = KvRun(settings(*given), 0, entries, 2 << 20, 1, check=lambda: None, abandon=threading.Event())
    clock = SimpleNamespace(perf_counter=lambda: entries.now, perf_counter_ns=lambda: round(entries.now * 1e9))
    monkeypatch.setattr("stoker_bench.kv_cache.workers.time", clock)
    entries.told = run._stop
    done = run.run()
    assert entries.begun == entries.ended
    assert 50 <= entries.ended < 50 + workers
    assert done["seconds"] == entries.now == entries.ended
    assert 0 < done["requests"] < 50
    operations = [found for tier in done["tiers"].values() for found in tier.values()]
    assert sum(found["count"] for found in operations) + done["deletes"] == entries.ended


class SlowToGo(NumberedEntries):
    """Entries that take a moment to be removed, so that others are written meanwhile if they may."""

    def operate(self) -> None:
        time.sleep(0.001)


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_entries_that_are_to_go_and_are_still_there_take_their_room(memory: int) -> None:
    """What was planned to be removed for it was still there when an entry was written: more than the storage may hold."""
    capacity, most = 2 << 20, {}
    for workers in (1, 16):
        workload = settings("kv_cache.requests=300", f"kv_cache.workers={workers}", f"kv_cache.memory_bytes={memory}")
        store = SlowToGo() if workers > 1 else NumberedEntries()
        run = KvRun(workload, 0, store, capacity, 1, check=lambda: None, abandon=threading.Event())
        done = run.run()
        assert done["requests"] == 300
        assert done["deletes"] > 10
        most[workers] = store.most
    assert most[16] <= capacity
    assert capacity * 0.7 < most[1] <= capacity  # which is the same each time: the storage is used


def test_an_entry_that_was_changed_is_an_error(tmp_path: Path) -> None:
    entries = FileEntries(str(tmp_path / "entries"), direct=True, fsync=True, check=lambda: None)
    entries.prepare()
    buffer, timer = PartBuffer(1 << 16, 7), CallTimer()
    for number in (1, 2):
        entries.write(number, 200_000, buffer, timer)
    entries.read(1, 200_000, buffer, timer)
    paths = sorted((tmp_path / "entries").iterdir())
    assert [path.stat().st_size for path in paths] == [200_704, 200_704]  # whole pages
    one, other = (path.read_bytes() for path in paths)
    blocks = [found[at : at + 512] for found in (one, other) for at in range(0, 200_704, 512)]
    assert len(set(blocks)) == len(blocks)  # storage that keeps equal blocks once has to keep all of them
    paths[0].write_bytes(one[:81_920] + other[81_920:])
    with pytest.raises(CorruptDataError, match=r"1\.kv: byte 81,920 is not what was written"):
        entries.read(1, 200_000, buffer, timer)
    paths[0].write_bytes(one[:4096])
    with pytest.raises(CorruptDataError, match="has 4,096 bytes, 200,704 were written"):
        entries.read(1, 200_000, buffer, timer)
    timer.close()


class CallClock:
    """The clocks that an operation is timed by, which are data: of all time, of a processor, and of waiting for one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = self.cpu = self.queue = 1_000_000
        module = SimpleNamespace(perf_counter_ns=lambda: self.now, thread_time_ns=lambda: self.cpu)
        patch.setattr("stoker_bench.measure.call_times.time", module)
        patch.setattr(CallTimer, "_queue_time", lambda _: self.queue)

    def take(self, now: int, cpu: int = 0, queue: int = 0) -> None:
        """So many nanoseconds pass, of which some are of a processor, and some of waiting for one."""
        self.now, self.cpu, self.queue = self.now + now, self.cpu + cpu, self.queue + queue


def test_the_time_of_an_operation_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, timer = CallClock(monkeypatch), CallTimer()
    clock.take(77, 5, 3)  # before it
    timer.begin()
    clock.take(20_000, 20_000)
    timer.call(clock.take, 50_000, 4000)
    timer.call(clock.take, 5000, 600, 1000)
    assert timer.end() == CallTime(total=75_000, host=20_000, queue=1000, kernel=4600, calls=2)
    timer.begin()
    timer.call(clock.take, 900, 900)
    assert timer.end() == CallTime(total=900, host=0, queue=0, kernel=900, calls=1)
    timer.begin()
    timer.call(clock.take, 100, 10, 20)
    clock.take(50)
    timer.own(30)  # of the call, which has called back
    assert timer.end() == CallTime(total=150, host=80, queue=20, kernel=10, calls=1)
    timer.begin()
    clock.take(100, 0, 90)  # all of which can not be the host's
    assert timer.end() == CallTime(total=100, host=10, queue=90)
    timer.close()


def test_waiting_for_pythons_lock_is_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, timer = CallClock(monkeypatch), CallTimer()
    timer.probe(clock.take, 50_000)  # before the operation, of which it says nothing
    timer.begin()
    timer.probe(clock.take, 10_000, 2000, 1000)  # 7000 without a processor
    timer.call(clock.take, 40_000)
    timer.call(clock.take, 40_000)
    assert timer.end() == CallTime(total=90_000, host=10_000 + 2 * 7000, queue=1000, calls=2)
    timer.close()


def test_the_kernel_tells_an_operation_s_times() -> None:
    """By real clocks: parts are no more than the whole."""
    waited = [int(Path("/proc/thread-self/schedstat").read_text().split()[1])]
    timer = CallTimer()
    timer.begin()
    timer.call(sum, range(1_000_000))
    found = timer.end()
    assert found.kernel > 0
    assert found.calls == 1
    assert 0 <= found.host + found.queue <= found.total
    waited += [timer._queue_time(), int(Path("/proc/thread-self/schedstat").read_text().split()[1])]
    assert waited == sorted(waited)
    timer.close()


@pytest.mark.processes
@pytest.mark.parametrize("killed", ["rank", "run"])
def test_a_killed_process_leaves_no_entries(tmp_path: Path, killed: str) -> None:
    cache: dict[str, Any] = {"users": 2, "seconds": 600, "part_bytes": 65536, "workers": 2}
    cache |= {"kinds": [{"context": [50, 100], "think_seconds": [0.01, 0.02]}]}
    model = {"layers": 2, "hidden_size": 256, "attention_heads": 4, "kv_heads": 2}
    settings = {"stages": ["kv_cache"], "model": model, "kv_cache": cache}
    data = tmp_path / "d"
    run = start(tmp_path, settings, "--data", str(data), "--accelerators", "2")
    for rank in range(2):
        wait_for(lambda rank=rank: list(data.glob(f"kv-cache/*/0-rank0000{rank}/*")), run)  # type: ignore[misc]
    os.kill(pid_of(tmp_path, 1) if killed == "rank" else run.pid, signal.SIGKILL)
    run.communicate(timeout=PATIENCE)
    deadline = time.monotonic() + PATIENCE  # ranks whose starter is gone notice it, and are nobody's children
    while list(data.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not list(data.iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kv_cache:\n  user: 4\n", "line 2: kv_cache.user is not a setting; did you mean 'users'"),
        ("kv_cache:\n  kinds:\n    - {name: x, context: [5, 1]}\n", "line 3: .*context must be .least, most."),
        ("kv_cache: {part_bytes: 5000}\n", "line 1: kv_cache: part_bytes is a multiple of 4096"),
        ("kv_cache: {seconds: 0}\n", "line 1: kv_cache: the stage never ends"),
        ("kv_cache: {turns: 0}\n", "line 1: kv_cache: turns must be at least 1"),
        ("stages: [kv_cache]\n", "a KV cache needs a model: model.layers is 0"),
    ],
)
def test_errors_have_lines(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "w.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_workload(tmp_path / "w.yaml", environ={}, dotenv=None)


def test_more_memory_than_the_host_has_is_an_error_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kv_cache\.memory_bytes, .* ask for"):
        bench(tmp_path, "kv_cache.memory_bytes=1000tb", "kv_cache.requests=1")
    with pytest.raises(ConfigError, match=r"two part_bytes for each worker, ask for [0-9,]{15,} bytes of this host"):
        bench(tmp_path, "kv_cache.part_bytes=1tib", "kv_cache.requests=1", name="parts")
    assert not list(tmp_path.iterdir())


@pytest.mark.processes
def test_a_storage_too_small_for_an_entry_is_an_error_before_anything_is_started(tmp_path: Path) -> None:
    """Of 6 users of this seed the longest context has 350 tokens of 1,024 bytes."""
    longest = max(user.context for user in draw_users(settings().kv_cache.kinds, 6, 42)) * 1024
    said = r"may have [0-9,]+ tokens of 1,024 bytes, .*\(kv_cache\.capacity_bytes\): each rank needs at least "
    with pytest.raises(ConfigError, match=rf"{said}{longest:,} bytes"):
        bench(tmp_path, "kv_cache.requests=1", f"kv_cache.capacity_bytes={longest - 1}")
    check_capacity(settings(), range(1), longest)
    free = pytest.raises(ConfigError, match=r"a rank's part of what is free there\): each rank needs at least")
    with small_disk(tmp_path / "disk", "256k") as folder, free:
        bench(tmp_path, "kv_cache.requests=1", url=str(folder))
    decode = settings("kv_cache.phase=decode")
    with pytest.raises(ConfigError, match="may have 2,048 tokens of 1,024 bytes"):
        check_capacity(decode, range(1), 2048 * 1024 - 1)
    assert not (tmp_path / "results").exists()
