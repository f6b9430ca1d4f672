"""Sinks of tokens: Parquet files or MDS shards, in a directory or at a URL, none of which count before all are there."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from stoker.arguments import must_know
from stoker.errors import ConfigError, CorruptDataError, StokerError
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.facts import DOCUMENT_LENGTHS
from stoker.index.index import INDEX_NAME
from stoker.storage import Store, is_local
from stoker.storage.files.file_errors import file_errors
from stoker.storage.files.staged_file import StagedFile
from stoker.storage.job_record import (
    JobRecord,
    changed_files,
    other_job,
    read_record,
    remove_partial_files,
    write_record,
)
from stoker.storage.unfinished import MARK
from stoker.tokens.layouts.bin_packing import pack_documents
from stoker.tokens.layouts.pack import PackLayout
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.ragged import Ragged, gather_spans, offsets_of
from stoker.writing.base import FileSetWriter, WriterOptions
from stoker.writing.destination import OutPath, open_destination
from stoker.writing.parquet_writer import read_parquet_footer
from stoker.writing.shard_formats import MDSWriter

_RECORD: Final = ".stoker_tokenize.json"
"""Name of the job's record, which stays beside the tokens; hidden, so that nobody takes it for data."""
_BLOCKS: Final = "stoker.blocks"
"""Key of a Parquet file's metadata: how many blocks of text are in it."""
_CODECS: Final = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
# A window of documents that are packed together holds about so many tokens at most.
_MOST_PACKED: Final = 1 << 23
# Enough for a million ids: no tokenizer has more, and pages do not change their encoding in the middle of a file.
_DICTIONARY_BYTES: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class TokenColumn:
    """The column of tokens.

    Attributes:
        dtype: ``uint16`` or ``uint32``.
        compression: of the files; ``None`` for none.
        row_group_tokens: a Parquet row group ends with the document that makes it as large as that.
        file_tokens: a Parquet file ends with the block that makes it as large as that.
        about: what the tokens are; kept in each Parquet file's metadata under ``stoker``.
        packed: whether rows are several documents, whose lengths are a column beside the tokens.
    """

    name: str
    dtype: np.dtype[Any]
    compression: str | None
    row_group_tokens: int
    file_tokens: int
    about: Mapping[str, Any]
    packed: bool = False

    @property
    def kinds(self) -> dict[str, np.dtype[Any]]:
        """The dtype of each column, the tokens first."""
        lengths = {DOCUMENT_LENGTHS: np.dtype(np.int32)} if self.packed else {}
        return {self.name: self.dtype, **lengths}


def finished_before(store: Store, job: JobRecord, *, resume: bool, exist_ok: bool) -> tuple[int, int] | None:
    """Files and blocks of this job, where an earlier run has finished it; ``None`` where there is work to do.

    With ``resume``, what is done is taken for done; with ``exist_ok`` alone, it is to be done again, and replaced.
    """
    record = read_record(store, _RECORD)
    if record is None or record.done is None or not ("files" in record.done or store.exists(INDEX_NAME)):
        return None
    same = record.identity == job.identity
    if resume and same:
        remove_partial_files(store)
        return int(record.done.get("files") or _count_files(store)), int(record.done["blocks"])
    if resume:
        raise _other(
            record, job, f"{store.url} holds finished tokens", "write elsewhere, or replace them with exist_ok=True"
        )
    if same and not exist_ok:
        raise ConfigError(
            f"{store.url} holds the tokens of these files with these settings already. resume=True (--resume) keeps "
            "them, exist_ok=True (--exist-ok) makes them again"
        )
    return None


class RowPacker:
    """Packs documents into rows of at most ``row_tokens`` tokens, by best fit, some blocks of them at a time.

    A window ends with the block that makes it as large as a cell that the loaders' pack layout packs, but for very long rows.
    So memory is bounded, and where windows end depends on nothing but the documents since the last one.

    ``write``: is given the packed tokens, the lengths of the documents in each row, and the number of blocks.
    """

    def __init__(self, row_tokens: int, write: Callable[..., None]) -> None:
        self._settings = LMSettings(row_tokens, pad_id=0)
        self._least = max(row_tokens, min(PackLayout.rows_a_cell * row_tokens, _MOST_PACKED))
        self._write = write
        self._blocks: list[Ragged] = []
        self._tokens = 0
        self.rows = 0

    def add(self, documents: Ragged) -> None:
        """Add the documents of a block."""
        self._blocks.append(documents)
        self._tokens += documents.values.size
        if self._tokens >= self._least:
            self.end_window()

    def end_window(self) -> None:
        """Pack and write what was added since the last window."""
        if not self._blocks:
            return
        documents = Ragged.concat(self._blocks)
        packed = pack_documents(documents, self._settings, "split")
        offsets = offsets_of(packed.lengths)
        sources = documents.offsets[packed.documents] + packed.firsts
        values = gather_spans(documents.values, sources, packed.lengths, offsets[:-1], int(offsets[-1]))
        rows, lengths = Ragged(values, offsets[packed.bounds]), Ragged(packed.lengths, packed.bounds.astype(np.int64))
        self._write(rows, lengths, blocks=len(self._blocks))
        self.rows += len(rows)
        self._blocks, self._tokens = [], 0


