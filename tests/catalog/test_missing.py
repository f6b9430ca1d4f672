"""What an error says where an index or a split's directory is missing, but data is there."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from s3server import Bucket
from stoker import MDSWriter, StreamingDataset
from stoker.cli import main
from stoker.errors import ConfigError, ObjectNotFoundError, StorageError
from stoker.storage import open_store


def write_parquet(folder: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), folder / "train-00000-of-00001.parquet")


def write_images(folder: Path) -> None:
    Image.new("RGB", (2, 2)).save(folder / "a.png")
    Image.new("RGB", (2, 2)).save(folder / "b.jpg")


def write_npy(folder: Path) -> None:
    np.save(folder / "a.npy", np.arange(3))


def write_jsonl(folder: Path) -> None:
    (folder / "a.jsonl").write_text(json.dumps({"x": 1}) + "\n")


def write_saved(folder: Path) -> None:
    """As ``datasets.save_to_disk`` does."""
    table = pa.table({"x": [1]})
    with pa.ipc.new_stream(folder / "data-00000-of-00001.arrow", table.schema) as out:
        out.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    (folder / "dataset_info.json").write_text("{}")


KINDS: list[tuple[str, Callable[[Path], None]]] = [
    ("parquet", write_parquet),
    ("images", write_images),
    ("npy", write_npy),
    ("json", write_jsonl),
    ("arrow", write_saved),
]


@pytest.mark.parametrize(("format_", "write"), KINDS, ids=[name for name, _ in KINDS])
def test_a_forgotten_format_is_named(
    tmp_path: Path, format_: str, write: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    write(root)
    said = rf'data has no index\.json: there are files of format .*Read them with format="{format_}"'
    places: list[dict[str, Any]] = [{"remote": root}, {"local": root}, {"remote": root, "local": tmp_path / "cache"}]
    for where in places:
        with pytest.raises(ObjectNotFoundError, match=said):
            StreamingDataset(**where)
    assert StreamingDataset(remote=root, format=format_).size
    assert main(["order", str(root)]) == 1
    assert f'Read them with format="{format_}"' in capsys.readouterr().err


def test_a_forgotten_format_is_named_of_files_patterns_and_objects(tmp_path: Path, bucket: Bucket) -> None:
    write_parquet(tmp_path)
    (path,) = tmp_path.iterdir()
    for remote in (str(path), f"{tmp_path}/*.parquet"):
        with pytest.raises(ObjectNotFoundError, match='Read them with format="parquet"'):
            StreamingDataset(remote=remote)
    options = bucket.storage_options
    open_store(bucket.url, options).put("data/a.parquet", path.read_bytes())
    with pytest.raises(ObjectNotFoundError, match='Read them with format="parquet"'):
        StreamingDataset(remote=f"{bucket.url}/data", local=tmp_path / "cache", storage_options=options)


def test_what_has_no_one_format_says_what_is_there(tmp_path: Path) -> None:
    for name in ("both", "strange", "lost"):
        (tmp_path / name).mkdir()
    write_npy(tmp_path / "both")
    write_jsonl(tmp_path / "both")
    with pytest.raises(ObjectNotFoundError, match=r"files of several formats \(1 of json, 1 of npy\).*format="):
        StreamingDataset(remote=tmp_path / "both")
    (tmp_path / "strange" / "a.xyz").write_bytes(b"x")
    with pytest.raises(ObjectNotFoundError, match="no name of its 1 files tells a format"):
        StreamingDataset(remote=tmp_path / "strange")
    with MDSWriter({"x": "int"}, str(tmp_path / "mds")) as writer:
        writer.write({"x": 1})
    (tmp_path / "mds" / "index.json").unlink()
    with pytest.raises(ObjectNotFoundError, match=r'shards whose index is lost.*`stoker index .*format="mds"'):
        StreamingDataset(remote=tmp_path / "mds")
    for nothing in ("lost", "nowhere"):
        with pytest.raises(ObjectNotFoundError, match=r"index\.json: no such file"):
            StreamingDataset(remote=tmp_path / nothing)


@pytest.mark.parametrize("root", ["hf", "hf/data"])
def test_a_split_that_is_told_by_names_is_given_as_a_pattern(tmp_path: Path, root: str, bucket: Bucket) -> None:
    data = tmp_path / "hf" / "data"
    data.mkdir(parents=True)
    store = open_store(bucket.url, bucket.storage_options)
    for split in ("train", "validation"):
        for number in range(2):
            path = data / f"{split}-{number:05}-of-00002.parquet"
            pq.write_table(pa.table({"x": [split]}), path)
            store.put(f"hf/data/{path.name}", path.read_bytes())
    below = "" if root == "hf/data" else "data/"
    for base, options in ((str(tmp_path), None), (bucket.url, bucket.storage_options)):
        remote = f"{base}/{root}"
        for split, name in (("train", "train"), ("val", "validation")):
            pattern = f"{remote}/{below}{name}*.parquet"
            with pytest.raises(ObjectNotFoundError) as caught:
                StreamingDataset(remote=remote, format="parquet", split=split, storage_options=options)
            assert f"by the pattern {pattern} without split=" in str(caught.value)
            found = StreamingDataset(remote=pattern, format="parquet", storage_options=options)
            assert [sample["x"] for sample in found] == [name, name]
        with pytest.raises((ObjectNotFoundError, ConfigError)) as caught_other:
            StreamingDataset(remote=remote, format="parquet", split="other", storage_options=options)
        assert "pattern" not in str(caught_other.value)


def test_a_directory_of_a_web_server_can_not_be_listed(tmp_path: Path) -> None:
    class Quiet(http.server.SimpleHTTPRequestHandler):  # takes no ranges
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}/data"
        for format_ in ("parquet", "json"):
            with pytest.raises(StorageError, match=r"plain HTTP can not list\. Name the files"):
                StreamingDataset(remote=url, format=format_, local=tmp_path / "cache")
            with pytest.raises(ConfigError, match="plain HTTP can not list a directory"):
                StreamingDataset(remote=f"{url}/", format=format_, local=tmp_path / "cache")
        with pytest.raises(ObjectNotFoundError) as caught:
            StreamingDataset(remote=url, local=tmp_path / "cache")
        assert "of its 1 files" not in str(caught.value)
        server.shutdown()
