"""Lance: the fragments of a version as shards, by the package ``lance``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from stoker.arguments import must_know
from stoker.cache.base import CacheSettings
from stoker.cache.disk.disk_cache import DiskCache
from stoker.catalog.location import DatasetLocation, default_cache, origin_of
from stoker.errors import ConfigError, ObjectNotFoundError
from stoker.formats.base import ShardInfo
from stoker.formats.common.inspect_header import only_settings
from stoker.formats.lance import NAME, LanceSpan, LanceTable
from stoker.formats.lance_connection import LanceFacts
from stoker.index.index import Index
from stoker.storage import RetryPolicy
from stoker.storage.remote.options import flat_options, milliseconds
from stoker.storage.url import parse_url
from stoker.types import StorageOptions

SETTINGS: Final = ("version",)
"""Settings of ``format="lance"``."""

# A span is about so many bytes of a fragment's files, and there are no more spans in all.
_SPAN_BYTES: Final = 16 << 20
_MOST_SPANS: Final = 1 << 18
# Lance's own number.
_MOST_RETRIES: Final = 3
# Rows of a span of a fragment whose files have no sizes in the table's log.
_SPAN_ROWS: Final = 8192


def open_lance(
    given: object,
    options: Mapping[str, Any] | None,
    columns: Sequence[str] | None,
    *,
    settings: CacheSettings,
    storage_options: StorageOptions | None,
    retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
    stall_timeout: float = 60.0,
) -> DatasetLocation:
    """Open a version of a table.

    Args:
        options: ``version``, a number or the name of a tag; without it the latest.
        columns: to read; default all.
        settings: of the cache, in which nothing of the table is kept.

    Raises:
        ConfigError: the arguments make no sense, or columns have types whose values are not read.
        ObjectNotFoundError: there is no such table or version, or it has no rows.
        MissingPackageError: ``lance`` is not installed.
    """
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(
            f"format={NAME!r} takes the directory or URL of a table, without split=; see subset= for its rows"
        )
    for option, asked in (("validate_hash", settings.validate_hash), ("cache_limit", settings.limit)):
        if asked:
            raise ConfigError(f"{option}= is for files in a cache, and format={NAME!r} keeps no copies: leave it out")
    table = find_lance(os.fspath(given), options, storage_options, retry, stall_timeout)
    facts = table.facts
    kinds = {field.name: str(field.type) for field in table.schema}
    must_know("column", columns or (), kinds, f"{table.url}: ")
    for name in kinds if columns is None else columns:
        if name in facts.unread:
            raise ConfigError(
                f"{table.url}: values of column {name!r} are not read: {facts.unread[name]}. Choose other columns by "
                "columns=, or write the column again as one of Arrow's own types"
            )
    chosen = kinds if columns is None else {name: kind for name, kind in kinds.items() if name in set(columns)}
    shards = list(_spans(table, {"columns": chosen}))
    said = f"version {facts.version} of the Lance table"
    if not shards:
        raise ObjectNotFoundError(f"{table.url}: {said} has no rows", url=table.url)
    root = default_cache(table.url, storage_options)
    return DatasetLocation(
        Index(shards, where=table.url),
        DiskCache(root, None, settings),
        (root,),
        facts.mark,
        origin_of(given, storage_options),
        listed=facts.mark,
        snapshot=f'{said} (format_options={{"version": {facts.version}}})',
    )


def find_lance(
    url: str,
    options: Mapping[str, Any] | None,
    storage_options: StorageOptions | None,
    retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
    stall_timeout: float = 60.0,
) -> LanceTable:
    """The version of a table that options name.

    ConfigError if the options make no sense. ObjectNotFoundError if there is no such table or version.
    """
    only_settings(options or {}, SETTINGS, NAME)
    version = (options or {}).get("version")
    number = isinstance(version, int) and not isinstance(version, bool) and version > 0
    if version is not None and not number and not (isinstance(version, str) and version):
        raise ConfigError(f"format {NAME!r}: version={version!r}: a number from 1 on, a tag, or none for the latest")
    location = parse_url(url)
    if location.kind not in ("file", "s3", "gs", "azure"):
        raise ConfigError(f"{location.url}: tables of Lance are read from directories, s3://, gs:// and az://")
    # Of its own Lance would wait for many minutes on a server that is silent: it does all of this several times.
    limits = {
        "timeout": milliseconds(stall_timeout / 2),
        "client_max_retries": str(_MOST_RETRIES if retry.patience else 0),
    }
    flat = flat_options(location, storage_options or {})
    return LanceTable.find(location.url, version, {**limits, **flat} if flat else flat)


def stored_bytes(facts: LanceFacts) -> int:
    """Bytes of all fragments' data files."""
    return sum(fragment.bytes for fragment in facts.fragments)


def _spans(table: LanceTable, spec: Mapping[str, Any]) -> Iterator[ShardInfo]:
    """The shards: spans of about equal numbers of rows of each fragment."""
    target = max(_SPAN_BYTES, stored_bytes(table.facts) // _MOST_SPANS)
    number = 0
    for one in table.facts.fragments:
        count = -(-one.bytes // target) if one.bytes else -(-one.rows // _SPAN_ROWS)
        count = max(1, min(count, one.rows))
        for turn in range(count if one.rows else 0):
            first, end = one.rows * turn // count, one.rows * (turn + 1) // count
            span = LanceSpan(
                one.bytes * (end - first) // one.rows, f"{one.identity}\0{first}", table, one.id, first, number + first
            )
            yield ShardInfo(NAME, end - first, (), (), None, spec, span)
        number += one.rows
