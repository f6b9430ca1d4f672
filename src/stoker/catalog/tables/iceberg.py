"""Iceberg: the files of a snapshot, by the package ``pyiceberg``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stoker.catalog.tables.snapshot import TableSnapshot
from stoker.catalog.unindexed.files_location import source_of
from stoker.errors import ConfigError, ObjectNotFoundError, StokerError, StorageError, import_option
from stoker.storage import join_url, open_store
from stoker.storage.remote.options import flat_options
from stoker.storage.url import parse_url
from stoker.types import StorageOptions

SETTINGS: Final = ("catalog", "snapshot_id", "table")
"""Settings of ``format="iceberg"``."""

_METADATA: Final = ".metadata.json"
_HINT: Final = "metadata/version-hint.text"
_S3: Final = {
    "endpoint": "s3.endpoint",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "region": "s3.region",
}


def iceberg_snapshot(url: str, options: Mapping[str, Any], storage_options: StorageOptions | None) -> TableSnapshot:
    """The files of a snapshot of a table.

    Args:
        url: directory or URL of the table, or one of its ``.metadata.json`` files.
        options: ``catalog``, the name of a catalog or a mapping of its properties, and ``table``, the table's name in it:
            needed for a directory without a ``version-hint.text``, as only the catalog knows which metadata file is current.
            ``snapshot_id``, a number; without it the current one.
        storage_options: as :func:`stoker.storage.open_store` has them.

    Raises:
        ConfigError: the options do not tell which metadata is current, or the snapshot has rows that delete files delete, or
            columns that were renamed; says what to do.
        ObjectNotFoundError: there is no such table or snapshot, or it has no files.
        MissingPackageError: ``pyiceberg`` is not installed.
    """
    import_option("pyiceberg.table", "tables of Iceberg need the package pyiceberg", "stoker[iceberg]")
    wanted = options.get("snapshot_id")
    if wanted is not None and (not isinstance(wanted, int) or isinstance(wanted, bool)):
        raise ConfigError(f"format 'iceberg': snapshot_id={wanted!r}: a number, or none for the current snapshot")
    where = parse_url(url).url
    try:
        table = _load(where, options, storage_options)
        snapshot = table.current_snapshot() if wanted is None else table.snapshot_by_id(wanted)
        if snapshot is None:
            there = ", ".join(str(one.snapshot_id) for one in table.metadata.snapshots[-5:]) or "none"
            raise ObjectNotFoundError(
                f"{where}: the table has no snapshot {'yet' if wanted is None else wanted}; its last are {there}",
                url=where,
            )
        scan = table.scan(snapshot_id=wanted)  # of the current one, with the columns of now
        schema = scan.projection()
        tasks = list(scan.plan_files())
    except StokerError:
        raise
    except Exception as error:  # pyiceberg raises many types, and those of its file systems and catalogs
        raise StorageError(f"{where}: the table can not be read: {type(error).__name__}: {error}", url=where) from error
    said = f"snapshot {snapshot.snapshot_id} of the Iceberg table"
    _refuse_changed_names(table.metadata.schemas, schema, where)
    deleted = sum(bool(task.delete_files) for task in tasks)
    if deleted:
        raise ConfigError(
            f"{where}: rows of {deleted} files of {said} are deleted by delete files, which is not read. Rewrite these files "
            "first: CALL system.rewrite_data_files(...) in Spark"
        )
    others = sorted({str(task.file.file_format.value) for task in tasks} - {"PARQUET"})
    if others:
        raise ConfigError(f"{where}: {said} has files of {', '.join(others)}; only Parquet is read")
    if not tasks:
        raise ObjectNotFoundError(
            f"{where}: {said} has no data files: write rows first, or name another one by snapshot_id= in format_options=",
            url=where,
        )
    files = source_of(sorted(task.file.file_path.removeprefix("file://") for task in tasks))
    columns = tuple(field.name for field in schema.fields)
    return TableSnapshot(files, columns, said, f'{{"snapshot_id": {snapshot.snapshot_id}}}')


def _load(where: str, options: Mapping[str, Any], storage_options: StorageOptions | None) -> Any:
    """The table as pyiceberg has it."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.table import StaticTable

    location = parse_url(where)
    flat = flat_options(location, storage_options or {})
    properties = {_S3[name]: value for name, value in flat.items() if name in _S3}
    catalog, name = options.get("catalog"), options.get("table")
    if (catalog is None) != (name is None):
        raise ConfigError("format 'iceberg': catalog= and table= go together")
    if catalog is not None:
        named = {} if isinstance(catalog, str) else dict(catalog)
        found = load_catalog(catalog if isinstance(catalog, str) else None, **{**properties, **named}).load_table(
            str(name)
        )
        there = parse_url(found.location()).url
        if where.rstrip("/") not in (there, parse_url(found.metadata_location).url):
            raise ConfigError(
                f"{where}: the catalog says that the table {name!r} is at {there}: name that, or another table"
            )
        return found
    if where.endswith(_METADATA):
        return StaticTable.from_metadata(where, properties)
    store = open_store(where, storage_options if location.kind != "file" else None)
    if store.exists(_HINT):
        return StaticTable.from_metadata(where, properties)
    versions = sorted(item.key for item in store.list("metadata") if item.key.endswith(_METADATA))
    if not versions:
        raise ObjectNotFoundError(f"{where}: no table of Iceberg is there: it has no metadata/*{_METADATA}", url=where)
    raise ConfigError(
        f"{where}: only the table's catalog knows which of its {len(versions)} metadata files is current: give "
        'format_options={"catalog": {"type": "sql", "uri": ...}, "table": "namespace.name"}, or name a metadata file, as '
        f'StreamingDataset({join_url(where, versions[-1])!r}, format="iceberg")'
    )


def _refuse_changed_names(schemas: Any, current: Any, where: str) -> None:
    """See that columns have the names and fields in old files that they have now: files are read by names.

    Raises:
        ConfigError: one was renamed, or made anew under the name of one that was dropped, or has other fields inside.
    """
    from pyiceberg.schema import index_name_by_id

    now = index_name_by_id(current)
    ids = {name: number for number, name in now.items()}
    columns = {field.name for field in current.fields}
    earlier = [(schema, index_name_by_id(schema)) for schema in schemas]
    for _, before in earlier:
        for number, name in before.items():
            if now.get(number, name) != name or ids.get(name, number) != number:
                raise ConfigError(
                    f"{where}: the column {now.get(number, name)!r} of the Iceberg table was renamed, or made anew after one "
                    f"of its name was dropped, and files may have {name!r} for other values: write the table anew"
                )
    for schema, before in earlier:
        kept = columns & {field.name for field in schema.fields}
        for name in sorted(ids.keys() ^ set(before.values())):
            if "." in name and name.partition(".")[0] in kept:
                raise ConfigError(
                    f"{where}: the field {name!r} of the Iceberg table was added or dropped inside its column, and files "
                    "have the column as it was when they were written: write the table anew"
                )
