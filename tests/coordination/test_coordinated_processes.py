"""Real workers that differ, die, stop and come back, over engines that are killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE
from servers import ray_cluster, redis_server, stop_outside_of_writes, wait_beside_workers
from stoker.coordination import CoordinationStore, EngineReplacedError, Replay, open_store
from stoker.coordination.run import RunRecords
from stoker.testing import EngineTests
from support import start_script

pytestmark = [pytest.mark.processes, pytest.mark.slow]

HERE = Path(__file__).parent
WORKERS = 6
SLOW, KILLED, STOPPED = 1, 2, 3
STEP, PAUSE = 20, 100
# The longer a busy machine needs for all, the longer leases are. Should one be lost that need not be, all holds the same.
BUSY = PATIENCE / 120.0
SETTINGS = {"lease": 1.2 * BUSY, "heartbeat": 0.2, "split": 0.3, "largest": 4000, "attempts": 1 << 30}


class Crew:
    """Some workers, one four times slower. Each pauses with a step that is not committed; the one to be killed, late."""

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
                "pause": positions // 4 if rank == KILLED else PAUSE,
                "on": str(folder / "on"),
                "seconds": seconds * (4 if rank == SLOW else 1),
                "step": STEP,
                "settings": SETTINGS,
                **more,
            }
            self.processes.append(start_script(HERE / "coordinated_worker.py", json.dumps(told)))

    def start(self) -> None:
        """All at once, when all are there."""
        self.wait(lambda: all((self.folder / f"{rank}.out").exists() for rank in range(WORKERS)))
        (self.folder / "start").touch()

    def wait(self, done: Callable[[], bool]) -> None:
        wait_beside_workers(self.processes, done)

    def wait_for_pause(self) -> None:
        """Until all have work, and none will come to the end of the epoch."""

        def pause() -> bool:
            counts = Counter(rank for ranks in self.delivered().values() for rank in ranks)
            return all(counts[rank] >= PAUSE for rank in range(WORKERS))

        self.wait(pause)

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
            said, wrong = process.communicate(timeout=PATIENCE)
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
    """Kill one, stop one, kill the engine; when the stopped one's work is others', let it go on; then see what came of it."""
    crew.start()
    crew.wait_for_pause()
    os.kill(crew.processes[KILLED].pid, signal.SIGKILL)
    records = RunRecords(open_store(url, timeout=PATIENCE), "run")
    epoch = records.epoch(0)
    assert epoch is not None

    def holds() -> bool:
        splits = [split for lane in records.lanes(epoch) for split in lane.splits]
        return any(split.rank == STOPPED and split.cursor < split.end for split in splits)

    stop_outside_of_writes(crew.processes[STOPPED].pid, database)
    restart_engine()
    (crew.folder / "on").touch()
    crew.wait(lambda: not holds())
    os.kill(crew.processes[STOPPED].pid, signal.SIGCONT)
    told = {worker["rank"]: worker for worker in crew.end()}
    assert sorted(told) == [rank for rank in range(WORKERS) if rank != KILLED]

    progress = records.progress(epoch)
    assert progress.finished
    assert progress.committed == crew.positions
    # Every sample was committed once: the assignment is whole, and nobody is in it who could not be.
    entries = records.assignment(epoch)
    Replay(entries, crew.positions, WORKERS)
    delivered = crew.delivered()
    assert sorted(delivered) == list(range(crew.positions))
    # Twice only by workers that were lost before committing, and say so; and that was counted.
    count = 0
    for entry in entries:
        for position in range(entry.begin, entry.end):
            others = delivered[position].copy()
            others.remove(entry.rank)
            count += len(others)
            for rank in others:
                lost = rank == KILLED or any(begin <= position < end for begin, end in told[rank]["lost"])
                assert lost, f"{position} was committed by {entry.rank}, and delivered by {rank}, which lost no lease"
    assert any(begin < end for begin, end in told[STOPPED]["lost"])
    # The killed one may have said that it delivers a step, and not have noted it in its file.
    assert progress.again - STEP <= count <= progress.exposed
    return {
        "splits": sum(worker["splits"] for worker in told.values()),
        "lost": {rank: worker["lost"] for rank, worker in told.items() if worker["lost"]},
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
            "c = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=1000)\n"
            "c.execute('BEGIN IMMEDIATE')\n"
            "c.execute(\"UPDATE records SET value = x'00', version = 1\")\n"
            "print('writing', flush=True)\n"
            "import time; time.sleep(10_000)\n"
        )
        script = tmp_path / "writer.py"
        script.write_text(code)
        for _ in range(2):
            writer = start_script(script, tmp_path / "run.db")
            assert writer.stdout is not None
            assert writer.stdout.readline() == "writing\n", writer.communicate()[1]
            writer.kill()
            writer.communicate()

    with _crew(6_000, 0.001, url=url) as crew:
        print(_through_thick_and_thin(crew, url, kill_writers, tmp_path / "run.db"))


def test_over_redis() -> None:
    pytest.importorskip("redis")
    with tempfile.TemporaryDirectory(prefix="st") as folder, redis_server(Path(folder)) as server:

        def restart() -> None:
            server.kill()
            time.sleep(0.2)  # for calls in vain
            server.start()

        with _crew(6_000, 0.001, url=server.url) as crew:
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
        return open_store(self.url, timeout=PATIENCE)


def test_over_ray(ray_folder: tuple[Any, str, str]) -> None:
    ray, folder, address = ray_folder
    url = f"ray://engine?path={folder}/run.db"
    open_store(url)

    def kill_actor() -> None:
        ray.kill(ray.get_actor("engine", namespace="stoker"), no_restart=False)

    with _crew(6_000, 0.001, url=url, ray_address=address) as crew:
        print(_through_thick_and_thin(crew, url, kill_actor))


def test_an_actor_that_comes_back_without_its_file_is_an_error(ray_folder: tuple[Any, str, str]) -> None:
    ray, folder, _ = ray_folder
    url = f"ray://emptied?path={folder}/emptied.db"
    store = open_store(url, timeout=PATIENCE)
    version = store.create("a", b"1") or 0
    for file in Path(folder).glob("emptied.db*"):
        file.unlink()
    with pytest.raises(EngineReplacedError, match="was deleted"):
        store.get(["a"])
    ray.kill(ray.get_actor("emptied", namespace="stoker"), no_restart=False)
    fresh = None
    while fresh is None:  # until the actor is there again; the old one may still answer
        with suppress(EngineReplacedError):
            fresh = open_store(url, timeout=PATIENCE).create("a", b"3")
    with pytest.raises(EngineReplacedError, match="was lost and created again"):
        store.swap("a", b"2", version)
    with pytest.raises(EngineReplacedError, match="was lost and created again"):
        store.get(["a"])
