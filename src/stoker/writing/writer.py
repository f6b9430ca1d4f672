"""Write a dataset: samples into shards, shards to where they belong, the index last."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.forks import reset_in_children
from stoker.errors import ConfigError, EncodingError, FormatError
from stoker.formats.base import ShardInfo
from stoker.formats.common.checks import MAX_OFFSET
from stoker.formats.common.compression import parse_compression
from stoker.formats.common.hashing import check_hash_name
from stoker.formats.common.records import RecordEncoder
from stoker.index.index import INDEX_NAME, Index
from stoker.types import StorageOptions
from stoker.units import parse_bytes
from stoker.writing.destination import OutPath, open_destination
from stoker.writing.finishing import Finishing
from stoker.writing.progress import ProgressLine
from stoker.writing.shard_uploader import ShardUploader

__all__ = ["DatasetWriter", "WriterOptions", "check_hash_names", "check_size_limit"]

_DEFAULT_BUFFER = 1 << 26
_DEFAULT_THREADS = 3
_DEFAULT_HASHES = ("xxh3_64",)


class WriterOptions(TypedDict, total=False):
    """What every writer takes beside its columns and its destination.

    Attributes:
        keep_local: with a directory and a remote, keep the files in the directory, too. Without it they go to the
            remote straight from memory, and the directory is not touched.
        compression: ``"zstd"``, ``"br"``, ``"gz"``, ``"bz2"``, ``"snappy"``, with a level after a colon
            (``"zstd:7"``); default none.
        hashes: name or names of hashes of every file to put in the index (``"sha1"``, ``"xxh3_64"``, ...); default
            ``"xxh3_64"``, by which readers find damage, and notice a dataset that was written anew. ``()`` for none.
        size_limit: most raw bytes of a shard, as a number or like ``"64MB"`` (the default). ``None`` sets no limit
            but the format's own of 4 GiB. A shard holds at least one sample, however large.
        progress_bar: show on the terminal how many samples, shards and bytes are stored.
        max_workers: threads that compress, hash and store shards, default 3. Each holds one shard in memory.
        retry: how often a failed request is tried again.
        exist_ok: replace the dataset that is there. Its index is removed first, then its shards.
        append: add to the dataset that is there; without one, begin it.
        resume: go on where a killed writer of the same settings stopped; see ``samples_written``.
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


