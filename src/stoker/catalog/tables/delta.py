"""Delta Lake: the files of a version, by the package ``deltalake``."""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from stoker.catalog.tables.marks import TableSnapshot
from stoker.catalog.unindexed.files_location import FilesLocation, check_exists
from stoker.catalog.unindexed.inspect_headers import StoreSource
from stoker.errors import ConfigError, CorruptDataError, FormatError, ObjectNotFoundError, StorageError, import_option
from stoker.formats.common.inspect_header import Partition
from stoker.formats.parquet.footer import read_footer
from stoker.formats.parquet.parse import parse_footer
from stoker.formats.parquet.schema import leaves_below
from stoker.index.index import MOST_BYTES
from stoker.storage import ObjectInfo, Store, is_local, open_store
from stoker.storage.remote.options import flat_options
from stoker.storage.url import parse_url
from stoker.types import StorageOptions

SETTINGS: Final = ("version",)
"""Settings of ``format="delta"``."""

# Features of tables with which data files are read as they are, or that are looked at below.
_FEATURES: Final = frozenset(
    ["appendOnly", "columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"]
)
_WHOLE: Final = frozenset(["byte", "short", "integer", "long"])
_CHECKPOINT: Final = re.compile(r"_delta_log/(?P<version>[0-9]{20})\.checkpoint(?:\.[^/]+)?\.(?:parquet|json)")
_PARTS: Final = re.compile(r"\.[0-9]{10}\.([0-9]{10})\.parquet$")
_SIDECARS: Final = "_delta_log/_sidecars/"
# Numbers of a column chunk's fields: its values, and those of them that are null.
_VALUES, _NULLS = 2, 7


def delta_snapshot(url: str, options: Mapping[str, Any], storage_options: StorageOptions | None) -> TableSnapshot:
    """The files of a version of a table.

    ConfigError if the table deletes rows by deletion vectors, or has other features with which its files alone do not tell
    the rows; says what to do. ObjectNotFoundError if there is no such table or version, or it has no files.
    MissingPackageError if ``deltalake`` is not installed. ``options``: ``version``, a number; without it the latest.
    """
    deltalake = import_option("deltalake", "tables of Delta Lake need the package deltalake", "stoker[delta]")
    version = options.get("version")
    if version is not None and (not isinstance(version, int) or isinstance(version, bool) or version < 0):
        raise ConfigError(f"format 'delta': version={version!r}: a number from 0 on, or none for the latest")
    location = parse_url(url)
    if location.kind not in ("file", "s3", "gs", "azure"):
        raise ConfigError(f"{location.url}: tables of Delta Lake are read from directories, s3://, gs:// and az://")
    check_exists(url)
    store_options = flat_options(location, storage_options or {})
    try:
        table = deltalake.DeltaTable(location.url, version=version, storage_options=store_options)
        _refuse_features(table, location.url, storage_options)
        found = table.get_add_actions(flatten=False)
        adds = [
            dict(zip(("path", "partition"), row, strict=True))
            for row in zip(_values(found, "path"), _values(found, "partition"), strict=True)
        ]
        names = [field.name for field in table.schema().fields]
        kinds = {field.name: getattr(field.type, "type", "") for field in table.schema().fields}
    except deltalake.exceptions.TableNotFoundError as error:
        said = " ".join(str(error).split())
        raise ObjectNotFoundError(
            f"{location.url}: this is not a Delta Lake table ({said})", url=location.url
        ) from None
    except (deltalake.exceptions.DeltaError, OSError) as error:
        if isinstance(error, StorageError):
            raise
        told = "" if version is None else f" of version {version}"
        if version is not None:
            with contextlib.suppress(deltalake.exceptions.DeltaError, OSError):
                latest = deltalake.DeltaTable(location.url, storage_options=store_options).version()
                told += f" (the latest is {latest})"
        raise StorageError(
            f"{location.url}: the log{told} can not be read: {' '.join(str(error).split())}", url=location.url
        ) from None
    number = table.version()
    said = f"version {number} of the Delta table"
    partitions: dict[str, Partition] = {}
    for add in adds:
        key = unquote(add["path"])
        if "://" in key or key.startswith("/"):
            raise ConfigError(
                f"{location.url}: {said} has files elsewhere ({key}), as shallow clones do: make a deep clone of it"
            )
        values = add["partition"] or {}
        if found := next((name for name, value in values.items() if isinstance(value, bytes)), None):
            raise ConfigError(
                f"{location.url}: {said} is partitioned by {found!r}, a column of bytes, whose values the log holds as text: "
                "write the table again, partitioned by a column of text or of numbers"
            )
        partitions[key] = tuple((name, _value(values[name], kinds.get(name, ""))) for name in values)
    if not partitions:
        raise ObjectNotFoundError(
            f"{location.url}: {said} has no data files: write rows first, or name another one by version= in format_options=",
            url=location.url,
        )
    root = str(is_local(location.url) or location.url)
    return TableSnapshot(
        FilesLocation(root, keys=tuple(sorted(partitions))), tuple(names), said, f'{{"version": {number}}}', partitions
    )


