"""Files whose members each tell where the next one is, on object stores: where members are large, only heads are read.

How large depends on the store: a step takes a request, and in the time of one a near store gives 100 KB of a file that is
fetched whole, and a distant one 1 MB. So steps are timed.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from stoker.formats.common.byte_source import check_range
from stoker.storage import Store

# What a request brings: a head, and small members behind it. See benchmarks/header_bytes.py.
_BLOCK: Final = 1 << 14
# Steps are to be longer than this, so that at most a quarter of the bytes is fetched.
_STEP: Final = 4 * _BLOCK
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
        self._store = store
        self._short = threading.Event()

    def source(self, key: str, size: int, where: str) -> WalkedSource | None:
        """A source that reads heads, or ``None`` where the file had better be fetched whole."""
        if self._short.is_set() or size < _TRIAL * _STEP:
            return None
        return WalkedSource(self._store, key, size, where, self._short)


class WalkedSource:
    """A file of a store that is read from its begin to its end with long steps.

    Raises:
        ShortStepsError: by :meth:`read`, once steps were short.
    """

    def __init__(self, store: Store, key: str, size: int, where: str, short: threading.Event) -> None:
        self.where = where
        self.size = size
        self._store = store
        self._key = key
        self._short = short
        self._first = 0
        self._block = b""
        self._requests = 0
        self._seconds = 0.0

    def read(self, start: int, end: int) -> bytes:
        """See :class:`~stoker.formats.common.byte_source.ByteSource`."""
        check_range(self, start, end)
        if end - start > _BLOCK:  # what a member holds, not a head
            return self._store.get_range(self._key, start, end)
        if not (self._first <= start and end <= self._first + len(self._block)):
            if self._short.is_set() or self._is_slow(start):
                self._short.set()
                raise ShortStepsError
            begun = time.monotonic()
            self._block = self._store.get_range(self._key, start, min(self.size, start + _BLOCK))
            self._seconds += time.monotonic() - begun
            self._requests += 1
            self._first = start
        return self._block[start - self._first : end - self._first]

    def _is_slow(self, at: int) -> bool:
        if self._requests < _TRIAL:
            return False
        return at < max(self._requests * _STEP, self._seconds * _RATE)
