"""The bases of all writers: their options, their upload threads, how their output begins and ends, and numbered files."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypedDict

from stoker.arguments import at_least
from stoker.concurrency.forks import ProcessLocal
from stoker.digests import check_hash_name
from stoker.errors import ConfigError, FormatError
from stoker.formats.common.checks import MAX_OFFSET
from stoker.formats.common.compression import parse_compression
from stoker.formats.mds.encodings import get_encoding
from stoker.storage import Store
from stoker.storage.files.staged_file import StagedFile
from stoker.storage.types import PutData
from stoker.types import StorageOptions
from stoker.units import parse_bytes
from stoker.writing.destination import OutPath, open_destination
from stoker.writing.output_files import NumberedFiles, OutputFiles
from stoker.writing.progress import ProgressBar

_DEFAULT_THREADS: Final = 3
_DEFAULT_HASHES: Final = ("xxh3_64",)
_FORKED: Final = "that of the process from which this one was forked"


class WriterOptions(TypedDict, total=False):
    """Options of all writers, next to the columns and the destination.

    Attributes:
        keep_local: with a directory and a remote, keep the files in the directory, too. Without it they go to the
            remote straight from memory, and the directory is not touched.
        compression: ``"zstd"``, ``"br"``, ``"gz"``, ``"bz2"``, ``"snappy"``, with a level after a colon
            (``"zstd:7"``); default none.
        hashes: name or names of hashes of every file to put in the index (``"sha1"``, ``"xxh3_64"``, ...); default
            ``"xxh3_64"``, by which readers find damage, and notice a dataset that was rewritten. ``()`` for none.
        size_limit: most raw bytes of a shard, as a number or like ``"64MB"`` (the default). ``None`` sets no limit
            but the format's own of 4 GiB. A shard holds at least one sample, however large.
        progress_bar: show on the terminal how many samples, shards and bytes are stored.
        max_workers: threads that compress, hash and store shards, default 3. Each holds one shard in memory.
        retry: minutes in which a failed request is tried again; 0: never.
        exist_ok: replace the dataset that is there. Its index is removed first, then its shards.
        append: add to the dataset that is there; without one, begin it.
        resume: continue where a killed writer of the same settings stopped; see ``samples_written``.
        storage_options: credentials and settings of the remote, by obstore's names.
    """

    keep_local: bool
    compression: str | None
    hashes: str | Sequence[str] | None
    size_limit: int | str | None
    progress_bar: bool
    max_workers: int | None
    retry: int
    exist_ok: bool
    append: bool
    resume: bool
    storage_options: StorageOptions | None


class UploadPool:
    """Threads that store files.

    ``threads`` files are stored at once, and ``waiting`` more may wait; ``on_failed`` is called from a thread that failed,
    after ``error`` is set.

    ``error``: what the first file that could not be stored failed with.
    """

    def __init__(self, threads: int, waiting: int, on_failed: Callable[[], None] | None = None) -> None:
        self.error: BaseException | None = None
        self._on_failed = on_failed
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stoker-write")
        self._slots = threading.Semaphore(threads + waiting)

    def submit(self, action: Callable[[], None]) -> None:
        """Have a file stored, once no more than so many wait. Does nothing after an error."""
        self._slots.acquire()
        self._pool.submit(self._do, action).add_done_callback(self._done)

    def check(self) -> None:
        """Raise what storing an earlier file failed with."""
        if self.error is not None:
            raise self.error

    def finish(self) -> None:
        """Wait for all files.

        Raises what storing one failed with.
        """
        self._pool.shutdown()
        self.check()

    def cancel(self) -> None:
        """Store none that waits, and wait for the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _do(self, action: Callable[[], None]) -> None:
        if self.error is None:
            action()

    def _done(self, future: Future[None]) -> None:
        self._slots.release()
        if not future.cancelled() and (error := future.exception()) is not None:
            self.error = self.error or error
            if self._on_failed is not None:
                self._on_failed()


class _WriterState(ProcessLocal):
    """Of one process: a forked child may not go on, as the threads that store, and what they store, are the parent's.

    ``closed``: how the writer was closed; ``None`` while it is open. ``stopped``: whether that is to be looked at, or how
    storing goes.
    """

    def __init__(self) -> None:
        self.closed: str | None = _FORKED
        self.stopped = True


