"""The tuner of a reader, made when it may gain something: loops that are short, or read and compute only, never import it."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Final

from stoker.cluster import LoaderWorker
from stoker.concurrency.spans.thread_times import displaced_time
from stoker.pipeline.tuning.decision_log import DecisionLog
from stoker.policy import LITTLE_WAITING, ReadAmounts, tuned_memory
from stoker.reading.shard_pool import ShardPool

if TYPE_CHECKING:
    from stoker.pipeline.tuning.tuner import Tuner

FIRST: Final = 1_000_000_000
_MOST: Final = 16_000_000_000
"""Nanoseconds after which it is first seen whether a tuner is needed; twice as many each time that it is not, up to these."""


_reading: Final[weakref.WeakSet[LateTuner]] = weakref.WeakSet()
"""Those of the readers of this process that are at work."""


class LateTuner:
    """Makes the tuner of one reader when it is needed.

    Where the consumer's own thread reads files of this machine, steps are not cut, no trial begins in the first two seconds,
    and none while the thread computes: all that could be saved is waiting in which it does not. So before that is seen there
    is no tuner, and a step of reading costs what it does without one. Everywhere else it is there from the beginning.

    Args:
        pool: the open shards.
        log: lists its decisions.

    Attributes:
        due: the time (``perf_counter_ns``) from which it is to be asked whether the tuner :meth:`wakes`.
    """

    due: int

    def __init__(self, pool: ShardPool, log: DecisionLog) -> None:
        self._pool, self._log = pool, log
        self._tuner: Tuner | None = None
        self._budgets: dict[int, int] = {}
        self._wait, self._thread = FIRST, -1

    @property
    def tuner(self) -> Tuner:
        """The tuner, which is there from now on."""
        if self._tuner is None:
            from stoker.pipeline.tuning.tuner import Tuner

            self._tuner = Tuner(self._pool, self._log)
        return self._tuner

    def sleeps(self, amounts: ReadAmounts, *, ahead: bool) -> bool:
        """Whether an iteration that this thread begins now is not tuned before the tuner :meth:`wakes`.

        Args:
            amounts: what it reads ahead.
            ahead: whether threads or processes read.
        """
        if self._tuner is not None or ahead or not amounts.near:
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

    def budget(self, sharers: int, worker: LoaderWorker) -> int:
        """Bytes that this reader may use: of what was free when it was asked first, as tuning changes that.

        Of some readers of a process the first has what a process may use, the second half as much, the third a third: so
        many of them together have no more than a few times that, also where all begin at once.

        Args:
            sharers: processes on this node that read through the same cache.
            worker: this process.
        """
        if sharers not in self._budgets:
            _reading.add(self)
            given = self._pool.options.tuned_bytes
            self._budgets[sharers] = max(1, given // worker.count) if given else tuned_memory(sharers * len(_reading))
        return self._budgets[sharers]

    def most_chunk(self, amounts: ReadAmounts, worker: LoaderWorker) -> int:
        """Samples that a step of reading may have: an eighth of the memory."""
        return max(1, self.budget(amounts.sharers, worker) // max(1, amounts.sample_bytes) // 8)

    def __getstate__(self) -> dict[str, object]:
        # A spawned process begins anew.
        return {"pool": self._pool, "log": self._log}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__init__(**state)  # type: ignore[misc]
