"""Parquet datasets: files with footers, no index file; a row group is a shard."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from stoker.cache.base import CacheSettings, ShardCache
from stoker.cache.open_cache import make_cache
from stoker.catalog.location import DatasetLocation, locate, origin_of
from stoker.catalog.source_args import files_asked_for, files_directory, side_places
from stoker.catalog.unindexed.found_files import FilesLocation, FoundFile, find_files, kinds_of, partitions_of
from stoker.catalog.unindexed.parquet_facts import load_facts, save_facts
from stoker.catalog.unindexed.parquet_footers import BadFile, FooterReader
from stoker.catalog.unindexed.parquet_shards import describe_row_groups
from stoker.errors import ConfigError, IndexFileError, StorageTimeoutError
from stoker.formats.parquet.footer.facts import FileFacts
from stoker.formats.parquet.footer.footer import column_names
from stoker.formats.parquet.footer.predicate import Filters, Predicate
from stoker.index.index import Index
from stoker.storage import RetryPolicy, Store, open_store
from stoker.storage.recorded_versions import version_of_files
from stoker.types import StorageOptions

__all__ = ["Files", "OnBadFiles", "index_parquet", "open_parquet"]

logger = logging.getLogger(__name__)

Files: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A directory or URL prefix, a file, a pattern, or a list of files."""

OnBadFiles: TypeAlias = Literal["error", "skip"]
"""What to do about a file that is no Parquet file or is damaged."""

