"""Another dataset whose columns come beside those of a dataset."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import Any

from stoker.errors import ConfigError
from stoker.order.shuffle.shard_table import ShardTable
from stoker.pipeline.transforms import EpochReaderSettings
from stoker.reading.chain import as_chain
from stoker.reading.projection import stored_names
from stoker.reading.row_reader import RowReader
from stoker.reading.shard_pool import ShardPool
from stoker.reading.steps import Step
from stoker.streams.key_index import KeyIndex
from stoker.streams.streams import Streams


class OtherDataset:
    """Another dataset as a zip or join reads it: by id, through open shards of its own.

    ``streams``: its streams. ``pool``: its open shards, whose counters count what is read. ``settings``: how it makes its
    samples.

    Attributes:
        pool: shards that are open for the zip or join alone.
        told_of_limit: whether it was logged that its cache is too small.
    """

    def __init__(self, streams: Streams, pool: ShardPool, settings: EpochReaderSettings) -> None:
        self._streams, self.settings = streams, settings
        self._counts, self.told_of_limit = pool.counts, False
        self.pool = ShardPool(
            pool.index,
            pool.caches,
            threads=pool.width.fixed,
            options=pool.options,
            counts=pool.counts,
            ids=pool.ids,
        )
        self._indexes: dict[str, KeyIndex] = {}
        self._sharers = 1

    @property
    def name(self) -> str:
        """The names of its streams."""
        return "+".join(self._streams.names)

    @property
    def table(self) -> ShardTable:
        """Its samples and shards."""
        return self.pool.index.table

    @property
    def samples(self) -> int:
        """Number of its samples, as they are stored."""
        return self.table.total

    @property
    def most_shards(self) -> int | None:
        """Shards that this process may have open; ``None`` where its cache has no limit."""
        limited = self.settings.amounts.limit is not None
        return replace(self.settings.amounts, sharers=self._sharers).most_shards if limited else None

    @property
    def about(self) -> list[dict[str, Any]]:
        """The entries that identify its streams in a state, and those of datasets that come with it."""
        own = [location.about for location in self._streams.locations]
        return [*own, *(about for other in self._nested for about in other.about)]

    @property
    def makes_samples(self) -> bool:
        """Whether its own functions make its samples, so that only these know the columns."""
        return any(_makes_values(step) for step in self.settings.steps)

    @property
    def of_epoch(self) -> bool:
        """Whether what its own chain makes of a sample depends on the epoch."""
        return as_chain(self.settings.transform).of_epoch

    @property
    def read_names(self) -> tuple[str, ...]:
        """The columns that are read of it, before its functions."""
        if self.settings.layout:
            return tuple(name for name, _, _ in self.settings.layout)
        return RowReader(self.pool, self.settings.stored).names

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of its columns; ``None`` where functions make them."""
        return None if self.makes_samples else tuple(stored_names(self.settings.steps, self.read_names))

    def prepare(self, column: str) -> None:
        """Have its samples found by the values of a column, which is a stored one, by its name after ``rename``.

        ConfigError if there is no such column, or it holds no keys, all different.
        """
        if column in self._indexes:
            return
        if not self.pool.index.columns:
            raise ConfigError(
                f"{self.name!r} has no samples, and so no column {column!r} to find them by: write it first, or leave the "
                "join out"
            )
        names = {name: (0, name) for name in self.pool.index.columns}
        names |= {name: (source, stored) for name, source, stored in self.settings.layout}
        begin = tuple(takewhile(lambda step: not _makes_values(step), self.settings.steps))
        names |= {
            name: names[stored] for name, stored in stored_names(begin, self.read_names).items() if stored in names
        }
        source, stored = names.get(column, (0, column))
        if source or stored == self.pool.ids:
            raise ConfigError(
                f"on={column!r}: keys are read once, from a stored column of {self.name!r} itself, and this is none"
            )
        if column not in names:
            given = self.settings.columns is not None
            raise ConfigError(
                f"{self.name!r} has no column {column!r}; there are {', '.join(self.pool.index.columns)}. "
                + (
                    "Name it in columns= of that dataset, too"
                    if given
                    else "on=(name here, name there) is for columns with different names"
                )
            )
        self._indexes[column] = KeyIndex(self._streams.locations, stored, self.pool.options)
        for cache in self.pool.caches:
            cache.counts = self._counts  # which reading the keys has replaced

    def index_of(self, column: str) -> KeyIndex:
        """The index of a column that was prepared."""
        return self._indexes[column]

    def reads_cut(self, cut: bool) -> None:
        """Say whether damaged samples are no errors; see :class:`~stoker.reading.shard_pool.ShardPool`."""
        self.pool.reads_cut = cut
        for other in self._nested:
            other.reads_cut(cut)

    def share(self, sharers: int, readers: int = 0) -> None:
        """Say how many processes of this node read through the same caches; args are those of the pool's method."""
        self._sharers = sharers
        self.pool.share(sharers, readers)
        self.pool.most_open = min(self.pool.most_open, replace(self.settings.amounts, sharers=sharers).most_shards)
        for other in self._nested:
            other.share(sharers, readers)

    def close(self) -> None:
        """Close all files."""
        self.pool.close()
        for other in self._nested:
            other.close()

    @property
    def _nested(self) -> list[OtherDataset]:
        """Those of its own chain."""
        steps = as_chain(self.settings.transform).steps
        return [step.other for step in steps if isinstance(step.other, OtherDataset)]

    @property
    def _value(self) -> tuple[Any, ...]:
        return self.about, self.settings.steps, self.settings.stored, self.settings.layout

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OtherDataset) and self._value == other._value

    def __hash__(self) -> int:
        return hash((self._streams.index.fingerprint, self.settings.steps))


def _makes_values(step: Step) -> bool:
    """Whether columns after a step may hold other values than those that are stored."""
    return step.calls or step.calls_user_code
