"""A dataset of arrays in memory, in the same orders and partitions as one of shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import xxhash

from stoker.concurrency.shared.counters import Counts
from stoker.display import with_article
from stoker.errors import ConfigError, SampleError
from stoker.order.native import NativeOrder
from stoker.order.partition import Partition
from stoker.order.partition_strategies import Stratified
from stoker.order.selection import Everything
from stoker.order.settings import NativeSettings, StreamSource
from stoker.order.shuffle.shard_table import ShardTable
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.chunks.work import ChunkWork
from stoker.pipeline.order_sources import nulls_of
from stoker.pipeline.stages.read import ReadColumns, ReadSamples
from stoker.pipeline.stages.stage import ChunkStage
from stoker.pipeline.workers.sample_source import EpochRun, ReadPart, SampleSource
from stoker.reading.bad_samples import BadSampleLog, BadSamples
from stoker.reading.sample_errors import SampleLocation
from stoker.reading.samples import SampleRun
from stoker.streams.compare import null_mask, without_nulls
from stoker.streams.labels import hash_column, null_error
from stoker.types import Array, Batch, Column, Ids, Transform

_CHUNK: Final = 4096
_HASHED_CHUNKS: Final = 64
_HASHED_BYTES: Final = 1 << 16


class ArraySource(SampleSource):
    """Samples of arrays: row i of each. All of them count as one shard.

    ConfigError for no columns, or columns of different lengths. ``columns``: name to array of shape ``(n, ...)``, or to a
    list of n values. ``transform``: applied to each sample. ``bad_samples``: what becomes of those of which it raises an
    error; ``None``: that ends the iteration.
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
        self.table = ShardTable(np.array([self.total], dtype=np.int64))
        self._transform = transform
        self.bad_samples = bad_samples
        if bad_samples is not None and bad_samples.on_bad_sample == "skip":
            self.leaves_out, self.instead_of_leaving_out = "on_bad_sample='skip'", "'replace', "
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

    def reader(self, of: EpochRun, *, batched: bool) -> Callable[[Chunk], Chunk]:
        transform, rows = self._transform, _ArrayRows(self)
        whole = batched and transform is None
        read: ChunkStage = ReadColumns(rows, loads=False)
        if not whole:
            read = ReadSamples(rows, None if transform is None else lambda *_: transform)
        work = ChunkWork(
            rows,
            [read],
            on_bad_sample="raise" if self.bad_samples is None else self.bad_samples.on_bad_sample,
            run=of.run,
            as_columns=batched,
            whole=whole,
            names=lambda: self.columns,
            made=transform is not None,
        )
        return partial(self._read, work)

    def _read(self, work: ChunkWork, chunk: Chunk) -> Chunk:
        begun = time.perf_counter_ns()
        found = work(chunk)
        took = time.perf_counter_ns() - begun
        self.counts.read_step(len(chunk), 0, 0, 0, took)
        self.counts.waited(took)
        return found if self.bad_samples is not None else found.check()

    def chunks(self, of: EpochRun, skip: int, most: int) -> Iterator[ReadPart]:
        run, read = of.run, self.reader(of, batched=False)
        for together in run.plan.chunks(_CHUNK):
            positions = np.concatenate(together)
            shards, rows = run.order.locate(positions)
            for start in range(0, len(rows), most):
                here = slice(max(start, min(skip, start + most)), start + most)
                if len(rows[here]):
                    found = read(Chunk.at(shards[here], rows[here], positions[here]))
                    yield ReadPart(found.values, len(rows[here]), sorted(found.bad.items()))
            skip = max(0, skip - len(rows))

    def batches(self, of: EpochRun) -> Iterator[ReadPart]:
        run, read = of.run, self.reader(of, batched=True)
        for together in run.plan.chunks(_CHUNK):
            for positions in together:
                found = read(Chunk.at(*run.order.locate(positions), positions))
                yield ReadPart(found.values, len(positions), sorted(found.bad.items()))

    def labels(self, partition: Partition) -> Array | None:
        """A number for each sample, where a partition needs them.

        ConfigError if there is no such column, or it has values that can not be numbered.
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

    def stored(self, rows: Ids) -> Batch:
        """The columns of some rows, not transformed."""
        return {
            name: values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows.tolist()]
            for name, values in self._columns.items()
        }


class _ArrayRows:
    """See :class:`~stoker.reading.row_reader.Rows`. Nothing of what is stored can be bad."""

    ids = None

    def __init__(self, arrays: ArraySource) -> None:
        self._arrays, self.table, self.names = arrays, arrays.table, arrays.columns

    def batch(self, shards: Ids, rows: Ids, *, named: bool = True, loads: bool = False) -> Batch:  # noqa: ARG002 - there is one shard
        return self._arrays.stored(rows)

    def good(self, shards: Ids, rows: Ids, *, loads: bool, whole: bool) -> tuple[Batch, Ids, dict[int, SampleError]]:  # noqa: ARG002
        return self._arrays.stored(rows), np.arange(len(rows)), {}

    def iterate(self, shards: Ids, rows: Ids) -> SampleRun:  # noqa: ARG002
        columns = self._arrays.stored(rows)
        return SampleRun.of([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])

    each = iterate

    def iterate_columns(self, shards: Ids, rows: Ids) -> None:
        """Samples are made of arrays that are there as they are."""

    def named(self, shard: int, row: int, error: Exception) -> SampleError:  # noqa: ARG002
        raise error

    def check_types(self, parts: Sequence[tuple[int, int, Batch]]) -> None:
        """All are of the same arrays."""

    def origin(self, shards: Ids, rows: Ids, number: int) -> SampleLocation:  # noqa: ARG002
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
        fingerprint=arrays.fingerprint,
        labels=arrays.labels(partition),
        about=partial(dict, fingerprint=arrays.fingerprint, samples=arrays.total),
    )
    settings = NativeSettings(
        shuffle="none" if shuffle_seed is None else "global",
        seed=shuffle_seed or 0,
        num_canonical_nodes=1,
        partition=partition,
        remainder=remainder,
    )
    return NativeOrder((source,), settings)
