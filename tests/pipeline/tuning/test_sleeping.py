"""A loop that reads and computes has no tuner; one whose thread waits gets one in the middle of its iteration."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_tuner import RandomRules, digest

from stoker import ReadOptions, StreamingDataset
from stoker.cluster import LoaderWorker
from stoker.pipeline.tuning import tuner
from stoker.pipeline.tuning.tuner import FIRST, Tuner
from stoker.policy import ReadAmounts
from support import write_columns

NEAR = ReadAmounts(near=True)
AUTO = ReadOptions(tune="auto")


class Clock:
    """Times of a thread that computes, or waits for a processor, for parts of the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.computed, self.displaced = 5, 0, 0
        times = SimpleNamespace(perf_counter_ns=lambda: self.now, thread_time_ns=lambda: self.computed)
        monkeypatch.setattr(tuner, "time", times)
        monkeypatch.setattr(tuner, "displaced_time", lambda: self.displaced)

    def passes(self, nanoseconds: int, computes: float, displaced: float = 0.0) -> None:
        self.now += nanoseconds
        self.computed += round(computes * nanoseconds)
        self.displaced += round(displaced * nanoseconds)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10 shards of 40 samples."""
    x = np.repeat(np.arange(0, 400, 40) % 251, 40 * 256).astype(np.uint8).reshape(400, 256)
    return write_columns(tmp_path_factory.mktemp("late") / "data", {"x": x, "n": np.arange(400)}, shard=40)


@pytest.fixture
def late(data: Path) -> Tuner:
    return Tuner(StreamingDataset(data, batch_size=8).epoch_reader.pool)


def test_a_thread_that_computes_is_looked_at_ever_less(late: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert late.sleeps(NEAR, ahead=False)
    waits = []
    for computes, displaced, waited in (
        (0.98, 0.0, 1.0),
        (0.5, 0.5, 1.0),
        (1.0, 0.0, 1.0),
        (0.0, 0.0, 0.02),  # a consumer that has all other work done elsewhere
        (0.2, 0.78, 1.0),
        (1.0, 0.0, 1.0),
    ):
        waits.append(late.due - clock.now)
        assert late.sleeps(NEAR, ahead=False), "the next epoch changes nothing"
        assert late.due - clock.now == waits[-1]
        clock.passes(waits[-1] + 7, computes, displaced)
        late._pool.counts.waited(round(waited * waits[-1]))
        assert not late.wakes()
    assert [wait // FIRST for wait in waits] == [1, 2, 4, 8, 16, 16]
    clock.passes(16 * FIRST, 0.9, 0.05)
    late._pool.counts.waited(FIRST)
    assert late.wakes()


def test_where_another_thread_or_a_store_may_keep_it_waiting_the_tuner_never_sleeps(late: Tuner) -> None:
    assert not late.sleeps(NEAR, ahead=True)
    assert not late.sleeps(ReadAmounts(near=False), ahead=False)
    assert late.sleeps(NEAR, ahead=False)
    late.begin(
        NEAR,
        batch_size=8,
        chunk_bytes=1,
        threads=0,
        tune_threads=True,
        processes=0,
        tune_processes=False,
        worker=LoaderWorker(),
    )
    assert not late.sleeps(NEAR, ahead=False), "it is awake"


def test_times_of_another_thread_are_not_compared(late: Tuner, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    assert late.sleeps(NEAR, ahead=False)
    clock.passes(FIRST, 0.0)
    found = []
    thread = threading.Thread(target=lambda: found.append(late.sleeps(NEAR, ahead=False)))
    thread.start()
    thread.join()
    assert found == [True]
    assert late.due == clock.now + FIRST
    clock.passes(FIRST, 0.0)
    late._pool.counts.waited(FIRST)
    clock.computed = -1  # as in a forked child
    assert not late.wakes()


def test_a_tuner_that_wakes_in_an_iteration_changes_no_sample(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StreamingDataset(data, batch_size=8, shuffle=True, read=ReadOptions(tune="off")) as dataset:
        expected = digest(dataset.batches()), digest(dataset.batches())
    monkeypatch.setattr(Tuner, "rules", lambda _, ranges, memory: RandomRules(ranges, memory))
    monkeypatch.setattr(tuner, "FIRST", 0)
    Clock(monkeypatch).now = 0  # due at once
    looked = []

    def wakes(self: Tuner) -> bool:
        looked.append(self._tuning)
        return len(looked) == 3

    monkeypatch.setattr(Tuner, "wakes", wakes)
    with StreamingDataset(data, batch_size=8, shuffle=True, read=AUTO) as dataset:
        assert (digest(dataset.batches()), digest(dataset.batches())) == expected
        assert len(looked) == 3
        assert dataset.stats().tuning


@pytest.mark.processes
def test_a_loop_that_reads_imports_no_rules(data: Path) -> None:
    code = (
        "import sys\n"
        "from stoker import ReadOptions, StreamingDataset\n"
        "from stoker.pipeline.tuning import tuner\n"
        "tuner.FIRST = 1 << 60\n"
        f"with StreamingDataset({str(data)!r}, batch_size=8, read=ReadOptions(tune='auto')) as dataset:\n"
        "    for _ in range(3):\n"
        "        assert sum(len(batch['n']) for batch in dataset.batches()) == 400\n"
        "    assert dataset.stats().tuning == ()\n"
        "tuning = 'stoker.pipeline.tuning.'\n"
        "print(sorted(name.removeprefix(tuning) for name in sys.modules if name.startswith(tuning)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.strip() == "['tuner']"
