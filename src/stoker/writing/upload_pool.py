"""Threads that store the files of a writer, a few at a time, and the shards that they finish."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.formats.base import ShardInfo
from stoker.formats.common.compression import Compression
from stoker.formats.common.hashing import hash_hex
from stoker.formats.common.records import BytesLike, RecordEncoder
from stoker.formats.registry import get_format
from stoker.index.shard_files import shard_name
from stoker.writing.destination import Destination


class UploadPool:
    """Threads that store files.

    ``threads`` files are stored at once, and ``waiting`` more may wait; ``on_failed`` is called from a thread that failed,
    after ``error`` is set.

    Attributes:
        error: what the first file that could not be stored failed with.
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


class ShardUploader:
    """Finishes shards on the threads of a pool.

    Memory is bounded by the buffers: there is one for each shard that is stored or waits, and one that the caller fills.

    ``capacity`` is the bytes of a buffer; ``on_stored`` is called from a thread with each stored shard.
    """

    def __init__(
        self,
        encoder: RecordEncoder,
        destination: Destination,
        uploads: UploadPool,
        *,
        compression: Compression | None,
        hashes: list[str],
        capacity: int,
        on_stored: Callable[[ShardInfo], None],
    ) -> None:
        self._encoder = encoder
        self._destination = destination
        self._uploads = uploads
        self._compression = compression
        self._hashes = hashes
        self._capacity = capacity
        self._on_stored = on_stored
        self._spare: list[NDArray[np.uint8]] = []
        self._stored: dict[int, ShardInfo] = {}

    def buffer(self) -> NDArray[np.uint8]:
        """A buffer to fill.

        Raises what a thread failed with.
        """
        self._uploads.check()
        return self._spare.pop() if self._spare else np.empty(self._capacity, np.uint8)

    def stored(self) -> list[ShardInfo]:
        """The shards that are stored, in order."""
        return [info for _, info in sorted(self._stored.items())]

    def close(self) -> None:
        """Free the buffers."""
        self._spare.clear()

    def store(self, number: int, buffer: NDArray[np.uint8], used: int, ends: list[int]) -> None:
        """Store a shard: the first ``used`` bytes of the buffer, with records that end at ``ends``."""
        encoder = self._encoder
        entry: dict[str, Any] = {**encoder.settings, "samples": len(ends)}
        files = encoder.files(buffer.data[:used], np.array(ends, np.int64))
        for role, parts in zip(encoder.roles, files, strict=True):
            name = shard_name(number, encoder.format, role)
            entry[f"raw_{role}"] = self._describe(name, parts)
            entry[f"zip_{role}"] = None
            if self._compression is None:
                self._destination.put(name, parts)
                continue
            packed = self._compression.compress(b"".join(parts))
            name = f"{name}.{self._compression.extension}"
            entry[f"zip_{role}"] = self._describe(name, [packed])
            self._destination.put(name, packed)
        info = self._stored[number] = get_format(encoder.format).parse_shard(entry, f"shard {number}")
        self._on_stored(info)
        if len(buffer) <= self._capacity:
            self._spare.append(buffer)

    def _describe(self, name: str, parts: list[BytesLike]) -> dict[str, Any]:
        return {
            "basename": name,
            "bytes": sum(map(len, parts)),
            "hashes": {algorithm: hash_hex(algorithm, parts) for algorithm in self._hashes},
        }
