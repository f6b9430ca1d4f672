"""The tuner of a reader: whether its pipelines are tuned, within which bounds and how much memory, and what it decided."""

from __future__ import annotations

import math
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from stoker.cluster import LoaderWorker
from stoker.concurrency.shared.counters import Counts
from stoker.concurrency.spans.thread_times import displaced_time
from stoker.policy import (
    LITTLE_WAITING,
    MOST_CHUNKS_AHEAD,
    MOST_TIMES_AHEAD,
    ReadAmounts,
    most_read_processes,
    most_read_threads,
    processors,
    tuned_memory,
)
from stoker.reading.shard_pool import ShardPool

if TYPE_CHECKING:  # loops that are short, or read and compute only, need no rules
    from stoker.pipeline.tuning.knobs import Knob, KnobChange, KnobRange, MemoryUse
    from stoker.pipeline.tuning.rules import Controller
    from stoker.pipeline.tuning.tuned_run import TunedRun, Tuning

FIRST: Final = 1_000_000_000
_MOST: Final = 16_000_000_000
"""Nanoseconds after which it is first seen whether a tuner is needed; twice as many each time that it is not, up to these."""

_reading: Final[weakref.WeakSet[Tuner]] = weakref.WeakSet()
"""Those of the readers of this process that are at work."""


