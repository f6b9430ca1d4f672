"""Selections: exactly the samples that they promise, numbered one to one, whatever is appended later."""

from __future__ import annotations

import pickle
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker.order import ShardTable
from stoker.order.number_sets import Listed, Numbered, Residues, Span, Without
from stoker.order.selection import Everything, Sampled, Selection, Split, below_fraction, dense_starts
from stoker.types import Ids


def ids_of(table: ShardTable, selection: Selection) -> Ids:
    """Sample ids along the dense line, after checking that the selection is one to one and can be inverted."""
    shards = np.repeat(np.arange(len(table)), selection.sizes)
    numbers = np.arange(shards.size) - dense_starts(selection)[shards]
    rows = selection.rows(shards, numbers)
    assert ((rows >= 0) & (rows < table.sizes[shards])).all()
    assert np.array_equal(selection.numbers(shards, rows), numbers)
    ids: Ids = table.starts[shards] + rows
    assert np.unique(ids).size == ids.size
    everywhere, every_row = table.locate(np.arange(table.total))
    found = selection.numbers(everywhere, every_row)
    assert np.array_equal(np.flatnonzero(found != -1), np.sort(ids))
    assert found.min(initial=0) >= -1
    return ids


def table_of(sizes: list[int]) -> ShardTable:
    return ShardTable(np.array(sizes, dtype=np.int64))


tables = st.lists(st.integers(0, 40), min_size=1, max_size=12).map(table_of)
keys = st.integers(-(2**70), 2**70)


@st.composite
def parents(draw: st.DrawFn, table: ShardTable) -> Everything | Split | Listed | Without:
    kind = draw(st.integers(0, 3))
    ids = draw(st.lists(st.integers(0, table.total - 1), unique=True)) if table.total else []
    if kind == 0:
        return Everything(table)
    if kind == 1:
        return Split(table, Fraction(1, 5), Fraction(4, 5), draw(keys))
    return (Listed if kind == 2 else Without)(Everything(table), ids)


@given(data=st.data(), table=tables)
@settings(deadline=None)
def test_everything_is_the_identity(data: st.DataObject, table: ShardTable) -> None:
    assert ids_of(table, Everything(table)).tolist() == list(range(table.total))


# Split


@given(table=tables, seed=keys, cuts=st.lists(st.fractions(0, 1), max_size=5))
@settings(deadline=None)
def test_splits_that_meet_are_disjoint_and_leave_nothing(table: ShardTable, seed: int, cuts: list[Fraction]) -> None:
    edges = sorted({Fraction(0), Fraction(1), *cuts})
    splits = [ids_of(table, Split(table, low, high, seed)) for low, high in pairwise(edges)]
    assert sorted(np.concatenate(splits).tolist()) == list(range(table.total))


@given(
    table=tables, more=tables, seed=keys, low=st.fractions(0, Fraction(49, 100)), high=st.fractions(Fraction(1, 2), 1)
)
@settings(deadline=None)
def test_no_sample_changes_sides_when_shards_are_appended(
    table: ShardTable, more: ShardTable, seed: int, low: Fraction, high: Fraction
) -> None:
    longer = ShardTable(np.concatenate([table.sizes, more.sizes]))
    after = ids_of(longer, Split(longer, low, high, seed))
    assert after[after < table.total].tolist() == ids_of(table, Split(table, low, high, seed)).tolist()


@given(
    sizes=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 10**9)), min_size=1, max_size=50),
    step=st.integers(1, 19),
    percent=st.integers(1, 99),
    seed=keys,
)
@settings(deadline=None)
def test_a_split_has_its_share_within_one_sample_at_five_percent_and_two_at_one(
    sizes: list[int], step: int, percent: int, seed: int
) -> None:
    table = table_of(sizes)
    share = Fraction(step, 20)
    assert abs(int(Split(table, 0, share, seed).sizes.sum()) - share * table.total) < 1
    assert abs(int(Split(table, share, 1, seed).sizes.sum()) - (1 - share) * table.total) < 1
    share = Fraction(percent, 100)
    assert abs(int(Split(table, 0, share, seed).sizes.sum()) - share * table.total) < 2


