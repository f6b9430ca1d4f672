"""Columns of lists of numbers, decoded by NumPy: several times as fast as pyarrow, in the memory of a page.

What pyarrow makes of every value's levels, two numbers and three passes, is here done for each list: levels lie in the file
as runs, and where lists begin is where runs end. Dictionary entries of 8 and 16 bits are taken as they lie in the file.

Taken are the pages that writers make of tokens: PLAIN or of a dictionary, uncompressed or by Snappy, Zstandard or gzip, of
both versions. All others, and all that is damaged, are left to pyarrow:
see :class:`~stoker.formats.parquet.pages.OtherPagesError`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.formats.common.gather import empty
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.facts import CODEC, COMPRESSED, START, VALUES
from stoker.formats.parquet.pages import PLAIN, OtherPagesError, PageHead, Unpacker, read_pages
from stoker.formats.parquet.rle_bitpacked import WIDEST, exceptions, unpack
from stoker.formats.parquet.schema import ColumnSchema
from stoker.types import Array, Buffer, Ids

_PHYSICAL: Final = {1: "i4", 2: "i8", 4: "f4", 5: "f8"}
_REQUIRED, _REPEATED = 0, 2
_KIND: Final = re.compile(r"list<((u?)int(8|16|32|64)|float|double)>")


@dataclass(frozen=True, slots=True)
class ListShape:
    """The layout of a column of lists of integers in a file.

    Attributes:
        deepest: definition level of a value.
        entry: from this definition level on there is a value, which is null below the deepest.
        dtype: of the values, as they lie there.
        logical: of the values, as the column is declared: narrower integers lie there in 32 bits.
    """

    deepest: int
    entry: int
    dtype: np.dtype[Any]
    logical: np.dtype[Any]


@lru_cache(maxsize=256)  # of small files, each has the same columns
def list_shape(column: ColumnSchema) -> ListShape | None:
    """The shape of a column, or ``None`` where it is no list of integers or floats."""
    found = _KIND.fullmatch(column.type)
    if found is None or len(column.kinds) != 1 or column.kinds[0] not in _PHYSICAL:
        return None
    dtype = np.dtype(f"<{_PHYSICAL[column.kinds[0]]}")
    logical = np.dtype({"float": "<f4", "double": "<f8"}.get(found[1], found[1]))
    if (logical.kind == "f" and logical != dtype) or (logical.kind != "f" and dtype.kind == "f"):
        return None
    if logical.itemsize == dtype.itemsize:
        dtype = logical
    levels, entry = 0, -1
    for repetition in column.repetitions():
        levels += repetition != _REQUIRED
        if repetition == _REPEATED:
            if entry >= 0:
                return None
            entry = levels
    return None if entry < 0 else ListShape(levels, entry, dtype, logical)


def decode_equal(shape: ListShape, rows: int, facts: NDArray[np.int64], buffer: Buffer) -> Array:
    """The lists of a column chunk that are all of one length.

    OtherPagesError: as of :func:`decode_lists`, or the lists are of several lengths, empty, or null. ``shape``, ``rows``,
    ``facts``, ``buffer``: as of :func:`decode_lists`. Gives values of shape ``(rows, length)`` and the dtype that the column
    is declared with.
    """
    length, rest = divmod(int(facts[VALUES]), max(1, rows))
    if rest or not length or not rows:
        raise OtherPagesError("lists of several lengths")
    pages = _Pages(shape, facts, buffer)
    out = empty(rows, length * shape.logical.itemsize)
    flat, flat_out = out.reshape(-1).view(shape.logical), out.reshape(-1)
    size, done, begun = shape.logical.itemsize, 0, 0
    for page in pages.heads:
        lists, data = pages.lists(page)
        # As many values as there are entries: no list is empty or null. Each begins where the one before has all of its own.
        if lists.count != page.entries or ((lists.starts + done) % length).any():
            raise OtherPagesError("lists of several lengths")
        end = done + page.entries
        if page.coding != PLAIN or shape.dtype != shape.logical:
            flat[done:end] = pages.values(page, page.entries, data)
        elif len(data) < page.entries * size:
            raise OtherPagesError("a page has fewer values than it says")
        else:
            flat_out[done * size : end * size] = np.frombuffer(data, np.uint8, page.entries * size)
        begun += lists.starts.size
        done = end
    if begun != rows:
        raise OtherPagesError(f"{begun} rows, not {rows}")
    return flat.reshape(rows, length)


def decode_lists(
    shape: ListShape, rows: int, facts: NDArray[np.int64], buffer: Buffer
) -> Iterator[tuple[Array, Ids, int]]:
    """The lists of a column chunk, about a page of them at a time.

    OtherPagesError if pages are made in another way or damaged, or a value is null. What was yielded before is right.
    ``facts``: of the chunk, offsets counted from the buffer's start. Gives values, in an integer type that holds them, good
    until the next are asked for; int64 offsets from 0 on, one more than there are lists; and to where the buffer is done
    with. Null lists are empty.
    """
    pages = _Pages(shape, facts, buffer)
    held: list[Array] = []  # pieces of the row that is not complete
    empty = False  # it has no values, and must get none
    done = 0
    for page in pages.heads:
        if not page.entries:
            continue
        lists, data = pages.lists(page)
        found = pages.values(page, lists.count, data)
        if lists.head and (empty or not held):
            raise OtherPagesError("values of no list")
        if not lists.starts.size:
            held.append(found.copy())
            continue
        if held:
            held.append(found[: lists.head])
            whole = np.concatenate(held)
            yield whole, np.array([0, whole.size], dtype=np.int64), page.start
            done += 1
        if done + lists.starts.size > rows:
            raise OtherPagesError(f"more than {rows} rows")
        first, last = int(lists.starts[0]), int(lists.starts[-1])
        yield found[first:last], lists.starts - first, page.start + page.size
        done += lists.starts.size - 1
        held, empty = [found[last:].copy()], lists.last_empty
    if held:
        whole = np.concatenate(held)
        yield whole, np.array([0, whole.size], dtype=np.int64), int(facts[START] + facts[COMPRESSED])
        done += 1
    if done != rows:
        raise OtherPagesError(f"{done} rows, not {rows}")


def last_lists(shape: ListShape, facts: NDArray[np.int64], buffer: Buffer) -> tuple[Array, Ids] | None:
    """The lists of a column chunk that begin behind its last damaged page.

    ``shape``, ``facts``, ``buffer``: as of :func:`decode_lists`. Gives values and int64 offsets of the lists in them, the
    last of which ends with the chunk; ``None`` where no page is damaged, or the chunk's heads are, so that it is not known
    where pages begin.
    """
    try:
        pages = _Pages(shape, facts, buffer)
    except OtherPagesError:
        return None
    parts: list[Array] = []
    starts: list[Ids] = []
    damaged = begun = False
    total = 0
    for page in pages.heads:
        try:
            lists, data = pages.lists(page)
            found = pages.values(page, lists.count, data)
        except OtherPagesError:
            damaged, begun, total = True, False, 0
            parts, starts = [], []
            continue
        if not begun and not lists.starts.size:
            continue  # all of it belongs to a list that began in the damage
        first = 0 if begun else int(lists.starts[0])
        begun = True
        starts.append(lists.starts - first + total)
        parts.append(found[first:].copy())
        total += found.size - first
    if not damaged:
        return None
    offsets = np.concatenate([np.zeros(0, np.int64), *starts, np.array([total], np.int64)])
    return (np.concatenate(parts) if parts else np.zeros(0, shape.dtype)), offsets


@dataclass(frozen=True, slots=True)
class _Lists:
    """The lists of a page.

    Attributes:
        starts: number of the first value of each list that begins here; int64.
        head: values that belong to a list that began before.
    """

    starts: Ids
    head: int
    count: int
    last_empty: bool

    @classmethod
    def of(cls, shape: ListShape, page: PageHead, repetitions: memoryview, definitions: memoryview) -> _Lists:
        starts, _ = exceptions(repetitions, page.entries, 1, 1)
        holes, levels = exceptions(definitions, page.entries, shape.deepest.bit_length(), shape.deepest)
        count = page.entries - holes.size
        if not holes.size:
            return cls(starts, int(starts[0]) if starts.size else count, count, last_empty=False)
        if int(levels.max()) >= shape.entry:
            raise OtherPagesError("a value is null")
        index = np.searchsorted(starts, holes)
        if int(index[-1]) >= starts.size or bool((starts[index] != holes).any()):
            raise OtherPagesError("an empty list in the middle of another")
        after = np.append(starts, page.entries)[index + 1]
        if bool((after != holes + 1).any()):
            raise OtherPagesError("an empty list with values")
        before = np.searchsorted(holes, starts)
        values = starts - before
        return cls(values, int(values[0]), count, last_empty=int(holes[-1]) == page.entries - 1)


class _Pages:
    """The data pages of a column chunk, and what they hold. OtherPagesError: as of :func:`decode_lists`."""

    def __init__(self, shape: ListShape, facts: NDArray[np.int64], buffer: Buffer) -> None:
        dictionary, self.heads = read_pages(buffer, facts)
        self._shape, self._dtype = shape, shape.dtype
        self._unpacker = Unpacker(buffer, int(facts[CODEC]))
        self._levels: tuple[tuple[int, bytes, bytes], _Lists] | None = None
        self._entries: Any = None
        self._size = 0
        self._same = False
        self._scratch = np.empty(0, dtype=np.uint8)
        if dictionary is not None:
            self._keep(self._plain(self._unpacker.values(dictionary), dictionary.entries))

    def lists(self, page: PageHead) -> tuple[_Lists, memoryview]:
        """The lists of a page, and the bytes of its values, which hold until the next page is asked for."""
        repetitions, definitions, data = self._unpacker(page)
        levels = page.entries, bytes(repetitions), bytes(definitions)
        if self._levels is None or levels != self._levels[0]:  # rows of one length make pages alike
            self._levels = levels, _Lists.of(self._shape, page, repetitions, definitions)
        return self._levels[1], data

    def _keep(self, entries: Array) -> None:
        """Entries of the dictionary, in 16 bits if they fit."""
        self._size = entries.size
        if entries.dtype.kind != "f" and entries.size and int(entries.min()) >= 0 and int(entries.max()) < 1 << 16:
            entries = entries.astype(np.uint16)
            self._same = bool((entries == np.arange(entries.size)).all())
        else:
            entries = entries.copy()
        self._entries = None if self._same else pyarrow().array(entries)

    def values(self, page: PageHead, count: int, data: memoryview) -> Array:
        """Values of a page."""
        if page.coding == PLAIN:
            return self._plain(data, count)
        if not count:
            return np.zeros(0, dtype=np.uint16)
        width = data[0] if len(data) else WIDEST + 1
        if width > WIDEST:
            raise OtherPagesError(f"numbers of dictionary entries of {width} bits")
        numbers = unpack(data[1:], count, width)
        if int(numbers.max()) >= self._size:
            raise OtherPagesError("a value of no dictionary entry")
        if self._same:
            return numbers
        # That they are in range was just seen.
        taken: Array = pyarrow("compute").take(self._entries, pyarrow().array(numbers), boundscheck=False).to_numpy()
        return taken

    def _plain(self, data: memoryview, count: int) -> Array:
        if len(data) < count * self._dtype.itemsize:
            raise OtherPagesError("a page has fewer values than it says")
        flat = np.frombuffer(data, dtype=np.uint8, count=count * self._dtype.itemsize)
        if flat.ctypes.data % self._dtype.itemsize:
            # Values that do not lie at multiples of their size are several times as slow to work with as to move.
            if self._scratch.size < flat.size:
                self._scratch = np.empty(flat.size, dtype=np.uint8)
            self._scratch[: flat.size] = flat
            flat = self._scratch[: flat.size]
        return flat.view(self._dtype)
