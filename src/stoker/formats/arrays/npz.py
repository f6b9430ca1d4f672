"""NPZ: NumPy arrays in a zip archive, each a column with a row a sample.

Arrays that are stored as they are (``np.savez``) are mapped; deflated ones (``np.savez_compressed``) are decoded whole.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple

import numpy as np

from stoker.arguments import must_know
from stoker.errors import ConfigError, CorruptDataError, FormatError, StokerError
from stoker.formats.arrays.array_shards import (
    ArrayFormat,
    ArrayShard,
    check_axis,
    check_decoded,
    check_kind,
    describe_kind,
    map_array,
    rows_first,
    split_shape,
)
from stoker.formats.arrays.npy import npy_header, parse_header
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import DECODE_ERRORS, check_memory
from stoker.formats.common.container import PackedEncoder, read_offsets
from stoker.formats.common.inspect_header import ByteSource, ByteSourceFile, HeaderFacts, MappedSource, check_count
from stoker.formats.common.records import BytesLike
from stoker.types import Array, Buffer, Ids

_LOCAL: Final = struct.Struct("<4s5H3I2H")
_CENTRAL: Final = struct.Struct("<4s6H3I5H2I")
_END: Final = struct.Struct("<4s4H2IH")
_WIDE: Final = 0xFFFFFFFF  # the real number is in a zip64 record
_PAD: Final = 0xD935  # an extra field of zeros, as archives for Android have it for the same purpose
_DATE: Final = 0x21  # the first of January 1980, the earliest that there is
# A header of NumPy's, and then some.
_PEEK: Final = (1 << 16) + 64


@dataclass(frozen=True, slots=True)
class _Member:
    """An array of an archive.

    Attributes:
        start: where its bytes, as they are stored, begin.
        stored: how many there are.
        size: bytes of the NPY file that they hold.
        crc: CRC-32 of the NPY file.
    """

    start: int
    stored: int
    size: int
    deflated: bool
    crc: int


class _Entry(NamedTuple):
    """An entry of an archive's directory."""

    file: str
    at: int
    stored: int
    size: int
    method: int
    flags: int
    crc: int


_OF_ZIPFILE: Final = attrgetter(
    "filename", "header_offset", "compress_size", "file_size", "compress_type", "flag_bits", "CRC"
)


def _directory(source: ByteSource) -> list[_Entry] | None:
    """The directory of a plain archive, as NumPy writes it: many times as fast as :mod:`zipfile` reads it.

    Gives ``None`` where it is damaged, has a comment or entries of 4 GiB or more: then zipfile reads it, or says what is
    wrong. Source: PKWARE's APPNOTE.TXT 6.3, sections 4.3.12 and 4.3.16.
    """
    size = source.size
    if size < _END.size:
        return None
    head, _, _, _, count, length, start, comment = _END.unpack(source.read(size - _END.size, size))
    if head != b"PK\5\6" or comment or start + length + _END.size != size or count * _CENTRAL.size > length:
        return None
    data = source.read(start, start + length)
    found: list[_Entry] = []
    at = 0
    for _ in range(count):
        if at + _CENTRAL.size > length:
            return None
        fields = _CENTRAL.unpack_from(data, at)
        begin = at + _CENTRAL.size
        flags, stored, full, offset = fields[3], fields[8], fields[9], fields[16]
        at = begin + fields[10] + fields[11] + fields[12]
        if fields[0] != b"PK\1\2" or at > length or _WIDE in (stored, full, offset):
            return None
        try:
            name = data[begin : begin + fields[10]].decode("utf8" if flags & 0x800 else "ascii")
        except UnicodeDecodeError:
            return None
        found.append(_Entry(name, offset, stored, full, fields[4], flags, fields[7]))
    return found


def _directory_by_zipfile(source: ByteSource) -> list[_Entry]:
    """The directory of any archive. CorruptDataError if it is none."""
    file = ByteSourceFile(source)
    try:
        with zipfile.ZipFile(file) as archive:
            return [_Entry(*_OF_ZIPFILE(info)) for info in archive.infolist()]
    except (*DECODE_ERRORS, zipfile.BadZipFile, NotImplementedError, struct.error) as error:
        if file.failure is not None:
            raise file.failure from None
        raise CorruptDataError(f"{source.where}: not an NPZ file: {type(error).__name__}: {str(error)[:200]}") from None


