"""Opens a version of a table as a dataset: of the files that its log names, and of no others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from stoker.catalog.location import DatasetLocation
from stoker.catalog.tables.delta import SETTINGS as DELTA_SETTINGS
from stoker.catalog.tables.delta import delta_snapshot
from stoker.catalog.tables.iceberg import SETTINGS as ICEBERG_SETTINGS
from stoker.catalog.tables.iceberg import iceberg_snapshot
from stoker.catalog.tables.lance import open_lance
from stoker.catalog.tables.marks import TableSnapshot
from stoker.catalog.unindexed.files_location import Files
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.errors import ConfigError, ObjectNotFoundError
from stoker.formats.common.inspect_header import only_settings
from stoker.formats.lance import NAME as LANCE
from stoker.formats.registry import get_format
from stoker.types import StorageOptions

_FILES: Final = "parquet"
_KINDS: Final[Mapping[str, tuple[tuple[str, ...], Callable[..., TableSnapshot]]]] = {
    "delta": (DELTA_SETTINGS, delta_snapshot),
    "iceberg": (ICEBERG_SETTINGS, iceberg_snapshot),
}


def open_table(
    name: str,
    remote: Files | None,
    local: str | os.PathLike[str] | None,
    split: str | None,
    *,
    options: Mapping[str, Any] | None,
    columns: Sequence[str] | None,
    storage_options: StorageOptions | None,
    **reading: Any,
) -> DatasetLocation:
    """Open a version of a table.

    Args:
        name: ``delta``, ``iceberg`` or ``lance``.
        local: directory of the cache; without ``remote`` that of the table.
        split: must be ``None``: a table has none.
        columns: to read; default all of the table.
        **reading: as :func:`~stoker.catalog.unindexed.open_files.open_unindexed` has them.

    Raises:
        ConfigError: the arguments make no sense, or the files alone do not tell the table's rows.
        ObjectNotFoundError: there is no such table or version, or files of it were removed since.
    """
    given = local if remote is None else remote
    if name == LANCE:
        if remote is not None and local is not None:
            raise ConfigError(
                f"format={name!r}: rows are read from the table itself and kept nowhere: leave out local="
            )
        reading.pop("cache_limit", None)  # what opening may fetch, and it fetches nothing
        return open_lance(
            given if split is None else None, options, columns, storage_options=storage_options, **reading
        )
    table, chosen = find_version(name, given if split is None else None, options, storage_options)
    assert isinstance(given, str | os.PathLike)
    try:
        location = open_unindexed(
            table.files,
            _FILES,
            None if remote is None else local,
            options=chosen,
            columns=table.columns if columns is None else columns,
            partitions=table.partitions,
            storage_options=storage_options,
            **reading,
        )
    except ObjectNotFoundError as error:
        raise ObjectNotFoundError(
            f"{error}. The log of {os.fspath(given)} names it, in {table.version}: were files of this version removed, as by "
            "VACUUM? Choose a later one",
            url=error.url,
        ) from error
    return replace(location, snapshot=table.told)


def find_version(
    name: str, given: object, options: Mapping[str, Any] | None, storage_options: StorageOptions | None
) -> tuple[TableSnapshot, dict[str, Any]]:
    """The files of a version of a table, and the settings of Parquet with which they are read.

    ConfigError if the arguments make no sense, or the files alone do not tell the table's rows. ObjectNotFoundError if there
    is no such table or version. ``name``: ``delta`` or ``iceberg``.
    """
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(
            f"format={name!r} takes the directory or URL of a table, no list of files. A StreamingDataset takes it without "
            "split=; see its subset= for rows"
        )
    settings, find = _KINDS[name]
    chosen = dict(options or {})
    parquet = [one for one in get_format(_FILES).settings if one != "hive"]
    only_settings({key: one for key, one in chosen.items() if key != "on_bad_files"}, (*settings, *parquet), name)
    which = {key: chosen.pop(key) for key in settings if key in chosen}
    return find(os.fspath(given), which, storage_options), {**chosen, "hive": False}
