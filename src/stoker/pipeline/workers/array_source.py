"""A dataset of arrays in memory, in the same orders and partitions as one of shards."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import xxhash

from stoker.concurrency.shared_counters import Counts
from stoker.display import with_article
from stoker.errors import ConfigError
from stoker.image.batch_rows import BatchRows
from stoker.order.native import NativeOrder
from stoker.order.partition.partition import Partition, Stratified
from stoker.order.sample_order import Run
from stoker.order.selection.selection import Everything
from stoker.order.settings import NativeSettings, StreamSource
from stoker.order.shuffle.shard_table import ShardTable
from stoker.pipeline.columns import stack_samples
from stoker.pipeline.order_sources import nulls_of
from stoker.pipeline.workers.sample_source import SampleSource
from stoker.reading.sample_errors import SampleLocation, apply_transform
from stoker.streams.compare import null_mask, without_nulls
from stoker.streams.labels import hash_column, null_error
from stoker.types import Array, Batch, Column, Ids, Transform

_CHUNK: Final = 4096
_HASHED_CHUNKS: Final = 64
_HASHED_BYTES: Final = 1 << 16


class ArraySource(SampleSource):
    """Samples of arrays: row i of each. All of them count as one shard.

    Args:
        columns: name to array of shape ``(n, ...)``, or to a list of n values.
        transform: applied to each sample.

    Raises:
        ConfigError: no columns, or columns of different lengths.
    """

    def __init__(self, columns: Mapping[str, Any], transform: Transform | None = None) -> None:
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
        self._transform = transform

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

    def samples(self, shards: Ids, rows: Ids) -> list[Any]:  # noqa: ARG002 - there is one shard
        begun = time.perf_counter_ns()
        values = [self._take(column, rows) for column in self._columns.values()]
        names = tuple(self._columns)
        found: list[Any] = [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]
        if self._transform is not None:
            taken = iter(found)
            found = list(apply_transform(self._transform, taken, taken, partial(_origin, rows)))
        self._count(len(rows), begun)
        return found

    def batch(self, shards: Ids, rows: Ids) -> Batch:
        if self._transform is not None:
            with BatchRows(len(rows)) as memory:
                samples = self.samples(shards, rows)
            return stack_samples(samples, partial(_origin, rows), memory)
        begun = time.perf_counter_ns()
        found: Batch = {name: self._take(values, rows) for name, values in self._columns.items()}
        self._count(len(rows), begun)
        return found

    def chunks(self, run: Run, skip: int, most: int) -> Iterator[list[Any]]:
        for positions in run.plan.chunks(_CHUNK):
            shards, rows = run.order.locate(np.concatenate(positions))
            for start in range(0, len(rows), most):
                here = slice(max(start, min(skip, start + most)), start + most)
                if len(rows[here]):
                    yield self.samples(shards[here], rows[here])
            skip = max(0, skip - len(rows))

    def batches(self, run: Run) -> Iterator[Batch]:
        for positions in run.plan.chunks(_CHUNK):
            for some in positions:
                yield self.batch(*run.order.locate(some))

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

    @staticmethod
    def _take(values: Column, rows: Ids) -> Column:
        if isinstance(values, np.ndarray):
            return values[rows]
        return [values[row] for row in rows.tolist()]

    def _count(self, samples: int, begun: int) -> None:
        took = time.perf_counter_ns() - begun
        self.counts.read_step(samples, 0, 0, 0, took)
        self.counts.waited(took)


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
    table = ShardTable(np.array([arrays.total], dtype=np.int64))
    source = StreamSource(
        name="arrays",
        table=table,
        selection=Everything(table),
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
