"""Counts of reading, over all processes that share a dataset object.

A DataLoader reads in worker processes, and its statistics are read in the main process. So the counts lie in memory that
the processes share, where each adds in a row of its own, so that no two ever write the same. A sum over rows is the count.
Rows of processes that are gone are added up in row 0 when their row is needed. Behind its counters a row may have notes,
which are no sums and go then.

Counts are kept per shard and per step of reading, never per sample.
"""

from __future__ import annotations

import mmap
import os
import time
from dataclasses import dataclass
from enum import IntEnum
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


@dataclass(frozen=True, slots=True)
class LogBuckets:
    """Buckets of whole numbers from 0 on: all below ``2**lowest``, then ``2**fine`` of equal width for each power of two.

    A value is known to ``2**-fine`` of itself.

    Attributes:
        lowest: exponent of the end of the first bucket; at least ``fine``.
        fine: exponent of the number of buckets for a power of two.
        count: number of buckets; the last one holds all larger values, too.

    Example:
        >>> buckets = LogBuckets(10, 2, 192)
        >>> buckets.of(3000), buckets.start(7), buckets.start(8)
        (6, 3072, 3584)
    """

    lowest: int
    fine: int
    count: int

    def of(self, value: int) -> int:
        """The bucket of a value."""
        octave = value.bit_length() - 1
        if octave < self.lowest:
            return 0
        fine = value >> (octave - self.fine) & (1 << self.fine) - 1
        return min(self.count - 1, 1 + (octave - self.lowest << self.fine) + fine)

    def start(self, bucket: int) -> int:
        """The least value of a bucket; of bucket ``count``, one past the most."""
        if bucket == 0:
            return 0
        octave, fine = divmod(bucket - 1, 1 << self.fine)
        return (1 << self.fine) + fine << octave + self.lowest - self.fine

    def starts(self) -> NDArray[np.float64]:
        """The least value of each bucket, and one past the most: shape ``(count + 1,)``."""
        return np.array([self.start(bucket) for bucket in range(self.count + 1)], np.float64)


class Count(IntEnum):
    """The things that are counted. Times are in nanoseconds.

    ``LATEST`` less ``BEGUN``, both summed over processes, is the time for which processes have been reading.
    """

    SAMPLES = 0
    REMOTE_SAMPLES = 1
    BATCHES = 2
    READS = 3
    READ_TIME = 4
    WAIT_TIME = 5
    SHARDS_READY = 6
    SHARDS_AWAITED = 7
    CACHE_HITS = 8
    CACHE_MISSES = 9
    BYTES_FETCHED = 10
    BYTES_OPENED = 11
    RETRIES = 12
    CHECKPOINTS = 13
    BUFFER_HITS = 14
    BUFFER_MISSES = 15
    DELIVERED_AGAIN = 16
    LEASES = 17
    LEASES_LOST = 18
    REPLICATED_SHARDS = 19
    REPLICATED_BYTES = 20
    BEGUN = 21
    LATEST = 22
    BUFFER_WAIT = 23
    COMMITS_REFUSED = 24
    TOKENS = 25
    TOKEN_SLOTS = 26
    CUT_DOCUMENTS = 27
    CUT_TOKENS = 28
    BAD_SAMPLES = 29
    FILTERED = 30


BUCKETS: Final = 192
"""Number of buckets of the histogram of reading times: four an octave, from a microsecond to days."""

_TIMES: Final = LogBuckets(10, 2, BUCKETS)
_FIRST_BUCKET: Final = 32

bucket_of: Final = _TIMES.of
"""The bucket of a time in nanoseconds; each is a quarter of an octave wide."""


def bucket_start(bucket: int) -> float:
    """Least time of a bucket, in seconds; of bucket ``BUCKETS``, one past the most."""
    return _TIMES.start(bucket) * 1e-9


