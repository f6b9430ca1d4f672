"""The checks of a dataset that has an ``index.json``, and the repair of a lost index."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Final

from stoker.errors import CorruptDataError, FormatError, ObjectNotFoundError
from stoker.formats.base import FileInfo, ShardInfo
from stoker.formats.common.compression import parse_compression
from stoker.index.index import INDEX_NAME, MOST_BYTES, Index, load_index
from stoker.index.shard_files import rebuild_index
from stoker.inspection.checks import Checker, CheckPlan, Outcome, Task, first_samples
from stoker.inspection.problems import Problem
from stoker.storage import Store
from stoker.storage.files.own import PRIVATE
from stoker.types import Buffer, StorageOptions

_THREADS: Final = 16


def plan_index(checker: Checker) -> tuple[Index | None, CheckPlan]:
    """The index, if it can be read, and what to check."""
    store = checker.files.store
    try:
        index = load_index(store)
    except (FormatError, ObjectNotFoundError) as error:
        where = store.url_of(INDEX_NAME)
        remedy = "--repair (repair=True) rebuilds it from the shards"
        return None, CheckPlan(None, [], [Problem("index", where, f"{str(error).rstrip('.')}. {remedy}", INDEX_NAME)])
    formats = sorted({info.format for info in index.shards})
    plan = CheckPlan(", ".join(formats) or None, [])
    sizes = _sizes(store, index)
    known = {file.basename for info in index.shards for file in (*info.raw, *info.zip)}
    plan.strange = sorted(key for key in sizes if key not in known and not _is_ours(key, known))
    if not any(file.hashes for info in index.shards for file in info.stored):
        plan.notes.append(
            "the index has no hashes: of shards only the structure is checked, and with deep every sample"
        )
    tasks: list[Task] = []
    for number, (info, first) in enumerate(zip(index.shards, first_samples(index.shards), strict=True)):
        there = [files for files in (info.zip, info.raw) if files and all(file.basename in sizes for file in files)]
        if not there:
            plan.problems += [
                checker.problem("missing", file.basename, f"{store.url_of(file.basename)} is not there", number)
                for file in info.stored
                if file.basename not in sizes
            ]
        whole = [files for files in there if _right_sizes(checker, files, sizes, number, plan.problems)]
        size = sum(file.bytes for files in whole for file in files)
        work = partial(_check, checker, number, first, info, whole)
        tasks.append(Task(0 if checker.level == "quick" else size, work))
    plan.tasks = tasks
    return index, plan


def _check(
    checker: Checker, number: int, first: int, info: ShardInfo, whole: Iterable[tuple[FileInfo, ...]], out: Outcome
) -> None:
    """Check one shard, in each form that is there."""
    out.shards, out.samples = 1, info.samples
    if checker.level == "quick":
        return
    for files in whole:
        data = checker.read_files(files, number, out)
        if data is None:
            continue
        if files is not info.zip:
            checker.content(info, data, files[0].basename, out, shard=number, first=first)
            continue
        with ExitStack() as stack:
            stack.enter_context(checker.budget.take(sum(file.bytes for file in info.raw)))
            raw = _decompressed(checker, number, info, data, out)
            if raw is not None:
                checker.content(info, raw, files[0].basename, out, shard=number, first=first)


def _decompressed(
    checker: Checker, number: int, info: ShardInfo, packed: list[Buffer], out: Outcome
) -> list[Buffer] | None:
    assert info.compression is not None
    compression = parse_compression(info.compression)
    raw: list[Buffer] = []
    for file, small, data in zip(info.raw, info.zip, packed, strict=True):
        where = checker.files.store.url_of(small.basename)
        # Memory of the system's own, so that a size that is claimed, and is wrong, takes none.
        plain = mmap.mmap(-1, file.bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) if file.bytes else b""
        try:
            compression.decompress_into(memoryview(data), memoryview(plain) if file.bytes else bytearray())
        except CorruptDataError as error:
            out.problems.append(checker.problem("structure", small.basename, f"{where}: {error}", number))
            return None
        if not checker.is_file(file, plain, number, out, f"{where}, decompressed"):
            return None
        raw.append(plain)
    return raw


def _right_sizes(
    checker: Checker,
    files: Iterable[FileInfo],
    sizes: Mapping[str, int],
    number: int,
    problems: list[Problem],
) -> bool:
    right = True
    for file in files:
        if sizes[file.basename] != file.bytes:
            where = checker.files.store.url_of(file.basename)
            message = f"{where} has {sizes[file.basename]} bytes, the index says {file.bytes}"
            problems.append(checker.problem("size", file.basename, message, number))
            right = False
    return right


def _sizes(store: Store, index: Index) -> dict[str, int]:
    """Key to size of everything below the root; of a store that can not be listed, of the index's files."""
    if not store.url.startswith(("http://", "https://")):
        return {item.key: item.size for item in store.list()}

    def size(key: str) -> tuple[str, int] | None:
        try:
            return key, store.head(key).size
        except ObjectNotFoundError:
            return None

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="stoker-verify") as pool:
        return dict(found for found in pool.map(size, index.file_sizes()) if found is not None)


def _is_ours(key: str, known: Iterable[str]) -> bool:
    """Whether a file that is no shard's belongs there all the same: indexes, and what caches keep."""
    folder, _, name = key.rpartition("/")
    if key == INDEX_NAME or key.startswith(f"{INDEX_NAME}.damaged") or PRIVATE in key.split("/"):
        return True
    return name == INDEX_NAME and any(one.startswith(f"{folder}/") for one in known)


def rebuild(store: Store, options: StorageOptions | None) -> tuple[str, ...]:
    """Rebuild a dataset's index from its shards. An existing index is renamed and stays next to the new one.

    Returns:
        What was done.

    Raises:
        StokerError: it can not be made; then all is as before.
    """
    old: bytes | None = None
    aside = ""
    with contextlib.suppress(ObjectNotFoundError):
        old = store.get(INDEX_NAME, max_bytes=MOST_BYTES)
    if old is not None:
        number = 0
        while store.exists(aside := f"{INDEX_NAME}.damaged" + (f".{number}" if number else "")):
            number += 1
        store.put(aside, old)
    try:
        index = rebuild_index(store.url, exist_ok=True, storage_options=options)
    except BaseException:
        if old is not None:
            store.delete(aside)
        raise
    kept = f"; the old one is now {store.url_of(aside)}" if old is not None else ""
    said = f"{store.url_of(INDEX_NAME)} was rebuilt from {len(index)} shards with {index.samples} samples{kept}"
    return (f"{said}. Shards that are missing at the end can not be noticed",)
