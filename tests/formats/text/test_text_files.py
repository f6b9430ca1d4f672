"""JSON lines and separated values as other programs write them: detected, split into spans, and read correctly."""

from __future__ import annotations

import ast
import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from s3server import Bucket
from stoker import StreamingDataset
from stoker.errors import ConfigError, CorruptDataError, DecodeError, IndexFileError
from stoker.formats.common.inspect_header import MappedSource
from stoker.formats.text import line_index as textlines
from stoker.formats.text import line_shards
from stoker.formats.text.csv import split_line
from stoker.formats.text.line_index import find_lines, line_spans
from stoker.storage import open_store

QUOTE = ord('"')

pytestmark = pytest.mark.usefixtures("own_cache")


def rows(root: Path, name: str, **options: Any) -> list[dict[str, Any]]:
    return list(StreamingDataset(remote=root, format=name, format_options=options))


def plain_lines(data: bytes, quote: str | None) -> list[bytes]:
    """Lines one character after the other."""
    out: list[bytes] = []
    line, inside = b"", False
    for place in range(len(data)):
        char = data[place : place + 1]
        inside ^= quote is not None and char == quote.encode()
        if char == b"\n" and not inside:
            out.append(line)
            line = b""
        else:
            line += char
    return [one.removesuffix(b"\r") for one in [*out, line] if one.removesuffix(b"\r")]


TEXT = st.lists(st.sampled_from([b"a", b"\n", b"\r", b'"', b",", b"\r\n", "é".encode()]), max_size=60).map(b"".join)


@given(data=TEXT, quoted=st.booleans())
@settings(max_examples=300, deadline=None)
def test_lines_are_those_that_a_plain_loop_finds(data: bytes, quoted: bool) -> None:
    begins, ends = find_lines(np.frombuffer(data, np.uint8), QUOTE if quoted else None)
    expected = plain_lines(data, '"' if quoted else None)
    assert [data[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)] == expected


