"""What a hostile table says, or its catalog answers, calls no class, and names no server and no file elsewhere."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import sys
import threading
import types
import warnings
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import cramjam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import StreamingDataset
from stoker.catalog.tables.avro import plain_avro
from stoker.errors import ConfigError, CorruptDataError, StokerError

pyiceberg = pytest.importorskip("pyiceberg.catalog.sql")

HOSTILE = {
    "py-io-impl": "hostile_class.Called",
    "s3.endpoint": "http://127.0.0.1:9",
    "s3.signer": "hostile",
    "gcs.service.host": "http://127.0.0.1:9",
    "adls.account-host": "127.0.0.1:9",
    "hf.endpoint": "http://127.0.0.1:9",
    "warehouse": "s3://elsewhere",
    "write.location-provider.impl": "hostile_class.Called",
}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """With what the class was called that hostile tables and servers name."""
    calls: list[object] = []
    module = types.ModuleType("hostile_class")
    module.Called = lambda *args, **named: calls.append((args, named))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "hostile_class", module)
    return calls


class Table:
    """A table of 10 rows in a catalog of SQLite."""

    def __init__(self, root: Path) -> None:
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{root}/catalog.db",
            "warehouse": f"file://{root}/warehouse",
        }
        catalog = pyiceberg.SqlCatalog("default", **self.properties)
        catalog.create_namespace("db")
        self.made = catalog.create_table("db.table", schema=pa.schema({"x": pa.int64()}))
        self.made.append(pa.table({"x": range(10)}))

    @property
    def metadata(self) -> Path:
        return Path(self.made.metadata_location.removeprefix("file://"))

    def change(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the metadata file in its place."""
        about = json.loads(self.metadata.read_text())
        change(about)
        self.metadata.write_text(json.dumps(about))


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield Table(tmp_path)


def numbers(source: Any, **options: Any) -> list[int]:
    with StreamingDataset(source, **options) as dataset:
        return sorted(int(sample["x"]) for sample in dataset)


def test_properties_of_a_table_call_no_class_and_name_no_server(table: Table, called: list[object]) -> None:
    table.change(lambda about: about["properties"].update(HOSTILE))
    assert numbers(table.metadata) == list(range(10))
    options = {"catalog": table.properties, "table": "db.table"}
    assert numbers(table.made.location(), format="iceberg", format_options=options) == list(range(10))
    # A file system that the user has named for pyiceberg is not needed either.
    options["catalog"] = {**table.properties, "py-io-impl": "hostile_class.Called"}
    assert numbers(table.made.location(), format="iceberg", format_options=options) == list(range(10))
    assert called == []


@pytest.mark.parametrize(
    "elsewhere",
    ["http://127.0.0.1:9/a.avro", "s3://bucket/a.avro", "/etc/a.avro", "file:///etc/a.avro", "{table}/../a.avro"],
)
def test_metadata_name_no_file_elsewhere(table: Table, elsewhere: str) -> None:
    where = elsewhere.format(table=table.made.location())
    table.change(lambda about: about["snapshots"][-1].update({"manifest-list": where}))
    with pytest.raises(ConfigError, match=r"names a file elsewhere \("):
        StreamingDataset(table.metadata)


def test_data_files_elsewhere_are_read_as_the_list_that_the_error_names(table: Table, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(10, 12)}), tmp_path / "other.parquet")
    table.made.add_files([f"file://{tmp_path}/other.parquet"])
    with pytest.raises(ConfigError, match=r"other\.parquet.*list of its files"):
        StreamingDataset(table.metadata)
    files = [task.file.file_path for task in table.made.scan().plan_files()]
    assert numbers(files, format="parquet") == list(range(12))


def test_a_hint_names_no_file_elsewhere(table: Table, tmp_path: Path) -> None:
    (tmp_path / "other.metadata.json").write_bytes(table.metadata.read_bytes())
    (table.metadata.parent / "version-hint.text").write_text("../../../../other")
    with pytest.raises(ConfigError, match=r"'\.\.'"):
        StreamingDataset(table.made.location(), format="iceberg")


def test_a_table_that_links_lead_to_is_inside_of_itself(table: Table, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(table.metadata.parents[1])
    assert numbers(tmp_path / "link/metadata" / table.metadata.name) == list(range(10))
    moved = tmp_path / "moved"
    os.rename(tmp_path / "warehouse", moved)
    (tmp_path / "warehouse").symlink_to(moved)
    assert numbers(moved / table.metadata.relative_to(tmp_path / "warehouse")) == list(range(10))


def test_packed_metadata_are_read(table: Table) -> None:
    packed = table.metadata.parent / "00009-a.gz.metadata.json"
    packed.write_bytes(gzip.compress(table.metadata.read_bytes()))
    assert numbers(packed) == list(range(10))


def _number(value: int) -> bytes:
    """As Avro writes it."""
    out, value = bytearray(), value << 1
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def _text(data: bytes) -> bytes:
    return _number(len(data)) + data


def _snappy(raw: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(raw)) + zlib.crc32(raw).to_bytes(4, "big")


def _deflate(raw: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(raw) + packer.flush()


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "deflate": _deflate,
    "bzip2": bz2.compress,
    "zstandard": lambda raw: bytes(cramjam.zstd.compress(raw)),
    "snappy": _snappy,
}
SCHEMA = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "bytes"}]}


