"""The tuner of a pipeline: observes it between chunks, and sets what the rules choose."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

from stoker.cluster import LoaderWorker
from stoker.concurrency.spans.thread_times import displaced_time
from stoker.pipeline.columns import bytes_of
from stoker.pipeline.execution.runner import Runner
from stoker.pipeline.tuning.controller import Controller
from stoker.pipeline.tuning.decision_log import DecisionLog
from stoker.pipeline.tuning.knobs import JudgedChange, Knob, KnobRange, MemoryUse
from stoker.pipeline.tuning.ticks import Tick
from stoker.policy import (
    MOST_CHUNKS_AHEAD,
    MOST_TIMES_AHEAD,
    STEP_SECONDS,
    ReadAmounts,
    most_read_processes,
    most_read_threads,
    processors,
)
from stoker.reading.shard_pool import ShardPool

_PAUSE: Final = 1_000_000_000
_TIMES: Final = 20
"""A consumer that takes longer than this many nanoseconds, and than this many usual times, pauses: it saves a checkpoint, or
evaluates. That says nothing of reading."""

_WEIGHT: Final = 1 / 16

_LOOKED_AT: Final = 64
"""Of so many steps of reading that are looked at, and of each tick's, the first is looked at for its bytes."""

_SHORT_STEP: Final = 250_000
_LOOK: Final = 5_000_000
"""Nanoseconds of a step below which the next ones are only counted, until so many have passed, or the part of a tick that
gives as many looks as it needs. While the tuner rests, all are until the end of a tick."""

_SHORT_EPOCH: Final = 1_000_000_000
"""Nanoseconds of an epoch below which the next is measured as a whole, or several of them: their beginnings, where the
lookahead is empty, are too much of them to be left out."""

_TOO_LONG: Final = 2
"""Times that by which an epoch is no short one."""


class Rules(Protocol):
    """Rules that choose values of knobs: :class:`~stoker.pipeline.tuning.controller.Controller`."""

    values: dict[Knob, int]
    barred: frozenset[Knob]
    """Those that would change nothing now."""

    @property
    def idle(self) -> bool:
        """Whether nothing may change."""
        ...

    @property
    def rests(self) -> bool:
        """Whether nothing is tried or measured now: of a tick the time and the waiting matter, and the bytes of a step."""
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

    @property
    def tick_limit(self) -> tuple[float, float]:
        """Seconds that it may take, and those for each of its samples: one that takes longer ends at once."""
        ...

    def restarted(self, *, goes_on: bool, settles: bool) -> None:
        """Reading has begun anew: as it was before, or not; with ticks to be left out, or without."""
        ...

    def observe(self, tick: Tick) -> list[JudgedChange]:
        """Take a tick into account. Returns the changes that were judged with it."""
        ...


class _Sums:
    """Sums of what was seen of the next tick."""

    def __init__(self) -> None:
        self.samples = self.chunks = self.time = self.waited = self.computed = 0
        self.read = self.awaited = self.own = self.looked = 0
        self.full = self.downloads = 0.0
        self.thread, self.delayed = -1, 0
        """Times of the consumer's thread when it was first looked at; negative: it was not."""


