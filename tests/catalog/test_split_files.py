"""Datasets of the Hugging Face Hub, and copies of them: formats, splits and configs, requests, and what a state says."""

from __future__ import annotations

import io
import json
import multiprocessing
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hub_server import Hub, Repo, own_hub, sha_of
from patience import PATIENCE
from s3server import Bucket
from stoker import StreamingDataset, convert, inspect, verify
from stoker.errors import ConfigError, MissingPackageError, ObjectNotFoundError, StateError, StokerError
from stoker.loaders.parquet_loader import StreamingParquetLoader
from stoker.storage import open_store
from stoker.storage.hub.hub_store import recent_commits

pytestmark = pytest.mark.processes

URL = "hf://datasets/o/n"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    with own_hub(monkeypatch, tmp_path) as made:
        yield made


def parquet(first: int, count: int = 100) -> bytes:
    out = io.BytesIO()
    table = pa.table({"x": pa.array(range(first, first + count)), "text": [f"document {i} " * 9 for i in range(count)]})
    pq.write_table(table, out)
    return out.getvalue()


def files(*names: str) -> dict[str, bytes]:
    """Parquet files, of which number i holds the numbers from 100 * i on."""
    return {
        ".gitattributes": b"*",
        "README.md": b"# A dataset",
        **{name: parquet(100 * i) for i, name in enumerate(names)},
    }


def numbers(dataset: StreamingDataset) -> list[int]:
    with dataset:
        return sorted(int(sample["x"]) for sample in dataset)


SHARDS = ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-00000-of-00001.parquet")
TRAIN, TEST = list(range(200)), list(range(200, 300))


def card(*configs: Mapping[str, Any]) -> dict[str, Any]:
    return {"license": "mit", "configs": list(configs)}


BY_SPLIT = {
    "config_name": "default",
    "data_files": [{"split": "train", "path": "data/train-*"}, {"split": "test", "path": ["data/test-*"]}],
}


def test_a_pasted_url_is_read_with_one_request_a_file(hub: Hub) -> None:
    hub.page = 3
    hub.repos["o/n"] = Repo([files("a.parquet", "b.parquet", "sub/c.parquet")])
    assert numbers(StreamingDataset(URL)) == list(range(300))
    asked = [re.sub(r"[0-9a-f]{40}|\?.*", "", one) for one in hub.requests]
    assert sorted(asked) == [
        "GET /api/datasets/o/n/revision/main",
        "GET /api/datasets/o/n/tree/",
        "GET /api/datasets/o/n/tree/",
        "HEAD /datasets/o/n/resolve//a.parquet",
        "HEAD /datasets/o/n/resolve//b.parquet",
        "HEAD /datasets/o/n/resolve//sub/c.parquet",
    ]
    hub.requests.clear()
    assert numbers(StreamingDataset(URL)) == list(range(300))
    assert not any("HEAD" in one for one in hub.requests), "a second start opens no file"


def _open(start: Any, results: Any) -> None:
    start.wait(PATIENCE)
    results.put(numbers(StreamingDataset(URL, split="train")))


@pytest.mark.processes
def test_the_processes_of_a_node_ask_once_for_each_file(hub: Hub) -> None:
    hub.repos["o/n"] = Repo([files(*(f"data/train-{i:05d}.parquet" for i in range(8)))])
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.Queue()
    processes = [context.Process(target=_open, args=(start, results)) for _ in range(4)]
    for process in processes:
        process.start()
    try:
        start.set()
        for _ in processes:
            assert results.get(timeout=PATIENCE) == list(range(800))
    finally:
        for process in processes:
            process.join(PATIENCE)
            process.kill()
    ranges = [one for one in hub.cdn_requests if one.startswith("GET")]
    footers = sum("HEAD" in one for one in hub.requests)
    assert 8 <= footers < 4 * 8, (
        "each process asks for a file that it fetches, and none for a header that another has read"
    )
    assert len(ranges) < 4 * 8
    hub.requests.clear()
    assert numbers(StreamingDataset(URL, split="train")) == list(range(800))
    assert not any("HEAD" in one for one in hub.requests), "nor does a second start"


