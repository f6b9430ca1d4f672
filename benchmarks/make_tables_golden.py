"""Write ``tests/formats/golden/tables.json``: small files of Spark, fastparquet, arrow-rs and JavaScript libraries.

Wants Java, node, and an environment of its own::

    python3 -m venv x && x/bin/pip install pyspark fastparquet arro3-io pyarrow
    npm install --prefix x/js hyparquet-writer @dsnp/parquetjs parquetjs apache-arrow
    x/bin/python benchmarks/make_tables_golden.py x/js

Of Spark's, the values that it was given are kept, too; those of the others are pyarrow's.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import arro3.io
import fastparquet
import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[1]
ROWS = range(24)
_PAGES = {"parquet.page.size": 256, "parquet.page.row.count.limit": 5, "parquet.block.row.count.limit": 9}
_V2 = {"parquet.writer.version": "PARQUET_2_0"}
_PLAIN = {"parquet.enable.dictionary": "false"}
_SPLIT = {"parquet.enable.bytestreamsplit": "true"}
_TYPES = """
    truth boolean, byte byte, short short, int int, long long, float float, double double, d4 decimal(4,1),
    d9 decimal(9,2), d18 decimal(18,4), d20 decimal(20,0), d38 decimal(38,10), text string, bytes binary, date date,
    time timestamp_ntz, span interval day to second, list array<int>, lists array<array<string>>, map map<string, bigint>,
    lists_by_key map<int, array<double>>, struct struct<a: int, b: struct<c: array<string>, d: decimal(18,2)>>,
    structs array<struct<x: int, y: string>>, dates array<date>, decimals array<decimal(38,3)>, blobs array<binary>
"""
_TIMES = ["9999-12-31 23:59:59.999999", None, "0001-01-01 00:00:00", "2020-02-29 01:02:03", "1582-10-15 00:00:00",
          "1582-10-04 12:00:00", "1969-12-31 23:59:59.999999", "1900-01-01 00:00:00", "1200-02-29 00:00:00"]  # fmt: skip


def some(make: Callable[[int], Any], each: int) -> list[Any]:
    """A value for each row, and null in each so many."""
    return [None if row % each == each - 1 else make(row) for row in ROWS]


def lists(make: Callable[[int, int], Any], each: int) -> list[Any]:
    """Lists of up to 3 values, some of them null."""
    return some(lambda row: [None if item == 1 else make(row, item) for item in range(row % 4)], each)


def decimal(number: int, scale: int) -> Decimal:
    """A fraction of so many digits."""
    return Decimal(number).scaleb(-scale)


def spark_columns() -> dict[str, list[Any]]:
    """Values of the columns of ``_TYPES``."""
    deep = some(lambda row: decimal(row, 2), 2)
    return {
        "truth": some(lambda row: row % 3 == 0, 4),
        "byte": some(lambda row: row * 7 % 256 - 128, 5),
        "short": some(lambda row: row * 1000 - 12000, 3),
        "int": some(lambda row: row - 2**31, 6),
        "long": some(lambda row: 2**63 - 1 - row, 7),
        "float": some(lambda row: [0.5, -0.0, math.inf, 1.25][row % 4], 6),
        "double": some(lambda row: [1e300 * row, -math.inf, -0.0, 0.1][row % 4], 7),
        "d4": some(lambda row: decimal(row, 1), 3),
        "d9": some(lambda row: Decimal("-1234567.89") + row, 4),
        "d18": some(lambda row: Decimal("99999999999999.9999") - row, 5),
        "d20": some(lambda row: Decimal(10**19 + row), 4),
        "d38": some(lambda row: Decimal(f"-{row}234567890123456789012345.0123456789"), 3),
        "text": some(lambda row: f"ø {row}{'é' * (row % 4)}", 5),
        "bytes": some(lambda row: bytearray([row, 255, 0] * (row % 3)), 4),
        "date": some(lambda row: dt.date(1970, 1, 1) + dt.timedelta(row * 400 - 5000), 5),
        "time": some(lambda row: dt.datetime(1900, 1, 1) + row * dt.timedelta(1000, 1, 1), 4),
        "span": some(lambda row: dt.timedelta(row - 5, microseconds=row), 4),
        "list": lists(lambda row, item: row * item, 6),
        "lists": lists(lambda row, item: [f"{item}", None][: row % 3], 7),
        "map": some(lambda row: {f"k{key}": None if key == 1 else key for key in range(row % 3)}, 5),
        "lists_by_key": some(lambda row: {key: [1.5 * key, None] for key in range(row % 3)}, 4),
        "struct": some(
            lambda row: {"a": row, "b": None if row % 5 == 0 else {"c": [f"{row}", None], "d": deep[row]}}, 4
        ),
        "structs": lists(lambda row, item: {"x": item, "y": f"y{row}"}, 6),
        "dates": lists(lambda _, item: dt.date(2000, 1, 1 + item), 4),
        "decimals": lists(lambda row, item: decimal(row - item, 3), 5),
        "blobs": lists(lambda _, item: bytearray([255] * item), 4),
    }


def plain(value: Any) -> Any:
    """What a value of Spark's is as stoker's: maps are pairs, bytes fixed."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    return bytes(value) if isinstance(value, bytearray) else value