class TokenSink:
    """A directory or URL that takes documents block by block, while it is used in a ``with`` statement.

    At the statement's end what was written counts. After an exception it does not, and what can be continued stays. Only what
    was written by the same job, settings and versions of the files of text, can be continued.

    ``writer``: of the files. ``resumed``: blocks that are stored already, and need not be tokenized again.
    """

    def __init__(
        self,
        store: Store,
        kind: type[TokenFileWriter | TokenShardWriter],
        column: TokenColumn,
        job: JobRecord,
        options: WriterOptions,
    ) -> None:
        self._store = store
        self._job = job
        self._lock = _lock(store)
        resume = options.get("resume", False)
        try:
            if resume:
                self._check_left()
                remove_partial_files(store)
            destination = open_destination(store.url, storage_options=options.get("storage_options"))
            destination.appends = False
            self.writer = kind(destination, column, options)
            self.resumed = self.writer.blocks
            write_record(store, _RECORD, job)  # before any file
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is not None:
                self.writer.abort()
                return
            self.writer.finish()
            write_record(self._store, _RECORD, replace(self._job, done=self.writer.done))
        finally:
            self._close()

    def _close(self) -> None:
        """Let others write there, and leave nothing where nothing was written."""
        with contextlib.suppress(StokerError):
            if all(item.key == _RECORD for item in self._store.list()):
                self._store.delete(_RECORD)
        if self._lock is not None:
            folder = is_local(self._store.url)
            with contextlib.suppress(OSError):
                (folder or Path()).rmdir()  # if it is empty
            os.close(self._lock)

    def _check_left(self) -> None:
        """Check that what is there is of the same job."""
        store, record = self._store, read_record(self._store, _RECORD)
        if record is not None and record.identity == self._job.identity:
            return  # also with the index there: then only the last notes are missing
        if store.exists(INDEX_NAME):
            raise ConfigError(f"{store.url} holds a finished dataset: there is nothing to resume")
        there = next((item.key for item in store.list() if item.key != _RECORD), None)
        if there is None:
            return
        remedy = (
            "resume with the same settings, or start again with exist_ok=True (--exist-ok). Nothing was overwritten"
        )
        if record is None:
            raise ConfigError(f"{store.url} holds {there!r}, which is not from a tokenization: {remedy}")
        raise _other(record, self._job, f"{store.url} holds unfinished tokens", remedy)


def _other(record: JobRecord, job: JobRecord, what: str, remedy: str) -> ConfigError:
    changed = changed_files(record.about.get("files", {}), job.about["files"])
    return other_job(record, job.about, what, remedy, changed)


class TokenShardWriter(MDSWriter):
    """Writes MDS shards of columns of arrays. One that resumes is given all again, and stores what is not stored yet."""

    blocks = 0

    def __init__(self, out: OutPath, column: TokenColumn, options: WriterOptions) -> None:
        self._column = column
        given: WriterOptions = {**options, "compression": column.compression}
        super().__init__({name: f"ndarray:{kind.name}" for name, kind in column.kinds.items()}, out, **given)
        self._skip = self.samples_written
        self._seen = 0

    @property
    def files(self) -> int:
        """Number of files that are there."""
        return _count_files(self._destination.main)

    @property
    def done(self) -> dict[str, int]:
        """Counts for the record of the finished job."""
        return {"blocks": self._seen}

    def write_block(self, *columns: Ragged, blocks: int = 1) -> None:
        """Add the rows of some blocks: the tokens, and beside packed ones the documents' lengths; none is empty."""
        self._seen += blocks
        skipped = min(self._skip, len(columns[0]))
        self._skip -= skipped
        batch = {}
        for (name, kind), column in zip(self._column.kinds.items(), columns, strict=True):
            values, offsets = column.values.astype(kind, copy=False), column.offsets.tolist()
            batch[name] = [values[a:b] for a, b in zip(offsets[skipped:], offsets[skipped + 1 :], strict=False)]
        if skipped < len(columns[0]):
            self.write_batch(batch)


