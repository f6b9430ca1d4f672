"""Datasets without an index: any number of files of one format in a directory or below a URL.

Which files there are is found out by listing; what they hold, by their headers. Those of tar and TFRecord lie all over a
file: where its members are large they are read one by one, where they are small the file is fetched into the cache, from
where it is read later. What was found is kept in a side file, so that a second start lists the files and opens only those
that are new or were written to.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import unquote

from stoker.arguments import check_argument
from stoker.cache.base import CacheSettings, ShardCache
from stoker.cache.disk.disk_cache import make_cache
from stoker.catalog.location import (
    DatasetLocation,
    SourceLocation,
    files_directory,
    locate,
    origin_of,
    side_directories,
)
from stoker.catalog.tables.marks import TABLE_FORMATS
from stoker.catalog.unindexed.file_facts import load_facts, save_facts, taking_turns
from stoker.catalog.unindexed.files_location import Files, FilesLocation, files_location
from stoker.catalog.unindexed.find_files import SourceFiles, find_files
from stoker.catalog.unindexed.inspect_headers import FetchedFiles, HeaderReader
from stoker.catalog.unindexed.sample_files import ListedFiles, are_plain, many_objects, plain_files
from stoker.errors import ConfigError, IndexFileError, StorageTimeoutError
from stoker.formats.base import ShardInfo
from stoker.formats.common.compression import codec_of, unpacked_name
from stoker.formats.common.file_shards import UnindexedFile, packed_file, whole_file
from stoker.formats.common.inspect_header import Partition, check_names, only_settings
from stoker.formats.format import Format
from stoker.formats.media.source import MEDIA, StoredFile
from stoker.formats.parquet.predicate import Filters, Predicate
from stoker.formats.registry import get_format
from stoker.index.index import Index
from stoker.storage import ObjectInfo, RetryPolicy, Store, is_local, open_store
from stoker.storage.files.part_files import unlink
from stoker.storage.versions import version_of_files
from stoker.types import StorageOptions

logger = logging.getLogger(__name__)

# How Hive spells a null in a directory's name.
_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,17}")

OnBadFiles: TypeAlias = Literal["error", "skip"]
"""Treatment of a file that is not of the format, or is damaged."""


def partitions_of(keys: Sequence[str], where: str) -> dict[str, Partition]:
    """Names and values that folders of the form ``name=value`` tell, by each file's key.

    Values are integers where all of a name are, else text. IndexFileError if files are partitioned by different names.
    """
    raw: list[dict[str, str | None]] = []
    for key in keys:
        values: dict[str, str | None] = {}
        for part in key.split("/")[:-1]:
            name, equals, value = part.partition("=")
            if equals and name:
                values[unquote(name)] = None if value == _HIVE_NULL else unquote(value)
        raw.append(values)
        if values.keys() != raw[0].keys():
            raise IndexFileError(
                f"{where}: {keys[0]} is partitioned by {', '.join(raw[0]) or 'nothing'}, {key} by "
                f"{', '.join(values) or 'nothing'}: open them apart, or name the files in a list with hive=False"
            )
    numeric = {name for name in (raw[0] if raw else {}) if all(_is_integer(values[name]) for values in raw)}
    return {
        key: tuple(
            (name, int(value) if name in numeric and value is not None else value) for name, value in values.items()
        )
        for key, values in zip(keys, raw, strict=True)
    }


def kinds_of(partitions: Mapping[str, Partition]) -> dict[str, str]:
    """Types of the partitions' columns."""
    first = dict(next(iter(partitions.values()), ()))
    whole = {name for name in first if all(isinstance(dict(one)[name], int | None) for one in partitions.values())}
    return {name: "int64" if name in whole else "string" for name in first}


def _is_integer(value: str | None) -> bool:
    return value is None or _INTEGER.fullmatch(value) is not None


def unindexed_format(name: str) -> Format:
    """The format of this name. FormatError if there is none. ConfigError if its files are not read without an index."""
    if name in TABLE_FORMATS:
        raise ConfigError(
            f"format={name!r}: tables are read by StreamingDataset, convert and inspect alone, and those of Parquet files by "
            "StreamingParquetLoader"
        )
    reader = get_format(name)
    if not reader.unindexed:
        raise ConfigError(f"format={name!r} is read only from datasets that have an index.json")
    return reader


