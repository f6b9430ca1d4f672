"""What ``inspect_tokens`` says: compared with a naive count, and with the rows that the token loaders make."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from s3server import Bucket
from stoker import MDSWriter, ShardConfig, StreamingDataset, StreamingParquetLoader, inspect_tokens
from stoker import cli as command_line
from stoker.errors import ConfigError, FormatError
from stoker.inspection import token_facts
from stoker.storage import open_store
from stoker.tokens import DatasetSource, Ragged, RawSource
from stoker.tokens.layouts.pack import PackLayout
from stoker.writers import MegatronWriter

Documents = list[np.ndarray[Any, Any]]
LENGTHS = (16, 60, 128)


def draw(seed: int, count: int = 900) -> Documents:
    """Documents of many lengths, some empty."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.geometric(1 / rng.integers(5, 60), count), 300) - rng.integers(0, 2)
    return [rng.integers(0, 1000, length).astype(np.uint16) for length in lengths]


def parquet(documents: Documents, out: Path) -> Any:
    """Files of several row groups, with another column beside the tokens."""
    out.mkdir()
    for number in range(0, len(documents), 400):
        part = documents[number : number + 400]
        lists = pa.array([list(map(int, one)) for one in part], pa.list_(pa.uint16()))
        table = pa.table({"text": ["x" * 50] * len(part), "tokens": lists})
        pq.write_table(table, out / f"{number}.parquet", row_group_size=90)
    return out


