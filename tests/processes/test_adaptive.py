"""Real workers of leased work, read from shards: one slow, one killed, one stopped and continued, the engine killed."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adaptive_worker import BASES

from lease_clock import HOUR, LeaseClock, retried
from patience import PATIENCE
from servers import redis_server, stop_outside_of_writes, wait_beside_workers
from stoker import StreamingDataset
from stoker.coordination import Coordination, CoordinationSettings, EngineError, WorkerState, open_store
from stoker.coordination.checkpoint import Assignment
from stoker.coordination.engines import redis as redis_engine
from stoker.coordination.records import Epoch
from stoker.coordination.run import RunRecords
from stoker.loaders.shard_loader import Adaptive, StreamingConfig, StreamingShardLoader
from stoker.pipeline.workers.replicas import lanes_held
from support import check_sample, make_dataset, start_script

pytestmark = [pytest.mark.processes, pytest.mark.slow]

HERE = Path(__file__).parent
WORKERS, SLOW, KILLED, STOPPED = 6, 1, 2, 3
SAMPLES = 2400
# The longer a busy machine needs for all, the longer leases are. Should one be lost that need not be, all holds the same.
BUSY = PATIENCE / 120.0
SETTINGS: dict[str, Any] = {"lease": 1.2 * BUSY, "heartbeat": 0.2, "split": 0.3, "grid": 64, "attempts": 1 << 30}


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("remote"), SAMPLES, size_limit=8192)


class Crew:
    """Workers in processes of their own. Each pauses after so many samples, the last not committed, until told."""

    def __init__(
        self,
        folder: Path,
        remote: Path,
        engine: str,
        world: int,
        seconds: Callable[[int], float],
        pause: Callable[[int], int],
        **more: Any,
    ) -> None:
        self.folder, self.world, self.engine, self.remote, self.pause = folder, world, engine, remote, pause
        self.base = BASES[str(more.get("base", "elastic"))]
        self.processes: list[subprocess.Popen[str]] = []
        for rank in range(world):
            told = {
                "rank": rank,
                "world_size": world,
                "engine": engine,
                "remote": str(remote),
                "cache": str(folder / f"cache{rank if more.get('replication') else 0}"),
                "out": str(folder / f"{rank}.out"),
                "start": str(folder / "start"),
                "pause": pause(rank),
                "on": str(folder / f"{rank}.on"),
                "seconds": seconds(rank),
                "settings": SETTINGS,
                **{name: value[rank] if isinstance(value, list) else value for name, value in more.items()},
            }
            self.processes.append(start_script(HERE / "adaptive_worker.py", json.dumps(told)))

    def start(self) -> None:
        """All at once, when all are there."""
        self.wait(lambda: all((self.folder / f"{rank}.out").exists() for rank in range(self.world)))
        self.wait(lambda: all("ready" in (self.folder / f"{rank}.out").read_text() for rank in range(self.world)))
        (self.folder / "start").touch()

    def go_on(self, *ranks: int) -> None:
        """All, or some. Until then none comes to the end of the epoch."""
        for rank in ranks or range(self.world):
            (self.folder / f"{rank}.on").touch()

    def wait_for_pause(self, least: int) -> None:
        """Until all have had so many samples, and pause or soon will."""
        self.wait(lambda: all(len(self.delivered_by(rank)) >= least for rank in range(self.world)))

    def stop(self, rank: int) -> None:
        """As if it hung."""
        database = Path(self.engine.removeprefix("sqlite://")) if self.engine.startswith("sqlite://") else None
        stop_outside_of_writes(self.processes[rank].pid, database)

    def wait(self, done: Callable[[], bool]) -> None:
        wait_beside_workers(self.processes, done)

    def records(self) -> tuple[RunRecords, Epoch]:
        """Those of the epoch."""
        records = RunRecords(open_store(self.engine, timeout=PATIENCE), "stoker")
        epoch = records.epoch(0)
        assert epoch is not None
        return records, epoch

    def holds(self, rank: int) -> bool:
        """Whether a worker has splits that nobody has taken from it."""
        records, epoch = self.records()
        splits = [split for lane in records.lanes(epoch) for split in lane.splits]
        records.store.close()
        return any(split.rank == rank and split.cursor < split.end for split in splits)

    def delivered_by(self, rank: int) -> list[int]:
        """Its samples, in order."""
        text = (self.folder / f"{rank}.out").read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()  # a killed worker's last line may not be whole
        return [int(line) for line in lines if line != "ready"]

    def delivered(self) -> dict[int, list[int]]:
        """For each sample, who delivered it."""
        found: dict[int, list[int]] = defaultdict(list)
        for rank in range(self.world):
            for number in self.delivered_by(rank):
                found[number].append(rank)
        return found

    def count(self) -> int:
        return sum(map(len, self.delivered().values()))

    def end(self) -> dict[int, dict[str, Any]]:
        """What those said that were not killed."""
        self.wait(lambda: all(process.poll() is not None for process in self.processes))
        said = {}
        for rank, process in enumerate(self.processes):
            out, _ = process.communicate(timeout=PATIENCE)
            if process.returncode == 0:
                said[rank] = json.loads(out)
        return said

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def check(self, lost: set[int]) -> None:
        """Every sample committed once, by one who delivered it, and delivered twice only where one was lost who had it."""
        records, epoch = self.records()
        progress, assignment = records.progress(epoch), records.assignment(epoch)
        records.store.close()
        assert progress.finished
        assert progress.committed == SAMPLES
        reached = 0
        for entry in assignment:
            assert entry.begin == reached
            reached = entry.end
        assert reached == SAMPLES
        delivered = self.delivered()
        recorded = Assignment(0, self.world, dict(epoch.identity), tuple(assignment))
        committed = 0
        for rank in range(self.world):
            dataset = StreamingDataset(local=self.remote, shuffle=True, shuffle_seed=7)
            config = StreamingConfig(self.world, rank, Adaptive(self.base, replay=recorded))
            for sample in StreamingShardLoader(dataset, config):
                number = check_sample(sample)
                others = delivered[number].copy()
                assert rank in others, f"rank {rank} committed what it had not delivered"
                others.remove(rank)
                assert set(others) <= lost, f"{number} was delivered by {others} too"
                committed += 1
        assert committed == SAMPLES
        # A killed one may have said that it delivers a sample, and not have noted it in its file.
        assert progress.again - 1 <= self.count() - SAMPLES <= progress.exposed
        assert progress.exposed > 0, "nothing was lost, so nothing was tested"


def disturb(crew: Crew, kill_engine: Callable[[], None]) -> None:
    crew.start()
    crew.wait_for_pause(40)
    crew.processes[KILLED].kill()
    crew.stop(STOPPED)
    crew.go_on()
    crew.wait(lambda: crew.count() > SAMPLES // 3)
    kill_engine()
    crew.wait(lambda: not crew.holds(STOPPED))
    crew.processes[STOPPED].send_signal(signal.SIGCONT)
    said = crew.end()
    assert set(said) == set(range(WORKERS)) - {KILLED}
    crew.check({KILLED, STOPPED, *(rank for rank, one in said.items() if one["lost"])})


def pause(rank: int) -> int:
    return SAMPLES // 4 if rank == KILLED else 40


def seconds(rank: int) -> float:
    return 0.012 if rank == SLOW else 0.003


def test_every_sample_is_committed_once_with_sqlite(tmp_path: Path, remote: Path) -> None:
    database = tmp_path / "run.db"

    def kill_a_writer() -> None:
        """A process is killed in the middle of a transaction of its own."""
        code = (
            "import os, sqlite3, sys, time\n"
            "c = sqlite3.connect(sys.argv[1], timeout=1000, isolation_level=None)\n"
            "c.execute('BEGIN IMMEDIATE')\n"
            "name = c.execute('SELECT name FROM sqlite_master WHERE type = \"table\"').fetchone()[0]\n"
            "c.execute(f'DELETE FROM {name}')\n"
            "print('deep in', flush=True)\n"
            "time.sleep(10_000)\n"
        )
        writer = subprocess.Popen([sys.executable, "-c", code, str(database)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        assert writer.stdout.readline().strip() == "deep in"
        writer.kill()
        writer.communicate()

    crew = Crew(tmp_path, remote, f"sqlite://{database}", WORKERS, seconds, pause)
    try:
        disturb(crew, kill_a_writer)
    finally:
        crew.close()
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_every_sample_is_committed_once_with_redis(tmp_path: Path, remote: Path) -> None:
    with tempfile.TemporaryDirectory() as short, redis_server(Path(short)) as server:

        def kill_engine() -> None:
            server.kill()
            time.sleep(0.2)  # for calls in vain
            server.start()

        crew = Crew(tmp_path, remote, server.url, WORKERS, seconds, pause)
        try:
            disturb(crew, kill_engine)
        finally:
            crew.close()


def _commit_all(loader: StreamingShardLoader) -> None:
    for _ in loader:
        loader.commit()


def test_an_engine_that_is_gone_for_good_is_named_and_nothing_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, leave = LeaseClock(monkeypatch, redis_engine), Coordination.leave
    # By the machine's clock it waits for a thread that can not end.
    monkeypatch.setattr(Coordination, "leave", lambda run, _: leave(run, 0.05))
    settings = CoordinationSettings(lease=HOUR, heartbeat=0.1)
    with tempfile.TemporaryDirectory() as short, redis_server(Path(short)) as server:
        config = StreamingConfig(
            1, 0, Adaptive(), coordinator=server.url, coordination=settings, patience=PATIENCE, commit="explicit"
        )
        loader = StreamingShardLoader({"x": np.arange(10_000)}, config)
        loader.next()
        server.kill()
        with clock.passing(PATIENCE / 8):
            with pytest.raises(EngineError, match=str(server.socket)):
                _commit_all(loader)
            leased: Any = loader._worker.source
            driver = leased._coordination._driver
            with pytest.raises(EngineError):
                loader.close()
            driver.abandon()
            driver._thread.join(PATIENCE)  # or it asks for the engine until the process ends
            assert not driver._thread.is_alive()


def test_a_worker_that_begins_while_the_engine_restarts_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    in_vain = retried(monkeypatch, redis_engine)
    with tempfile.TemporaryDirectory() as short, redis_server(Path(short)) as server:
        config = StreamingConfig(
            1, 0, Adaptive(), coordinator=server.url, coordination=CoordinationSettings(**SETTINGS), patience=PATIENCE
        )
        server.kill()

        def restart() -> None:
            in_vain.wait(PATIENCE)
            server.start()

        restarts = threading.Thread(target=restart)
        restarts.start()
        with StreamingShardLoader({"x": np.arange(100)}, config) as loader:
            assert len(list(loader)) == 100
        restarts.join()
        assert in_vain.is_set()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_takeover_reads_nothing_from_afar_that_the_holder_had(
    tmp_path: Path, remote: Path, how: signal.Signals
) -> None:
    """Two workers hold each other's shards. One goes, and its shards with it: the other goes on from its own cache."""
    own = tmp_path / "remote"
    shutil.copytree(remote, own)
    index = StreamingDataset(local=remote).index
    names = [shard.raw[0].basename for shard in index.shards]
    ends = np.cumsum(index.sizes)
    first = [name for name, end, size in zip(names, ends, index.sizes, strict=True) if end - size < SAMPLES // 2]
    second = [name for name, end in zip(names, ends, strict=True) if end > SAMPLES // 2]
    engine = f"sqlite://{tmp_path}/run.db"
    told: dict[str, Any] = {"base": "contiguous", "replication": 2, "held": [second, first]}
    crew = Crew(tmp_path, own, engine, 2, lambda _: 0.001, lambda _: SAMPLES // 4, **told)

    def has_committed() -> bool:
        records, epoch = crew.records()
        entries = records.assignment(epoch)
        records.store.close()
        return any(entry.rank == 0 for entry in entries)

    try:
        crew.start()
        crew.wait_for_pause(SAMPLES // 4)
        crew.wait(has_committed)
        if how == signal.SIGSTOP:
            crew.stop(0)
        else:
            crew.processes[0].send_signal(how)
        for name in first:
            (own / name).unlink()
        crew.go_on()
        crew.wait(lambda: crew.processes[1].poll() is not None)
        out, err = crew.processes[1].communicate()
        assert crew.processes[1].returncode == 0, err
        said = json.loads(out)
        assert said["replicated"] > 0
        only_second = [own / name for name in second if name not in first]
        assert said["fetched"] <= sum(path.stat().st_size for path in only_second)
        if how == signal.SIGSTOP:
            crew.processes[0].kill()
        crew.remote = remote
        crew.check({0} if not said["lost"] else {0, 1})
        # It went on from the last commit, not from the beginning.
        delivered = crew.delivered()
        again = [number for number, who in delivered.items() if len(who) > 1]
        assert len(again) < len(crew.delivered_by(0))
    finally:
        crew.close()


def test_of_three_workers_it_is_the_holder_that_continues_first(tmp_path: Path, remote: Path) -> None:
    holder, other = (1, 2) if lanes_held(1, 3, 3, 2).count(0) else (2, 1)
    assert lanes_held(holder, 3, 3, 2).count(0) == 1
    assert lanes_held(other, 3, 3, 2).count(0) == 0
    index = StreamingDataset(local=remote).index
    names = [shard.raw[0].basename for shard in index.shards]
    ends = np.cumsum(index.sizes)

    def part(rank: int) -> list[str]:
        low, high = rank * SAMPLES // 3, (rank + 1) * SAMPLES // 3
        spans = zip(names, ends, index.sizes, strict=True)
        return [name for name, end, size in spans if end - size < high and end > low]

    held = [list(chain.from_iterable(map(part, lanes_held(rank, 3, 3, 2)))) for rank in range(3)]
    told: dict[str, Any] = {"base": "contiguous", "replication": 2, "held": held}
    told["settings"] = {**SETTINGS, "lease": HOUR}  # that it was killed is seen
    engine = f"sqlite://{tmp_path}/run.db"
    crew = Crew(tmp_path, remote, engine, 3, lambda _: 0.002, lambda _: SAMPLES // 12, **told)
    try:
        crew.start()
        crew.wait_for_pause(SAMPLES // 12)
        crew.processes[0].kill()
        records, epoch = crew.records()
        crew.wait(lambda: records.health(epoch)[0].state is WorkerState.FAILED)
        records.store.close()
        crew.go_on(holder)
        crew.wait(lambda: any(number < SAMPLES // 3 for number in crew.delivered_by(holder)))
        crew.go_on()
        crew.end()
        crew.check({0})
        # The holder leaves its own part for the killed one's, and the other does not.
        assert _own_after_lane_0(crew, holder)
        assert not _own_after_lane_0(crew, other)
    finally:
        crew.close()


def _own_after_lane_0(crew: Crew, rank: int) -> list[int]:
    """Samples of its own part that a worker delivered after one of lane 0."""
    part = SAMPLES // 3
    lanes = [number // part for number in crew.delivered_by(rank)]
    return [lane for lane in lanes[lanes.index(0) :] if lane == rank] if 0 in lanes else []


def test_each_lane_has_its_holders_and_losing_a_worker_moves_few() -> None:
    world, replication = 64, 3
    held = [lanes_held(rank, world, world, replication) for rank in range(world)]
    holders = Counter(lane for lanes in held for lane in lanes)
    assert set(holders.values()) == {replication - 1}
    assert all(rank not in lanes for rank, lanes in enumerate(held))
    assert max(map(len, held)) < 12
    assert lanes_held(0, 8, 8, 1) == []
    assert lanes_held(0, 2, 2, 2) == [1]
