"""Checksums and counts that files of a format carry themselves, whatever is decoded of them."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from stoker.errors import CorruptDataError, StokerError
from stoker.formats.base import ShardInfo
from stoker.formats.common.byte_source import ByteSourceFile, MappedSource
from stoker.formats.parquet.footer.facts import RowGroup
from stoker.formats.parquet.pages.page_headers import bad_pages
from stoker.formats.tfrecord.crc32c import crc32c_function, mask
from stoker.formats.tfrecord.reader import read_frames
from stoker.types import Buffer

__all__ = ["CHECKSUMS", "bad_checksums"]

_PIECE: Final = 1 << 20


def bad_checksums(info: ShardInfo, data: Buffer, where: str) -> Iterator[tuple[int | None, str]]:
    """Row (if it is of one) and message of each checksum of a shard that its bytes do not have.

    Args:
        info: the shard; formats that carry no checksums have nothing to say.
        data: its file.
        where: names it.

    Raises:
        CorruptDataError: the file is too damaged to find its checksums.
    """
    if isinstance(info.detail, RowGroup):
        return _parquet(info, info.detail, data)
    check = CHECKSUMS.get(info.format)
    return iter(()) if check is None else check(data, where)


def _npz(data: Buffer, where: str) -> Iterator[tuple[int | None, str]]:
    """CRC-32 of each member of an archive, as its directory tells it."""
    try:
        with zipfile.ZipFile(io.BufferedReader(ByteSourceFile(MappedSource(data, where)), _PIECE)) as archive:
            for info in archive.infolist():
                try:
                    with archive.open(info) as member:
                        while member.read(_PIECE):
                            pass
                except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
                    yield None, f"array {info.filename!r}: {error}"
    except StokerError:
        raise
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, KeyError, NotImplementedError) as error:
        raise CorruptDataError(f"{where}: not an NPZ file: {error}") from None


def _tfrecord(data: Buffer, where: str) -> Iterator[tuple[int | None, str]]:
    """CRC-32C of each record; lengths and theirs are checked when a file is opened."""
    bounds = read_frames(data, None, where).tolist()
    crc = crc32c_function()
    for row in range(len(bounds) - 1):
        begin, end = bounds[row] + 12, bounds[row + 1] - 4
        if mask(crc(bytes(data[begin:end]))) != int.from_bytes(data[end : end + 4], "little"):
            yield row, f"record {row} does not have its checksum"


def _png(data: Buffer, where: str) -> Iterator[tuple[int | None, str]]:
    """CRC-32 of each chunk (PNG specification, section 5.3); all bytes belong to one."""
    at, size, kind = 8, len(data), b""
    while kind != b"IEND":
        length = int.from_bytes(data[at : at + 4], "big")
        end = at + 12 + length
        kind = bytes(data[at + 4 : at + 8])
        if end > size:
            raise CorruptDataError(f"{where}: a PNG file that is cut off in its chunk {kind!r} at byte {at}")
        if zlib.crc32(memoryview(data)[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
            yield 0, f"the chunk {kind!r} at byte {at} does not have its checksum"
        at = end


def _parquet(info: ShardInfo, group: RowGroup, data: Buffer) -> Iterator[tuple[int | None, str]]:
    """Pages of each chunk of a row group: that they are there, as many values, and CRC-32 where they carry it."""
    part = info.raw[0].part
    assert part is not None  # as whoever makes a RowGroup describes its file
    paths = [path for column in group.file.schema.columns for path in column.paths]
    for path, facts in zip(paths, group.file.chunks[group.place], strict=True):
        for message in bad_pages(data, facts, part.window[0]):
            yield None, f"row group {group.number}, column {'.'.join(path)!r}: {message}"


CHECKSUMS: Final[Mapping[str, Callable[[Buffer, str], Iterator[tuple[int | None, str]]]]] = {
    "npz": _npz,
    "png": _png,
    "tfrecord": _tfrecord,
}
"""How each format is checked that has checksums of all of its content."""
