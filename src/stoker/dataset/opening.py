"""Opening a dataset by its format: shards with an index.json, or files that others wrote, as they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from stoker.dataset.cache import CacheSettings
from stoker.dataset.parquet import Files, OnBadFiles, open_parquet, parquet_address
from stoker.dataset.place import Address, Place, address_of, open_place
from stoker.errors import ConfigError
from stoker.formats.parquet.predicate import Filters
from stoker.storage import RetryPolicy
from stoker.types import StorageOptions

__all__ = ["FORMATS", "check_format", "format_address", "open_format"]

FORMATS: Final = ("parquet",)
"""Formats whose files are read without an index.json. Without any of these names there must be one."""


def check_format(
    format: str | None,  # noqa: A002 - the name that users write
    remote: Files | None,
    filters: Filters | None,
    on_bad_files: OnBadFiles,
    where: str,
) -> None:
    """See that arguments go together.

    Raises:
        ConfigError: an unknown format, or arguments that it does not have.
    """
    if format is not None and format not in FORMATS:
        raise ConfigError(
            f"{where}: format {format!r} is unknown; known: {', '.join(FORMATS)}, or none for an index.json"
        )
    if format == "parquet":
        return
    if not (remote is None or isinstance(remote, str | os.PathLike)):
        raise ConfigError(f'{where}: a list of files needs format="parquet"')
    if filters is not None or on_bad_files != "error":
        raise ConfigError(
            f'{where}: filters= and on_bad_files= go with format="parquet"; use subset=Where(...) otherwise'
        )


def format_address(
    format: str | None,  # noqa: A002
    remote: Files | None,
    local: str | os.PathLike[str] | None,
    split: str | None,
    storage_options: StorageOptions | None,
) -> Address:
    """Where the dataset lies, before anything is read."""
    if format == "parquet":
        return parquet_address(remote, local, split, storage_options)
    assert remote is None or isinstance(remote, str | os.PathLike)
    return address_of(remote, local, split, storage_options)


def open_format(
    format: str | None,  # noqa: A002
    remote: Files | None,
    local: str | os.PathLike[str] | None,
    split: str | None,
    *,
    columns: Sequence[str] | None,
    filters: Filters | None,
    on_bad_files: OnBadFiles,
    settings: CacheSettings,
    storage_options: StorageOptions | None,
    retry: RetryPolicy,
    stall_timeout: float,
) -> Place:
    """Open the dataset.

    Args:
        format: one of :data:`FORMATS`, or ``None``.
        columns: all that will be read, where that decides what is fetched.
        remote, local, split, filters, on_bad_files: see :class:`~stoker.dataset.streams.Stream`.
        settings, storage_options, retry, stall_timeout: see :func:`~stoker.dataset.place.open_place`.
    """
    if format == "parquet":
        return open_parquet(
            remote,
            local,
            split,
            columns=columns,
            filters=filters,
            on_bad_files=on_bad_files,
            settings=settings,
            storage_options=storage_options,
            retry=retry,
            stall_timeout=stall_timeout,
        )
    assert remote is None or isinstance(remote, str | os.PathLike)
    return open_place(
        remote,
        local,
        split,
        settings=settings,
        storage_options=storage_options,
        retry=retry,
        stall_timeout=stall_timeout,
    )
