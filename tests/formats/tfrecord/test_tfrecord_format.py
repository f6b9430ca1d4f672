"""TFRecord: Examples as protocol buffers have them, checksums, and readers that are not ours."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packed_cases import CASES, opened, sample_of, tiny_image
from stoker import StreamingDataset
from stoker.errors import ConfigError, CorruptDataError, FormatError
from stoker.formats.tfrecord.example import (
    crc32c_function,
    crc_of_lengths,
    feature_values,
    has_one_value,
    mask,
    masked,
    pack_integers,
    split_example,
)
from stoker.writing.shard_formats import TFRecordWriter

crc32c = pytest.importorskip("crc32c")
loader = pytest.importorskip("tfrecord.reader")
example_pb2 = pytest.importorskip("tfrecord.example_pb2")


def masked_crc(data: bytes) -> int:
    """As TensorFlow's documents have it, by a library that stoker does not use."""
    crc: int = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def file_of(records: list[bytes]) -> bytes:
    out = b""
    for record in records:
        head = struct.pack("<Q", len(record))
        out += head + struct.pack("<I", masked_crc(head)) + record + struct.pack("<I", masked_crc(record))
    return out


def example(**features: Any) -> bytes:
    message = example_pb2.Example()
    for name, values in features.items():
        feature = message.features.feature[name]
        if values and isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif values and isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
    data: bytes = message.SerializeToString()
    return data


def test_checksums_are_those_of_another_library() -> None:
    assert crc32c_function()(b"123456789") == 0xE3069283
    assert mask(crc32c_function()(b"123456789")) == masked_crc(b"123456789")
    numbers = np.array([0, 1, 255, 1 << 40, (1 << 62) + 5])
    expected = [masked_crc(struct.pack("<Q", number)) for number in numbers.tolist()]
    assert masked(crc_of_lengths(numbers)).tolist() == expected


def test_another_reader_reads_what_is_written(tmp_path: Path) -> None:
    columns = CASES["tfrecord"].columns
    with TFRecordWriter(columns, tmp_path, size_limit=20_000) as writer:
        for number in range(80):
            writer.write(sample_of(number, columns))
    number = 0
    for path in sorted(tmp_path.glob("*.tfrecord")):
        data = path.read_bytes()
        place = 0
        while place < len(data):  # frames and checksums, by hand
            (length,) = struct.unpack_from("<Q", data, place)
            assert struct.unpack_from("<I", data, place + 8)[0] == masked_crc(data[place : place + 8])
            record = data[place + 12 : place + 12 + length]
            assert struct.unpack_from("<I", data, place + 12 + length)[0] == masked_crc(record)
            place += 16 + length
            message = example_pb2.Example.FromString(record)
            expected = sample_of(number, columns)
            feature = message.features.feature
            assert feature["id"].int64_list.value == [number]
            assert feature["flag"].int64_list.value == [expected["flag"]]
            assert list(feature["row"].float_list.value) == expected["row"].tolist()
            assert feature["text"].bytes_list.value == [expected["text"].encode()]
            assert feature["pixels"].bytes_list.value == [expected["pixels"].tobytes()]
            number += 1
        theirs = list(loader.tfrecord_loader(str(path), None, None))
        assert theirs[-1]["id"].tolist() == [number - 1]
    assert number == 80


@pytest.mark.parametrize("number", [0, 7, 300, 1 << 40, -1])
def test_one_value_is_told_by_few_bytes(number: int) -> None:
    """Of a feature that holds megabytes, its kind and whether it is a list are known without them."""
    values = {
        "one": [number],
        "two": [number, 1],
        "blob": [b"x" * 100_000],
        "blobs": [b"x", b"y"],
        "many": [1.5] * 9000,
    }
    record = example(**values)
    looked: list[slice] = []

    class Looked(bytes):
        def __getitem__(self, at: Any) -> Any:
            looked.append(at if isinstance(at, slice) else slice(at, at + 1))
            return super().__getitem__(at)

    data = Looked(record)
    told = {name.decode(): has_one_value(data, *found) for name, found in split_example(data).items()}
    assert told == {"one": True, "two": False, "blob": True, "blobs": False, "many": False}
    assert sum(at.stop - at.start for at in looked) < 500


INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(
    values=st.lists(
        st.tuples(st.binary(max_size=300), INT64, st.floats(width=32, allow_nan=False), st.lists(INT64, max_size=40)),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=150, deadline=None)
def test_examples_of_protobuf_are_read(values: list[tuple[bytes, int, float, list[int]]]) -> None:
    records = [example(a=[blob], b=[number], c=[real], d=many) for blob, number, real, many in values]
    kinds = {"a": "bytes", "b": "int64", "c": "float32", "d": "int64[]"}
    reader = opened(file_of(records), "tfrecord", columns=kinds)
    batch = reader.read(np.arange(len(values)))
    assert batch["a"] == [one[0] for one in values]
    assert batch["b"].tolist() == [one[1] for one in values]
    assert batch["c"].tolist() == [one[2] for one in values]
    assert [[] if row is None else row.tolist() for row in batch["d"]] == [one[3] for one in values]


@given(values=st.lists(INT64, max_size=60))
def test_packed_integers_are_those_of_protobuf(values: list[int]) -> None:
    data = example(x=values)
    message = example_pb2.Int64List(value=values).SerializeToString()
    packed = pack_integers(np.array(values, np.int64))
    assert message.endswith(packed)
    found = split_example(data)
    kind, begin, end = found.get(b"x", (0, 0, 0))
    assert list(feature_values(data, kind, begin, end)) == values


def test_integers_and_floats_one_by_one_are_read() -> None:
    """Writers before packed fields wrote a tag for each value."""
    listed = b"".join(b"\x08" + bytes([n]) for n in (1, 2, 3))
    floats = b"".join(b"\x0d" + struct.pack("<f", n) for n in (0.5, 1.5))

    def entry(name: bytes, kind: int, body: bytes) -> bytes:
        feature = bytes([kind << 3 | 2, len(body)]) + body
        inner = b"\x0a" + bytes([len(name)]) + name + b"\x12" + bytes([len(feature)]) + feature
        return b"\x0a" + bytes([len(inner)]) + inner

    features = entry(b"i", 3, listed) + entry(b"f", 2, floats)
    data = b"\x0a" + bytes([len(features)]) + features + b"\x18\x05"  # an unknown field, too
    batch = opened(file_of([data]), "tfrecord").read(np.array([0, 0]))
    assert batch["i"].tolist() == [[1, 2, 3]] * 2
    assert batch["f"].tolist() == [[0.5, 1.5]] * 2


def test_features_are_found_out_and_chosen() -> None:
    records = [
        example(image=[b"x" * n], label=[n], box=[0.5] * (n % 3), **({"only": [b"o"]} if n else {})) for n in range(9)
    ]
    reader = opened(file_of(records), "tfrecord")
    batch = reader.read(np.array([8, 0]))
    assert batch["label"].tolist() == [8, 0]
    assert batch["image"] == [b"x" * 8, b""]
    assert batch["only"] == [b"o", None]
    assert batch["box"][0].tolist() == [0.5, 0.5]
    one = opened(file_of(records), "tfrecord", columns=["image"], encodings={"image": "str"}).read(np.array([3]))
    assert one == {"image": ["xxx"]}
    with pytest.raises(ConfigError, match="feature 'z' is unknown"):
        opened(file_of(records), "tfrecord", columns=["z"])
    late = [example(x=[1])] * 40 + [example(x=[1, 2])]
    with pytest.raises(CorruptDataError, match=r"record 40.*columns=\{'x': 'int64\[\]'\}"):
        opened(file_of(late), "tfrecord").read(np.arange(41))
    assert opened(file_of(late), "tfrecord", columns={"x": "int64[]"}).read(np.array([40]))["x"].tolist() == [[1, 2]]


@pytest.mark.parametrize("rows", [range(2001), [2000], [1999, 2000]])
def test_a_feature_that_first_comes_late_is_an_error(rows: Any) -> None:
    data = file_of([example(x=[1], y=[b"a"], none=[])] * 2000 + [example(x=[2], z=[1.0, 2.0])])
    told = r"record 2000: .*feature 'z' is not in the first records.*'x': 'int64', 'y': 'bytes', 'z': 'float32\[\]'\}\}"
    with pytest.raises(CorruptDataError, match=told):
        opened(data, "tfrecord").read(np.array(rows))
    # What is chosen is all that is read.
    assert opened(data, "tfrecord", columns=["x"]).read(np.array(rows))["x"][-1] == 2
    assert opened(data, "tfrecord").read(np.array(rows), ["x"])["x"][-1] == 2
    every = opened(data, "tfrecord", columns={"x": "int64", "y": "bytes", "z": "float32[]"}).read(np.array([2000, 3]))
    assert (every["y"], every["z"][0].tolist(), every["z"][1]) == ([None, b"a"], [1.0, 2.0], None)


def sequence(x: int, *frames: float) -> bytes:
    """A SequenceExample; its feature list ``rgb`` has these frames."""
    message = b"".join(b"\x0a\x08\x12\x06\x0a\x04" + struct.pack("<f", frame) for frame in frames)
    entry = b"\x0a\x03rgb\x12" + bytes([len(message)]) + message
    lists = b"\x0a" + bytes([len(entry)]) + entry if frames else b""
    return example(x=[x]) + b"\x12" + bytes([len(lists)]) + lists


def test_feature_lists_of_sequence_examples_are_not_left_out() -> None:
    data = file_of([sequence(n, 0.25, n) for n in range(3)])
    with pytest.raises(FormatError, match=r"'rgb' is a feature list, of a tf.train.SequenceExample.*'raw': True"):
        opened(data, "tfrecord")
    with pytest.raises(FormatError, match="'rgb' is a feature list"):
        opened(data, "tfrecord", columns=["rgb"])
    assert opened(data, "tfrecord", raw=True).read(np.arange(3))["data"] == [sequence(n, 0.25, n) for n in range(3)]
    for columns in (["x"], {"x": "int64"}):
        assert opened(data, "tfrecord", columns=columns).read(np.arange(3))["x"].tolist() == [0, 1, 2]
    with pytest.raises(CorruptDataError, match="feature 'rgb' is of feature lists, not of float32"):
        opened(data, "tfrecord", columns={"rgb": "float32[]"}).read(np.arange(3))
    late = file_of([*[sequence(n) for n in range(40)], sequence(40, 1.0)])
    with pytest.raises(CorruptDataError, match=r"record 40: .*'rgb' is a feature list"):
        opened(late, "tfrecord").read(np.arange(41))
    assert opened(late, "tfrecord").read(np.arange(40))["x"].tolist() == list(range(40))
    # Other messages with a second field are plain bytes.
    others = [b"\x0a\x03abc\x12\x03def"] * 2
    assert opened(file_of(others), "tfrecord").read(np.arange(2)) == {"data": others}


def test_records_of_plain_bytes(tmp_path: Path) -> None:
    records = [b"\x00\x01 not a message", b"", b"\xff" * 30]
    assert opened(file_of(records), "tfrecord").read(np.arange(3)) == {"data": records}
    with pytest.raises(CorruptDataError, match=r"not a tf\.train\.Example"):
        opened(file_of(records), "tfrecord", raw=False)
    assert opened(file_of([example(x=[1])]), "tfrecord", raw=True).columns == ("data",)
    with TFRecordWriter({"x": "bytes"}, tmp_path, raw=True) as writer:
        for record in records:
            writer.write({"x": record})
    assert (tmp_path / "shard.00000.tfrecord").read_bytes() == file_of(records)
    assert [sample["x"] for sample in StreamingDataset(local=tmp_path)] == records
    with pytest.raises(ConfigError, match="one column"):
        TFRecordWriter({"x": "bytes", "y": "int"}, tmp_path / "b", raw=True)


def test_a_wrong_checksum_is_found() -> None:
    data = file_of([example(x=[b"abc"]), example(x=[b"def"])])
    for place, message in (
        (3, "cut off|checksum"),
        (9, "record 0.*length"),
        (16, "record 0 does not"),
        (len(data) - 1, "record 1"),
    ):
        changed = bytearray(data)
        changed[place] ^= 4
        with pytest.raises(CorruptDataError, match=f"the file.*({message})"):
            opened(bytes(changed), "tfrecord", columns={"x": "bytes"}).read(np.arange(2))
    for cut in (1, 11, len(data) // 2 + 1, len(data) - 1):
        with pytest.raises(CorruptDataError, match="the file"):
            opened(data[:cut], "tfrecord")


def test_a_missing_feature_that_is_declared_of_a_fixed_width_is_none() -> None:
    records = [example(x=[b"\x01\0\0\0"], y=[b"y"]), example(y=[b"y"])]
    batch = opened(file_of(records), "tfrecord", encodings={"x": "int32"}).read(np.array([1, 0, 1]))
    assert batch["x"] == [None, 1, None]


def test_a_feature_declared_as_something_else_is_distinguished_from_damaged_data() -> None:
    reader = opened(file_of([example(image=[tiny_image(0, "jpeg")])]), "tfrecord", encodings={"image": "pil"})
    with pytest.raises(ConfigError, match=r"holds a JPEG image, and is declared as 'pil' .*: declare it as 'jpeg'"):
        reader.read(np.array([0]))
