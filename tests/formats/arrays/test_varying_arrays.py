"""NPY, NPZ and HDF5 files whose samples differ in shape from file to file: every one comes back as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from s3server import Bucket
from stoker import ReadOptions, StreamingDataset
from stoker.errors import ConfigError, FormatError, IndexFileError
from stoker.loaders.dataloader import StreamingDataLoader
from stoker.storage import open_store

CASES = 13
WHOLE = {"axis": None}

pytestmark = pytest.mark.usefixtures("own_cache")


def case(number: int) -> dict[str, Any]:
    """A scan and its mask, of the case's own height and depth, and a number."""
    shape = 3 + number % 4, 5, 2 + number % 3
    image = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + number
    return {"image": image, "mask": (image % 3).astype(np.uint8), "age": np.int32(number)}


def fill(folder: Path, form: str, *, compressed: bool = False) -> Path:
    folder.mkdir(parents=True)
    for number in range(CASES):
        path = folder / f"case_{number:03}.{form}"
        if form == "npy":
            # Every other one in Fortran's order, as what comes from MATLAB and NIfTI is.
            image = case(number)["image"]
            np.save(path, np.asfortranarray(image) if number % 2 else image)
        else:
            (np.savez_compressed if compressed else np.savez)(path, **case(number))
    return folder


def same(sample: dict[str, Any], form: str) -> int:
    """The number of a sample that came back whole."""
    image = sample["data"] if form == "npy" else sample["image"]
    number = int(image.flat[0])
    expected = case(number)
    if form == "npy":
        expected = {"data": expected["image"]}
    assert sample.keys() == expected.keys()
    for name, value in expected.items():
        assert sample[name].dtype == value.dtype, name
        assert np.array_equal(sample[name], value), name
    return number


