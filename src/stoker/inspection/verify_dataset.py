"""Whether a dataset is whole: every file there, of its size and hash, every offset in order, every sample readable.

Also the repair of a lost index.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from stoker.arguments import at_least, checked
from stoker.catalog.detect import detect
from stoker.catalog.open_format import refuse_options
from stoker.catalog.unindexed.files_location import dataset_url, source_of
from stoker.catalog.unindexed.find_files import as_file
from stoker.catalog.unindexed.open_files import unindexed_format
from stoker.concurrency.ray_tasks import on_ray
from stoker.concurrency.threads import Threads
from stoker.errors import ConfigError, CorruptDataError, FormatError, ObjectNotFoundError
from stoker.formats.base import FileInfo, ShardInfo
from stoker.formats.common.compression import parse_compression
from stoker.formats.registry import format_name
from stoker.index.index import INDEX_NAME, INDEXED, MOST_BYTES, Index, load_index
from stoker.index.shard_files import rebuild_index
from stoker.inspection.cached_dataset import verify_cache
from stoker.inspection.checks import (
    Checker,
    CheckPlan,
    FileReader,
    Level,
    Outcome,
    Problem,
    Task,
    VerifyReport,
    first_samples,
)
from stoker.inspection.unindexed_files import plan_unindexed
from stoker.policy import processor_count
from stoker.storage import Store, is_local, open_store
from stoker.storage.files.locked_folder import LockedFolder
from stoker.storage.files.own import PRIVATE
from stoker.types import Buffer, Engine, StorageOptions

_THREADS: Final = 8
# Files that a task of a cluster checks.
_PART: Final = 16
_MEMORY: Final = 1 << 30

Progress = Callable[[int, int], None]


@checked
def verify(
    url: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - as StreamingDataset calls it
    local: str | os.PathLike[str] | None = None,
    deep: bool = False,
    quick: bool = False,
    repair: bool = False,
    max_problems: int = 100,
    threads: int | None = None,
    engine: Engine = "local",
    memory: int = _MEMORY,
    allow_unsafe_types: bool = False,
    format_options: Mapping[str, Any] | None = None,
    storage_options: StorageOptions | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Check a dataset, and report all problems.

    Without ``deep`` and ``quick`` all files of a dataset with an index are read and compared with their hashes, and headers,
    offsets and counts with the index; of files without an index, headers, offsets and the checksums that a format has of
    its content (NPZ, Parquet, PNG, TFRecord), and of Parquet the pages against the footers. docs/cli/verify.md
    has a table of all formats.

    Files of remote stores are read one at a time in each thread, through unlinked files in ``$TMPDIR``.

    Args:
        url: a directory or URL with an ``index.json``, or of files of one format; a file; or a pattern.
        format: the files' format, for files without an index. Found out by their names if not given.
        local: check this cache of the dataset instead: what it holds of it, against the index at ``url``.
        deep: decode every sample, too, and compare every hash that the index has.
        quick: compare only names and sizes with the index; of other files read only headers.
        repair: make a lost or damaged index anew from its shards; with ``local``, fetch again what differs. What is replaced
            is moved aside until what replaces it is whole and verified; an index stays aside.
        max_problems: stop after so many.
        threads: how many files are checked at once; default 8 for remote stores, else one a processor;
            with Ray, most tasks at once.
        engine: ``"ray"`` for the tasks of a Ray cluster, a file each, whose nodes all reach the files by the same names.
        memory: bytes that decompressed shards take together, with Ray those of one task. One that is larger is checked alone.
        allow_unsafe_types: decode columns of pickles, which can run code from the data.
        format_options: what the format's reader of others' files understands, such as ``{"encodings": {"jpg": "jpeg"}}``.
        storage_options: credentials and settings of a remote store, by obstore's names.
        progress: called with bytes done since the last call, and bytes in all.

    Raises:
        ConfigError: arguments that do not go together, it is not clear what the files are, or the folder for temporary files
            is full or can not be written.
        ObjectNotFoundError: nothing is there.
        MissingPackageError: what reads the format, decodes a column, or the engine needs is not installed.
        AccessDeniedError, StorageTimeoutError: the files can not be listed.

    >>> import tempfile
    >>> from stoker import MDSWriter
    >>> with tempfile.TemporaryDirectory() as out:
    ...     with MDSWriter({"x": "int"}, out, hashes=["xxh64"]) as writer:
    ...         for number in range(10):
    ...             writer.write({"x": number})
    ...     report = verify(out, deep=True)
    ...     report.ok, report.samples, report.hashed
    (True, 10, 1)
    """
    if deep and quick:
        raise ConfigError("deep=True and quick=True: choose one")
    at_least(1, max_problems=max_problems, threads=threads, memory=memory)
    if local is not None and engine == "ray":
        raise ConfigError(
            "engine='ray' checks data that all nodes reach, and a cache is of one node: leave engine= away"
        )
    if local is not None and quick:
        raise ConfigError("quick=True compares a dataset's files with its index; leave local= away")
    level: Level = "deep" if deep else "quick" if quick else "normal"
    began = time.monotonic()
    text = dataset_url(url)
    remote = is_local(text) is None
    if engine == "local" and threads is None:
        threads = _THREADS if remote else processor_count()
    options = storage_options if remote else None

    def check(plan: CheckPlan, checker: Checker, repaired: tuple[str, ...] = (), told: str = "") -> VerifyReport:
        outcomes, stopped = run_tasks(plan, checker, engine, threads, max_problems, progress)
        problems = [*plan.problems, *(problem for outcome in outcomes for problem in outcome.problems)]
        problems += plan.finish(outcomes)
        problems.sort(key=lambda problem: -1 if problem.shard is None else problem.shard)
        notes = dict.fromkeys([*plan.notes, *(note for outcome in outcomes for note in outcome.notes)])
        return VerifyReport(
            told or checker.files.store.url_of(""),
            plan.format,
            level,
            sum(outcome.shards for outcome in outcomes),
            sum(outcome.samples for outcome in outcomes),
            sum(outcome.bytes for outcome in outcomes),
            sum(outcome.hashed for outcome in outcomes),
            tuple(problems[:max_problems]),
            tuple(plan.strange),
            tuple(notes),
            repaired,
            stopped or len(problems) > max_problems,
            time.monotonic() - began,
        )

    with LockedFolder.in_temp("stoker-verify-") as scratch:

        def checker_of(root: str) -> Checker:
            files = FileReader(open_store(root, options), scratch)
            return Checker(files, level, allow_unsafe_types=allow_unsafe_types, memory=memory)

        if local is not None:
            return verify_cache(
                text, local, format_name(format), dict(format_options or {}), options, checker_of, check, repair=repair
            )
        name = format_name(format)
        if name is None:
            name = detect(text, options).format or INDEXED
        if name != INDEXED:
            source = as_file(source_of(text), partial(open_store, options=options), unindexed_format(name))
            checker = checker_of(source.root)
            told = source.told if source.keys or source.given else ""
            return check(plan_unindexed(checker, source, name, format_options or {}), checker, told=told)
        refuse_options(text, format_options)
        checker = checker_of(text)
        index, plan = plan_index(checker)
        repaired: tuple[str, ...] = ()
        if index is None and repair:
            try:
                repaired = rebuild(checker.files.store, options)
                _, plan = plan_index(checker)
            except (ConfigError, FormatError) as error:
                plan.notes.append(f"the index could not be rebuilt: {error}")
        return check(plan, checker, repaired=repaired)


