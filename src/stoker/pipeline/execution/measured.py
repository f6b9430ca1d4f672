"""Executes the first chunks in threads and measures them, and the rest in threads or processes, whichever get more done."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, TypeVar

from stoker.concurrency.spans.thread_times import own_time
from stoker.errors import StokerError
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.execution.hand_over import pack, unpack
from stoker.pipeline.execution.in_processes import InProcesses
from stoker.pipeline.execution.runner import InThreads

CLEARLY: Final = 1.3
"""Processes are taken where they get this many times as much done as threads."""

_AT_ONCE: Final = 1.3
"""Threads that are busy at once, on average, in a burst that says something."""

_COMPUTES: Final = 0.1
"""The part of its time for which a thread computes, from which on that part tells how much it did."""


@dataclass(frozen=True, slots=True)
class Burst:
    """Chunks that threads read at once.

    Attributes:
        took: nanoseconds of the thread that took longest.
        busy: nanoseconds of all threads together.
        computed: nanoseconds of the processor, of all together.
    """

    rows: int
    took: int
    busy: int
    computed: int


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of the chunks that were measured.

    Attributes:
        alone: nanoseconds a sample, of chunks that one thread read alone.
        share: the part of them in which the thread computed.
        bursts: of several threads.
        packed, unpacked: nanoseconds a sample to send a result from a process, and to receive it.
    """

    alone: float
    share: float
    bursts: Sequence[Burst]
    packed: float
    unpacked: float

    def of_threads(self, threads: int) -> float:
        """The number of times that so many threads get as much done as one.

        Functions that hold Python's lock take turns: a burst takes as long as its chunks one after the other. Where they
        release it, as many are done at once as threads were busy, on average. In between, the part of the way is taken.
        What a burst did is told by its time of the processor, as samples differ: other samples take another time. Functions
        that wait for something else take hardly any, and are counted by their samples.
        """
        best = 0.0
        for burst in self.bursts:
            at_once = burst.busy / burst.took
            if at_once > _AT_ONCE:
                done = burst.computed / self.share if self.share >= _COMPUTES else self.alone * burst.rows
                best = max(best, (done / burst.took - 1) / (at_once - 1))
        return 1.0 + min(1.0, best) * (threads - 1)

    def of_processes(self, processes: int, processors: int) -> float:
        """The number of times that so many processes get as much done as one thread.

        What each does is packed there, and unpacked by one thread here.
        """
        each = self.alone + self.packed
        most = (processes / each, processors / (each + self.unpacked), 1 / max(self.unpacked, 1e-9))
        return self.alone * min(most)


logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_LEAST: Final = 4
"""Chunks of a burst at least."""

_ENOUGH: Final = 200_000_000
"""Nanoseconds of bursts that are enough to judge by."""

_ROUNDS: Final = 4
"""Bursts at most."""

_TRIED: Final = 4
"""Chunks of each process after which it is judged what they really get done."""


