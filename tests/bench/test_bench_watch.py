"""Ranks that hang are noticed, and named with the function; who waits for others, or stood still with its host, is not."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench_faults import end_started, failed, start

from stoker.bench.loaders.base import SplitListing
from stoker.bench.measure.training import Training
from stoker.bench.ranks.control.client import Link, RankFailedError
from stoker.bench.ranks.control.server import Server
from stoker.bench.ranks.control.silence import SilenceClock
from stoker.bench.ranks.launch import LocalRanks
from stoker.bench.ranks.plan import RunPlan
from stoker.bench.ranks.rank_context import RankContext
from stoker.bench.ranks.step_watch import StepWatch
from stoker.bench.ranks.termination import is_stopped
from stoker.bench.ranks.worker_stacks import listen, tell_stacks, worker_stacks
from stoker.bench.settings.workload import Workload
from stoker.cluster import World
from stoker.storage.files.locked_folder import LockedFolder


class Waits:
    """A link that says whether it waits."""

    waiting = False


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    yield tmp_path
    end_started()


def watched(link: Waits, block: Callable[[StepWatch], None], seconds: float = 0.5) -> list[str]:
    """The words of a watch on a block."""
    said: list[str] = []
    with StepWatch(link, seconds, said.append) as watch:  # type: ignore[arg-type]
        block(watch)
    return said


def test_a_function_that_does_not_return_is_named() -> None:
    hung = threading.Event()

    def never(watch: StepWatch) -> None:
        with watch.steps("epoch 0", lambda: 7, object()):
            deadline = time.monotonic() + 30
            while not hung.is_set() and time.monotonic() < deadline:
                hung.wait(0.05)

    said: list[str] = []

    def on_hang(one: str) -> None:
        said.append(one)
        hung.set()

    with StepWatch(Waits(), 0.5, on_hang) as watch:  # type: ignore[arg-type]
        never(watch)
    (one,) = said
    assert "in epoch 0, step 7, waiting for a batch" in one
    assert "never (test_bench_watch.py:" in one


def _busy_worker(ready: Any) -> None:
    listen()
    ready.set()
    time.sleep(600)


@pytest.mark.processes
def test_worker_processes_tell_what_they_do_and_others_are_left_alone() -> None:
    tell_stacks()
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    worker = context.Process(target=_busy_worker, args=(ready,), daemon=True)
    other = subprocess.Popen(["sleep", "600"])
    worker.start()
    try:
        assert ready.wait(60)
        assert worker.pid is not None
        found: list[str] = []
        deadline = time.monotonic() + 60
        while found[:2] != ["_busy_worker", "run"] and time.monotonic() < deadline:  # once it has left Event.set()
            told = worker_stacks()
            assert other.pid not in told
            found = [frame.name for frame in told[worker.pid]]
        assert found[:2] == ["_busy_worker", "run"]
        assert other.poll() is None
    finally:
        worker.kill()
        other.kill()
        worker.join()
        other.wait()


def test_a_listing_that_does_not_end_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    hung, said = threading.Event(), list[str]()

    def never(_: object) -> SplitListing:
        assert hung.wait(30)
        return SplitListing(1, 1, None, 1, 1, 1, 0.0)

    def on_hang(one: str) -> None:
        said.append(one)
        hung.set()

    class Alone(Waits):
        def gather(self, _: str, value: object) -> list[object]:
            return [value]

    monkeypatch.setattr("stoker.bench.measure.training.list_split", never)
    record: dict[str, Any] = {"listing": {}, "read_threads": 1}
    link: Any = Alone()
    with StepWatch(link, 0.05, on_hang) as watch:
        rank = RankContext(RunPlan(Workload(), "/d", "/r", "x"), World(), link, record, lambda: None)
        Training(rank, None, watch).list_files()
    (one,) = said
    assert "in listing the data: in " in one


def test_who_waits_for_others_makes_steps_or_saves_does_not_hang() -> None:
    link = Waits()

    def waits(watch: StepWatch) -> None:
        with watch.steps("epoch 0", lambda: 0, None):
            link.waiting = True
            time.sleep(1.5)
            link.waiting = False

    def saves(watch: StepWatch) -> None:
        with watch.steps("epoch 0", lambda: 0, None), watch.pause():
            time.sleep(1.5)

    def steps(watch: StepWatch) -> None:
        with watch.steps("epoch 0", lambda: time.monotonic_ns(), None):
            time.sleep(1.5)

    def opens(watch: StepWatch) -> None:
        with watch.work("opening"):
            time.sleep(1.5)

    for block in (waits, saves, steps, opens):
        assert watched(link, block) == []


def test_the_time_in_which_a_process_itself_stood_still_is_nobody_s_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("stoker.bench.ranks.control.silence.time", SimpleNamespace(monotonic=lambda: now[0]))
    others = SilenceClock(10)
    others.heard(1)
    now[0] += 3600  # stopped, and continued
    assert others.look() is None
    for _ in range(9):
        now[0] += 1
        found = others.look()
    assert found == 1
    others.heard(1)
    assert others.look() is None


def test_a_server_that_gives_no_sign_is_an_error() -> None:
    """As where rank 0 is stopped: its kernel holds the connection."""
    server = Server(1, "token", "digest")  # which answers
    link = Link(lambda: ("127.0.0.1", server.port, "token"), 0, "digest", silence=0.5)
    time.sleep(1.5)
    link.check()
    server._take = lambda *_: False  # type: ignore[method-assign] # which does not any more
    with pytest.raises(RankFailedError, match=r"the process that the ranks meet at gave no sign for 0\.5 s"):
        link.gather("x")
    assert link.lost
    link.close()
    server.close()


@pytest.mark.processes
@pytest.mark.parametrize("hanging", [0, 1])
def test_a_hanging_rank_of_a_launcher_is_named_and_results_stay(hanging: int, path: Path) -> None:
    """Rank 0, too, which writes them."""
    settings = {
        "reader": {"loader": "bench_loaders:Hangs" if hanging else "bench_loaders:Hangs0"},
        "train": {"epochs": 3, "step_timeout": 4},
    }
    runs = [
        start(path, settings, "--data", "/nothing", RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
        for rank in range(2)
    ]
    for run in runs:
        said = run.communicate(timeout=90)[1]
        assert "Traceback" not in said
        assert f"rank {hanging}" in said
        assert "hangs: no progress" in said
        assert run.returncode == 1
    result = failed(path)
    assert f"rank {hanging}" in result["failure"] or "hangs: no progress" in result["failure"]
    assert result["epochs"][0]["complete"]
    assert "hangs" in result["ranks"][hanging]["error"]


def test_the_next_run_removes_the_folder_of_a_killed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = LockedFolder(tmp_path, "stoker-bench-")
    os.close(killed._descriptor)  # as the kernel does it for a killed process
    (killed.path / "shard").write_bytes(b"of a loader")
    lives, launch = LockedFolder(tmp_path, "stoker-bench-"), LocalRanks(0)
    launch.start(RunPlan(Workload(), "/d", "/r", "x"), 0, "token")
    assert not killed.path.exists()
    assert len(list(tmp_path.iterdir())) == 2
    launch.end()
    assert list(tmp_path.iterdir()) == [lives.path]
    lives.remove()


def test_stopped_ranks_are_ended_at_once_and_others_have_their_time() -> None:
    """It took 50 s until a run with a stopped rank ended: it was given the time to save what it has."""
    launch = LocalRanks(2)
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    launch._children += children
    try:
        children[0].send_signal(signal.SIGSTOP)
        while not is_stopped(children[0].pid):
            time.sleep(0.01)
        launch.end_stopped()
        assert children[0].wait(60) == -signal.SIGKILL
        assert launch.ended() == ["was killed by SIGKILL", None]
    finally:
        for child in children:
            child.kill()
            child.wait()
