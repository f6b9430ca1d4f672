"""Many writers, one index; and an index that was lost."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from s3server import Bucket
from slow_store import asked, slow_store
from stoker import MDSWriter, StreamingDataset, merge_index, rebuild_index
from stoker.errors import ConfigError, CorruptDataError, FormatError, IndexFileError, ObjectNotFoundError
from stoker.index.index import Index
from stoker.storage import open_store
from stoker.writers import CSVWriter, JSONWriter
from support import cache_of, write_samples

COLUMNS = {"x": "int", "t": "str"}


def write(out: Any, start: int, stop: int, kind: Any = MDSWriter, **options: Any) -> None:
    samples = ({"x": i, "t": f"text {i}"} for i in range(start, stop))
    write_samples(out, samples, COLUMNS, writer=kind, size_limit=300, **options)


def numbers(root: Path) -> list[int]:
    dataset = StreamingDataset(local=root)
    return [int(dataset[i]["x"]) for i in range(len(dataset))]


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    for number, name in enumerate(("00", "01", "deep/02")):
        write(tmp_path / name, number * 10, number * 10 + 10, compression="zstd" if number == 1 else None)
    return tmp_path


# -- merge -------------------------------------------------------------------------------------------------------------


def test_a_root_is_merged_in_the_order_of_its_directories(parts: Path) -> None:
    index = merge_index(str(parts))
    assert numbers(parts) == list(range(30))
    assert index.to_json() == (parts / "index.json").read_bytes()
    assert index.shards[-1].raw[0].basename.startswith("deep/02/shard.")
    assert merge_index(parts).to_json() == index.to_json()  # once more, over the index that is there


def test_what_is_merged_below_is_not_merged_twice(parts: Path) -> None:
    write(parts / "deep" / "03", 30, 40)
    merge_index(parts / "deep")
    merge_index(parts)
    assert numbers(parts) == list(range(40))


@pytest.mark.parametrize("suffix", ["", "/", "/index.json"])
def test_a_list_is_merged_in_its_order(parts: Path, suffix: str) -> None:
    urls = [f"{parts}/{name}{suffix}" for name in ("01", "deep/02", "01")]
    merge_index(urls, str(parts))
    assert numbers(parts) == [*range(10, 30)]


def test_pairs_stand_for_what_is_there(parts: Path, bucket: Bucket) -> None:
    url, options = bucket.url, bucket.storage_options
    write(f"{url}/04", 40, 50, storage_options=options)
    pairs: list[Any] = [(f"{parts}/00", f"{url}/00"), (f"{parts}/04", f"{url}/04/index.json")]
    index = merge_index(pairs, (str(parts), url), storage_options=options)
    assert [shard.raw[0].basename.split("/")[0] for shard in index.shards][:1] == ["00"]
    assert [shard.raw[0].basename.split("/")[0] for shard in index.shards][-1:] == ["04"]
    assert open_store(url, options).get("index.json", max_bytes=1 << 30) == (parts / "index.json").read_bytes()


def test_a_remote_root_is_merged_in_place(bucket: Bucket, tmp_path: Path) -> None:
    url, options = f"{bucket.url}/all", bucket.storage_options
    for part in range(3):
        write(f"{url}/{part}", part * 10, part * 10 + 10, storage_options=options)
    merge_index(url, storage_options=options)
    dataset = StreamingDataset(remote=url, local=tmp_path, storage_options=options)
    assert [int(dataset[i]["x"]) for i in range(30)] == list(range(30))


def test_only_the_remote_gets_the_index_where_asked(parts: Path, bucket: Bucket) -> None:
    write(f"{bucket.url}/00", 0, 10, storage_options=bucket.storage_options)
    merge_index((str(parts), bucket.url), keep_local=False, storage_options=bucket.storage_options)
    assert not (parts / "index.json").exists()
    assert open_store(bucket.url, bucket.storage_options).exists("index.json")


def test_nothing_to_merge_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"found no index\.json"):
        merge_index(tmp_path)
    with pytest.raises(ConfigError, match="needs out="):
        merge_index([str(tmp_path)])
    with pytest.raises(ObjectNotFoundError, match="there is no index at"):
        merge_index([str(tmp_path / "none")], str(tmp_path))
    with pytest.raises(ConfigError, match="leave out="):
        merge_index(str(tmp_path), str(tmp_path))


def test_a_bad_part_leaves_the_old_index(parts: Path) -> None:
    merge_index(parts)
    before = (parts / "index.json").read_bytes()
    (parts / "01" / "index.json").write_text("{}")
    with pytest.raises(IndexFileError, match=r"01/index\.json"):
        merge_index(parts)
    assert (parts / "index.json").read_bytes() == before


def test_an_index_that_is_a_shard_of_its_own_is_refused(parts: Path) -> None:
    index = json.loads((parts / "01" / "index.json").read_text())
    index["shards"][0]["zip_data"]["basename"] = "index.json"
    (parts / "01" / "index.json").write_text(json.dumps(index))
    for given in ((str(parts),), ([str(parts / "01")], str(parts))):
        with pytest.raises(IndexFileError, match=r"01/index\.json: a shard's file is called 'index\.json'"):
            merge_index(*given)


@pytest.mark.processes
def test_indexes_that_come_late_are_read_side_by_side(tmp_path: Path) -> None:
    for number in range(40):
        write(tmp_path / "data" / f"{number:02}", number, number + 1)
    urls: list[Any] = [f"s3://bucket/{number:02}" for number in range(40)]
    with slow_store(tmp_path / "data", 0.05) as options:
        merged = merge_index(urls, tmp_path / "data", storage_options=options)
        most, _ = asked(options)
    assert most >= 8
    assert merged.samples == 40
    assert numbers(tmp_path / "data") == [*range(40)]


def test_parts_with_other_columns_are_warned_of(parts: Path, caplog: pytest.LogCaptureFixture) -> None:
    with MDSWriter({"x": "int"}, parts / "zz") as writer:
        writer.write({"x": 30})
    with caplog.at_level(logging.WARNING):
        assert merge_index(parts).columns == ("x",)
    assert "different columns" in caplog.text


# -- rebuild -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MDSWriter, JSONWriter, CSVWriter])
@pytest.mark.parametrize("codec", [None, "zstd:5", "br:1", "snappy", "gz:1", "bz2"])
@pytest.mark.parametrize("hashes", [None, ["sha1", "xxh3_64"]])
def test_a_lost_index_comes_back_the_same(tmp_path: Path, kind: Any, codec: str | None, hashes: Any) -> None:
    write(tmp_path, 0, 30, kind, compression=codec, hashes=hashes)
    index = (tmp_path / "index.json").read_bytes()
    (tmp_path / "index.json").unlink()
    assert rebuild_index(tmp_path).to_json() == index
    assert (tmp_path / "index.json").read_bytes() == index


def test_a_lost_merged_index_comes_back_the_same(parts: Path, bucket: Bucket) -> None:
    index = merge_index(parts).to_json()
    with pytest.raises(ConfigError, match=r"index\.json exists"):
        rebuild_index(parts)
    assert rebuild_index(parts, exist_ok=True).to_json() == index
    store = open_store(bucket.url, bucket.storage_options)
    for shard in Index.from_json(index, "x").shards:
        store.put(shard.stored[0].basename, (parts / shard.stored[0].basename).read_bytes())
    assert rebuild_index(bucket.url, storage_options=bucket.storage_options).to_json() == index


def test_shards_that_were_decompressed_are_indexed_as_they_are(tmp_path: Path) -> None:
    write(tmp_path, 0, 30, compression="zstd", hashes=["sha1"])
    before = Index.from_json((tmp_path / "index.json").read_bytes(), "x")
    dataset = StreamingDataset(remote=str(tmp_path), local=tmp_path.with_name("cache"))
    assert len(dataset[:]) == 30
    dataset.close()
    cache = cache_of(tmp_path.with_name("cache"))
    (cache / "index.json").unlink()
    index = rebuild_index(cache)
    assert not index.compressed
    assert index.fingerprint == before.fingerprint
    assert [shard.raw for shard in index.shards] == [shard.raw for shard in before.shards]


@pytest.mark.parametrize("kind", [MDSWriter, JSONWriter, CSVWriter])
@pytest.mark.parametrize("codec", [None, "zstd"])
@pytest.mark.parametrize("damage", ["cut", "longer", "empty", "header", "offsets", "gone"])
def test_a_torn_or_missing_shard_is_refused_or_left_out(
    tmp_path: Path, kind: Any, codec: str | None, damage: str
) -> None:
    write(tmp_path, 0, 80, kind, compression=codec)
    whole = Index.from_json((tmp_path / "index.json").read_bytes(), "x")
    (tmp_path / "index.json").unlink()
    path = max(tmp_path.glob("shard.00001.*"))  # the one with the offsets
    data = path.read_bytes()
    changed = {
        "cut": data[:-1],
        "longer": data + b"x",
        "empty": b"",
        "header": b"\xff" * 4 + data[4:],
        "offsets": data[:8] + b"\xff\xff\xff\xff" + data[12:],
    }
    if damage == "gone":
        for each in tmp_path.glob("shard.00001.*"):
            each.unlink()
    else:
        path.write_bytes(changed[damage])
    if damage == "longer" and codec is None and kind is not MDSWriter:
        message = "not JSON"
    else:
        message = "shard 1 is missing" if damage == "gone" else "shard.00001"
    with pytest.raises(CorruptDataError, match=message):
        rebuild_index(tmp_path)
    assert not (tmp_path / "index.json").exists()
    index = rebuild_index(tmp_path, skip_damaged=True)
    assert list(index.shards) == [shard for number, shard in enumerate(whole.shards) if number != 1]


def test_a_header_that_lies_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 0, 3, hashes=())
    (tmp_path / "index.json").unlink()
    path = tmp_path / "shard.00000.mds"
    data = path.read_bytes()
    for old, new in (
        (b'"format": "mds"', b'"format": "csv"'),
        (b'"int"', b'"xyz"'),
        (b'"column_sizes": [null, 8]', b'"column_sizes": [null, 4]'),
        (b'"hashes": []', b'"hashes": {}'),
        (b'"column_names"', b'"column_namez"'),
        (b'{"column_encodings"', b'["column_encodings"'),
    ):
        assert old in data
        path.write_bytes(data.replace(old, new))
        with pytest.raises(FormatError, match=r"shard\.00000\.mds"):
            rebuild_index(tmp_path)


def test_rebuilding_from_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "shard.txt").write_text("no")
    (tmp_path / "shard.1.mds").write_text("no")
    with pytest.raises(ConfigError, match="holds no shards"):
        rebuild_index(tmp_path)
    assert json.dumps([path.name for path in sorted(tmp_path.iterdir())]) == '["shard.1.mds", "shard.txt"]'
