"""Archives on object stores: where members are large, only their heads are read to see what there is."""

from __future__ import annotations

import io
import os
import random
import secrets
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3server import Bucket
from stoker.cache.disk import disk_cache
from stoker.catalog.location import DatasetLocation
from stoker.catalog.unindexed import inspect_headers as stepping
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.errors import CorruptDataError
from stoker.formats.common.inspect_header import MappedSource, check_range
from stoker.formats.registry import get_format
from stoker.formats.tfrecord.reader import TFRecordEncoder
from stoker.reading.samples import read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.storage import ObjectInfo, Store, open_store
from stoker.storage.files.mapped import map_open_file
from stoker.storage.local import LocalStore
from stoker.writers import open_writer
from support import cache_of

SAMPLES = 12


def tar_of(sizes: list[int], *, form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for number, size in enumerate(sizes):
            name = f"{'long/' * (number % 3) * 20}{number:04}"
            for suffix, data in (("bin", random.Random(number).randbytes(size)), ("txt", f"text {number}".encode())):
                member = tarfile.TarInfo(f"{name}.{suffix}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def tfrecord_of(sizes: list[int]) -> bytes:
    encoder = TFRecordEncoder({"bin": "bytes", "txt": "str"}, {"compression": None, "hashes": [], "size_limit": None})
    records: list[bytes] = []
    for number, size in enumerate(sizes):
        made: Any = encoder.encode({"bin": random.Random(number).randbytes(size), "txt": f"text {number}"})
        records.append(b"".join(made) if isinstance(made, list) else made)
    body = memoryview(b"".join(records))
    ends: Any = np.cumsum([len(record) for record in records])
    pieces: Any = encoder.files(body, ends)[0]
    return b"".join(pieces)


MAKE: dict[str, Any] = {"tar": tar_of, "tfrecord": tfrecord_of}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each request to any store."""
    found: list[int] = []
    get_ranges, download, download_range = Store.get_ranges, Store.download, Store.download_range

    def ranges(self: Store, key: str, starts: Any, ends: Any, **more: Any) -> Any:
        found.append(sum(ends) - sum(starts))
        return get_ranges(self, key, starts, ends, **more)

    def whole(self: Store, key: str, path: Path, **more: Any) -> ObjectInfo:
        info = download(self, key, path, **more)
        found.append(info.size)
        return info

    def part(self: Store, key: str, path: Path, start: int, end: int, **more: Any) -> None:
        found.append(end - start)
        download_range(self, key, path, start, end, **more)

    monkeypatch.setattr(Store, "get_ranges", ranges)
    monkeypatch.setattr(Store, "download_range", part)
    monkeypatch.setattr(Store, "download", whole)
    return found


def put(name: str, sizes: list[int], url: str = "", **options: Any) -> tuple[str, int]:
    """Three files of samples of so many bytes; their URL and bytes."""
    url = url or f"memory://{secrets.token_hex(8)}"
    store, data = open_store(url, options or None), MAKE[name](sizes)
    for number in range(3):
        store.put(f"{number}.{name}", data)
    return url, 3 * len(data)


def texts(place: DatasetLocation) -> list[str]:
    shards, rows = np.repeat(np.arange(3), SAMPLES), np.tile(np.arange(SAMPLES), 3)
    pool = ShardPool(place.index, place.cache)
    values = list(read_samples(pool, shards, rows, ["txt"])["txt"])
    pool.close()
    return [value.decode() if isinstance(value, bytes) else value for value in values]


def opened_files(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each read of an open local file; files that are mapped count as a whole."""
    found: list[int] = []
    part, mapped = LocalStore._part, map_open_file

    def read(self: LocalStore, fd: int, start: int, size: int) -> Any:
        found.append(size)
        return part(self, fd, start, size)

    def map_file(descriptor: int, start: int, end: int, *more: Any) -> Any:
        found.append(end - start)
        return mapped(descriptor, start, end, *more)

    monkeypatch.setattr(LocalStore, "_part", read)
    monkeypatch.setattr(disk_cache, "map_open_file", map_file)
    return found


@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("name", ["npy", "npz", "hdf5", "tfrecord", "tar", "arrow", "parquet"])
def test_of_local_files_only_headers_are_read(
    name: str, samples: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping, "_RATE", 0.0)  # however busy the machine is
    size = 900_000 // samples
    column = f"ndarray:uint8:{size}" if name in ("npy", "npz", "hdf5") else "bytes"
    limit = 850_000 if name == "parquet" else 920_000  # whose files end behind the row that passes it
    with open_writer(name, {"x": column}, tmp_path, size_limit=limit) as writer:
        for number in range(3 * samples):
            value = random.Random(number).randbytes(size)
            writer.write({"x": np.frombuffer(value, np.uint8) if column != "bytes" else value})
    (tmp_path / "index.json").unlink(missing_ok=True)
    advised: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, start, size, advice: advised.append(advice))
    asked = opened_files(monkeypatch)
    place = open_unindexed(tmp_path, name)
    assert place.index.sizes.tolist() == [samples] * 3
    assert 0 < sum(asked) < 0.2 * 3 * 900_000
    assert set(advised) == {os.POSIX_FADV_RANDOM}  # or the kernel reads on behind each header


@pytest.mark.parametrize("name", ["tar", "tfrecord"])
def test_local_files_of_small_members_are_read_whole(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping, "_RATE", 0.0)
    put(name, [2000] * 100, str(tmp_path))
    asked = opened_files(monkeypatch)
    assert open_unindexed(tmp_path, name).index.sizes.tolist() == [100] * 3
    assert asked.count(max(asked)) == 3
    assert max(asked) > 200_000


@pytest.mark.s3
@pytest.mark.parametrize("name", ["tar", "tfrecord"])
def test_of_large_members_only_heads_are_read(
    name: str, bucket: Bucket, asked: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping, "_RATE", 0.0)  # however busy the machine is
    options = bucket.storage_options
    url, size = put(name, [900_000] * SAMPLES, f"{bucket.url}/d", **options)
    place = open_unindexed(url, name, tmp_path / "cache", storage_options=options)
    assert place.index.sizes.tolist() == [SAMPLES] * 3
    assert sum(asked) < (0.03 if name == "tar" else 0.08) * size
    assert not list(cache_of(tmp_path / "cache").glob(f"*.{name}"))
    assert texts(place) == [f"text {number}" for number in range(SAMPLES)] * 3
    asked.clear()
    again = open_unindexed(url, name, tmp_path / "cache", storage_options=options)
    assert again.index.sizes.tolist() == [SAMPLES] * 3
    assert not asked  # it is kept what they hold


@pytest.mark.parametrize(
    ("sizes", "rate"),
    [([2000] * SAMPLES, 0.0), ([50_000] * 300, 0.0), ([900_000] * SAMPLES, float("inf"))],
    ids=["small files", "small members", "slow store"],
)
@pytest.mark.parametrize("name", ["tar", "tfrecord"])
def test_what_had_better_be_fetched_whole_is(
    name: str, sizes: list[int], rate: float, asked: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping, "_RATE", rate)
    url, size = put(name, sizes)
    place = open_unindexed(url, name, tmp_path / "cache")
    assert place.index.sizes.tolist() == [len(sizes)] * 3
    assert len(list(cache_of(tmp_path / "cache").glob(f"*.{name}"))) == 3
    # Beside the files themselves, some heads, and the records that tell of features.
    assert size <= sum(asked) < 1.5 * size + 3 * 9 * stepping._STEP_BLOCK
    asked.clear()
    assert texts(place)[:SAMPLES] == [f"text {number}" for number in range(SAMPLES)]
    assert not asked


@pytest.mark.parametrize("name", ["tar", "tfrecord"])
def test_damage_in_a_head_is_found_from_afar_as_it_is_nearby(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping, "_RATE", 0.0)
    data = bytearray(MAKE[name]([900_000] * SAMPLES))
    at = data.index(b"0006.bin") + 110 if name == "tar" else 5 * (len(data) // SAMPLES) + 9
    data[at] ^= 1
    url = f"memory://{secrets.token_hex(8)}"
    open_store(url).put(f"a.{name}", bytes(data))
    (tmp_path / f"a.{name}").write_bytes(data)
    told = []
    for where in (url, str(tmp_path)):
        with pytest.raises(CorruptDataError) as caught:
            open_unindexed(where, name, tmp_path / "cache" if where == url else None)
        told.append(str(caught.value).replace(where, ""))
    assert told[0] == told[1]


class Remote:
    """A source that is read by ranges."""

    def __init__(self, data: bytes) -> None:
        self.where = "there"
        self.size = len(data)
        self._data = data

    def read(self, start: int, end: int) -> bytes:
        check_range(self, start, end)
        return self._data[start:end]


@given(
    st.sampled_from(["tar", "tfrecord"]),
    st.lists(st.integers(0, 3000), max_size=40),
    st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT]),
    st.one_of(st.none(), st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255))),
)
def test_heads_tell_the_same_as_the_whole_file(
    name: str, sizes: list[int], form: int, damage: tuple[float, int] | None
) -> None:
    data = bytearray(tar_of(sizes, form=form) if name == "tar" else tfrecord_of(sizes))
    if damage is not None and data:
        data[int(damage[0] * len(data))] ^= damage[1]
    reader: Any = get_format(name)
    found: list[Any] = []
    for source in (MappedSource(bytes(data), "there"), Remote(bytes(data))):
        try:
            header = reader.inspect_header(source, {})
            found.append((header.samples, header.spec))
        except CorruptDataError as error:
            found.append(str(error))
    assert found[0] == found[1]