def _members(source: ByteSource) -> dict[str, _Member]:
    """The arrays of an archive by name.

    CorruptDataError if it is none, FormatError if an array is encrypted, or compressed in a way that NumPy does not write.
    """
    where = source.where
    listed = _directory(source)
    found: dict[str, _Member] = {}
    for entry in listed if listed is not None else _directory_by_zipfile(source):
        if not entry.file.endswith(".npy"):
            continue
        name = entry.file[: -len(".npy")]
        if name in found:
            raise CorruptDataError(f"{where}: holds two arrays of the name {name!r}")
        if entry.flags & 1 or entry.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise FormatError(f"{where}: array {name!r} is encrypted or compressed otherwise than NumPy does")
        fields = _LOCAL.unpack(source.read(entry.at, entry.at + _LOCAL.size))
        if fields[0] != b"PK\3\4":
            raise CorruptDataError(f"{where}: array {name!r} does not lie where the archive's directory says")
        start = entry.at + _LOCAL.size + fields[9] + fields[10]
        deflated = entry.method == zipfile.ZIP_DEFLATED
        if start + entry.stored > source.size or (not deflated and entry.stored != entry.size):
            raise CorruptDataError(f"{where}: array {name!r} ends past the file's {source.size} bytes")
        if deflated:
            check_decoded(entry.size, entry.stored, f"{where}: array {name!r}")
        found[name] = _Member(start, entry.stored, entry.size, deflated, entry.crc)
    if not found:
        raise CorruptDataError(f"{where}: an archive without arrays")
    return found


def _header(source: ByteSource, member: _Member, where: str) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    if not member.deflated:
        return parse_header(lambda a, b: source.read(member.start + a, member.start + b), member.size, where)
    packed = source.read(member.start, member.start + min(member.stored, _PEEK))
    try:
        head = zlib.decompressobj(-15).decompress(packed, _PEEK)
    except zlib.error as error:
        raise CorruptDataError(f"{where}: {error}") from None
    return parse_header(lambda start, end: head[start:end], len(head), where)


_CHUNK: Final = 1 << 20


class NPZShard(ArrayShard):
    """An open NPZ file."""

    def __init__(self, info: ShardInfo, files: Sequence[Buffer], where: str, options: ReadOptions) -> None:
        read_offsets(info, files, where)
        self._data = files[0]
        self._last: bool | None = info.spec.get("samples_last", False)
        source = MappedSource(self._data, where)
        self._members = _members(source)
        kinds = info.spec.get("columns")
        arrays: dict[str, Array | None] = {}
        for name in kinds if kinds is not None else info.spec["column_names"]:
            here = f"{where}: array {name!r}"
            member = self._members.get(name)
            if member is None:
                raise CorruptDataError(f"{here} is missing")
            dtype, shape, fortran, start = _header(source, member, here)
            if member.deflated:
                arrays[name] = None
                continue
            if member.size > member.stored:
                raise CorruptDataError(f"{here} is cut off")
            array = map_array(self._data, dtype, shape, member.start + start, fortran, here)
            array = rows_first(array, self._last, here)
            check_kind(describe_kind(array.dtype, array.shape[1:]), kinds and kinds[name], here)
            arrays[name] = array
        super().__init__(info, where, options, arrays)

    def decode(self, name: str) -> Array:
        array = _decoded(self._data, self._members[name], f"{self.where}: array {name!r}", self.options.decoded_bytes)
        return rows_first(array, self._last, f"{self.where}: array {name!r}")


def read_arrays(data: Buffer, where: str, *, checksums: bool = False) -> dict[str, Array]:
    """The arrays of an archive by name, in its order, read-only.

    Arrays that are stored as they are become views of ``data``. ``checksums``: compare the checksums of these, too; those of
    deflated arrays always are. CorruptDataError if it is no archive of arrays, FormatError if an array is encrypted, or
    compressed in a way that NumPy does not write, MemoryError if an array would unpack to far more than the file has.
    """
    source = MappedSource(data, where)
    found: dict[str, Array] = {}
    for name, member in _members(source).items():
        here = f"{where}: array {name!r}"
        if member.deflated:
            found[name] = _decoded(data, member, here, ReadOptions().decoded_bytes)
        else:
            if checksums and zlib.crc32(memoryview(data)[member.start : member.start + member.size]) != member.crc:
                raise CorruptDataError(f"{here} does not match its checksum in the archive")
            dtype, shape, fortran, start = _header(source, member, here)
            found[name] = map_array(data, dtype, shape, member.start + start, fortran, here)
    return found


def _decoded(data: Buffer, member: _Member, where: str, limit: int) -> Array:
    """A deflated array, whose checksum is that of the archive."""
    check_memory(member.size, member.stored, limit, where)
    unpacker = zlib.decompressobj(-15)
    packed = memoryview(data)[member.start : member.start + member.stored]
    try:
        unpacked = unpacker.decompress(packed, member.size + 1)
    except zlib.error as error:
        raise CorruptDataError(f"{where}: {error}") from None
    finally:
        packed.release()
    if len(unpacked) != member.size or zlib.crc32(unpacked) != member.crc:
        raise CorruptDataError(
            f"{where} does not unpack to the size ({member.size} bytes) and checksum that the archive gives"
        )
    dtype, shape, fortran, start = parse_header(lambda a, b: unpacked[a:b], len(unpacked), where)
    return map_array(unpacked, dtype, shape, start, fortran, where)