@given(data=TEXT, quoted=st.booleans(), size=st.integers(1, 30), block=st.integers(1, 20), start=st.integers(0, 3))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_spans_together_are_the_file(
    data: bytes, quoted: bool, size: int, block: int, start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(textlines, "_BLOCK", block)
    data = b"x" * start + data
    quote = QUOTE if quoted else None
    if quoted and data.count(b'"') % 2:
        begins, _ = find_lines(np.frombuffer(data, np.uint8)[start:], quote)
        where = f"all from sample {len(begins) - 1} on, at byte {start + begins[-1]}, is one line"
        with pytest.raises(CorruptDataError, match=rf"the file: a quote .* is not closed: {where}"):
            line_spans(MappedSource(data, "the file"), start, quote, size)
        return
    spans = line_spans(MappedSource(data, "the file"), start, quote, size)
    found: list[bytes] = []
    at = start
    for first, end, samples in spans:
        assert at <= first < end <= len(data)
        at = end
        body = data[first:end]
        begins, ends = find_lines(np.frombuffer(body, np.uint8), quote)
        assert len(begins) == samples > 0
        found += [body[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)]
    assert found == plain_lines(data[start:], '"' if quoted else None)
    assert all(end - first >= size for first, end, _ in spans[:-1])


VALUES = st.text(st.sampled_from('ab," \n\r\té|'), max_size=6)


@given(values=st.lists(VALUES, min_size=1, max_size=5), separator=st.sampled_from(",\t|"), every=st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_line_is_split_as_python_does_it(values: list[str], separator: str, every: bool) -> None:
    out = io.StringIO(newline="")
    quoting: Any = csv.QUOTE_ALL if every else csv.QUOTE_MINIMAL
    csv.writer(out, delimiter=separator, quoting=quoting, lineterminator="").writerow(values)
    assert split_line(out.getvalue(), separator, '"') == values


@pytest.mark.parametrize("program", ["polars", "duckdb", "pyarrow", "python"])
def test_csv_of_other_programs_is_read(program: str, tmp_path: Path) -> None:
    texts = ["plain", "a,b", 'quo"te', "two\nlines", "", "é" * 3] * 20
    numbers = list(range(120))
    floats = [n / 8 for n in numbers]
    path = tmp_path / "a.csv"
    if program == "polars":
        import polars as pl

        pl.DataFrame({"n": numbers, "x": floats, "text": texts}).write_csv(path)
    elif program == "duckdb":
        import duckdb
        import pyarrow as pa

        table = pa.table({"n": numbers, "x": floats, "text": texts})
        with duckdb.connect() as connection:
            connection.register("t", table)
            connection.execute(f"COPY t TO '{path}' (HEADER, DELIMITER ',')")
    elif program == "pyarrow":
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        arrow_csv.write_csv(pa.table({"n": numbers, "x": floats, "text": texts}), path)
    else:
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["n", "x", "text"])
            writer.writerows(zip(numbers, floats, texts, strict=True))
    found = rows(tmp_path, "csv", piece_bytes=500)
    assert [row["n"] for row in found] == numbers
    assert [row["x"] for row in found] == floats
    assert [row["text"] for row in found] == texts


def test_kinds_are_found_out_and_chosen(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "\ufeffid,zip,x,empty,big\r\n1,01234,1.5,,123456789012345678\r\n\r\n2,99999,,,5\r\n"
    )
    (tmp_path / "b.csv").write_text("id,zip,x,empty,big\n3,7,2,,99999999999999999999")
    found = rows(tmp_path, "csv")
    assert [row["id"] for row in found] == [1, 2, 3]
    assert [row["zip"] for row in found] == ["01234", "99999", "7"]
    assert [row["empty"] for row in found] == [""] * 3
    assert [row["big"] for row in found] == ["123456789012345678", "5", "99999999999999999999"]
    assert found[0]["x"] == 1.5
    assert math.isnan(found[1]["x"])
    assert found[2]["x"] == 2.0
    chosen = rows(tmp_path, "csv", columns={"id": "str", "zip": "int"})
    assert [(row["id"], row["zip"]) for row in chosen] == [("1", 1234), ("2", 99999), ("3", 7)]


def test_files_without_header_or_quotes(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text('1\ta "b\n2\tc\n')
    with pytest.raises(CorruptDataError, match=r"a\.tsv: .*quote"):
        rows(tmp_path, "tsv", header=False)
    assert rows(tmp_path, "tsv", header=False, quote="") == [
        {"column_0": 1, "column_1": 'a "b'},
        {"column_0": 2, "column_1": "c"},
    ]
    assert rows(tmp_path, "tsv", header=False, quote="", columns=["n", "t"])[1] == {"n": 2, "t": "c"}
    assert rows(tmp_path, "tsv", header=False, quote="", columns={"n": "str", "t": "str"})[1]["n"] == "2"
    (tmp_path / "a.tsv").write_text("a\tb\n")
    (tmp_path / "b.tsv").write_text("")
    assert rows(tmp_path, "tsv") == []


def test_what_does_not_fit_later_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n" + "1\n" * 1200 + "many\n")
    with pytest.raises(CorruptDataError, match=r"a\.csv.*sample 1200: column 'n': expected int.*\{'n': \"str\"\}"):
        rows(tmp_path, "csv")
    assert rows(tmp_path, "csv", columns={"n": "str"})[-1] == {"n": "many"}
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n' * 1200 + '{"n": null}\n{}\n')
    with pytest.raises(CorruptDataError, match=r"a\.jsonl.*sample 1200: column 'n': expected int.*\{'n': 'json'\}"):
        rows(tmp_path, "jsonl")
    assert rows(tmp_path, "jsonl", columns={"n": "json"})[-2:] == [{"n": None}, {"n": None}]


INTS, FLOATS, EMPTY = ["99999", "-5"], ["1.5", "-2", "1e3"], ["", "1000"]
POSTCODES = ["00501", "-0", "-007", "+7", " 5", "5 ", "\t5", "٣", "0x1F", "1_0", "5.0", "1e3", "", "inf", "many"]


@pytest.mark.parametrize(
    ("first", "late"),
    [
        *((INTS, text) for text in POSTCODES),
        *(
            (FLOATS, text)
            for text in ["00501", "+7", " 5", "1.5 ", "٣", "1e400", "-1e400", "9" * 400, "9" * 16, "many"]
        ),
        *((EMPTY, text) for text in ["00501", "+4915112345678", "123456789012345678", " 5"]),
    ],
)
@pytest.mark.parametrize("place", ["{},a", 'a,"{}"', '"a, 007 ",{},b'])
def test_csv_that_the_first_lines_did_not_promise_is_an_error(
    first: list[str], late: str, place: str, tmp_path: Path
) -> None:
    cells = [*first * 600, *[first[-1]] * 100, late, *[first[-1]] * 400]
    row = len(first) * 600 + 100
    names = place.replace("{}", "n").replace('"n"', "n").replace("a, 007 ", "a").replace('"', "")
    (tmp_path / "a.csv").write_text("\n".join([names, *map(place.format, cells)]) + "\n")
    told = rf"a\.csv: sample {row}: column 'n': expected (int|float), found str .*\{{'n': \"str\"\}}"
    for read in (list, lambda dataset: list(dataset.batches())):
        with pytest.raises(DecodeError, match=told):
            read(StreamingDataset(tmp_path, batch_size=100))
    left = StreamingDataset(tmp_path, batch_size=100, on_bad_sample="skip")
    assert len(list(left)) == left.size - 1
    assert rows(tmp_path, "csv", columns={"n": "str"})[row]["n"] == late


@pytest.mark.parametrize(
    "late", ["0", "-7", "1.25", "+1.5", "-0.5", ".5", "5.", "1e-400", "Infinity", "nan", "", "1E5"]
)
def test_csv_that_the_first_lines_promised_is_read_together(
    late: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("n,zip\n" + "1.5,01234\n" * 1200 + f"{late},+7\n" + '2,"a, 007 "\n' * 200)
    if math.isfinite(float(late or "1")):
        monkeypatch.setattr(line_shards, "read_each", None)  # nothing is read one by one
    batch = StreamingDataset(tmp_path).read(np.arange(1401))
    np.testing.assert_equal(batch["n"][1199:1202], [1.5, float(late or "nan"), 2])
    assert batch["zip"][1199:1202] == ["01234", "+7", "a, 007 "]


@pytest.mark.parametrize("first", ["01234", "+7", "-0", " 5", "1e400", "٣", "12345678901234567890"])
def test_csv_numbers_that_would_not_be_the_same_are_text(first: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"n,m\n{first},\n5,5\n")
    expected = ["-0.0", "5.0"] if first == "-0" else [first, "5"]
    assert [str(row["n"]) for row in rows(tmp_path, "csv")] == expected


def test_files_of_csv_that_differ_are_as_strict(tmp_path: Path) -> None:
    """Integers that are floats with those of another file, and text that one of two files has."""
    (tmp_path / "a.csv").write_text("n\n" + "12345678901234567\n" * 100)
    (tmp_path / "b.csv").write_text("n\n" + "1.5\n" * 1200 + "007\n")
    for row in (0, 1300):
        with pytest.raises(CorruptDataError, match=r"\.csv.*column 'n': expected float, found"):
            StreamingDataset(tmp_path).read(np.arange(row, row + 1))
    with pytest.raises(CorruptDataError, match="expected float, found str '007'"):
        StreamingDataset(tmp_path).read(np.arange(1200, 1301))


BIG = (1 << 60) + 1


@pytest.mark.parametrize(
    ("first", "late"),
    [
        ("5", "true"),
        ("5", "5.5"),
        ("5.5", "true"),
        ("5.5", str(BIG)),
        ("5.5", "9" * 400),
        ("true", "1"),
    ],
)
@pytest.mark.parametrize("beside", ["1", "[1]"])
def test_json_that_the_first_lines_did_not_promise_is_an_error(
    first: str, late: str, beside: str, tmp_path: Path
) -> None:
    lines = [f'{{"n": {text}, "b": {beside}}}' for text in [*[first] * 1200, late, *[first] * 400]]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    told = r"a\.jsonl.*sample 1200: column 'n': expected (int|float|bool), found .*'n': 'json'"
    for rows_read in (np.array([1200]), np.arange(1100, 1300)):
        with pytest.raises(CorruptDataError, match=told):
            StreamingDataset(tmp_path).read(rows_read)
    assert rows(tmp_path, "json", columns={"n": "json"})[1200]["n"] == json.loads(late)


def test_json_numbers_that_no_float_holds_are_what_they_are(tmp_path: Path) -> None:
    """Beside a fraction in the first lines; without one they are integers."""
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {n}, "m": {BIG}}}\n' for n in (BIG, 0.5, 9 << 60)))
    batch = StreamingDataset(tmp_path).read(np.arange(3))
    assert batch["n"] == [BIG, 0.5, 9 << 60]
    assert np.asarray(batch["m"]).dtype == np.int64
    (tmp_path / "a.jsonl").write_text('{"n": 0.5}\n{"n": 1e400}\n{"n": 1.5}\n')
    with pytest.raises(CorruptDataError, match=r"sample 1: column 'n': .*\(1e400\) is larger than a float holds"):
        StreamingDataset(tmp_path).read(np.arange(3))


@pytest.mark.parametrize("value", ["1e400", "[0.5, -1e999]", '{"x": [{"y": 1e400}]}', "1" * 310 + ".5"])
def test_json_of_any_kind_holds_no_number_that_became_infinite(value: str, tmp_path: Path) -> None:
    lines = ['{"n": [1], "m": Infinity}'] * 1200
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, f'{{"n": {value}, "m": 1e308}}']))
    told = r"a\.jsonl.*sample 1200: column 'n': .*\(-?1[e1][0-9]*.*is larger than a float holds: write it as text"
    for rows_read in (np.array([1200]), np.arange(1100, 1201)):
        with pytest.raises(CorruptDataError, match=told):
            StreamingDataset(tmp_path).read(rows_read)
        assert StreamingDataset(tmp_path, columns=["m"]).read(rows_read)["m"][-1] == 1e308
    assert StreamingDataset(tmp_path).read(np.array([1199]))["m"][0] == float("inf")


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("csv", b"id,text\r1,a\r2,b\r", [(1, "a"), (2, "b")]),
        ("csv", b"\xef\xbb\xbf\rid,text\r\r1,a\r2,b", [(1, "a"), (2, "b")]),
        ("csv", b'id,text\r1,"a\rb\nc"\r2,b\r', [(1, "a\rb\nc"), (2, "b")]),
        ("csv", b"id,text\r" + b"7,x\r" * 2000 + b"1,y", [*[(7, "x")] * 2000, (1, "y")]),
        ("csv", b'id,text\n1,"a\rb"\n2,b\rc\n', [(1, "a\rb"), (2, "b\rc")]),
        ("tsv", b"id\ttext\r1\ta\r", [(1, "a")]),
        ("json", b'{"id": 1, "text": "a"}\r{"id": 2, "text": "b"}\r', [(1, "a"), (2, "b")]),
        ("json", b'{"id": 7, "text": "x"}\r' * 2000, [(7, "x")] * 2000),
    ],
)
def test_lines_may_end_with_carriage_returns_alone(
    name: str, data: bytes, expected: list[tuple[int, str]], tmp_path: Path
) -> None:
    (tmp_path / f"a.{name}").write_bytes(data)
    for size in (5, 1 << 20):
        dataset = StreamingDataset(tmp_path, format=name, format_options={"piece_bytes": size}, batch_size=100)
        assert [(row["id"], row["text"]) for row in dataset] == expected
        batches = list(dataset.batches())
        assert [text for batch in batches for text in batch["text"]] == [text for _, text in expected]