class TokenFileWriter(FileSetWriter):
    """Writes Parquet files ``tokens-00000.parquet``, ... of a column of lists of unsigned integers without nulls, and where
    rows are packed one of the lengths of their documents.

    They are fast to read: row groups of a given number of tokens, whose statistics say how many there are; plain pages where
    they are not compressed, and otherwise numbers of dictionary entries, which take half the space of ids, and less time to
    decompress. What is counted as its samples are blocks of text.

    ``blocks``: that were stored before. A file in which all is as before is not made again.
    """

    stem = "tokens"
    ends = (".parquet",)

    def __init__(self, out: OutPath, column: TokenColumn, options: WriterOptions) -> None:
        pa = pyarrow()
        self._compression = column.compression or "none"
        must_know("compression", [self._compression], _CODECS)
        self._column = column
        kinds = {name: pa.from_numpy_dtype(kind) for name, kind in column.kinds.items()}
        lists = {name: pa.list_(pa.field("element", kind, nullable=False)) for name, kind in kinds.items()}
        metadata = {"stoker": json.dumps(dict(column.about), sort_keys=True)}
        fields = [pa.field(name, kind, nullable=False) for name, kind in lists.items()]
        self._schema = pa.schema(fields, metadata=metadata)
        identity = {"column": column.name, "dtype": column.dtype.name}
        super().__init__(out, None, identity, {**options, "max_workers": 1}, column.compression)
        self.blocks = self._samples
        self._file: StagedFile | None = None
        self._parquet: Any = None
        self._waiting: list[list[Ragged]] = [[] for _ in fields]
        self._tokens = 0  # that wait
        self._file_tokens = self._file_blocks = 0

    @property
    def files(self) -> int:
        """Number of files that were ended."""
        return self._number

    @property
    def done(self) -> dict[str, int]:
        """Counts for the record of the finished job."""
        return {"files": self._number, "blocks": self._samples}

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a document, as a block of its own: the column's name to its tokens."""
        self.write_batch({name: [value] for name, value in sample.items()})

    def write_batch(self, columns: Mapping[str, Any]) -> None:
        """Add documents, as a block: the column's name to a list of arrays."""
        self.write_block(Ragged.of([np.asarray(row) for row in columns[self._column.name]]))

    def write_block(self, *columns: Ragged, blocks: int = 1) -> None:
        """Add the rows of some blocks: the tokens, and beside packed ones the documents' lengths; none is empty."""
        self._check_open()
        row_group, file = self._column.row_group_tokens, self._column.file_tokens
        self._samples += blocks
        self._file_blocks += blocks
        first, documents = 0, columns[0]
        ends = np.cumsum(documents.lengths)
        while first < len(documents):
            before = int(ends[first - 1]) if first else 0
            stop = min(int(np.searchsorted(ends, before + row_group - self._tokens)) + 1, len(documents))
            for waiting, column in zip(self._waiting, columns, strict=True):
                waiting.append(column[first:stop])
            self._tokens += int(ends[stop - 1]) - before
            first = stop
            if self._tokens >= row_group:
                self._flush()
        if self._file_tokens + self._tokens >= file:
            self._end_file(empty=False)

    def abort(self) -> None:
        if self._file is not None:
            with contextlib.suppress(Exception):
                self._parquet.close()
            self._file.discard()
            self._file = None
        super().abort()

    def _flush(self) -> None:
        """Write what waits as a row group."""
        pa, pq = pyarrow(), pyarrow("parquet")
        with file_errors(self._destination.main.url):
            if self._file is None:
                self._file = self._destination.stage_file(self._files.name(self._number, ".parquet"))
                self._parquet = pq.ParquetWriter(
                    self._file.file,
                    self._schema,
                    use_dictionary=self._compression != "none",
                    dictionary_pagesize_limit=_DICTIONARY_BYTES,
                    write_statistics=True,
                    compression=self._compression,
                )
            if not self._waiting[0]:
                return
            lists = []
            for waiting, kind, field in zip(self._waiting, self._column.kinds.values(), self._schema, strict=True):
                rows = Ragged.concat(waiting)
                values = pa.array(rows.values.astype(kind, copy=False))
                lists.append(pa.ListArray.from_arrays(pa.array(rows.offsets.astype(np.int32)), values, type=field.type))
            table = pa.Table.from_arrays(lists, schema=self._schema)
            self._parquet.write_table(table, row_group_size=max(len(table), 1))
        self._file_tokens += self._tokens
        self._waiting, self._tokens = [[] for _ in lists], 0

    def _end_file(self, *, empty: bool) -> None:
        if self._waiting[0] or empty:
            self._flush()
        if self._file is None:
            return
        with file_errors(self._destination.main.url):
            self._parquet.add_key_value_metadata({_BLOCKS: str(self._file_blocks)})
            self._parquet.close()
        file, self._file, self._parquet = self._file, None, None
        self._put([file], self._file_blocks)
        self._file_tokens = self._file_blocks = 0

    def _look(self, store: Store, key: str, sizes: Mapping[str, int]) -> tuple[int, Mapping[str, Any]]:
        found = read_parquet_footer(store, key, sizes[".parquet"])
        field = found.schema_arrow.field(0)
        blocks = (found.metadata.metadata or {}).get(_BLOCKS.encode(), b"")
        if not blocks.isdigit():
            raise CorruptDataError(f"{store.url_of(key)}: it does not say how many blocks of text are in it")
        dtype = np.dtype(field.type.value_type.to_pandas_dtype()).name
        return int(blocks), {"column": field.name, "dtype": dtype}


def _count_files(store: Store) -> int:
    return sum(item.key not in (INDEX_NAME, MARK) and not item.key.startswith(".") for item in store.list())


def _lock(store: Store) -> int | None:
    """Keep other processes from writing into a local directory, where its file system can do that."""
    folder = is_local(store.url)
    if folder is None:
        return None
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is not a directory: the tokens' files go into one")
    with file_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(f"another process is writing {folder}: wait for it, or write elsewhere") from None
    except OSError:  # network file systems without locks
        pass
    return lock
