"""Ranks that hang are noticed, and named with the function; who waits for others, or stood still with its host, is not."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bench_faults import end_started, failed, start

from patience import PATIENCE
from stoker.cluster import World
from stoker.storage.files.locked_folder import LockedFolder
from stoker_bench.loaders.base import SplitListing
from stoker_bench.measure.training import Training
from stoker_bench.ranks.control.client import Link, RankFailedError
from stoker_bench.ranks.control.server import Server
from stoker_bench.ranks.control.silence import SilenceClock
from stoker_bench.ranks.launch import LocalRanks
from stoker_bench.ranks.plan import RunPlan
from stoker_bench.ranks.rank_context import RankContext
from stoker_bench.ranks.step_watch import StepWatch
from stoker_bench.ranks.termination import is_stopped
from stoker_bench.ranks.worker_stacks import listen, tell_stacks, worker_stacks
from stoker_bench.settings.workload import Workload


class Waits:
    """A link that says whether it waits."""

    waiting = False


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    yield tmp_path
    end_started()


class Looks(threading.Event):
    """The end of a watch, whose looks take time that is data; before each something happens.

    Args:
        patch: of the watch's clock.
        before: called with the number of the look.
        count: looks until the watch ends.
    """

    def __init__(self, patch: pytest.MonkeyPatch, before: Callable[[int], object] = lambda _: None, count: int = 100):
        super().__init__()
        self.now, self.looks, self._before, self._count = 0.0, 0, before, count
        patch.setattr("stoker_bench.ranks.step_watch.time", SimpleNamespace(monotonic=lambda: self.now))

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.now += timeout
        self._before(self.looks)
        self.looks += 1
        return self.looks > self._count


def watching(link: Waits, looks: Looks) -> tuple[StepWatch, list[str]]:
    """A watch for hangs of more than a second, whose looks are these; and what it says."""
    said: list[str] = []
    watch = StepWatch(link, 1.0, said.append)  # type: ignore[arg-type]
    watch._ended = looks
    return watch, said


def test_a_function_that_does_not_return_is_named() -> None:
    """By a watch in a thread of its own; the function returns once it is named."""
    hung, said = threading.Event(), list[str]()

    def never(watch: StepWatch) -> None:
        with watch.steps("epoch 0", lambda: 7, object()):
            assert hung.wait(PATIENCE)

    def on_hang(one: str) -> None:
        said.append(one)
        hung.set()

    with StepWatch(Waits(), 0.05, on_hang) as watch:  # type: ignore[arg-type]
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
        assert ready.wait(PATIENCE)
        assert worker.pid is not None
        found: list[str] = []
        deadline = time.monotonic() + PATIENCE
        while found[:2] != ["_busy_worker", "run"] and time.monotonic() < deadline:  # once it has left Event.set()
            told = worker_stacks()
            assert other.pid not in told
            found = [frame.name for frame in told.get(worker.pid, [])]
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
        assert hung.wait(PATIENCE)
        return SplitListing(1, 1, None, 1, 1, 1, 0.0)

    def on_hang(one: str) -> None:
        said.append(one)
        hung.set()

    class Alone(Waits):
        def gather(self, _: str, value: object) -> list[object]:
            return [value]

    monkeypatch.setattr("stoker_bench.measure.training.list_split", never)
    record: dict[str, Any] = {"listing": {}, "read_threads": 1}
    link: Any = Alone()
    with StepWatch(link, 0.05, on_hang) as watch:
        rank = RankContext(RunPlan(Workload(), "/d", "/r", "x"), World(), link, record, lambda: None)
        Training(rank, None, watch).list_files()
    (one,) = said
    assert "in listing the data: in " in one


def test_who_waits_for_others_makes_steps_or_saves_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """In 100 looks, of which 11 without a step would be a hang."""
    step = [0]

    def waits(number: int) -> None:
        link.waiting = number % 10 == 0

    def steps(number: int) -> None:
        step[0] += number % 10 == 0

    for before in (waits, steps):
        link = Waits()
        watch, said = watching(link, Looks(monkeypatch, before))
        with watch.steps("epoch 0", lambda: step[0], None):
            watch._look()
        assert said == []
    watch, said = watching(Waits(), Looks(monkeypatch))
    with watch.steps("epoch 0", lambda: 0, None), watch.pause():
        watch._look()
    with watch.work("opening"):  # for ten times as long
        watch._ended = Looks(monkeypatch, count=100)
        watch._look()
    assert said == []


@pytest.mark.parametrize(("phase", "looks"), [("steps", 11), ("opening", 101)])
def test_who_makes_no_step_in_its_time_hangs(phase: str, looks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Looks(monkeypatch, count=1000)
    watch, said = watching(Waits(), seen)
    with watch.steps("epoch 0", lambda: 0, None) if phase == "steps" else watch.work("opening"):
        watch._look()
    (one,) = said
    assert looks <= seen.looks - 1 <= looks + 1  # of which the first sees the phase begin
    assert "hangs: no progress for 1" in one


def test_a_watch_that_was_stopped_itself_counts_no_more_than_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Looks(monkeypatch, count=10)

    def stopped(number: int) -> None:
        seen.now += 3600 if number == 5 else 0

    seen._before = stopped
    watch, said = watching(Waits(), seen)
    with watch.steps("epoch 0", lambda: 0, None):
        watch._look()
    assert said == []


def test_the_time_in_which_a_process_itself_stood_still_is_nobody_s_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("stoker_bench.ranks.control.silence.time", SimpleNamespace(monotonic=lambda: now[0]))
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


class Signs(SilenceClock):
    """Counts the signs, and the looks for missing ones."""

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self.heard_of = self.looks = 0

    def heard(self, who: Hashable) -> None:
        super().heard(who)
        self.heard_of += 1

    def look(self) -> Hashable | None:
        found = super().look()
        self.looks += 1
        return found


def until(true: Callable[[], bool]) -> None:
    """Wait for what other threads do."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.processes