class Tuner:
    """Tunes the pipelines of one reader, one after the other: what was found in an epoch holds in the next.

    Where the consumer's own thread reads files of this machine, steps are not cut, no trial begins in the first two seconds,
    and none while the thread computes: all that could be saved is waiting in which it does not. So before that is seen the
    tuner sleeps, without rules, and a step of reading costs what it does without one. Everywhere else it is awake from the
    beginning.

    ``pool``: the open shards. ``due``: while it sleeps, the time (``perf_counter_ns``) from which it is to be asked whether
    it :meth:`wakes`.
    """

    due: int

    def __init__(self, pool: ShardPool) -> None:
        self._pool = pool
        self._budgets: dict[int, int] = {}
        self._wait, self._thread = FIRST, -1
        self._given: tuple[Mapping[Knob, KnobRange], MemoryUse, float, int | None] | None = None
        self._tuning: Tuning | None = None

    # -- asleep --------------------------------------------------------------------------------------------------------

    def sleeps(self, amounts: ReadAmounts, *, ahead: bool) -> bool:
        """Whether an iteration that this thread begins now is not tuned before the tuner :meth:`wakes`.

        ``amounts``: what it reads ahead. ``ahead``: whether threads or processes read.
        """
        if self._tuning is not None or ahead or not amounts.near:
            return False
        if self._thread != threading.get_ident():
            self._mark()
        return True

    def wakes(self) -> bool:
        """Whether this thread may have waited for data, with nothing to compute, for more than a little of the time; puts off
        :attr:`due` where not."""
        took = time.perf_counter_ns() - self._from
        wanted = time.thread_time_ns() + displaced_time() - self._wanted
        waited = self._pool.counts.waited_here - self._waited
        # Less than nothing in a forked child, whose thread is another.
        if wanted >= 0 and min(waited, took - wanted) > LITTLE_WAITING * took:
            return True
        self._wait = min(2 * self._wait, _MOST)
        self._mark()
        return False

    def _mark(self) -> None:
        """Look on from here."""
        self._thread = threading.get_ident()
        self._wanted = time.thread_time_ns() + displaced_time()
        self._waited = self._pool.counts.waited_here
        self._from = time.perf_counter_ns()
        self.due = self._from + self._wait

    # -- memory --------------------------------------------------------------------------------------------------------

    def budget(self, sharers: int, worker: LoaderWorker) -> int:
        """Bytes that this reader may use: of what was free when it was asked first, as tuning changes that.

        Of some readers of a process the first has what a process may use, the second half as much, the third a third: so
        many of them together have no more than a few times that, also where all begin at once.

        ``sharers``: processes on this node that read through the same cache. ``worker``: this process.
        """
        if sharers not in self._budgets:
            _reading.add(self)
            given = self._pool.options.tuned_bytes
            self._budgets[sharers] = max(1, given // worker.count) if given else tuned_memory(sharers * len(_reading))
        return self._budgets[sharers]

    def most_chunk(self, amounts: ReadAmounts, worker: LoaderWorker) -> int:
        """Samples that a step of reading may have: an eighth of the memory."""
        return max(1, self.budget(amounts.sharers, worker) // max(1, amounts.sample_bytes) // 8)

    # -- awake ---------------------------------------------------------------------------------------------------------

    def begin(
        self,
        amounts: ReadAmounts,
        *,
        batch_size: int,
        chunk_bytes: int,
        threads: int,
        tune_threads: bool,
        processes: int,
        tune_processes: bool,
        worker: LoaderWorker,
    ) -> TunedRun:
        """Begin to tune a pipeline; the one before is tuned no more.

        ``amounts``: what it reads ahead untuned. ``batch_size``: of its rank. ``chunk_bytes``: bytes of a step of reading,
        about. ``threads``, ``processes``: that read at the beginning, or may be chosen to. ``tune_threads``: whether there
        may be more or less of them. ``tune_processes``: whether there may be more. ``worker``: this process.
        """
        from stoker.pipeline.tuning.knobs import Knob, KnobRange, MemoryUse
        from stoker.pipeline.tuning.tuned_run import Tuning

        sharers = amounts.sharers
        budget = self.budget(sharers, worker)
        memory = MemoryUse(budget, max(1, chunk_bytes), amounts.sample_bytes if amounts.held else 0)
        far = any(cache.store is not None for cache in self._pool.caches)
        most_processes = max(processes, most_read_processes(sharers))
        ranges = {
            Knob.READ_THREADS: KnobRange(threads, most_read_threads(sharers), step=2, fixed=not tune_threads),
            Knob.CHUNKS_AHEAD: KnobRange(1, MOST_CHUNKS_AHEAD, fixed=not (threads or tune_threads)),
            Knob.PREDOWNLOAD: KnobRange(
                *_lookahead(amounts, batch_size, memory), fixed=amounts.predownload is not None
            ),
            Knob.DOWNLOAD_THREADS: KnobRange(0, sys.maxsize, fixed=not far or self._pool.width.fixed is not None),
            Knob.READ_PROCESSES: KnobRange(processes, most_processes, fixed=not tune_processes),
        }
        number = None if worker.token is None else worker.number
        given = ranges, memory, processors(sharers), number
        if self._tuning is None or self._given != given:
            self._given = given
            note = partial(note_decision, self._pool.counts, worker=number)
            self._tuning = Tuning(self.rules(ranges, memory), self._pool, note, far=far)
        return self._tuning.begin()

    def rules(self, ranges: Mapping[Knob, KnobRange], memory: MemoryUse) -> Controller:
        """New rules for a pipeline."""
        from stoker.pipeline.tuning.rules import Controller

        return Controller(ranges, memory, math.inf if self._given is None else self._given[2])

    def __getstate__(self) -> dict[str, object]:
        # A spawned process begins anew.
        return {"pool": self._pool}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(**state)  # type: ignore[misc]


def _lookahead(amounts: ReadAmounts, batch_size: int, memory: MemoryUse) -> tuple[int, int]:
    """Samples ahead whose shards are fetched: at the beginning, and at most."""
    usual = amounts.lookahead(batch_size)
    if amounts.predownload is not None:
        return usual, usual
    if not memory.sample_bytes:
        return usual, MOST_TIMES_AHEAD * usual
    most = max(batch_size, memory.budget // memory.sample_bytes)
    # Half of the memory at first: what else needs some is not known.
    return max(batch_size, min(usual, most // 2)), most


# -- decisions ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TuningDecision:
    """A value that a tuner tried, and kept or withdrew.

    Attributes:
        setting: ``"read_threads"``, ``"read_processes"``, ``"chunks_ahead"``, ``"predownload"`` or ``"download_threads"``.
        before: its value before.
        after: its value in the trial.
        kept: whether it stays.
        why: what the trial was for.
        gain: the part of the time of a sample that it saved; negative: that it cost.
        samples: that the process had read before.
        seconds: since its tuner began.
        worker: the DataLoader worker whose tuner it is; ``None``: that of the process that has the dataset.
    """

    setting: str
    before: int
    after: int
    kept: bool
    why: str
    gain: float
    samples: int
    seconds: float
    worker: int | None


def note_decision(counts: Counts, change: KnobChange, *, samples: int, seconds: float, worker: int | None) -> None:
    """Note a decision of this process among the counts of a dataset."""
    why = [*type(change.why)].index(change.why)
    told = (change.knob, change.before, change.after, change.kept, why, round(1e6 * change.gain), samples)
    counts.decided(*told, round(1e6 * seconds), -1 if worker is None else worker)


def decisions(counts: Counts) -> tuple[TuningDecision, ...]:
    """The latest of each process that shares a dataset object, in their order, DataLoader workers last."""
    noted = counts.decisions()
    if not noted:
        return ()
    from stoker.pipeline.tuning.knobs import Knob, Why

    found: list[TuningDecision] = []
    reasons = [why.value for why in Why]
    for knob, before, after, kept, why, gain, samples, seconds, worker in noted:
        setting, by = Knob(knob).name.lower(), None if worker < 0 else worker
        found.append(
            TuningDecision(setting, before, after, bool(kept), reasons[why], gain / 1e6, samples, seconds / 1e6, by)
        )
    return tuple(sorted(found, key=lambda one: (-1 if one.worker is None else one.worker, one.seconds)))
