"""Records of TFRecord files that are read together are what reading them one by one gives, or that is done."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packed_cases import CASES, sample_of
from stoker import StreamingDataset
from stoker.errors import CorruptDataError
from stoker.formats.base import FileInfo, ShardInfo
from stoker.formats.registry import get_format
from stoker.formats.tfrecord import reader as tfrecord
from stoker.integers import encode_varint
from stoker.writing.shard_formats import TFRecordWriter

crc32c = pytest.importorskip("crc32c")

MANY = 1 << 40


def masked_crc(data: bytes) -> int:
    crc: int = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(record: bytes, wrong: int = 0) -> bytes:
    head = struct.pack("<Q", len(record))
    return head + struct.pack("<I", masked_crc(head)) + record + struct.pack("<I", masked_crc(record) ^ wrong)


def field(tag: int, body: bytes, padded: bool = False) -> bytes:
    """A length-delimited field, with a length of one byte more than it needs if it is padded."""
    size = encode_varint(len(body))
    return bytes((tag,)) + (size[:-1] + bytes((size[-1] | 0x80, 0)) if padded else size) + body


integer = st.one_of(st.integers(0, 300), st.integers(-(1 << 63), (1 << 63) - 1)).map(
    lambda value: encode_varint(value & (1 << 64) - 1)
)
real = st.floats(width=32).map(lambda value: struct.pack("<f", value))
packed = st.one_of(
    st.lists(integer, min_size=1, max_size=3).map(lambda parts: (3, field(0x0A, b"".join(parts)))),
    integer.map(lambda part: (3, b"\x08" + part)),
    st.lists(integer, max_size=3).map(lambda parts: (3, b"".join(b"\x08" + part for part in parts))),
    st.lists(real, min_size=1, max_size=3).map(lambda parts: (2, field(0x0A, b"".join(parts)))),
    st.lists(real, max_size=3).map(lambda parts: (2, b"".join(b"\x0d" + part for part in parts))),
    st.binary(max_size=150).map(lambda value: (1, field(0x0A, value))),
    st.lists(st.binary(max_size=3), max_size=3).map(lambda parts: (1, b"".join(field(0x0A, part) for part in parts))),
    st.sampled_from(
        [
            (3, b"\x0a\x00"),
            (3, b"\x0a\x01\x80"),
            (3, b"\x0a\x0b" + b"\xff" * 10 + b"\x01"),
            (2, b"\x0a\x03abc"),
            (1, b""),
            (3, b"\x0a\x01\x01\x0a\x01\x02"),
            (3, b"\x08"),
            (3, b"\x08\x08\x08"),
            (2, b"\x0d"),
            (7, b""),
            (1, b"\x10\x01"),
        ]
    ),
)
"""A kind and the message of a list."""


@st.composite
def entry(draw: st.DrawFn) -> bytes:
    name = field(
        0x0A, draw(st.sampled_from([b"a", b"b", b"a", b"b", b"ab", b"", b"\xff"])), draw(st.integers(0, 9)) == 0
    )
    kind, body = draw(packed)
    value = field(0x12, field(kind << 3 | 2, body, draw(st.integers(0, 9)) == 0))
    parts = draw(st.sampled_from([(name, value)] * 8 + [(value, name), (name,), (value,), (name, value, b"\x18\x01")]))
    return field(0x0A, b"".join(parts))


@st.composite
def record(draw: st.DrawFn) -> bytes:
    body = field(0x0A, b"".join(draw(st.lists(entry(), min_size=1, max_size=3))), draw(st.integers(0, 9)) == 0)
    body = draw(st.sampled_from([body] * 8 + [body + body, body + b"\x10\x01", body[:-1], b"", b"\x0a"]))
    if draw(st.integers(0, 9)) == 0 and body:
        at = draw(st.integers(0, len(body) - 1))
        body = body[:at] + bytes((draw(st.integers(0, 255)),)) + body[at + 1 :]
    return body


def shown(read: Any) -> Any:
    try:
        batch = read()
    except CorruptDataError as error:
        return str(error)
    return {
        name: [_shown(column)] if isinstance(column, np.ndarray) else [*map(_shown, column)]
        for name, column in batch.items()
    }


def _shown(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.flags.writeable, value.tobytes()
    return type(value), value


def shard(data: bytes, samples: int, kinds: dict[str, str], *, raw: bool = False) -> Any:
    spec = {"columns": {"data": "bytes"} if raw else kinds, "encodings": {}, "raw": raw}
    info = ShardInfo("tfrecord", samples, (FileInfo("f", len(data), {}),), (), None, spec)
    return get_format("tfrecord").open(info, [data], where="the file")


def check(reader: Any, rows: list[int], columns: list[str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = np.array(rows, np.int64)
    monkeypatch.setattr(tfrecord, "_FEW", 1)
    together = shown(lambda: reader.read(taken, columns))
    monkeypatch.setattr(tfrecord, "_FEW", MANY)
    assert together == shown(lambda: reader.read(taken, columns))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.one_of(st.lists(record(), min_size=1, max_size=4), record().map(lambda one: [one, one])),
    wrong=st.sampled_from([0] * 9 + [1]),
    kinds=st.tuples(*[st.sampled_from(["bytes", "int64", "float32", "bytes[]", "int64[]", "float32[]"])] * 2),
    raw=st.sampled_from([False] * 9 + [True]),
    picks=st.lists(st.integers(0, 20), max_size=5),
    columns=st.sampled_from([None, ["a"], []]),
)
def test_records_together_are_what_they_are_one_by_one(
    records: list[bytes],
    wrong: int,
    kinds: Any,
    raw: bool,
    picks: list[int],
    columns: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = b"".join(map(frame, records[:-1])) + frame(records[-1], wrong)
    rows = [pick % len(records) for pick in picks] or list(range(len(records)))
    columns = columns and ["data"] if raw else columns
    check(shard(data, len(records), dict(zip("ab", kinds, strict=True)), raw=raw), rows, columns, monkeypatch)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["bytes", "int64", "float32", "int64[]", "float32[]"]),
    bodies=st.lists(packed, min_size=1, max_size=4),
)
def test_records_alike_but_for_their_values(kind: str, bodies: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    code = {"bytes": 1, "float32": 2, "int64": 3}[kind.removesuffix("[]")]
    values = [body for found, body in bodies if found == code]
    records = [field(0x0A, field(0x0A, field(0x0A, b"a") + field(0x12, field(code << 3 | 2, body)))) for body in values]
    if records:
        reader = shard(b"".join(map(frame, records)), len(records), {"a": kind})
        check(reader, list(range(len(records))), None, monkeypatch)


@pytest.mark.parametrize("shuffle", [False, True])
def test_what_is_written_is_read_together(
    shuffle: bool, tmp_path: Path, own_cache: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = CASES["tfrecord"].columns
    with TFRecordWriter(columns, tmp_path) as writer:
        for number in range(100):
            writer.write(sample_of(number, columns))

    def batches() -> list[Any]:
        return [
            shown(lambda batch=batch: batch)
            for batch in StreamingDataset(tmp_path, batch_size=30, shuffle=shuffle).batches()
        ]

    monkeypatch.setattr(tfrecord, "_FEW", MANY)
    one_by_one = batches()
    monkeypatch.setattr(tfrecord, "_FEW", 1)
    monkeypatch.setattr(tfrecord, "split_example", None)  # nothing is read one by one
    assert batches() == one_by_one
