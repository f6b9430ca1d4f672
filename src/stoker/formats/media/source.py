"""Bytes that a video or a sound is read from: in memory, or ranges of a file of a store, fetched as they are needed."""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from stoker.concurrency.forks import ProcessLock
from stoker.errors import ConfigError
from stoker.formats.common.inspect_header import ByteSourceFile, check_range
from stoker.storage import Store, is_local, open_store
from stoker.types import StorageOptions

MediaData: TypeAlias = bytes | bytearray | memoryview | str | os.PathLike[str]
"""An encoded video or sound: its bytes, or the path or URL of its file."""

MEDIA: Final = "media"
"""Setting of formats, and key of specs, that says which columns hold handles, and of what."""
HANDLED: Final = ("video", "audio")
"""The kinds of media that have handles, by the names that ``format_options={"media": ...}`` takes."""

# The first request for bytes that nobody has announced, and the largest of those that follow each other.
_FIRST: Final = 64 << 10
_LARGEST: Final = 4 << 20
# Bytes that are kept of a file that is read, beside what was announced last.
_KEPT: Final = 4 << 20
_MOST_ANNOUNCED: Final = 64 << 20


class BytesInMemory:
    """An encoded video or sound in memory. Pickled with its bytes."""

    __slots__ = ("_what", "data", "size", "where")

    def __init__(self, data: bytes | bytearray | memoryview, what: str) -> None:
        self._what = what
        self.data = memoryview(data).cast("B")
        self.size = len(self.data)
        self.where = f"{what} of {self.size} bytes"

    def read(self, start: int, end: int) -> bytes:
        check_range(self, start, end)
        return bytes(self.data[start:end])

    def __reduce__(self) -> tuple[Any, ...]:
        return BytesInMemory, (bytes(self.data), self._what)


class BytesOfFile:
    """An encoded video or sound that is a file of a store, or lies in one. Pickled as the place, without its bytes.

    Args:
        version: of the file, as the store told it; empty where nothing tells.
        start: first byte of the video or sound in the file.
        name: of the part of the file that it is; empty for a file.
    """

    __slots__ = ("_key", "_name", "_start", "_store", "_version", "size", "where")

    def __init__(self, store: Store, key: str, version: str, start: int, size: int, name: str = "") -> None:
        self._store, self._key, self._version, self._start, self._name = store, key, version, start, name
        self.size = size
        self.where = f"{store.url_of(key)}{name and f', {name}'}"

    def __reduce__(self) -> tuple[Any, ...]:
        return BytesOfFile, (self._store, self._key, self._version, self._start, self.size, self._name)

    def part(self, start: int, size: int, name: str) -> BytesOfFile:
        """A part of it, such as a member of an archive."""
        return BytesOfFile(self._store, self._key, self._version, self._start + start, size, name)

    def read(self, start: int, end: int) -> bytes:
        check_range(self, start, end)
        begin = self._start + start
        return bytes(self._store.get_ranges(self._key, [begin], [self._start + end], version=self._version)[0])


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that is a shard and is not fetched; see :class:`stoker.formats.base.ShardDetail`.

    Attributes:
        identity: tells it from others.
        key: its path below the dataset's root.
    """

    bytes: int
    identity: str
    key: str
    source: BytesOfFile

    @classmethod
    def of(cls, store: Store, key: str, size: int, version: str) -> StoredFile:
        """The file of a store."""
        return cls(size, f"{key}\0{size}", key, BytesOfFile(store, key, version, 0, size))

    def __str__(self) -> str:
        return self.source.where


MediaSource: TypeAlias = BytesInMemory | BytesOfFile


def media_source(data: MediaData, what: str, storage_options: StorageOptions | None = None) -> MediaSource:
    """The source of bytes that a user gives, or names.

    ConfigError if the path or URL makes no sense, ObjectNotFoundError or StorageError if there is no such file, or it can not
    be asked for. ``data``: the bytes, or a path or URL. ``what``: they are, for errors: ``"a video"``.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        return BytesInMemory(data, what)
    folder, _, name = os.fspath(data).rpartition("/")
    if not name:
        raise ConfigError(f"{os.fspath(data)!r} names no file: give the path or URL of {what}, or its bytes")
    local = is_local(os.fspath(data)) is not None
    store = open_store(folder or ("/" if os.fspath(data).startswith("/") else "."), None if local else storage_options)
    found = store.head(name)
    return BytesOfFile(store, name, found.version, 0, found.size)


class RangedFile(ByteSourceFile):
    """A source as a file object that keeps what it has read, reads ahead, and fetches announced ranges by one request."""

    def __init__(self, source: MediaSource, *, quiet: bool = False) -> None:
        super().__init__(source, quiet=quiet)
        self._memory = source.data if isinstance(source, BytesInMemory) else None
        self._held: OrderedDict[int, bytes] = OrderedDict()
        self._kept = _KEPT
        self._ahead, self._follows = _FIRST, -1

    def _fill(self, view: memoryview) -> int:
        done, count = 0, min(len(view), max(0, self.size - self.at))
        while done < count:
            first, held = (0, self._memory) if self._memory is not None else self._holding(self.at)
            piece = held[self.at - first :][: count - done]
            view[done : done + len(piece)] = piece
            done += len(piece)
            self.at += len(piece)
        return done

    def announce(self, start: int, end: int) -> None:
        """Fetch bytes that will be read, those of them that are not there yet, by one request.

        Nothing is fetched for a range that makes no sense, as of a damaged file, or is very large: that is read as it comes.
        """
        end = min(end, self.size)
        while start < end and (first := self._found(start)) is not None:
            start = first + len(self._held[first])
        if self._memory is not None or not 0 <= start < end or end - start > _MOST_ANNOUNCED:
            return
        self._kept = max(_KEPT, end - start)
        self._keep(start, self._source.read(start, end))

    def _holding(self, at: int) -> tuple[int, memoryview]:
        """A held piece that has the byte ``at``, which is fetched where there is none, and its first byte."""
        first = self._found(at)
        if first is None:
            self._ahead = min(_LARGEST, 2 * self._ahead) if at == self._follows else _FIRST
            end = min([self.size, at + self._ahead, *(begin for begin in self._held if begin > at)])
            self._keep(at, self._source.read(at, end))
            self._follows = end
            first = at
        self._held.move_to_end(first)
        return first, memoryview(self._held[first])

    def _found(self, at: int) -> int | None:
        return next((first for first, piece in self._held.items() if first <= at < first + len(piece)), None)

    def _keep(self, start: int, data: bytes) -> None:
        self._held[start] = data
        self._held.move_to_end(start)
        while len(self._held) > 1 and sum(map(len, self._held.values())) > self._kept + _FIRST:
            self._held.popitem(last=False)


class SharedRanges:
    """A file of a store as a source of ranges for many threads; see :class:`RangedFile`."""

    def __init__(self, source: MediaSource) -> None:
        self.where, self.size = source.where, source.size
        self._file = RangedFile(source)
        self._lock = ProcessLock()

    def read(self, start: int, end: int) -> bytes:
        check_range(self, start, end)
        with self._lock:
            self._file.at = start
            return self._file.read(end - start) or b""
