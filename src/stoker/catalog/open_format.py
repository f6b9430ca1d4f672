"""Opening a dataset by its format: shards with an index.json, files that others wrote, as they are, or samples made up."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from stoker.cache.base import CacheSettings
from stoker.catalog.location import DatasetLocation, open_indexed
from stoker.catalog.unindexed.files_location import Files, dataset_url, is_hub, is_pattern
from stoker.display import redact_url, unknown_name
from stoker.errors import ConfigError, FormatError, ObjectNotFoundError
from stoker.formats.registry import aliases, format_name, format_names, is_format
from stoker.index.index import INDEX_NAME, INDEXED, Index
from stoker.index.version import LoadedIndex, read_index, version_of_listing
from stoker.storage import RetryPolicy, Store, is_local, join_url
from stoker.types import StorageOptions

if TYPE_CHECKING:
    from stoker.index.side_index import SideIndex

logger = logging.getLogger(__name__)

_MADE: Final = "synthetic"
_CHUNKS: Final = "litdata"
_NO_OPTIONS: Final = "format_options= is only for files without an index, with their format="


def index_or_headers(store: Store, side: Callable[[], SideIndex] | None = None) -> LoadedIndex:
    """A dataset's index; where there is none, what its shards say of themselves, in the order of their names.

    Only headers are read, but of compressed shards all. Hashes are not computed, and shards missing at the end not noticed.
    ObjectNotFoundError if there is no index and there are no shards, or those that are there are unfinished output.
    ConfigError if the shards are of several splits (:mod:`stoker.catalog.splits`). CorruptDataError if a shard is torn.
    IndexFileError if the index is not valid.
    """
    try:
        return read_index(store, side)
    except ObjectNotFoundError as error:
        from stoker.index.shard_files import find_shards, read_shards
        from stoker.storage.unfinished import MARK, counted_files

        found = list(store.list())
        counted = counted_files(found, [item.key for item in found if item.key.endswith(MARK)], store)
        listing = {item.key: item for item in counted}
        shards = list(find_shards(listing.values()).values())
        if not shards:
            raise ObjectNotFoundError(f"{store.url} holds neither an index.json nor shards", url=store.url) from error
    from stoker.catalog.splits import refuse_splits

    keys = (shard.key("data", None) for shard in shards)
    refuse_splits(keys, store.url.rstrip("/"), whole="each as a Stream")
    infos = []
    for info in read_shards(store, shards, hashes=False):
        if isinstance(info, FormatError):
            raise info
        infos.append(info)
    index = Index(infos, where=store.url)
    return LoadedIndex(index, version_of_listing(index, listing))


def refuse_options(where: str, options: Mapping[str, Any] | None) -> None:
    """See that a dataset with an index is given no options of files without one."""
    if options:
        raise ConfigError(f"{where} has an {INDEX_NAME}, and {_NO_OPTIONS}: remove format_options=")


def check_format(
    format: str | None,  # noqa: A002 - the name that users write
    remote: Files | None,
    options: Mapping[str, Any] | None,
    where: str,
) -> None:
    """Check that arguments go together."""
    name = format_name(format)
    if name is not None and not is_format(name):
        from stoker.catalog.tables.marks import TABLE_FORMATS

        if name not in TABLE_FORMATS:
            known = (*format_names(), *TABLE_FORMATS, *aliases())
            raise ConfigError(f"{where}{unknown_name('format', format, known)}; leave it out for an index.json")
    if options and name == INDEXED:
        raise ConfigError(f"{where}{_NO_OPTIONS}")
    if name == _CHUNKS:
        from stoker.formats.common.inspect_header import only_settings

        only_settings(options or {}, ("block_size",), _CHUNKS)
        size = (options or {}).get("block_size")
        if size is not None and (type(size) is not int or size < 1):
            raise ConfigError(f"{where}block_size should be a positive int, got {size!r}")
    if name == _MADE and remote is not None:
        raise ConfigError(f"{where}synthetic samples have no remote=")
    if name in (INDEXED, _CHUNKS) and not (remote is None or isinstance(remote, str | os.PathLike)):
        from stoker.catalog.detect import refuse_shard_files

        refuse_shard_files(remote)
        raise ConfigError(f"{where}shards lie in one directory: a list of files needs another format=")


def is_made(format: str | None) -> bool:  # noqa: A002
    """Whether samples of this format lie nowhere."""
    return format == _MADE


def open_format(
    format: str | None,  # noqa: A002
    remote: Files | None,
    local: str | os.PathLike[str] | None,
    split: str | None,
    *,
    columns: Sequence[str] | None = None,
    options: Mapping[str, Any] | None = None,
    cache_limit: int | None = None,
    settings: CacheSettings = CacheSettings(),  # noqa: B008 - frozen
    storage_options: StorageOptions | None = None,
    retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
    stall_timeout: float = 60.0,
    opened: int | None = None,
) -> DatasetLocation:
    """Open the dataset.

    ``format``: a format's name. ``None``: shards with an index.json, and where there is none, files of the format that their
    names tell. ``columns``: all that will be read, where that decides what is fetched.
    """
    name = format_name(format)
    reading: dict[str, Any] = {
        "settings": settings,
        "storage_options": storage_options,
        "retry": retry,
        "stall_timeout": stall_timeout,
    }
    if isinstance(remote, str | os.PathLike) and name is None:
        remote = dataset_url(remote)
    if isinstance(remote, str) and is_hub(remote):
        from stoker.catalog.splits import hub_files

        remote, split = hub_files(remote, split, storage_options, retry, stall_timeout)
    indexed = partial(open_indexed, opened=opened, **reading)
    described = {"columns": columns, "options": options, "cache_limit": cache_limit, **reading}
    try:
        return _open(name, remote, local, split, indexed, described)
    except ObjectNotFoundError as error:
        given = local if remote is None else remote
        if split is None or not isinstance(given, str | os.PathLike):
            raise
        from stoker.catalog.splits import files_of_split

        files = files_of_split(given, split, storage_options, error)
    return _open(name, files, None if remote is None else local, None, indexed, described)


def _open(
    name: str | None,
    remote: Files | None,
    local: str | os.PathLike[str] | None,
    split: str | None,
    indexed: Callable[..., DatasetLocation],
    described: Mapping[str, Any],
) -> DatasetLocation:
    """Open a dataset whose split is a folder, if it has one.

    ``indexed``: opens one with an index. ``described``: options of opening files without one.
    """
    given, options = local if remote is None else remote, described["options"] or {}
    if name == _MADE:
        from stoker.catalog.synthetic import open_synthetic

        return open_synthetic(described["settings"], **options)
    if name == INDEXED and given is not None:
        from stoker.catalog.detect import refuse_shard_files

        refuse_shard_files(given)
    if name is None and not _may_have_index(given):
        from stoker.catalog.detect import detect

        assert given is not None  # as a dataset that has neither remote nor local is refused
        where = join_url(given, split) if split and isinstance(given, str) and is_pattern(given) else given
        name = detect(where, described["storage_options"]).format
    if name == _CHUNKS:
        assert remote is None or isinstance(remote, str | os.PathLike)
        size = options.get("block_size")
        location = indexed(remote, local, split, load=partial(read_index, block_size=size))
        return _check_litdata(location, size, alone=True)
    if name is None or name == INDEXED:
        assert remote is None or isinstance(remote, str | os.PathLike)  # as a list has no index
        try:
            load = read_index if name is None else index_or_headers
            location = indexed(remote, local, split, load=load)
            if options:
                chunks = any(shard.format == _CHUNKS for shard in location.index.distinct_shards)
                remedy = f"pass format={_CHUNKS!r}, too" if chunks else "remove format_options="
                raise ConfigError(f"{location.url} has an {INDEX_NAME}, and {_NO_OPTIONS}: {remedy}")
            return _check_litdata(location, None, alone=False)
        except ObjectNotFoundError as error:
            from stoker.catalog.detect import format_instead

            assert isinstance(given, str | os.PathLike)
            url = join_url(given, split) if split else given
            found = format_instead(url, described["storage_options"], error)
            if name == INDEXED:
                raise ObjectNotFoundError(
                    f'{error}: there are files of format {found!r}. Read them with format="{found}", or leave it out'
                ) from error
            logger.info("%s has no index.json: its files are read as format=%r", redact_url(os.fspath(url)), found)
            name = found
    from stoker.catalog.tables.marks import TABLE_FORMATS
    from stoker.catalog.unindexed.open_files import open_unindexed

    if name in TABLE_FORMATS:
        from stoker.catalog.tables.open_table import open_table

        return open_table(name, remote, local, split, **described)
    return open_unindexed(remote, name, local, split, **described)


def _check_litdata(location: DatasetLocation, block_size: int | None, *, alone: bool) -> DatasetLocation:
    """The location, if litdata's chunks have samples of this size.

    ``location``: what was opened; an index in the cache serves where the store can not be reached. ``alone``: whether all
    shards must be litdata's.
    """
    for shard in location.index.distinct_shards:
        if shard.format != _CHUNKS:
            if alone:
                raise ConfigError(
                    f"{location.url} holds shards of format {shard.format!r}: leave format={_CHUNKS!r} out"
                )
        elif shard.spec["block_size"] != block_size:
            raise ConfigError(
                f"{location.url} can not be reached, and its index in the cache was read with block_size="
                f"{shard.spec['block_size']}, not {block_size}: ask for that, or wait until it can be reached"
            )
    return location


def _may_have_index(given: Files | None) -> bool:
    """Whether an index may lie there: it is neither a list, nor a pattern, nor a file of this machine."""
    if given is None or not isinstance(given, str | os.PathLike):
        return given is None
    return not is_pattern(given) and not ((path := is_local(given)) is not None and os.path.isfile(path))