class NPZFormat(ArrayFormat):
    """Arrays of as many rows a shard."""

    name = "npz"
    shard = "an archive of arrays"
    magic = (b"PK\3\4",)
    reader = NPZShard
    views = "runs of rows"
    suffixes = (".npz",)
    settings = ("axis", "columns")
    encoder = "stoker.formats.arrays.npz:NPZEncoder"

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
        """See :class:`~stoker.formats.common.container.PackedFormat`.

        Settings: ``axis`` (0, -1 where samples lie along the last axis, as DLIO writes them, ``None`` where a file is a
        sample), ``columns`` (names of the arrays to read, default all).
        """
        last = check_axis(settings)
        members = _members(source)
        chosen = settings.get("columns") or sorted(members)
        kinds: dict[str, str] = {}
        rows: dict[str, int] = {}
        must_know("array", chosen, sorted(members), f"{source.where}: ")
        for name in chosen:
            here = f"{source.where}: array {name!r}"
            dtype, shape, _, start = _header(source, members[name], here)
            rows[name], row = split_shape(shape, last, here)
            if start + math.prod(shape) * dtype.itemsize > members[name].size:
                raise CorruptDataError(f"{here} of {dtype} and shape {str(shape)[:200]} is cut off")
            kinds[name] = describe_kind(dtype, row)
        check_rows(rows, source.where)
        return HeaderFacts(
            check_count(next(iter(rows.values())), source.where), {"columns": kinds, "samples_last": last}
        )

    def bad_checksums(self, info: ShardInfo, data: Buffer, where: str) -> Iterator[tuple[int | None, str]]:  # noqa: ARG002
        """CRC-32 of each member of an archive, as its directory tells it."""
        try:
            with zipfile.ZipFile(io.BufferedReader(ByteSourceFile(MappedSource(data, where)), _CHUNK)) as archive:
                for one in archive.infolist():
                    try:
                        with archive.open(one) as member:
                            while member.read(_CHUNK):
                                pass
                    except (
                        zipfile.BadZipFile,
                        zlib.error,
                        EOFError,
                        NotImplementedError,
                        RuntimeError,
                        OSError,
                    ) as error:
                        yield None, f"array {one.filename!r}: {error}"
        except StokerError:
            raise
        except (zipfile.BadZipFile, ValueError, OSError, EOFError, KeyError, NotImplementedError) as error:
            raise CorruptDataError(f"{where}: not an NPZ file: {error}") from None


def check_rows(rows: Mapping[str, int], where: str) -> None:
    """Check that all columns have as many rows. FormatError if they have not."""
    if len(set(rows.values())) > 1:
        told = ", ".join(f"{name} has {count}" for name, count in rows.items())
        first = next(iter(rows))
        together = [name for name, count in rows.items() if count == rows[first]]
        raise FormatError(
            f"{where}: arrays differ in rows ({told}): choose those that belong together, as by "
            f'format_options={{"columns": {together}}}'
        )


class NPZEncoder(PackedEncoder):
    """Samples to arrays, one a column, stored in an archive without compression, each at a multiple of 64 bytes.

    ConfigError for a column whose values differ in size.
    """

    format = "npz"
    fixed_only = "NPZ"

    def __init__(self, columns: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        super().__init__(columns, settings)
        for name in columns:
            if not name or name.startswith("/") or "\\" in name or len(name.encode()) > 1000:
                raise ConfigError(f"column {name!r} can not be a file's name in an archive")

    def lay_out(self, body: memoryview, ends: Ids) -> tuple[list[BytesLike], Ids | None]:
        parts: list[BytesLike] = []
        directory: list[bytes] = []
        at = 0
        for name, array in self.arrays(body, ends).items():
            head, values = npy_header(array.dtype, array.shape), array.reshape(-1).view(np.uint8).data
            crc, size = zlib.crc32(values, zlib.crc32(head)), len(head) + len(values)
            file = f"{name}.npy".encode()
            pad = -(at + _LOCAL.size + len(file) + 4) % 64
            extra = struct.pack("<2H", _PAD, pad) + bytes(pad)
            common = (20, 0x800, 0, 0, _DATE, crc, size, size, len(file))  # 0x800: the name is UTF-8
            local = _LOCAL.pack(b"PK\3\4", *common, len(extra)) + file + extra
            directory.append(_CENTRAL.pack(b"PK\1\2", 20, *common, 0, 0, 0, 0, 0, at) + file)
            parts += [local + head, values]
            at += len(local) + size
        listed = b"".join(directory)
        count = len(directory)
        parts.append(listed + _END.pack(b"PK\5\6", 0, 0, count, count, len(listed), at, 0))
        return parts, None
