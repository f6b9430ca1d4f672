"""Compressed files that others wrote, decompressed from disk to disk, however large they are."""

from __future__ import annotations

import contextlib
import io
import os
import zlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from stoker.cache.range_fetch import check_file, fetch_part
from stoker.concurrency.spans.recorder import Stage, span
from stoker.errors import CorruptDataError, StokerError
from stoker.formats.base import UNKNOWN, FilePart
from stoker.formats.common.compression import GzipFile, with_remedy
from stoker.storage import is_local
from stoker.storage.files.copying import write_all
from stoker.storage.files.own import open_own

if TYPE_CHECKING:
    from stoker.storage import Store

_CHUNK: Final = 4 << 20
_STRETCH: Final = 32 << 20
# Text that is compressed to less than this part of itself is none that anybody trains on, but a bomb.
_MOST_RATIO: Final = 256
_ALWAYS: Final = 1 << 30


def unpack_file(store: Store, packed: FilePart, codec: str, size: int, into: Path, scratch: Path) -> int:
    """Fetch a compressed file, unless it is local, and decompress it in a few MB of memory.

    CorruptDataError if the file is damaged, cut off, not of that size, or was replaced after it was indexed. StorageError or
    OSError if reading or writing failed. ``codec``: ``gz`` or ``zstd``; a file may consist of several streams. ``size``:
    bytes that must come out; :data:`~stoker.formats.base.UNKNOWN` where nothing tells. ``scratch``: file in which stretches
    of the compressed file lie meanwhile. Gives the bytes that were fetched from a store that is not local.
    """
    where = store.url_of(packed.key)
    directory = is_local(store.url)
    if directory is not None:
        source = directory / packed.key
        check_file(source, os.stat(source), packed)
        with span(Stage.DECOMPRESS, packed.size):
            _decompress(source, codec, packed.size, size, into, where)
        return 0
    with _Fetched(store, packed, scratch) as fetched:
        _decompress(fetched, codec, packed.size, size, into, where)
        return fetched.bytes


class _Fetched(io.RawIOBase):
    """A file of a store that is read once through, of which a stretch at a time lies on disk.

    So what comes out grows while it is fetched, by which others see that it is, and compressed bytes take little room.
    """

    def __init__(self, store: Store, packed: FilePart, scratch: Path) -> None:
        super().__init__()
        self.bytes = 0
        self._store, self._packed, self._scratch = store, packed, scratch
        self._stretch: BinaryIO | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while True:
            if self._stretch is not None and (count := self._stretch.readinto(buffer)):  # type: ignore[attr-defined]
                return int(count)
            first, end = self.bytes, min(self.bytes + _STRETCH, self._packed.size)
            self.close_stretch()
            if first == end:
                return 0
            self.bytes += fetch_part(self._store, replace(self._packed, starts=(first,), ends=(end,)), self._scratch)
            self._stretch = open(self._scratch, "rb")  # noqa: SIM115 - closed with this

    def close_stretch(self) -> None:
        """Release what is on disk."""
        if self._stretch is not None:
            self._stretch.close()
            self._stretch = None

    def close(self) -> None:
        self.close_stretch()
        super().close()


def _decompress(source: Path | _Fetched, codec: str, packed: int, size: int, into: Path, where: str) -> None:
    most = max(_ALWAYS, packed * _MOST_RATIO) if size == UNKNOWN else size
    written = 0
    with open(open_own(into, os.O_TRUNC), "wb", buffering=0) as out, contextlib.ExitStack() as held:
        stream = _opened(source, codec, held)
        buffer = memoryview(bytearray(_CHUNK))  # of our own, for pyarrow would lose one at each damaged file
        while packed and (count := _read(stream, buffer, where, codec)):
            written += count
            if written > most:
                raise CorruptDataError(
                    f"{where}: {packed} bytes of {codec} hold more than {most}: "
                    + ("decompress it by hand if that is right" if size == UNKNOWN else "it was replaced since")
                )
            write_all(out.fileno(), buffer[:count])
    if size not in (UNKNOWN, written):
        raise CorruptDataError(f"{where}: holds {written} bytes of text, and held {size} when it was indexed")


def _opened(source: Path | _Fetched, codec: str, held: contextlib.ExitStack) -> Any:
    """Opens a file so that ``readinto`` gives what comes out. What has to be closed is put on a stack."""
    if codec == "gz":
        return GzipFile(held.enter_context(open(source, "rb")) if isinstance(source, Path) else source)
    import pyarrow as pa

    given = os.fspath(source) if isinstance(source, Path) else pa.PythonFile(source, "r")
    return held.enter_context(pa.input_stream(given, compression=codec))


def _read(stream: Any, buffer: memoryview, where: str, codec: str) -> int:
    try:
        count: int = stream.readinto(buffer)
    except StokerError:  # fetching failed
        raise
    except (OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise CorruptDataError(f"{where}: not {codec}, damaged, or cut off: {with_remedy(error)}") from None
    return count
