"""NPZ: archives of NumPy's and of other tools are read, and what stoker writes NumPy and unzip read."""

from __future__ import annotations

import contextlib
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packed_cases import opened
from stoker.errors import ConfigError, CorruptDataError, FormatError, StokerError
from stoker.formats.arrays.npz import read_arrays
from stoker.writing.shard_formats import writer_of

COLUMNS = {"flag": "bool", "id": "uint16", "row": "ndarray:float32:3", "sub/tokens": "ndarray:int64:4"}


def rows_of(count: int) -> dict[str, Any]:
    rng = np.random.default_rng(count)
    return {
        "flag": rng.random(count) < 0.5,
        "id": np.arange(count, dtype=np.uint16),
        "row": rng.random((count, 3), np.float32),
        "sub/tokens": rng.integers(-9, 9, (count, 4)),
    }


def test_numpy_and_zipfile_read_what_is_written(tmp_path: Path) -> None:
    columns = rows_of(200)
    with writer_of("npz")(COLUMNS, tmp_path, size_limit=4000) as writer:
        writer.write_batch(columns)
    shards = sorted(tmp_path.glob("*.npz"))
    assert len(shards) > 1
    for path in shards:
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            for info in archive.infolist():
                head = path.read_bytes()[info.header_offset :][:30]
                lengths = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
                assert (info.header_offset + 30 + lengths) % 64 == 0
    loaded = [np.load(path) for path in shards]
    for name, values in columns.items():
        found = np.concatenate([one[name] for one in loaded])
        assert found.dtype == values.dtype
        assert np.array_equal(found, values)


@given(count=st.integers(1, 30), packed=st.booleans(), rows=st.lists(st.integers(0, 1 << 20), max_size=12))
@settings(max_examples=60, deadline=None)
def test_archives_of_numpy_are_read(count: int, packed: bool, rows: list[int]) -> None:
    columns = rows_of(count)
    out = io.BytesIO()
    (np.savez_compressed if packed else np.savez)(out, **columns)
    reader = opened(out.getvalue(), "npz")
    assert reader.samples == count
    chosen = np.array(rows, np.int64) % count
    batch = reader.read(chosen)
    for name, values in columns.items():
        assert np.array_equal(batch[name], values[chosen])


def test_samples_along_the_last_axis_as_dlio_writes_them() -> None:
    records = np.arange(4 * 5 * 6, dtype=np.uint8).reshape(4, 5, 6)
    out = io.BytesIO()
    np.savez(out, x=records, y=[0] * 6)
    reader = opened(out.getvalue(), "npz", axis=-1)
    assert reader.samples == 6
    batch = reader.read(np.array([5, 0]))
    assert np.array_equal(batch["x"][0], records[..., 5])
    assert batch["y"].tolist() == [0, 0]
    with pytest.raises(FormatError, match=r"differ in rows.*format_options=\{\"columns\": \['x'\]\}"):
        opened(out.getvalue(), "npz")


def test_some_arrays_are_chosen() -> None:
    out = io.BytesIO()
    np.savez(out, x=np.arange(6), mean=np.float32(3), other=np.arange(9))
    reader = opened(out.getvalue(), "npz", columns=["x"])
    assert reader.columns == ("x",)
    with pytest.raises(ConfigError, match="array 'z' is unknown"):
        opened(out.getvalue(), "npz", columns=["z"])
    with pytest.raises(FormatError, match=r"'mean'.*has no rows"):
        opened(out.getvalue(), "npz", columns=["x", "mean"])


def test_an_archive_that_claims_more_than_it_holds_is_refused() -> None:
    out = io.BytesIO()
    np.savez_compressed(out, x=np.zeros(1 << 20))
    data = bytearray(out.getvalue())
    place = data.rindex(b"PK\1\2") + 24
    data[place : place + 4] = (1 << 31).to_bytes(4, "little")
    with pytest.raises(CorruptDataError, match=r"array 'x'.*(unpack|claim|cut off)"):
        opened(bytes(data), "npz").read(np.arange(4))
    with pytest.raises(CorruptDataError, match="not an NPZ file"):
        opened(out.getvalue()[:-30], "npz")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", bytes(100))
    with pytest.raises(FormatError, match="compressed otherwise"):
        opened(out.getvalue(), "npz")


# -- whole files ---------------------------------------------------------------------------------------------------

ARRAYS = st.dictionaries(
    st.text("abcxyzé", min_size=1, max_size=4),
    st.builds(
        lambda kind, shape, fortran: np.array(
            np.arange(int(np.prod(shape)), dtype=kind).reshape(shape), order="F" if fortran else "C"
        ),
        st.sampled_from(["u1", "<i4", ">f8", "<f2"]),
        st.lists(st.integers(0, 4), max_size=3).map(tuple),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@given(ARRAYS, st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=3))
@settings(deadline=None, max_examples=100)
def test_arrays_of_a_file_are_what_numpy_reads_and_damage_makes_no_error_of_others(
    save: Any, arrays: dict[str, Any], flips: list[tuple[float, int]]
) -> None:
    file = io.BytesIO()
    save(file, **arrays)
    data = bytearray(file.getvalue())
    found = read_arrays(bytes(data), "it")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    for place, value in flips:
        data[int(place * len(data))] = value
    for damaged in (bytes(data), bytes(data)[: len(data) // 2]):
        with contextlib.suppress(StokerError):
            read_arrays(damaged, "it")