def open_unindexed(
    remote: Files | FilesLocation | None,
    format: str,  # noqa: A002 - as StreamingDataset calls it
    local: str | os.PathLike[str] | None = None,
    split: str | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    columns: Sequence[str] | None = None,
    partitions: Mapping[str, Partition] | None = None,
    settings: CacheSettings = CacheSettings(),  # noqa: B008 - frozen
    cache_limit: int | None = None,
    unpack_into: Path | None = None,
    remembered: bool = True,
    storage_options: StorageOptions | None = None,
    retry: RetryPolicy | None = None,
    stall_timeout: float = 60.0,
) -> DatasetLocation:
    """Index files of one format, and set up the cache.

    Local files are mapped where they lie, unless both ``remote`` and ``local`` are given; they must not be written to while
    they are read, which is noticed. Of object stores, files come into the cache, whole or in the pieces that are shards; of
    Parquet the chunks of ``columns``, in cache files of about 16 MB, each of a few row groups or one large one. Where files
    are compressed (``.jsonl.gz``), all come into the cache, decompressed, wherever they lie.

    Args:
        remote: a directory or URL prefix, with all files of the format below it; a file; a pattern (``*``, ``**``, ``?``,
            ``[...]``); or a list of files of one bucket or of this machine.
        format: any but ``mds`` and ``synthetic``, or another package's; see docs/formats.md.
        local: directory of the cache. Without ``remote``: a directory of files.
        split: a sub-directory of ``remote`` and ``local``.
        options: settings of the format, by name, and of all formats ``on_bad_files``: ``"skip"`` leaves files out that are
            not of the format or are damaged, as far as their headers tell. They are logged, and listed in the index's
            ``extra["skipped_files"]``. For ``jpeg``, ``png`` and ``images``: ``decode``, false for the files' bytes instead
            of images. For ``files``: ``media``, ``"video"`` or ``"audio"`` for handles. For Parquet: ``hive``, false not to
            take directories ``name=value`` below the root for columns, which hide columns of the same name in files; and
            ``filters``, conditions ``(column, op, value)`` that must all hold,
            or a list of such lists of which one must hold; op is ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in`` or
            ``not in``. Row groups that can not hold a row that fulfils them, by the statistics in the footers, are left
            out. The others are left whole.
        columns: of Parquet, columns to read; default all, which must then be the same in all files.
        partitions: of Parquet, values of columns by file, where something else than folders tells them.
        cache_limit: bytes of files, fetched whole to see what they hold, that may stay in the cache; the rest is fetched
            again when it is read.
        unpack_into: where what comes out of compressed files goes where these are local and ``local`` is not given; default
            a directory of the user's cache.
        remembered: use the listing of an earlier start where no folder has changed since.
        storage_options, retry, stall_timeout: see :func:`stoker.storage.open_store`.

    Raises:
        ConfigError: an argument makes no sense, or does not fit the files.
        ObjectNotFoundError: there are no such files.
        CorruptDataError, FormatError: a file is damaged, or needs what is not supported; names it.
        IndexFileError: files differ in columns; names both.
        MissingPackageError: what reads the format is not installed.
    """
    wanted = _Wanted.of(unindexed_format(format), options or {}, columns)
    reader = wanted.reader
    if settings.validate_hash:
        raise ConfigError(
            "validate_hash: files without an index have no hashes; checksums that they hold are checked always"
        )
    location, cache_root = files_location(remote, local, split)

    def open_root(root: str) -> Store:
        return open_store(root, storage_options, retry=retry, stall_timeout=stall_timeout)

    keep = side_directories(location.root, cache_root, storage_options, beside=remote is None)
    name = wanted.side_name(location)
    address = locate(location.root, cache_root, None, storage_options)
    lazy = wanted.options.get(MEDIA) is not None
    plainly = are_plain(reader) and not lazy
    if address.in_place and location.keys is None and location.pattern is None and plainly:
        root = str(address.root)
        plain = plain_files(reader, root, wanted.options, keep[-1], f"{name}.files", remembered=remembered)
        if plain is not None:
            return _of_listing(plain, location.root, make_cache(address.root, None, settings), keep, storage_options)
    known = load_facts(keep, name)
    try:
        listing: Iterable[ObjectInfo] | None = None
        if _may_be_many(location, address) and plainly:
            store = open_root(location.root)
            many = many_objects(reader, store, wanted.options, keep[-1], f"{name}.objects")
            if isinstance(many, ListedFiles):
                return _open_many(many, store, address, settings, keep, storage_options)
            listing = many
        found = find_files(location, open_root, reader, listing).sized()
    except StorageTimeoutError as error:
        if not known:
            raise
        logger.warning("%s; using what was known of its files at the last start", error)
        beside = {one.key: one.beside for one in known.values()}
        found = SourceFiles(location, open_root(location.root), [one.file for one in known.values()], beside)
    source, store = found.source, found.store
    packed = _packed_files(reader, found, settings)
    address = locate(source.root, cache_root, None, storage_options)
    if packed and address.in_place:
        address = SourceLocation(source.root, unpack_into or keep[-1], in_place=False)
    directory = None if address.in_place else files_directory(address.root, source.root, storage_options)
    if directory is not None:
        directory.hold()
    make = partial(make_cache, directory or address.root, None if address.in_place else store, settings)
    early = make(lambda: _cached_sizes(found, packed))
    with contextlib.suppress(OSError):
        early.sweep()
    if partitions is None:
        partitions = wanted.partitions(found)
    fetched = FetchedFiles(early, cache_limit, in_place=address.in_place)
    headers = HeaderReader(reader, store, wanted.header_settings, partitions, fetched)
    alone = directory is None or headers.know_all(found, known)
    if directory is not None:
        with contextlib.suppress(OSError):
            directory.make()
    with contextlib.nullcontext() if alone else taking_turns(keep, store.url, name):
        known = known if alone else load_facts(keep, name) or known
        files, bad = headers.read_all(found, known, skip_bad=wanted.skip_bad)
        if [*map(id, files)] != [*map(id, known.values())]:
            save_facts(keep, store.url, name, files)
    filled = [one for one in files if one.samples]
    if filled:
        check_names(wanted.options, {id(one.spec): one.spec for one in filled}.values(), source.told)
    spec = wanted.spec_of(filled, partitions, store)
    # What row groups share with others that are read much later would be fetched for each of them.
    apart = settings.in_memory
    shards = reader.describe_shards(filled, spec, in_place=address.in_place, partitions=partitions, apart=apart)
    if lazy:
        shards = (_left_in_store(info, store) for info in shards)
    extra = {"skipped_files": [{"key": one.key, "problem": one.problem} for one in bad]} if bad else {}
    index = Index(list(shards), extra=extra, where=source.told)
    cache = make(index.file_sizes)
    cache.early = early.early
    if not address.in_place and cache.keeps:
        _remove_replaced(reader, cache, known, files, index)
    listed = [one.file for one in filled] + [one for owner in filled for one in owner.beside]
    return DatasetLocation(
        index,
        cache,
        keep,
        origin=origin_of(source.root, storage_options),
        listed=version_of_files((one.key, one.size, one.version) for one in listed),
        told="" if source.keys is None and source.pattern is None else source.told,
    )


