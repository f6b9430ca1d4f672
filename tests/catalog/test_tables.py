"""Tables of Delta Lake, Iceberg and Lance, which their own packages write: the rows of a version, never of bare files."""

from __future__ import annotations

import base64
import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote

import pyarrow as pa
import pytest
from lance_tables import delete, there, write

from s3server import Bucket
from stoker import Stream, StreamingDataset, inspect, verify
from stoker.catalog.tables.marks import TableMark, table_of
from stoker.conversion import convert
from stoker.errors import ConfigError, ObjectNotFoundError, StateError, StokerError
from stoker.loaders.parquet_loader import StreamingParquetLoader
from stoker.storage import open_store

# Lance's tables are written by another process: lance_tables.py.
pytestmark = pytest.mark.processes

deltalake = pytest.importorskip("deltalake")
pyiceberg = pytest.importorskip("pyiceberg.catalog.sql")


def rows(first: int, count: int = 10) -> pa.Table:
    return pa.table({"x": range(first, first + count), "text": [f"row {i}" for i in range(first, first + count)]})


def numbers(source: Any, **options: Any) -> list[int]:
    with StreamingDataset(source, **options) as dataset:
        return sorted(int(sample["x"]) for sample in dataset)


class DeltaTables:
    """A table of Delta Lake: versions 0, 1 and 2."""

    format = "delta"

    def __init__(self, root: Path) -> None:
        self.url = str(root / "table")
        deltalake.write_deltalake(self.url, rows(0))
        deltalake.write_deltalake(self.url, rows(10), mode="append")
        deltalake.DeltaTable(self.url).delete("x < 5")

    def append(self) -> None:
        deltalake.write_deltalake(self.url, rows(20), mode="append")

    def version(self, number: int) -> dict[str, Any]:
        return {"format_options": {"version": number}}

    latest: ClassVar[dict[str, Any]] = {}


class IcebergTables:
    """A table of Iceberg in a catalog of SQLite: snapshots 0, 1 and 2."""

    format = "iceberg"

    def __init__(self, root: Path) -> None:
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{root}/catalog.db",
            "warehouse": f"file://{root}/warehouse",
        }
        self.table = self.catalog.create_table_if_not_exists("db.table", schema=rows(0).schema)
        self.url = self.table.location()
        self.snapshots: list[int] = []
        for number in (0, 10):
            self.table.append(rows(number))
            self.note()
        self.table.delete("x < 5")
        self.note()

    @property
    def catalog(self) -> Any:
        found = pyiceberg.SqlCatalog("default", **self.properties)
        found.create_namespace_if_not_exists("db")
        return found

    def note(self) -> None:
        self.snapshots.append(self.table.current_snapshot().snapshot_id)

    def append(self) -> None:
        self.table.append(rows(20))
        self.note()

    @property
    def latest(self) -> dict[str, Any]:
        return {"format_options": {"catalog": self.properties, "table": "db.table"}}

    def version(self, number: int) -> dict[str, Any]:
        return {"format_options": {**self.latest["format_options"], "snapshot_id": self.snapshots[number]}}


class LanceTables:
    """A table of Lance: versions 1, 2 and 3."""

    format = "lance"

    def __init__(self, root: Path) -> None:
        if importlib.util.find_spec("lance") is None:
            pytest.skip("pylance is not installed")
        self.url = str(root / "table")
        there(write, self.url, rows(0))
        there(write, self.url, rows(10), "append")
        there(delete, self.url, "x < 5")

    def append(self) -> None:
        there(write, self.url, rows(20), "append")

    def version(self, number: int) -> dict[str, Any]:
        return {"format_options": {"version": number + 1}}

    latest: ClassVar[dict[str, Any]] = {}


ICEBERG_S3 = {
    "endpoint": "s3.endpoint",
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "region": "s3.region",
}

Tables = DeltaTables | IcebergTables | LanceTables


