"""``StreamingDataset``: shards from disk or object storage as samples in one deterministic order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from stoker.arguments import at_least, checked
from stoker.catalog.unindexed.files_location import Files
from stoker.cluster import World
from stoker.concurrency.shared.counters import Counts
from stoker.concurrency.shared.file import is_child
from stoker.concurrency.threads import close_at_exit
from stoker.errors import ConfigError
from stoker.formats.base import IN_READ_OPTIONS, ReadOptions
from stoker.index.index import Index
from stoker.lazy import shadowed
from stoker.loaders.dataset_methods.attributes import GIVEN, DatasetAttributes
from stoker.loaders.dataset_methods.by_id import SamplesById
from stoker.loaders.dataset_methods.chained import ChainMethods
from stoker.loaders.dataset_methods.opened import SAMPLE_METHODS
from stoker.loaders.dataset_methods.states import DatasetStates
from stoker.loaders.iterable import TorchIterable
from stoker.loaders.protocol import CloseOnExit
from stoker.loaders.trainers.consumers import check_divides_by_id, check_sampling
from stoker.order.by_length import Lengths
from stoker.order.capabilities import makes_batches
from stoker.order.global_batches import Remainder
from stoker.order.mixture.schedule import Schedule
from stoker.order.partition import Elastic, Partition
from stoker.order.subsets import Subset, as_subsets
from stoker.pipeline.batch_groups import BatchGroup
from stoker.pipeline.ranks.data_rank import Replication
from stoker.pipeline.transforms import Override
from stoker.reading.bad_samples import BadSamples, OnBadSample
from stoker.reading.sample_errors import apply_override
from stoker.streams.registry import make_stream
from stoker.streams.streams import MOVED, Stream, StreamDefaults
from stoker.types import Batch, StorageOptions, Transform
from stoker.units import parse_bytes

if TYPE_CHECKING:
    from stoker.index.concat_index import ConcatIndex
    from stoker.pipeline.stats.stats import StreamStats

__all__ = ["StreamingDataset"]

if not is_child():
    # What opening a dataset needs, so that the first is opened as fast as others. Children are given opened ones.
    import stoker.catalog.open_format
    import stoker.loaders.dataset_methods.open_dataset  # noqa: F401


class StreamingDataset(DatasetAttributes, SamplesById, ChainMethods, DatasetStates, CloseOnExit, TorchIterable[Any]):
    """A dataset that any number of nodes, ranks and workers read in one deterministic order.

    Iterating yields this rank's samples of the next epoch as dicts; in a torch ``DataLoader`` worker, the samples of that
    worker's batches. :meth:`batches` yields batches of columns. ``dataset[i]`` is the sample with id ``i``. If torch is
    imported, the dataset is an ``IterableDataset``. Iteration and DataLoaders use the methods that a subclass overrides
    (``__getitem__``, ``get_item``, ``__iter__``, ``__len__``, ``state_dict``, ``load_state_dict``).

    >>> StreamingDataset("s3://bucket/train", shuffle=True, batch_size=64)  # doctest: +SKIP

    Args:
        remote: the data to read: a URL (``s3://``, ``gs://``, ``az://``, ``hf://``, ``https://``, ``file://``, ``memory://``)
            or a directory; for files without an index also a file, a pattern or a list of files. ``None``: the data is in
            ``local``.
        local: directory for the cache of ``remote``. ``None``: a directory is read in place, and the cache of anything else
            is below ``$STOKER_CACHE`` or ``~/.cache/stoker``. Without ``remote``, the directory that holds the dataset.
        split: sub-directory of ``remote`` and ``local``, such as ``"train"``; with ``streams``, the default of the streams.
        streams: several :class:`~stoker.streams.streams.Stream` objects instead of ``remote`` and ``local``.
        format: ``None``: shards with an index.json, and where there is none, files of the format that their names tell.
            ``"parquet"``: Parquet files as they are; rows are samples, row groups
            shards. Other names (``"npy"``, ``"tar"``, ``"jsonl"``, ...): files as they are, too; see docs/formats.md.
            ``"synthetic"``: samples made in memory.
        format_options: settings of the format, by name, such as ``filters`` and ``on_bad_files`` of Parquet; see
            docs/formats/options.md.
        storage_options: credentials and settings for ``remote``, with obstore's names; they override the environment.
        columns: names of the columns to read. Default: all.
        transform: a function of a sample, or a :class:`~stoker.reading.chain.Chain`, which runs where samples are read: in
            DataLoader workers, or in several threads or processes, see ``ReadOptions.run_in``.
        read: :class:`~stoker.formats.base.ReadOptions`: a column of ids, samples to leave out, shards held in memory and
            not on disk, views instead of copies, threads.
        on_bad_sample: the handling of samples that are damaged, cannot be decoded, or for which ``transform`` raises an
            error: ``"raise"``, ``"skip"``, ``"replace"`` (by another), or :class:`~stoker.reading.bad_samples.BadSamples`
            with limits and a file that lists them. See docs/bad_samples.md. ``dataset[i]`` always raises.
        allow_unsafe_types: allow ``pkl`` columns, which run code from the data when read.
        cache_limit: bytes (int or ``"100gb"``) that the caches of all streams may take. The least recently opened shards are
            evicted first. Needs ``remote``.
        predownload: how many samples ahead of the current one each process fetches shards for. Default: as many as 1 GiB
            holds; with ``cache="memory"``, half of that.
        download_retry: failed requests are retried for ``download_retry`` times ``download_timeout`` seconds; 0: never.
        download_timeout: seconds without any progress after which a request has failed.
        validate_hash: see :class:`~stoker.cache.base.CacheSettings`. By default each download is checked against the
            fastest hash that the index has.
        keep_zip: keep compressed shards in the cache next to the decompressed ones.
        batch_size: samples in a batch of one rank, the same as the DataLoader's. The global batch is ``batch_size`` times the
            world size; with the same global batch size, any number of ranks gets the same global batches.
        batch_by: instead of ``batch_size``, :class:`~stoker.order.by_length.Lengths`: batches have samples of similar length,
            as many as ``max_tokens`` allows, and cost about the same on all ranks. See docs/batches_by_length.md.
        epoch_size: samples in an epoch, over all ranks; an int or a string such as ``"10k"``. Default: each sample once.
        shuffle: true: a new order in every epoch; false: the order of ids.
        shuffle_algo: ``"block"``, ``"global"`` or ``"shard"``, see docs/order/shuffles.md; or ``"naive"``, ``"py1s"``,
            ``"py2s"``, ``"py1br"``, ``"py1e"``: the orders of mosaicml-streaming 0.13.0, sample for sample, without
            shuffling, too.
        shuffle_seed: any integer; the same on all ranks.
        shuffle_block_size: samples in a shuffle block. Default: those of two average shards.
        num_canonical_nodes: see :mod:`stoker.order.shuffle.shuffle`. For each shard to be fetched by one node, a multiple
            of the number of nodes.
        subset: the samples to use, of all streams: ``HashSplit``, ``KeepIds``, ``SkipIds``, ``Where``, or a list of these;
            a sample is used if all of them include it. Ids count through all streams.
        sampling_method: if an epoch does not have all samples of a stream exactly once: ``"balanced"`` continues in the
            next epoch where the stream stopped, so that each sample is delivered once before any is repeated; ``"fixed"``
            takes the same samples in each epoch. A
            :class:`~stoker.order.mixture.schedule.Schedule` balances by weights that change during training.
        sampling_granularity: with ``"fixed"``, samples taken from one shard at a time.
        batching_method: ``"random"`` (streams mixed), ``"stratified"`` (each global batch has the streams in proportion),
            ``"per_stream"`` (each global batch is of one stream), ``"device_per_stream"`` (each rank's batch is).
        partition_algo: how samples are divided among ranks, by name or as an object: ``"elastic"`` (default: global
            batches, the same in any world), ``"round_robin"``, ``"contiguous"``, ``HashBased(...)``, ``RangeBased(...)``,
            ``Stratified(...)``, or one of your own, see docs/order/partitions.md; or ``"orig"``, ``"relaxed"``: those of
            mosaicml-streaming 0.13.0, with its orders, without shuffling, too.
        replication: the ranks that read the same samples (tensor or sequence parallelism): a number of consecutive ranks, a
            :class:`~stoker.cluster.mesh.Mesh`, or a torch ``DeviceMesh`` whose dimension ``"dp"`` is that of the data.
        world: this process's rank and world size. Default: :meth:`World.detect <stoker.cluster.world.World.detect>`, called
            each time iteration starts.
        remainder: the handling of the last, incomplete global batch, see
            :class:`~stoker.order.global_batches.BatchPlan`, and of parts of a partition that do not end together, see
            :class:`~stoker.order.part_plan.PartPlan`.
        stream_name: class of the dataset's single stream, by its name in ``stoker.streams.registry.streams_registry``.
        stream_config: further arguments of that class, besides ``remote``, ``local`` and ``split``.

    Raises:
        ConfigError: arguments are invalid, or cannot be combined.
        StorageError: an index cannot be fetched.
        IndexFileError: an index is not valid.
    """

    # Python's own reversed() would read by id, from the length of this rank's part.
    instead_of_index = (
        "for all samples by id, last one first, write (dataset[number] for number in range(dataset.size - 1, -1, -1))"
    )

    @checked(
        remote="for several streams write streams=[Stream(...), ...]",
        streams="give Stream(...) objects in a list, or remote= alone for a single source",
        subset="conditions are written Where('column', '>', 3), functions Where.function('column', function, name), ids "
        "KeepIds([1, 2]); steps are left out by read=ReadOptions(quarantine=[SkipSteps(...)])",
        partition_algo='such as "round_robin" or Stratified("label"); Adaptive is for a StreamingShardLoader',
        world="such as World(rank=0, world_size=2)",
        mesh="it is replication=",
        schedule="it is sampling_method=Schedule(...)",
        **IN_READ_OPTIONS,
        **MOVED,
    )
    def __init__(
        self,
        remote: Files | None = None,
        *,
        local: str | os.PathLike[str] | None = None,
        split: str | None = None,
        streams: Sequence[Stream] | None = None,
        format: str | None = None,  # noqa: A002 - the name that users expect
        format_options: Mapping[str, Any] | None = None,
        storage_options: StorageOptions | None = None,
        columns: Sequence[str] | None = None,
        transform: Transform | None = None,
        read: ReadOptions = ReadOptions(),
        on_bad_sample: OnBadSample | BadSamples = "raise",
        allow_unsafe_types: bool = False,
        cache_limit: int | str | None = None,
        predownload: int | None = None,
        download_retry: int = 2,
        download_timeout: float = 60.0,
        validate_hash: str | bool | None = None,
        keep_zip: bool = False,
        batch_size: int | None = None,
        batch_by: Lengths | None = None,
        epoch_size: int | str | None = None,
        shuffle: bool = False,
        shuffle_algo: str = "block",
        shuffle_seed: int = 9176,
        shuffle_block_size: int | None = None,
        num_canonical_nodes: int | None = None,
        subset: Subset | Sequence[Subset] | None = None,
        sampling_method: str | Schedule = "balanced",
        sampling_granularity: int = 1,
        batching_method: str = "random",
        partition_algo: str | Partition = Elastic(),
        replication: Replication | None = None,
        world: World | None = None,
        remainder: Remainder = "pad",
        stream_name: str = "stream",
        stream_config: Mapping[str, Any] | None = None,
    ) -> None:
        # What a copy in a worker does not need, which is given an opened dataset.
        from stoker.loaders.dataset_methods.open_dataset import check_sizes, open_dataset
        from stoker.pipeline.build_order import OrderOptions, chosen_partition
        from stoker.pipeline.order_sources import needed_columns

        length = check_sizes(batch_size, predownload, epoch_size)
        if batch_by is not None and batch_size is not None:
            raise ConfigError("batch_size= and batch_by= both say how large batches are: give one")
        if streams is None:
            single = {
                "remote": remote,
                "local": local,
                "split": split,
                "format": format,
                "format_options": format_options,
            }
            streams = [make_stream(stream_name, stream_config, single)]
        elif any(given is not None for given in (remote, local, format, format_options, stream_config)):
            raise ConfigError("give streams=, or remote=, local= and format= for a single one, not both")
        arguments = locals()  # as they were given, but for streams
        algo = partition_algo
        partition, mosaicml_partition = chosen_partition(algo) if isinstance(algo, str) else (algo, None)
        subsets = () if subset is None else as_subsets(subset)
        defaults = StreamDefaults(
            download_retry=download_retry,
            download_timeout=download_timeout,
            validate_hash=validate_hash,
            keep_zip=keep_zip,
            storage_options=storage_options,
            columns=None if columns is None else needed_columns(columns, subsets, streams, partition, batch_by),
            in_memory=read.cache == "memory",
            cache_limit=None if cache_limit is None else parse_bytes(cache_limit, "cache_limit"),
            split=split,
        )
        order = OrderOptions(
            shuffle=shuffle_algo if shuffle else "none",
            shuffle_algo=shuffle_algo,
            seed=shuffle_seed,
            num_canonical_nodes=num_canonical_nodes,
            block_size=shuffle_block_size,
            epoch_size=length,
            partition=partition,
            batching_method=batching_method,
            sampling_method="balanced" if isinstance(sampling_method, Schedule) else sampling_method,
            sampling_granularity=sampling_granularity,
            schedule=sampling_method if isinstance(sampling_method, Schedule) else None,
            subsets=subsets,
            batch_by=batch_by,
            remainder=remainder,
            partition_algo=mosaicml_partition,
            read=replace(read, allow_unsafe_types=True) if allow_unsafe_types else read,
        )
        self.batch_size = batch_size if batch_by is None else 1
        self._opened = open_dataset(
            streams,
            defaults,
            order,
            {name: arguments[name] for name in GIVEN},
            columns=columns,
            transform=transform,
            on_bad_sample=on_bad_sample,
            predownload=predownload,
            replication=replication,
            world=world,
        )

    # -- what is open ----------------------------------------------------------------------------------------------

    @shadowed
    def columns(self) -> tuple[str, ...] | None:
        """The columns that are read; ``None`` for all."""
        columns = self._opened.reader.settings.columns
        return None if columns is None else tuple(columns)

    @shadowed
    def ids(self) -> str | None:
        """Name of the column of ids; ``None`` where there is none."""
        return self._opened.reader.pool.ids

    @shadowed
    def index(self) -> Index | ConcatIndex:
        """The index of all shards."""
        return self._opened.streams.index

    @shadowed
    def stream_names(self) -> tuple[str, ...]:
        """Names of the streams, all different."""
        return self._opened.streams.names

    @shadowed
    def remainder(self) -> Remainder:
        """Treatment of ranks whose parts of an epoch do not end together."""
        found: Remainder = self._opened.given["remainder"]
        return found

    @shadowed
    def world(self) -> World:
        """This process's rank and world."""
        return self._opened.ranks.world

    @shadowed
    def counts(self) -> Counts:
        """The counters of reading, shared by all processes of this object."""
        return self._opened.reader.pool.counts

    @shadowed
    def order(self) -> dict[str, Any]:
        """The settings that decide which sample comes when, by name, as states hold them."""
        return self._opened.order

    def __len__(self) -> int:
        """Number of samples that this rank gets in an epoch."""
        check_sampling(self, shuffle=self.shuffle)
        length = self._opened.reader.count(self.batch_size or 1)
        check_divides_by_id(length, self.size)
        self._opened.length_told = length
        return length

    # -- in order --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """This rank's (and loader worker's) samples of the next epoch."""
        return self._samples_of_epoch(keep_places=False)

    def samples_in_places(self) -> Iterator[Any]:
        """The same for a DataLoader, with :data:`~stoker.reading.steps.LEFT_OUT` for each that is left out."""
        return self._samples_of_epoch(keep_places=True)

    def _samples_of_epoch(self, *, keep_places: bool) -> Iterator[Any]:
        if self.nothing_left():
            return iter(())
        found = self._opened.reader.samples(self.batch_size or 1, self._override, keep_places=keep_places)
        return close_at_exit(found)

    @property
    def _override(self) -> Override | None:
        """A method of a subclass that makes samples; ``None``: there is none."""
        if not self.overrides("__getitem__", "get_item"):
            return None
        return partial(apply_override, self.__getitem__, self._opened.at_hand)

    @property
    def leaves_out(self) -> str:
        """The setting by which a batch may be shorter or longer than ``batch_size``; empty where there is none."""
        reader = self._opened.reader
        return "batch_by=" if makes_batches(reader.sample_order) else reader.settings.leaves_out

    @checked
    def batches(self, batch_size: int | None = None) -> Iterator[Batch]:
        """This rank's batches of the next epoch, as dicts of columns.

        Args:
            batch_size: samples a batch on this rank; default the dataset's ``batch_size``.

        Yields:
            Column name to array of shape ``(n, ...)`` for fixed-width columns, else to a list; n is ``batch_size`` but in
            the last batch. Arrays are the caller's own.
        """
        size = self.batch_size if batch_size is None else batch_size
        if size is None:
            raise ConfigError("batches() needs batch_size, here or in StreamingDataset(batch_size=...)")
        at_least(1, batch_size=size)
        self.check_columns_allowed("batches()", "__iter__")
        return close_at_exit(self._opened.reader.batches(size, self._override))

    def batch_groups(self) -> Iterator[BatchGroup]:
        """The same in groups, those together that are read in one step, for DataLoader workers."""
        return self._opened.reader.groups(self.batch_size or 1, self._override)

    def check_columns_allowed(self, reader: str, *methods: str) -> None:
        """See that ``reader`` may read whole columns: all shards have the same, and no method of a subclass is passed by.

        Args:
            reader: names it in the error.
            methods: that it would pass by; default, all that make samples.

        Raises:
            ConfigError: it may not.
        """
        if made := self.overrides(*(methods or SAMPLE_METHODS)):
            raise ConfigError(
                f"{reader} would not call {type(self).__name__}.{made[0]}(), which makes the samples: iterate over the "
                "dataset or a DataLoader of it, or move that code to a function, StreamingDataset(transform=...), which is "
                "applied everywhere"
            )
        self._opened.check_agreement(reader)

    # -- how it goes -----------------------------------------------------------------------------------------------

    def stats(self) -> StreamStats:
        """Statistics of reading, by all processes of this object (its DataLoader workers); cheap, at any time, in any thread.

        :func:`~stoker.pipeline.stats.metrics.register_with_prometheus` and
        :func:`~stoker.pipeline.stats.metrics.observe_with_opentelemetry` take it as it is.
        """
        reader = self._opened.reader
        from stoker.pipeline.stats.stats import StreamStats

        return StreamStats.of(reader.pool.counts, execution=reader.executor.execution)

    # -- end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Stop fetching and close all files. Iterating again opens them anew."""
        self._opened.reader.close()

    def __repr__(self) -> str:
        opened = self._opened
        return f"<{type(self).__name__} of {self.size} samples in {len(opened.table)} shards at {opened.streams.where}>"