def _left_in_store(info: ShardInfo, store: Store) -> ShardInfo:
    """The shard of a file of which a sample's handle reads what it needs; of a compressed one, all of it is fetched."""
    if info.zip:
        return info
    part = info.raw[0].part
    assert part is not None  # as of all files without an index
    return replace(info, raw=(), detail=StoredFile.of(store, part.key, part.size, part.version))


def _may_be_many(location: FilesLocation, address: SourceLocation) -> bool:
    """Whether all objects below a URL are asked for, of a store that lists them."""
    named = location.keys is not None or location.pattern is not None
    return not (named or address.in_place or is_local(location.root) is not None) and not location.root.startswith(
        ("http://", "https://", "hf://")
    )


def _open_many(
    many: ListedFiles,
    store: Store,
    address: SourceLocation,
    settings: CacheSettings,
    keep: tuple[Path, ...],
    storage_options: StorageOptions | None,
) -> DatasetLocation:
    """The location of very many objects."""
    directory = files_directory(address.root, store.url, storage_options)
    directory.hold()
    cache = make_cache(directory, store, settings, many.index.file_sizes)
    opened = _of_listing(many, store.url, cache, keep, storage_options)
    if cache.keeps:
        with contextlib.suppress(OSError):
            directory.make()
        for one in many.replaced:
            unlink(cache.root / whole_file(one, in_place=False).basename)
    return opened


