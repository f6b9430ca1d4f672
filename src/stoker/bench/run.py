"""A run: its ranks are started here or were started by a launcher; whatever comes of them becomes ``results.json``."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from stoker.bench.checkpoint.layout import layout_of
from stoker.bench.loaders import check_client, get_loader
from stoker.bench.member import run_member, save_record
from stoker.bench.plan import NAME, Plan, save_plan
from stoker.bench.rendezvous import RankFailedError, Server
from stoker.bench.results import RESULTS, collect, write_results
from stoker.bench.sources import Resolved
from stoker.bench.workload import Stage
from stoker.bench.world import find_world, forget_meeting, meet
from stoker.cluster import World
from stoker.errors import ConfigError, StokerError
from stoker.storage import is_local

__all__ = ["run_benchmark"]

_END_SECONDS: Final = 35.0
"""For which ranks may take to end after one has failed; a little more than they give themselves."""


def run_benchmark(
    resolved: Resolved,
    *,
    results: str | os.PathLike[str],
    url: str | None = None,
    accelerators: int | None = None,
    stages: Sequence[Stage] | None = None,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Run a workload.

    Under torchrun, Slurm or an MPI each process is a rank and calls this with the same arguments; rank 0 writes the results.
    Elsewhere ranks are processes that are started here.

    Args:
        resolved: of :func:`~stoker.bench.sources.read_workload`.
        results: a directory, new or empty.
        url: the data set; default, the workload's ``storage.url``.
        accelerators: how many ranks to start; default 1, or as many as a launcher has started.
        stages: instead of the workload's.
        command: how this was started, for the record.

    Returns:
        What is in ``results.json``; on ranks other than 0 an empty dict.

    Raises:
        ConfigError: the settings do not fit together, or the directory holds results.
        MissingPackageError: the loader that was asked for can not be used here.
        RankFailedError: a rank has failed; what was measured until then is in the results, marked as invalid.
    """
    workload = resolved.workload
    stages = workload.stages if stages is None else tuple(stages)
    place, saved = url or workload.storage.url, workload.checkpoint.url
    if "checkpoint" in stages and place is None and saved is None:
        raise ConfigError("where to with the checkpoints? Give checkpoint.url, or a URL or directory (--data)")
    needs_data = "generate" in stages or ("train" in stages and workload.reader.loader != "synthetic")
    if place is None and needs_data:
        raise ConfigError("where is the data? Give a URL or directory (--data), or storage.url")
    place = _absolute(place or "memory://nothing")
    workload = replace(
        workload,
        stages=stages,
        storage=replace(workload.storage, url=place),
        checkpoint=replace(workload.checkpoint, url=None if saved is None else _absolute(saved)),
    )
    if stages == ("checkpoint",) and not (workload.checkpoint.writes or workload.checkpoint.reads):
        raise ConfigError("nothing to do: without training, checkpoint.writes or checkpoint.reads say how many")
    if (
        workload.train.steps is not None
        and workload.train.steps <= workload.metric.exclude_start + workload.metric.exclude_end
    ):
        raise ConfigError(
            f"train.steps {workload.train.steps} leaves no step to measure: metric.exclude_start and exclude_end leave out "
            f"{workload.metric.exclude_start + workload.metric.exclude_end}"
        )
    get_loader(workload.reader.loader)  # what is missing is told before anything is started
    check_client(workload, place)
    folder = Path(results).expanduser().resolve()
    plan = Plan(
        workload,
        place,
        str(folder),
        secrets.token_hex(8),
        resolved.source,
        dict(resolved.origins),
        resolved.notes,
        tuple(command),
    )
    world = find_world()
    if "checkpoint" in stages:  # whether ranks and parallelism fit is told before anything is started
        ranks = (accelerators or 1) if world is None else world.world_size
        layout_of(workload.model, ranks, all_write=workload.checkpoint.ranks == "all")
    if world is None:
        return _run_here(plan, folder, accelerators or 1)
    if accelerators not in (None, world.world_size):
        raise ConfigError(f"{world.source} has started {world.world_size} ranks, accelerators says {accelerators}")
    return _run_launched(plan, folder, world)


def _absolute(place: str) -> str:
    """The same place for all processes."""
    if is_local(place):
        return os.path.abspath(os.path.expanduser(place.removeprefix("file://")))
    return place


def _claim(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is no directory, as results need")
    if folder.is_dir() and any(one.name == RESULTS or one.name.startswith("rank") for one in folder.iterdir()):
        raise ConfigError(f"{folder} holds results already: give another directory, or remove them")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} can not be made: {error.strerror or error}") from None


