"""What to check of files that others wrote, without an index: each is opened, and read by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from stoker.catalog.unindexed.found_files import FilesLocation
from stoker.errors import ConfigError, MissingPackageError, StokerError
from stoker.formats.common.inspect_header import HeaderFacts
from stoker.inspection.checks import Checker, CheckPlan, Outcome, Task
from stoker.inspection.problems import Problem
from stoker.inspection.unindexed.files import FileGroup, FormatFiles
from stoker.types import Buffer

__all__ = ["plan_unindexed"]


def plan_unindexed(checker: Checker, source: FilesLocation, name: str, settings: Mapping[str, Any]) -> CheckPlan:
    """What to check.

    Args:
        checker: reads from the source's root.
        source: which files.
        name: their format.
        settings: what the format's ``inspect_header`` understands.

    Raises:
        ConfigError: files of this format are not read without an index.
        ObjectNotFoundError: there are none.
    """
    files = FormatFiles(source, checker.files, name, settings)
    single = HeaderFacts(1, files.single_spec()) if files.single else None
    plan = CheckPlan(name, [])
    if single is None:
        plan.finish = partial(_disagreements, checker, files.reader)
    plan.tasks = [
        Task(0 if checker.level == "quick" else one.size, partial(_check, checker, files, single, number, one))
        for number, one in enumerate(files.found)
    ]
    return plan


def _check(
    checker: Checker, files: FormatFiles, single: HeaderFacts | None, number: int, one: FileGroup, out: Outcome
) -> None:
    """Check one file, with those that belong to it."""
    out.shards = 1
    data: list[Buffer] = []
    if checker.level != "quick":
        for file in one.all:
            read = checker.read(file.key, number, out)
            if read is None:
                return
            if len(read) != file.size:
                url = checker.files.store.url_of(file.key)
                message = f"{url} has {len(read)} bytes, and had {file.size} when it was listed"
                out.problems.append(checker.problem("size", file.key, message, number))
                return
            data.append(read)
    elif single is None and files.whole:
        out.notes.append(
            f"quick: files of format {files.reader.name!r} are not opened, for that would take all of them"
        )
        return
    try:
        header = single or files.inspect_header(one, data[0] if data else None)
        out.samples = header.samples
        if header.samples and single is None:
            out.spec = (one.file.key, header.spec)
        last = one.all[-1]
        if one.beside and header.pieces and header.pieces[-1].end < last.size:
            over = last.size - header.pieces[-1].end
            out.notes.append(f"{checker.files.store.url_of(last.key)}: its last {over:,} bytes belong to no sample")
        first = number if single is not None else None
        for info, parts in files.shards(one, header, data) if data and header.samples else ():
            before = getattr(info.detail, "first", 0)
            checker.content(info, parts, one.file.key, out, shard=number, first=first, before=before)
    except (MissingPackageError, ConfigError):
        raise
    except StokerError as error:
        kind: Any = "structure" if isinstance(error, ValueError) else "unreadable"
        out.problems.append(checker.problem(kind, one.file.key, str(error), number))


def _disagreements(checker: Checker, reader: Any, outcomes: Sequence[Outcome]) -> list[Problem]:
    """Files whose columns do not go with those of the files before them."""
    problems: list[Problem] = []
    agreed: tuple[str, Mapping[str, Any]] | None = None
    for number, outcome in enumerate(outcomes):
        if outcome.spec is None:
            continue
        key, spec = outcome.spec
        if agreed is None:
            agreed = outcome.spec
            continue
        try:
            agreed = (agreed[0], reader.agree(agreed[1], spec))
        except ValueError as error:
            url = checker.files.store.url_of
            message = f"{url(agreed[0])} and {url(key)} can not be read together: {error}"
            problems.append(checker.problem("index", key, message, number))
    return problems
