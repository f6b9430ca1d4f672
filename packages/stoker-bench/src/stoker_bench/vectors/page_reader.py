"""Reading of several pages of a file at once: Linux's asynchronous reads, as DiskANN uses them, past the page cache."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError, CorruptDataError
from stoker.storage.files.file_errors import file_errors
from stoker_bench.measure.call_times import CallTimer

PAGE: Final = 4096
_DIRECT: Final = getattr(os, "O_DIRECT", 0)
_CALLS: Final = {"x86_64": (206, 209, 208, 207), "aarch64": (0, 2, 4, 1)}
"""Numbers of io_setup, io_submit, io_getevents and io_destroy."""
_REQUEST: Final = np.dtype(
    [
        *(("data", "<u8"), ("key", "<u4"), ("flags", "<u4"), ("code", "<u2"), ("priority", "<i2"), ("file", "<u4")),
        *(
            ("buffer", "<u8"),
            ("bytes", "<u8"),
            ("offset", "<i8"),
            ("reserved", "<u8"),
            ("more", "<u4"),
            ("event", "<u4"),
        ),
    ]
)
_EVENT: Final = np.dtype([("data", "<u8"), ("request", "<u8"), ("result", "<i8"), ("other", "<i8")])


class PageReader:
    """Reads up to ``most`` units of a file at once. One thread uses it.

    Args:
        path: the file.
        unit: bytes of a read, a multiple of 4096.
        most: reads at once.
        direct: by ``O_DIRECT``; else through the page cache, one after the other.

    Attributes:
        path: of the file.
        buffers: what was read last; uint8, shape ``(most, unit)``.

    Raises:
        StorageError: the file can not be opened.
        ConfigError: its file system refuses ``O_DIRECT``, or this kernel asynchronous reads.
    """

    def __init__(self, path: str, unit: int, most: int, *, direct: bool) -> None:
        self.path, self._unit, self._most, self._direct = path, unit, most, direct
        memory = mmap.mmap(-1, unit * most)
        self.buffers: NDArray[np.uint8] = np.frombuffer(memory, np.uint8).reshape(most, unit)
        self._views = [memoryview(memory)[at * unit : (at + 1) * unit] for at in range(most)]
        self._context = ctypes.c_ulong(0)
        with file_errors(path):
            try:
                self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (_DIRECT if direct else 0))
            except OSError as error:
                if direct and error.errno == errno.EINVAL:
                    raise ConfigError(f"{path}: this file system refuses O_DIRECT: set vectors.direct=false") from None
                raise
        self.size = os.fstat(self._file).st_size
        if direct:
            self._begin()

    def _begin(self) -> None:
        calls = _CALLS.get(platform.machine())
        if calls is None:
            self.close()
            raise ConfigError(f"asynchronous reads are not known of {platform.machine()}: set vectors.direct=false")
        self._setup, self._submit, self._get, self._destroy = calls
        self._system = ctypes.CDLL(None, use_errno=True).syscall
        self._system.restype = ctypes.c_long
        self._requests = np.zeros(self._most, _REQUEST)
        self._requests["file"], self._requests["bytes"] = self._file, self._unit
        self._requests["data"] = np.arange(self._most)
        self._requests["buffer"] = self.buffers.ctypes.data + self._unit * np.arange(self._most)
        self._pointers = (self._requests.ctypes.data + _REQUEST.itemsize * np.arange(self._most)).astype(np.uint64)
        self._events = np.zeros(self._most, _EVENT)
        self._at = [ctypes.c_void_p(one.ctypes.data) for one in (self._pointers, self._events)]
        if self._system(self._setup, ctypes.c_long(self._most), ctypes.byref(self._context)) < 0:
            reason = os.strerror(ctypes.get_errno())
            self.close()
            raise ConfigError(f"this kernel refuses asynchronous reads ({reason}): set vectors.direct=false")

    def close(self) -> None:
        """Close the file."""
        if self._context.value:
            self._system(self._destroy, self._context)
            self._context.value = 0
        os.close(self._file)

    def read(self, offsets: NDArray[np.int64], timer: CallTimer) -> None:
        """Read a unit from each offset; the first is in ``buffers[0]``.

        Raises:
            StorageError: a read failed.
            CorruptDataError: the file is too short.
        """
        with file_errors(self.path):
            if not self._direct:
                for view, offset in zip(self._views, offsets.tolist(), strict=False):
                    self._check(timer.call(os.preadv, self._file, [view], offset))
                return
            count = len(offsets)
            self._requests["offset"][:count] = offsets
            timer.call(self._read_at_once, count)
            for result in self._events["result"][:count].tolist():
                self._check(result)

    def _read_at_once(self, count: int) -> None:
        pointers, events = self._at
        sent = done = 0
        while sent < count:
            step = ctypes.c_void_p((pointers.value or 0) + 8 * sent)
            sent += self._call(self._submit, ctypes.c_long(count - sent), step)
        while done < count:
            place = ctypes.c_void_p((events.value or 0) + _EVENT.itemsize * done)
            left = ctypes.c_long(count - done)
            done += self._call(self._get, left, left, place, ctypes.c_void_p(None))

    def _call(self, number: int, *arguments: object) -> int:
        while True:
            found = int(self._system(number, self._context, *arguments))
            if found >= 0:
                return found
            code = ctypes.get_errno()
            if code not in (errno.EINTR, errno.EAGAIN):
                raise OSError(code, os.strerror(code))

    def _check(self, result: int) -> None:
        if result < 0:
            raise OSError(-result, os.strerror(-result))
        if result != self._unit:
            raise CorruptDataError(f"{self.path}: {result} of {self._unit} bytes came: the file is too short")
