"""What leases cost: many workers with one-second splits and heartbeats, over a real engine.

    python benchmarks/coordination.py --engine redis --workers 1000
    python benchmarks/coordination.py --engine sqlite --workers 1000

Workers are the real protocol. They share a few processes and do nothing with their samples but wait, so that the load on
the engine is that of as many machines. Told are:

* the engine's processor time as a part of one core (for SQLite, which has no process: that of all threads inside its calls);
* a worker's processor time for each lease: all that its process does for leases, commits, heartbeats and looking after
  others, the engine's client and this benchmark's own stepping included;
* how long one worker that has a process to itself waits for a lease, commit included, while the others do theirs. The
  machine's disk is in it, as the engine answers when what it was told is there.
"""

from __future__ import annotations

import argparse
import heapq
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from stoker.coordination.agent import Agent
from stoker.coordination.engines.store import open_store
from stoker.coordination.holdings import Holding
from stoker.coordination.membership import Membership, ProtocolClock
from stoker.coordination.records import CoordinationSettings, Create, Epoch, Keys, Process, Sleep, Swap, Unanswered
from stoker.coordination.run import RunRecords, perform

RATE = 1000  # samples a second and worker


class _Worker:
    """One worker's protocol and consumer, stepped by hand."""

    def __init__(self, rank: int, epoch: Epoch, keys: Keys) -> None:
        self.clock = ProtocolClock(time.monotonic())
        process = Process("bench", "", rank, 0, f"{rank}")
        self.member = Membership(keys, rank, process, epoch.settings, self.clock)
        self.agent: Agent | None = None
        self.epoch, self.keys = epoch, keys
        self.steps = self._live()
        self.answer: Any = None
        self.working: Holding | None = None
        self.done_at = 0.0
        self.waited = 0

    def _live(self) -> Any:
        yield from self.member.join()
        self.agent = Agent(self.keys, self.epoch, self.member, self.clock, commit_every=5.0)
        yield from self.agent.run()

    def work(self, now: float) -> None:
        agent = self.agent
        if agent is None:
            return
        if self.working is not None and now >= self.done_at:
            end = self.working.split.end
            agent.held.deliver(self.working, end)
            agent.held.commit(self.working, end)
            self.working = None
        if self.working is None:
            self.working = agent.take()
            if self.working is None:
                self.waited += 1
            else:
                length = self.working.split.end - self.working.split.begin
                self.done_at = now + length / RATE


class _Timed:
    """An engine, and the processor time that this thread has spent inside its calls."""

    def __init__(self, inner: Any) -> None:
        self.url = inner.url
        self.used, self.counts = 0.0, False
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        def timed(*arguments: Any) -> Any:
            before = time.thread_time()
            try:
                return getattr(self._inner, name)(*arguments)
            finally:
                if self.counts:
                    self.used += time.thread_time() - before

        return timed


def run_workers(url: str, ranks: range, epoch: Epoch, start: float, seconds: float, out: Any) -> None:
    """A process with some of the workers."""
    store = _Timed(open_store(url))
    keys = Keys("bench")
    workers = [_Worker(rank, epoch, keys) for rank in ranks]
    queue = [(start + k / len(workers), k) for k in range(len(workers))]
    heapq.heapify(queue)
    lane_times: list[float] = []
    operations = 0
    settled = start + seconds / 3  # until then all begin
    late, used_before, leased_before = 0.0, 0.0, 0
    while True:
        due, k = heapq.heappop(queue)
        now = time.monotonic()
        if now >= start + seconds:
            break
        if due > now:
            time.sleep(due - now)
            now = time.monotonic()
        elif now > settled:
            late = max(late, now - due)
        if not used_before and now > settled:
            used_before, leased_before = time.thread_time(), _leases(workers)
        worker = workers[k]
        while True:
            worker.clock.now = now
            worker.work(now)
            operation = worker.steps.send(worker.answer)
            worker.answer = None
            if isinstance(operation, Sleep):
                until = operation.until
                if worker.working is not None:
                    until = min(until, worker.done_at)
                heapq.heappush(queue, (max(now, until), k))
                break
            store.counts = now > settled
            before = time.perf_counter()
            try:
                worker.answer = perform(store, operation)
            except Unanswered:
                raise SystemExit("the engine did not answer") from None
            now = time.monotonic()
            if now > settled:
                operations += 1
                if isinstance(operation, Create | Swap) and "/lane/" in operation.key:
                    lane_times.append(time.perf_counter() - before)
    out.put(
        {
            "alone": len(workers) == 1,
            "leases": _leases(workers) - leased_before,
            "waits": lane_times,
            "operations": operations,
            "engine": store.used,
            "used": time.thread_time() - used_before,
            "late": late,
        }
    )