def test_lines_that_do_not_end_alike_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,text\r" + b"1,a\r" * (1 << 18) + b"2,b\n")
    with pytest.raises(CorruptDataError, match=r"a\.csv: .* carriage returns, and at byte 1,048,587 is a newline"):
        rows(tmp_path, "csv")
    (tmp_path / "a.csv").write_bytes(b"id,text\r1,a\r")
    (tmp_path / "b.csv").write_bytes(b"id,text\n1,a\n")
    with pytest.raises(IndexFileError, match="can not be read together: lines of one end with newlines"):
        rows(tmp_path, "csv")


def test_a_key_that_comes_after_the_first_lines_is_an_error_with_all_columns(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1, "t": "x"}\n' * 1200 + '{"n": 2, "t": "y", "late": [3]}\n')
    remedy = r"sample 1200: column 'late'.*format_options=\{\"columns\": (\{'n': 'int', 't': 'str', 'late': 'json'\})\}"
    with pytest.raises(CorruptDataError, match=remedy):
        rows(tmp_path, "jsonl")
    with pytest.raises(CorruptDataError, match=remedy):  # also with what was recorded of the file, and one column
        list(StreamingDataset(tmp_path, columns=["n"]))
    told = rows(tmp_path, "jsonl", columns={"n": "int", "t": "str", "late": "json"})
    assert told[-1] == {"n": 2, "t": "y", "late": [3]}
    assert rows(tmp_path, "jsonl", columns={"n": "int"})[-1] == {"n": 2}  # which the caller chose


