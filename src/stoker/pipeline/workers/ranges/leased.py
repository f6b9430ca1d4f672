"""``LeasedSource``: the splits that a worker leases from a coordinator, read ahead chunk by chunk, and their commits."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final

from stoker.concurrency.shared.counters import Count
from stoker.coordination import (
    CommitRefusedError,
    Coordination,
    LeasedSplit,
    WaitTimeoutError,
)
from stoker.coordination.checkpoint import Assignment
from stoker.errors import ConfigError, StateError
from stoker.order.capabilities import stream_urls
from stoker.order.native import NativeOrder
from stoker.pipeline.workers.adaptive import Splits
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.ranges.delivered_splits import Ledger
from stoker.pipeline.workers.ranges.range_source import (
    RangePart,
    RangeReader,
    RangeSource,
    RestoreRequest,
    SampleChunk,
    WorkerProgress,
)
from stoker.pipeline.workers.replicas import Replicas, lanes_held
from stoker.pipeline.workers.sample_source import SampleSource
from stoker.storage.versions import check_versions, host_versions

logger = logging.getLogger(__name__)

_LOOK: Final = 0.25


class LeasedSource(RangeSource):
    """The splits that one worker leases, numbered by their positions in the epoch.

    ``sample_source``: where samples come from. ``sample_order``: see
    :func:`~stoker.pipeline.workers.adaptive.adaptive_order`. ``config``: the worker's settings; its partition is an
    :class:`~stoker.pipeline.workers.adaptive.Adaptive`.

    ``last_positions``: positions in the epoch of the samples that were delivered last, rising.
    """

    kind = "leased"
    per_rank = False
    leases = True

    def __init__(self, sample_source: SampleSource, sample_order: NativeOrder, config: StreamingConfig) -> None:
        super().__init__(sample_source, sample_order, config)
        self._order = sample_order
        self._coordination: Coordination | None = None
        self._reader: SplitReader | None = None
        self._lock = threading.RLock()
        self._forked = False
        self.last_positions: Sequence[int] = range(0)
        self._enter(0)

    def after_fork(self) -> None:
        """A run knows the parent, and not the child: so a child raises an error where the parent takes part."""
        self._lock = threading.RLock()
        self._forked = self._forked or self._coordination is not None
        self._reader = self._coordination = None
        self._ledger = Ledger(self._sample_source.counts)

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

    # -- reading ---------------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int:
        return max(1, self._config.prefetch_buffer_size)  # always a thread: leasing does not wait for the consumer

    def chunks(self, at: int, closing: threading.Event) -> Iterator[SampleChunk]:  # noqa: ARG002 - the coordinator knows
        config, coordination = self._config, self.take_part()
        replicate = None
        if config.replication_factor > 1:
            replicate = partial(Replicas, self._sample_source, self._splits, config, coordination)
        reader = RangeReader(self._sample_source, self._splits, config, batched=config.batch_size is not None)
        self._reader = SplitReader(reader, coordination, self._ledger.lost, replicate, closing)
        return self._reader.chunks()

    def deliver(self, chunk: SampleChunk, begin: int, end: int) -> bool:
        if not self._ledger.deliver(self._next_of(chunk), end):
            return False
        end = max(end, begin + 1)
        self.last_positions = range(begin, end) if chunk.kept is None else (begin + chunk.kept).tolist()
        return True

    def pass_over(self, chunk: SampleChunk, begin: int, end: int) -> bool:
        return self._ledger.pass_over(self._next_of(chunk), begin, end)

    def _next_of(self, chunk: SampleChunk) -> LeasedSplit:
        """The split of what is delivered next.

        ConfigError if commits are explicit, and deliveries were refused of which nobody was told: some of these positions may
        come again in what was leased since, so that is not delivered before.
        """
        assert chunk.split is not None
        if self._config.commit == "next":
            self._ledger.done()
        if not self._ledger.knows(chunk.split):
            self._ledger.settle()
        if self._config.commit == "explicit" and self._ledger.refused:
            ranges = ", ".join([f"[{one.begin}, {one.end})" for one in self._ledger.refused])
            raise ConfigError(
                f"the leases of positions {ranges} were lost: they were delivered, not committed, and are others' now. Call "
                "commit(), which says what to discard, then continue"
            )
        return chunk.split

    def before_wait(self) -> None:
        self._check_process()
        if self._config.commit == "next":
            self._ledger.done()
        self._ledger.commit()  # a worker that waits must not keep others waiting

    @property
    def starved(self) -> bool:
        return self._starved_since > 0

    @property
    def _starved_since(self) -> float:
        reader = self._reader
        return 0.0 if reader is None else reader.starved_since

    def check_starved(self) -> None:
        """A worker that commits explicitly, and waits for what can only come after a commit, would wait for ever."""
        patience = max(1.0, self._config.coordination.heartbeat)
        since = self._starved_since
        if self._config.commit != "explicit" or not since or time.monotonic() - since < patience:
            return
        uncommitted = self._ledger.uncommitted
        if uncommitted:
            raise ConfigError(
                f"{uncommitted} samples were delivered and not committed, and this worker gets no others before: call "
                "commit() when they are done, then continue"
            )

    def failed(self, error: Exception) -> None:
        """Give back what can not be read: others try, and this worker continues with other samples."""
        reader, self._reader = self._reader, None
        if reader is not None and reader.failed is not None:
            self._ledger.commit()
            self._ledger.give_up(reader.failed, f"rank {self._config.rank} could not read it: {error}")

    # -- commits -----------------------------------------------------------------------------------------------------

    def commit(self, timeout: float | None) -> None:
        self._say_done()
        self._flush(timeout)
        self._raise_if_refused()

    def settle(self) -> None:
        if self._config.commit == "next":
            self._say_done()
        self._flush(self._config.patience)

    def _say_done(self) -> None:
        """Say that all that was delivered is done."""
        self._check_process()
        if self._config.commit == "next":
            self._ledger.settle()
            self._ledger.refused.clear()  # earlier ones, which were counted and logged
        self._ledger.done()
        self._ledger.commit()

    def _flush(self, timeout: float | None) -> None:
        """Wait until all that was said to be done is committed, or refused."""
        self._check_process()
        if self._coordination is not None:
            with contextlib.suppress(CommitRefusedError):  # the ledger knows
                self._coordination.flush(timeout)
            self._ledger.settle()

    def _raise_if_refused(self) -> None:
        """Say once what was delivered and is others' now. CommitRefusedError if there is some."""
        self._ledger.settle()
        if self._ledger.refused:
            error = CommitRefusedError(self.take_part().with_owners(self._ledger.refused))
            self._ledger.refused.clear()
            raise error

    # -- epochs ------------------------------------------------------------------------------------------------------

    def check_advance(self, *, finished: bool) -> None:
        """Check that the epoch is over.

        ConfigError if it is not. CommitRefusedError if commits are explicit, and some were refused of which nobody was told.
        """
        self._check_process()
        if self._config.commit == "explicit":
            self._raise_if_refused()
        if not finished:
            self._ledger.commit()
            self._flush(self._config.patience)
            progress = self.take_part().progress()
            if not progress.finished:
                raise ConfigError(
                    f"epoch {self.epoch} is not over: {progress.total - progress.committed} of {progress.total} samples are "
                    "not committed. Iterate to its end, as the other workers do"
                )

    def advance(self) -> None:
        self._enter(self.epoch + 1)

    def close(self) -> None:
        """Commit what was said to be done, give back the rest, and leave the run."""
        self._ledger.commit()
        self._leave()

    def _enter(self, epoch: int) -> None:
        """Go to an epoch. Its work begins with the first call that needs it."""
        with self._lock:
            self._leave()
            self._splits = Splits(self._order, epoch, self._config.world_size)
            if not self._splits.total:
                logger.warning(
                    "epoch %d has no samples: there are none in the dataset, or its subset leaves none", epoch
                )
            self._ledger = Ledger(self._sample_source.counts)
            self.last_positions = range(0)
            self.epoch = epoch

    def _leave(self) -> None:
        coordination, self._coordination = self._coordination, None
        if coordination is not None:
            coordination.leave(self._config.patience)

    # -- the run ---------------------------------------------------------------------------------------------------

    @property
    def takes_part(self) -> bool:
        """Whether the coordinator counts on this worker."""
        return self._coordination is not None

    def take_part(self, restored: RestoreRequest | None = None) -> Coordination:
        """This worker's part in the run's epoch, which begins with the first call."""
        self._check_process()
        with self._lock:
            if self._coordination is None:
                coordination = self._join()
                try:
                    if restored is not None:
                        state = restored.checkpoint.state
                        run, urls = state.get("identity"), stream_urls(self._order)
                        if isinstance(run, Mapping):
                            check_versions(run, self._identity(), urls, "checkpoint.state['identity']")
                        coordination.restore(dict(state), rollback=restored.rollback, attempt=restored.attempt)
                    coordination.begin_epoch(self.epoch)
                except BaseException:
                    coordination.leave(self._config.patience)
                    raise
                self._coordination = coordination
            return self._coordination

    def _identity(self) -> dict[str, object]:
        return host_versions(self._order.as_dict(), stream_urls(self._order))

    def _join(self) -> Coordination:
        """The worker's part in its run; no epoch has begun yet."""
        config, splits = self._config, self._splits
        adaptive, settings = config.adaptive, config.coordination
        assert adaptive is not None
        assert config.coordinator is not None
        if settings.threshold is not None:
            raise ConfigError(
                f"the coordinator's settings have threshold={settings.threshold}, which Adaptive sets: give it to "
                "Adaptive(rebalance_threshold=...)"
            )
        size = config.batch_size or 1
        if settings.multiple not in (1, size):
            raise ConfigError(
                f"the coordinator's settings have multiple={settings.multiple}, which is the config's batch_size, {size}: "
                "leave it out"
            )
        settings = settings._replace(
            threshold=adaptive.rebalance_threshold,
            multiple=size,
            smallest=max(settings.smallest, size),
            largest=max(settings.largest, size),
            grid=max(settings.grid, size) // size * size,
        )
        static = adaptive.base.static
        # A lane a worker: when a worker is lost, those that keep its lane's shards continue it before all else.
        lanes = config.world_size if static else min(config.world_size, max(1, splits.total))
        held = frozenset(lanes_held(config.rank, lanes, config.world_size, config.replication_factor))
        return Coordination(
            config.coordinator,
            config.run_id,
            rank=config.rank,
            world_size=config.world_size,
            positions=splits.parts if static else splits.total,
            lanes=None if static else lanes,
            identity={**self._identity(), "batch_size": config.batch_size},
            settings=settings,
            commit_every=config.commit_every,
            patience=config.patience,
            takes_over=held.__contains__,
        )

    def assignment(self) -> Assignment:
        """The committed ranges with their workers, to be replayed."""
        coordination = self.take_part()
        epoch = coordination.epoch
        return Assignment(epoch.number, epoch.world_size, dict(epoch.identity), tuple(coordination.assignment()))

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def progress(self, at: int, *, finished: bool) -> WorkerProgress:  # noqa: ARG002 - that of all workers
        """The ranges that all workers together have committed."""
        with self._lock:
            coordination, epoch, total = self.take_part(), self.epoch, self._splits.total
        state = coordination.checkpoint()
        reached, processed = 0, []
        for begin, end in [*state["left"], (total, total)]:
            if begin > reached:
                processed.append((reached, begin))
            reached = end
        return WorkerProgress(epoch, tuple(processed), state)

    def restore(self, request: RestoreRequest) -> int:
        """Bring the run to where a checkpoint was taken, if the coordinator is not there."""
        self._enter(request.checkpoint.epoch)
        self.take_part(request)
        return 0


