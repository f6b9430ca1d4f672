"""How tokens are divided: disjoint, complete, balanced, the same wherever it is worked out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker.tokens.order.division import (
    Granularity,
    Groups,
    ReadSequence,
    RowGroupRuns,
    TokenDivision,
    divide,
    join_groups,
)
from stoker.types import Ids

SIZES = st.lists(st.lists(st.integers(0, 60), min_size=1, max_size=5), min_size=1, max_size=12)
"""Tokens of each group of each file."""


def cells_of(files: list[list[int]]) -> tuple[RowGroupRuns, list[str]]:
    tokens = np.array([size for file in files for size in file], dtype=np.int64)
    owners = np.repeat(np.arange(len(files), dtype=np.int64), [len(file) for file in files])
    cells = RowGroupRuns(np.arange(tokens.size + 1, dtype=np.int64), owners, tokens, tokens)
    return cells, [f"{number:02}.parquet" for number in range(len(files))]


def units_of(
    division: TokenDivision, cells: RowGroupRuns, step: int, seed: int | None, epoch: int
) -> list[tuple[int, int]]:
    """Track and number of every unit of every part."""
    found = []
    for part in range(division.rounds.parts):
        first = int(division.firsts[part])
        found += [(division.sequence_of(part), first + number) for number in range(division.rounds.size(part))]
    return found


@given(SIZES, st.integers(1, 6), st.integers(1, 7), st.booleans(), st.sampled_from([None, "row_group", "row"]))
def test_every_unit_is_of_one_part(
    files: list[list[int]], parts: int, step: int, partial: bool, kind: Granularity | None
) -> None:
    cells, names = cells_of(files)
    if kind == "row_group" and len(cells) < parts:
        with pytest.raises(ConfigError, match="C-SHARD-001"):
            divide(cells, names, parts, kind, step=step, partial=partial)
        return
    division = divide(cells, names, parts, kind, step=step, partial=partial)
    units = units_of(division, cells, step, 1, 0)
    assert len(units) == len(set(units))
    sequences = range(1) if division.owners is None else range(parts)
    for number in sequences:
        sequence = division.sequence(cells, number, 1, 0, 10)
        most = -(-sequence.total // step) if partial else sequence.total // step
        assert sorted(unit for owner, unit in units if owner == number) == list(range(most))
    if division.owners is None:
        assert division.rounds.largest - division.rounds.smallest <= 1
    else:
        assert sorted(np.concatenate([division.members(n) for n in sequences]).tolist()) == list(range(len(cells)))


@given(SIZES, st.integers(1, 6))
def test_the_granularity_chosen_leaves_nobody_far_above_the_mean(files: list[list[int]], parts: int) -> None:
    cells, names = cells_of(files)
    division = divide(cells, names, parts, None)
    if parts == 1:
        assert division.granularity == "file"
        assert not division.reason
        return
    if division.granularity == "row":
        assert division.reason
        return
    loads = [int(cells.tokens[division.members(part)].sum()) for part in range(parts)]
    assert max(loads) * parts * 20 <= sum(loads) * 21
    assert bool(division.reason) == (division.granularity != "file")


def test_files_go_to_ranks_in_turn_by_name() -> None:
    cells, _ = cells_of([[5], [5], [5], [5], [5]])
    division = divide(cells, ["c", "a", "e", "b", "d"], 2, "file")
    owner_of = dict(zip("caebd", division.owners.tolist() if division.owners is not None else [], strict=True))
    assert owner_of == {"a": 0, "b": 1, "c": 0, "d": 1, "e": 0}


def test_too_few_files_are_an_error_only_for_those_who_insist_on_files() -> None:
    cells, names = cells_of([[4, 4], [4, 4], [4, 4]])
    with pytest.raises(ConfigError, match=r"insufficient files for sharding: 3 files < 4 ranks \(C-SHARD-001"):
        divide(cells, names, 4, "file")
    assert divide(cells, names, 4, None).granularity == "row"  # 6 groups for 4 ranks: two would get twice as much
    assert divide(cells, names, 6, None).granularity == "row_group"
    assert divide(cells, names, 7, None).granularity == "row"


def test_skewed_files_are_divided_by_row_groups_and_it_says_so() -> None:
    cells, names = cells_of([[10] * 8, [10] * 2])
    division = divide(cells, names, 2, None)
    assert division.granularity == "row_group"
    assert division.reason == "by whole files rank 0 would get 60.0% more tokens than the mean"
    assert division.rounds.size(0) == division.rounds.size(1) == 50
    assert divide(cells, names, 2, "file").granularity == "file"


def test_five_percent_is_not_too_much() -> None:
    cells, names = cells_of([[105], [95]])
    assert divide(cells, names, 2, None).granularity == "file"
    cells, names = cells_of([[10501], [9499]])
    assert divide(cells, names, 2, None).granularity == "row"


@given(SIZES, st.integers(1, 40), st.integers(0, 5), st.booleans())
def test_a_track_has_each_cell_once_in_blocks_of_about_the_size(
    files: list[list[int]], block: int, epoch: int, shuffle: bool
) -> None:
    cells, names = cells_of(files)
    sequence = divide(cells, names, 1, None).sequence(cells, 0, 3 if shuffle else None, epoch, block)
    full = np.flatnonzero(cells.amounts)
    assert sorted(sequence.cells.tolist()) == full.tolist()
    if not shuffle:
        assert sequence.cells.tolist() == full.tolist()
    sizes = np.diff(sequence.starts)
    assert (sizes > 0).all()
    assert int(sizes.sum()) == sequence.total == int(cells.amounts.sum())
    for number in range(sequence.blocks):
        members = sequence.members(number)
        assert sizes[number] == cells.amounts[members].sum()
        assert sizes[number] < block + cells.tokens.max()


def test_an_epoch_is_a_function_of_its_number_and_a_part_keeps_its_cells() -> None:
    cells, names = cells_of([[5] * 6 for _ in range(8)])
    division = divide(cells, names, 2, None)
    epochs = [[division.sequence(cells, part, 7, epoch, 10) for part in range(2)] for epoch in range(4)]
    for part in range(2):
        sets = {tuple(sorted(sequences[part].cells.tolist())) for sequences in epochs}
        orders = {tuple(sequences[part].cells.tolist()) for sequences in epochs}
        assert len(sets) == 1
        assert len(orders) == 4
    again = divide(cells, names, 2, None).sequence(cells, 1, 7, 3, 10)
    assert again.cells.tolist() == epochs[3][1].cells.tolist()
    other = division.sequence(cells, 1, 8, 3, 10)
    assert other.cells.tolist() != again.cells.tolist()


def test_seed_and_epoch_are_not_added() -> None:
    """(seed, epoch + 1) is not (seed + 1, epoch)."""
    cells, names = cells_of([[5] * 30])
    division = divide(cells, names, 1, None)
    assert division.sequence(cells, 0, 42, 1, 1).cells.tolist() != division.sequence(cells, 0, 43, 0, 1).cells.tolist()


def test_files_are_mixed_across_each_other() -> None:
    """Row groups of one file hardly ever follow each other."""
    cells, names = cells_of([[5] * 20 for _ in range(20)])
    sequence: ReadSequence = divide(cells, names, 1, None).sequence(cells, 0, 1, 0, 1)
    owners = cells.file[sequence.cells]
    assert np.mean(owners[1:] == owners[:-1]) < 0.12


@given(SIZES, st.integers(2, 80))
def test_cells_join_groups_of_one_file_until_there_are_enough(files: list[list[int]], least: int) -> None:
    owners = np.repeat(np.arange(len(files), dtype=np.int64), [len(file) for file in files])
    tokens = np.array([size for file in files for size in file], dtype=np.int64)
    none: Ids = np.zeros_like(tokens)
    bounds = join_groups(Groups(tuple(map(str, files)), owners, none, tokens, none), least)
    assert bounds[0] == 0
    assert bounds[-1] == tokens.size
    assert (np.diff(bounds) > 0).all()
    for first, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        assert len(set(owners[first:stop].tolist())) == 1
        assert tokens[first : stop - 1].sum() < least
        assert stop == tokens.size or owners[stop] != owners[first] or tokens[first:stop].sum() >= least
