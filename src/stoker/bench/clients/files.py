"""Files of this machine: read through the page cache, around it, or mapped."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path
from typing import Final

from stoker.bench.clients.base import ClientLocation, Data
from stoker.errors import ConfigError, CorruptDataError, ObjectNotFoundError
from stoker.storage import is_local
from stoker.storage.files import map_file, open_regular, read_regular

__all__ = ["Buffered", "Direct", "Mapped"]

_ALIGNED: Final = 4096
"""What O_DIRECT needs of places, sizes and memory: no device of today wants more."""
_PIECE: Final = 1 << 30


def _folder(url: str) -> Path:
    return Path(url.removeprefix("file://"))


def _gone(path: Path, error: OSError) -> Exception:
    if isinstance(error, FileNotFoundError):
        return ObjectNotFoundError(f"{path} is not there: generate the data first", url=str(path))
    return error


class _Files:
    def __init__(self, place: ClientLocation) -> None:
        self._folder = _folder(place.url)

    def close(self) -> None:
        """See :class:`~stoker.bench.clients.base.Client`."""


class _Kind:
    def available(self) -> str | None:
        """See :class:`~stoker.bench.clients.base.ClientMaker`."""
        return None

    def reads(self, url: str) -> bool:
        """See :class:`~stoker.bench.clients.base.ClientMaker`."""
        return is_local(url) is not None


class _BufferedFiles(_Files):
    def read(self, name: str) -> Data:
        path = self._folder / name
        try:
            return read_regular(path)
        except OSError as error:
            raise _gone(path, error) from None


class Buffered(_Kind):
    """``read()``: through the page cache, with a copy."""

    def open(self, place: ClientLocation) -> _BufferedFiles:
        """See :class:`~stoker.bench.clients.base.ClientMaker`."""
        return _BufferedFiles(place)


class _DirectFiles(_Files):
    def read(self, name: str) -> Data:
        path = self._folder / name
        try:
            descriptor, _ = open_regular(path, os.O_DIRECT)
        except OSError as error:
            raise self._refused(path, error) or _gone(path, error) from None
        try:
            return self._whole(path, descriptor)
        finally:
            os.close(descriptor)

    def _whole(self, path: Path, descriptor: int) -> Data:
        size = os.fstat(descriptor).st_size
        if not size:
            return b""
        # Anonymous maps begin at a page's first byte.
        memory = mmap.mmap(-1, -(-size // _ALIGNED) * _ALIGNED)
        view = memoryview(memory)
        done = 0
        while done < size:
            try:
                got = os.preadv(descriptor, [view[done : done + _PIECE]], done)
            except OSError as error:
                raise self._refused(path, error) or error from None
            if not got or (got % _ALIGNED and done + got < size):
                raise CorruptDataError(
                    f"{path}: {done + got} bytes came, it has {size}: it was cut off while it was read"
                )
            done += got
        return view[:size].toreadonly()

    @staticmethod
    def _refused(path: Path, error: OSError) -> Exception | None:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            return None
        return ConfigError(f"the file system of {path} refuses O_DIRECT: use storage.client buffered or mmap there")


class Direct(_Kind):
    """``O_DIRECT`` into aligned memory: around the page cache."""

    def available(self) -> str | None:
        """See :class:`~stoker.bench.clients.base.ClientMaker`."""
        return None if hasattr(os, "O_DIRECT") else "this operating system has no O_DIRECT: use buffered"

    def open(self, place: ClientLocation) -> _DirectFiles:
        """See :class:`~stoker.bench.clients.base.ClientMaker`."""
        return _DirectFiles(place)


class _MappedFiles(_Files):
    def read(self, name: str) -> Data:
        path = self._folder / name
        try:
            return map_file(path)
        except OSError as error:
            raise _gone(path, error) from None


class Mapped(_Kind):
    """Maps the file: pages are read as they are touched, by decoding, or by the copy of bytes that are not decoded."""

    def open(self, place: ClientLocation) -> _MappedFiles:
        """See :class:`~stoker.bench.clients.base.ClientMaker`."""
        return _MappedFiles(place)