@pytest.mark.parametrize("readme", [None, card(BY_SPLIT)])
def test_splits_are_told_by_the_readme_or_by_names(hub: Hub, readme: dict[str, Any] | None) -> None:
    hub.repos["o/n"] = Repo([files(*SHARDS)], card=readme)
    assert numbers(StreamingDataset(URL, split="train")) == TRAIN
    assert numbers(StreamingDataset(URL, split="test")) == TEST
    with pytest.raises(ConfigError, match=r"splits.*train.*choose one"):
        StreamingDataset(URL)
    with pytest.raises(ObjectNotFoundError, match=r"'validation'.*te?(st)?.*train|'validation'.*train, test"):
        StreamingDataset(URL, split="validation")
    assert numbers(StreamingDataset(f"{URL}/data/train-*.parquet")) == TRAIN
    assert numbers(StreamingDataset(f"{URL}/{SHARDS[2]}")) == TEST
    assert numbers(StreamingDataset(f"{URL}@{sha_of(0)}", split="train")) == TRAIN
    assert numbers(StreamingDataset([f"{URL}/{SHARDS[0]}", f"{URL}/{SHARDS[1]}"])) == TRAIN


def test_a_file_of_another_split_with_a_like_name_is_left_out(hub: Hub) -> None:
    hub.repos["o/n"] = Repo([files("data/train-0.parquet", "data/train_sft-0.parquet", "data/test-0.parquet")])
    assert numbers(StreamingDataset(URL, split="train")) == list(range(100))
    assert numbers(StreamingDataset(URL, split="train_sft")) == list(range(100, 200))


def test_configs(hub: Hub) -> None:
    names = ("en/train-0.parquet", "fr/train-0.parquet", "fr/test-0.parquet")
    en = {"config_name": "en", "data_files": "en/*"}
    fr = {"config_name": "fr", "data_dir": "fr"}
    hub.repos["o/n"] = Repo([files(*names)], card=card(en, fr))
    for split in (None, "train"):
        with pytest.raises(ConfigError, match=r"configs en, fr.*split='en/train'"):
            StreamingDataset(URL, split=split)
    assert numbers(StreamingDataset(URL, split="en/train")) == list(range(100))
    assert numbers(StreamingDataset(URL, split="fr/test")) == TEST
    with pytest.raises(ObjectNotFoundError, match=r"fr/nope.*en/train, fr/test, fr/train"):
        StreamingDataset(URL, split="fr/nope")
    hub.repos["o/n"].card = card(en, fr | {"default": True})
    recent_commits.clear()
    assert numbers(StreamingDataset(URL, split="test")) == TEST
    with pytest.raises(ConfigError, match=r"splits test, train.*split='train'.*en/train"):
        StreamingDataset(URL)
    hub.repos["o/n"].card = card({"config_name": "all", "data_files": {"all": "**/train-*.parquet"}})
    recent_commits.clear()
    assert numbers(StreamingDataset(URL)) == list(range(200))
    hub.repos["o/n"].card = card({"data_files": "nothing/*"})
    recent_commits.clear()
    with pytest.raises(ConfigError, match=r"split 'train' of config 'default' is nothing/\*, and no file matches"):
        StreamingDataset(URL)


def test_what_takes_no_split_reads_what_the_readme_chooses(hub: Hub, tmp_path: Path) -> None:
    en, fr = ({"config_name": name, "data_files": f"{name}/*"} for name in ("en", "fr"))
    hub.repos["o/n"] = Repo([files("en/a.parquet", "fr/a.parquet")], card=card(en, fr))
    jobs = (
        inspect,
        verify,
        lambda url: convert(url, tmp_path / "out"),
        lambda url: StreamingParquetLoader(url, column="x"),
    )
    for job in jobs:
        with pytest.raises(
            ConfigError, match=r"configs en, fr.*split='en/train' of a S.*, or name its files by a pattern"
        ):
            job(URL)
    hub.repos["o/n"].card = card(en, fr | {"default": True})
    recent_commits.clear()
    assert inspect(URL).samples == convert(URL, tmp_path / "out").samples == 100
    assert numbers(StreamingDataset(tmp_path / "out")) == list(range(100, 200))


README = """---
license: mit
configs:
- config_name: en
  default: true
  data_files:
  - split: train
    path: [english/one.parquet, "english/train-*"]
- config_name: fr
  data_files: french/*
---
# A dataset
"""


@pytest.mark.parametrize("place", ["folder", "s3"])
def test_a_copy_of_a_dataset_has_the_splits_of_its_readme(
    place: str, own_cache: Path, tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = files("english/one.parquet", "english/train-0.parquet", "french/a.parquet") | {
        "README.md": README.encode()
    }
    url, options = (str(tmp_path), None) if place == "folder" else (bucket.url, bucket.storage_options)
    store = open_store(url, options)
    for key, data in copied.items():
        store.put(key, data)

    def read(split: str) -> list[int]:
        return numbers(StreamingDataset(url, split=split, storage_options=options))

    assert read("train") == read("en/train") == TRAIN
    assert read("fr/train") == TEST
    with pytest.raises(ObjectNotFoundError, match=r"no split 'test', but en/train, fr/train"):
        read("test")
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "yaml", None)
        with pytest.raises(MissingPackageError, match=r"README\.md tells which files are of which split.*pyyaml"):
            read("train")
    store.put("README.md", README.replace("license: mit", "license: &a [mit]").encode())
    with pytest.raises(ConfigError, match="anchors"):
        read("train")
    store.put("README.md", README.replace("configs:", "configs: [").encode())
    with pytest.raises(ConfigError, match=r"not YAML.*by a pattern"):
        read("train")
    store.put("README.md", b"---\nlicense: mit\n---\n")
    assert read("english/train") == list(range(100, 200)), "by the names of files"


