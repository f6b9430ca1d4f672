"""Checks what a cache holds of a dataset against the dataset's index, and fetches again what differs."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stoker.cache.base import CacheSettings, ShardCache
from stoker.cache.directory import CacheDirectory, is_cache_directory
from stoker.cache.disk.disk_cache import make_cache
from stoker.catalog.detect import detect
from stoker.catalog.location import origin_of
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.errors import ConfigError, StokerError
from stoker.formats.base import ShardInfo
from stoker.index.index import INDEX_NAME, Index
from stoker.index.version import VersionWatch, opening_time, read_index
from stoker.inspection.checks import Checker, CheckPlan, Outcome, Problem, Task, VerifyReport, first_samples
from stoker.storage import open_store
from stoker.storage.files.own import PRIVATE, make_own_directory
from stoker.types import StorageOptions

_Group = list[tuple[int, int, ShardInfo]]
"""Shards that share their files: number, number of the first sample, and description of each."""


def verify_cache(
    url: str,
    local: str | os.PathLike[str],
    format_name: str | None,
    settings: Mapping[str, Any],
    options: StorageOptions | None,
    checker_of: Callable[[str], Checker],
    check: Callable[..., VerifyReport],
    *,
    repair: bool,
) -> VerifyReport:
    """Check what a cache holds; what it does not hold is no problem.

    ConfigError if the cache is the dataset itself, or not there.
    """
    root = Path(os.path.expanduser(local)).absolute()
    if not root.is_dir():
        raise ConfigError(f"{root} is not a directory: local= must name a cache of {url}")
    if os.path.realpath(url) == os.path.realpath(root):
        raise ConfigError(f"{root} is the dataset itself, not a cache of it: leave local= away")
    base = root.parent if is_cache_directory(root) else root
    index, cache, name = _open(url, base, format_name, settings, options)
    root = cache.root
    checker = checker_of(str(root))
    groups: dict[tuple[str, ...], _Group] = {}
    for number, (info, first) in enumerate(zip(index.shards, first_samples(index.shards), strict=True)):
        groups.setdefault(tuple(file.basename for file in info.raw), []).append((number, first, info))
    held = [
        group
        for group in groups.values()
        if any((root / file.basename).exists() for file in group[0][2].raw + group[0][2].zip)
    ]
    plan = CheckPlan(name, [Task(_size(root, group[0][2]), partial(_check, checker, root, group)) for group in held])
    known = {*index.file_sizes(), INDEX_NAME}
    names = (item.key for item in open_store(root).list())
    plan.strange = sorted(name for name in names if name not in known and PRIVATE not in name.split("/"))
    plan.notes.append(f"{sum(map(len, held))} of {len(index)} shards are in the cache; only these are checked")
    report = check(plan, checker)
    if not repair or report.ok:
        return report
    return _repaired(report, checker, cache, root, held)


def _open(
    url: str, root: Path, format_name: str | None, settings: Mapping[str, Any], options: StorageOptions | None
) -> tuple[Index, ShardCache, str | None]:
    """The dataset's index and the cache; neither is changed by it where there is an index.json."""
    opened = opening_time(url)
    name = format_name or detect(url, options).format or "mds"
    if name == "mds":  # as format= calls shards with an index.json
        store = open_store(url, options)
        loaded = read_index(store)
        index = loaded.index
        formats = ", ".join(sorted({info.format for info in index.shards}))
        origin = replace(origin_of(url, options), version=loaded.version.as_dict())
        directory = CacheDirectory(root, origin, loaded.version.text)
        directory.hold()
        watch = VersionWatch(store, loaded.version, opened)
        return index, make_cache(directory, store, CacheSettings(), index.file_sizes, watch), formats or None
    location = open_unindexed(url, name, root, options=settings, storage_options=options)
    return location.index, location.cache, name


def _check(checker: Checker, root: Path, group: _Group, out: Outcome) -> None:
    """Check shards that share their files, compressed ones that were kept, too."""
    number, _, info = group[0]
    out.shards, out.samples = len(group), sum(one.samples for _, _, one in group)
    for files in (info.raw, info.zip):
        present = [file for file in files if (root / file.basename).exists()]
        data = checker.read_files(present, number, out)
        if files is info.raw and len(present) == len(files) and data is not None:
            for shard, first, one in group:
                checker.content(one, data, files[0].basename, out, shard=shard, first=first)


def _repaired(
    report: VerifyReport, checker: Checker, cache: ShardCache, root: Path, held: Sequence[_Group]
) -> VerifyReport:
    """The report after what it names was fetched again."""
    checker.stop.clear()
    group_of = {number: group for group in held for number, _, _ in group}
    done: list[str] = []
    left: list[Problem] = []
    seen: set[int] = set()
    for problem in report.problems:
        group = group_of[problem.shard] if problem.shard is not None else []
        if not group:
            left.append(problem)
            continue
        if group[0][0] in seen:
            continue
        seen.add(group[0][0])

        def is_whole(group: _Group = group) -> list[str]:
            out = Outcome()
            _check(checker, root, group, out)
            return [problem.message for problem in out.problems]

        mended, said = fetch_again(cache, [info for _, _, info in group], is_whole)
        if mended:
            done.append(said)
            continue
        numbers = {number for number, _, _ in group}
        left += [replace(one, message=f"{one.message}; {said}") for one in report.problems if one.shard in numbers]
    return replace(report, problems=tuple(left), repaired=tuple(done))


def _size(root: Path, info: ShardInfo) -> int:
    return sum(file.bytes for file in (*info.raw, *info.zip) if (root / file.basename).exists())


def fetch_again(
    cache: ShardCache, shards: Sequence[ShardInfo], is_whole: Callable[[], Sequence[str]]
) -> tuple[bool, str]:
    """Fetch what a cache holds of some shards anew. The old files come back where that fails or helps nothing.

    ``is_whole``: checks what the cache now holds of them; what is still wrong. Gives whether they are whole now, and a
    sentence about it.
    """
    info = shards[0]
    private = cache.root / PRIVATE
    moved: list[tuple[Path, Path]] = []

    def put_back() -> None:
        for path, aside in moved:
            os.replace(aside, path)

    try:
        make_own_directory(private)
        for file in (*info.raw, *info.zip):
            path = cache.root / file.basename
            aside = private / f"{quote(file.basename, safe='')[:200]}.{secrets.token_hex(8)}.aside"
            with contextlib.suppress(FileNotFoundError):
                os.rename(path, aside)
                moved.append((path, aside))
        cache.fetch(info)
        wrong = is_whole()
    except BaseException as error:
        put_back()
        if not isinstance(error, StokerError | OSError):
            raise
        return False, f"{cache.describe(info)} could not be fetched again: {error}"
    if wrong:
        put_back()
        return False, f"{cache.describe(info)} was fetched again, and is still damaged: {wrong[0]}"
    for _, aside in moved:
        aside.unlink(missing_ok=True)
    return True, f"{cache.describe(info)} was fetched again"
