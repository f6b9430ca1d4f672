"""Opens the source of tokens that a caller gives."""

from __future__ import annotations

import os

from stoker.catalog.unindexed.files_location import Files
from stoker.catalog.unindexed.open_files import OnBadFiles
from stoker.concurrency.shared_counters import Counts
from stoker.errors import ConfigError
from stoker.tokens.sources.parquet import open_files
from stoker.tokens.sources.source import MegatronSource, TokenSource
from stoker.types import StorageOptions


def open_source(
    source: Files | TokenSource,
    column: str | None,
    local: str | os.PathLike[str] | None,
    storage_options: StorageOptions | None,
    on_bad_files: OnBadFiles,
    cache_limit: int | None,
    *,
    in_memory: bool = False,
    counts: Counts | None = None,
) -> TokenSource:
    """Parquet files, Megatron's, or a source as it is; arguments as those of the loader.

    Raises:
        ConfigError: it is none of these.
    """
    if not isinstance(source, str | os.PathLike | list | tuple):
        if not hasattr(source, "chunks"):
            raise ConfigError(f"source is a {type(source).__name__}: expected files, or a TokenSource")
        return source  # type: ignore[return-value]
    names = [os.fspath(one) for one in ([source] if isinstance(source, str | os.PathLike) else source)]
    if names and all(name.endswith((".bin", ".idx")) for name in names):
        for name in names:
            if not os.path.exists(f"{name[:-4]}.idx"):
                raise ConfigError(
                    f"{name} has no {name[:-4]}.idx next to it, so it is not Megatron's. If it is one array of tokens, pass "
                    "RawSource(path, dtype, row_tokens=seq_len)"
                )
        return MegatronSource(names)
    return open_files(
        source,
        column,
        local=local,
        storage_options=storage_options,
        on_bad_files=on_bad_files,
        cache_limit=cache_limit,
        in_memory=in_memory,
        counts=counts,
    )
