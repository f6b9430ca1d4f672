"""Files whose members each tell where the next one is: where members are large, only heads are read.

How large depends on the store: a step takes a request, and in the time of one a near store gives 100 KB of a file that is
fetched whole, a distant one 1 MB, and a disk 10 KB. So steps are timed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from stoker.formats.common.byte_source import check_range
from stoker.policy import READ_WHOLE
from stoker.storage import Store, is_local

LOCAL_BLOCK: Final = 1 << 12
"""Bytes that are read of a local file for a head: as many as the kernel reads anyway."""
# What a request brings: a head, and small members behind it. See benchmarks/header_bytes.py.
_BLOCK: Final = 1 << 14
# Steps are to be longer than so many blocks, so that at most a quarter of the bytes is fetched.
_BLOCKS: Final = 4
# Bytes a second that one connection brings of a file that is fetched whole: where steps go on slower, that is better.
_RATE: Final = 50e6
# Requests before steps are judged, for the first members may be other than the rest.
_TRIAL: Final = 8


class ShortStepsError(Exception):
    """Heads lie so close that it is better to have all of the file."""


class HeaderWalk:
    """Sources for the files of one dataset. Once the heads of one lie too close, the others are not tried.

    Args:
        store: where the files are.
    """

    def __init__(self, store: Store) -> None:
        local = is_local(store.url) is not None
        self.block = LOCAL_BLOCK if local else _BLOCK
        self._least = READ_WHOLE if local else _TRIAL * _BLOCKS * _BLOCK
        self.short = threading.Event()

    def worth_trying(self, size: int) -> bool:
        """Whether a file of so many bytes may be read by its heads, and need not be fetched whole."""
        return not self.short.is_set() and size > self._least

    def source(self, read: Callable[[int, int], bytes], size: int, where: str) -> WalkedSource:
        """A source that reads heads.

        Args:
            read: gives bytes ``[start, end)`` of the file.
            size: its bytes.
            where: names it in errors.
        """
        return WalkedSource(self, read, size, where)


class WalkedSource:
    """A file of a store that is read from its begin to its end with long steps.

    Raises:
        ShortStepsError: by :meth:`read`, once steps were short.
    """

    def __init__(self, walk: HeaderWalk, read: Callable[[int, int], bytes], size: int, where: str) -> None:
        self.where = where
        self.size = size
        self._read = read
        self._size = walk.block
        self._short = walk.short
        self._first = 0
        self._reached = 0
        self._block = b""
        self._requests = 0
        self._seconds = 0.0

    def read(self, start: int, end: int) -> bytes:
        """See :class:`~stoker.formats.common.byte_source.ByteSource`."""
        check_range(self, start, end)
        if end - start > self._size:  # what a member holds, not a head
            return self._read(start, end)
        if not (self._first <= start and end <= self._first + len(self._block)):
            self._reached = max(self._reached, start)  # at the end, some members are looked at again
            if self._short.is_set() or self._is_slow():
                self._short.set()
                raise ShortStepsError
            begun = time.monotonic()
            self._block = self._read(start, min(self.size, start + self._size))
            self._seconds += time.monotonic() - begun
            self._requests += 1
            self._first = start
        return self._block[start - self._first : end - self._first]

    def _is_slow(self) -> bool:
        if self._requests < _TRIAL:
            return False
        return self._reached < max(self._requests * _BLOCKS * self._size, self._seconds * _RATE)
