"""Chunked datasets of HDF5 come out as h5py reads them, and chunks that lie are refused."""

from __future__ import annotations

import io
import zlib
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packed_cases import opened
from stoker.errors import CorruptDataError, UnsafeDataError
from stoker.formats.arrays.hdf5 import find_chunks
from stoker.formats.base import ReadOptions

FILTERS = st.fixed_dictionaries(
    {},
    optional={"compression": st.just("gzip"), "shuffle": st.just(True), "fletcher32": st.just(True)},
)


def write(values: Any, **how: Any) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w", userblock_size=how.pop("userblock_size", 0)) as file:
        file.create_dataset("x", data=values, **how)
    return out.getvalue()


@settings(max_examples=150)
@given(data=st.data(), how=FILTERS)
def test_values_are_those_that_h5py_reads(data: st.DataObject, how: dict[str, Any]) -> None:
    dtype = np.dtype(data.draw(st.sampled_from(["u1", "<i2", ">i4", "<f4", ">f8", "?", "<c8", "i4,f4"])))
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    chunks = tuple(data.draw(st.integers(1, 10)) for _ in shape)
    fill = 7 if dtype.kind in "iuf" else None
    user = data.draw(st.sampled_from([0, 512]))
    values = np.random.default_rng(0).integers(0, 99, shape).astype(dtype)
    out = io.BytesIO()
    with h5py.File(out, "w", userblock_size=user) as file:
        made = file.create_dataset(
            "x", shape, dtype, maxshape=[None] * len(shape), chunks=chunks, fillvalue=fill, **how
        )
        some = tuple(slice(0, data.draw(st.integers(0, extent))) for extent in shape)
        made[some] = values[some]
    whole = out.getvalue()
    assert np.array_equal(opened(whole, "hdf5").array("x"), values_of(whole))
    with h5py.File(io.BytesIO(whole)) as file:
        expected, described = file["x"][()], find_chunks(h5py, file["x"], whole, "here", trusted=False)
    assert described is not None
    found = described.decode()
    assert (found is not None) == (dtype.kind in "biufc")  # the rest is left to h5py
    if found is not None:
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)


def values_of(data: bytes) -> Any:
    with h5py.File(io.BytesIO(data)) as file:
        return file["x"][()]


@pytest.mark.parametrize(("how", "name"), [({"scaleoffset": 0}, "scaleoffset"), ({"compression": "lzf"}, "lzf")])
def test_filters_that_trust_the_file_need_consent(how: dict[str, Any], name: str) -> None:
    values = np.arange(64, dtype=np.int32).reshape(8, 8)
    data = write(values, chunks=(4, 8), **how)
    with pytest.raises(UnsafeDataError, match=rf"filter '{name}'.*allow_unsafe_types=True"):
        opened(data, "hdf5").read(np.arange(8))
    trusting = opened(data, "hdf5", ReadOptions(allow_unsafe_types=True))
    assert np.array_equal(trusting.read(np.arange(8))["x"], values)


def test_chunks_that_h5py_reads_are_checked_before() -> None:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        made = file.create_dataset("x", (6,), "i4,f4", chunks=(6,), compression="gzip")
        made.id.write_direct_chunk((0,), zlib.compress(b"too few"))
    with pytest.raises(CorruptDataError, match="7 bytes where"):
        opened(out.getvalue(), "hdf5").read(np.arange(6))


def test_a_wrong_byte_does_not_have_its_checksum() -> None:
    data = bytearray(write(np.arange(100, dtype=np.int32), chunks=(50,), fletcher32=True))
    place = bytes(data).index(np.arange(50, dtype=np.int32).tobytes())
    for at in (place, place + 77, place + 199, place + 200, place + 203):
        bad = data.copy()
        bad[at] ^= 1
        with pytest.raises(
            CorruptDataError, match=r"the file: dataset 'x' does not decode: the chunk at \(0,\): .*checksum"
        ):
            opened(bytes(bad), "hdf5").read(np.arange(100))


@pytest.mark.parametrize("stored", [b"", b"abc"])
def test_a_chunk_too_short_for_its_checksum_is_refused(stored: bytes) -> None:
    data = write(np.arange(6, dtype=np.int32), chunks=(6,), fletcher32=True)
    with h5py.File(io.BytesIO(data)) as file:
        info = file["x"].id.get_chunk_info(0)
    # The size of a chunk stands in the B-tree, before its mask of filters and its place.
    key = info.size.to_bytes(4, "little") + bytes(4) + bytes(16)
    assert data.count(key) == 1
    reader = opened(data.replace(key, len(stored).to_bytes(4, "little") + key[4:]), "hdf5")
    with pytest.raises(CorruptDataError, match="dataset 'x' does not decode"):
        reader.read(np.arange(6))


def test_a_chunk_that_unpacks_to_more_than_it_holds_takes_no_memory() -> None:
    bomb = zlib.compress(bytes(1 << 28), 1)
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        made = file.create_dataset("x", (6,), "i4", chunks=(6,), compression="gzip")
        made.id.write_direct_chunk((0,), bomb)
    reader = opened(out.getvalue(), "hdf5")
    before = peak()
    with pytest.raises(CorruptDataError, match="does not unpack to 24 bytes"):
        reader.read(np.arange(6))
    assert peak() - before < 100 << 10


def peak() -> int:
    """KiB that this process had at most."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def test_groups_in_a_circle_are_no_endless_walk() -> None:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file["x"] = np.arange(3)
        for number in range(3):
            file[f"again{number}"] = file["/"]
    with pytest.raises(CorruptDataError, match="in a circle"):
        opened(out.getvalue(), "hdf5")
