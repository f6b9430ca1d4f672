"""What share of a rank's epoch its files have, where files are mixed and no row is of one alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stoker.tokens.order.division import RowGroupRuns, TokenDivision
from stoker.types import Ids

__all__ = ["FileShares"]


@dataclass(frozen=True, slots=True, eq=False)
class FileShares:
    """The files of a rank, each with as large a share of the epoch as it has of the rank's tokens.

    Without shuffling, a file's share is what it holds.

    Attributes:
        files: their numbers; int64, shape ``(files,)``, rising.
        ends: amounts of all files up to each; int64.
    """

    files: Ids
    ends: Ids

    @classmethod
    def of(cls, cells: RowGroupRuns, division: TokenDivision, part: int) -> FileShares:
        """The files of a part: all, where rows are divided; else those of which it has something."""
        mine = slice(None) if division.owners is None else division.owners == part
        amounts = np.zeros(int(cells.file[-1]) + 1, dtype=np.int64)
        np.add.at(amounts, cells.file[mine], cells.amounts[mine])
        files = np.flatnonzero(amounts)
        return cls(files, np.cumsum(amounts[files]))

    def begin(self, index: int, rows: int) -> int:
        """The row, of so many, at which a file's share begins."""
        return int(self.ends[index - 1]) * rows // int(self.ends[-1]) if index > 0 else 0

    def ended(self, done: int, rows: int) -> int:
        """How many files' shares have ended when ``done`` of so many rows are delivered."""
        if not self.files.size or not rows:
            return 0
        # Ends times rows would not fit 64 bits.
        return int(np.searchsorted(self.ends, int(self.ends[-1]) * done // rows, side="right"))
