"""What an error says where an index or a split's directory is missing, but data is there."""

from __future__ import annotations

import functools
import http.server
import io
import json
import re
import secrets
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
from stoker.catalog.unindexed.files_location import FilesLocation, is_pattern, source_of
from stoker.cli import main
from stoker.conversion import convert
from stoker.errors import ConfigError, IndexFileError, ObjectNotFoundError, StorageError
from stoker.inspection import inspect, verify
from stoker.storage import Store, open_store
from stoker.writers import ParquetWriter, TarWriter


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
def test_a_format_that_is_not_given_is_found_out(
    tmp_path: Path, format_: str, write: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    write(root)
    named = StreamingDataset(remote=root, format=format_)
    places: list[dict[str, Any]] = [{"remote": root}, {"local": root}, {"remote": root, "local": tmp_path / "cache"}]
    for where in places:
        found = StreamingDataset(**where)
        assert found.size == named.size
        assert found.index.fingerprint == named.index.fingerprint
    with pytest.raises(ObjectNotFoundError, match=f'Read them with format="{format_}"'):
        StreamingDataset(remote=root, format="mds")
    assert main(["order", str(root), "--step", "0"]) == 0
    with MDSWriter({"x": "int"}, str(tmp_path / "mds")) as writer:
        writer.write({"x": 77})
    for path in (tmp_path / "mds").iterdir():  # an index goes before all else
        path.rename(root / path.name)
    assert [int(sample["x"]) for sample in StreamingDataset(remote=root)] == [77]


def test_the_format_of_files_patterns_lists_and_objects_is_found_out(tmp_path: Path, bucket: Bucket) -> None:
    for number in range(12):
        pq.write_table(pa.table({"x": [number]}), tmp_path / f"part-{number:03}.parquet")
    options = bucket.storage_options
    store = open_store(bucket.url, options)
    for path in tmp_path.glob("*.parquet"):
        store.put_file(f"data/{path.name}", path)
    (tmp_path / "about").mkdir()
    for base, more in ((str(tmp_path), {}), (f"{bucket.url}/data", {"storage_options": options})):
        for remote, found in (
            (f"{base}/part-003.parquet", [3]),
            (f"{base}/*.parquet", range(12)),
            (f"{base}/part-00?*", range(10)),
            (f"{base}/part-{{004..011}}.parquet", range(4, 12)),
            (f"{base}/part-{{000,010}}.parquet", [0, 10]),
            (f"{base}/part-{{00,01}}[01].parquet", [0, 1, 10, 11]),
            ([f"{base}/part-001.parquet", f"{base}/part-000.parquet"], [1, 0]),
        ):
            dataset = StreamingDataset(remote=remote, **more)  # type: ignore[arg-type]
            assert [int(sample["x"]) for sample in dataset] == list(found), remote
    assert len(StreamingDataset(remote=f"{bucket.url}/data", storage_options=options)) == 12
    with pytest.raises(ObjectNotFoundError, match=r"part-012"):
        StreamingDataset(remote=f"{tmp_path}/part-{{011..012}}.parquet")
    with pytest.raises(ConfigError, match="more than 1,000,000 names"):
        StreamingDataset(remote=f"{tmp_path}/part-{{000..9999999}}.parquet")
    with pytest.raises(ObjectNotFoundError, match="no file matches"):
        StreamingDataset(remote=f"{tmp_path}/nothing-*")


def test_of_a_dataset_with_an_index_nothing_is_listed(
    tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with MDSWriter({"x": "int"}, str(tmp_path / "mds")) as writer:
        writer.write({"x": 1})
    store = open_store(f"{bucket.url}/mds", bucket.storage_options)
    for path in (tmp_path / "mds").iterdir():
        store.put_file(path.name, path)
    asked: list[str] = []
    for name in ("list", "exists", "head"):
        monkeypatch.setattr(Store, name, lambda *_, name=name: asked.append(name))
    dataset = StreamingDataset(
        remote=f"{bucket.url}/mds", local=tmp_path / "cache", storage_options=bucket.storage_options
    )
    assert len(dataset) == 1
    assert asked == []


def test_what_has_no_one_format_says_what_is_there(tmp_path: Path) -> None:
    for name in ("both", "strange", "lost"):
        (tmp_path / name).mkdir()
    write_npy(tmp_path / "both")
    write_jsonl(tmp_path / "both")
    with pytest.raises(ObjectNotFoundError, match=r"files of several formats \(1 of json, 1 of npy\).*format="):
        StreamingDataset(remote=tmp_path / "both")
    (tmp_path / "strange" / "a.xyz").write_bytes(b"x")
    with pytest.raises(
        ObjectNotFoundError, match=r"the names of its 1 file do not show a format \(1 of .xyz\): pass format="
    ):
        StreamingDataset(remote=tmp_path / "strange")
    np.save(tmp_path / "strange" / "a.npy", np.arange(3))
    (tmp_path / "strange" / "a.npy").rename(tmp_path / "strange" / "a.xyz")
    with pytest.raises(ObjectNotFoundError, match=r"a\.xyz begins as a file of format='npy' does"):
        StreamingDataset(remote=tmp_path / "strange")
    with MDSWriter({"x": "int"}, str(tmp_path / "mds")) as writer:
        writer.write({"x": 1})
    (tmp_path / "mds" / "index.json").unlink()
    with pytest.raises(ObjectNotFoundError, match=r'shards whose index is lost.*`stoker index .*format="mds"'):
        StreamingDataset(remote=tmp_path / "mds")
    with TarWriter({"cls": "int"}, str(tmp_path / "tar")) as writer:
        writer.write({"cls": 1})
    (tmp_path / "tar" / "index.json").unlink()
    with pytest.raises(
        ObjectNotFoundError, match=r"shards whose index is lost.*`stoker index [^;]*rebuilds the index$"
    ):
        StreamingDataset(remote=tmp_path / "tar")
    with pytest.raises(ObjectNotFoundError, match="lost is empty: there are no files"):
        StreamingDataset(remote=tmp_path / "lost")
    with pytest.raises(ObjectNotFoundError, match="lost is empty: there are no files"):
        StreamingDataset(remote=tmp_path / "lost", format="npy")
    with pytest.raises(ObjectNotFoundError, match=r"losst does not exist: did you mean 'lost'\?"):
        StreamingDataset(remote=tmp_path / "losst")


def test_unfinished_parquet_files_are_not_said_to_need_an_index(tmp_path: Path) -> None:
    writer = ParquetWriter({"x": "int"}, tmp_path / "data")
    writer.write({"x": 1})
    writer.end_shard()
    writer.abort()
    for format_ in (None, "parquet"):
        with pytest.raises(ObjectNotFoundError, match="resume=True finishes them") as caught:
            StreamingDataset(remote=tmp_path / "data", format=format_)
        assert "stoker index" not in str(caught.value)


@pytest.mark.parametrize("format_", [None, "mds"])
@pytest.mark.parametrize("named", ["shard.00000.mds", "*.mds", "shard.0000{0,1}.mds"])
def test_an_mds_dataset_named_by_its_shards_is_opened_by_its_directory(
    tmp_path: Path, named: str, format_: str | None
) -> None:
    with MDSWriter({"x": "int"}, tmp_path / "mm") as writer:
        writer.write({"x": 77})
    given: list[str | list[str]] = [f"{tmp_path}/mm/{named}", [f"{tmp_path}/mm/{named}"]]
    for one in given[: 1 if "*" in named else 2]:
        with pytest.raises(ConfigError, match=rf"opened by its directory, where its index\.json is: {tmp_path}/mm$"):
            StreamingDataset(one, format=format_)


@pytest.mark.s3
def test_an_mds_shard_of_an_object_store_is_opened_by_its_prefix(tmp_path: Path, bucket: Bucket) -> None:
    with MDSWriter({"x": "int"}, f"{bucket.url}/mm", storage_options=bucket.storage_options) as writer:
        writer.write({"x": 77})
    with pytest.raises(ConfigError, match=f"opened by its directory, .*: {bucket.url}/mm$"):
        StreamingDataset(f"{bucket.url}/mm/shard.00000.mds", storage_options=bucket.storage_options)


@pytest.mark.parametrize("format_", [None, "json"])
def test_links_that_are_not_followed_are_said_to_be_such(
    tmp_path: Path, format_: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("outside", "linked", "dangling"):
        (tmp_path / name).mkdir()
    write_jsonl(tmp_path / "outside")
    (tmp_path / "linked" / "more").symlink_to(tmp_path / "outside")
    (tmp_path / "dangling" / "a.jsonl").symlink_to(tmp_path / "nowhere.jsonl")
    with pytest.raises(StorageError, match=r"more is a symbolic link to .*outside.*Give that directory itself"):
        StreamingDataset(tmp_path / "linked", format=format_)
    with pytest.raises(ObjectNotFoundError, match=r"broken symbolic links: .*a\.jsonl leads to .*nowhere"):
        StreamingDataset(tmp_path / "dangling", format=format_)
    assert "a.jsonl is passed over: it is a symbolic link to what is not there" in caplog.text


@pytest.mark.parametrize("given", ["x{}.csv", "x{a}.csv", "x{a.csv", "xa}.csv", "x{1..3.csv"])
def test_braces_that_stand_for_nothing_are_part_of_a_name(tmp_path: Path, given: str) -> None:
    with pytest.raises(
        ObjectNotFoundError, match=r"does not exist.*Of braces, \{a,b\} and \{000..127\} stand for names"
    ):
        StreamingDataset(tmp_path / given)
    (tmp_path / given).write_text("a\n1\n")
    assert StreamingDataset(tmp_path / given)[0] == {"a": 1}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("x{3..1}.csv", r"stands for no name: the numbers in \{3\.\.1\} fall"),
        ("x{3..1}*.csv", r"stands for no name: the numbers in \{3\.\.1\} fall"),
        ("{a,{b,c}}.csv", "braces inside of braces"),
        ("x{,}.csv", "twice"),
    ],
)
def test_braces_that_make_no_sense_are_refused(tmp_path: Path, given: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StreamingDataset(tmp_path / given)


def test_a_directory_with_characters_of_a_pattern_in_its_name_is_itself(tmp_path: Path) -> None:
    for name in ("dir[1]", "dir1", "a{b,c}", "ab"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "x.npy", np.full(1 + len(name), 7))
    for pattern, size in (("dir[1]/*.npy", 7), ("dir[12]/*.npy", 5), ("a{b,c}/*.npy", 7), ("dir[1]/x.npy", 7)):
        assert len(StreamingDataset(tmp_path / pattern)) == size
    with pytest.raises(ObjectNotFoundError, match=r"a\{b,c\}/y\.npy"):
        StreamingDataset(tmp_path / "a{b,c}" / "{x,y}.npy")
    with pytest.raises(ObjectNotFoundError, match="does not exist"):
        StreamingDataset(tmp_path / "dir[1]" / "y.npy")


def parquet_of(*numbers: int) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"i": list(numbers)}), out)
    return out.getvalue()


