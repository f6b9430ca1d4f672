"""Checks of a dataset's arguments against its data, once it is open."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from stoker.arguments import unknown_name
from stoker.errors import ConfigError
from stoker.index.concat_index import JoinedIndex
from stoker.index.index import Index
from stoker.order.capabilities import shards_at_once
from stoker.order.sample_order import SampleOrder

logger = logging.getLogger(__name__)


def check_columns(columns: Sequence[str] | None, known: Collection[str]) -> None:
    """Check the names of the columns that are to be read.

    Raises:
        ConfigError: there is none, or one that the dataset does not have.
    """
    if columns is not None and not columns:
        raise ConfigError("columns is empty: name at least one, or leave it out for all")
    unknown = set(columns or ()) - set(known)
    if unknown:
        raise ConfigError(f"columns: {unknown_name('column', min(unknown), known)}")


def check_limit(limit: int | None, index: Index | JoinedIndex, sample_order: SampleOrder) -> None:
    """Check that a cache of ``limit`` bytes can hold a shard; one that can not hold those read at once is logged.

    Raises:
        ConfigError: it can not.
    """
    if limit is None:
        return
    if limit < index.largest_shard:
        raise ConfigError(f"cache_limit={limit} can not hold one shard; the largest has {index.largest_shard} bytes")
    shards = max(1, len(index))
    needed = min(shards_at_once(sample_order), shards) * (index.total_bytes // shards)
    if needed > limit:
        logger.warning(
            "cache_limit=%d is less than the %d bytes of shards that this order reads at once, so shards will be fetched "
            "again and again: raise it, or lower shuffle_block_size or num_canonical_nodes",
            limit,
            needed,
        )