class Writer(ABC):
    """A writer of a dataset. Use it in a ``with`` statement.

    At the end of the statement the output is finished; after an exception it is aborted. Until it is finished it does not
    count (see :mod:`stoker.writing.destination`), and a writer with ``resume=True`` continues it.

    Args:
        out: a directory, a URL, or a ``(directory, URL)`` pair.
        remote: a URL to upload to, where ``out`` is a directory.
        files: the files of this kind of writer.
        options: see :class:`WriterOptions`.
        waiting: how many files may wait for each upload thread.
        on_failed: called from a thread when an upload has failed.

    Attributes:
        indexed: whether the dataset has an ``index.json``. Else its files are found by listing them.
        numbers_samples: whether the writer takes ``first``, the number of its first sample.
        required: what it must be told beside columns and destination.

    Raises:
        ConfigError: an argument makes no sense, or what is at the destination is in the way; says what to do.
    """

    indexed: ClassVar[bool] = True
    numbers_samples: ClassVar[bool] = False
    required: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        out: OutPath,
        remote: str | os.PathLike[str] | None,
        files: OutputFiles,
        options: WriterOptions,
        *,
        waiting: int = 0,
        on_failed: Callable[[], None] | None = None,
    ) -> None:
        given = options.get("max_workers")
        threads = _DEFAULT_THREADS if given is None else given
        at_least(1, max_workers=threads)
        self._state = _WriterState()
        self._destination = open_destination(
            out, remote, options.get("keep_local", False), options.get("storage_options"), options.get("retry", 5)
        )
        self._begun = self._destination.begin(
            files,
            append=options.get("append", False),
            resume=options.get("resume", False),
            exist_ok=options.get("exist_ok", False),
        )
        self._progress: ProgressBar | None = None
        if options.get("progress_bar"):
            self._progress = ProgressBar(
                self._destination.main.url, None, "bytes", counts=("samples", "shards")
            ).start()
        self._uploads = UploadPool(threads, threads * waiting, on_failed)
        self._state.closed, self._state.stopped = None, False

    @classmethod
    def check_compression(cls, compression: str | None) -> None:
        """Check that files can be compressed so, before a writer is made.

        Raises:
            ConfigError: they can not.
        """
        if compression is not None:
            try:
                parse_compression(compression)
            except FormatError as error:
                raise ConfigError(str(error)) from None

    @classmethod  # noqa: B027 - most formats hold any columns together
    def check_columns(cls, columns: Mapping[str, str]) -> None:
        """Check that the format can hold these columns together, before a writer is made.

        Raises:
            ConfigError: it can not.
        """

    @property
    @abstractmethod
    def samples_written(self) -> int:
        """Samples in the dataset so far, with those that were there at the start.

        Right after construction with ``resume=True`` it tells how many samples of the source to skip.
        """

    @abstractmethod
    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a sample: column name to value. Keys that are not columns are ignored.

        The values are copied before this returns.

        Raises:
            EncodingError: a column is missing or a value does not fit; names the column, the sample and what was
                expected. Nothing of the sample is written, and the next may follow.
            ConfigError: the writer is closed.
            StorageError: storing an earlier file failed.
        """

    @abstractmethod
    def write_batch(self, columns: Mapping[str, Any]) -> None:
        """Add n samples given as columns: arrays of shape ``(n, ...)`` or lists of n values.

        Raises:
            EncodingError: as for :meth:`write`; also if columns differ in length.
        """

    @abstractmethod
    def end_shard(self) -> None:
        """End the shard, or the file, with the last sample that was added: the next one begins another."""

    def flush_shard(self) -> None:
        """The same as :meth:`end_shard`."""
        self.end_shard()

    @abstractmethod
    def _end(self) -> None:
        """Hand what waits to the uploads."""

    def _index(self) -> bytes | None:
        """The index, once all files are stored, for formats that have one."""
        return None

    def finish(self) -> None:
        """Store what is left, wait for all files, then make them count: write the index, where the format has one.

        Raises:
            StorageError: a file could not be stored. Then the output does not count, and a new writer can ``resume``.
            ConfigError: the writer is closed already.
        """
        self._check_open()
        try:
            self._end()
            self._uploads.finish()
            self._destination.commit(self._index())
        except BaseException:
            self.abort()
            raise
        self._close("finished")

    def abort(self) -> None:
        """Stop. Files that are stored stay, and do not count, for a writer with ``resume=True``."""
        if self._state.closed is None:
            self._uploads.cancel()
            self._destination.abort()
            self._close("aborted")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abort()
        elif self._state.closed is None:
            self.finish()

    def _stored(self, samples: int, size: int) -> None:
        """Show that a file is stored."""
        if self._progress is not None:
            self._progress.advance(size, samples=samples, shards=1)

    def _check_open(self) -> None:
        """See that the writer is open, and that storing earlier files did not fail."""
        closed = self._state.closed
        if closed is None:
            self._uploads.check()
            return
        remedy = "make a new one, with append=True to add to its dataset"
        if closed == _FORKED:
            remedy = "have one writer in each process, each with its own directory"
        raise ConfigError(f"this writer is {closed}: {remedy}")

    def _close(self, how: str) -> None:
        self._state.closed = how
        if self._progress is not None:
            self._progress.stop()


def check_encoding(column: str, encoding: str) -> None:
    """Check that a column's encoding exists."""
    try:
        get_encoding(encoding)
    except FormatError as error:
        raise ConfigError(f"column {column!r}: {error}") from None


