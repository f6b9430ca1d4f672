"""Generated files are read by the formats' own readers, and by stoker."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from generated import SPECS, content, small
from PIL import Image
from tfrecord.reader import tfrecord_loader

from stoker import StreamingDataset
from stoker_bench.generation import DatasetSpec, file_names, generate
from stoker_bench.generation.making import file_size
from stoker_bench.generation.names import output

ROWS = 40


def _npy(path: Path) -> dict[str, Any]:
    return {"data": np.load(path)}


def _npz(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
    with np.load(path) as arrays:
        return dict(arrays)


def _hdf5(path: Path) -> dict[str, Any]:
    with h5py.File(path) as file:
        return {name: file[name][:] for name in file}


def _parquet(path: Path) -> dict[str, Any]:
    table = pq.read_table(path)
    table.validate(full=True)
    found = {}
    for field in table.schema:
        values = table[field.name].to_pylist()
        about = field.metadata or {}
        if b"dtype" in about:
            shape = [int(n) for n in about[b"shape"].split(b",")]
            values = [np.frombuffer(value, about[b"dtype"].decode()).reshape(shape) for value in values]
        found[field.name] = values
    return found


def _arrow(path: Path) -> dict[str, Any]:
    with pa.ipc.open_file(path) as file:
        table = file.read_all()
    table.validate(full=True)
    return {name: table[name].to_pylist() for name in table.column_names}


def _tfrecord(path: Path) -> dict[str, Any]:
    records = list(tfrecord_loader(str(path), None))
    return {name: [record[name] for record in records] for name in records[0]}


def _tar(path: Path) -> dict[str, Any]:
    found: dict[str, list[bytes]] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            found.setdefault(member.name.partition(".")[2], []).append(file.read())
    return found


def _jsonl(path: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {name: [row[name] for row in rows] for name in rows[0]}


def _csv(path: Path) -> dict[str, Any]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    names, *rows = csv.reader(io.StringIO(data.decode()))
    return dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))


def _image(path: Path) -> dict[str, Any]:
    return {"image": [np.asarray(_decoded(path.read_bytes()))]}


def _decoded(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "npy": _npy,
    "npz": _npz,
    "hdf5": _hdf5,
    "parquet": _parquet,
    "arrow": _arrow,
    "tfrecord": _tfrecord,
    "tar": _tar,
    "jsonl": _jsonl,
    "csv": _csv,
    "jpeg": _image,
    "png": _image,
    "files": lambda path: {"data": [path.read_bytes()]},
}


@pytest.mark.parametrize("name", [name for name in SPECS if SPECS[name]["format"] in READERS])
def test_the_formats_own_reader_finds_all_samples(name: str, tmp_path: Path) -> None:
    spec = small(name)
    generate(spec, tmp_path)
    seen: set[bytes] = set()
    for number, file in enumerate(file_names(spec)):
        assert (tmp_path / file).read_bytes() == content(spec, number)
        found = READERS[spec.format](tmp_path / file)
        assert len(found) == len(spec.fields)
        for column in found.values():
            assert len(column) == spec.samples_per_file
            for value in column:
                if isinstance(value, float) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
                    assert np.isfinite(value).all()
                    assert (np.abs(value) <= 2).all()
        wide = max(found.values(), key=lambda column: len(str(column[0])))
        for value in wide:
            told = np.asarray(value).tobytes()
            assert told not in seen, "two samples are alike"
            seen.add(told)


STREAMED = {
    **{name: {"format": SPECS[name]["format"]} for name in SPECS},
    **{name: {} for name in SPECS if name.startswith("mds")},
}


# Compressed text is for other programs; arrays whose shape differs from file to file are read apart.
@pytest.mark.parametrize("name", [name for name in STREAMED if name not in ("csv-gz", "npy-stdev")])
def test_stoker_streams_what_it_generated(name: str, tmp_path: Path) -> None:
    spec = small(name)
    generate(spec, tmp_path / "data")
    found = StreamingDataset(local=str(tmp_path / "data"), batch_size=1, shuffle=False, **STREAMED[name])
    assert len(found) == spec.samples
    for number in range(0, len(found), 13):
        sample = found[number]
        assert {column.name for column in spec.fields} <= {*sample, "input_ids" if "tokens" in sample else ""}
        for column in spec.fields:
            if column.dtype == "float32" and column.shape and spec.format in ("npy", "npz", "hdf5", "mds"):
                assert sample[column.name].shape == column.shape


@pytest.mark.parametrize("name", SPECS)
def test_sizes_are_known_before_files_are_made(name: str) -> None:
    spec = small(name)
    for number in range(len(file_names(spec))):
        size = file_size(spec, output(spec, number))
        assert size in (None, len(content(spec, number)))
        assert size is not None or spec.compression or name in ("parquet", "arrow-lz4")


@pytest.mark.parametrize("kind", ["jpeg", "png"])
def test_images_decode_have_natural_sizes_and_differ(kind: str) -> None:
    spec = DatasetSpec(format=kind, files=20, dims=(375, 500))
    pixels = [np.asarray(_decoded(content(spec, number))) for number in range(20)]
    assert len({image.shape[0] for image in pixels}) > 5
    assert all(image.shape[1:] == (500, 3) and 281 <= image.shape[0] <= 375 for image in pixels)
    assert len({image.tobytes() for image in pixels}) == 20
    assert all(image.std() > 20 for image in pixels)
    if kind == "jpeg":
        size = np.mean([len(content(spec, number)) / pixels[number][..., 0].size for number in range(20)])
        assert 0.2 < size < 1, "bytes a pixel, as photographs have them"


def test_an_mds_index_has_the_hashes_of_all_files(tmp_path: Path) -> None:
    spec = small("mds-zstd", valid_files=1, subfolders=2)
    generate(spec, tmp_path)
    for split, files in (("train", 2), ("valid", 1)):
        index = json.loads((tmp_path / split / "index.json").read_text())
        assert len(index["shards"]) == files
        found = StreamingDataset(
            remote=str(tmp_path),
            local=str(tmp_path / "cache" / split),
            split=split,
            validate_hash="xxh3_64",
            batch_size=1,
        )
        assert len(list(found)) == files * 40
        stored = tmp_path / split / index["shards"][0]["zip_data"]["basename"]
        raw = zstandard.ZstdDecompressor().decompressobj().decompress(stored.read_bytes())
        assert len(raw) == index["shards"][0]["raw_data"]["bytes"]


def test_a_zip_archive_beyond_4_gib_is_reported_in_its_64_bit_fields() -> None:
    from stoker_bench.generation.formats.arrays import _Archive

    archive = _Archive()
    begin = archive.begin("a", 5 << 30)
    end = archive.end(5 << 30, 5 << 30, 7)
    second = archive.begin("b", 100)
    last = archive.end(100, 100, 8)
    directory = archive.directory()
    # The archive without its 5 GiB: zipfile reads the directory from the end, and members' places from it.
    file = _Sparse([(0, begin), (len(begin) + (5 << 30), end + second), (archive.at - len(last), last + directory)])
    with zipfile.ZipFile(file) as found:
        large, small_one = found.infolist()
        assert (large.file_size, large.CRC, large.header_offset) == (5 << 30, 7, 0)
        assert (small_one.file_size, small_one.CRC) == (100, 8)
        assert small_one.header_offset == len(begin) + (5 << 30) + len(end)


class _Sparse(io.RawIOBase):
    def __init__(self, parts: list[tuple[int, bytes]]) -> None:
        self._parts = parts
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        start, data = self._parts[-1]
        self._at = (0, self._at, start + len(data))[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        start, data = next(part for part in reversed(self._parts) if part[0] <= self._at)
        found = data[self._at - start :][: size if size >= 0 else None]
        self._at += len(found)
        return found
