"""What lies at a URL, by names alone."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from stoker.catalog.detect import Detected, detect
from stoker.catalog.unindexed.files_location import dataset_url
from stoker.errors import ConfigError, ObjectNotFoundError
from stoker.inspection import inspect, verify
from stoker.loaders.dataset import StreamingDataset
from support import make_dataset


def lay(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("a.parquet", "_SUCCESS", "README.md"), Detected("files", "parquet")),
        (("cat/1.jpg", "dog/2.JPEG", "classes.txt"), Detected("files", "jpeg")),
        (("cat/1.jpg", "dog/2.png", "dog/3.PNG"), Detected("files", "images")),
        (("a.jsonl.gz", "b.jsonl.zst"), Detected("files", "json")),
        (("a.CSV.GZ", "about.txt"), Detected("files", "csv")),
        (("0.tar", "1.tar", "index.csv", "about.json"), Detected("files", "tar")),
        (("a.jsonl", "b.ndjson"), Detected("files", "json")),
        (("a.json",), Detected("files", "json")),
        (("shard.00000.mds", "shard.00001.mds"), Detected("shards")),
        (("shard.00000.npy", "shard.00000.npy.meta"), Detected("shards")),
        (("shard.00000.npy",), Detected("files", "npy")),
        (("train.idx", "train.bin"), Detected("files", "megatron")),
        (("a.tar", "a.idx", "b.tar", "b.idx"), Detected("files", "tar")),
        (("a.tar", "a.tar.idx"), Detected("files", "tar")),
        (("a.tfrecord", "a.idx", "b.index", "b.tfindex"), Detected("files", "tfrecord")),
        (("a.tfrecord-00000-of-00002", "features.json", "a.labels.txt"), Detected("files", "tfrecord")),
        (("a.parquet-00000-of-00002",), Detected("files", "parquet")),
        (("a.TFRecord.GZ-00000-of-00002",), Detected("files", "tfrecord")),
        (("a.wav", "b.flac"), Detected("files", "files")),
    ],
)
def test_names_tell(names: tuple[str, ...], found: Detected, tmp_path: Path) -> None:
    assert detect(lay(tmp_path, *names)) == found


def test_an_index_of_tokens_beside_tars_is_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="several formats"):
        detect(lay(tmp_path, "a.tar", "b.idx", "b.bin"))


def test_an_index_goes_before_all_else(tmp_path: Path) -> None:
    assert detect(lay(tmp_path, "index.json", "a.parquet", "b.tar")) == Detected("index")


def test_a_file_and_a_pattern(tmp_path: Path) -> None:
    lay(tmp_path, "a.npz", "b.tar")
    assert detect(tmp_path / "a.npz") == Detected("files", "npz")
    assert detect(f"{tmp_path}/*.tar") == Detected("files", "tar")


def test_what_is_not_clear_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"1 of npz, 1 of tar.*format="):
        detect(lay(tmp_path / "both", "a.npz", "b.tar"))
    with pytest.raises(ConfigError, match="format='files'"):
        detect(lay(tmp_path / "none", "a.xyz"))
    with pytest.raises(ConfigError, match="--merge"):
        detect(lay(tmp_path / "splits", "train/index.json", "val/index.json"))
    with pytest.raises(ObjectNotFoundError, match="nowhere"):
        detect(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"1 of tar and 1 of .tgz, which no format reads.*format="):
        detect(lay(tmp_path / "packed", "0.tar", "1.tgz"))
    with pytest.raises(ConfigError, match=r"1 of jpeg and 1 of xsv next to them.*labels"):
        detect(lay(tmp_path / "captions", "0.jpg", "0.txt"))
    with pytest.raises(ConfigError, match=r"1 of files and 1 of csv next to them.*labels"):
        detect(lay(tmp_path / "sounds", "0.wav", "metadata.csv"))
    with pytest.raises(ConfigError, match=r"1 of json and 1 of .pt, which no format reads"):
        detect(lay(tmp_path / "model", "config.json", "a.pt"))
    with pytest.raises(
        ConfigError, match=r"1 of .webp, which no format reads.*format='jpeg'.*format='files' has the by"
    ):
        detect(lay(tmp_path / "pictures", "0.jpg", "1.webp"))
    with pytest.raises(ConfigError, match="not a pattern of files: bad character range"):
        detect(f"{tmp_path}/s-[9-0]0.parquet")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ObjectNotFoundError, match="empty is empty: there are no files"):
        detect(tmp_path / "empty")


def test_files_of_systems_are_no_data_and_an_odd_one_is_named_with_the_format_to_write(tmp_path: Path) -> None:
    images = ("train/a/0.jpg", "train/a/1.JPEG", "train/b/2.png")
    root = lay(tmp_path / "images", *images, "train/a/Thumbs.db", "train/desktop.ini")
    assert detect(root / "train") == Detected("files", "images")
    with pytest.raises(ConfigError, match=r"1 of .xyz, which no format reads.*such as format='images'"):
        detect(lay(tmp_path / "images", "train/3.xyz"))


def test_what_datasets_saved_is_no_data_next_to_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = lay(tmp_path, "data-00000-of-00001.arrow", "state.json", "dataset_info.json")
    assert detect(root) == Detected("files", "arrow")
    assert not caplog.text


def test_one_kind_of_images_says_that_it_leaves_the_other_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("0.jpg", "1.png"):
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    assert StreamingDataset(tmp_path, format="jpeg").size == 1
    assert "leaves out 1 image of other kinds; format='images' reads JPEG and PNG alike" in caplog.text
    assert StreamingDataset(tmp_path, format="images").size == 2
    caplog.clear()
    Image.new("RGB", (4, 4)).save(tmp_path / "2.webp")
    assert StreamingDataset(tmp_path, format="images").size == 2
    assert "format='images' leaves out 1 image of other kinds; format='files' has the bytes of all" in caplog.text


def test_options_go_to_the_format_that_is_detected(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "0.jpg")
    assert type(StreamingDataset(tmp_path, format_options={"decode": False})[0]["image"]) is bytes
    make_dataset(tmp_path / "indexed", samples=3)
    with pytest.raises(
        ConfigError, match=r"has an index.json, and format_options= is only for .*remove format_options="
    ):
        StreamingDataset(tmp_path / "indexed", format_options={"decode": False})


def test_a_list_of_datasets_is_told_to_be_streams(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    given = [str(tmp_path / name) for name in "ab"]
    with pytest.raises(ConfigError, match=r"the list holds .*a, a directory, .*write streams=\[Stream\('.*a'\), ...\]"):
        StreamingDataset(given)
    with pytest.raises(ConfigError, match=r"\(s3://x/a\) ends as a file's does.*streams=\[Stream\('s3://x/a'\)"):
        detect(["s3://x/a", "s3://x/b"])
    with pytest.raises(ConfigError, match="the list of files is empty"):
        detect([])


def test_every_name_of_a_large_directory_counts(tmp_path: Path) -> None:
    lay(tmp_path, *(f"{number:04}.jsonl" for number in range(5100)), "z.parquet")
    with pytest.raises(ConfigError, match=r"files of several formats \(5100 of json, 1 of parquet\)"):
        detect(tmp_path)
    with pytest.raises(ObjectNotFoundError, match="5100 of json, 1 of parquet"):
        StreamingDataset(tmp_path)


def test_files_that_are_no_samples_are_named_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    detect(lay(tmp_path, "0.tar", "1.tar", "index.csv", "README.md"))
    assert "read as tar; 1 of csv next to them" in caplog.text


def test_a_dataset_named_by_its_index_is_read(tmp_path: Path) -> None:
    make_dataset(tmp_path, 20)
    assert len(StreamingDataset(tmp_path / "index.json")) == 20


def test_a_dataset_may_be_named_by_its_index() -> None:
    assert dataset_url("s3://bucket/data/index.json") == "s3://bucket/data"
    assert dataset_url("index.json") == "."
    assert dataset_url("/data") == "/data"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A web server, which can not be listed."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.processes
def test_a_dataset_on_a_web_server(web: str, tmp_path: Path) -> None:
    make_dataset(tmp_path / "data", 100, hashes=["sha1"])
    assert detect(f"{web}/data") == Detected("index")
    assert inspect(f"{web}/data", samples=0).samples == 100
    assert verify(f"{web}/data").ok
    (tmp_path / "data" / "shard.00001.mds").unlink()
    assert [problem.key for problem in verify(f"{web}/data").problems] == ["shard.00001.mds"]
