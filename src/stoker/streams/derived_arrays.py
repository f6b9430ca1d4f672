"""Computes arrays from all of a dataset once, and saves them as files next to its index.

A file appears by rename, whole, or not at all. Its header says what it was computed from; a file that is torn or damaged, or
was computed from something else, is computed again. Each process that opens it reads all of it once, for its digest. The
process that computes it holds an exclusive ``flock`` on the part file, as for a download (see :mod:`stoker.cache.base`), and
the others wait for it. The files are in the cache's private directory, where nothing is evicted, and only part files of
processes that are gone are removed.

    magic (8) | xxh64 of the header (8) | its length (4) | header, JSON, zeros up to byte 512 | array | extra bytes

The header has the xxh3 of what follows it.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import xxhash
from numpy.typing import DTypeLike

from stoker.cache.directory import make_private
from stoker.catalog.location import DatasetLocation
from stoker.errors import CacheError, StorageFullError
from stoker.storage.files.own import PRIVATE
from stoker.storage.files.part_files import PartWatch, claim, part_name, release, unlink
from stoker.storage.files.regular import open_regular
from stoker.storage.versions import stable_version
from stoker.types import Array

_MAGIC: Final = b"stoker\0\2"
_HEADER: Final = 512
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class DerivedArray:
    """An array that was computed from all of a dataset, and its file.

    Attributes:
        array: the array, mapped read-only; an empty one is plain.
        extra_at: where the extra bytes begin in the file.
    """

    array: Array
    path: Path
    extra_at: int

    def extra(self) -> bytes:
        """The extra bytes that were saved with the array."""
        with open(open_regular(self.path)[0], "rb") as file:
            file.seek(self.extra_at)
            return file.read()


class ArraySink:
    """Writes a derived array while it is computed, from its first element on.

    ``directory``: where larger intermediate files may be made.
    """

    def __init__(self, descriptor: int, directory: Path) -> None:
        self.directory = directory
        self._descriptor = descriptor
        self._at = _HEADER
        self._digest = xxhash.xxh3_128()
        self._dtype: np.dtype[Any] | None = None

    def append(self, values: Array) -> None:
        """Add elements; all arrays have the same dtype."""
        assert self._dtype in (None, values.dtype)
        self._dtype = values.dtype
        self._write(memoryview(np.ascontiguousarray(values).view(np.uint8)))  # type: ignore[arg-type]

    def beat(self) -> None:
        """Show waiting processes that this one makes progress."""
        os.utime(self._descriptor)

    def _write(self, data: memoryview) -> None:
        self._digest.update(data)
        while data:
            done = os.pwrite(self._descriptor, data, self._at)
            self._at += done
            data = data[done:]

    def finish(self, recipe: str, dtype: np.dtype[Any], extra: bytes) -> None:
        """Add the extra bytes and the header, and sync all to disk."""
        count = (self._at - _HEADER) // dtype.itemsize
        self._write(memoryview(extra))
        about = {"recipe": recipe, "dtype": dtype.str, "count": count, "extra": len(extra)}
        header = json.dumps({**about, "digest": self._digest.hexdigest()}).encode()
        head = _MAGIC + xxhash.xxh64_digest(header) + len(header).to_bytes(4, "little") + header
        os.pwrite(self._descriptor, head.ljust(_HEADER, b"\0"), 0)
        # A crash must leave a whole file under the name: another would be computed again.
        os.fsync(self._descriptor)


def derived_array(
    location: DatasetLocation,
    kind: str,
    label: str,
    recipe: Mapping[str, Any],
    make: Callable[[ArraySink], tuple[DTypeLike, bytes]],
) -> DerivedArray:
    """The derived array of a recipe, computed unless a file has it.

    Args:
        location: the dataset that it is computed from.
        kind: what it is, for the file's name.
        label: what it is of (columns), for the file's name.
        recipe: what decides its content besides the dataset; JSON-serialisable.
        make: hands the array to the sink; returns its dtype and the extra bytes. Called by one process at a time, unless
            that process makes no progress for the cache's stall time.

    Raises:
        CacheError: none of the location's directories can be written to.
        StorageFullError: no space left.
    """
    digest = digest_of(location, kind, recipe)
    name = f"{kind}.{quote(label, safe='')[:80]}.{digest}"
    url = location.cache.store.url if location.cache.store is not None else os.path.realpath(location.cache.root)
    for directory in location.keep:
        found = _load(directory / PRIVATE / name, digest)
        if found is not None:
            return found
    for directory in location.keep:
        private = directory / PRIVATE
        if _writable(directory, url):
            return _make(private, name, digest, location.cache.settings.stall_timeout, make)
    raise CacheError(
        f"what is computed from {location.cache.root} can be saved in none of {', '.join(map(str, location.keep))}: "
        "set STOKER_CACHE to a directory that can be written to"
    )


def digest_of(location: DatasetLocation, kind: str, recipe: Mapping[str, Any]) -> str:
    """The origin of a derived array: its recipe, and the dataset as far as its index tells.

    The fingerprint knows names and sizes, not contents. So the files' hashes are added where the index has any, and the
    version that was opened.
    """
    hashes = xxhash.xxh3_128()
    for shard in location.index.shards:
        for file in shard.raw:
            if file.hashes:
                hashes.update(repr(sorted(file.hashes.items())).encode())
            if file.part is not None:
                hashes.update(stable_version(file.part.version).encode())
    text = json.dumps([kind, recipe, location.index.fingerprint, hashes.hexdigest(), location.version], sort_keys=True)
    return xxhash.xxh3_128_hexdigest(text.encode())


def _make(
    private: Path, name: str, digest: str, patience: float, make: Callable[[ArraySink], tuple[DTypeLike, bytes]]
) -> DerivedArray:
    path, part = private / name, private / part_name(name)
    watch, delay = PartWatch(part, patience), 0.001
    while True:
        held = claim(part)
        found = _load(path, digest)
        if held is None:
            if found is not None:
                return found
            if watch.stalled():
                # Its maker is alive but stopped: compute it here too. Both results are equal, and each rename is whole.
                part = private / part_name(name, os.urandom(8).hex())
                continue
            time.sleep(delay)
            delay = min(delay * 1.5, 0.05)
            continue
        try:
            if found is None:
                os.ftruncate(held, 0)
                sink = ArraySink(held, private)
                dtype, extra = make(sink)
                sink.finish(digest, np.dtype(dtype), extra)
                os.rename(part, path)
                found = _load(path, digest)
                assert found is not None
            else:
                os.unlink(part)
            return found
        except BaseException as error:
            unlink(part)
            if isinstance(error, OSError) and error.errno in _FULL:
                raise _full(private) from error
            raise
        finally:
            release(held)


def _writable(directory: Path, url: str) -> bool:
    """Whether files can be made in a directory's private directory, which is made if it is missing."""
    try:
        private = make_private(directory, url)
    except OSError as error:
        if error.errno in _FULL:
            raise _full(directory) from error
        return False
    return os.access(private, os.W_OK | os.X_OK)


