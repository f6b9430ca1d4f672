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
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adaptive_worker import BASES

from stoker import StreamingDataset
from stoker.coordination import CoordinationSettings, EngineError, open_store
from stoker.coordination.history.assignment import Assignment
from stoker.coordination.run import RunRecords
from stoker.loaders.shard_loader import Adaptive, StreamingConfig, StreamingShardLoader
from stoker.pipeline.workers.replicas import lanes_held
from support import TESTS, check_sample, make_dataset, start_script

sys.path.append(str(TESTS / "cluster" / "coordination"))

servers = import_module("servers")
redis_server = servers.redis_server

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(240)]

HERE = Path(__file__).parent
WORKERS, SLOW, KILLED, STOPPED = 8, 1, 2, 3
SAMPLES = 6000
SETTINGS: dict[str, Any] = {"lease": 2.0, "heartbeat": 0.5, "split": 0.3, "grid": 128}


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("remote")
    make_dataset(folder, SAMPLES, size_limit=16384)
    return folder


class Crew:
    """Workers in processes of their own."""

    def __init__(
        self, folder: Path, remote: Path, engine: str, world: int, seconds: Callable[[int], float], **more: Any
    ) -> None:
        self.folder, self.world, self.engine, self.remote = folder, world, engine, remote
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
                "seconds": seconds(rank),
                "settings": SETTINGS,
                **{name: value[rank] if isinstance(value, list) else value for name, value in more.items()},
            }
            self.processes.append(start_script(HERE / "adaptive_worker.py", json.dumps(told)))

    def start(self) -> None:
        """All at once, when all are there."""
        self.wait(lambda: all((self.folder / f"{rank}.out").exists() for rank in range(self.world)), 120)
        self.wait(lambda: all("ready" in (self.folder / f"{rank}.out").read_text() for rank in range(self.world)), 120)
        (self.folder / "start").touch()

    def stop(self, rank: int) -> None:
        """As if it hung."""
        database = Path(self.engine.removeprefix("sqlite://")) if self.engine.startswith("sqlite://") else None
        servers.stop_outside_of_writes(self.processes[rank].pid, database)

    def wait(self, done: Callable[[], bool], seconds: float) -> None:
        servers.wait_beside_workers(self.processes, done, seconds)

    def delivered(self) -> dict[int, list[tuple[int, float]]]:
        """For each sample, who delivered it and when."""
        found: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for rank in range(self.world):
            text = (self.folder / f"{rank}.out").read_text()
            for line in text[: text.rfind("\n")].splitlines():  # a killed worker's last line may not be whole
                if line != "ready":
                    number, moment = line.split()
                    found[int(number)].append((rank, float(moment)))
        return found

    def count(self) -> int:
        return sum(map(len, self.delivered().values()))

    def end(self, seconds: float = 150) -> dict[int, dict[str, Any]]:
        """What those said that were not killed."""
        self.wait(lambda: all(process.poll() is not None for process in self.processes), seconds)
        said = {}
        for rank, process in enumerate(self.processes):
            out, _ = process.communicate(timeout=10)
            if process.returncode == 0:
                said[rank] = json.loads(out)
        return said

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def check(self) -> list[list[int]]:
        """Every sample committed once, by one who delivered it, and none delivered twice but those of lost leases."""
        store = open_store(self.engine)
        records = RunRecords(store, "stoker")
        epoch = records.epoch(0)
        assert epoch is not None
        progress, assignment = records.progress(epoch), records.assignment(epoch)
        store.close()
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
                assert rank in [who for who, _ in delivered[number]], f"rank {rank} committed what it had not delivered"
                committed += 1
        assert committed == SAMPLES
        again = self.count() - SAMPLES
        assert progress.again <= again <= progress.exposed
        most = max(Counter({number: len(who) for number, who in delivered.items()}).values())
        assert most <= 3
        return [list(entry) for entry in assignment]


