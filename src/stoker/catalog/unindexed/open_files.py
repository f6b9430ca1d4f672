"""Datasets that others wrote, without an index: any number of files of one format in a directory or below a URL.

Which files there are is found out by listing; what they hold, by their headers. Those of tar and TFRecord lie all over a
file: where its members are large they are read one by one, where they are small the file is fetched into the cache, from
where it is read later. What was found is kept, so that a second start lists the files and opens only those that are new or
were written to.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker.cache.base import CacheSettings, ShardCache
from stoker.cache.open_cache import make_cache
from stoker.catalog.location import DatasetLocation, SourceLocation, default_cache, locate, origin_of
from stoker.catalog.source_args import files_asked_for, files_directory, side_places
from stoker.catalog.unindexed.file_facts import UnindexedFile, load_facts, save_facts
from stoker.catalog.unindexed.file_shards import describe_file, packed_file, whole_file
from stoker.catalog.unindexed.found_files import FilesLocation, FoundFile
from stoker.catalog.unindexed.inspect_headers import FetchedFiles, inspect_headers
from stoker.catalog.unindexed.listing import find_format_files
from stoker.errors import ConfigError, IndexFileError, StorageTimeoutError
from stoker.formats.common.compression import codec_of
from stoker.formats.common.inspect_header import check_names, only_settings
from stoker.formats.format import Format
from stoker.formats.one_file import CLASS, LABEL, PATH, FileFormat, content_column, content_kind, folder_of
from stoker.formats.registry import get_format
from stoker.index.index import Index
from stoker.storage import RetryPolicy, Store, is_local, open_store
from stoker.storage.recorded_versions import version_of_files
from stoker.types import StorageOptions

__all__ = ["cached_names", "open_unindexed"]

logger = logging.getLogger(__name__)


def open_unindexed(
    remote: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None,
    format: str,  # noqa: A002 - as StreamingDataset calls it
    local: str | os.PathLike[str] | None = None,
    split: str | None = None,
    *,
    settings: CacheSettings = CacheSettings(),  # noqa: B008 - frozen
    cache_limit: int | None = None,
    unpack_into: Path | None = None,
    storage_options: StorageOptions | None = None,
    retry: RetryPolicy | None = None,
    stall_timeout: float = 60.0,
    **format_settings: Any,
) -> DatasetLocation:
    """Index files of one format, and set up the cache.

    Local files are mapped where they lie, unless both ``remote`` and ``local`` are given; they must not be written to while
    they are read, which is noticed. Of object stores, files come into the cache, whole or in the pieces that are shards.
    Where files are compressed (``.jsonl.gz``), all come into the cache, decompressed, wherever they lie.

    Args:
        remote: a directory or URL prefix, with all files of the format below it; a file; a pattern; or a list of files.
        format: any but ``mds``, ``parquet`` and ``synthetic``, or another package's; see docs/formats.md.
        local: directory of the cache. Without ``remote``: a directory of files.
        split: a sub-directory of ``remote`` and ``local``.
        settings: how the cache behaves.
        cache_limit: bytes of files, fetched whole to see what they hold, that may stay in the cache; the rest is fetched
            again when it is read.
        unpack_into: where what comes out of compressed files goes where these are local and ``local`` is not given; default
            a directory of the user's cache.
        storage_options, retry, stall_timeout: see :func:`stoker.storage.open_store`.
        **format_settings: what the format's ``inspect_header`` understands. For ``jpeg``, ``png`` and ``images``: ``decode``,
            false for the files' bytes instead of images.

    Raises:
        ConfigError: an argument makes no sense, or does not fit the files.
        ObjectNotFoundError: there are no such files.
        CorruptDataError, FormatError: a file is damaged, or needs what is not supported; names it.
        IndexFileError: files differ in columns; names both.
    """
    reader = get_format(format)
    if settings.validate_hash:
        raise ConfigError("validate_hash: files without an index have no hashes")
    asked, cache_root = files_asked_for(remote, local, split)
    if not isinstance(reader, FileFormat) and not reader.unindexed:
        raise ConfigError(f"format={format!r} is read only from datasets that have an index.json")

    def open_root(root: str) -> Store:
        return open_store(root, storage_options, retry=retry, stall_timeout=stall_timeout)

    keep = side_places(asked.root, cache_root, storage_options, beside=remote is None)
    name = _side_name(asked, format, format_settings)
    known = load_facts(keep, name)
    try:
        source, store, files, beside = find_format_files(asked, open_root, reader.file_suffixes, format, reader.beside)
    except StorageTimeoutError as error:
        if not known:
            raise
        logger.warning("%s; going on with what was known of its files at the last start", error)
        source, store = asked, open_root(asked.root)
        files = [FoundFile(one.key, one.size, one.version) for one in known.values()]
        beside = {one.key: one.beside for one in known.values()}
    address = locate(source.root, cache_root, None, storage_options)
    packed = _packed_files(reader, files, store)
    if packed and address.in_place:
        lies = is_local(source.root)
        assert lies is not None  # or it would not be in place
        root = unpack_into or default_cache(os.path.realpath(lies), None)
        address = SourceLocation(source.root, root, in_place=False)
    sizes = {whole_file(file, in_place=False).basename: file.size for file in files}
    sizes.update({packed_file(file)[0].basename: file.size for file in packed})
    if packed and settings.in_memory:
        raise ConfigError(
            f"{store.url_of(packed[0].key)}: compressed files come into the cache whole, decompressed, and one in memory "
            "would not keep them: leave out cache='memory', or decompress them"
        )
    directory = None if address.in_place else files_directory(address.root, source.root, storage_options)
    cache = make_cache(directory or address.root, None if address.in_place else store, settings, lambda: sizes)
    if not address.in_place:
        assert directory is not None
        directory.hold()
        with contextlib.suppress(OSError):
            cache.sweep()
    if isinstance(reader, FileFormat):
        facts = _images(reader, files, format_settings)
    else:
        fetched = FetchedFiles(cache, cache_limit, in_place=address.in_place)
        facts = inspect_headers(reader, files, beside, known, format_settings, fetched, store)
    if not _same(facts, list(known.values())):
        if directory is not None:
            with contextlib.suppress(OSError):
                directory.make()
        save_facts(keep, store.url, name, facts)
    specs = _agreed(reader, facts, store)
    if any(one.samples for one in facts):
        check_names(format_settings, {id(spec): spec for spec in specs}.values(), source.root)
    shards = [
        shard
        for one, spec in zip(facts, specs, strict=True)
        if one.samples
        for shard in describe_file(format, one, spec, in_place=address.in_place)
    ]
    index = Index(shards, where=source.root)
    if not address.in_place and cache.keeps:
        _remove_replaced(cache, known, facts, format)
    place = make_cache(directory or address.root, None if address.in_place else store, settings, index.file_sizes)
    place.early = cache.early
    filled = [one for one in facts if one.samples]
    listed = [(one.key, one.size, one.version) for one in filled]
    listed += [(one.key, one.size, one.version) for owner in filled for one in owner.beside]
    return DatasetLocation(
        index, place, keep, origin=origin_of(source.root, storage_options), listed=version_of_files(listed)
    )


def _packed_files(reader: Format, files: Sequence[FoundFile], store: Store) -> list[FoundFile]:
    """The files that are compressed.

    Raises:
        ConfigError: one lies beside the same file without compression, so that its samples would come twice.
    """
    if not reader.packed:
        return []
    found = [file for file in files if codec_of(file.key) is not None]
    keys = {file.key for file in files} if found else set()
    for file in found:
        plain = os.path.splitext(file.key)[0]
        if plain in keys:
            raise ConfigError(
                f"{store.url_of(file.key)} lies beside {plain}, and its samples would come twice: remove one, or name the "
                "files to read by a pattern or in a list"
            )
    return found


def _images(reader: FileFormat, files: Sequence[FoundFile], settings: Mapping[str, Any]) -> list[UnindexedFile]:
    """A sample a file; nothing of it is read."""
    content = content_column(reader.name)
    image = reader.name != "files"
    only_settings(settings, ("decode",) if image else (), reader.name)
    columns = {content: content_kind(reader.name, decode=settings.get("decode", True)), PATH: "str"}
    spec: dict[str, Any] = {"columns": columns}
    folders = sorted({folder_of(file.key) for file in files}) if image else [""]
    if "" not in folders:
        columns.update({CLASS: "str", LABEL: "int"})
        spec["numbers"] = {folder: number for number, folder in enumerate(folders)}
    return [UnindexedFile(file.key, file.size, file.version, 1, spec) for file in files]


def _agreed(reader: Format, facts: Sequence[UnindexedFile], store: Store) -> list[Mapping[str, Any]]:
    """For each file the spec that all have together.

    Raises:
        IndexFileError: they can not be read together; names two of them.
    """
    filled = [one for one in facts if one.samples]
    if isinstance(reader, FileFormat) or not filled:
        return [one.spec for one in facts]
    spec = filled[0].spec
    seen: set[int] = set()
    for one in filled:
        if id(one.spec) in seen or one.spec == spec:
            continue
        seen.add(id(one.spec))
        try:
            spec = reader.agree(spec, one.spec)
        except ValueError as error:
            raise IndexFileError(
                f"{store.url_of(filled[0].key)} and {store.url_of(one.key)} can not be read together: {error}. Read only "
                "columns that agree, or open them apart"
            ) from None
    return [spec] * len(facts)


def _same(facts: Sequence[UnindexedFile], known: Sequence[UnindexedFile]) -> bool:
    """Whether what is known of files is what is kept of them."""

    def plain(files: Sequence[UnindexedFile]) -> list[tuple[object, ...]]:
        return [(one.key, one.size, one.version, one.samples, one.pieces, one.beside) for one in files]

    specs = {(id(one.spec), id(other.spec)): (one.spec, other.spec) for one, other in zip(facts, known, strict=False)}
    return plain(facts) == plain(known) and all(one == other for one, other in specs.values())


def _remove_replaced(
    cache: ShardCache, known: Mapping[str, UnindexedFile], facts: Sequence[UnindexedFile], name: str
) -> None:
    """Remove what the cache holds of files that were replaced or are gone since the last start."""
    current = {one.mark for one in facts}
    names: set[str] | None = None
    for one in known.values():
        if one.mark in current:
            continue
        if names is None:
            names = set(cached_names(name, facts))
        for basename in cached_names(name, [one]):
            if basename not in names:
                with contextlib.suppress(OSError):
                    os.unlink(cache.root / basename)


def cached_names(name: str, facts: Sequence[UnindexedFile]) -> Iterator[str]:
    """Names of all files of the cache that belong to files."""
    for one in facts:
        yield whole_file(FoundFile(one.key, one.size, one.version), in_place=False).basename
        if one.samples:
            for shard in describe_file(name, one, one.spec, in_place=False):
                yield from (file.basename for file in shard.raw)


def _side_name(source: FilesLocation, name: str, settings: Mapping[str, Any]) -> str:
    recipe = [source.root, source.pattern, source.keys, name, settings]
    return f"{name}.{hashlib.sha256(json.dumps(recipe, sort_keys=True, default=str).encode()).hexdigest()[:24]}.json"
