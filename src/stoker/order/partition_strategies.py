"""The static strategies: which part of the dataset each rank owns. See :mod:`stoker.order.partition`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, TypeAlias

import numpy as np

from stoker.arguments import at_least, checked
from stoker.errors import ConfigError
from stoker.integers import mix, mix_array
from stoker.order.number_sets import Numbered, Residues, Span
from stoker.order.sample_order import check_rank
from stoker.order.selection import Everything, Selection, dense_starts
from stoker.order.shuffle.shard_table import ShardTable
from stoker.types import Array, Ids, Nulls

Owners: TypeAlias = Iterator[tuple[int, Ids]]
"""The rank of each sample, chunk by chunk, with the number of each chunk's first sample."""

_CHUNK = 1 << 20
_TAG_HASH = 21


@dataclass(frozen=True, slots=True)
class Division:
    """Samples to be divided: ``whole``, some samples of ``table``, among ``world_size`` ranks.

    ``total``: samples of ``whole``. ``labels``: a number for each sample of the table, by id, where the strategy needs them.
    """

    table: ShardTable
    whole: Selection
    world_size: int
    total: int
    labels: Array | None

    def along(self) -> Iterator[tuple[int, Array]]:
        """Labels of the samples in dense order, chunk by chunk, with the number of each chunk's first sample."""
        table, whole, labels = self.table, self.whole, self.labels
        assert labels is not None  # checked as the division was made
        if isinstance(whole, Everything):
            for first in range(0, table.total, _CHUNK):
                yield first, np.asarray(labels[first : first + _CHUNK])
            return
        starts = dense_starts(whole)
        for first in range(0, self.total, _CHUNK):
            numbers = np.arange(first, min(first + _CHUNK, self.total), dtype=np.int64)
            shards = np.searchsorted(starts, numbers, side="right") - 1
            rows = whole.rows(shards, numbers - starts[shards])
            yield first, np.asarray(labels[table.ids(shards, rows)])


class _Static(ABC):
    """Base of the static strategies. A subclass says which part a rank has, and how large all are."""

    name: ClassVar[str]
    static: ClassVar[bool] = True
    even: ClassVar[bool] = False

    @property
    def column(self) -> str | None:
        """The column whose values are needed."""
        return None

    def part(
        self, table: ShardTable, whole: Selection, rank: int, world_size: int, labels: Array | None = None
    ) -> Selection:
        """The samples of one rank; see :meth:`stoker.order.partition.Partition.part`."""
        check_rank(rank, world_size)
        return self._part(self._division(table, whole, world_size, labels), rank)

    def sizes(self, table: ShardTable, whole: Selection, world_size: int, labels: Array | None = None) -> Ids:
        """Samples of each rank; int64, shape ``(world_size,)``."""
        return self._sizes(self._division(table, whole, world_size, labels))

    def as_dict(self) -> dict[str, Any]:
        """The strategy by name and arguments, JSON-serialisable."""
        return {"name": self.name} | asdict(self)  # type: ignore[call-overload,no-any-return]  # all are dataclasses

    @abstractmethod
    def _part(self, division: Division, rank: int) -> Selection: ...

    def _sizes(self, division: Division) -> Ids:
        """Sizes that differ by one at most, the larger first, as those of strategies that are ``even`` do."""
        return _dealt(division.total, division.world_size)

    def _division(self, table: ShardTable, whole: Selection, world_size: int, labels: Array | None) -> Division:
        total = int(whole.sizes.sum())
        if total < world_size:
            raise ConfigError(
                f"partition {self.name!r}: {total} samples can not be divided among {world_size} ranks, some would have "
                f"none; use more data, fewer ranks, or the elastic partition, which spreads what there is"
            )
        if self.column is not None and (labels is None or labels.shape != (table.total,)):
            found = "none were given" if labels is None else f"an array of shape {labels.shape} was given"
            raise ConfigError(
                f"partition {self.name!r} needs the value of column {self.column!r} of each of {table.total} samples; {found}"
            )
        return Division(table, whole, world_size, total, labels)


class _ByLabel(_Static):
    """Strategies in which a number of each sample, its label, says whose it is."""

    @abstractmethod
    def owners(self, division: Division) -> Owners:
        """Rank of each sample."""

    def _part(self, division: Division, rank: int) -> Selection:
        numbers = np.empty(int(self._sizes(division)[rank]), dtype=np.int64)
        found = 0
        for first, ranks in self.owners(division):
            here = np.flatnonzero(ranks == rank)
            numbers[found : found + here.size] = here + first
            found += here.size
        return Numbered(division.whole, numbers)


