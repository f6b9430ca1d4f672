"""Opening a dataset by its format: shards with an index.json, files that others wrote, as they are, or samples made up."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stoker.arguments import unknown_name
from stoker.cache.base import CacheSettings
from stoker.catalog.header_columns import index_or_headers
from stoker.catalog.location import DatasetLocation, open_indexed
from stoker.catalog.missing import split_explained
from stoker.catalog.synthetic import open_synthetic
from stoker.catalog.unindexed.files_location import Files
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.errors import ConfigError
from stoker.formats.registry import aliases, format_name, format_names
from stoker.storage import RetryPolicy
from stoker.types import StorageOptions

__all__ = ["check_format", "is_made", "open_format"]

_MADE: Final = "synthetic"
_INDEXED: Final = "mds"


def check_format(
    format: str | None,  # noqa: A002 - the name that users write
    remote: Files | None,
    options: Mapping[str, Any] | None,
    where: str,
) -> None:
    """See that arguments go together.

    Raises:
        ConfigError: an unknown format, or arguments that it does not have.
    """
    name = format_name(format)
    if name is not None and name not in format_names():
        raise ConfigError(
            f"{where}: {unknown_name('format', format, (*format_names(), *aliases()))}, or none for an index.json"
        )
    if options and name in (None, _INDEXED):
        raise ConfigError(f"{where}: format_options= go with a format= of files that are read as they are")
    if name == _MADE and remote is not None:
        raise ConfigError(f"{where}: synthetic samples have no remote=")
    if name in (None, _INDEXED) and not (remote is None or isinstance(remote, str | os.PathLike)):
        raise ConfigError(
            f'{where}: a list of files needs format="parquet", or another format of files that are read as they are'
        )


def is_made(format: str | None) -> bool:  # noqa: A002
    """Whether samples of this format lie nowhere."""
    return format == _MADE


def open_format(
    format: str | None,  # noqa: A002
    remote: Files | None,
    local: str | os.PathLike[str] | None,
    split: str | None,
    *,
    columns: Sequence[str] | None,
    options: Mapping[str, Any] | None = None,
    cache_limit: int | None = None,
    settings: CacheSettings,
    storage_options: StorageOptions | None,
    retry: RetryPolicy,
    stall_timeout: float,
) -> DatasetLocation:
    """Open the dataset.

    Args:
        format: a format's name, or ``None`` for shards with an index.json.
        columns: all that will be read, where that decides what is fetched.
        options: settings of the format.
        cache_limit: bytes that opening may put into the cache.
        remote, local, split: see :class:`~stoker.streams.streams.Stream`.
        settings, storage_options, retry, stall_timeout: see :func:`~stoker.catalog.location.open_indexed`.
    """
    name = format_name(format)
    reading: dict[str, Any] = {
        "settings": settings,
        "storage_options": storage_options,
        "retry": retry,
        "stall_timeout": stall_timeout,
    }
    with split_explained(local if remote is None else remote, split, storage_options):
        if name == _MADE:
            return open_synthetic(settings, **(options or {}))
        if name is not None and name != _INDEXED:
            return open_unindexed(
                remote, name, local, split, options=options, columns=columns, cache_limit=cache_limit, **reading
            )
        assert remote is None or isinstance(remote, str | os.PathLike)
        if name == _INDEXED:
            reading["load"] = index_or_headers
        return open_indexed(remote, local, split, **reading)
