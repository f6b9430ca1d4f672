"""Documents that come little by little: batches do not depend on how they come, and go on after any batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lm_reference import PAD, check_batch, lengths_lists, numbered, ragged, rows_of, settings_of, tokens_of, whole

from stoker.errors import ConfigError, StateError
from stoker.tokens import Joiner, LMBatch, LMSettings, Packer, Ragged, windows
from stoker.types import Ids

cuts = st.lists(st.integers(1, 7), min_size=1, max_size=30)


def parts(documents: Ragged, first: int, sizes: list[int]) -> Iterator[Ragged]:
    """The documents from ``first`` on, in parts of these sizes, again and again."""
    turn = 0
    while first < len(documents):
        size = sizes[turn % len(sizes)]
        yield documents[first : first + size]
        first, turn = first + size, turn + 1


def run(maker: Joiner | Packer, documents: Ragged, sizes: list[int]) -> Iterator[LMBatch]:
    for part in parts(documents, maker.next_document, sizes):
        yield from maker.feed(part)
    yield from maker.finish()


@given(data=st.data(), lengths=lengths_lists, seq_len=st.integers(1, 9), batch=st.integers(1, 4), sizes=cuts)
def test_joined_documents_are_the_stream_s_windows_however_they_come(
    data: Any, lengths: list[int], seq_len: int, batch: int, sizes: list[int]
) -> None:
    how = data.draw(settings_of(seq_len))
    documents = whole(numbered(lengths), how.eos_id)
    batches = list(run(Joiner(how, batch), ragged(numbered(lengths)), sizes))
    for one in batches:
        check_batch(one, documents, how, joined=True)
    assert all(len(one) == batch for one in batches[:-1])
    total = -(-sum(map(len, documents)) // seq_len)
    assert rows_of(batches) == rows_of([windows(ragged(numbered(lengths)), 0, total, how)])


@given(
    data=st.data(),
    lengths=lengths_lists,
    seq_len=st.integers(1, 9),
    batch=st.integers(1, 4),
    again=st.integers(1, 4),
    sizes=cuts,
)
def test_joining_continues_after_any_batch_with_batches_of_any_size(
    data: Any, lengths: list[int], seq_len: int, batch: int, again: int, sizes: list[int]
) -> None:
    how = data.draw(settings_of(seq_len))
    documents = ragged(numbered(lengths))
    expected = rows_of(list(run(Joiner(how, 1), documents, [5])))
    first = Joiner(how, batch)
    states = [first.state_dict()]
    batches = []
    for one in run(first, documents, sizes):
        batches.append(one)
        states.append(first.state_dict())
    stop = data.draw(st.integers(0, len(batches)))
    state = json.loads(json.dumps(states[stop]))
    rest = list(run(Joiner(how, again, state=state), documents, sizes))
    assert rows_of(batches[:stop]) + rows_of(rest) == expected


def test_what_does_not_fill_the_last_row_can_be_left_out() -> None:
    joiner = Joiner(LMSettings(4), 2)
    batches = [*joiner.feed(ragged(numbered([7, 7]))), *joiner.finish(remainder=False)]
    assert [len(one) for one in batches] == [2, 1]
    assert all(one.attention_mask.all() for one in batches)


def test_joining_refuses_a_state_that_does_not_fit() -> None:
    state = {"version": 1, "document": 4, "token": 9, "eos": False}
    with pytest.raises(StateError, match="document 4 has 5 tokens, but the state says that 9 were delivered"):
        Joiner(LMSettings(4), 1, state=state).feed(ragged(numbered([5])))
    for wrong in ({**state, "eos": True}, {**state, "version": 2}, {}):
        with pytest.raises(StateError, match="not a state"):
            Joiner(LMSettings(4), 1, state=wrong)
    done = Joiner(LMSettings(4), 1)
    list(done.finish())
    with pytest.raises(ConfigError, match="finished"):
        done.feed(ragged(numbered([5])))


packings = st.fixed_dictionaries(
    {
        "lookahead": st.sampled_from([1, 3, 16, 40]),
        "lookahead_tokens": st.sampled_from([1, 20, 1000]),
        "too_long": st.sampled_from(["split", "truncate"]),
    }
)


@given(
    data=st.data(),
    lengths=lengths_lists,
    seq_len=st.integers(1, 12),
    batch=st.integers(1, 4),
    sizes=cuts,
    packing=packings,
)
def test_packed_rows_lose_nothing_and_do_not_depend_on_how_documents_come(
    data: Any, lengths: list[int], seq_len: int, batch: int, sizes: list[int], packing: dict[str, Any]
) -> None:
    how = data.draw(settings_of(seq_len))
    documents = whole(numbered(lengths), how.eos_id)
    batches = list(run(Packer(how, batch, **packing), ragged(numbered(lengths)), sizes))
    for one in batches:
        check_batch(one, documents, how)
    assert all(len(one) == batch for one in batches[:-1])
    kept = [one[:seq_len] if packing["too_long"] == "truncate" else one for one in documents]
    assert tokens_of(batches) == sorted((number, token) for number, one in enumerate(kept) for token in one)
    assert sum(one.cut_tokens for one in batches) == sum(map(len, documents)) - sum(map(len, kept))

    # All fed before the first batch is taken.
    late = Packer(how, batch + 1, **packing)
    late.feed(ragged(numbered(lengths)))
    assert rows_of(list(late.finish())) == rows_of(batches)


@given(
    data=st.data(),
    lengths=lengths_lists,
    seq_len=st.integers(1, 12),
    batch=st.integers(1, 4),
    again=st.integers(1, 4),
    sizes=cuts,
    packing=packings,
)
def test_packing_continues_after_any_batch_with_batches_of_any_size(
    data: Any, lengths: list[int], seq_len: int, batch: int, again: int, sizes: list[int], packing: dict[str, Any]
) -> None:
    how = data.draw(settings_of(seq_len))
    documents = ragged(numbered(lengths))
    expected = rows_of(list(run(Packer(how, 1, **packing), documents, [5])))
    first = Packer(how, batch, **packing)
    states = [first.state_dict()]
    batches = []
    for one in run(first, documents, sizes):
        batches.append(one)
        states.append(first.state_dict())
    stop = data.draw(st.integers(0, len(batches)))
    state = json.loads(json.dumps(states[stop]))
    second = Packer(how, again, **packing, state=state, fetch=documents.take)
    assert rows_of(batches[:stop]) + rows_of(list(run(second, documents, sizes))) == expected


def test_spans_are_held_back_once_at_most_and_few() -> None:
    how = LMSettings(100, pad_id=PAD)
    documents = ragged(numbered([60] * 160))  # no two fit a row: every row is poor
    packer = Packer(how, 1, lookahead=32)
    seen: list[int] = []
    held: dict[int, set[int]] = {}  # by the first document of the block that they were held back for
    for number in range(160):
        for one in packer.feed(documents[number : number + 1]):
            seen += one.document_ids[:, 0].tolist()
            state = packer.state_dict()
            held[state["document"]] = {document for document, _, _ in state["held"]}
    assert sorted(held) == [0, 32, 64, 96, 128, 160]
    assert [len(held[block]) for block in sorted(held)] == [0, 2, 2, 2, 2, 2]
    assert len(set.union(*held.values())) == 10, "held back twice"
    seen += [int(one.document_ids.max()) for one in packer.finish()]
    assert sorted(seen) == list(range(160))


@pytest.mark.parametrize("seq_len", [2048, 32768])
def test_what_is_held_back_keeps_the_waste_of_small_blocks_small(seq_len: int) -> None:
    rng = np.random.default_rng(0)
    lengths = np.maximum(1, rng.lognormal(np.log(500) - 0.5, 1, 20000).astype(np.int64))
    documents = Ragged(np.zeros(int(lengths.sum()), np.uint16), np.concatenate([[0], np.cumsum(lengths)]))
    packer = Packer(LMSettings(seq_len, pad_id=0), 8, lookahead=2048)
    batches = list(run(packer, documents, [777]))
    assert sum(one.num_tokens for one in batches) == lengths.sum()
    # The last row of all may be as good as empty.
    assert sum(one.input_ids.size for one in batches) <= lengths.sum() * 1.01 + seq_len


def test_packing_refuses_a_state_that_does_not_fit() -> None:
    how = LMSettings(10, pad_id=0)
    documents = ragged(numbered([6] * 20))
    packer = Packer(how, 1, lookahead=16)
    next(packer.feed(documents))
    list(packer.feed(documents[0:0]))
    state = packer.state_dict()
    assert state["held"]

    def other(numbers: Ids) -> Ragged:
        return ragged(numbered([5] * len(numbers)))

    with pytest.raises(ConfigError, match="pass fetch"):
        Packer(how, 1, lookahead=16, state=state)
    with pytest.raises(StateError, match="not the same as in the state"):
        Packer(how, 1, lookahead=16, state=state, fetch=other)
    with pytest.raises(StateError, match="made with lookahead=16, this packer has 8"):
        Packer(how, 1, lookahead=8, state=state, fetch=documents.take)
    with pytest.raises(StateError, match="not a state"):
        Packer(how, 1, state={"version": 7})
    kinds: list[dict[str, Any]] = [{"lookahead": 0}, {"lookahead_tokens": 0}, {"too_long": "drop"}]
    for wrong in kinds:
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            Packer(how, 1, **wrong)


@pytest.mark.parametrize("kind", ["shifted", "unshifted"])
def test_rows_of_one_block_and_the_next_share_a_batch(kind: Literal["shifted", "unshifted"]) -> None:
    how = LMSettings(5, pad_id=0, labels=kind)
    documents = ragged(numbered([5] * 12))
    batches = list(run(Packer(how, 5, lookahead=4), documents, [12]))
    assert [len(one) for one in batches] == [5, 5, 2]
    assert [one.extents.documents.tolist() for one in batches] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11]]
