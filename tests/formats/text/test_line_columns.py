"""Lines that pyarrow reads together are what reading them one by one gives, or that is done."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stoker import StreamingDataset
from stoker.errors import CorruptDataError
from stoker.formats.base import FileInfo, ShardInfo
from stoker.formats.common.inspect_header import MappedSource
from stoker.formats.mds.encodings.base import UnfitValueError
from stoker.formats.registry import get_format
from stoker.formats.text import csv, line_index, line_shards
from stoker.formats.text import json as text_json
from stoker.formats.text.line_index import find_lines
from stoker.formats.unstacked import read_each
from stoker.types import Batch
from stoker.writers import CSVWriter, JSONWriter

KINDS = ("str", "int", "float", "bool")
NUMBERS = [
    *(
        "0",
        "-0",
        "-0.0",
        "1",
        "007",
        "+5",
        "1.0",
        "1.",
        ".5",
        "1e5",
        "1E400",
        "1e-400",
        "-1.5e-3",
        "0x1F",
        "1_0",
        "0.1",
    ),
    *("9223372036854775807", "9223372036854775808", "18446744073709551616", "123456789012345678901234567890.5"),
    *("2.2250738585072011e-308", "NaN", "nan", "-NaN", "nan(1)", "Inf", "inf", "Infinity", "-Infinity"),
    *("null", "true", "false", "NA", "9" * 400),
]
TEXTS = ["", " ", "a", " a ", "é", "\ufeff", "x,y", "a\tb", '"', '""', "0x1F", "\u2028", "{", "}", "}{", "a\rb", "\\n"]
number = st.sampled_from(NUMBERS) | st.floats().map(repr) | st.integers().map(str)
ends = st.sampled_from(["\n", "\r\n", "\n\n", "\r\n\r\n", "\r\r\n", " \n"])


def shown(batch: Batch) -> dict[str, Any]:
    """A batch with all that may differ."""
    return {
        name: (str(column.dtype), column.flags.writeable, [repr(one) for one in column.tolist()])
        if isinstance(column, np.ndarray)
        else [(type(one), one if isinstance(one, str) else repr(one)) for one in column]
        for name, column in batch.items()
    }


def outcome(read: Any) -> Any:
    try:
        return shown(read())
    except CorruptDataError as error:
        return str(error)


def check(name: str, files: Sequence[bytes], spec: dict[str, Any], picks: list[int], columns: list[str] | None) -> None:
    """Reads rows together and one by one; an empty list of them for all rows in order."""
    quote = ord(spec["quote"]) if spec.get("quote") else None
    shards = []
    for number_of, data in enumerate(files):
        samples = len(find_lines(np.frombuffer(data, np.uint8), quote)[0])
        if samples:
            info = ShardInfo(name, samples, (FileInfo("f", len(data), {}),), (), None, spec)
            shards.append(get_format(name).open(info, [data], where=f"file {number_of}"))
    if not shards:
        return
    counts = np.array([shard.samples for shard in shards])
    if picks:
        which = np.array(picks) % len(shards)
        rows = np.array(picks) // len(shards) % counts[which]
    else:
        which = np.repeat(np.arange(len(shards)), counts)
        rows = np.concatenate([np.arange(count) for count in counts])
    together = outcome(lambda: get_format(name).read_many(shards, which, rows, columns))
    assert together == outcome(lambda: read_each(shards, which, rows, columns))


json_value = (
    number
    | st.sampled_from(TEXTS).map(json.dumps)
    | st.text(max_size=4).map(lambda text: json.dumps(text, ensure_ascii=False))
    | st.sampled_from(
        ['"\\ud800"', '"\\udc00"', '"\\ud83d\\ude00"', '"\x01"', '"a\x00"', "[1]", '{"a": 1}', "[{", "}]", '"']
    )
    | st.sampled_from(["[" * 300 + "]" * 300, "1" * 5000, '"' + "x" * 70_000 + '"'])
)
json_line = st.one_of(
    st.tuples(json_value, json_value).map(lambda pair: f'{{"a": {pair[0]}, "b": {pair[1]}}}'),
    st.tuples(st.sampled_from(["a", "b", "c", "\\u0061", "", "é"]), json_value).map(
        lambda pair: f'{{"{pair[0]}":{pair[1]}}}'
    ),
    st.sampled_from(
        [
            "{}",
            '{"a": 1}{"a": 2}',
            '{"a": 1} {"a": 2}',
            '{"a": 1}\x00{"a": 2}',
            '{"a": [{}',
            "{}]}",
            "{},{}",
            "\ufeff{}",
        ]
    ),
)


def repeated(strategy: Any) -> Any:
    """Lines of which most are alike, so that pyarrow takes many of the texts."""
    return st.one_of(st.lists(strategy, min_size=1, max_size=4), strategy.map(lambda line: [line, line]))


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_shards, "_FEW", 1)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(st.tuples(repeated(json_line), ends, st.booleans()), min_size=1, max_size=2),
    damage=st.sampled_from([b"", b"", b"", b"\xff", b"\xed\xa0\x80"]),
    kinds=st.tuples(st.sampled_from(KINDS), st.sampled_from((*KINDS, "json"))),
    whole=st.booleans(),
    picks=st.lists(st.integers(0, 20), max_size=6),
    columns=st.sampled_from([None, None, ["a"], ["b"], []]),
)
@example(  # a number that Python refuses, in a column that is not asked for
    files=[(['{"a": ' + "1" * 5000 + ', "b": 0}'], "\n", False)],
    damage=b"",
    kinds=("float", "int"),
    whole=True,
    picks=[],
    columns=["b"],
)
def test_json_lines_together_are_what_they_are_one_by_one(
    files: Any, damage: bytes, kinds: Any, whole: bool, picks: list[int], columns: list[str] | None
) -> None:
    def data(lines: list[str], end: str, last: bool) -> bytes:
        text = end.join(lines) + (end if last else "")
        return text.encode("utf-8", "surrogatepass").replace("é".encode(), damage or "é".encode())

    spec = {"columns": dict(zip("ab", kinds, strict=True)), **({"inferred": True} if whole else {})}
    check("json", [data(*one) for one in files], spec, picks, columns)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.one_of(repeated(json_line), st.permutations(['{"a": [{}', "{}]}", '{},"w",{}'])),
    kinds=st.tuples(st.sampled_from((*KINDS, "json")), st.sampled_from((*KINDS, "json"))),
    whole=st.booleans(),
    columns=st.sampled_from([["a", "b"], ["a"], []]),
)
def test_objects_parsed_at_once_are_what_they_are_one_by_one(
    lines: list[str], kinds: Any, whole: bool, columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def parsed(few: int) -> Any:
        monkeypatch.setattr(text_json, "_FEW", few)
        try:
            found = text_json.parse_objects(lines, columns, dict(zip("ab", kinds, strict=True)), whole=whole)
        except UnfitValueError as error:
            return str(error), error.row, error.column
        return {name: [(type(one), repr(one)) for one in values] for name, values in found.items()}

    assert parsed(1) == parsed(1 << 30)


# Texts of numbers that are more, or less, than the number.
odd = st.tuples(
    st.sampled_from(["", " ", "\t", "+", "-", "0", "00", "-0"]),
    st.sampled_from(["0", "7", "7.5", "5e3", "e1", "12345678901234567", "٣", ""]),
    st.sampled_from(["", "", " ", "\t", "  "]),
).map("".join)
cell = st.one_of(number, number, odd, st.sampled_from(TEXTS), st.text(alphabet='a",\n\r\t é', max_size=4))
quoted_cell = st.one_of(cell, cell.map(lambda text: '"' + text.replace('"', '""') + '"'), st.just('"a"b'))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(
        st.tuples(repeated(st.lists(quoted_cell, min_size=1, max_size=2)), ends, st.booleans()), min_size=1, max_size=2
    ),
    damage=st.sampled_from([b"", b"", b"", b"\xff", b"\0"]),
    given_kinds=st.booleans(),
    sizes=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    kinds=st.lists(st.sampled_from(KINDS[:3]), min_size=1, max_size=2),
    dialect=st.tuples(st.sampled_from([",", "\t", "é"]), st.sampled_from(['"', ""])),
    picks=st.lists(st.integers(0, 20), max_size=6),
    columns=st.sampled_from([None, None, ["a"], []]),
)
def test_separated_values_together_are_what_they_are_one_by_one(
    files: Any,
    damage: bytes,
    given_kinds: bool,
    sizes: tuple[int, int],
    kinds: list[str],
    dialect: Any,
    picks: list[int],
    columns: list[str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Columns whose kind the first lines told are strict: what is odd in them is found where lines are counted."""
    separator, quote = dialect
    monkeypatch.setattr(line_index, "_BLOCK", sizes[0])
    monkeypatch.setattr(line_index, "_STEP", sizes[1])

    def data(lines: list[list[str]], end: str, last: bool) -> bytes:
        text = end.join(separator.join(line[: len(kinds)]) for line in lines) + (end if last else "")
        return text.encode().replace("é".encode(), damage or "é".encode())

    names = list("ab"[: len(kinds)])
    spec = {"columns": dict(zip(names, kinds, strict=True)), "names": names, "separator": separator, "quote": quote}
    spec["given"] = names if given_kinds else []
    texts = [data(*one) for one in files]
    cells = [csv.odd_cells(spec["columns"], spec["given"], separator, quote) for _ in texts]
    try:
        for text, one in zip(texts, cells, strict=True):
            line_index.line_spans(MappedSource(text, "it"), 0, ord(quote) if quote else None, 1 << 20, one.look)
    except CorruptDataError:  # a quote that is not closed
        return
    spec["odd"] = [names[place] for one in cells for place in one.found]
    check("csv", texts, spec, picks, columns)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["json", "csv"]),
    lines=repeated(st.one_of(json_line, st.tuples(cell, cell).map(",".join))),
    end=ends,
    newline=st.sampled_from(["\n", "\r\n", ""]),
    shift=st.sampled_from([0, 0, 0, 1, -1]),
    picks=st.lists(st.integers(0, 20), max_size=6),
)
def test_lines_of_shards_with_an_index_too(
    kind: str, lines: list[str], end: str, newline: str, shift: int, picks: list[int]
) -> None:
    header = b"" if kind == "json" else f"a,b{newline or end}".encode()
    pieces = [(line + (newline or end)).encode() for line in lines]
    offsets = np.cumsum([len(header), *map(len, pieces)])
    offsets[1:-1] += shift
    data = header + b"".join(pieces)
    meta = np.concatenate([[len(pieces)], np.maximum.accumulate(offsets)]).astype("<u4").tobytes()
    kinds = {"a": "float", "b": "str"}
    spec: dict[str, Any] = {"columns": kinds, "newline": newline or "\n", "separator": ","}
    spec |= {"column_names": list(kinds), "column_encodings": list(kinds.values())}
    files = (FileInfo("d", len(data), {}), FileInfo("m", len(meta), {}))
    info = ShardInfo(kind, len(pieces), files, (), None, spec)
    try:
        shard = get_format(kind).open(info, [data, meta], where="the shard")
    except CorruptDataError:
        return
    rows = np.array(picks) % len(pieces) if picks else np.arange(len(pieces))
    which = np.zeros(len(rows), np.int64)
    together = outcome(lambda: get_format(kind).read_many([shard], which, rows))
    assert together == outcome(lambda: shard.read(rows))


