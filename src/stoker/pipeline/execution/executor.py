"""Chooses what executes the chunks of an iteration, and how many: threads or processes, as asked for or by measurement."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from stoker.cluster import LoaderWorker
from stoker.concurrency.threads import has_global_lock
from stoker.errors import ConfigError
from stoker.formats.base import RunIn
from stoker.formats.mds.encodings import others_registered
from stoker.formats.registry import get_format, is_own
from stoker.index.concat_index import ConcatIndex
from stoker.lazy import cached_property
from stoker.order.sample_order import Plan
from stoker.pipeline.batch_ring import Ring
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.execution.runner import InThreads, Runner
from stoker.pipeline.transforms import EpochReaderSettings, Override, loading_steps
from stoker.policy import FEW_LINES, parsers, processor_count, processors
from stoker.reading.shard_pool import ShardPool

if TYPE_CHECKING:  # imported where an iteration runs in processes, or may
    from stoker.pipeline.execution.chunk_process import ChunkTask, MakeRun
    from stoker.pipeline.execution.in_processes import InProcesses
    from stoker.pipeline.joins.other_dataset import OtherDataset

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_MOST: Final = 8
"""Processes where no number is given."""

ExecutedBy: TypeAlias = Literal["consumer", "threads", "processes"]
"""Samples are read by the thread that asks for them, by threads of its process, or by processes that stoker starts."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The choice of what reads samples and runs the functions of an iteration.

    Attributes:
        run_in: ``"consumer"`` (the thread that asks for samples), ``"threads"`` or ``"processes"``.
        workers: how many threads or processes, with a tuner as many as there are now; 0: the consumer's thread.
        reason: why.
    """

    run_in: ExecutedBy
    workers: int
    reason: str


class Executor:
    """Gives the iterations of a dataset the runner that executes their chunks.

    ``settings``: what is asked for. ``pool``: the dataset's shards. ``others``: datasets that are read next to it. ``ring``:
    memory that processes fill. ``execution``: the choice of the iteration that began last; ``None`` before the first one in
    this process. ``tuned``: processes that a tuner chose; 0: none did.
    """

    def __init__(
        self, settings: EpochReaderSettings, pool: ShardPool, others: Sequence[OtherDataset], ring: Ring
    ) -> None:
        self._settings, self._pool, self._others, self._ring = settings, pool, others, ring
        self.execution: Execution | None = None
        self._measured: Execution | None = None
        self._threads = self.tuned = 0

    def read_threads(self, worker: LoaderWorker, sharers: int, in_batches: Plan | None) -> int:
        """The threads that read ahead in an iteration.

        ``worker``: this process. ``sharers``: processes on this node that read through the same cache. ``in_batches``: what
        is to come, where batches are asked for.
        """
        settings, asked = self._settings, self._pool.options.read_threads
        if asked is not None:
            return asked
        if worker.token is not None:
            return 0
        if settings.steps and settings.only_tokenizes:
            return 1  # one thread at a time does
        if settings.steps and settings.calls_functions:
            return min(8, math.ceil(processors(1)))
        # Gathering takes less time than handing its result over from a thread; a transform may take any time, and text is
        # parsed without Python's lock.
        if in_batches is None or not self.parse_text:
            return 0
        return parsers(sharers) if in_batches.samples > FEW_LINES else 0

    def may_tune_threads(self, threads: int) -> bool:
        """Return whether a tuner may change the number of threads that read, which is ``threads`` without it.

        Code of others, which may not be thread-safe, is run by threads only where it is without a tuner. A tokenizer is
        called by one thread at a time.
        """
        settings = self._settings
        if self._pool.options.read_threads is not None or (settings.steps and settings.only_tokenizes):
            return False
        return threads > 0 or not (settings.calls_functions or self._decodes_foreign_code())

    @cached_property
    def parse_text(self) -> bool:
        """Return whether the shards of the dataset are lines of text."""
        index = self._pool.index
        parts = index.parts if isinstance(index, ConcatIndex) else (index,)
        return any(len(part) and get_format(part.shards[0].format).text for part in parts)

    def _decodes_foreign_code(self) -> bool:
        """Whether decoding may call code that is not stoker's: another package's format, an encoding, or unpickling."""
        if self._pool.options.allow_unsafe_types or others_registered():
            return True
        indexes = [self._pool.index, *(other.pool.index for other in self._others)]
        return not all(is_own(shard.format) for index in indexes for shard in index.distinct_shards)

    def plan(
        self, worker: LoaderWorker, threads: int, override: Override | None = None, *, as_columns: bool = False
    ) -> RunIn:
        """Choose where the functions of an iteration run; ``"auto"`` where that is measured.

        Args:
            worker: this process.
            threads: that there are if it is threads; 0: the consumer's.
            override: a method of a subclass.
            as_columns: whether batches are asked for, and not samples.

        Raises:
            ConfigError: processes are asked for, and can not be used here.
        """
        asked = self._pool.options.run_in
        self.execution = Execution("threads" if threads else "consumer", threads, f"run_in={asked!r}")
        if worker.token is not None:
            return self._stay("a DataLoader's worker reads by itself")
        if asked == "processes":
            if override is not None and (as_columns or self._settings.bad_samples is not None):
                raise ConfigError(
                    f"run_in='processes' and {'batches()' if as_columns else 'on_bad_sample='} do not go together with a "
                    "method of a subclass that makes samples, as it runs in the thread that asks for them: use transform= "
                    "instead of the method"
                )
            _check_may_start()
            self.execution = Execution("processes", self.processes, "run_in='processes'")
            return "processes"
        if asked == "threads":
            return "threads"
        unfit = self._unfit(threads, override)
        return self._stay(unfit) if unfit else "auto"

    def _stay(self, reason: str) -> RunIn:
        assert self.execution is not None
        self.execution = replace(self.execution, reason=reason)
        return "threads"

    def _unfit(self, threads: int, override: Override | None) -> str:
        """The reason for which nothing is to be measured; empty: there is none."""
        if not self._settings.calls_functions:
            return "the dataset has no functions to run"
        if not has_global_lock():
            return "this Python has no global lock, so that threads run functions at once"
        if override is not None:
            return "a method of a subclass makes the samples, in the thread that asks for them"
        if min(processor_count(), threads, self.processes) < 2:
            return "there is one processor, or one thread or process was asked for"
        if self._measured is not None and self._measured.run_in == "threads":
            return self._measured.reason
        try:
            _check_may_start()
        except ConfigError as error:
            return str(error)
        return ""

    @property
    def processes(self) -> int:
        """Processes, where it is processes that read."""
        return self.tuned or self.first_processes

    @property
    def first_processes(self) -> int:
        """Processes, where it is processes that read and no tuner has chosen how many."""
        return self._pool.options.read_processes or min(_MOST, processor_count())

    def resized(self, workers: int) -> None:
        """Note how many threads or processes there are by now; 0: the consumer's thread."""
        if self.execution is not None and self.execution.workers != workers:
            where = self.execution.run_in
            if where != "processes":
                where = "threads" if workers else "consumer"
            self.execution = replace(self.execution, run_in=where, workers=workers)

    def task(self, settings: EpochReaderSettings, epoch: int, *, as_columns: bool) -> ChunkTask:
        """The work of a process that reads chunks; args are those of the reader that does the same here."""
        from stoker.pipeline.execution.chunk_process import ChunkTask

        own = replace(settings, steps=loading_steps(settings.steps), transform=None)
        return ChunkTask(own, epoch, as_columns, settings.amounts.sharers * (1 + self.processes))

    def runner(
        self,
        execute: Callable[[Chunk], _T],
        run_in: RunIn,
        threads: int,
        task: Callable[[], ChunkTask],
        run: MakeRun | None,
    ) -> Runner[_T]:
        """The runner of an iteration in processes, or of one that measures.

        ``execute``: reads a chunk in the thread that calls it. ``run_in``, ``threads``: see :meth:`plan`. ``task``: the same
        as the work of a process. ``run``: makes the batches again, where samples may replace others.
        """
        from stoker.pipeline.execution.measured import Measured

        make = partial(self._in_processes, execute, task, run if self._settings.replaces else None)
        if run_in == "processes":
            return make()
        self._threads = threads
        if self._pool.options.start_method == "spawn" and (refused := _refused(task())):
            self._decided(False, False, refused)
            return InThreads(execute, threads)
        self.execution = Execution("threads", threads, "run_in='auto' has not measured enough yet")
        return Measured(
            execute,
            InThreads(execute, threads),
            make,
            self.processes,
            processor_count(),
            self._decided,
            before="" if self._measured is None else self._measured.reason,
        )

    def _in_processes(
        self, execute: Callable[[Chunk], _T], task: Callable[[], ChunkTask], run: MakeRun | None
    ) -> InProcesses[_T]:
        from stoker.pipeline.execution.in_processes import InProcesses

        return InProcesses(execute, self.processes, task(), self._pool, run, self._ring)

    def _decided(self, processes: bool, there: bool, reason: str) -> None:
        """Note a choice: processes or threads, and whether processes are there by now."""
        threads = Execution("threads", self._threads, reason)
        chosen = self._measured = Execution("processes", self.processes, reason) if processes else threads
        self.execution = chosen
        if processes and not there:
            self.execution = replace(threads, reason=f"{reason}; processes are being started")
        else:
            logger.info("run_in='auto' takes %s: %s", chosen.run_in, reason)


def _check_may_start() -> None:
    from stoker.pipeline.execution.in_processes import check_may_start

    check_may_start()


def _refused(task: ChunkTask) -> str:
    """The reason for which functions can not be sent to a fresh process; empty: there is none."""
    from stoker.pipeline.execution.in_processes import pickled_task

    try:
        pickled_task(task)
    except ConfigError as error:
        return str(error)
    main = sys.modules.get("__main__")
    for step in task.settings.steps:
        homes = (type(step).__module__, getattr(getattr(step, "function", None), "__module__", ""))
        if "__main__" in homes and not hasattr(main, "__file__"):
            return f"{step.name} was defined in an interactive session, which a fresh process has not"
    return ""
