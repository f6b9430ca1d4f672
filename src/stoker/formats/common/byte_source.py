"""Reads ranges of bytes of a local or remote file: headers without the rest of the file."""

from __future__ import annotations

import io
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError, StokerError
from stoker.formats.common.rows.gather import address_of, gather_rows
from stoker.types import Buffer, Ids

_KEPT: Final = 512


class ByteSource(Protocol):
    """A file that can be read from any offset.

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


class MappedSource:
    """A file in memory."""

    def __init__(self, data: Buffer, where: str) -> None:
        self.where = where
        self.size = len(data)
        self.data = data

    def read(self, start: int, end: int) -> bytes:
        check_range(self, start, end)
        return bytes(self.data[start:end])


class SeekableFile(io.RawIOBase):
    """Base of file objects that are read from any offset. ``at``: the offset of the next byte."""

    def __init__(self, size: int = 0) -> None:
        super().__init__()
        self.at = 0
        self.size = size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + (0, self.at, self.size)[whence]
        if at < 0:
            raise ValueError(f"an offset before the file's beginning: {at}")
        self.at = at
        return at


class ByteSourceFile(SeekableFile):
    """A source as a file object, for libraries that want one. Reading past the end gives what there is.

    ``quiet``: at an error of the source, read nothing instead of raising it, for libraries that can not pass it on.
    ``failure``: what the source failed with. Libraries tend to take any error of a file for a damaged one.
    """

    def __init__(self, source: ByteSource, *, quiet: bool = False) -> None:
        super().__init__(source.size)
        self.failure: StokerError | None = None
        self._quiet = quiet
        self._source = source

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            return self._fill(memoryview(buffer).cast("B"))
        except StokerError as error:
            self.failure = error
            if self._quiet:
                return 0
            raise

    def _fill(self, view: memoryview) -> int:
        end = min(self.at + len(view), self.size)
        count = max(0, end - self.at)
        if count:
            view[:count] = self._source.read(self.at, end)
            self.at = end
        return count


class HeadView:
    """A source as a buffer of which heads are looked at, one after the other, and nothing is read but those.

    What was looked at is kept, as far as it is short.
    """

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._kept: dict[int, bytes] = {}

    def __len__(self) -> int:
        return self._source.size

    def __getitem__(self, where: slice) -> bytes:
        start, stop, _ = where.indices(self._source.size)
        found = self._source.read(start, max(start, stop))
        if len(found) <= _KEPT:
            self._kept[start] = found
        return found

    def rows(self, offsets: Ids, width: int) -> NDArray[np.uint8]:
        """The bytes at offsets that were read before; shape ``(len(offsets), width)``."""
        found = b"".join([self._kept[offset][:width] for offset in offsets.tolist()])
        return np.frombuffer(found, np.uint8).reshape(len(offsets), width).copy()


def heads_of(source: ByteSource) -> Buffer | HeadView:
    """A source as a buffer, without reading all of it."""
    return source.data if isinstance(source, MappedSource) else HeadView(source)


def head_rows(data: Buffer | HeadView, offsets: Ids, width: int) -> NDArray[np.uint8]:
    """Copies of ``width`` bytes from each offset, all of which were read before; shape ``(len(offsets), width)``."""
    if isinstance(data, HeadView):
        return data.rows(offsets, width)
    return gather_rows(address_of(np.frombuffer(data, np.uint8)) + offsets, width)


def whole(source: ByteSource) -> Buffer:
    """All of a file."""
    return source.data if isinstance(source, MappedSource) else source.read(0, source.size)


def check_range(source: ByteSource, start: int, end: int) -> None:
    """Check that bytes are inside the source. CorruptDataError if they are not."""
    if not 0 <= start <= end <= source.size:
        raise CorruptDataError(f"{source.where}: bytes {start} to {end} lie outside of the file's {source.size} bytes")