def numbers_of(url: str, cache: Path, **options: Any) -> list[int]:
    return sorted(int(sample["i"]) for sample in StreamingDataset(url, local=cache, **options))


@pytest.mark.parametrize(
    ("given", "options", "numbers"),
    [
        ("run[1]/x.parquet", {}, [1, 2]),
        ("run[1]/*.parquet", {}, [1, 2]),
        ("run[1]", {}, [1, 2, 3, 4]),
        ("run[1]/**/*.parquet", {}, [1, 2, 3, 4]),
        ("run[1]/[2]/*.parquet", {}, [3]),
        ("run[1]/[12]/y.parquet", {}, [4]),
        ("run[12]/x.parquet", {}, [7]),
        ("run*/x.parquet", {}, [1, 2, 7]),
        ("run[1]", {"split": "[2]"}, [3]),
        ("one[1].parquet", {}, [5]),
        ("one[12].parquet", {}, [6]),
        ("odd[1].data", {"format": "parquet"}, [8]),
    ],
)
def test_keys_of_a_store_with_characters_of_a_pattern_are_themselves(
    given: str, options: Any, numbers: list[int], tmp_path: Path
) -> None:
    url = f"memory://{secrets.token_hex(8)}"
    store = open_store(url)
    for key, held in {
        "run[1]/x.parquet": (1, 2),
        "run1/x.parquet": (7,),
        "run[1]/[2]/y.parquet": (3,),
        "run[1]/2/y.parquet": (4,),
        "one[1].parquet": (5,),
        "one1.parquet": (6,),
        "odd[1].data": (8,),
        "odd1.data": (9,),
    }.items():
        store.put(key, parquet_of(*held))
    assert numbers_of(f"{url}/{given}", tmp_path, **options) == numbers
    if not options:
        assert (inspect(f"{url}/{given}").samples, verify(f"{url}/{given}").samples) == (len(numbers), len(numbers))
        convert(f"{url}/{given}", tmp_path / "out", to="mds")
        assert numbers_of(str(tmp_path / "out"), tmp_path / "cache") == numbers
    with pytest.raises(ObjectNotFoundError, match=r"run\[1\]/z\.parquet"):
        StreamingDataset(f"{url}/run[1]/z.parquet", local=tmp_path / "none")


