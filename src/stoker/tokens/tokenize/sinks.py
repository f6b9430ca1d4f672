"""Where tokens go: Parquet files or MDS shards, none of which looks whole before all of them are."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stoker.arguments import unknown_name
from stoker.errors import ConfigError, CorruptDataError, SourceChangedError
from stoker.index.index import INDEX_NAME
from stoker.storage import Store, is_local, open_store
from stoker.storage.files import make_own_directory, open_own
from stoker.storage.job_record import JobRecord, changed_files, read_record, remove_partial_files, write_record
from stoker.storage.local import file_errors
from stoker.tokens.sources.ragged import Ragged
from stoker.writing.shard_formats import MDSWriter

__all__ = ["MDSSink", "ParquetSink", "TokenSink", "finished_before"]

_RECORD = ".stoker_tokenize.json"
"""Name of the job's record, which stays beside the tokens; hidden, so that nobody takes it for data."""
_PROGRESS = "progress.json"
_LOCK = ".lock"
_CODECS = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
# Room for a million ids: no tokenizer has more, and pages do not change their encoding in the middle of a file.
_DICTIONARY_BYTES = 1 << 22


def finished_before(dst: str, job: JobRecord, *, resume: bool, exist_ok: bool) -> tuple[int, int] | None:
    """Files and blocks of this job, where an earlier run has finished it; ``None`` where there is work to do.

    Args:
        dst: where the tokens go.
        job: settings, and versions of the files of text.
        resume: take what is done for done.
        exist_ok: without ``resume``: it is to be done again, and replaced.

    Raises:
        ConfigError: the job, or with ``resume`` another one, is done there.
        SourceChangedError: it was done of files that were changed since.
    """
    store = open_store(dst)
    record = read_record(store, _RECORD)
    # Of MDS the index comes last, of Parquet the directory's name.
    if record is None or record.done is None or not ("files" in record.done or store.exists(INDEX_NAME)):
        return None
    same = record.identity == job.identity
    if resume and same:
        remove_partial_files(store)
        return int(record.done.get("files") or _count_shards(dst)), int(record.done["blocks"])
    if resume:
        raise _other(
            record, job, f"{store.url} holds finished tokens", "write elsewhere, or replace them with exist_ok=True"
        )
    if same and not exist_ok:
        raise ConfigError(
            f"{store.url} holds the tokens of these files with these settings: it is done. resume=True (--resume) takes it "
            "for that, exist_ok=True (--exist-ok) does it again"
        )
    return None


def _other(record: JobRecord, job: JobRecord, what: str, remedy: str) -> ConfigError:
    """The error for what another job has left, with what differs."""
    files = changed_files(record.about.get("files", {}), job.about["files"])
    names = [name for name in record.differences(job.about) if name != "files"]
    told = [f"{name} was {record.about.get(name)!r}, is {job.about[name]!r}" for name in names]
    told += [f"files were changed since: {files}"] if files else []
    error = SourceChangedError if files else ConfigError
    return error(f"{what} of other files or with other settings ({'; '.join(told)}): {remedy}")


def _count_shards(dst: str) -> int:
    return sum(item.key != INDEX_NAME and not item.key.startswith(".") for item in open_store(dst).list())


class TokenSink(Protocol):
    """Takes documents block by block.

    Attributes:
        blocks: that are stored already, and need not be tokenized again.
        files: number of files written.
    """

    blocks: int

    @property
    def files(self) -> int: ...

    def write(self, documents: Ragged) -> None:
        """Take the documents of the next block; none of them is empty."""

    def finish(self) -> None:
        """Make what was written appear."""

    def abort(self) -> None:
        """Stop; what can be gone on from stays, hidden."""


