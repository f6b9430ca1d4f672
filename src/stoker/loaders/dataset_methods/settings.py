"""The settings of a dataset's reader, of the dataset's arguments and its opened streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stoker.errors import ConfigError
from stoker.formats.base import ReadOptions
from stoker.order.capabilities import repeats_samples
from stoker.order.sample_order import SampleOrder
from stoker.pipeline.transforms import EpochReaderSettings
from stoker.policy import ReadAmounts, held_in_memory
from stoker.reading.apply_chain import SampleIdentity
from stoker.reading.bad_samples import BadSamples
from stoker.streams.streams import Streams
from stoker.types import Transform


class BatchSize:
    """An attribute ``batch_size``, which no longer changes when something was made that counts batches of it."""

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else owner.__dict__.get("batch_size")

    def __set__(self, owner: Any, size: int | None) -> None:
        user = owner.__dict__.get("_batches_for")
        if user is not None and size != owner.__dict__.get("batch_size"):
            raise ConfigError(
                f"{type(owner).__name__}.batch_size={size!r}: the order of batches, and the states of {user}, rest on "
                f"batch_size={owner.batch_size}. Give batch_size= when you make it"
            )
        owner.__dict__["batch_size"] = size

    @staticmethod
    def fix(owner: Any, user: str) -> None:
        """Let the attribute change no more, as ``user`` counts on it."""
        if isinstance(getattr(type(owner), "batch_size", None), BatchSize):
            owner.__dict__["_batches_for"] = user


def reader_settings(
    streams: Streams,
    sample_order: SampleOrder,
    options: ReadOptions,
    *,
    columns: Sequence[str] | None,
    transform: Transform | None,
    bad_samples: BadSamples | None,
    seed: int,
    held: bool,
    limit: int | None,
    predownload: int | None,
) -> EpochReaderSettings:
    """The settings of an :class:`~stoker.pipeline.epoch_reader.EpochReader`.

    Args:
        streams: what is read.
        sample_order: in which order.
        options: how.
        columns, transform, bad_samples, seed, predownload: arguments of the dataset.
        held: whether shards are held in memory, and not in files.
        limit: bytes of all caches; ``None``: none was given.
    """
    table, total_bytes = streams.index.table, streams.index.total_bytes
    return EpochReaderSettings(
        columns=None if columns is None else tuple(columns),
        transform=transform,
        identity=SampleIdentity(
            seed=seed,
            streams=streams.names if len(streams.names) > 1 else ("",),
            first_shards=tuple(streams.shard_offsets[:-1].tolist()),
            repeats=repeats_samples(sample_order),
        ),
        read_threads=options.read_threads,
        run_in=options.run_in,
        read_processes=options.read_processes,
        start_method=options.start_method,
        bad_samples=bad_samples,
        amounts=ReadAmounts(
            sample_bytes=total_bytes // max(1, table.total),
            shard_bytes=total_bytes // max(1, len(table)),
            near=streams.near,
            held=held,
            limit=held_in_memory() if held and limit is None else limit,
            predownload=predownload,
        ),
    )
