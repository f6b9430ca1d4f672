"""The ranks of a run: those of torchrun, Slurm or an MPI where one of them started this, else local processes."""

from __future__ import annotations

import json
import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stoker.cluster import World
from stoker.errors import ConfigError
from stoker.policy import processor_count
from stoker_bench.ranks.control.client import Link
from stoker_bench.ranks.control.server import Server

_MOST_THREADS: Final = 8
_MEETING: Final = "meeting.json"
COORDINATOR: Final = "STOKER_BENCH_COORDINATOR"
"""``host:port`` at which rank 0 listens, where ranks share no results directory."""


def find_world(environ: Mapping[str, str] | None = None) -> World | None:
    """This process's world if a launcher has started it, else ``None``: ranks are then to be started here.

    Raises:
        ConfigError: a launcher's variables contradict each other.
    """
    values = os.environ if environ is None else environ
    world = World.detect(values)
    if world.source != "single process":
        return world
    # MPICH, Intel MPI and their kin.
    if values.get("PMI_RANK", "").isdigit() and values.get("PMI_SIZE", "").isdigit():
        size = int(values["PMI_SIZE"])
        local = values.get("MPI_LOCALNRANKS", "")
        return World(int(values["PMI_RANK"]), size, min(int(local), size) if local.isdigit() else 1, "PMI")
    return None


def read_threads(threads: int | str, ranks_here: int) -> int:
    """Threads of one rank that read ahead: as asked, or this host's processors shared by the ranks on it, at most 8."""
    if isinstance(threads, int):
        return threads
    return max(1, min(_MOST_THREADS, processor_count() // max(1, ranks_here)))


def meet(
    world: World, results: Path, digest: str, *, join_seconds: float = 300.0, silence: float = 0.0
) -> tuple[Link, Server | None]:
    """Connect the ranks that a launcher has started; rank 0 is also where they meet.

    Rank 0's address is in a file of the results directory, which all ranks then share, or in ``STOKER_BENCH_COORDINATOR``.
    ``silence`` is as of :class:`~stoker_bench.ranks.control.client.Link`.

    Raises:
        RankFailedError: they do not come together.
        ConfigError: the variable is no address.
    """
    given = os.environ.get(COORDINATOR, "")
    path = results / _MEETING
    server = None
    fixed: tuple[str, int, str] | None = None
    if given:
        host, colon, port = given.rpartition(":")
        if not colon or not port.isdigit():
            raise ConfigError(f"{COORDINATOR} must be host:port, got {given!r}")
        fixed = host.strip("[]"), int(port), digest
    if world.rank == 0:
        token = digest if fixed else secrets.token_hex(16)
        server = Server(world.world_size, token, digest, "", fixed[1] if fixed else 0, join_seconds, silence)
        if not fixed:
            results.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{_MEETING}.{os.getpid()}")
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump([socket.gethostname(), server.port, token], file)
            temporary.replace(path)
            fixed = "127.0.0.1", server.port, token

    def address() -> tuple[str, int, str] | None:
        if fixed is not None:
            return fixed
        try:
            host, port, token = json.loads(path.read_text())
            return str(host), int(port), str(token)
        except (OSError, ValueError, TypeError):
            return None

    return Link(address, world.rank, digest, join_seconds=join_seconds, fatal=True, silence=silence), server


def forget_meeting(results: Path) -> None:
    """Remove what a run left for its ranks to meet."""
    (results / _MEETING).unlink(missing_ok=True)
