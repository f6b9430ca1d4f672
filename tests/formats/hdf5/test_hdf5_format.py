"""HDF5: files of h5py's many kinds are read, and what stoker writes h5py reads."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packed_cases import opened
from patience import PATIENCE
from stoker import StreamingDataset
from stoker.errors import ConfigError, CorruptDataError, FormatError, StorageError
from stoker.formats.arrays.hdf5 import HDF5Format, _datasets
from stoker.formats.base import ReadOptions
from stoker.formats.common.inspect_header import ByteSource, MappedSource
from stoker.writing.shard_formats import writer_of

h5py = pytest.importorskip("h5py")

ROWS = np.arange(60, dtype=np.float32).reshape(12, 5)


def file_of(fill: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w", **options) as file:
        fill(file)
    return out.getvalue()


def test_h5py_reads_what_is_written(tmp_path: Path) -> None:
    columns = {
        "flag": "bool",
        "id": "int",
        "deep/er/row": "ndarray:float32:3,4",
        **{f"c{n}": "uint8" for n in range(40)},
    }
    rng = np.random.default_rng(3)
    batch: dict[str, Any] = {name: rng.integers(0, 200, 100, np.uint8) for name in columns}
    batch |= {"flag": batch["flag"] > 9, "id": np.arange(100), "deep/er/row": rng.random((100, 3, 4), np.float32)}
    with writer_of("hdf5")(columns, tmp_path, size_limit=5000) as writer:
        writer.write_batch(batch)
    files = sorted(tmp_path.glob("*.hdf5"))
    assert len(files) > 1
    found: dict[str, list[Any]] = {name: [] for name in columns}
    for path in files:
        with h5py.File(path, "r") as file:
            for name in columns:
                assert file[name].chunks is None
                found[name].append(file[name][()])
    for name, parts in found.items():
        assert np.array_equal(np.concatenate(parts), batch[name]), name
    assert [sample["id"] for sample in StreamingDataset(local=tmp_path)] == list(range(100))


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": (5, 2)},
        {"chunks": (3, 5), "compression": "gzip", "shuffle": True, "fletcher32": True},
        {"chunks": (3, 5), "compression": "lzf"},
        {"chunks": (4, 5), "maxshape": (None, 5)},
    ],
    ids=str,
)
def test_all_layouts_are_read(libver: str, options: dict[str, Any]) -> None:
    def fill(file: Any) -> None:
        file.create_dataset("x", data=ROWS, **options)
        file.create_dataset("a/y", data=np.arange(12, dtype=">i2"))
        file["soft"] = h5py.SoftLink("/x")
        file["elsewhere"] = h5py.ExternalLink("/etc/passwd", "/x")

    trusting = ReadOptions(allow_unsafe_types=options.get("compression") == "lzf")
    reader = opened(file_of(fill, libver=libver), "hdf5", trusting)
    assert set(reader.columns) == {"x", "a/y"}
    rows = np.array([11, 0, 3, 3])
    batch = reader.read(rows)
    assert np.array_equal(batch["x"], ROWS[rows])
    assert batch["a/y"].tolist() == rows.tolist()
    assert batch["a/y"].dtype == np.int16


def floating(fields: tuple[int, ...], size: int, bias: int, order: int = h5py.h5t.ORDER_LE) -> Any:
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(*fields)
    kind.set_size(size)
    kind.set_ebias(bias)
    kind.set_order(order)
    return kind


def integer(kind: Any, bits: int, offset: int = 0) -> Any:
    kind = kind.copy()
    kind.set_precision(bits)
    kind.set_offset(offset)
    return kind


BFLOAT16 = (15, 7, 8, 0, 7), 2, 127
STORED = {
    "bfloat16": (floating(*BFLOAT16), "f4", False),
    "bfloat16 of big end": (floating(*BFLOAT16, h5py.h5t.ORDER_BE), "f4", False),
    "float8": (floating((7, 3, 4, 0, 3), 1, 7), "f4", False),
    "float of 14 bits": (floating((13, 8, 5, 0, 8), 2, 15), "f4", False),
    "integer of 24 bits": (integer(h5py.h5t.STD_I32LE, 24), "i4", False),
    "12 bits from the 4th on": (integer(h5py.h5t.STD_U16LE, 12, 4), "u2", False),
    "bits": (h5py.h5t.STD_B8LE, "u1", False),
    "bfloat16 in arrays": (h5py.h5t.array_create(floating(*BFLOAT16), (2,)), "f4", False),
    "arrays": (h5py.h5t.array_create(h5py.h5t.STD_I32BE, (2,)), "i4", True),
    "big end": (h5py.h5t.IEEE_F64BE, "f8", True),
    "half": (h5py.h5t.IEEE_F16LE, "f2", True),
}


@pytest.mark.parametrize("layout", ["contiguous", "chunked", "compact"])
@pytest.mark.parametrize("name", STORED)
def test_types_that_numpy_does_not_have_are_converted(name: str, layout: str) -> None:
    kind, dtype, mapped = STORED[name]

    def fill(file: Any) -> None:
        made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if layout == "chunked":
            made.set_chunk((3,))
        elif layout == "compact":
            made.set_layout(h5py.h5d.COMPACT)
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((8,)), made))
        shape: tuple[int, ...] = (8, 2) if "arrays" in name else (8,)
        dataset[...] = np.broadcast_to(np.arange(8, dtype=dtype).reshape(-1, *[1] * (len(shape) - 1)), shape)

    data = file_of(fill)
    with h5py.File(io.BytesIO(data)) as file:
        expected = file["x"][()]
    assert expected.reshape(8, -1)[:, 0].tolist() == list(range(8))
    found = opened(data, "hdf5").read(np.arange(8))["x"]
    assert np.array_equal(found, expected)
    assert found.dtype == expected.dtype.newbyteorder("=")
    # Those that NumPy has are still mapped.
    where = _datasets(MappedSource(data, "the file"))["x"].start
    assert (where is not None) == (mapped and layout == "contiguous")


def padded(padding: int, charset: int) -> Any:
    kind = h5py.h5t.C_S1.copy()
    kind.set_size(6)
    kind.set_strpad(padding)
    kind.set_cset(charset)
    return kind


PADDINGS = {"null term": h5py.h5t.STR_NULLTERM, "null pad": h5py.h5t.STR_NULLPAD, "spaces": h5py.h5t.STR_SPACEPAD}


@pytest.mark.parametrize("layout", [{}, {"chunks": (3,)}, {"chunks": (3,), "compression": "gzip", "shuffle": True}])
@pytest.mark.parametrize("charset", [h5py.h5t.CSET_ASCII, h5py.h5t.CSET_UTF8])
@pytest.mark.parametrize("padding", PADDINGS)
def test_text_of_fixed_size_is_bytes_as_h5py_has_it(padding: str, charset: int, layout: dict[str, Any]) -> None:
    texts = np.frombuffer(b"a\0junkab    abcdef      \0\0\0\0\0\0x\0\0\0\0y", "S6")

    def fill(file: Any) -> None:
        kind = padded(PADDINGS[padding], charset)
        file.create_dataset("text", (6,), h5py.Datatype(kind), **layout).id.write(
            h5py.h5s.ALL, h5py.h5s.ALL, texts, kind
        )
        file["x"] = ROWS[:6]

    data = file_of(fill)
    with h5py.File(io.BytesIO(data)) as file:
        expected = file["text"][()]
    reader = opened(data, "hdf5")
    assert reader.columns == ("text", "x")
    assert list(reader.read(np.arange(6))["text"]) == expected.tolist()
    assert list(reader.read(np.array([5, 1]))["text"]) == [expected[5], expected[1]]


def test_opaque_times_and_rows_of_text_are_columns() -> None:
    times, words = np.arange(4).astype("M8[s]"), np.array([[b"a", b"bc"]] * 4)

    def fill(file: Any) -> None:
        file["time"] = times.astype(h5py.opaque_dtype(times.dtype))
        file["words"] = words

    found = opened(file_of(fill), "hdf5").read(np.arange(4))
    assert np.array_equal(found["time"], times)
    assert [list(row) for row in found["words"]] == words.tolist()


def test_a_block_before_the_file_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "block.h5"
    with h5py.File(path, "w", userblock_size=1024) as file:
        file["x"] = ROWS
    assert np.array_equal(opened(path.read_bytes(), "hdf5").read(np.arange(12))["x"], ROWS)


def test_what_is_never_written_is_zero() -> None:
    data = file_of(lambda file: file.create_dataset("x", (7, 3), "i4"))
    assert opened(data, "hdf5").read(np.arange(7))["x"].tolist() == [[0] * 3] * 7


def test_values_of_other_files_are_not_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(48)))

    def fill(file: Any) -> None:
        file.create_dataset("x", (12,), "i4", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])
        file["y"] = np.arange(12)

    data = file_of(fill)
    assert opened(data, "hdf5").columns == ("y",)
    with pytest.raises(ConfigError, match=r"'x' can not be read.*other files"):
        opened(data, "hdf5", columns=["x"])


def test_text_and_uneven_datasets_are_reported() -> None:
    def fill(file: Any) -> None:
        file["text"] = ["a", "bb"]
        file["x"] = ROWS
        file["mean"] = 3.0

    assert opened(file_of(fill), "hdf5").columns == ("x",)
    with pytest.raises(ConfigError, match="'text' can not be read"):
        opened(file_of(fill), "hdf5", columns=["text"])
    with pytest.raises(FormatError, match="differ in rows"):
        opened(file_of(lambda file: file.update({"x": ROWS, "y": np.arange(3)})), "hdf5")
    with pytest.raises(CorruptDataError, match="the file: not an HDF5 file"):
        opened(b"x" * 5000, "hdf5")


def test_a_dataset_that_claims_to_be_huge_is_refused() -> None:
    data = file_of(lambda file: file.create_dataset("x", (1 << 40, 100), "f8", chunks=(1000, 100)))
    with pytest.raises(CorruptDataError, match=r"impossible|claim"):
        opened(data, "hdf5").read(np.arange(3))
    data = file_of(lambda file: file.create_dataset("x", (1 << 22, 1000), "f8", chunks=(1000, 100)))
    with pytest.raises(CorruptDataError, match="claim"):
        opened(data, "hdf5").read(np.arange(3))


class _Far:
    """A file that is read from elsewhere, and what is to be done at each read."""

    def __init__(self, data: bytes, reads: Callable[[int], None]) -> None:
        self.where = "there"
        self.size = len(data)
        self._data, self._reads = data, reads

    def read(self, start: int, end: int) -> bytes:
        self._reads(start)
        return self._data[start:end]


def _scattered() -> bytes:
    """A file whose headers lie in more places than are read beforehand."""

    def fill(file: Any) -> None:
        for number in range(20):
            file[f"x{number:02}"] = np.zeros(20_000)

    return file_of(fill)


def test_headers_of_a_far_file_are_those_of_a_near_one() -> None:
    data, starts = _scattered(), list[int]()
    far: ByteSource = _Far(data, starts.append)
    assert HDF5Format().inspect_header(far, {}) == HDF5Format().inspect_header(MappedSource(data, "here"), {})
    assert len(starts) < 50


def test_other_threads_use_hdf5_while_one_waits_for_a_store() -> None:
    used: list[bool] = []

    def open_another() -> None:
        file_of(lambda file: file.update({"x": ROWS}))

    def use(start: int) -> None:
        thread = threading.Thread(target=open_another, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        used.append(not thread.is_alive())

    facts = HDF5Format().inspect_header(_Far(file_of(lambda file: file.update({"x": ROWS})), use), {})
    assert facts.samples == len(ROWS)
    assert used
    assert all(used)


@pytest.mark.parametrize("most", [0, 200_000, 2_900_000])
def test_what_a_store_fails_with_is_told(most: int) -> None:
    def fail(start: int) -> None:
        if start >= most:
            raise StorageError("the store is gone")

    with pytest.raises(StorageError, match="the store is gone"):
        HDF5Format().inspect_header(_Far(_scattered(), fail), {})


@pytest.mark.processes
def test_who_keeps_the_error_of_a_damaged_file_ends_well(tmp_path: Path) -> None:
    """HDF5 releases what it holds when the interpreter is gone; it must hold nothing of Python's by then."""
    good = file_of(lambda file: file.create_dataset("x", data=ROWS, chunks=(5, 5), compression="gzip"))
    at = good.index(b"TREE") + 40
    (tmp_path / "a.h5").write_bytes(b"\x00" * 4096)
    (tmp_path / "b.h5").write_bytes(good[:at] + bytes(200) + good[at + 200 :])
    told = subprocess.run(
        [sys.executable, "-c", _KEEPS_ERRORS, str(tmp_path / "a.h5"), str(tmp_path / "b.h5")],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert told.returncode == 0, (told.returncode, told.stderr)
    assert told.stdout.split() == ["CorruptDataError", "CorruptDataError"]


_KEEPS_ERRORS = """
import sys, threading, time
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.formats.arrays.hdf5 import HDF5Format, _datasets
from stoker.formats.common.inspect_header import MappedSource
from stoker.formats.base import ShardInfo, FileInfo

kept = []
threading.Thread(target=lambda kept: time.sleep(100), args=(kept,), daemon=True).start()
for path in sys.argv[1:]:
    data = open(path, "rb").read()
    try:
        format = HDF5Format()
        found = format.inspect_header(MappedSource(data, path), {})
        info = ShardInfo("hdf5", found.samples, (FileInfo(path, len(data), {}),), (), None, found.spec)
        format.open(info, [data], where=path).read([0, 1, 11])
    except Exception as error:
        print(type(error).__name__)
        kept.append(error)
"""
