"""A dataset of arrays in memory, in the same orders and partitions as one of shards."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import xxhash

from stoker.concurrency.shared.counters import Counts
from stoker.display import with_article
from stoker.errors import ConfigError, SampleError
from stoker.formats.unstacked import as_batch
from stoker.image.batch_rows import BatchRows
from stoker.order.native import NativeOrder
from stoker.order.partition.partition import Partition, Stratified
from stoker.order.sample_order import Run
from stoker.order.selection.selection import Everything
from stoker.order.settings import NativeSettings, StreamSource
from stoker.order.shuffle.shard_table import ShardTable
from stoker.order.spans import spans_of
from stoker.pipeline.columns import stack_samples
from stoker.pipeline.order_sources import nulls_of
from stoker.pipeline.recovery.empty_batch import EmptyBatch
from stoker.pipeline.recovery.good_samples import GoodSamples
from stoker.pipeline.workers.sample_source import GoodReader, ReadSamples, SampleSource
from stoker.reading.apply_chain import LEFT_OUT
from stoker.reading.bad_samples import BadSampleLog, BadSamples, is_of_sample
from stoker.reading.replacement import Replacements, none_is_good
from stoker.reading.sample_errors import SampleLocation, apply_transform
from stoker.streams.compare import null_mask, without_nulls
from stoker.streams.labels import hash_column, null_error
from stoker.types import Array, Batch, Column, Ids, Transform

if TYPE_CHECKING:
    from stoker.pipeline.execution.chunk_process import MakeRun

_CHUNK: Final = 4096
_HASHED_CHUNKS: Final = 64
_HASHED_BYTES: Final = 1 << 16


class ArraySource(SampleSource):
    """Samples of arrays: row i of each. All of them count as one shard.

    Args:
        columns: name to array of shape ``(n, ...)``, or to a list of n values.
        transform: applied to each sample.
        bad_samples: what becomes of those of which it raises an error; ``None``: that ends the iteration.

    Raises:
        ConfigError: no columns, or columns of different lengths.
    """

    def __init__(
        self, columns: Mapping[str, Any], transform: Transform | None = None, bad_samples: BadSamples | None = None
    ) -> None:
        if not columns:
            raise ConfigError("the dataset has no columns: give a dict of arrays, such as {'x': x, 'y': y}")
        self._columns = {str(name): _column(str(name), values) for name, values in columns.items()}
        lengths = {name: len(values) for name, values in self._columns.items()}
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
            raise ConfigError(f"all columns need the same number of rows: {said}")
        self.total = next(iter(lengths.values()))
        self.counts = Counts()
        self.columns = tuple(self._columns)
        self.shards = 1
        self.table = ShardTable(np.array([self.total], dtype=np.int64))
        self._transform = transform
        self.bad_samples = bad_samples
        self._warned: set[bytes] = set()

    @property
    def fingerprint(self) -> str:
        """Hash of names, types and shapes, and of each array's bytes: of all of a small one, of 64 chunks of a large one."""
        digest = xxhash.xxh3_128()
        for name, values in sorted(self._columns.items()):
            if isinstance(values, np.ndarray) and values.dtype.kind != "O":
                digest.update(f"{name} {values.dtype.str} {values.shape};".encode())
                step = max(1, _HASHED_BYTES // max(1, values[:1].nbytes))
                starts = range(0, len(values), step)
                for start in starts if len(starts) <= _HASHED_CHUNKS else starts[:: len(starts) // _HASHED_CHUNKS]:
                    digest.update(np.ascontiguousarray(values[start : start + step]).tobytes())
            else:
                digest.update(f"{name} list {len(values)};".encode())
        return digest.hexdigest()

    def bad_sample_log(self) -> BadSampleLog | None:
        return None if self.bad_samples is None else BadSampleLog(self.bad_samples, self.counts, warned=self._warned)

    def good_reader(self, run: Run) -> GoodReader | None:
        if self.bad_samples is None or self._transform is None:
            return None
        return _GoodArrayReader(self, self._transform, run, self.bad_samples)

    def samples(self, shards: Ids, rows: Ids) -> list[Any]:  # noqa: ARG002 - there is one shard
        begun = time.perf_counter_ns()
        found = self.stored(rows)
        if self._transform is not None:
            taken = iter(found)
            found = list(apply_transform(self._transform, taken, taken, partial(_origin, rows)))
        self.count(len(rows), begun)
        return found

    def batch(self, shards: Ids, rows: Ids) -> Batch:
        if self._transform is not None:
            with BatchRows(len(rows)) as memory:
                samples = self.samples(shards, rows)
            return as_batch(stack_samples(samples, partial(_origin, rows), memory))
        begun = time.perf_counter_ns()
        found: Batch = {name: self._take(values, rows) for name, values in self._columns.items()}
        self.count(len(rows), begun)
        return found

    def chunks(self, run: Run, again: MakeRun, skip: int, most: int) -> Iterator[ReadSamples]:  # noqa: ARG002
        good = self.good_reader(run)
        for together in run.plan.chunks(_CHUNK):
            positions = np.concatenate(together)
            shards, rows = run.order.locate(positions)
            for start in range(0, len(rows), most):
                here = slice(max(start, min(skip, start + most)), start + most)
                if not len(rows[here]):
                    continue
                if good is None:
                    yield ReadSamples(self.samples(shards[here], rows[here]), len(rows[here]))
                else:
                    yield _read(good.samples(positions[here], shards[here], rows[here]), len(rows[here]))
            skip = max(0, skip - len(rows))

    def batches(self, run: Run, again: MakeRun) -> Iterator[ReadSamples]:  # noqa: ARG002 - it is read here
        good = self.good_reader(run)
        for together in run.plan.chunks(_CHUNK):
            for positions in together:
                located = run.order.locate(positions)
                if good is None:
                    yield ReadSamples(self.batch(*located), len(positions))
                else:
                    yield _read(good.batch(positions, *located), len(positions))

    def chunk(self, batch_size: int) -> int:
        return max(batch_size, _CHUNK // 16)

    def labels(self, partition: Partition) -> Array | None:
        """A number for each sample, where a partition needs them.

        Raises:
            ConfigError: there is no such column, or it has values that can not be numbered.
        """
        name = partition.column
        if name is None:
            return None
        if name not in self._columns:
            raise ConfigError(
                f"partition {partition.name!r} needs column {name!r}; there are {', '.join(map(repr, self._columns))}"
            )
        values, nulls = self._columns[name], nulls_of(partition)
        if not isinstance(partition, Stratified):
            return hash_column(values, f"column {name!r}", nulls, "sample {}".format)
        null = null_mask(values)
        if null is not None:
            if nulls == "error":
                raise null_error(f"column {name!r}", f"sample {int(np.argmax(null))}")
            classes = np.unique(self._classes(name, without_nulls(values, null)), return_inverse=True)[1]
            labels = np.full(len(values), len(classes), np.int64)
            labels[~null] = classes
            return labels
        return self._classes(name, values)

    @staticmethod
    def _classes(name: str, values: Column) -> Array:
        if isinstance(values, np.ndarray) and values.dtype.kind in "iub" and values.ndim == 1:
            return values
        if all(isinstance(value, str | bytes | int) for value in values):
            return np.unique(np.asarray(values), return_inverse=True)[1]
        raise ConfigError(f"column {name!r} can not be stratified by: it needs integers, text or bytes")

    def stored(self, rows: Ids) -> list[dict[str, Any]]:
        """The samples of some rows, not transformed."""
        values = [self._take(column, rows) for column in self._columns.values()]
        names = tuple(self._columns)
        return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]

    @staticmethod
    def _take(values: Column, rows: Ids) -> Column:
        if isinstance(values, np.ndarray):
            return values[rows]
        return [values[row] for row in rows.tolist()]

    def count(self, samples: int, begun: int) -> None:
        """Count samples that were read since a moment of the clock."""
        took = time.perf_counter_ns() - begun
        self.counts.read_step(samples, 0, 0, 0, took)
        self.counts.waited(took)


def _read(found: Any, places: int) -> ReadSamples:
    """The samples that a :class:`~stoker.pipeline.workers.sample_source.GoodReader` gave for so many places."""
    return (
        ReadSamples(found.values, places, found.bad) if isinstance(found, GoodSamples) else ReadSamples(found, places)
    )


class _GoodArrayReader:
    """Transforms samples of arrays of which some are bad; see :class:`~stoker.pipeline.workers.sample_source.GoodReader`."""

    def __init__(self, arrays: ArraySource, transform: Transform, run: Run, bad_samples: BadSamples) -> None:
        self._arrays, self._transform, self._order = arrays, transform, run.order
        self._empty = EmptyBatch(ShardTable(np.array([arrays.total])))
        self._replacements: Replacements | None = None
        if bad_samples.on_bad_sample == "replace":
            self._replacements = Replacements(spans_of(run.plan, "on_bad_sample='replace'"))

    def samples(self, positions: Ids, shards: Ids, rows: Ids) -> list[Any] | GoodSamples:  # noqa: ARG002 - there is one shard
        """See :class:`~stoker.pipeline.workers.sample_source.GoodReader`."""
        begun = time.perf_counter_ns()
        given = self._arrays.stored(rows)
        found: list[Any] = []
        bad: list[tuple[int, SampleError]] = []
        there = positions
        while (first := len(found)) < len(given):
            taken = iter(given[first:] if first else given)
            try:
                # What comes before an error is kept.
                found.extend(apply_transform(self._transform, taken, taken, partial(_origin, rows[first:])))
            except SampleError as error:
                if not is_of_sample(error):
                    raise
                number, there = len(found), there if bad else positions.copy()
                bad.append((number, error))
                made, there[number] = self._instead(int(positions[number]), error)
                found.append(made)
        self._arrays.count(len(rows), begun)
        if not bad:
            return found
        kept = np.array([number for number, sample in enumerate(found) if sample is not LEFT_OUT], np.int64)
        return GoodSamples(found, kept, there, bad)

    def batch(self, positions: Ids, shards: Ids, rows: Ids) -> Batch | GoodSamples:
        """See :class:`~stoker.pipeline.workers.sample_source.GoodReader`."""
        with BatchRows(len(rows)) as memory:
            found = self.samples(positions, shards, rows)
        if not isinstance(found, GoodSamples):
            batch = as_batch(stack_samples(found, partial(_origin, rows), memory))
            self._empty.meet(batch)
            return batch
        if not len(found.kept):
            return found._replace(values=self._empty.columns(self._alone))
        here = [found.values[number] for number in found.kept.tolist()]
        values = as_batch(stack_samples(here, partial(_origin, rows[found.kept]), memory))
        self._empty.meet(values)
        return found._replace(values=values)

    def _alone(self, shard: int, row: int) -> Batch:  # noqa: ARG002 - there is one shard
        """The columns of one sample; empty where it is bad."""
        rows = np.array([row])
        taken = iter(self._arrays.stored(rows))
        try:
            samples = list(apply_transform(self._transform, taken, taken, partial(_origin, rows)))
        except SampleError as error:
            if not is_of_sample(error):
                raise
            return {}
        return stack_samples(samples, partial(_origin, rows), BatchRows(1))

    def _instead(self, position: int, error: SampleError) -> tuple[Any, int]:
        """The stand-in for a bad sample, and its position."""
        if self._replacements is None:
            return LEFT_OUT, position
        found = self._replacements.find(position, self._read)
        if found is None:
            raise none_is_good(error)
        return found

    def _read(self, position: int) -> Any:
        _, rows = self._order.locate(np.array([position], np.int64))
        taken = iter(self._arrays.stored(rows))
        return next(apply_transform(self._transform, taken, taken, partial(_origin, rows)))


def _origin(rows: Ids, number: int) -> SampleLocation:
    row = int(rows[number])
    return SampleLocation(None, None, row, row)


def _column(name: str, values: Any) -> Column:
    if isinstance(values, np.ndarray):
        if not values.ndim:
            raise ConfigError(f"column {name!r} is a single number: an array of shape (n, ...) is needed")
        return values
    if hasattr(values, "__array__"):  # a tensor, a column of a table
        return _column(name, np.asarray(values))
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        return list(values)
    raise ConfigError(f"column {name!r} is {with_article(type(values).__name__)}: an array or a list is needed")


def array_order(arrays: ArraySource, partition: Partition, shuffle_seed: int | None, remainder: Any) -> NativeOrder:
    """The order of arrays: a shuffle of all rows, as all samples are equally fast to read."""
    source = StreamSource(
        name="arrays",
        table=arrays.table,
        selection=Everything(arrays.table),
        about={"fingerprint": arrays.fingerprint, "samples": arrays.total},
        labels=arrays.labels(partition),
    )
    settings = NativeSettings(
        shuffle="none" if shuffle_seed is None else "global",
        seed=shuffle_seed or 0,
        num_canonical_nodes=1,
        partition=partition,
        remainder=remainder,
    )
    return NativeOrder((source,), settings)
