"""Arguments of streams, the sources of a dataset, and several streams opened as one dataset."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Final

import numpy as np

from stoker.arguments import checked
from stoker.cache.base import CacheSettings
from stoker.cache.disk.disk_cache import check_memory
from stoker.cache.disk.quota import divide_limit
from stoker.catalog.location import DatasetLocation
from stoker.catalog.unindexed.files_location import Files
from stoker.concurrency.threads import map_in_order
from stoker.display import redact_url, with_article
from stoker.errors import ConfigError
from stoker.formats.base import ReadOptions
from stoker.index.concat_index import ConcatIndex
from stoker.index.index import Index, collector_paused
from stoker.index.version import opening_time
from stoker.order.mixture.weights import StreamWeight
from stoker.order.subsets import Subset, as_subsets
from stoker.policy import CACHE_DESCRIPTORS, INDEXES_AT_ONCE, USUAL_DESCRIPTORS, allow_descriptors
from stoker.reading.shard_pool import ShardPool
from stoker.storage import RetryPolicy
from stoker.types import Ids, StorageOptions

_WEIGHTS: Final = ("proportion", "repeat", "choose")
# Methods by which subclasses of mosaicml-streaming's Stream fetch and open shards.
_NEVER_CALLED: Final = (
    "_decompress_shard_part",
    "_download_file",
    "_prepare_shard_part",
    "apply_default",
    "get_index_size",
    "get_shards",
    "prepare_shard",
    "set_up_local",
)
_INHERITED: Final = ("download_retry", "download_timeout", "validate_hash", "keep_zip", "storage_options")
MOVED: Final[Mapping[str, str]] = {
    "source": "it is called remote=, and may be the first argument without a name",
    "filters": 'it is a setting of the format: format="parquet", format_options={"filters": ...}',
    "on_bad_files": 'it is a setting of the format: format_options={"on_bad_files": "skip"}',
}
"""Arguments that users know by other names, with their names here."""


@checked(
    subset="conditions are written Where('column', '>', 3), functions Where.function('column', function, name)",
    **MOVED,
)
@dataclass(eq=False)
class Stream:
    """One source of a dataset, with its weight and settings. ``None`` means the setting of the dataset.

    Subclasses may have arguments and attributes of their own. A dataset that opens a stream sets its ``proportion``,
    ``repeat`` and ``choose`` to what they are among its streams, unless a schedule decides.

    >>> Stream("s3://bucket/web", proportion=0.7)
    Stream(remote='s3://bucket/web', proportion=0.7)

    Args:
        remote: URL or directory that holds the stream; ``None``: ``local`` holds it. Of files that are read as they are
            also a file, a pattern or a list of files.
        local: directory for the cache; see :class:`~stoker.loaders.dataset.StreamingDataset`.
        split: sub-directory of both.
        name: its name in weights, states and messages. Default: the split, or as many last parts of the path as make it
            unique; pass a name if streams may be added later.
        proportion: its weight, relative to the proportions of other streams.
        repeat: how many times an epoch has each of its samples.
        choose: how many of its samples an epoch has. Pass at most one of these three.
        download_retry, download_timeout, validate_hash, keep_zip, storage_options: as for the dataset.
        format: ``None``: shards with an index.json, of any formats, or files whose names tell their format. A name: files of
            this format as they are, indexed from a listing and their own headers; see docs/formats.md.
        format_options: settings of the format, by name; see there.
        subset: the samples of the stream to use: :class:`~stoker.order.subsets.HashSplit`, ``KeepIds``, ``SkipIds`` or
            ``Where``, or a list of these; a sample is used if all of them include it.

    Raises:
        ConfigError: arguments are invalid, or cannot be combined.
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
    subset: Subset | Sequence[Subset] | None = None
    format_options: Mapping[str, Any] | None = None
    # The weight that was given, and what a dataset made of it.
    _derived: tuple[StreamWeight, tuple[float, float, int]] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        from stoker.catalog.open_format import check_format, is_made  # a copy in a worker opens nothing

        where = "" if self.name is None else f"stream {self.name!r}: "
        if self.name is not None and not self.name:
            raise ConfigError("a stream's name must not be empty")
        if self.remote is None and self.local is None and not is_made(self.format):
            raise ConfigError(
                f"{where}give remote= (a URL, a directory, a file or a pattern), local= (a directory), or both"
            )
        weights = [name for name in _WEIGHTS if getattr(self, name) is not None]
        if len(weights) > 1:
            raise ConfigError(f"{where}give one of proportion, repeat and choose, not {' and '.join(weights)}")
        for name in weights:
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ConfigError(f"{where}{name} must not be negative, got {value}")
        _check_downloads(self, where)
        if self.subset is not None:
            as_subsets(self.subset)
        if self.format is not None:
            check_format(self.format, self.remote, self.format_options, where)

    def __repr__(self) -> str:
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.repr and one.name != "_"}
        given |= {name: getattr(self.weight, name) for name in _WEIGHTS}
        if isinstance(self.remote, str):  # it may hold a password or a signature; opening refuses such URLs
            given["remote"] = redact_url(self.remote)
        elif isinstance(self.remote, Sequence):
            given["remote"] = [redact_url(os.fspath(one)) for one in self.remote]
        shown = ", ".join(f"{name}={value!r}" for name, value in given.items() if value is not None)
        return f"{type(self).__name__}({shown})"

    @property
    def weight(self) -> StreamWeight:
        """The weight that was given: to the constructor, or set since then."""
        found = {"proportion": self.proportion, "repeat": self.repeat, "choose": self.choose}
        if self._derived is None:
            return StreamWeight(**found)  # type: ignore[arg-type]
        given, derived = self._derived
        changed = {name: value for (name, value), old in zip(found.items(), derived, strict=True) if value != old}
        return StreamWeight(**changed) if changed else given  # type: ignore[arg-type]

    def opened_as(self, proportion: float, choose: int, samples: int) -> None:
        """Set the weights that the stream has in a dataset.

        Args:
            proportion: its part of an epoch.
            choose: samples of it in an epoch.
            samples: samples that there are.
        """
        given = self.weight
        derived = proportion, choose / max(1, samples), choose
        self.proportion, self.repeat, self.choose = derived
        self._derived = given, derived

    @property
    def subsets(self) -> tuple[Subset, ...]:
        """The subsets that a sample must be in, all of them; empty where all samples belong."""
        return as_subsets(self.subset)