def _leases(workers: list[_Worker]) -> int:
    return sum(0 if worker.agent is None else worker.agent.held.leases for worker in workers)


def run_threads(
    url: str, process: int, processes: int, threads: int, epoch: Epoch, start: float, seconds: float, out: Any
) -> None:
    """A process with some of the workers, in threads that each have a connection: so many calls can be under way at once."""
    groups = processes * threads
    running = [
        threading.Thread(
            target=run_workers,
            args=(url, range(1 + process * threads + k, epoch.world_size, groups), epoch, start, seconds, out),
        )
        for k in range(threads)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def _redis(folder: str) -> tuple[subprocess.Popen[bytes], str]:
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        raise SystemExit("redis-server is not installed: apt-get install redis-server")
    options = ["--port", "0", "--unixsocket", f"{folder}/r.sock", "--dir", folder, "--save", ""]
    server = subprocess.Popen(
        [binary, *options, "--appendonly", "yes", "--appendfsync", "always"], stdout=subprocess.DEVNULL
    )
    while not Path(f"{folder}/r.sock").exists():
        time.sleep(0.02)
    return server, f"unix://{folder}/r.sock"


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("redis", "sqlite"), default="redis")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=8, help="in each process; each is a client of the engine")
    parser.add_argument("--seconds", type=float, default=30.0)
    chosen = parser.parse_args()
    settings = CoordinationSettings(lease=30.0, heartbeat=5.0, split=1.0, smallest=RATE, largest=RATE)
    total = chosen.workers * RATE * 3600
    lanes = chosen.workers
    starts = tuple([total * k // lanes for k in range(lanes + 1)])
    with tempfile.TemporaryDirectory(prefix="st") as folder:
        server = None
        if chosen.engine == "redis":
            server, url = _redis(folder)
        else:
            url = f"sqlite://{folder}/run.db"
        epoch = RunRecords(open_store(url), "bench").open_epoch(Epoch(0, 1, chosen.workers, starts, None, (), settings))
        context = multiprocessing.get_context("spawn")
        out = context.Queue()
        start = time.monotonic() + 2
        running = [
            context.Process(
                target=run_threads,
                args=(url, k, chosen.processes, chosen.threads, epoch, start, chosen.seconds, out),
            )
            for k in range(chosen.processes)
        ]
        running.append(context.Process(target=run_workers, args=(url, range(1), epoch, start, chosen.seconds, out)))
        for process in running:
            process.start()
        time.sleep(max(0.0, start + chosen.seconds / 3 - time.monotonic()))
        before = _cpu(server.pid) if server is not None else 0.0
        time.sleep(max(0.0, start + chosen.seconds - time.monotonic()))
        after = _cpu(server.pid) if server is not None else 0.0
        results = [out.get() for _ in range(chosen.processes * chosen.threads + 1)]
        for process in running:
            process.join()
        if server is not None:
            server.terminate()
            server.wait()
    measured = chosen.seconds * 2 / 3
    (alone,) = [result for result in results if result["alone"]]
    waits = sorted(alone["waits"])
    leases = sum(result["leases"] for result in results)
    engine = (after - before if server is not None else sum(result["engine"] for result in results)) / measured
    used = sum(result["used"] for result in results)
    print(
        json.dumps(
            {
                "engine": chosen.engine,
                "workers": chosen.workers,
                "leases a second": round(leases / measured),
                "operations a second": round(sum(result["operations"] for result in results) / measured),
                "engine, part of a core": round(engine, 4),
                "worker, processor ms a lease": round(used / leases * 1e3, 3),
                "a worker's wait for a lease, ms": {
                    "median": round(statistics.median(waits) * 1e3, 3),
                    "p90": round(waits[len(waits) * 9 // 10] * 1e3, 3),
                },
                "latest step, ms": round(max(result["late"] for result in results) * 1e3, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
