"""``RangeSource``: the ranges of an epoch that one worker reads; one kind for each way to divide work among workers."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from stoker.concurrency.shared.counters import Count
from stoker.coordination import LeasedSplit
from stoker.errors import ConfigError, SampleError
from stoker.order.global_batches import WorkerRemainder
from stoker.order.sample_order import SampleOrder
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.state.checkpoint import Checkpoint, CheckpointKind
from stoker.pipeline.workers.adaptive import Splits
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.sample_source import EpochRun, SampleSource, in_order
from stoker.types import Ids

# Samples that are read in one step, where they are delivered one by one.
_CHUNK: Final = 64
# So many steps ahead of the one that is read, shards are fetched.
STEPS_AHEAD: Final = 64


@dataclass(frozen=True, slots=True)
class SampleChunk:
    """Samples of a range, or one batch of them, on their way to the consumer.

    Attributes:
        begin: number of the first, as the source counts.
        end: one past that of the last.
        count: samples in it, of this worker; those that are left out count.
        samples: an entry for each place, to be delivered one by one; :data:`~stoker.reading.steps.LEFT_OUT` where none is,
            :class:`~stoker.reading.steps.SeveralSamples` where there are several.
        batch: the batch, where ``samples`` is ``None``.
        split: the lease that it is of.
        bad: number of each bad sample among its places, rising, and its error.
        kept: numbers of the places of which samples are in the batch; ``None``: all.
    """

    begin: int
    end: int
    count: int
    samples: list[Any] | None = None
    batch: Any = None
    split: LeasedSplit | None = None
    bad: Sequence[tuple[int, SampleError]] = ()
    kept: Ids | None = None


class RangePart(NamedTuple):
    """Positions that are read in one step.

    Attributes:
        begin, end: positions ``[begin, end)`` of the epoch.
        numbers: that of the first, and one past that of the last, as the source counts.
        split: the lease that they are of.
    """

    begin: int
    end: int
    numbers: tuple[int, int]
    split: LeasedSplit | None = None


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """A worker's progress, as a checkpoint has it.

    Attributes:
        processed: its positions that are done, as rising ``(begin, end)``.
        state: the source's part of the checkpoint.
    """

    epoch: int
    processed: tuple[tuple[int, int], ...]
    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """A checkpoint to resume from, and how.

    Attributes:
        checkpoint: the checkpoint; its kind is the source's, and its rank was checked.
        rollback: whether commits that the coordinator has and the checkpoint lacks are undone.
        attempt: another number each time that a run goes back to the same checkpoint.
    """

    checkpoint: Checkpoint
    rollback: bool = False
    attempt: int = 0


class RangeSource(ABC):
    """One worker's ranges, epoch after epoch.

    :class:`~stoker.pipeline.workers.worker_reader.WorkerReader` reads and delivers them. A source numbers its samples as it
    likes, rising from 0 in each epoch; the reader keeps the number of the next one to be delivered and hands it in.

    ``sample_source``: where samples come from. ``sample_order``: which sample comes when. ``config``: the worker's settings.

    Attributes:
        kind: kind of its checkpoints.
        per_rank: whether a checkpoint is of one rank of one world size.
        leases: whether a coordinator hands out the ranges: each delivery is announced (:meth:`deliver`), and a checkpoint is
            read from the coordinator, which takes time.
        epoch: the epoch that is delivered.
    """

    kind: ClassVar[CheckpointKind]
    per_rank: ClassVar[bool] = True
    leases: ClassVar[bool] = False
    epoch: int

    def __init__(self, sample_source: SampleSource, sample_order: SampleOrder, config: StreamingConfig) -> None:
        self._sample_source = sample_source
        self._config = config
        self.sample_order = sample_order

    @abstractmethod
    def __len__(self) -> int:
        """Samples, or batches, of an epoch."""

    @abstractmethod
    def chunks(self, at: int, closing: threading.Event) -> Iterator[SampleChunk]:
        """Everything from number ``at`` to the epoch's end.

        Called in the consumer's thread; the iterator is used in the reading thread. It must not refer to the source, or a
        forgotten loader would not end its thread.

        ``at``: number of the first sample that was not delivered, as :meth:`reopen` gave it. ``closing``: set when no more is
        wanted.
        """

    @abstractmethod
    def progress(self, at: int, *, finished: bool) -> WorkerProgress:
        """The worker's progress when all before number ``at`` is delivered, and the end of the epoch if ``finished``."""

    @abstractmethod
    def advance(self) -> None:
        """Go to the beginning of the next epoch."""

    @abstractmethod
    def restore(self, request: RestoreRequest) -> int:
        """Go to where a checkpoint was taken; returns the number of the next sample.

        StateError if it is of another dataset, order or settings; says what differs.
        """

    def step_samples(
        self,
        step: int,  # noqa: ARG002 - nobody knows
        rank: int | None,  # noqa: ARG002
        epoch: int | None,  # noqa: ARG002
        *,
        since_resume: bool = False,  # noqa: ARG002
    ) -> Ids:
        """The ids of the samples in a step; see :meth:`stoker.StreamingShardLoader.ids_of`.

        ConfigError if it is not settled before it is delivered; or there is no such step, rank or epoch.
        """
        raise ConfigError(
            "ids_of: of leased work it is settled on the way which worker gets which samples, and a replay follows its "
            "record: ids= of the dataset delivers the id of each, last_positions() positions, assignment() who had which"
        )

    @property
    def remainder(self) -> WorkerRemainder:
        """The behaviour of ranks that run out before others: see ``StreamingConfig.remainder``."""
        return "uneven"

    @property
    def capacity(self) -> int:
        """Capacity of the buffer, in samples; 0: nothing is read ahead."""
        return self._config.prefetch_buffer_size

    @staticmethod
    def cost(chunk: SampleChunk) -> int:
        """The part of :attr:`capacity` that a chunk takes."""
        return chunk.count

    def reopen(self, at: int) -> int:
        """Prepare to read again from number ``at``; returns the number that it has from now on."""
        return at

    def ended(self, at: int) -> bool:  # noqa: ARG002 - for sources that can tell
        """Whether the source can tell that nothing of the epoch is left for this worker at number ``at``."""
        return False

    def check_advance(self, *, finished: bool) -> None:  # noqa: B027
        """Raise an error if the next epoch can not begin."""

    def after_fork(self) -> None:  # noqa: B027
        """Forget, in a forked child, what only the parent may use."""

    def close(self) -> None:  # noqa: B027
        """Release all resources; reading has stopped."""

    # -- leases: nothing to do where there are none -------------------------------------------------------------------

    def deliver(self, chunk: SampleChunk, begin: int, end: int) -> bool:  # noqa: ARG002
        """Note that numbers ``[begin, end)`` of a chunk are about to be delivered; ``False`` if they must not be.

        There are none where it is one of several samples of a place, and not the last of them.
        """
        return True

    def pass_over(self, chunk: SampleChunk, begin: int, end: int) -> bool:  # noqa: ARG002
        """Note that numbers ``[begin, end)`` of a chunk, maybe none, have no sample; ``False`` if others have it."""
        return True

    def before_wait(self) -> None:  # noqa: B027
        """Called when the consumer needs another chunk and may wait for it."""

    def check_starved(self) -> None:  # noqa: B027
        """Called every now and then while the consumer waits. Raises an error if it would wait for ever."""

    @property
    def starved(self) -> bool:
        """Whether no more can be read before some of what is read is committed."""
        return False

    def failed(self, error: Exception) -> None:  # noqa: B027
        """Note that reading has ended with an error; it begins anew."""

    def commit(self, timeout: float | None) -> None:  # noqa: B027
        """Say that all that was delivered is done, and wait until that is known."""

    def settle(self) -> None:  # noqa: B027
        """Wait until all that was said to be done is known, before a checkpoint."""


