"""A process that reads chunks for another one: it is sent their places, and hands back what it made of them."""

from __future__ import annotations

import io
import pickle
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from queue import SimpleQueue
from typing import Any, Final, TypeAlias

import numpy as np

from stoker.concurrency.shared.counters import Counts
from stoker.concurrency.spans.recorder import Stage, span
from stoker.concurrency.spans.thread_times import own_time
from stoker.display import with_article
from stoker.errors import ConfigError, StokerError, TransformError
from stoker.formats.mds.encodings.images import load_at_once
from stoker.order.sample_order import Run
from stoker.pipeline.batch_ring import Region, Ring
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.columns import CutColumn
from stoker.pipeline.execution.hand_over import Parcel, first_refused, pack, pack_error
from stoker.pipeline.stages.build import make_work
from stoker.pipeline.transforms import EpochReaderSettings
from stoker.reading.sample_errors import location_at, transform_error
from stoker.reading.shard_pool import ShardPool
from stoker.streams.key_index import KeyIndex
from stoker.streams.streams import Streams
from stoker.types import Ids


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """The work of processes that read chunks, without the shards and the order, which they share.

    Attributes:
        settings: with the functions that are applied to samples.
        as_columns: whether batches are asked for, and not samples.
        sharers: processes on this node that read through the same cache, these included.
    """

    settings: EpochReaderSettings
    epoch: int
    as_columns: bool
    sharers: int


@dataclass(frozen=True, slots=True)
class ChunkAnswer:
    """The answer of a process: that it is there, the result of a chunk, or an error.

    Attributes:
        parcel: the result; ``None``: there is none.
        error: of :func:`~stoker.pipeline.execution.hand_over.pack_error`.
        took: nanoseconds for which the chunk was read.
        awaited: those of them in which shards were waited for.
        busy: nanoseconds of that and of packing the result, not disturbed by other processes.
        ready: shards of it that were open when it was to be read.
        fetched: shards of it that this process has fetched.
    """

    parcel: Parcel | None = None
    error: bytes | None = None
    took: int = 0
    awaited: int = 0
    busy: int = 0
    ready: int = 0
    fetched: tuple[int, ...] = ()