def check_hash_names(hashes: str | Sequence[str] | None) -> list[str]:
    """Names of hashes, sorted, each once; those of the default for ``None``."""
    names = _DEFAULT_HASHES if hashes is None else [hashes] if isinstance(hashes, str) else list(hashes)
    try:
        return sorted({check_hash_name(name) for name in names})
    except FormatError as error:
        raise ConfigError(str(error)) from None


def check_size_limit(value: int | str | None) -> int | None:
    """A shard's limit in bytes; one that makes no sense is a :class:`~stoker.errors.ConfigError`."""
    limit = 0 if value is None else parse_bytes(value, "size_limit")
    if limit > MAX_OFFSET:
        raise ConfigError(f"size_limit={value!r}: a shard's offsets hold less than 4 GiB")
    return limit or None


class FileSetWriter(Writer):
    """Base of these writers: ``part-00000.parquet``, ``part-00001.parquet``, ...

    In a local directory the files lie in a hidden folder until all are there. In a store they lie where they belong from the
    beginning, and programs other than stoker, which reads the mark next to them, see those that are complete.

    ``identity`` is what the files are: files of another can not be added to.
    """

    stem: ClassVar[str] = "part"
    """Prefix of the files' names."""
    indexed = False
    ends: ClassVar[tuple[str, ...]]
    """Suffixes of the names of the files of one number. The last one is stored last, and describes the others."""

    def __init__(
        self,
        out: OutPath,
        remote: str | os.PathLike[str] | None,
        identity: Mapping[str, Any],
        options: WriterOptions,
        compression: str | None,
    ) -> None:
        if options.get("hashes"):
            raise ConfigError(f"hashes: {self.ends[-1][1:]} files have no index that these could stand in")
        self._limit = check_size_limit(options.get("size_limit", 1 << 26)) or MAX_OFFSET
        settings = {"compression": compression, "size_limit": self._limit}
        self._files = NumberedFiles(identity, settings, self.stem, self.ends, self._look)
        super().__init__(out, remote, self._files, options, waiting=1)
        written = self._begun.written
        self._number = written[-1].number + 1 if written else 0
        self._samples = sum(one.samples for one in written)

    @property
    def samples_written(self) -> int:
        return self._samples

    def end_shard(self) -> None:
        self._check_open()
        self._end_file(empty=False)

    # -- what formats do -------------------------------------------------------------------------------------------

    @abstractmethod
    def _end_file(self, *, empty: bool) -> None:
        """Store the samples that wait, if there are any; with ``empty``, a file without samples otherwise."""

    @abstractmethod
    def _look(self, store: Store, key: str, sizes: Mapping[str, int]) -> tuple[int, Mapping[str, Any]]:
        """Samples and identity of the files of a number, which are all there.

        ``key`` is the last one's; ``sizes`` are bytes by :attr:`ends`. Files that are damaged, or another program's, are an
        error.
        """

    def _put(self, files: Sequence[PutData | StagedFile], samples: int) -> None:
        """Store the files of the next number, in the order of :attr:`ends`."""
        number = self._number
        self._number += 1
        self._uploads.submit(partial(self._upload, number, files, samples))

    def _upload(self, number: int, files: Sequence[PutData | StagedFile], samples: int) -> None:
        for end, data in zip(self.ends, files, strict=True):
            self._destination.put(self._files.name(number, end), data)
        self._stored(samples, sum(map(size_of, files)))

    def _end(self) -> None:
        self._end_file(empty=self._number == 0 and self._destination.whole)


def size_of(data: PutData | StagedFile) -> int:
    """Bytes of what is stored."""
    if isinstance(data, StagedFile):
        return data.size
    if isinstance(data, bytes | bytearray | memoryview):
        return memoryview(data).nbytes
    return sum(memoryview(part).nbytes for part in data)
