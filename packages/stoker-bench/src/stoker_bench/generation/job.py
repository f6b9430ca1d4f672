"""Generates a dataset: missing files by threads, processes or Ray, then its manifest and index."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from stoker.arguments import at_least, checked
from stoker.concurrency.processes import TaskProcesses
from stoker.concurrency.ray_tasks import on_ray
from stoker.errors import ConfigError
from stoker.policy import processor_count
from stoker.storage import Store, open_store
from stoker.storage.job_record import remove_partial_files
from stoker.storage.unfinished import MARK
from stoker.types import Engine, StorageOptions
from stoker_bench.generation.formats.base import layout_of
from stoker_bench.generation.making import FileBuilder, GeneratedFile, file_size, library_versions
from stoker_bench.generation.marker import (
    check_destination,
    mark_unfinished,
    read_host_manifests,
    remove_host_manifests,
    write_host_manifest,
    write_manifest,
)
from stoker_bench.generation.names import Output, outputs
from stoker_bench.generation.ragged import make_pictures
from stoker_bench.generation.spec import DatasetSpec

_TASK: Final = 64
_AHEAD: Final = 3
# Processors that a cluster has for the size of tasks, which are small enough for about as many.
_CLUSTER: Final = 1000

Progress = Callable[[int], object]
"""Is called with numbers of bytes as they are written, by any thread."""


@dataclass(frozen=True, slots=True)
class GenerateReport:
    """The result of :func:`generate`.

    Attributes:
        files: of the dataset.
        samples: of the dataset.
        bytes: written now.
        seconds: it took.
        made: files that were made now.
        kept: files that were there already, of those that were this host's to make.
        complete: whether the dataset is whole; with several hosts, the last to be done finds it so.
    """

    files: int
    samples: int
    bytes: int
    seconds: float
    made: int
    kept: int
    complete: bool


@checked
def generate(
    spec: DatasetSpec,
    url: str | os.PathLike[str],
    *,
    processes: int | None = None,
    threads: int | None = None,
    engine: Engine = "local",
    storage_options: StorageOptions | None = None,
    progress: Progress | None = None,
    stored: Callable[[int, float], object] | None = None,
    resume: bool = True,
    host: tuple[int, int] = (0, 1),
) -> GenerateReport:
    """Make a synthetic dataset.

    Each file's bytes are a function of the spec and the file's number. So any number of threads, processes and hosts make the
    same dataset, and one that is half made is completed: files that are there, of the right size, are kept. A file appears
    under its name when it is whole. The manifest ``_generated.json``, and for MDS the index, come last.

    Args:
        spec: what to make.
        url: a directory or URL.
        processes: default 1, this one. Others are spawned, so a script needs ``if __name__ == "__main__"``; they are of use
            where Python code takes the time: text, small records of different sizes.
        threads: of each process; default the number of processors where there is one process, else 1.
        engine: ``"ray"`` for the tasks of a Ray cluster, whose nodes all reach ``url`` by the same name. ``processes`` are
            then most tasks at once, by default a few for each processor of the cluster, and ``threads`` those of a task.
        storage_options: see :func:`stoker.storage.open_store`.
        progress: is called with numbers of bytes as they are written, by any thread; with several processes or Ray, after
            each of their tasks.
        stored: is called for each file, once all are there, with its bytes and the seconds that storing it took, without
            making them.
        resume: whether to complete what is there; otherwise anything there is an error.
        host: this host's number from 0, and how many there are: this one makes the files whose number leaves this rest. All
            need the same versions of the libraries that encode images, HDF5, Arrow and compressed Parquet: a host with others
            is refused.

    Raises:
        ConfigError: arguments make no sense, or something else is at the place.
        StorageError: a file could not be written; those that are whole stay.
        MissingPackageError: the format's library, or the engine's, is not installed.
    """
    began = time.monotonic()
    if engine == "local" and processes is None:
        processes = 1
    alone = engine == "local" and processes == 1
    threads = (processor_count() if alone else 1) if threads is None else threads
    at_least(1, processes=processes, threads=threads)
    workers = _Workers(engine, processes, threads)
    if not 0 <= host[0] < host[1]:
        raise ConfigError(f"host={host}: expected a number from 0 and how many hosts there are, such as (0, 4)")
    layout_of(spec)
    store = open_store(url, storage_options)
    whole = check_destination(store, spec, resume=resume)
    if host[1] == 1:
        remove_partial_files(store)
    there = {item.key: item.size for item in store.list()}
    share = [out for out in outputs(spec) if out.number % host[1] == host[0]]
    missing = [out for out in share if not _is_there(spec, out, there)]
    made: dict[str, GeneratedFile] = {}
    if missing or not whole:
        mark_unfinished(store, spec)
    if missing:
        made = _make(spec, store, missing, workers, progress)
    if stored is not None:
        for one in made.values():
            stored(one.size, one.seconds)
    if whole and not missing:
        complete = True
        if MARK in there:  # a run before was killed after the manifest
            store.delete(MARK)
    else:
        complete = _finish(spec, store, made, host, workers)
    if complete and host[1] > 1:
        remove_host_manifests(store)
    written = sum(facts.size for facts in made.values())
    kept = len(share) - len(missing)
    total = (spec.files + spec.valid_files) * len(spec.form.suffixes)
    return GenerateReport(total, spec.samples, written, time.monotonic() - began, len(made), kept, complete)


def _is_there(spec: DatasetSpec, out: Output, there: dict[str, int]) -> bool:
    if out.name not in there:
        return False
    wanted = file_size(spec, out)
    return wanted is None or there[out.name] == wanted


def _finish(
    spec: DatasetSpec, store: Store, made: dict[str, GeneratedFile], host: tuple[int, int], workers: _Workers
) -> bool:
    """Write the manifest and the index once all files are there."""
    if host[1] > 1:
        write_host_manifest(store, host, made)
        there = {item.key: item.size for item in store.list()}
        if not all(_is_there(spec, out, there) for out in outputs(spec)):
            return False
        made = {**read_host_manifests(store), **made}
    unknown = [out for out in outputs(spec) if out.name not in made]
    if unknown:
        # What was made before has the same bytes as what would be made now.
        made = {**made, **_make(spec, None, unknown, workers, None)}
    write_manifest(store, spec, ((out, made[out.name]) for out in outputs(spec)))
    return True


@dataclass(frozen=True, slots=True)
class _Workers:
    """The makers of files: threads of this process, of others, or of tasks of a cluster (any number, where none is said)."""

    engine: Engine
    processes: int | None
    threads: int


def _make(
    spec: DatasetSpec, store: Store | None, missing: Sequence[Output], workers: _Workers, progress: Progress | None
) -> dict[str, GeneratedFile]:
    """Make files; without a store, only what is told of them."""
    if workers.engine == "local" and min(workers.processes or 1, len(missing)) == 1:
        return _by_threads(spec, store, missing, min(workers.threads, len(missing)), progress)
    return _by_tasks(spec, store, missing, workers, progress)


class _Stopped(Exception):  # noqa: N818 - no error, but the end of a thread's work
    """Another thread has failed, or the user has had enough."""


def _by_threads(
    spec: DatasetSpec, store: Store | None, missing: Iterable[Output], threads: int, progress: Progress | None = None
) -> dict[str, GeneratedFile]:
    made: dict[str, GeneratedFile] = {}
    lock, stop = threading.Lock(), threading.Event()
    make_pictures(spec)
    waiting = iter(missing)

    def work() -> None:
        try:
            while not stop.is_set():
                with lock:
                    out = next(waiting, None)
                if out is None:
                    return
                facts = _make_one(spec, store, out, progress, stop)
                with lock:
                    made[out.name] = facts
        except _Stopped:
            pass
        except BaseException:
            stop.set()
            raise

    if threads == 1:
        work()
        return made
    with ThreadPoolExecutor(threads, thread_name_prefix="stoker-generate") as pool:
        try:
            for ended in as_completed([pool.submit(work) for _ in range(threads)]):
                ended.result()
        finally:
            stop.set()
    return made


def _make_one(
    spec: DatasetSpec, store: Store | None, out: Output, progress: Progress | None, stop: threading.Event
) -> GeneratedFile:
    making = FileBuilder(spec, out)

    spent = 0.0

    def chunks() -> Iterator[memoryview]:
        nonlocal spent
        begun = time.perf_counter()
        for chunk in making.chunks():
            if stop.is_set():
                raise _Stopped
            spent += time.perf_counter() - begun
            yield chunk
            begun = time.perf_counter()
            if progress is not None:
                progress(len(chunk))
        spent += time.perf_counter() - begun

    began = time.perf_counter()
    if store is None:
        for _ in chunks():
            pass
    else:
        store.put_stream(out.name, chunks)
    return replace(making.facts, seconds=time.perf_counter() - began - spent)


# -- processes -----------------------------------------------------------------------------------------------------------


def _by_tasks(
    spec: DatasetSpec, store: Store | None, missing: Sequence[Output], workers: _Workers, progress: Progress | None
) -> dict[str, GeneratedFile]:
    """By other processes, of this machine or of a cluster, some files at a time."""
    made: dict[str, GeneratedFile] = {}
    size = max(workers.threads, min(_TASK, len(missing) // ((workers.processes or _CLUSTER) * _AHEAD)), 1)
    waiting = iter(missing)
    job = _Part(spec, store, workers.threads, library_versions(spec))
    tasks = iter(lambda: list(islice(waiting, size)), [])
    if workers.engine == "ray":
        running = on_ray(_do, job, tasks, workers.processes)
    else:
        making: TaskProcesses[_Part, list[Output], dict[str, GeneratedFile]] = TaskProcesses(
            _do,
            workers.processes or 1,
            does="makes files",
            call="generate()",
            remedy="Files that are whole stay: the same call goes on",
        )
        running = making.run(job, tasks, ahead=_AHEAD)
    with closing(running):
        for _, facts in running:
            made.update(facts)
            if progress is not None:
                progress(sum(one.size for one in facts.values()))
    return made


@dataclass(frozen=True, slots=True)
class _Part:
    """A task's work but for the names of its files; ``versions`` are those of the caller's libraries."""

    spec: DatasetSpec
    store: Store | None
    threads: int
    versions: dict[str, str]


def _do(part: _Part, files: Sequence[Output]) -> dict[str, GeneratedFile]:
    versions = library_versions(part.spec)
    if versions != part.versions:
        raise ConfigError(
            f"a process that makes files has {_versions_text(versions)}, and the one that calls generate() "
            f"{_versions_text(part.versions)}: the same bytes need the same versions. Install them on all nodes"
        )
    return _by_threads(part.spec, part.store, files, min(part.threads, len(files)))


def _versions_text(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "none of these libraries"
