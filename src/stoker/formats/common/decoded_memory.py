"""Decoded row groups that one process keeps, within a number of bytes.

Decoding a row group serves all rows that are taken from it, so it is kept until room is needed. What goes then is chosen
blindly among all but the newest row group's columns: shuffled samples come from the same row groups over and over, and
dropping the least recently used go keeps none of them as soon as they do not all fit.
"""

from __future__ import annotations

import itertools
import logging
import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Any, Final, Protocol

from stoker.concurrency.forks import ProcessLock
from stoker.integers import GOLDEN, MASK

logger = logging.getLogger(__name__)

# So many entries are kept before those of readers that are gone are looked for.
_MANY: Final = 256
# Decoded so many times each, columns are said to be decoded again and again.
_TOO_OFTEN: Final = 8


class Sized(Protocol):
    """Something decoded."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it holds."""


class Shelf:
    """One reader's decoded columns, by name. They are freed with it."""

    __slots__ = ("__weakref__", "columns", "decodes")

    def __init__(self) -> None:
        self.columns: dict[str, Any] = {}
        self.decodes = 0


class DecodedMemory:
    """Keeps what was decoded, of all readers that share it. Thread-safe; a forked process continues with what is there.

    ``limit``: bytes to keep; of the reader that decoded last, all is kept whatever its size: each batch needs it again.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._warned = False
        self._entries: dict[int, tuple[weakref.ref[Shelf], str, int]] = {}
        self._total = 0
        self._many = _MANY
        self._serial = itertools.count(1)
        self._lock = ProcessLock()
        # By process, shelf and name: what threads of a parent decode does not come here.
        self._coming: dict[tuple[int, int, str], Future[Any]] = {}

    @property
    def used(self) -> int:
        """Bytes that are kept, of readers that still exist."""
        with self._lock:
            self._bury()
            return self._total

    def get(self, shelf: Shelf, name: str, decode: Callable[[], Sized]) -> Any:
        """A column of the shelf, decoded first if need be, by one thread for all that ask for it."""
        found = shelf.columns.get(name)
        if found is not None:
            return found
        key = (os.getpid(), id(shelf), name)
        with self._lock:
            future = self._coming.get(key)
            mine = future is None
            if future is None:
                future = self._coming[key] = Future()
        if not mine:
            return future.result()
        try:
            # Another thread may have finished decoding it just before we looked.
            value = shelf.columns.get(name)
            if value is None:
                value = decode()
                self._add(shelf, name, value)
            future.set_result(value)
            return value
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            with self._lock:
                self._coming.pop(key, None)

    def _add(self, shelf: Shelf, name: str, value: Sized) -> None:
        shelf.decodes += 1
        with self._lock:
            number, size = next(self._serial), value.nbytes
            shelf.columns[name] = value
            self._entries[number] = (weakref.ref(shelf), name, size)
            self._total += size
            if len(self._entries) > self._many:
                self._bury()
                self._many = max(_MANY, 2 * len(self._entries))
            if self._total <= self.limit:
                return
            self._bury()
            numbers = [one for one, (of, _, _) in self._entries.items() if of() is not shelf]
            # Multiplying by an odd constant scatters consecutive numbers: blind, and the same in every run.
            at = number * GOLDEN & MASK
            while self._total > self.limit and numbers:
                index = at % len(numbers)
                numbers[index], numbers[-1] = numbers[-1], numbers[index]
                self._drop(numbers.pop())
                at = at * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
                at ^= at >> 33
        if shelf.decodes > _TOO_OFTEN * max(1, len(shelf.columns)) and not self._warned:
            self._warned = True
            logger.warning(
                "row groups are decoded again and again, because those that are read at once do not fit into %d bytes: "
                "raise that limit, lower shuffle_block_size or num_canonical_nodes, or read fewer columns",
                self.limit,
            )

    def _bury(self) -> None:
        """Forget what readers held that no longer exist."""
        for number in [number for number, (shelf, _, _) in self._entries.items() if shelf() is None]:
            self._total -= self._entries.pop(number)[2]

    def _drop(self, number: int) -> None:
        reference, name, size = self._entries.pop(number)
        self._total -= size
        shelf = reference()
        if shelf is not None:
            shelf.columns.pop(name, None)


@cache
def memory_of(limit: int) -> DecodedMemory:
    """The memory of this size in this process."""
    return DecodedMemory(limit)
