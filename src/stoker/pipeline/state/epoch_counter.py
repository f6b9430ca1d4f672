"""Counts epochs, in agreement between a process and its DataLoader workers.

A DataLoader forks (or spawns) workers for each pass, or keeps them over passes; either way the data set object in the
main process is not told. So that each pass is a new epoch, and a loaded state reaches workers that already live, the few
numbers this takes lie in memory that the processes share.
"""

from __future__ import annotations

import os
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.cluster import LoaderWorker
from stoker.concurrency.forks import alive
from stoker.concurrency.shared.file import SharedFile, spawning
from stoker.errors import ConfigError
from stoker.order.sample_order import EpochPosition

_CLOCKS: Final[weakref.WeakSet[EpochClock]] = weakref.WeakSet()

# Indices of the shared int64 numbers: the next epoch, how many records were made, how many epochs were begun, how many states
# were loaded, and the process that loaded the last; whether a state was loaded since the caller last named an epoch, and how
# far our epochs are ahead of the caller's; a bit for each matter that was told.
_NEXT, _RECORDS, _BEGINNINGS, _LOADS, _LOADER, _RESUMED, _AHEAD, _TOLD = 0, 1, 2, 3, 4, 5, 6, 7
# Then a slot with the position that a state was loaded at, and records, the newest written over the oldest: which pass of
# which workers began which epoch where, and a bit for each worker that has begun it. A slot is a position as pickle writes
# it, behind its length; only processes that share this memory read it.
_LOADED, _FIRST_RECORD = 8, 128
_TOKEN, _PASS, _BEGUN, _POSITION = 0, 1, 2, 8
_RECORD_LENGTH = 128
_RECORDS_KEPT = 31
_SLOT_BYTES = 8 * (_RECORD_LENGTH - _POSITION - 1)
# Behind them what epochs have pinned: how many did, a pin that a state has brought, and those of the last epochs. A pin is
# the epoch, 1, and two numbers.
_PINS = _FIRST_RECORD + _RECORDS_KEPT * _RECORD_LENGTH
_PIN_LENGTH, _PINS_KEPT = 4, 16
_BYTES = 8 * (_PINS + _PIN_LENGTH * (2 + _PINS_KEPT))
_WORKER_BITS = 64 * (_POSITION - _BEGUN)


Pin: TypeAlias = tuple[int, int]
"""Two numbers that hold for an epoch."""


def _put(slot: NDArray[np.int64], position: EpochPosition) -> None:
    data = pickle.dumps(position)
    if len(data) > _SLOT_BYTES:
        raise ConfigError(
            f"the start of an epoch takes {len(data)} bytes, more than {_SLOT_BYTES}: give it fewer fields"
        )
    slot[0] = len(data)
    slot[1:].view(np.uint8)[: len(data)] = np.frombuffer(data, np.uint8)


def _get(slot: NDArray[np.int64]) -> EpochPosition | None:
    length = int(slot[0])
    if not length:
        return None
    position: EpochPosition = pickle.loads(slot[1:].view(np.uint8)[:length].tobytes())  # noqa: S301 - of our own family
    return position


