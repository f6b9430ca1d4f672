"""Counts epochs, in agreement between a process and its DataLoader workers, and with trainers that name them.

A DataLoader forks (or spawns) workers for each pass, or keeps them over passes; either way the data set object in the
main process is not told. So that each pass is a new epoch, and a loaded state reaches workers that already live, the count
lies in memory that the processes share.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import parent_process
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.arguments import at_least
from stoker.cluster import LoaderWorker
from stoker.cluster.call_stack import callers
from stoker.concurrency.forks import alive
from stoker.concurrency.shared.file import SharedFile, spawning
from stoker.errors import ConfigError, StateError
from stoker.order.sample_order import EpochPosition

if TYPE_CHECKING:
    from stoker.cluster.datasets_package import NamedEpoch
    from stoker.streams.quarantine import Mark

logger = logging.getLogger(__name__)

_CLOCKS: Final[weakref.WeakSet[EpochCounter]] = weakref.WeakSet()

# Indices of the shared int64 numbers: how many counts were written, how many states were loaded, and the process that loaded
# the last. Two slots follow, which counts are written to in turns by pickle: a process that is killed while it writes leaves
# the count that holds as it was.
_WRITTEN, _LOADS, _LOADER = 0, 1, 2
_SLOTS, _SLOT_BYTES = 64, 1 << 15
_PASSES_KEPT: Final = 31
_MARKS_KEPT: Final = 16


@dataclass(slots=True)
class _Pass:
    """A pass of a set of workers over an epoch.

    Attributes:
        key: the set's token, and the number of the pass.
        point: where it began.
        workers: a bit for each worker that has begun it.
    """

    key: tuple[int, int]
    point: EpochPosition
    workers: int = 0


@dataclass(slots=True)
class _Count:
    """The numbers that processes share; only those that have the same memory read them.

    Attributes:
        upcoming: the next epoch.
        begun: how many epochs were begun.
        loaded: the position that a state was loaded at, or the epoch that was named last.
        resumed: whether a state was loaded since the caller last named an epoch.
        ahead: how far our epochs are ahead of the caller's.
        told: a bit for each matter that was told.
        passes: the last ones.
        order_number: that of the sample order in which the loaded state is to be read.
        marks: the part of the quarantine that holds in each of the last epochs, the newest last. That of epoch -1 was brought
            by a state.
    """

    upcoming: int = 0
    begun: int = 0
    loaded: EpochPosition | None = None
    resumed: bool = False
    ahead: int = 0
    told: int = 0
    passes: list[_Pass] = field(default_factory=list)
    order_number: int = 0
    marks: dict[int, Mark] = field(default_factory=dict)

    def point(self, epoch: int) -> EpochPosition:
        """The position at which an epoch begins."""
        loaded = self.loaded
        if loaded is None or epoch < loaded.epoch:
            return EpochPosition(epoch)
        return loaded if epoch == loaded.epoch else EpochPosition(epoch, start=loaded.start)


class EpochCounter:
    """Counts epochs for a data set and its copies in the workers of a DataLoader, forked or spawned.

    A child process that is no such worker, such as a rank that a trainer spawns or forks, counts by itself from where its
    parent was.
    """

    _passes: tuple[int, int, int]
    _seen: int
    _owner: int

    def __init__(self, count: _Count | None = None) -> None:
        self._attach(SharedFile("stoker-epoch", _SLOTS + 2 * _SLOT_BYTES), os.getpid())
        if count is not None:
            self._write(count)

    def begin(self, token: int | None, worker: int | None = None) -> EpochPosition:
        """Begin the next epoch.

        ``token``: names the set of workers that begin together; in each pass they get the same epoch, which the first of them
        takes. ``None`` in a process that is no worker. ``worker``: number of the worker. A number that comes a second time in
        a set's pass belongs to another set with the same token (torch draws it from a generator that users may seed), which
        gets an epoch of its own.
        """
        with self._changing(own=token is None) as count:
            found, key, bit = None, (-1, 0), 0 if worker is None else 1 << worker
            if token is not None:
                key = token, self._count_pass(token)
                found = next((one for one in reversed(count.passes) if one.key == key), None)
            if found is None or found.workers & bit:
                found = _Pass(key, count.point(count.upcoming))
                count.upcoming += 1
                self._seen = count.begun = count.begun + 1
                if token is not None:
                    count.passes = [*count.passes[1 - _PASSES_KEPT :], found]
            found.workers |= bit
            return found.point

    def skip_to(self, epoch: int) -> None:
        """Make the next epoch a later one than this, which a worker's own state names."""
        with self._changing() as count:
            count.upcoming = max(count.upcoming, epoch + 1)
            count.resumed = True

    def count_started(self, token: int | None) -> None:
        """Begin an epoch that a worker's own state has named."""
        with self._changing() as count:
            if token is not None:
                self._count_pass(token)
            self._seen = count.begun = count.begun + 1

    def freeze(self, epoch: int, make: Callable[[Mark | None], Mark]) -> None:
        """Choose the part of a quarantine that holds in an epoch, for all processes that share this: the first to ask does.

        ``epoch``: its number. ``make``: chooses it, from that of the epoch before.
        """
        with self._changing() as count:
            if epoch not in count.marks:
                made = make(next(reversed(count.marks.values()), None))
                count.marks = {**dict([*count.marks.items()][1 - _MARKS_KEPT :]), epoch: made}

    @property
    def marks(self) -> dict[int, Mark]:
        """The part of a quarantine that holds in each epoch, the newest last."""
        return self._count().marks

    def thaw(self, last: Mark | None) -> None:
        """Forget which parts held: a state was loaded, whose run had ``last``."""
        with self._changing() as count:
            count.marks = {} if last is None else {-1: last}

    def claim_warning(self, matter: int) -> bool:
        """Whether no process that shares this has told of a matter, a number from 0; from now on, one has."""
        with self._changing() as count:
            told, count.told = count.told, count.told | 1 << matter
            return told != count.told

    @property
    def alone(self) -> bool:
        """Whether no other process has begun an epoch since this one did, or loaded a state."""
        return self._count().begun == self._seen

    def peek(self) -> EpochPosition:
        """The position at which the next iteration would begin."""
        count = self._count()
        return count.point(count.upcoming)

    def started(self, epoch: int) -> EpochPosition:
        """The position at which an epoch that has begun did begin."""
        return self._count().point(epoch)

    @property
    def order_number(self) -> int:
        """The number of the sample order in which the loaded state is to be read."""
        return self._count().order_number

    def load(self, point: EpochPosition, order_number: int = 0) -> None:
        """Make the next iteration, here or in workers, begin at ``point``, in the sample order of this number."""
        with self._changing() as count:
            count.upcoming, count.loaded, count.resumed, count.order_number = point.epoch, point, True, order_number
            self._seen = count.begun
            self._numbers[_LOADER] = os.getpid()
            self._numbers[_LOADS] += 1

    @property
    def parent_loads(self) -> int:
        """A number that rises when the parent of this process loads a state. Nobody waits for a lock here."""
        parent = parent_process()
        return int(self._numbers[_LOADS]) if parent is not None and self._numbers[_LOADER] == parent.pid else 0

    def name_epoch(self, epoch: int) -> int:
        """Make the next iteration the epoch that the caller counts as ``epoch``; after a load, give it that number.

        Gives how far our epochs are ahead of the caller's.
        """
        with self._changing() as count:
            if count.resumed:
                count.resumed, count.ahead = False, count.upcoming - epoch
            named = epoch + count.ahead
            if named < 0:
                raise ConfigError(
                    f"set_epoch({epoch}): epoch {-count.ahead} of this count was the first, see the loaded state"
                )
            if named != count.upcoming:
                count.loaded = EpochPosition(named, start=count.point(count.upcoming).start)
                count.upcoming = named
                self._seen = count.begun  # as after a load, it is known where the next iteration begins
            return count.ahead

    def detach(self) -> None:
        """Counts epochs apart from the parent from now on, in a child process that is no worker of a DataLoader."""
        if self._owner != os.getpid() and LoaderWorker.detect().token is None:
            seen, count = self._seen, self._read()
            EpochCounter.__init__(self, count)
            self._seen = seen

    def _count_pass(self, token: int) -> int:
        """Number of this process's pass among those of its set of workers, from 0."""
        # The passes of a worker that lives on follow each other without a word from the main process.
        pid, its_token, passes = self._passes
        number = passes if (pid, its_token) == (os.getpid(), token) else 0
        self._passes = os.getpid(), token, number + 1
        return number

    # -- the memory ------------------------------------------------------------------------------------------------

    def _count(self) -> _Count:
        """The count, to be read."""
        self.detach()
        with self._file.locked():
            return self._read()

    @contextmanager
    def _changing(self, *, own: bool = True) -> Iterator[_Count]:
        """The count, to be changed: it is written at the end, where no error came. Others wait meanwhile."""
        if own:
            self.detach()
        with self._file.locked():
            count = self._read()
            yield count
            self._write(count)

    def _read(self) -> _Count:
        while True:  # a process that detaches does not wait for others, which may write
            written = int(self._numbers[_WRITTEN])
            data = self._slots[written % 2].tobytes()
            if int(self._numbers[_WRITTEN]) == written:
                count: _Count = pickle.loads(data) if written else _Count()  # noqa: S301 - of our own family
                return count

    def _write(self, count: _Count) -> None:
        data = pickle.dumps(count)
        if len(data) > _SLOT_BYTES:
            raise ConfigError(
                f"the starts of epochs take {len(data)} bytes, more than {_SLOT_BYTES}: give them fewer fields"
            )
        following = int(self._numbers[_WRITTEN]) + 1
        self._slots[following % 2, : len(data)] = np.frombuffer(data, np.uint8)
        self._numbers[_WRITTEN] = following

    def _attach(self, file: SharedFile, owner: int) -> None:
        self._file = file
        self._owner = owner
        self._passes = 0, 0, 0
        self._seen = 0
        memory = file.map(_SLOTS + 2 * _SLOT_BYTES)
        self._numbers: NDArray[np.int64] = np.frombuffer(memory, np.int64, _SLOTS // 8)
        self._slots: NDArray[np.uint8] = np.frombuffer(memory, np.uint8, offset=_SLOTS).reshape(2, _SLOT_BYTES)
        _CLOCKS.add(self)

    def __getstate__(self) -> dict[str, Any]:
        self.detach()
        if spawning():
            return {"file": self._file, "seen": self._seen, "owner": self._owner}
        return {"count": self._read()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "file" in state:
            self._attach(state["file"], state["owner"])
            self._seen = state["seen"]
        else:
            # Sent by other means (to another host, say): a clock of its own that shows the same time.
            EpochCounter.__init__(self, state["count"])
            self._seen = state["count"].begun


def _detach_all() -> None:
    for one in alive(_CLOCKS):
        one.detach()


# Workers that a rank forks share its count, not that of the process which forked or spawned the rank.
os.register_at_fork(before=_detach_all)


# -- epochs that others name ----------------------------------------------------------------------------------------------


class AccelerateEpochs:
    """Keeps accelerate's count of epochs right after ``skip_first_batches``.

    Each loader that accelerate prepares counts epochs by itself, and names the next one to the dataset when it is iterated.
    ``skip_first_batches`` makes another loader, for the rest of an epoch. The first one is not told when that has ended: it
    would name the same epoch once more, and training would have it twice.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        # Whether it has come to its end is asked of it when the next epoch is named; until then it must not be gone.
        self._latest: tuple[Any, int] | None = None

    def __reduce__(self) -> tuple[type[AccelerateEpochs], tuple[()]]:
        return AccelerateEpochs, ()  # a copy is another dataset's

    def advance_if_finished(self, epoch: int) -> bool:
        """Have a loader read the next epoch, if another loader has finished the one that it names.

        ``epoch``: the one that it names. Gives whether it reads the next one.
        """
        loader, iterates = _naming_loader()
        if loader is None or not iterates:
            self._latest = None  # a user names it, who may want it again
            if loader is not None:
                self._known.add(loader)
            return False
        latest, self._latest = self._latest, (loader, epoch)
        first = loader not in self._known
        self._known.add(loader)
        if latest is None or latest[0] is loader or latest[1] != epoch or not latest[0].end_of_dataloader:
            return False
        if first and not latest[0].skip_batches:
            return False  # a training run that begins anew
        self._latest = None
        loader.set_epoch(epoch + 1)  # which names that
        return True


def _naming_loader() -> tuple[Any, bool]:
    """The loader of accelerate that names an epoch now, if one does, and whether that is because it is iterated."""
    kinds = tuple(
        kind
        for name in ("DataLoaderShard", "DataLoaderDispatcher")
        if isinstance(kind := getattr(sys.modules.get("accelerate.data_loader"), name, None), type)
    )
    loader: Any = None
    for frame in callers() if kinds else ():
        one = frame.f_locals.get("self")
        if isinstance(one, kinds) and loader in (None, one):
            loader = one
            if frame.f_code.co_name == "__iter__":
                return loader, True
    return loader, False


class NamedEpochs:
    """Sets a clock to the epochs that a caller names. ``clock``: counts the epochs of the dataset."""

    def __init__(self, clock: EpochCounter) -> None:
        self._clock = clock
        self._named = False
        self._accelerate = AccelerateEpochs()

    def name(self, epoch: int) -> bool:
        """Make the next iteration begin an epoch; see :meth:`stoker.loaders.dataset.StreamingDataset.set_epoch`.

        ConfigError if there is no such epoch. Gives whether that is another position than where it would have begun.
        """
        at_least(0, epoch=epoch)
        if self._accelerate.advance_if_finished(epoch):
            return False
        before = self._clock.peek()
        ahead = self._clock.name_epoch(epoch)
        moved = self._clock.peek() != before
        if ahead and not moved and not self._named:
            logger.warning(
                "set_epoch(%d) after a state of epoch %d was loaded: the state holds, and epochs of this count are %d later",
                epoch,
                before.epoch,
                ahead,
            )
        self._named = True
        return moved

    def follow(self, epoch: NamedEpoch | None) -> bool:
        """The same for the epoch that the ``datasets`` package around the dataset reads, where it was named.

        StateError if the package leaves out the beginning of an epoch that nobody has named.
        """
        if epoch is not None and epoch.number:
            return self.name(epoch.number)
        if epoch is not None and epoch.resumes and not self._named:
            upcoming = self._clock.peek().epoch
            said = (
                "the datasets package leaves out the samples of an epoch that came before its state, and does not say which "
                "epoch: call set_epoch(epoch) of its IterableDataset before each epoch"
                + ("" if epoch.number is not None else ", and of the StreamingDataset, which it reads in a thread")
            )
            if upcoming:
                raise StateError(f"{said}. This would be epoch {upcoming}")
            logger.warning("%s. Taken for epoch 0", said)
        return False
