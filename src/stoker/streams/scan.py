"""Reads some columns of all samples of a dataset once, in the order of their ids, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from stoker.catalog.location import DatasetLocation
from stoker.errors import ConfigError, SampleError
from stoker.formats.base import ReadOptions
from stoker.formats.unstacked import as_batch
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.row_reader import RowReader
from stoker.reading.shard_pool import ShardPool
from stoker.types import Batch

# Samples are read in chunks of about so many bytes, all columns counted, and at most so many rows.
_CHUNK_BYTES: Final = 16 << 20
_CHUNK_ROWS: Final = 1 << 16
_THREADS: Final = 8


def check_column(location: DatasetLocation, column: str) -> None:
    """Check that every shard has the column. ConfigError if one lacks it; says which columns there are."""
    names = location.index.columns
    if column not in names and location.index.samples:
        raise ConfigError(f"{location.where} has no column {column!r} in all shards: it has {', '.join(names)}")


def scan(
    location: DatasetLocation,
    columns: Sequence[str],
    options: ReadOptions = ReadOptions(),
    bad: list[int] | None = None,
) -> Iterator[tuple[int, int, Batch]]:
    """All samples of a dataset in the order of their ids.

    Args:
        location: the dataset.
        columns: names of the columns to read.
        options: how they are handed out.
        bad: what ids of samples that can not be read are appended to; ``None``: they are errors.

    Yields:
        Id of the first sample of a chunk, number of its samples (at least 1), and its columns.
    """
    for column in columns:
        check_column(location, column)
    sizes = location.index.sizes.tolist()
    ahead = _THREADS
    if (limit := location.cache.settings.limit) is not None:
        ahead = max(1, min(ahead, limit // 2 // max(1, location.index.largest_shard)))
    pool = ShardPool(location.index, location.cache, threads=_THREADS, most_open=2 * ahead, options=options)
    full = [number for number, size in enumerate(sizes) if size]
    reader = RowReader(pool, columns)
    needed: set[int] = set()
    pool.expect(needed)
    first = 0
    try:
        for turn, number in enumerate(full):
            coming = full[turn : turn + ahead]
            needed.update(coming)
            pool.prefetch(coming)
            size = sizes[number]
            raw = location.index.shards[number].size
            step = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES * size // max(1, raw)))
            for start in range(0, size, step):
                rows = np.arange(start, min(start + step, size), dtype=np.int64)
                shards = np.full_like(rows, number)
                try:
                    yield first + start, len(rows), as_batch(reader.batch(shards, rows))
                    continue
                except SampleError as error:
                    if bad is None or not is_of_sample(error):
                        raise
                parts, errors = reader.parts(shards, rows, whole=False)
                bad += [first + start + one for one in sorted(errors)]
                for numbers, batch in parts:
                    yield first + start + int(numbers[0]), len(numbers), as_batch(batch)
            first += size
            needed.discard(number)
            pool.done_with(number)
    finally:
        pool.close()