@pytest.fixture(params=[DeltaTables, IcebergTables, LanceTables])
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield request.param(tmp_path)


def test_each_version_has_its_rows(table: Tables) -> None:
    assert numbers(table.url, format=table.format, **table.latest) == list(range(5, 20))
    assert numbers(table.url, format=table.format, **table.version(0)) == list(range(10))
    assert numbers(table.url, format=table.format, **table.version(1)) == list(range(20))
    table.append()
    assert numbers(table.url, format=table.format, **table.latest) == list(range(5, 30))
    assert numbers(table.url, format=table.format, **table.version(2)) == list(range(5, 20))


def test_a_table_is_never_read_as_its_bare_files(table: Tables, tmp_path: Path) -> None:
    local = table.url.removeprefix("file://")
    suffix = "lance" if table.format == "lance" else "parquet"
    inside = next(path for path in Path(local).rglob(f"*.{suffix}") if path.is_file()).parent
    sources: list[Any] = [
        local,
        f"file://{local}",
        f"{local}/**/*.{suffix}",
        str(inside),
        f"{inside}/*.{suffix}",
        f"{local}/..",
    ]
    message = rf'table of (Delta Lake|Iceberg|Lance).*format="{table.format}"'
    for source in sources:
        with pytest.raises(ConfigError, match=message):
            StreamingDataset(source, format="parquet")
        with pytest.raises(ConfigError, match=message):
            StreamingParquetLoader(source)
    for source in sources:
        with contextlib.suppress(StokerError):
            assert numbers(source) == list(range(5, 20)), "detected, or refused"
    with pytest.raises(StokerError, match=r"tables are read by|only the table's catalog knows"):
        verify(local)
    only = sorted(map(str, Path(local).rglob("*.parquet")))
    assert not only or numbers(only[:1], format="parquet"), "a list of files is read as it is given"


def test_a_directory_is_detected(table: Tables) -> None:
    if table.format != "iceberg":
        assert numbers(table.url) == list(range(5, 20))
        assert numbers(None, local=table.url) == list(range(5, 20))
    else:
        with pytest.raises(ConfigError, match=r"only the table's catalog knows.*metadata\.json"):
            StreamingDataset(table.url)


def test_a_version_is_converted_and_inspected(table: Tables, tmp_path: Path) -> None:
    how = {"format": table.format, **table.version(1)}
    convert(table.url, tmp_path / "out", to="mds", **how)
    assert numbers(tmp_path / "out") == list(range(20))
    facts = inspect(table.url, **how)
    assert (facts.samples, facts.format, [one.name for one in facts.columns]) == (20, table.format, ["x", "text"])
    assert any("of the" in note for note in facts.notes)
    if table.format != "iceberg":
        convert(table.url, tmp_path / "latest", to="mds")
        assert numbers(tmp_path / "latest") == list(range(5, 20))
        assert inspect(table.url).samples == 15
    with pytest.raises(ConfigError, match="directory or URL of a table"):
        convert([table.url, table.url], tmp_path / "two", format=table.format, to="mds")


def token_rows(first: int) -> pa.Table:
    return pa.table({"x": range(first, first + 10), "input_ids": [[i] * 8 for i in range(first, first + 10)]})


def first_tokens(source: Any, **options: Any) -> list[int]:
    with StreamingParquetLoader(source, batch_size=1, seq_len=8, **options) as loader:
        return sorted(int(batch.input_ids[0, 0]) for batch in loader)


def test_tokens_of_a_version(tmp_path: Path) -> None:
    url = str(tmp_path / "table")
    deltalake.write_deltalake(url, token_rows(0), partition_by=["x"])
    deltalake.DeltaTable(url).delete("x < 5")
    assert first_tokens(url, format="delta") == list(range(5, 10))
    assert first_tokens(url, format="delta", format_options={"version": 0}) == list(range(10))
    with pytest.raises(ConfigError, match="on_bad_files"):
        first_tokens(url, format="delta", format_options={"filters": [("x", ">", 7)]})


