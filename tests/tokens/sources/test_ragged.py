"""Documents: from whatever holds them, without a copy where that can be, and never a wrong id."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import ConfigError, FormatError
from stoker.tokens import Ragged
from stoker.tokens.sources.ragged import gather_spans

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
rows_of_ids = st.lists(st.one_of(st.none(), st.lists(st.integers(0, 120), max_size=6)), max_size=12)


def lists(documents: Ragged) -> list[list[int]]:
    return [documents[row].tolist() for row in range(len(documents))]


@given(
    rows=rows_of_ids,
    kind=st.sampled_from(INTEGERS),
    make=st.sampled_from([pa.list_, pa.large_list, pa.list_view, pa.large_list_view]),
    cut=st.tuples(st.integers(0, 12), st.integers(0, 12)),
    chunked=st.booleans(),
)
def test_arrow_lists_of_any_integer_give_their_rows(
    rows: list[Any], kind: str, make: Any, cut: tuple[int, int], chunked: bool
) -> None:
    whole = pa.array(rows, make(pa.from_numpy_dtype(np.dtype(kind))))
    low, high = min(cut), max(cut)
    array: Any = whole.slice(low, high - low)
    if chunked:
        array = pa.chunked_array([array, whole.slice(0, low)])
    documents = Ragged.from_arrow(array)
    expected = rows[low:high] + (rows[:low] if chunked else [])
    assert lists(documents) == [row or [] for row in expected]
    assert documents.values.dtype == kind or not documents.values.size


@given(rows=st.lists(st.one_of(st.none(), st.lists(st.integers(0, 120), min_size=3, max_size=3)), max_size=9))
def test_arrow_lists_of_a_fixed_size_give_their_rows(rows: list[Any]) -> None:
    array = pa.array(rows, pa.list_(pa.uint16(), 3))
    assert lists(Ragged.from_arrow(array)) == [row or [] for row in rows]
    assert lists(Ragged.from_arrow(array.slice(len(rows) // 2))) == [row or [] for row in rows[len(rows) // 2 :]]


def test_tokens_of_arrow_lists_are_not_copied() -> None:
    values = pa.array(np.arange(100, dtype=np.uint32))
    plain = pa.ListArray.from_arrays(pa.array([0, 40, 40, 100], pa.int32()), values)
    fixed = pa.FixedSizeListArray.from_arrays(values, 10)
    address = values.buffers()[1].address
    for array in (plain, fixed, pa.array([pa.scalar([1])]).slice(1)):
        documents = Ragged.from_arrow(array)
        assert not documents.values.size or documents.values.ctypes.data == address
    with_null = pa.ListArray.from_arrays(
        pa.array([0, 40, 40, 100], pa.int32()), values, mask=pa.array([False, True, False])
    )
    assert Ragged.from_arrow(with_null).values.ctypes.data == address


def test_a_null_list_that_covers_values_has_none() -> None:
    values = pa.array(np.arange(10, dtype=np.uint16))
    mask = pa.array([False, True, False])
    array = pa.ListArray.from_arrays(pa.array([0, 3, 7, 10], pa.int32()), values, mask=mask)
    assert lists(Ragged.from_arrow(array)) == [[0, 1, 2], [], [7, 8, 9]]


def test_dictionaries_of_tokens_are_decoded() -> None:
    values = pa.array([5, 6, 5, 7], pa.int32()).dictionary_encode()
    array = pa.ListArray.from_arrays(pa.array([0, 1, 4], pa.int32()), values)
    assert lists(Ragged.from_arrow(array)) == [[5], [6, 5, 7]]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (pa.array([[1, 2], [3, None, 4]]), "f, group 2: column 'ids', row 11: token 1 is null .1 null tokens in all"),
        (pa.array([[1, 2], None, [None]]), "row 12: token 0 is null"),
        (pa.array(["a text"]), "holds string, not lists of token ids: make tokens of it with `stoker tokenize`"),
        (pa.array([1, 2]), "holds int64, not lists of token ids: name the column"),
        (pa.array([[1.5]]), "whose elements are not integers"),
        (pa.array([["a"]]), "whose elements are not integers"),
        (pa.array([[[1]]]), "whose elements are not integers"),
        (pa.array([[True]]), "whose elements are not integers"),
    ],
)
def test_arrow_arrays_that_hold_no_tokens_are_reported(array: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Ragged.from_arrow(array, column="ids", where="f, group 2", first_row=10)


def test_columns_of_batches_give_their_rows() -> None:
    table = np.arange(12, dtype=np.uint16).reshape(3, 4)
    documents = Ragged.of(table)
    assert np.shares_memory(documents.values, table)
    assert lists(documents) == table.tolist()
    assert lists(Ragged.of([np.array([1, 2], np.uint16), [3], np.array([], np.uint16), None])) == [[1, 2], [3], [], []]
    raw = np.array([1, 500], "<u2").tobytes()
    assert lists(Ragged.of([raw, b""], dtype="uint16")) == [[1, 500], []]
    assert lists(Ragged.of(pa.array([[1], [2, 3]]))) == [[1], [2, 3]]
    assert Ragged.of(documents) is documents
    mixed = Ragged.of([np.array([1], np.int64), np.array([2], np.uint64)])
    assert mixed.values.dtype == np.int64
    assert lists(Ragged.of([])) == []


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([[1], [1.5]], "row 1 holds float64 of shape"),
        ([[1], "text"], "row 1 holds str, not token ids"),
        ([np.zeros((2, 2), int)], "row 0 holds int64 of shape"),
        (np.zeros((2, 2)), "holds float64"),
        (np.zeros(2, int), "not a list of token ids"),
        ([b"123"], "say which integers they are"),
        ([np.array([1], np.int64), np.array([2**63], np.uint64)], "row 1: 9223372036854775808 is not a token id"),
    ],
)
def test_columns_that_hold_no_tokens_are_reported(column: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Ragged.of(column, name="ids")


def test_bytes_that_are_no_whole_tokens_are_reported() -> None:
    with pytest.raises(FormatError, match="row 1: 3 bytes are not a whole number of uint16"):
        Ragged.of([b"12", b"123"], dtype="uint16")


@pytest.mark.parametrize(
    ("values", "offsets"),
    [
        (np.arange(4), np.array([0, 3])),
        (np.arange(4), np.array([1, 4])),
        (np.arange(4), np.array([0, 3, 2, 4])),
        (np.arange(4), np.array([0, 4], np.int32)),
        (np.arange(4), np.zeros(0, np.int64)),
        (np.arange(4.0), np.array([0, 4])),
        (np.zeros((2, 2), int), np.array([0, 4])),
    ],
)
def test_offsets_that_do_not_fit_are_refused(values: Any, offsets: Any) -> None:
    with pytest.raises(ConfigError):
        Ragged(values, offsets)


@given(data=st.data(), rows=st.lists(st.lists(st.integers(0, 99), max_size=5), max_size=9))
def test_rows_that_are_taken_cut_and_joined_are_the_rows(data: Any, rows: list[list[int]]) -> None:
    documents = Ragged.from_arrays([np.array(row, np.uint16) for row in rows], where="w")
    chosen = data.draw(st.lists(st.integers(0, max(len(rows) - 1, 0)), max_size=9 if rows else 0))
    taken = documents.take(np.array(chosen, np.int64))
    assert lists(taken) == [rows[row] for row in chosen]
    assert taken.rows.tolist() == chosen
    low, high = data.draw(st.integers(-9, 9)), data.draw(st.integers(-9, 9))
    for step in (None, 1, 2, -1):
        assert lists(documents[low:high:step]) == rows[low:high:step]
    joined = Ragged.concat([taken, documents[low:high], taken[:0]])
    assert lists(joined) == [rows[row] for row in chosen] + rows[low:high]
    assert joined.lengths.tolist() == [len(row) for row in lists(joined)]


def test_rows_keep_their_numbers_for_messages() -> None:
    documents = Ragged(np.array([1, 2, -3, 4]), np.array([0, 1, 2, 3, 4]), rows=10, where="w")
    for part in (documents[1:], documents.take(np.array([3, 2])), Ragged.concat([documents[3:], documents[:3]])):
        with pytest.raises(FormatError, match="row 12: -3 at token 0"):
            part.check(1 << 31)


@given(limit=st.integers(1, 300), ids=st.lists(st.integers(0, 255), max_size=9), kind=st.sampled_from(INTEGERS[1:]))
def test_ids_are_checked_whatever_was_checked_before(limit: int, ids: list[int], kind: str) -> None:
    documents = Ragged.from_arrays([np.array(ids).astype(kind)])
    documents.check(256)
    wrong = max(ids, default=0) >= limit
    for part in (documents, documents[0:1], documents.take(np.array([0, 0]))):
        if wrong:
            with pytest.raises(FormatError, match=r"is not an id in \[0"):
                part.check(limit)
        else:
            assert part.check(limit) is part


@given(data=st.data(), scale=st.sampled_from([1, 400]))
def test_spans_are_copied_whatever_their_lengths(data: Any, scale: int) -> None:
    values = np.arange(5000, dtype=np.uint16)
    runs = data.draw(st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 2), st.integers(0, 3)), max_size=9))
    sources, lengths, gaps = np.array(runs, np.int64).reshape(-1, 3).T
    lengths = lengths * scale
    ends = np.cumsum(lengths + gaps)
    expected = {
        int(end - length + i): int(source + i)
        for end, length, source in zip(ends, lengths, sources, strict=True)
        for i in range(length)
    }
    out = gather_spans(values, sources, lengths, ends - lengths, int(ends[-1]) + 2 if runs else 2)
    for place, value in expected.items():
        assert out[place] == value


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9), st.integers(0, 199)), max_size=30), st.integers(1, 60))
@settings(max_examples=80, deadline=None)
def test_spans_with_gaps_between_them_are_copied(runs: list[tuple[int, int, int]], at_once: int) -> None:
    values = np.arange(200, dtype=np.uint16)[::-1]
    lengths = np.array([min(length, 200 - source) for length, _, source in runs], dtype=np.int64)
    sources = np.array([source for *_, source in runs], dtype=np.int64)
    rooms = np.array([gap for _, gap, _ in runs], dtype=np.int64)
    targets = np.cumsum(rooms + lengths) - lengths
    size = int((rooms + lengths).sum()) + 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stoker.tokens.sources.ragged._AT_ONCE", at_once)
        out = gather_spans(values, sources, lengths, targets, size)
    for source, length, target in zip(sources.tolist(), lengths.tolist(), targets.tolist(), strict=True):
        assert out[target : target + length].tolist() == values[source : source + length].tolist()
    assert out.shape == (size,)
    assert out.flags.writeable
