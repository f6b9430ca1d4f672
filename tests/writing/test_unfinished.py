"""Output that is not finished: nobody reads it as a whole dataset, and its writer continues it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from s3server import Bucket
from stoker import MDSWriter, StreamingDataset, rebuild_index
from stoker.errors import ConfigError, FormatError, ObjectNotFoundError
from stoker.storage import open_store
from stoker.storage.unfinished import MARK, STAGE, UnfinishedOutput
from stoker.writers import JSONWriter
from stoker.writing.image_folders import PNGWriter
from stoker.writing.parquet_writer import ParquetWriter
from stoker.writing.shard_formats import TarWriter, TFRecordWriter, writer_of

ROWS = 100
pytestmark = pytest.mark.usefixtures("own_cache")


def png(number: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + number.to_bytes(4, "big")


def number_sample(number: int) -> dict[str, Any]:
    return {"x": np.int64(number)}


def image_sample(number: int) -> dict[str, Any]:
    return {"image": png(number), "label": number % 3}


WRITERS: Mapping[str, tuple[Any, Mapping[str, str], Any]] = {
    "arrow": (writer_of("arrow"), {"x": "int"}, number_sample),
    "mds": (MDSWriter, {"x": "int"}, number_sample),
    "npz": (writer_of("npz"), {"x": "int64"}, number_sample),
    "parquet": (ParquetWriter, {"x": "int"}, number_sample),
    "png": (PNGWriter, {"image": "png", "label": "int"}, image_sample),
    "tar": (TarWriter, {"x": "int"}, number_sample),
    "tfrecord": (TFRecordWriter, {"x": "int"}, number_sample),
}


def begin(form: str, out: Any, **options: Any) -> Any:
    make, columns, _ = WRITERS[form]
    return make(columns, out, **{"size_limit": 200, **options})


def fill(writer: Any, form: str, stop: int = ROWS) -> None:
    for number in range(writer.samples_written, stop):
        writer.write(WRITERS[form][2](number))


@pytest.mark.parametrize("form", WRITERS)
@pytest.mark.parametrize("place", ["directory", pytest.param("s3", marks=pytest.mark.s3)])
def test_files_of_a_stopped_writer_are_not_read_as_a_whole_dataset(
    form: str, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    out = str(tmp_path / "data")
    options: dict[str, Any] = {}
    if place == "s3":
        bucket: Bucket = request.getfixturevalue("bucket")
        out, options = f"{bucket.url}/data", {"storage_options": bucket.storage_options}
    writer = begin(form, out, **options)
    fill(writer, form, ROWS // 2)
    writer.end_shard()
    writer.abort()
    store = open_store(out, options.get("storage_options"))
    assert store.exists(MARK)
    assert len(list(store.list())) > 1
    with pytest.raises(ObjectNotFoundError, match="being written, or their writer was stopped"):
        StreamingDataset(remote=out, local=str(tmp_path / "a"), format=form, **options)
    with pytest.raises(ConfigError, match=r"resume=True.*exist_ok=True"):
        begin(form, out, **options)
    with begin(form, out, resume=True, **options) as resumed:
        assert 0 < resumed.samples_written <= ROWS // 2
        fill(resumed, form)
    assert not store.exists(MARK)
    assert not list(store.list(STAGE))
    found = StreamingDataset(remote=out, local=str(tmp_path / "b"), format=form, **options)
    assert len(found) == ROWS


@pytest.mark.parametrize("form", WRITERS)
def test_a_writer_that_stores_nothing_leaves_nothing(form: str, tmp_path: Path) -> None:
    begin(form, tmp_path).abort()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["parquet", "png", "tar"])
def test_a_replacement_that_is_killed_is_not_mixed_with_what_it_replaces(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with begin(form, tmp_path) as writer:
        fill(writer, form)
    with monkeypatch.context() as patch:
        patch.setattr("stoker.writing.destination.delete_all", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            begin(form, tmp_path, exist_ok=True)
    assert not (tmp_path / "index.json").exists()
    with pytest.raises(ObjectNotFoundError):
        StreamingDataset(remote=tmp_path, format=form)
    with begin(form, tmp_path, resume=True) as resumed:
        assert resumed.samples_written == 0
        fill(resumed, form, 3)
    assert len(StreamingDataset(remote=tmp_path, format=form)) == 3


def test_a_lost_index_is_rebuilt_of_what_a_stopped_writer_left(tmp_path: Path) -> None:
    writer = begin("tar", tmp_path)
    fill(writer, "tar", 10)
    writer.end_shard()
    writer.abort()
    left = rebuild_index(tmp_path).samples
    assert 0 < left <= 10
    assert not (tmp_path / MARK).exists()
    assert len(StreamingDataset(local=tmp_path)) == left


# -- what the code before this protocol left -----------------------------------------------------------------------------


def mark_of_before(*files: str, size_limit: int = 200) -> bytes:
    """The note that was put next to Parquet files, which lay where they belong from the beginning."""
    identity = {"columns": {"x": "int"}, "compression": None, "size_limit": size_limit}
    return json.dumps({"version": 1, "identity": identity, "files": files}).encode()


def test_parquet_files_of_before_are_continued(tmp_path: Path) -> None:
    with begin("parquet", tmp_path / "whole") as writer:
        fill(writer, "parquet")
    parts = sorted((tmp_path / "whole").glob("*.parquet"))
    assert len(parts) > 2
    data = tmp_path / "data"
    data.mkdir()
    for part in parts[:2]:
        (data / part.name).write_bytes(part.read_bytes())
    (data / MARK).write_bytes(mark_of_before(parts[0].name))
    with pytest.raises(ConfigError, match="unfinished writer: pass resume=True"):
        begin("parquet", data)
    with pytest.raises(ConfigError, match="size_limit was 200, is 300"):
        begin("parquet", data, resume=True, size_limit=300)
    with begin("parquet", data, resume=True) as resumed:
        assert 0 < resumed.samples_written < ROWS
        fill(resumed, "parquet")
    assert sorted(int(sample["x"]) for sample in StreamingDataset(remote=data, format="parquet")) == list(range(ROWS))


def test_a_replacement_of_before_that_was_killed_is_restarted(tmp_path: Path) -> None:
    with begin("parquet", tmp_path) as writer:
        fill(writer, "parquet")
    (tmp_path / MARK).write_bytes(UnfinishedOutput({"replacing": True}).to_json())
    with begin("parquet", tmp_path, resume=True) as resumed:
        assert resumed.samples_written == 0
        fill(resumed, "parquet", 5)
    assert len(StreamingDataset(remote=tmp_path, format="parquet")) == 5


@pytest.mark.parametrize("make", [MDSWriter, JSONWriter])
def test_shards_of_before_without_a_mark_are_continued(make: Any, tmp_path: Path) -> None:
    with make({"x": "int"}, tmp_path, size_limit=200) as writer:
        fill(writer, "tar")
    (tmp_path / "index.json").unlink()
    with pytest.raises(ConfigError, match="shards without an index"):
        make({"x": "int"}, tmp_path, size_limit=200)
    max(tmp_path.glob("shard.*")).unlink()
    with make({"x": "int"}, tmp_path, size_limit=200, resume=True) as resumed:
        assert 0 < resumed.samples_written < ROWS
        fill(resumed, "tar")
    assert [int(sample["x"]) for sample in StreamingDataset(local=tmp_path)] == list(range(ROWS))


@pytest.mark.parametrize("mode", ["append", "resume"])
def test_a_replacement_by_an_earlier_version_that_was_killed_is_refused_until_replaced(
    mode: str, tmp_path: Path
) -> None:
    with MDSWriter({"x": "int"}, tmp_path, size_limit=200) as writer:
        fill(writer, "tar")
    version = "none: a writer with exist_ok=True is replacing this dataset"
    (tmp_path / "index.json").write_text(json.dumps({"files": ["shard.00000.mds"], "version": version}))
    modes: Any = {mode: True}
    with pytest.raises(FormatError, match="a writer with exist_ok=True is replacing this dataset"):
        MDSWriter({"x": "int"}, tmp_path, size_limit=200, **modes)
    with MDSWriter({"x": "int"}, tmp_path, size_limit=200, exist_ok=True) as again:
        assert again.samples_written == 0
        fill(again, "tar", 7)
    assert [int(sample["x"]) for sample in StreamingDataset(local=tmp_path)] == list(range(7))


def test_nothing_is_added_to_a_dataset_that_was_being_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MDSWriter({"x": "int"}, tmp_path) as writer:
        fill(writer, "tar", 20)
    with monkeypatch.context() as patch:
        patch.setattr("stoker.storage.local.LocalStore.delete", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            MDSWriter({"x": "int"}, tmp_path, exist_ok=True)
    assert len(StreamingDataset(tmp_path)) == 20
    with pytest.raises(ConfigError, match=r"was removing what is there.*resume=True or exist_ok=True"):
        MDSWriter({"x": "int"}, tmp_path, append=True)
    assert len(StreamingDataset(tmp_path)) == 20


def test_files_without_an_index_are_not_hidden_by_one(tmp_path: Path) -> None:
    with MDSWriter({"x": "int"}, tmp_path) as writer:
        fill(writer, "tar", 20)
    for mode in ("append", "resume", "exist_ok"):
        options: Any = {mode: mode != "exist_ok"}
        with pytest.raises(ConfigError, match=r"index\.json exists.*exist_ok=True"):
            ParquetWriter({"x": "int"}, tmp_path, **options)
    with ParquetWriter({"x": "int"}, tmp_path, exist_ok=True) as again:
        fill(again, "tar", 3)
    assert [int(sample["x"]) for sample in StreamingDataset(tmp_path)] == [0, 1, 2]


@pytest.mark.parametrize("form", ["parquet", "tar"])
def test_a_second_writer_at_one_destination_writes_nothing(form: str, tmp_path: Path) -> None:
    one, two = begin(form, tmp_path), begin(form, tmp_path)
    fill(one, form, 10)
    one.end_shard()
    while not (tmp_path / MARK).exists():
        time.sleep(0.001)
    with pytest.raises(ConfigError, match=r"another writer writes there at the same time.*exist_ok=True"), two:
        fill(two, form, 20)
    one.finish()
    assert len(StreamingDataset(tmp_path)) == 10
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize("form", ["parquet", "tar"])
def test_of_two_writers_that_began_at_one_moment_none_counts(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = begin(form, tmp_path), begin(form, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("stoker.writing.destination.read_mark", lambda _: None)  # neither sees the other's mark yet
        for writer, rows in ((one, 10), (two, 20)):
            fill(writer, form, rows)
            writer.end_shard()
            while writer._destination._stored is None:
                time.sleep(0.001)
    for writer in (one, two):
        with pytest.raises(ConfigError, match="another writer writes there"):
            writer.finish()
    with pytest.raises(ObjectNotFoundError):
        StreamingDataset(tmp_path)
    with begin(form, tmp_path, exist_ok=True) as again:
        fill(again, form, 7)
    assert len(StreamingDataset(tmp_path)) == 7
