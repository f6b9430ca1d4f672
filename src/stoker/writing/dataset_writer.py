"""The base of the writers of shards: samples into shards, shards to where they belong, the index last."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, Unpack

import numpy as np
from numpy.typing import NDArray

from stoker.digests import hash_hex
from stoker.errors import EncodingError
from stoker.formats.base import ShardInfo
from stoker.formats.common.checks import MAX_OFFSET
from stoker.formats.common.compression import parse_compression
from stoker.formats.common.records import BytesLike, RecordEncoder
from stoker.formats.registry import get_format
from stoker.index.index import Index
from stoker.index.shard_files import shard_name
from stoker.writing.base import Writer, WriterOptions, check_hash_names, check_size_limit
from stoker.writing.destination import OutPath
from stoker.writing.output_files import ShardOutput

_DEFAULT_BUFFER: Final = 1 << 26


class DatasetWriter(Writer):
    """Base of the writers of shards: everything but how a format encodes samples."""

    def __init__(
        self,
        out: OutPath,
        remote: str | os.PathLike[str] | None,
        make_encoder: Any,
        **options: Unpack[WriterOptions],
    ) -> None:
        compression = options.get("compression") or None
        self._hashes = check_hash_names(options.get("hashes"))
        size_limit = check_size_limit(options.get("size_limit", 1 << 26))
        self.check_compression(compression)
        self._codec = None if compression is None else parse_compression(compression)
        self._encoder: RecordEncoder = make_encoder(
            {"compression": compression, "hashes": self._hashes, "size_limit": size_limit}
        )
        if options.get("hashes") is None and self._encoder.shard_cost:
            # mosaicml-streaming has none by default: so shards, and orders, are the same with both.
            self._encoder.shard_cost -= len(json.dumps(self._hashes)) - len("[]")
        super().__init__(out, remote, ShardOutput(self._encoder.settings), options, on_failed=self._fail)
        self._limit = min(size_limit or MAX_OFFSET, self._encoder.largest)
        self._before = [written.shard for written in self._begun.written if written.shard is not None]
        self._written = sum(shard.samples for shard in self._before)
        self._number = len(self._before)
        self._capacity = min(self._limit, _DEFAULT_BUFFER) if size_limit is None else self._limit
        # There is a buffer for each shard that is stored or waits, and one that is filled: they bound the memory.
        self._spare: list[NDArray[np.uint8]] = []
        self._finished: dict[int, ShardInfo] = {}  # shards that are stored, by number
        self._encode = self._encoder.encode
        self._sample_cost = self._encoder.sample_cost
        self._at: int = 0
        self._bound: int = -1
        self._buffer: NDArray[np.uint8] | None = None
        self._reset()

    # -- what callers use ------------------------------------------------------------------------------------------

    @property
    def samples_written(self) -> int:
        return self._written + len(self._ends)

    def write(self, sample: Mapping[str, Any]) -> None:
        if self._state.stopped:
            self._check_open()
        try:
            data = self._encode(sample)
        except Exception as error:
            raise self._encoder.explain(sample, self.samples_written, error) from error
        if type(data) is list:
            at = end = self._reserve(sum(map(len, data)))
            view = self._view
            for part in data:
                end = at + len(part)
                view[at:end] = part
                at = end
        else:
            at = self._at
            end = at + len(data)
            if end > self._bound:
                at = self._reserve(len(data))
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
        if self._state.stopped:
            self._check_open()
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
                    self._end()
                    continue
                stop = start + 1  # larger than the limit: a shard of its own
            done = int(ends[start - 1]) if start else 0
            at, end = self._at, self._at + int(ends[stop - 1]) - done
            records.fill(self._buffer_of(end)[at:end], start, stop)
            self._ends.extend((ends[start:stop] + (at - done)).tolist())
            self._at = end
            start = stop
        self._bound = -1  # computed again by the next single sample

    def end_shard(self) -> None:
        if self._state.stopped:
            self._check_open()
        self._end()

    def get_config(self) -> dict[str, Any]:
        """The part that all shards' entries in the index have in common: format, compression, hashes, columns."""
        return dict(self._encoder.settings)

    # -- how it works ----------------------------------------------------------------------------------------------

    def _index(self) -> bytes:
        return Index(
            [*self._before, *(info for _, info in sorted(self._finished.items()))], extra=self._begun.extra
        ).to_json()

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
        """Bytes that a shard of one sample counts beyond its record."""
        overhead: int = self._encoder.shard_cost + self._sample_cost
        return overhead

    def _reserve(self, size: int) -> int:
        """Close the shard if a record would exceed its limit, and have a buffer; where the record begins."""
        if size + self._overhead > self._encoder.largest:
            raise self._too_large(size, self.samples_written)
        if self._ends and self._used + size + self._sample_cost > self._limit:
            self._end()
        capacity = len(self._buffer_of(self._at + size))
        self._bound = min(capacity, self._limit - self._used - self._sample_cost + self._at)
        return self._at

    def _too_large(self, size: int, number: int) -> EncodingError:
        return EncodingError(f"sample {number} of {size} bytes does not fit a shard, which holds less than 4 GiB")

    def _buffer_of(self, need: int) -> NDArray[np.uint8]:
        """The shard's buffer, made to have at least ``need`` bytes."""
        if self._buffer is None:
            self._uploads.check()
            self._buffer = self._spare.pop() if self._spare else np.empty(self._capacity, np.uint8)
            self._view = self._buffer.data
        if len(self._buffer) < need:
            larger = np.empty(max(need, min(2 * len(self._buffer), MAX_OFFSET)), np.uint8)
            larger[: self._at] = self._buffer[: self._at]
            self._buffer = larger
            self._view = larger.data
        return self._buffer

    def _end(self) -> None:
        """Hand the shard, if it has samples, to the threads and begin the next."""
        if self._buffer is None or not self._ends:
            return
        self._uploads.submit(partial(self._store, self._number, self._buffer, self._at, self._ends))
        self._written += len(self._ends)
        self._number += 1
        self._reset()

    def _fail(self) -> None:
        """Have the next call raise what a thread failed with."""
        self._state.stopped = True

    def _store(self, number: int, buffer: NDArray[np.uint8], used: int, ends: list[int]) -> None:
        """On a thread, store a shard: the first ``used`` bytes of the buffer, with records that end at ``ends``."""
        encoder = self._encoder
        entry: dict[str, Any] = {**encoder.settings, "samples": len(ends)}
        files = encoder.files(buffer.data[:used], np.array(ends, np.int64))
        for role, parts in zip(encoder.roles, files, strict=True):
            name = shard_name(number, encoder.format, role)
            entry[f"raw_{role}"] = self._describe(name, parts)
            entry[f"zip_{role}"] = None
            if self._codec is None:
                self._destination.put(name, parts)
                continue
            packed = self._codec.compress(b"".join(parts))
            name = f"{name}.{self._codec.extension}"
            entry[f"zip_{role}"] = self._describe(name, [packed])
            self._destination.put(name, packed)
        info = self._finished[number] = get_format(encoder.format).parse_shard(entry, f"shard {number}")
        self._stored(info.samples, sum(file.bytes for file in info.stored))
        if len(buffer) <= self._capacity:
            self._spare.append(buffer)

    def _describe(self, name: str, parts: list[BytesLike]) -> dict[str, Any]:
        return {
            "basename": name,
            "bytes": sum(map(len, parts)),
            "hashes": {algorithm: hash_hex(algorithm, parts) for algorithm in self._hashes},
        }

    def _close(self, how: str) -> None:
        super()._close(how)
        self._state.stopped = True
        self._reset()
        self._spare.clear()
