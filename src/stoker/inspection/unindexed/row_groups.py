"""What to check of Parquet files: each footer, the pages of every row group, and with ``deep`` every value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from stoker.catalog.unindexed.found_files import FilesLocation, FoundFile, find_files
from stoker.catalog.unindexed.parquet_footers import BadFile, FooterReader
from stoker.catalog.unindexed.parquet_shards import describe_row_groups
from stoker.errors import FormatError, StokerError
from stoker.formats.base import ShardInfo
from stoker.formats.parquet.footer.facts import FileFacts
from stoker.inspection.checks import Checker, CheckPlan, Outcome, Task
from stoker.inspection.problems import Problem
from stoker.storage import is_local
from stoker.types import Buffer

__all__ = ["plan_parquet"]

# Of remote files, row groups that follow each other are fetched together until they have so many bytes.
_TOGETHER: Final = 16 << 20


def plan_parquet(checker: Checker, source: FilesLocation, threads: int) -> CheckPlan:
    """What to check. Footers are read when their file's turn comes.

    Raises:
        ObjectNotFoundError: there are no Parquet files.
    """
    store = checker.files.store
    footers = FooterReader(store, None, None, threads=threads)
    _, _, files = find_files(source, lambda _: store)
    files = footers.sized(files)
    plan = CheckPlan("parquet", [])
    quick = checker.level == "quick"
    if quick:
        plan.notes.append("quick: of Parquet files the footers are checked, and no page")
    plan.tasks = [
        Task(0 if quick else file.size, partial(_check, checker, footers, number, file))
        for number, file in enumerate(files)
    ]
    plan.finish = partial(_disagreements, checker)
    return plan


def _check(checker: Checker, footers: FooterReader, number: int, file: FoundFile, out: Outcome) -> None:
    """Check one file."""
    where = checker.files.store.url_of(file.key)
    try:
        (facts,) = footers.read([file], [{}], skip_bad=True)
    except StokerError as error:
        out.problems.append(checker.problem("unreadable", file.key, f"{where}: {error}", number))
        return
    if isinstance(facts, BadFile):
        out.problems.append(checker.problem("structure", file.key, f"{where}: {facts.problem}", number))
        return
    out.samples = int(facts.rows.sum())
    out.shards = len(facts.rows)
    kinds = {column.name: column.type for column in facts.schema.columns}
    if out.samples:
        out.spec = (file.key, kinds)
    if checker.level == "quick":
        return
    try:
        groups = list(describe_row_groups([facts], {file.key: ()}, kinds, in_place=True))
    except FormatError as error:
        out.problems.append(checker.problem("structure", file.key, f"{where}: {error}", number))
        return
    first = 0
    for window, together in _windows(groups, 0 if is_local(checker.files.store.url) is not None else _TOGETHER):
        if checker.stop.is_set():
            return
        data = _read(checker, facts, window, number, out)
        for info in together:
            if data is not None:
                start, end = _window_of(info)
                some: Any = data if (start, end) == window else memoryview(data)[start - window[0] : end - window[0]]
                checker.content(info, [some], facts.key, out, shard=number, before=first)
            first += info.samples


def _window_of(info: ShardInfo) -> tuple[int, int]:
    part = info.raw[0].part
    assert part is not None  # as all that describe_row_groups makes
    return part.window


def _windows(groups: Sequence[ShardInfo], most: int) -> Iterator[tuple[tuple[int, int], list[ShardInfo]]]:
    """Row groups that follow each other, with the bytes of the file that they lie in: one group, or of ``most`` bytes."""
    together: list[ShardInfo] = []
    start = end = 0
    for info in groups:
        first, last = _window_of(info)
        low, high = min(start, first), max(end, last)
        if together and high - low > most:
            yield (start, end), together
            together = []
        start, end = (low, high) if together else (first, last)
        together.append(info)
    if together:
        yield (start, end), together


def _read(checker: Checker, facts: FileFacts, window: tuple[int, int], number: int, out: Outcome) -> Buffer | None:
    """Bytes of a file."""
    store, key = checker.files.store, facts.key
    try:
        data = checker.files.window(key, *window, version=facts.version)
    except (StokerError, OSError, ValueError) as error:
        out.problems.append(checker.problem("unreadable", key, f"{store.url_of(key)}: {error}", number))
        return None
    out.bytes += len(data)
    return data


def _disagreements(checker: Checker, outcomes: Sequence[Outcome]) -> list[Problem]:
    """Files whose columns are not those of the first one."""
    found = [(number, *outcome.spec) for number, outcome in enumerate(outcomes) if outcome.spec is not None]
    problems: list[Problem] = []
    for number, key, kinds in found[1:]:
        _, first_key, first = found[0]
        for name in {**first, **kinds}:
            one, two = first.get(name, "missing"), kinds.get(name, "missing")
            if one != two:
                url = checker.files.store.url_of
                message = (
                    f"{url(first_key)} and {url(key)} have different columns: {name!r} is {one} in the first and {two} in "
                    "the second"
                )
                problems.append(checker.problem("index", key, message, number, column=name))
                break
    return problems