class SplitReader:
    """Reads splits in the reading thread.

    Args:
        lost: splits that others have now, of which no more need be read.
        replicate: begins to fetch shards for others, while splits are read; ``None``: this worker keeps none for others.
        closing: set when no more is wanted.

    ``failed``: the split that could not be read, if reading ended with an error. ``starved_since``: since when it waits for a
    split, by the monotonic clock; 0 if it does not.
    """

    def __init__(
        self,
        reader: RangeReader,
        coordination: Coordination,
        lost: AbstractSet[LeasedSplit],
        replicate: Callable[[], Replicas] | None,
        closing: threading.Event,
    ) -> None:
        self.failed: LeasedSplit | None = None
        self.starved_since = 0.0
        self._reader = reader
        self._coordination = coordination
        self._lost = lost
        self._replicate = replicate
        self._closing = closing

    def chunks(self) -> Iterator[SampleChunk]:
        """Chunks of all splits that this worker gets; their numbers are positions."""
        replicas = None if self._replicate is None else self._replicate()
        try:
            while (split := self._next_split()) is not None:
                self._reader.sample_source.counts.add(Count.LEASES, 1)
                try:
                    yield from self._reader.read(self._parts_of(split))
                except Exception:
                    self.failed = split
                    raise
            self._reader.expect(())
        finally:
            self._reader.close()
            if replicas is not None:
                replicas.close()

    def _parts_of(self, split: LeasedSplit) -> Iterator[RangePart]:
        for begin, end in self._reader.steps(split.begin, split.end):
            if split in self._lost or self._closing.is_set():
                break
            yield RangePart(begin, end, (begin, end), split)

    def _next_split(self) -> LeasedSplit | None:
        try:
            while not self._closing.is_set():
                try:
                    return self._coordination.next_split(_LOOK)
                except WaitTimeoutError:
                    self.starved_since = self.starved_since or time.monotonic()
        finally:
            self.starved_since = 0.0
        return None
