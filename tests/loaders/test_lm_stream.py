"""Layouts on datasets of the pipeline: nothing lost, and states that go on exactly."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_cases import rows_of

from stoker import MDSWriter, Stream, StreamingDataset, World
from stoker.errors import ConfigError, FormatError, StateError, TransformError
from stoker.loaders.lm_stream import LMStream
from stoker.tokens import LMBatch
from stoker.writers import JSONWriter
from support import write_samples


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """800 documents of different tokens, as arrays and as bytes."""
    folder = tmp_path_factory.mktemp("tokens")
    rng = np.random.default_rng(3)
    token = 10
    with MDSWriter({"tokens": "ndarray:uint32", "raw": "bytes"}, str(folder), size_limit=4096) as out:
        for _ in range(800):
            length = int(rng.integers(1, 40))
            values = np.arange(token, token + length, dtype=np.uint32)
            token += length
            out.write({"tokens": values, "raw": values.tobytes()})
    return folder


def stream(data: Path, rank: int = 0, world: int = 1, **options: Any) -> LMStream:
    chosen: dict[str, Any] = {
        "column": "tokens",
        "batch_size": 3,
        "seq_len": 32,
        "pad_id": 0,
        "lookahead": 50,
        **options,
    }
    dataset = StreamingDataset(local=data, shuffle=True, batch_size=16, remainder="uneven", world=World(rank, world))
    return LMStream(dataset, **chosen)


@pytest.mark.parametrize("layout", ["concat", "pack"])
@pytest.mark.parametrize("column", ["tokens", "raw"])
def test_tokens_come_once(data: Path, layout: Any, column: str) -> None:
    options: dict[str, Any] = {"layout": layout, "column": column}
    if column == "raw":
        options["token_dtype"] = "uint32"
    seen = [
        int(token)
        for rank in range(2)
        for batch in stream(data, rank, 2, **options)
        for token in batch.input_ids.ravel()
        if token
    ]
    assert sorted(seen) == list(range(10, 10 + len(seen)))
    assert len(seen) > 10_000


@pytest.mark.parametrize("layout", ["concat", "pack"])
@pytest.mark.parametrize("endless", [False, True])
def test_a_state_continues_exactly(data: Path, layout: Any, endless: bool) -> None:
    steps = 330 if endless else 1000  # an epoch has about 170
    whole = rows_of(islice(stream(data, layout=layout, endless=endless), steps))
    for stop in (0, 1, 7, 60, 150, 200 if endless else 151):
        first = stream(data, layout=layout, endless=endless)
        begun = rows_of(islice(first, stop))
        state = json.loads(json.dumps(first.state_dict()))
        second = stream(data, layout=layout, endless=endless)
        second.load_state_dict(state)
        assert second.state_dict() == state
        rest = rows_of(islice(second, steps - stop))
        assert begun + rest == whole


def test_a_state_of_a_state_continues(data: Path) -> None:
    whole = rows_of(stream(data, layout="pack"))
    rows: list[tuple[int, ...]] = []
    state: dict[str, Any] | None = None
    while len(rows) < len(whole):
        part = stream(data, layout="pack")
        if state is not None:
            part.load_state_dict(state)
        rows += rows_of(islice(part, 11))
        state = part.state_dict()
    assert rows == whole


def test_epochs_follow_each_other(data: Path) -> None:
    one = stream(data)
    first, second = rows_of(one), rows_of(one)
    assert first != second
    assert sorted(token for row in first for token in row[:32]) == sorted(token for row in second for token in row[:32])
    again = stream(data)
    rows_of(again)
    state = again.state_dict()
    third = stream(data)
    third.load_state_dict(state)
    assert rows_of(third) == second


def test_text_goes_through_a_tokenizer(tmp_path: Path) -> None:
    texts = ["one two", "three", "four five six"]
    write_samples(str(tmp_path), ({"text": text} for text in texts), writer=JSONWriter)
    vocabulary = {word: number for number, word in enumerate(["one", "two", "three", "four", "five", "six"], 2)}

    def tokenize(found: Any) -> list[list[int]]:
        return [[vocabulary[word] for word in text.split()] for text in found]

    made = LMStream(StreamingDataset(local=tmp_path), "text", 1, 10, tokenizer=tokenize, pad_id=0, eos_id=1)
    assert [batch.input_ids.tolist() for batch in made] == [[[2, 3, 1, 4, 1, 5, 6, 7, 1, 0]]]
    padded = LMStream(StreamingDataset(local=tmp_path), "text", 2, 4, layout="pad", tokenizer=tokenize, pad_id=0)
    assert [batch.input_ids.tolist() for batch in padded] == [[[2, 3, 0, 0], [4, 0, 0, 0]], [[5, 6, 7, 0]]]
    with pytest.raises(ValueError, match="'text'"):
        list(LMStream(StreamingDataset(local=tmp_path), "text", 1, 10, pad_id=0))


def test_padded_rows_continue(data: Path) -> None:
    options: dict[str, Any] = {"layout": "truncate", "batch_size": 16, "seq_len": 10}
    whole = rows_of(stream(data, **options))
    first = stream(data, **options)
    begun = rows_of(islice(first, 20))
    second = stream(data, **options)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert begun + rows_of(second) == whole


def test_what_does_not_fit_is_refused(data: Path) -> None:
    state = stream(data).state_dict()
    with pytest.raises(StateError, match="world_size is 1, here it is 2"):
        stream(data, 0, 2).load_state_dict(state)
    with pytest.raises(StateError, match="layout"):
        stream(data, layout="pack").load_state_dict(state)
    with pytest.raises(StateError, match="not a state of an LMStream"):
        stream(data).load_state_dict({})
    with pytest.raises(ConfigError, match="column 'text' is unknown"):
        list(stream(data, column="text"))
    with pytest.raises(ConfigError, match="must be the same"):
        stream(data, layout="pad")
    for options in ({"batch_size": 0}, {"layout": "x"}, {"tokenizer": 3}, {"layout": "pack", "pad_id": None}):
        with pytest.raises(ConfigError):
            stream(data, **options)


def resumed(data: Path, layout: Any, state: Any) -> Any:
    again = stream(data, layout=layout)
    again.load_state_dict(state)
    return next(iter(again))


@pytest.mark.parametrize("layout", ["concat", "pack"])
def test_a_state_with_missing_or_wrong_numbers_is_refused(data: Path, layout: Any) -> None:
    first = stream(data, layout=layout)
    list(islice(first, 7))
    state = json.loads(json.dumps(first.state_dict()))
    numbers: list[Any] = [-1, 1.5, 1 << 70, None, "3", True]
    wrong: list[Any] = [{**state, "document": number} for number in numbers]
    wrong += [{**state, "maker": {**state["maker"], "document": number}} for number in numbers]
    field = "token" if layout == "concat" else "rows"
    wrong += [{**state, "maker": {**state["maker"], field: number}} for number in numbers]
    makers: list[Any] = [None, 5, []]
    wrong += [{**state, "maker": maker} for maker in makers]
    wrong += [{name: value for name, value in state.items() if name != left} for left in ("document", "maker")]
    if layout == "pack":
        wrong += [{**state, "maker": {**state["maker"], "held": held}} for held in (5, [1], [[1, 2]], [[0, -1, 2]])]
    for one in wrong:
        with pytest.raises(StateError):
            resumed(data, layout, one)
    assert resumed(data, layout, state)


@pytest.mark.parametrize("layout", ["concat", "pack", "pad", "truncate"])
@pytest.mark.parametrize("wrong", [1, 10])
@pytest.mark.parametrize("resumed", [False, True])
def test_a_state_after_an_error_is_before_the_documents_that_had_it(
    tmp_path: Path, layout: Any, wrong: int, resumed: bool
) -> None:
    with MDSWriter({"tokens": "ndarray:int32"}, tmp_path) as out:
        out.write_batch({"tokens": [np.full(4, number, np.int32) for number in range(1, 21)]})

    def over(vocab_size: int, state: Any = None) -> LMStream:
        dataset = StreamingDataset(local=tmp_path, batch_size=4)
        pad_id = None if layout == "concat" else 0
        made = LMStream(
            dataset, "tokens", 4, 4, layout=layout, labels="unshifted", vocab_size=vocab_size, pad_id=pad_id
        )
        if state is not None:
            made.load_state_dict(json.loads(json.dumps(state)))
        return made

    def delivered(batches: Iterable[LMBatch]) -> list[int]:
        found: list[int] = []
        with suppress(FormatError):
            for batch in batches:
                found += batch.input_ids[:, 0].tolist()
        return found

    first, seen = over(wrong), []
    if resumed:
        begun = over(100)
        seen = delivered(islice(begun, 1))
        first = over(wrong, begun.state_dict())
    seen += delivered(first)
    expected = 8 if wrong == 10 and layout != "pack" else 4 if resumed else 0  # pack reads ahead
    assert len(seen) == expected
    assert sorted(seen + delivered(over(100, first.state_dict()))) == list(range(1, 21))


def test_an_error_in_a_tokenizer_names_the_document(tmp_path: Path) -> None:
    write_samples(str(tmp_path), ({"text": f"text {number}"} for number in range(30)))

    def tokenize(texts: Sequence[str]) -> list[list[int]]:
        if "text 17" in texts:
            raise KeyError("17")
        return [[1, 2, 3] for _ in texts]

    stream = LMStream(StreamingDataset(local=tmp_path, batch_size=8), "text", 2, 4, tokenizer=tokenize)
    with pytest.raises(
        TransformError, match=r"^document 17 of this rank's iteration: the tokenizer raised KeyError"
    ) as caught:
        list(stream)
    assert isinstance(caught.value.__cause__, KeyError)
    of_one = LMStream(
        StreamingDataset(local=tmp_path, batch_size=8), "text", 2, 4, tokenizer=lambda text: list(text.encode())
    )
    assert repr(of_one).endswith(", 2 x 4, concat>")
    with pytest.raises(
        TransformError, match=r"AttributeError: .* It is called with a list of texts, and returns a list of"
    ):
        list(of_one)
    short = LMStream(StreamingDataset(local=tmp_path, batch_size=8), "text", 2, 4, tokenizer=lambda _: [[1, 2]])
    with pytest.raises(ConfigError, match="returned 1 lists of ids for 8 texts"):
        list(short)


@pytest.mark.parametrize("layout", ["concat", "pad"])
@pytest.mark.parametrize("proportion", [None, 0.5])
def test_proportions_of_documents_are_said_to_be_no_proportions_of_tokens(
    data: Path, layout: Any, proportion: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    streams = [Stream(local=str(data), proportion=proportion) for _ in range(2)]
    LMStream(StreamingDataset(streams=streams), "tokens", 3, 32, layout=layout, pad_id=0)
    assert ("count documents, not the tokens" in caplog.text) == (proportion is not None and layout == "concat")