_FIRST_NOTE: Final = _FIRST_BUCKET + BUCKETS + 1
_KEPT: Final = 32
_NOTE: Final = 9
"""Numbers of a note; of each process the latest :data:`_KEPT` notes are kept, behind the number of all that it has made."""


class Counts(SharedRows):
    """Counts of a dataset object, of its copies in forked and spawned children, and decisions of its tuners."""

    def __init__(self) -> None:
        super().__init__("stoker-counts", _FIRST_BUCKET + BUCKETS, 1 + _KEPT * _NOTE)

    def add(self, what: Count, number: int) -> None:
        """Add to a count."""
        row = self._mine()
        with self._lock:
            row[what] += number

    def opened(self, size: int, *, hit: bool, shards: int = 1) -> None:
        """Count a shard that was opened, or several, of so many bytes, and whether it was in the cache."""
        row = self._mine()
        with self._lock:
            row[Count.CACHE_HITS if hit else Count.CACHE_MISSES] += shards
            row[Count.BYTES_OPENED] += size

    def read_step(self, samples: int, remote: int, ready: int, awaited: int, nanoseconds: int) -> None:
        """Count a step of reading, which took so many nanoseconds.

        ``remote``: samples of it in shards that were not in the cache when this process first wanted them. ``ready``: shards
        of it that were open when it began. ``awaited``: those that were not.
        """
        row = self._mine()
        with self._lock:
            self._time(row, nanoseconds)
            row[Count.SAMPLES] += samples
            row[Count.REMOTE_SAMPLES] += remote
            row[Count.READS] += 1
            row[Count.READ_TIME] += nanoseconds
            row[Count.SHARDS_READY] += ready
            row[Count.SHARDS_AWAITED] += awaited
            row[_FIRST_BUCKET + bucket_of(nanoseconds)] += 1

    def token_batch(self, tokens: int, slots: int, cut_documents: int, cut_tokens: int) -> None:
        """Count a batch of tokens that was delivered; see :class:`~stoker.pipeline.stats.stats.StreamStats`."""
        row = self._mine()
        with self._lock:
            row[Count.BATCHES] += 1
            row[Count.TOKENS] += tokens
            row[Count.TOKEN_SLOTS] += slots
            row[Count.CUT_DOCUMENTS] += cut_documents
            row[Count.CUT_TOKENS] += cut_tokens

    def waited(self, nanoseconds: int) -> None:
        """Count time for which the consumer has waited until now."""
        row = self._mine()
        with self._lock:
            self._time(row, nanoseconds)
            row[Count.WAIT_TIME] += nanoseconds

    @property
    def waited_here(self) -> int:
        """Nanoseconds for which consumers in this process have waited so far."""
        return int(self._mine()[Count.WAIT_TIME])

    def decided(self, *note: int) -> None:
        """Note a decision of this process, in nine numbers."""
        row = self._mine()
        with self._lock:
            number = row[_FIRST_NOTE - 1]
            at = _FIRST_NOTE + number % _KEPT * _NOTE
            for cell, value in enumerate(note, at):
                row[cell] = value
            row[_FIRST_NOTE - 1] = number + 1

    def decisions(self) -> list[list[int]]:
        """The latest decisions of each process, in their order."""
        found: list[list[int]] = []
        for row in self.notes():
            count, entries = int(row[0]), row[1:].reshape(_KEPT, _NOTE).tolist()
            found += [entries[number % _KEPT] for number in range(max(0, count - _KEPT), count)]
        return found

    @staticmethod
    def _time(row: memoryview, nanoseconds: int) -> None:
        now = time.monotonic_ns()
        row[Count.LATEST] = now
        if not row[Count.BEGUN]:
            row[Count.BEGUN] = now - nanoseconds

    def totals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All counts by :class:`Count`, and the histogram of reading times by bucket, over all processes."""
        sums = self.sums()
        return sums[: len(Count)], sums[_FIRST_BUCKET:]