@pytest.mark.parametrize("name", ["w[1]", "w?", "w*", "a/w[!b]"])
def test_what_a_writer_makes_at_such_a_name_is_read(name: str, tmp_path: Path) -> None:
    url = f"memory://{secrets.token_hex(8)}/{name}"
    with MDSWriter({"i": "int"}, url) as writer:
        for number in range(3):
            writer.write({"i": number})
    assert numbers_of(url, tmp_path / "a") == numbers_of(url, tmp_path / "b", format="mds") == [0, 1, 2]
    assert (inspect(url).samples, verify(url).samples) == (3, 3)
    above, _, split = url.rpartition("/")
    assert numbers_of(above, tmp_path / "c", split=split) == [0, 1, 2]
    with MDSWriter({"i": "int"}, f"{url}s/train") as writer:
        writer.write({"i": 7})
    assert numbers_of(f"{url}s", tmp_path / "d", split="train") == [7]


def test_brackets_in_a_url_of_the_web_are_those_of_a_name() -> None:
    for url in ("https://host/run[1]/x.parquet", "http://[::1]:80/run[1]/x.parquet"):
        assert not is_pattern(url)
        assert source_of(url) == FilesLocation(url.rpartition("/")[0], keys=("x.parquet",))
    assert is_pattern("https://host/*.parquet")


