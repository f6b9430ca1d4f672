"""Work that is leased against work that is dealt out in advance, on the same unlike workers.

    python benchmarks/adaptive.py                       # eight workers, one four times slower; SQLite
    python benchmarks/adaptive.py --engine redis        # starts a redis-server of its own
    python benchmarks/adaptive.py --engine ray          # starts Ray on this machine
    python benchmarks/adaptive.py --disturb             # one is killed, one stopped beyond its lease, the engine killed
    python benchmarks/adaptive.py --recovery            # how soon others go on for a worker that is killed, or stopped
    python benchmarks/adaptive.py --overhead            # what a sample costs its consumer

Workers are processes that read shards and "work" a few milliseconds on each sample. They begin together; the epoch's time is
that of the last. After a run with ``--disturb`` every sample must have been committed exactly once.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

WORKERS, SLOW, KILLED, STOPPED = 8, 1, 2, 3
SETTINGS = {"lease": 3.0, "heartbeat": 1.0, "split": 0.5}


def work(told: dict[str, Any]) -> None:
    """One worker."""
    from stoker import StreamingDataset
    from stoker.coordination import CoordinationSettings
    from stoker.loaders.shard_loader import Adaptive, StreamingConfig, StreamingShardLoader
    from stoker.partitions import RoundRobin

    engine = told["engine"]
    if engine is not None and engine.startswith("ray://"):
        import ray

        ray.init(address=told["address"], log_to_driver=False)
    dataset = StreamingDataset(remote=told["remote"], local=told["cache"], shuffle=True)
    config = StreamingConfig(
        told["world_size"], told["rank"], RoundRobin(), prefetch_buffer_size=16, remainder="uneven"
    )
    if engine is not None:
        config = StreamingConfig(
            told["world_size"],
            told["rank"],
            Adaptive(),
            prefetch_buffer_size=16,
            coordinator=engine,
            coordination=CoordinationSettings(**told["settings"]),
            commit_every=0.25,
        )
    loader = StreamingShardLoader(dataset, config)
    loader.prefetch(1)
    Path(told["out"]).touch()
    while not Path(told["start"]).exists():
        time.sleep(0.002)
    out = os.open(told["out"], os.O_WRONLY | os.O_APPEND)
    owed = 0.0
    begun = time.monotonic()
    while (sample := loader.next()) is not None:
        os.write(out, f"{int(sample['id'])} {time.monotonic():.4f}\n".encode())
        owed += told["seconds"]
        if owed > 0.005:
            slept = time.monotonic()
            time.sleep(owed)
            owed -= time.monotonic() - slept
    took = time.monotonic() - begun
    said: dict[str, Any] = {"took": took, "utilization": loader.get_stats().worker_utilization}
    if engine is not None and told["rank"] == 0:
        progress = loader.progress()
        said |= {"committed": progress.committed, "again": progress.again, "exposed": progress.exposed}
        said["assignment"] = loader.assignment()["entries"]
    loader.close()
    print(json.dumps(said))


class Crew:
    """Workers on the same data."""

    def __init__(
        self, folder: Path, remote: Path, engine: str | None, world: int, seconds: Callable[[int], float], **more: Any
    ) -> None:
        self.folder = folder
        self.world = world
        self.processes = []
        folder.mkdir()
        for rank in range(world):
            told: dict[str, Any] = {
                "rank": rank,
                "world_size": world,
                "engine": engine,
                "remote": str(remote),
                "settings": SETTINGS,
            }
            told |= {"cache": str(folder.parent / "cache"), "out": str(folder / f"{rank}.out"), **more}
            told |= {"start": str(folder / "start"), "seconds": seconds(rank)}
            command = [sys.executable, __file__, "--worker", json.dumps(told)]
            self.processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        self.wait(lambda: all((folder / f"{rank}.out").exists() for rank in range(world)))
        (folder / "start").touch()

    def wait(self, done: Callable[[], bool]) -> None:
        while not done():
            if any(process.poll() not in (None, 0, -signal.SIGKILL) for process in self.processes):
                raise SystemExit("a worker failed")
            time.sleep(0.01)

    def count(self) -> int:
        return sum(len((self.folder / f"{rank}.out").read_text().splitlines()) for rank in range(self.world))

    def lines(self, rank: int) -> list[tuple[int, float]]:
        text = (self.folder / f"{rank}.out").read_text()
        rows = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return [(int(number), float(moment)) for number, moment in rows]

    def end(self) -> dict[int, dict[str, Any]]:
        said = {}
        for rank, process in enumerate(self.processes):
            out, _ = process.communicate()
            if process.returncode == 0:
                said[rank] = json.loads(out)
        return said


class Engine:
    """An engine that can be killed and started again."""

    def __init__(
        self, url: str, kill: Callable[[], None], free: Callable[[], bool] = lambda: True, **more: Any
    ) -> None:
        self.url = url
        self.kill = kill
        self.free = free
        self.more = more


@contextmanager
def engine_of(name: str, folder: Path) -> Iterator[Engine]:
    if name == "sqlite":
        database = folder / "run.db"
        code = (
            "import sqlite3, sys, time\n"
            "c = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)\n"
            "c.execute('BEGIN IMMEDIATE'); print('in', flush=True); time.sleep(60)\n"
        )

        def kill_writer() -> None:
            command = [sys.executable, "-c", code, str(database)]
            writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.5)
            writer.kill()

        def free() -> bool:
            connection = sqlite3.connect(database, isolation_level=None, timeout=0.05)
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("ROLLBACK")
            except sqlite3.OperationalError:
                return False
            finally:
                connection.close()
            return True

        yield Engine(f"sqlite://{database}", kill_writer, free)
    elif name == "redis":
        socket, binary = folder / "r.sock", shutil.which("redis-server") or shutil.which("valkey-server")
        if binary is None:
            raise SystemExit("redis-server is not installed: apt-get install redis-server")
        options = f"--port 0 --unixsocket {socket} --dir {folder} --appendonly yes --appendfsync always --save".split()
        running: list[subprocess.Popen[bytes]] = []

        def start() -> None:
            running.append(subprocess.Popen([binary, *options, ""], stdout=subprocess.DEVNULL))
            while not socket.exists():
                time.sleep(0.01)

        def kill() -> None:
            running[-1].kill()
            running[-1].wait()
            socket.unlink(missing_ok=True)
            time.sleep(0.5)
            start()

        start()
        try:
            yield Engine(f"unix://{socket}", kill)
        finally:
            running[-1].kill()
            running[-1].wait()
    else:
        import ray

        context: Any = ray.init(include_dashboard=False, log_to_driver=False, num_cpus=2)

        def kill_actor() -> None:
            actor = ray.get_actor("bench", namespace="stoker")
            ray.kill(actor, no_restart=False)

        try:
            yield Engine(f"ray://bench?path={folder}/ray.db", kill_actor, address=context.address_info["address"])
        finally:
            ray.shutdown()


def make_data(folder: Path, samples: int) -> Path:
    from stoker import MDSWriter

    remote = folder / "remote"
    with MDSWriter(columns={"id": "int", "data": "bytes"}, out=remote, size_limit=1 << 18) as writer:
        for number in range(samples):
            writer.write({"id": number, "data": number.to_bytes(8, "little") * 32})
    return remote


def seconds_of(base: float) -> Callable[[int], float]:
    return lambda rank: base * (4 if rank == SLOW else 1)


def compare(name: str, samples: int, base: float, *, disturb: bool) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        remote = make_data(folder, samples)
        dealt = Crew(folder / "dealt", remote, None, WORKERS, seconds_of(base)).end()
        slowest = max(said["took"] for said in dealt.values())
        print(
            f"round robin: {slowest:.1f} s, that of the slow worker; the others took "
            f"{statistics.median(said['took'] for said in dealt.values()):.1f} s"
        )
        with engine_of(name, folder) as engine:
            crew = Crew(folder / "leased", remote, engine.url, WORKERS, seconds_of(base), **engine.more)
            if disturb:
                crew.wait(lambda: crew.count() > samples // 8)
                crew.processes[KILLED].kill()
                crew.processes[STOPPED].send_signal(signal.SIGSTOP)
                while not engine.free():
                    crew.processes[STOPPED].send_signal(signal.SIGCONT)
                    time.sleep(0.02)
                    crew.processes[STOPPED].send_signal(signal.SIGSTOP)
                stopped = time.monotonic()
                crew.wait(lambda: crew.count() > samples // 3)
                engine.kill()
                crew.wait(lambda: time.monotonic() > stopped + 2 * SETTINGS["lease"])
                crew.processes[STOPPED].send_signal(signal.SIGCONT)
            said = crew.end()
            took = max(one["took"] for one in said.values())
            leader = said[0]
            shares = [len(crew.lines(rank)) for rank in range(WORKERS)]
        covered = [position for begin, end, *_ in leader["assignment"] for position in range(begin, end)]
        assert covered == list(range(samples)), "not every sample was committed once"
        print(f"leased ({name}): {took:.1f} s = {took / slowest:.2f} of that; samples of each worker: {shares}")
        print(
            f"  committed {leader['committed']} of {samples}, each once; delivered twice {sum(shares) - samples}, "
            f"certainly {leader['again']}, at most {leader['exposed']}; {len(leader['assignment'])} splits"
        )


def recovery(name: str, samples: int, how: signal.Signals, settings: dict[str, float]) -> None:
    """Two workers, of which one has nothing left to do: it goes on for the other when that one is gone."""
    SETTINGS.update(settings)
    times = [_recover_once(name, samples, how) for _ in range(5)]
    beats = statistics.median(times) / settings["heartbeat"]
    print(
        f"{how.name}, heartbeat {settings['heartbeat']:g} s, lease {settings['lease']:g} s ({name}): another goes on after "
        f"{statistics.median(times):.2f} s = {beats:.2f} heartbeats (worst of {len(times)}: {max(times):.2f} s)"
    )


def _recover_once(name: str, samples: int, how: signal.Signals) -> float:
    with tempfile.TemporaryDirectory() as temporary, engine_of(name, Path(temporary)) as engine:
        folder = Path(temporary)
        remote = make_data(folder, samples)
        crew = Crew(folder / "leased", remote, engine.url, 2, lambda rank: 0.02 if rank else 0.00001, **engine.more)

        def idle() -> bool:
            done = crew.lines(0)
            return bool(done) and time.monotonic() - done[-1][1] > 0.5

        # Rank 0 has done all that it could get, and waits; rank 1 holds the rest.
        crew.wait(idle)
        assert crew.count() < samples
        at = time.monotonic()
        crew.processes[1].send_signal(how)
        while how == signal.SIGSTOP and not engine.free():  # it was stopped in a write, which would stop the other too
            crew.processes[1].send_signal(signal.SIGCONT)
            time.sleep(0.02)
            at = time.monotonic()
            crew.processes[1].send_signal(how)
        crew.processes[0].communicate()
        crew.processes[1].kill()
        crew.processes[1].communicate()
        if crew.processes[0].returncode:
            raise SystemExit("the other worker failed")
        return next(moment for _, moment in crew.lines(0) if moment > at) - at


def overhead(samples: int) -> None:
    """Time a sample, from arrays in memory, so that reading costs next to nothing."""
    from stoker.loaders.shard_loader import Adaptive, StreamingConfig, StreamingShardLoader

    data = {"x": np.arange(samples)}
    with tempfile.TemporaryDirectory() as folder:
        for what, config in (
            ("lockstep", StreamingConfig()),
            ("leased", StreamingConfig(partition=Adaptive(), coordinator=f"sqlite://{folder}/a.db")),
            (
                "leased, batches of 32",
                StreamingConfig(partition=Adaptive(), coordinator=f"sqlite://{folder}/b.db", batch_size=32),
            ),
        ):
            with StreamingShardLoader(data, config) as loader:
                begun = time.perf_counter()
                for _ in loader:
                    pass
                took = time.perf_counter() - begun
            print(f"{what}: {took / samples * 1e6:.2f} us a sample")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--engine", choices=["sqlite", "redis", "ray"], default="sqlite")
    parser.add_argument("--samples", type=int, default=16_000)
    parser.add_argument("--milliseconds", type=float, default=4.0, help="work on a sample by a fast worker")
    parser.add_argument("--disturb", action="store_true")
    parser.add_argument("--recovery", action="store_true")
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(json.loads(given.worker))
    elif given.recovery:
        recovery(given.engine, 400, signal.SIGKILL, {"lease": 3.0, "heartbeat": 1.0})
        recovery(given.engine, 400, signal.SIGSTOP, {"lease": 1.5, "heartbeat": 1.0})
        recovery(given.engine, 400, signal.SIGSTOP, {"lease": 3.0, "heartbeat": 1.0})
    elif given.overhead:
        overhead(200_000)
    else:
        compare(given.engine, given.samples, given.milliseconds * 1e-3, disturb=given.disturb)


if __name__ == "__main__":
    main()
