"""Where tokens go: Parquet files or MDS shards, none of which looks whole before all of them are."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stoker.dataset.index import INDEX_NAME
from stoker.dataset.writers import MDSWriter
from stoker.errors import ConfigError
from stoker.storage import is_local, open_store
from stoker.tokens.ragged import Ragged

__all__ = ["MDSSink", "ParquetSink", "Sink"]

_PROGRESS = "progress.json"
_LOCK = ".lock"
# Room for a million ids: no tokenizer has more, and pages do not change their encoding in the middle of a file.
_DICTIONARY_BYTES = 1 << 22


class Sink(Protocol):
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
        identity: what the blocks depend on; only what was written with the same can be gone on from.
        resume: go on from what a killed run left.
        exist_ok: replace Parquet files that are there.

    Raises:
        ConfigError: the directory has files, another run writes it, or ``resume`` finds what others left.
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
        identity: str,
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
        _check_target(self._target, exist_ok)
        values = pa.field("element", pa.from_numpy_dtype(dtype), nullable=False)
        self._type = pa.list_(values)
        metadata = {"stoker": json.dumps(dict(about), sort_keys=True)}
        self._schema = pa.schema([pa.field(column, self._type, nullable=False)], metadata=metadata)
        self._dtype = dtype
        self._compression = compression or "none"
        self._limits = row_group_tokens, file_tokens
        self._identity = identity
        self._writer: Any = None
        self._waiting: list[Ragged] = []
        self._tokens = 0  # that wait
        self._file_tokens = 0
        self._seen = 0
        self._done: list[str] = []
        self.blocks = 0
        self._work = self._target.with_name(f".{self._target.name}.partial")
        self._lock = self._open_work(resume)

    @property
    def files(self) -> int:
        """Number of files written."""
        return len(self._done)

    def write(self, documents: Ragged) -> None:
        """Take the documents of the next block."""
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
        """Give the directory its name."""
        if self._tokens or self._writer is not None or not self._done:
            self._close_file(empty=not self._done)
        for name in (_PROGRESS, _LOCK):
            (self._work / name).unlink(missing_ok=True)
        old = self._target.with_name(f".{self._target.name}.replaced")
        if self._target.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.rename(self._target, old)
        os.rename(self._work, self._target)
        shutil.rmtree(old, ignore_errors=True)
        os.close(self._lock)

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
        self._work.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._work / _LOCK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise ConfigError(f"another process is writing {self._target}: wait for it, or write elsewhere") from None
        note = self._work / _PROGRESS
        if resume and note.exists():
            state = json.loads(note.read_text(encoding="utf-8"))
            if state["identity"] != self._identity:
                os.close(lock)
                raise ConfigError(
                    f"{self._work} was left by a run over other files or with other settings: resume with the same, or "
                    "without resume=True, which begins anew"
                )
            self._done = list(state["files"])
            self.blocks = self._seen = int(state["blocks"])
        for path in self._work.iterdir():
            if path.name not in (*self._done, _LOCK, _PROGRESS):
                path.unlink()
        if not self._done:
            note.unlink(missing_ok=True)
        return lock

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
        state = {"identity": self._identity, "files": self._done, "blocks": self._seen}
        fresh = self._work / f".{_PROGRESS}"
        fresh.write_text(json.dumps(state), encoding="utf-8")
        os.replace(fresh, self._work / _PROGRESS)


class MDSSink:
    """MDS shards with one column of arrays. The index, without which nobody reads them, comes last.

    A run that goes on tokenizes all again, and stores what is not stored yet.

    Args:
        dst: a directory or a URL.
        column: name of the column.
        dtype: ``uint16`` or ``uint32``.
        compression: as :class:`~stoker.MDSWriter` takes it.
        resume: go on from what a killed run left.
        exist_ok: replace the dataset that is there.
    """

    def __init__(
        self, dst: str, *, column: str, dtype: np.dtype[Any], compression: str | None, resume: bool, exist_ok: bool
    ) -> None:
        self._dst = dst
        if resume and open_store(dst).exists(INDEX_NAME):
            raise ConfigError(f"{dst} holds a finished dataset: there is nothing to resume")
        self._column = column
        self._writer = MDSWriter(
            {column: f"ndarray:{dtype.name}"}, dst, compression=compression, resume=resume, exist_ok=exist_ok
        )
        self._skip = self._writer.samples_written
        self._dtype = dtype
        self.blocks = 0
        self._files = 0

    @property
    def files(self) -> int:
        """Number of shards written; known in the end."""
        return self._files

    def write(self, documents: Ragged) -> None:
        """Take the documents of the next block."""
        skipped = min(self._skip, len(documents))
        self._skip -= skipped
        values, offsets = documents.values.astype(self._dtype, copy=False), documents.offsets.tolist()
        rows = [values[a:b] for a, b in zip(offsets[skipped:], offsets[skipped + 1 :], strict=False)]
        if rows:
            self._writer.write_batch({self._column: rows})

    def finish(self) -> None:
        """Write the index."""
        self._writer.finish()
        self._files = sum(item.key != INDEX_NAME for item in open_store(self._dst).list())

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
    others = [name for name in there if not name.endswith(".parquet")]
    if others:
        raise ConfigError(f"{target} holds {others[0]!r} beside Parquet files: write elsewhere, or remove it")