def _pin_row(shared: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """The row of the n-th pin; that of 0 is what a state has brought."""
    row = 1 + (number and 1 + number % _PINS_KEPT)
    return shared[_PINS:][row * _PIN_LENGTH : (row + 1) * _PIN_LENGTH]


def _pinned(shared: NDArray[np.int64], epoch: int | None) -> Pin | None:
    """The pin of an epoch, or the last one; ``None`` where there is none."""
    newest = int(shared[_PINS])
    for number in range(newest, max(-1, newest - _PINS_KEPT), -1):
        row = _pin_row(shared, number)
        if row[1] and epoch in (None, row[0]):
            return int(row[2]), int(row[3])
    return None


class EpochClock:
    """Counts epochs for a data set and its copies in the workers of a DataLoader, forked or spawned.

    A child process that is no such worker, such as a rank that a trainer spawns or forks, counts by itself from where its
    parent was.
    """

    _passes: tuple[int, int, int]
    _seen: int
    _owner: int

    def __init__(self) -> None:
        self._attach(SharedFile("stoker-epoch", _BYTES), os.getpid())
        _CLOCKS.add(self)

    def begin(self, token: int | None, worker: int | None = None) -> EpochPosition:
        """Begin the next epoch.

        Args:
            token: names the set of workers that begin together; in each pass they get the same epoch, which the first of
                them takes. ``None`` in a process that is no worker.
            worker: number of the worker. A number that comes a second time in a set's pass belongs to another set with the
                same token (torch draws it from a generator that users may seed), which gets an epoch of its own.
        """
        if token is None:
            with self._locked() as shared:
                return self._take_next(shared)
        with self._file.locked():
            shared = self._shared
            number = self._count_pass(token)
            record = self._find(shared, token, number, worker)
            if record is None:
                point = self._take_next(shared)
                record = self._record(shared, int(shared[_RECORDS]))
                shared[_RECORDS] += 1
                record[:] = 0
                record[:_BEGUN] = token, number
                _put(record[_POSITION:], point)
            else:
                found = _get(record[_POSITION:])
                assert found is not None  # every record has one
                point = found
            if worker is not None and worker < _WORKER_BITS:
                record[_BEGUN:_POSITION].view(np.uint64)[worker // 64] |= np.uint64(1 << worker % 64)
            return point

    def pass_over(self, epoch: int) -> None:
        """Make the next epoch a later one than this, which a worker's own state names."""
        with self._locked() as shared:
            shared[_NEXT] = max(int(shared[_NEXT]), epoch + 1)
            shared[_RESUMED] = 1

    def adopt(self, token: int | None) -> None:
        """Begin an epoch that a worker's own state has named."""
        with self._locked() as shared:
            if token is not None:
                self._count_pass(token)
            self._count_beginning(shared)

    def pin(self, epoch: int, make: Callable[[Pin | None], Pin]) -> Pin:
        """The pin of an epoch, the same for all processes that share this: the first to ask makes it.

        Args:
            epoch: its number.
            make: gives it, from that of the epoch that was pinned last.
        """
        with self._locked() as shared:
            found = _pinned(shared, epoch)
            if found is None:
                found = make(_pinned(shared, None))
                shared[_PINS] += 1
                _pin_row(shared, int(shared[_PINS]))[:] = epoch, 1, *found
            return found

    def pinned(self, epoch: int) -> Pin | None:
        """The pin of an epoch, or of the one that was pinned last; ``None`` where none was."""
        with self._locked() as shared:
            found = _pinned(shared, epoch)
            return _pinned(shared, None) if found is None else found

    def begins(self, epoch: int) -> bool:
        """Whether nothing is pinned for an epoch yet."""
        with self._locked() as shared:
            return _pinned(shared, epoch) is None

    def unpin(self, last: Pin | None) -> None:
        """Forget what epochs have pinned: a state was loaded, whose run had pinned ``last``."""
        with self._locked() as shared:
            shared[_PINS:] = 0
            if last is not None:
                _pin_row(shared, 0)[:] = -1, 1, *last

    def first_to_tell(self, matter: int) -> bool:
        """Whether no process that shares this has told of a matter (0 to 62); from now on, one has."""
        with self._locked() as shared:
            told = int(shared[_TOLD])
            shared[_TOLD] = told | 1 << matter
            return not told >> matter & 1

    @property
    def alone(self) -> bool:
        """Whether no other process has begun an epoch since this one did, or loaded a state."""
        with self._locked() as shared:
            return int(shared[_BEGINNINGS]) == self._seen

    def _count_beginning(self, shared: NDArray[np.int64]) -> None:
        shared[_BEGINNINGS] += 1
        self._seen = int(shared[_BEGINNINGS])

    def _count_pass(self, token: int) -> int:
        """Number of this process's pass among those of its set of workers, from 0."""
        # The passes of a worker that lives on follow each other without a word from the main process.
        pid, its_token, count = self._passes
        number = count if (pid, its_token) == (os.getpid(), token) else 0
        self._passes = os.getpid(), token, number + 1
        return number

    def _take_next(self, shared: NDArray[np.int64]) -> EpochPosition:
        point = self._point(shared, int(shared[_NEXT]))
        shared[_NEXT] += 1
        self._count_beginning(shared)
        return point

    def _find(self, shared: NDArray[np.int64], token: int, number: int, worker: int | None) -> NDArray[np.int64] | None:
        """The record of a pass, if a worker of its set has made it."""
        newest = int(shared[_RECORDS]) - 1
        for k in range(newest, max(-1, newest - _RECORDS_KEPT), -1):
            record = self._record(shared, k)
            if (record[_TOKEN], record[_PASS]) != (token, number):
                continue
            if worker is None or worker >= _WORKER_BITS:
                return record
            begun = int(record[_BEGUN:_POSITION].view(np.uint64)[worker // 64])
            return None if begun >> worker % 64 & 1 else record
        return None

    @staticmethod
    def _record(shared: NDArray[np.int64], number: int) -> NDArray[np.int64]:
        first = _FIRST_RECORD + number % _RECORDS_KEPT * _RECORD_LENGTH
        return shared[first : first + _RECORD_LENGTH]

    @staticmethod
    def _point(shared: NDArray[np.int64], epoch: int) -> EpochPosition:
        loaded = _get(shared[_LOADED:_FIRST_RECORD])
        if loaded is None or epoch < loaded.epoch:
            return EpochPosition(epoch)
        return loaded if epoch == loaded.epoch else EpochPosition(epoch, start=loaded.start)

    def peek(self) -> EpochPosition:
        """The position at which the next iteration would begin."""
        with self._locked() as shared:
            return self._point(shared, int(shared[_NEXT]))

    def started(self, epoch: int) -> EpochPosition:
        """The position at which an epoch that has begun did begin."""
        with self._locked() as shared:
            return self._point(shared, epoch)

    def load(self, point: EpochPosition) -> None:
        """Make the next iteration, here or in workers, begin at ``point``."""
        with self._locked() as shared:
            shared[_NEXT] = point.epoch
            shared[_LOADER] = os.getpid()
            shared[_LOADS] += 1
            _put(shared[_LOADED:_FIRST_RECORD], point)
            shared[_RESUMED] = 1
            self._seen = int(shared[_BEGINNINGS])

    @property
    def parent_loads(self) -> int:
        """A number that rises when the parent of this process loads a state. Nobody waits for a lock here."""
        parent = parent_process()
        return int(self._shared[_LOADS]) if parent is not None and self._shared[_LOADER] == parent.pid else 0

    def name_epoch(self, epoch: int) -> int:
        """Make the next iteration the epoch that the caller counts as ``epoch``; after a load, give it that number.

        Returns:
            How far our epochs are ahead of the caller's.
        """
        with self._locked() as shared:
            upcoming = int(shared[_NEXT])
            if shared[_RESUMED]:
                shared[_RESUMED], shared[_AHEAD] = 0, upcoming - epoch
            ahead = int(shared[_AHEAD])
            if epoch + ahead < 0:
                raise ConfigError(
                    f"set_epoch({epoch}): epoch {-ahead} of this count was the first, see the loaded state"
                )
            if epoch + ahead != upcoming:
                start = self._point(shared, upcoming).start
                shared[_NEXT] = epoch + ahead
                _put(shared[_LOADED:_FIRST_RECORD], EpochPosition(epoch + ahead, start=start))
            return ahead

    @contextmanager
    def _locked(self) -> Iterator[NDArray[np.int64]]:
        self.part_from_parent()
        with self._file.locked():
            yield self._shared

    def part_from_parent(self) -> None:
        """Counts epochs apart from the parent from now on, in a child process that is no worker of a DataLoader."""
        if self._owner == os.getpid() or LoaderWorker.detect().token is not None:
            return
        numbers, seen = self._shared, self._seen
        self._attach(SharedFile("stoker-epoch", _BYTES), os.getpid())
        self._shared[:] = numbers
        self._seen = seen

    def _attach(self, file: SharedFile, owner: int) -> None:
        self._file = file
        self._owner = owner
        self._passes = 0, 0, 0
        self._seen = 0
        self._shared: NDArray[np.int64] = np.frombuffer(file.map(_BYTES), dtype=np.int64)

    def __getstate__(self) -> dict[str, Any]:
        self.part_from_parent()
        if spawning():
            return {"file": self._file, "seen": self._seen, "owner": self._owner}
        return {"numbers": self._shared.tolist()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "file" in state:
            self._attach(state["file"], state["owner"])
            self._seen = state["seen"]
            _CLOCKS.add(self)
        else:
            # Sent by other means (to another host, say): a clock of its own that shows the same time.
            EpochClock.__init__(self)
            self._shared[:] = state["numbers"]
            self._seen = int(self._shared[_BEGINNINGS])


def _part_all() -> None:
    for one in alive(_CLOCKS):
        one.part_from_parent()


# Workers that a rank forks share its count, not that of the process which forked or spawned the rank.
os.register_at_fork(before=_part_all)