@dataclass(frozen=True, slots=True)
class StreamDefaults:
    """Settings of a dataset for the streams that have none of their own.

    Attributes:
        download_retry, download_timeout, validate_hash, keep_zip, storage_options: see
            :class:`~stoker.loaders.dataset.StreamingDataset`.
        columns: all columns that will be read; ``None`` for all.
        in_memory: shards of a remote are held in memory.
        cache_limit: bytes that all streams' caches together may take. It is divided among the cache directories: see
            :func:`~stoker.cache.disk.quota.divide_limit`. Streams that are read where they lie take none of it.
        split: sub-directory of streams that have none.

    ConfigError for a number out of range.
    """

    download_retry: int = 2
    download_timeout: float = 60.0
    validate_hash: str | bool | None = None
    keep_zip: bool = False
    storage_options: StorageOptions | None = field(default=None, repr=False)
    columns: tuple[str, ...] | None = None
    in_memory: bool = False
    cache_limit: int | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        _check_downloads(self, "")


class Streams:
    """Opened streams. Shards and sample ids count through all streams, one stream after the other.

    Attributes:
        streams: their arguments.
        names: their names, all different.
        locations: the index and the cache of each.
        index: all shards; a single stream's own index.
        limit: bytes that all caches together may take, or ``None``.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        names: Sequence[str],
        locations: Sequence[DatasetLocation],
        limit: int | None = None,
    ) -> None:
        self.streams = tuple(streams)
        self.names = tuple(names)
        self.locations = tuple(locations)
        self.limit = limit
        indexes = [location.index for location in locations]
        self.index: Index | ConcatIndex = indexes[0] if len(indexes) == 1 else ConcatIndex(indexes)

    def __len__(self) -> int:
        """Number of streams."""
        return len(self.streams)

    @property
    def shard_offsets(self) -> Ids:
        """Number of each stream's first shard; int64, shape ``(streams + 1,)``."""
        return np.cumsum([0, *(len(location.index) for location in self.locations)], dtype=np.int64)

    @property
    def sample_offsets(self) -> Ids:
        """Id of each stream's first sample; int64, shape ``(streams + 1,)``."""
        return np.cumsum([0, *(location.index.samples for location in self.locations)], dtype=np.int64)

    @property
    def near(self) -> bool:
        """Whether all shards are read where they are, with nothing to fetch or decompress."""
        return all(location.cache.store is None and not location.index.compressed for location in self.locations)

    @property
    def where(self) -> str:
        """The files, patterns, URLs and directories that are read, for messages."""
        return ", ".join(dict.fromkeys(location.where for location in self.locations))

    def record_shares(
        self, chosen: Mapping[str, int] | None, proportions: Mapping[str, float | None] | None = None
    ) -> None:
        """Write its share of an epoch into each stream; not where a schedule changes the shares.

        ``chosen``: samples of each stream in an epoch, by its name; ``None`` with a schedule. ``proportions``: those of the
        order, by name. Default: those that the streams were made with.
        """
        if chosen is None:
            return
        made = proportions or {
            name: stream.weight.proportion for name, stream in zip(self.names, self.streams, strict=True)
        }
        shares = [chosen[name] if (share := made[name]) is None else share for name in self.names]
        total = sum(shares) or 1
        for name, stream, location, share in zip(self.names, self.streams, self.locations, shares, strict=True):
            stream.opened_as(share / total, chosen[name], location.index.samples)

    def pool(self, options: ReadOptions = ReadOptions()) -> ShardPool:
        """A pool of all streams' shards; see there."""
        caches = [location.cache for location in self.locations]
        return ShardPool(self.index, caches, threads=options.download_threads, options=options, ids=options.ids)

    def __repr__(self) -> str:
        return f"<Streams {', '.join(self.names)}: {self.index.samples} samples in {len(self.index)} shards>"