def avro(codec: str, *blocks: tuple[int, bytes], schema: Any = SCHEMA) -> bytes:
    facts = {b"avro.schema": json.dumps(schema).encode(), b"avro.codec": codec.encode()}
    out = b"Obj\1" + _number(2) + b"".join(_text(key) + _text(value) for key, value in facts.items()) + b"\0"
    return out + b"s" * 16 + b"".join(_number(n) + _text(CODECS[codec](raw)) + b"s" * 16 for n, raw in blocks)


@pytest.mark.parametrize("codec", CODECS)
def test_avro_files_are_decompressed_within_bounds(codec: str) -> None:
    blocks = [(2, _text(b"ab" * 900) + _text(b"c")), (1, _text(b""))]
    assert plain_avro(avro(codec, *blocks), "a.avro") == avro("null", *blocks)
    bomb = avro(codec, (1, bytes((32 << 20) + 1)))
    if codec not in ("null", "snappy"):  # of which a byte stands for few
        with pytest.raises(
            CorruptDataError, match=r"a\.avro: the Avro file can not be read: .*(that are allowed|at most)"
        ):
            plain_avro(bomb, "a.avro")
    damaged = avro(codec, *blocks)[:-18] + b"\0" * 18
    with pytest.raises(CorruptDataError, match=r"a\.avro: "):
        plain_avro(damaged, "a.avro")


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "fixed", "name": "f", "size": 0},
        {"type": "record", "name": "e", "fields": []},
        {"type": "null"},
    ],
)
def test_avro_values_that_take_no_bytes_are_not_counted(items: Any) -> None:
    with pytest.raises(CorruptDataError, match="claims to hold 1,152,921,504,606,846,976 records"):
        plain_avro(avro("null", (1 << 60, b"")), "a.avro")
    lists = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "x", "type": ["null", {"type": "array", "items": items}]}],
    }
    with pytest.raises(CorruptDataError, match="lists of values that take no bytes"):
        plain_avro(avro("null", (1, b"\2" + _number(1 << 60)), schema=lists), "a.avro")
    # An unpartitioned table has a record without fields, alone.
    alone = {"type": "record", "name": "r", "fields": [{"name": "x", "type": items}, {"name": "y", "type": "int"}]}
    assert plain_avro(avro("deflate", (1, b"\2"), schema=alone), "a.avro") == avro("null", (1, b"\2"), schema=alone)


def test_a_manifest_that_would_fill_memory_is_refused(table: Table) -> None:
    for manifest in table.metadata.parent.glob("*.avro"):
        if not manifest.name.startswith("snap-"):
            manifest.write_bytes(avro("deflate", (1, bytes((32 << 20) + 1))))
    with pytest.raises(CorruptDataError, match=r"metadata/.*-m0\.avro: .*than the 33,554,432 that are allowed"):
        StreamingDataset(table.metadata)


@pytest.mark.processes
def test_answers_of_a_rest_catalog_call_no_class_and_name_no_server(table: Table, called: list[object]) -> None:
    asked: list[str] = []
    answers = {
        "config": {
            "defaults": HOSTILE,
            "overrides": {
                **HOSTILE,
                "uri": "http://127.0.0.1:9",
                "oauth2-server-uri": "http://127.0.0.1:9",
                "prefix": "ours",
                "auth": {"type": "custom", "impl": "hostile_class.Called", "custom": {"args": ["/bin/true"]}},
            },
        },
        "table": {
            "metadata-location": table.made.metadata_location,
            "metadata": json.loads(table.metadata.read_text()),
            "config": HOSTILE,
            "storage-credentials": [{"prefix": "file", "config": HOSTILE}],
        },
    }

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            data = json.dumps(answers[self.path.rpartition("/")[2]]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        catalog = {"uri": f"http://127.0.0.1:{server.server_port}", "token": "secret"}
        options = {"catalog": catalog, "table": "db.table"}
        try:
            assert numbers(table.made.location(), format="iceberg", format_options=options) == list(range(10))
        finally:
            server.shutdown()
    assert asked == ["/v1/config", "/v1/ours/namespaces/db/tables/table"]
    assert called == []


@pytest.mark.parametrize(
    "elsewhere",
    [
        *("../secret.parquet", "%2E%2E/secret.parquet", "%252E%252E/secret.parquet", "a/../../secret.parquet"),
        *("{root}/secret.parquet", "file:{root}/secret.parquet", "file://{root}/secret.parquet"),
        *("%2F{root}/secret.parquet", "s3://bucket/secret.parquet", "http://127.0.0.1:9/secret.parquet"),
    ],
)
def test_a_log_of_delta_names_no_file_elsewhere(tmp_path: Path, elsewhere: str) -> None:
    deltalake = pytest.importorskip("deltalake")
    pq.write_table(pa.table({"x": [99]}), tmp_path / "secret.parquet")
    deltalake.write_deltalake(str(tmp_path / "table"), pa.table({"x": [1]}))
    (log,) = (tmp_path / "table/_delta_log").glob("*.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "add" in action:
            action["add"]["path"] = elsewhere.format(root=tmp_path)
            action["add"]["size"] = (tmp_path / "secret.parquet").stat().st_size
    log.write_text("\n".join(map(json.dumps, actions)))
    with pytest.raises(StokerError):
        StreamingDataset(tmp_path / "table", format="delta")
