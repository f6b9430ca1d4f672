"""Several streams in one dataset: what a stream is, and all of them opened."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Final

import numpy as np

from stoker.arguments import checked
from stoker.cache.base import CacheSettings
from stoker.cache.open_cache import check_memory
from stoker.cache.quota_shares import share_limit
from stoker.catalog.location import DatasetLocation
from stoker.catalog.open_format import check_format, is_made, open_format
from stoker.catalog.unindexed.open_parquet import Files, OnBadFiles
from stoker.display import redact_url
from stoker.errors import ConfigError
from stoker.formats.base import ReadOptions
from stoker.formats.parquet.footer.predicate import Filters
from stoker.index.concat_index import JoinedIndex
from stoker.index.index import Index
from stoker.reading.shard_pool import ShardPool
from stoker.storage import RetryPolicy
from stoker.streams.stream_names import stream_names
from stoker.streams.subsets import Subset, as_subsets
from stoker.types import Ids, StorageOptions

__all__ = ["Stream", "StreamDefaults", "Streams", "open_streams"]

_THREADS: Final = 16


@checked(
    subset="conditions are written Where('column', '>', 3), functions Where.function('column', function, name)",
    filters="such as [('column', '>', 3)]",
)
@dataclass(frozen=True, slots=True)
class Stream:
    """One of the streams of a dataset. ``None`` stands for the dataset's own setting.

    Args:
        remote: URL or directory that holds the stream; ``None``: ``local`` holds it. Of files that are read as they are
            also a file, a pattern or a list of files.
        local: directory for the cache.
        split: sub-directory of both.
        name: what weights, states and messages call it. Default: the split, or the last parts of the path that tell it
            from the other streams; give one where streams may be added later.
        proportion: its part of the dataset, relative to other streams' proportions.
        repeat: how often each of its samples comes in an epoch.
        choose: how many samples of it come in an epoch. At most one of these three.
        download_retry, download_timeout, validate_hash, keep_zip, storage_options: as for the dataset.
        format: ``None``: shards with an index.json, of any formats. A name: files of this format as they are, indexed from
            a listing and their own headers; see docs/formats.md.
        format_options: settings of the format, by name; see there.
        filters: of Parquet, conditions on row groups, by their statistics; see there.
        on_bad_files: of Parquet, ``"error"`` or ``"skip"``; see there.
        subset: which of its samples belong: :class:`~stoker.streams.subsets.HashSplit`, ``KeepIds``, ``SkipIds`` or
            ``Where``, or a list of them, all of which must let a sample in.

    Raises:
        ConfigError: arguments that make no sense.
    """

    remote: Files | None = None
    local: str | os.PathLike[str] | None = None
    split: str | None = None
    _: KW_ONLY
    name: str | None = None
    proportion: float | None = None
    repeat: float | None = None
    choose: int | None = None
    download_retry: int | None = None
    download_timeout: float | None = None
    validate_hash: str | bool | None = None
    keep_zip: bool | None = None
    storage_options: StorageOptions | None = field(default=None, repr=False)
    format: str | None = None
    filters: Filters | None = None
    on_bad_files: OnBadFiles = "error"
    subset: Subset | Sequence[Subset] | None = None
    format_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        where = "stream" if self.name is None else f"stream {self.name!r}"
        if self.name is not None and not self.name:
            raise ConfigError("a stream's name must not be empty")
        if self.remote is None and self.local is None and not is_made(self.format):
            raise ConfigError(
                f"{where}: give remote= (a URL or directory that holds an index.json), local= (a directory), or both"
            )
        weights = [name for name in ("proportion", "repeat", "choose") if getattr(self, name) is not None]
        if len(weights) > 1:
            raise ConfigError(f"{where} has one of proportion, repeat and choose, not {' and '.join(weights)}")
        for name in (*weights, "download_retry"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigError(f"{where}: {name} must not be negative, got {value}")
        if self.download_timeout is not None and not 0 < self.download_timeout < math.inf:
            raise ConfigError(f"{where}: download_timeout is seconds above 0, got {self.download_timeout}")
        as_subsets(self.subset)
        check_format(self.format, self.remote, self.filters, self.on_bad_files, self.format_options, where)

    def __repr__(self) -> str:
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.repr and one.name != "_"}
        if isinstance(self.remote, str):  # it may hold a password or a signature, which opening refuses
            given["remote"] = redact_url(self.remote)
        elif isinstance(self.remote, Sequence):
            given["remote"] = [redact_url(os.fspath(one)) for one in self.remote]
        return f"Stream({', '.join(f'{name}={value!r}' for name, value in given.items() if value is not None)})"

    @property
    def subsets(self) -> tuple[Subset, ...]:
        """What a sample must be in, all of it; empty where all samples belong."""
        return as_subsets(self.subset)


@dataclass(frozen=True, slots=True)
class StreamDefaults:
    """What streams that say nothing else are opened with; see :class:`~stoker.loaders.dataset.StreamingDataset`."""

    download_retry: int = 2
    download_timeout: float = 60.0
    validate_hash: str | bool | None = None
    keep_zip: bool = False
    storage_options: StorageOptions | None = field(default=None, repr=False)
    columns: tuple[str, ...] | None = None
    in_memory: bool = False


class Streams:
    """Opened streams. Shards, and samples by id, are numbered through: those of one stream after those of another.

    Attributes:
        streams: what each was asked to be.
        names: their names, all different.
        places: their indexes and caches.
        index: all shards; a single stream's own index.
        limit: bytes that all caches together may take, or ``None``.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        names: Sequence[str],
        places: Sequence[DatasetLocation],
        limit: int | None = None,
    ) -> None:
        self.streams = tuple(streams)
        self.names = tuple(names)
        self.places = tuple(places)
        self.limit = limit
        indexes = [place.index for place in places]
        self.index: Index | JoinedIndex = indexes[0] if len(indexes) == 1 else JoinedIndex(indexes)

    def __len__(self) -> int:
        """Number of streams."""
        return len(self.streams)

    @property
    def shard_offsets(self) -> Ids:
        """Number of each stream's first shard; int64, shape ``(streams + 1,)``."""
        return np.cumsum([0, *(len(place.index) for place in self.places)], dtype=np.int64)

    @property
    def sample_offsets(self) -> Ids:
        """Id of each stream's first sample; int64, shape ``(streams + 1,)``."""
        return np.cumsum([0, *(place.index.samples for place in self.places)], dtype=np.int64)

    @property
    def fingerprints(self) -> dict[str, str]:
        """Stream name to a hash of what its samples are."""
        return {name: place.index.fingerprint for name, place in zip(self.names, self.places, strict=True)}

    @property
    def near(self) -> bool:
        """Whether all shards are read where they are, with nothing to fetch or decompress."""
        return all(place.cache.store is None and not place.index.compressed for place in self.places)

    @property
    def where(self) -> str:
        """The directories that shards are read from, for messages."""
        return ", ".join(dict.fromkeys(str(place.cache.root) for place in self.places))

    def pool(self, *, threads: int = 8, options: ReadOptions = ReadOptions()) -> ShardPool:
        """A pool of all streams' shards."""
        return ShardPool(self.index, [place.cache for place in self.places], threads=threads, options=options)

    def __repr__(self) -> str:
        return f"<Streams {', '.join(self.names)}: {self.index.samples} samples in {len(self.index)} shards>"