class Tuner:
    """Tunes the pipelines of one reader, one after the other: what was found in an epoch holds in the next.

    Args:
        pool: the open shards.
        log: lists its decisions.

    Attributes:
        far: whether any shard is fetched.
        kept: sums of short epochs, which are no tick yet.
        epoch_time: nanoseconds of the latest epoch.
        chunk_bytes, step_samples: see :class:`TunedRun`, as they were at its end.
    """

    def __init__(self, pool: ShardPool, log: DecisionLog) -> None:
        self._pool, self._log = pool, log
        self.far = any(cache.store is not None for cache in pool.caches)
        self._given: tuple[Mapping[Knob, KnobRange], MemoryUse, float, int | None] | None = None
        self._rules: Rules | None = None
        # A number, not the run: it refers to this tuner, and a circle would keep the pool's files open.
        self._latest = self._epochs = 0
        self._samples, self._seconds = 0, 0.0
        self.kept = _Sums()
        self.epoch_time = self.chunk_bytes = 0
        self.step_samples = sys.maxsize

    def begin(
        self,
        amounts: ReadAmounts,
        *,
        budget: int,
        batch_size: int,
        chunk_bytes: int,
        threads: int,
        tune_threads: bool,
        processes: int,
        tune_processes: bool,
        worker: LoaderWorker,
    ) -> TunedRun:
        """Begin to tune a pipeline; the one before is tuned no more.

        Args:
            amounts: what it reads ahead untuned.
            budget: bytes that it may use.
            batch_size: of its rank.
            chunk_bytes: bytes of a step of reading, about.
            threads: that read ahead at the beginning.
            tune_threads: whether there may be more or less of them.
            processes: that read at the beginning, or may be chosen to.
            tune_processes: whether there may be more of them.
            worker: this process.
        """
        sharers, width = amounts.sharers, self._pool.width
        memory = MemoryUse(budget, max(1, chunk_bytes), amounts.sample_bytes if amounts.held else 0)
        ranges = {
            Knob.READ_THREADS: KnobRange(threads, most_read_threads(sharers), step=2, fixed=not tune_threads),
            Knob.CHUNKS_AHEAD: KnobRange(1, MOST_CHUNKS_AHEAD, fixed=not (threads or tune_threads)),
            Knob.PREDOWNLOAD: _lookahead(amounts, batch_size, memory),
            Knob.DOWNLOAD_THREADS: KnobRange(0, sys.maxsize, fixed=width.fixed is not None or not self.far),
            Knob.READ_PROCESSES: KnobRange(
                processes, max(processes, most_read_processes(sharers)), fixed=not tune_processes
            ),
        }
        number = None if worker.token is None else worker.number
        given = (ranges, memory, processors(sharers), number)
        if self._rules is None or self._given != given:
            self._given = given
            self._rules = self.rules(ranges, memory)
            self._samples, self._seconds, self._epochs, self.chunk_bytes = 0, 0.0, 0, 0
        whole = self._epochs > 1 and self.epoch_time < _SHORT_EPOCH
        # The first epoch fetches, the next finds what it has fetched. From then on all are alike.
        self._rules.restarted(goes_on=self._epochs > 1, settles=not whole)
        self._latest += 1
        self._epochs += 1
        return TunedRun(self, self._latest, self._rules, self._pool, self.kept if whole else None)

    def rules(self, ranges: Mapping[Knob, KnobRange], memory: MemoryUse) -> Rules:
        """New rules for a pipeline."""
        return Controller(ranges, memory, math.inf if self._given is None else self._given[2])

    def is_latest(self, number: int) -> bool:
        """Whether no other pipeline was begun since the one of this number."""
        return self._latest == number

    def observe(self, rules: Rules, tick: Tick) -> None:
        """Hand a tick to the rules, and list what they decide."""
        self._samples += tick.samples
        self._seconds += tick.seconds
        worker = None if self._given is None else self._given[3]
        for change in rules.observe(tick):
            self._log.add(change, samples=self._samples, seconds=self._seconds, worker=worker)


