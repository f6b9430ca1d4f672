"""Conversions to files that have no index: Parquet, and Megatron's. They count when all are there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from s3server import Bucket
from stoker import StreamingDataset
from stoker.conversion import convert
from stoker.errors import ConfigError, EncodingError, ObjectNotFoundError, TransformError
from stoker.storage import open_store
from stoker.storage.unfinished import MARK, STAGE
from stoker.tokens import MegatronFile

ROWS = 1000


def _tokens(number: int) -> Any:
    return np.full(number % 7 + 1, number, np.uint16)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Documents as tokenizers leave them."""
    lists = pa.array([_tokens(n).tolist() for n in range(ROWS)], pa.list_(pa.uint16()))
    (tmp_path / "source").mkdir()
    table = pa.table({"tokens": lists, "text": [str(n) for n in range(ROWS)]})
    pq.write_table(table, tmp_path / "source" / "a.parquet")
    return tmp_path / "source"


def _same(samples: Any) -> bool:
    return all(np.array_equal(sample["tokens"], _tokens(n)) for n, sample in enumerate(samples))


def test_megatron_files_hold_what_parquet_held_and_the_way_back(source: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"select": ["tokens"], "processes": 1}
    done = convert(source, tmp_path / "m", to="megatron", **options, size_limit="1kb")
    assert (done.samples, done.columns, done.shards) == (ROWS, {"tokens": "ndarray:uint16"}, 2 * done.tasks)
    names = sorted(path.name for path in (tmp_path / "m").glob("part-*"))
    assert names[:2] == ["part-00000-00000.bin", "part-00000-00000.idx"]
    assert len(names) == done.shards > 10
    assert sum(MegatronFile(tmp_path / "m" / name).num_documents for name in names if name.endswith(".idx")) == ROWS
    assert _same(StreamingDataset(remote=tmp_path / "m", format="megatron"))
    convert(tmp_path / "m", tmp_path / "p", to="parquet", processes=1, shard_samples=300)
    assert _same(StreamingDataset(remote=tmp_path / "p", format="parquet"))
    assert [pq.read_metadata(path).num_rows for path in sorted((tmp_path / "p").glob("*.parquet"))] == [
        300,
        300,
        300,
        100,
    ]
    cut = convert(source, tmp_path / "c", to="megatron", **options, shard_samples=300)
    sizes = [MegatronFile(path).num_documents for path in sorted((tmp_path / "c").glob("*.idx"))]
    assert (cut.samples, sizes) == (ROWS, [300, 300, 300, 100])


def test_other_types_of_tokens_are_made_to_fit_or_refused_before_anything_is_written(
    source: Path, tmp_path: Path
) -> None:
    wide: dict[str, Any] = {"select": ["tokens"], "processes": 1, "columns": {"tokens": "ndarray:int32"}}
    convert(source, tmp_path / "wide", to="megatron", **wide)
    assert _same(StreamingDataset(remote=tmp_path / "wide", format="megatron"))
    assert MegatronFile(tmp_path / "wide" / "part-00000-00000.idx").dtype == np.int32
    for options, message in (
        ({}, "Megatron's files hold one column, of tokens, not text, tokens"),
        ({"select": ["text"]}, "column 'text' is 'str': Megatron's files hold ndarray:DTYPE"),
        ({"select": ["tokens"], "hashes": "sha1"}, "hashes: megatron files have no index"),
        ({"select": ["tokens"], "compression": "zstd"}, "compression: Megatron's files"),
    ):
        with pytest.raises(ConfigError, match=message):
            convert(source, tmp_path / "out", to="megatron", processes=1, **options)
        assert not (tmp_path / "out").exists()
    narrow: dict[str, Any] = {**wide, "columns": {"tokens": "ndarray:uint8"}}
    with pytest.raises(EncodingError, match=r"sample 256 .*'tokens'"):
        convert(source, tmp_path / "narrow", to="megatron", **narrow)
    assert not list((tmp_path / "narrow").glob("*.idx"))


def _fails_late(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["tokens"][0] == 900 and not _mended:
        raise ValueError("not yet")
    return {"tokens": sample["tokens"]}


_mended: list[bool] = []


@pytest.mark.s3
@pytest.mark.parametrize(("to", "end"), [("parquet", ".parquet"), ("megatron", ".idx")])
def test_files_of_a_bucket_count_when_all_are_there(
    to: str, end: str, source: Path, tmp_path: Path, bucket: Bucket
) -> None:
    storage: dict[str, Any] = {"storage_options": bucket.storage_options}
    options: dict[str, Any] = {"to": to, "processes": 1, "transform": _fails_late, "shard_samples": 100, **storage}
    where: dict[str, Any] = {"remote": f"{bucket.url}/out", "local": tmp_path / "cache", "format": to, **storage}
    with pytest.raises(TransformError, match="not yet"):
        convert(source, f"{bucket.url}/out", **options)
    store = open_store(f"{bucket.url}/out", bucket.storage_options)
    assert [item.key for item in store.list() if item.key.endswith(end)]
    with pytest.raises(ObjectNotFoundError, match="being written, or their writer was stopped"):
        StreamingDataset(**where)
    _mended.append(True)
    try:
        convert(source, f"{bucket.url}/out", **options)
    finally:
        _mended.clear()
    assert _same(StreamingDataset(**where))
    assert not [item.key for item in store.list() if not item.key.startswith(("part-", ".stoker_convert"))]


@pytest.mark.parametrize("to", ["mds", "parquet"])
def test_a_conversion_that_the_version_before_left_unfinished_is_completed(
    to: str, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options: dict[str, Any] = {"to": to, "processes": 1, "shard_samples": 100}

    class StoppedError(Exception):
        pass

    def stop(done: int, _: int) -> None:
        if done > 500:
            raise StoppedError

    with pytest.raises(StoppedError):
        convert(source, out, **options, progress=stop)
    with pytest.raises(ObjectNotFoundError):
        StreamingDataset(remote=out, format=to)
    # That version had no mark on a local disk, and other files than shards lay in a folder of the conversion.
    (out / MARK).unlink()
    if (out / STAGE).exists():
        (out / STAGE).rename(out / "_convert" / "files")
    done = convert(source, out, **options)
    assert (done.samples, done.resumed > 0) == (ROWS, to == "mds")
    assert _same(StreamingDataset(remote=out, format=to))
    assert not [path.name for path in out.iterdir() if path.name.startswith("_")]
