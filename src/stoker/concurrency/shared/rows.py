"""Rows of counters in memory that processes share: each process adds in a row of its own, so no two ever write the same.

A sum over rows is the count (:class:`~stoker.concurrency.shared.file.SharedFile` is the memory). Rows of processes that are
gone are added up in row 0 when their row is needed. Behind its counters a row may have notes, which are no sums and go then.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.forks import ProcessLock
from stoker.concurrency.shared.file import SharedFile, spawning

_ROWS: Final = 128


class SharedRows:
    """Counters of an object, of its copies in forked and spawned children, and of no other.

    ``name``: of the memory, among the process's descriptors. ``cells``: int64 counters of a row. ``notes``: further
    cells, for notes of the row's process.
    """

    _memory: mmap.mmap
    _pid: int
    _row: memoryview

    def __init__(self, name: str, cells: int, notes: int = 0) -> None:
        self._name, self._cells, self._width = name, cells, 1 + cells + notes
        self._attach(SharedFile(name, _ROWS * self._width * 8))

    def sums(self) -> NDArray[np.int64]:
        """Each counter's sum over all processes: shape ``(cells,)``."""
        with self._shared.locked():
            rows = np.frombuffer(self._memory, dtype=np.int64).reshape(_ROWS, self._width)
            used = rows[:, 0] != 0
            used[0] = True
            found: NDArray[np.int64] = rows[used, 1 : 1 + self._cells].sum(axis=0)
        return found

    def notes(self) -> NDArray[np.int64]:
        """The notes of each process: shape ``(processes, notes)``."""
        with self._shared.locked():
            rows = np.frombuffer(self._memory, dtype=np.int64).reshape(_ROWS, self._width)
            return rows[rows[:, 0] != 0, 1 + self._cells :]

    def _mine(self) -> memoryview:
        """This process's row; to be changed under ``_lock``."""
        if self._pid != os.getpid():
            self._claim()
        return self._row

    def _claim(self) -> None:
        cells, width = memoryview(self._memory).cast("q"), self._width
        with self._shared.locked():
            if self._pid == os.getpid():
                return  # another thread was first
            number = self._free_row(cells)
            cells[number * width] = os.getpid()
            self._row = cells[number * width + 1 : (number + 1) * width]
            self._pid = os.getpid()

    def _free_row(self, cells: memoryview) -> int:
        """A row that nobody writes: this process's number, none, or, where all are taken, that of a process that is gone."""
        width, pid = self._width, os.getpid()
        for number in range(1, _ROWS):
            if cells[number * width] in (pid, 0):  # rows are taken one after the other: behind a free one is none
                return number
        for number in range(1, _ROWS):
            if not _exists(cells[number * width]):
                for cell in range(1, width):
                    if cell <= self._cells:
                        cells[cell] += cells[number * width + cell]
                    cells[number * width + cell] = 0
                return number
        return _ROWS - 1  # more processes than rows: two share one, and may lose counts

    # -- copies ----------------------------------------------------------------------------------------------------

    def _attach(self, shared: SharedFile) -> None:
        self._shared = shared
        self._pid = 0
        self._lock = ProcessLock()
        self._memory = shared.map(_ROWS * self._width * 8)

    def __getstate__(self) -> dict[str, Any]:
        # On the way to a spawned child the file itself is handed over. A copy sent by other means counts for itself.
        named = {"name": self._name, "cells": self._cells, "notes": self._width - self._cells - 1}
        return {**named, "shared": self._shared} if spawning() else named

    def __setstate__(self, state: dict[str, Any]) -> None:
        shared = state.pop("shared", None)
        if shared is None:
            SharedRows.__init__(self, **state)
            return
        self._name, self._cells, self._width = state["name"], state["cells"], 1 + state["cells"] + state["notes"]
        self._attach(shared)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
