"""Texts that a tokenizer refuses are bad samples of the dataset: counted, listed, bounded, and runs resume."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker import BadSamples, KeepIds, LMBatch, LMStream, ReadOptions, StreamingDataset, World
from stoker.errors import ConfigError, TooManyBadSamplesError, TransformError

SAMPLES = 120
REFUSED = frozenset({0, 17, 18, 63, 64, 119})
NO_IDS = frozenset({40, 90})
NULLS = frozenset({5, 77})
TOO_LARGE = frozenset({30})
BAD = REFUSED | NO_IDS | NULLS | TOO_LARGE
PAD = 9999


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("texts") / "data"
    out.mkdir()
    for first in range(0, SAMPLES, 25):
        numbers = range(first, min(first + 25, SAMPLES))
        texts = [None if number in NULLS else f"text {number}" for number in numbers]
        pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), out / f"{first:03}.parquet")
    return out


def tokenize(texts: Sequence[str]) -> list[Any]:
    numbers = [int(text.split()[1]) for text in texts]
    if REFUSED.intersection(numbers):
        raise KeyError("a token that is not known")
    wrong = {**{one: [0.5, 1.5] for one in NO_IDS}, **{one: [1, 10_001] for one in TOO_LARGE}}
    return [wrong.get(number, [number] * (number % 4) + [number]) for number in numbers]


def stream(data: Path, on_bad_sample: Any, layout: Any = "concat", world: World | None = None, **more: Any) -> LMStream:
    settings = {"shuffle": True, "batch_size": 6, "world": world or World(), **more}
    dataset = StreamingDataset(data, on_bad_sample=on_bad_sample, **settings)
    return LMStream(
        dataset, "text", 6, 4, layout=layout, tokenizer=tokenize, pad_id=PAD, labels="none", vocab_size=PAD + 1
    )


def documents(batches: Any) -> set[int]:
    return {int(token) for batch in batches for token in batch.input_ids.ravel()} - {PAD}


def rows(batches: Any) -> list[Any]:
    return [batch.input_ids.tolist() for batch in batches]


@pytest.mark.parametrize("layout", ["concat", "pack", "pad"])
@pytest.mark.parametrize("treatment", ["skip", "replace"])
def test_good_texts_come_and_bad_ones_are_listed(data: Path, tmp_path: Path, layout: Any, treatment: Any) -> None:
    made = stream(data, BadSamples(treatment, file=tmp_path / "bad.jsonl"), layout)
    batches: list[LMBatch] = list(made)
    assert documents(batches) == set(range(SAMPLES)) - BAD
    assert made.stats().bad_samples == len(BAD)
    listed = [json.loads(line) for line in (tmp_path / "bad.jsonl").read_text().splitlines()]
    assert {line["sample"] for line in listed} == BAD
    for line in listed:
        assert line["column"] == "text"
        assert 25 * line["shard"] + line["row"] == line["sample"]
        assert line["url"].startswith(str(data))
        why = "takes text, got null" if line["sample"] in NULLS else "r"  # raised or returned
        if line["sample"] in TOO_LARGE:
            why = "returned 10001, which is not an id in [0, 10000)"
        assert f"the tokenizer {why}" in line["reason"]
    if layout == "pad":
        assert len(batches) == SAMPLES // 6
        if treatment == "replace":
            assert all(len(batch) == 6 for batch in batches)


@pytest.mark.parametrize("layout", ["concat", "pack", "pad"])
@pytest.mark.parametrize("treatment", ["skip", "replace"])
def test_runs_resume_after_any_batch(data: Path, layout: Any, treatment: Any) -> None:
    expected, draw = rows(stream(data, treatment, layout)), random.Random(layout + treatment)
    for stop in sorted(draw.sample(range(1, len(expected)), 4)):
        first = stream(data, treatment, layout)
        begun = rows(islice(first, stop))
        again = stream(data, treatment, layout)
        again.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert begun + rows(again) == expected


@pytest.mark.parametrize("treatment", ["skip", "replace"])
def test_ranks_take_equally_many_steps(data: Path, treatment: Any) -> None:
    ranks = [rows(stream(data, treatment, "pad", World(rank, 2, 2))) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1]) == SAMPLES // 12
    found = [row[0] for rank in ranks for batch in rank for row in batch]
    assert set(found) == set(range(SAMPLES)) - BAD
    if treatment == "skip":
        assert len(found) == len(set(found))


def test_limits_hold_and_errors_are_the_default(data: Path) -> None:
    with pytest.raises(TooManyBadSamplesError, match=r"max_bad=3.*tokenizer"):
        list(stream(data, BadSamples("skip", max_bad=3)))
    with pytest.raises((TransformError, ConfigError), match=r"the tokenizer raised|holds null"):
        list(stream(data, "raise"))


def test_threads_and_processes_give_the_same(data: Path) -> None:
    expected = rows(stream(data, "skip", read=ReadOptions(read_threads=0)))
    assert rows(stream(data, "skip", read=ReadOptions(read_threads=3))) == expected


@pytest.mark.processes
def test_processes_give_the_same(data: Path) -> None:
    read = ReadOptions(run_in="processes", start_method="fork", read_processes=2)
    for treatment in ("skip", "replace"):
        assert rows(stream(data, treatment, read=read)) == rows(stream(data, treatment))


def test_a_tokenizer_that_loses_texts_is_an_error(data: Path) -> None:
    dataset = StreamingDataset(data, on_bad_sample="skip", batch_size=6)
    with pytest.raises(ConfigError, match="lists of ids for"):
        list(LMStream(dataset, "text", 6, 4, tokenizer=lambda texts: [[1]] * (len(texts) + 1)))
    for treatment in ("skip", "raise"):  # as a tokenizer of transformers returns ids
        dataset = StreamingDataset(data, on_bad_sample=treatment, batch_size=6, subset=KeepIds([1, 2]))
        with pytest.raises(ConfigError, match=r"returned a dict with input_ids, mask: .*\[\"input_ids\"\]"):
            list(LMStream(dataset, "text", 6, 4, tokenizer=lambda texts: {"input_ids": [[1]] * len(texts), "mask": []}))
    with pytest.raises(ConfigError, match=r"dataset must be .*; such as StreamingDataset\(path\)"):
        LMStream(str(data), "text", 6, 4, tokenizer=tokenize)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no column 'words'"):
        list(LMStream(StreamingDataset(data, on_bad_sample="skip", batch_size=6), "words", 6, 4, tokenizer=tokenize))


def test_texts_of_functions_and_of_batches(data: Path) -> None:
    def upper(sample: dict[str, Any]) -> dict[str, Any]:
        return {"words": sample["text"].upper()}  # raises for null

    def halves(sample: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"words": sample["words"]}] * 2

    settings: dict[str, Any] = {"batch_size": 6, "on_bad_sample": "skip"}
    dataset = StreamingDataset(data, **settings).map(upper).flat_map(halves)
    made = LMStream(dataset, "words", 6, 4, tokenizer=tokenize, pad_id=PAD, vocab_size=PAD + 1)
    assert documents(made) == set(range(SAMPLES)) - BAD
    assert made.stats().bad_samples == len(BAD)
    good = StreamingDataset(data, **settings).map(upper).batch_map(lambda batch: {"words": batch["words"]})
    with pytest.raises(TransformError, match=r"^document \d+ of this rank's iteration: the tokenizer raised KeyError"):
        list(LMStream(good, "words", 6, 4, tokenizer=tokenize, pad_id=PAD))
