"""A conversion, cut into tasks, in any process a pure function of source and settings; and its state at the destination.

There lie the job's record, a note of each finished task, and the final commit.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, Final

import numpy as np

from stoker.conversion.sinks import OUTPUT, ShardSettings
from stoker.conversion.source import ConversionSource
from stoker.conversion.values import ColumnPlan, SampleHandling
from stoker.errors import ConfigError, CorruptDataError, ObjectNotFoundError
from stoker.index.index import INDEX_NAME, Index
from stoker.integers import mix
from stoker.order.selection import Split
from stoker.order.shuffle.shard_table import ShardTable
from stoker.order.shuffle.shuffle import ShuffledStream, ShuffleSettings
from stoker.storage import Store, is_local, join_url, open_store
from stoker.storage.job_record import (
    JobRecord,
    changed_files,
    other_job,
    read_record,
    remove_partial_files,
    write_record,
)
from stoker.storage.transfer import side_by_side
from stoker.storage.unfinished import MARK, STAGE, UnfinishedOutput
from stoker.types import Ids, StorageOptions
from stoker.writing.destination import delete_all, publish

WORK: Final = "_convert"
"""Folder in the destination of what there is only while a conversion is under way."""

_MOST_SHARDS: Final = 4
_TAG_SHUFFLE: Final = 4
_TASKS: Final = 256
# The number of tasks is a multiple of this, so that two or four processes end together.
_TOGETHER: Final = 4


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The order of the samples, and the split of each.

    ``sizes``: samples in each shard of the source; int64. ``splits``: name, and the part of ``[0, 1]`` that is its.
    """

    sizes: Ids
    shuffle: str
    seed: int
    splits: tuple[tuple[str, Fraction, Fraction], ...]

    @property
    def total(self) -> int:
        """Number of samples."""
        return int(self.sizes.sum())

    def located(self, first: int, stop: int) -> tuple[Ids, Ids]:
        """Shard and row of the samples at positions ``[first, stop)``; int64."""
        table = ShardTable(self.sizes)
        positions = np.arange(first, stop, dtype=np.int64)
        if self.shuffle == "none":
            return table.locate(positions)
        settings = ShuffleSettings.resolve(self.sizes, shuffle=self.shuffle)
        return ShuffledStream(table, settings, mix(self.seed, _TAG_SHUFFLE)).locate(positions)

    def split_of(self, shards: Ids, rows: Ids) -> Ids:
        """Number of the split that each sample is in, as :class:`~stoker.order.subsets.HashSplit` has it; int64."""
        found = np.zeros(len(shards), np.int64)
        if len(self.splits) < 2:
            return found
        table = ShardTable(self.sizes)
        for number, (_, low, high) in enumerate(self.splits):
            found[Split(table, low, high, self.seed).numbers(shards, rows) >= 0] = number
        return found


@dataclass(frozen=True)
class ConversionJob:
    """Everything that a process needs to do any of the tasks.

    Attributes:
        inputs: the columns that are read; without a transform also those that are written.
        bounds: first position of each task, and the end of the last; int64.
    """

    source: ConversionSource
    inputs: tuple[ColumnPlan, ...]
    outputs: tuple[ColumnPlan, ...]
    decoded: tuple[str, ...]
    handling: SampleHandling
    arrangement: Arrangement
    bounds: Ids
    settings: ShardSettings
    destination: str
    storage_options: StorageOptions | None = field(repr=False)
    identity: str

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.bounds) - 1