@pytest.mark.s3
@pytest.mark.parametrize("key", ["d//y.parquet", "d/./y.parquet"])
def test_a_key_that_can_not_be_asked_for_is_named(key: str, bucket: Bucket, tmp_path: Path) -> None:
    open_store(bucket.url, bucket.storage_options).put("d/x.parquet", parquet_of(1))
    bucket.server.client().put_object(Bucket=bucket.name, Key=key, Body=b"x")
    told = rf"the object '{re.escape(key)}' can not be asked for, so nothing beside it is listed"
    for options in ({}, {"format": "parquet"}, {"split": "train"}):
        with pytest.raises(IndexFileError, match=told):
            StreamingDataset(
                f"{bucket.url}/d",
                local=tmp_path,
                storage_options=bucket.storage_options,
                **options,  # type: ignore[arg-type]
            )
    named: Any = [f"{bucket.url}/d/x.parquet"]
    assert len(StreamingDataset(named, local=tmp_path, storage_options=bucket.storage_options)) == 1


def test_a_pattern_that_matches_but_for_the_case_of_letters_says_so(tmp_path: Path) -> None:
    write_parquet(tmp_path)
    (tmp_path / "train-00000-of-00001.parquet").rename(tmp_path / "X.PARQUET")
    for format_ in (None, "parquet"):
        with pytest.raises(ObjectNotFoundError, match=r"X\.PARQUET differs from it in upper and lower case"):
            StreamingDataset(tmp_path / "*.parquet", format=format_)
    assert len(StreamingDataset(tmp_path)) == len(StreamingDataset(tmp_path / "X.*")) == 1


