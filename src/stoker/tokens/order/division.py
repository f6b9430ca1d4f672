"""Divides an epoch of token files among ranks, and orders each rank's part.

Everything here follows from counts that are known before any data is read: *groups* (row groups of Parquet files, or runs
of documents of other files) with their documents and tokens.

* A *cell* is never divided: it is a group; where documents are packed, a few small groups of one file.
* A *part* is the data of a rank of the home world: cells that it keeps in every epoch, or a contiguous range of all.
* A *block* is decoded, shuffled and delivered together: consecutive cells of a part in an epoch's order,
  in which files alternate.

Cells count *amounts*: tokens where documents are joined, else rows. A *unit*, which is a row of a batch, is ``step``
amounts.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from stoker.display import counted
from stoker.errors import ConfigError
from stoker.integers import mix, mix_array
from stoker.order.part_plan import Rounds
from stoker.types import Ids

Granularity = Literal["file", "row_group", "row"]

MOST_SKEW: Final = (1, 20)
"""The part by which a rank may exceed the mean before a finer granularity than files, or row groups, is chosen."""


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Sizes of the groups, known before any of them is read.

    Attributes:
        file: number of each group's file; int64, shape ``(groups,)``, rising, as are all.
        rows: documents in each group that are not empty.
        first_rows: number of each group's first row among the rows of all, empty ones counted.
    """

    files: tuple[str, ...]
    file: Ids
    rows: Ids
    tokens: Ids
    first_rows: Ids

    def __len__(self) -> int:
        return self.tokens.size

    def find(self, row: int) -> tuple[int, int, int]:
        """The group of a row, by its number among the rows of all; and its number in the group, and in the file."""
        group = int(np.searchsorted(self.first_rows, row, side="right")) - 1
        first = int(np.searchsorted(self.file, self.file[group]))
        return group, row - int(self.first_rows[group]), row - int(self.first_rows[first])


@dataclass(frozen=True, slots=True, eq=False)
class RowGroupRuns:
    """The cells that are divided among ranks.

    Attributes:
        bounds: first group of each cell, and the number of groups; int64, shape ``(cells + 1,)``.
        file: number of each cell's file; int64, shape ``(cells,)``, as are all below.
    """

    bounds: Ids
    file: Ids
    tokens: Ids
    amounts: Ids

    def __len__(self) -> int:
        return self.tokens.size


def runs_of(tokens: Ids, each: int) -> Ids:
    """Bounds of runs that have about so many tokens: number of the first of each, and the number of all; int64."""
    number = (np.cumsum(tokens) - tokens) // each
    return np.append(np.flatnonzero(np.diff(number, prepend=-1)), tokens.size).astype(np.int64)


def join_groups(groups: Groups, least: int) -> Ids:
    """Bounds of cells: groups of one file that follow each other, joined until they have ``least`` tokens.

    int64, shape ``(cells + 1,)``: number of each cell's first group, and the number of groups.
    """
    if least <= 1:
        return np.arange(len(groups) + 1, dtype=np.int64)
    bounds = []
    file, total = -1, least
    for number, (owner, tokens) in enumerate(zip(groups.file.tolist(), groups.tokens.tolist(), strict=True)):
        if owner != file or total >= least:
            bounds.append(number)
            file, total = owner, 0
        total += tokens
    return np.array([*bounds, len(groups)], dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class ReadSequence:
    """Cells that are read one after the other in an epoch, cut into blocks.

    Attributes:
        cells: numbers of the cells, in order.
        bounds: first index in ``cells`` of each block, and their number; int64, shape ``(blocks + 1,)``.
        starts: amounts before each block, and all; int64, shape ``(blocks + 1,)``.
    """

    cells: Ids
    bounds: Ids
    starts: Ids

    @classmethod
    def lay(cls, cells: RowGroupRuns, members: Ids, key: int | None, block_tokens: int) -> ReadSequence:
        """The sequence of some cells.

        ``members`` are numbers of cells, rising; ``key`` puts them into a random order. Cells are put together into blocks
        of about ``block_tokens``: less than this and a cell's.
        """
        if key is not None:
            # Two cells come in the same order whatever other cells there are.
            members = members[np.argsort(mix_array(key, members), kind="stable")]
        bounds = runs_of(cells.tokens[members], max(1, block_tokens))
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(cells.amounts[members])])
        return cls(members, bounds, ends[bounds])

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return self.bounds.size - 1

    @property
    def total(self) -> int:
        """Amounts of all blocks."""
        return int(self.starts[-1])

    def members(self, block: int) -> Ids:
        """Numbers of a block's cells, in order."""
        return self.cells[self.bounds[block] : self.bounds[block + 1]]

    def find(self, amounts: Ids) -> Ids:
        """The block that each amount lies in, counted from the sequence's beginning."""
        found: Ids = np.searchsorted(self.starts, amounts, side="right") - 1
        return found