LINES = {
    "plain.jsonl": "".join(
        f'{{"a": {n}, "b": {n / 4}, "c": "é {n}", "d": {str(n % 2 == 0).lower()}}}\n' for n in range(200)
    ),
    "return.jsonl": "".join(f'{{"c": "{{ {n}\\n \\ud83d\\ude00", "a": -{n}}}\r\n\r\n' for n in range(200)),
    "plain.csv": "a,b,c\n" + "".join(f"{n},{n / 4},é {n}\n" for n in range(200)),
    "quoted.csv": "a,b,c\r\n" + "".join(f'{n},"","say ""{n},""\r\n"\r\n' for n in range(200)) + '1,1,"x"',
    "values.tsv": "a\tb\tc\n" + "".join(f"{n}\t-0\tNA\n" for n in range(200)),
}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("name", [*LINES, "json", "csv"])
def test_plain_lines_are_read_together(
    name: str, shuffle: bool, tmp_path: Path, own_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in LINES:
        source = tmp_path / name
        source.write_bytes(LINES[name].encode())
    else:
        source = tmp_path / "shards"
        with (JSONWriter if name == "json" else CSVWriter)({"a": "int", "b": "float", "c": "str"}, source) as writer:
            for n in range(200):
                writer.write({"a": n, "b": n / 4, "c": f"é {n}"})
    dataset = StreamingDataset(source, batch_size=50, shuffle=shuffle)
    monkeypatch.setattr(line_shards, "_FEW", 1 << 30)
    one_by_one = [shown(batch) for batch in dataset.batches()]
    monkeypatch.setattr(line_shards, "_FEW", 1)
    monkeypatch.setattr(line_shards, "read_each", None)  # nothing is read one by one
    dataset = StreamingDataset(source, batch_size=50, shuffle=shuffle)
    assert [shown(batch) for batch in dataset.batches()] == one_by_one
