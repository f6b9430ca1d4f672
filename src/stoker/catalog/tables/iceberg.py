"""Iceberg: the files of a snapshot, by the package ``pyiceberg``."""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, cast

from stoker.catalog.tables.avro import MAGIC, plain_avro
from stoker.catalog.tables.marks import TableSnapshot
from stoker.catalog.unindexed.files_location import source_of
from stoker.display import redact_url
from stoker.errors import ConfigError, ObjectNotFoundError, StokerError, StorageError, import_option
from stoker.index.index import MOST_BYTES
from stoker.storage import is_local, join_url, open_store
from stoker.storage.url import parse_url
from stoker.types import StorageOptions

SETTINGS: Final = ("catalog", "snapshot_id", "table")
"""Settings of ``format="iceberg"``."""

_METADATA: Final = ".metadata.json"
_HINT: Final = "metadata/version-hint.text"
_PACKED: Final = ".gz.metadata.json"
_LONGEST_HINT: Final = 4096
_LOCAL: Final = re.compile("^file:/+")
_FILES: Final = "stoker.files"
# What a REST catalog may answer: how its paths are spelled.
_ANSWERED: Final = ("namespace-separator", "prefix")


def iceberg_snapshot(url: str, options: Mapping[str, Any], storage_options: StorageOptions | None) -> TableSnapshot:
    """The files of a snapshot of a table.

    Args:
        url: directory or URL of the table, or one of its ``.metadata.json`` files.
        options: ``catalog``, the name of a catalog or a mapping of its properties, and ``table``, the table's name in it:
            needed for a directory without a ``version-hint.text``, as only the catalog knows which metadata file is current.
            ``snapshot_id``, a number; without it the current one.

    Raises:
        ConfigError: the options do not tell which metadata is current, or the snapshot has rows that delete files delete,
            columns that were renamed, or files outside of the table's directory; says what to do.
        ObjectNotFoundError: there is no such table or snapshot, or it has no files.
        MissingPackageError: ``pyiceberg`` is not installed.
    """
    import_option("pyiceberg.table", "tables of Iceberg need the package pyiceberg", "stoker[iceberg]")
    wanted = options.get("snapshot_id")
    if wanted is not None and (not isinstance(wanted, int) or isinstance(wanted, bool)):
        raise ConfigError(f"format 'iceberg': snapshot_id={wanted!r}: a number, or none for the current snapshot")
    where = parse_url(url).url
    try:
        files = TableFiles(_root(where), storage_options)
        table = _load(files, where, options)
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
    paths = source_of(sorted(join_url(files.root, files.key_of(task.file.file_path)) for task in tasks))
    columns = tuple(field.name for field in schema.fields)
    return TableSnapshot(paths, columns, said, f'{{"snapshot_id": {snapshot.snapshot_id}}}')


def files_of(properties: Mapping[str, Any]) -> TableFiles:
    """The file system that pyiceberg finds by the property ``py-io-impl``: see :func:`_load`."""
    files = properties[_FILES]
    assert isinstance(files, TableFiles)
    return files


class TableFiles:
    """The files of a table, as pyiceberg reads them: by stoker's own store, and from the table's own directory alone.

    It is pyiceberg's ``FileIO`` as far as that reads. Pyiceberg's own ones take their class, endpoints, proxies and
    credentials from the properties of the table and from what a catalog answers.
    """

    properties: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, root: str, storage_options: StorageOptions | None) -> None:
        self._local = is_local(root) is not None
        self.root = root
        self.store = open_store(root, None if self._local else storage_options)

    def key_of(self, location: str) -> str:
        """The key below the root of a file that metadata name."""
        # Names of local files are not quoted in metadata, as they are in URLs.
        found, below = parse_url(_LOCAL.sub("/", location)).url, f"{self.root.rstrip('/')}/"
        if self._local and not found.startswith(below):  # by another name: links lead to it
            found, below = os.path.realpath(found), f"{os.path.realpath(self.root).rstrip('/')}/"
        if not found.startswith(below):
            raise ConfigError(
                f"{self.root}: the Iceberg table names a file elsewhere ({redact_url(location)}), and only those below its "
                "own directory are read. If you trust it, give the list of its files instead: [task.file.file_path for task "
                "in table.scan().plan_files()], by pyiceberg"
            )
        return found.removeprefix(below)

    def new_input(self, location: str) -> _TableFile:
        """A file to read; pyiceberg's name."""
        return _TableFile(location, self.store.get(self.key_of(location), max_bytes=MOST_BYTES))


class _TableFile:
    """Pyiceberg's ``InputFile``."""

    def __init__(self, location: str, data: bytes) -> None:
        if location.endswith(_PACKED):
            location = location.removesuffix(_PACKED) + _METADATA
            data = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data, MOST_BYTES)
        elif data.startswith(MAGIC):
            data = plain_avro(data, redact_url(location))
        self.location = location
        self._data = data

    def open(self) -> io.BytesIO:
        return io.BytesIO(self._data)


