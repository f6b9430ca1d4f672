"""Opens a dataset: its streams, their order and the reader of both, checked against the data."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stoker.arguments import at_least, must_be, must_know
from stoker.cluster import World
from stoker.concurrency.spans.recorder import Stage, span
from stoker.errors import ConfigError
from stoker.formats.common.entries import column_names
from stoker.loaders.dataset_methods.opened import OpenDataset
from stoker.order.capabilities import makes_batches, repeats_samples, shards_at_once
from stoker.pipeline.build_order import OrderOptions, make_order
from stoker.pipeline.epoch_reader import EpochReader
from stoker.pipeline.ranks.data_rank import DataRankFinder, Replication
from stoker.pipeline.transforms import EpochReaderSettings
from stoker.policy import ReadAmounts, held_in_memory
from stoker.reading.apply_chain import SampleIdentity
from stoker.reading.bad_samples import BadSamples, OnBadSample
from stoker.streams.agreement import disagreement
from stoker.streams.features import warn_of_stored_files
from stoker.streams.streams import Stream, StreamDefaults, Streams, open_streams
from stoker.types import Transform
from stoker.units import parse_count

if TYPE_CHECKING:
    from stoker.streams.quarantine import Quarantine

logger = logging.getLogger(__name__)


def open_dataset(
    given_streams: Sequence[Stream],
    defaults: StreamDefaults,
    order: OrderOptions,
    given: Mapping[str, Any],
    *,
    columns: Sequence[str] | None = None,
    transform: Transform | None = None,
    on_bad_sample: OnBadSample | BadSamples = "raise",
    predownload: int | None = None,
    replication: Replication | None = None,
    world: World | None = None,
) -> OpenDataset:
    """Open streams as a dataset, and tell them their part in an epoch.

    Args:
        given_streams: at least one.
        defaults: how those are opened that say nothing else, and what their caches may take.
        order: which sample comes when, and how samples are read.
        given: arguments of the dataset that are attributes, too, as they were given.
        columns, transform, on_bad_sample, predownload, replication, world: see
            :class:`~stoker.loaders.dataset.StreamingDataset`.

    Raises:
        ConfigError: options that do not go together, or do not fit the data.
        StorageError, IndexFileError: an index can not be fetched, or is not valid.
    """
    with span(Stage.LIST):
        streams = open_streams(given_streams, defaults)
    if transform is None:
        warn_of_stored_files(streams, None if columns is None else tuple(columns))
    index, options, near = streams.index, order.read, streams.near
    if columns is not None or options.ids is not None:
        _check_columns(streams, columns, options.ids)
    sample_order = make_order(streams, order)
    held = defaults.in_memory and not near
    settings = EpochReaderSettings(
        columns=None if columns is None else tuple(columns),
        transform=transform,
        identity=SampleIdentity(
            seed=order.seed,
            streams=streams.names if len(streams.names) > 1 else ("",),
            first_shards=tuple(streams.shard_offsets[:-1].tolist()),
            repeats=repeats_samples(sample_order),
        ),
        bad_samples=BadSamples.of(on_bad_sample),
        amounts=ReadAmounts(
            sample_bytes=index.total_bytes // max(1, index.samples),
            shard_bytes=index.total_bytes // max(1, len(index)),
            near=near,
            held=held,
            limit=held_in_memory() if held and streams.limit is None else streams.limit,
            predownload=predownload,
        ),
    )
    if makes_batches(sample_order) and (settings.replaces or options.quarantine is not None):
        raise ConfigError(
            "on_bad_sample='replace' and quarantine= put samples of any length in the places of others, and batch_by= bounds "
            "what batches cost: use on_bad_sample='skip', or subset=SkipIds(...)"
        )
    ranks = DataRankFinder(world, replication, compare=options.compare_ranks)
    held_out: Quarantine | None = None
    if options.quarantine is not None:
        from stoker.streams.quarantine import Quarantine

        held_out = Quarantine(options.quarantine)
    reader = EpochReader(streams.pool(options), sample_order, settings, ranks, held_out)
    opened = OpenDataset(streams, reader, ranks, index.table, given)
    if streams.limit is not None:
        _check_limit(opened, streams.limit)
    streams.record_shares(sample_order.chosen)
    return opened


def check_sizes(batch_size: int | None, predownload: int | None, epoch_size: int | str | None) -> int | None:
    """Check numbers of samples.

    Args:
        batch_size, predownload, epoch_size: arguments of the dataset.

    Returns:
        Samples in an epoch; ``None``: all.

    Raises:
        ConfigError: one is too small. Batches that wait for their shards are a warning.
    """
    at_least(1, batch_size=batch_size)
    at_least(0, predownload=predownload)
    length = None if epoch_size is None else parse_count(epoch_size, "epoch_size")
    must_be("at least 1 sample", length != 0, epoch_size=epoch_size)
    if predownload is not None and batch_size is not None and predownload < batch_size:
        warnings.warn(
            f"predownload={predownload} is less than batch_size={batch_size}: each batch waits for its shards. Leave "
            "predownload out, or give at least the batch size",
            stacklevel=4,
        )
    return length


def _check_columns(streams: Streams, columns: Sequence[str] | None, ids: str | None) -> None:
    """Check the names of the columns that are to be read, and that of the column of ids.

    Raises:
        ConfigError: none is to be read, or one that the dataset does not have; or the name of ids is empty, or another's.
    """
    index = streams.index
    if columns is not None:
        disagreement(streams, columns)  # says of which shards a column is missing
        if not columns:
            raise ConfigError("columns is empty: name at least one, or leave it out for all")
    known = index.columns if len(index.shards) else columns or ()  # of no shards none are known
    must_know("column", columns or (), known, "columns: ")
    stored = dict.fromkeys(name for one in index.distinct_shards for name in column_names(one))
    if ids is not None and (not ids or ids in stored):
        raise ConfigError(
            f"ids={ids!r} names a column beside those of the dataset, {', '.join(stored)}: choose another name"
        )


def _check_limit(opened: OpenDataset, limit: int) -> None:
    """Check that a cache of ``limit`` bytes can hold a shard; one that can not hold those read at once is logged.

    Raises:
        ConfigError: it can not.
    """
    index, reader = opened.streams.index, opened.reader
    if limit < index.largest_shard:
        raise ConfigError(f"cache_limit={limit} can not hold one shard; the largest has {index.largest_shard} bytes")
    shards = max(1, len(index))
    needed = min(shards_at_once(reader.sample_order), shards) * (index.total_bytes // shards)
    if needed <= limit:
        return
    if reader.pool.options.views:
        fetches, why = float(index.samples), "with views=True each sample may fetch its shard again"
    else:
        from stoker.pipeline.chunks.by_shard import expected_fetches

        group_bytes = reader.settings.amounts.group_bytes
        fetches = expected_fetches(index.samples, shards, index.total_bytes // max(1, index.samples), group_bytes)
        why = f"samples of {_megabytes(group_bytes)} are read together, shard by shard"
    logger.warning(
        "cache_limit=%d (%s) is less than the %s of shards that this order reads at once: an epoch fetches up to %s, %.1f "
        "times the dataset's, and more with several processes a node, as %s. Raise cache_limit, or lower "
        "shuffle_block_size or num_canonical_nodes, or choose another shuffle_algo",
        limit,
        _megabytes(limit),
        _megabytes(needed),
        _megabytes(fetches * (index.total_bytes // shards)),
        fetches / shards,
        why,
    )


def _megabytes(size: float) -> str:
    return f"{size / (1 << 20):,.2f} MB"
