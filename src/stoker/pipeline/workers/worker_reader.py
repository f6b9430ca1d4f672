"""``WorkerReader``: reads ahead from a source of ranges, delivers and counts samples, and makes checkpoints."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from stoker.concurrency.forks import reset_in_children
from stoker.concurrency.shared.counters import Counts
from stoker.errors import SampleError, StateError, TooManyBadSamplesError
from stoker.pipeline.prefetch_buffer import END, NothingYet, PrefetchBuffer
from stoker.pipeline.state.checkpoint import Checkpoint
from stoker.pipeline.state.resume import among_error
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.ranges.range_source import RangeSource, RestoreRequest, SampleChunk
from stoker.reading.bad_samples import BadSampleLog
from stoker.reading.steps import LeftOut, SeveralSamples

_LOOK: Final = 0.25


class WorkerReader:
    """One worker of a :class:`~stoker.loaders.shard_loader.StreamingShardLoader`.

    Samples in the buffer do not count as delivered: after an error, a fork or :meth:`close` they are read again.

    Args:
        counts: where the buffer's hits and misses are counted.
        new_log: makes what counts and lists the bad samples of an epoch, or of the rest of one; ``None`` where bad samples
            are errors.
        gaps: whether a place may have no sample, or several.

    Attributes:
        at: number of the next sample to be delivered, as the source counts.
        finished: whether nothing of the epoch is left for it.
        moves: how often it was told to continue elsewhere, by :meth:`reset` or :meth:`restore`.
    """

    def __init__(
        self,
        source: RangeSource,
        config: StreamingConfig,
        counts: Counts,
        new_log: Callable[[], BadSampleLog | None] = lambda: None,
        *,
        gaps: bool = False,
    ) -> None:
        self.source = source
        self._new_log = new_log
        self._log = new_log()
        self._bad: deque[tuple[int, SampleError]] = deque()  # of the chunk, those that were not passed
        self._unentered = 0  # samples before the chunk of which the log does not know
        self._exceeded: TooManyBadSamplesError | None = None
        self._config = config
        self._counts = counts
        self._lock = threading.RLock()
        self._buffer: PrefetchBuffer[SampleChunk] | None = None
        self._chunk: SampleChunk | None = None
        self._leases = source.leases
        self._counted = 0  # samples of the chunks that are delivered
        self._gaps = gaps
        self._item = 0  # number of the next sample among several of its place
        self.at = 0
        self.finished = False
        self.moves = 0
        reset_in_children(self)

    def after_fork(self) -> None:
        """See :class:`~stoker.concurrency.forks.Forkable`: the child continues by itself after what was delivered."""
        self._lock = threading.RLock()
        self._buffer = None
        self._drop_chunk()
        self.source.after_fork()

    # -- delivering ------------------------------------------------------------------------------------------------

    def next(self) -> Any:
        """The next sample, or batch; :data:`~stoker.pipeline.prefetch_buffer.END` at the epoch's end.

        TooManyBadSamplesError if there are more bad samples than allowed; again from every call until it goes elsewhere.
        """
        if self._exceeded is not None:
            raise self._exceeded
        while (chunk := self._chunk or self._next_chunk()) is not None:
            if (self._gaps or self._bad) and not self._pass_over(chunk):
                continue
            begin, samples = self.at, chunk.samples
            end = chunk.end if samples is None else begin + 1
            found = chunk.batch if samples is None else samples[begin - chunk.begin]
            last = True
            if self._gaps and isinstance(found, SeveralSamples):
                last, found = self._item + 1 == len(found), found[self._item]
            if self._leases and not self.source.deliver(chunk, begin, end if last else begin):
                self._drop_chunk()  # another worker has it now
                continue
            self._item = 0 if last else self._item + 1
            if last:
                self.at = end
                self._end_chunk(chunk)
            return found
        return END

    def _end_chunk(self, chunk: SampleChunk) -> None:
        if self.at == chunk.end:
            self._counted += chunk.count
            self._chunk = None

    def _pass_over(self, chunk: SampleChunk) -> bool:
        """Pass over places that have no sample, and note the bad ones that come next; ``False`` if nothing comes then.

        What is passed over is noted when the next sample is asked for, and not with the one before: an error that is raised
        then loses no sample.
        """
        samples = chunk.samples
        while self.at < chunk.end:
            bad = bool(self._bad) and (samples is None or chunk.begin + self._bad[0][0] <= self.at)
            left_out = samples is not None and _is_nothing(samples[self.at - chunk.begin])
            if not (bad or left_out):
                return True
            if self._leases and not self.source.pass_over(chunk, self.at, self.at + left_out):
                self._drop_chunk()  # another worker has it now, and notes it
                return False
            self.at += left_out
            if bad:
                offset, error = self._bad.popleft()
                assert self._log is not None
                try:
                    self._log.note(offset, error)
                except TooManyBadSamplesError as exceeded:
                    self._exceeded = exceeded
                    raise
        self._end_chunk(chunk)
        return False

    @property
    def among(self) -> bool:
        """Whether it is between samples that were made of one."""
        return self._item > 0

    @property
    def delivered(self) -> int:
        """Samples of the epoch that it has delivered since it began or was restored."""
        chunk = self._chunk
        return self._counted + (0 if chunk is None else self.at - chunk.begin)

    def prefetch(self, samples: int, timeout: float | None) -> int:
        """Have so many samples ready, or as many as the buffer holds or could be leased; returns how many are."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if self.finished or not self._config.prefetch_buffer_size:
                    return 0
                buffer = self._open_buffer()
            left = _LOOK if deadline is None else min(_LOOK, max(0.0, deadline - time.monotonic()))
            ready = buffer.wait_for(samples, left)
            late = deadline is not None and time.monotonic() >= deadline
            if ready >= samples or late or buffer.resting or (ready and self.source.starved):
                return ready

    def reset(self) -> None:
        """Begin the next epoch."""
        self.source.check_advance(finished=self.finished)
        self._stop()
        with self._lock:
            self.source.advance()
            self._go_to(0)

    def close(self) -> None:
        """Stop reading ahead, and release what the source holds."""
        self._stop()
        self.source.close()

    def _next_chunk(self) -> SampleChunk | None:
        if not self.finished:
            self.source.before_wait()
        while not self.finished:
            try:
                chunk = self._open_buffer().take(_LOOK)
            except NothingYet:
                self.source.check_starved()
                continue
            except Exception as error:
                self.source.failed(error)
                self._stop()
                raise
            except BaseException:
                if not self._leases:  # leased samples would be lost with the buffer
                    self._stop()
                raise
            if chunk is not None:
                if chunk.begin != self.at:
                    self._item = 0
                self.at, self._chunk = chunk.begin, chunk
                if not chunk.bad:
                    self._unentered += chunk.count
                elif self._log is not None:
                    self._bad.extend(chunk.bad)
                    self._log.enter(self._unentered)
                    self._log.enter(chunk.count)
                    self._unentered = 0
                return chunk
            with self._lock:
                self.finished = True
            self._stop()
        return None

    def _open_buffer(self) -> PrefetchBuffer[SampleChunk]:
        with self._lock:
            if self._buffer is None:
                source = self.source
                self.at = source.reopen(self.at)
                closing = threading.Event()
                chunks = source.chunks(self.at, closing)
                # Only now: work by a plan takes what its processes read ahead from its capacity.
                self._buffer = PrefetchBuffer(chunks, _count, source.capacity, self._counts, source.cost, closing)
            return self._buffer

    def _stop(self) -> None:
        with self._lock:
            buffer, self._buffer = self._buffer, None
            self._drop_chunk()
        if buffer is not None:
            buffer.close()

    def _drop_chunk(self) -> None:
        self._counted = self.delivered
        self._chunk = None
        self._bad.clear()
        if self._leases:  # what was not committed of it is others'
            self._item = 0

    def _go_to(self, at: int) -> None:
        self.at, self._counted, self._item = at, 0, 0
        self._log, self._exceeded, self._unentered = self._new_log(), None, 0
        self.moves += 1
        self.finished = self.source.ended(at)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """The position to resume from after all that was delivered; of leased work, after what all workers have committed.

        Raises:
            StateError: it lies between samples that a chain made of one.
        """
        source = self.source
        if source.leases:
            progress = source.progress(self.at, finished=self.finished)  # asks the coordinator, so no lock may be held
        else:
            if self._item:
                raise among_error()
            with self._lock:
                progress = source.progress(self.at, finished=self.finished)
        order = source.sample_order.as_dict()["order"]
        return Checkpoint(
            kind=source.kind,
            epoch=progress.epoch,
            position=sum([end - begin for begin, end in progress.processed]),
            seed=int(order.get("seed", order.get("shuffle_seed", 0))),
            rank=self._config.rank,
            world_size=self._config.world_size,
            time=time.time(),
            processed=progress.processed,
            state=progress.state,
        )

    def restore(self, request: RestoreRequest, *, any_rank: bool = False) -> None:
        """Resume where a checkpoint was taken.

        StateError if it is of another kind, rank, dataset or order; says what differs. StaleCheckpointError if the
        coordinator has more commits, and the request does not undo them. ``request``: the checkpoint, and how. ``any_rank``:
        take it although it is another rank's, or of another world.
        """
        source, config, checkpoint = self.source, self._config, request.checkpoint
        if checkpoint.kind != source.kind:
            raise StateError(
                f"the checkpoint is of kind {checkpoint.kind!r}, this loader makes {source.kind!r}: use the config "
                "(partition, global_batch_size) that it was taken with"
            )
        theirs, ours = (checkpoint.rank, checkpoint.world_size), (config.rank, config.world_size)
        if source.per_rank and not any_rank and theirs != ours:
            raise StateError(
                f"the checkpoint is of rank {theirs[0]} of {theirs[1]}, this loader is rank {ours[0]} of {ours[1]}: pass "
                "any_rank=True if all ranks were in step when it was taken"
            )
        self._stop()
        with self._lock:
            self._go_to(source.restore(request))


def _count(chunk: SampleChunk) -> int:
    return chunk.count


def _is_nothing(entry: Any) -> bool:
    return isinstance(entry, LeftOut) or (isinstance(entry, SeveralSamples) and not entry)
