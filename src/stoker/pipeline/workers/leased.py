"""A loader whose work a coordinator hands out, split by split, and that says what of it is done."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from stoker.concurrency.forks import reset_in_children
from stoker.coordination import CommitRefusedError, Coordination, EpochProgress, WorkerHealth
from stoker.coordination.history.recorded_assignment import Assignment
from stoker.errors import ConfigError, StateError
from stoker.order.capabilities import stream_urls
from stoker.order.native import NativeOrder
from stoker.pipeline.prefetch_buffer import END, NothingYet, PrefetchBuffer
from stoker.pipeline.state.checkpoint import Checkpoint
from stoker.pipeline.workers.adaptive import Splits
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.delivered_splits import Ledger
from stoker.pipeline.workers.join_run import join_run
from stoker.pipeline.workers.replicas import Replicas
from stoker.pipeline.workers.sample_source import SampleSource
from stoker.pipeline.workers.split_reader import SplitPiece, SplitReader
from stoker.storage.recorded_versions import check_versions, host_versions

__all__ = ["Leased"]

logger = logging.getLogger(__name__)

_LOOK: Final = 0.25


class Leased:
    """See :class:`~stoker.loaders.shard_loader.StreamingShardLoader`.

    Args:
        rows: where samples come from.
        sample_order: see :func:`~stoker.pipeline.workers.adaptive.adaptive_order`.
        config: this worker's place; its partition is an :class:`~stoker.pipeline.workers.adaptive.Adaptive`.

    Attributes:
        epoch: the epoch that this worker takes part in.
        delivered: samples of it that it has delivered.
        finished: whether all of it is committed, by whomever.
    """

    def __init__(self, rows: SampleSource, sample_order: NativeOrder, config: StreamingConfig) -> None:
        self._rows = rows
        self._sample_order = sample_order
        self._config = config
        self._coordination: Coordination | None = None
        self._ahead: PrefetchBuffer[SplitPiece] | None = None
        self._replicas: Replicas | None = None
        self._ledger = Ledger(rows.counts)
        self._piece: SplitPiece | None = None
        self._position = 0
        self._reader: SplitReader | None = None
        self._lock = threading.RLock()
        self._forked = False
        self.delivered = 0
        self.finished = False
        self._enter(0)
        reset_in_children(self)

    def after_fork(self) -> None:
        """See :class:`~stoker.concurrency.forks.Forkable`: a run knows the parent, and not the child.

        So a child raises an error where the parent takes part, which must not hear of it.
        """
        self._lock = threading.RLock()
        if self._coordination is not None:
            self._forked = True
        self._ahead = self._reader = self._replicas = self._piece = self._coordination = None
        self._ledger = Ledger(self._rows.counts)

    def _check_process(self) -> None:
        if self._forked:
            raise StateError(
                f"this StreamingShardLoader takes part in its run as rank {self._config.rank}, in the process from which "
                "this one was forked: make a loader with a rank of its own in this process"
            )

    def __len__(self) -> int:
        """Samples, or about how many batches, of an epoch, of all workers together."""
        total, size = self._splits.total, self._config.batch_size
        return total if size is None else -(-total // size)

    # -- delivering ------------------------------------------------------------------------------------------------

    def next(self) -> Any:
        """The next sample, or batch; :data:`~stoker.pipeline.prefetch_buffer.END` when all of the epoch is committed.

        Raises:
            StalledError: what is left has failed too often; names it.
            EngineError: the coordinator has not answered for ``patience`` seconds.
            ConfigError: commits are explicit, and nothing can come before there is one.
            StokerError: samples can not be read. Others try, and this worker goes on with other samples.
        """
        self._check_process()
        if self._config.commit == "next":
            self._ledger.done()
        while not self.finished:
            piece = self._piece or self._next_piece()
            if piece is None:
                self.finished = True
                self._stop_reading()
                break
            if piece.error is not None:
                self._fail(piece, piece.error)
            end = piece.end if piece.samples is None else self._position + 1
            if not self._ledger.deliver(piece.split, end):
                self._piece = None  # others have the split now
                continue
            begin, self._position = self._position, end
            self.delivered += end - begin
            self._last = range(begin, end)
            if end == piece.end:
                self._piece = None
            return piece.batch if piece.samples is None else piece.samples[begin - piece.begin]
        return END

    def prefetch(self, samples: int, timeout: float | None) -> int:
        """Have so many samples ready, or as many as the buffer holds or could be leased; returns how many are."""
        self._check_process()
        if self.finished or not self._config.prefetch_buffer_size:
            return 0
        wanted = min(samples, self._config.prefetch_buffer_size)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            buffer = self._buffer()
            ready = buffer.wait_for(wanted, _LOOK)
            # What is leased is there, and more is leased only when some of it is committed.
            starved = ready > 0 and self._starved_since > 0
            late = deadline is not None and time.monotonic() >= deadline
            if ready >= wanted or starved or late or buffer.done:
                return ready

    @property
    def _starved_since(self) -> float:
        reader = self._reader
        return 0.0 if reader is None else reader.starved_since

    def commit(self) -> None:
        """Say that all that was delivered is done."""
        self._check_process()
        if self._config.commit == "next":
            self._ledger.settle()
            self._ledger.refused.clear()  # earlier ones, which were counted and logged
        self._ledger.done()
        self._ledger.commit()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was said to be done is committed, or refused."""
        self._check_process()
        if self._coordination is not None:
            with contextlib.suppress(CommitRefusedError):  # the ledger knows
                self._coordination.flush(timeout)
            self._ledger.settle()

    def raise_if_refused(self) -> None:
        """Say once what was delivered and is others' now.

        Raises:
            CommitRefusedError: there is some.
        """
        if self._ledger.refused:
            refused, self._ledger.refused = self._ledger.refused, []
            raise CommitRefusedError(self._take_part().refused_ranges(refused))

    def last_positions(self) -> range:
        """Positions in the epoch of what :meth:`next` gave last."""
        return self._last

    def reset(self) -> None:
        """Take part in the next epoch.

        Raises:
            ConfigError: the epoch is not over.
            CommitRefusedError: commits are explicit, and some were refused of which nobody was told.
        """
        self._check_process()
        if self._config.commit == "explicit":
            self.raise_if_refused()
        if not self.finished:
            self._ledger.commit()
            self.flush(self._config.patience)
            progress = self.progress()
            if not progress.finished:
                raise ConfigError(
                    f"epoch {self.epoch} is not over: {progress.total - progress.committed} of {progress.total} samples are "
                    "not committed. Iterate to its end, as the other workers do"
                )
        self._stop_reading()
        self._enter(self.epoch + 1)

    def close(self) -> None:
        """Commit what was said to be done, give back the rest, and leave the run."""
        self._ledger.commit()
        self._stop_reading()
        self._leave()

    def _enter(self, epoch: int) -> None:
        """Go to an epoch. Its work begins with the first call that needs it."""
        with self._lock:
            self._leave()
            self._splits = Splits(self._sample_order, epoch, self._config.world_size)
            if not self._splits.total:
                logger.warning(
                    "epoch %d has no samples: there are none in the dataset, or its subset leaves none", epoch
                )
            self._ledger = Ledger(self._rows.counts)
            self._piece = None
            self._last = range(0)
            self.epoch = epoch
            self.delivered = 0
            self.finished = False

    def _leave(self) -> None:
        coordination, self._coordination = self._coordination, None
        if coordination is not None:
            coordination.leave(self._config.patience)

    def _next_piece(self) -> SplitPiece | None:
        self._ledger.commit()  # whoever waits must not keep others waiting
        while True:
            try:
                piece = self._buffer().take(_LOOK)
            except NothingYet:
                self._check_starved()
                continue
            except Exception:
                self._stop_reading()
                raise
            self._piece = piece
            if piece is not None:
                self._position = piece.begin
            return piece

    def _check_starved(self) -> None:
        """Whoever commits explicitly and waits for what can only come after a commit would wait for ever."""
        patience = max(1.0, self._config.coordination.heartbeat)
        since = self._starved_since
        if self._config.commit != "explicit" or not since or time.monotonic() - since < patience:
            return
        uncommitted = self._ledger.uncommitted
        if uncommitted:
            raise ConfigError(
                f"{uncommitted} samples were delivered and not committed, and there are no others: call commit() when they "
                "are done, then go on"
            )

    def _fail(self, piece: SplitPiece, error: Exception) -> None:
        """Give back what can not be read, and raise why. The reading thread has ended, and begins anew with another split."""
        self._ledger.commit()
        self._ledger.give_up(piece.split, f"rank {self._config.rank} could not read it: {error}")
        self._stop_reading()
        raise error

    # -- reading, in a thread of its own -----------------------------------------------------------------------------

    def _buffer(self) -> PrefetchBuffer[SplitPiece]:
        with self._lock:
            if self._ahead is not None:
                return self._ahead
            coordination = self._take_part()
            reader = self._reader = SplitReader(self._rows, self._splits, self._config, coordination, self._ledger.lost)
            # Always a thread: leasing does not wait for the consumer.
            room = max(1, self._config.prefetch_buffer_size)
            self._ahead = PrefetchBuffer(
                reader.pieces(), lambda piece: piece.end - piece.begin, room, self._rows.counts
            )
            if self._config.replication_factor > 1:
                self._replicas = Replicas(self._rows, self._splits, self._config, coordination)
            return self._ahead

    def _stop_reading(self) -> None:
        self._piece = None
        with self._lock:
            reader, self._reader = self._reader, None
            ahead, self._ahead = self._ahead, None
        if reader is not None:
            reader.closing.set()
        if ahead is not None:
            ahead.close()
        replicas, self._replicas = self._replicas, None
        if replicas is not None:
            replicas.close()

    # -- the run ---------------------------------------------------------------------------------------------------

    @property
    def takes_part(self) -> bool:
        """Whether the coordinator counts on this worker."""
        return self._coordination is not None

    def _take_part(
        self, restored: Checkpoint | None = None, *, rollback: bool = False, attempt: int = 0
    ) -> Coordination:
        self._check_process()
        with self._lock:
            if self._coordination is None:
                coordination = join_run(self._config, self._sample_order, self._splits)
                try:
                    if restored is not None:
                        run, urls = restored.state.get("identity"), stream_urls(self._sample_order)
                        if isinstance(run, Mapping):
                            ours = host_versions(self._sample_order.as_dict(), urls)
                            check_versions(run, ours, urls, "checkpoint.state['identity']")
                        coordination.restore(dict(restored.state), rollback=rollback, attempt=attempt)
                    coordination.begin_epoch(self.epoch)
                except BaseException:
                    coordination.leave(self._config.patience)
                    raise
                self._coordination = coordination
            return self._coordination

    def progress(self) -> EpochProgress:
        """How far the epoch is, of all workers together."""
        return self._take_part().progress()

    def health(self) -> list[WorkerHealth]:
        """How all workers fare."""
        return self._take_part().health()

    def assignment(self) -> Assignment:
        """Who committed what, to be replayed."""
        coordination = self._take_part()
        epoch = coordination.epoch
        return Assignment(epoch.number, epoch.world_size, dict(epoch.identity), tuple(coordination.assignment()))

    def checkpoint(self) -> Checkpoint:
        """What is committed, by all workers."""
        with self._lock:
            coordination, epoch, total = self._take_part(), self.epoch, self._splits.total
        state = coordination.checkpoint()
        reached, processed = 0, []
        for begin, end in [*state["left"], (total, total)]:
            if begin > reached:
                processed.append((reached, begin))
            reached = end
        return Checkpoint(
            kind="leased",
            epoch=epoch,
            position=sum(end - begin for begin, end in processed),
            seed=self._sample_order.settings.seed,
            rank=self._config.rank,
            world_size=self._config.world_size,
            time=time.time(),
            processed=tuple(processed),
            state=state,
        )

    def restore(self, checkpoint: Checkpoint, *, rollback: bool, attempt: int) -> None:
        """Bring the run to where a checkpoint was taken, if the coordinator is not there.

        Raises:
            StateError: it is of another kind, dataset, order or world; says what differs.
            StaleCheckpointError: the coordinator has more commits, and ``rollback`` is not set.
        """
        if checkpoint.kind != "leased":
            raise StateError(
                f"the checkpoint is of kind {checkpoint.kind!r}, Adaptive makes 'leased': use the partition that it was "
                "taken with"
            )
        self._stop_reading()
        self._enter(checkpoint.epoch)
        self._take_part(checkpoint, rollback=rollback, attempt=attempt)
