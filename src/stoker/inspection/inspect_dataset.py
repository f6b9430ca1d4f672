"""Describes a dataset from its index or its files' headers, and a few of its samples."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from stoker.arguments import at_least, checked, must_be
from stoker.cache.base import CacheSettings
from stoker.catalog.detect import detect
from stoker.catalog.open_format import refuse_options
from stoker.catalog.tables.lance import find_lance, open_lance
from stoker.catalog.tables.marks import TABLE_FORMATS
from stoker.catalog.tables.open_table import find_version
from stoker.catalog.unindexed.files_location import FilesLocation, dataset_url, source_of
from stoker.catalog.unindexed.find_files import HEADERS_AT_ONCE, as_file
from stoker.catalog.unindexed.open_files import unindexed_format
from stoker.errors import ConfigError, FormatError
from stoker.formats.common.entries import column_words
from stoker.formats.common.file_shards import UnindexedFile
from stoker.formats.common.inspect_header import only_settings
from stoker.formats.lance import NAME as LANCE
from stoker.formats.parquet.facts import storage_of
from stoker.formats.registry import format_name
from stoker.index.index import INDEX_NAME, INDEXED, Index, load_index
from stoker.inspection.checks import FileReader
from stoker.inspection.facts import (
    LARGEST,
    ColumnFacts,
    DatasetFacts,
    Shown,
    preview_files,
    preview_shard,
    shape_of,
)
from stoker.inspection.token_facts import (
    TokenQuestion,
    groups_of_files,
    groups_of_index,
    inspect_raw,
    inspect_tokens,
)
from stoker.inspection.unindexed_files import SeparateFiles, disagreements
from stoker.storage import ObjectInfo, Store, is_local, open_store
from stoker.storage.files.locked_folder import LockedFolder
from stoker.storage.transfer import side_by_side
from stoker.types import StorageOptions


@checked
def inspect(
    url: str | os.PathLike[str],
    *,
    format: str | None = None,  # noqa: A002 - as StreamingDataset calls it
    samples: int = 3,
    count: bool = False,
    column: str | None = None,
    token_dtype: DTypeLike | None = None,
    sequence_lengths: Sequence[int] | None = None,
    format_options: Mapping[str, Any] | None = None,
    storage_options: StorageOptions | None = None,
) -> DatasetFacts:
    """Describe a dataset: format, columns, size, first samples, and tokens, reading as little of it as possible.

    Of a dataset with an index that is the index; of files without one, a listing, and their headers. Formats whose headers do
    not tell how much a file holds (tar, TFRecord) are not counted unless ``count``; columns are then those of the first
    file. To show samples of a remote dataset, their bytes are fetched (MDS and lines that are not compressed), or the first
    shard; of a local one only these rows are touched. Nothing is written but a temporary file.

    Where a column is one of token ids, ``tokens`` says how many documents and tokens there are, how long documents are, and
    what each layout of the token loaders would waste. The lengths are of all documents where there are up to about 32 million
    tokens, or ``count``; else of a sample, and the facts say of how many documents.

    Args:
        url: a directory or URL with an ``index.json``, or of files of one format; a file; or a pattern.
        format: the files' format, for files without an index. Found out by their names if not given.
        samples: how many of the first samples to show.
        count: read whole files where only that tells how many samples they hold, or how long all documents are.
        column: the column of token ids. Default: ``input_ids``, ``token_ids`` or ``tokens``, if it holds such.
        token_dtype: what a column of ``bytes`` holds, or local ``.bin`` files that are one array of tokens each, such as
            ``"uint16"``.
        sequence_lengths: for which layouts are compared. Default: 2048, 4096 and 8192.
        format_options: what the format's reader of others' files understands.
        storage_options: credentials and settings of a remote store, by obstore's names.

    Raises:
        ObjectNotFoundError: nothing is there.
        ConfigError: it is not clear what the files are, or which column holds tokens; or the folder for temporary files
            is full or can not be written.
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
    for length in sequence_lengths or ():
        at_least(1, sequence_lengths=length)
    integers = token_dtype is None or np.dtype(token_dtype).kind in "iu"
    must_be("a dtype of integers, such as 'uint16'", integers, token_dtype=token_dtype)
    question = TokenQuestion(column, token_dtype, sequence_lengths, count)
    text = dataset_url(url)
    if is_local(text) is not None and text.endswith(".bin") and os.path.exists(f"{text[:-4]}.idx"):
        text = f"{text[:-4]}.idx"  # Megatron's
    if token_dtype is not None and format is None and (raw := _raw_files(text)):
        return _raw(raw, dict(format_options or {}), question)
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
            return _indexed(store, load_index(store), FileReader(store, scratch), samples, question)
        settings, table = dict(format_options or {}), None
        if name == LANCE:
            must_be("left out, as is token_dtype=, of a Lance table", not question.asked, column=column)
            return _of_lance(text, settings, options, samples)
        if name in TABLE_FORMATS:
            table, settings = find_version(name, text, settings, options)
        open_root = partial(open_store, options=options)
        source = as_file(source_of(text), open_root, unindexed_format(name)) if table is None else table.files
        files = FileReader(open_root(source.root), scratch)
        if table is None:
            return _unindexed(source, files, name, settings, samples, question)
        facts = _unindexed(source, files, "parquet", settings, samples, question)
        read = {column.name: column for column in facts.columns}
        columns = tuple(read.get(column) or ColumnFacts(column, "told by the log", None) for column in table.columns)
        notes = (f"this is {table.version}", *facts.notes)
        return replace(facts, url=text, format=name, columns=columns, notes=notes)