def test_a_state_says_which_version_it_was_taken_with(table: Tables) -> None:
    with StreamingDataset(table.url, format=table.format, **table.latest) as dataset:
        samples = iter(dataset)
        first = [int(next(samples)["x"]) for _ in range(7)]
        state = json.loads(json.dumps(dataset.state_dict()))
    expected = sorted(set(range(5, 20)) - set(first))
    table.append()
    with (
        StreamingDataset(table.url, format=table.format, **table.latest) as dataset,
        pytest.raises(
            StateError, match=r"was taken with (version [23]|snapshot \d+) of.*and this is (version [34]|snapshot)"
        ),
    ):
        dataset.load_state_dict(state)
    with StreamingDataset(table.url, format=table.format, **table.version(2)) as dataset:
        dataset.load_state_dict(state)
        assert sorted(int(sample["x"]) for sample in dataset) == expected


def test_columns_streams_and_filters(table: Tables) -> None:
    with StreamingDataset(table.url, format=table.format, columns=["text"], **table.latest) as dataset:
        assert set(dataset[0]) == {"text"}
    options = {**table.latest.get("format_options", {}), "filters": [("x", ">", 1000)]}
    if table.format == "lance":
        with pytest.raises(ConfigError, match="filters"):
            StreamingDataset(table.url, format=table.format, format_options=options)
    else:
        with StreamingDataset(table.url, format=table.format, format_options=options) as dataset:
            assert dataset.size == 0
    streams = [Stream(table.url, format=table.format, **table.version(number)) for number in (0, 1)]
    with StreamingDataset(streams=streams) as dataset:
        assert dataset.size == 30


def test_arguments_that_make_no_sense(table: Tables, tmp_path: Path) -> None:
    for options in ({"split": "train"}, {"format_options": {"nope": 1}}, {"format_options": {"hive": True}}):
        with pytest.raises(ConfigError):
            StreamingDataset(table.url, format=table.format, **options)
    with pytest.raises(ConfigError):
        StreamingDataset([table.url], format=table.format)
    with pytest.raises(ObjectNotFoundError):
        StreamingDataset(tmp_path / "nothing", format=table.format)
    wrong: Any = {"delta": {"version": "one"}, "iceberg": {"snapshot_id": "one"}, "lance": {"version": 0}}[table.format]
    with pytest.raises(ConfigError, match="a number"):
        StreamingDataset(table.url, format=table.format, format_options=wrong)


def test_files_that_were_vacuumed_are_named(table: Tables) -> None:
    if table.format == "lance":
        pytest.skip("its files are first read with its rows")
    for file in Path(table.url.removeprefix("file://")).rglob("*.parquet"):
        file.unlink()
    with pytest.raises(ObjectNotFoundError, match=r"names it, in (version 2|snapshot).*VACUUM"):
        StreamingDataset(table.url, format=table.format, **table.latest)


def test_a_version_that_there_is_not(table: Tables) -> None:
    options = {
        **table.latest.get("format_options", {}),
        **({"snapshot_id": 9} if table.format == "iceberg" else {"version": 9}),
    }
    with pytest.raises(StokerError, match="9"):
        StreamingDataset(table.url, format=table.format, format_options=options)


# -- Delta Lake --------------------------------------------------------------------------------------------------------


def test_partitions_of_a_delta_table_are_columns(tmp_path: Path) -> None:
    url = str(tmp_path / "table")
    data = pa.table(
        {"x": [0, 1, 2, 3], "kind": ["a", "b c", "50%/d", None], "year": pa.array([2024, 2025, None, 2024], pa.int32())}
    )
    deltalake.write_deltalake(url, data, partition_by=["kind", "year"])
    with StreamingDataset(url) as dataset:
        got = sorted((int(one["x"]), one["kind"], one["year"]) for one in dataset)
    assert got == [(0, "a", 2024), (1, "b c", 2025), (2, "50%/d", None), (3, None, 2024)]
    partition = next(Path(url).glob("kind=a/year=2024"))
    with pytest.raises(ConfigError, match=r"table of Delta Lake.*format=\"delta\""):
        StreamingDataset(partition)


