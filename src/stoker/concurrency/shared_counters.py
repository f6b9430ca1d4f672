"""Counts of reading, over all processes that share a dataset object.

A DataLoader reads in worker processes, and its statistics are read in the main process. So the counts lie in memory that
the processes share (:class:`~stoker.concurrency.shared_file.SharedFile`). Each process adds in a row of its own, so no two
ever write the same; a sum over rows is the count. Rows of processes that are gone are added up in row 0 when their row is
needed.

Counts are kept per shard and per step of reading, never per sample.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.shared_file import SharedFile, spawning


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


_LOWEST = 10
_FINE = 2
BUCKETS: Final = 192
"""Number of buckets of the histogram of reading times: four an octave, from a microsecond to days."""

_PID, _FIRST_COUNT, _FIRST_BUCKET = 0, 1, 32
_ROW = 256
_ROWS: Final = 128


def bucket_of(nanoseconds: int) -> int:
    """The bucket of a time; each is a quarter of an octave wide."""
    if nanoseconds < 1 << _LOWEST:
        return 0
    octave = nanoseconds.bit_length() - 1
    fine = nanoseconds >> (octave - _FINE) & (1 << _FINE) - 1
    return min(BUCKETS - 1, 1 + (octave - _LOWEST << _FINE) + fine)


def bucket_start(bucket: int) -> float:
    """Least time of a bucket, in seconds; of bucket ``BUCKETS``, one past the most."""
    if bucket == 0:
        return 0.0
    octave, fine = divmod(bucket - 1, 1 << _FINE)
    return ((1 << _FINE) + fine) * 2.0 ** (octave + _LOWEST - _FINE) * 1e-9


class Counts:
    """Counts of a dataset object, of its copies in forked and spawned children, and of no other."""

    _pid: int
    _memory: mmap.mmap

    def __init__(self) -> None:
        self._attach(SharedFile("stoker-counts", _ROWS * _ROW * 8))

    def add(self, what: Count, number: int) -> None:
        """Add to a count."""
        row = self._mine()
        with self._lock:
            row[_FIRST_COUNT + what] += number

    def opened(self, size: int, *, hit: bool) -> None:
        """Count a shard that was opened, of so many bytes, and whether it was in the cache."""
        row = self._mine()
        with self._lock:
            row[_FIRST_COUNT + (Count.CACHE_HITS if hit else Count.CACHE_MISSES)] += 1
            row[_FIRST_COUNT + Count.BYTES_OPENED] += size

    def read_step(self, samples: int, remote: int, ready: int, awaited: int, nanoseconds: int) -> None:
        """Count a step of reading.

        Args:
            samples: that were read in it.
            remote: how many of them lie in shards that were not in the cache when this process first wanted them.
            ready: shards of it that were open when it began.
            awaited: shards that were not.
            nanoseconds: that it took.
        """
        row = self._mine()
        with self._lock:
            self._time(row, nanoseconds)
            row[_FIRST_COUNT + Count.SAMPLES] += samples
            row[_FIRST_COUNT + Count.REMOTE_SAMPLES] += remote
            row[_FIRST_COUNT + Count.READS] += 1
            row[_FIRST_COUNT + Count.READ_TIME] += nanoseconds
            row[_FIRST_COUNT + Count.SHARDS_READY] += ready
            row[_FIRST_COUNT + Count.SHARDS_AWAITED] += awaited
            row[_FIRST_BUCKET + bucket_of(nanoseconds)] += 1

    def token_batch(self, tokens: int, slots: int, cut_documents: int, cut_tokens: int) -> None:
        """Count a batch of tokens that was delivered; see :class:`~stoker.pipeline.stats.stats.StreamStats`."""
        row = self._mine()
        with self._lock:
            row[_FIRST_COUNT + Count.BATCHES] += 1
            row[_FIRST_COUNT + Count.TOKENS] += tokens
            row[_FIRST_COUNT + Count.TOKEN_SLOTS] += slots
            row[_FIRST_COUNT + Count.CUT_DOCUMENTS] += cut_documents
            row[_FIRST_COUNT + Count.CUT_TOKENS] += cut_tokens

    def waited(self, nanoseconds: int) -> None:
        """Count time for which the consumer has waited until now."""
        row = self._mine()
        with self._lock:
            self._time(row, nanoseconds)
            row[_FIRST_COUNT + Count.WAIT_TIME] += nanoseconds

    @staticmethod
    def _time(row: memoryview, nanoseconds: int) -> None:
        now = time.monotonic_ns()
        row[_FIRST_COUNT + Count.LATEST] = now
        if not row[_FIRST_COUNT + Count.BEGUN]:
            row[_FIRST_COUNT + Count.BEGUN] = now - nanoseconds

    def totals(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All counts by :class:`Count`, and the histogram of reading times by bucket, over all processes."""
        with self._shared.locked():
            rows = np.frombuffer(self._memory, dtype=np.int64).reshape(_ROWS, _ROW).sum(axis=0)
        return rows[_FIRST_COUNT : _FIRST_COUNT + len(Count)], rows[_FIRST_BUCKET : _FIRST_BUCKET + BUCKETS]

    # -- rows ------------------------------------------------------------------------------------------------------

    def _mine(self) -> memoryview:
        if self._pid != os.getpid():
            self._claim()
        return self._row

    def _claim(self) -> None:
        cells = memoryview(self._memory).cast("q")
        with self._shared.locked():
            if self._pid == os.getpid():
                return  # another thread was first
            self._lock = threading.Lock()  # that of the parent may be held by a thread which is not here
            number = self._free_row(cells)
            cells[number * _ROW + _PID] = os.getpid()
            self._row = cells[number * _ROW : (number + 1) * _ROW]
            self._pid = os.getpid()

    @staticmethod
    def _free_row(cells: memoryview) -> int:
        """A row that nobody writes: this process's number, none, or, where all are taken, that of a process that is gone."""
        owners = [cells[number * _ROW + _PID] for number in range(_ROWS)]
        for wanted in (os.getpid(), 0):
            for number in range(1, _ROWS):
                if owners[number] == wanted:
                    return number
        for number in range(1, _ROWS):
            if not _exists(owners[number]):
                for cell in range(_FIRST_COUNT, _ROW):
                    cells[cell] += cells[number * _ROW + cell]
                    cells[number * _ROW + cell] = 0
                return number
        return _ROWS - 1  # more processes than rows: two share one, and may lose counts

    # -- copies ----------------------------------------------------------------------------------------------------

    def _attach(self, shared: SharedFile) -> None:
        self._shared = shared
        self._pid = 0
        self._lock = threading.Lock()
        self._memory = shared.map(_ROWS * _ROW * 8)

    def __getstate__(self) -> dict[str, Any]:
        # On the way to a spawned child the file itself is handed over. A copy sent by other means counts for itself.
        return {"shared": self._shared} if spawning() else {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "shared" in state:
            self._attach(state["shared"])
        else:
            Counts.__init__(self)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