def test_a_server_that_gives_no_sign_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where rank 0 is stopped: its kernel holds the connection."""
    now = [0.0]
    monkeypatch.setattr("stoker_bench.ranks.control.silence.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("stoker_bench.ranks.control.client.poll_seconds", lambda _: 0.002)
    monkeypatch.setattr("stoker_bench.ranks.control.client.SilenceClock", Signs)
    server = Server(1, "token", "digest")  # which answers
    link = Link(lambda: ("127.0.0.1", server.port, "token"), 0, "digest", silence=10)
    signs = link._silence
    assert isinstance(signs, Signs)
    for _ in range(20):
        now[0] += 1  # and no more until it has answered
        count = signs.heard_of
        until(lambda count=count: signs.heard_of > count)  # type: ignore[misc]
    link.check()
    server._take = lambda *_: False  # type: ignore[method-assign] # which does not any more
    while link._failure is None and now[0] < 1000:
        now[0] += 1
        looks = signs.looks
        until(lambda looks=looks: signs.looks > looks or link._failure is not None)  # type: ignore[misc]
    assert 20 + 10 <= now[0] < 1000  # an answer may have been on its way
    with pytest.raises(RankFailedError, match=r"the process that the ranks meet at gave no sign for 10 s"):
        link.gather("x")
    assert link._lost
    link.close()
    server.close()


@pytest.mark.processes
def test_a_hanging_rank_of_a_launcher_is_named_and_results_stay(path: Path) -> None:
    """Rank 0, too, which writes them. Both runs wait at once."""
    runs = {}
    for hanging, loader in enumerate(("Hangs0", "Hangs")):
        (path / loader).mkdir()
        settings = {"reader": {"loader": f"bench_loaders:{loader}"}, "train": {"epochs": 3, "step_timeout": 4}}
        settings |= {"compute": {"seconds": 0.001}}
        runs[hanging] = [
            start(path / loader, settings, "--data", "/nothing", RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
            for rank in range(2)
        ]
    for hanging, loader in enumerate(("Hangs0", "Hangs")):
        for run in runs[hanging]:
            said = run.communicate(timeout=PATIENCE)[1]
            assert "Traceback" not in said
            assert f"rank {hanging}" in said
            assert "hangs: no progress" in said
            assert run.returncode == 1
        result = failed(path / loader)
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


@pytest.mark.processes
def test_stopped_ranks_are_ended_at_once_and_others_have_their_time() -> None:
    """It took 50 s until a run with a stopped rank ended: it was given the time to save what it has."""
    launch = LocalRanks(2)
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    launch._children += children
    try:
        children[0].send_signal(signal.SIGSTOP)
        until(lambda: is_stopped(children[0].pid))
        launch.end_stopped()
        assert children[0].wait(PATIENCE) == -signal.SIGKILL
        assert launch.ended() == ["was killed by SIGKILL", None]
    finally:
        for child in children:
            child.kill()
            child.wait()
