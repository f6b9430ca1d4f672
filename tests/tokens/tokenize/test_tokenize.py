"""Text to tokens: the same output for any number of processes, and nothing that looks whole before it is."""

from __future__ import annotations

import argparse
import errno
import gzip
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import time
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from patience import PATIENCE
from s3server import Bucket
from stoker import MDSWriter, StreamingDataset, inspect_tokens, tokenize
from stoker.cli import main
from stoker.cli import tokenize as command
from stoker.errors import (
    ConfigError,
    CorruptDataError,
    FormatError,
    ObjectNotFoundError,
    SourceChangedError,
    StokerError,
    StorageError,
)
from stoker.loaders.parquet_loader import ShardConfig, StreamingParquetLoader
from stoker.storage import open_store
from stoker.storage.unfinished import MARK, STAGE
from stoker.tokens import Ragged
from stoker.tokens.sources.document_column import as_function
from stoker.tokens.tokenize import sinks, texts
from stoker.writers import JSONWriter
from support import start_script

WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "you",
    "that",
    "it",
    "he",
    "was",
    "for",
    "on",
    "are",
    "as",
    "with",
    "his",
    "they",
    "at",
    "be",
    "this",
    "have",
    "from",
    "or",
    "one",
    "had",
    "by",
    "not",
    "but",
    "what",
]


def text_of(number: int) -> str:
    rng = np.random.default_rng(number)
    return " ".join(WORDS[i] for i in rng.integers(0, len(WORDS), int(rng.integers(1, 200))))


DOCUMENTS = [text_of(number) for number in range(60)]


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer whose file says that texts are cut and padded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(DOCUMENTS, trainer)
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def decoded(tokenizer_file: Path, rows: list[list[int]]) -> list[str]:
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    return [tokenizer.decode(row, skip_special_tokens=False) for row in rows]


def rows_of(folder: Path, column: str = "input_ids") -> list[list[int]]:
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    return [row for table in tables for row in table.column(column).to_pylist()]


def write_parquet(path: Path, texts: list[str | None], **columns: Any) -> Path:
    pq.write_table(pa.table({"text": pa.array(texts, pa.string()), **columns}), path, row_group_size=7)
    return path