def _raw_files(text: str) -> list[str]:
    """Files that are one array of tokens each: a ``.bin``, or those of a folder, that no ``.idx`` describes."""
    folder = is_local(text)
    if folder is None or (folder / INDEX_NAME).exists():
        return []
    found = sorted(folder.glob("*.bin")) if folder.is_dir() else [folder] if folder.suffix == ".bin" else []
    return [] if any(path.with_suffix(".idx").exists() for path in found) else [*map(str, found)]


def _raw(paths: Sequence[str], settings: Mapping[str, Any], question: TokenQuestion) -> DatasetFacts:
    """The facts of arrays of tokens."""
    only_settings(settings, ("header_bytes",), "raw")
    source, tokens = inspect_raw(paths, settings.get("header_bytes", 0), question)
    sizes = [os.path.getsize(path) for path in paths]
    return DatasetFacts(
        url=source.url,
        format="raw tokens",
        indexed=False,
        files=len(sizes),
        shards=len(sizes),
        samples=None,
        columns=(),
        stored_bytes=sum(sizes),
        raw_bytes=None,
        compression=(),
        hashes=(),
        smallest_shard=min(sizes),
        largest_shard=max(sizes),
        notes=("arrays of tokens do not say where documents end: their rows are those of the concat layout",),
        tokens=tokens,
    )


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
        indexed=False,
        files=len(facts.fragments),
        shards=len(shards),
        samples=location.index.samples,
        columns=tuple(ColumnFacts(one.name, str(one.type), shape_of(str(one.type))) for one in table.schema),
        stored_bytes=sum(sizes),
        raw_bytes=None,
        compression=(),
        hashes=(),
        smallest_shard=min(sizes),
        largest_shard=max(sizes),
        notes=(f"this is version {facts.version} of the Lance table", *left_out, *notes),
        preview=tuple(preview),
    )


def _indexed(store: Store, index: Index, files: FileReader, samples: int, question: TokenQuestion) -> DatasetFacts:
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
    columns = tuple(_column(index, name) for name in index.columns)
    kinds = {column.name: column.type for column in columns}
    tokens, missing = inspect_tokens(partial(groups_of_index, index, files, question), kinds, question, files)
    hashed = {name for info in index.shards for file in info.stored for name in file.hashes}
    return DatasetFacts(
        url=store.url,
        format=", ".join(sorted({info.format for info in index.shards})) or "none: there are no shards",
        indexed=True,
        files=sum(len(info.stored) for info in index.shards),
        shards=len(index),
        samples=index.samples,
        columns=columns,
        stored_bytes=sum(stored),
        raw_bytes=sum(info.size for info in index.shards),
        compression=tuple(sorted({info.compression for info in index.shards if info.compression})),
        hashes=tuple(sorted(hashed)),
        smallest_shard=min(stored, default=0),
        largest_shard=max(stored, default=0),
        notes=tuple(dict.fromkeys((*notes, *missing))),
        preview=tuple(shown),
        tokens=tokens,
    )