def test_json_of_any_shape(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [
        {"a": 1, "b": "x", "c": 1, "d": True, "e": [1, {"é": None}], "f": 5},
        {"a": 2, "b": "y", "c": 1.5, "d": False, "e": "text"},
    ]
    text = "".join(json.dumps(sample, ensure_ascii=False) + "\r\n" for sample in samples)
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + text.encode() + b"\n")
    (tmp_path / "index.json").write_text("{}")  # no sample of anyone's
    dataset = StreamingDataset(remote=tmp_path, format="json")
    assert list(dataset) == [samples[0], {**samples[1], "f": None}]
    batch = dataset.read(np.array([1, 0]))
    kinds = {name: column.dtype.name for name, column in batch.items() if isinstance(column, np.ndarray)}
    assert kinds == {"a": "int64", "c": "float64", "d": "bool"}
    assert dataset.columns is None
    assert list(StreamingDataset(remote=tmp_path, format="ndjson", columns=["a"])) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("name", "text", "options", "message"),
    [
        ("json", "1", {}, r"a\.json: sample 0: expected a JSON object"),
        (
            "json",
            '[{"x": 1}]',
            {},
            r"a\.json: sample 0: a JSON array begins here. JSON lines are needed, .*jq -c '\.\[\]'",
        ),
        ("json", '[\n  {"x": 1}\n]', {}, r"a\.json: sample 0 is not JSON: a JSON array begins here"),
        ("json", '[\n  {"x": 1}\n]', {"columns": {"x": "int"}}, r"a\.json.*a JSON array begins here"),
        ("json", '{\n  "x": 1\n}', {}, r"a\.json: sample 0 is not JSON: an object over several lines"),
        ("json", "{", {}, r"a\.json: sample 0 is not JSON"),
        ("csv", "a,a\n1,2", {}, "two columns are called 'a'"),
        ("csv", "a,b\n1", {}, "sample 0 has 1 value for 2 columns"),
        ("csv", 'a\n"x"y', {}, "line 1: a quote"),
        ("csv", 'a\n"x', {}, r"line 1: a quote .* is missing.*format_options=\{\"quote\": \"\"\}"),
        ("csv", "a\n" + "x\n" * 2000 + '"x', {}, r"a\.csv: a quote .* is not closed"),
    ],
)
def test_damaged_text_is_named(name: str, text: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / f"a.{name}").write_text(text)
    with pytest.raises(CorruptDataError, match=message):
        rows(tmp_path, name, **options)


