"""Byte identity with the reference implementation, from files that it wrote once (benchmarks/make_golden.py)."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

import cases
import stoker
from stoker import StreamingDataset
from stoker.formats.common.compression import parse_compression
from support import write_samples


def unpack(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text))


def load(name: str) -> dict[str, Any]:
    records: dict[str, Any] = json.loads(Path(__file__).with_name("golden").joinpath(f"{name}.json").read_text())
    for record in records.values():
        record["files"] = {key: unpack(text) for key, text in record["files"].items()}
        record["values"] = unpack(record["values"]).decode() if "values" in record else None
    return records


MDS, TEXT, COMPRESSED = load("mds"), load("text"), load("compressed")
SAMPLES = {name: samples for name, (_, samples) in cases.stable_samples().items()}
LINES = {name: samples for name, (*_, samples) in cases.text_samples().items()}


def write(record: dict[str, Any], samples: list[dict[str, Any]], out: Path) -> dict[str, bytes]:
    writer = getattr(stoker.writers, f"{record['kind'].upper()}Writer")
    write_samples(out, samples, record["columns"], writer=writer, **{"hashes": (), **record["options"]})
    return {path.name: path.read_bytes() for path in out.iterdir()}


def read(record: dict[str, Any], out: Path) -> str:
    for name, data in record["files"].items():
        (out / name).write_bytes(data)
    dataset = StreamingDataset(local=out, allow_unsafe_types=True)
    return repr([cases.describe(dataset[i]) for i in range(len(dataset))])


@pytest.mark.parametrize("name", MDS)
def test_an_encoding_has_the_references_bytes(tmp_path: Path, name: str) -> None:
    assert write(MDS[name], SAMPLES[name], tmp_path) == MDS[name]["files"]


@pytest.mark.parametrize("name", MDS)
def test_a_batch_has_the_references_bytes(tmp_path: Path, name: str) -> None:
    record = MDS[name]
    with stoker.MDSWriter(record["columns"], tmp_path, **{"hashes": (), **record["options"]}) as writer:
        writer.write_batch({c: [sample[c] for sample in SAMPLES[name]] for c in record["columns"]})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == record["files"]


@pytest.mark.parametrize("name", TEXT)
def test_a_text_format_has_the_references_bytes(tmp_path: Path, name: str) -> None:
    assert write(TEXT[name], LINES[name], tmp_path) == TEXT[name]["files"]


@pytest.mark.parametrize("name", MDS)
def test_an_encoding_has_the_references_values(tmp_path: Path, name: str) -> None:
    assert read(MDS[name], tmp_path) == MDS[name]["values"]


@pytest.mark.parametrize("name", TEXT)
def test_a_text_format_has_the_references_values(tmp_path: Path, name: str) -> None:
    assert read(TEXT[name], tmp_path) == TEXT[name]["values"]


@pytest.mark.parametrize("name", COMPRESSED)
def test_what_the_reference_compressed_is_read(tmp_path: Path, name: str) -> None:
    assert read(COMPRESSED[name], tmp_path) == MDS["many"]["values"]


@pytest.mark.parametrize("name", COMPRESSED)
def test_a_shard_that_the_reference_compressed_is_made_anew_the_same_raw(tmp_path: Path, name: str) -> None:
    record = COMPRESSED[name]
    ours = write(record, SAMPLES["many"], tmp_path)
    theirs = record["files"]
    assert sorted(ours) == sorted(theirs)
    index, expected = json.loads(ours["index.json"]), json.loads(theirs["index.json"])
    codec = parse_compression(name)
    for mine, other in zip(index["shards"], expected["shards"], strict=True):
        assert mine["raw_data"] == other["raw_data"]
        size, basename = mine["raw_data"]["bytes"], mine["zip_data"]["basename"]
        assert codec.decompress(ours[basename], size) == codec.decompress(theirs[basename], size)