def _unindexed(
    source: FilesLocation,
    files: FileReader,
    name: str,
    settings: Mapping[str, Any],
    samples: int,
    question: TokenQuestion,
) -> DatasetFacts:
    """Look at files of one format. FormatError if no file can be read."""
    of = SeparateFiles(source, files, name, settings)
    notes: list[str] = []
    looked = of.found if question.whole or not of.whole else of.found[:1]
    if len(looked) < len(of.found):
        notes.append(f"only the first of {len(of.found)} files was looked at; count=True or --count reads all")

    def inspect(file: ObjectInfo) -> UnindexedFile | FormatError:
        try:
            map_it = of.whole or (of.local and not of.reader.row_groups and not of.reader.single)
            return of.inspect(file, files.read(file.key) if map_it else None)
        except FormatError as error:
            return error

    outcomes = side_by_side([partial(inspect, file) for file in looked], HEADERS_AT_ONCE, "inspect")
    read = [one for one in outcomes if isinstance(one, UnindexedFile)]
    bad = [one for one in outcomes if isinstance(one, FormatError)]
    if bad and not read:
        raise bad[0]
    specs = ((one.key, one.spec) for one in read if one.samples)
    notes += [*map(str, bad), *(said for _, said in islice(disagreements(of.reader, specs, files.store.url_of), 1))]
    preview, said = _preview(files, of, read, samples)
    counted = len(looked) == len(of.found)
    sizes = [sum(one.size for one in of.files_of(file)) for file in of.found]
    columns: Mapping[str, str] = next((one for one in read if one.samples), read[0]).spec["columns"]
    found = partial(groups_of_files, of, read if counted else None, files, question)
    tokens, missing = inspect_tokens(found, columns, question, files)
    raw_bytes, codecs = storage_of(read) if of.reader.row_groups else (None, ())
    return DatasetFacts(
        url=source.told if source.keys or source.given else files.store.url,
        format=name,
        indexed=False,
        files=sum(len(of.files_of(file)) for file in of.found),
        shards=sum(one.shards for one in read) if counted else None,
        samples=sum(one.samples for one in read) if counted else None,
        columns=tuple(ColumnFacts(column, kind, shape_of(kind)) for column, kind in columns.items()),
        stored_bytes=sum(sizes),
        raw_bytes=raw_bytes,
        compression=codecs,
        hashes=(),
        smallest_shard=min(sizes),
        largest_shard=max(sizes),
        notes=(*notes, *said, *missing),
        preview=tuple(preview),
        tokens=tokens,
    )


def _preview(
    files: FileReader, of: SeparateFiles, read: Sequence[UnindexedFile], samples: int
) -> tuple[list[Mapping[str, Shown]], list[str]]:
    """The first samples, and what hindered."""
    shown: list[Mapping[str, Shown]] = []
    notes: list[str] = []
    for one in read if samples else ():
        where = files.store.url_of(one.key)
        first = next(of.describe(one), None)
        if first is not None and not of.local and sum(file.bytes for file in first.stored) > LARGEST:
            return shown, [*notes, f"no samples are shown: the first shard of {where} would have to be fetched whole"]
        for info, data in of.fetch_shards(one):
            more, said = preview_files(info, data, samples - len(shown), where)
            shown += more
            notes += said
            if not more or len(shown) >= samples:
                return shown, notes
    return shown, notes


def _column(index: Index, name: str) -> ColumnFacts:
    """A column by the first shard's entry, as shards of one dataset nearly always agree."""
    specs = {id(one.spec): one.spec for one in index.shards}.values()
    kinds = list(dict.fromkeys(str(column_words(spec)[name]) for spec in specs))
    shape = shape_of(kinds[0]) if len(kinds) == 1 else None
    return ColumnFacts(name, " or ".join(kinds), shape)
