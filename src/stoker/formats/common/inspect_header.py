"""Ranges of bytes of a local or remote file, and the facts that its header tells of a file without an index.

A file may be read in *spans*, each a shard: lines of text, say, of which a large file is neither fetched nor shuffled
whole.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, overload

from stoker.arguments import at_least, check_argument, must_know
from stoker.errors import CorruptDataError, StokerError
from stoker.formats.common.checks import MAX_OFFSET
from stoker.types import Buffer, Ids
from stoker.units import parse_bytes


class ByteSource(Protocol):
    """A file that can be read from any offset. ``where``: names it in errors. ``size``: its bytes."""

    where: str
    size: int

    def read(self, start: int, end: int) -> bytes:
        """Bytes ``[start, end)``. CorruptDataError if that is not inside the file. StorageError if it can not be read."""


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

    ``begin``, ``end``: of the part of the source that it shows.
    """

    def __init__(self, source: ByteSource, begin: int = 0, end: int | None = None) -> None:
        self._source = source
        self._begin, self._size = begin, (source.size if end is None else end) - begin

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, where: int) -> int: ...
    @overload
    def __getitem__(self, where: slice) -> bytes: ...
    def __getitem__(self, where: int | slice) -> int | bytes:
        if isinstance(where, int):
            return self[where : where + 1][0]
        start, stop, _ = where.indices(self._size)
        return self._source.read(self._begin + start, self._begin + max(start, stop))

    def part(self, begin: int, end: int) -> HeadView:
        """A part of it, of which nothing is read."""
        return HeadView(self._source, self._begin + begin, self._begin + end)


def heads_of(source: ByteSource) -> Buffer | HeadView:
    """A source as a buffer, without reading all of it."""
    return source.data if isinstance(source, MappedSource) else HeadView(source)


def whole(source: ByteSource) -> Buffer:
    """All of a file."""
    return source.data if isinstance(source, MappedSource) else source.read(0, source.size)


def check_range(source: ByteSource, start: int, end: int) -> None:
    """Check that bytes are inside the source. CorruptDataError if they are not."""
    if not 0 <= start <= end <= source.size:
        raise CorruptDataError(f"{source.where}: bytes {start} to {end} lie outside of the file's {source.size} bytes")


Partition = tuple[tuple[str, Any], ...]
"""Names and values of columns that the folders of a file tell, such as ``(("year", 2024),)`` for ``year=2024/``."""


ShardSpan = tuple[int, int, int]
"""A part of a file that is a shard of its own: its first byte, the byte after its last, and its samples, at least 1."""


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """Facts that the header of a file without an index tells.

    Attributes:
        samples: how many it holds.
        spec: what its shard's description holds: ``columns`` (name to a word for its type), and what else the format
            needs to read it. Plain JSON values.
        spans: the shards that its data is read as; empty where the file is one shard. A format with a
            ``describe_shards`` of its own gives the numbers that this needs: int64, one row a shard.
    """

    samples: int
    spec: Mapping[str, Any]
    spans: Sequence[ShardSpan] | Ids = ()


def piece_bytes(settings: Mapping[str, Any], usual: int) -> int:
    """The setting ``piece_bytes``: after how many bytes a span ends with the sample that ends next.

    ConfigError if it is no size, or less than 1.
    """
    size = parse_bytes(settings.get("piece_bytes", usual), "piece_bytes")
    at_least(1, piece_bytes=size)
    return size


def check_count(count: int, where: str) -> int:
    """A file's number of samples, if it can be one. CorruptDataError if it can not."""
    if not 0 <= count <= MAX_OFFSET:
        raise CorruptDataError(f"{where}: {count} samples is impossible")
    return count


# The type of a setting of this name, the same in all formats.
_KINDS: Final[Mapping[str, Any]] = {
    "column": str,
    "columns": Sequence[str] | Mapping[str, str] | None,
    "decode": bool,
    "encodings": Mapping[str, str] | None,
    "header": bool,
    "hive": bool,
    "raw": bool | None,
    "url": bool,
}


def only_settings(settings: Mapping[str, Any], known: Sequence[str], name: str) -> None:
    """Check that a format understands all settings. ConfigError if it does not, or one is of the wrong type."""
    must_know("setting", settings, known, f"format {name!r}: ")
    for one, value in settings.items():
        if one in _KINDS:
            check_argument(f"format {name!r}", one, _KINDS[one], value)


def check_names(settings: Mapping[str, Any], specs: Iterable[Mapping[str, Any]], where: str) -> None:
    """Check that the columns for which a format's settings are exist in any of the files.

    ConfigError if one does not; names it, and the one that was probably meant.
    """
    columns = dict.fromkeys(name for spec in specs for name in spec.get("columns", ()))
    if not columns:
        return
    for setting in ("columns", "encodings", "media"):
        given = settings.get(setting) or ()
        must_know(f"{setting}: column", () if isinstance(given, str) else given, columns, f"{where}: ")
