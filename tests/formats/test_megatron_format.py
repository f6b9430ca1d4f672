"""Megatron's indexed data sets in the pipeline: sequences or documents, in spans, as views of the file."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from s3server import Bucket
from stoker import ReadOptions, StreamingDataset
from stoker.errors import ConfigError, CorruptDataError, ObjectNotFoundError
from stoker.storage import open_store
from stoker.tokens.sources.megatron import MegatronWriter
from stoker.tokens.sources.ragged import Ragged

PATTERN = [2, 0, 3]  # sequences of documents

pytestmark = pytest.mark.usefixtures("own_cache")


def write(path: Path, seed: int = 0, documents: int = 60) -> tuple[list[Any], list[Any]]:
    """A data set; its sequences and its documents."""
    rng = np.random.default_rng(seed)
    counts = [PATTERN[number % 3] for number in range(documents)]
    sequences = [rng.integers(0, 60_000, int(rng.integers(0, 9))).astype(np.uint16) for _ in range(sum(counts))]
    path.parent.mkdir(exist_ok=True)
    with MegatronWriter(path, "uint16") as writer:
        writer.write(Ragged.of(sequences), sequences=counts)
    places = np.cumsum([0, *counts])
    none = np.zeros(0, np.uint16)
    joined = [np.concatenate([none, *sequences[a:b]]) for a, b in itertools.pairwise(places)]
    return sequences, joined


def same(found: list[Any], expected: list[Any]) -> bool:
    return len(found) == len(expected) and all(map(np.array_equal, found, expected))


@pytest.mark.parametrize("unit", ["sequence", "document"])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("piece_bytes", [1, 300, 1 << 20])
def test_samples_are_what_was_written(unit: str, cached: bool, piece_bytes: int, tmp_path: Path) -> None:
    expected = [write(tmp_path / "data" / f"part{k}", k)[unit == "document"] for k in range(2)]
    where: dict[str, Any] = {"remote": tmp_path / "data", **({"local": tmp_path / "cache"} if cached else {})}
    options = {"unit": unit, "piece_bytes": piece_bytes, "column": "ids"}
    dataset = StreamingDataset(**where, format="megatron", format_options=options)
    assert (len(dataset.index) > 2) == (piece_bytes < 1000)
    assert same([sample["ids"] for sample in dataset], expected[0] + expected[1])
    ids = np.random.default_rng(3).integers(0, dataset.size, 50)
    found: list[Any] = list(dataset.read(ids)["ids"])
    assert same(found, [(expected[0] + expected[1])[number] for number in ids.tolist()])


def test_tokens_are_views_of_the_mapped_file_where_requested(tmp_path: Path) -> None:
    sequences, _ = write(tmp_path / "a")
    dataset = StreamingDataset(remote=tmp_path, format="megatron", read=ReadOptions(views=True))
    found = [sample["tokens"] for sample in dataset]
    assert same(found, sequences)
    assert not any(one.flags.writeable or one.flags.owndata for one in found)
    plain = next(iter(StreamingDataset(remote=tmp_path, format="megatron")))["tokens"]
    assert plain.flags.writeable


@pytest.mark.s3
def test_a_data_set_in_a_bucket_is_streamed_by_spans(bucket: Bucket, tmp_path: Path) -> None:
    sequences, _ = write(tmp_path / "data" / "a")
    store = open_store(f"{bucket.url}/m", bucket.storage_options)
    for path in (tmp_path / "data").iterdir():
        store.put(path.name, path.read_bytes())
    dataset = StreamingDataset(
        remote=f"{bucket.url}/m",
        local=tmp_path / "cache",
        format="megatron",
        format_options={"piece_bytes": 200},
        storage_options=bucket.storage_options,
    )
    assert np.array_equal(dataset[0]["tokens"], sequences[0])
    assert len([path for path in (tmp_path / "cache").rglob("*") if ".pieces" in str(path) and path.is_file()]) == 1
    assert same([sample["tokens"] for sample in dataset], sequences)
    alone = StreamingDataset(
        remote=f"{bucket.url}/m/a.idx",
        local=tmp_path / "b",
        format="megatron",
        storage_options=bucket.storage_options,
    )
    assert alone.size == len(sequences)


def test_what_does_not_belong_together_is_reported(tmp_path: Path) -> None:
    write(tmp_path / "a")
    whole = (tmp_path / "a.bin").read_bytes()
    (tmp_path / "a.bin").write_bytes(whole[:-2])
    with pytest.raises(CorruptDataError, match=r"a\.bin has \d+ bytes, but its samples end at byte"):
        StreamingDataset(remote=tmp_path, format="megatron")
    (tmp_path / "a.bin").unlink()
    with pytest.raises(ObjectNotFoundError, match=r"a\.bin"):
        StreamingDataset(remote=tmp_path, format="megatron")
    (tmp_path / "a.bin").write_bytes(whole)
    with pytest.raises(ConfigError, match="a sample is a sequence or a document"):
        StreamingDataset(remote=tmp_path, format="megatron", format_options={"unit": "page"})
    for name in ("b.idx", "b.bin"):
        (tmp_path / name).write_bytes(whole)
    with pytest.raises(CorruptDataError, match=r"Give the path of the \.idx"):
        StreamingDataset(remote=tmp_path / "b.idx", format="megatron")


def test_a_bin_whose_idx_is_lost_is_an_error_that_names_it(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name)
    (tmp_path / "b.idx").unlink()
    with pytest.raises(ObjectNotFoundError, match=r"b\.bin has no b\.idx, so that its samples would be missing"):
        StreamingDataset(remote=tmp_path, format="megatron")


def test_the_bin_names_the_data_as_its_idx_does(tmp_path: Path) -> None:
    sequences, _ = write(tmp_path / "a")
    found = StreamingDataset(remote=tmp_path / "a.bin", format="megatron")
    assert same([sample["tokens"] for sample in found], sequences)


def test_sequences_in_another_order_are_one_shard(tmp_path: Path) -> None:
    """Megatron lays them end to end, but the index could say anything."""
    write(tmp_path / "a", documents=6)
    index = bytearray((tmp_path / "a.idx").read_bytes())
    count = int.from_bytes(index[18:26], "little")
    at = 34 + 4 * count
    lengths, places = index[34:at], index[at : at + 8 * count]
    swapped = np.frombuffer(places, "<i8")[::-1].tobytes()
    index[34:at] = np.frombuffer(lengths, "<i4")[::-1].tobytes()
    index[at : at + 8 * count] = swapped
    (tmp_path / "a.idx").write_bytes(index)
    sequences, _ = write(tmp_path / "b" / "b", documents=6)
    dataset = StreamingDataset(remote=tmp_path / "a.idx", format="megatron", format_options={"piece_bytes": 1})
    assert len(dataset.index) == 1
    assert same([sample["tokens"] for sample in dataset], sequences[::-1])
    with pytest.raises(CorruptDataError, match="do not follow each other"):
        StreamingDataset(remote=tmp_path / "a.idx", format="megatron", format_options={"unit": "document"})