@checked
@dataclass(frozen=True)
class RoundRobin(_Static):
    """Rank r of W has every W-th sample, from sample r on. Sizes differ by one at most; every rank needs every shard."""

    name: ClassVar[str] = "round_robin"
    even: ClassVar[bool] = True

    def _part(self, division: Division, rank: int) -> Selection:
        return Residues(division.whole, division.world_size, range(rank, division.world_size, division.world_size))


@checked
@dataclass(frozen=True)
class Contiguous(_Static):
    """Rank r has the r-th of W runs of the samples in id order. Sizes differ by one at most; few shards are shared."""

    name: ClassVar[str] = "contiguous"
    even: ClassVar[bool] = True

    def _part(self, division: Division, rank: int) -> Selection:
        each, more = divmod(division.total, division.world_size)
        start = rank * each + min(rank, more)
        return Span(division.whole, [(start, start + each + (rank < more))])


@checked
@dataclass(frozen=True)
class HashBased(_ByLabel):
    """Samples are hashed into partitions, and partition q goes to rank ``q % W``.

    Without a ``key``, by the sample's row in its shard: the partitions' sizes differ by one at most, nothing is
    stored, and a sample keeps its partition when shards are appended. With a ``key``, by a column's value: samples of
    one value stay together (all of a user's, all of a document's) and sizes are as the values fall. That takes two times
    through the labels a rank, in chunks, and holds 8 bytes for each of the rank's own samples.

    Attributes:
        num_partitions: at least as many as ranks. Where it is a multiple of every world size that is to be used, the
            parts are about equal in all.
        hash_seed: any integer.
        key: the column. Labels are 64-bit hashes of its values.
        nulls: samples whose key is null or NaN are an error, or ``"group"``: they stay together as those of one value do.
    """

    name: ClassVar[str] = "hash"

    num_partitions: int
    hash_seed: int = 0
    key: str | None = None
    nulls: Nulls = "error"

    def __post_init__(self) -> None:
        at_least(1, num_partitions=self.num_partitions)

    @property
    def column(self) -> str | None:
        """The column that is hashed."""
        return self.key

    def _division(self, table: ShardTable, whole: Selection, world_size: int, labels: Array | None) -> Division:
        if self.num_partitions < world_size:
            raise ConfigError(
                f"partition {self.name!r}: {self.num_partitions} partitions are too few for {world_size} ranks; "
                f"set num_partitions to {world_size} or more"
            )
        return super()._division(table, whole, world_size, labels)

    def _part(self, division: Division, rank: int) -> Selection:
        if self.key is None:
            residues = range(rank, self.num_partitions, division.world_size)
            return Residues(division.whole, self.num_partitions, residues, mix(self.hash_seed, _TAG_HASH))
        return super()._part(division, rank)

    def _sizes(self, division: Division) -> Ids:
        world_size = division.world_size
        if self.key is None:
            each, more = divmod(division.total, self.num_partitions)
            return each * _dealt(self.num_partitions, world_size) + _dealt(more, world_size)
        sizes = np.zeros(world_size, dtype=np.int64)
        for _, ranks in self.owners(division):
            sizes += np.bincount(ranks, minlength=world_size)
        empty = np.flatnonzero(sizes == 0)
        if empty.size:
            raise ConfigError(
                f"partition {self.name!r}: no value of column {self.key!r} falls to rank {int(empty[0])} ({empty.size} of "
                f"{world_size} ranks have none); use fewer ranks, another hash_seed, or a column with more values"
            )
        return sizes

    def owners(self, division: Division) -> Owners:
        """Rank of each sample by the hash of its label."""
        key, partitions = mix(self.hash_seed, _TAG_HASH), np.uint64(self.num_partitions)
        for first, values in division.along():
            yield first, (mix_array(key, values) % partitions % np.uint64(division.world_size)).astype(np.int64)