@pytest.mark.parametrize(("form", "compressed"), [("npy", False), ("npz", False), ("npz", True)])
@pytest.mark.parametrize("place", ["directory", pytest.param("s3", marks=pytest.mark.s3)])
def test_a_sample_a_file_is_streamed_shuffled_and_resumed(
    form: str, compressed: bool, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = fill(tmp_path / "data", form, compressed=compressed)
    where: dict[str, Any] = {"remote": folder, "format": form, "format_options": WHOLE}
    if place == "s3":
        bucket: Bucket = request.getfixturevalue("bucket")
        store = open_store(f"{bucket.url}/scans", bucket.storage_options)
        for path in folder.iterdir():
            store.put(path.name, path.read_bytes())
        where.update(remote=f"{bucket.url}/scans", storage_options=bucket.storage_options, local=tmp_path / "cache")
    plain = StreamingDataset(**where)
    assert [same(sample, form) for sample in plain] == list(range(CASES))
    shuffled = StreamingDataset(**where, shuffle=True, batch_size=4)
    numbers = [same(sample, form) for sample in shuffled]
    assert sorted(numbers) == list(range(CASES))
    assert numbers != sorted(numbers)
    again = StreamingDataset(**where, shuffle=True, batch_size=4)
    iterator = iter(again)
    head = [same(next(iterator), form) for _ in range(8)]
    resumed = StreamingDataset(**where, shuffle=True, batch_size=4)
    resumed.load_state_dict(again.state_dict())
    assert head + [same(sample, form) for sample in resumed] == numbers


@pytest.mark.parametrize("views", [False, True])
def test_a_column_of_differing_shapes_is_a_list_and_one_of_equal_shapes_an_array(views: bool, tmp_path: Path) -> None:
    folder = fill(tmp_path / "data", "npz")
    dataset = StreamingDataset(
        remote=folder, format="npz", format_options=WHOLE, batch_size=4, read=ReadOptions(views=views)
    )
    found = 0
    for batch in dataset.batches():
        assert isinstance(batch["image"], list)
        assert isinstance(batch["age"], np.ndarray)
        for place in range(len(batch["image"])):
            found += same({name: column[place] for name, column in batch.items()}, "npz") == found
            assert batch["image"][place].flags.writeable is not views
    assert found == CASES
    # Two files of one shape are a list, too: what a batch is does not depend on what chance puts into it.
    pair = dataset.read(np.array([0, 12]), ["image"])["image"]
    assert isinstance(pair, list)
    assert pair[0].shape == pair[1].shape
    assert isinstance(dataset.read(np.array([3]), ["image"])["image"], list)


def test_rows_differ_from_file_to_file_and_not_within_one(tmp_path: Path) -> None:
    for number in range(5):
        np.save(tmp_path / f"{number}.npy", np.full((4, 2 + number), number, np.int64))
    dataset = StreamingDataset(remote=tmp_path, format="npy", shuffle=True, batch_size=6)
    rows = [row for batch in dataset.batches() for row in batch["data"]]
    assert sorted(map(len, rows)) == sorted([2, 3, 4, 5, 6] * 4)
    assert all((row == len(row) - 2).all() for row in rows)


def test_rows_of_hdf5_files_differ_from_file_to_file(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    for number in range(3):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["x"] = np.full((2, 3 + number), number, np.float32)
    dataset = StreamingDataset(remote=tmp_path, format="hdf5", batch_size=6)
    (batch,) = dataset.batches()
    assert [row.tolist() for row in batch["x"]] == [[n] * (3 + n) for n in (0.0, 1.0, 2.0) for n in [int(n)] * 2]


@pytest.mark.processes
def test_workers_of_a_loader_bring_them(tmp_path: Path) -> None:
    folder = fill(tmp_path / "data", "npz")
    dataset = StreamingDataset(remote=folder, format="npz", format_options=WHOLE, shuffle=True, batch_size=4)
    numbers = []
    for batch in StreamingDataLoader(dataset, num_workers=2, columnar=True):
        assert batch["age"].shape == (len(batch["image"]),)
        for place, image in enumerate(batch["image"]):
            sample = {"image": image, "mask": batch["mask"][place], "age": batch["age"][place].numpy()}
            numbers.append(same(sample, "npz"))
    assert sorted(numbers) == list(range(CASES))


@given(
    arrays=st.lists(
        hnp.arrays(
            st.just(np.dtype(">i2")),
            hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
            fill=st.nothing(),
        ),
        min_size=1,
        max_size=5,
    ),
    compressed=st.booleans(),
    data=st.data(),
)
@settings(max_examples=40, deadline=None)
def test_arrays_of_any_shapes_come_back(
    arrays: list[Any], compressed: bool, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("arrays")
    for number, array in enumerate(arrays):
        (np.savez_compressed if compressed else np.savez)(folder / f"{number}.npz", x=array)
    dataset = StreamingDataset(remote=folder, format="npz", format_options=WHOLE)
    ids = data.draw(st.lists(st.integers(0, len(arrays) - 1), min_size=1, max_size=7))
    for found, number in zip(dataset.read(np.array(ids))["x"], ids, strict=True):
        expected = arrays[number].astype("=i2")
        assert found.dtype == expected.dtype
        assert np.shape(found) == expected.shape
        assert np.array_equal(found, expected)


def test_text_of_other_lengths_is_still_text(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", label=np.array(["cat", "horse"]), code=np.array([b"x", b"yy"]))
    np.savez(tmp_path / "b.npz", label=np.array(["ox", "é"]), code=np.array([b"zzz", b""]))
    samples = list(StreamingDataset(remote=tmp_path, format="npz"))
    assert [sample["label"] for sample in samples] == ["cat", "horse", "ox", "é"]
    assert [sample["code"] for sample in samples] == [b"x", b"yy", b"zzz", b""]


def test_files_that_differ_in_type_are_still_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    np.save(tmp_path / "b.npy", np.zeros((2, 4), np.float64))
    with pytest.raises(IndexFileError, match=r"a\.npy and .*b\.npy can not be read together: 'data'"):
        StreamingDataset(remote=tmp_path, format="npy")


def test_an_array_without_rows_says_how_it_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.float32(3))
    with pytest.raises(FormatError, match=r'a\.npy.*format_options=\{"axis": None\}'):
        StreamingDataset(remote=tmp_path, format="npy")
    assert StreamingDataset(remote=tmp_path, format="npy", format_options=WHOLE)[0]["data"] == 3
    with pytest.raises(ConfigError, match=r"axis=False.*a file is a sample \(None\)"):
        StreamingDataset(remote=tmp_path, format="npy", format_options={"axis": False})