def write_jsonl(path: Path, texts: list[str | None], key: str = "text") -> Path:
    data = "".join(json.dumps({"id": n, key: text}) + "\n" for n, text in enumerate(texts)).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def sources(folder: Path, kind: str) -> Path:
    """The documents in two files, with empty ones among them."""
    folder.mkdir()
    halves: list[list[str | None]] = [[*DOCUMENTS[:33], "", None], [None, *DOCUMENTS[33:]]]
    for number, half in enumerate(halves):
        if kind == "parquet":
            write_parquet(folder / f"{number}.parquet", half)
        elif kind in ("jsonl", "jsonl.gz"):
            write_jsonl(folder / f"{number}.{kind}", half)
        else:
            for at, text in enumerate(half):
                (folder / f"{number}-{at:03}.txt").write_text(text or "")
    return folder


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz", "txt"])
def test_every_document_comes_once_and_in_order_from_any_source(
    tmp_path: Path, tokenizer_file: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_BLOCK", 2000)
    done = tokenize(sources(tmp_path / "src", kind), tmp_path / "dst", tokenizer_file, processes=1)
    rows = rows_of(tmp_path / "dst")
    assert decoded(tokenizer_file, rows) == DOCUMENTS
    assert (done.documents, done.empty, done.tokens, done.files) == (60, 3, sum(map(len, rows)), 1)
    assert (done.dtype, done.eos_id, done.resumed) == ("uint16", None, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dst", "src"]


def test_parquet_of_tokens_is_what_is_fast_to_read(tmp_path: Path, tokenizer_file: Path) -> None:
    tokenize(
        write_parquet(tmp_path / "a.parquet", list(DOCUMENTS)),
        tmp_path / "dst",
        tokenizer_file,
        processes=1,
        append_eos=True,
        row_group_tokens=500,
        compression=None,
    )
    (path,) = (tmp_path / "dst").glob("*.parquet")
    file = pq.ParquetFile(path)
    assert str(file.schema_arrow.field("input_ids")) == (
        "pyarrow.Field<input_ids: list<element: uint16 not null> not null>"
    )
    about = json.loads(file.schema_arrow.metadata[b"stoker"])
    assert about["vocab_size"] == Tokenizer.from_file(str(tokenizer_file)).get_vocab_size()
    assert about["eos_id"] == 0
    rows = rows_of(tmp_path / "dst")
    counts = []
    for group in range(file.num_row_groups):
        column = file.metadata.row_group(group).column(0)
        assert (column.statistics.null_count, column.compression) == (0, "UNCOMPRESSED")
        assert not column.has_dictionary_page
        counts.append(column.num_values)
    # Without nulls and empty rows, the footer has the number of tokens.
    assert sum(counts) == sum(map(len, rows))
    assert all(500 <= count < 500 + max(map(len, rows)) for count in counts[:-1])
    assert all(row[-1] == 0 and 0 not in row[:-1] for row in rows)
    documents = Ragged.from_arrow(file.read_row_group(0).column(0))
    assert documents.values.dtype == np.uint16


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_written_tokens_are_read_without_counting_and_without_pyarrows_decoder(
    tmp_path: Path, tokenizer_file: Path, compression: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_parquet(tmp_path / "a.parquet", list(DOCUMENTS))
    tokenize(source, tmp_path / "dst", tokenizer_file, processes=1, row_group_tokens=500, compression=compression)
    rows = rows_of(tmp_path / "dst")
    with caplog.at_level("DEBUG", logger="stoker"):
        opened = StreamingParquetLoader(tmp_path / "dst", ShardConfig.single(), 2, 16, pad_id=0, shuffle=False)
        read = [int(token) for batch in opened for token in batch.input_ids.ravel()]
    flat = [token for row in rows for token in row]
    assert read[: len(flat)] == flat
    assert not [one for one in caplog.messages if "decoded" in one]


@pytest.mark.processes
def test_the_output_is_the_same_for_any_number_of_processes(tmp_path: Path, tokenizer_file: Path) -> None:
    source = sources(tmp_path / "src", "txt")
    for processes in (1, 3):
        tokenize(
            source,
            tmp_path / str(processes),
            tokenizer_file,
            processes=processes,
            append_eos="<|endoftext|>",
            file_tokens=1500,
            progress_bar=processes == 3,
        )
    one, three = (sorted((tmp_path / name).iterdir()) for name in ("1", "3"))
    assert len(one) > 2
    assert [path.name for path in one] == [path.name for path in three]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in three]


def test_mds_of_tokens_is_read_by_the_pipeline(tmp_path: Path, tokenizer_file: Path) -> None:
    done = tokenize(
        sources(tmp_path / "src", "jsonl"), tmp_path / "dst", tokenizer_file, processes=1, format="mds", append_eos=0
    )
    dataset = StreamingDataset(local=str(tmp_path / "dst"), batch_size=4)
    rows = [dataset[number]["input_ids"].tolist() for number in range(dataset.size)]
    assert decoded(tokenizer_file, rows) == [f"{text}<|endoftext|>" for text in DOCUMENTS]
    assert done.files == 1


def _packed_rows(folder: Path, to: str) -> list[list[tuple[int, ...]]]:
    """The documents of each row, as a StreamingDataset reads them."""
    dataset = StreamingDataset(local=str(folder), batch_size=4, format="parquet" if to == "parquet" else None)
    rows = []
    for number in range(dataset.size):
        sample = dataset[number]
        lengths = np.asarray(sample["seq_lengths"])
        assert lengths.dtype == np.int32
        assert lengths.sum() == len(sample["input_ids"])
        parts = np.split(np.asarray(sample["input_ids"]), np.cumsum(lengths)[:-1])
        rows.append([tuple(part.tolist()) for part in parts])
    return rows


def _packed_by_loader(folder: Path | str, size: int, **options: Any) -> list[list[tuple[int, ...]]]:
    """The documents of each row, as a token loader packs them while it reads."""
    rows = []
    for batch in StreamingParquetLoader(
        folder, ShardConfig.single(), 3, size, layout="pack", pad_id=0, shuffle=False, **options
    ):
        for ids, positions, mask in zip(batch.input_ids, batch.position_ids, batch.attention_mask, strict=True):
            starts = np.flatnonzero((positions == 0) & (mask == 1))
            rows.append([tuple(part.tolist()) for part in np.split(ids[mask == 1], starts[1:])])
    return rows


@pytest.mark.parametrize("to", ["parquet", "mds"])
@pytest.mark.parametrize("size", [16, 48, 200])
def test_packed_rows_are_those_of_the_loader_that_packs_while_it_reads(
    size: int, to: Any, tmp_path: Path, tokenizer_file: Path
) -> None:
    source = sources(tmp_path / "src", "parquet")
    options: dict[str, Any] = {"processes": 1, "append_eos": True}
    done = tokenize(source, tmp_path / "packed", tokenizer_file, **options, pack=size, format=to)
    rows = _packed_rows(tmp_path / "packed", to)
    assert (done.rows, done.documents) == (len(rows), len(DOCUMENTS))
    assert done.tokens == sum(len(part) for row in rows for part in row)
    tokenize(source, tmp_path / "documents", tokenizer_file, **options)
    assert rows == _packed_by_loader(tmp_path / "documents", size)
    if to == "parquet":  # whose documents the loader sees, and packs into as many rows
        again = _packed_by_loader(tmp_path / "packed", size)
        assert len(again) == len(rows)
        assert sorted(part for row in again for part in row) == sorted(part for row in rows for part in row)
        facts = inspect_tokens(tmp_path / "packed", sequence_lengths=[size])
        assert (facts.documents, facts.tokens) == (sum(map(len, rows)), done.tokens)
        assert [one.rows for one in facts.layouts if one.layout == "pack"] == [len(rows)]


def test_packed_rows_of_many_windows_have_each_token_once(
    tmp_path: Path, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_BLOCK", 1000)
    monkeypatch.setattr(sinks, "_MOST_PACKED", 700)
    source = sources(tmp_path / "src", "jsonl")
    tokenize(source, tmp_path / "packed", tokenizer_file, processes=1, pack=64, row_group_tokens=300)
    rows = _packed_rows(tmp_path / "packed", "parquet")
    tokenize(source, tmp_path / "documents", tokenizer_file, processes=1)
    pieces = [
        tuple(row[first : first + 64]) for row in rows_of(tmp_path / "documents") for first in range(0, len(row), 64)
    ]
    assert sorted(part for row in rows for part in row) == sorted(pieces)
    assert all(sum(map(len, row)) <= 64 for row in rows)
    found: list[tuple[int, ...]] = []
    for batch in StreamingParquetLoader(tmp_path / "packed", ShardConfig(0, 1), 7, 64, layout="pad", pad_id=0):
        found += [
            tuple(ids[mask == 1].tolist()) for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
        ]
    assert sorted(found) == sorted(pieces)
    whole = StreamingParquetLoader(
        tmp_path / "packed", ShardConfig(0, 1), 7, 64, column="input_ids", layout="pad", pad_id=0
    )
    assert sum(map(len, whole)) == len(rows)
    table = pq.read_table(tmp_path / "packed")
    (tmp_path / "wrong").mkdir()
    wrong = pa.array(
        [[len(row)] if number else [1] for number, row in enumerate(table["input_ids"])], pa.list_(pa.int32())
    )
    pq.write_table(table.set_column(1, "seq_lengths", wrong), tmp_path / "wrong" / "a.parquet")
    with pytest.raises(
        CorruptDataError, match=r"a\.parquet: row group 0 .* 'seq_lengths' do not make up .*column='input_ids'"
    ):
        list(StreamingParquetLoader(tmp_path / "wrong", ShardConfig(0, 1), 7, 64, layout="pad", pad_id=0))
    with pytest.raises(ConfigError, match="output_column must be another name"):
        tokenize(source, tmp_path / "other", tokenizer_file, pack=64, output_column="seq_lengths")
    with pytest.raises(ConfigError, match="pack must be at least 1"):
        tokenize(source, tmp_path / "other", tokenizer_file, pack=0)


class StopError(Exception):
    """Stands for whatever ends a run."""


@pytest.mark.parametrize(("stop", "pack"), [(0, None), (1, None), (7, None), (30, None), (7, 40)])
def test_a_run_that_ends_leaves_nothing_that_looks_whole_and_can_be_resumed(
    tmp_path: Path, tokenizer_file: Path, stop: int, pack: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sources(tmp_path / "src", "txt")
    whole, dst = tmp_path / "whole", tmp_path / "dst"
    monkeypatch.setattr(sinks, "_MOST_PACKED", 250)
    options: dict[str, Any] = {"processes": 1, "file_tokens": 700, "row_group_tokens": 300, "pack": pack}
    tokenize(source, whole, tokenizer_file, **options)
    write = sinks.TokenFileWriter.write_block
    seen: list[int] = []

    def failing(self: sinks.TokenFileWriter, *columns: Ragged, blocks: int = 1) -> None:
        seen.append(len(columns[0]))
        if len(seen) > stop:
            raise StopError
        write(self, *columns, blocks=blocks)

    monkeypatch.setattr(sinks.TokenFileWriter, "write_block", failing)
    with pytest.raises(StopError):
        tokenize(source, dst, tokenizer_file, **options)
    assert not list(dst.glob("*.parquet"))
    with pytest.raises(ObjectNotFoundError):
        StreamingDataset(remote=dst, local=str(tmp_path / "cache"), format="parquet")
    monkeypatch.setattr(sinks.TokenFileWriter, "write_block", write)
    if stop >= 7:
        with pytest.raises(ConfigError, match="other settings"):
            tokenize(source, dst, tokenizer_file, **{**options, "file_tokens": 701}, resume=True)
    done = tokenize(source, dst, tokenizer_file, **options, resume=True)
    assert done.resumed <= (stop if pack is None else 60)
    assert stop < 7 or done.resumed > 0
    assert _contents(dst) == _contents(whole)


@pytest.mark.s3
@pytest.mark.parametrize("pack", [None, 40])
@pytest.mark.parametrize("to", ["parquet", "mds"])
def test_tokens_go_to_a_url_and_a_stopped_run_is_resumed_there(
    tmp_path: Path, tokenizer_file: Path, to: str, pack: int | None, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for number, text in enumerate(DOCUMENTS):
        (source / f"{number:02}.txt").write_text(text)
    options: dict[str, Any] = {
        "processes": 1,
        "file_tokens": 700,
        "row_group_tokens": 300,
        "format": to,
        "pack": pack,
    }
    monkeypatch.setattr(sinks, "_MOST_PACKED", 250)
    monkeypatch.setattr(MDSWriter, "__init__", partialmethod(MDSWriter.__init__, size_limit=800))
    tokenize(source, tmp_path / "whole", tokenizer_file, **options)
    url, options["storage_options"] = f"{bucket.url}/tokens", bucket.storage_options
    _stopped(source, url, tokenizer_file, monkeypatch, **options)
    store = open_store(url, bucket.storage_options)
    assert store.exists(MARK)
    where: dict[str, Any] = {"local": tmp_path / "cache", "format": to, "storage_options": bucket.storage_options}
    with pytest.raises(ObjectNotFoundError, match="are being written, or their writer was stopped"):
        StreamingDataset(remote=url, **where)
    with pytest.raises(ConfigError, match="resume=True"):
        tokenize(source, url, tokenizer_file, **options)
    with pytest.raises(ConfigError, match="output_column was"):
        tokenize(source, url, tokenizer_file, **options, output_column="other", resume=True)
    done = tokenize(source, url, tokenizer_file, **options, resume=True)
    assert to == "mds" or done.resumed > 0
    kept = {item.key: store.get(item.key, max_bytes=1 << 30) for item in store.list()}
    assert kept == _contents(tmp_path / "whole")
    assert tokenize(source, url, tokenizer_file, **options, resume=True).documents == 0
    if to == "parquet":
        there = {"local": tmp_path / "tokens", "storage_options": bucket.storage_options}
        assert _packed_by_loader(url, 40, **there) == _packed_by_loader(tmp_path / "whole", 40)


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.processes
def test_a_killed_run_is_resumed(tmp_path: Path, tokenizer_file: Path) -> None:
    source, dst = tmp_path / "src", tmp_path / "dst"
    source.mkdir()
    for number in range(400):
        (source / f"{number:04}.txt").write_text(DOCUMENTS[number % 60])
    options = {"processes": 1, "file_tokens": 2000}
    script = tmp_path / "run.py"
    script.write_text(
        "import sys, time\n"
        "from stoker import tokenize\n"
        "from stoker.tokens.tokenize import sinks\n"
        "write = sinks.TokenFileWriter.write_block\n"
        "def slow(self, documents):\n"
        "    write(self, documents)\n"
        "    time.sleep(0.01)\n"
        "sinks.TokenFileWriter.write_block = slow\n"
        f"tokenize({str(source)!r}, {str(dst)!r}, {str(tokenizer_file)!r}, **{options!r})\n"
    )
    process = start_script(script)
    end = time.monotonic() + PATIENCE
    while len(list(dst.glob(f"{STAGE}*.parquet"))) < 2:
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.01)
    with pytest.raises(ConfigError, match="another process is writing"):
        tokenize(source, dst, tokenizer_file, processes=1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not list(dst.glob("*.parquet"))
    done = tokenize(source, dst, tokenizer_file, **options, resume=True)  # type: ignore[arg-type]
    assert done.resumed > 0
    assert decoded(tokenizer_file, rows_of(dst)) == [DOCUMENTS[number % 60] for number in range(400)]


def test_mds_is_resumed(tmp_path: Path, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "_BLOCK", 2000)
    source = sources(tmp_path / "src", "jsonl")
    options: dict[str, Any] = {"processes": 1, "format": "mds", "compression": None}
    write = sinks.TokenShardWriter.write_block
    blocks: list[int] = []

    def failing(self: sinks.TokenShardWriter, documents: Ragged) -> None:
        blocks.append(len(documents))
        if len(blocks) > 4:
            self.finish()  # all shards are stored, and then the index is lost
            (tmp_path / "dst" / "index.json").unlink()
            raise StopError
        write(self, documents)

    monkeypatch.setattr(sinks.TokenShardWriter, "write_block", failing)
    with pytest.raises(StopError):
        tokenize(source, tmp_path / "dst", tokenizer_file, **options)
    monkeypatch.setattr(sinks.TokenShardWriter, "write_block", write)
    with pytest.raises(ConfigError, match="without an index"):
        tokenize(source, tmp_path / "dst", tokenizer_file, **options)
    tokenize(source, tmp_path / "dst", tokenizer_file, **options, resume=True)
    dataset = StreamingDataset(local=str(tmp_path / "dst"), batch_size=4)
    rows = [dataset[number]["input_ids"].tolist() for number in range(dataset.size)]
    assert decoded(tokenizer_file, rows) == DOCUMENTS
    again = tokenize(source, tmp_path / "dst", tokenizer_file, **options, resume=True)
    assert (again.documents, again.files) == (0, 2)
    assert again.resumed > 4


def _stopped(
    source: Path, dst: Path | str, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> None:
    """A run that ends after 20 blocks, or 10 windows of packed rows."""
    sink = sinks.TokenShardWriter if options.get("format") == "mds" else sinks.TokenFileWriter
    write = sink.write_block
    seen: list[int] = []

    def failing(self: Any, *columns: Ragged, blocks: int = 1) -> None:
        seen.append(len(columns[0]))
        if len(seen) > (10 if options.get("pack") else 20):
            raise StopError
        write(self, *columns, blocks=blocks)

    with monkeypatch.context() as patched:
        patched.setattr(sink, "write_block", failing)
        with pytest.raises(StopError):
            tokenize(source, dst, tokenizer_file, **options)


@pytest.mark.parametrize("to", ["parquet", "mds"])
def test_text_that_was_changed_is_not_resumed(
    tmp_path: Path, tokenizer_file: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for number in range(60):
        (source / f"{number:02}.txt").write_text("the of and to " * 20)
    options: dict[str, Any] = {"processes": 1, "file_tokens": 100, "format": to, "compression": None}
    monkeypatch.setattr(MDSWriter, "__init__", partialmethod(MDSWriter.__init__, size_limit=400))
    _stopped(source, tmp_path / "dst", tokenizer_file, monkeypatch, **options)
    left = {path: path.read_bytes() for path in tmp_path.rglob("dst/**/*") if path.is_file()}
    for name in ("03.txt", "40.txt"):
        (source / name).write_text("for it was he " * 20)  # of the same size
    with pytest.raises(
        SourceChangedError, match=r"03\.txt was changed, .*40\.txt was changed.*Nothing was overwritten"
    ):
        tokenize(source, tmp_path / "dst", tokenizer_file, **options, resume=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("dst/**/*") if path.is_file()} == left
    tokenize(source, tmp_path / "dst", tokenizer_file, **options, exist_ok=True)
    with pytest.raises(ConfigError, match=r"holds finished tokens of another .*special_tokens was"):
        tokenize(source, tmp_path / "dst", tokenizer_file, **options, add_special_tokens=True, resume=True)


def test_text_that_is_changed_meanwhile_makes_no_dataset(
    tmp_path: Path, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sources(tmp_path / "src", "jsonl")
    file = next(path for path in [source, *source.glob("*")] if path.is_file())
    finish = sinks.TokenFileWriter.write_block

    def late(self: sinks.TokenFileWriter, documents: Ragged) -> None:
        finish(self, documents)
        os.utime(file)

    monkeypatch.setattr(sinks.TokenFileWriter, "write_block", late)
    with pytest.raises(SourceChangedError, match=f"changed while they were read .*{file.name} was changed"):
        tokenize(source, tmp_path / "dst", tokenizer_file, processes=1)
    assert not (tmp_path / "dst").exists()


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
@pytest.mark.parametrize("to", ["parquet", "mds"])
def test_a_full_disk_is_an_error_that_names_it(
    tmp_path: Path, tokenizer_file: Path, to: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = sources(tmp_path / "src", "jsonl")
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12k", "none", str(small)], check=False).returncode:
        pytest.skip("this container may not mount")
    try:
        given = ["tokenize", str(source), str(small / "dst"), "--tokenizer", str(tokenizer_file), "--processes", "1"]
        assert main([*given, "--format", to, "--compression", "none"]) == 1
        said = capsys.readouterr().err
        assert str(small) in said
        assert "No space left on device" in said
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_directory_that_can_not_be_written_is_named(
    tmp_path: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = sources(tmp_path / "src", "jsonl")
    (tmp_path / "file").write_text("")
    for place in ("/proc/nowhere/dst", str(tmp_path / "file" / "dst")):
        for to in ("parquet", "mds"):
            given = ["tokenize", str(source), place, "--tokenizer", str(tokenizer_file), "--processes", "1"]
            assert main([*given, "--format", to]) == 1
            assert place.rpartition("/")[0] in capsys.readouterr().err


def test_what_is_there_is_replaced_only_when_asked_and_only_if_it_is_parquet(
    tmp_path: Path, tokenizer_file: Path
) -> None:
    source = write_parquet(tmp_path / "a.parquet", ["the of"])
    dst = tmp_path / "dst"
    dst.mkdir()
    tokenize(source, dst, tokenizer_file, processes=1)
    with pytest.raises(ConfigError, match="with these settings already"):
        tokenize(source, dst, tokenizer_file, processes=1)
    write_parquet(source, ["and to"])
    with pytest.raises(ConfigError, match="exist_ok=True to replace them") as caught:
        tokenize(source, dst, tokenizer_file, processes=1)
    assert "append" not in str(caught.value)
    tokenize(source, tmp_path / "mds", tokenizer_file, processes=1, format="mds")
    with pytest.raises(ConfigError, match=r"exist_ok=True to replace the dataset$"):
        tokenize(source, tmp_path / "mds", tokenizer_file, processes=1, format="mds", compression=None)
    shutil.rmtree(tmp_path / "mds")
    tokenize(source, dst, tokenizer_file, processes=1, exist_ok=True)
    assert decoded(tokenizer_file, rows_of(dst)) == ["and to"]
    (dst / "thesis.tex").write_text("mine")
    tokenize(source, dst, tokenizer_file, processes=1, exist_ok=True)
    assert (dst / "thesis.tex").read_text() == "mine"
    with pytest.raises(ConfigError, match="not a directory"):
        tokenize(source, source, tokenizer_file, processes=1)
    write_parquet(dst / "others.parquet", ["mine"])
    with pytest.raises(ConfigError, match=r"others\.parquet would be read with what is written here"):
        tokenize(source, dst, tokenizer_file, processes=1, exist_ok=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "dst"]


def test_sources_without_a_document_give_a_file_without_rows(tmp_path: Path, tokenizer_file: Path) -> None:
    done = tokenize(write_parquet(tmp_path / "a.parquet", [""]), tmp_path / "dst", tokenizer_file, processes=1)
    assert (done.documents, done.empty, done.files) == (0, 1, 1)
    assert rows_of(tmp_path / "dst") == []


def test_the_column_of_the_text_is_found_or_requested(tmp_path: Path, tokenizer_file: Path) -> None:
    numbers = pa.array([1])
    only = tmp_path / "only.parquet"
    pq.write_table(pa.table({"n": numbers, "body": pa.array(["the"], pa.large_string())}), only)
    tokenize(only, tmp_path / "1", tokenizer_file, processes=1)
    assert decoded(tokenizer_file, rows_of(tmp_path / "1")) == ["the"]
    both = tmp_path / "both.parquet"
    words = pa.array(["of"]).dictionary_encode()
    pq.write_table(pa.table({"n": numbers, "title": pa.array(["the"]), "body": words}), both)
    with pytest.raises(FormatError, match=r"both\.parquet: which of title, body is the text"):
        tokenize(both, tmp_path / "2", tokenizer_file, processes=1)
    tokenize(both, tmp_path / "2", tokenizer_file, processes=1, column="body", output_column="tokens")
    assert decoded(tokenizer_file, rows_of(tmp_path / "2", "tokens")) == ["of"]
    with pytest.raises(FormatError, match="column 'n' holds int64, not text"):
        tokenize(both, tmp_path / "3", tokenizer_file, processes=1, column="n")
    with pytest.raises(FormatError, match="no column 'x'; it has n, title, body"):
        tokenize(both, tmp_path / "3", tokenizer_file, processes=1, column="x")
    lines = write_jsonl(tmp_path / "a.jsonl", ["in"], key="story")
    tokenize(lines, tmp_path / "3", tokenizer_file, processes=1)
    assert decoded(tokenizer_file, rows_of(tmp_path / "3")) == ["in"]
    assert not (tmp_path / "4").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"a\.jsonl, line 3 is not JSON"),
        ("[1]", r"line 3 is not an object: a JSON array begins here. JSON lines are needed.*jq -c"),
        ("1", r"line 3 is not an object, and so has no 'text'"),
        ('{"title": "a"}', r"line 3 has the keys title, not 'text': name the text's key with column="),
        ('{"text": 5}', r"line 3: 'text' is int, not text"),
    ],
)
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.processes)])
def test_a_bad_line_is_named(tmp_path: Path, tokenizer_file: Path, line: str, message: str, processes: int) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "the"}}\n\n{line}\n{{"text": "of"}}\n')
    with pytest.raises(FormatError, match=message):
        tokenize(path, tmp_path / "dst", tokenizer_file, processes=processes)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_json_files_are_json_lines_and_datasets_are_not_text(tmp_path: Path, tokenizer_file: Path) -> None:
    lines = tmp_path / "lines"
    lines.mkdir()
    (lines / "a.json").write_text('{"text": "the"}\n{"text": "of"}\n')
    (lines / "b.JSON.GZ").write_bytes(gzip.compress(b'{"text": "and"}'))
    (lines / "_notes.md").write_text("to")
    tokenize(lines, tmp_path / "1", tokenizer_file, processes=1)
    assert decoded(tokenizer_file, rows_of(tmp_path / "1")) == [
        "and"
    ]  # what only tells of data does not count beside it
    (lines / "b.JSON.GZ").unlink()
    tokenize(lines, tmp_path / "2", tokenizer_file, processes=1)
    assert decoded(tokenizer_file, rows_of(tmp_path / "2")) == ["the", "of"]
    with JSONWriter({"text": "str"}, str(tmp_path / "indexed")) as writer:
        writer.write({"text": "the"})
    for source in (tmp_path / "indexed", tmp_path / "indexed" / "*", tmp_path / "indexed" / "index.json"):
        with pytest.raises(
            ConfigError, match=r"indexed is a dataset with an index\.json.*stoker convert .*--to parquet"
        ):
            tokenize(source, tmp_path / "3", tokenizer_file, processes=1)
    for text in ('[{"text": "the"}]', '[\n{"text": "the"}\n]', "\ufeff [\n1]"):
        (lines / "a.json").write_text(text)
        with pytest.raises(FormatError, match=r"a\.json, line 1 .*a JSON array begins here"):
            tokenize(lines, tmp_path / "3", tokenizer_file, processes=1)
    (lines / "a.json").write_text('{\n  "text": "the"\n}')
    with pytest.raises(FormatError, match="an object over several lines"):
        tokenize(lines, tmp_path / "3", tokenizer_file, processes=1)
    assert not (tmp_path / "3").exists()


def test_a_directory_gives_only_kinds_that_are_known(tmp_path: Path, tokenizer_file: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    (source / "a.txt").write_text("the")
    (source / "b.py").write_text("of")
    with pytest.raises(ConfigError, match=r"b\.py: in a directory only .*\.txt.* by a pattern, such as"):
        tokenize(source, tmp_path / "dst", tokenizer_file, processes=1)
    tokenize(source / "*.py", tmp_path / "dst", tokenizer_file, processes=1)
    assert decoded(tokenizer_file, rows_of(tmp_path / "dst")) == ["of"]
    write_jsonl(source / "c.jsonl", ["in"])
    write_parquet(source / "d.parquet", ["is"])
    with pytest.raises(ConfigError, match="several kinds, jsonl, parquet"):
        tokenize(source, tmp_path / "2", tokenizer_file, processes=1)


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "json", "txt"])
@pytest.mark.parametrize("folders", [False, True])
def test_splits_side_by_side_are_not_tokenized_as_one(
    tmp_path: Path, tokenizer_file: Path, kind: str, folders: bool
) -> None:
    for split in ("train", "test"):
        path = tmp_path / "src" / "data" / (f"{split}/a.{kind}" if folders else f"{split}-00000-of-00001.{kind}")
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "parquet":
            write_parquet(path, [split])
        elif kind == "txt":
            path.write_text(split)
        else:
            write_jsonl(path, [split])
    if kind == "txt" and not folders:  # documents, whose names may begin with anything
        assert tokenize(tmp_path / "src", tmp_path / "1", tokenizer_file, processes=1).documents == 2
        return
    with pytest.raises(ConfigError, match=r"holds the splits data/test.*, data/train.* side by side"):
        tokenize(tmp_path / "src", tmp_path / "1", tokenizer_file, processes=1)
    done = tokenize(
        tmp_path / "src/data" / ("train" if folders else "train*"), tmp_path / "1", tokenizer_file, processes=1
    )
    assert done.documents == 1
    assert tokenize(f"{tmp_path}/src/**/*.{kind}", tmp_path / "2", tokenizer_file, processes=1).documents == 2


def test_a_disk_that_fails_is_not_taken_for_a_damaged_parquet_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, ["the"])
    found = texts.find_texts(path, column=None, strict=True)

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EIO, "Error reading bytes from file")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)
    with pytest.raises(StorageError, match=r"a\.parquet: Input/output error"):
        list(found.blocks())
    path.unlink()  # which pyarrow itself tells of
    with pytest.raises(ObjectNotFoundError, match=r"a\.parquet: no such file"):
        list(found.blocks())