def open_streams(
    streams: Sequence[Stream], defaults: StreamDefaults = StreamDefaults(), *, cache_limit: int | None = None
) -> Streams:
    """Open streams, their indexes fetched side by side. Streams of one place share it.

    Args:
        streams: at least one.
        defaults: what streams that say nothing else are opened with.
        cache_limit: bytes that all streams' caches together may take. It is divided among the cache directories: see
            :func:`~stoker.cache.quota_shares.share_limit`. Streams that are read where they lie take none of it.

    Raises:
        ConfigError: names that are not different, two datasets in one cache directory, a limit that can not hold
            what is needed, or a limit and no remote.
        StorageError, IndexFileError: an index can not be fetched, or is not valid.
    """
    if not streams:
        raise ConfigError("streams is empty: give at least one")
    for stream in streams:
        if not isinstance(stream, Stream):
            raise ConfigError(f"streams holds a {type(stream).__name__}: expected Stream objects")
    names = stream_names(streams)
    options = [defaults.storage_options if one.storage_options is None else one.storage_options for one in streams]
    openers = [_Opener(*each, defaults, cache_limit) for each in zip(streams, options, strict=True)]
    # Streams that are opened alike are opened once.
    different = [openers.index(opener) for opener in openers]
    needed = sorted(set(different))
    if len(needed) == 1:
        opened = {needed[0]: openers[needed[0]].open()}
    else:
        with ThreadPoolExecutor(min(_THREADS, len(needed)), thread_name_prefix="stoker-open") as threads:
            futures = {number: threads.submit(openers[number].open) for number in needed}
            opened = {number: future.result() for number, future in futures.items()}
    if cache_limit is not None:
        opened = dict(zip(opened, _limited(list(opened.values()), cache_limit), strict=True))
    return Streams(streams, names, [opened[number] for number in different], cache_limit)