class ParquetSink:
    """Parquet files ``tokens-00000.parquet``, ... of one column, a list of unsigned integers without nulls.

    They are fast to read: row groups of a given number of tokens, whose statistics say how many there are; plain pages where
    they are not compressed, and otherwise numbers of dictionary entries, which take half the room of ids, and less time to
    decompress. All are written into ``.NAME.partial`` beside the directory, which takes the directory's place in the end.
    Whenever a file is complete, it is noted there how far we are.

    Args:
        dst: the directory.
        column: name of the column.
        dtype: ``uint16`` or ``uint32``.
        compression: ``"zstd"``, ``"snappy"``, ``"lz4"``, or ``None``.
        row_group_tokens: a row group ends with the document that makes it as large as that.
        file_tokens: a file ends with the block that makes it as large as that.
        about: what the tokens are, kept in each file's metadata under ``stoker``.
        job: settings, and versions of the files of text; only what was written with the same can be gone on from.
        resume: go on from what a killed run left.
        exist_ok: replace Parquet files that are there.

    Raises:
        ConfigError: the directory has files, another run writes it, or ``resume`` finds what others left.
        SourceChangedError: ``resume`` finds what was made of files that were changed since; names them.
        StorageError: it can not be written.
    """

    def __init__(
        self,
        dst: str,
        *,
        column: str,
        dtype: np.dtype[Any],
        compression: str | None,
        row_group_tokens: int,
        file_tokens: int,
        about: Mapping[str, Any],
        job: JobRecord,
        resume: bool,
        exist_ok: bool,
    ) -> None:
        import pyarrow as pa

        local = is_local(dst)
        if local is None:
            raise ConfigError(
                f"{dst}: Parquet is written to a directory; copy it then, or write MDS, which goes to a URL"
            )
        self._target = Path(os.path.abspath(local))
        with file_errors(self._target):
            _check_target(self._target, exist_ok)
        values = pa.field("element", pa.from_numpy_dtype(dtype), nullable=False)
        self._type = pa.list_(values)
        metadata = {"stoker": json.dumps(dict(about), sort_keys=True)}
        self._schema = pa.schema([pa.field(column, self._type, nullable=False)], metadata=metadata)
        self._dtype = dtype
        self._compression = compression or "none"
        if self._compression not in _CODECS:
            raise ConfigError(unknown_name("compression", compression, _CODECS))
        self._limits = row_group_tokens, file_tokens
        self._job = job
        self._writer: Any = None
        self._waiting: list[Ragged] = []
        self._tokens = 0  # that wait
        self._file_tokens = 0
        self._seen = 0
        self._done: list[str] = []
        self.blocks = 0
        self._work = self._target.with_name(f".{self._target.name}.partial")
        with file_errors(self._work):
            self._lock = self._open_work(resume)

    @property
    def files(self) -> int:
        """Number of files written."""
        return len(self._done)

    def write(self, documents: Ragged) -> None:
        """Take the documents of the next block.

        Raises:
            StorageError: they can not be written, as the disk is full, say.
        """
        with file_errors(self._work):
            self._write(documents)

    def _write(self, documents: Ragged) -> None:
        row_group, file = self._limits
        self._seen += 1
        first = 0
        ends = np.cumsum(documents.lengths)
        while first < len(documents):
            before = int(ends[first - 1]) if first else 0
            stop = min(int(np.searchsorted(ends, before + row_group - self._tokens)) + 1, len(documents))
            self._waiting.append(documents[first:stop])
            self._tokens += int(ends[stop - 1]) - before
            first = stop
            if self._tokens >= row_group:
                self._flush()
        if self._file_tokens + self._tokens >= file:
            self._close_file()

    def finish(self) -> None:
        """Give the directory its name.

        Raises:
            StorageError: it can not be written.
        """
        with file_errors(self._work):
            self._finish()
        os.close(self._lock)

    def _finish(self) -> None:
        if self._tokens or self._writer is not None or not self._done:
            self._close_file(empty=not self._done)
        done = {"files": len(self._done), "blocks": self._seen}
        write_record(open_store(self._work), _RECORD, replace(self._job, done=done))
        for name in (_PROGRESS, _LOCK):
            (self._work / name).unlink(missing_ok=True)
        old = self._target.with_name(f".{self._target.name}.replaced")
        if self._target.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.rename(self._target, old)
        os.rename(self._work, self._target)
        shutil.rmtree(old, ignore_errors=True)

    def abort(self) -> None:
        """Leave complete files and the note of how far we are."""
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.close()
            self._writer = None
            self._temporary.unlink(missing_ok=True)
        if not self._done:
            shutil.rmtree(self._work, ignore_errors=True)
        os.close(self._lock)

    @property
    def _temporary(self) -> Path:
        return self._work / ".unfinished"

    def _open_work(self, resume: bool) -> int:
        make_own_directory(self._work)
        lock = open_own(self._work / _LOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise ConfigError(f"another process is writing {self._target}: wait for it, or write elsewhere") from None
        try:
            self._go_on(resume)
        except BaseException:
            os.close(lock)
            raise
        return lock

    def _go_on(self, resume: bool) -> None:
        """Take what a killed run left for done, and remove what is not of use."""
        note = self._work / _PROGRESS
        record = read_record(open_store(self._work), _RECORD) if resume else None
        if record is not None and note.exists():
            state = _read_progress(note)
            if record.identity != self._job.identity and state["files"]:
                raise _other(
                    record,
                    self._job,
                    f"{self._work} holds unfinished tokens",
                    "resume with the same, or begin anew without resume=True (--resume). Nothing was overwritten",
                )
            if record.identity == self._job.identity:
                self._done = list(state["files"])
                self.blocks = self._seen = int(state["blocks"])
        for path in self._work.iterdir():
            if path.name not in (*self._done, _LOCK, _PROGRESS):
                path.unlink()
        if not self._done:
            note.unlink(missing_ok=True)
        write_record(open_store(self._work), _RECORD, self._job)

    def _flush(self) -> None:
        """Write what waits as a row group."""
        import pyarrow as pa

        if self._writer is None:
            self._open_file()
        documents = Ragged.concat(self._waiting)
        values = pa.array(documents.values.astype(self._dtype, copy=False))
        offsets = pa.array(documents.offsets.astype(np.int32))
        lists = pa.ListArray.from_arrays(offsets, values, type=self._type)
        self._writer.write_table(pa.Table.from_arrays([lists], schema=self._schema), row_group_size=max(len(lists), 1))
        self._file_tokens += self._tokens
        self._waiting, self._tokens = [], 0

    def _open_file(self) -> None:
        import pyarrow.parquet as pq

        self._writer = pq.ParquetWriter(
            self._temporary,
            self._schema,
            use_dictionary=self._compression != "none",
            dictionary_pagesize_limit=_DICTIONARY_BYTES,
            write_statistics=True,
            compression=self._compression,
        )

    def _close_file(self, *, empty: bool = False) -> None:
        if self._waiting:
            self._flush()
        if self._writer is None:
            if not empty:
                return
            self._open_file()
        self._writer.close()
        self._writer = None
        name = f"tokens-{len(self._done):05}.parquet"
        with open(self._temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(self._temporary, self._work / name)
        self._done.append(name)
        self._file_tokens = 0
        state = {"files": self._done, "blocks": self._seen}
        fresh = self._work / f".{_PROGRESS}"
        with open(open_own(fresh, os.O_TRUNC), "w", encoding="utf-8") as note:
            json.dump(state, note)
        os.replace(fresh, self._work / _PROGRESS)


class MDSSink:
    """MDS shards with one column of arrays. The index, without which nobody reads them, comes last.

    A run that goes on tokenizes all again, and stores what is not stored yet.

    Args:
        dst: a directory or a URL.
        column: name of the column.
        dtype: ``uint16`` or ``uint32``.
        compression: as :class:`~stoker.MDSWriter` takes it.
        job: settings, and versions of the files of text; only what was written with the same can be gone on from.
        resume: go on from what a killed run left.
        exist_ok: replace the dataset that is there.

    Raises:
        ConfigError: there is a dataset, or ``resume`` finds what others left.
        SourceChangedError: ``resume`` finds what was made of files that were changed since; names them.
    """

    def __init__(
        self,
        dst: str,
        *,
        column: str,
        dtype: np.dtype[Any],
        compression: str | None,
        job: JobRecord,
        resume: bool,
        exist_ok: bool,
    ) -> None:
        self._dst = dst
        self._job = job
        store = open_store(dst)
        if resume:
            if store.exists(INDEX_NAME) and not exist_ok:
                raise ConfigError(f"{dst} holds a finished dataset: there is nothing to resume")
            self._check_left(store)
        self._column = column
        self._writer = MDSWriter(
            {column: f"ndarray:{dtype.name}"}, dst, compression=compression, resume=resume, exist_ok=exist_ok
        )
        write_record(store, _RECORD, job)  # before any shard
        self._skip = self._writer.samples_written
        self._dtype = dtype
        self.blocks = self._seen = 0
        self._files = 0

    def _check_left(self, store: Store) -> None:
        """See that what is there is of the same job."""
        record = read_record(store, _RECORD)
        if record is not None and record.identity == self._job.identity:
            return
        there = next((item.key for item in store.list() if item.key != _RECORD), None)
        if there is None:
            return
        remedy = "resume with the same, or begin anew with exist_ok=True (--exist-ok). Nothing was overwritten"
        if record is None:
            raise ConfigError(f"{self._dst} holds {there!r}, which no tokenization left there: {remedy}")
        raise _other(record, self._job, f"{self._dst} holds unfinished tokens", remedy)

    @property
    def files(self) -> int:
        """Number of shards written; known in the end."""
        return self._files

    def write(self, documents: Ragged) -> None:
        """Take the documents of the next block."""
        self._seen += 1
        skipped = min(self._skip, len(documents))
        self._skip -= skipped
        values, offsets = documents.values.astype(self._dtype, copy=False), documents.offsets.tolist()
        rows = [values[a:b] for a, b in zip(offsets[skipped:], offsets[skipped + 1 :], strict=False)]
        if rows:
            self._writer.write_batch({self._column: rows})

    def finish(self) -> None:
        """Write the index."""
        write_record(open_store(self._dst), _RECORD, replace(self._job, done={"blocks": self._seen}))
        self._writer.finish()
        self._files = _count_shards(self._dst)

    def abort(self) -> None:
        """Write no index."""
        self._writer.abort()


def _check_target(target: Path, exist_ok: bool) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise ConfigError(f"{target} is not a directory: the tokens' files go into one")
    there = sorted(path.name for path in target.iterdir())
    if not there:
        return
    if not exist_ok:
        raise ConfigError(f"{target} is not empty: write elsewhere, or pass exist_ok=True to replace its Parquet files")
    others = [name for name in there if not name.endswith(".parquet") and name != _RECORD]
    if others:
        raise ConfigError(f"{target} holds {others[0]!r} beside Parquet files: write elsewhere, or remove it")


def _read_progress(note: Path) -> dict[str, Any]:
    """What of the work is done: names of files, and how many blocks are in them."""
    try:
        state = json.loads(note.read_text(encoding="utf-8"))
        if all(isinstance(name, str) for name in state["files"]) and isinstance(state["blocks"], int):
            return dict(state)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise CorruptDataError(f"{note} is damaged: begin anew without resume=True (--resume)")