def bounds_of(samples: int, size: int, settings: ShardSettings) -> Ids:
    """First positions of the tasks, and the end of the last: int64, shape ``(tasks + 1,)``.

    A task makes one shard of the output, or up to four where the data set is large, so that few shards are cut short by the
    end of their task; all tasks are of about the same size.
    """
    if not samples:
        return np.zeros(1, np.int64)
    if settings.single:
        tasks = min(_TASKS, -(-size // (16 << 20)))
    elif settings.shard_samples is not None:
        shards = -(-samples // settings.shard_samples)
        step = min(_MOST_SHARDS, max(1, shards // _TASKS)) * settings.shard_samples
        return np.append(np.arange(0, samples, step), samples).astype(np.int64)
    else:
        # A little less than the limit, for what the format adds.
        shards = -(-size * 102 // (100 * max(1, settings.size_limit)))
        tasks = -(-shards // min(_MOST_SHARDS, max(1, shards // _TASKS)))
        if tasks > _TOGETHER:
            tasks = -(-tasks // _TOGETHER) * _TOGETHER
    tasks = max(1, min(samples, tasks))
    return np.arange(tasks + 1, dtype=np.int64) * samples // tasks


_RECORD: Final = ".stoker_convert.json"
"""Name of the job's record, which stays when the job is done. No program takes it for data, as it is hidden."""
FILES: Final = "files"
"""Name of a digest of the versions of the source's files, among a conversion's settings."""
_SOURCE: Final = f"{WORK}/source.json"
"""Versions of the source's files, by name, to tell which of them were changed."""
# What tasks and the end of a run write: work, output and notes; each also below a split.
_OURS: Final = re.compile(rf"(?:[^/]+/)?(?:(?:{WORK}/|{STAGE}).*|{OUTPUT}|{re.escape(MARK)})")
_THREADS: Final = 16


def open_root(destination: str, options: StorageOptions | None) -> Store:
    """A destination."""
    return open_store(destination, options if is_local(destination) is None else None)


def dataset_store(job: ConversionJob, split: str) -> Store:
    """The root of a split's dataset."""
    return open_root(join_url(job.destination, split) if split else job.destination, job.storage_options)


def put_note(job: ConversionJob, number: int, note: Mapping[str, Any]) -> None:
    """Note that a task is done: from now on it is not done again."""
    open_root(job.destination, job.storage_options).put(_note(number), json.dumps(note).encode())


def unfinished(destination: str, options: StorageOptions | None) -> bool:
    """Return whether an unfinished or finished conversion is stored at a destination.

    ConfigError if other files are stored there.
    """
    store = open_root(destination, options)
    if store.exists(_RECORD):
        return True
    there = next((item for item in store.list() if not _is_before_output(item.key)), None)
    if there is not None:
        raise ConfigError(
            f"{store.url} is not empty: {there.key} is there. Convert to another place, or remove what is there"
        )
    return False


def done_before(job: ConversionJob, about: Mapping[str, Any], *, resume: bool) -> dict[str, Any] | None:
    """The report of this job by :func:`finish`, where an earlier run has finished it.

    ``about`` are its settings, by name, and a digest of the versions of the source's files; ``resume``: whether a job that
    is done is as good as one that is done now.
    """
    store = open_root(job.destination, job.storage_options)
    record = _record(store, resume=resume)
    if record is None or record.done is None:
        return None
    if not resume or record.differences(about):
        remedy = "convert to another place, or remove what is there"
        raise other_job(record, about, f"{store.url} holds a finished conversion", remedy)
    _check_whole(store, record.done)
    # What a run has left that was killed after it had finished.
    remove_partial_files(store)
    _remove_work(job)
    return dict(record.done["report"])


def begin(
    job: ConversionJob, about: Mapping[str, Any], versions: Mapping[str, str], *, resume: bool
) -> dict[int, dict[str, Any]]:
    """Begin in an empty destination, or resume in one that an unfinished run of the same job left.

    ``about`` is as :func:`done_before` has it, ``versions`` are of the source's files, by name. Without ``resume``, what an
    unfinished run left is removed. Returns the notes of tasks that are done, by number.
    """
    store = open_root(job.destination, job.storage_options)
    record = _record(store, resume=resume)
    if record is not None and record.identity == job.identity and resume:
        remove_partial_files(store)
        notes = _notes(job, store)
        if record.about.get(FILES) != about[FILES]:
            # Files that no task has read which is done, such as one that was damaged, may be replaced.
            began = _read_json(store, _SOURCE) or {}
            changed = {name for name in {**began, **versions} if began.get(name) != versions.get(name)}
            shards = [job.arrangement.located(*job.bounds[number : number + 2].tolist())[0] for number in notes]
            if shards and not changed.isdisjoint(job.source.files(np.unique(np.concatenate(shards)))):
                raise _other(store, record, about, versions)
            _keep(job, store, about, versions)
        return notes
    if store.exists(_RECORD):
        # A run that has written nothing yet leaves nothing to resume.
        if resume and not all(_is_before_output(item.key) for item in store.list()):
            assert record is not None
            raise _other(store, record, about, versions)
        _clear(store)
    unfinished(job.destination, job.storage_options)
    remove_partial_files(store)
    for name, _, _ in job.arrangement.splits:
        dataset_store(job, name).put(MARK, UnfinishedOutput({"convert": job.identity}, ()).to_json())
    _keep(job, store, about, versions)
    return {}


def _other(store: Store, record: JobRecord, about: Mapping[str, Any], versions: Mapping[str, str]) -> ConfigError:
    began = _read_json(store, _SOURCE)
    remedy = (
        "Nothing was overwritten. Continue with the old source and settings, or start again with resume=False "
        "(--restart)"
    )
    changed = "" if began is None else changed_files(began, versions)
    return other_job(record, about, f"{store.url} holds an unfinished conversion", remedy, changed)


def _keep(job: ConversionJob, store: Store, about: Mapping[str, Any], versions: Mapping[str, str]) -> None:
    store.put(_SOURCE, json.dumps(dict(versions)).encode())
    write_record(store, _RECORD, JobRecord(job.identity, about))


def finish(
    job: ConversionJob,
    about: Mapping[str, Any],
    notes: Mapping[int, Mapping[str, Any]],
    report: Callable[[int, int], Mapping[str, Any]],
) -> dict[str, Any]:
    """Put the files where they belong and write the indexes and the record that it is done; then remove what there was only
    for the work.

    ``report`` makes what the record says of the work, of the number of files or shards, and their bytes; that is returned.
    """
    root = open_root(job.destination, job.storage_options)
    shards = size = files = 0
    for split, (name, _, _) in enumerate(job.arrangement.splits):
        told = [notes[number]["splits"][split] for number in range(job.tasks)]
        entries = [entry for one in told for entry in one["entries"]]
        sizes: dict[str, int] = {file: length for one in told for file, length in one["files"].items()}
        store = dataset_store(job, name)
        shards += len(entries) if job.settings.writer.indexed else len(sizes)
        files += len(sizes)
        size += sum(sizes.values())
        if job.settings.writer.indexed:
            where = store.url_of(INDEX_NAME)
            index = Index.from_json(json.dumps({"shards": entries, "version": 2}).encode(), where)
            store.put(INDEX_NAME, index.to_json())
        else:
            publish(store)
            _check_there(store, sizes)
        store.delete(MARK)
    reported = dict(report(shards, size))
    done = {"report": reported, "files": files, "bytes": size}
    write_record(root, _RECORD, JobRecord(job.identity, about, done))
    _remove_work(job)
    return reported


def _remove_work(job: ConversionJob) -> None:
    """Remove what there was only for the work."""
    for name in {"": None, **dict.fromkeys(name for name, _, _ in job.arrangement.splits)}:
        store = dataset_store(job, name)
        delete_all(store, [item.key for item in store.list(WORK)])
        folder = is_local(store.url)
        if folder is not None:
            for empty in (folder / WORK / "files", folder / WORK):
                with contextlib.suppress(OSError):
                    empty.rmdir()


def _check_there(store: Store, sizes: Mapping[str, int]) -> None:
    there = {item.key: item.size for item in store.list()}
    for name, size in sizes.items():
        if there.get(name) != size:
            raise CorruptDataError(
                f"{store.url_of(name)} was removed after it was written: start again with resume=False (--restart)"
            )


def _record(store: Store, *, resume: bool) -> JobRecord | None:
    """The record, if there is one. A damaged record of an unfinished conversion counts as none when it starts again."""
    try:
        return read_record(store, _RECORD)
    except CorruptDataError:
        if resume or not store.exists(_SOURCE):
            raise
        return None


def _check_whole(store: Store, done: Mapping[str, Any]) -> None:
    """Check that the files of a finished conversion are there."""
    sizes = [
        item.size
        for item in store.list()
        if _OURS.fullmatch(item.key)
        and WORK not in item.key.split("/")
        and item.key.rpartition("/")[2] not in (INDEX_NAME, MARK)
    ]
    if (len(sizes), sum(sizes)) != (done["files"], done["bytes"]):
        raise CorruptDataError(
            f"{store.url}: a conversion was finished there with {done['files']} files of {done['bytes']} bytes, and there "
            f"are {len(sizes)} of {sum(sizes)}: convert to another place, or remove what is there"
        )


def _is_before_output(key: str) -> bool:
    """Return whether a conversion writes this file before its first output file."""
    return key in (_RECORD, _SOURCE) or key.rpartition("/")[2] == MARK


def _read_json(store: Store, key: str) -> dict[str, Any] | None:
    """An object of JSON; ``None`` where there is none, or it is damaged."""
    try:
        found = json.loads(store.get(key, max_bytes=1 << 30))
    except (ObjectNotFoundError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _notes(job: ConversionJob, store: Store) -> dict[int, dict[str, Any]]:
    """Notes of tasks whose files are all there."""
    there: dict[str, int] = {item.key: item.size for item in store.list()}
    numbers = [number for number in range(job.tasks) if _note(number) in there]
    found = side_by_side([partial(_read_json, store, _note(number)) for number in numbers], _THREADS, "notes")
    notes = zip(numbers, found, strict=True)
    return {number: note for number, note in notes if note is not None and _complete(job, note, there)}


def _complete(job: ConversionJob, note: Mapping[str, Any], there: Mapping[str, int]) -> bool:
    if note.get("identity") != job.identity or not all("files" in split for split in note["splits"]):
        return False  # another job's, or of a version whose notes did not name files
    for split in note["splits"]:
        prefix = f"{split['name']}/" if split["name"] else ""
        for name, size in split["files"].items():
            if size not in (there.get(prefix + name), there.get(prefix + STAGE + name)):
                return False
    return True


def _clear(store: Store) -> None:
    """Remove what an unfinished run left, and nothing that only looks like it."""
    delete_all(store, [item.key for item in store.list() if _OURS.fullmatch(item.key)])
    store.delete(_RECORD)  # last: a run that is killed before can start again


def _note(number: int) -> str:
    return f"{WORK}/task-{number:05}.json"
