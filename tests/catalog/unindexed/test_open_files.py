"""Files without an index are found, their headers read once; they are mapped or fetched, and changes are noticed."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest
from PIL import Image

from packed_cases import tiny_image
from s3server import Bucket
from stoker import StreamingDataset
from stoker.cache.base import CacheSettings
from stoker.catalog.location import DatasetLocation
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.errors import (
    ConfigError,
    CorruptDataError,
    FormatError,
    IndexFileError,
    ObjectNotFoundError,
    StorageTimeoutError,
)
from stoker.formats.base import ReadOptions
from stoker.formats.registry import get_format
from stoker.reading.samples import iterate_samples, read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.storage import open_store
from support import cache_of

ROWS = 20
ID_COLUMNS = {"arrow": "id", "hdf5": "id", "npy": "data", "npz": "id", "tar": "cls", "tfrecord": "id"}

pytestmark = pytest.mark.usefixtures("own_cache")


def npy_file(ids: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, np.array(ids))
    return out.getvalue()


def npz_file(ids: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, id=np.array(ids), row=np.ones((len(ids), 3)))
    return out.getvalue()


def hdf5_file(ids: Any) -> bytes:
    h5py = pytest.importorskip("h5py")
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file["id"] = np.array(ids)
        file.create_dataset("row", data=np.ones((len(ids), 3)), chunks=(4, 3), compression="gzip")
    return out.getvalue()


def arrow_file(ids: Any) -> bytes:
    out = io.BytesIO()
    feather.write_feather(pa.table({"id": pa.array(ids, pa.int64()), "text": [str(n) for n in ids]}), out, chunksize=6)
    return out.getvalue()


def tar_file(ids: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for number in ids:
            for name, data in ((f"{number}.cls", str(number).encode()), (f"{number}.jpg", b"\xff\xd8")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def tfrecord_file(ids: Any) -> bytes:
    from stoker.formats.tfrecord.reader import TFRecordEncoder

    encoder = TFRecordEncoder({"id": "int"}, {"compression": None, "hashes": [], "size_limit": None})
    records: Any = [encoder.encode({"id": number}) for number in ids]
    body = memoryview(b"".join(records))
    pieces: Any = encoder.files(body, np.cumsum([len(record) for record in records]))[0]
    return b"".join(pieces)


FILES: dict[str, tuple[str, Callable[[Any], bytes]]] = {
    "arrow": (".feather", arrow_file),
    "hdf5": (".h5", hdf5_file),
    "npy": (".npy", npy_file),
    "npz": (".npz", npz_file),
    "tar": (".tar", tar_file),
    "tfrecord": (".tfrecord", tfrecord_file),
}


def fill(put: Callable[[str, bytes], None], name: str, files: int = 3) -> None:
    suffix, make = FILES[name]
    for number in range(files):
        put(f"part-{number}{suffix}", make(range(number * ROWS, number * ROWS + ROWS)))
    put("_hidden/x" + suffix, b"not one")
    put("README.md", b"not one")


def into(root: Path) -> Callable[[str, bytes], None]:
    def put(key: str, data: bytes) -> None:
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return put


def read(place: DatasetLocation, column: str, options: ReadOptions = ReadOptions()) -> list[Any]:
    pool = ShardPool(place.index, place.cache, options=options)
    shards = np.repeat(np.arange(len(place.index)), place.index.sizes)
    rows = np.concatenate([np.arange(size) for size in place.index.sizes.tolist()])
    order = np.random.default_rng(0).permutation(len(rows))
    values = read_samples(pool, shards[order], rows[order], [column])[column]
    listed = list(values)
    one_by_one = [sample[column] for sample in iterate_samples(pool, shards[order], rows[order], [column]).samples]
    assert len(one_by_one) == len(listed)
    out: list[Any] = [None] * len(listed)
    for place_there, value in zip(order.tolist(), listed, strict=True):
        out[place_there] = value
    pool.close()
    return out


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("where", ["in place", "cached", pytest.param("s3", marks=pytest.mark.s3)])
def test_every_format_is_read_from_every_store(
    name: str, where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    arguments: dict[str, Any] = {"remote": str(tmp_path / "data")}
    if where == "s3":
        bucket: Bucket = request.getfixturevalue("bucket")
        store = open_store(f"{bucket.url}/data", bucket.storage_options)
        fill(store.put, name)
        arguments = {"remote": f"{bucket.url}/data", "storage_options": bucket.storage_options}
    else:
        fill(into(tmp_path / "data"), name)
    if where != "in place":
        arguments["local"] = tmp_path / "cache"
    place = open_unindexed(format=name, **arguments)
    assert place.index.sizes.tolist() == [ROWS] * 3
    assert read(place, ID_COLUMNS[name]) == list(range(3 * ROWS))
    again = open_unindexed(format=name, **arguments)
    assert again.index.fingerprint == place.index.fingerprint
    assert read(pickle.loads(pickle.dumps(again)), ID_COLUMNS[name]) == list(range(3 * ROWS))
    if where == "in place":
        assert not [path for path in (tmp_path / "data").rglob("*") if ".stoker" in path.parts]


@pytest.mark.s3
@pytest.mark.parametrize(
    ("name", "pieces"), [*((name, {}) for name in FILES), ("csv", {}), ("csv", {"piece_bytes": 9})]
)
def test_where_files_lie_has_no_part_in_the_order(
    name: str, pieces: dict[str, Any], bucket: Bucket, tmp_path: Path
) -> None:
    """States and seeds go with a data set from disk to a bucket: both depend on its fingerprint."""
    suffix, make = FILES.get(name) or (".csv", lambda numbers: "\n".join(["id", *map(str, numbers), ""]).encode())
    for put in (into(tmp_path / "data"), open_store(f"{bucket.url}/data", bucket.storage_options).put):
        for number in range(3):
            put(f"{number}/part{suffix}", make(range(number * ROWS, number * ROWS + ROWS)))
    there = {"remote": f"{bucket.url}/data", "storage_options": bucket.storage_options}
    places = [
        open_unindexed(format=name, options=pieces, **arguments)
        for arguments in (
            {"remote": str(tmp_path / "data")},
            {"remote": str(tmp_path / "data"), "local": tmp_path / "near"},
            {**there, "local": tmp_path / "far"},
        )
    ]
    assert len({place.index.fingerprint for place in places}) == 1
    assert len(places[0].index) == 3 if not pieces else len(places[0].index) > 3
    (tmp_path / "data" / f"more{suffix}").write_bytes(make(range(ROWS)))
    assert open_unindexed(str(tmp_path / "data"), name, options=pieces).index.fingerprint != places[0].index.fingerprint


@pytest.mark.parametrize("name", ["npz", "tar", "hdf5"])
def test_bad_files_are_an_error_or_left_out_and_listed(name: str, tmp_path: Path) -> None:
    fill(into(tmp_path), name)
    suffix = FILES[name][0]
    (tmp_path / f"bad{suffix}").write_bytes(b"\x00 not a file of this format")
    with pytest.raises(FormatError, match=rf'bad\{suffix}.*"on_bad_files": "skip"'):
        open_unindexed(tmp_path, name)
    for _ in range(2):
        place = open_unindexed(tmp_path, name, options={"on_bad_files": "skip"})
        assert read(place, ID_COLUMNS[name]) == list(range(3 * ROWS))
        (skipped,) = place.index.extra["skipped_files"]
        assert skipped["key"] == f"bad{suffix}"
        assert skipped["problem"]


@pytest.mark.parametrize("name", FILES)
def test_a_second_start_opens_no_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(into(tmp_path), name)
    first = open_unindexed(tmp_path, name)
    form: Any = type(get_format(name))
    original, seen = form.inspect_header, []

    def counted(self: Any, source: Any, settings: Any) -> Any:
        seen.append(source.where)
        return original(self, source, settings)

    monkeypatch.setattr(form, "inspect_header", counted)
    assert open_unindexed(tmp_path, name).index.fingerprint == first.index.fingerprint
    assert not seen
    suffix, make = FILES[name]
    into(tmp_path)(f"part-1{suffix}", make(range(500, 507)))
    changed = open_unindexed(tmp_path, name)
    assert [os.path.basename(one) for one in seen] == [f"part-1{suffix}"]
    assert changed.index.sizes.tolist() == [ROWS, 7, ROWS]
    assert read(changed, ID_COLUMNS[name])[ROWS : ROWS + 7] == list(range(500, 507))


def test_a_file_that_is_replaced_during_a_run_is_noticed(tmp_path: Path) -> None:
    fill(into(tmp_path), "npy")
    place = open_unindexed(tmp_path, "npy")
    path = tmp_path / "part-1.npy"
    data = path.read_bytes()
    path.write_bytes(data)
    os.utime(path, ns=(1, 1))
    with pytest.raises(CorruptDataError, match=r"part-1\.npy was replaced after it was indexed"):
        read(place, "data")


def test_a_replaced_remote_file_is_fetched_again(tmp_path: Path) -> None:
    fill(into(tmp_path / "data"), "tar")
    arguments: dict[str, Any] = {"remote": tmp_path / "data", "local": tmp_path / "cache", "format": "tar"}
    assert read(open_unindexed(**arguments), "cls") == list(range(3 * ROWS))
    into(tmp_path / "data")("part-0.tar", tar_file(range(900, 900 + ROWS)))
    os.utime(tmp_path / "data" / "part-0.tar", ns=(5, 5))
    assert read(open_unindexed(**arguments), "cls")[:ROWS] == list(range(900, 900 + ROWS))


def test_files_patterns_lists_and_splits(tmp_path: Path) -> None:
    fill(into(tmp_path / "train"), "npy")
    assert read(open_unindexed(tmp_path, "npy", split="train"), "data") == list(range(60))
    assert read(open_unindexed(str(tmp_path / "train" / "part-[12].npy"), "npy"), "data") == list(range(20, 60))
    assert read(open_unindexed(tmp_path / "train" / "part-1.npy", "npy"), "data") == list(range(20, 40))
    listed = [tmp_path / "train" / "part-2.npy", tmp_path / "train" / "part-0.npy"]
    assert read(open_unindexed(listed, "npy"), "data") == [*range(40, 60), *range(20)]
    assert read(open_unindexed(None, "npy", local=tmp_path / "train"), "data") == list(range(60))


@pytest.mark.s3
def test_headers_of_remote_files_are_read_without_the_files(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"{bucket.url}/d", bucket.storage_options)
    big = np.zeros((40, 100_000), np.float32)
    for number in range(2):
        out = io.BytesIO()
        np.savez(out, x=big, id=np.arange(40))
        store.put(f"{number}.npz", out.getvalue())
    asked: list[int] = []
    get_range = type(store).get_range

    def counted(self: Any, key: str, start: int, end: int) -> bytes:
        asked.append(end - start)
        return get_range(self, key, start, end)

    monkeypatch.setattr(type(store), "get_range", counted)
    place = open_unindexed(f"{bucket.url}/d", "npz", tmp_path / "cache", storage_options=bucket.storage_options)
    assert place.index.sizes.tolist() == [40, 40]
    assert 0 < sum(asked) < 2 * 40 * 100_000
    assert not (tmp_path / "cache" / "0.npz").exists()
    alone = open_unindexed(f"{bucket.url}/d/1.npz", "npz", tmp_path / "b", storage_options=bucket.storage_options)
    assert read(alone, "id") == list(range(40))


def test_a_limited_cache_evicts(tmp_path: Path) -> None:
    fill(into(tmp_path / "data"), "tar", files=6)
    size = (tmp_path / "data" / "part-0.tar").stat().st_size
    place = open_unindexed(tmp_path / "data", "tar", tmp_path / "cache", settings=CacheSettings(limit=int(2.5 * size)))
    pool = ShardPool(place.index, place.cache, threads=1)
    for shard in range(6):
        rows = np.arange(ROWS)
        assert read_samples(pool, np.full(ROWS, shard), rows, ["cls"])["cls"] == list(
            range(shard * ROWS, shard * ROWS + ROWS)
        )
        pool.done_with(shard)
    pool.close()
    assert sum(path.stat().st_size for path in (tmp_path / "cache").glob("*.tar")) <= int(2.5 * size)


@pytest.mark.parametrize("name", ["tar", "tfrecord"])
def test_opening_fills_the_cache_no_further_than_it_may(name: str, tmp_path: Path) -> None:
    fill(into(tmp_path / "data"), name, files=8)
    size = max(path.stat().st_size for path in (tmp_path / "data").glob("part-*"))
    limit = int(2.5 * size)
    where: dict[str, Any] = {"remote": tmp_path / "data", "local": tmp_path / "cache", "format": name}
    dataset = StreamingDataset(**where, cache_limit=limit)
    held = [path.stat().st_size for path in cache_of(tmp_path / "cache").iterdir() if path.is_file()]
    assert 0 < sum(held) <= limit
    assert sorted(int(sample[ID_COLUMNS[name]]) for sample in dataset) == list(range(8 * ROWS))
    StreamingDataset(remote=tmp_path / "data", local=tmp_path / "other", format=name)
    assert len([path for path in cache_of(tmp_path / "other").iterdir() if path.is_file()]) == 8


# -- what does not go together -----------------------------------------------------------------------------------------


def test_files_that_differ_in_columns_are_named(tmp_path: Path) -> None:
    into(tmp_path)("a.npz", npz_file([1]))
    out = io.BytesIO()
    np.savez(out, id=np.array([1], np.int16))
    into(tmp_path)("b.npz", out.getvalue())
    with pytest.raises(IndexFileError, match=r"a\.npz and .*b\.npz.*'id' is int64 in the first and int16"):
        open_unindexed(tmp_path, "npz")


def test_archives_may_differ_in_extensions_and_empty_files_in_all(tmp_path: Path) -> None:
    into(tmp_path)("a.tar", tar_file([1, 2]))
    into(tmp_path)("b.tar", bytes(1024))  # an archive of nothing
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("x.png")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"p"))
    into(tmp_path)("c.tar", out.getvalue())
    place = open_unindexed(tmp_path, "tar")
    assert place.index.columns == ("__key__", "cls", "jpg", "png")
    assert read(place, "png") == [None, None, b"p"]
    assert read(place, "cls") == [1, 2, None]


def test_damaged_missing_and_unknown_are_reported(tmp_path: Path) -> None:
    fill(into(tmp_path), "npz")
    into(tmp_path)("part-1.npz", b"PK")
    with pytest.raises(CorruptDataError, match=r"part-1\.npz: not an NPZ file"):
        open_unindexed(tmp_path, "npz")
    with pytest.raises(ObjectNotFoundError, match=r"no files of format 'tar'.*ends with \.tar"):
        open_unindexed(tmp_path, "tar")
    with pytest.raises(FormatError, match=r"'zarr' is unknown; .* known: arrow"):
        open_unindexed(tmp_path, "zarr")
    with pytest.raises(ConfigError, match=r"index\.json"):
        open_unindexed(tmp_path, "mds")
    with pytest.raises(ConfigError, match="setting 'columms' is unknown"):
        open_unindexed(tmp_path, "npz", options={"columms": ["a"]})
    with pytest.raises(ConfigError, match="give remote= or local="):
        open_unindexed(None, "npz")
    with pytest.raises(ConfigError, match="validate_hash"):
        open_unindexed(tmp_path, "npz", settings=CacheSettings(validate_hash="sha1"))


# -- a file a sample ---------------------------------------------------------------------------------------------------


def test_any_files_as_they_are(tmp_path: Path) -> None:
    contents = {"a.bin": b"1", "sub/b.txt": b"22", "sub/empty": b"", "z": b"\0" * 70_000}
    for key, data in {**contents, ".hidden": b"no", "_x/y": b"no"}.items():
        into(tmp_path)(key, data)
    place = open_unindexed(tmp_path, "files")
    assert dict(zip(read(place, "path"), read(place, "data"), strict=True)) == contents
    views = read(place, "data", ReadOptions(views=True))
    assert [bytes(view) for view in views] == list(contents.values())


@pytest.mark.s3
def test_a_bucket_of_files_is_streamed_as_it_is(bucket: Bucket, tmp_path: Path) -> None:
    store = open_store(bucket.url, bucket.storage_options)
    for number in range(30):
        store.put(f"{number % 3}/{number:03}.bin", bytes([number]) * number)
    place = open_unindexed(bucket.url, "files", tmp_path / "cache", storage_options=bucket.storage_options)
    assert sorted(map(len, read(place, "data"))) == list(range(30))
    assert read(place, "path") == [f"{k}/{number:03}.bin" for k in range(3) for number in range(k, 30, 3)]


@pytest.mark.parametrize(("name", "suffix"), [("jpeg", ".JPG"), ("png", ".png")])
def test_folders_of_images_are_classes(name: str, suffix: str, tmp_path: Path) -> None:
    for number in range(12):
        into(tmp_path)(f"class {number % 3}/deep/{number}{suffix}", tiny_image(number, name))
        into(tmp_path)(f"class {number % 3}/notes.txt", b"not an image")
    place = open_unindexed(tmp_path, name)
    assert place.index.columns == ("image", "path", "class", "label")
    paths, labels, images = read(place, "path"), read(place, "label"), read(place, "image")
    assert labels == [0] * 4 + [1] * 4 + [2] * 4
    assert read(place, "class") == [f"class {label}" for label in labels]
    for path, image in zip(paths, images, strict=True):
        expected = Image.open(tmp_path / path)
        assert image.tobytes() == expected.tobytes()
    raw = read(open_unindexed(tmp_path, name, options={"decode": False}), "image")
    assert raw == [(tmp_path / path).read_bytes() for path in paths]
    into(tmp_path)(f"loose{suffix}", tiny_image(99, name))
    assert open_unindexed(tmp_path, name).index.columns == ("image", "path")
    into(tmp_path)(f"false{suffix}", b"GIF89a")
    with pytest.raises(CorruptDataError, match=rf"false{suffix}.*not a {name.upper()} file"):
        read(open_unindexed(tmp_path, name), "image")


class _Unreachable:
    """A file of a store that answers no more after some reads."""

    def __init__(self, data: bytes, reads: int) -> None:
        self.where = "s3://bucket/file"
        self.size = len(data)
        self._data = data
        self._left = reads

    def read(self, start: int, end: int) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise StorageTimeoutError("s3://bucket/file: no answer", url=self.where)
        return self._data[start:end]


@pytest.mark.parametrize("name", ["arrow", "hdf5", "npy", "npz"])
def test_a_store_that_fails_is_no_damaged_file(name: str) -> None:
    form: Any = get_format(name)
    with pytest.raises(StorageTimeoutError, match="no answer"):
        form.inspect_header(_Unreachable(FILES[name][1](range(200)), name != "hdf5"), {})  # a small one is read at once