class _TaskPickler(pickle.Pickler):
    """Leaves out what a process that is being started is handed in another way: open shards, counters, indexes."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self.parts: list[Any] = []

    def persistent_id(self, one: Any) -> int | None:
        if not isinstance(one, ShardPool | Streams | KeyIndex | Counts):
            return None
        number = next((number for number, part in enumerate(self.parts) if part is one), len(self.parts))
        if number == len(self.parts):
            self.parts.append(one)
        return number


class _TaskUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes, parts: Sequence[Any]) -> None:
        super().__init__(io.BytesIO(data))
        self._parts = parts

    def persistent_load(self, number: int) -> Any:
        return self._parts[number]


@dataclass(frozen=True, slots=True)
class PickledTask:
    """The work of a fresh process, pickled before that is started: what it lacks there is an error that it can tell.

    ``data``: the task. ``parts``: of the datasets that its zips and joins read.
    """

    data: bytes
    parts: Sequence[Any]

    @staticmethod
    def of(task: ChunkTask) -> PickledTask:
        """The task, pickled; raises whatever its objects raise."""
        stream = io.BytesIO()
        pickler = _TaskPickler(stream)
        pickler.dump(task)
        return PickledTask(stream.getvalue(), pickler.parts)

    def load(self) -> ChunkTask:
        """The task in the process that was sent it."""
        task: ChunkTask = _TaskUnpickler(self.data, self.parts).load()
        return task


MakeRun: TypeAlias = Callable[[], Run]
"""Makes the batches of a rank again, in another process."""

Request: TypeAlias = tuple[Chunk | None, tuple[int, ...]]
"""A chunk to be read, and shards that no chunk ahead needs any more."""


def serve_chunks(pipe: Any, ring: Ring, pool: ShardPool, run: MakeRun | None, told: PickledTask | ChunkTask) -> None:
    """Read the chunks that come through a pipe, until it is closed.

    Args:
        run: makes the rank's batches, where samples may replace others.
    """
    try:
        task = told.load() if isinstance(told, PickledTask) else told
        _seed_anew()
        if not any(step.calls for step in task.settings.steps):
            load_at_once()
        for one in (pool, *task.settings.others):
            one.share(task.sharers)
        work = make_work(pool, run and run(), task.settings, task.epoch, as_columns=task.as_columns)
    except Exception as error:  # noqa: BLE001 - raised where the process was asked for
        told_error = error if isinstance(error, StokerError) else ConfigError(_not_here(error))
        pipe.send_bytes(pickle.dumps(ChunkAnswer(error=pack_error(told_error))))
        return
    pipe.send_bytes(pickle.dumps(ChunkAnswer()))
    _Chunks(pipe, ring, pool, work).serve()


def _not_here(error: Exception) -> str:
    return (
        f"the functions of the dataset can not be had in a process ({type(error).__name__}: {error}): define them in a "
        "module or at the top of the script, not in a notebook or an interactive session, or use "
        "ReadOptions(start_method='fork') or run_in='threads'"
    )


def _seed_anew() -> None:
    """Seed global generators anew, so that copies of one process draw different numbers; give torch one thread a process."""
    random.seed()
    # A generator of its own, and not a seed for that of the parent: a thread that is not here may hold the lock of that one.
    np.random.set_bit_generator(type(np.random.get_bit_generator())())  # type: ignore[attr-defined]
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(random.getrandbits(63))
        torch.set_num_threads(1)


class _Chunks:
    """Chunks that were sent, and those that are read."""

    def __init__(self, pipe: Any, ring: Ring, pool: ShardPool, read: Callable[[Chunk], Chunk]) -> None:
        self._pipe, self._pool, self._read = pipe, pool, read
        self._region: Region | None = ring.region()
        self._arrived: SimpleQueue[Chunk | None] = SimpleQueue()
        self._ended = False
        self._failed: BaseException | None = None
        # Shards that a chunk ahead needs, here or in another process.
        self._needed: dict[int, None] = {}

    def serve(self) -> None:
        self._pool.expect(self._needed.keys())
        # Received by a thread: shards of the next chunk are opened while this one is read, and the parent can always send.
        threading.Thread(target=self._receive, name="stoker-receive", daemon=True).start()
        while (chunk := self._arrived.get()) is not None and not self._ended:
            answer, data = self._answer(chunk)
            del chunk
            self._pipe.send_bytes(pickle.dumps(answer))
            if data is not None:
                self._pipe.send_bytes(data)
            del answer, data  # frees their memory for the next chunk
        if self._failed is not None:
            raise self._failed

    def _answer(self, chunk: Chunk) -> tuple[ChunkAnswer, memoryview | None]:
        """The answer for a chunk, and what of it is to go through the pipe as it is."""
        pool, ready = self._pool, self._pool.ready(chunk.distinct)
        begun, own, awaited = time.perf_counter_ns(), own_time(), pool.times.awaited
        try:
            value = self._read(chunk)
            took = time.perf_counter_ns() - begun
            awaited = pool.times.awaited - awaited
            fetched = pool.fetched
            parcel, data = self._packed(chunk, value.made())
        except BaseException as error:  # noqa: BLE001 - raised where the result is taken
            return ChunkAnswer(error=pack_error(error)), None
        here = () if fetched is None else tuple(shard for shard in chunk.distinct if fetched[shard])
        busy = own_time() - own
        return ChunkAnswer(parcel, took=took, awaited=awaited, busy=busy, ready=ready, fetched=here), data

    def _packed(self, chunk: Chunk, value: Chunk) -> tuple[Parcel, memoryview | None]:
        """The result of a chunk on its way, see :func:`~stoker.pipeline.execution.hand_over.pack`.

        TransformError if a value can not be sent; names the sample.
        """
        try:
            with span(Stage.SEND):
                return pack(value, self._region)
        except Exception as error:
            number, what = _refused(value.values, value.kept)
            if number is None or number >= len(chunk.rows):
                raise TransformError(f"{what} can not be sent from a process: {error}. {_INSTEAD}") from error
            raise transform_error(
                f"made {what}, which can not be sent from a process ({type(error).__name__}: {error}): {_INSTEAD}",
                location_at(self._pool, chunk.shards, chunk.rows, number),
            ) from error

    def _receive(self) -> None:
        pool, needed = self._pool, self._needed
        try:
            while (data := self._next()) is not None:
                request: Request = pickle.loads(data)  # noqa: S301 - of our own parent
                chunk, done = request
                for shard in done:
                    if needed.pop(shard, self) is not self:
                        pool.done_with(shard)
                if chunk is not None:
                    needed.update(dict.fromkeys(chunk.distinct))
                    pool.prefetch(chunk.distinct)
                    self._arrived.put(chunk)
        except BaseException as error:  # noqa: BLE001 - ends the process: the parent waits for chunks that never come
            self._failed = error
        finally:
            self._ended = True
            self._arrived.put(None)

    def _next(self) -> bytes | None:
        try:
            data: bytes = self._pipe.recv_bytes()
        except (EOFError, OSError):
            return None
        return data


_INSTEAD: Final = "return values that can be pickled, such as arrays, or use ReadOptions(run_in='threads')"


def _refused(values: Any, kept: Ids | None) -> tuple[int | None, str]:
    """The place of a sample of a result that can not be sent, where that is known; and what it has."""
    if isinstance(values, list):
        number = first_refused(values)
        return number, "a sample" if number is None else _named(values[number])
    for name, column in values.items():
        if isinstance(column, CutColumn):
            column = list(chain.from_iterable(column))  # noqa: PLW2901
        number = first_refused(column) if isinstance(column, list) else None
        if number is not None:
            return number if kept is None else int(kept[number]), f"{_named(column[number])} in column {name!r}"
    return None, "a batch"


def _named(value: Any) -> str:
    return with_article(type(value).__name__)