@given(ends=st.lists(st.integers(0, 10**12), min_size=1, max_size=20), share=st.fractions(0, 1))
@settings(deadline=None)
def test_any_share_of_any_row_is_met_within_its_decimals(ends: list[int], share: Fraction) -> None:
    counts = below_fraction(np.array(ends, dtype=np.int64), share)
    assert all(abs(count - share * end) < 14 for count, end in zip(counts.tolist(), ends, strict=True))


@given(first=st.integers(0, 10**12), low=st.fractions(0, 1), high=st.fractions(0, 1))
@settings(deadline=None)
def test_each_number_has_one_value_that_no_share_moves(first: int, low: Fraction, high: Fraction) -> None:
    ends = np.arange(first, first + 200)
    in_low, in_high = (np.diff(below_fraction(ends, share)) for share in sorted((low, high)))
    assert set(in_low.tolist()) | set(in_high.tolist()) <= {0, 1}
    assert (in_low <= in_high).all()


def test_floats_are_taken_as_they_are_written() -> None:
    table = table_of([1000, 77, 1000])
    for written, exact in ((0.1, Fraction(1, 10)), (0.7, Fraction(7, 10)), (0.35, Fraction(7, 20))):
        assert np.array_equal(Split(table, written, 1, 5).sizes, Split(table, exact, 1, 5).sizes)


def test_a_split_is_spread_over_its_shards_and_drawn_differently_for_each_seed() -> None:
    table = table_of([1000] * 20)
    drawn = ids_of(table, Split(table, 0.9, 1, 1))
    assert (np.bincount(drawn // 1000) == 100).all()
    # Of 100 places out of 1000, two draws share about 10; the same places in each shard would be no draw.
    other = ids_of(table, Split(table, 0.9, 1, 2))
    assert 100 < np.intersect1d(drawn, other).size < 320
    places = drawn.reshape(20, 100) % 1000
    assert np.intersect1d(places[0], places[1]).size < 30


@pytest.mark.parametrize(
    ("low", "high", "message"),
    [
        (0.5, 0.5, "must end above where it begins"),
        (0.9, 0.1, "must end above where it begins"),
        (-0.1, 0.5, "low must be a number from 0 to 1, got -0.1"),
        (0, 1.5, "high must be a number from 0 to 1, got 1.5"),
        (float("nan"), 1, "low must be a number from 0 to 1"),
    ],
)
def test_a_split_that_makes_no_sense_says_so(low: float, high: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Split(table_of([10]), low, high, 0)


# Lists of ids


@given(data=st.data(), table=tables.filter(lambda table: table.total > 0))
@settings(deadline=None)
def test_listed_and_without_divide_the_parent_by_the_list(data: st.DataObject, table: ShardTable) -> None:
    parent = data.draw(parents(table))
    ids = data.draw(st.lists(st.integers(0, table.total - 1), unique=True))
    of_parent = set(ids_of(table, parent).tolist())
    assert set(ids_of(table, Listed(parent, ids)).tolist()) == of_parent & set(ids)
    assert set(ids_of(table, Without(parent, np.array(ids, dtype=np.uint32))).tolist()) == of_parent - set(ids)


@pytest.mark.parametrize("kind", [Listed, Without])
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([3, 1, 3], "sample id 3 is listed more than once"),
        ([0, 9, 9], "sample id 9 is listed more than once"),
        ([2, 10], "sample id 10 is not in a dataset of 10 samples"),
        ([-1, 2], "sample id -1 is not in a dataset of 10 samples"),
        ([0.5], "list of integers"),
        ([[1], [2]], "one-dimensional"),
        ([True], "of bool"),
    ],
)
def test_a_list_that_is_wrong_names_the_id(kind: Any, ids: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(Everything(table_of([4, 6])), ids)


def test_a_sorted_list_in_a_file_is_used_in_place(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(0, 1000, 3))
    ids = np.load(tmp_path / "ids.npy", mmap_mode="r")
    listed = Listed(Everything(table_of([500, 500])), ids)
    assert np.shares_memory(listed._chosen._values, ids)  # type: ignore[attr-defined]
    assert listed.sizes.tolist() == [167, 167]


@pytest.mark.parametrize("at", [99, 100, 101, 250])
def test_a_flaw_is_found_wherever_the_list_is_cut_into_chunks(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.order.number_sets._CHUNK", 100)
    ids = np.arange(300)
    ids[at + 1 :] -= 1
    with pytest.raises(ConfigError, match=f"sample id {at} is listed more than once"):
        Listed(Everything(table_of([1000])), ids)
    some = Split(table_of([1000]), 0, 0.5, 3)
    assert set(ids_of(some.table, Listed(some, np.arange(300))).tolist()) == {
        number for number in ids_of(some.table, some).tolist() if number < 300
    }


# Sets of the dense line


@given(
    data=st.data(),
    table=tables,
    modulus=st.integers(1, 60),
    first=st.integers(0, 59),
    step=st.integers(1, 60),
    key=st.one_of(st.none(), keys),
)
@settings(deadline=None)
def test_residues_are_those_of_the_dense_order(
    data: st.DataObject, table: ShardTable, modulus: int, first: int, step: int, key: int | None
) -> None:
    residues = range(first % modulus, modulus, step)
    parent = Everything(table) if not table.total else data.draw(parents(table))
    line = ids_of(table, Residues(parent, 1, range(1), key))
    assert sorted(line.tolist()) == sorted(ids_of(table, parent).tolist())
    wanted = line[np.isin(np.arange(line.size) % modulus, residues)]
    assert ids_of(table, Residues(parent, modulus, residues, key)).tolist() == wanted.tolist()


@given(data=st.data(), table=tables)
@settings(deadline=None)
def test_spans_are_cut_out_of_the_dense_order(data: st.DataObject, table: ShardTable) -> None:
    parent = Everything(table) if not table.total else data.draw(parents(table))
    line = ids_of(table, parent)
    edges = sorted(data.draw(st.lists(st.integers(0, line.size), max_size=8)))
    ranges = list(zip(edges[::2], edges[1::2], strict=False))
    wanted = [line[start:stop] for start, stop in ranges]
    assert ids_of(table, Span(parent, ranges)).tolist() == [number for part in wanted for number in part.tolist()]


@given(data=st.data(), table=tables)
@settings(deadline=None)
def test_numbers_of_the_dense_order_can_be_listed(data: st.DataObject, table: ShardTable) -> None:
    parent = Everything(table) if not table.total else data.draw(parents(table))
    line = ids_of(table, parent)
    numbers = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=line.size, max_size=line.size)))
    assert ids_of(table, Numbered(parent, numbers)).tolist() == line[numbers].tolist()