@pytest.mark.parametrize(
    ("name", "head", "first"),
    [
        ("csv", "text\n", "a" * (2 << 20)),
        ("csv", "id,text\n", "1," + "x" * ((1 << 20) - 11)),  # with its newline to the end of the first MiB
        ("csv", "id,text\n", "1," + "x" * ((1 << 20) - 10)),
        ("csv", "text,id\n", "a" * (2 << 20) + ",1"),
        ("csv", "id,text\n", '1,"' + "x, \n" * (1 << 19) + '"'),
        ("csv", "\ufeff\r\n" + "id" * (1 << 20) + ",text\r\n", "1,a\r"),
        ("csv", "id,text" + "\n" * (1 << 20), "1,a"),
        ("json", "", json.dumps({"text": "a" * (5 << 20)})),
    ],
)
@pytest.mark.parametrize("more", [0, 1, 3])
def test_a_first_row_of_any_length_is_whole(name: str, head: str, first: str, more: int, tmp_path: Path) -> None:
    """What is looked at to find the columns is not where the samples begin."""
    later = {"csv": "2,b" if "," in head else "b", "json": '{"text": "b"}'}[name]
    (tmp_path / f"a.{name}").write_text(head + "\n".join([first, *[later] * more, ""]), newline="")
    found = [[str(value) for value in row.values()] for row in rows(tmp_path, name)]
    cells = [*json.loads(first).values()] if name == "json" else split_line(first.removesuffix("\r"), ",", '"')
    assert found == [cells, *[["2", "b"] if "," in head else ["b"]] * more]


def test_the_first_rows_are_looked_for_in_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textlines, "_MOST", 1 << 20)
    (tmp_path / "a.csv").write_text("a\n" + "x" * (2 << 20))
    with pytest.raises(CorruptDataError, match=r"a\.csv: its first 2 lines of more than 1 MiB: is it text"):
        rows(tmp_path, "csv")