def stream_names(streams: Sequence[Stream]) -> tuple[str, ...]:
    """The streams' names; a stream without one is named by the end of its path.

    ConfigError if two streams were given the same name.
    """
    given = Counter(stream.name for stream in streams if stream.name is not None)
    for name, count in given.items():
        if count > 1:
            raise ConfigError(f"{count} streams are called {name!r}: give each a name of its own")
    paths = [_path_parts(stream) for stream in streams]
    # Streams of one path get the same name first, and numbers then.
    unnamed = [(path, stream) for path, stream in zip(paths, streams, strict=True) if stream.name is None]
    length = {path: max(1, len(_split_parts(stream))) for path, stream in unnamed}
    while True:
        chosen = {path: "/".join(path[-count:]) for path, count in length.items()}
        taken = Counter([*chosen.values(), *given])
        longer = [path for path, name in chosen.items() if taken[name] > 1 and length[path] < len(path)]
        if not longer:
            break
        for path in longer:
            length[path] += 1
    names: dict[str, None] = {}  # in their order, and found at once
    for path, stream in zip(paths, streams, strict=True):
        name = base = stream.name if stream.name is not None else chosen[path]
        if stream.name is None:
            count = 1
            while name in names or name in given:
                count += 1
                name = f"{base}#{count}"
        names[name] = None
    return tuple(names)


def _path_parts(stream: Stream) -> tuple[str, ...]:
    given = stream.remote if stream.remote is not None else stream.local or ""
    # Of a list of files, the first stands for all.
    base = os.fspath(given if isinstance(given, str | os.PathLike) else next(iter(given), ""))
    path = base.partition("://")[2] or (base if "://" in base else os.path.abspath(os.path.expanduser(base)))
    parts = (*path.split("/"), *_split_parts(stream))
    return tuple([part for part in parts if part and part != "."]) or ("stream",)


def _split_parts(stream: Stream) -> tuple[str, ...]:
    return tuple(part for part in (stream.split or "").split("/") if part)