@given(data=st.data(), table=tables, granularity=st.one_of(st.integers(1, 45), st.just(10**15)), key=keys)
@settings(deadline=None)
def test_a_sample_has_exactly_its_count_and_grows_by_adding(
    data: st.DataObject, table: ShardTable, granularity: int, key: int
) -> None:
    parent = Everything(table) if not table.total else data.draw(parents(table))
    total = int(parent.sizes.sum())
    less, more = sorted((data.draw(st.integers(0, total)), data.draw(st.integers(0, total))))
    smaller, larger = (ids_of(table, Sampled(parent, count, granularity, key)) for count in (less, more))
    assert (smaller.size, larger.size) == (less, more)
    assert set(smaller.tolist()) <= set(larger.tolist())
    # A shard is used up, or gives whole units, all but the one that is cut.
    sizes = Sampled(parent, less, granularity, key).sizes
    cut = (sizes < parent.sizes) & (sizes % granularity > 0)
    assert cut.sum() <= 1


@given(table=tables, key=keys, data=st.data())
@settings(deadline=None)
def test_small_units_give_each_shard_its_share(table: ShardTable, key: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, table.total))
    sizes = Sampled(Everything(table), count, 1, key).sizes
    held = table.sizes > 0
    # There is one share of which every shard is within one sample.
    least = (sizes[held] - 1) / table.sizes[held]
    most = (sizes[held] + 1) / table.sizes[held]
    assert least.max(initial=0) <= most.min(initial=2) + 1e-9