def _load(path: Path, digest: str) -> DerivedArray | None:
    """The file's array, or ``None`` if the file is missing, torn, damaged or of another recipe."""
    try:
        with open(open_regular(path)[0], "rb") as file:
            head = file.read(_HEADER)
            length = int.from_bytes(head[16:20], "little")
            header = head[20 : 20 + length]
            if not head.startswith(_MAGIC) or xxhash.xxh64_digest(header) != head[8:16]:
                return None
            facts = json.loads(header)
            dtype, count = np.dtype(facts["dtype"]), facts["count"]
            extra_at = _HEADER + count * dtype.itemsize
            if facts["recipe"] != digest or os.fstat(file.fileno()).st_size != extra_at + facts["extra"]:
                return None
            found = np.memmap(file, dtype, "r", _HEADER, (count,)) if count else np.zeros(0, dtype)
            payload = xxhash.xxh3_128(found.view(np.uint8))  # type: ignore[arg-type]
            file.seek(extra_at)
            payload.update(file.read())
            return DerivedArray(found, path, extra_at) if payload.hexdigest() == facts["digest"] else None
    except OSError:
        return None


def _full(private: Path) -> StorageFullError:
    return StorageFullError(f"no space left in {private}: free some, or set STOKER_CACHE elsewhere", url=str(private))
