"""A run: its ranks are started here or were started by a launcher; whatever comes of them becomes ``results.json``."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from stoker.cluster import World
from stoker.display import counted
from stoker.errors import ConfigError, StokerError, StorageError
from stoker.storage import is_local
from stoker.storage.files.file_errors import file_errors
from stoker.storage.files.part_files import claim, release
from stoker_bench.clients import reads_objects
from stoker_bench.loaders import saves_objects
from stoker_bench.preflight import check_data, check_packages, check_room, check_settings
from stoker_bench.ranks.abort import clear_unfinished, finish_without
from stoker_bench.ranks.control.client import Link, RankFailedError
from stoker_bench.ranks.control.server import Server
from stoker_bench.ranks.launch import Launch, LocalRanks, await_ranks
from stoker_bench.ranks.plan import NO_DATA, RunPlan
from stoker_bench.ranks.rank_main import run_member
from stoker_bench.ranks.termination import end_reason, ignore_sigterm, sigterm_interrupts
from stoker_bench.ranks.world import find_world, forget_meeting, meet
from stoker_bench.results.record import save_record
from stoker_bench.results.results import RESULTS, collect, write_results
from stoker_bench.settings.sources import Resolved
from stoker_bench.settings.workload import Stage, Storage, Workload

_LOCK: Final = ".running"
_LEAVING_SECONDS: Final = 5.0
"""For which ranks that have ended may still say what they have."""
_HANGING_SECONDS: Final = 30.0
"""For which ranks may take to end where the one that they meet at hangs."""


def run_benchmark(
    resolved: Resolved,
    *,
    results: str | os.PathLike[str],
    url: str | None = None,
    accelerators: int | None = None,
    stages: Sequence[Stage] | None = None,
    launcher: Literal["ray"] | None = None,
    command: Sequence[str] = (),
    unsaved: Callable[[dict[str, Any]], object] | None = None,
) -> dict[str, Any]:
    """Run a workload.

    Under torchrun, Slurm or an MPI each process is a rank and calls this with the same arguments; rank 0 writes the results.
    Elsewhere ranks are processes that are started here, or tasks of a Ray cluster.

    Args:
        resolved: of :func:`~stoker_bench.settings.sources.read_workload`.
        results: a directory, new or empty.
        url: the data set; default, the workload's ``storage.url``.
        accelerators: how many ranks to start; default 1, or as many as a launcher has started.
        stages: instead of the workload's.
        launcher: ``"ray"`` for ranks that are tasks of the Ray cluster that this process can reach.
        command: how this was started, for the record.
        unsaved: called with the results where they can not be written, before the error is raised.

    Returns:
        What is in ``results.json``; on ranks other than 0 an empty dict.

    Raises:
        ConfigError: the settings do not fit together, or the directory holds results.
        ObjectNotFoundError: data that is not generated is not there; nothing is written.
        MissingPackageError: the loader or launcher that was asked for can not be used here.
        RankFailedError: a rank has failed; what was measured until then is in the results, marked as invalid.
        StorageError: the results can not be written.
        TerminatedError: SIGTERM, in the main thread of a program without a handler for it; results as after Ctrl-C.
    """
    workload = resolved.workload
    stages = workload.stages if stages is None else tuple(stages)
    data_url, saved = url or workload.storage.url, workload.checkpoint.url
    if "checkpoint" in stages and data_url is None and saved is None:
        raise ConfigError("checkpoint.url is not set. Give it, or a URL or directory (--data)")
    needs_data = not {"generate", "kv_cache", "vectors"}.isdisjoint(stages) or (
        "train" in stages and workload.reader.loader != "synthetic"
    )
    if data_url is None and needs_data:
        raise ConfigError("storage.url is not set. Give it, or a URL or directory (--data)")
    nothing = data_url is None
    data_url = _absolute(data_url or NO_DATA)
    options, notes = workload.storage.options, (*resolved.notes.changes, *resolved.notes.ignored)
    checkpoint = replace(
        workload.checkpoint,
        url=None if saved is None else _absolute(saved),
        options=workload.checkpoint.options or options,
    )
    storage = replace(workload.storage, url=data_url, options=options)
    elsewhere = workload.storage.url is not None and not is_local(workload.storage.url)
    objects = saves_objects(replace(workload, stages=stages, checkpoint=checkpoint), None if nothing else data_url)
    # A workload of an object store, with local data for once, or with none and local checkpoints.
    if (options or elsewhere) and (not objects if nothing else is_local(data_url)):
        storage, unused = _without_store(storage, requests=not objects)
        if unused:
            why = "no data is read, and checkpoints are local" if nothing else f"{data_url} is local"
            notes = (*notes, f"{' and '.join(unused)} are not used: {why}")
    workload = replace(workload, stages=stages, storage=storage, checkpoint=checkpoint)
    folder = Path(results).expanduser().resolve()
    plan = RunPlan(
        workload,
        data_url,
        str(folder),
        secrets.token_hex(8),
        resolved.source,
        dict(resolved.origins),
        notes,
        tuple(command),
    )
    world = find_world() if launcher is None else None
    ranks = (accelerators or 1) if world is None else world.world_size
    # What can not be done, or measured, is told before anything is started.
    if world is None:
        check_packages(plan)
    check_settings(workload, ranks)
    if world is None:
        if launcher is None:
            check_room(plan, World(0, ranks, ranks))
        if launcher is None or is_local(data_url) is None:  # a directory may be on the cluster's nodes alone
            check_data(plan)
        launch = LocalRanks(ranks) if launcher is None else _on_ray(ranks, workload, folder)
        with sigterm_interrupts(), _claimed(folder):
            return _run_started(plan, folder, ranks, launch, unsaved)
    if accelerators not in (None, world.world_size):
        raise ConfigError(
            f"{world.source} has started {counted(world.world_size, 'rank')}, accelerators says {accelerators}"
        )
    with sigterm_interrupts(), _claimed(folder, writes=world.rank == 0):
        return _run_launched(plan, folder, world, unsaved)


def _without_store(storage: Storage, *, requests: bool) -> tuple[Storage, list[str]]:
    """Settings of storage without those of an object store, of requests too; and the names of what was left out."""
    unused: dict[str, Any] = {"options": {}} if storage.options else {}
    if storage.client != "auto" and reads_objects(storage.client):
        unused["client"] = "auto"
    if requests:
        unused |= {name: () if name == "endpoints" else None for name in storage.transfer}
    if storage.client in ("direct", "buffered"):
        unused = {name: value for name, value in unused.items() if name not in ("part_bytes", "part_requests")}
    return replace(storage, **unused), [f"storage.{name}" for name in unused]


def _absolute(url: str) -> str:
    """The same URL for all processes."""
    if is_local(url):
        return os.path.abspath(os.path.expanduser(url.removeprefix("file://")))
    return url


@contextlib.contextmanager
def _claimed(folder: Path, *, writes: bool = True) -> Iterator[None]:
    """Make the directory of the results, and keep other runs out of it while this process writes there.

    Raises:
        ConfigError: it can not be made, or another run writes there.
    """
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is not a directory, as results need")
    held: int | None = None
    lock = folder / _LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = claim(lock) if writes else None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # of a full disk the numbers are printed
            raise ConfigError(f"{folder} can not be made, or not written: {error.strerror or error}") from None
    else:
        if writes and held is None:
            raise ConfigError(
                f"another run writes its results to {folder}: give another directory, or wait for its end"
            )
    try:
        yield
    finally:
        if held is not None:
            with contextlib.suppress(OSError):
                lock.unlink()
            release(held)


def _check_free(folder: Path) -> None:
    if folder.is_dir() and any(one.name == RESULTS or one.name.startswith("rank") for one in folder.iterdir()):
        raise ConfigError(f"{folder} holds results already: give another directory, or remove them")


# -- ranks that are started by this process ------------------------------------------------------------------------


def _on_ray(ranks: int, workload: Workload, folder: Path) -> Launch:
    from stoker_bench.ranks.ray import RayRanks

    return RayRanks(ranks, workload, folder)


def _run_started(plan: RunPlan, folder: Path, ranks: int, launch: Launch, unsaved: Unsaved) -> dict[str, Any]:
    _check_free(folder)
    launch.prepare()
    token = secrets.token_hex(16)
    server = Server(ranks, token, plan.digest, launch.host, silence=plan.workload.train.step_timeout)
    failure: str | None = None
    began = time.time()
    try:
        with file_errors(tempfile.gettempdir()):
            launch.start(plan, server.port, token)
        await_ranks(launch, server)
    except BaseException as error:
        failure = end_reason(error)
        server.fail(failure)
        raise
    finally:
        ignore_sigterm()
        launch.end()
        server.await_leaving(_LEAVING_SECONDS)
        server.close()
        failure = failure or server.failure
        if failure:
            clear_unfinished(plan)
        made = collect(plan, folder, ranks, failure=failure, began=began, launcher=launch.name, told=server.records)
        lost = _write(made, folder, unsaved)
    if server.failure is not None:
        kept = f"what was measured until then is in {folder}" if lost is None else f"nothing is kept of it: {lost}"
        raise RankFailedError(f"{server.failure.removesuffix('.')}; {kept}")
    return made


Unsaved = Callable[[dict[str, Any]], object] | None


def _write(made: dict[str, Any], folder: Path, unsaved: Unsaved) -> StorageError | None:
    """Write results; why those of a run that failed could not be written.

    Raises:
        StorageError: those of a run that did not fail could not.
    """
    try:
        write_results(made, folder)
    except StorageError as error:
        if unsaved is not None:
            unsaved(made)
        if made["failure"] is None:
            raise
        return error
    return None


# -- ranks that a launcher has started -----------------------------------------------------------------------------


def _run_launched(plan: RunPlan, folder: Path, world: World, unsaved: Unsaved) -> dict[str, Any]:
    began = time.time()
    link, server = meet(world, folder, plan.digest, silence=plan.workload.train.step_timeout)
    failure: str | None = None
    agreed = False

    def finish(why: str | None, leaving: float = _LEAVING_SECONDS) -> dict[str, Any]:
        """Write the results where this is rank 0, once the others have left."""
        ignore_sigterm()
        if plan.scratch and world.rank % world.local_world_size == 0:
            shutil.rmtree(plan.scratch, ignore_errors=True)
        if server is None:
            return {}
        # Ranks leave after the last gathering; the one that they meet at must not be gone before.
        server.await_leaving(leaving, but=(world.rank,))
        server.close()
        forget_meeting(folder)
        if not agreed:
            return {}
        why = why or server.failure
        ranks, launcher = world.world_size, world.source
        made = collect(plan, folder, ranks, failure=why, began=began, launcher=launcher, told=server.records)
        _write(made, folder, unsaved)
        return made

    try:
        told = _agree(plan, folder, world, link)
        agreed = True
        # One name and one scratch folder a host for all.
        first = world.rank // world.local_world_size * world.local_world_size
        scratch = os.path.join(tempfile.gettempdir(), f"stoker-bench-{told[first]['run']}")
        os.makedirs(scratch, mode=0o700, exist_ok=True)
        plan = replace(plan, run=told[0]["run"], scratch=scratch)
        records = run_member(plan, world, link, on_hang=lambda said: finish(said, _HANGING_SECONDS))
        if world.rank == 0:
            for record in records:
                save_record(record, folder)
    except BaseException as error:
        failure = end_reason(error)
        raise
    finally:
        made = finish(failure)
        if server is None and agreed and failure is not None and link.lost:
            finish_without(plan, world.world_size, failure=failure, began=began, launcher=world.source)
    return made


def _agree(plan: RunPlan, folder: Path, world: World, link: Link) -> list[dict[str, Any]]:
    """Check that all ranks can begin, before any of them does; of each its name for the run.

    Raises:
        StokerError: why this one can not.
        RankFailedError: why another one can not, so that nobody waits for it.
    """
    trouble: StokerError | None = None
    try:
        check_packages(plan)
        if world.rank == 0:
            _check_free(folder)
            check_data(plan)
        if world.rank % world.local_world_size == 0:
            check_room(plan, world)
    except StokerError as error:
        trouble = error
    told = link.gather("plan", {"run": plan.run, "error": None if trouble is None else str(trouble)})
    if trouble is not None:
        link.close()
        raise trouble
    for rank, one in enumerate(told):
        if one["error"] is not None:
            link.close()
            raise RankFailedError(f"rank {rank}: {one['error']}")
    return told
