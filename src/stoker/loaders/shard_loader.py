"""``StreamingShardLoader``: one worker's samples, in lockstep with other workers or leased from a coordinator."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stoker.arguments import at_least, checked
from stoker.cluster import World
from stoker.concurrency.spans.recorder import note_settings
from stoker.concurrency.threads import close_at_exit
from stoker.errors import ConfigError, StateError, StokerError, TransformError
from stoker.lazy import cached_property, told
from stoker.loaders.dataset import StreamingDataset
from stoker.loaders.dataset_methods.opened import BatchSize
from stoker.loaders.protocol import CloseOnExit
from stoker.loaders.shard_checkpoints import ShardWork
from stoker.loaders.shard_sources import check_ranks_in_step, config_of, of_dataset, order_of_arrays, ranges_of
from stoker.loaders.trainers.consumers import reads_ahead
from stoker.order.capabilities import makes_batches
from stoker.order.global_batches import WorkerRemainder
from stoker.order.sample_order import SampleOrder
from stoker.pipeline.prefetch_buffer import END
from stoker.pipeline.ranks.data_rank import DataRankFinder
from stoker.pipeline.state.checkpoint import Checkpoint, CheckpointFolder
from stoker.pipeline.state.resume import superseded_error
from stoker.pipeline.stats.stats import StreamStats
from stoker.pipeline.workers.adaptive import Adaptive
from stoker.pipeline.workers.array_source import ArraySource
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.ranges.leased import LeasedSource
from stoker.pipeline.workers.ranges.lockstep import FILLER
from stoker.pipeline.workers.sample_source import SampleSource
from stoker.pipeline.workers.worker_reader import WorkerReader
from stoker.reading.bad_samples import BadSamples, OnBadSample
from stoker.reading.chain import Chain
from stoker.streams.streams import Stream
from stoker.types import Ids, Transform

__all__ = ["FILLER", "Adaptive", "Checkpoint", "StreamStats", "StreamingConfig", "StreamingShardLoader"]


class StreamingShardLoader(ShardWork, CloseOnExit):
    """Delivers one worker's samples or batches of a dataset, with checkpoints and statistics of its own.

    In lockstep (all partitions but :class:`~stoker.pipeline.workers.adaptive.Adaptive`) a worker's part follows from its
    rank; with ``global_batch_size=`` from a plan, by which unlike machines get unlike parts of each global batch. With
    ``Adaptive`` workers lease splits from a coordinator, the faster more, and what a lost worker had not committed goes to
    others.

    ``for sample in loader`` delivers what is left of the epoch; if nothing is, the next epoch. :meth:`next` gives ``None`` at
    an epoch's end, until :meth:`reset`. One thread at a time may take samples.

    Args:
        dataset: a :class:`~stoker.loaders.dataset.StreamingDataset`, whose settings hold where the config has none, and
            which is not to be iterated over meanwhile; or :class:`~stoker.streams.streams.Stream` objects; or a dict of
            arrays.
        config: settings of this worker: rank, batching, checkpoints, coordination. Default: a config with the dataset's rank,
            world size and ``batch_size``; for arrays, with the rank and world size that are found.
        world, remainder: of that default config.
        transform: applied to each sample; for a StreamingDataset, give it there.
        on_bad_sample: what becomes of samples that are damaged, do not decode, or of which ``transform`` raises an error: see
            :class:`~stoker.StreamingDataset`, and docs/shard_loader.md. For a StreamingDataset, give it there.

    Raises:
        ConfigError: settings that contradict each other or do not fit the dataset.
    """

    @checked
    def __init__(
        self,
        dataset: StreamingDataset | Stream | Sequence[Stream] | Mapping[str, Any],
        config: StreamingConfig | None = None,
        *,
        world: World | None = None,
        remainder: WorkerRemainder | None = None,
        transform: Transform | None = None,
        on_bad_sample: OnBadSample | BadSamples = "raise",
    ) -> None:
        if isinstance(dataset, Stream):
            dataset = [dataset]
        if not isinstance(dataset, StreamingDataset | Mapping):
            dataset = StreamingDataset(streams=dataset, transform=transform, on_bad_sample=on_bad_sample)
            transform, on_bad_sample = None, "raise"
        if not isinstance(dataset, StreamingDataset) and isinstance(transform, Chain) and transform.unfit:
            raise ConfigError(
                f"{transform.unfit}: transform= of arrays makes one sample of one, without an epoch: use map(), rename() and "
                "select(), or write the arrays as a dataset"
            )
        if config is not None and (world is not None or remainder is not None):
            raise ConfigError(
                "the config has rank=, world_size= and remainder=: give world= and remainder= without a config"
            )
        if isinstance(dataset, StreamingDataset):
            if transform is not None:
                raise ConfigError("transform= here is of arrays and streams: give it to the StreamingDataset")
            dataset.check_columns_allowed("StreamingShardLoader")
            if on_bad_sample != "raise":
                raise ConfigError("on_bad_sample= here is of arrays and streams: give it to the StreamingDataset")
            if makes_batches(dataset.epoch_reader.sample_order):
                raise ConfigError(
                    "a StreamingShardLoader makes batches, and so does batch_by=: use the dataset's batches()"
                )
            if dataset.epoch_reader.quarantine is not None:
                raise ConfigError(
                    "a StreamingShardLoader delivers each sample of its ranges: leave quarantine= of the dataset out, and "
                    "name the samples by subset=SkipIds(...)"
                )
            self._counts = told(dataset, "counts")
        else:
            self._arrays = ArraySource(dataset, transform, BadSamples.of(on_bad_sample))
            self._counts = self._arrays.counts
        self._given = dataset, transform, on_bad_sample
        self._settings = config, world, remainder
        self._folder: CheckpointFolder | None = None
        self._saved_at = 0
        self._read_ahead = False
        self._due: int | None = None
        if config is not None or DataRankFinder(world).launched() is not None:
            _ = self._worker  # says early what does not fit; otherwise a trainer may yet make this one of several ranks

    @cached_property
    def config(self) -> StreamingConfig:
        """The settings: those that were given, or of the world that was found when they were first needed."""
        given, world, remainder = self._settings
        return given or config_of(self._given[0], world, remainder)

    @cached_property
    def _source_and_order(self) -> tuple[SampleSource, SampleOrder]:
        dataset = self._given[0]
        if isinstance(dataset, StreamingDataset):
            return of_dataset(dataset, self.config)
        return self._arrays, order_of_arrays(self._arrays, self.config)

    @property
    def _sample_source(self) -> SampleSource:
        return self._source_and_order[0]

    @cached_property
    def _worker(self) -> WorkerReader:
        config, dataset, (source, order) = self.config, self._given[0], self._source_and_order
        if isinstance(dataset, StreamingDataset):
            BatchSize.fix(dataset, "the StreamingShardLoader over it")
        batch_size = config.batch_size or (dataset.batch_size if isinstance(dataset, StreamingDataset) else 0) or 1
        if config.checkpoint_url is not None:
            self._folder = CheckpointFolder(config.checkpoint_url, config.storage_options, self._counts)
            self._due = config.checkpoint_interval
        ranges = ranges_of(source, order, config, batch_size)
        check_ranks_in_step(source, ranges, config)
        return WorkerReader(ranges, config, self._counts, source.bad_sample_log, gaps=bool(source.leaves_out))

    def _check_world(self) -> None:
        """See that the world which was found when the settings were first needed is still this process's.

        Raises:
            StateError: it has become one of several ranks since.
        """
        given, world, remainder = self._settings
        if given is None and config_of(self._given[0], world, remainder) != self.config:
            now = (world or World.detect()).world_size
            raise StateError(
                f"this StreamingShardLoader was asked about its samples in a world of {self.config.world_size}, and now "
                f"there are {now} ranks: make it, or first use it, after the trainer has joined the ranks, or give a config"
            )

    # -- samples ---------------------------------------------------------------------------------------------------

    def next(self) -> Any:
        """The next sample (or batch, if the config has a batch size); ``None`` at the epoch's end.

        Asking for it says that the one before is done. After an error, what could not be delivered comes again.

        Raises:
            TransformError: the transform returned ``None`` for a sample, which would look like the end. Iterating over the
                loader delivers it.
        """
        item = self._next()
        if item is None:
            raise TransformError(
                f"sample {self._worker.delivered - 1} of what this worker has had of epoch {self.epoch}: the transform "
                "returned None, and next() returns None at the epoch's end. Return the sample, or iterate over the loader"
            )
        return None if item is END else item

    def _next(self) -> Any:
        worker = self._worker
        if not worker.at:
            self._check_world()
            self._note_settings()
        due = self._due is not None and not worker.finished and worker.delivered - self._saved_at >= self._due
        if due and not worker.among:
            self._save_soon()
        return worker.next()

    def _note_settings(self) -> None:
        """Tell a trace what this loader has."""
        size = "batch_size" if self.config.global_batch_size is None else "global_batch_size"
        names = (size, "prefetch_buffer_size")
        noted = {f"config=StreamingConfig({name}=)": getattr(self.config, name) for name in names}
        note_settings("StreamingShardLoader", noted)

    def __iter__(self) -> Iterator[Any]:
        """The rest of the epoch; if nothing is left, the next epoch.

        Raises:
            StateError: the loader was told to continue elsewhere, by :meth:`reset` or a checkpoint, since the last item.
        """
        if self._worker.finished:
            self.reset()
        return close_at_exit(self._left())

    def _left(self) -> Iterator[Any]:
        worker = self._worker
        self._note_settings()
        moves = worker.moves
        self._read_ahead = reads_ahead()
        while (item := self._next()) is not END:
            yield item
            if worker.moves != moves:
                raise superseded_error()

    @checked
    def prefetch(self, samples: int | None = None, timeout: float | None = 60.0) -> int:
        """Wait until the background thread has samples ready. Nothing is delivered by that.

        Args:
            samples: how many; no more than the buffer holds. Default: a full buffer.
            timeout: seconds after which to wait no longer.

        Returns:
            Samples that are ready; fewer than asked for where no more are left, or in time.
        """
        wanted = self.config.prefetch_buffer_size if samples is None else samples
        at_least(0, samples=wanted)
        return self._worker.prefetch(wanted, timeout)

    def reset(self) -> None:
        """Begin the next epoch, with its own order. What was read ahead of this one is dropped.

        A ``for`` loop over this one that is running ends with a ``StateError``.
        """
        self._worker.reset()
        self._saved_at = 0

    @property
    def epoch(self) -> int:
        """The epoch that is delivered."""
        return self._worker.source.epoch

    def __len__(self) -> int:
        """Samples (or batches) of this worker in an epoch; of leased work, of all workers, as nobody knows who gets which."""
        return len(self._worker.source)

    def is_empty(self) -> bool:
        """Whether an epoch has nothing for this worker."""
        return len(self) == 0

    def __bool__(self) -> bool:
        return True

    @checked
    def ids_of(
        self, step: int, rank: int | None = None, epoch: int | None = None, *, since_resume: bool = False
    ) -> Ids:
        """The ids of the samples in a batch of any rank, from the order or the plan alone: nothing is read.

        Args:
            step: number of the batch, from 0, counted from the epoch's beginning.
            rank: default: all, one after the other.
            epoch: its number; default: :attr:`epoch`.
            since_resume: count ``step`` from where a checkpoint of the epoch's middle was restored; not by a plan.

        Returns:
            int64, shape ``(n,)``: as in ``dataset[id]``, or rows of arrays.

        Raises:
            ConfigError: there is no such step, rank or epoch, or no such number after a resume with other global batches;
                samples come one by one; or it is leased work, or a replay.
        """
        at_least(0, step=step, epoch=epoch)
        return self._worker.source.step_samples(step, rank, epoch, since_resume=since_resume)

    # -- stats, end ------------------------------------------------------------------------------------------------

    @property
    def world(self) -> World:
        """This worker's rank, and the number of workers."""
        return World(self.config.rank, self.config.world_size, source="StreamingConfig")

    def stats(self) -> StreamStats:
        """Statistics of loading; cheap, at any time, from any thread."""
        source = self._sample_source
        return StreamStats.of(self._counts, buffered=True, execution=source.execution)

    def get_stats(self) -> StreamStats:
        """The same as :meth:`stats`."""
        return self.stats()

    def close(self) -> None:
        """Stop reading ahead, write what is to be written, and leave the coordinator. Uncommitted work goes to others."""
        try:
            if self._folder is not None:
                self._folder.close()
        finally:
            if "_worker" in self.__dict__:
                self._worker.close()
                self._sample_source.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy in another process goes on after what was delivered here, and reads it by itself.
        if "_worker" not in self.__dict__:
            return _copied, (type(self), *self._given, *self._settings)
        source = self._worker.source
        if isinstance(source, LeasedSource):
            if source.takes_part:
                raise StateError(
                    f"this StreamingShardLoader takes part in its run as rank {self.config.rank}, which a copy in another "
                    "process can not do, too: make a loader with a rank of its own there"
                )
            return _copied, (type(self), *self._given, self.config)
        return _copied, (type(self), *self._given, self.config, None, None, self._worker.checkpoint())

    def __del__(self) -> None:
        # A forgotten worker must not keep its leases. Giving them back takes time and locks, which must not be those of
        # the thread that runs finalisers. All others' threads end by themselves.
        worker = self.__dict__.get("_worker")
        source = None if worker is None else worker.source
        if isinstance(source, LeasedSource) and source.takes_part and not sys.is_finalizing():
            threading.Thread(target=_forget, args=(worker,), name="stoker-forgotten", daemon=True).start()


def _copied(
    kind: type[StreamingShardLoader],
    dataset: Any,
    transform: Any,
    on_bad_sample: Any,
    config: StreamingConfig | None,
    world: World | None = None,
    remainder: WorkerRemainder | None = None,
    at: Checkpoint | None = None,
) -> StreamingShardLoader:
    """A loader of another process, from its arguments and where it was."""
    loader = kind(dataset, config, world=world, remainder=remainder, transform=transform, on_bad_sample=on_bad_sample)
    if at is not None:
        loader.restore_from_checkpoint(at)
    return loader


def _forget(worker: WorkerReader) -> None:
    with contextlib.suppress(StokerError):  # its engine is gone too: others take over after the lease
        worker.close()
