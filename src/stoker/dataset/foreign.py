"""Datasets that others wrote, without an index: any number of files of one format in a directory or below a URL.

Which files there are is found out by listing; what they hold, by their headers, or where only all of a file tells it (tar,
TFRecord) by fetching them into the cache, from where they are read later. It is kept, so that a second start lists the files
and opens only those that are new or were written to.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from stoker.dataset.cache import CacheSettings, ShardCache
from stoker.dataset.foreign_facts import ForeignFile, load_facts, save_facts
from stoker.dataset.foreign_files import find_foreign
from stoker.dataset.index import Index
from stoker.dataset.parquet_files import FoundFile, Source, source_of
from stoker.dataset.place import Address, Place, address_of, default_cache
from stoker.errors import ConfigError, CorruptDataError, FormatError, IndexFileError, StorageTimeoutError
from stoker.formats.base import FileInfo, FilePart, ShardInfo
from stoker.formats.onefile import CLASS, LABEL, PATH, FileFormat, content_column, folder_of
from stoker.formats.packed import PackedFormat, Survey, only_settings
from stoker.formats.registry import get_format
from stoker.formats.source import ByteSource, MappedSource, check_range
from stoker.storage import RetryPolicy, Store, is_local, join_url, open_store
from stoker.types import StorageOptions

__all__ = ["foreign_address", "open_foreign"]

logger = logging.getLogger(__name__)

_THREADS: Final = 16
_BLOCK: Final = 1 << 16
_HELD: Final = 8


def open_foreign(
    remote: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    format: str,  # noqa: A002 - as StreamingDataset calls it
    local: str | os.PathLike[str] | None = None,
    split: str | None = None,
    *,
    settings: CacheSettings = CacheSettings(),  # noqa: B008 - frozen
    storage_options: StorageOptions | None = None,
    retry: RetryPolicy | None = None,
    stall_timeout: float = 60.0,
    **format_settings: Any,
) -> Place:
    """Index files of one format, and set up the cache.

    Local files are mapped where they lie, unless both ``remote`` and ``local`` are given; they must not be written to while
    they are read, which is noticed. Of object stores, files come whole into the cache.

    Args:
        remote: a directory or URL prefix, with all files of the format below it; a file; a pattern; or a list of files.
        format: ``arrow``, ``files``, ``hdf5``, ``jpeg``, ``npy``, ``npz``, ``png``, ``tar``, ``tfrecord``, or another
            package's.
        local: directory of the cache. Without ``remote``: a directory of files.
        split: a sub-directory of ``remote`` and ``local``.
        settings: how the cache behaves.
        storage_options, retry, stall_timeout: see :func:`stoker.storage.open_store`.
        **format_settings: what the format's ``survey`` understands. For ``jpeg`` and ``png``: ``decode``, false for the
            files' bytes instead of images.

    Raises:
        ConfigError: an argument makes no sense, or does not fit the files.
        ObjectNotFoundError: there are no such files.
        CorruptDataError, FormatError: a file is damaged, or needs what is not supported; names it.
        IndexFileError: files differ in columns; names both.
    """
    reader: Any = get_format(format)
    if settings.validate_hash:
        raise ConfigError("validate_hash: files without an index have no hashes")
    given = local if remote is None else remote
    if given is None:
        raise ConfigError("give remote= or local=: where the files are")
    if split is not None:
        if not isinstance(given, str | os.PathLike):
            raise ConfigError("split= needs one directory, not a list of files")
        given = join_url(given, split)
    if not isinstance(reader, FileFormat) and not hasattr(reader, "survey"):
        raise ConfigError(f"format={format!r} is read only from datasets that have an index.json")

    def open_root(root: str) -> Store:
        return open_store(root, storage_options, retry=retry, stall_timeout=stall_timeout)

    asked = source_of(given)
    cache_root = None if local is None or remote is None else os.path.join(os.path.expanduser(local), split or "")
    keep = _keep(asked.root, cache_root, storage_options, beside=remote is None)
    name = _side_name(asked, format, format_settings)
    known = load_facts(keep, name)
    try:
        source, store, files = find_foreign(asked, open_root, reader.suffixes, format)
    except StorageTimeoutError as error:
        if not known:
            raise
        logger.warning("%s; going on with what was known of its files at the last start", error)
        source, store = asked, open_root(asked.root)
        files = [FoundFile(one.key, one.size, one.version) for one in known.values()]
    address = address_of(source.root, cache_root, None, storage_options)
    sizes = {file.key: file.size for file in files}
    cache = ShardCache(address.root, None if address.in_place else store, settings, lambda: sizes)
    if not address.in_place:
        _remove_replaced(cache, known, files)
        with contextlib.suppress(OSError):
            cache.sweep()
    if isinstance(reader, FileFormat):
        facts = _images(reader, files, format_settings)
    else:
        facts = _surveyed(reader, files, known, format_settings, cache, store, in_place=address.in_place)
    if not _same(facts, list(known.values())):
        save_facts(keep, name, facts)
    if not isinstance(reader, FileFormat):
        facts = _agreed(reader, facts, store)
    index = Index([_describe(format, one, in_place=address.in_place) for one in facts], where=source.root)
    place = ShardCache(address.root, None if address.in_place else store, settings, index.file_sizes)
    return Place(index, place, keep)


def foreign_address(
    remote: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    local: str | os.PathLike[str] | None,
    split: str | None,
    storage_options: StorageOptions | None = None,
) -> Address:
    """Where :func:`open_foreign` would read from, before anything is read."""
    given = local if remote is None else remote
    if given is None:
        raise ConfigError("give remote= or local=: where the files are")
    if split is not None and isinstance(given, str | os.PathLike):
        given = join_url(given, split)
    root = None if local is None or remote is None else os.path.join(os.path.expanduser(local), split or "")
    return address_of(source_of(given).root, root, None, storage_options)


def _describe(name: str, one: ForeignFile, *, in_place: bool) -> ShardInfo:
    part = FilePart(one.key, one.size, one.version, (0,), (one.size,), True) if in_place and one.size else None
    return ShardInfo(name, one.samples, (FileInfo(one.key, one.size, {}, part),), (), None, one.spec)


def _images(reader: FileFormat, files: Sequence[FoundFile], settings: Mapping[str, Any]) -> list[ForeignFile]:
    """A sample a file; nothing of it is read."""
    content = content_column(reader.name)
    image = reader.name != "files"
    only_settings(settings, ("decode",) if image else (), reader.name)
    columns = {content: reader.name if image and settings.get("decode", True) else "bytes", PATH: "str"}
    spec: dict[str, Any] = {"columns": columns}
    folders = sorted({folder_of(file.key) for file in files}) if image else [""]
    if "" not in folders:
        columns.update({CLASS: "str", LABEL: "int"})
        spec["numbers"] = {folder: number for number, folder in enumerate(folders)}
    return [ForeignFile(file.key, file.size, file.version, 1, spec) for file in files]


def _surveyed(
    reader: PackedFormat,
    files: Sequence[FoundFile],
    known: Mapping[str, ForeignFile],
    settings: Mapping[str, Any],
    cache: ShardCache,
    store: Store,
    *,
    in_place: bool,
) -> list[ForeignFile]:
    """What all files hold; those that are known are not opened again."""

    def survey(file: FoundFile) -> Survey:
        old = known.get(file.key)
        if old is not None and (old.size, old.version) == (file.size, file.version):
            return Survey(old.samples, old.spec)
        where = store.url_of(file.key)
        source: ByteSource = _StoreSource(store, file.key, file.size, where)
        if in_place or reader.whole:
            source = MappedSource(_fetched(cache, reader.name, file, in_place=in_place), where)
        try:
            return reader.survey(source, settings)
        except (ConfigError, FormatError):
            raise
        except ValueError as error:  # of another package's format
            raise CorruptDataError(f"{where}: {error}") from error

    with ThreadPoolExecutor(min(_THREADS, len(files)), thread_name_prefix="stoker-survey") as pool:
        futures = [pool.submit(survey, file) for file in files]
        try:
            found = [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    return [
        ForeignFile(file.key, file.size, file.version, one.samples, one.spec)
        for file, one in zip(files, found, strict=True)
    ]


def _agreed(reader: PackedFormat, facts: Sequence[ForeignFile], store: Store) -> list[ForeignFile]:
    """The files that hold samples, with one spec.

    Raises:
        IndexFileError: they can not be read together; names two of them.
    """
    filled = [one for one in facts if one.samples]
    if not filled:
        return []
    spec = filled[0].spec
    for one in filled:
        if one.spec is not spec and one.spec != spec:
            try:
                spec = reader.agree(spec, one.spec)
            except ValueError as error:
                raise IndexFileError(
                    f"{store.url_of(filled[0].key)} and {store.url_of(one.key)} can not be read together: {error}. Read only "
                    "columns that agree, or open them apart"
                ) from None
    return [replace(one, spec=spec) for one in filled]


def _same(facts: Sequence[ForeignFile], known: Sequence[ForeignFile]) -> bool:
    """Whether what is known of files is what is kept of them."""

    def plain(files: Sequence[ForeignFile]) -> list[tuple[object, ...]]:
        return [(one.key, one.size, one.version, one.samples) for one in files]

    specs = {(id(one.spec), id(other.spec)): (one.spec, other.spec) for one, other in zip(facts, known, strict=False)}
    return plain(facts) == plain(known) and all(one == other for one, other in specs.values())


def _fetched(cache: ShardCache, name: str, file: FoundFile, *, in_place: bool) -> Any:
    """All of a file, from the cache or where it lies."""
    info = _describe(name, ForeignFile(file.key, file.size, file.version, 0, {}), in_place=in_place)
    for _ in range(100):
        data = cache.open(info)
        if data is not None:
            return data[0]
        cache.fetch(info)
    raise CorruptDataError(
        f"{cache.describe(info)} disappears as often as it is fetched: is another process removing it?"
    )


class _StoreSource:
    """A file of a store, of which a few blocks are kept: headers are read in small pieces that lie close."""

    def __init__(self, store: Store, key: str, size: int, where: str) -> None:
        self.where = where
        self.size = size
        self._store = store
        self._key = key
        self._blocks: deque[tuple[int, bytes]] = deque(maxlen=_HELD)

    def read(self, start: int, end: int) -> bytes:
        """See :class:`~stoker.formats.source.ByteSource`."""
        check_range(self, start, end)
        for first, block in self._blocks:
            if first <= start and end <= first + len(block):
                return block[start - first : end - first]
        stop = min(self.size, max(end, start + _BLOCK))
        begin = max(0, min(start, stop - _BLOCK))
        block = self._store.get_range(self._key, begin, stop) if stop > begin else b""
        self._blocks.append((begin, block))
        return block[start - begin : end - begin]


def _remove_replaced(cache: ShardCache, known: Mapping[str, ForeignFile], files: Sequence[FoundFile]) -> None:
    """Remove what the cache holds of files that were replaced or are gone since the last start."""
    current = {file.key: (file.size, file.version) for file in files}
    for key, one in known.items():
        if current.get(key) != (one.size, one.version):
            with contextlib.suppress(OSError):
                os.unlink(cache.root / key)


def _keep(root: str, cache_root: str | None, options: StorageOptions | None, *, beside: bool) -> tuple[Path, ...]:
    """Directories for what is known of the files, the best first."""
    directory = is_local(root)
    default = default_cache(root, options) if directory is None else default_cache(os.path.realpath(directory), None)
    first = [Path(cache_root)] if cache_root is not None else [directory] if beside and directory is not None else []
    return tuple(dict.fromkeys([*first, default]))


def _side_name(source: Source, name: str, settings: Mapping[str, Any]) -> str:
    recipe = [source.root, source.pattern, source.keys, name, settings]
    return f"{name}.{hashlib.sha256(json.dumps(recipe, sort_keys=True, default=str).encode()).hexdigest()[:24]}.json"