def megatron(documents: Documents, out: Path) -> Any:
    with MegatronWriter(out / "a.bin", "uint16") as writer:
        writer.write(Ragged.from_arrays(documents[:500]))
    with MegatronWriter(out / "b.bin", "uint16") as writer:
        rest = documents[500:]
        writer.write(Ragged.from_arrays(rest), sequences=np.array([2] * (len(rest) // 2), np.int64))
    return [out / "a.bin", out / "b.bin"]


def mds(documents: Documents, out: Path, encoding: str = "ndarray:uint16") -> Any:
    with MDSWriter({"id": "int", "tokens": encoding}, out, size_limit=5000, compression="zstd") as writer:
        for number, one in enumerate(documents):
            if not one.size and encoding != "bytes":
                continue  # which arrays can not be
            writer.write({"id": number, "tokens": one.tobytes() if encoding == "bytes" else one})
    return DatasetSource(StreamingDataset(local=out), "tokens", token_dtype="uint16" if encoding == "bytes" else None)


def mds_of_bytes(documents: Documents, out: Path) -> Any:
    return mds(documents, out, "bytes")


def naive(lengths: list[int], length: int) -> Iterator[tuple[str, int, int, int, int]]:
    """Layout, rows, padding, tokens cut and longer documents, document by document; of all but packed rows."""
    tokens, longer = sum(lengths), sum(one > length for one in lengths)
    rows = (tokens + length - 1) // length
    yield "concat", rows, rows * length - tokens, 0, 0
    padding = sum(length - one for one in lengths if one < length)
    yield "pad", len(lengths), padding, 0, longer
    yield "truncate", len(lengths), padding, sum(one - length for one in lengths if one > length), longer


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("write", [parquet, megatron, mds, mds_of_bytes])
def test_facts_are_those_of_a_naive_count_and_of_the_loader(
    write: Callable[[Documents, Path], Any], seed: int, tmp_path: Path
) -> None:
    documents = draw(seed)
    source = write(documents, tmp_path / "data")
    if write is megatron:
        documents = documents[:500] + [np.concatenate(documents[k : k + 2]) for k in range(500, len(documents), 2)]
    lengths = [one.size for one in documents if one.size]
    found = inspect_tokens(source, sequence_lengths=LENGTHS)
    assert (found.documents, found.looked_at, found.tokens) == (len(lengths), len(lengths), sum(lengths))
    assert found.dtype == "uint16"
    for name, part in {"min": 0, "5%": 5, "50%": 50, "95%": 95, "99%": 99, "max": 100}.items():
        assert found.lengths[name] == int(np.percentile(lengths, part, method="inverted_cdf")), name
    for length in LENGTHS:
        layouts = {one.layout: one for one in found.layouts if one.sequence_length == length}
        for name, *numbers in naive(lengths, length):
            one = layouts.pop(name)
            assert [one.rows, one.padding, one.cut, one.longer] == numbers
        (packed,) = layouts.values()
        rows = slots = 0
        shard = ShardConfig.single()
        for batch in StreamingParquetLoader(
            source, shard, 8, length, layout="pack", pad_id=0, format_options=None, shuffle=False
        ):
            rows += len(batch)
            slots += int((batch.attention_mask == 0).sum())
        assert (packed.layout, packed.rows, packed.padding, packed.cut) == ("pack", rows, slots, 0)
        assert packed.longer == sum(one > length for one in lengths)


@pytest.mark.parametrize("write", [parquet, megatron, mds])
def test_of_large_data_a_sample_is_looked_at_which_the_facts_say(
    write: Callable[[Documents, Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths rise through the data, and the sample has short and long ones: its places lie evenly."""
    monkeypatch.setattr("stoker.tokens.sources.source._GROUP_TOKENS", 2000)
    source = write([np.zeros(length, np.uint16) for length in range(1, 901)], tmp_path / "data")
    monkeypatch.setattr(token_facts, "_SURVEYED", 300 if write is megatron else 100_000)
    monkeypatch.setattr(PackLayout, "rows_a_cell", 100)
    some, every = (inspect_tokens(source, sequence_lengths=[128], count=count) for count in (False, True))
    assert every.looked_at == every.documents == some.documents
    assert 0.1 < some.looked_at / every.looked_at < 0.6
    assert some.lengths["min"] < 400
    assert some.lengths["max"] > 700
    assert some.tokens == every.tokens
    assert [one.rows for one in some.layouts if one.layout == "pad"] == [some.looked_at]


def test_raw_arrays_have_tokens_and_joined_rows(tmp_path: Path) -> None:
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "a.bin")
    np.arange(500, dtype=np.uint16).tofile(tmp_path / "b.bin")
    facts = inspect_tokens(RawSource(tmp_path, "uint16", row_tokens=64), sequence_lengths=[64])
    assert (facts.documents, facts.tokens, facts.lengths) == (None, 1500, {})
    assert [(one.layout, one.rows, one.padding) for one in facts.layouts] == [("concat", 24, 36)]
    with pytest.raises(ConfigError, match="RawSource"):
        inspect_tokens(tmp_path)


def test_files_without_documents_have_no_lengths(tmp_path: Path) -> None:
    with MegatronWriter(tmp_path / "none.bin", "uint16"):
        pass
    with MegatronWriter(tmp_path / "empty.bin", "uint16") as writer:
        writer.write(Ragged(np.zeros(0, np.uint16), np.zeros(4, np.int64)))
    for name in ("none", "empty"):
        facts = inspect_tokens(tmp_path / f"{name}.bin", sequence_lengths=[64])
        assert (facts.documents, facts.tokens, facts.looked_at, facts.lengths) == (0, 0, 0, {})


def test_what_can_not_be_told_is_an_error(tmp_path: Path) -> None:
    parquet(draw(2), tmp_path / "data")
    with pytest.raises(ConfigError, match="sequence_lengths must be at least 1, got 0"):
        inspect_tokens(tmp_path / "data", sequence_lengths=[0])
    with pytest.raises(ConfigError, match="sequence_lengths must be one at least"):
        inspect_tokens(tmp_path / "data", sequence_lengths=[])
    with pytest.raises(ConfigError, match="'text' holds string, but tokens are lists of integers"):
        inspect_tokens(tmp_path / "data", column="text")
    victim = tmp_path / "data" / "0.parquet"
    data = bytearray(victim.read_bytes())
    data[200 : len(data) // 2] = bytes(len(data) // 2 - 200)
    victim.write_bytes(data)
    with pytest.raises(FormatError, match=r"0\.parquet"):
        inspect_tokens(tmp_path / "data")


def test_the_command_takes_what_the_loaders_take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = draw(5, 300)
    for write in (parquet, megatron, mds, mds_of_bytes):
        write(documents, tmp_path / write.__name__)
    np.zeros(500, np.uint16).tofile(tmp_path / "raw.bin")

    def told(*arguments: str) -> Any:
        command_line.main(["inspect", *arguments, "--tokens", "--json"])
        return json.loads(capsys.readouterr().out)

    tokens = sum(one.size for one in documents)
    assert told(str(tmp_path / "parquet"))["tokens"] == tokens
    assert told(str(tmp_path / "mds"), "--sequence-length", "32")["layouts"][1]["layout"] == "pack"
    assert told(str(tmp_path / "mds_of_bytes"), "--token-dtype", "uint16")["tokens"] == tokens
    assert told(str(tmp_path / "megatron" / "a.idx"))["documents"] == sum(one.size > 0 for one in documents)
    assert told(str(tmp_path / "raw.bin"), "--token-dtype", "uint16")["documents"] is None
    command_line.main(["inspect", str(tmp_path / "parquet"), "--tokens", "--sequence-length", "64"])
    shown = capsys.readouterr().out
    assert f"{tokens:,}" in shown
    assert "truncate" in shown


@pytest.mark.s3
def test_tokens_on_an_object_store(tmp_path: Path, bucket: Bucket) -> None:
    parquet(draw(4), tmp_path / "data")
    store = open_store(f"{bucket.url}/data", bucket.storage_options)
    for path in (tmp_path / "data").iterdir():
        store.put(path.name, path.read_bytes())
    there = inspect_tokens(f"{bucket.url}/data", storage_options=bucket.storage_options)
    assert there == replace(inspect_tokens(tmp_path / "data"), url=there.url)
