"""Files of this machine: read through the page cache, around it, or mapped."""

from __future__ import annotations

import errno
import mmap
import os
from abc import abstractmethod
from pathlib import Path
from typing import Final

from stoker.bench.clients.base import Client, Data
from stoker.errors import ConfigError, CorruptDataError, ObjectNotFoundError
from stoker.storage.files import map_file, open_regular, read_regular

_ALIGNED: Final = 4096
"""Alignment of offsets, sizes and memory for O_DIRECT: no device of today needs more."""
_CHUNK: Final = 1 << 30


class _Files(Client):
    def read(self, name: str) -> Data:
        path = Path(self.location.url.removeprefix("file://")) / name
        try:
            return self._read(path)
        except FileNotFoundError:
            raise ObjectNotFoundError(f"{path} is not there: generate the data first", url=str(path)) from None

    @abstractmethod
    def _read(self, path: Path) -> Data: ...


class Buffered(_Files):
    """``read()``: through the page cache, with a copy."""

    def _read(self, path: Path) -> Data:
        return read_regular(path)


class Mapped(_Files):
    """Maps the file: pages are read as they are touched, by decoding, or by the copy of bytes that are not decoded."""

    def _read(self, path: Path) -> Data:
        return map_file(path)


class Direct(_Files):
    """``O_DIRECT`` into aligned memory: around the page cache."""

    @classmethod
    def available(cls) -> str | None:
        return None if hasattr(os, "O_DIRECT") else "this operating system has no O_DIRECT: use buffered"

    def _read(self, path: Path) -> Data:
        try:
            descriptor, _ = open_regular(path, os.O_DIRECT)
            try:
                return _read_aligned(path, descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            raise ConfigError(
                f"the file system of {path} refuses O_DIRECT: use storage.client buffered or mmap there"
            ) from None


def _read_aligned(path: Path, descriptor: int) -> Data:
    size = os.fstat(descriptor).st_size
    if not size:
        return b""
    # Anonymous maps begin at a page's first byte.
    memory = mmap.mmap(-1, -(-size // _ALIGNED) * _ALIGNED)
    view = memoryview(memory)
    done = 0
    while done < size:
        got = os.preadv(descriptor, [view[done : done + _CHUNK]], done)
        if not got or (got % _ALIGNED and done + got < size):
            raise CorruptDataError(f"{path}: {done + got} bytes came, it has {size}: it was cut off while it was read")
        done += got
    return view[:size].toreadonly()