def _load(files: TableFiles, where: str, options: Mapping[str, Any]) -> Any:
    """The table as pyiceberg has it, with no other file system than ``files``."""
    from pyiceberg.catalog.noop import NoopCatalog
    from pyiceberg.serializers import FromInputFile
    from pyiceberg.table import StaticTable

    catalog, name = options.get("catalog"), options.get("table")
    if (catalog is None) != (name is None):
        raise ConfigError("format 'iceberg': catalog= and table= go together")
    if catalog is not None:
        asked = _open_catalog(catalog)
        # Some catalogs read metadata by what their own properties say, and all make a table's file system by this method,
        # from the table's properties and the catalog's answer.
        asked.properties = {**asked.properties, "py-io-impl": f"{__name__}.{files_of.__name__}", _FILES: files}
        asked._load_file_io = lambda *_, **__: files
        try:
            found = asked.load_table(str(name))
        except ConfigError as error:  # its metadata are elsewhere
            raise ConfigError(
                f"{where}: the catalog says that the table {name!r} is elsewhere: name its place, or another table. {error}"
            ) from None
        there = parse_url(found.location()).url
        if where.rstrip("/") not in (there, parse_url(found.metadata_location).url):
            raise ConfigError(
                f"{where}: the catalog says that the table {name!r} is at {there}: name that, or another table"
            )
        return found
    current = where if where.endswith(_METADATA) else _hinted(files)
    metadata = FromInputFile.table_metadata(cast("Any", files.new_input(current)))
    return StaticTable(("table", where), metadata, current, cast("Any", files), NoopCatalog("table"))


def _root(where: str) -> str:
    """The directory of a table, from that itself or a metadata file of it."""
    if not where.endswith(_METADATA):
        return where
    return where.rpartition("/")[0].removesuffix("/metadata")


def _hinted(files: TableFiles) -> str:
    """The metadata file that ``version-hint.text`` names."""
    if files.store.exists(_HINT):
        hint = files.store.get(_HINT, max_bytes=_LONGEST_HINT).decode()
        name = hint if hint.endswith(_METADATA) else f"{'v' * hint.isnumeric()}{hint}{_METADATA}"
        return join_url(files.root, "metadata", name)
    versions = sorted(item.key for item in files.store.list("metadata") if item.key.endswith(_METADATA))
    if not versions:
        raise ObjectNotFoundError(
            f"{files.root}: this is not an Iceberg table: it has no metadata/*{_METADATA}", url=files.root
        )
    raise ConfigError(
        f"{files.root}: only the table's catalog knows which of its {len(versions)} metadata files is current: give "
        'format_options={"catalog": {"type": "sql", "uri": ...}, "table": "namespace.name"}, or name a metadata file, as '
        f'StreamingDataset({join_url(files.root, versions[-1])!r}, format="iceberg")'
    )


def _open_catalog(catalog: str | Mapping[str, Any]) -> Any:
    """A catalog, by its name in the user's configuration or by its properties."""
    from pyiceberg.catalog import infer_catalog_type, load_catalog
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.utils.config import Config, merge_config

    class OwnRest(RestCatalog):
        """One that keeps the user's properties: a server may answer others, also what class signs requests, and where."""

        def _fetch_config(self) -> None:
            own, uri = self.properties, self.uri
            super()._fetch_config()
            answered = {key: value for key, value in self.properties.items() if key in _ANSWERED}
            self.properties, self.uri = {**answered, **own}, uri

    known = Config()
    name = catalog if isinstance(catalog, str) else known.get_default_catalog_name()
    properties: dict[str, Any] = {} if isinstance(catalog, str) else dict(catalog)
    merged: dict[str, Any] = merge_config(known.get_catalog_config(name) or {}, properties)
    if "py-catalog-impl" not in properties:
        kind = merged.get("type") or infer_catalog_type(name, merged)
        if str(getattr(kind, "value", kind)).lower() == "rest":
            return OwnRest(name, **merged)
    return load_catalog(name, **properties)


def _refuse_changed_names(schemas: Any, current: Any, where: str) -> None:
    """See that columns have the names and fields in old files that they have now: files are read by names."""
    from pyiceberg.schema import index_name_by_id

    now = index_name_by_id(current)
    ids = {name: number for number, name in now.items()}
    columns = {field.name for field in current.fields}
    earlier = [(schema, index_name_by_id(schema)) for schema in schemas]
    for _, before in earlier:
        for number, name in before.items():
            if now.get(number, name) != name or ids.get(name, number) != number:
                raise ConfigError(
                    f"{where}: the column {now.get(number, name)!r} of the Iceberg table was renamed, or added after another "
                    f"of that name was dropped, so that {name!r} may hold other values in old files: write the table again"
                )
    for schema, before in earlier:
        kept = columns & {field.name for field in schema.fields}
        for name in sorted(ids.keys() ^ set(before.values())):
            if "." in name and name.partition(".")[0] in kept:
                raise ConfigError(
                    f"{where}: the field {name!r} of the Iceberg table was added or dropped inside its column, and files "
                    "still have the column as it was when they were written: write the table again"
                )