def spark_files(files: dict[str, Path], values: dict[str, dict[str, list[str]]], out: Path) -> None:
    """Files of Spark; the values of their columns, by the first words of their cases."""
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    zone = builder.config("spark.sql.session.timeZone", "UTC")
    spark = zone.config("spark.driver.extraJavaOptions", "-Duser.timezone=UTC").getOrCreate()
    columns = spark_columns()
    frame = spark.createDataFrame([*zip(*columns.values(), strict=True)], _TYPES)
    given = {name: [describe(name, value) for value in held] for name, held in columns.items()}

    values["Spark"] = given

    def save(case: str, frame: DataFrame, **options: Any) -> None:
        folder = out / case
        settings = {key: options.pop(key) for key in [*options] if key.startswith("spark.")}
        for key, value in settings.items():
            spark.conf.set(key, value)
        frame.coalesce(1).write.options(**options).parquet(str(folder))
        for key in settings:
            spark.conf.unset(key)
        (files[case],) = folder.glob("part-*.parquet")

    save("Spark", frame)
    save("Spark, pages", frame, **_PAGES)
    save("Spark, pages of version 2", frame, **_PAGES, **_V2)
    save("Spark, plain", frame, **_PAGES, **_PLAIN, compression="none")
    save("Spark, deltas", frame, **_PAGES, **_V2, **_PLAIN, compression="none")
    save("Spark, byte stream split", frame.select("float", "double", "int", "d18"), **_V2, **_PLAIN, **_SPLIT)
    save("Spark, legacy", frame, **_PAGES, **{"spark.sql.parquet.writeLegacyFormat": "true"})
    few = frame.select("text", "long", "truth", "d38", "lists")
    for codec in ("none", "snappy", "gzip", "zstd", "lz4", "lz4_raw"):
        save(f"Spark, {codec}", few, **_PAGES, compression=codec)
        save(f"Spark, {codec} of version 2", few, **_PAGES, **_V2, compression=codec)
    cast = "cast(s as timestamp)"
    frame = spark.createDataFrame([(one,) for one in _TIMES], "s string").selectExpr(
        f"{cast} t", f"array({cast}) list", f"map('k', {cast}) map", f"struct({cast} as t) struct", "cast(s as date) d"
    )
    for kind in ("INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"):
        moments = [None if one is None else dt.datetime.fromisoformat(one) for one in _TIMES]
        if kind == "TIMESTAMP_MILLIS":
            moments = [one and one.replace(microsecond=one.microsecond // 1000 * 1000) for one in moments]
        values[f"Spark, {kind}"] = {
            "t": [repr(one) for one in moments],
            "list": [repr([one]) for one in moments],
            "map": [repr([("k", one)]) for one in moments],
            "struct": [repr({"t": one}) for one in moments],
            "d": [repr(one and one.date()) for one in moments],
        }
        for mode in ("CORRECTED", "LEGACY"):
            calendar = {f"spark.sql.parquet.{one}RebaseModeInWrite": mode for one in ("int96", "datetime")}
            save(f"Spark, {kind} {mode}", frame, **calendar, **{"spark.sql.parquet.outputTimestampType": kind})
    spark.stop()


def describe(name: str, value: Any) -> str:
    """A value as stoker has it, as text: nulls of flat floats are NaN, maps pairs, spans microseconds."""
    if isinstance(value, dt.timedelta):
        value //= dt.timedelta(microseconds=1)
    if value is None and name in ("float", "double"):
        return "nan"
    if isinstance(value, dict) and name in ("map", "lists_by_key"):
        value = [*value.items()]
    return repr(plain(value))


def fastparquet_files(files: dict[str, Path], out: Path) -> None:
    """Files of fastparquet."""
    counts = np.arange(len(ROWS))
    frame = pd.DataFrame(
        {
            **{f"uint{size}": counts.astype(f"u{size // 8}") for size in (8, 16, 32, 64)},
            **{f"int{size}": (counts - 5).astype(f"i{size // 8}") for size in (8, 16, 32, 64)},
            "float32": (counts / 4).astype("f4"),
            "float64": np.where(counts % 5 == 0, np.nan, counts / 7),
            "truth": counts % 3 == 0,
            "Int64": pd.array(some(int, 4), dtype="Int64"),
            "boolean": pd.array(some(lambda row: row % 2 == 0, 3), dtype="boolean"),
            "text": pd.Series(some(lambda row: f"é{row}", 4), dtype=object),
            "bytes": pd.Series(some(lambda row: bytes([row, 255]), 4), dtype=object),
            "json": pd.Series(some(lambda row: {"a": [row, None]}, 6), dtype=object),
            "kind": pd.Categorical(some(lambda row: "uvw"[row % 3], 4)),
            "number": pd.Categorical(counts % 3 * 10),
            "time": pd.date_range("2020-01-01", periods=len(ROWS), freq="h").astype("datetime64[us]"),
            "zone": pd.date_range("2020-01-01", periods=len(ROWS), freq="h", tz="Europe/Berlin"),
            "span": pd.to_timedelta(counts, unit="s"),
            "decimal": pd.Series([Decimal(row) / 4 for row in ROWS], dtype=object),
        }
    )  # fmt: skip
    kinds = {"text": "utf8", "bytes": "bytes", "json": "json", "decimal": "decimal"}

    def save(case: str, names: Iterable[str], **options: Any) -> None:
        files[case] = out / f"{case}.parquet"
        some = {name: kind for name, kind in kinds.items() if name in names}
        fastparquet.write(str(files[case]), frame[[*names]], object_encoding=some, **options)

    save("fastparquet", frame, row_group_offsets=[0, 9, 18])
    for codec in ("GZIP", "SNAPPY", "ZSTD", "LZ4", "LZ4_RAW", "BROTLI"):
        save(f"fastparquet, {codec}", ["text", "Int64", "float64", "kind"], compression=codec)
    save("fastparquet, INT96", ["time", "text"], times="int96")
    save("fastparquet, no nulls", ["int64", "float32", "truth"], has_nulls=False)
    fastparquet.writer.DATAPAGE_VERSION = 2
    save("fastparquet, version 2", frame, row_group_offsets=[0, 9, 18], compression="SNAPPY")


def rust_files(files: dict[str, Path], out: Path) -> None:
    """Files of arrow-rs."""
    view, lists_of = pa.string_view(), pa.list_(pa.list_(pa.string_view()))
    day = dt.datetime(2020, 1, 2)
    table = pa.table(
        {
            "view": pa.array(some(lambda row: "x" * row, 4), view),
            "lists": pa.array(lists(lambda row, item: [f"{row}" * 9, None][:item], 5), lists_of),
            "map": pa.array(some(lambda row: [("k", row), ("l" * 20, None)], 5), pa.map_(view, pa.int16())),
            "struct": pa.array(some(lambda row: {"a": row, "b": None}, 4), pa.struct([("a", pa.uint8()), ("b", view)])),
            "kind": pa.array(some(lambda row: f"k{row % 3}", 4)).dictionary_encode(),
            "decimal": pa.array(some(lambda row: Decimal(row) / 4, 4), pa.decimal128(30, 4)),
            "wide": pa.array(some(lambda row: Decimal(10**50 + row), 4), pa.decimal256(60, 0)),
            "half": pa.array(some(lambda row: np.float16(row / 4), 4), pa.float16()),
            "unsigned": pa.array(some(lambda row: 2**64 - 1 - row, 4), pa.uint64()),
            "truth": pa.array(some(lambda row: row % 2 == 0, 4)),
            "time": pa.array(some(lambda row: day + dt.timedelta(row, microseconds=row), 4), pa.timestamp("us", "UTC")),
            "day": pa.array(some(lambda row: dt.date(2020, 1, 1 + row), 4)),
            "clock": pa.array(some(lambda row: dt.time(1, 2, 3, row), 4), pa.time64("us")),
            "fixed": pa.array(some(lambda row: bytes([row] * 3), 4), pa.binary(3)),
            "pair": pa.array(some(lambda row: [row, None], 4), pa.list_(pa.int32(), 2)),
        }
    )

    def save(case: str, write: Callable[..., None], name: str, data: pa.Table = table, **options: Any) -> None:
        files[case] = out / f"{case}{name}"
        write(data, files[case], **options)

    pages = {"data_page_row_count_limit": 5, "write_batch_size": 5, "max_row_group_size": 9}
    save("arrow-rs", arro3.io.write_parquet, ".parquet")
    for version in ("1_0", "2_0"):
        for codec in ("uncompressed", "zstd(3)", "lz4_raw"):
            named = {**pages, "compression": codec, "writer_version": f"parquet_{version}"}
            save(f"arrow-rs, {version} {codec}", arro3.io.write_parquet, ".parquet", **named)
    save("arrow-rs, no Arrow schema", arro3.io.write_parquet, ".parquet", skip_arrow_metadata=True, **pages)
    several = pa.concat_tables([table.slice(0, 9), table.slice(9)])
    for codec in (None, "zstd", "lz4"):
        save(f"arrow-rs, file {codec}", arro3.io.write_ipc, ".arrow", several, compression=codec)
        save(f"arrow-rs, stream {codec}", arro3.io.write_ipc_stream, ".arrow", several, compression=codec)


def pack(data: bytes) -> str:
    """Bytes as text, compressed."""
    return base64.b85encode(zlib.compress(data, 9)).decode()


def main() -> None:
    """Write the file."""
    files: dict[str, Path] = {}
    values: dict[str, dict[str, list[str]]] = {}
    with tempfile.TemporaryDirectory() as root:
        out = Path(root)
        script = Path(__file__).with_suffix(".mjs").read_text()
        command = ["node", "--input-type=module", "-", str(out)]
        made = subprocess.run(command, input=script, text=True, cwd=sys.argv[1], check=True, stdout=subprocess.PIPE)
        files |= {case: out / name for case, name in json.loads(made.stdout).items()}
        fastparquet_files(files, out)
        rust_files(files, out)
        spark_files(files, values, out)
        record = {
            "files": {case: [f"a{path.suffix}", pack(path.read_bytes())] for case, path in sorted(files.items())},
            "values": values,
        }
    path = ROOT / "tests" / "formats" / "golden" / "tables.json"
    path.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n")
    print(f"{len(files)} files, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
