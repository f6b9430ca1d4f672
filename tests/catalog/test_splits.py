"""A directory of several splits is refused, by whatever format it is read; folders that only look like splits are not."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from s3server import Bucket
from stoker import MDSWriter, StreamingDataset
from stoker.catalog.splits import refuse_splits
from stoker.cli import main
from stoker.conversion import convert
from stoker.errors import ConfigError, ObjectNotFoundError
from stoker.storage import open_store

SAVED = Path(__file__).parents[1] / "conversion" / "golden" / "saved_by_datasets"

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def dataset_dict(tmp_path: Path) -> Path:
    """What ``DatasetDict.save_to_disk`` writes: a folder a split, and the list of them."""
    root = tmp_path / "saved"
    for split in ("train", "test"):
        shutil.copytree(SAVED, root / split)
    (root / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    return root


# -- DatasetDict ---------------------------------------------------------------------------------------------------------


def test_a_dataset_dict_is_refused_and_its_splits_are_read(dataset_dict: Path) -> None:
    with pytest.raises(ConfigError, match=r'the splits train, test: choose one by naming .*/train .*split="train"'):
        StreamingDataset(remote=dataset_dict, format="arrow")
    with pytest.raises(ConfigError, match="DatasetDict of the splits train, test"):
        StreamingDataset(local=dataset_dict, format="arrow")
    assert StreamingDataset(remote=dataset_dict, format="arrow", split="train").size == 7
    assert StreamingDataset(remote=f"{dataset_dict}/*/data-*.arrow", format="arrow").size == 14


def test_a_dataset_dict_in_an_object_store_is_refused(dataset_dict: Path, bucket: Bucket) -> None:
    store = open_store(bucket.url, bucket.storage_options)
    for path in dataset_dict.rglob("*.*"):
        store.put(f"saved/{path.relative_to(dataset_dict)}", path.read_bytes())
    url, options = f"{bucket.url}/saved", bucket.storage_options
    with pytest.raises(ConfigError, match=r'the splits train, test: choose one by naming .*/train .*split="train"'):
        StreamingDataset(remote=url, format="arrow", storage_options=options)
    assert StreamingDataset(remote=url, format="arrow", split="test", storage_options=options).size == 7


def test_a_dataset_dict_is_refused_by_converting_and_on_the_command_line(
    dataset_dict: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in (None, "arrow", "huggingface"):
        with pytest.raises(ConfigError, match="DatasetDict of the splits train, test"):
            convert(dataset_dict, tmp_path / "out", format=kind)
    for command in (["convert", str(dataset_dict), str(tmp_path / "out")], ["inspect", str(dataset_dict)]):
        assert main(command) != 0
        said = capsys.readouterr().err
        assert "DatasetDict of the splits train, test" in said
        assert "--split" not in said, "which divides the result of a conversion"
    assert not (tmp_path / "out").exists()
    named = re.findall(r"choose one by naming (\S+)", said)[0]
    assert main(["convert", named, str(tmp_path / "out"), "--processes", "1"]) == 0
    assert StreamingDataset(tmp_path / "out").size == 7


def test_a_dataset_dict_of_one_split_is_that_split(dataset_dict: Path) -> None:
    shutil.rmtree(dataset_dict / "test")
    (dataset_dict / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert StreamingDataset(remote=dataset_dict, format="arrow").size == 7


def test_what_datasets_keeps_next_to_the_data_is_not_data(dataset_dict: Path) -> None:
    train = dataset_dict / "train"
    shutil.copy(train / "data-00000-of-00002.arrow", train / "cache-0123456789abcdef.arrow")
    assert StreamingDataset(remote=train, format="arrow").size == 7


def test_an_incomplete_copy_of_a_saved_dataset_is_an_error(dataset_dict: Path) -> None:
    (dataset_dict / "train" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(ObjectNotFoundError, match=r"data-00001-of-00002\.arrow is missing, which .*state\.json lists"):
        StreamingDataset(remote=dataset_dict / "train", format="arrow")


# -- other folders of splits ---------------------------------------------------------------------------------------------


def parquet(path: Path, rows: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"x": np.arange(rows)}), path)


def test_the_layout_of_the_hub_is_refused(tmp_path: Path) -> None:
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        parquet(tmp_path / "data" / f"{name}.parquet")
    root = f"{tmp_path}/data"
    with pytest.raises(ConfigError, match=r"splits test, train side by side.*train\*\.parquet"):
        StreamingDataset(remote=root, format="parquet")
    with pytest.raises(ConfigError, match="splits data/test, data/train side by side"):
        StreamingDataset(remote=tmp_path, format="parquet")
    assert StreamingDataset(remote=f"{root}/train*.parquet", format="parquet").size == 6
    assert StreamingDataset(remote=f"{tmp_path}/**/*.parquet", format="parquet").size == 9
    names = [f"{root}/test-00000-of-00001.parquet", f"{root}/train-00000-of-00002.parquet"]
    assert StreamingDataset(remote=names, format="parquet").size == 6


def test_files_with_the_numbers_of_tensorflow_are_of_splits(tmp_path: Path) -> None:
    for name in ("x-train.parquet-00000-of-00002", "x-train.parquet-00001-of-00002", "x-test.parquet-00000-of-00001"):
        parquet(tmp_path / name)
    told = r"splits x-test, x-train side by side.*x-train\*\.parquet\* .*split=\"train\""
    with pytest.raises(ConfigError, match=told):
        StreamingDataset(tmp_path)
    assert StreamingDataset(tmp_path, split="train").size == 6
    assert StreamingDataset(tmp_path, split="test").size == 3
    assert StreamingDataset(f"{tmp_path}/x-train*.parquet*").size == 6
    assert StreamingDataset(f"{tmp_path}/x-test.parquet-00000-of-00001").size == 3


def test_folders_of_parquet_splits_are_refused(tmp_path: Path) -> None:
    for name in ("train", "validation", "unsupervised"):
        parquet(tmp_path / name / "0.parquet")
    with pytest.raises(ConfigError, match=r'splits train, validation side by side.*split="train"'):
        StreamingDataset(remote=tmp_path, format="parquet")
    with pytest.raises(ConfigError, match="splits train, validation side by side"):
        convert(tmp_path, tmp_path.parent / f"{tmp_path.name}-out")
    assert StreamingDataset(remote=tmp_path, format="parquet", split="validation").size == 3


def test_folders_of_mds_splits_without_their_index_are_refused(tmp_path: Path) -> None:
    for name in ("train", "val"):
        with MDSWriter({"x": "int"}, str(tmp_path / name)) as out:
            out.write({"x": 1})
        (tmp_path / name / "index.json").unlink()
    with pytest.raises(ConfigError, match=r'splits train, val side by side.*split="train".*each as a Stream'):
        StreamingDataset(remote=tmp_path, format="mds")
    assert StreamingDataset(remote=tmp_path, format="mds", split="val").size == 1


def test_a_folder_of_datasets_names_them(tmp_path: Path, bucket: Bucket) -> None:
    store = open_store(bucket.url, bucket.storage_options)
    for name in ("train", "val"):
        with MDSWriter({"x": "int"}, str(tmp_path / "data" / name)) as out:
            out.write({"x": 1})
        for path in (tmp_path / "data" / name).iterdir():
            store.put(f"data/{name}/{path.name}", path.read_bytes())
    remote = {"remote": f"{bucket.url}/data", "storage_options": bucket.storage_options}
    for where in ({"local": tmp_path / "data"}, {"remote": tmp_path / "data"}, remote):
        with pytest.raises(
            ObjectNotFoundError, match=r'folders in it have: train, val\. Choose one, as by split="train"'
        ):
            StreamingDataset(**where)
        assert StreamingDataset(**where, split="val").size == 1
    with pytest.raises(ObjectNotFoundError, match="nothing does not exist"):
        StreamingDataset(local=tmp_path / "nothing")


def test_folders_of_images_are_classes_unless_they_are_splits(tmp_path: Path) -> None:
    def image(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(path)

    for name in ("cat", "test", "dev"):
        image(tmp_path / "classes" / name / "train-1.png")
        image(tmp_path / "classes" / name / "test-1.png")
    dataset = StreamingDataset(remote=tmp_path / "classes", format="png")
    assert sorted({sample["class"] for sample in dataset}) == ["cat", "dev", "test"]
    for split in ("train2017", "val2017"):
        image(tmp_path / "coco" / split / "1.png")
    with pytest.raises(ConfigError, match="splits train2017, val2017"):
        StreamingDataset(remote=tmp_path / "coco", format="images")
    assert StreamingDataset(remote=tmp_path / "coco", format="images", split="train2017").size == 1


REFUSED = [
    ["train/0.tar", "test/0.tar"],
    ["Train/0.tar", "VAL/0.tar"],
    ["val/0.tar", "test/0.tar"],
    ["en/train/0.tar", "en/test/0.tar", "de/train/0.tar"],
    ["imagenet-train-000000.tar", "imagenet-val-000000.tar"],
    ["train.jsonl", "test.jsonl"],
    ["train.jsonl.gz", "valid.jsonl.gz"],
    ["wiki.train.jsonl", "wiki.test.jsonl"],
    ["train/0.jsonl", "test.jsonl"],
    ["x-train.arrow", "x-test.arrow"],
]
READ = [
    ["train/0.tar", "train/1.tar"],
    ["train/0.tar", "training/1.tar"],
    ["a/train/0.tar", "b/test/0.tar"],
    ["a-train.tar", "b-test.tar"],
    ["test_tube.jsonl", "train_station.jsonl"],
    ["cat/0.tar", "test/0.tar", "dev/0.tar"],
    ["split=train/0.parquet", "split=test/0.parquet"],
    ["part-00000.parquet", "part-00001.parquet"],
    ["contest.parquet", "strain.parquet"],
]


@pytest.mark.parametrize("keys", REFUSED, ids=lambda keys: keys[0])
def test_names_of_splits_are_refused(keys: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"^root holds the splits .* side by side"):
        refuse_splits(keys, "root")


def test_the_pattern_of_the_remedy_takes_files_of_all_endings() -> None:
    with pytest.raises(ConfigError, match=r"by the pattern root/\*\*/\*\{.JPEG,.jpg\}, whose `class` is then"):
        refuse_splits(["train/a/0.jpg", "train/b/1.JPEG", "val/a/2.jpg"], "root", folders_only=True)


@pytest.mark.parametrize("keys", READ, ids=lambda keys: keys[0])
def test_names_that_are_no_splits_next_to_each_other_are_read(keys: list[str]) -> None:
    refuse_splits(keys, "root")
