"""``StreamingDataset``: shards from disk or object storage as samples in one deterministic order."""

from __future__ import annotations

import logging
import operator
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from stoker.cluster import LoaderWorker, World
from stoker.dataset.cache import CacheSettings
from stoker.dataset.place import open_place
from stoker.dataset.pool import ShardPool
from stoker.dataset.samples import iterate_samples, read_samples
from stoker.errors import ConfigError
from stoker.formats.base import ReadOptions
from stoker.loader import Pipeline, PipelineSettings, Session, Sizing, StartingPoint
from stoker.loader.collate import speed_up_worker
from stoker.loader.ring import Ring
from stoker.order import BatchPlan, EpochOrder, OrderSettings, Remainder, ShardTable
from stoker.storage import RetryPolicy
from stoker.types import Batch, Ids, StorageOptions, Transform
from stoker.units import parse_bytes, parse_count

__all__ = ["StreamingDataset"]

logger = logging.getLogger(__name__)


if TYPE_CHECKING:
    from torch.utils.data import IterableDataset

    class _IterableDataset(IterableDataset[Any]):
        """What type checkers see, so that a DataLoader takes a StreamingDataset; at run time see ``__class__`` below."""
else:

    class _IterableDataset:
        pass


class StreamingDataset(_IterableDataset):
    """A dataset of shards, read by any number of nodes, ranks and workers in one order.

    Iterating gives this rank's samples of the next epoch, as dicts; inside a torch ``DataLoader`` worker, those batches
    that are the worker's. :meth:`batches` gives them as columns. ``dataset[i]`` is a sample by id, whatever the order.
    With torch installed it counts as an ``IterableDataset``.

    Args:
        remote: URL (``s3://``, ``gs://``, ``az://``, ``https://``, ``file://``, ``memory://``) or directory that holds the
            dataset. ``None``: ``local`` holds it.
        local: directory for the cache. ``None``: the remote is read in place if it is a directory, else the cache is
            below ``$STOKER_CACHE`` or ``~/.cache/stoker``.
        split: sub-directory of both, such as ``"train"``.
        download_retry: how often a failed download is tried again.
        download_timeout: seconds without any progress after which a request has failed.
        validate_hash: see :class:`~stoker.dataset.cache.CacheSettings`. By default each download is checked against the
            fastest hash that the index has.
        keep_zip: keep compressed shards in the cache beside the decompressed.
        epoch_size: samples an epoch, over all ranks; an int or a string such as ``"10k"``. Default: all, once.
        predownload: samples ahead of the current one, for each process, whose shards are fetched. Default: 1 GiB's worth.
        cache_limit: bytes (int or ``"100gb"``) that the cache may take. Least recently opened shards go first. Needs
            a remote.
        num_canonical_nodes: see :mod:`stoker.order.epoch`. For each shard to be fetched by one node, a multiple of the
            number of nodes.
        batch_size: samples a batch on one rank, the same as the DataLoader's. The global batch is this times the world
            size, and as long as that is the same, any world sees the same global batches.
        shuffle: a new order every epoch, or id order.
        shuffle_algo: ``"block"``.
        shuffle_seed: any integer; the same on all ranks.
        shuffle_block_size: samples in a shuffle block. Default: those of two average shards.
        allow_unsafe_types: allow ``pkl`` columns, which run code from the data when read.
        columns: read only these.
        views: hand out ``bytes`` columns as read-only ``memoryview`` objects on the mapped shard, without a copy, for
            decoders that take any buffer. A view keeps its shard's file mapped.
        transform: function of a sample, run where samples are read: in the loader's workers or threads.
        storage_options: credentials and settings for ``remote``, by obstore's names; they go before the environment's.
        world: this process's place. Default: found by :meth:`World.detect <stoker.cluster.world.World.detect>` each time
            iteration starts.
        remainder: what becomes of the last, partial global batch, see :class:`~stoker.order.batches.BatchPlan`.
        download_threads: shards fetched at once by this process.
        read_threads: threads that read (and transform) ahead of the consumer. Default: up to 8 with a transform, else none;
            none in DataLoader workers.

    Raises:
        ConfigError: arguments that make no sense.
        StorageError: the index can not be fetched.
        IndexFileError: the index is not valid.
    """

    def __init__(
        self,
        *,
        remote: str | os.PathLike[str] | None = None,
        local: str | os.PathLike[str] | None = None,
        split: str | None = None,
        download_retry: int = 2,
        download_timeout: float = 60.0,
        validate_hash: str | bool | None = None,
        keep_zip: bool = False,
        epoch_size: int | str | None = None,
        predownload: int | None = None,
        cache_limit: int | str | None = None,
        num_canonical_nodes: int | None = None,
        batch_size: int | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "block",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        allow_unsafe_types: bool = False,
        columns: Sequence[str] | None = None,
        views: bool = False,
        transform: Transform | None = None,
        storage_options: StorageOptions | None = None,
        world: World | None = None,
        remainder: Remainder = "pad",
        download_threads: int = 8,
        read_threads: int | None = None,
    ) -> None:
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("predownload", predownload, 0),
            ("download_retry", download_retry, 0),
            ("download_threads", download_threads, 1),
            ("read_threads", read_threads, 0),
        ):
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")
        settings = CacheSettings(
            validate_hash=validate_hash or (False if validate_hash is False else None),
            keep_zip=keep_zip,
            limit=None if cache_limit is None else parse_bytes(cache_limit),
            stall_timeout=download_timeout,
        )
        place = open_place(
            remote,
            local,
            split,
            settings=settings,
            storage_options=storage_options,
            retry=RetryPolicy(attempts=download_retry + 1),
            stall_timeout=download_timeout,
        )
        self.index = place.index
        self.batch_size = batch_size
        self.columns = None if columns is None else tuple(columns)
        self.transform = transform
        self.predownload = predownload
        self.remainder: Remainder = remainder
        self.read_threads = read_threads
        self._given_world = world
        self._pool = ShardPool(
            place.index, place.cache, threads=download_threads, options=ReadOptions(allow_unsafe_types, views)
        )
        self._table = ShardTable(place.index.sizes)
        self._total_bytes = place.index.total_bytes
        self.order = OrderSettings.resolve(
            self._table,
            shuffle=shuffle_algo if shuffle else "none",  # type: ignore[arg-type]
            seed=shuffle_seed,
            num_canonical_nodes=num_canonical_nodes,
            block_size=shuffle_block_size,
            epoch_size=None if epoch_size is None else parse_count(epoch_size),
        )
        self._check_columns()
        self._check_limit()
        # What lies open by id alone must not keep all of a limited cache from eviction.
        self._pool.most_open = min(self._pool.most_open, self._sizing(LoaderWorker()).most_shards)
        self._session = Session(self.index.fingerprint, self.order)
        self._ring = Ring()

    # -- size and place --------------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of samples in the dataset."""
        return self._table.total

    @property
    def epoch_size(self) -> int:
        """Number of samples in an epoch, over all ranks."""
        return self.order.epoch_size

    @property
    def world(self) -> World:
        """This process's rank and world."""
        return self._given_world or World.detect()

    @property
    def next_epoch(self) -> int:
        """Number of the epoch that the next iteration delivers."""
        return self._session.upcoming().epoch

    def __len__(self) -> int:
        """Number of samples that this rank gets in an epoch."""
        return self._plan(StartingPoint(0)).samples

    # -- by id -----------------------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> Any: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int] | NDArray[np.integer[Any]]) -> list[Any]: ...
    def __getitem__(self, index: Any) -> Any:
        """A sample by id, or a list of samples for a slice or an array of ids. Negative ids count from the end."""
        if isinstance(index, slice):
            return self._samples(np.arange(*index.indices(self.size), dtype=np.int64))
        if isinstance(index, Sequence | np.ndarray) and not isinstance(index, str | bytes):
            return self._samples(self._ids(index))
        try:
            number = operator.index(index)
        except TypeError:
            raise TypeError(f"an index is an int, a slice or an array of ints, got {type(index).__name__}") from None
        return self._samples(self._ids([number]))[0]

    def read(self, ids: Sequence[int] | NDArray[np.integer[Any]], columns: Sequence[str] | None = None) -> Batch:
        """Columns of any samples by id, in the order given; ``transform`` is not applied.

        Args:
            ids: sample ids; negative ones count from the end.
            columns: names to read; default, those of the dataset.
        """
        wanted = self.columns if columns is None else columns
        shards, rows = self._table.locate(self._ids(ids))
        if not len(rows):
            return {name: [] for name in (wanted or self.index.columns)}
        return read_samples(self._pool, shards, rows, wanted)

    def _ids(self, index: Any) -> Ids:
        given = np.asarray(index)
        if given.size == 0:
            return np.zeros(0, dtype=np.int64)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise TypeError(f"ids must be a one-dimensional array of ints, got {given.dtype} of shape {given.shape}")
        ids = np.where(given < 0, given + self.size, given).astype(np.int64)
        outside = np.flatnonzero((ids < 0) | (ids >= self.size))
        if outside.size:
            raise IndexError(f"sample {int(given[outside[0]])} is not in a dataset of {self.size} samples")
        return ids

    def _samples(self, ids: Ids) -> list[Any]:
        if not len(ids):
            return []
        shards, rows = self._table.locate(ids)
        samples = iterate_samples(self._pool, shards, rows, self.columns).samples
        return list(samples if self.transform is None else map(self.transform, samples))

    # -- in order --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """This rank's (and loader worker's) samples of the next epoch."""
        worker = LoaderWorker.detect()
        point, begun = self._begin(worker)
        if point.partial and worker.token is not None:
            raise ConfigError("the state was taken inside a batch: go on without DataLoader workers for this epoch")
        plan = self._plan(point)
        skip = point.partial
        threads = self._threads(worker)
        self._say_padding(plan, point.epoch)
        delivery = self._session.deliver(point, plan, begun)
        for run in self._pipeline(point, plan, worker, threads, begun, one_by_one=not threads).sample_runs():
            delivery.enter(run)
            if skip:
                # The state was taken inside the first batch; what was delivered of it stays delivered.
                for _ in islice(run.samples, skip):
                    pass
                skip = 0
            # Delegating costs nothing a sample; how far the consumer has got, the run knows.
            yield from run.samples
        delivery.finished = True

    def batches(self, batch_size: int | None = None) -> Iterator[Batch]:
        """This rank's batches of the next epoch, as dicts of columns.

        Args:
            batch_size: samples a batch on this rank; default the dataset's ``batch_size``.

        Yields:
            Column name to array of shape ``(n, ...)`` for fixed-width columns, else to a list; n is ``batch_size`` but in
            the last batch. Arrays are the caller's own.
        """
        size = batch_size or self.batch_size
        if size is None:
            raise ConfigError("batches() needs batch_size, here or in StreamingDataset(batch_size=...)")
        worker = LoaderWorker.detect()
        return self._batches(size, worker)

    def _batches(self, size: int, worker: LoaderWorker) -> Iterator[Batch]:
        point, begun = self._begin(worker)
        if point.partial:
            raise ConfigError("the state was taken inside a batch: iterate over samples for the rest of this epoch")
        plan = self._plan(point, size)
        threads = self._threads(worker)
        self._say_padding(plan, point.epoch)
        delivery = self._session.deliver(point, plan, begun)
        for batch in self._pipeline(point, plan, worker, threads, begun).batches():
            delivery.batch()
            yield batch
        delivery.finished = True

    def _begin(self, worker: LoaderWorker) -> tuple[StartingPoint, int]:
        """Begin the next epoch: where, and how many batches of this worker were delivered before."""
        if worker.token is not None:
            speed_up_worker(self._ring)
        return self._session.begin(worker)

    def _threads(self, worker: LoaderWorker) -> int:
        if self.read_threads is not None:
            return self.read_threads
        # Gathering takes less time than handing its result over from a thread; a transform may take any time.
        return min(8, os.cpu_count() or 1) if self.transform is not None and worker.token is None else 0

    def _say_padding(self, plan: BatchPlan, epoch: int) -> None:
        if plan.padding and plan.rank == 0:
            logger.warning(
                "epoch %d ends with %d samples for %d ranks: %d come twice, so that all ranks take the same number of steps "
                '(remainder="uneven" or "drop" repeats none)',
                epoch,
                plan.tail,
                plan.world_size,
                plan.padding,
            )

    def _plan(self, point: StartingPoint, batch_size: int | None = None) -> BatchPlan:
        world = self.world
        return BatchPlan(
            start=min(point.position, self.order.epoch_size),
            end=self.order.epoch_size,
            batch_size=batch_size or self.batch_size or 1,
            rank=world.rank,
            world_size=world.world_size,
            num_canonical_nodes=self.order.num_canonical_nodes,
            remainder=self.remainder,
        )

    def _pipeline(
        self,
        point: StartingPoint,
        plan: BatchPlan,
        worker: LoaderWorker,
        threads: int,
        begun: int,
        *,
        one_by_one: bool = False,
    ) -> Pipeline:
        sizing = self._sizing(worker)
        settings = PipelineSettings(
            columns=self.columns,
            transform=self.transform,
            lookahead=sizing.lookahead(plan.batch_size),
            most_shards=sizing.most_shards,
            chunk=sizing.chunk(plan.batch_size, one_by_one=one_by_one),
            threads=threads,
        )
        order = EpochOrder(self._table, self.order, point.epoch)
        return Pipeline(self._pool, order, plan, settings, worker.number, worker.count, begun)

    def _sizing(self, worker: LoaderWorker) -> Sizing:
        cache, total = self._pool.cache, self._total_bytes
        return Sizing(
            sample_bytes=total // max(1, self.size),
            shard_bytes=total // max(1, len(self._table)),
            near=cache.store is None and not self.index.compressed,
            limit=cache.settings.limit,
            sharers=worker.count * self.world.local_world_size,
            predownload=self.predownload,
        )

    # -- state -----------------------------------------------------------------------------------------------------

    def state_dict(self, num_samples: int | None = None, from_beginning: bool = True) -> dict[str, Any]:
        """Where this run is, to go on from on any cluster: JSON-serialisable, a few hundred bytes.

        Args:
            num_samples: samples of the current epoch that training has had, over all ranks. Needed where a DataLoader's
                workers iterate, since they run ahead of training;
                :class:`~stoker.torch.StreamingDataLoader` gives it. Default: what this object has delivered.
            from_beginning: whether ``num_samples`` counts from the epoch's start, or from where this run resumed.
        """
        worker = LoaderWorker.detect()
        if worker.token is not None:
            return self._session.worker_state(worker, self.batch_size or 1, self.world.world_size)
        if num_samples is None:
            return self._state(self._session.here())
        return self._state(self._session.after(num_samples, from_beginning=from_beginning))

    def state_after(self, start: StartingPoint, batches: int) -> dict[str, Any]:
        """The state after ``batches`` batches of every rank in an iteration that began at ``start``."""
        return self._state(StartingPoint(start.epoch, self._plan(start).position_after(batches)))

    def upcoming(self) -> StartingPoint:
        """Where the next iteration begins."""
        return self._session.upcoming()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration go on where ``state`` was taken.

        Raises:
            StateError: it belongs to another dataset, or to other order settings.
        """
        self._session.load(state, LoaderWorker.detect(), self.batch_size or 1, self.world.world_size)

    def _state(self, point: StartingPoint) -> dict[str, Any]:
        return self._session.state(point, self.batch_size or 1, self.world.world_size)

    # -- checks, copies, end -----------------------------------------------------------------------------------------

    def _check_columns(self) -> None:
        unknown = set(self.columns or ()) - set(self.index.columns)
        if unknown:
            raise ConfigError(f"columns={min(unknown)!r}: the dataset has {', '.join(self.index.columns)}")

    def _check_limit(self) -> None:
        limit = self._pool.cache.settings.limit
        largest = self.index.largest_shard
        if limit is None:
            return
        if limit < largest:
            raise ConfigError(f"cache_limit={limit} can not hold one shard; the largest has {largest} bytes")
        order, shards = self.order, max(1, len(self._table))
        in_use = 1 if order.shuffle == "none" else order.block_size * shards // max(1, self.size) + 1
        needed = min(in_use * order.num_canonical_nodes, shards) * (self._total_bytes // shards)
        if needed > limit:
            logger.warning(
                "cache_limit=%d is less than the %d bytes of shards that this order reads at once, so shards will be fetched "
                "again and again: raise it, or lower shuffle_block_size or num_canonical_nodes",
                limit,
                needed,
            )

    def close(self) -> None:
        """Stop fetching and let go of all files. Iterating again opens them anew."""
        self._pool.close()

    @property  # type: ignore[misc]
    def __class__(self) -> type[StreamingDataset]:
        # isinstance() asks for this. It is the one moment at which torch, imported before or after stoker or not at all,
        # must learn that a StreamingDataset is an IterableDataset; a base class would make `import stoker` import torch.
        _register_with_torch(type(self))
        return type(self)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        # The child process may not be able to find out (a process group does not survive a spawn).
        state["_given_world"] = self.world
        return state

    def __repr__(self) -> str:
        return f"<StreamingDataset of {self.size} samples in {len(self._table)} shards at {self._pool.cache.root}>"


def _register_with_torch(cls: type) -> None:
    data = sys.modules.get("torch.utils.data")
    iterable = getattr(data, "IterableDataset", None)
    if iterable is not None and cls not in _registered:
        _registered.add(cls)
        iterable.register(cls)


_registered: set[type] = set()
