"""Sources of samples: any opened dataset, or files that are a sample each. Sources go to processes by pickling."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import numpy as np

from stoker.catalog.location import DatasetLocation
from stoker.errors import ConfigError, SampleError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.entries import entry_of
from stoker.formats.one_file import CLASS, LABEL, PATH, class_numbers, folder_of
from stoker.formats.registry import get_format
from stoker.formats.unstacked import as_batch
from stoker.index.index import INDEX_NAME, Index
from stoker.reading.row_reader import RowReader
from stoker.reading.sample_errors import SampleLocation, location_of
from stoker.reading.samples import read_samples
from stoker.reading.shard_pool import ShardPool
from stoker.storage import ObjectInfo, Store, is_local, open_store
from stoker.storage.files.regular import open_regular
from stoker.storage.job_record import file_versions
from stoker.types import Batch, Ids

_THREADS: Final = 4
_REQUESTS: Final = 32
_SMALL: Final = 1 << 16
# Of a file that becomes one sample.
_MOST_BYTES: Final = 1 << 31
# Shards that are fetched before they are needed.
_AHEAD: Final = 4


GoodRows: TypeAlias = tuple[Batch, Ids, dict[int, SampleError]]
"""Columns of the samples that are not bad; of each its index among those that were asked for, rising, int64; and the errors
of the bad ones, by index. Where all are bad, there are no columns."""


class ConversionSource(Protocol):
    """Samples of a source, by shard and row.

    Attributes:
        sizes: samples in each shard; int64.
        bytes: of all shards, about.
        identity: tells the data from other data, with :meth:`versions`.
    """

    name: str
    sizes: Ids
    columns: tuple[str, ...]
    bytes: int
    identity: str

    def files(self, shards: Ids) -> set[str]:
        """Names of the files that hold some shards."""

    def versions(self) -> dict[str, str]:
        """Its files that are there, and their present versions; see :func:`~stoker.storage.job_record.file_version`."""

    def read(self, shards: Ids, rows: Ids, columns: Sequence[str]) -> Batch:
        """Columns of the samples at ``(shards[i], rows[i])``, in that order."""

    def read_good(self, shards: Ids, rows: Ids, columns: Sequence[str]) -> GoodRows:
        """As :meth:`read`, without the samples that are bad."""

    def expect(self, shards: Ids, now: int) -> None:
        """Say which shards are read: for the next ``now`` samples, and then, in this order."""

    def where(self, shard: int, row: int) -> str:
        """Names a sample in errors."""

    def sample_location(self, shard: int, row: int) -> SampleLocation:
        """The location of a sample, as a list of bad samples has it."""

    def close(self) -> None:
        """Close what is open."""


class ShardSource(ConversionSource):
    """A dataset, of whatever format."""

    def __init__(self, name: str, location: DatasetLocation, options: ReadOptions) -> None:
        self.name = name
        self.sizes: Ids = location.index.sizes
        self.columns = location.index.columns
        self.bytes = location.index.total_bytes
        self.identity = location.index.fingerprint
        self.location = location
        self._needed: set[int] = set()
        self._pool = ShardPool(location.index, location.cache, threads=_THREADS, most_open=64, options=options)
        self._readers: dict[tuple[str, ...], RowReader] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}}

    def files(self, shards: Ids) -> set[str]:
        stored = [file for shard in shards.tolist() for file in self.location.index.shards[shard].stored]
        names = {file.part.key if file.part is not None else file.basename for file in stored}
        return names | {INDEX_NAME} if any(file.part is None for file in stored) else names

    def versions(self) -> dict[str, str]:
        keys = self.files(np.arange(len(self.sizes)))
        cache = self.location.cache
        return file_versions(cache.store or open_store(cache.root), sorted(keys))

    def read(self, shards: Ids, rows: Ids, columns: Sequence[str]) -> Batch:
        return as_batch(read_samples(self._pool, shards, rows, columns))

    def read_good(self, shards: Ids, rows: Ids, columns: Sequence[str]) -> GoodRows:
        self._pool.reads_cut = True
        if tuple(columns) not in self._readers:
            self._readers[tuple(columns)] = RowReader(self._pool, columns)
        batch, kept, bad = self._readers[tuple(columns)].good(shards, rows)
        return as_batch(batch), kept, bad

    def expect(self, shards: Ids, now: int) -> None:
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
        info = self.location.index.shards[shard]
        number = int(self.sizes[:shard].sum()) + row
        if not info.raw:  # rows of a table
            return f"{self.name}: sample {number} (row {row} of {self.location.cache.describe(info)})"
        file = info.raw[-1].part.key if info.raw[-1].part is not None else info.raw[0].basename
        return f"{self.name}: sample {number} (row {row} of {file})"

    def sample_location(self, shard: int, row: int) -> SampleLocation:
        return location_of(self._pool, shard, row)

    def close(self) -> None:
        self._pool.close()


@dataclass
class FileSource(ConversionSource):
    """Files that are a sample each: images in folders that are their classes, or any files. Nothing is decoded.

    ``content``: the column of the file's bytes. ``numbers``: of images in folders: number of each class.
    """

    name: str
    content: str
    store: Store
    keys: Sequence[str]
    numbers: Mapping[str, int] | None
    bytes: int
    identity: str = ""  # the versions tell all
    sizes: Ids = field(init=False)
    columns: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = np.ones(len(self.keys), np.int64)
        self.columns = (self.content, PATH) if self.numbers is None else (self.content, PATH, CLASS, LABEL)

    @classmethod
    def of(cls, name: str, content: str, store: Store, files: Sequence[ObjectInfo]) -> FileSource:
        """The source of some files."""
        keys = [file.key for file in files]
        numbers = class_numbers(keys) if content == "image" else None
        return cls(name, content, store, keys, numbers, sum(file.size for file in files))

    def files(self, shards: Ids) -> set[str]:
        return {self.keys[shard] for shard in shards.tolist()}

    def versions(self) -> dict[str, str]:
        return file_versions(self.store, self.keys)

    def read(self, shards: Ids, rows: Ids, columns: Sequence[str]) -> Batch:  # noqa: ARG002
        keys = [self.keys[shard] for shard in shards.tolist()]
        batch: Batch = {}
        for name in columns:
            if name == self.content:
                batch[name] = self._contents(keys)
            elif name == PATH:
                batch[name] = keys
            elif name == CLASS:
                batch[name] = [folder_of(key) for key in keys]
            else:
                assert self.numbers is not None
                batch[name] = np.array([self.numbers[folder_of(key)] for key in keys], np.int64)
        return batch

    def read_good(self, shards: Ids, rows: Ids, columns: Sequence[str]) -> GoodRows:
        # The bytes of a file are what they are: one that can not be read is an error of the storage.
        return self.read(shards, rows, columns), np.arange(len(rows)), {}

    def _contents(self, keys: Sequence[str]) -> list[Any]:
        folder = is_local(self.store.url)
        if folder is not None:
            return [_read_local(f"{folder}/{key}", self.store, key) for key in keys]
        if len(keys) == 1:
            return [self.store.get(key, max_bytes=_MOST_BYTES) for key in keys]
        with ThreadPoolExecutor(min(_REQUESTS, len(keys)), thread_name_prefix="stoker-get") as pool:
            return list(pool.map(partial(self.store.get, max_bytes=_MOST_BYTES), keys))

    def where(self, shard: int, row: int) -> str:  # noqa: ARG002
        return f"{self.name}: sample {shard} ({self.keys[shard]})"

    def sample_location(self, shard: int, row: int) -> SampleLocation:
        return SampleLocation(self.store.url_of(self.keys[shard]), shard, row, shard)


def _read_local(path: str, store: Store, key: str) -> bytes:
    """All of a file: with three calls instead of the checks of a store, which would be most of what small files cost."""
    try:
        file, _ = open_regular(path)
    except OSError:
        return store.get(key, max_bytes=_MOST_BYTES)  # which says what is wrong
    try:
        data = os.read(file, _SMALL)
    finally:
        os.close(file)
    return data if 0 < len(data) < _SMALL else store.get(key, max_bytes=_MOST_BYTES)


def verbatim_images(location: DatasetLocation) -> tuple[DatasetLocation, dict[str, str]]:
    """A dataset whose images are handed out as the bytes of their files, so that they are not encoded a second time.

    Also gives the encodings of all columns that the index names, unchanged.
    """
    encodings: dict[str, str] = {}
    specs: dict[int, Mapping[str, Any]] = {}
    shards: list[ShardInfo] = []
    changed = False
    for info in location.index.shards:
        made, kinds = info, info.spec.get("column_encodings", ())
        if info.format == "parquet" and "encodings" in info.spec:  # its columns' types tell how they are decoded
            raw = specs.setdefault(id(info.spec), {key: info.spec[key] for key in info.spec if key != "encodings"})
            made = replace(info, spec=raw)
        elif id(info.spec) not in specs:
            for name, kind in zip(info.spec.get("column_names", ()), kinds, strict=True):
                if encodings.setdefault(name, kind) != kind:
                    raise ConfigError(
                        f"{location.where}: column {name!r} is {encodings[name]} in one shard and {kind} in another: "
                        "leave it out with select="
                    )
            specs[id(info.spec)] = info.spec
        if {"jpeg", "png"} & set(kinds):
            entry = json.loads(json.dumps(entry_of(info)))  # lists, as an index has them
            entry["column_encodings"] = ["bytes" if kind in ("jpeg", "png") else kind for kind in kinds]
            made = get_format(info.format).parse_shard(entry, os.fspath(location.cache.root))
        shards.append(made)
        changed = changed or made is not info
    names = set(location.index.columns)
    index = Index(shards, extra=location.index.extra)
    return (
        (DatasetLocation(index, location.cache, location.keep) if changed else location),
        {name: kind for name, kind in encodings.items() if name in names},
    )
