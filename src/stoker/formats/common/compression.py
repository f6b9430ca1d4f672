"""The codecs that shard files may be compressed with, by their names in the index: ``zstd``, ``zstd:7``, ...

Decompression is given the size that must come out, never allocates or writes more than that, and fails unless
exactly that many bytes came out: a small file that claims to be a huge one costs nothing.
"""

from __future__ import annotations

import io
import os
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from stoker.display import unknown_name
from stoker.errors import CorruptDataError, FormatError
from stoker.types import PooledBuffer

PACKED: Final[Mapping[str, str]] = {".gz": "gz", ".zst": "zstd"}
"""Ends of the names of files that others compressed, and their codecs."""
_NUMBERS: Final = re.compile(r"-[0-9]{5,}-of-[0-9]{5,}$", re.IGNORECASE)


class _Codec(NamedTuple):
    levels: range | None
    default: int | None
    module: str  # of cramjam, which is imported when something is compressed or decompressed
    max_ratio: int  # no compressed byte stands for more bytes than this


# Snappy is the raw format, without frames; the others are self-delimiting streams, of one or more members.
_CODECS: Final = {
    "br": _Codec(range(12), 11, "brotli", 1 << 22),
    "bz2": _Codec(range(1, 10), 9, "bzip2", 1 << 20),
    "gz": _Codec(range(10), 9, "gzip", 1 << 11),
    "snappy": _Codec(None, None, "snappy", 1 << 6),
    "zstd": _Codec(range(1, 23), 3, "zstd", 1 << 16),
}

# Bytes that are read at once. What follows the end of a member is copied, so they are few.
_STEP: Final = 1 << 16

_B = TypeVar("_B", bytearray, PooledBuffer)

# How the codecs say that a buffer can not hold what comes out; nothing else of the error tells.
_TOO_SMALL = ("failed to write whole buffer", "smaller than required")


class GzipFile:
    """A file of gzip, decompressed: its members one after the other, behind any of which may be zeros, as of tapes.

    ``members``: the parts of the file that are members, of those that were read whole.
    """

    def __init__(self, file: io.RawIOBase | io.BufferedIOBase) -> None:
        self.members: list[slice] = []
        self._file = file
        self._data = b""
        self._begin = self._read = 0
        self._inflater: Any = None

    def readinto(self, buffer: memoryview) -> int:
        """Fills the beginning of a buffer; 0 at the end. zlib.error if it is no gzip, damaged, or cut off."""
        while True:
            if not self._data:
                self._data = self._file.read(_STEP) or b""
                self._read += len(self._data)
            ended = not self._data
            if self._inflater is None:
                if self.members:
                    self._data = self._data.lstrip(b"\0")
                if not self._data and ended:
                    return 0
                if not self._data:
                    continue
                self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 16)
                self._begin = self._read - len(self._data)
            made = self._inflater.decompress(self._data, len(buffer))
            self._data = self._inflater.unconsumed_tail
            if self._inflater.eof:
                self._data, self._inflater = self._inflater.unused_data, None
                self.members.append(slice(self._begin, self._read - len(self._data)))
            elif ended and not made:
                raise zlib.error("it ends within a member")
            if made:
                buffer[: len(made)] = made
                return len(made)


