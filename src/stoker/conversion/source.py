"""The source of a conversion: any dataset that was opened. It goes to processes by pickling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np

from stoker.catalog.location import DatasetLocation
from stoker.errors import ConfigError, SampleError
from stoker.formats.base import ReadOptions
from stoker.formats.one_file import FILES
from stoker.formats.unstacked import as_batch
from stoker.index.file_index import SampleFiles
from stoker.index.index import INDEX_NAME, Index
from stoker.reading.row_reader import RowReader
from stoker.reading.sample_errors import SampleLocation, location_of
from stoker.reading.samples import read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.storage import open_store
from stoker.storage.job_record import file_versions
from stoker.types import Batch, Ids

_THREADS: Final = 4
# Shards that are fetched before they are needed.
_AHEAD: Final = 4


GoodRows: TypeAlias = tuple[Batch, Ids, dict[int, SampleError]]
"""Columns of the samples that are not bad; of each its index among those that were asked for, rising, int64; and the errors
of the bad ones, by index. Where all are bad, there are no columns."""


class ConversionSource:
    """Samples of a dataset, by shard and row.

    Attributes:
        sizes: samples in each shard; int64.
        bytes: of all shards, about.
        identity: tells the data from other data, with :meth:`versions`.
        single: whether it is files without an index that are a sample each.
    """

    def __init__(self, name: str, location: DatasetLocation, options: ReadOptions, *, single: bool = False) -> None:
        self.name = name
        self.sizes: Ids = location.index.sizes
        self.columns = location.index.columns
        self.bytes = location.index.total_bytes
        self.single = single
        self.identity = "" if single else location.index.fingerprint  # the versions tell all
        self.location = location
        self._needed: set[int] = set()
        threads = None if single else _THREADS
        self._pool = ShardPool(location.index, location.cache, threads=threads, most_open=64, options=options)
        self._readers: dict[tuple[str, ...], RowReader] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}}

    def files(self, shards: Ids) -> set[str]:
        """Names of the files that hold some shards."""
        every = self.location.index.shards
        if isinstance(every, SampleFiles):
            return set(map(every.path, shards.tolist()))
        stored = [file for shard in shards.tolist() for file in self.location.index.shards[shard].stored]
        names = {file.part.key if file.part is not None else file.basename for file in stored}
        return names | {INDEX_NAME} if any(file.part is None for file in stored) else names

    def listed(self) -> Iterable[tuple[str, int, str]]:
        """Name, bytes and version of each file that is a sample, as it was found."""
        shards = self.location.index.shards
        if isinstance(shards, SampleFiles):
            return shards.objects()
        parts = (info.raw[0].part for info in shards)
        return ((part.key, part.size, part.version) for part in parts if part is not None)

    def versions(self) -> dict[str, str]:
        """Its files that are there, and their present versions; see :func:`~stoker.storage.job_record.file_version`."""
        keys = self.files(np.arange(len(self.sizes)))
        cache = self.location.cache
        return file_versions(cache.store or open_store(cache.root), sorted(keys))

    def read(self, shards: Ids, rows: Ids, columns: Sequence[str]) -> Batch:
        """Columns of the samples at ``(shards[i], rows[i])``, in that order."""
        return as_batch(read_samples(self._pool, shards, rows, columns))

    def read_good(self, shards: Ids, rows: Ids, columns: Sequence[str]) -> GoodRows:
        """As :meth:`read`, without the samples that are bad. A file that can not be read is none: the storage fails."""
        if self.single:
            return self.read(shards, rows, columns), np.arange(len(rows)), {}
        self._pool.reads_cut = True
        if tuple(columns) not in self._readers:
            self._readers[tuple(columns)] = RowReader(self._pool, columns)
        batch, kept, bad = self._readers[tuple(columns)].good(shards, rows)
        return as_batch(batch), kept, bad

    def expect(self, shards: Ids, now: int) -> None:
        """Say which shards are read: for the next ``now`` samples, and then, in this order."""
        soon = dict.fromkeys(shards[:now].tolist())
        for shard in dict.fromkeys(shards[now:].tolist()):
            if len(soon) >= _AHEAD:
                break
            soon[shard] = None
        for shard in self._needed - soon.keys():
            self._pool.done_with(shard)
        self._needed.clear()
        self._needed.update(soon)
        self._pool.expect(self._needed)
        self._pool.prefetch(soon)

    def where(self, shard: int, row: int) -> str:
        """Names a sample in errors."""
        info = self.location.index.shards[shard]
        number = int(self.sizes[:shard].sum()) + row
        if not info.raw:  # rows of a table
            return f"{self.name}: sample {number} (row {row} of {self.location.cache.describe(info)})"
        file = info.raw[-1].part.key if info.raw[-1].part is not None else info.raw[0].basename
        return f"{self.name}: sample {number} ({'' if self.single else f'row {row} of '}{file})"

    def sample_location(self, shard: int, row: int) -> SampleLocation:
        """The location of a sample, as a list of bad samples has it."""
        return location_of(self._pool, shard, row)

    def close(self) -> None:
        """Close what is open."""
        self._pool.close()


def as_they_are(location: DatasetLocation) -> DatasetLocation:
    """Files that are a sample each, of whatever format, without a look at whether they are of it."""
    shards = location.index.shards
    if isinstance(shards, SampleFiles):
        index = Index.checked(shards.of_format(FILES), {}, None, {})
    else:
        index = Index([replace(info, format=FILES) for info in shards])
    return DatasetLocation(index, location.cache, location.keep)


def verbatim_images(location: DatasetLocation) -> tuple[DatasetLocation, dict[str, str]]:
    """A dataset whose images are handed out as the bytes of their files, so that they are not encoded a second time.

    Also gives the encodings of all columns that the index names, unchanged.
    """
    encodings: dict[str, str] = {}
    specs: dict[int, Mapping[str, Any]] = {}
    index = location.index
    for info in index.distinct_shards:
        spec, kinds = info.spec, info.spec.get("column_encodings", ())
        if info.format == "parquet" and "encodings" in spec:  # its columns' types tell how they are decoded
            specs[id(spec)] = {key: spec[key] for key in spec if key != "encodings"}
            continue
        for name, kind in zip(spec.get("column_names", ()), kinds, strict=True):
            if encodings.setdefault(name, kind) != kind:
                raise ConfigError(
                    f"{location.where}: column {name!r} is {encodings[name]} in one shard and {kind} in another: "
                    "leave it out with select="
                )
        if {"jpeg", "png"} & set(kinds):
            plain = tuple("bytes" if kind in ("jpeg", "png") else kind for kind in kinds)
            specs[id(spec)] = {**spec, "column_encodings": plain}
    if specs:
        shards = [replace(info, spec=specs.get(id(info.spec), info.spec)) for info in index.shards]
        location = DatasetLocation(Index(shards, extra=index.extra), location.cache, location.keep)
    names = set(index.columns)
    return location, {name: kind for name, kind in encodings.items() if name in names}