class RangeReader:
    """Reads ranges of an epoch's positions, in the reading thread, and has the shards of those ahead fetched.

    Args:
        splits: the epoch's positions.
        batched: whether a range that is read is one batch.
        most_ahead: chunks that processes may read ahead of the one that is delivered next; ``None``: as many as they like.
    """

    def __init__(
        self,
        sample_source: SampleSource,
        splits: Splits,
        config: StreamingConfig,
        *,
        batched: bool,
        most_ahead: int | None = None,
    ) -> None:
        self.sample_source = sample_source
        self._splits = splits
        self._batched = batched
        self._step = config.batch_size or chunk_size(config)
        self._of = EpochRun(splits.run, splits.epoch, splits.again)
        self._ahead = sample_source.read_ahead(self._of, batched=batched, most=most_ahead)

    @property
    def ahead(self) -> int:
        """Chunks that are read ahead of the one that is delivered next, at most."""
        return 0 if self._ahead is None else self._ahead.most

    def close(self) -> None:
        """End the processes that read, where there are some."""
        if self._ahead is not None:
            self._ahead.close()

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Have the shards of these ranges fetched; those of others may go."""
        shards = [self._splits.locate(begin, end)[0] for begin, end in ranges]
        self.sample_source.expect(in_order(np.concatenate(shards)) if shards else ())

    def steps(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Positions ``[begin, end)`` cut into batches, or into as many samples as are read in one step."""
        step = self._step
        for number, first in enumerate(range(begin, end, step)):
            if number % STEPS_AHEAD == 0:
                self.expect([(first, min(end, first + STEPS_AHEAD * step))])
            yield first, min(end, first + step)

    def read(self, parts: Iterable[RangePart]) -> Iterator[SampleChunk]:
        """The samples of parts, one after the other. Processes have parts that come next meanwhile."""
        located = ((part, self._located(part)) for part in parts)
        if self._ahead is None:
            read = self.sample_source.reader(self._of, batched=self._batched)
            for part, chunk in located:
                yield self._chunk_of(part, read(chunk))
        else:
            yield from self._ahead.read(located, self._chunk_of)

    def chunks(self, parts: Iterable[RangePart]) -> Iterator[SampleChunk]:
        """The same of all parts that there are: then nothing more is fetched."""
        try:
            yield from self.read(parts)
            self.expect(())
        finally:
            self.close()

    def _located(self, part: RangePart) -> Chunk:
        positions = self._splits.positions(part.begin, part.end)
        return Chunk.at(*self._splits.run.order.locate(positions), positions)

    def _chunk_of(self, part: RangePart, found: Chunk) -> SampleChunk:
        """The samples of a part, or its batch; raises the error of a bad one where that is an error."""
        if self.sample_source.bad_samples is None:
            found.check()
        count, bad = part.end - part.begin, sorted(found.bad.items())
        if found.dropped:
            self.sample_source.counts.add(Count.FILTERED, found.dropped)
        if not self._batched:
            return SampleChunk(*part.numbers, count, samples=found.values, split=part.split, bad=bad)
        kept = None if found.kept is None else np.unique(found.kept)  # of one place several samples may come
        kept = None if kept is None or len(kept) == count else kept
        return SampleChunk(*part.numbers, count, batch=found.values, split=part.split, bad=bad, kept=kept)


def chunk_size(config: StreamingConfig) -> int:
    """Samples that are read in one step where they are delivered one by one: a quarter of the buffer, 64 at most."""
    return max(1, min(_CHUNK, (config.prefetch_buffer_size or _CHUNK) // 4))