def run_tasks(
    plan: CheckPlan,
    checker: Checker,
    engine: Engine,
    threads: int | None,
    max_problems: int,
    progress: Progress | None,
) -> tuple[list[Outcome], bool]:
    """Do a plan's tasks side by side; their outcomes in order, and whether there were too many problems to go on."""
    total = sum(task.size for task in plan.tasks)
    if progress is not None:
        progress(0, total)
    outcomes: list[Outcome] = []
    problems = len(plan.problems)
    with contextlib.closing(
        _on_ray(plan.tasks, threads) if engine == "ray" else _on_threads(plan.tasks, checker, threads or 1)
    ) as running:
        while problems < max_problems:
            found = next(running, None)
            if found is None:
                return outcomes, False
            outcomes.append(found[1])
            problems += len(found[1].problems)
            if progress is not None:
                progress(plan.tasks[found[0]].size, total)
    return outcomes, len(outcomes) < len(plan.tasks) or problems > max_problems


def _on_ray(tasks: Sequence[Task], most: int | None) -> Generator[tuple[int, Outcome]]:
    parts = (tasks[at : at + _PART] for at in range(0, len(tasks), _PART))
    number = 0
    with contextlib.closing(on_ray(_do_all, None, parts, most, in_order=True)) as running:
        for _, outcomes in running:
            for outcome in outcomes:
                yield number, outcome
                number += 1


def _do_all(_: None, tasks: Sequence[Task]) -> list[Outcome]:
    return [_do(tasks, number) for number in range(len(tasks))]


def _on_threads(tasks: Sequence[Task], checker: Checker, threads: int) -> Generator[tuple[int, Outcome]]:
    pool = Threads(min(threads, max(1, len(tasks))), "verify")
    waiting: deque[Future[Outcome]] = deque()
    sent = 0
    try:
        for number in range(len(tasks)):
            while sent < len(tasks) and len(waiting) < 4 * threads:
                waiting.append(pool.submit(partial(_do, tasks, sent)))
                sent += 1
            yield number, waiting.popleft().result()
    finally:
        checker.stop.set()
        pool.close()


def _do(tasks: Sequence[Task], number: int) -> Outcome:
    outcome = Outcome()
    tasks[number].run(outcome)
    return outcome


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
        whole: list[tuple[FileInfo, ...]] = []
        for files in there:
            wrong = [checker.wrong_size(file, sizes[file.basename], number) for file in files]
            plan.problems += [problem for problem in wrong if problem is not None]
            whole += [files] if not any(wrong) else []
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


def _sizes(store: Store, index: Index) -> dict[str, int]:
    """Key to size of everything below the root; of a store that can not be listed, of the index's files."""
    web = store.url.startswith(("http://", "https://"))
    return {item.key: item.size for item in (store.infos(index.file_sizes()).values() if web else store.list())}


def _is_ours(key: str, known: Iterable[str]) -> bool:
    """Whether a file that is no shard's belongs there all the same: indexes, and what caches keep."""
    folder, _, name = key.rpartition("/")
    if key == INDEX_NAME or key.startswith(f"{INDEX_NAME}.damaged") or PRIVATE in key.split("/"):
        return True
    return name == INDEX_NAME and any(one.startswith(f"{folder}/") for one in known)


def rebuild(store: Store, options: StorageOptions | None) -> tuple[str, ...]:
    """Rebuild a dataset's index from its shards. An existing index is renamed and stays next to the new one.

    StokerError if it can not be made; then all is as before. Gives what was done.
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
