"""Samples of any source to shards of any format, in parallel, in tasks that are done once or again, never by halves."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from stoker.arguments import at_least, checked, must_know
from stoker.concurrency.processes import TaskProcesses
from stoker.concurrency.ray_tasks import on_ray
from stoker.concurrency.shared.counters import Counts
from stoker.conversion.columns import plan_columns
from stoker.conversion.job import (
    FILES,
    Arrangement,
    ConversionJob,
    begin,
    bounds_of,
    done_before,
    finish,
    unfinished,
)
from stoker.conversion.open_source import Url, open_source
from stoker.conversion.sinks import ShardSettings, target_writer
from stoker.conversion.task import run_task
from stoker.conversion.values import SampleHandling, Transform, load_transform
from stoker.display import counted
from stoker.errors import ConfigError
from stoker.formats.registry import format_name
from stoker.order.shuffle.shuffle import SHUFFLES
from stoker.policy import processor_count
from stoker.reading.bad_samples import VARIABLE, BadSampleLog, BadSamples, OnBadSample, of_dict
from stoker.storage import is_local
from stoker.storage.job_record import check_unchanged, digest, stable_versions
from stoker.types import Engine, StorageOptions
from stoker.writing.base import check_hash_names, check_size_limit

_LARGEST: Final = 1 << 30
_ATTEMPTS: Final = 3


def settings_of(
    to: str,
    compression: str | None,
    hashes: str | Sequence[str] | None,
    size_limit: int | str,
    shard_samples: int | None,
) -> ShardSettings:
    """Settings of the shards; see :func:`~stoker.conversion.convert.convert`."""
    limit = check_size_limit(size_limit)
    if limit is None or limit > _LARGEST:
        raise ConfigError(f"size_limit={size_limit!r}: above 0, and at most 1 GiB, as shards are made in memory")
    to = format_name(to)
    names = () if hashes is None and not target_writer(to).indexed else tuple(check_hash_names(hashes))
    return ShardSettings(to, compression, names, limit, shard_samples)


def check_bad_samples(given: OnBadSample | BadSamples) -> BadSamples | None:
    """The treatment of bad samples; ``None`` where they are errors."""
    settings = BadSamples.of(given)
    if settings is not None and settings.on_bad_sample == "replace":
        raise ConfigError(
            "on_bad_sample='replace': a conversion writes each sample once, so none can stand in the place of another. Use "
            f"'skip', which leaves bad ones out, or 'raise' (the argument, or {VARIABLE} in the environment)"
        )
    return settings


def check_listed(settings: BadSamples | None, bad: int, destination: str) -> None:
    """Check that a finished conversion is one that was asked for.

    Bad samples that it left out are an error where none may be, or where they are not in the list.
    """
    if bad and settings is None:
        raise ConfigError(
            f"{destination} holds a finished conversion that left out {counted(bad, 'bad sample')}, which "
            "on_bad_sample='raise' does not allow: convert to another place, or remove what is there"
        )
    if bad and settings is not None and settings.file is not None and not os.path.getsize(settings.file):
        raise ConfigError(
            f"{destination} holds a finished conversion that left out {counted(bad, 'bad sample')}, and "
            f"{os.fspath(settings.file)} does not list them: name the list that it wrote, or convert to another place"
        )


def parts_of(split: Mapping[str, float | Fraction] | None) -> tuple[tuple[str, Fraction, Fraction], ...]:
    """Name and bounds of each part of a split; one part without a name where there is none."""
    if split is None:
        return (("", Fraction(0), Fraction(1)),)
    parts: list[tuple[str, Fraction, Fraction]] = []
    low = Fraction(0)
    for name, share in split.items():
        if not name or not name.strip("._") or "/" in name or name.startswith((".", "_")):
            raise ConfigError(f"split: {name!r} can not be the name of a directory")
        try:
            exact = share if isinstance(share, Fraction) else Fraction(str(share))
        except (ValueError, ZeroDivisionError):
            raise ConfigError(f"split: {name!r} has the share {share!r}: expected a number above 0") from None
        if exact <= 0:
            raise ConfigError(f"split: {name!r} has the share {share!r}: expected a number above 0")
        parts.append((name, low, low + exact))
        low += exact
    if low != 1:
        raise ConfigError(f"split: the shares make {float(low):g}, not 1")
    return tuple(parts)


def target_of(source: Url | Sequence[Url], destination: Url) -> str:
    """The destination, absolute."""
    local = is_local(destination)
    target = os.path.abspath(local) if local is not None else os.fspath(destination).rstrip("/")
    for one in [source] if isinstance(source, str | os.PathLike) else source:
        folder = is_local(one)
        root = os.path.abspath(folder) if folder is not None else os.fspath(one).rstrip("/")
        if target == root or target.startswith(f"{root}/"):
            raise ConfigError(f"the destination {target} is inside the source: convert to another place")
    return target


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """The result of a conversion.

    Attributes:
        samples_read: samples of the source.
        samples: samples written, of all splits; fewer where a transform left some out, more where it made several of one.
        splits: name of each split to its samples; ``""`` where the dataset was not split.
        shards: files or shards written.
        bytes: of them as they are stored, meta files included.
        columns: name of each column to its encoding.
        format: of the destination.
        tasks: how many the work was cut into.
        resumed: tasks of them that a run before had done.
        retried: times that a task was begun again, because its process was killed.
        seconds: this run took.
        bad_samples: samples of the source that were left out because they are bad.
    """

    samples_read: int
    samples: int
    splits: Mapping[str, int]
    shards: int
    bytes: int
    columns: Mapping[str, str]
    format: str
    tasks: int
    resumed: int
    retried: int
    seconds: float
    bad_samples: int = 0


class TaskBadSamples:
    """Lists and bounds the bad samples of tasks, in the order of the tasks, whichever process does them, and when.

    Without settings there may be none.
    """

    def __init__(self, settings: BadSamples | None) -> None:
        self._waiting: dict[int, Mapping[str, Any]] = {}
        self._next = 0
        self._log: BadSampleLog | None = None
        if settings is not None:
            self._log = BadSampleLog(settings, Counts())

    def add(self, task: int, note: Mapping[str, Any]) -> None:
        """Take the note of a task that is done."""
        bad = note.get("bad", ())
        if self._log is None and bad:
            raise ConfigError(
                f"a run before left out {counted(len(bad), 'bad sample')} of task {task}, the first: {bad[0]['reason']}. "
                "Continue with on_bad_sample='skip', or start again with resume=False (--restart)"
            )
        self._waiting[task] = note
        while self._next in self._waiting:
            self._list(self._waiting.pop(self._next))
            self._next += 1
        if note.get("exceeded"):
            self._list(note)

    def _list(self, note: Mapping[str, Any]) -> None:
        if self._log is not None:
            self._log.enter(note["read"])
            for one in note["bad"]:
                self._log.note(one["number"], of_dict(one))


_VERSION: Final = 2


@checked
def convert(
    source: Url | Sequence[Url],
    destination: Url,
    *,
    to: str = "mds",
    format: str | None = None,  # noqa: A002
    columns: Mapping[str, str] | None = None,
    select: Sequence[str] | None = None,
    transform: Transform | str | None = None,
    decode: bool = False,
    fill: Mapping[str, Any] | None = None,
    drop_nulls: bool = False,
    shuffle: bool | str = False,
    seed: int = 9176,
    split: Mapping[str, float | Fraction] | None = None,
    size_limit: int | str = 1 << 26,
    shard_samples: int | None = None,
    compression: str | None = None,
    hashes: str | Sequence[str] | None = None,
    processes: int | None = None,
    engine: Engine = "local",
    resume: bool = True,
    on_bad_sample: OnBadSample | BadSamples = "raise",
    allow_unsafe_types: bool = False,
    source_options: StorageOptions | None = None,
    storage_options: StorageOptions | None = None,
    format_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ConvertReport:
    """Convert a data set from any format to any other.

    The work is cut into tasks, by the source and the settings alone. A task writes its shards and then a note that they are
    complete, in ``_convert/`` at the destination; the index comes last, and the notes go. So a run that is killed is
    completed by calling this again, with any number of processes; no sample is lost or comes twice. The output is the same
    for any number of processes and either engine, if the transform returns the same for the same sample.

    Shards of several tasks lie in a folder each, named by the task's number; one index names them all. Parquet and
    Megatron's files have no index: on a local disk they appear together at the end, in an object store one by one, and stoker
    reads none of them before all are there.

    Processes are spawned, so a script that calls this needs ``if __name__ == "__main__"``.

    Args:
        source: a directory or URL with an ``index.json`` or with files of one format below it, folders of images, what
            Hugging Face's ``datasets`` saved by ``save_to_disk``, a file, a pattern, or a list of files.
        destination: an empty directory or URL prefix.
        to: ``arrow``, ``csv``, ``hdf5``, ``jpeg``, ``json``, ``mds``, ``megatron``, ``npy``, ``npz``, ``parquet``, ``png``,
            ``tar``, ``tfrecord`` or ``tsv``.
        format: the source's, where its files' names do not tell; ``files`` for any files, a sample each.
        columns: encodings for some columns, as :class:`~stoker.MDSWriter` names them; values are made to fit where nothing
            is lost. Others keep their type, or get the one of their first values.
        select: columns of the source to read; default all.
        transform: a function from a sample to a sample, a list of samples, or ``None`` for none; or
            ``"package.module:function"``. Its samples' keys are the columns.
        decode: hand images to the transform as Pillow's; otherwise it gets the bytes of their files.
        fill: value for the nulls of a column. Other nulls are an error, except from Parquet or Arrow to Parquet.
        drop_nulls: leave out samples with nulls.
        shuffle: true, or an algorithm of :class:`~stoker.StreamingDataset`, to write in another order. True is
            ``"global"``, which reads samples one by one; ``"block"`` reads a few shards at a time.
        seed: of the shuffle and the split.
        split: name of each part to its share, such as ``{"train": 0.9, "valid": 0.1}``. Each becomes a dataset in a
            sub-directory; which sample is in which is as :class:`~stoker.HashSplit` has it.
        size_limit: most raw bytes of a shard, as a number or like ``"64MB"``.
        shard_samples: most samples of a shard, instead of its bytes.
        compression: ``"zstd"``, ``"zstd:7"``, ...
        hashes: names of hashes of every file to put in the index; default as for the writers, ``()`` for none.
        processes: default one a processor; 1 works in this process. With Ray: most tasks at once.
        engine: ``"ray"`` for the tasks of a Ray cluster.
        resume: continue what an unfinished run left; otherwise remove it and start again.
        on_bad_sample: ``"skip"``, or a :class:`~stoker.BadSamples` with its limits and the file that lists them, leaves out
            samples that are damaged, of which the transform raised an error, or with a value that does not fit its column;
            the others are written as if these were not there. An unfinished run may go on with another ``on_bad_sample``.
        allow_unsafe_types: decode pickled columns, which can run code from the data.
        source_options: credentials and settings of the source, by obstore's names; default those of the destination.
        storage_options: of the destination.
        format_options: what the source's format understands, such as ``{"separator": ";"}`` of ``csv``.
        progress: called with samples done and samples in all.

    Returns:
        What was done.

    Raises:
        ConfigError: an argument makes no sense, the destination is not empty, or holds another conversion.
        SourceChangedError: files of the source were changed since an unfinished run began, or while they were read; names
            them. Nothing is overwritten.
        EncodingError: a sample does not fit, or the transform failed at it; names it. What is done stays.
        TooManyBadSamplesError: more samples are bad than ``on_bad_sample`` allows; the same call with more allowed continues.
        ObjectNotFoundError, FormatError: the source is missing or damaged.
        MissingPackageError: a package that a format or the engine needs is not installed.
    """
    began = time.monotonic()
    at_least(1, processes=processes, shard_samples=shard_samples)
    settings = settings_of(to, compression, hashes, size_limit, shard_samples)
    parts = parts_of(split)
    order: str = "global" if shuffle is True else "none" if shuffle is False else shuffle
    must_know("shuffle", [order], SHUFFLES)
    bad_samples = check_bad_samples(on_bad_sample)
    handling = SampleHandling(load_transform(transform), decode, dict(fill or {}), drop_nulls, bad_samples)
    target = target_of(source, destination)
    fresh = not unfinished(target, storage_options) or not resume
    workers: TaskProcesses[ConversionJob, int, dict[str, Any]] = TaskProcesses(
        run_task,
        (processes or processor_count()) if engine == "local" else 1,
        does="converts",
        call="convert()",
        remedy="Use fewer processes, or a smaller size_limit; what is done stays done",
        shares="the transform",
        attempts=_ATTEMPTS,
    )
    with contextlib.closing(workers), contextlib.ExitStack() as stack:
        opened = open_source(
            source,
            format,
            whole=order != "none",
            allow_unsafe_types=allow_unsafe_types,
            storage_options=storage_options if source_options is None else source_options,
            format_options=dict(format_options or {}),
            job=target,
            fresh=fresh,
            on_listing=workers.start if workers.count > 1 else lambda: None,
        )
        stack.callback(opened.source.close)
        arrangement = Arrangement(opened.source.sizes, order, seed, parts)
        if not arrangement.total:
            raise ConfigError(f"{opened.source.name} has no samples: there is nothing to convert")
        inputs, outputs, decoded = plan_columns(opened, settings, handling, columns=dict(columns or {}), select=select)
        settings.writer.check_columns({plan.name: plan.encoding for plan in outputs})
        about = {
            "version": _VERSION,
            "source": opened.source.identity,
            "format": opened.kind,
            "format_options": repr(sorted((format_options or {}).items())),
            "samples": arrangement.total,
            "to": settings.format,
            "columns": {plan.name: plan.encoding for plan in outputs},
            "select": sorted(plan.name for plan in inputs),
            **handling.identity,
            "shuffle": order,
            "seed": seed,
            "split": {name: [str(low), str(high)] for name, low, high in parts},
            "size_limit": settings.size_limit,
            "shard_samples": shard_samples,
            "compression": compression,
            "hashes": list(settings.hashes),
        }
        job = ConversionJob(
            opened.source,
            inputs,
            outputs,
            decoded,
            handling,
            arrangement,
            bounds_of(arrangement.total, opened.source.bytes, settings),
            settings,
            target,
            storage_options,
            digest(about),
        )
        versions = stable_versions(opened.versions)
        about[FILES] = digest(list(versions.items()))
        resumed = job.tasks
        told = done_before(job, about, resume=resume)
        if told is not None:
            check_listed(bad_samples, told.get("bad_samples", 0), target)
        else:
            notes = begin(job, about, versions, resume=resume)
            resumed = len(notes)
            _run(job, notes, workers, engine, processes, progress)
            check_unchanged(
                opened.versions,
                opened.source.versions(),
                opened.source.name,
                f"the output at {target} may mix old and new data. Convert again with resume=False (--restart)",
            )
            told = finish(job, about, notes, lambda shards, size: _told(job, notes, shards, size))
    if opened.cache is not None:  # what was fetched of a remote source
        shutil.rmtree(opened.cache, ignore_errors=True)
    return ConvertReport(**told, resumed=resumed, retried=workers.lost, seconds=time.monotonic() - began)


def _told(job: ConversionJob, notes: Mapping[int, Mapping[str, Any]], shards: int, size: int) -> dict[str, Any]:
    """The report of a finished conversion, but for what only the last run knows."""
    splits = [split for note in notes.values() for split in note["splits"]]
    written = {
        name: sum(one["samples"] for one in splits if one["name"] == name) for name, _, _ in job.arrangement.splits
    }
    return {
        "samples_read": sum(note["read"] for note in notes.values()),
        "samples": sum(written.values()),
        "splits": written,
        "shards": shards,
        "bytes": size,
        "columns": {plan.name: plan.encoding for plan in job.outputs},
        "format": job.settings.format,
        "tasks": job.tasks,
        "bad_samples": sum(len(note["bad"]) for note in notes.values()),
    }


def _run(
    job: ConversionJob,
    notes: dict[int, dict[str, Any]],
    workers: TaskProcesses[ConversionJob, int, dict[str, Any]],
    engine: Engine,
    processes: int | None,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Do the tasks that are not done yet."""
    done = sum(note["read"] for note in notes.values())

    def advance(samples: int) -> None:
        nonlocal done
        done += samples
        if progress is not None:
            progress(done, job.arrangement.total)

    def where(task: int) -> str:
        return f" at samples {job.bounds[task]} to {job.bounds[task + 1] - 1}"

    bad_samples = TaskBadSamples(job.handling.bad_samples)
    for number, note in sorted(notes.items()):
        bad_samples.add(number, note)
    advance(0)
    tasks = [number for number in range(job.tasks) if number not in notes]
    if not tasks:
        return
    workers.keep(len(tasks))
    if engine == "ray":
        running = on_ray(run_task, job, tasks, processes)
    elif workers.count == 1:
        running = ((number, run_task(job, number, advance)) for number in tasks)
    else:
        running = workers.run(job, tasks, in_order=False, advance=advance, where=where)
    with contextlib.closing(running):
        for number, note in running:
            if engine == "ray":
                advance(note["read"])
            bad_samples.add(number, note)
            notes[number] = note