@pytest.mark.parametrize("root", ["hf", "hf/data"])
def test_a_split_without_a_folder_is_read_by_the_names_of_its_files(tmp_path: Path, root: str, bucket: Bucket) -> None:
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
            by_pattern = StreamingDataset(f"{remote}/{below}{name}*.parquet", storage_options=options)
            for format_ in (None, "parquet"):
                found = StreamingDataset(remote, format=format_, split=split, storage_options=options)
                assert [sample["x"] for sample in found] == [name, name]
                assert found.size == by_pattern.size
        with pytest.raises(ConfigError, match=r'as by the pattern .*\(a StreamingDataset also by split="train"\)'):
            StreamingDataset(remote, storage_options=options)
        for wrong, remedy in (
            ("trian", r"[Dd]id you mean .*'train'"),
            ("train[:10%]", r"train, validation\. A split is read whole: take a part by subset="),
            ("train+validation", r"several splits by streams="),
        ):
            with pytest.raises(ObjectNotFoundError, match=remedy):
                StreamingDataset(remote, split=wrong, storage_options=options)
        with pytest.raises(ObjectNotFoundError, match=r"leave split= out"):
            StreamingDataset(f"{remote}/*.parquet", split="train", storage_options=options)


def test_empty_objects_that_stand_for_folders_are_passed_over(bucket: Bucket) -> None:
    client = bucket.server.client()
    for key in ("marked/", "marked/sub/", "marked/later/", "bare/"):
        client.put_object(Bucket=bucket.name, Key=key, Body=b"")
    store = open_store(bucket.url, bucket.storage_options)
    store.put("marked/sub/a.jsonl", b'{"x": 1}\n')
    for format_ in (None, "json"):
        found = StreamingDataset(f"{bucket.url}/marked", format=format_, storage_options=bucket.storage_options)
        assert [sample["x"] for sample in found] == [1]
    with pytest.raises(ObjectNotFoundError, match=r"nothing is there"):
        StreamingDataset(f"{bucket.url}/bare", storage_options=bucket.storage_options)


@pytest.mark.processes
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
        assert "1 file" not in str(caught.value)
        server.shutdown()


def test_names_of_the_hub_and_of_several_files_have_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ObjectNotFoundError, match=r"A dataset of the Hub is hf://datasets/owner/name"):
        StreamingDataset("owner/name")
    with pytest.raises(ObjectNotFoundError, match=r"Several files are a list, or a pattern"):
        StreamingDataset("a.tar::b.tar")


def test_chunks_whose_writer_did_not_end_name_how_it_is_ended(tmp_path: Path) -> None:
    (tmp_path / "0.index.json").write_text("{}")
    (tmp_path / "chunk-0-0.bin").write_bytes(b"chunk")
    with pytest.raises(ObjectNotFoundError, match=r"litdata's optimize did not end.*complete_dataset"):
        StreamingDataset(tmp_path)


def test_texts_of_images_describe_them(tmp_path: Path) -> None:
    """As the ``imagefolder`` of Hugging Face's ``datasets`` has them."""
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "a.png", "text": "black"}\n')
    assert StreamingDataset(tmp_path)[0]["path"] == "a.png"
    (tmp_path / "a.png").unlink()
    assert StreamingDataset(tmp_path)[0]["text"] == "black"


def test_a_path_that_the_system_refuses_is_an_error_of_stokers(tmp_path: Path) -> None:
    """As one in a folder of another user; root may read all, so here a name is too long."""
    with pytest.raises(StorageError, match="File name too long"):
        StreamingDataset(tmp_path / ("a" * 300))
