"""Starts a run's ranks as processes of this host, and sees how they end. On a cluster :mod:`stoker_bench.ranks.ray` does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from stoker.storage.files.locked_folder import LockedFolder
from stoker_bench.ranks.control.server import Server
from stoker_bench.ranks.plan import NAME, RunPlan, save_plan
from stoker_bench.ranks.termination import is_stopped, kill_descendants

_END_SECONDS: Final = 35.0
"""For which ranks may take to end after one has failed; a little more than they give themselves."""


_GRACE: Final = 5.0
"""Seconds for each way of ending ranks, from word to SIGKILL."""


class Launch(Protocol):
    """Starts the ranks of one run.

    Attributes:
        name: for the results.
        host: at which the process that they meet at listens for them; empty for all addresses of this host.
    """

    name: str
    host: str

    def prepare(self) -> None:
        """Find out whether the ranks can be started at all, before anything is; may hold on to what it found.

        Raises:
            StokerError: says why they can not. Nothing is held then.
        """

    def start(self, plan: RunPlan, port: int, token: str) -> None:
        """Start all ranks, which connect to ``port`` with the token."""

    def ended(self) -> Sequence[str | None]:
        """Of each rank: ``None`` while it runs, nothing where it ended well, else what became of it. May wait a moment."""

    def end_stopped(self) -> None:
        """End ranks that are stopped, as by SIGSTOP: word and SIGTERM do not reach them, and there is nothing to wait for."""

    def end(self) -> None:
        """End what still runs, and leave nothing behind."""


def await_ranks(launch: Launch, server: Server) -> None:
    """Wait until all ranks have ended, or one has failed and the others had time to."""
    deadline: float | None = None
    while deadline is None or time.monotonic() < deadline:
        ended = launch.ended()
        for rank, said in enumerate(ended):
            if said and server.failure is None:
                server.failed.wait(0.5)  # its connection tells more, if it got so far
                server.fail(f"rank {rank} {said}")
        if None not in ended:
            return
        if server.failed.is_set():
            launch.end_stopped()
            deadline = deadline or time.monotonic() + _END_SECONDS
        time.sleep(0.02)


class LocalRanks(Launch):
    """Processes of this host, which are told the plan by a file.

    Args:
        ranks: how many.
    """

    name, host = "local processes", "127.0.0.1"

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._children: list[subprocess.Popen[bytes]] = []
        self._scratch: LockedFolder | None = None

    def prepare(self) -> None:
        """See :class:`Launch`."""

    def start(self, plan: RunPlan, port: int, token: str) -> None:
        self._scratch = LockedFolder.in_temp("stoker-bench-")
        path = self._scratch.path / NAME
        save_plan(replace(plan, scratch=str(self._scratch.path)), path)
        environ = {**os.environ, "_STOKER_BENCH_TOKEN": token}
        for rank in range(self._ranks):
            told = [str(path), str(rank), str(self._ranks), str(port)]
            arguments = [sys.executable, "-m", "stoker_bench.ranks.rank_main", *told]
            self._children.append(subprocess.Popen(arguments, env=environ, stdin=subprocess.DEVNULL))  # noqa: S603 - ours

    def ended(self) -> list[str | None]:
        return [_told(child.poll()) for child in self._children]

    def end_stopped(self) -> None:
        """See :class:`Launch`."""
        for child in self._children:
            if child.poll() is None and is_stopped(child.pid):
                kill_descendants(child.pid)
                child.kill()

    def end(self) -> None:
        self._await_end()  # they have been told, and save what they have
        for child in self._children:
            if child.poll() is None:
                child.terminate()
        self._await_end()
        for child in self._children:
            if child.poll() is None:
                kill_descendants(child.pid)
                child.kill()
        self._await_end()  # not for ever: one that waits for a dead server's disk can not be killed
        if self._scratch is not None:
            self._scratch.remove()

    def _await_end(self) -> None:
        deadline = time.monotonic() + _GRACE
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))


def _told(code: int | None) -> str | None:
    """The meaning of a process's exit code; ``None`` while it runs."""
    if not code:
        return None if code is None else ""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