@dataclass(frozen=True, slots=True)
class _Opener:
    """How a stream is opened: equal for streams that can share what is opened."""

    stream: Stream = field(compare=False)
    options: StorageOptions | None = field(repr=False)
    defaults: StreamDefaults = field(compare=False)
    limit: int | None = field(compare=False)
    arguments: tuple[Any, ...] = field(init=False)

    def __post_init__(self) -> None:
        one = self.stream
        given = (
            one.format,
            repr(one.remote),
            *(None if part is None else os.fspath(part) for part in (one.local, one.split)),
        )
        settings = (repr(one.filters), one.on_bad_files, repr(one.format_options))
        object.__setattr__(self, "arguments", (*given, *settings, *self._chosen().values()))

    def _chosen(self) -> dict[str, Any]:
        one, base = self.stream, self.defaults
        return {
            name: getattr(base if getattr(one, name) is None else one, name)
            for name in ("download_retry", "download_timeout", "validate_hash", "keep_zip")
        }

    def open(self) -> DatasetLocation:
        one, chosen = self.stream, self._chosen()
        check_memory(self.defaults.in_memory, one.remote, one.local, chosen["keep_zip"])
        # As for a dataset: False never validates, and what is empty is not given.
        validate = chosen["validate_hash"] or (False if chosen["validate_hash"] is False else None)
        return open_format(
            one.format,
            one.remote,
            one.local,
            one.split,
            columns=self.defaults.columns,
            filters=one.filters,
            on_bad_files=one.on_bad_files,
            options=one.format_options,
            cache_limit=self.limit,
            settings=CacheSettings(
                validate_hash=validate,
                keep_zip=chosen["keep_zip"],
                stall_timeout=chosen["download_timeout"],
                in_memory=self.defaults.in_memory,
            ),
            storage_options=self.options,
            retry=RetryPolicy(attempts=chosen["download_retry"] + 1),
            stall_timeout=chosen["download_timeout"],
        )


def _limited(places: Sequence[DatasetLocation], limit: int) -> list[DatasetLocation]:
    """The places, each cache directory with its part of the limit."""
    roots: dict[str, DatasetLocation] = {}
    for place in places:
        if place.cache.store is not None:
            roots.setdefault(os.path.realpath(place.cache.root), place)
    if not roots:
        return [place.limited(limit) for place in places]  # tells why that can not be
    if len(roots) == 1:
        shares = [limit]
    else:
        shares = share_limit(
            limit,
            [_stored_bytes(place) for place in roots.values()],
            [str(place.cache.root) for place in roots.values()],
        )
    share_of = dict(zip(roots, shares, strict=True))
    return [
        place if place.cache.store is None else place.limited(share_of[os.path.realpath(place.cache.root)])
        for place in places
    ]


def _stored_bytes(place: DatasetLocation) -> Ids:
    """Bytes that each shard may take in the cache."""
    zipped = place.cache.settings.keep_zip
    return np.array(
        [sum(file.bytes for file in (*shard.raw, *(shard.zip if zipped else ()))) for shard in place.index.shards],
        dtype=np.int64,
    )
