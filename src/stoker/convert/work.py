"""What lies in the destination while a conversion is under way: the plan, a note of each task that is done; and the end."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from stoker.convert.job import WORK, Job
from stoker.convert.sinks import LISTED, file_sizes
from stoker.dataset.index import INDEX_NAME, Index
from stoker.dataset.unfinished import NOTE, Unfinished
from stoker.errors import ConfigError, CorruptDataError, ObjectNotFoundError
from stoker.storage import Store, is_local, join_url, open_store
from stoker.types import StorageOptions

__all__ = ["begin", "dataset_store", "finish", "open_root", "put_note", "refuse_others"]

_PLAN: Final = f"{WORK}/plan.json"
# What tasks and the end of a run write: work, shards, listed files, images, indexes and notes; each also below a split.
_OURS: Final = re.compile(
    rf"(?:[^/]+/)?(?:{WORK}/.*|(?:[0-9]{{5,}}/)?shard\.[0-9]+\.[^/]*|part-[0-9]+-[0-9]+\.(?:parquet|bin|idx)|index\.json"
    rf"|{re.escape(NOTE)}"
    r"|(?:[^/]+/)?(?:[0-9]{5,}-)?[0-9]{9,}\.(?:jpeg|png))"
)
_THREADS: Final = 16
_MOST_NOTE: Final = 1 << 28


def open_root(destination: str, options: StorageOptions | None) -> Store:
    """A destination."""
    return open_store(destination, options if is_local(destination) is None else None)


def dataset_store(job: Job, split: str) -> Store:
    """The root of a split's dataset."""
    return open_root(join_url(job.destination, split) if split else job.destination, job.storage_options)


def put_note(job: Job, number: int, note: Mapping[str, Any]) -> None:
    """Note that a task is done: from now on it is not done again."""
    open_root(job.destination, job.storage_options).put(_note(number), json.dumps(note).encode())


def refuse_others(destination: str, options: StorageOptions | None) -> None:
    """See that a destination is empty, or an unfinished conversion.

    Raises:
        ConfigError: it is not.
    """
    store = open_root(destination, options)
    there = None if store.exists(_PLAN) else next(iter(store.list()), None)
    if there is not None:
        raise ConfigError(
            f"{store.url} is not empty: {there.key} is there. Convert to another place, or remove what is there"
        )


def begin(job: Job, about: Mapping[str, Any], *, resume: bool) -> dict[int, dict[str, Any]]:
    """Begin in an empty destination, or go on in one that another run of the same job left.

    Args:
        job: the work.
        about: its settings, by name, which its identity is the digest of.
        resume: go on; otherwise what an unfinished run left is removed.

    Returns:
        The notes of tasks that are done, by number.

    Raises:
        ConfigError: something else is there, or what a run with other settings left.
    """
    store = open_root(job.destination, job.storage_options)
    plan = _plan(store)
    if plan is not None and not resume:
        _clear(store)
        plan = None
    if plan is None:
        refuse_others(job.destination, job.storage_options)
        store.put(_PLAN, json.dumps({"identity": job.identity, "about": about}, indent=1).encode())
        for name in _listed(job):
            dataset_store(job, name).put(NOTE, Unfinished({"convert": job.identity}, ()).to_json())
        return {}
    if plan.get("identity") != job.identity:
        old: Mapping[str, Any] = plan["about"] if isinstance(plan.get("about"), dict) else {}
        changed = [name for name in about if old.get(name) != _plain(about[name])]
        told = "; ".join(f"{name} was {_short(old.get(name))}, is {_short(_plain(about[name]))}" for name in changed)
        raise ConfigError(
            f"{store.url} holds an unfinished conversion of another source or with other settings ({told}): go on as it was "
            "begun, or begin anew with resume=False (--restart)"
        )
    return _notes(job, store)