class _Burst(Generic[_T]):
    """Chunks that are read at once when the first of them is asked for."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.results: list[Future[tuple[_T, int, int, int]]] = []


class Measured(Generic[_T]):
    """Executes chunks in threads, and in processes once these are there, if they get clearly more done.

    The first chunk warms up. Then a chunk is read alone, and several at once, in turns; while the consumer waits, so that it
    does not disturb them. What a result costs to send and to receive is measured with a real one. Processes are started
    beside the threads, which go on until they are ready.

    Args:
        execute: reads a chunk in the thread that calls it.
        threads: executes chunks in threads.
        processes: makes what executes chunks in processes, or raises an error where it can not.
        count: processes that there would be.
        processors: that this process may use.
        decided: is told whether processes were chosen, whether they execute by now, and why.
        before: the reason for which they were chosen in an earlier iteration; empty: measure.
    """

    def __init__(
        self,
        execute: Callable[[Chunk], _T],
        threads: InThreads[_T],
        processes: Callable[[], InProcesses[_T]],
        count: int,
        processors: int,
        decided: Callable[[bool, bool, str], None],
        *,
        before: str = "",
    ) -> None:
        self._execute, self._threads, self._make = execute, threads, processes
        self._count, self._processors, self._decided = count, processors, decided
        self._processes: InProcesses[_T] | None = None
        self._active = self._judged = False
        self._reason, self._measures = before, not before
        self._size = max(_LEAST, threads.workers)
        self._number = 0
        self._burst: _Burst[_T] = _Burst()
        self._bursts: list[Burst] = []
        self._costs: list[tuple[float, float, float]] = []
        self._took = self._computed = 0
        self._of_threads = self._alone_took = 0.0
        if before:
            self._start()

    @property
    def workers(self) -> int:
        """See :class:`~stoker.pipeline.execution.runner.Runner`."""
        return self._runner.workers

    @property
    def reads_here(self) -> bool:
        """See :class:`~stoker.pipeline.execution.runner.Runner`."""
        return not self._active

    @property
    def in_processes(self) -> bool:
        """See :class:`~stoker.pipeline.execution.runner.Runner`."""
        return self._active

    @property
    def changing(self) -> bool:
        """See :class:`~stoker.pipeline.execution.runner.Runner`."""
        starting = self._processes is not None and not self._active and not self._judged
        return self._measures or starting or self._runner.changing

    @property
    def processor_time(self) -> int:
        """See :class:`~stoker.pipeline.execution.runner.Runner`."""
        return self._runner.processor_time

    @property
    def ahead(self) -> int:
        """See :class:`~stoker.pipeline.execution.runner.Runner`; a whole burst while it is measured."""
        return self._size - 1 if self._measures else self._runner.ahead

    @property
    def _runner(self) -> InThreads[_T] | InProcesses[_T]:
        return self._processes if self._active and self._processes is not None else self._threads

    def submit(self, chunk: Chunk) -> Callable[[], _T]:
        """See :class:`~stoker.pipeline.execution.runner.Runner`."""
        if not self._measures:
            self._look()
            return self._runner.submit(chunk)
        number, self._number = self._number, self._number + 1
        if not number:
            return partial(self._execute, chunk)
        turn = (number - 1) % (1 + self._size)
        if not turn:
            return partial(self._alone, chunk)
        if turn == 1:
            self._burst = _Burst()
        self._burst.chunks.append(chunk)
        return partial(self._of_burst, self._burst, turn - 1)

    def done_with(self, shard: int) -> None:
        """See :class:`~stoker.pipeline.execution.runner.Runner`."""
        if self._processes is not None:
            self._processes.done_with(shard)

    def resize(self, workers: int) -> None:
        """See :class:`~stoker.pipeline.execution.runner.Runner`."""
        self._runner.resize(workers)

    def keep_ready(self, chunks: int) -> None:
        """See :class:`~stoker.pipeline.execution.runner.Runner`."""
        self._runner.keep_ready(chunks)

    def close(self) -> None:
        """See :class:`~stoker.pipeline.execution.runner.Runner`."""
        self._threads.close()
        if self._processes is not None:
            self._processes.close()

    # -- measuring -------------------------------------------------------------------------------------------------

    def _alone(self, chunk: Chunk) -> _T:
        found, _, took, computed = self._timed(chunk)
        self._took += took
        self._computed += computed
        ends = [own_time()]
        try:
            parcel, data = pack(found, None)
            ends.append(own_time())
            unpack(parcel, None if data is None else bytes(data))
            ends.append(own_time())
        except Exception as error:  # noqa: BLE001 - any class may refuse
            self._decide(False, f"what the functions return can not be sent from a process: {error}")
            return found
        rows = len(chunk.rows)
        self._costs.append((took / rows, (ends[1] - ends[0]) / rows, (ends[2] - ends[1]) / rows))
        return found

    def _of_burst(self, burst: _Burst[_T], number: int) -> _T:
        if not burst.results:
            self._run(burst)
        return burst.results[number].result()[0]

    def _timed(self, chunk: Chunk) -> tuple[_T, int, int, int]:
        """A chunk's result, the thread, how long it took, and the time of the processor."""
        begun, computed = own_time(), time.thread_time_ns()
        found = self._execute(chunk)
        return found, threading.get_ident(), own_time() - begun, time.thread_time_ns() - computed

    def _run(self, burst: _Burst[_T]) -> None:
        burst.results = [self._threads.run(partial(self._timed, chunk)) for chunk in burst.chunks]
        failed = [result for result in burst.results if result.exception() is not None]
        if failed or len(burst.chunks) < self._size or not self._measures:
            return
        rows = sum(len(chunk.rows) for chunk in burst.chunks)
        took: Counter[int] = Counter()
        computed = 0
        for result in burst.results:
            _, thread, nanoseconds, of_processor = result.result()
            took[thread] += nanoseconds
            computed += of_processor
        self._bursts.append(Burst(rows, max(took.values()), took.total(), computed))
        enough = len(self._bursts) > 1 and sum(one.took for one in self._bursts) >= _ENOUGH
        if enough or len(self._bursts) == _ROUNDS:
            self._judge()

    def _judge(self) -> None:
        alone, packed, unpacked = (min(found) for found in zip(*self._costs, strict=True))
        costs = Costs(alone, self._computed / self._took, self._bursts, packed, unpacked)
        threads, count = self._threads.workers, self._count
        self._of_threads = costs.of_threads(threads)
        of_processes = costs.of_processes(count, self._processors)
        told = (
            f"a sample takes {alone / 1e3:.0f} µs, and {(packed + unpacked) / 1e3:.0f} µs to hand over; {threads} threads "
            f"get {self._of_threads:.2f} times as much done as one, {count} processes would {of_processes:.2f} times"
        )
        self._alone_took = alone
        if of_processes > CLEARLY * self._of_threads:
            self._reason = told
            self._measures = False
            self._start()
        else:
            self._decide(False, told)

    def _decide(self, processes: bool, reason: str) -> None:
        self._measures, self._active = False, processes
        self._decided(processes, processes, reason)

    # -- processes -------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._decided(True, False, self._reason)
        try:
            self._processes = self._make()
        except StokerError as error:
            self._decide(False, f"{self._reason}; but: {error}")

    def _look(self) -> None:
        """Go over to processes that are ready, and back if they get no more done than threads did."""
        processes = self._processes
        if processes is None or self._judged:
            return
        if not self._active:
            try:
                if processes.ready:
                    self._decide(True, self._reason)
            except StokerError as error:
                logger.warning("run_in='auto' stays with threads: %s", error)
                self._give_up(f"{self._reason}; but: {error}")
            return
        if processes.chunks < _TRIED * processes.workers:
            return
        self._judged = True
        if not self._of_threads:  # was judged in an earlier iteration
            return
        gain = processes.workers * self._alone_took * processes.rows / processes.busy
        if gain < self._of_threads:
            tried = (
                f"{self._reason}; but {processes.workers} processes were tried, and got {gain:.2f} times as much done"
            )
            processes.resize(0)
            self._give_up(tried)

    def _give_up(self, reason: str) -> None:
        self._judged = True
        self._decide(False, reason)
