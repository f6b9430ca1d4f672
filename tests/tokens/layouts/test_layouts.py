"""Layouts: no token lost, none twice, labels and masks right at every border."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_reference import PAD, check_batch, lengths_lists, numbered, pack, ragged, rows_of, settings_of, tokens_of, whole

from stoker.errors import ConfigError, FormatError
from stoker.tokens import LMSettings, Ragged, best_fit, pad, stream_starts, windows
from stoker.tokens.layouts.base import make_layout


@given(data=st.data(), lengths=lengths_lists, seq_len=st.integers(1, 12), side=st.sampled_from(["left", "right"]))
def test_pad_gives_each_document_a_row_and_counts_what_it_cuts(
    data: Any, lengths: list[int], seq_len: int, side: Literal["left", "right"]
) -> None:
    how = data.draw(settings_of(seq_len))
    documents = whole(numbered(lengths), how.eos_id)
    batch = pad(ragged(numbered(lengths)), how, too_long="truncate", side=side)
    check_batch(batch, documents, how)
    assert batch.shape == (len(lengths), seq_len)
    for row, one in enumerate(documents):
        kept = batch.input_ids[row][batch.attention_mask[row]].tolist()
        assert kept == one[:seq_len]
        if kept:
            assert batch.attention_mask[row, 0 if side == "right" else -1]
    assert batch.cut_documents == sum(len(one) > seq_len for one in documents)
    assert batch.cut_tokens == sum(max(0, len(one) - seq_len) for one in documents)


def test_pad_to_the_longest_is_no_wider_than_it_must_be() -> None:
    how = LMSettings(100, pad_id=PAD)
    assert pad(ragged(numbered([3, 9, 0])), how, longest=True).shape == (3, 9)
    assert pad(ragged(numbered([3, 9, 0])), how, longest=True, multiple=8).shape == (3, 16)
    assert pad(ragged(numbered([3, 99])), how, longest=True, multiple=64).shape == (2, 100)


def test_a_document_that_is_too_long_is_named() -> None:
    documents = Ragged.from_arrays([np.arange(3), np.arange(9)], column="input_ids", where="a.parquet")
    for layout in (pad, pack):
        with pytest.raises(FormatError, match=r"a\.parquet: column 'input_ids', row 1: 9 tokens, more than seq_len=8"):
            layout(documents, LMSettings(8, pad_id=0), too_long="error")


def test_the_layout_pad_names_the_layout_that_takes_documents_that_are_too_long() -> None:
    documents, how = ragged(numbered([3, 9])), LMSettings(8, pad_id=0)
    with pytest.raises(FormatError, match="pass layout='truncate'"):
        make_layout("pad", how, "split").rows(documents, 0)
    assert make_layout("truncate", how, "split").rows(documents, 0).shape == (2, 8)


@pytest.mark.parametrize("layout", ["concat", "pad", "truncate"])
def test_a_layout_that_does_not_read_too_long_refuses_it(layout: Literal["concat", "pad", "truncate"]) -> None:
    with pytest.raises(ConfigError, match="too_long='truncate' is for layout='pack'"):
        make_layout(layout, LMSettings(8, pad_id=0), "truncate")


@given(data=st.data(), lengths=lengths_lists, seq_len=st.integers(1, 12))
def test_any_windows_of_the_stream_can_be_requested(data: Any, lengths: list[int], seq_len: int) -> None:
    how = data.draw(settings_of(seq_len))
    all_documents = ragged(numbered(lengths), data.draw(st.sampled_from(["uint16", "uint32", "int64"])))
    documents = whole(numbered(lengths), how.eos_id)
    starts = stream_starts(all_documents.lengths, how)
    stream = [token for one in documents for token in one]
    assert int(starts[-1]) == len(stream)
    total = -(-len(stream) // seq_len)
    if not total:
        return
    first = data.draw(st.integers(0, total - 1))
    count = data.draw(st.integers(1, total - first))
    # Nothing but these documents is needed: to the one of the token behind the last row, which may be a label.
    begin, end = first * seq_len, min((first + count) * seq_len + 1, int(starts[-1]))
    low = int(np.searchsorted(starts, begin, side="right")) - 1
    stop = int(np.searchsorted(starts, end, side="left"))
    batch = windows(all_documents[low:stop], begin - int(starts[low]), count, how, first_document=low)
    check_batch(batch, documents, how, joined=True)
    real = batch.input_ids.ravel()[batch.attention_mask.ravel()]
    assert real.tolist() == stream[first * seq_len : (first + count) * seq_len]
    everything = windows(all_documents, 0, total, how)
    assert rows_of([everything])[first : first + count] == rows_of([batch])


@given(data=st.data(), lengths=lengths_lists, seq_len=st.integers(1, 12))
def test_in_windows_every_token_but_each_document_s_first_is_a_label_once(
    data: Any, lengths: list[int], seq_len: int
) -> None:
    how = LMSettings(seq_len, pad_id=PAD)
    documents = numbered(lengths)
    total = -(-sum(lengths) // seq_len)
    batch = windows(ragged(documents), 0, total, how)
    assert sorted(batch.labels[batch.loss_mask].tolist()) == sorted(token for one in documents for token in one[1:])


def test_windows_that_are_not_there_are_refused() -> None:
    how = LMSettings(4)
    with pytest.raises(ConfigError, match="needs pad_id="):
        windows(ragged(numbered([5, 4])), 0, 3, how)
    with pytest.raises(ConfigError, match="of only 9 tokens"):
        windows(ragged(numbered([5, 4])), 0, 4, how)


@given(
    data=st.data(),
    lengths=lengths_lists,
    seq_len=st.integers(1, 12),
    too_long=st.sampled_from(["split", "truncate"]),
)
def test_pack_loses_no_token_and_cuts_only_what_is_longer_than_a_row(
    data: Any, lengths: list[int], seq_len: int, too_long: Literal["split", "truncate"]
) -> None:
    how = data.draw(settings_of(seq_len))
    documents = whole(numbered(lengths), how.eos_id)
    batch = pack(ragged(numbered(lengths)), how, too_long=too_long)
    check_batch(batch, documents, how)
    expected = [one[:seq_len] if too_long == "truncate" else one for one in documents]
    assert tokens_of([batch]) == sorted((number, token) for number, one in enumerate(expected) for token in one)
    assert batch.cut_tokens == sum(map(len, documents)) - sum(map(len, expected))
    for number, one in enumerate(documents):
        rows = np.flatnonzero((batch.document_ids == number).any(axis=1)).size
        assert rows == (min(1, len(one)) if too_long == "truncate" else -(-len(one) // seq_len))


def naive_best_fit(lengths: list[int], capacity: int) -> int:
    """Rows that best-fit-decreasing needs, one length at a time."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [(room, row) for row, room in enumerate(rooms) if room >= length]
        if fitting:
            rooms[min(fitting)[1]] -= length
        else:
            rooms.append(capacity - length)
    return len(rooms)