class DatasetWriter(Finishing):
    """Base of the writers: everything but how a format encodes samples.

    Use it in a ``with`` statement. The index, without which nobody can read the dataset, is written at its end, after
    every shard is stored; after an exception it is not written.
    """

    def __init__(
        self,
        out: OutPath,
        remote: str | os.PathLike[str] | None,
        make_encoder: Any,
        **options: Unpack[WriterOptions],
    ) -> None:
        compression = options.get("compression") or None
        hashes = check_hash_names(options.get("hashes"))
        size_limit = check_size_limit(options.get("size_limit", 1 << 26))
        threads = options.get("max_workers") or _DEFAULT_THREADS
        if threads < 1:
            raise ConfigError(f"max_workers={threads}: at least 1")
        try:
            codec = None if compression is None else parse_compression(compression)
        except FormatError as error:
            raise ConfigError(str(error)) from None
        self._encoder: RecordEncoder = make_encoder(
            {"compression": compression, "hashes": hashes, "size_limit": size_limit}
        )
        self._destination = open_destination(
            out,
            remote,
            options.get("keep_local", False),
            options.get("storage_options"),
            options.get("retry", 5),
        )
        self._limit = min(size_limit or MAX_OFFSET, self._encoder.largest)
        self._extra: Mapping[str, Any] = {}
        self._before = self._prepare(options)
        self._written = sum(shard.samples for shard in self._before)
        self._number = len(self._before)
        self._progress = ProgressLine(self._destination.main.url) if options.get("progress_bar") else None
        self._press = ShardUploader(
            self._encoder,
            self._destination,
            compression=codec,
            hashes=hashes,
            threads=threads,
            capacity=min(self._limit, _DEFAULT_BUFFER) if size_limit is None else self._limit,
            on_stored=self._stored,
            on_failed=self._fail,
        )
        self._encode = self._encoder.encode
        self._sample_cost = self._encoder.sample_cost
        self._stopped = False
        self._at: int = 0
        self._bound: int = -1
        self._buffer: NDArray[np.uint8] | None = None
        self._reset()
        reset_in_children(self)

    def after_fork(self) -> None:
        """See :class:`~stoker.concurrency.forks.Forkable`."""
        super().after_fork()
        self._stopped = True

    # -- what callers use ------------------------------------------------------------------------------------------

    @property
    def samples_written(self) -> int:
        """Samples in the dataset so far, with those that were there at the start.

        Right after construction with ``resume=True`` it tells how many samples of the source to skip.
        """
        return self._written + len(self._ends)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a sample: column name to value. Keys that are not columns are ignored.

        The values are copied before this returns.

        Raises:
            EncodingError: a column is missing or a value does not fit; names the column, the sample and what was
                expected. Nothing of the sample is written, and writing may go on.
            ConfigError: the writer is closed.
            StorageError: storing an earlier shard failed.
        """
        if self._stopped:
            self._refuse()
        try:
            data = self._encode(sample)
        except Exception as error:
            raise self._encoder.explain(sample, self.samples_written, error) from error
        if type(data) is list:
            at = end = self._room_for(sum(map(len, data)))
            view = self._view
            for part in data:
                end = at + len(part)
                view[at:end] = part
                at = end
        else:
            at = self._at
            end = at + len(data)
            if end > self._bound:
                at = self._room_for(len(data))
                end = at + len(data)
            self._view[at:end] = data
        self._at = end
        self._bound -= self._sample_cost
        self._ends.append(end)

    def write_batch(self, columns: Mapping[str, Any]) -> None:
        """Add n samples given as columns: arrays of shape ``(n, ...)`` or lists of n values.

        The same shards come out as from n calls of :meth:`write`, much sooner.

        Raises:
            EncodingError: as for :meth:`write`; also if columns differ in length. Nothing of the batch is written.
        """
        if self._stopped:
            self._refuse()
        first = self.samples_written
        records = self._encoder.encode_batch(columns, first)
        ends = np.cumsum(records.sizes)
        costs = ends + self._sample_cost * np.arange(1, len(ends) + 1)
        if len(ends) and (largest := int(records.sizes.max())) + self._overhead > self._encoder.largest:
            raise self._too_large(largest, first + int(records.sizes.argmax()))
        start = 0
        while start < len(ends):
            before = int(costs[start - 1]) if start else 0
            stop = int(np.searchsorted(costs, self._limit - self._used + before, side="right"))
            if stop <= start:
                if self._ends:
                    self._flush()
                    continue
                stop = start + 1  # larger than the limit: a shard of its own
            done = int(ends[start - 1]) if start else 0
            at, end = self._at, self._at + int(ends[stop - 1]) - done
            records.fill(self._buffer_of(end)[at:end], start, stop)
            self._ends.extend((ends[start:stop] + (at - done)).tolist())
            self._at = end
            start = stop
        self._bound = -1  # found anew by the next single sample

    def end_shard(self) -> None:
        """End the shard with the last sample that was added: the next one begins another."""
        if self._stopped:
            self._refuse()
        if self._ends:
            self._flush()

    def finish(self) -> None:
        """Store what is left, wait for all shards, then write the index.

        Raises:
            StorageError: a shard or the index could not be stored. Then there is no index, and a new writer can
                ``resume``.
            ConfigError: the writer is closed already.
        """
        if self._closed is not None:
            self._refuse()
        try:
            if self._ends:
                self._flush()
            shards = [*self._before, *self._press.finish()]
            index = Index(shards, extra=self._extra)
            self._destination.put(INDEX_NAME, index.to_json())
        except BaseException:
            self.abort()
            raise
        self._close("finished")

    def abort(self) -> None:
        """Stop without an index. Shards that are stored stay, for a writer with ``resume=True``."""
        if self._closed is None:
            self._press.cancel()
            self._close("aborted")

    # -- how it works ----------------------------------------------------------------------------------------------

    def _prepare(self, options: WriterOptions) -> list[ShardInfo]:
        """Deal with what is at the destination; the shards that the dataset begins with."""
        append, resume = options.get("append", False), options.get("resume", False)
        if self._destination.blank:
            return []
        if options.get("exist_ok", False):
            if append or resume:
                raise ConfigError("exist_ok=True replaces what is there; append=True and resume=True keep it: choose")
            self._destination.clear()
            return []
        if not (append or resume):
            self._destination.refuse_existing()
            return []
        before: list[ShardInfo] = []
        index = self._destination.existing(self._encoder.settings)
        if index is not None:
            before.extend(index.shards)
            self._extra = index.extra
        if resume:
            before.extend(self._destination.unfinished(self._encoder.settings, len(before)))
        elif index is None:
            self._destination.refuse_existing()
        self._destination.complete(before)
        return before

    def _reset(self) -> None:
        """Begin an empty shard, without a buffer."""
        self._buffer = None
        self._view = memoryview(b"")
        self._at = 0  # where the next record begins
        self._bound = -1  # where the next record may end without a closer look
        self._ends: list[int] = []

    @property
    def _used(self) -> int:
        """Bytes of the shard so far, as its limit counts them."""
        used: int = self._encoder.shard_cost + self._at + self._sample_cost * len(self._ends)
        return used

    @property
    def _overhead(self) -> int:
        """What a shard of one sample counts beyond its record."""
        overhead: int = self._encoder.shard_cost + self._sample_cost
        return overhead

    def _room_for(self, size: int) -> int:
        """Close the shard if a record would exceed its limit, and have a buffer; where the record begins."""
        if size + self._overhead > self._encoder.largest:
            raise self._too_large(size, self.samples_written)
        if self._ends and self._used + size + self._sample_cost > self._limit:
            self._flush()
        capacity = len(self._buffer_of(self._at + size))
        self._bound = min(capacity, self._limit - self._used - self._sample_cost + self._at)
        return self._at

    def _too_large(self, size: int, number: int) -> EncodingError:
        return EncodingError(f"sample {number} of {size} bytes does not fit a shard, which holds less than 4 GiB")

    def _buffer_of(self, need: int) -> NDArray[np.uint8]:
        """The shard's buffer, made to have at least ``need`` bytes."""
        if self._buffer is None:
            self._buffer = self._press.buffer()
            self._view = self._buffer.data
        if len(self._buffer) < need:
            larger = np.empty(max(need, min(2 * len(self._buffer), MAX_OFFSET)), np.uint8)
            larger[: self._at] = self._buffer[: self._at]
            self._buffer = larger
            self._view = larger.data
        return self._buffer

    def _flush(self) -> None:
        """Hand the shard to the threads and begin the next."""
        assert self._buffer is not None
        self._press.submit(self._number, self._buffer, self._at, self._ends)
        self._written += len(self._ends)
        self._number += 1
        self._reset()

    def _fail(self) -> None:
        """Have the next call raise what a thread failed with."""
        self._stopped = True

    def _stored(self, info: ShardInfo) -> None:
        if self._progress is not None:
            self._progress.advance(info.samples, sum(file.bytes for file in info.stored))

    def _refuse(self) -> None:
        """Raise why the writer takes nothing more."""
        if self._closed is None:
            self._press.check()
        self._check_unclosed()

    def _close(self, how: str) -> None:
        self._closed = how
        self._stopped = True
        self._reset()
        if self._progress is not None:
            self._progress.stop()


def check_hash_names(hashes: str | Sequence[str] | None) -> list[str]:
    """Names of hashes, sorted, each once; those of the default for ``None``.

    Raises:
        ConfigError: an unknown one.
    """
    names = _DEFAULT_HASHES if hashes is None else [hashes] if isinstance(hashes, str) else list(hashes)
    try:
        return sorted({check_hash_name(name) for name in names})
    except FormatError as error:
        raise ConfigError(str(error)) from None


def check_size_limit(value: int | str | None) -> int | None:
    """A shard's limit in bytes; one that makes no sense is a :class:`~stoker.errors.ConfigError`."""
    limit = parse_bytes(value) if value else 0
    if limit > MAX_OFFSET:
        raise ConfigError(f"size_limit={value!r}: a shard's offsets hold less than 4 GiB")
    return limit or None