@pytest.mark.s3
def test_a_delta_table_on_s3(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    local = tmp_path / "table"
    data = pa.table({"x": range(20), "kind": ["a", "b"] * 10})
    deltalake.write_deltalake(str(local), data, partition_by=["kind"])
    deltalake.DeltaTable(str(local)).delete("x < 5")
    client = bucket.server.client()
    for path in local.rglob("*"):
        if path.is_file():
            client.upload_file(str(path), bucket.name, f"t/{path.relative_to(local)}")
    options = bucket.storage_options
    assert numbers(f"{bucket.url}/t", storage_options=options) == list(range(5, 20))
    assert numbers(f"{bucket.url}/t", format="delta", format_options={"version": 0}, storage_options=options) == list(
        range(20)
    )
    for source in (f"{bucket.url}/t", f"{bucket.url}/t/kind=a", f"{bucket.url}/t/kind=a/*.parquet"):
        with pytest.raises(ConfigError, match="table of Delta Lake"):
            StreamingDataset(source, format="parquet", storage_options=options)
    with pytest.raises(ConfigError, match="table of Delta Lake"):
        StreamingDataset(f"{bucket.url}/t/kind=a", storage_options=options)
    with pytest.raises(ObjectNotFoundError):
        StreamingDataset(f"{bucket.url}/nope", format="delta", storage_options=options)


@pytest.mark.s3
def test_an_iceberg_table_on_s3(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    options = bucket.storage_options
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"{bucket.url}/warehouse"}
    given = {name: options[key] for key, name in ICEBERG_S3.items() if key in options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = pyiceberg.SqlCatalog("default", **catalog, **given)
        made.create_namespace("db")
        table = made.create_table("db.table", schema=token_rows(0).schema)
        for first in (0, 10):
            table.append(token_rows(first))
        whole = table.current_snapshot().snapshot_id
        table.delete("x < 5")
        store, metadata = open_store(table.location(), options), f"metadata/{os.path.basename(table.metadata_location)}"
        about = json.loads(store.get(metadata, max_bytes=1 << 20))
        about["properties"]["s3.endpoint"] = "http://127.0.0.1:9"  # for requests that the user's keys sign
        store.put(metadata, json.dumps(about).encode())
        how: dict[str, Any] = {"format": "iceberg", "storage_options": options}
        latest = {"catalog": catalog, "table": "db.table"}
        # Metadata are read with storage_options, whatever the catalog and the table say.
        assert numbers(table.location(), format_options=latest, **how) == list(range(5, 20))
        assert numbers(table.metadata_location, **how) == list(range(5, 20))
        assert numbers(table.metadata_location, format_options={"snapshot_id": whole}, **how) == list(range(20))
        assert first_tokens(table.metadata_location, **how) == list(range(5, 20))
        with pytest.raises(ConfigError, match="table of Iceberg"):
            StreamingDataset(f"{table.location()}/data", format="parquet", storage_options=options)
        convert(table.metadata_location, tmp_path / "out", to="mds", **how)
    assert numbers(tmp_path / "out") == list(range(5, 20))


def _commit(url: str, number: int, *actions: dict[str, Any]) -> None:
    path = Path(url) / "_delta_log" / f"{number:020}.json"
    path.write_text("\n".join(map(json.dumps, actions)))


def _adds(url: str, number: int) -> list[dict[str, Any]]:
    lines = (Path(url) / "_delta_log" / f"{number:020}.json").read_text().splitlines()
    return [action["add"] for action in map(json.loads, lines) if "add" in action]


def _vectors(*features: str) -> dict[str, Any]:
    return {
        "protocol": {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": list(features),
            "writerFeatures": list(features),
        }
    }


_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def test_deletion_vectors_are_refused_and_a_table_that_only_may_have_them_is_read(tmp_path: Path) -> None:
    url = str(tmp_path / "table")
    deltalake.write_deltalake(url, rows(0))
    _commit(url, 1, _vectors("deletionVectors"))
    assert numbers(url) == list(range(10))
    add = _adds(url, 0)[0]
    bitmap = importlib.import_module("pyroaring").BitMap([3, 4]).serialize()
    data = struct.pack("<IQI", 1681511377, 1, 0) + bitmap
    data += bytes(-len(data) % 4)
    text = base64.b85encode(data).decode().translate(str.maketrans(_B85, _Z85))
    vector = {"storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": 2}
    _commit(url, 2, {"remove": {"path": add["path"], "dataChange": True}}, {"add": {**add, "deletionVector": vector}})
    with pytest.raises(
        ConfigError, match=r"rows of 1 of the Delta table's files are deleted by deletion vectors.*PURGE"
    ):
        StreamingDataset(url)
    assert numbers(url, format="delta", format_options={"version": 1}) == list(range(10))


@pytest.mark.parametrize("parts", ["none", "before", "with"])
def test_deletion_vectors_are_counted_by_the_log_and_not_opened(
    tmp_path: Path, parts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(_: Any) -> None:
        raise AssertionError("the vectors were opened")

    monkeypatch.setattr(deltalake.DeltaTable, "deletion_vectors", opened)
    url = str(tmp_path / "table")
    deltalake.write_deltalake(url, rows(0))
    add = _adds(url, 0)[0]
    _commit(url, 1, _vectors("deletionVectors"))
    if parts == "before":
        deltalake.DeltaTable(url).create_checkpoint()
    vector = {
        "storageType": "p",
        "pathOrInlineDv": "file:///etc/passwd",
        "offset": 1,
        "sizeInBytes": 40,
        "cardinality": 2,
    }
    marked = {**add, "deletionVector": vector}
    _commit(url, 2, {"remove": {"path": add["path"], "dataChange": True}}, {"add": marked})
    if parts == "with":
        deltalake.DeltaTable(url).create_checkpoint()
        (Path(url) / "_delta_log" / f"{0:020}.json").unlink()
    for version in (2, 3):
        with pytest.raises(ConfigError, match="rows of 1 of the Delta table's files are deleted by deletion vectors"):
            StreamingDataset(url)
        if version == 2:
            _commit(url, 3, {"commitInfo": {"operation": "NOTHING"}})
    # As a purge does it.
    _commit(url, 4, {"remove": {"path": add["path"], "dataChange": True, "deletionVector": vector}}, {"add": add})
    assert numbers(url) == list(range(10))
    deltalake.DeltaTable(url).create_checkpoint()
    assert numbers(url) == list(range(10))


def test_features_that_files_alone_do_not_tell_are_refused(tmp_path: Path) -> None:
    for number, (feature, error) in enumerate([("rowsFromTheMoon", StokerError), ("columnMapping", ConfigError)]):
        url = str(tmp_path / str(number))
        deltalake.write_deltalake(url, rows(0))
        found = json.loads((Path(url) / "_delta_log" / f"{0:020}.json").read_text().splitlines()[2])
        if "metaData" not in found:
            lines = (Path(url) / "_delta_log" / f"{0:020}.json").read_text().splitlines()
            found = next(json.loads(line) for line in lines if "metaData" in line)
        schema = json.loads(found["metaData"]["schemaString"])
        for place, one in enumerate(schema["fields"]):
            one["metadata"] = {"delta.columnMapping.id": place + 1, "delta.columnMapping.physicalName": f"col-{place}"}
        found["metaData"]["schemaString"] = json.dumps(schema)
        found["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"} if number else {}
        _commit(url, 1, _vectors(feature), found)
        with pytest.raises(error, match=feature):
            StreamingDataset(url)


def test_a_shallow_clone_is_refused(tmp_path: Path) -> None:
    url = str(tmp_path / "table")
    deltalake.write_deltalake(url, rows(0))
    add = _adds(url, 0)[0]
    elsewhere = tmp_path / "elsewhere.parquet"
    shutil.copy(Path(url) / unquote(add["path"]), elsewhere)
    _commit(url, 1, {"add": {**add, "path": f"file://{elsewhere}"}})
    with pytest.raises(StokerError, match=r"elsewhere"):
        StreamingDataset(url)


def test_a_column_that_older_files_lack_is_named(tmp_path: Path) -> None:
    url = str(tmp_path / "table")
    deltalake.write_deltalake(url, rows(0))
    wider = rows(10).append_column("more", pa.array([1] * 10))
    deltalake.write_deltalake(url, wider, mode="append", schema_mode="merge")
    with pytest.raises(ConfigError, match="more"):
        StreamingDataset(url)
    assert numbers(url, columns=["x"]) == list(range(20))


# -- Iceberg -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def iceberg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield IcebergTables(tmp_path)


def test_a_metadata_file_and_a_hint_name_the_current_one(iceberg: IcebergTables) -> None:
    metadata = iceberg.table.metadata_location
    assert numbers(metadata, format="iceberg") == list(range(5, 20))
    assert numbers(metadata, format="iceberg", format_options={"snapshot_id": iceberg.snapshots[0]}) == list(range(10))
    folder = Path(iceberg.url.removeprefix("file://")) / "metadata"
    (folder / "version-hint.text").write_text(os.path.basename(metadata).removesuffix(".metadata.json"))
    assert numbers(iceberg.url) == list(range(5, 20))


def test_the_catalog_must_mean_the_table_that_is_named(iceberg: IcebergTables, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the catalog says"):
        StreamingDataset(tmp_path / "other", format="iceberg", **iceberg.latest)
    with pytest.raises(ConfigError, match="go together"):
        StreamingDataset(iceberg.url, format="iceberg", format_options={"table": "db.table"})


@pytest.mark.parametrize("change", ["add", "drop"])
def test_columns_whose_fields_changed_are_refused(iceberg: IcebergTables, change: str) -> None:
    from pyiceberg.types import LongType

    kept = {"a": 1} if change == "add" else {"a": 1, "b": 2}
    data = pa.table({"s": [kept]})
    table = iceberg.catalog.create_table("db.fields", schema=data.schema)
    table.append(data)
    with table.update_schema(allow_incompatible_changes=True) as update:
        if change == "add":
            update.add_column(("s", "b"), LongType())
        else:
            update.delete_column("s.b")
    options = {"catalog": iceberg.properties, "table": "db.fields"}
    with pytest.raises(ConfigError, match=r"field 's\.b' .* added or dropped inside its column"):
        StreamingDataset(table.location(), format="iceberg", format_options=options)


def test_a_delta_table_partitioned_by_bytes_is_refused(tmp_path: Path) -> None:
    data = pa.table({"x": [0, 1], "k": pa.array([b"a\xff", b"b"])})
    deltalake.write_deltalake(str(tmp_path / "t"), data, partition_by=["k"])
    with pytest.raises(ConfigError, match="partitioned by 'k', a column of bytes"):
        StreamingDataset(str(tmp_path / "t"))


@pytest.mark.parametrize("change", ["rename", "drop and add"])
def test_columns_whose_names_changed_are_refused(iceberg: IcebergTables, change: str) -> None:
    with iceberg.table.update_schema(allow_incompatible_changes=True) as update:
        if change == "rename":
            update.rename_column("text", "words")
        else:
            update.delete_column("text")
    if change != "rename":
        from pyiceberg.types import StringType

        with iceberg.table.update_schema() as update:
            update.add_column("text", StringType())
    with pytest.raises(ConfigError, match="renamed, or added after another"):
        StreamingDataset(iceberg.url, format="iceberg", **iceberg.latest)


def test_a_column_that_was_dropped_does_not_come_back(iceberg: IcebergTables) -> None:
    with iceberg.table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("text")
    with StreamingDataset(iceberg.url, format="iceberg", **iceberg.latest) as dataset:
        assert set(dataset[0]) == {"x"}


@pytest.mark.parametrize("content", ["POSITION_DELETES", "EQUALITY_DELETES"])
def test_delete_files_are_refused(iceberg: IcebergTables, content: str) -> None:
    """A snapshot with a delete file, as Spark and Flink write them: made by pyiceberg's own writers of manifests."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    task = next(iter(iceberg.table.scan().plan_files()))
    path = f"{iceberg.url}/data/delete-0.parquet"
    deletes = pa.table({"file_path": [task.file.file_path], "pos": pa.array([0], pa.int64())})
    import pyarrow.parquet as pq

    pq.write_table(deletes, path.removeprefix("file://"))
    made = DataFile.from_args(
        content=DataFileContent[content],
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=task.file.partition,
        record_count=1,
        file_size_in_bytes=os.path.getsize(path.removeprefix("file://")),
        equality_ids=[1] if content.startswith("EQ") else None,
    )
    made.spec_id = 0
    _append_delete(iceberg.table, made)
    with pytest.raises(StokerError, match=r"(?i)delete files|equality deletes"):
        StreamingDataset(iceberg.url, format="iceberg", **iceberg.latest)
    assert numbers(iceberg.url, format="iceberg", **iceberg.version(2)) == list(range(5, 20))


def _append_delete(table: Any, made: Any) -> None:
    from pyiceberg.manifest import ManifestContent, ManifestWriterV2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ManifestWriterV2, "content", lambda self: ManifestContent.DELETES)
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
            update.append_data_file(made)


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        (["a.parquet", "_delta_log/00000000000000000000.json"], TableMark("delta", "")),
        (["x/y/_delta_log/_last_checkpoint"], TableMark("delta", "x/y")),
        (["t/metadata/00000-a.metadata.json"], TableMark("iceberg", "t")),
        (["metadata/v3.metadata.json.gz"], TableMark("iceberg", "")),
        ([".hoodie/hoodie.properties"], TableMark("hudi", "")),
        (["t.lance/_versions/1.manifest"], TableMark("lance", "t.lance")),
        (["metadata/a.json", "my_delta_log/x", "metadata.json", "_versions/x.txt", "a.metadata.json"], None),
    ],
)
def test_marks_of_tables(keys: list[str], found: TableMark | None) -> None:
    assert table_of(keys) == found


def test_tables_that_are_not_read_are_named(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(rows(0), tmp_path / "a.parquet")
    (tmp_path / ".hoodie").mkdir()
    (tmp_path / ".hoodie/hoodie.properties").write_bytes(b"x")
    calls: list[Callable[[], object]] = [
        lambda: StreamingDataset(tmp_path),
        lambda: StreamingDataset(tmp_path, format="parquet"),
    ]
    for call in calls:
        with pytest.raises(StokerError, match=r"table of Hudi.*is not read here"):
            call()


def test_a_file_of_metadata_is_a_table_and_no_json(tmp_path: Path) -> None:
    tables = IcebergTables(tmp_path)
    metadata = tables.table.metadata_location.removeprefix("file://")
    assert numbers(metadata) == numbers(metadata, format="iceberg")


def test_a_version_or_a_directory_of_delta_that_is_not_there_names_what_is(tmp_path: Path) -> None:
    table = DeltaTables(tmp_path)
    with pytest.raises(StokerError, match=r"log of version 9 \(the latest is 2\)"):
        StreamingDataset(table.url, format="delta", format_options={"version": 9})
    with pytest.raises(ObjectNotFoundError, match="did you mean 'table'"):
        StreamingDataset(tmp_path / "tabel", format="delta")