@settings(max_examples=200)
@given(data=st.data(), capacity=st.one_of(st.integers(1, 40), st.integers(1000, 5000)))
def test_best_fit_packs_as_well_as_one_length_at_a_time(data: Any, capacity: int) -> None:
    lengths = data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=60))
    rows = best_fit(np.array(lengths), capacity)
    assert np.bincount(rows, weights=lengths).max() <= capacity
    assert int(rows.max()) + 1 == naive_best_fit(lengths, capacity)
    _, first = np.unique(rows, return_index=True)
    assert first.tolist() == sorted(first.tolist()), "rows are numbered by their first length"


def test_best_fit_refuses_what_fits_no_row() -> None:
    for lengths in ([0, 3], [9], [-1]):
        with pytest.raises(ConfigError, match=r"must be from 1 to 8"):
            best_fit(np.array(lengths), 8)


@pytest.mark.parametrize(("seq_len", "mean"), [(1024, 300), (2048, 500), (2048, 2000), (8192, 500), (8192, 1500)])
def test_packing_wastes_less_than_one_percent_on_documents_as_the_web_has_them(seq_len: int, mean: int) -> None:
    rng = np.random.default_rng(seq_len + mean)
    lengths = np.maximum(1, rng.lognormal(np.log(mean) - 0.72, 1.2, 8192).astype(np.int64))
    documents = Ragged(np.zeros(int(lengths.sum()), np.uint16), np.concatenate([[0], np.cumsum(lengths)]))
    batch = pack(documents, LMSettings(seq_len, pad_id=0))
    assert batch.num_tokens == lengths.sum()
    assert batch.padding_waste < 0.01


@pytest.mark.parametrize("seq_len", [512, 2048, 8192, 32768])
def test_packing_wastes_less_than_one_percent_on_the_files_of_a_library(seq_len: int) -> None:
    root = Path(sysconfig.get_path("stdlib"))
    # About four bytes a token.
    lengths = np.array([path.stat().st_size // 4 + 1 for path in sorted(root.glob("*.py"))])
    if lengths.sum() < 20 * seq_len:
        pytest.skip("this Python came without its source")
    documents = Ragged(np.zeros(int(lengths.sum()), np.uint16), np.concatenate([[0], np.cumsum(lengths)]))
    batch = pack(documents, LMSettings(seq_len, pad_id=0))
    assert batch.num_tokens == lengths.sum()
    # The last row of all may be as good as empty.
    assert (len(batch) - 1) * seq_len < lengths.sum() * 1.01


@pytest.mark.parametrize("labels", ["shifted", "unshifted"])
def test_an_id_outside_the_vocabulary_is_an_error_and_never_wrapped(labels: Literal["shifted", "unshifted"]) -> None:
    def documents(*values: int) -> Ragged:
        two = np.array([0, 2, 4])
        return Ragged(np.array(values), two, column="input_ids", where="f.parquet", rows=100)

    large = documents(5, 7, 2**32 + 5, 1)
    with pytest.raises(FormatError, match=r"f\.parquet: column 'input_ids', row 101: 4294967301 at token 0"):
        windows(large, 0, 1, LMSettings(4, labels=labels, dtype="int32"))
    with pytest.raises(FormatError, match=r"row 100: 7 at token 1 is not an id in \[0, 7\); 2 tokens are out of range"):
        pack(large, LMSettings(4, labels=labels, vocab_size=7, pad_id=0))
    with pytest.raises(FormatError, match="row 101: -100 at token 0"):
        pad(documents(5, 7, -100, 3)[0:2], LMSettings(4, pad_id=0))
    assert windows(large, 0, 1, LMSettings(4, labels=labels)).input_ids.tolist() == [[5, 7, 2**32 + 5, 1]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"seq_len": 0},
        {"labels": "both"},
        {"dtype": "uint16"},
        {"dtype": "float32"},
        {"ignore_index": 0},
        {"ignore_index": -(2**40), "dtype": "int32"},
        {"pad_id": 50, "vocab_size": 50},
        {"eos_id": -1},
        {"vocab_size": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=str(next(iter(wrong)))):
        LMSettings(**{"seq_len": 8, **wrong})


def test_layouts_that_fill_rows_up_need_a_pad_id() -> None:
    for layout in (pad, pack):
        with pytest.raises(ConfigError, match="needs pad_id="):
            layout(ragged(numbered([3])), LMSettings(4))