def finish(job: Job, notes: Mapping[int, Mapping[str, Any]]) -> tuple[int, int]:
    """Put the files where they belong and write the indexes; then remove what there was only for the work.

    Returns:
        Files or shards, and their bytes.
    """
    root = open_root(job.destination, job.storage_options)
    shards = size = 0
    for place, (name, _, _) in enumerate(job.arrangement.splits):
        entries = [entry for number in range(job.tasks) for entry in notes[number]["splits"][place]["entries"]]
        store = dataset_store(job, name)
        sizes = file_sizes(entries)
        shards += len(entries)
        size += sum(sizes.values())
        if job.settings.format not in LISTED:
            where = store.url_of(INDEX_NAME)
            index = Index.from_json(json.dumps({"shards": entries, "version": 2}).encode(), where)
            store.put(INDEX_NAME, index.to_json())
        elif job.stage:
            _move(store, job.stage, sizes)
    for name in _listed(job):
        dataset_store(job, name).delete(NOTE)
    # The plan last: whoever is killed in between goes on from here.
    for name in {"": None, **dict.fromkeys(name for name, _, _ in job.arrangement.splits)}:
        store = dataset_store(job, name)
        _delete(store, (item.key for item in store.list(WORK) if item.key != _PLAN))
    root.delete(_PLAN)
    _remove_folders(job)
    return shards, size


def _listed(job: Job) -> list[str]:
    """Splits whose files lie where they belong before all are there, and would be found by listing them."""
    unseen = job.stage or job.settings.format not in LISTED
    return [] if unseen else [name for name, _, _ in job.arrangement.splits]


def _move(store: Store, stage: str, names: Iterable[str]) -> None:
    """Rename files of a local directory from where they were made to where they belong."""
    folder = is_local(store.url)
    assert folder is not None
    for name in names:
        with contextlib.suppress(FileNotFoundError):  # by the run before, which was killed at this
            os.replace(folder / stage / name, folder / name)
        if not (folder / name).exists():
            raise CorruptDataError(f"{folder / name} is gone since it was written: begin anew with resume=False")


def _remove_folders(job: Job) -> None:
    """Empty folders of the work, which only local directories have."""
    for split in ("", *(name for name, _, _ in job.arrangement.splits)):
        folder = is_local(dataset_store(job, split).url)
        for name in filter(None, (job.stage, WORK)):
            if folder is not None:
                with contextlib.suppress(OSError):
                    (folder / name).rmdir()


def _plan(store: Store) -> dict[str, Any] | None:
    try:
        found = json.loads(store.get(_PLAN, max_bytes=_MOST_NOTE))
    except ObjectNotFoundError:
        return None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise CorruptDataError(f"{store.url_of(_PLAN)} is damaged: begin anew with resume=False (--restart)")
    return found


def _notes(job: Job, store: Store) -> dict[int, dict[str, Any]]:
    """Notes of tasks whose files are all there."""
    there: dict[str, int] = {item.key: item.size for item in store.list()}
    numbers = [number for number in range(job.tasks) if _note(number) in there]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="stoker-notes") as pool:
        found = dict(zip(numbers, pool.map(lambda number: _read_note(store, number), numbers), strict=True))
    return {number: note for number, note in found.items() if note is not None and _complete(job, note, there)}


def _read_note(store: Store, number: int) -> dict[str, Any] | None:
    try:
        note = json.loads(store.get(_note(number), max_bytes=_MOST_NOTE))
    except (ObjectNotFoundError, ValueError, RecursionError):
        return None
    return note if isinstance(note, dict) else None


def _complete(job: Job, note: Mapping[str, Any], there: Mapping[str, int]) -> bool:
    if note.get("identity") != job.identity:
        return False
    for split in note["splits"]:
        prefix = f"{split['name']}/" if split["name"] else ""
        for name, size in file_sizes(split["entries"]).items():
            if size not in (there.get(prefix + name), there.get(prefix + job.stage + name)):
                return False
    return True


def _clear(store: Store) -> None:
    """Remove what an unfinished run left, and nothing that only looks like it."""
    _delete(store, (item.key for item in store.list() if item.key != _PLAN and _OURS.fullmatch(item.key)))
    store.delete(_PLAN)


def _delete(store: Store, keys: Iterable[str]) -> None:
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="stoker-delete") as pool:
        for _ in pool.map(store.delete, list(keys)):
            pass


def _note(number: int) -> str:
    return f"{WORK}/task-{number:05}.json"


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
