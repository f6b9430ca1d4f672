"""Files of Spark, fastparquet, arrow-rs and JavaScript libraries (benchmarks/make_tables_golden.py), value for value.

What Spark was given is kept beside its files; of the others, pyarrow's values are those that are right.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest
from test_golden import unpack

from stoker import StokerError, StreamingDataset, convert, verify

pytestmark = pytest.mark.usefixtures("own_cache")

GOLDEN: dict[str, Any] = json.loads(Path(__file__).with_name("golden").joinpath("tables.json").read_text())
# Spark's with times of the calendar that was used before 1582, which are refused.
LEGACY = [case for case in GOLDEN["files"] if case.endswith("LEGACY")]
# pyarrow's values of milliseconds have no time of day.
TIMED = {
    "date64[ms]": pa.timestamp("ms"),
    "struct<a: date64[ms], b: string>": pa.struct([("a", pa.timestamp("ms")), ("b", pa.string())]),
}


def text(value: Any) -> str:
    return repr(plain(value))


def plain(value: Any) -> Any:
    """Python's own objects; times in UTC without a zone."""
    if isinstance(value, np.ndarray):
        return [plain(one) for one in value] if value.dtype.kind in "mM" else value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, uuid.UUID):
        return value.bytes
    return value.replace(tzinfo=None) if getattr(value, "tzinfo", None) is not None else value


def of_pyarrow(path: Path) -> dict[str, list[str]]:
    if path.suffix == ".parquet":
        table = pq.read_table(path, coerce_int96_timestamp_unit="us")
    else:
        data = path.read_bytes()
        table = (ipc.open_file if data.startswith(b"ARROW1") else ipc.open_stream)(data).read_all()
    found = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        missing = float("nan") if pa.types.is_floating(column.type) else None
        zone = getattr(column.type, "tz", None)
        kind = pa.timestamp(column.type.unit, "UTC") if zone else TIMED.get(str(column.type))
        values = pa.chunked_array([chunk.view(kind) for chunk in column.chunks]) if kind else column
        found[name] = [text(missing if value is None else value) for value in values.to_pylist()]
    return found


def write(case: str, folder: Path) -> Path:
    name, data = GOLDEN["files"][case]
    path = folder / str(name)
    path.write_bytes(unpack(data))
    return path


@pytest.fixture(params=[case for case in GOLDEN["files"] if case not in LEGACY])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, list[str]]]:
    """A file, and the values of its columns."""
    path = write(request.param, tmp_path)
    if not request.param.startswith("Spark"):
        return path, of_pyarrow(path)
    values = GOLDEN["values"].get(request.param.removesuffix(" CORRECTED"), GOLDEN["values"]["Spark"])
    return path, {name: values[name] for name in pq.read_schema(path).names}


def test_values_in_order_shuffled_and_by_id(table: tuple[Path, dict[str, list[str]]], tmp_path: Path) -> None:
    path, values = table
    rows = len(next(iter(values.values())))
    order = np.random.default_rng(1).permutation(rows).tolist()
    for url, local in ((path, None), (path.as_uri(), tmp_path / "cache")):
        dataset = StreamingDataset(url, local=local, batch_size=7)
        samples = list(dataset)
        batches = list(dataset.batches())
        found = dataset.read(order)
        shuffled = list(StreamingDataset(url, local=local, batch_size=7, shuffle=True))
        for name, expected in values.items():
            assert [text(sample[name]) for sample in samples] == expected, name
            assert [text(value) for batch in batches for value in batch[name]] == expected, name
            assert [text(value) for value in found[name]] == [expected[row] for row in order], name
            assert [text(dataset[row][name]) for row in (0, rows - 1)] == [expected[0], expected[-1]], name
        names = list(values)
        whole = sorted([text(sample[name]) for name in names] for sample in shuffled)
        assert whole == sorted([list(row) for row in zip(*values.values(), strict=True)])
    for name, expected in values.items():
        assert [text(value) for value in StreamingDataset(path, columns=[name]).read(order)[name]] == [
            expected[row] for row in order
        ], name
    assert not verify(path, deep=True).problems


def test_values_of_converted_files(table: tuple[Path, dict[str, list[str]]], tmp_path: Path) -> None:
    path, values = table
    convert(path, tmp_path / "out", to="parquet")
    found = list(StreamingDataset(tmp_path / "out", batch_size=7))
    for name, expected in values.items():
        assert [text(sample[name]) for sample in found] == expected, name


@pytest.mark.parametrize("case", LEGACY)
def test_times_of_the_old_calendar_are_refused_and_those_after_it_are_not(case: str, tmp_path: Path) -> None:
    path = write(case, tmp_path)
    for name in pq.read_schema(path).names:
        with pytest.raises(StokerError, match=f"row group 0, column '{name}' holds times before 1582-10-15"):
            StreamingDataset(path, columns=[name]).read([3])
    with pytest.raises(StokerError, match="set to CORRECTED"):
        convert(path, tmp_path / "out", to="parquet")
    assert len(StreamingDataset(path, format_options={"filters": [("d", "==", dt.date(1582, 10, 4))]})) == 9


@pytest.mark.parametrize(("zone", "first"), [("UTC", "1582-10-15"), ("Asia/Tokyo", "1900-01-01")])
def test_times_since_the_new_calendar_are_read(zone: str, first: str, tmp_path: Path) -> None:
    days = [dt.date(1582, 10, 15), None, dt.date(2020, 1, 1)]
    for unit in ("s", "ms", "us", "ns"):
        start = dt.datetime.fromisoformat(max(first, "1700-01-01") if unit == "ns" else first)
        for early in (False, True):
            held = [[start - dt.timedelta(seconds=early), None], None, []]
            columns = {"d": pa.array(days), "t": pa.array(held, pa.list_(pa.timestamp(unit)))}
            spark = {"org.apache.spark.legacyDateTime": "", "org.apache.spark.timeZone": zone}
            pq.write_table(pa.table(columns).replace_schema_metadata(spark), tmp_path / "a.parquet")
            dataset = StreamingDataset(tmp_path / "a.parquet")
            if early and not (unit == "ns" and zone == "UTC"):
                with pytest.raises(StokerError, match=f"column 't' holds times before {first}, .* set to CORRECTED"):
                    dataset.read([0])
            else:
                assert text(dataset.read([0, 1, 2])["t"]) == text(held)