@checked
@dataclass(frozen=True)
class RangeBased(_Static):
    """Given runs of the samples in id order; run i goes to rank ``i % W``.

    Attributes:
        ranges: ``(start, stop)`` each, half open, in order, without gaps or overlaps, from 0 to the last sample. They
            count the samples that take part: where there is a filter, those that it leaves.
    """

    name: ClassVar[str] = "range"

    ranges: Sequence[tuple[int, int]]

    def __post_init__(self) -> None:
        kept = tuple((int(start), int(stop)) for start, stop in self.ranges)
        object.__setattr__(self, "ranges", kept)
        if not kept:
            raise ConfigError(f"partition {self.name!r} needs at least one range")
        last = 0
        for number, (start, stop) in enumerate(kept):
            if stop <= start:
                raise ConfigError(f"range {number}, [{start}, {stop}), is empty or reversed")
            if start > last:
                raise ConfigError(f"samples [{last}, {start}) are in no range: range {number} begins at {start}")
            if start < last:
                before = f"range {number - 1}, [{kept[number - 1][0]}, {last})" if number else "sample 0"
                raise ConfigError(
                    f"range {number}, [{start}, {stop}), overlaps {before}, or comes before it; ranges must be in order"
                )
            last = stop

    def as_dict(self) -> dict[str, Any]:
        """The strategy by name and arguments, JSON-serialisable."""
        return {"name": self.name, "ranges": [list(pair) for pair in self.ranges]}

    def _division(self, table: ShardTable, whole: Selection, world_size: int, labels: Array | None) -> Division:
        if len(self.ranges) < world_size:
            raise ConfigError(
                f"partition {self.name!r}: {len(self.ranges)} ranges are too few for {world_size} ranks; "
                f"give {world_size} or more, or use fewer ranks"
            )
        division = super()._division(table, whole, world_size, labels)
        last = self.ranges[-1][1]
        if last < division.total:
            raise ConfigError(f"samples [{last}, {division.total}) are in no range: the last range ends at {last}")
        if last > division.total:
            raise ConfigError(f"the last range ends at {last}, but there are {division.total} samples")
        return division

    def _part(self, division: Division, rank: int) -> Selection:
        return Span(division.whole, self.ranges[rank :: division.world_size])

    def _sizes(self, division: Division) -> Ids:
        bounds = np.array(self.ranges, dtype=np.int64)
        sizes = np.zeros(division.world_size, dtype=np.int64)
        np.add.at(sizes, np.arange(len(bounds)) % division.world_size, bounds[:, 1] - bounds[:, 0])
        return sizes


@checked
@dataclass(frozen=True)
class Stratified(_ByLabel):
    """Every rank has its share of every class: within one sample of each class, and within one in all.

    The samples, sorted by class and then by id, are dealt to the ranks in turn. That takes two times through the
    labels a rank, in chunks; it holds 8 bytes for each of the rank's own samples and nothing for the others'.

    Attributes:
        label_column: the column of the classes. Labels are integers, a different one for each class.
        num_classes: where given, how many classes the samples must have.
        nulls: samples whose label is null are an error, or ``"group"``: they are a class, the last one.
    """

    name: ClassVar[str] = "stratified"
    even: ClassVar[bool] = True

    label_column: str
    num_classes: int | None = None
    nulls: Nulls = "error"

    @property
    def column(self) -> str | None:
        """The column of the classes."""
        return self.label_column

    def owners(self, division: Division) -> Owners:
        """Rank of each sample: sorted by label and then by number, they are dealt in turn."""
        counts = self._classes(division)
        assert division.labels is not None  # checked as the division was made
        classes = np.array(list(counts), dtype=division.labels.dtype)
        sizes = np.array(list(counts.values()), dtype=np.int64)
        dealt = np.cumsum(sizes) - sizes
        narrow = np.min_scalar_type(max(classes.size - 1, 0))  # NumPy sorts short integers by radix
        for first, values in division.along():
            number = np.searchsorted(classes, values).astype(narrow)
            order = np.argsort(number, kind="stable")
            here = np.bincount(number, minlength=classes.size)
            # The samples of a class in this chunk, in order, follow those of earlier chunks.
            turn = np.empty(number.size, dtype=np.int64)
            turn[order] = np.arange(number.size) + np.repeat(dealt - (np.cumsum(here) - here), here)
            dealt += here
            yield first, turn % division.world_size

    def _classes(self, division: Division) -> dict[int, int]:
        """Samples of each label that occurs, by rising label."""
        counts: dict[int, int] = {}
        for _, values in division.along():
            found, times = np.unique(values, return_counts=True)
            for label, count in zip(found.tolist(), times.tolist(), strict=True):
                counts[label] = counts.get(label, 0) + count
        if self.num_classes is not None and len(counts) != self.num_classes:
            raise ConfigError(
                f"partition {self.name!r}: column {self.label_column!r} has {len(counts)} classes among these samples, "
                f"not num_classes={self.num_classes}; leave num_classes out, or mend the labels"
            )
        return dict(sorted(counts.items()))


STATIC: Final = (RoundRobin, Contiguous, HashBased, RangeBased, Stratified)
"""The static strategies. A new one is added here."""


def _dealt(count: int, world_size: int) -> Ids:
    """Number of ``count`` things, dealt in turn, that each rank has."""
    dealt: Ids = (count - 1 - np.arange(world_size, dtype=np.int64)) // world_size + 1
    return dealt
