"""NPY: what NumPy writes is read, and what stoker writes NumPy reads."""

from __future__ import annotations

import gc
import io
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from packed_cases import opened
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.errors import ConfigError, CorruptDataError, FormatError
from stoker.formats.arrays.npy import npy_header, parse_header
from stoker.formats.base import ReadOptions
from stoker.formats.registry import get_format
from stoker.writing.shard_formats import writer_of


def saved(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


@pytest.fixture
def _restless() -> Iterator[None]:
    """Other threads run at each garbage collection, of which there are many: as where objects have finalizers."""

    def give_way(*_: object) -> None:
        time.sleep(0)

    before = gc.get_threshold()
    gc.callbacks.append(give_way)
    gc.set_threshold(5, 2, 2)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(give_way)


@pytest.mark.usefixtures("_restless")
@pytest.mark.parametrize("kind", ["<f4", [("a", "<i8"), ("b", "<f4")]])
def test_headers_are_parsed_on_many_threads(kind: Any) -> None:
    """CPython's parser fails where two threads are in it at once."""

    def parse(number: int) -> tuple[int, ...]:
        header = npy_header(np.dtype(kind), (number, 3))
        return parse_header(lambda a, b: header[a:b], len(header) + 48 * number, "x")[1]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(parse, range(6000))) == [(number, 3) for number in range(6000)]


def test_numpy_reads_what_is_written(tmp_path: Path) -> None:
    rows = np.random.default_rng(1).random((300, 3, 2))
    with writer_of("npy")({"x": "ndarray:float64:3,2"}, tmp_path, size_limit=5000) as writer:
        writer.write_batch({"x": rows})
    shards = sorted(tmp_path.glob("*.npy"))
    assert len(shards) > 2
    assert np.array_equal(np.concatenate([np.load(path, mmap_mode="r") for path in shards]), rows)


@given(
    array=hnp.arrays(
        st.sampled_from(
            [np.dtype(kind) for kind in ("u1", "<i4", ">i8", "<f2", ">f4", "<f8", "?", "<c8", "<M8[ns]", "<U3", "S4")]
        ),
        hnp.array_shapes(min_dims=1, max_dims=4, max_side=5),
    ),
    fortran=st.booleans(),
    last=st.booleans(),
    data=st.data(),
)
@settings(max_examples=200, deadline=None)
def test_any_array_of_numpy_is_read(array: Any, fortran: bool, last: bool, data: st.DataObject) -> None:
    reader = opened(saved(np.asfortranarray(array) if fortran else array), axis=-1 if last else 0)
    expected = np.moveaxis(array, -1, 0) if last else array
    assert reader.samples == len(expected)
    rows = np.array(data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=9)), np.int64)
    found = reader.read(rows)["data"]
    if expected.dtype.kind in "SU":
        assert found == expected[rows].tolist()
    else:
        assert found.dtype == expected.dtype.newbyteorder("=")
        assert found.shape == expected[rows].shape
        assert found.tobytes() == expected[rows].astype(found.dtype).tobytes()


def test_fields_of_a_structured_array_are_columns() -> None:
    array = np.zeros(7, [("id", "<i4"), ("box", "<f4", (2, 2)), ("far", ">u2")])
    array["id"], array["far"] = np.arange(7), np.arange(7) * 300
    array["box"] = np.arange(28).reshape(7, 2, 2)
    reader = opened(saved(array))
    assert reader.columns == ("id", "box", "far")
    form: Any = get_format("npy")
    which, rows = np.array([0, 1, 0, 1]), np.array([6, 0, 2, 2])
    for name in reader.columns:
        assert np.array_equal(form.read_many([reader, opened(saved(array))], which, rows)[name], array[name][rows])


def test_a_header_is_that_of_numpy() -> None:
    for dtype, shape in ((np.dtype("<f4"), (3, 2)), (np.dtype(">i2"), (12345,)), (np.dtype("?"), (0, 7, 1))):
        array = np.zeros(shape, dtype)
        assert npy_header(dtype, shape) + array.tobytes() == saved(array)


def python_2(descr: str, shape: str, values: np.ndarray[Any, Any]) -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    text = text.ljust(-(-(len(text) + 11) // 64) * 64 - 11) + b"\n"
    return b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + values.tobytes()


@pytest.mark.filterwarnings("ignore:Reading `.npy`")
def test_headers_of_python_2_are_read(tmp_path: Path) -> None:
    values = np.arange(12.0).reshape(4, 3)
    data = python_2("'<f8'", "(4L, 3L)", values)
    assert np.array_equal(np.load(io.BytesIO(data)), values)
    assert np.array_equal(opened(data).read(np.arange(4))["data"], values)
    fields = np.zeros(4, [("1L", "<i4"), ('4L", 5L', "<f4", (2,))])
    fields["1L"] = np.arange(4)
    data = python_2("""[('1L', '<i4'), ('4L", 5L', '<f4', (2L,))]""", "(4L,)", fields)
    found = opened(data).read(np.arange(4))
    assert (found["1L"].tolist(), found['4L", 5L'].shape) == ([0, 1, 2, 3], (4, 2))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", python_2("'<f8'", "(4L, 3L)", values))
    found = opened((tmp_path / "a.npz").read_bytes(), "npz").read(np.arange(4))
    assert np.array_equal(found["x"], values)


def test_views_are_of_the_file() -> None:
    data = saved(np.arange(20.0).reshape(10, 2))
    found = opened(data, options=ReadOptions(views=True)).read(np.arange(3, 7))["data"]
    assert not found.flags.writeable
    assert np.shares_memory(found, np.frombuffer(data, np.uint8))
    assert opened(data).read(np.arange(3, 7))["data"].flags.writeable


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", CorruptDataError, "not an NPY file"),
        (b"\x93NUMPY\x09\0", CorruptDataError, "not an NPY file"),
        (saved(np.arange(5))[:-1], CorruptDataError, "bytes"),
        (saved(np.float32(3)), FormatError, "no rows"),
        (b"\x93NUMPY\1\0\x10\0" + b"__import__('os')", CorruptDataError, "not an NPY header"),
        (b"\x93NUMPY\2\0\xff\xff\xff\x7f" + bytes(100), CorruptDataError, "header claims"),
    ],
)
def test_what_is_none_is_refused(data: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"the file.*{message}"):
        opened(data)


def test_pickled_objects_are_refused() -> None:
    out = io.BytesIO()
    np.save(out, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(FormatError, match="pickled"):
        opened(out.getvalue())


def test_several_columns_and_unknown_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one column, not a, b"):
        writer_of("npy")({"a": "int", "b": "int"}, tmp_path)
    with pytest.raises(ConfigError, match="setting 'axes' is unknown"):
        open_unindexed(tmp_path, "npy", options={"axes": 1})
    with pytest.raises(ConfigError, match="axis=1"):
        opened(saved(np.arange(3)), axis=1)
