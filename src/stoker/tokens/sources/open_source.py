"""Opens the source of tokens that a caller gives."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from stoker.cache.base import CacheSettings
from stoker.cache.open_cache import check_memory
from stoker.catalog.unindexed.files_location import Files, source_of
from stoker.catalog.unindexed.find_files import find_files
from stoker.catalog.unindexed.inspect_headers import BadFile, HeaderReader
from stoker.catalog.unindexed.open_files import OnBadFiles, open_unindexed, unindexed_format
from stoker.concurrency.shared.counters import Counts
from stoker.display import with_article
from stoker.errors import ConfigError
from stoker.formats.parquet.facts import TOKEN_COLUMNS
from stoker.storage import open_store
from stoker.tokens.sources.parquet import ParquetSource
from stoker.tokens.sources.source import MegatronSource, TokenSource
from stoker.types import StorageOptions

# Files whose columns are looked at, where the first ones have none.
_MOST_LOOKED_AT: Final = 64


def open_source(
    source: Files | TokenSource,
    column: str | None,
    local: str | os.PathLike[str] | None,
    storage_options: StorageOptions | None,
    on_bad_files: OnBadFiles,
    cache_limit: int | None,
    *,
    in_memory: bool = False,
    fetch_threads: int | None = None,
    counts: Counts | None = None,
    salvage: bool = False,
) -> TokenSource:
    """Parquet files, Megatron's, or a source as it is; arguments as those of the loader."""
    only_parquet = {"column": column, "local": local, "storage_options": storage_options, "cache_limit": cache_limit}
    given = next((name for name, value in only_parquet.items() if value is not None), "cache" if in_memory else None)
    if not isinstance(source, str | os.PathLike | list | tuple):
        if not hasattr(source, "chunks"):
            raise ConfigError(f"source is {with_article(type(source).__name__)}: expected files, or a TokenSource")
        _check_none(given, type(source).__name__)
        return source  # type: ignore[return-value]
    folder = Path(source) if isinstance(source, str | os.PathLike) and "://" not in os.fspath(source) else None
    if folder is not None and folder.is_dir():
        _refuse_arrays(folder)
    names = [os.fspath(one) for one in ([source] if isinstance(source, str | os.PathLike) else source)]
    if names and all(name.endswith((".bin", ".idx")) for name in names):
        for name in names:
            if not os.path.exists(f"{name[:-4]}.idx"):
                raise ConfigError(
                    f"{name} has no {name[:-4]}.idx next to it, so it is not Megatron's. If it is one array of tokens, pass "
                    "RawSource(path, dtype, row_tokens=seq_len)"
                )
        _check_none(given, "Megatron's files")
        return MegatronSource(names)
    check_memory(in_memory, source, local)
    if column is None:
        column = _find_column(source, storage_options, skip_bad=on_bad_files == "skip")
    location = open_unindexed(
        source,
        "parquet",
        local,
        options={"hive": False, "on_bad_files": on_bad_files},
        columns=(column,),
        settings=CacheSettings(limit=cache_limit, in_memory=in_memory),
        storage_options=storage_options,
    )
    return ParquetSource(location, column, counts, fetch_threads, salvage=salvage)


def _refuse_arrays(folder: Path) -> None:
    """See that a directory is none of token files that are no Parquet."""
    files = sorted(entry.name for entry in os.scandir(folder))
    first = next((name for name in files if name.endswith(".bin")), None)
    if first is None or any(name.endswith((".parquet", ".parq", ".pq")) for name in files):
        return
    if f"{first[:-4]}.idx" in files:
        raise ConfigError(f"{folder} holds Megatron's files: pass MegatronSource({str(folder)!r}), or their paths")
    raise ConfigError(
        f"{folder} holds {first} without an .idx. If such files are one array of tokens each, pass "
        f"RawSource({str(folder / first)!r}, dtype, row_tokens=seq_len)"
    )


def _check_none(given: str | None, what: str) -> None:
    """See that no argument is given that only Parquet files have."""
    if given is not None:
        raise ConfigError(
            f"{given}= is for Parquet files, and has no meaning for {what}, which is read as it is: leave it out"
        )


def _find_column(given: Files, storage_options: StorageOptions | None, *, skip_bad: bool) -> str:
    """Name of the token column, by the schema of the first file that has rows."""
    reader = unindexed_format("parquet")
    found = find_files(source_of(given), lambda root: open_store(root, storage_options), reader)
    headers = HeaderReader(reader, found.store, {})
    for file in found.files[:_MOST_LOOKED_AT]:
        one = headers.read(file, skip_bad=skip_bad)
        if isinstance(one, BadFile) or not one.samples:
            continue
        columns: Mapping[str, str] = one.spec["columns"]
        name = next((name for name in TOKEN_COLUMNS if name in columns), None)
        if name is None:
            described = ", ".join(f"{name} ({kind})" for name, kind in columns.items())
            raise ConfigError(
                f"{found.store.url_of(file.key)}: there is no token column: none is called {' or '.join(TOKEN_COLUMNS)}; "
                f"there is {described}. Name it (column=), or make tokens of text with `stoker tokenize`"
            )
        return name
    raise ConfigError(
        f"{found.source.root}: there are no tokens: none of the first {len(found.files[:_MOST_LOOKED_AT])} files has rows"
    )
