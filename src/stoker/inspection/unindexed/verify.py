"""The checks of files without an index: each is opened, and read by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from stoker.catalog.unindexed.files_location import FilesLocation
from stoker.errors import ConfigError, MissingPackageError, StokerError
from stoker.formats.common.file_shards import SpanDetail, UnindexedFile
from stoker.formats.format import Format
from stoker.inspection.checks import Checker, CheckPlan, Outcome, Task
from stoker.inspection.problems import Problem
from stoker.inspection.unindexed.files import SeparateFiles, disagreements
from stoker.storage import ObjectInfo
from stoker.types import Buffer


def plan_unindexed(checker: Checker, source: FilesLocation, name: str, settings: Mapping[str, Any]) -> CheckPlan:
    """List the checks. A header is read when its file's turn comes.

    Args:
        checker: reads from the source's root.
        source: which files.
        name: their format.
        settings: what the format's ``inspect_header`` understands.

    Raises:
        ConfigError: files of this format are not read without an index.
        ObjectNotFoundError: there are none.
    """
    files = SeparateFiles(source, checker.files, name, settings)
    plan = CheckPlan(name, [])
    quick = checker.level == "quick"
    if quick and files.reader.row_groups:
        plan.notes.append("quick: of Parquet files the footers are checked, and no page")
    if not files.reader.single:
        plan.finish = partial(_disagreements, checker, files.reader)
    plan.tasks = [
        Task(
            0 if quick else sum(one.size for one in files.files_of(file)),
            partial(_check, checker, files, number, file),
        )
        for number, file in enumerate(files.found)
    ]
    return plan


def _check(checker: Checker, files: SeparateFiles, number: int, file: ObjectInfo, out: Outcome) -> None:
    """Check one file, with those that belong to it."""
    reader, quick = files.reader, checker.level == "quick"
    if quick and files.whole:
        out.notes.append(f"quick: files of format {reader.name!r} are not opened, for that would take all of them")
        out.shards = 1
        return
    data: list[Buffer] = []
    if not quick and not reader.row_groups:
        found = _read_whole(checker, files.files_of(file), number, out)
        if found is None:
            return
        data = found
    try:
        one = files.inspect(file, data[0] if data else None)
        out.samples, out.shards = one.samples, one.shards
        if one.samples and not reader.single:
            out.spec = (one.key, one.spec)
        last = one.files[-1]
        if one.beside and len(one.spans) and one.spans[-1, 1] < last.size:
            over = last.size - int(one.spans[-1, 1])
            out.notes.append(f"{checker.files.store.url_of(last.key)}: its last {over:,} bytes belong to no sample")
        if reader.row_groups and not quick:
            _check_row_groups(checker, files, one, number, out)
        first = number if reader.single else None
        for info, parts in files.shards(one, data) if data else ():
            before = info.detail.first if isinstance(info.detail, SpanDetail) else 0
            checker.content(info, parts, one.key, out, shard=number, first=first, before=before)
    except (MissingPackageError, ConfigError):
        raise
    except StokerError as error:
        kind: Any = "structure" if isinstance(error, ValueError) else "unreadable"
        out.problems.append(checker.problem(kind, file.key, str(error), number))


def _read_whole(checker: Checker, files: Sequence[ObjectInfo], number: int, out: Outcome) -> list[Buffer] | None:
    """Bytes of some files; ``None``, and a problem, where one can not be read or has another size."""
    data: list[Buffer] = []
    for file in files:
        read = checker.read(file.key, number, out)
        if read is None:
            return None
        if len(read) != file.size:
            url = checker.files.store.url_of(file.key)
            message = f"{url} has {len(read)} bytes, and had {file.size} when it was listed"
            out.problems.append(checker.problem("size", file.key, message, number))
            return None
        data.append(read)
    return data


def _check_row_groups(checker: Checker, files: SeparateFiles, one: UnindexedFile, number: int, out: Outcome) -> None:
    """Check the row groups of a file, of which no more than one, or some of a remote file, are read at a time."""
    where, before = checker.files.store.url_of(one.key), 0
    for (start, end), together in files.row_groups(one):
        if checker.stop.is_set():
            return
        data: Buffer | None = None
        try:
            data = checker.files.window(one.key, start, end, version=one.file.version)
            out.bytes += len(data)
        except (StokerError, OSError, ValueError) as error:
            out.problems.append(checker.problem("unreadable", one.key, f"{where}: {error}", number))
        for info in together:
            part = info.raw[0].part
            if data is not None and part is not None:
                first, last = part.window
                some: Any = data if part.window == (start, end) else memoryview(data)[first - start : last - start]
                checker.content(info, [some], one.key, out, shard=number, before=before)
            before += info.samples


def _disagreements(checker: Checker, reader: Format, outcomes: Sequence[Outcome]) -> list[Problem]:
    """Files whose columns do not go with those of the files before them."""
    numbers = {outcome.spec[0]: number for number, outcome in enumerate(outcomes) if outcome.spec is not None}
    specs = (outcome.spec for outcome in outcomes if outcome.spec is not None)
    found = disagreements(reader, specs, checker.files.store.url_of)
    return [checker.problem("index", key, message, numbers[key]) for key, message in found]