def test_large_units_take_whole_shards_in_an_order_of_each_key() -> None:
    table = table_of([10] * 50)
    chosen = {tuple(np.flatnonzero(Sampled(Everything(table), 200, 10, key).sizes).tolist()) for key in range(20)}
    assert len(chosen) == 20
    assert all(len(shards) == 20 for shards in chosen)
    used = np.bincount([shard for shards in chosen for shard in shards], minlength=50)
    assert used.min() > 0  # about 8 times each
    assert used.max() < 20


# All of them


def every_kind(table: ShardTable) -> list[Selection]:
    all_ = Everything(table)
    some = Split(table, 0.1, 0.85, 7)
    return [
        all_,
        some,
        Listed(some, np.arange(0, table.total, 7)),
        Without(some, np.arange(0, table.total, 7)),
        Residues(some, 10, range(1, 8, 3), 3),
        Residues(all_, 10, range(1, 10, 4)),
        Span(some, [(3, 50), (60, 61)]),
        Numbered(all_, np.arange(3, 33)),
        Sampled(some, 50, 8, 3),
    ]


@pytest.mark.usefixtures("turned")
def test_values_are_fixed_for_ever() -> None:
    # A change here moves samples between runs and between training and validation: it needs a new state version.
    table = table_of([31, 0, 64, 5, 100])
    found = [
        (kind.sizes.tolist(), int(ids_of(table, kind) @ np.arange(1, 1 + kind.sizes.sum())))
        for kind in every_kind(table)
    ]
    assert found == EXPECTED


def test_they_travel_to_other_processes() -> None:
    table = table_of([31, 0, 64, 5, 100])
    for kind in every_kind(table):
        again = pickle.loads(pickle.dumps(kind))
        assert np.array_equal(ids_of(table, again), ids_of(table, kind))


def test_a_million_million_samples_in_one_shard_or_in_many() -> None:
    for sizes in ([10**12], [10**7] * 10**5):
        table = table_of(sizes)
        all_ = Everything(table)
        last = np.array([len(table) - 1])
        for kind in (
            Split(table, 0.1, 0.9, 1),
            Sampled(all_, 7 * 10**11, 1, 1),
            Sampled(all_, 7 * 10**11, 10**6, 1),
            Residues(all_, 16384, range(7, 16384, 16), 5),
            Span(all_, [(5, 10**12)]),
            Without(all_, [10**12 - 1]),
            Split(table, Fraction(1, 3), Fraction(2, 3), 1),
        ):
            number = kind.sizes[last] - 1
            row = kind.rows(last, number)
            assert 0 <= int(row[0]) < sizes[-1]
            assert kind.numbers(last, row).tolist() == number.tolist()


EXPECTED: list[Any] = [
    ([31, 0, 64, 5, 100], 2666600),
    ([23, 0, 48, 4, 75], 1534850),
    ([3, 0, 6, 1, 11], 31941),
    ([20, 0, 42, 3, 64], 1130409),
    ([7, 0, 14, 2, 22], 137272),
    ([9, 0, 19, 2, 30], 243010),
    ([20, 0, 28, 0, 0], 68324),
    ([28, 0, 2, 0, 0], 10385),
    ([8, 0, 16, 2, 24], 148832),
]


def test_ids_in_a_mapped_file_do_not_travel_with_a_selection(tmp_path: Path) -> None:
    table = ShardTable(np.full(10, 1000))
    ids = np.arange(0, 10_000, 7)
    np.save(tmp_path / "ids.npy", ids)
    mapped = np.load(tmp_path / "ids.npy", mmap_mode="r")
    plain, light = Listed(Everything(table), ids), Listed(Everything(table), mapped, checked=True)
    assert len(pickle.dumps(light)) < len(pickle.dumps(plain)) - 8 * ids.size // 2
    copy = pickle.loads(pickle.dumps(light))
    shards, numbers = np.array([0, 9, 3]), np.array([1, 2, 3])
    assert np.array_equal(copy.rows(shards, numbers), plain.rows(shards, numbers))
