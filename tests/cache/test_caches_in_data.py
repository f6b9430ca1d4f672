"""A cache that lies inside of the data is never read as further data."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import StreamingDataset, merge_index, rebuild_index
from stoker.cache.directory import is_cache_directory
from stoker.catalog.detect import detect
from stoker.conversion import convert
from stoker.errors import ObjectNotFoundError
from stoker.tokens.tokenize.texts import find_texts
from support import write_samples

SAMPLES = 50


def write_mds(folder: Path) -> None:
    write_samples(str(folder), ({"x": number} for number in range(SAMPLES)), size_limit=200)


def write_without_index(folder: Path) -> None:
    write_mds(folder)
    (folder / "index.json").unlink()


def write_gzip(folder: Path) -> None:
    with gzip.open(folder / "a.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"x": number}) + "\n" for number in range(SAMPLES))


def write_npz(folder: Path) -> None:
    np.savez(folder / "a.npz", x=np.arange(SAMPLES))


def write_parquet(folder: Path) -> None:
    pq.write_table(pa.table({"x": list(range(SAMPLES))}), folder / "a.parquet")


def values(**options: Any) -> list[int]:
    return sorted(int(sample["x"]) for sample in StreamingDataset(**options))


def caches(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_dir() and is_cache_directory(path)]


@pytest.mark.parametrize(
    ("write", "options"),
    [
        (write_without_index, {"format": "mds"}),
        (write_gzip, {"format": "json"}),
        (write_npz, {"format": "npz"}),
        (write_parquet, {"format": "parquet"}),
    ],
)
@pytest.mark.parametrize("local", ["", "cache", "deep/er/cache"])
def test_every_run_reads_the_same_samples(tmp_path: Path, write: Any, options: dict[str, str], local: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write(data)
    for _ in range(3):
        if local:
            assert values(remote=str(data), local=data / local, **options) == list(range(SAMPLES))
            assert caches(data)
        else:
            assert values(remote=str(data), **options) == list(range(SAMPLES))


def test_a_cache_next_to_the_splits_is_not_merged_nor_counted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_mds(data / "train")
    assert values(remote=str(data / "train"), local=data / "cache") == list(range(SAMPLES))
    (cached,) = caches(data)
    with pytest.raises(ObjectNotFoundError, match=r"folders in it have: train\. Choose"):
        StreamingDataset(remote=str(data))
    merge_index(str(data))
    assert values(remote=str(data)) == list(range(SAMPLES))
    for index in (data / "index.json", data / "train" / "index.json"):
        index.unlink()
    assert detect(data).kind == "shards"
    rebuild_index(str(data))
    assert values(remote=str(data)) == list(range(SAMPLES))
    (data / "index.json").unlink()
    # A link to a cache is one, and a directory that only has such a name is not.
    (data / "linked").symlink_to(cached)
    (data / "train").rename(data / ("ab" * 12))
    rebuild_index(str(data))
    assert values(remote=str(data)) == list(range(SAMPLES))
    # What is named itself is read.
    assert values(local=cached) == list(range(SAMPLES))


def test_convert_and_tokenize_leave_caches_out(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_gzip(data)
    assert values(remote=str(data), local=data / "cache", format="json") == list(range(SAMPLES))
    assert [path for cached in caches(data) for path in cached.glob("*.jsonl")]
    convert(data, tmp_path / "out", processes=1)
    assert values(remote=str(tmp_path / "out")) == list(range(SAMPLES))
    for source in (data, data / "**" / "*.json*"):
        assert {Path(file.path).name for file in find_texts(source, column=None, strict=True).files} == {"a.jsonl.gz"}
    (cached,) = caches(data)
    (text,) = find_texts(cached / "*.jsonl", column=None, strict=True).files
    assert Path(text.path).parent == cached
