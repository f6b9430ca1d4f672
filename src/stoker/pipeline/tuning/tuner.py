"""The tuner of a pipeline: observes it between chunks, and sets what the rules choose."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Final, Protocol

from stoker.cluster import LoaderWorker
from stoker.pipeline.batch_groups import BatchGroup
from stoker.pipeline.columns import bytes_of
from stoker.pipeline.tuning.controller import Controller, JudgedChange, Tick
from stoker.pipeline.tuning.decisions import DecisionLog
from stoker.pipeline.tuning.knobs import Knob, KnobRange, MemoryUse
from stoker.policy import (
    MOST_CHUNKS_AHEAD,
    MOST_TIMES_AHEAD,
    STEP_SECONDS,
    ReadAmounts,
    most_read_threads,
    tuned_memory,
)
from stoker.reading.shard_pool import ShardPool

_PAUSE: Final = 1_000_000_000
_TIMES: Final = 20
"""A consumer that takes longer than this many nanoseconds, and than this many usual times, pauses: it saves a checkpoint, or
evaluates. That says nothing of reading."""

_WEIGHT: Final = 1 / 16

_LOOKED_AT: Final = 64
"""Of so many steps of reading one is looked at for its bytes."""


class Rules(Protocol):
    """Rules that choose values of knobs: :class:`~stoker.pipeline.tuning.controller.Controller`."""

    values: dict[Knob, int]

    @property
    def idle(self) -> bool:
        """Whether nothing may change."""
        ...

    @property
    def settled(self) -> dict[Knob, int]:
        """Values without those that are on trial."""
        ...

    @property
    def tick_seconds(self) -> float:
        """The least time of the next tick."""
        ...

    @property
    def tick_chunks(self) -> int:
        """The least number of steps of reading in it."""
        ...

    def restarted(self) -> None:
        """Reading has begun anew."""
        ...

    def observe(self, tick: Tick) -> list[JudgedChange]:
        """Take a tick into account. Returns the changes that were judged with it."""
        ...


class Tuner:
    """Tunes the pipelines of one reader, one after the other: what was found in an epoch holds in the next.

    Args:
        pool: the open shards.
        log: lists its decisions.
    """

    def __init__(self, pool: ShardPool, log: DecisionLog) -> None:
        self._pool, self._log = pool, log
        self._budgets: dict[int, int] = {}
        self._given: tuple[Mapping[Knob, KnobRange], MemoryUse, int | None] | None = None
        self._rules: Rules | None = None
        # A number, not the run: it refers to this tuner, and a circle would keep the pool's files open.
        self._latest = 0
        self._samples, self._seconds = 0, 0.0

    def begin(
        self,
        amounts: ReadAmounts,
        *,
        batch_size: int,
        chunk_bytes: int,
        threads: int,
        tune_threads: bool,
        worker: LoaderWorker,
    ) -> TunedRun:
        """Begin to tune a pipeline; the one before is tuned no more.

        Args:
            amounts: what it reads ahead untuned.
            batch_size: of its rank.
            chunk_bytes: bytes of a step of reading, about.
            threads: that read ahead at the beginning.
            tune_threads: whether there may be more or less of them.
            worker: this process.
        """
        sharers, width = amounts.sharers, self._pool.width
        memory = MemoryUse(
            self._budget(sharers, worker), max(1, chunk_bytes), amounts.sample_bytes if amounts.held else 0
        )
        far = any(cache.store is not None for cache in self._pool.caches)
        ranges = {
            Knob.READ_THREADS: KnobRange(threads, most_read_threads(sharers), step=2, fixed=not tune_threads),
            Knob.CHUNKS_AHEAD: KnobRange(1, MOST_CHUNKS_AHEAD, fixed=not (threads or tune_threads)),
            Knob.PREDOWNLOAD: _lookahead(amounts, batch_size, memory),
            Knob.DOWNLOAD_THREADS: KnobRange(0, sys.maxsize, fixed=width.fixed is not None or not far),
        }
        number = None if worker.token is None else worker.number
        given = (ranges, memory, number)
        if self._rules is None or self._given != given:
            self._rules, self._given = self.rules(ranges, memory), given
            self._samples, self._seconds = 0, 0.0
        self._rules.restarted()
        self._latest += 1
        return TunedRun(self, self._latest, self._rules, self._pool)

    def most_chunk(self, amounts: ReadAmounts, worker: LoaderWorker) -> int:
        """Samples that a step of reading may have: an eighth of the memory."""
        return max(1, self._budget(amounts.sharers, worker) // max(1, amounts.sample_bytes) // 8)

    def _budget(self, sharers: int, worker: LoaderWorker) -> int:
        """Bytes that this process may use; what was free when it began, as tuning changes that."""
        if sharers not in self._budgets:
            given = self._pool.options.tuned_bytes
            self._budgets[sharers] = max(1, given // worker.count) if given else tuned_memory(sharers)
        return self._budgets[sharers]

    def rules(self, ranges: Mapping[Knob, KnobRange], memory: MemoryUse) -> Rules:
        """New rules for a pipeline."""
        return Controller(ranges, memory)

    def is_latest(self, number: int) -> bool:
        """Whether no other pipeline was begun since the one of this number."""
        return self._latest == number

    def observe(self, rules: Rules, tick: Tick) -> None:
        """Hand a tick to the rules, and list what they decide."""
        self._samples += tick.samples
        self._seconds += tick.seconds
        worker = None if self._given is None else self._given[2]
        for change in rules.observe(tick):
            self._log.add(change, samples=self._samples, seconds=self._seconds, worker=worker)

    def __getstate__(self) -> dict[str, object]:
        # A spawned process begins anew; a pipeline that runs here does not run there.
        return {"_pool": self._pool, "_log": self._log}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(state["_pool"], state["_log"])  # type: ignore[misc]


class TunedRun:
    """The tuned values of one iteration of a pipeline, which asks for them and tells how it goes.

    Attributes:
        threads: that read ahead.
        chunks_ahead: steps of reading that may be done and wait, beyond those.
        lookahead: samples ahead whose shards are fetched.
        step_samples: samples that a step of reading may have.
    """

    threads: int
    chunks_ahead: int
    lookahead: int
    step_samples: int

    def __init__(self, tuner: Tuner, number: int, rules: Rules, pool: ShardPool) -> None:
        self._tuner, self._number, self._rules, self._pool = tuner, number, rules, pool
        self._usual = 0.0
        self._seen = self._chunk_bytes = 0
        self._idle = rules.idle
        self.step_samples = sys.maxsize
        self._apply(rules.values)
        self._reset()

    def _reset(self) -> None:
        self._samples = self._chunks = self._time = self._waited = 0
        self._full = self._downloads = 0.0
        times = self._pool.times
        self._read, self._read_samples, self._awaited = times.read, times.samples, times.awaited
        self._ends = round(1e9 * self._rules.tick_seconds)
        self._last = time.perf_counter_ns()

    def _apply(self, values: Mapping[Knob, int]) -> None:
        self.threads, self.chunks_ahead = values[Knob.READ_THREADS], values[Knob.CHUNKS_AHEAD]
        self.lookahead = values[Knob.PREDOWNLOAD]
        self._pool.tune_downloads(values[Knob.DOWNLOAD_THREADS])

    def took(self, samples: int, waited: int, found: object, *, full: bool) -> bool:
        """Note that the consumer has got a chunk.

        Args:
            samples: of it.
            waited: nanoseconds for which it waited.
            found: what was made of it.
            full: whether the lookahead was full.

        Returns:
            Whether threads, chunks or lookahead may have changed.
        """
        now = time.perf_counter_ns()
        busy = now - self._last - waited
        self._last = now
        if busy > _PAUSE and busy > _TIMES * self._usual:
            busy = int(self._usual)
        self._usual += _WEIGHT * (busy - self._usual)
        self._samples += samples
        self._chunks += 1
        self._time += busy + waited
        self._limit_step()
        if not self._idle:
            if not self._seen % _LOOKED_AT:
                self._see_bytes(found)
            self._seen += 1
            self._waited += waited
            self._full += waited * full
            self._downloads += waited * self._pool.saturated
        if self._time < self._ends or self._chunks < self._rules.tick_chunks:
            return False
        if not self._idle:
            self._tick()
        self._reset()
        return not self._idle

    def _limit_step(self) -> None:
        """Cut steps by the time that a sample takes to be read, and between the samples that the consumer gets."""
        times = self._pool.times
        took = times.read - self._read - (times.awaited - self._awaited)
        each = max(took / max(1, times.samples - self._read_samples), self._time / self._samples)
        self.step_samples = max(1, int(1e9 * STEP_SECONDS / max(1.0, each)))

    def _see_bytes(self, found: object) -> None:
        columns = found.columns if isinstance(found, BatchGroup) else getattr(found, "values", None)
        if isinstance(columns, dict | list):  # of samples that are made one by one nothing waits
            self._chunk_bytes = max(bytes_of(columns), self._chunk_bytes - self._chunk_bytes // _LOOKED_AT)

    def _tick(self) -> None:
        times, width, waited = self._pool.times, self._pool.width, max(1, self._waited)
        tick = Tick(
            seconds=self._time / 1e9,
            waited=self._waited / 1e9,
            samples=self._samples,
            shards=min(1.0, (times.awaited - self._awaited) / max(1, times.read - self._read)),
            full=self._full / waited,
            downloads=self._downloads / waited,
            width=width.value,
            most_width=width.most,
            chunk_bytes=self._chunk_bytes,
        )
        if self._tuner.is_latest(self._number):
            self._tuner.observe(self._rules, tick)
            self._apply(self._rules.values)

    def end(self) -> None:
        """Say that the iteration has ended: what was on trial is withdrawn."""
        if self._tuner.is_latest(self._number):
            self._apply(self._rules.settled)


def _lookahead(amounts: ReadAmounts, batch_size: int, memory: MemoryUse) -> KnobRange:
    """Bounds of the samples ahead whose shards are fetched."""
    usual = amounts.lookahead(batch_size)
    if amounts.predownload is not None:
        return KnobRange.at(usual)
    if not memory.sample_bytes:
        return KnobRange(usual, MOST_TIMES_AHEAD * usual)
    most = max(batch_size, memory.budget // memory.sample_bytes)
    # Half of the memory at first: what else needs some is not known.
    return KnobRange(max(batch_size, min(usual, most // 2)), most)