def test_bad_files_are_reported(tmp_path: Path, tokenizer_file: Path) -> None:
    def attempt(name: str, data: bytes, **options: Any) -> None:
        (tmp_path / name).write_bytes(data)
        tokenize(tmp_path / name, tmp_path / "dst", tokenizer_file, processes=1, **options)

    with pytest.raises(CorruptDataError, match=r"a\.parquet can not be read as Parquet"):
        attempt("a.parquet", b"PAR1 and no more")
    with pytest.raises(CorruptDataError, match=r"a\.jsonl\.gz can not be unpacked"):
        attempt("a.jsonl.gz", gzip.compress(b'{"text": "the"}\n')[:-9])
    with pytest.raises(CorruptDataError, match="can not be unpacked"):
        attempt("b.jsonl.gz", b'{"text": "the"}\n')
    packed = gzip.compress(random.Random(0).randbytes(3000).hex().encode())
    with pytest.raises(CorruptDataError, match=r"c\.jsonl\.gz can not be unpacked"):
        attempt("c.jsonl.gz", packed[:20] + bytes(40) + packed[60:])
    with pytest.raises(FormatError, match=r"a\.txt is not UTF-8 .* strict=False"):
        attempt("a.txt", b"caf\xe9")
    with pytest.raises(ConfigError, match="is packed: unpack it first"):
        attempt("a.txt.zst", b"")
    with pytest.raises(ConfigError, match="has no columns"):
        attempt("b.txt", b"the", column="text")
    with pytest.raises(ObjectNotFoundError, match="nowhere"):
        tokenize(tmp_path / "nowhere*", tmp_path / "dst", tokenizer_file)
    with pytest.raises(ConfigError, match="several kinds"):
        tokenize(f"{tmp_path}/*", tmp_path / "dst", tokenizer_file)
    attempt("a.txt", b"caf\xe9", strict=False)
    assert decoded(tokenizer_file, rows_of(tmp_path / "dst")) == ["caf\ufffd"]