@dataclass(frozen=True, slots=True, eq=False)
class TokenDivision:
    """The parts of a home world.

    Attributes:
        granularity: what is not divided.
        owners: part of each cell; ``None`` where all parts are runs of one sequence of all cells.
        rounds: the units of each part.
        firsts: number of each part's first unit in its sequence; int64, shape ``(parts,)``.
        reason: why the granularity is not a larger one; empty where nothing is to be said.
    """

    granularity: Granularity
    owners: Ids | None
    rounds: Rounds
    firsts: Ids
    reason: str

    def sequence_of(self, part: int) -> int:
        """Number of the sequence that a part is on."""
        return 0 if self.owners is None else part

    def members(self, sequence: int) -> Ids:
        """Numbers of the cells on a sequence, rising."""
        assert self.owners is not None
        return np.flatnonzero(self.owners == sequence)

    def tokens(self, cells: RowGroupRuns, part: int) -> int:
        """Tokens of a part's cells; of a run of all cells, about."""
        if self.owners is None:
            return int(cells.tokens.sum()) * self.rounds.size(part) // max(1, self.rounds.total)
        return int(cells.tokens[self.owners == part].sum())

    def sequence(
        self, cells: RowGroupRuns, number: int, seed: int | None, epoch: int, block_tokens: int
    ) -> ReadSequence:
        """A sequence as it is in an epoch. A function of the epoch's number, not of the epochs before."""
        members = np.arange(len(cells), dtype=np.int64) if self.owners is None else self.members(number)
        key = None if seed is None else mix(seed, _TAG_CELLS, epoch)
        return ReadSequence.lay(cells, members[cells.amounts[members] > 0], key, block_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class PartFiles:
    """The files of a rank, each with as large a share of the epoch as it has of the rank's tokens.

    Without shuffling, a file's share is what it holds. ``files``: their numbers; int64, shape ``(files,)``, rising. ``ends``:
    amounts of all files up to each; int64.
    """

    files: Ids
    ends: Ids

    @classmethod
    def of(cls, cells: RowGroupRuns, division: TokenDivision, part: int) -> PartFiles:
        """The files of a part: all, where rows are divided; else those that it has cells of."""
        mine = slice(None) if division.owners is None else division.owners == part
        amounts = _loads(cells.file[mine], cells.amounts[mine], int(cells.file[-1]) + 1)
        files = np.flatnonzero(amounts)
        return cls(files, np.cumsum(amounts[files]))

    def begin(self, index: int, rows: int) -> int:
        """The row, out of ``rows``, at which a file's share begins."""
        return int(self.ends[index - 1]) * rows // int(self.ends[-1]) if index > 0 else 0

    def ended(self, done: int, rows: int) -> int:
        """Number of files whose shares have ended when ``done`` of so many rows are delivered."""
        if not self.files.size or not rows:
            return 0
        # Ends times rows would not fit 64 bits.
        return int(np.searchsorted(self.ends, int(self.ends[-1]) * done // rows, side="right"))


_TAG_CELLS: Final = 21


def divide(
    cells: RowGroupRuns,
    files: Sequence[str],
    parts: int,
    granularity: Granularity | None,
    *,
    step: int = 1,
    partial: bool = True,
) -> TokenDivision:
    """Divide cells among the ranks of a home world.

    Args:
        cells: what is divided.
        files: names of the files. In the order of their names, file i goes to part ``i % parts``.
        parts: number of ranks.
        granularity: the unit of division: ``"file"``; ``"row_group"``: cells, the largest first to the part that has least;
            ``"row"``: all parts have equally many units. ``None``: the first of these for which there is enough
            for all, and nobody has more than :data:`MOST_SKEW` above the mean.
        step: amounts in a unit.
        partial: whether amounts that do not fill a part's last unit are a unit.

    Raises:
        ConfigError: fewer files than ranks, or row groups, where the caller insists on them.
    """
    said: list[str] = []
    for kind in ("file", "row_group"):
        if granularity not in (None, kind):
            continue
        owners, problem = _owners(cells, files, parts, kind, granularity is not None)
        if owners is None or (granularity is None and problem):
            said.append(problem)
            continue
        sizes = _units(_loads(owners, cells.amounts, parts), step, partial)
        return TokenDivision(kind, owners, Rounds(sizes), np.zeros(parts, dtype=np.int64), "; ".join(said))
    total = int(_units(np.array([cells.amounts.sum()]), step, partial)[0])
    each, more = divmod(total, parts)
    numbers = np.arange(parts, dtype=np.int64)
    return TokenDivision(
        "row", None, Rounds.even(total, parts), numbers * each + np.minimum(numbers, more), "; ".join(said)
    )


def _units(amounts: Ids, step: int, partial: bool) -> Ids:
    units: Ids = (amounts + step - 1) // step if partial else amounts // step
    return units


def _owners(
    cells: RowGroupRuns, files: Sequence[str], parts: int, kind: Literal["file", "row_group"], insisted: bool
) -> tuple[Ids | None, str]:
    """The part of each cell, or the reason why there are too few cells for this granularity."""
    if kind == "file":
        count, what = len(files), "files"
    else:
        count, what = len(cells), "row groups"
    if count < parts:
        if insisted:
            raise ConfigError(
                f"insufficient {what} for sharding: {count} {what} < {parts} ranks (C-SHARD-001: each {what[:-1]} belongs to "
                f"one rank). Leave granularity out, and {what} are divided"
            )
        return None, f"{counted(count, what[:-1])} for {parts} ranks"
    if kind == "file":
        rank = np.empty(count, dtype=np.int64)
        rank[np.array(sorted(range(count), key=files.__getitem__), dtype=np.int64)] = np.arange(count)
        owners = rank[cells.file] % parts
    else:
        owners = _balanced(cells.amounts, parts)
    for weights, unit in ((cells.tokens, "tokens"), (cells.amounts, "rows")):
        loads = _loads(owners, weights, parts)
        part = int(np.argmax(loads))
        # More than (1 + 1 / 20) of the mean, in integers.
        most, total = int(loads[part]) * parts, int(loads.sum())
        if (most - total) * MOST_SKEW[1] > total * MOST_SKEW[0]:
            return owners, f"by whole {what} rank {part} would get {most / total - 1:.1%} more {unit} than the mean"
    return owners, ""


def _loads(owners: Ids, weights: Ids, parts: int) -> Ids:
    """The sum of the weights of each part."""
    loads = np.zeros(parts, dtype=np.int64)
    np.add.at(loads, owners, weights)
    return loads


def _balanced(weights: Ids, parts: int) -> Ids:
    """The part of each, the heaviest first to the part that has least (R. L. Graham, "Bounds on multiprocessing timing
    anomalies", SIAM J. Appl. Math. 1969: no part has more than 4/3 of the least possible)."""
    owners = np.empty(weights.size, dtype=np.int64)
    heap = [(0, part) for part in range(parts)]
    for number in np.argsort(-weights, kind="stable").tolist():
        load, part = heap[0]
        owners[number] = part
        heapq.heapreplace(heap, (load + int(weights[number]), part))
    return owners
