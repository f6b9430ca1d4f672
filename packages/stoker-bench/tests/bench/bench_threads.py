"""Runs whose ranks are threads of this process and meet in its memory: they start no process and no server.

What is counted for a process, as its bytes and the requests of stoker's stores, is that of all ranks.
What processes and their connections do has tests of its own: :mod:`test_bench_run`, :mod:`test_bench_ranks`,
:mod:`test_bench_faults`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE
from stoker.cluster import World
from stoker.errors import StokerError
from stoker_bench import run
from stoker_bench.ranks.control.client import Link, RankFailedError
from stoker_bench.ranks.launch import Launch
from stoker_bench.ranks.plan import RunPlan, load_plan, save_plan
from stoker_bench.ranks.rank_main import run_member
from stoker_bench.ranks.worker_stacks import tell_stacks
from stoker_bench.settings.sources import Resolved


class _Meeting:
    """Where ranks meet: a ``Server`` without a socket."""

    port = 0

    def __init__(self, size: int) -> None:
        self.size, self.changed = size, threading.Condition()
        self.parts: dict[str, dict[int, Any]] = {}
        self.gone: set[int] = set()
        self.failure: str | None = None
        self.failed = threading.Event()
        self.records: dict[int, dict[str, Any]] = {}

    def fail(self, said: str) -> None:
        with self.changed:
            self.failure = self.failure or said
            self.failed.set()
            self.changed.notify_all()

    def leave(self, rank: int) -> None:
        with self.changed:
            self.gone.add(rank)
            waiting = [name for name, parts in self.parts.items() if rank not in parts]
        if waiting:
            self.fail(f"rank {rank} ended while others wait for it in {waiting[0]!r}")

    def await_leaving(self, *_: object, **__: object) -> None:
        """All have left: :meth:`_Threads.end` waits for them."""

    def close(self) -> None:
        """It has nothing to close."""


class _MemoryLink(Link):
    """A rank's way to it."""

    def __init__(self, meeting: _Meeting, rank: int) -> None:
        self.rank, self.waiting, self._meeting, self._turns = rank, False, meeting, {}

    @property
    def lost(self) -> bool:
        return False

    def check(self) -> None:
        if self._meeting.failure is not None:
            raise RankFailedError(self._meeting.failure)

    def gather(self, name: str, value: Any = None) -> list[Any]:
        meeting, turn = self._meeting, self._turns.get(name, 0)
        self._turns[name] = turn + 1
        full = f"{name}#{turn}"
        with meeting.changed:
            parts = meeting.parts.setdefault(full, {})
            parts[self.rank] = json.loads(json.dumps(value))  # as it would arrive
            if len(parts) == meeting.size:
                del meeting.parts[full]
                meeting.changed.notify_all()
            elif meeting.gone:
                meeting.failure = meeting.failure or f"rank {min(meeting.gone)} ended while others wait in {full!r}"
            self.waiting = True
            done = meeting.changed.wait_for(lambda: len(parts) == meeting.size or meeting.failure, PATIENCE)
            self.waiting = False
            if len(parts) == meeting.size:
                return [parts[rank] for rank in range(meeting.size)]
        assert done, f"rank {self.rank} waits for ever in {full!r}"
        self.check()
        raise AssertionError

    def leave(self, record: dict[str, Any]) -> None:
        self._meeting.records[self.rank] = json.loads(json.dumps(record))

    def fail(self, said: str) -> None:
        self._meeting.fail(f"rank {self.rank} (this host, process {os.getpid()}): {said}")

    def close(self) -> None:
        self._meeting.leave(self.rank)


class _Threads(Launch):
    """Ranks that are threads."""

    name, host = "local processes", ""

    def __init__(self, ranks: int, meetings: list[_Meeting]) -> None:
        self._size, self._meetings, self._scratch = ranks, meetings, ""
        self._ended: list[str | None] = [None] * ranks
        self._threads: list[threading.Thread] = []

    def prepare(self) -> None:
        pass

    def start(self, plan: RunPlan, port: int, token: str) -> None:
        self._scratch = tempfile.mkdtemp(prefix="stoker-bench-")
        path = Path(self._scratch, "plan.json")
        save_plan(replace(plan, scratch=self._scratch), path)
        self._threads = [
            threading.Thread(target=self._run, args=[load_plan(path), rank], daemon=True, name=f"rank-{rank}")
            for rank in range(self._size)
        ]
        for one in self._threads:
            one.start()

    def _run(self, plan: RunPlan, rank: int) -> None:
        try:
            run_member(plan, World(rank, self._size, self._size, "local"), _MemoryLink(self._meetings[-1], rank))
        except StokerError as error:
            sys.stderr.write(f"rank {rank}: {error}\n")
            self._ended[rank] = "ended with code 1"
        except BaseException as error:
            self._ended[rank] = f"ended with {error!r}"
            raise
        else:
            self._ended[rank] = ""

    def ended(self) -> list[str | None]:
        return self._ended

    def end_stopped(self) -> None:
        pass

    def end(self) -> None:
        for one in self._threads:
            one.join(PATIENCE)
            assert not one.is_alive(), f"{one.name} does not end"
        shutil.rmtree(self._scratch, ignore_errors=True)


@contextlib.contextmanager
def ranks_as_threads() -> Iterator[None]:
    """Let runs of this process, which would start their ranks as processes, have them as threads."""
    meetings: list[_Meeting] = []
    tell_stacks()  # which sets a variable once in a process
    environ = dict(os.environ)

    def serve(size: int, *_: object, **__: object) -> _Meeting:
        meetings.append(_Meeting(size))
        return meetings[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "Server", serve)
        patch.setattr(run, "LocalRanks", lambda ranks: _Threads(ranks, meetings))
        try:
            yield
        finally:
            os.environ.clear()  # some packages take settings from there alone, and a rank's process has its own
            os.environ.update(environ)


def run_in_threads(resolved: Resolved, **given: Any) -> dict[str, Any]:
    """``run_benchmark`` with ranks that are threads."""
    with ranks_as_threads():
        return run.run_benchmark(resolved, **given)