# -- ranks that are started here -----------------------------------------------------------------------------------


def _run_here(plan: Plan, folder: Path, ranks: int) -> dict[str, Any]:
    _claim(folder)
    token = secrets.token_hex(16)
    scratch = tempfile.mkdtemp(prefix="stoker-bench-")
    plan = replace(plan, scratch=scratch)
    path = Path(scratch) / NAME
    save_plan(plan, path)
    server = Server(ranks, token, plan.digest)
    children: list[subprocess.Popen[bytes]] = []
    interrupted = False
    began = time.time()
    try:
        environ = {**os.environ, "_STOKER_BENCH_TOKEN": token}
        for rank in range(ranks):
            arguments = [
                sys.executable,
                "-m",
                "stoker.bench.member",
                str(path),
                str(rank),
                str(ranks),
                str(server.port),
            ]
            children.append(subprocess.Popen(arguments, env=environ, stdin=subprocess.DEVNULL))  # noqa: S603 - this program
        _await(children, server)
    except KeyboardInterrupt:
        interrupted = True
        server.fail("interrupted")
        raise
    finally:
        _end(children)
        server.close()
        shutil.rmtree(scratch, ignore_errors=True)
        failure = "interrupted" if interrupted else server.failure
        made = collect(plan, folder, ranks, failure=failure, began=began, launcher="local processes")
        with contextlib.suppress(OSError) if failure else contextlib.nullcontext():
            write_results(made, folder)
    if server.failure is not None:
        raise RankFailedError(f"{server.failure}; what was measured until then is in {folder}")
    return made


def _await(children: Sequence[subprocess.Popen[bytes]], server: Server) -> None:
    """Wait until all ranks have ended, or one has failed and the others had time to."""
    while any(child.poll() is None for child in children):
        for rank, child in enumerate(children):
            code = child.poll()
            if code:  # its connection tells more, if it got so far
                server.failed.wait(0.5)
                said = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
                server.fail(f"rank {rank} {said}")
        if server.failed.is_set():
            deadline = time.monotonic() + _END_SECONDS
            while any(child.poll() is None for child in children) and time.monotonic() < deadline:
                time.sleep(0.02)
            return
        time.sleep(0.02)
    codes = [child.returncode for child in children]
    if any(codes) and server.failure is None:
        server.fail(
            f"rank {next(rank for rank, code in enumerate(codes) if code)} ended with code {max(map(abs, codes))}"
        )


def _end(children: Sequence[subprocess.Popen[bytes]]) -> None:
    for child in children:
        if child.poll() is None:
            child.terminate()
    deadline = time.monotonic() + 5
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


# -- ranks that a launcher has started -----------------------------------------------------------------------------


def _run_launched(plan: Plan, folder: Path, world: World) -> dict[str, Any]:
    if world.rank == 0:
        _claim(folder)
    folder.mkdir(parents=True, exist_ok=True)
    began = time.time()
    link, server = meet(world, folder, plan.digest)
    failure: str | None = None
    try:
        # One name and one scratch folder a host for all.
        told = link.gather("plan", {"run": plan.run, "rank": world.rank})
        first = world.rank // world.local_world_size * world.local_world_size
        scratch = os.path.join(tempfile.gettempdir(), f"stoker-bench-{told[first]['run']}")
        os.makedirs(scratch, mode=0o700, exist_ok=True)
        plan = replace(plan, run=told[0]["run"], scratch=scratch)
        records = run_member(plan, world, link)
        if world.rank == 0:
            for record in records:
                save_record(record, folder)
    except StokerError as error:
        failure = str(error)
        raise
    except BaseException as error:
        failure = f"{type(error).__name__}: {error}"
        raise
    finally:
        if plan.scratch and world.rank % world.local_world_size == 0:
            shutil.rmtree(plan.scratch, ignore_errors=True)
        if server is not None:
            _await_goodbyes(server, world.world_size)
            server.close()
            forget_meeting(folder)
            made = collect(
                plan, folder, world.world_size, failure=failure or server.failure, began=began, launcher=world.source
            )
            with contextlib.suppress(OSError) if failure else contextlib.nullcontext():
                write_results(made, folder)
    return made if server is not None else {}


def _await_goodbyes(server: Server, ranks: int) -> None:
    """Ranks say goodbye after the last gathering; the one that they meet at must not be gone before."""
    deadline = time.monotonic() + 5
    while len(server.ended) < ranks and not server.failed.is_set() and time.monotonic() < deadline:
        time.sleep(0.01)
