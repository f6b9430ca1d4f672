"""Memory that is used again once nobody holds it: new memory costs more than what is copied into it."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from stoker.types import Array

_ALIGN = 64


class Memory:
    """Hands out arrays, and takes those again that nothing refers to any more. Thread-safe.

    What refers to an array, or to memory of it (a view, a tensor that shares it), keeps it. So a caller that has one may
    hold it for as long as he likes; once ``count`` are held, others are made for him alone.

    Args:
        count: most arrays to keep.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._kept: list[Array] = []
        self._reset()

    def _reset(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()

    def empty(self, size: int, dtype: DTypeLike) -> Array:
        """An array of shape ``(size,)`` with whatever lies there."""
        kind: np.dtype[Any] = np.dtype(dtype)
        needed = size * kind.itemsize
        if self._pid != os.getpid():
            self._reset()  # a thread of the parent may have held it when this process was forked
        with self._lock:
            number = self._find(needed)
            if number is None:
                if len(self._kept) >= self._count:
                    self._drop_one()
                made = np.empty(needed + -needed % _ALIGN, dtype=np.uint8)
                if len(self._kept) < self._count:
                    self._kept.append(made)
            else:
                made = self._kept[number]
            # While the lock is held: a view that another thread must see.
            return made[:needed].view(kind)

    def _find(self, needed: int) -> int | None:
        """Number of the smallest free array that is large enough, and not far too large."""
        best: int | None = None
        for number in range(len(self._kept)):
            size = self._kept[number].nbytes
            if (
                needed <= size <= 2 * needed + 4096
                and sys.getrefcount(self._kept[number]) <= _FREE
                and (best is None or size < self._kept[best].nbytes)
            ):
                best = number
        return best

    def _drop_one(self) -> None:
        """Forget a free array, as none that is free serves: sizes have changed."""
        for number in range(len(self._kept)):
            if sys.getrefcount(self._kept[number]) <= _FREE:
                del self._kept[number]
                return

    def __getstate__(self) -> dict[str, int]:
        return {"count": self._count}

    def __setstate__(self, state: dict[str, int]) -> None:
        Memory.__init__(self, state["count"])


def _references() -> int:
    """The result of ``getrefcount`` for an array that only a list refers to."""
    kept = [np.empty(1, dtype=np.uint8)]
    return sys.getrefcount(kept[0])


_FREE = _references()
