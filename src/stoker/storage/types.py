"""Types, checks and the making of chunks that all kinds of store share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from stoker.errors import ConfigError, StorageError

BufferLike: TypeAlias = bytes | memoryview
"""Bytes in memory, read through the buffer protocol."""

Chunks: TypeAlias = Callable[[], Iterator[BufferLike]]
"""Makes an iterator of what follows each other. Each chunk may be written over when the next is asked for."""

Arrival: TypeAlias = Callable[[], "tuple[BufferLike, ObjectInfo]"]
"""Gives an object that has arrived, and what the store said of it. Its bytes may be in memory of the client's."""

NewHash: TypeAlias = Callable[[], Any]
"""Makes an object with ``update`` and ``hexdigest``, as those of hashlib. Picklable."""

PutData: TypeAlias = bytes | bytearray | memoryview | Sequence[bytes | bytearray | memoryview]
"""Data to put: one buffer, or several that follow each other."""

PART = 8 << 20
"""Bytes of one part of an upload. What is not larger goes in one request."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object.

    Attributes:
        key: relative to the store's root.
        size: bytes.
        version: what changes when the object is replaced: its ETag, or of a local file what
            :func:`stoker.storage.versions.local_version` gives; empty where the store tells none. Two infos of the same
            key and size are equal whatever their versions and times.
        modified: when it was last written, by the store's clock, in nanoseconds since 1970; 0 where the store does not tell.
            Object stores give whole seconds or milliseconds. Of a local file it is the time of its last change of status,
            which nobody can set.
        digest: of what was downloaded, in hex, where it was asked for.
    """

    key: str
    size: int
    version: str = field(default="", compare=False)
    modified: int = field(default=0, compare=False)
    digest: str = field(default="", compare=False)

    def with_digest(self, digest: Any) -> ObjectInfo:
        """The same with the digest of a hash object; with ``None``, as it is."""
        return self if digest is None else replace(self, digest=str(digest.hexdigest()))


class Backend(Protocol):
    """Methods of a way to ask an object store. Keys and ranges are checked before; methods run in many threads."""

    def read(self, key: str, max_bytes: int) -> tuple[bytes, ObjectInfo]: ...
    def request(self, key: str, max_bytes: int) -> Arrival: ...
    def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int], version: str) -> list[BufferLike]: ...
    def read_into(
        self, key: str, into: memoryview, start: int | None, version: str, new_hash: NewHash | None
    ) -> ObjectInfo: ...
    def download(self, key: str, path: Path, max_bytes: int | None, new_hash: NewHash | None) -> ObjectInfo: ...
    def download_range(self, key: str, path: Path, start: int, end: int, at: int, version: str) -> None: ...
    def put(self, key: str, parts: Sequence[memoryview]) -> None: ...
    def put_file(self, key: str, path: Path) -> None: ...
    def put_stream(self, key: str, chunks: Chunks) -> None: ...
    def list(self, prefix: str) -> Iterator[ObjectInfo]: ...
    def head(self, key: str) -> ObjectInfo: ...
    def exists(self, key: str) -> bool: ...
    def delete(self, key: str) -> None: ...


def at_hand(found: tuple[BufferLike, ObjectInfo]) -> Arrival:
    """The answer to a request of which nothing is left to be done."""
    return lambda: found


def as_parts(data: Any) -> list[memoryview]:
    """Flat byte views of one buffer or of a sequence of buffers, none of them empty."""
    items = [data] if isinstance(data, (bytes, bytearray, memoryview)) or hasattr(data, "__array_interface__") else data
    parts = []
    try:
        for item in items:
            view = memoryview(item)
            if view.nbytes:
                parts.append(view.cast("B"))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"data of type {type(data).__name__} can not be put: expected bytes in one piece ({error})."
        ) from None
    return parts


def check_ranges(starts: Sequence[int], ends: Sequence[int], url: str) -> None:
    """Refuse ranges that are no ranges."""
    if len(starts) != len(ends):
        raise ConfigError(
            f"{url}: {len(starts)} starts and {len(ends)} ends of ranges: expected the same number of each."
        )
    for start, end in zip(starts, ends, strict=True):
        if not 0 <= start <= end:
            raise ConfigError(f"{url}: [{start}, {end}) is not a range of bytes: expected 0 <= start <= end.")


def check_range(start: int, end: int, size: int, url: str) -> None:
    """Refuse a range that reaches beyond the object."""
    if end > size:
        raise StorageError(f"{url}: bytes [{start}, {end}) lie outside of the object, which has {size}.", url=url)


def check_size(size: int, max_bytes: int | None, url: str) -> None:
    """Refuse an object that is larger than the caller wants."""
    if max_bytes is not None and size > max_bytes:
        raise StorageError(f"{url}: the object has {size} bytes, but at most {max_bytes} are expected.", url=url)


class Made:
    """The chunks of an object, made once for each attempt to write it.

    ``error``: what making them raised. It is the caller's own, told apart by this from errors of the store.
    """

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[BufferLike]:
        try:
            yield from self._chunks()
        except GeneratorExit:
            raise
        except BaseException as error:
            self.error = error
            raise


def first_part(chunks: Iterator[BufferLike]) -> tuple[list[bytes], bool]:
    """Copies of the chunks up to about :data:`PART` bytes, and whether there may be more of them."""
    taken: list[bytes] = []
    size = 0
    for chunk in chunks:
        taken.append(bytes(chunk))
        size += len(taken[-1])
        if size > PART:
            return taken, True
    return taken, False