def _of_listing(
    found: ListedFiles, root: str, cache: ShardCache, keep: tuple[Path, ...], storage_options: StorageOptions | None
) -> DatasetLocation:
    """The location of files of which a listing tells all."""
    cache.remembered = found.remembered
    with contextlib.suppress(OSError):
        cache.sweep()
    origin = origin_of(root, storage_options)
    return DatasetLocation(found.index, cache, keep, origin=origin, listed=found.listed)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The columns and rows of files that are read, and the settings for it.

    Attributes:
        reader: their format.
        options: settings of the format that the caller chose.
        skip_bad: whether bad files are left out.
        columns: columns to read, where that decides what is fetched.
        header_settings: what the reading of headers gets.
    """

    reader: Format
    options: Mapping[str, Any]
    skip_bad: bool
    columns: tuple[str, ...] | None
    header_settings: Mapping[str, Any]

    @classmethod
    def of(cls, reader: Format, options: Mapping[str, Any], columns: Sequence[str] | None) -> _Wanted:
        """Make it from the caller's arguments."""
        chosen = dict(options)
        on_bad_files = chosen.pop("on_bad_files", "error")
        check_argument(f"format {reader.name!r}", "on_bad_files", OnBadFiles, on_bad_files)
        skip_bad = on_bad_files == "skip"
        only_settings(chosen, reader.settings, reader.name)
        if not reader.row_groups:
            return cls(reader, chosen, skip_bad, None, chosen)
        filters = chosen.get("filters")
        check_argument(f"format {reader.name!r}", "filters", Filters | None, filters, "such as [('column', '>', 3)]")
        names = None if columns is None else tuple(columns)
        return cls(reader, chosen, skip_bad, names, {"columns": names, "predicate": Predicate.parse(filters)})

    def side_name(self, source: FilesLocation) -> str:
        """Name of the side file: of these files, read in this way."""
        options = {name: repr(value) for name, value in self.options.items()}
        if "filters" in options:  # their second meaning: by that of nulls, and of numbers that a column rounds
            options["filters"] = f"2 {options['filters']}"
        recipe = [source.root, source.pattern, source.keys, self.reader.name, options, self.columns]
        digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:24]
        return f"{self.reader.name}.{digest}.facts"

    def partitions(self, found: SourceFiles) -> dict[str, Partition]:
        """Columns that folders' names give to files; see :mod:`stoker.catalog.unindexed.open_files`."""
        if not self.reader.row_groups or not self.options.get("hive", True):
            return {}
        return partitions_of([file.key for file in found.files], found.source.root)

    def spec_of(
        self, files: Sequence[UnindexedFile], partitions: Mapping[str, Partition], store: Store
    ) -> Mapping[str, Any]:
        """The spec of all files together, with the columns that folders tell."""
        spec: Mapping[str, Any] = files[0].spec if files else {"columns": {}}
        first_with: dict[int, UnindexedFile] = {}
        for one in files:
            first_with.setdefault(id(one.spec), one)
        for one in first_with.values():
            try:
                spec = self.reader.agree(spec, one.spec)
            except ValueError as error:
                # Of a single column none is left to read. Token loaders name one, and have no columns=.
                others = self.columns is None or len(self.columns) > 1
                remedy = "Read only columns that agree (columns=), write" if others else "Write"
                raise IndexFileError(
                    f"{store.url_of(files[0].key)} and {store.url_of(one.key)} can not be read together: {error}. {remedy} "
                    "the files alike, or open them apart"
                ) from None
        if not partitions:
            return spec
        kinds = kinds_of(partitions)
        told = {name: kind for name, kind in kinds.items() if self.columns is None or name in self.columns}
        return {**spec, "columns": {**spec["columns"], **told}}


def _packed_files(reader: Format, found: SourceFiles, settings: CacheSettings) -> list[ObjectInfo]:
    """The files that are compressed.

    ConfigError if one lies beside the same file without compression, so that its samples would come twice, or they would have
    to be kept in memory.
    """
    packed = [file for file in found.files if codec_of(file.key) is not None] if reader.packed else []
    keys = {file.key for file in found.files} if packed else set()
    for file in packed:
        where, plain = found.store.url_of(file.key), unpacked_name(file.key)
        if plain in keys:
            raise ConfigError(
                f"{where} lies beside {plain}, and its samples would come twice: remove one, or name the files to read by a "
                "pattern or in a list"
            )
        if settings.in_memory:
            raise ConfigError(
                f"{where}: compressed files come into the cache whole, decompressed, and one in memory would not keep them: "
                "leave out ReadOptions(cache='memory'), or decompress them"
            )
    return packed


def _cached_sizes(found: SourceFiles, packed: Sequence[ObjectInfo]) -> dict[str, int]:
    """Names in the cache, and bytes, of files that are fetched whole to see what they hold."""
    sizes = {whole_file(file, in_place=False).basename: file.size for file in found.files}
    sizes.update({packed_file(file)[0].basename: file.size for file in packed})
    return sizes


def _remove_replaced(
    reader: Format,
    cache: ShardCache,
    known: Mapping[str, UnindexedFile],
    files: Sequence[UnindexedFile],
    index: Index,
) -> None:
    """Remove what the cache holds of files that were replaced or are gone since the last start."""
    kept = {id(one) for one in files}
    gone = [one for one in known.values() if id(one) not in kept]
    if not gone:
        return
    current = {one.mark for one in files}
    names = {*index.file_sizes(), *(whole_file(one.file, in_place=False).basename for one in files)}
    for one in gone:
        for basename in _cached_names(reader, one, cache.root) if one.mark not in current else ():
            if basename not in names:
                unlink(cache.root / basename)


def _cached_names(reader: Format, one: UnindexedFile, root: Path) -> Iterator[str]:
    """Names of all files of the cache that belong to a file."""
    if reader.row_groups:  # of whatever columns
        yield from (f"{one.key}/{path.name}" for path in (root / one.key).glob("*.chunks"))
        return
    yield whole_file(one.file, in_place=False).basename
    for shard in reader.describe_shards([one] if one.samples else [], one.spec, in_place=False):
        yield from (file.basename for file in shard.raw)