@dataclass(frozen=True, slots=True)
class Compression:
    """One codec at one level. Threads may share it; the work releases the GIL.

    Attributes:
        text: as the index spells it (``"zstd:7"``).
        extension: what it adds to a file's name after a dot (``"zstd"``), which is also the codec's name.
        level: how hard to compress; ``None`` for a codec without levels.
    """

    text: str
    extension: str
    level: int | None

    def compress(self, data: bytes | bytearray | memoryview) -> memoryview:
        """Compress a whole file."""
        return memoryview(self._function("compress")(data, *(() if self.level is None else (self.level,))))

    def decompress(self, data: bytes | bytearray | memoryview, size: int) -> bytearray:
        """Decompress a whole file to exactly ``size`` bytes; see :meth:`decompress_in`."""
        return self.decompress_in(data, size, bytearray)

    def decompress_in(self, data: bytes | bytearray | memoryview, size: int, memory: Callable[[int], _B]) -> _B:
        """Decompress a whole file to exactly ``size`` bytes. CorruptDataError if the data is damaged, or is not of that size.

        ``data``: the compressed file. ``size``: bytes that must come out. ``memory``: gives a writable buffer of so many
        bytes.
        """
        # Refuse an absurd claim before allocating for it; 64 bytes are for headers.
        if size > (len(data) + 64) * _CODECS[self.extension].max_ratio:
            raise CorruptDataError(f"{len(data)} bytes of {self.extension} can not hold {size} bytes")
        out = memory(size)
        self.decompress_into(data, out)
        return out

    def decompress_unsized(self, data: bytes | bytearray | memoryview, limit: int) -> memoryview:
        """Decompress a file whose size is not known: for a shard without an index.

        CorruptDataError if the data is damaged, or holds more than ``limit`` bytes.
        """
        import cramjam

        size = min(limit, max(1 << 16, 4 * len(data)))
        while True:
            out = bytearray(size)
            try:
                written = self._decompress_into(data, out)
            except cramjam.DecompressionError as error:
                too_small = any(text in str(error) for text in _TOO_SMALL)
                if not too_small or size >= limit:
                    raise CorruptDataError(
                        f"{len(data):,} bytes are not valid {self.extension} data of at most {limit:,} bytes "
                        f"({with_remedy(error)}): damaged, or made to fill memory; if it is right, decompress it by hand"
                    ) from error
            else:
                return memoryview(out)[:written]
            size = min(limit, 4 * size)

    def decompress_into(self, data: bytes | bytearray | memoryview, out: Any) -> None:
        """Decompress a whole file into a writable buffer (an ``mmap``, say) that it must fill exactly.

        CorruptDataError if the data is damaged, or is not of the buffer's size.
        """
        import cramjam

        size = memoryview(out).nbytes
        try:
            written = self._decompress_into(data, out)
        except cramjam.DecompressionError as error:
            raise CorruptDataError(
                f"not {size} bytes compressed with {self.extension}: {with_remedy(error)}"
            ) from error
        if written != size:
            raise CorruptDataError(f"{self.extension} holds {written} bytes where {size} were expected")

    def _decompress_into(self, data: Any, out: Any) -> int:
        """Bytes that cramjam has written into a buffer."""
        import cramjam

        function = self._function("decompress", "_into")
        try:
            written: int = function(data, out)
        except cramjam.DecompressionError as error:
            if self.extension != "gz" or any(text in str(error) for text in _TOO_SMALL):
                raise
            written = function(_without_zeros(data, memoryview(out).nbytes), out)
        return written

    def _function(self, does: str, how: str = "") -> Callable[..., Any]:
        import cramjam

        raw = "_raw" if self.extension == "snappy" else ""
        function: Callable[..., Any] = getattr(getattr(cramjam, _CODECS[self.extension].module), f"{does}{raw}{how}")
        return function


def _without_zeros(data: Any, most: int) -> bytes | memoryview:
    """A file of gzip without the zeros behind its members; as it is where it holds more than so many bytes, or is damaged."""
    view = memoryview(data)
    file, buffer = GzipFile(io.BytesIO(view)), memoryview(bytearray(_STEP))
    try:
        while count := file.readinto(buffer):
            most -= count
            if most < 0:
                return view
    except zlib.error:
        return view
    return b"".join([view[member] for member in file.members])


def with_remedy(error: Exception) -> str:
    """Why decompressing failed, and what to do where the file is no damaged one."""
    if "too much memory" not in str(error):
        return str(error)
    return (
        f"{error}: its window is larger than 128 MiB, as of `zstd --long=31`. Write it with a smaller one: "
        "`zstd -dc --long=31 FILE | zstd > NEW`"
    )


def parse_compression(text: str) -> Compression:
    """The codec and level that ``text`` names: ``codec`` or ``codec:level``.

    FormatError for no such codec, or no such level of it.
    """
    name, colon, digits = text.partition(":")
    codec = _CODECS.get(name)
    if codec is None:
        raise FormatError(unknown_name("compression", text, compression_names()))
    if not colon:
        return Compression(text, name, codec.default)
    if codec.levels is None:
        raise FormatError(f"compression {text!r}: {name} has no levels")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 2 and int(digits) in codec.levels):
        raise FormatError(
            f"compression {text!r}: the levels of {name} are {codec.levels.start} to {codec.levels.stop - 1}"
        )
    return Compression(text, name, int(digits))


def codec_of(name: str) -> str | None:
    """The codec that the end of a file's name tells; ``None`` for none."""
    name = typed_name(name)
    return next((codec for suffix, codec in PACKED.items() if name.endswith(suffix)), None)


def typed_name(name: str) -> str:
    """A file's name in lower case, of which the end tells the format: without TensorFlow's numbers, ``-00000-of-00002``."""
    name = name.lower()
    return _NUMBERS.sub("", name) if "-of-" in name else name


def unpacked_name(name: str) -> str:
    """The name of a compressed file's contents."""
    numbers = _NUMBERS.search(name)
    end = numbers[0] if numbers else ""
    return os.path.splitext(name.removesuffix(end))[0] + end


def compression_names() -> list[str]:
    """Names of all codecs, without levels."""
    return list(_CODECS)
