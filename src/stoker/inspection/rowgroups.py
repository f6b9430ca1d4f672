"""What to check of Parquet files: each footer, and with ``deep`` every page of every row group."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from functools import partial
from itertools import groupby

from stoker.dataset.excerpts import fetch_part
from stoker.dataset.parquet_files import FoundFile, Source, find_files
from stoker.dataset.parquet_footers import BadFile, FooterReader
from stoker.dataset.parquet_shards import describe_row_groups
from stoker.errors import FormatError, StokerError
from stoker.formats.base import FilePart, ShardInfo
from stoker.formats.parquet.facts import FileFacts
from stoker.inspection.checks import Checker, Outcome, Plan, Task
from stoker.inspection.problems import Problem
from stoker.storage import is_local
from stoker.types import Buffer

__all__ = ["plan_parquet"]


def plan_parquet(checker: Checker, source: Source, threads: int) -> Plan:
    """What to check. Footers are read when their file's turn comes.

    Raises:
        ObjectNotFoundError: there are no Parquet files.
    """
    store = checker.files.store
    footers = FooterReader(store, None, None, threads=threads)
    _, _, files = find_files(source, lambda _: store)
    files = footers.sized(files)
    plan = Plan("parquet", [])
    if checker.level != "deep":
        plan.notes.append("of Parquet files the footers are checked; deep checks and decodes every page")
    plan.tasks = [
        Task(file.size if checker.deep else 0, partial(_check, checker, footers, number, file))
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
    if not checker.deep:
        return
    in_place = is_local(checker.files.store.url) is not None
    try:
        groups = list(describe_row_groups([facts], {file.key: ()}, kinds, in_place=in_place))
    except FormatError as error:
        out.problems.append(checker.problem("structure", file.key, f"{where}: {error}", number))
        return
    _check_groups(checker, number, facts, groups, out)


def _check_groups(checker: Checker, number: int, facts: FileFacts, groups: Sequence[ShardInfo], out: Outcome) -> None:
    first = 0
    for file, together in groupby(groups, key=lambda info: info.raw[0]):
        if checker.stop.is_set():
            return
        assert file.part is not None  # as all that describe_row_groups makes
        data = _part(checker, file.part, number, out)
        for info in together:
            if data is not None:
                checker.content(info, [data], facts.key, out, shard=number, before=first)
            first += info.samples


def _part(checker: Checker, part: FilePart, number: int, out: Outcome) -> Buffer | None:
    store = checker.files.store
    try:
        directory = is_local(store.url)
        if directory is None:
            data = checker.files.fetched(lambda path: fetch_part(store, part, path))
        else:
            first, end = part.window
            descriptor = os.open(directory / part.key, os.O_RDONLY | os.O_CLOEXEC)
            try:
                size = end - first
                data = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ, offset=first) if size else b""
            finally:
                os.close(descriptor)
    except (StokerError, OSError, ValueError) as error:
        out.problems.append(checker.problem("unreadable", part.key, f"{store.url_of(part.key)}: {error}", number))
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
