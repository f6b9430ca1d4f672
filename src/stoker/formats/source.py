"""Bytes of a file by place, wherever the file lies: for reading headers without the rest of it."""

from __future__ import annotations

import io
from typing import Protocol

from stoker.errors import CorruptDataError, StokerError
from stoker.types import Buffer

__all__ = ["ByteSource", "MappedSource", "SourceFile", "check_range", "whole"]


class ByteSource(Protocol):
    """A file that can be read from any place.

    Attributes:
        where: names it in errors.
        size: its bytes.
    """

    where: str
    size: int

    def read(self, start: int, end: int) -> bytes:
        """Bytes ``[start, end)``.

        Raises:
            CorruptDataError: that is not inside the file.
            StorageError: it can not be read.
        """
        ...


class MappedSource:
    """A file in memory."""

    def __init__(self, data: Buffer, where: str) -> None:
        self.where = where
        self.size = len(data)
        self.data = data

    def read(self, start: int, end: int) -> bytes:
        """See :class:`ByteSource`."""
        check_range(self, start, end)
        return bytes(self.data[start:end])


class SourceFile(io.RawIOBase):
    """A source as a file object, for libraries that want one. Reading past the end gives what there is.

    Attributes:
        failure: what the source failed with. Libraries tend to take any error of a file for a damaged one.
    """

    def __init__(self, source: ByteSource) -> None:
        super().__init__()
        self.failure: StokerError | None = None
        self._source = source
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + (0, self._at, self._source.size)[whence]
        if at < 0:
            raise ValueError(f"a place before the file's beginning: {at}")
        self._at = at
        return at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        end = min(self._at + len(view), self._source.size)
        count = max(0, end - self._at)
        if count:
            try:
                view[:count] = self._source.read(self._at, end)
            except StokerError as error:
                self.failure = error
                raise
            self._at = end
        return count


def whole(source: ByteSource) -> Buffer:
    """All of a file."""
    return source.data if isinstance(source, MappedSource) else source.read(0, source.size)


def check_range(source: ByteSource, start: int, end: int) -> None:
    """See that bytes are inside the source.

    Raises:
        CorruptDataError: they are not.
    """
    if not 0 <= start <= end <= source.size:
        raise CorruptDataError(f"{source.where}: bytes {start} to {end} of a file of {source.size} bytes")