_THREADS: Final = 16
_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What of the files is to be read."""

    columns: tuple[str, ...] | None
    filters: Filters | None
    hive: bool
    on_bad_files: OnBadFiles


def open_parquet(
    remote: Files | None,
    local: str | os.PathLike[str] | None = None,
    split: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    filters: Filters | None = None,
    hive: bool = True,
    on_bad_files: OnBadFiles = "error",
    settings: CacheSettings = CacheSettings(),  # noqa: B008 - frozen
    storage_options: StorageOptions | None = None,
    retry: RetryPolicy | None = None,
    stall_timeout: float = 60.0,
) -> DatasetLocation:
    """Index Parquet files from their footers, and set up the cache.

    Footers are read side by side, and what an index needs of them is kept in the cache (beside the data, where only
    ``local`` is given). The next start lists the files and reads the footers of those that are new or were written to.

    Local files are mapped where they lie, unless both ``remote`` and ``local`` are given. Of files in object stores the
    chunks of ``columns`` are fetched, into cache files of about 16 MB, each of a few row groups or one large one.

    Args:
        remote: a directory or URL prefix, with all Parquet files below it; a file; a pattern (``*``, ``**``, ``?``,
            ``[...]``); or a list of files of one bucket or of this machine.
        local: directory of the cache. Without ``remote``: a directory of Parquet files.
        split: a sub-directory of ``remote`` and ``local``.
        columns: columns to read; default all, which must then be the same in all files.
        filters: conditions ``(column, op, value)`` that must all hold, or a list of such lists of which one must hold;
            op is ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in`` or ``not in``. Row groups that can not hold a row
            that fulfils them, by the statistics in the footers, are left out. The others are left whole.
        hive: take directories ``name=value`` below the root for columns; they hide columns of the same name in files.
        on_bad_files: ``"skip"`` leaves files out that are no Parquet files or are damaged. They are logged, and listed in
            the index's ``extra["skipped_files"]``.
        settings: how the cache behaves.
        storage_options, retry, stall_timeout: see :func:`stoker.storage.open_store`.

    Raises:
        ConfigError: an argument makes no sense, or names a column that a file does not have.
        ObjectNotFoundError: there are no such files.
        CorruptDataError, FormatError: a file is damaged, or needs what is not supported; names it.
        IndexFileError: files disagree on the type of a column; names both.
        MissingPackageError: pyarrow is not installed.
    """
    if settings.validate_hash:
        raise ConfigError(
            "validate_hash: Parquet files have no hash of the whole; checksums of their pages are checked always"
        )
    if on_bad_files not in ("error", "skip"):
        raise ConfigError(f"on_bad_files={on_bad_files!r}: expected 'error' or 'skip'")
    wanted = _Wanted(None if columns is None else tuple(columns), filters, hive, on_bad_files)
    asked, cache_root = files_asked_for(remote, local, split)

    def open_root(root: str) -> Store:
        return open_store(root, storage_options, retry=retry, stall_timeout=stall_timeout)

    keep = side_places(asked.root, cache_root, storage_options, beside=remote is None)
    name = _side_name(asked, wanted)
    known = load_facts(keep, name)
    predicate = Predicate.parse(filters)
    try:
        source, store, files = find_files(asked, open_root)
        reader = FooterReader(store, wanted.columns, predicate, threads=_THREADS)
        files = reader.sized(files)
    except StorageTimeoutError as error:
        if not known:
            raise
        logger.warning("%s; going on with what was known of its files at the last start", error)
        source, store = asked, open_root(asked.root)
        reader = FooterReader(store, wanted.columns, predicate, threads=_THREADS)
        files = [FoundFile(one.key, one.size, one.version) for one in known.values()]
    constants = partitions_of(files, source.root) if hive else [()] * len(files)
    facts, skipped = _facts(reader, files, constants, known, skip_bad=on_bad_files == "skip")
    address = locate(source.root, cache_root, None, storage_options)
    directory = None if address.in_place else files_directory(address.root, source.root, storage_options)
    if facts != list(known.values()):
        if directory is not None:
            with contextlib.suppress(OSError):
                directory.make()
        save_facts(keep, store.url, name, facts)
    elif directory is not None:
        directory.hold()
    by_key = {file.key: values for file, values in zip(files, constants, strict=True)}
    kinds = _agreed(facts, wanted.columns, kinds_of(constants), store, reader)
    apart = settings.in_memory  # what row groups share with others that are read much later would be fetched for each
    shards = list(describe_row_groups(facts, by_key, kinds, in_place=address.in_place, apart=apart))
    extra = {"skipped_files": [{"key": bad.key, "problem": bad.problem} for bad in skipped]} if skipped else {}
    index = Index(shards, extra=extra, where=source.root)
    cache = make_cache(directory or address.root, None if address.in_place else store, settings, index.file_sizes)
    if not address.in_place and cache.keeps:
        _remove_replaced(cache, known, facts, index)
        with contextlib.suppress(OSError):
            cache.sweep()
    listed = version_of_files((one.key, one.size, one.version) for one in facts if len(one.rows))
    return DatasetLocation(index, cache, keep, origin=origin_of(source.root, storage_options), listed=listed)


def index_parquet(remote: Files, **options: Any) -> Index:
    """The index of Parquet files: :func:`open_parquet` without the place."""
    return open_parquet(remote, **options).index


def _facts(
    reader: FooterReader,
    files: Sequence[FoundFile],
    constants: Sequence[tuple[tuple[str, Any], ...]],
    known: Mapping[str, FileFacts],
    *,
    skip_bad: bool,
) -> tuple[list[FileFacts], list[BadFile]]:
    """Facts of all files, those that are known not read again, and the files that are left out."""
    fresh: list[FileFacts | BadFile | None] = []
    for file in files:
        one = known.get(file.key)
        fresh.append(one if one is not None and _mark(one) == file.mark else None)
    missing = [place for place, one in enumerate(fresh) if one is None]
    read = reader.read(
        [files[place] for place in missing], [dict(constants[place]) for place in missing], skip_bad=skip_bad
    )
    for place, outcome in zip(missing, read, strict=True):
        fresh[place] = outcome
    bad = [one for one in fresh if isinstance(one, BadFile)]
    if bad:
        logger.warning(
            "%d of %d Parquet files are left out, because they can not be read: %s",
            len(bad),
            len(files),
            "; ".join(f"{one.key}: {one.problem}" for one in bad[:_MOST_NAMED])
            + ("; ..." if len(bad) > _MOST_NAMED else ""),
        )
    return [one for one in fresh if isinstance(one, FileFacts)], bad


def _agreed(
    facts: Sequence[FileFacts],
    columns: tuple[str, ...] | None,
    partitions: Mapping[str, str],
    store: Store,
    reader: FooterReader,
) -> dict[str, str]:
    """Names and types of the columns to read, which are the same in all files that have rows.

    Raises:
        ConfigError: a column that was asked for is missing.
        IndexFileError: files disagree.
    """
    filled = [one for one in facts if len(one.rows)]
    seen: dict[int, dict[str, str]] = {}
    first: dict[str, str] | None = None
    for one in filled:
        kinds = seen.get(id(one.schema))
        if kinds is None:
            kinds = seen[id(one.schema)] = {column.name: column.type for column in one.schema.columns}
            for name in columns or ():
                if name not in kinds and name not in partitions:
                    there = column_names(reader.footer(FoundFile(one.key, one.size, one.version)))
                    raise ConfigError(
                        f"{store.url_of(one.key)} has no column {name!r}; it has {', '.join([*there, *partitions])}"
                    )
            first = kinds if first is None else first
            _compare(first, kinds, store.url_of(filled[0].key), store.url_of(one.key))
    chosen = {name: kind for name, kind in partitions.items() if columns is None or name in columns}
    return {**(first or {}), **chosen}


def _compare(first: Mapping[str, str], other: Mapping[str, str], one: str, two: str) -> None:
    for name in {**first, **other}:
        left, right = first.get(name, "missing"), other.get(name, "missing")
        if left != right:
            raise IndexFileError(
                f"{one} and {two} have different columns: {name!r} is {left} in the first and {right} in the second. "
                "Read only columns that agree (columns=), or write the files alike"
            )


def _mark(one: FileFacts) -> tuple[str, int, str]:
    return FoundFile(one.key, one.size, one.version).mark


def _remove_replaced(
    cache: ShardCache, known: Mapping[str, FileFacts], facts: Sequence[FileFacts], index: Index
) -> None:
    """Remove what the cache holds of files that were replaced or are gone since the last start."""
    current = {one.key: _mark(one) for one in facts}
    names: set[str] | None = None
    for key, one in known.items():
        if current.get(key) == _mark(one):
            continue
        names = set(index.file_sizes()) if names is None else names
        with contextlib.suppress(OSError):
            for path in (cache.root / key).glob("*.chunks"):
                if f"{key}/{path.name}" not in names:
                    path.unlink(missing_ok=True)


def _side_name(source: FilesLocation, wanted: _Wanted) -> str:
    """Name of the file that keeps the facts: of these files, read in this way."""
    # The second meaning of filters: by that of nulls, and of numbers that a column rounds.
    filters = repr(wanted.filters) if wanted.filters is None else f"2 {wanted.filters!r}"
    recipe = [source.root, source.pattern, source.keys, wanted.columns, filters, wanted.hive]
    return f"parquet.{hashlib.sha256(json.dumps(recipe).encode()).hexdigest()[:24]}.npz"
