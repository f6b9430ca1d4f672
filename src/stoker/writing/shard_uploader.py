"""Turn full shards into files behind the caller's back: hash, compress and store them, in bounded memory."""

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

__all__ = ["ShardUploader"]


class ShardUploader:
    """Threads that finish shards.

    Memory is bounded by the buffers: there is one for each thread and one that the caller fills; asking for another
    waits until a shard is stored.

    Args:
        encoder: lays out the files.
        destination: gets them.
        compression: how they are compressed, or ``None``.
        hashes: names of the hashes that go into the index.
        threads: how many shards are worked on at once.
        capacity: bytes of a buffer.
        on_stored: called from a thread with each stored shard.
        on_failed: called from a thread that failed, after ``error`` is set.
    """

    def __init__(
        self,
        encoder: RecordEncoder,
        destination: Destination,
        *,
        compression: Compression | None,
        hashes: list[str],
        threads: int,
        capacity: int,
        on_stored: Callable[[ShardInfo], None],
        on_failed: Callable[[], None],
    ) -> None:
        self._encoder = encoder
        self._destination = destination
        self._compression = compression
        self._hashes = hashes
        self._capacity = capacity
        self._on_stored = on_stored
        self._on_failed = on_failed
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="stoker-write")
        self._room = threading.Semaphore(threads + 1)
        self._spare: list[NDArray[np.uint8]] = []
        self._stored: dict[int, ShardInfo] = {}
        self._futures: list[Future[None]] = []
        self.error: BaseException | None = None

    def buffer(self) -> NDArray[np.uint8]:
        """A buffer to fill, once memory allows another.

        Raises:
            BaseException: what a thread failed with.
        """
        self._room.acquire()
        self.check()
        return self._spare.pop() if self._spare else np.empty(self._capacity, np.uint8)

    def submit(self, number: int, buffer: NDArray[np.uint8], used: int, ends: list[int]) -> None:
        """Have a shard stored: the first ``used`` bytes of the buffer, with records that end at ``ends``."""
        self._futures = [future for future in self._futures if not future.done()]
        self._futures.append(self._pool.submit(self._work, number, buffer, used, ends))

    def check(self) -> None:
        """Raise what a thread failed with, if one did."""
        if self.error is not None:
            raise self.error

    def finish(self) -> list[ShardInfo]:
        """Wait until all shards are stored, and return them in order.

        Raises:
            BaseException: what a thread failed with.
        """
        for future in self._futures:
            future.result()
        self._pool.shutdown()
        self.check()
        self._spare.clear()
        return [info for _, info in sorted(self._stored.items())]

    def cancel(self) -> None:
        """Start no further shard, and wait for those that are being stored."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._spare.clear()

    def _work(self, number: int, buffer: NDArray[np.uint8], used: int, ends: list[int]) -> None:
        try:
            if self.error is None:
                info = self._store(number, buffer.data[:used], ends)
                self._stored[number] = info
                self._on_stored(info)
        except BaseException as error:  # noqa: BLE001 - handed to the caller at its next call
            self.error = self.error or error
            self._on_failed()
        finally:
            if len(buffer) <= self._capacity:
                self._spare.append(buffer)
            self._room.release()

    def _store(self, number: int, body: memoryview, ends: list[int]) -> ShardInfo:
        encoder = self._encoder
        entry: dict[str, Any] = {**encoder.settings, "samples": len(ends)}
        files = encoder.files(body, np.array(ends, np.int64))
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
        return get_format(encoder.format).parse_shard(entry, f"shard {number}")

    def _describe(self, name: str, parts: list[BytesLike]) -> dict[str, Any]:
        return {
            "basename": name,
            "bytes": sum(map(len, parts)),
            "hashes": {algorithm: hash_hex(algorithm, parts) for algorithm in self._hashes},
        }
