"""Checks of a dataset's arguments against its data."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from stoker.display import unknown_name
from stoker.errors import ConfigError
from stoker.index.concat_index import ConcatIndex
from stoker.index.index import Index
from stoker.order.capabilities import shards_at_once
from stoker.order.sample_order import SampleOrder
from stoker.pipeline.chunks.by_shard import expected_fetches
from stoker.pipeline.transforms import EpochReaderSettings
from stoker.units import parse_count

logger = logging.getLogger(__name__)


def check_sizes(batch_size: int | None, predownload: int | None, epoch_size: int | str | None) -> int | None:
    """Check numbers of samples.

    Args:
        batch_size, predownload, epoch_size: arguments of the dataset.

    Returns:
        Samples in an epoch; ``None``: all.

    Raises:
        ConfigError: one is too small. Batches that wait for their shards are a warning.
    """
    for name, value, least in (("batch_size", batch_size, 1), ("predownload", predownload, 0)):
        if value is not None and value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")
    length = None if epoch_size is None else parse_count(epoch_size)
    if length == 0:
        raise ConfigError(f"epoch_size must be at least 1 sample, got {epoch_size!r}")
    if predownload is not None and batch_size is not None and predownload < batch_size:
        warnings.warn(
            f"predownload={predownload} is less than batch_size={batch_size}: each batch waits for its shards. Leave "
            "predownload out, or give at least the batch size",
            stacklevel=4,
        )
    return length


def check_beside(method: str, overridden: Sequence[str], order: Mapping[str, Any], *, quarantine: bool) -> None:
    """See that all samples of a dataset can come beside those of another.

    Args:
        method: ``"zip"`` or ``"join"``.
        overridden: methods that make samples which its class overrides.
        order: of the dataset, as states hold it.
        quarantine: whether it leaves out samples of a list.

    Raises:
        ConfigError: a subclass makes its samples, or some are left out.
    """
    if overridden:
        raise ConfigError(
            f"{method}() would read past {overridden[0]}() of the other dataset's class, which makes its samples: let a "
            "function of a sample do it, StreamingDataset(transform=...)"
        )
    subset = any("subset" in stream for stream in order["streams"].values())
    if subset or quarantine:
        raise ConfigError(
            f"{method}() takes samples of all of the other dataset, which has {'subset' if subset else 'quarantine'}=: leave "
            "it out there, and choose samples of this one"
        )


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


def check_ids(ids: str | None, known: Collection[str]) -> None:
    """Check the name of the column of ids.

    Raises:
        ConfigError: it is empty, or another column has it.
    """
    if ids is not None and (not ids or ids in known):
        raise ConfigError(
            f"ids={ids!r} names a column beside those of the dataset, {', '.join(map(str, known))}: choose another name"
        )


def check_limit(
    limit: int | None, index: Index | ConcatIndex, sample_order: SampleOrder, group_bytes: int | None
) -> None:
    """Check that a cache of ``limit`` bytes can hold a shard; one that can not hold those read at once is logged.

    Args:
        limit: of the cache; ``None`` for none.
        index: the shards.
        sample_order: which sample comes when.
        group_bytes: bytes of samples that are read together where the limit is too small; ``None``: none are.

    Raises:
        ConfigError: it can not.
    """
    if limit is None:
        return
    if limit < index.largest_shard:
        raise ConfigError(f"cache_limit={limit} can not hold one shard; the largest has {index.largest_shard} bytes")
    shards = max(1, len(index))
    needed = min(shards_at_once(sample_order), shards) * (index.total_bytes // shards)
    if needed <= limit:
        return
    if group_bytes is None:
        fetches, why = float(index.samples), "with views=True each sample may fetch its shard anew"
    else:
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


def whole_batches_by(settings: EpochReaderSettings) -> str:
    """The remedy where a setting makes batches shorter or longer, for messages."""
    instead = settings.instead_of_leaving_out.removesuffix(", ")
    return f"use {instead}" if instead else "leave it out"
