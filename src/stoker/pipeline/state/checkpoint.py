"""Checkpoints of a :class:`~stoker.loaders.shard_loader.StreamingShardLoader`: JSON, written whole or not at all."""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, Self, get_args

from stoker.concurrency.forks import ProcessLocal
from stoker.concurrency.shared.counters import Count, Counts
from stoker.concurrency.threads import Threads
from stoker.errors import FormatError, StateError, StokerError
from stoker.storage import Store, open_store
from stoker.types import StorageOptions

logger = logging.getLogger(__name__)

_VERSION: Final = 1
_MOST_BYTES: Final = 64 << 20
CheckpointKind = Literal["lockstep", "planned", "leased", "replay"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The progress of a run, and all that another run needs to resume from there.

    Attributes:
        kind: ``"lockstep"``: of ranks that go through global batches or parts of their own. ``"planned"``: of ranks whose
            global batches a plan divides. ``"leased"``: of work that a coordinator hands out, all workers'. ``"replay"``:
            of one rank's way through a recorded assignment.
        epoch: the epoch.
        position: samples of the epoch that are done: by all ranks together; of a replay, by its rank.
        seed: of the order.
        rank: whose checkpoint it is.
        world_size: in which world.
        time: when it was taken, seconds since 1970 by that worker's clock. Nothing is decided by it.
        processed: the epoch's positions that are done, as ``(begin, end)``, sorted. As many as are in flight, however many
            samples there are.
        state: what the order depends on, to be compared with that of the run that resumes.
    """

    kind: CheckpointKind
    epoch: int
    position: int
    seed: int
    rank: int
    world_size: int
    time: float
    processed: tuple[tuple[int, int], ...]
    state: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """All of it, JSON-serialisable."""
        told = {one.name: getattr(self, one.name) for one in fields(self)}
        processed = [list(interval) for interval in self.processed]
        return {"stoker_checkpoint": _VERSION, **told, "processed": processed, "state": dict(self.state)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "this") -> Self:
        """The checkpoint that :meth:`as_dict` described.

        StateError if it is none, or contradicts itself. ``values``: the description. ``where``: names it in errors.
        """
        if not isinstance(values, Mapping) or "stoker_checkpoint" not in values:
            raise StateError(
                f"{where} is not a checkpoint of a StreamingShardLoader: give what checkpoint() returned, whole, or a folder "
                "of checkpoint_url=; a StreamingDataset's state is for its load_state_dict()"
            )
        if values["stoker_checkpoint"] != _VERSION:
            raise StateError(
                f"{where} is a checkpoint of format {values['stoker_checkpoint']!r}, this stoker reads format {_VERSION}"
            )
        try:
            found = cls(**{one.name: values[one.name] for one in fields(cls)})
            processed = tuple((begin, end) for begin, end in found.processed)
            found = replace(found, time=float(found.time), processed=processed, state=dict(found.state))
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"{where} is an incomplete checkpoint ({error!r}): give what checkpoint() returned, whole"
            ) from error
        for name in ("epoch", "position", "seed", "rank", "world_size"):
            value = getattr(found, name)
            if type(value) is not int or (value < 0 and name != "seed"):
                raise StateError(f"{where}: {name} must be an integer from 0, found {value!r}")
        if found.kind not in get_args(CheckpointKind):
            raise StateError(
                f"{where}: kind must be one of {', '.join(get_args(CheckpointKind))}, found {found.kind!r}"
            )
        if not found.rank < found.world_size:
            raise StateError(f"{where}: rank {found.rank} is not in a world of {found.world_size}")
        reached = 0
        for begin, end in processed:
            if type(begin) is not int or type(end) is not int or not reached <= begin < end:
                raise StateError(f"{where}: processed must be rising intervals of positions, found {(begin, end)!r}")
            reached = end
        if sum(end - begin for begin, end in processed) != found.position:
            raise StateError(f"{where}: position is {found.position}, but as many samples are not in processed")
        return found


class _Writing(ProcessLocal):
    """The writing of one process: what a parent writes is not its child's to write.

    ``waiting``: makes the next checkpoint. ``latest``: writes it, on a thread. ``error``: of the last one.
    """

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], Checkpoint]] = deque(maxlen=1)
        self.latest: Future[None] | None = None
        self.error: Exception | None = None


class CheckpointFolder:
    """A folder of checkpoints, one object a rank, at any URL. The latest replaces the one before, whole or not at all.

    ``url``: the folder. ``options``: credentials for it. ``counts``: where writing is counted.
    """

    def __init__(self, url: str | os.PathLike[str], options: StorageOptions | None, counts: Counts) -> None:
        self._store: Store = open_store(url, options)
        self._counts = counts
        self._threads = Threads(1, "checkpoint")
        self._writing = _Writing()

    def save_soon(self, make: Callable[[], Checkpoint]) -> None:
        """Make and write a checkpoint on a thread; if one is being written, after it, in place of any that waits."""
        self._writing.waiting.append(make)
        self._writing.latest = self._threads.submit(self._write)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint now. StorageError if it can not be written."""
        self.flush()
        self._put(checkpoint)

    def load(self, rank: int) -> Checkpoint | None:
        """A rank's latest checkpoint; ``None`` where there is none.

        StateError if what is there is no checkpoint. StorageError if it can not be read.
        """
        if not self._store.exists(_key(rank)):
            return None
        where = self._store.url_of(_key(rank))
        try:
            values = json.loads(self._store.get(_key(rank), max_bytes=_MOST_BYTES))
        except (ValueError, RecursionError) as error:
            raise StateError(f"{where} is not a checkpoint: {error}") from error
        return Checkpoint.from_dict(values, where)

    def flush(self, timeout: float = 60.0) -> None:
        """Wait until all that was asked for is written. StorageError if the last one could not be written."""
        writing = self._writing
        if writing.latest is not None:
            writing.latest.result(timeout)
        error, writing.error = writing.error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """Wait until all is written, and end the thread; what failed was logged."""
        try:
            self.flush()
        except (StokerError, TimeoutError) as error:
            logger.warning("the last checkpoint was not written: %s", error)
        self._threads.close()

    def _write(self) -> None:
        writing = self._writing
        if not writing.waiting:  # only this thread takes one: a later one was written in its place
            return
        try:
            self._put(writing.waiting.pop()())
            writing.error = None
        except Exception as error:  # noqa: BLE001 - raised by flush
            writing.error = error
            logger.warning("a checkpoint could not be written: %s", error)

    def _put(self, checkpoint: Checkpoint) -> None:
        try:
            data = json.dumps(checkpoint.as_dict(), separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise FormatError(f"a checkpoint can not be written as JSON: {error}") from error
        self._store.put(_key(checkpoint.rank), data)
        self._counts.add(Count.CHECKPOINTS, 1)


def _key(rank: int) -> str:
    return f"rank-{rank:06d}.json"
