"""Columns of datasets as sources of tokens: each token once in any world, counted once, and read as the dataset says."""

from __future__ import annotations

import logging
import pickle
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_cases import write_parquet

from stoker import (
    HashSplit,
    MDSWriter,
    ShardConfig,
    SkipIds,
    Stream,
    StreamingDataset,
    StreamingParquetLoader,
    Where,
    open_writer,
)
from stoker.errors import ConfigError, CorruptDataError, SampleError, StateError
from stoker.tokens import DatasetSource
from stoker.tokens.sources import dataset as module

PAD = 0


def documents(count: int = 300, seed: int = 0) -> list[list[int]]:
    """Token ids from 1, all different."""
    lengths = np.random.default_rng(seed).integers(1, 30, count)
    ends = np.cumsum(lengths)
    return [list(range(int(end - length) + 1, int(end) + 1)) for length, end in zip(lengths, ends, strict=True)]


def tokens_of(texts: Sequence[str]) -> list[list[int]]:
    """Texts are numbers; a probe's words are their lengths."""
    return [[int(word) if word.isdigit() else len(word) for word in text.split()] for text in texts]


def write(kind: str, folder: Path, given: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Documents in a format; the arguments of their source."""
    text = {"text": [" ".join(map(str, one)) for one in given]}
    if kind == "array":
        columns: dict[str, Any] = {"tokens": "ndarray:int32", "number": "int"}
        values: dict[str, Any] = {"tokens": [np.array(one, np.int32) for one in given]}
    elif kind == "bytes":
        columns, values = (
            {"tokens": "bytes", "number": "int"},
            {"tokens": [np.array(one, "<u2").tobytes() for one in given]},
        )
    else:
        columns, values = {"text": "str", "number": "int"}, text
    form = {"array": "mds", "bytes": "mds"}.get(kind, kind)
    with open_writer(form, columns, folder, size_limit="2kb") as out:
        out.write_batch({**values, "number": list(range(len(given)))})
    if kind in ("array", "bytes"):
        return {"column": "tokens", **({"token_dtype": "uint16"} if kind == "bytes" else {})}
    return {"column": "text", "tokenizer": tokens_of}


def loaders(make: Callable[[], Any], world: int, **options: Any) -> list[StreamingParquetLoader]:
    chosen: dict[str, Any] = {"batch_size": 2, "seq_len": 16, "pad_id": PAD, "remainder": "uneven", **options}
    return [StreamingParquetLoader(make(), ShardConfig(rank, world, 3), **chosen) for rank in range(world)]


def tokens_in(batches: Any) -> Counter[int]:
    found: Counter[int] = Counter()
    for batch in batches:
        found.update(token for token in batch.input_ids.ravel().tolist() if token != PAD)
    return found


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GROUP_TOKENS", 200)


@pytest.mark.parametrize("kind", ["array", "bytes", "mds", "jsonl", "parquet"])
@pytest.mark.parametrize("layout", ["concat", "pack", "pad"])
def test_each_token_comes_once_in_any_world(kind: str, layout: Any, tmp_path: Path) -> None:
    given = documents()
    arguments = write(kind, tmp_path, given)

    def make() -> DatasetSource:
        return DatasetSource(StreamingDataset(local=tmp_path), **arguments)

    seq_len = 32 if layout == "pad" else 16
    first = loaders(make, 2, layout=layout, seq_len=seq_len)
    had = tokens_in(batch for one in [list(islice(loader, 5)) for loader in first] for batch in one)
    state = first[0].state_dict()
    resumed = loaders(make, 3, layout=layout, seq_len=seq_len)
    for loader in resumed:
        loader.load_state_dict(state)
        had += tokens_in(loader)
    assert had == Counter(token for one in given for token in one)


def test_documents_are_found_by_their_rows(tmp_path: Path) -> None:
    given = documents()
    arguments = write("array", tmp_path, given)
    dataset = StreamingDataset(local=tmp_path, subset=Where("number", ">=", 100))
    (loader,) = loaders(lambda: DatasetSource(dataset, **arguments), 1, layout="pad", seq_len=32)
    row_of = {one[0]: number for number, one in enumerate(given)}
    seen = 0
    for batch in loader:
        for row, document in zip(batch.input_ids.tolist(), batch.document_ids[:, 0].tolist(), strict=True):
            place = loader.where(document)
            number = row_of[row[0]]
            assert (place.url, place.row) == (dataset.where(number).url, dataset.where(number).row)
            seen += 1
    assert seen == 200
    with pytest.raises(IndexError, match="not among"):
        loader.where(200)


def test_a_subset_a_chain_and_a_mixture_go_together(tmp_path: Path) -> None:
    given = documents()
    arguments = write("jsonl", tmp_path / "text", given)
    write_parquet(tmp_path / "files", [[[100_000 + number] * 5 for number in range(100)]])

    def make() -> dict[str, Any]:
        text = StreamingDataset(local=tmp_path / "text", subset=[SkipIds([0, 7]), HashSplit(0, 0.5)]).map(
            reversed_words
        )
        return {"text": DatasetSource(text, **arguments), "files": tmp_path / "files"}

    kept = tokens_in(loaders(lambda: make()["text"], 1)[0])
    assert 0 < len(kept) < sum(map(len, given))
    assert not set(kept) & {*given[0], *given[7]}
    assert set(kept) <= {token for one in given for token in one}
    ranks = loaders(make, 2, repeat={"files": 2}, column="input_ids")
    had = tokens_in(batch for one in [list(islice(loader, 4)) for loader in ranks] for batch in one)
    state = ranks[0].state_dict()
    (resumed,) = loaders(make, 1, repeat={"files": 2}, column="input_ids")
    resumed.load_state_dict(state)
    had += tokens_in(resumed)
    assert {token: count for token, count in had.items() if token < 100_000} == kept
    assert {count for token, count in had.items() if token >= 100_000} == {10}


def reversed_words(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "text": " ".join(reversed(sample["text"].split()))}


def test_tokens_are_counted_once_and_a_count_that_was_stopped_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = documents(2000)
    arguments = write("jsonl", tmp_path, given)
    called: list[int] = []
    most = 1000

    def counting(texts: Sequence[str]) -> list[list[int]]:
        called.append(len(texts))
        if sum(called) > most:
            raise KeyboardInterrupt
        return tokens_of(texts)

    def make() -> DatasetSource:
        return DatasetSource(StreamingDataset(local=tmp_path), "text", tokenizer=counting)

    with pytest.raises(KeyboardInterrupt):
        make()
    most, called[:] = 10**6, []
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        source = make()
    assert 0 < sum(called) < 2000
    assert "is read once to count its tokens (part 1 of" not in caplog.text
    called.clear()
    assert make().about == source.about
    assert sum(called) == len(module._PROBE)
    assert source.about["tokens"] == sum(map(len, given))
    assert arguments["column"] == "text"


def test_another_tokenizer_chain_or_subset_is_counted_again_and_is_another_in_states(tmp_path: Path) -> None:
    write("jsonl", tmp_path, documents())

    def one_more(texts: Sequence[str]) -> list[list[int]]:
        return [[9999, *ids] for ids in tokens_of(texts)]

    def make(tokenizer: Any = tokens_of, **options: Any) -> DatasetSource:
        return DatasetSource(StreamingDataset(local=tmp_path, **options), "text", tokenizer=tokenizer)

    plain, longer, part = make(), make(one_more), make(subset=SkipIds([3]))
    assert longer.about["tokens"] == plain.about["tokens"] + 300
    assert part.about["tokens"] < plain.about["tokens"]
    (loader,) = loaders(lambda: plain, 1)
    next(iter(loader))
    for other in (longer, part):
        (changed,) = loaders([other].copy().pop, 1)
        with pytest.raises(StateError):
            changed.load_state_dict(loader.state_dict())


def test_a_tokenizer_that_gives_something_else_than_when_it_was_counted_is_an_error(tmp_path: Path) -> None:
    write("jsonl", tmp_path, documents())
    extra: list[int] = []

    def moody(texts: Sequence[str]) -> list[list[int]]:
        return [[*ids, *extra] for ids in tokens_of(texts)]

    (loader,) = loaders(lambda: DatasetSource(StreamingDataset(local=tmp_path), "text", tokenizer=moody), 1)
    extra.append(5)
    with pytest.raises(CorruptDataError, match=r"rows \d+ to \d+: .* when they were counted: .*document-counts"):
        list(loader)


def test_a_shard_stays_open_until_all_its_groups_that_come_are_read(tmp_path: Path) -> None:
    arguments = write("array", tmp_path, documents(2000))
    source = DatasetSource(StreamingDataset(local=tmp_path), **arguments)
    shard = int(np.argmax(np.bincount(source.groups.file) > 1))
    first = int(np.argmax(source.groups.file == shard))
    done: list[int] = []
    source._pool.done_with = done.append  # type: ignore[assignment]
    source.fetch([first, first + 1])
    list(source.chunks(first))
    assert done == []
    list(source.chunks(first + 1))
    assert done == [shard]
    source.close()


def test_a_source_travels_to_other_processes(tmp_path: Path) -> None:
    arguments = write("jsonl", tmp_path, documents())
    (loader,) = loaders(lambda: DatasetSource(StreamingDataset(local=tmp_path), **arguments), 1)
    assert tokens_in(pickle.loads(pickle.dumps(loader))) == tokens_in(loader)


def test_a_document_that_can_not_be_tokenized_is_named_or_left_out(tmp_path: Path) -> None:
    given = documents()
    write("jsonl", tmp_path, given)
    calls: list[int] = []

    def breaking(texts: Sequence[str]) -> list[list[int]]:
        ids = tokens_of(texts)
        if calls and any(given[77][0] in one for one in ids):
            raise ValueError("what a text")
        return ids

    def make() -> DatasetSource:
        return DatasetSource(StreamingDataset(local=tmp_path), "text", tokenizer=breaking)

    (strict,) = loaders(make, 1)
    (skipping,) = loaders(make, 1, on_bad_sample="skip")
    calls.append(1)
    with pytest.raises(SampleError, match=r"\(sample 77\).*what a text"):
        list(strict)
    had = tokens_in(skipping)
    lost = {token for one in given for token in one} - set(had)
    assert set(given[77]) <= lost
    assert len(lost) < len(given[77]) + 4 * 16  # what else was in its rows


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shuffle": True}, "shuffle= of the dataset has no meaning"),
        ({"batch_size": 4}, "batch_size= of the dataset has no meaning"),
        ({"epoch_size": 4}, "epoch_size= of the dataset has no meaning"),
        ({"partition_algo": "round_robin"}, "partition_algo= of the dataset"),
        ({"on_bad_sample": "skip"}, "on_bad_sample= of the dataset has no meaning"),
    ],
)
def test_an_order_of_the_dataset_is_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    arguments = write("array", tmp_path, documents())
    with pytest.raises(ConfigError, match=message):
        DatasetSource(StreamingDataset(local=tmp_path, **change), **arguments)


def test_what_is_no_column_of_tokens_is_an_error(tmp_path: Path) -> None:
    write("jsonl", tmp_path / "a", documents())
    write("array", tmp_path / "b", documents())
    dataset = StreamingDataset(local=tmp_path / "a")
    with pytest.raises(ConfigError, match="such as StreamingDataset"):
        DatasetSource(tmp_path / "a", "text")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="column 'txt' is unknown; did you mean 'text'"):
        DatasetSource(dataset, "txt", tokenizer=tokens_of)
    with pytest.raises(SampleError, match=r"row 0 \(sample 0\).*tokenizer="):
        DatasetSource(dataset, "text")
    with pytest.raises(ConfigError, match="choose samples by subset="):
        DatasetSource(dataset.filter(len), "text", tokenizer=tokens_of)
    write("array", tmp_path / "c", documents())
    both = StreamingDataset(streams=[Stream(local=tmp_path / name) for name in "bc"])
    with pytest.raises(ConfigError, match="is of one stream, and this dataset has b, c"):
        DatasetSource(both, "tokens")
    with MDSWriter({"tokens": "ndarray:int32"}, tmp_path / "none"):
        pass
    with pytest.raises(ConfigError, match="there are no tokens in column 'tokens'"):
        DatasetSource(StreamingDataset(local=tmp_path / "none"), "tokens")


def test_what_integers_bytes_hold_is_part_of_the_identity(tmp_path: Path) -> None:
    write("bytes", tmp_path, [[1, 2, 3, 4], [5, 6]])

    def make(dtype: Any) -> DatasetSource:
        return DatasetSource(StreamingDataset(local=tmp_path), "tokens", token_dtype=dtype)

    made = {dtype: make(dtype) for dtype in ("uint16", "int16", "uint32", np.uint16)}
    assert [one.about["tokens"] for one in made.values()] == [6, 6, 3, 6]
    assert len({one.about["fingerprint"] for one in made.values()}) == 3


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (None, "returned a NoneType: expected a list of ids for each text"),
        ({"input_ids": [[1], [2]]}, r'returned a dict with input_ids: .*\["input_ids"\]'),
        ([["a"], ["b"]], "something else than a list of ids for each text"),
        ([1], "returned 1 lists of ids for 2 texts"),
    ],
)
def test_a_tokenizer_that_makes_no_ids_is_an_error(made: Any, message: str, tmp_path: Path) -> None:
    write("jsonl", tmp_path, documents(3))
    with pytest.raises(ConfigError, match=message):
        DatasetSource(StreamingDataset(local=tmp_path), "text", tokenizer=lambda _: made)


def test_a_tokenizer_of_few_words_is_told_by_its_code(tmp_path: Path) -> None:
    given = documents()
    write("jsonl", tmp_path, given)

    def make(tokenizer: Any) -> DatasetSource:
        return DatasetSource(StreamingDataset(local=tmp_path), "text", tokenizer=tokenizer)

    first = make(lambda texts: [[int(word) for word in text.split()] for text in texts])
    other = make(lambda texts: [[int(word), 7] for text in texts for word in text.split()[:1]])
    assert (first.about["tokens"], other.about["tokens"]) == (sum(map(len, given)), 2 * len(given))
    with pytest.raises(SampleError, match=r"row 0 \(sample 0\).*the tokenizer raised AttributeError"):
        make(lambda texts: texts.encode())


def test_a_tokenizer_that_pads_or_cuts(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    given = documents(100)
    write("jsonl", tmp_path, given)
    words = {"[UNK]": 0, **{str(token): token for one in given for token in one}}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_padding()

    def make() -> DatasetSource:
        return DatasetSource(StreamingDataset(local=tmp_path), "text", tokenizer=tokenizer)

    assert make().about["tokens"] == sum(map(len, given))
    tokenizer.enable_truncation(5)
    with pytest.raises(ConfigError, match=r"cuts texts .* call its no_truncation"):
        make()


def test_others_wait_for_a_count_that_takes_long(tmp_path: Path) -> None:
    given = documents(400)
    write("jsonl", tmp_path, given)
    called: list[int] = []

    def slow(texts: Sequence[str]) -> list[list[int]]:
        if texts[0].isdigit() or " " in texts[0][:6]:
            called.append(len(texts))
            time.sleep(0.02)
        return tokens_of(texts)

    def make(_: int) -> int:
        dataset = StreamingDataset(local=tmp_path, download_timeout=0.2)
        return int(DatasetSource(dataset, "text", tokenizer=slow).about["tokens"])

    with ThreadPoolExecutor(3) as threads:
        assert set(threads.map(make, range(3))) == {sum(map(len, given))}
    assert sum(called) < 2 * len(given)


def test_what_layouts_keep_is_of_the_counts(tmp_path: Path) -> None:
    given = [[1, 2, 3]] * 200
    write("jsonl", tmp_path, given)

    def read() -> Counter[int]:
        dataset = StreamingDataset(local=tmp_path)
        (loader,) = loaders(lambda: DatasetSource(dataset, "text", tokenizer=tokens_of), 1, layout="pack")
        return tokens_in(loader)

    assert read() == Counter({1: 200, 2: 200, 3: 200})
    for shard in tmp_path.glob("shard.*"):  # in place, of the same size
        shard.write_bytes(shard.read_bytes().replace(b"1 2 3", b"1 223"))
    with pytest.raises(CorruptDataError, match="remove document-counts"):
        read()
    for counts in tmp_path.rglob("document-counts.*"):
        counts.unlink()
    assert read() == Counter({1: 200, 223: 200})
