"""Opens a source: detects what it is by the files that lie there, where it is read from, and what its columns are."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.cache.base import CacheSettings
from stoker.catalog.detect import detect as find_out
from stoker.catalog.location import DatasetLocation, default_cache, open_indexed
from stoker.catalog.tables.marks import TABLE_FORMATS
from stoker.catalog.tables.open_table import open_table
from stoker.catalog.unindexed.files_location import check_exists, source_of
from stoker.catalog.unindexed.huggingface import DICT_NAME, STATE_NAME, refuse_dict, state_files
from stoker.catalog.unindexed.inspect_headers import StoreSource
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.conversion.schema import ColumnType, of_arrow, of_values
from stoker.conversion.source import ConversionSource, as_they_are, verbatim_images
from stoker.errors import ConfigError, StokerError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.inspect_header import ByteSourceFile
from stoker.formats.lance import NAME as LANCE
from stoker.formats.lance import LanceSpan
from stoker.formats.one_file import FILES, IMAGES, SUFFIXES, content_column
from stoker.formats.parquet.schema import DECLARED_KEY, declared_array
from stoker.formats.registry import format_name, get_format
from stoker.index.index import INDEX_NAME
from stoker.order.shuffle.shard_table import ShardTable
from stoker.storage import Store, is_local, open_store
from stoker.storage.job_record import file_version
from stoker.types import Batch, Ids, StorageOptions

Url = str | os.PathLike[str]

INDEX: Final = "index"
"""A dataset with an index.json, of whatever format that says."""
HUGGING_FACE: Final = "huggingface"
"""A directory that ``datasets`` made by ``save_to_disk``."""


def detect(source: Url | Sequence[Url], format: str | None, options: StorageOptions | None) -> str:  # noqa: A002
    """Find out what a source is, or see that it is what the caller says: ``index``, ``huggingface`` or a format's name.

    Where several things or nothing can be told, the error says what is there.
    """
    name = HUGGING_FACE if format == "hf" else format_name(format)
    for one in [source] if isinstance(source, str | os.PathLike) else source:
        check_exists(one)
    store = _directory(source, options) if isinstance(source, str | os.PathLike) else None
    if name is None and store is not None and store.exists(INDEX_NAME):
        return INDEX
    if name in (None, HUGGING_FACE) and store is not None:
        if store.exists(DICT_NAME):
            refuse_dict(store)
        names = state_files(store) if store.exists(STATE_NAME) else None
        if names is not None and not names:
            raise ConfigError(f"{store.url} is a dataset without any file: there is nothing to convert")
        if names:
            return HUGGING_FACE
    if name == HUGGING_FACE:
        raise ConfigError(f"{source}: no {STATE_NAME}, which datasets.save_to_disk writes: give its directory")
    if name is not None:
        if name == INDEX or name in TABLE_FORMATS:
            return name
        if name != IMAGES:
            get_format(name)
        if store is not None and name != FILES and name not in SUFFIXES and store.exists(INDEX_NAME):
            return INDEX
    else:
        files = find_out(source, options)  # by the names of files
        if files.kind == "shards":
            raise ConfigError(f"{source} holds shards without an index.json: rebuild it with `stoker index {source}`")
        name = files.format or INDEX
    return IMAGES if name in ("jpeg", "png") else name  # as they are: without decoding them


def _directory(source: Url, options: StorageOptions | None) -> Store | None:
    """The source as a directory, if it may be one."""
    if source_of(source).pattern is not None:
        return None
    local = is_local(source)
    if local is not None and local.is_file():
        return None
    return open_store(source, options if local is None else None)


_HUGGING_FACE_KEY: Final = b"huggingface"
_FIRST_ROWS, _LAST_ROWS, _SPREAD = 32, 8, 256
_WORDS: Final = {"str": "str", "int": "int", "float": "float64", "bool": "bool", "json": "json"}
_FEATURE_FILES: Final = ("Image", "Audio", "Video", "Pdf")
_CACHE: Final = CacheSettings(limit=8 << 30)


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """A source that is open.

    Attributes:
        types: of its columns, as far as they are declared.
        versions: of the source's files when it was opened, by name.
        folder: directory that paths inside of samples are relative to; empty where there is none.
        cache: directory that remote files come to, which goes when the conversion is done; ``None`` for none.
    """

    source: ConversionSource
    kind: str
    types: Mapping[str, ColumnType]
    versions: Mapping[str, str]
    folder: str = ""
    cache: Path | None = None


def open_source(
    given: Url | Sequence[Url],
    format: str | None,  # noqa: A002
    *,
    whole: bool,
    allow_unsafe_types: bool,
    storage_options: StorageOptions | None,
    format_options: Mapping[str, Any],
    job: str,
    fresh: bool,
    on_listing: Callable[[], None] = lambda: None,
) -> OpenedSource:
    """Open a source.

    Arguments are as :func:`~stoker.conversion.convert.convert` has them. ``whole`` keeps all of a remote source in the
    cache, as it is read in no order. What is fetched for one ``job`` is not used by another; ``fresh``: nor is what an
    earlier run of it has fetched, as the source may have changed since. ``on_listing`` is called when files are about to be
    listed.
    """
    kind = detect(given, format, storage_options)
    name = str(given) if isinstance(given, str | os.PathLike) else f"{given[0]} and {len(given) - 1} more"
    first = given if isinstance(given, str | os.PathLike) else given[0]
    root = os.path.realpath(first) if is_local(first) is not None else first
    fetched = default_cache(os.fspath(root), storage_options, f"convert\n{job}")
    if fresh:
        shutil.rmtree(fetched, ignore_errors=True)
    if kind in (IMAGES, FILES):
        on_listing()
    location, cache = _open(
        given, kind, fetched, whole=whole, storage_options=storage_options, format_options=format_options
    )
    reading = ReadOptions(allow_unsafe_types=allow_unsafe_types)
    if kind in (IMAGES, FILES):
        source = ConversionSource(name, as_they_are(location), reading, single=True)
        versions = {key: file_version(size, version) for key, size, version in source.listed()}
        content = _type_of_images(versions) if kind == IMAGES else ColumnType("bytes")
        return OpenedSource(source, kind, {content_column(kind): content}, versions, cache=cache)
    types = _declared(location)
    location, encodings = verbatim_images(location)
    if kind == INDEX:
        types.update({name: ColumnType(_WORDS.get(kind, kind)) for name, kind in encodings.items()})
    folder = is_local(first) if kind == HUGGING_FACE else None
    source = ConversionSource(name, location, reading)
    return OpenedSource(source, kind, types, source.versions(), os.fspath(folder) if folder else "", cache)


def sample_types(opened: OpenedSource, columns: Sequence[str], *, skip_bad: bool) -> dict[str, ColumnType]:
    """The types of some columns, by their values where nothing declares them."""
    types = {name: opened.types[name] for name in columns if name in opened.types}
    unsure = [name for name in columns if name not in types or (not types[name].encoding)]
    if unsure:
        batch = _first_samples(opened.source, unsure, skip_bad=skip_bad)
        for name in unsure:
            said = types.get(name)
            values = batch[name]
            if said is not None and not isinstance(values, np.ndarray) and all(value is None for value in values):
                types[name] = ColumnType("bytes", said.reading, said.arrow)  # declared binary, or files
                continue
            if said is not None and said.reading == "file":
                values = [value["bytes"] if isinstance(value, dict) else value for value in values]
                values = [value for value in values if value is not None] or [b""]
            seen = of_values(values, name)
            types[name] = ColumnType(seen.encoding, said.reading, said.arrow) if said is not None else seen
    return types


def _first_samples(source: ConversionSource, columns: Sequence[str], *, skip_bad: bool) -> Batch:
    """Columns of samples that types are told by.

    Where bad samples are left out, and all of the first are, those of others. Where these are bad, too, an error is raised.
    """
    for choice in (head, spread):
        shards, rows = choice(source.sizes)
        if not skip_bad:
            return source.read(shards, rows, columns)
        batch, kept, bad = source.read_good(shards, rows, columns)
        if len(kept):
            return batch
    raise bad[0]


def head(sizes: Ids) -> tuple[Ids, Ids]:
    """Shards and rows of a few samples: the first ones, and some of the last shard. It may be few or one, but not none."""
    first = np.arange(min(_FIRST_ROWS, int(sizes.sum())), dtype=np.int64)
    end, last = int(sizes.sum()), int(sizes[np.flatnonzero(sizes)[-1]])
    return ShardTable(sizes).locate(np.union1d(first, np.arange(max(end - _LAST_ROWS, end - last), end)))


def spread(sizes: Ids) -> tuple[Ids, Ids]:
    """Shards and rows of some hundred samples from all over the source."""
    total = int(sizes.sum())
    count = min(_SPREAD, total)
    return ShardTable(sizes).locate(np.arange(count, dtype=np.int64) * total // count)


def _type_of_images(keys: Iterable[str]) -> ColumnType:
    kinds = {kind for key in keys for kind in ("jpeg", "png") if key.lower().endswith(SUFFIXES[kind])}
    return ColumnType(kinds.pop()) if len(kinds) == 1 else ColumnType("bytes", "picture")


def _open(
    given: Url | Sequence[Url],
    kind: str,
    cache: Path,
    *,
    whole: bool,
    storage_options: StorageOptions | None,
    format_options: Mapping[str, Any],
) -> tuple[DatasetLocation, Path | None]:
    """The dataset, and the directory that its remote files come to for as long as they are converted."""
    first = given if isinstance(given, str | os.PathLike) else given[0]
    remote = is_local(first) is None
    options = storage_options if remote else None
    settings = _CACHE if remote and not whole else CacheSettings()
    local = cache if remote else None
    if kind == INDEX:
        if format_options:
            raise ConfigError(
                f"format_options={dict(format_options)}: a dataset with an index.json says all of that itself"
            )
        location = open_indexed(first, local, None, settings=settings, storage_options=options)
        if not remote and location.cache.store is not None:  # compressed: decompressed elsewhere, for a while
            location, local = open_indexed(first, cache, None, settings=settings), cache
        return location, local
    if kind in TABLE_FORMATS:
        table = open_table(
            kind,
            given,
            None if kind == LANCE else local,
            None,
            options=format_options,
            columns=None,
            settings=CacheSettings() if kind == LANCE else settings,
            storage_options=options,
        )
        return table, None if table.cache.store is None else cache
    if kind in (IMAGES, FILES):  # small ones, many at once
        settings = CacheSettings(in_memory=remote)
        format_options = {"decode": False} if kind == IMAGES else {}
    location = open_unindexed(
        given,
        "arrow" if kind == HUGGING_FACE else kind,
        local,
        options=format_options,
        settings=settings,
        unpack_into=cache,
        remembered=False,  # a file that was written over since is another source
        storage_options=options,
    )
    return location, None if location.cache.store is None else cache


def _declared(location: DatasetLocation) -> dict[str, ColumnType]:
    """Types of columns that the source itself tells."""
    shards = location.index.shards
    if not shards or "columns" not in shards[0].spec:
        return {}
    words: Mapping[str, str] = shards[0].spec["columns"]
    form = shards[0].format
    if isinstance(shards[0].detail, LanceSpan):
        return _of_schema(shards[0].detail.table.schema, location.index.columns, arrays=True)
    if form in ("parquet", "arrow"):
        return _of_schema(_arrow_schema(location, shards[0]), location.index.columns, arrays=form == "parquet")
    if get_format(form).text:
        return {name: ColumnType(_WORDS[word]) for name, word in words.items() if word in _WORDS}
    if form == "tfrecord":
        lists = {name: word[:-2] for name, word in words.items() if word.endswith("[]")}
        return {name: ColumnType(f"ndarray:{word}", "array") for name, word in lists.items() if word != "bytes"}
    return {}


def _of_schema(schema: Any, columns: Sequence[str], *, arrays: bool) -> dict[str, ColumnType]:
    """The columns of an Arrow schema, with the encodings that stoker or Hugging Face's ``datasets`` declared."""
    metadata = schema.metadata or {}
    ours = _object(metadata.get(DECLARED_KEY)).get("columns")
    features = _object(_object(metadata.get(_HUGGING_FACE_KEY)).get("info")).get("features")
    types: dict[str, ColumnType] = {}
    for field in schema:
        if field.name not in columns:
            continue
        feature = features.get(field.name) if isinstance(features, dict) else None
        if isinstance(ours, dict) and isinstance(ours.get(field.name), str):
            types[field.name] = ColumnType(ours[field.name], "decode", field.type)
        elif isinstance(feature, dict) and feature.get("_type") in _FEATURE_FILES:
            types[field.name] = ColumnType("", "file")
        else:
            types[field.name] = of_arrow(field.type, field.name, declared_array(field) if arrays else None)
    return types


def _object(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _arrow_schema(location: DatasetLocation, shard: ShardInfo) -> Any:
    """The schema of the first file."""
    import pyarrow as pa

    store = location.cache.store or open_store(location.cache.root)
    key = shard.raw[0].part.key if shard.raw[0].part is not None else shard.raw[0].basename
    source = StoreSource(store, key, store.head(key).size, store.url_of(key))
    file = ByteSourceFile(source)
    try:
        if shard.format == "parquet":
            import pyarrow.parquet as pq

            return pq.ParquetFile(pa.PythonFile(file, "r"), coerce_int96_timestamp_unit="us").schema_arrow
        import pyarrow.ipc as ipc

        opener = ipc.open_file if source.read(0, 6) == b"ARROW1" else ipc.open_stream
        return opener(pa.PythonFile(file, "r")).schema
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(file.failure, StokerError):
            raise file.failure from None
        raise ConfigError(f"{store.url_of(key)}: its schema can not be read: {error}") from None