def _refuse_features(table: Any, url: str, options: StorageOptions | None) -> None:
    """See that the data files hold the rows of the table, and no others."""
    features = set(table.protocol().reader_features or ())
    if unknown := sorted(features - _FEATURES):
        raise FormatError(f"{url}: the Delta table has features that are not read: {', '.join(unknown)}")
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        raise ConfigError(
            f"{url}: the Delta table maps its columns to other names in the files (columnMapping), which is not read: write "
            "the table again without column mapping"
        )
    if "deletionVectors" in features and (count := _count_vectors(url, options, table.version())):
        raise ConfigError(
            f"{url}: rows of {count} of the Delta table's files are deleted by deletion vectors, which is not read. Rewrite "
            "these files first: REORG TABLE ... APPLY (PURGE) in Spark"
        )


def _count_vectors(url: str, options: StorageOptions | None, version: int) -> int:
    """The number of a version's files with deletion vectors, by the log alone: to tell, deltalake would open the vectors."""
    store = open_store(url, None if is_local(url) is not None else options)
    checkpoints: defaultdict[int, list[ObjectInfo]] = defaultdict(list)
    sidecars: list[ObjectInfo] = []
    for item in store.list("_delta_log"):
        if (match := _CHECKPOINT.fullmatch(item.key)) and int(match["version"]) <= version:
            checkpoints[int(match["version"])].append(item)
        elif item.key.startswith(_SIDECARS):
            sidecars.append(item)
    whole = [number for number, parts in checkpoints.items() if all(map(partial(_is_of, len(parts)), parts))]
    last = max(whole, default=-1)
    used = checkpoints[last]
    if any(_PARTS.search(item.key) is None and item.key.count(".") > 2 for item in used):  # of version 2
        used = used + sidecars
    count = sum(_in_checkpoint(store, item) for item in used if item.key.endswith(".parquet"))
    texts = [item.key for item in used if item.key.endswith(".json")]
    active: set[str] = set()
    for key in [*texts, *(f"_delta_log/{number:020}.json" for number in range(last + 1, version + 1))]:
        for line in store.get(key, max_bytes=MOST_BYTES).splitlines():
            try:
                action = json.loads(line)
                told = action.get("add") or action.get("remove") or {}
                vector = told.get("deletionVector")
                name = json.dumps([told["path"], vector], sort_keys=True) if vector else ""
            except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
                raise CorruptDataError(f"{store.url_of(key)}: a line is not an action of the log: {error}") from None
            if not vector:
                continue
            if action.get("add"):
                active.add(name)
            elif name in active:
                active.remove(name)
            else:  # one that the checkpoint has
                count -= 1
    return count + len(active)


def _is_of(parts: int, item: ObjectInfo) -> bool:
    """Return whether a checkpoint file is one of ``parts`` files by its name, or its name has no number of parts."""
    told = _PARTS.search(item.key)
    return told is None or int(told[1]) == parts


def _in_checkpoint(store: Store, item: ObjectInfo) -> int:
    """The number of files with deletion vectors in a checkpoint: the values of a column that are not null."""
    where = store.url_of(item.key)
    found = parse_footer(read_footer(StoreSource(store, item.key, item.size, where)))
    leaves = [element.name for element in found.schema[1:] if not element.children]
    added = leaves_below(found.schema, {"add"})
    kinds = [number for number, name in enumerate(leaves) if name == "storageType" and number in added]
    return sum(
        group.chunks[number][_VALUES] - max(0, group.chunks[number][_NULLS])
        for group in found.groups
        for number in kinds
    )


def _values(table: Any, name: str) -> list[Any]:
    """A column of an Arrow table as Python's values; ``None`` for all where there is no such column."""
    if name not in table.schema.names:
        return [None] * table.num_rows
    return [value.as_py() for value in table.column(name)]


def _value(value: Any, kind: str) -> int | str | None:
    """A partition's value: a number for a column of whole numbers, else text, as in the names of folders."""
    if value is None or isinstance(value, str):
        return value
    if kind in _WHOLE:
        return int(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
