"""``inspect``: what it says of every format, how little it reads, and how values are shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from broken import FORMATS, OTHERS, ROWS, shard_files, write, write_others
from PIL import Image

from packed_cases import CASES, sample_of, tiny_image
from s3server import Bucket
from stoker import MDSWriter, StreamingDataset, Where
from stoker.errors import ConfigError, ObjectNotFoundError
from stoker.inspection import inspect, verify
from stoker.inspection.facts import shape_of, show
from stoker.storage import open_store


@pytest.mark.parametrize("name", FORMATS)
def test_a_dataset_with_an_index(name: str, tmp_path: Path) -> None:
    write(name, tmp_path, hashes=["sha1", "xxh64"])
    facts = inspect(tmp_path, samples=4)
    index = json.loads((tmp_path / "index.json").read_text())
    files = shard_files(tmp_path)
    assert (facts.indexed, facts.samples, facts.shards) == (True, ROWS, len(index["shards"]))
    assert facts.format == name.removesuffix("_rows")
    assert (facts.files, facts.stored_bytes) == (len(files), sum(path.stat().st_size for path in files))
    assert facts.hashes == ("sha1", "xxh64")
    assert len(facts.preview) == 4
    assert {column.name for column in facts.columns} == set(facts.preview[0])
    if name in CASES and "id" in CASES[name].columns:
        assert [sample["id"].text for sample in facts.preview] == ["0", "1", "2", "3"]
    json.dumps(facts.as_dict())


@pytest.mark.parametrize("name", OTHERS)
def test_what_others_wrote(name: str, tmp_path: Path) -> None:
    write_others(name, tmp_path / "data")
    facts = inspect(tmp_path / "data", count=True)
    assert (facts.indexed, facts.format, facts.samples) == (False, name, ROWS)
    assert facts.stored_bytes == sum(path.stat().st_size for path in shard_files(tmp_path / "data"))
    assert len(facts.preview) == 3
    assert {column.name for column in facts.columns} == set(facts.preview[0])
    assert not [shown for sample in facts.preview for shown in sample.values() if shown.kind == "error"]


def test_compression_and_sizes(tmp_path: Path) -> None:
    write("mds", tmp_path, compression="zstd:7")
    facts = inspect(tmp_path)
    assert facts.compression == ("zstd:7",)
    assert facts.raw_bytes is not None
    assert facts.raw_bytes > facts.stored_bytes == sum(path.stat().st_size for path in shard_files(tmp_path))
    sizes = [path.stat().st_size for path in shard_files(tmp_path)]
    assert (facts.smallest_shard, facts.largest_shard) == (min(sizes), max(sizes))


def test_parquet_tells_codecs_and_row_groups(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": list(range(100))}), tmp_path / "a.parquet", row_group_size=30, compression="zstd")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    facts = inspect(tmp_path)
    assert (facts.shards, facts.samples, facts.compression) == (4, 100, ("zstd",))
    assert any("bad.parquet" in note for note in facts.notes)


def test_headers_that_tell_no_count_are_not_read_through(tmp_path: Path) -> None:
    write_others("tfrecord", tmp_path / "data")
    last = shard_files(tmp_path / "data")[-1]
    last.write_bytes(b"not a record")
    facts = inspect(tmp_path / "data")
    assert facts.samples is None
    assert "only the first" in facts.notes[0]
    facts = inspect(tmp_path / "data", count=True)
    assert any(last.name in note for note in facts.notes)
    assert facts.samples is not None
    assert 0 < facts.samples < ROWS
    for path in shard_files(tmp_path / "data"):
        path.write_bytes(b"not a record")
    with pytest.raises(ValueError, match=r"not a record|cut off|TFRecord"):
        inspect(tmp_path / "data", count=True)


@pytest.mark.s3
@pytest.mark.parametrize("name", ["mds", "json", "csv"])
def test_of_a_remote_shard_only_the_first_samples_are_fetched(name: str, tmp_path: Path, bucket: Bucket) -> None:
    write(name, tmp_path / "data", size_limit=1 << 20)
    store = open_store(f"{bucket.url}/data", bucket.storage_options)
    for path in (tmp_path / "data").iterdir():
        data = path.read_bytes()
        # What is cut off can not have been read.
        cut = len(data) if path.name == "index.json" else len(data) * 2 // 3 if name == "mds" else len(data) // 3
        store.put(path.name, data if path.name.endswith(".meta") else data[:cut])
    facts = inspect(f"{bucket.url}/data", storage_options=bucket.storage_options)
    assert [sample["id"].text for sample in facts.preview] == ["0", "1", "2"]
    assert facts.samples == ROWS


@pytest.mark.s3
@pytest.mark.parametrize("name", ["npz", "parquet", "jpeg"])
def test_files_on_an_object_store(name: str, tmp_path: Path, bucket: Bucket) -> None:
    write_others(name, tmp_path / "data")
    store = open_store(f"{bucket.url}/data", bucket.storage_options)
    for path in shard_files(tmp_path / "data"):
        store.put(path.relative_to(tmp_path / "data").as_posix(), path.read_bytes())
    facts = inspect(f"{bucket.url}/data", storage_options=bucket.storage_options)
    assert (facts.samples, len(facts.preview)) == (ROWS, 3)


def test_values_are_shown_by_their_beginnings() -> None:
    assert show(None).kind == "null"
    assert show(np.float32(1.5)).text == "1.5"
    assert show("x" * 500).text == "x" * 200 + "..."
    assert show("x" * 500).length == 500
    array = show(np.arange(100, dtype=np.uint16).reshape(10, 10))
    assert (array.dtype, array.shape) == ("uint16", (10, 10))
    assert array.text == "uint16 (10, 10): 0 1 2 3 4 5 6 7 ..."
    assert show(b"\0\1" * 50).text.startswith(r"100 bytes: \x00\x01")
    image = show(Image.new("RGB", (7, 3)))
    assert (image.kind, image.size, image.mode) == ("image", (7, 3), "RGB")
    assert show(tiny_image(1, "png")).size == (6, 4)
    assert show(b"\xff\xd8 not an image").kind == "bytes"
    assert show([1, 2, 3, 4]).text == "[1, 2, 3, ...]"
    assert show({"a": [1]}).text == '{"a": [1]}'


def test_text_that_moves_a_terminal_is_escaped() -> None:
    shown = show("\x1b[2J\r\nhidden\u202e")
    assert shown.text.isprintable()
    assert shown.text == r"\x1b[2J\r\nhidden\u202e"


def test_a_sample_that_does_not_decode_is_shown_as_that(tmp_path: Path) -> None:
    with MDSWriter({"image": "png", "id": "int", "code": "pkl"}, tmp_path) as writer:
        writer.write({"image": tiny_image(1, "png"), "id": 1, "code": {}})
    victim = tmp_path / "shard.00000.mds"
    data = victim.read_bytes()
    at = data.index(b"\x89PNG")
    victim.write_bytes(data[:at] + b"\0" * 8 + data[at + 8 :])
    facts = inspect(tmp_path)
    assert {name: shown.kind for name, shown in facts.preview[0].items()} == {"image": "error", "id": "number"}
    assert any("'code'" in note for note in facts.notes)


def test_shapes_that_types_tell() -> None:
    assert shape_of("ndarray:uint8:4,3") == (4, 3)
    assert shape_of("int") == shape_of("float32") == shape_of("bool") == ()
    assert shape_of("ndarray:uint8") is shape_of("jpeg") is shape_of("float32[]") is shape_of("timestamp[us]") is None


def test_what_can_not_be_looked_at_is_said(tmp_path: Path) -> None:
    write("mds", tmp_path / "data")
    (tmp_path / "data" / "index.json").unlink()
    with pytest.raises(ConfigError, match="stoker index"):
        inspect(tmp_path / "data")
    with pytest.raises(ObjectNotFoundError):
        inspect(tmp_path / "nowhere")
    write("mds", tmp_path / "root" / "train")
    with pytest.raises(ConfigError, match="sub-directories"):
        inspect(tmp_path / "root")


def test_the_first_sample_is_the_first(tmp_path: Path) -> None:
    write("arrow", tmp_path)
    shown = inspect(tmp_path, samples=1).preview[0]
    assert shown["text"].text == sample_of(0, {"text": "str"})["text"]
    assert shown["pixels"].shape == (4, 3)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_single_file_is_named(kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"x": [1, 2]}), file)
    else:
        file.write_text('{"x": 1}\n{"x": 2}\n')
    assert inspect(file).url == verify(file).url == str(file)
    pattern = str(tmp_path / f"*.{kind}")
    assert inspect(pattern).url == verify(pattern).url == pattern
    assert verify(tmp_path, format=None if kind == "parquet" else "json").url == str(tmp_path)
    for given in (str(file), pattern):
        assert repr(StreamingDataset(given)).endswith(f"at {given}>")
        named = re.escape(given)
        with pytest.raises(ConfigError, match=f"{named} has no column 'y' in all shards: "):
            StreamingDataset(given, subset=Where("y", ">", 1))
        with pytest.raises(ConfigError, match=f"^{named}: column 'x' holds numbers"):
            StreamingDataset(given, subset=Where("x", ">", "a"))


@pytest.mark.s3
def test_a_file_of_an_object_store_is_named(tmp_path: Path, bucket: Bucket) -> None:
    options = bucket.storage_options
    open_store(f"{bucket.url}/one", options).put("a.jsonl", b'{"x": 1}\n')
    url = f"{bucket.url}/one/a.jsonl"
    assert inspect(url, storage_options=options).url == verify(url, storage_options=options).url == url
    assert repr(StreamingDataset(url, local=tmp_path / "cache", storage_options=options)).endswith(f"at {url}>")