@pytest.mark.parametrize(
    "odd", [{"configs": 3}, {"configs": [3, None, {}]}, {"configs": [{"data_files": [3]}]}, {"a": 1}]
)
def test_a_readme_that_tells_nothing(hub: Hub, odd: dict[str, Any]) -> None:
    hub.repos["o/n"] = Repo([files(*SHARDS)], card=odd)
    assert numbers(StreamingDataset(URL, split="test")) == TEST


def test_other_formats(hub: Hub) -> None:
    lines = "".join(json.dumps({"x": i}) + "\n" for i in range(50)).encode()
    hub.repos["o/n"] = Repo([{"train.jsonl": lines, "README.md": b"x"}])
    assert numbers(StreamingDataset(URL)) == list(range(50))
    assert numbers(StreamingDataset(URL, split="train")) == list(range(50))


def test_the_parquet_loader_reads_the_hub(hub: Hub) -> None:
    out = io.BytesIO()
    pq.write_table(pa.table({"input_ids": pa.array([[i] * 8 for i in range(64)], pa.list_(pa.int32()))}), out)
    hub.repos["o/n"] = Repo([{"a.parquet": out.getvalue()}])
    with StreamingParquetLoader(URL, batch_size=4, seq_len=8, layout="pad", eos_id=None, pad_id=0) as loader:
        rows = [set(row.tolist()) - {0} for batch in loader for row in batch.input_ids]
    assert {number for row in rows for number in row} == set(range(1, 64))


def test_a_state_goes_on_while_the_files_are_the_same_and_says_when_they_are_not(hub: Hub) -> None:
    repo = hub.repos["o/n"] = Repo([files("a.parquet", "b.parquet")])
    with StreamingDataset(URL, batch_size=10) as dataset:
        rows = iter(dataset)
        first = [int(next(rows)["x"]) for _ in range(70)]
        state = dataset.state_dict()

    def rest(url: str) -> list[int]:
        recent_commits.clear()
        with StreamingDataset(url, batch_size=10) as dataset:
            dataset.load_state_dict(state)
            return [int(sample["x"]) for sample in dataset]

    expected = sorted(set(range(200)) - set(first))
    assert sorted(rest(URL)) == expected
    repo.commits.append(repo.commits[-1] | {"README.md": b"another"})
    assert sorted(rest(URL)) == expected, "other files alone changed"
    repo.commits.append(repo.commits[-1] | {"a.parquet": parquet(1000)})
    with pytest.raises(StateError):
        rest(URL)
    with pytest.raises(StateError):
        rest(f"{URL}@main")
    assert sorted(rest(f"{URL}@{sha_of(0)}")) == expected
    assert sorted(rest(f"{URL}@{sha_of(1)}")) == expected


def test_missing_and_gated_datasets(hub: Hub) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"no dataset 'o/nope'"):
        StreamingDataset("hf://datasets/o/nope")
    hub.repos["o/n"] = Repo([files("a.parquet")], gated=True)
    with pytest.raises(StokerError, match=r"gated.*Accept its terms"):
        StreamingDataset(URL)
    with pytest.raises(ObjectNotFoundError, match=r"nope\.parquet"):
        StreamingDataset(f"{URL}/nope.parquet", storage_options={"token": hub.token})


@pytest.mark.processes
@pytest.mark.parametrize("context", ["spawn", "fork"])
def test_workers_read_the_commit_that_the_dataset_was_opened_with(hub: Hub, context: Any) -> None:
    from torch.utils.data import DataLoader

    repo = hub.repos["o/n"] = Repo([files("a.parquet", "b.parquet")])
    with StreamingDataset(URL, batch_size=10) as dataset:
        repo.commits.append(files("c.parquet"))
        loader = DataLoader(dataset, batch_size=10, num_workers=2, multiprocessing_context=context, timeout=PATIENCE)
        assert sorted(int(x) for batch in loader for x in batch["x"]) == list(range(200))