def open_streams(streams: Sequence[Stream], defaults: StreamDefaults | None = None) -> Streams:
    """Open streams, their indexes fetched side by side. Streams of one location share it.

    ConfigError for names that are not different, two datasets in one cache directory, a limit that can not hold what is
    needed, or a limit and no remote. StorageError or IndexFileError if an index can not be fetched, or is not valid.
    ``streams``: at least one. ``defaults``: what streams that say nothing else are opened with.
    """
    from stoker.catalog.open_format import open_format  # a copy in a worker opens nothing

    if not streams:
        raise ConfigError("streams is empty: give at least one")
    for stream in streams:
        if not isinstance(stream, Stream):
            raise ConfigError(f"streams holds {with_article(type(stream).__name__)}: expected Stream objects")
        for name in _NEVER_CALLED:
            if hasattr(stream, name):
                raise ConfigError(
                    f"{type(stream).__name__}.{name}() would never be called: shards are fetched by the store of their URL, "
                    "see docs/storage.md. Leave it out, and give what it needs by storage_options=, or have it done before "
                    "the dataset is opened"
                )
    names = stream_names(streams)
    defaults = defaults or StreamDefaults()
    openings = [_opening(one, defaults) for one in streams]
    # Streams with equal arguments are opened once.
    keys = [repr(opening) for opening in openings]
    different = dict(zip(keys, openings, strict=True))
    if len(different) == 1:
        locations = [open_format(**openings[0])]
    else:
        allow_descriptors(USUAL_DESCRIPTORS + CACHE_DESCRIPTORS * len(different))
        begun = opening_time(os.curdir)  # which may wait for a tick of the clock: once for all
        with collector_paused():
            locations = map_in_order(
                lambda opening: open_format(**opening, opened=begun),
                list(different.values()),
                at_hand=all(_is_here(opening["remote"]) for opening in different.values()),
                most=INDEXES_AT_ONCE,
                name="open",
            )
    if defaults.cache_limit is not None:
        locations = _limited(locations, defaults.cache_limit)
    opened = dict(zip(different, locations, strict=True))
    return Streams(streams, names, [opened[key] for key in keys], defaults.cache_limit)


def _is_here(remote: Files | None) -> bool:
    """Whether what is opened is this machine's, or is mounted there."""
    return remote is None or (isinstance(remote, str | os.PathLike) and "://" not in os.fspath(remote))


def _opening(one: Stream, defaults: StreamDefaults) -> dict[str, Any]:
    """Arguments of :func:`~stoker.catalog.open_format.open_format` of a stream: the same for streams of one location."""
    retry, timeout, validate, keep_zip, options = (
        getattr(defaults if getattr(one, name) is None else one, name) for name in _INHERITED
    )
    if defaults.in_memory:
        check_memory(one.remote, one.local, keep_zip)
    return {
        "format": one.format,
        "remote": one.remote,
        "local": None if one.local is None else os.fspath(one.local),
        "split": one.split or defaults.split,
        "columns": defaults.columns,
        "options": one.format_options,
        "cache_limit": defaults.cache_limit,
        # As for a dataset: False never validates, and an empty value counts as not given.
        "settings": CacheSettings(
            validate_hash=validate or (False if validate is False else None),
            keep_zip=keep_zip,
            stall_timeout=timeout,
            in_memory=defaults.in_memory,
        ),
        "storage_options": options,
        "retry": RetryPolicy(retry * timeout),
        "stall_timeout": timeout,
    }


def _check_downloads(given: Stream | StreamDefaults, where: str) -> None:
    retry, timeout = given.download_retry, given.download_timeout
    if retry is not None and retry < 0:
        raise ConfigError(f"{where}download_retry must be at least 0, got {retry}")
    if timeout is not None and not 0 < timeout < math.inf:
        raise ConfigError(f"{where}download_timeout is seconds above 0, got {timeout}")


def _limited(locations: Sequence[DatasetLocation], limit: int) -> list[DatasetLocation]:
    """The locations, each cache directory with its part of the limit."""
    roots: dict[str, DatasetLocation] = {}
    for location in locations:
        if location.cache.store is not None:
            roots.setdefault(os.path.realpath(location.cache.root), location)
    if not roots:
        return [location.limited(limit) for location in locations]  # raises the error that says why it can not
    if len(roots) == 1:
        quotas = [limit]
    else:
        quotas = divide_limit(
            limit,
            [_stored_bytes(location) for location in roots.values()],
            [str(location.cache.root) for location in roots.values()],
        )
    quota_of = dict(zip(roots, quotas, strict=True))
    return [
        location if location.cache.store is None else location.limited(quota_of[os.path.realpath(location.cache.root)])
        for location in locations
    ]


def _stored_bytes(location: DatasetLocation) -> Ids:
    """Bytes that each shard may take in the cache."""
    zipped = location.cache.settings.keep_zip
    return np.array(
        [sum(file.bytes for file in (*shard.raw, *(shard.zip if zipped else ()))) for shard in location.index.shards],
        dtype=np.int64,
    )