def test_arguments_that_make_no_sense_are_refused(tmp_path: Path, tokenizer_file: Path) -> None:
    source = write_parquet(tmp_path / "a.parquet", ["the"])
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"processes": 0}, "processes must be at least 1"),
        ({"format": "csv"}, "format must be 'parquet' or 'mds', got 'csv'"),
        ({"append_eos": "</s>"}, "no such token"),
        ({"append_eos": 400000}, "append_eos=400000"),
        ({"file_tokens": 0}, "file_tokens must be at least 1"),
    ]
    for options, message in wrong:
        with pytest.raises(ConfigError, match=message):
            tokenize(source, tmp_path / "dst", tokenizer_file, **options)
    with pytest.raises(ConfigError, match=r"is not a tokenizer .*tokenizer\.json"):
        tokenize(source, tmp_path / "dst", write_jsonl(tmp_path / "t.json", ["x"]))
    with pytest.raises(StokerError, match="does not exist"):
        tokenize(source, tmp_path / "dst", tmp_path / "no.json")


def test_the_command_does_what_the_function_does(
    tmp_path: Path, tokenizer_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_parquet(tmp_path / "a.parquet", list(DOCUMENTS))
    parser = argparse.ArgumentParser()
    command.add(parser.add_subparsers())
    told = f"{source} {tmp_path}/dst --tokenizer {tokenizer_file} --append-eos --processes 1 --row-group-tokens 1k"
    chosen = parser.parse_args(["tokenize", *told.split(), "--compression", "none"])
    command.run(chosen)
    assert "of 60 documents, in 1 file " in capsys.readouterr().out
    tokenize(source, tmp_path / "2", tokenizer_file, append_eos=True, row_group_tokens=1000, compression=None)
    assert _contents(tmp_path / "dst") == _contents(tmp_path / "2")


def test_special_tokens_in_a_text_are_text_unless_asked_for(tmp_path: Path, tokenizer_file: Path) -> None:
    """Others wrote the text: a page that quotes <|endoftext|> does not end there."""
    (tmp_path / "a.txt").write_text("one <|endoftext|> two")
    eos = Tokenizer.from_file(str(tokenizer_file)).token_to_id("<|endoftext|>")
    rows = {}
    for parsed in (False, True):
        out = tmp_path / str(parsed)
        tokenize(tmp_path / "a.txt", out, tokenizer_file, processes=1, append_eos=True, parse_special_tokens=parsed)
        (rows[parsed],) = pq.read_table(out)["input_ids"].to_pylist()
        assert decoded(tokenizer_file, [rows[parsed]]) == ["one <|endoftext|> two<|endoftext|>"]
    assert [rows[parsed].count(eos) for parsed in (False, True)] == [1, 2]
    given = Tokenizer.from_file(str(tokenizer_file))
    encode = as_function(given)
    for function in (encode, pickle.loads(pickle.dumps(encode))):
        (ids,) = function(["one <|endoftext|> two"])
        assert eos not in ids
    assert given.encode_special_tokens is False, "a tokenizer of the caller's own stays as it is"
