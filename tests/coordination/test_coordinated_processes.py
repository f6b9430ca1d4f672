"""Real workers that differ, die, stop and come back, over engines that are killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from servers import ray_cluster, redis_server, stop_outside_of_writes, wait_beside_workers
from stoker.coordination import CoordinationStore, EngineReplacedError, Replay, open_store
from stoker.coordination.run import RunRecords
from stoker.testing import EngineTests
from support import start_script

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(240)]

HERE = Path(__file__).parent
WORKERS = 8
SLOW, KILLED, STOPPED = 1, 2, 3
SETTINGS = {"lease": 4.0, "heartbeat": 0.5, "split": 0.4, "largest": 4000}


class Crew:
    """Eight workers, one four times slower."""

    def __init__(self, folder: Path, positions: int, seconds: float, **more: Any) -> None:
        self.folder = folder
        self.positions = positions
        self.processes: list[subprocess.Popen[str]] = []
        for rank in range(WORKERS):
            told = {
                "run": "run",
                "rank": rank,
                "world_size": WORKERS,
                "positions": positions,
                "out": str(folder / f"{rank}.out"),
                "start": str(folder / "start"),
                "seconds": seconds * (4 if rank == SLOW else 1),
                "step": 20,
                "settings": SETTINGS,
                **more,
            }
            self.processes.append(start_script(HERE / "coordinated_worker.py", json.dumps(told)))

    def start(self) -> None:
        """All at once, when all are there."""
        self.wait(lambda: all((self.folder / f"{rank}.out").exists() for rank in range(WORKERS)), 120)
        (self.folder / "start").touch()

    def wait(self, done: Callable[[], bool], seconds: float) -> None:
        wait_beside_workers(self.processes, done, seconds)

    def delivered(self) -> dict[int, list[int]]:
        """For each position, who delivered it."""
        found: dict[int, list[int]] = defaultdict(list)
        for rank in range(WORKERS):
            for line in (self.folder / f"{rank}.out").read_text().splitlines():
                if line != "ready":
                    first, last = map(int, line.split())
                    for position in range(first, last):
                        found[position].append(rank)
        return found

    def end(self) -> list[dict[str, Any]]:
        """What the workers that live tell, when they have ended."""
        told = []
        for rank, process in enumerate(self.processes):
            said, wrong = process.communicate(timeout=120)
            assert process.returncode in (0, -signal.SIGKILL), f"worker {rank}: {wrong}"
            told += [json.loads(line) for line in said.splitlines()]
        return told

    def kill(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.communicate()


@contextmanager
def _crew(*arguments: Any, **more: Any) -> Iterator[Crew]:
    with tempfile.TemporaryDirectory(prefix="st") as folder:
        crew = Crew(Path(folder), *arguments, **more)
        try:
            yield crew
        finally:
            crew.kill()


def _through_thick_and_thin(
    crew: Crew, url: str, restart_engine: Callable[[], None], database: Path | None = None
) -> dict[str, Any]:
    """Kill one, stop one, kill the engine, let the stopped one go on; then see what has come of it."""
    crew.start()
    crew.wait(lambda: len(crew.delivered()) > crew.positions // 10, 60)
    os.kill(crew.processes[KILLED].pid, signal.SIGKILL)
    stop_outside_of_writes(crew.processes[STOPPED].pid, database)
    stopped = time.monotonic()
    restart_engine()
    crew.wait(lambda: time.monotonic() - stopped > 1.5 * SETTINGS["lease"], 60)
    os.kill(crew.processes[STOPPED].pid, signal.SIGCONT)
    told = crew.end()
    assert sorted(worker["rank"] for worker in told) == [rank for rank in range(WORKERS) if rank != KILLED]

    records = RunRecords(open_store(url), "run")
    epoch = records.epoch(0)
    assert epoch is not None
    progress = records.progress(epoch)
    assert progress.finished
    assert progress.committed == crew.positions
    # Every sample was committed once: the assignment is whole, and nobody is in it who could not be.
    entries = records.assignment(epoch)
    Replay(entries, crew.positions, WORKERS)
    delivered = crew.delivered()
    assert sorted(delivered) == list(range(crew.positions))
    for entry in entries:
        assert all(entry.rank in delivered[position] for position in range(entry.begin, entry.end))
    # Twice only if its worker was lost before committing, and that was counted.
    twice = {position: ranks for position, ranks in delivered.items() if len(ranks) > 1}
    assert all({KILLED, STOPPED} & set(ranks) for ranks in twice.values())
    count = sum(len(ranks) - 1 for ranks in twice.values())
    assert progress.again <= count <= progress.exposed
    return {
        "took": max(worker["took"] for worker in told),
        "splits": sum(worker["splits"] for worker in told),
        "lost": sum(worker["lost"] for worker in told),
        "twice": count,
        "counted": [progress.again, progress.exposed],
        "health": told[0]["health"],
    }


def test_over_sqlite(tmp_path: Path) -> None:
    """The engine is a file: what can be killed are processes that use it, in the middle of writing."""
    url = f"sqlite://{tmp_path}/run.db"

    def kill_writers() -> None:
        code = (
            "import sys, sqlite3\n"
            "c = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)\n"
            "c.execute('BEGIN IMMEDIATE')\n"
            "c.execute(\"UPDATE records SET value = x'00', version = 1\")\n"
            "print('writing', flush=True)\n"
            "import time; time.sleep(60)\n"
        )
        for _ in range(3):
            script = tmp_path / "writer.py"
            script.write_text(code)
            writer = start_script(script, tmp_path / "run.db")
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writing\n", writer.communicate()[1]
            writer.kill()
            writer.communicate()

    with _crew(24_000, 0.001, url=url) as crew:
        print(_through_thick_and_thin(crew, url, kill_writers, tmp_path / "run.db"))


def test_over_redis() -> None:
    pytest.importorskip("redis")
    with tempfile.TemporaryDirectory(prefix="st") as folder, redis_server(Path(folder)) as server:

        def restart() -> None:
            server.kill()
            time.sleep(0.5)
            server.start()

        with _crew(24_000, 0.001, url=server.url) as crew:
            print(_through_thick_and_thin(crew, server.url, restart))


@pytest.fixture(scope="module")
def ray_folder() -> Iterator[tuple[Any, str, str]]:
    """Ray, started once; a folder with a short path; and the address."""
    with ray_cluster() as cluster:
        yield cluster


class TestRay(EngineTests):
    @pytest.fixture(autouse=True)
    def _place(self, ray_folder: tuple[Any, str, str]) -> None:
        self.url = f"ray://tests?path={ray_folder[1]}/tests.db"

    def open(self) -> CoordinationStore:
        return open_store(self.url, timeout=60)


def test_over_ray(ray_folder: tuple[Any, str, str]) -> None:
    ray, folder, address = ray_folder
    url = f"ray://engine?path={folder}/run.db"
    open_store(url)

    def kill_actor() -> None:
        ray.kill(ray.get_actor("engine", namespace="stoker"), no_restart=False)

    with _crew(40_000, 0.001, url=url, ray_address=address) as crew:
        print(_through_thick_and_thin(crew, url, kill_actor))


def test_an_actor_that_comes_back_without_its_file_is_an_error(ray_folder: tuple[Any, str, str]) -> None:
    ray, folder, _ = ray_folder
    url = f"ray://emptied?path={folder}/emptied.db"
    store = open_store(url, timeout=60)
    version = store.create("a", b"1") or 0
    for file in Path(folder).glob("emptied.db*"):
        file.unlink()
    with pytest.raises(EngineReplacedError, match="was deleted"):
        store.get(["a"])
    ray.kill(ray.get_actor("emptied", namespace="stoker"), no_restart=False)
    fresh = None
    while fresh is None:  # until the actor is there again; the old one may still answer
        with suppress(EngineReplacedError):
            fresh = open_store(url, timeout=60).create("a", b"3")
    with pytest.raises(EngineReplacedError, match="was lost and made anew"):
        store.swap("a", b"2", version)
    with pytest.raises(EngineReplacedError, match="was lost and made anew"):
        store.get(["a"])


def test_unlike_workers_need_far_less_time_than_round_robin(tmp_path: Path) -> None:
    """Times are told, not judged: machines that are busy with something else would fail it."""
    with _crew(16_000, 0.001, url="", round_robin=True) as crew:
        (crew.folder / "start").touch()
        fixed = max(worker["took"] for worker in crew.end())
    url = f"sqlite://{tmp_path}/run.db"
    with _crew(16_000, 0.001, url=url) as crew:
        crew.start()
        told = crew.end()
        assert len(crew.delivered()) == 16_000
        slow, fast = len(_of(crew, SLOW)), len(_of(crew, 0))
    assert slow < fast
    took = max(worker["took"] for worker in told)
    print(f"round robin {fixed:.2f} s, adaptive {took:.2f} s: {took / fixed:.2f}; {slow} and {fast} samples")


def _of(crew: Crew, rank: int) -> list[int]:
    return [position for position, ranks in crew.delivered().items() if rank in ranks]
