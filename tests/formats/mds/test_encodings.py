"""What an encoding keeps, what it refuses, and that no bytes can hurt a decoder."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import math
import resource
import struct
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import cases
from stoker import MDSWriter, StreamingDataset
from stoker.errors import ConfigError, FormatError, MissingPackageError
from stoker.formats.mds import encodings as registry
from stoker.formats.mds.encodings import Encoding, UnfitValueError, encoding_names, get_encoding, register_encoding

ALL = [*(n for n in encoding_names() if n != "ndarray"), "ndarray", "ndarray:int16", "ndarray:float32:2,3"]
ALL += ["ndarray:bool", "ndarray:bool:5", "ndarray:bfloat16", "ndarray:bfloat16:4"]
INTS = [f"{sign}int{bits}" for sign in ("u", "") for bits in (8, 16, 32, 64)]


def roundtrip(name: str, value: Any) -> Any:
    encoding = get_encoding(name)
    data = encoding.encode(value)
    assert encoding.size in (None, len(data))
    decoded = encoding.decode(data)
    assert cases.describe(through_column(encoding, [value])[0]) == cases.describe(decoded)
    return decoded


def through_column(encoding: Encoding, values: Any) -> list[Any]:
    """The values after the columnar forms."""
    raw = encoding.encode_column(values)
    if isinstance(raw, np.ndarray):
        assert raw.shape == (len(values), encoding.size)
        assert raw.flags.c_contiguous
        return encoding.items(encoding.decode_fixed(raw.copy()))
    return encoding.items(encoding.decode_values(raw))


# -- kept --------------------------------------------------------------------------------------------------------------


@given(st.binary())
def test_bytes_are_kept(value: bytes) -> None:
    assert roundtrip("bytes", value) == value
    assert roundtrip("bytes", bytearray(value)) == value
    assert roundtrip("bytes", memoryview(value)) == value


@given(st.text())
def test_text_is_kept(value: str) -> None:
    assert roundtrip("str", value) == value


@given(st.sampled_from(INTS), st.data())
def test_integers_in_range_are_kept(name: str, data: st.DataObject) -> None:
    info = np.iinfo(name)
    value = data.draw(st.integers(int(info.min), int(info.max)))
    decoded = roundtrip(name, value)
    assert decoded == value
    assert decoded.dtype == np.dtype(name)
    assert roundtrip(name, np.array(value, np.dtype(name))[()]) == value


@given(st.integers(-(2**63), 2**63 - 1))
def test_int_gives_pythons_int(value: int) -> None:
    assert type(roundtrip("int", value)) is int
    assert roundtrip("int", value) == value


@given(st.sampled_from([16, 32, 64]), st.data())
def test_floats_are_kept_to_the_bit(bits: int, data: st.DataObject) -> None:
    name = f"float{bits}"
    array = data.draw(hnp.arrays(np.dtype(f"uint{bits}"), 3)).view(name)
    for value in array:
        assert get_encoding(name).encode(value) == value.tobytes() or np.isnan(value)
    assert through_column(get_encoding(name), array) is not None
    assert get_encoding(name).encode_column(array).tobytes() == array.tobytes()  # type: ignore[union-attr]


@given(st.floats(width=32))
def test_floats_are_rounded_as_the_column_says(value: float) -> None:
    with np.errstate(over="ignore"):
        expected = np.float16(value)
    if np.isinf(expected) and not math.isinf(value):
        with pytest.raises(UnfitValueError):
            get_encoding("float16").encode(value)
    else:
        assert cases.describe(roundtrip("float16", value)) == cases.describe(expected) or math.isnan(value)


@given(st.integers())
def test_str_int_keeps_integers_of_any_size(value: int) -> None:
    assert roundtrip("str_int", value) == value


@given(st.floats())
def test_str_float_keeps_floats(value: float) -> None:
    assert cases.describe(roundtrip("str_float", value)) == cases.describe(value)


@given(st.decimals())
def test_str_decimal_keeps_decimals(value: Decimal) -> None:
    assert str(roundtrip("str_decimal", value)) == str(value)


@given(
    hnp.arrays(
        hnp.unsigned_integer_dtypes(endianness="?") | hnp.floating_dtypes(sizes=(16, 32, 64), endianness="?"),
        hnp.array_shapes(max_dims=5, max_side=5),
    )
)
def test_arrays_of_either_byte_order_are_kept(value: np.ndarray[Any, Any]) -> None:
    native = value.astype(value.dtype.newbyteorder("="))
    dims = ",".join(map(str, value.shape))
    for name in ("ndarray", f"ndarray:{native.dtype.name}", f"ndarray:{native.dtype.name}:{dims}"):
        decoded = roundtrip(name, value)
        assert decoded.dtype == native.dtype
        assert decoded.shape == value.shape
        assert decoded.tobytes() == native.tobytes()
        assert get_encoding(name).encode(np.asfortranarray(value)) == get_encoding(name).encode(value)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "CMYK"])
def test_raw_images_are_kept(mode: str) -> None:
    value = cases.image(1, mode)
    assert cases.describe(roundtrip("pil", value)) == cases.describe(value)
    assert [cases.describe(v) for v in roundtrip("list[pil]", [value, value])] == [cases.describe(value)] * 2


def test_a_jpeg_from_a_file_is_stored_as_that_file(tmp_path: Any) -> None:
    from PIL import Image

    path = tmp_path / "a.jpeg"
    path.write_bytes(cases.encoded("jpeg", 7))
    with Image.open(path) as opened:
        assert get_encoding("jpeg").encode(opened) == path.read_bytes()
        path.unlink()
        opened.load()
        assert get_encoding("jpeg").encode(opened)[:2] == b"\xff\xd8"


def test_bool_is_a_bool() -> None:
    assert roundtrip("bool", True) is True
    assert roundtrip("bool", np.False_) is False
    assert roundtrip("ndarray:bool:2", np.array([True, False])).dtype == np.bool_


@given(hnp.arrays(np.uint16, 8))
def test_bfloat16_keeps_its_own_numbers(bits: np.ndarray[Any, Any]) -> None:
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    quiet = np.where(np.isnan(values), bits | 0x40, bits).astype(np.uint16)
    encoded = get_encoding("bfloat16").encode_column(values)
    assert isinstance(encoded, np.ndarray)
    assert encoded.tobytes() == quiet.tobytes()
    assert roundtrip("ndarray:bfloat16:8", values).tobytes() == (quiet.astype(np.uint32) << 16).tobytes()


@pytest.mark.parametrize(("value", "expected"), [(1.00390625, 1.0), (1.01171875, 1.015625), (3.14, 3.140625), (1, 1.0)])
def test_bfloat16_rounds_to_nearest_even(value: float, expected: float) -> None:
    assert roundtrip("bfloat16", value) == np.float32(expected)


@pytest.mark.parametrize("name", ["bool", "ndarray:bool:2", "bfloat16", "ndarray:bfloat16:2", "int", "uint8"])
def test_a_batch_is_what_its_values_are(name: str) -> None:
    encoding = get_encoding(name)
    value: Any = np.array([1, 0]).astype(bool if "bool" in name else np.float32) if "ndarray" in name else 1
    values = [bool(value)] * 3 if name == "bool" else [value] * 3
    raw = encoding.encode_column(values)
    assert isinstance(raw, np.ndarray)
    assert raw.tobytes() == b"".join(map(encoding.encode, values))
    assert encoding.encode_column(np.array(values)).tobytes() == raw.tobytes()  # type: ignore[union-attr]


# -- refused -----------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[str, Any]] = [
    ("bytes", "text"),
    ("bytes", np.zeros(3, np.uint8)),
    ("str", b"bytes"),
    ("str", 3),
    ("str", "\ud800"),
    ("int", 2**63),
    ("int", 1.0),
    ("int", "3"),
    ("int", b"12345678"),
    ("int", None),
    ("uint8", 300),
    ("uint8", -1),
    ("uint8", 1.5),
    ("uint8", b"\x01"),
    ("uint8", np.array([1, 2])),
    ("int8", 128),
    ("uint64", -1),
    ("float16", 1e6),
    ("float32", 1e300),
    ("float32", 10**400),
    ("float64", "1.0"),
    ("float64", b"12345678"),
    ("float64", 1j),
    ("float64", None),
    ("float64", np.zeros(2)),
    ("bool", 1),
    ("bool", "yes"),
    ("bfloat16", 1e39),
    ("bfloat16", "1"),
    ("str_int", True),
    ("str_int", 1.0),
    ("str_float", "1.0"),
    ("str_float", 2**53 + 1),
    ("str_decimal", 1.0),
    ("str_decimal", "1"),
    ("json", {1, 2}),
    ("json", np.float32(1)),
    ("json", b"{}"),
    ("pkl", lambda: 0),
    ("ndarray", [1, 2]),
    ("ndarray", np.zeros((2, 0))),
    ("ndarray", np.array(3)),
    ("ndarray", np.array(["a"])),
    ("ndarray", np.array([1j])),
    ("ndarray", np.array([dt.datetime(2020, 1, 1)], "datetime64[s]")),
    ("ndarray", np.array([None])),
    ("ndarray", np.array([True])),
    ("ndarray", b"\x08\x04\x01\x00"),
    ("ndarray", np.ma.masked_array([1, 2], [True, False])),
    ("ndarray:uint8", np.zeros(3, np.uint16)),
    ("ndarray:uint8:3", np.zeros(4, np.uint8)),
    ("ndarray:uint8:3", np.zeros((1, 3), np.uint8)),
    ("ndarray:uint8:3", np.zeros(3, np.int8)),
    ("ndarray:uint8:3", b"abc"),
    ("ndarray:bool:3", np.zeros(3, np.uint8)),
    ("ndarray:bfloat16:2", np.array([1e39, 1.0])),
    ("pil", b"\0" * 20),
    ("pil", np.zeros((2, 2), np.uint8)),
    ("jpeg", b"GIF89a"),
    ("png", cases.encoded("jpeg", 1)),
    ("jpeg", cases.image(1, "RGBA")),
    ("list[png]", [3]),
    ("list[png]", b"\x89PNG"),
    ("jpeg_array", []),
    ("jpeg_array", [b"x"]),
    ("jpeg_array", b"\xff\xd8"),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_a_value_that_does_not_fit_is_refused_with_what_was_expected(name: str, value: Any) -> None:
    encoding = get_encoding(name)
    with pytest.raises(UnfitValueError, match="expected"):
        encoding.encode(value)
    with pytest.raises(UnfitValueError, match="expected"):
        encoding.encode_view(value)
    with pytest.raises(UnfitValueError):
        encoding.encode_column([value])


@pytest.mark.parametrize(
    ("name", "values", "row"),
    [
        ("uint8", [1, 2, 300], 2),
        ("uint8", np.array([1, -2]), 1),
        ("uint64", np.array([5, -1]), 1),
        ("int64", np.array([1, 2**64 - 1], np.uint64), 1),
        ("int", [1, 2.0], 1),
        ("float16", np.array([1, 1e6]), 1),
        ("float32", [0.0, "x"], 1),
        ("bool", [True, 1], 1),
        ("str", ["a", b"b"], 1),
        ("bytes", [b"a", "b"], 1),
        ("ndarray:uint8:2", [np.zeros(2, np.uint8), np.zeros(3, np.uint8)], 1),
        ("bfloat16", np.array([1.0, 1e39]), 1),
    ],
)
def test_a_batch_names_the_row_that_does_not_fit(name: str, values: Any, row: int) -> None:
    with pytest.raises(UnfitValueError) as caught:
        get_encoding(name).encode_column(values)
    assert caught.value.row == row


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("uint8", np.zeros(3)),
        ("uint8", np.zeros((3, 1), np.uint8)),
        ("float32", np.zeros((3, 2), np.float32)),
        ("float32", np.array(["1"])),
        ("bool", np.zeros(3, np.uint8)),
        ("ndarray:uint8:2", np.zeros((3, 3), np.uint8)),
        ("ndarray:uint8:2", np.zeros((3, 2), np.uint16)),
    ],
)
def test_an_array_of_another_kind_is_refused_whole(name: str, values: Any) -> None:
    with pytest.raises(UnfitValueError, match="expected"):
        get_encoding(name).encode_column(values)


@given(st.sampled_from(INTS), st.integers() | st.floats() | st.booleans() | st.text(max_size=3) | st.binary(max_size=8))
def test_an_integer_column_holds_what_it_was_given_or_nothing(name: str, value: Any) -> None:
    try:
        data = get_encoding(name).encode(value)
    except UnfitValueError:
        return
    assert get_encoding(name).decode(data) == value
    assert isinstance(value, int)


def test_an_image_column_without_pillow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(MissingPackageError, match=r"stoker\[images\]"):
        get_encoding("pil").decode(struct.pack("<3I", 1, 1, 1) + b"L\0")


# -- names -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "",
        "strange",
        "int:3",
        "ndarray:",
        "ndarray::3",
        "ndarray:u1",
        "ndarray:uint8:",
        "ndarray:uint8:0",
        "ndarray:uint8:-1",
        "ndarray:uint8:1,x",
        "ndarray:uint8:3:4",
        "ndarray:uint8:99999999999",
        "ndarray:object:1",
        "INT",
        "list[str]",
    ],
)
def test_an_unknown_encoding_is_named(name: str) -> None:
    with pytest.raises(FormatError, match="encoding"):
        get_encoding(name)


class Pair(Encoding):
    """Two small integers in two bytes."""

    size = 2

    def __init__(self, base: int = 0) -> None:
        self.base = base

    @classmethod
    def from_config(cls, config: str) -> Pair:
        return cls(int(config))

    def encode(self, value: Any) -> bytes:
        return bytes([value[0] - self.base, value[1] - self.base])

    def decode(self, data: bytes) -> tuple[int, int]:
        return data[0] + self.base, data[1] + self.base


def test_a_registered_encoding_is_known_by_its_name_and_parameters() -> None:
    register_encoding("test_pair", Pair, replace=True)
    assert get_encoding("test_pair").decode(get_encoding("test_pair").encode((1, 2))) == (1, 2)
    shifted = get_encoding("test_pair:100")
    assert through_column(shifted, [(100, 101), (102, 103)]) == [(100, 101), (102, 103)]
    with pytest.raises(ConfigError, match="registered already"):
        register_encoding("test_pair", Pair)
    with pytest.raises(FormatError, match="test_pair"):
        get_encoding("test_pair:x")


@pytest.mark.parametrize("name", ["int", "ndarray", "with:colon", "", " padded"])
def test_a_name_that_is_taken_or_unfit_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        register_encoding(name, Pair)


# -- untrusted bytes ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def address_space(extra: int) -> Iterator[None]:
    """At most ``extra`` bytes more of memory than now."""
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (size + extra, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def decode_anything(name: str, data: bytes) -> None:
    encoding = get_encoding(name)
    with contextlib.suppress(ValueError):
        encoding.decode(data)
    if encoding.size is not None:
        raw = np.frombuffer(data[: len(data) // encoding.size * encoding.size], np.uint8).copy()
        with contextlib.suppress(ValueError):
            encoding.decode_fixed(raw.reshape(-1, encoding.size))


@settings(deadline=None, max_examples=400)
@given(st.sampled_from([name for name in ALL if get_encoding(name).safe]), st.binary(max_size=80))
def test_no_bytes_make_a_decoder_fail_other_than_with_a_value_error(name: str, data: bytes) -> None:
    decode_anything(name, data)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted({**cases.stable_samples(), **cases.image_samples()})), st.data())
def test_no_damage_makes_a_decoder_fail_other_than_with_a_value_error(name: str, data: st.DataObject) -> None:
    columns, samples = {**cases.stable_samples(), **cases.image_samples()}[name]
    column = next(iter(columns))
    encoded = bytearray(get_encoding(columns[column]).encode(data.draw(st.sampled_from(samples))[column]))
    if encoded and columns[column] != "pkl":
        at = data.draw(st.integers(0, len(encoded) - 1))
        encoded[at] = data.draw(st.integers(0, 255))
        decode_anything(columns[column], bytes(encoded[: data.draw(st.integers(0, len(encoded)))]))
        decode_anything(columns[column], bytes(encoded))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("ndarray", bytes([66, 1 << 2 | 3]) + struct.pack("<Q", 2**60)),
        ("ndarray", bytes([66, 2 << 2 | 3]) + struct.pack("<2Q", 2**32, 2**32)),
        ("ndarray:uint8", bytes([63 << 2]) + b"\xff" * 63),
        ("pil", struct.pack("<3I", 2**31, 2**31, 3) + b"RGB" + b"x" * 100),
        ("pil", struct.pack("<3I", 2**32 - 1, 1, 1) + b"1" + b"x" * 100),
        ("pil", struct.pack("<3I", 1, 1, 2**32 - 1)),
        ("list[png]", struct.pack("<2I", 0, 2**32 - 1)),
        ("list[png]", struct.pack("<4I", 0, 2, 2**32 - 1, 2**32 - 1)),
        ("jpeg_array", struct.pack("<2I", 2**32 - 1, 5)),
        ("json", b"[" * 100000),
        ("str_int", b"9" * 100000),
    ],
)
def test_a_claim_of_much_data_costs_no_memory(name: str, data: bytes) -> None:
    get_encoding("pil").decode(struct.pack("<3I", 1, 1, 1) + b"L\0")  # Pillow is imported before memory is limited
    with address_space(64 << 20), pytest.raises(ValueError):
        get_encoding(name).decode(data)


@pytest.mark.parametrize("text", ["1e400", "-1e400", '[0.5, {"a": [1e999]}]', "1" * 310 + ".5"])
def test_a_number_that_no_float_holds_does_not_become_infinite(text: str) -> None:
    with pytest.raises(ValueError, match=r"\(-?1[1e][0-9]*\) is larger than a float holds: write it as text"):
        get_encoding("json").decode(text.encode())
    if "[" not in text:
        with pytest.raises(ValueError, match="is larger than a float holds"):
            get_encoding("str_float").decode(text.encode())


def test_infinite_numbers_that_are_written_so_are_read() -> None:
    for value in (math.inf, -math.inf, 1e308, [math.inf, {"a": -math.inf}]):
        for name in ("json", "str_float") if isinstance(value, float) else ("json",):
            encoding = get_encoding(name)
            assert encoding.decode(encoding.encode(value)) == value


def test_an_encoding_that_is_unknown_says_which_was_meant() -> None:
    for name, meant in (("string", "str"), ("Integer", "int"), ("float", "float32"), ("uint17", "uint1")):
        with pytest.raises(FormatError, match=f"encoding {name!r} is unknown; did you mean '{meant}"):
            get_encoding(name)


def test_an_array_of_another_library_is_refused_with_the_remedy() -> None:
    class Tensor:
        def __array__(
            self, dtype: object = None, copy: bool | None = None
        ) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
            return np.zeros(3, np.float32)

    with pytest.raises(ValueError, match=r"got a .*Tensor: make a NumPy array of it, numpy.asarray\(value\)"):
        through_column(get_encoding("ndarray:float32:3"), [Tensor()])


# -- an encoding of the writer's own under a built-in name ----------------------------------------------------------------


class Row(Encoding):
    """An array's bytes, as public programs store latents under ``uint8``."""

    def encode(self, value: Any) -> bytes:
        return bytes(value.tobytes())

    def decode(self, data: bytes) -> Any:
        return np.frombuffer(data, np.uint8)


