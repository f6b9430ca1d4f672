"""One iteration of a pipeline that is tuned: what is seen of it between chunks, and the values that hold in it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stoker.concurrency.spans.thread_times import displaced_time
from stoker.pipeline.columns import bytes_of
from stoker.pipeline.execution.runner import Runner
from stoker.pipeline.tuning.knobs import Knob, Tick
from stoker.pipeline.tuning.rules import Controller
from stoker.policy import STEP_SECONDS
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


@dataclass(slots=True)
class _Sums:
    """Sums of the measurements that become the next tick.

    Attributes:
        samples, chunks: that the consumer got, and steps of reading that were looked at.
        time, waited: nanoseconds, and those for which the consumer waited.
        looked: those of the waiting that was looked at.
        own: those of them for which the consumer's thread computed.
        full, downloads: those of them in which the lookahead was full, and in which all downloads ran that may.
        counted: what :meth:`TunedRun._counters` counted meanwhile.
    """

    samples: int = 0
    chunks: int = 0
    time: int = 0
    waited: int = 0
    looked: int = 0
    own: int = 0
    full: int = 0
    downloads: int = 0
    counted: tuple[int, ...] = (0, 0, 0, 0, 0)


class Tuning:
    """The tuning of one pipeline in one epoch after the other: what was found in an epoch holds in the next.

    ``rules``: choose the values. ``pool``: the open shards. ``note``: lists a change that was decided, with the samples and
    seconds before. ``far``: whether any shard is fetched.

    Attributes:
        latest: number of the iteration that was begun last, which alone is tuned. Not the iteration itself, which refers to
            this: a circle would keep the pool's files open.
        kept: sums of short epochs, which are no tick yet.
        epoch_time: nanoseconds of the latest epoch.
        chunk_bytes, step_samples: bytes of a step of reading, and samples that one may have, as they were at its end.
        samples, seconds: of all ticks.
    """

    def __init__(self, rules: Controller, pool: ShardPool, note: Callable[..., None], *, far: bool) -> None:
        self.rules, self.pool, self.far = rules, pool, far
        self._note = note
        self.latest = self.epoch_time = self.chunk_bytes = self.samples = 0
        self.seconds = 0.0
        self.step_samples = sys.maxsize
        self.kept = _Sums()

    def begin(self) -> TunedRun:
        """Begin to tune an iteration; the one before is tuned no more."""
        # The first epoch fetches, the next finds what it has fetched. From then on all are alike.
        goes_on = self.latest > 1
        whole = goes_on and self.epoch_time < _SHORT_EPOCH
        self.rules.restarted(goes_on=goes_on, settles=not whole)
        self.latest += 1
        return TunedRun(self, self.kept if whole else None)

    def observe(self, tick: Tick) -> None:
        """Hand a tick to the rules, and list what they decide."""
        self.samples += tick.samples
        self.seconds += tick.seconds
        for change in self.rules.observe(tick):
            self._note(change, samples=self.samples, seconds=self.seconds)


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

    runner: Runner[Any] | None = None

    def __init__(self, tuning: Tuning, kept: _Sums | None) -> None:
        self._tuning, self._number, self._rules, self._pool = tuning, tuning.latest, tuning.rules, tuning.pool
        self._whole, self._sums = kept is not None, kept or _Sums()
        self._before = -self._sums.time
        self._usual = 0.0
        self._in_processes: bool | None = None
        self.step_samples, self._chunk_bytes = tuning.step_samples, tuning.chunk_bytes
        self._apply(self._rules.values)
        self._own = -1
        self.samples = self.waited = 0
        self._mark()

    @property
    def _is_latest(self) -> bool:
        return self._tuning.latest == self._number

    def _mark(self) -> None:
        """Begin to count from here, up to the end of a tick."""
        rules = self._rules
        self._idle, self._rests = rules.idle, rules.idle or rules.rests
        self._ends = round(1e9 * rules.tick_seconds)
        self._look = min(_LOOK, self._ends // rules.tick_chunks)
        most, each = rules.tick_limit
        self._most, self._most_each = 1e9 * most, 1e9 * each
        # Where the consumer's thread reads, and others might: it is measured what it computes.
        self._clocked = not (self._rests or self.threads or self.processes)
        self._begun, self._read_samples = self._counters(), self._pool.times.samples
        self._from = self.last = time.perf_counter_ns()
        self.due = self.last + self._ends - self._sums.time if self._rests else 0

    def _counters(self) -> tuple[int, ...]:
        """Nanoseconds of reading, and of waiting for shards in it; of processors; and of the consumer's thread, if it is
        clocked: for which it had a processor, and for which others had those that it could run on."""
        times = self._pool.times
        if self._rests:
            return times.read, times.awaited, 0, 0, 0
        computed = time.process_time_ns() if self.runner is None else self.runner.processor_time
        of_thread = (time.thread_time_ns(), displaced_time()) if self._clocked else (0, 0)
        return times.read, times.awaited, computed, *of_thread

    def _count(self) -> None:
        """Add steps that were only counted to the sums."""
        sums = self._sums
        sums.samples += self.samples
        sums.waited += self.waited
        sums.time += self.last - self._from
        self._from, self.samples, self.waited = self.last, 0, 0

    def _begin_tick(self) -> bool:
        """Begin another tick. Returns whether values may have changed."""
        self._before += self._sums.time
        self._sums = _Sums()
        self._mark()
        return not self._idle

    def takes(self) -> None:
        """Note that the consumer asks for a chunk."""
        self._own = time.thread_time_ns() if self._clocked else 0

    def took(self, samples: int, waited: int, found: object, *, full: bool) -> bool:
        """Note that the consumer has got a chunk of so many samples, for which it has waited so many nanoseconds.

        ``found``: what was made of it. ``full``: whether the lookahead was full. Gives whether values may have changed.
        """
        assert self.runner is not None
        own, self._own = self._own, -1
        now, sums = time.perf_counter_ns(), self._sums
        self._count()
        busy = now - self.last - waited
        self._from = self.last = now
        pauses = busy > _PAUSE and busy > _TIMES * self._usual
        self._usual += _WEIGHT * (busy - self._usual)
        if pauses or self.runner.changing:
            self._begin_tick()
            return False
        if self.runner.in_processes is not self._in_processes and self._is_other_runner(self.runner.in_processes):
            return self._begin_anew()
        sums.samples += samples
        sums.time += busy + waited
        sums.waited += waited
        left = (_TOO_LONG * _SHORT_EPOCH - self._before if self._whole else self._ends) - sums.time
        self.due = now + (left if self._rests else min(left, self._look) if busy + waited < _SHORT_STEP else 0)
        self._limit_step(sums)
        if not self._idle and not sums.chunks % _LOOKED_AT:
            self._see_bytes(found)
        if not self._idle and own >= 0:
            sums.looked += waited
            sums.own += time.thread_time_ns() - own if self._clocked and waited else 0
            sums.full += waited * full
            sums.downloads += waited * self._pool.saturated
        sums.chunks += 1
        if self._whole:
            if left > 0:
                return False
            self._whole = False
            return self._begin_anew()
        lasts = left > 0 or sums.chunks < self._rules.tick_chunks
        if lasts and sums.time <= self._most + sums.samples * self._most_each:
            return False
        self._tick()
        return self._begin_tick()

    def _begin_anew(self) -> bool:
        """Measure anew, as what was measured is no base for what comes. Returns whether values may have changed."""
        if self._is_latest:
            self._rules.restarted(goes_on=False, settles=True)
            self._apply(self._rules.values)
        return self._begin_tick()

    def _is_other_runner(self, in_processes: bool) -> bool:
        """See whether threads or processes read. Returns whether the others did before."""
        before, self._in_processes = self._in_processes, in_processes
        self._rules.bar(*((Knob.READ_THREADS, Knob.CHUNKS_AHEAD) if in_processes else (Knob.READ_PROCESSES,)))
        return before is not None

    def _limit_step(self, sums: _Sums) -> None:
        """Cut steps by the time that a sample takes to be read, and between the samples that the consumer gets.

        Where the consumer reads what is at hand, nobody shares the work, and nothing waits: smaller steps cost its time.
        Steps of threads come in bursts, so what a tick says at its beginning is taken only where nothing else is known.
        """
        if not (self._tuning.far or (self.runner is not None and self.runner.workers)):
            self.step_samples = sys.maxsize
        elif sums.time >= self._ends or self.step_samples == sys.maxsize:
            times, (read, awaited, *_) = self._pool.times, self._begun
            took = times.read - read - (times.awaited - awaited)
            each = max(took / max(1, times.samples - self._read_samples), sums.time / sums.samples)
            self.step_samples = max(1, int(1e9 * STEP_SECONDS / max(1.0, each)))

    def _see_bytes(self, found: object) -> None:
        columns = getattr(found, "values", None)
        if isinstance(columns, dict | list):  # of samples that are made one by one nothing waits
            self._chunk_bytes = max(bytes_of(columns), self._chunk_bytes - self._chunk_bytes // _LOOKED_AT)

    def _gather(self) -> None:
        """Add to the sums what threads and processes did since they were begun here."""
        counted = zip(self._sums.counted, self._counters(), self._begun, strict=True)
        self._sums.counted = tuple(before + now - then for before, now, then in counted)

    def _tick(self) -> None:
        """Hand the sums to the rules as a tick, unless they may change nothing."""
        if self._idle:
            return
        self._gather()
        sums, width, looked = self._sums, self._pool.width, max(1, self._sums.looked)
        read, awaited, computed, had, displaced = sums.counted
        tick = Tick(
            seconds=sums.time / 1e9,
            waited=sums.waited / 1e9,
            samples=sums.samples,
            shards=min(1.0, awaited / max(1, read)),
            full=sums.full / looked,
            downloads=sums.downloads / looked,
            width=width.value,
            most_width=width.most,
            chunk_bytes=self._chunk_bytes,
            computed=computed / 1e9,
            at_work=min(1.0, sums.own * (1 + max(0, displaced) / max(1, had)) / looked),
        )
        if self._is_latest:
            self._tuning.observe(tick)
            self._apply(self._rules.values)

    def _apply(self, values: Mapping[Knob, int]) -> None:
        self.threads, self.processes = values[Knob.READ_THREADS], values[Knob.READ_PROCESSES]
        self.chunks_ahead, self.lookahead = values[Knob.CHUNKS_AHEAD], values[Knob.PREDOWNLOAD]
        self._pool.tune_downloads(values[Knob.DOWNLOAD_THREADS])

    def end(self) -> None:
        """End the tuning of this iteration. The next iteration continues an unfinished trial, or withdraws it."""
        tuning = self._tuning
        if not self._is_latest:
            return
        self._count()
        tuning.epoch_time = self._before + self._sums.time
        tuning.step_samples, tuning.chunk_bytes, tuning.kept = self.step_samples, self._chunk_bytes, _Sums()
        if self._whole and self._sums.samples and not self._idle:
            if self._sums.time >= self._ends and self._sums.chunks >= self._rules.tick_chunks:
                self._tick()
            else:
                self._gather()
                tuning.kept = self._sums
        self._apply(self._rules.confirmed_values)