class TunedRun:
    """The tuned values of one iteration of a pipeline, which asks for them and tells how it goes.

    Attributes:
        runner: executes its steps of reading; set before the first.
        threads: that read ahead.
        processes: that read, where processes do.
        chunks_ahead: steps of reading that may be done and wait, beyond those that threads work at.
        lookahead: samples ahead whose shards are fetched.
        step_samples: samples that a step of reading may have.
        due: time (``perf_counter_ns``) before which steps need not be told by :meth:`takes` and :meth:`took`, only counted.
        samples: of those that are counted.
        waited: nanoseconds for which the consumer waited for them.
        last: time at which it got the latest step.
    """

    runner: Runner[Any]
    threads: int
    processes: int
    chunks_ahead: int
    lookahead: int

    def __init__(self, tuner: Tuner, number: int, rules: Rules, pool: ShardPool, kept: _Sums | None) -> None:
        self._tuner, self._number, self._rules, self._pool = tuner, number, rules, pool
        self._whole, self._sums = kept is not None, kept or _Sums()
        self._before = -self._sums.time
        self._usual = 0.0
        self._idle, self._rests = rules.idle, rules.rests
        self._in_processes: bool | None = None
        self.step_samples, self._chunk_bytes = tuner.step_samples, tuner.chunk_bytes
        self._apply(rules.values)
        self._own = self._computed = 0
        self._asked = False
        self.samples = self.waited = 0
        self._limit()
        self._mark(first=True)

    def _limit(self) -> None:
        """Note when the next tick ends."""
        self._ends = round(1e9 * self._rules.tick_seconds)
        self._look = min(_LOOK, self._ends // self._rules.tick_chunks)
        most, each = self._rules.tick_limit
        self._most, self._most_each = 1e9 * most, 1e9 * each
        # Where the consumer's thread reads, and others might: it is measured what it computes.
        self._clocked = not (self._idle or self._rests or self.threads or self.processes)

    def _mark(self, *, first: bool = False) -> None:
        """Begin to count from here."""
        times = self._pool.times
        self._read, self._read_samples, self._awaited = times.read, times.samples, times.awaited
        if not self._rests:
            self._computed = time.process_time_ns() if first else self.runner.processor_time
        self._from = self.last = time.perf_counter_ns()
        self.due = self.last + self._ends - self._sums.time if self._rests else 0

    def _count(self) -> None:
        """Add steps that were only counted to the sums."""
        sums = self._sums
        sums.samples += self.samples
        sums.waited += self.waited
        sums.time += self.last - self._from
        self._from, self.samples, self.waited = self.last, 0, 0

    def _begin_tick(self) -> None:
        self._before += self._sums.time
        self._sums = _Sums()
        self._rests = self._idle or self._rules.rests
        self._limit()
        self._mark()

    def takes(self) -> None:
        """Note that the consumer asks for a chunk."""
        self._asked = True
        if self._clocked:
            if self._sums.thread < 0:
                self._sums.thread, self._sums.delayed = time.thread_time_ns(), displaced_time()
            self._own = time.thread_time_ns()

    def took(self, samples: int, waited: int, found: object, *, full: bool) -> bool:
        """Note that the consumer has got a chunk.

        Args:
            samples: of it.
            waited: nanoseconds for which it waited.
            found: what was made of it.
            full: whether the lookahead was full.

        Returns:
            Whether values may have changed.
        """
        looked, self._asked = waited * self._asked, False
        own = time.thread_time_ns() - self._own if self._clocked and looked else 0
        now, sums = time.perf_counter_ns(), self._sums
        self._count()
        busy = now - self.last - waited
        self._from = self.last = now
        pauses = busy > _PAUSE and busy > _TIMES * self._usual
        self._usual += _WEIGHT * (busy - self._usual)
        if pauses or self.runner.changing:
            self._begin_tick()
            return False
        if self.runner.in_processes is not self._in_processes and self._is_other_runner():
            return self._begin_anew()
        sums.samples += samples
        sums.time += busy + waited
        sums.waited += waited
        left = _TOO_LONG * _SHORT_EPOCH - self._before if self._whole else self._ends
        left -= sums.time
        self.due = now + (left if self._rests else min(left, self._look) if busy + waited < _SHORT_STEP else 0)
        self._limit_step(sums)
        if not self._idle:
            if not sums.chunks % _LOOKED_AT:
                self._see_bytes(found)
            sums.looked += looked
            sums.own += own
            sums.full += looked * full
            sums.downloads += looked * self._pool.saturated
        sums.chunks += 1
        if self._whole:
            if self._before + sums.time < _TOO_LONG * _SHORT_EPOCH:
                return False
            self._whole = False
            return self._begin_anew()
        lasts = sums.time < self._ends or sums.chunks < self._rules.tick_chunks
        if lasts and sums.time <= self._most + sums.samples * self._most_each:
            return False
        if not self._idle:
            self._tick(self._gather())
        self._begin_tick()
        return not self._idle

    def _begin_anew(self) -> bool:
        """Measure anew, as what was measured is no base for what comes. Returns whether values may have changed."""
        if self._tuner.is_latest(self._number):
            self._rules.restarted(goes_on=False, settles=True)
            self._apply(self._rules.values)
        self._begin_tick()
        return not self._idle

    def _is_other_runner(self) -> bool:
        """See whether threads or processes read. Returns whether the others did before."""
        before, self._in_processes = self._in_processes, self.runner.in_processes
        of_threads = (Knob.READ_THREADS, Knob.CHUNKS_AHEAD)
        self._rules.barred = frozenset(of_threads if self._in_processes else (Knob.READ_PROCESSES,))
        return before is not None

    def _limit_step(self, sums: _Sums) -> None:
        """Cut steps by the time that a sample takes to be read, and between the samples that the consumer gets.

        Where the consumer reads what is at hand, nobody shares the work, and nothing waits: smaller steps cost its time.
        Steps of threads come in bursts, so what a tick says at its beginning is taken only where nothing else is known.
        """
        if not (self.runner.workers or self._tuner.far):
            self.step_samples = sys.maxsize
            return
        if sums.time < self._ends and self.step_samples < sys.maxsize:
            return
        times = self._pool.times
        took = times.read - self._read - (times.awaited - self._awaited)
        each = max(took / max(1, times.samples - self._read_samples), sums.time / sums.samples)
        self.step_samples = max(1, int(1e9 * STEP_SECONDS / max(1.0, each)))

    def _see_bytes(self, found: object) -> None:
        columns = getattr(found, "values", None)
        if isinstance(columns, dict | list):  # of samples that are made one by one nothing waits
            self._chunk_bytes = max(bytes_of(columns), self._chunk_bytes - self._chunk_bytes // _LOOKED_AT)

    def _gather(self) -> _Sums:
        """The sums, with what threads and processes did since they were begun here."""
        sums, times = self._sums, self._pool.times
        sums.read += times.read - self._read
        sums.awaited += times.awaited - self._awaited
        if not self._rests:
            sums.computed += self.runner.processor_time - self._computed
        return sums

    def _tick(self, sums: _Sums) -> None:
        width, looked = self._pool.width, max(1, sums.looked)
        tick = Tick(
            seconds=sums.time / 1e9,
            waited=sums.waited / 1e9,
            samples=sums.samples,
            shards=min(1.0, sums.awaited / max(1, sums.read)),
            full=sums.full / looked,
            downloads=sums.downloads / looked,
            width=width.value,
            most_width=width.most,
            chunk_bytes=self._chunk_bytes,
            computed=sums.computed / 1e9,
            at_work=self._at_work(sums),
        )
        if self._tuner.is_latest(self._number):
            self._tuner.observe(self._rules, tick)
            self._apply(self._rules.values)

    def _at_work(self, sums: _Sums) -> float:
        """The part of the waiting in which the consumer's own thread had a processor, or waited for one."""
        if not sums.own:
            return 0.0
        had = max(1, time.thread_time_ns() - sums.thread)
        wanted = had + max(0, displaced_time() - sums.delayed)
        return min(1.0, sums.own * wanted / had / max(1, sums.looked))

    def _apply(self, values: Mapping[Knob, int]) -> None:
        self.threads, self.processes = values[Knob.READ_THREADS], values[Knob.READ_PROCESSES]
        self.chunks_ahead, self.lookahead = values[Knob.CHUNKS_AHEAD], values[Knob.PREDOWNLOAD]
        self._pool.tune_downloads(values[Knob.DOWNLOAD_THREADS])

    def end(self) -> None:
        """End the tuning of this iteration. The next iteration continues an unfinished trial, or withdraws it."""
        if not self._tuner.is_latest(self._number):
            return
        self._count()
        self._tuner.epoch_time = self._before + self._sums.time
        self._tuner.step_samples, self._tuner.chunk_bytes = self.step_samples, self._chunk_bytes
        self._tuner.kept = _Sums()
        if self._whole and self._sums.samples and not self._idle:
            sums = self._gather()
            if sums.time >= self._ends and sums.chunks >= self._rules.tick_chunks:
                self._tick(sums)
            else:
                self._tuner.kept = sums
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