def disturb(crew: Crew, kill_engine: Callable[[], None]) -> None:
    crew.start()
    crew.wait(lambda: crew.count() > SAMPLES // 8, 60)
    crew.processes[KILLED].kill()
    crew.stop(STOPPED)
    stopped = time.monotonic()
    crew.wait(lambda: crew.count() > SAMPLES // 3, 60)
    kill_engine()
    crew.wait(lambda: time.monotonic() > stopped + 2 * SETTINGS["lease"], 60)
    crew.processes[STOPPED].send_signal(signal.SIGCONT)
    said = crew.end()
    assert set(said) == set(range(WORKERS)) - {KILLED}
    assert said[STOPPED]["lost"] >= 1, "the stopped worker's lease was not lost, so nothing was tested"
    crew.check()


def seconds(rank: int) -> float:
    return 0.02 if rank == SLOW else 0.005


def test_every_sample_is_committed_once_with_sqlite(tmp_path: Path, remote: Path) -> None:
    database = tmp_path / "run.db"

    def kill_a_writer() -> None:
        """A process is killed in the middle of a transaction of its own."""
        code = (
            "import os, sqlite3, sys, time\n"
            "c = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)\n"
            "c.execute('BEGIN IMMEDIATE')\n"
            "name = c.execute('SELECT name FROM sqlite_master WHERE type = \"table\"').fetchone()[0]\n"
            "c.execute(f'DELETE FROM {name}')\n"
            "print('deep in', flush=True)\n"
            "time.sleep(60)\n"
        )
        writer = subprocess.Popen([sys.executable, "-c", code, str(database)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        assert writer.stdout.readline().strip() == "deep in"
        time.sleep(0.3)
        writer.kill()
        writer.communicate()

    crew = Crew(tmp_path, remote, f"sqlite://{database}", WORKERS, seconds)
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
            time.sleep(0.5)
            server.start()

        crew = Crew(tmp_path, remote, server.url, WORKERS, seconds)
        try:
            disturb(crew, kill_engine)
        finally:
            crew.close()


def _commit_all(loader: StreamingShardLoader) -> None:
    for _ in loader:
        loader.commit()


def test_an_engine_that_is_gone_for_good_is_named_and_nothing_hangs(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as short, redis_server(Path(short)) as server:
        config = StreamingConfig(
            1,
            0,
            Adaptive(),
            coordinator=server.url,
            coordination=CoordinationSettings(**SETTINGS),
            patience=2.0,
            commit="explicit",
        )
        loader = StreamingShardLoader({"x": np.arange(10_000)}, config)
        loader.next()
        server.kill()
        begun = time.monotonic()
        with pytest.raises(EngineError, match=str(server.socket)):
            _commit_all(loader)
        assert time.monotonic() - begun < 60
        with pytest.raises(EngineError):
            loader.close()


def test_a_worker_that_begins_while_the_engine_restarts_waits_for_it() -> None:
    with tempfile.TemporaryDirectory() as short, redis_server(Path(short)) as server:
        config = StreamingConfig(
            1, 0, Adaptive(), coordinator=server.url, coordination=CoordinationSettings(**SETTINGS)
        )
        server.kill()
        restart = threading.Timer(1.5, server.start)
        restart.start()
        with StreamingShardLoader({"x": np.arange(100)}, config) as loader:
            assert len(list(loader)) == 100
        restart.join()


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
    crew = Crew(tmp_path, own, engine, 2, lambda _: 0.001, base="contiguous", replication=2, held=[second, first])
    try:
        crew.start()
        crew.wait(lambda: crew.count() > SAMPLES // 2, 60)
        if how == signal.SIGSTOP:
            crew.stop(0)
        else:
            crew.processes[0].send_signal(how)
        for name in first:
            (own / name).unlink()
        crew.wait(lambda: crew.processes[1].poll() is not None, 120)
        out, err = crew.processes[1].communicate()
        assert crew.processes[1].returncode == 0, err
        said = json.loads(out)
        assert said["replicated"] > 0
        only_second = [own / name for name in second if name not in first]
        assert said["fetched"] <= sum(path.stat().st_size for path in only_second)
        if how == signal.SIGSTOP:
            crew.processes[0].kill()
        crew.remote = remote
        crew.check()
        # It went on from the last commit, not from the beginning.
        delivered = crew.delivered()
        again = [number for number, who in delivered.items() if len(who) > 1]
        assert len(again) < sum(who[0][0] == 0 for who in delivered.values())
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
    crew = Crew(
        tmp_path, remote, f"sqlite://{tmp_path}/run.db", 3, lambda _: 0.002, base="contiguous", replication=2, held=held
    )
    try:
        crew.start()
        crew.wait(lambda: crew.count() > SAMPLES // 4, 60)
        killed = time.monotonic()
        crew.processes[0].kill()
        said = crew.end()
        crew.check()
        # By whom, and when, the killed one's samples were delivered; it had delivered its last before it was killed.
        after = sorted(
            (moment, who, number)
            for number, deliveries in crew.delivered().items()
            for who, moment in deliveries
            if number < SAMPLES // 3 and who != 0
        )
        assert after[0][0] > killed
        assert {who for _, who, _ in after[: len(after) // 2]} == {holder}
        own = set(part(holder)) - set(held[holder])
        assert said[holder]["fetched"] <= sum((remote / name).stat().st_size for name in own)
    finally:
        crew.close()


def test_each_lane_has_its_holders_and_losing_a_worker_moves_few() -> None:
    world, replication = 64, 3
    held = [lanes_held(rank, world, world, replication) for rank in range(world)]
    holders = Counter(lane for lanes in held for lane in lanes)
    assert set(holders.values()) == {replication - 1}
    assert all(rank not in lanes for rank, lanes in enumerate(held))
    assert max(map(len, held)) < 12
    assert lanes_held(0, 8, 8, 1) == []
    assert lanes_held(0, 2, 2, 2) == [1]