class Wide(Row):
    size = 16


@pytest.mark.parametrize("own", [Row, Wide])
def test_another_encoding_under_a_built_in_name_is_told_by_its_width(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: type[Encoding]
) -> None:
    monkeypatch.setattr(registry, "_replaced", {})
    name, other = ("uint8", "int8") if own is Row else ("str", "bytes")
    with pytest.raises(ConfigError, match=rf"'{name}' is a built-in encoding.*replace=True"):
        register_encoding(name, own)
    register_encoding(name, own, replace=True)
    with MDSWriter({"latent": name, "label": other}, str(tmp_path)) as out:
        for number in range(10):
            out.write({"latent": np.full(16, number, np.uint8), "label": number if other == "int8" else b"x"})
    (shard,) = json.loads((tmp_path / "index.json").read_text())["shards"]
    assert dict(zip(shard["column_names"], shard["column_sizes"], strict=True))["latent"] == own.size
    assert StreamingDataset(str(tmp_path))[3]["latent"].tolist() == [3] * 16
    assert [row.tolist() for row in next(StreamingDataset(str(tmp_path)).batches(2))["latent"]] == [[0] * 16, [1] * 16]
    # Data of others, with the built-in one.
    with pytest.MonkeyPatch.context() as before:
        before.setattr(registry, "_replaced", {})
        with MDSWriter({"latent": name}, str(tmp_path / "others")) as out:
            out.write({"latent": 3 if name == "uint8" else "three"})
    assert StreamingDataset(str(tmp_path / "others"))[0]["latent"] in (3, "three")
    # A program that does not know it reads the other columns.
    monkeypatch.setattr(registry, "_replaced", {})
    monkeypatch.setattr(registry, "_generation", -1)
    assert len(list(StreamingDataset(str(tmp_path), columns=["label"]))) == 10
    each: list[dict[str, Any]] = [{}, {"on_bad_sample": "skip"}]
    for options in each:
        with pytest.raises(ConfigError, match=rf"column 'latent': '{name}' .* writer's own .*replace=True"):
            list(StreamingDataset(str(tmp_path), **options))