@pytest.mark.parametrize(
    ("name", "line", "options", "message"),
    [
        ("csv", b"7,8", {}, r"a\.csv: sample {row}: expected 3 values, found 2"),
        ("csv", b"7,8,9,10", {}, r"a\.csv: sample {row}: expected 3 values, found 4"),
        ("csv", b"7,\xff,8", {}, r"a\.csv: sample {row}"),
        ("csv", b"7,8", {"header": False}, r"a\.csv: sample {row}: expected 3 values, found 2"),
        ("json", b'{"x": 1, "y"', {}, r"a\.json: sample {row}: not JSON"),
        ("json", b"7", {}, r"a\.json: sample {row}: expected a JSON object"),
    ],
)
@pytest.mark.parametrize("row", [0, 7, 1500])
def test_a_line_that_does_not_fit_is_a_bad_sample_wherever_it_is(
    name: str, line: bytes, options: dict[str, Any], message: str, row: int, tmp_path: Path
) -> None:
    good = [b"%d,%d.5,t" % (n, n) if name == "csv" else b'{"x": %d, "y": 0.5}' % n for n in range(2000)]
    lines = [*good[:row], line, *good[row + 1 :]]
    head = [b"x,y,z"] if name == "csv" and not options else []
    (tmp_path / f"a.{name}").write_bytes(b"\n".join([*head, *lines]) + b"\n")
    settings: dict[str, Any] = {"remote": tmp_path, "format": name, "format_options": options, "batch_size": 100}
    first = "column_0" if options else "x"
    left = list(StreamingDataset(**settings, on_bad_sample="skip"))
    assert [sample[first] for sample in left] == [n for n in range(2000) if n != row]
    with pytest.raises(DecodeError, match=message.replace("{row}", str(row))):
        list(StreamingDataset(**settings))


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        ("csv", "1,2,3,4", r"a\.csv: sample 0 has 4 values for 3 columns: 600 of the first 1,000 do not fit"),
        ("json", "x=1", r"a\.json: sample 0 is not JSON: .*; 600 of the first 1,000 are none.*columns"),
    ],
)
def test_a_file_of_which_most_does_not_fit_is_an_error_where_it_is_opened(
    name: str, bad: str, message: str, tmp_path: Path
) -> None:
    good = "1,2,3" if name == "csv" else '{"x": 1}'
    lines = [*(["x,y,z"] if name == "csv" else []), *[bad] * 600, *[good] * 4000]
    (tmp_path / f"a.{name}").write_text("\n".join(lines))
    with pytest.raises(CorruptDataError, match=message):
        StreamingDataset(remote=tmp_path, format=name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("csv", {"separator": "::"}, "separator='::': one character"),
        ("csv", {"quote": ","}, "quote=','"),
        ("xsv", {}, "separator=None"),
        ("csv", {"columns": {"z": "int"}}, "column 'z' is unknown; known: a"),
        ("csv", {"columns": {"a": "bool"}}, "'a': kind 'bool' is unknown; known: str, int, float"),
        ("csv", {"columns": ["a"]}, "these are types by name, such as .'a': 'str'"),
        ("csv", {"piece_bytes": 0}, "piece_bytes must be at least 1, got 0"),
        ("csv", {"colour": 1}, "setting 'colour' is unknown; known: columns"),
        ("json", {"columns": {"a": "date"}}, "'a': kind 'date' is unknown; known: str"),
    ],
)
def test_settings_that_make_no_sense_are_reported(
    name: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("a\n1\n")
    (tmp_path / "a.json").write_text('{"a": 1}\n')
    with pytest.raises(ConfigError, match=message):
        rows(tmp_path, name, **options)


def test_files_of_other_columns_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    (tmp_path / "b.csv").write_text("b,a\n1,2\n")
    with pytest.raises(IndexFileError, match=r"a\.csv and .*b\.csv can not be read together.*a, b, the second b, a"):
        rows(tmp_path, "csv")


def test_a_file_that_was_written_to_is_indexed_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n')
    dataset = StreamingDataset(remote=tmp_path, format="json")
    path.write_text('{"n": 1}\n{"n": 2}\n')
    with pytest.raises(CorruptDataError, match=r"a\.jsonl was replaced after it was indexed"):
        list(dataset)
    assert len(rows(tmp_path, "json")) == 2


@pytest.mark.s3
def test_of_a_large_file_only_the_spans_that_are_read_are_fetched(bucket: Bucket, tmp_path: Path) -> None:
    store = open_store(bucket.url, bucket.storage_options)
    lines = [json.dumps({"n": n, "pad": "x" * 2000}) + "\n" for n in range(2000)]
    store.put("a.jsonl", "".join(lines).encode())
    where: dict[str, Any] = {
        "remote": bucket.url,
        "local": tmp_path,
        "storage_options": bucket.storage_options,
        "format": "json",
        "format_options": {"piece_bytes": "400kb"},
    }
    dataset = StreamingDataset(**where)
    assert len(dataset.index) > 5
    assert dataset[1500]["n"] == 1500
    cached = [path for path in tmp_path.rglob("*") if path.is_file() and ".stoker" not in path.parts]
    assert len(cached) == 1
    assert cached[0].stat().st_size < 450_000
    assert sorted(sample["n"] for sample in StreamingDataset(**where, shuffle=True)) == list(range(2000))
    store.put("a.jsonl", "".join(lines[::-1]).encode())  # as many bytes
    assert StreamingDataset(**where)[0]["n"] == 1999
    left = [path for path in tmp_path.rglob("*") if path.is_file() and ".stoker" not in path.parts]
    assert len(left) == 1  # those of the old file went


@pytest.mark.parametrize("first", ["1,2", "2019,2020", "-1.5,3e4"])
def test_a_first_line_of_numbers_is_no_header_unless_that_is_said(tmp_path: Path, first: str) -> None:
    (tmp_path / "a.csv").write_text(f"{first}\n3,4\n")
    with pytest.raises(ConfigError, match=r'numbers alone.*"header": False.*"header": True'):
        StreamingDataset(tmp_path)
    assert [
        StreamingDataset(tmp_path, format="csv", format_options={"header": header}).size for header in (False, True)
    ] == [2, 1]
    (tmp_path / "a.csv").write_text("0,1\n3,4\n")  # as pandas names columns that have no names
    assert StreamingDataset(tmp_path)[0] == {"0": 3, "1": 4}


def test_lines_of_plain_text_are_read_as_the_error_says(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text('one, "two\n\nthree\n')
    with pytest.raises(ConfigError) as caught:
        StreamingDataset(tmp_path)
    options = ast.literal_eval(str(caught.value).rpartition("read with ")[2])
    assert [sample["text"] for sample in StreamingDataset(tmp_path, format="xsv", format_options=options)] == [
        'one, "two',
        "three",
    ]
    lines = ["1.10", "1e5", "nan", "007", " 7 ", "x" * (2 << 20)]
    for text in (lines, lines[::-1], lines[:3] * 1000 + ["words"]):
        for newline in ("\n", "\r\n", "\r"):
            (tmp_path / "a.txt").write_text(newline.join(text), newline="")
            dataset = StreamingDataset(tmp_path, format="xsv", format_options=options)
            assert [sample["text"] for sample in dataset] == text


@pytest.mark.parametrize(
    ("one", "two", "said"),
    [
        ('1500,"word,z', '1510,"word,z', "a quote .* is missing"),
        ('1500,wo"rd,z', '1510,wo"rd,z', "a quote .* is missing"),
        ('1500,"word,z', '1510,word,z"', "expected 3 values, found 2"),
    ],
)
def test_a_stray_quote_is_a_bad_sample_that_says_how_many_lines_it_takes(
    one: str, two: str, said: str, tmp_path: Path
) -> None:
    """As quotes hold line breaks, a stray one takes what follows into its sample, up to the next."""
    lines = ["x,y,z", *(f"{number},word,z" for number in range(2000))]
    lines[1501], lines[1511] = one, two
    (tmp_path / "a.csv").write_text("\n".join(lines))
    dataset = StreamingDataset(tmp_path, format="csv")
    with pytest.raises(DecodeError, match=f"sample 1500: {said}.* The sample takes 11 lines"):
        dataset.read(np.arange(dataset.size))
    left = StreamingDataset(tmp_path, format="csv", on_bad_sample="skip")
    assert [sample["x"] for sample in left] == [*range(1500), *range(1511, 2000)]


def test_two_stray_quotes_around_lines_are_one_value(tmp_path: Path) -> None:
    """What RFC 4180 has as one value with line breaks is not told from damage, as the documentation says."""
    (tmp_path / "a.csv").write_text('x,y\n1,"a\n2,b\n3,c"\n4,d\n')
    assert StreamingDataset(tmp_path, format="csv").read([0, 1])["y"] == ["a\n2,b\n3,c", "d"]
