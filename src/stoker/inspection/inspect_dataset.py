"""Describes a dataset from its index or its files' headers, and a few of its samples."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from stoker.arguments import at_least, checked
from stoker.cache.base import CacheSettings
from stoker.catalog.detect import detect
from stoker.catalog.open_format import refuse_options
from stoker.catalog.tables.lance import find_lance, open_lance
from stoker.catalog.tables.marks import TABLE_FORMATS
from stoker.catalog.tables.open_table import find_version
from stoker.catalog.unindexed.files_location import dataset_url, source_of
from stoker.catalog.unindexed.find_files import as_file
from stoker.catalog.unindexed.open_files import unindexed_format
from stoker.errors import ConfigError
from stoker.formats.common.entries import column_words
from stoker.formats.lance import NAME as LANCE
from stoker.formats.registry import format_name
from stoker.index.index import INDEXED, Index, load_index
from stoker.inspection.checks import FileReader
from stoker.inspection.facts import ColumnFacts, DatasetFacts, Shown, preview_files, preview_shard, shape_of
from stoker.inspection.unindexed_files import inspect_unindexed
from stoker.storage import Store, is_local, open_store
from stoker.storage.files.locked_folder import LockedFolder
from stoker.types import StorageOptions


@checked
def inspect(
    url: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - as StreamingDataset calls it
    samples: int = 3,
    count: bool = False,
    format_options: Mapping[str, Any] | None = None,
    storage_options: StorageOptions | None = None,
) -> DatasetFacts:
    """Describe a dataset: format, columns, size and first samples, reading as little of it as possible.

    Of a dataset with an index that is the index; of files without one, a listing, and their headers. Formats whose headers do
    not tell how much a file holds (tar, TFRecord) are not counted unless ``count``; columns are then those of the first
    file. To show samples of a remote dataset, their bytes are fetched (MDS and lines that are not compressed), or the first
    shard; of a local one only these rows are touched. Nothing is written but a temporary file.

    Args:
        url: a directory or URL with an ``index.json``, or of files of one format; a file; or a pattern.
        format: the files' format, for files without an index. Found out by their names if not given.
        samples: how many of the first samples to show.
        count: read whole files where only that tells how many samples they hold.
        format_options: what the format's reader of others' files understands.
        storage_options: credentials and settings of a remote store, by obstore's names.

    Raises:
        ObjectNotFoundError: nothing is there.
        ConfigError: it is not clear what the files are, or the folder for temporary files is full or can not be written.
        FormatError: the index, or a file's header, can not be read.

    >>> import tempfile
    >>> from stoker import MDSWriter
    >>> with tempfile.TemporaryDirectory() as out:
    ...     with MDSWriter({"x": "int", "name": "str"}, out) as writer:
    ...         for number in range(10):
    ...             writer.write({"x": number, "name": f"number {number}"})
    ...     facts = inspect(out, samples=1)
    ...     facts.samples, [column.type for column in facts.columns], facts.preview[0]["name"].text
    (10, ['str', 'int'], 'number 0')
    """
    at_least(0, samples=samples)
    text = dataset_url(url)
    options = storage_options if is_local(text) is None else None
    name = format_name(format)
    if name is None:
        found = detect(text, options)
        if found.kind == "shards":
            raise ConfigError(
                f"{text} holds shards without an index.json: make one with `stoker index`, or rebuild_index()"
            )
        name = found.format or INDEXED
    with LockedFolder.in_temp("stoker-inspect-") as scratch:
        if name == INDEXED:
            refuse_options(text, format_options)
            store = open_store(text, options)
            return _indexed(store, load_index(store), FileReader(store, scratch), samples)
        settings, table = dict(format_options or {}), None
        if name == LANCE:
            return _of_lance(text, settings, options, samples)
        if name in TABLE_FORMATS:
            table, settings = find_version(name, text, settings, options)
        open_root = partial(open_store, options=options)
        source = as_file(source_of(text), open_root, unindexed_format(name)) if table is None else table.files
        files = FileReader(open_root(source.root), scratch)
        if table is None:
            return inspect_unindexed(source, files, name, settings, samples, count=count)
        facts = inspect_unindexed(source, files, "parquet", settings, samples, count=count)
        read = {column.name: column for column in facts.columns}
        columns = tuple(read.get(column) or ColumnFacts(column, "told by the log", None) for column in table.columns)
        notes = (f"this is {table.version}", *facts.notes)
        return replace(facts, url=text, format=name, columns=columns, notes=notes)


def _of_lance(url: str, settings: Mapping[str, Any], options: StorageOptions | None, samples: int) -> DatasetFacts:
    """The facts of a Lance table, and its first samples, of the columns whose values are read."""
    table = find_lance(url, settings, options)
    facts = table.facts
    readable = [name for name in table.schema.names if name not in facts.unread]
    location = open_lance(
        url, {**settings, "version": facts.version}, readable, settings=CacheSettings(), storage_options=options
    )
    shards = location.index.shards
    preview, notes = preview_files(shards[0], (), samples, location.cache.describe(shards[0])) if readable else ([], [])
    left_out = [f"values of column {name!r} are not read: {why}" for name, why in facts.unread.items()]
    sizes = [fragment.bytes for fragment in facts.fragments]
    return DatasetFacts(
        url=table.url,
        format=LANCE,
        files=len(facts.fragments),
        shards=len(shards),
        samples=location.index.samples,
        columns=tuple(ColumnFacts(one.name, str(one.type), shape_of(str(one.type))) for one in table.schema),
        stored_bytes=sum(sizes),
        smallest_shard=min(sizes),
        largest_shard=max(sizes),
        notes=(f"this is version {facts.version} of the Lance table", *left_out, *notes),
        preview=tuple(preview),
    )


def _indexed(store: Store, index: Index, files: FileReader, samples: int) -> DatasetFacts:
    stored = [sum(file.bytes for file in info.stored) for info in index.shards]
    shown: list[Mapping[str, Shown]] = []
    notes: list[str] = []
    for info in index.shards:
        if len(shown) >= samples:
            break
        if info.samples:
            more, said = preview_shard(files, info, samples - len(shown))
            shown += more
            notes += said
            if not more:
                break
    hashed = {name for info in index.shards for file in info.stored for name in file.hashes}
    return DatasetFacts(
        url=store.url,
        format=", ".join(sorted({info.format for info in index.shards})) or "none: there are no shards",
        indexed=True,
        files=sum(len(info.stored) for info in index.shards),
        shards=len(index),
        samples=index.samples,
        columns=tuple(_column(index, name) for name in index.columns),
        stored_bytes=sum(stored),
        raw_bytes=sum(info.size for info in index.shards),
        compression=tuple(sorted({info.compression for info in index.shards if info.compression})),
        hashes=tuple(sorted(hashed)),
        smallest_shard=min(stored, default=0),
        largest_shard=max(stored, default=0),
        notes=tuple(dict.fromkeys(notes)),
        preview=tuple(shown),
    )


def _column(index: Index, name: str) -> ColumnFacts:
    """A column by the first shard's entry, as shards of one dataset nearly always agree."""
    specs = {id(one.spec): one.spec for one in index.shards}.values()
    kinds = list(dict.fromkeys(str(column_words(spec)[name]) for spec in specs))
    shape = shape_of(kinds[0]) if len(kinds) == 1 else None
    return ColumnFacts(name, " or ".join(kinds), shape)
