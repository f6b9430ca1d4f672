"""What ``inspect`` says of tokens: compared with a naive count, and with the rows that the token loaders make."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from s3server import Bucket
from stoker import MDSWriter, ShardConfig, StreamingDataset, StreamingParquetLoader, inspect
from stoker.errors import ConfigError, FormatError
from stoker.inspection import token_facts
from stoker.inspection.facts import TokenFacts
from stoker.storage import open_store
from stoker.tokens import DatasetSource, Ragged
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
    dtype = "uint16" if write is mds_of_bytes else None
    found = inspect(tmp_path / "data", sequence_lengths=LENGTHS, token_dtype=dtype, samples=0).tokens
    assert found is not None
    assert (found.column, found.dtype) == ("tokens", "uint16")
    assert (found.documents, found.tokens) == (found.looked_at, found.looked_at_tokens) == (len(lengths), sum(lengths))
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
    """Lengths rise through the data, and the sample has short and long ones: its runs lie evenly."""
    documents = [np.zeros(length, np.uint16) for length in range(1, 901)]
    write(documents, tmp_path / "data")
    monkeypatch.setattr(token_facts, "_SURVEYED", 100_000)
    monkeypatch.setattr(token_facts, "_A_DOCUMENT", 500)
    monkeypatch.setattr("stoker.tokens.sources.source._GROUP_TOKENS", 2000)
    monkeypatch.setattr(PackLayout, "rows_a_cell", 100)

    def tokens(*, count: bool) -> TokenFacts:
        found = inspect(tmp_path / "data", samples=0, sequence_lengths=[128], count=count).tokens
        assert found is not None
        return found

    some, every = tokens(count=False), tokens(count=True)
    assert 0 < some.looked_at < every.looked_at == every.documents
    assert 50_000 < some.looked_at_tokens < 250_000
    assert some.lengths["min"] < 400
    assert some.lengths["max"] > 750
    assert some.documents == (None if write is mds else every.documents)
    assert some.tokens == (None if write is mds else every.tokens)
    assert [one.rows for one in some.layouts if one.layout == "pad"] == [some.looked_at]


def test_raw_arrays_have_tokens_and_joined_rows(tmp_path: Path) -> None:
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "a.bin")
    np.arange(500, dtype=np.uint16).tofile(tmp_path / "b.bin")
    facts = inspect(tmp_path, token_dtype="uint16", sequence_lengths=[64])
    assert facts.tokens is not None
    assert (facts.tokens.documents, facts.tokens.tokens, facts.tokens.dtype) == (None, 1500, "uint16")
    assert [(one.layout, one.rows, one.padding) for one in facts.tokens.layouts] == [("concat", 24, 36)]
    assert inspect(tmp_path / "b.bin", token_dtype="uint32").tokens.tokens == 250  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="token_dtype='uint16'"):
        inspect(tmp_path)
    with pytest.raises(ConfigError, match="integers, such as 'uint16'"):
        inspect(tmp_path, token_dtype="float32")
    with pytest.raises(FormatError, match="whole number of uint64"):
        inspect(tmp_path, token_dtype="uint64", format_options={"header_bytes": 2})


def test_a_megatron_file_is_found_by_the_name_of_its_tokens(tmp_path: Path) -> None:
    megatron(draw(1), tmp_path)
    facts = inspect(tmp_path / "a.bin")
    assert facts.format == "megatron"
    assert facts.tokens is not None


def test_which_column_holds_tokens(tmp_path: Path) -> None:
    with MDSWriter({"text": "str", "mine": "ndarray:uint16", "tokens": "bytes"}, tmp_path / "mds") as writer:
        writer.write({"text": "a", "mine": np.arange(5, dtype=np.uint16), "tokens": b"\1\0\2\0"})
    assert inspect(tmp_path / "mds").tokens is None
    assert inspect(tmp_path / "mds", column="mine").tokens.tokens == 5  # type: ignore[union-attr]
    assert inspect(tmp_path / "mds", token_dtype="uint16").tokens.tokens == 2  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"mds: column 'tokens' holds bytes: .* token_dtype='uint16'"):
        inspect(tmp_path / "mds", sequence_lengths=[64])
    with pytest.raises(ConfigError, match=r"mds: the dataset's column 'yours' is unknown.* mine"):
        inspect(tmp_path / "mds", column="yours")
    with pytest.raises(FormatError, match="'text', row 0 holds str, not token ids"):
        inspect(tmp_path / "mds", column="text")
    with pytest.raises(ConfigError, match="sequence_lengths must be at least 1, got 0"):
        inspect(tmp_path / "mds", sequence_lengths=[0])
    table = pa.table({"words": pa.array([[1, 2], [3]], pa.list_(pa.uint16())), "text": ["a", "b"]})
    (tmp_path / "pq").mkdir()
    pq.write_table(table, tmp_path / "pq" / "a.parquet")
    with pytest.raises(ConfigError, match=r"pq.*: no column of token ids .* words \(list<uint16>\).* with column="):
        inspect(tmp_path / "pq", sequence_lengths=[64])
    with pytest.raises(ConfigError, match="'text' holds string, but tokens are lists of integers"):
        inspect(tmp_path / "pq", column="text")
    assert inspect(tmp_path / "pq", column="words").tokens.documents == 2  # type: ignore[union-attr]


def test_tokens_that_can_not_be_read_are_a_note_unless_they_were_asked_for(tmp_path: Path) -> None:
    parquet(draw(2), tmp_path / "data")
    victim = tmp_path / "data" / "0.parquet"
    data = bytearray(victim.read_bytes())
    data[200 : len(data) // 2] = bytes(len(data) // 2 - 200)
    victim.write_bytes(data)
    facts = inspect(tmp_path / "data", samples=0)
    assert facts.tokens is None
    assert any("tokens of column 'tokens' are not looked into: " in note for note in facts.notes)
    with pytest.raises(FormatError, match=r"0\.parquet"):
        inspect(tmp_path / "data", column="tokens", samples=0)


def test_nothing_is_written_beside_the_data_or_into_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    parquet(draw(3), tmp_path / "data")
    before = sorted(tmp_path.rglob("*"))
    assert inspect(tmp_path / "data").tokens is not None
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.s3
@pytest.mark.parametrize("write", [parquet, mds])
def test_tokens_on_an_object_store(write: Callable[[Documents, Path], Any], tmp_path: Path, bucket: Bucket) -> None:
    write(draw(4), tmp_path / "data")
    store = open_store(f"{bucket.url}/data", bucket.storage_options)
    for path in (path for path in (tmp_path / "data").iterdir() if path.is_file()):
        store.put(path.name, path.read_bytes())
    there = inspect(f"{bucket.url}/data", storage_options=bucket.storage_options, samples=0).tokens
    assert there == inspect(tmp_path / "data", samples=0).tokens
    assert json.dumps(inspect(tmp_path / "data", samples=0).as_dict()["tokens"]["layouts"])
