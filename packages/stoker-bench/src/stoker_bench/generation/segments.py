"""The content of a generated file as segments: bytes that the format asks for, and values that are made when written.

So a file of any size needs one buffer, and what is written is what was made, without a copy between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.lazy import cached_property
from stoker_bench.generation.streams import ByteStream, change_bits

CHUNK: Final = 1 << 20
"""Bytes that are handed on at a time. They stay in the processor's cache from where they are made to the call that writes."""

_SMALL: Final = 1 << 15
# Bytes before values that are handed on with them.
_LEAD: Final = 1 << 12
NARROW: Final = 1 << 17
"""Records up to this size are made many at a time."""

Tap = Callable[[memoryview], object]
"""Is shown bytes, for a checksum."""

Seal = Callable[[NDArray[np.uint8], int], object]
"""Completes records; gets them, as shape ``(n, width)``, and the number of the first in its file."""


@dataclass(frozen=True)
class Finish:
    """The step that makes random bytes values of a type: bits that are cleared, then bits that are set, or a table of bytes.

    Attributes:
        clear: bits that stay, of one value.
        set: bits that are set, as many.
        table: for each byte another, 256 of them; instead of the others.
    """

    clear: bytes = b""
    set: bytes = b""
    table: bytes = b""

    def apply(self, out: NDArray[np.uint8]) -> None:
        """Change values, which begin with the first byte of ``out``."""
        if self.table:
            np.take(self._table, out, out=out, mode="clip")
            return
        for pattern, change in ((self.clear, np.bitwise_and), (self.set, np.bitwise_or)):
            if pattern:
                change_bits(change, pattern, out)

    @cached_property
    def word(self) -> int | None:
        """Bits that stay of each 8 bytes, where that is all that is changed."""
        if self.set or self.table or 8 % len(self.clear):
            return None
        return int.from_bytes(self.clear * (8 // len(self.clear)), "little")

    @cached_property
    def _table(self) -> NDArray[np.uint8]:
        return np.frombuffer(self.table, np.uint8)


@dataclass(frozen=True, slots=True)
class StreamBytes:
    """Bytes that are read from a stream.

    Attributes:
        size: how many.
        stream: where from.
        finish: how they become values; ``None`` where all bytes are values.
        tap: is shown them once they are made, a part at a time, for a checksum.
    """

    size: int
    stream: ByteStream
    finish: Finish | None = None
    tap: Tap | None = None

    def __len__(self) -> int:
        return self.size

    def make(self, out: NDArray[np.uint8]) -> None:
        """Write the next ``len(out)`` of them; between calls, multiples of a value's size and of 8."""
        word = None if self.finish is None else self.finish.word
        self.stream.fill(out, word)
        if self.finish is not None and word is None:
            self.finish.apply(out)
        if self.tap is not None:
            self.tap(out.data)

    def make_rows(self, rows: NDArray[np.uint8], scratch: NDArray[np.uint8]) -> None:
        """Write as many as rows of shape ``(n, width)`` have, which may lie apart, from a multiple of 8 on.

        ``scratch`` is memory of at least as many bytes.
        """
        self.stream.align()
        if self.finish is None and self.tap is None:
            self.stream.fill_rows(rows)
            return
        made = scratch[: rows.size]
        self.make(made)
        rows[:] = made.reshape(rows.shape)


Segment = bytes | bytearray | memoryview | StreamBytes


def assemble(segments: Iterable[Segment], chunk: int = CHUNK, whole: int | None = None) -> Iterator[memoryview]:
    """The bytes of segments that follow each other, in chunks, each of which is valid until the next is asked for.

    Args:
        segments: the content.
        chunk: bytes of a chunk.
        whole: bytes of a segment from which on it is a chunk of its own, which saves a copy; ``None``: as a chunk.
    """
    whole = chunk if whole is None else whole
    store = np.empty(chunk + _LEAD + 8, np.uint8)
    view = store.data
    begin = at = 0
    for segment in segments:
        size = len(segment)
        if not size:
            continue
        if isinstance(segment, StreamBytes):
            segment.stream.align()
            if size >= _SMALL or at + size > len(store):
                if at - begin > _LEAD:
                    yield view[begin:at]
                    begin = at = 0
                elif shift := -at % 8:
                    # What comes before moves, so that values are made at an address that is fast to write to.
                    view[begin + shift : at + shift] = bytes(view[begin:at])
                    begin, at = begin + shift, at + shift
            step = chunk if segment.finish is None else _step(segment.finish, chunk)
            for start in range(0, size, step):
                count = min(step, size - start)
                if at + count > len(store):
                    yield view[begin:at]
                    begin = at = 0
                segment.make(store[at : at + count])
                at += count
        elif size >= whole:
            if at > begin:
                yield view[begin:at]
                begin = at = 0
            yield memoryview(segment).cast("B")
        else:
            if at + size > len(store):
                yield view[begin:at]
                begin = at = 0
            view[at : at + size] = segment
            at += size
        if at - begin >= chunk:
            yield view[begin:at]
            begin = at = 0
    if at > begin:
        yield view[begin:at]


def gather(segments: Iterable[Segment]) -> bytes:
    """All bytes of a few segments."""
    return b"".join([bytes(chunk) for chunk in assemble(segments)])


def _step(finish: Finish, chunk: int) -> int:
    """Most bytes up to a chunk that hold whole values."""
    width = max(len(finish.clear), len(finish.set), 1)
    return chunk // (8 * width) * (8 * width)


def record_segments(parts: list[Segment], count: int, seal: Seal | None = None) -> Iterator[Segment]:
    """``count`` records that are alike but for their values.

    Args:
        parts: of one record: bytes, and values of which ``size`` are in each record.
        count: number of records.
        seal: completes records that are made, with what depends on their values or numbers. Records have at most
            :data:`NARROW` bytes then.
    """
    parts = [part for part in parts if len(part)]
    width = sum(map(len, parts))
    if width > NARROW and seal is None:
        for _ in range(count):
            yield from parts
        return
    values = [part for part in parts if isinstance(part, StreamBytes)]
    if seal is None and len(values) == len(parts) == 1:
        yield replace(values[0], size=values[0].size * count)
        return
    batch = max(1, min(CHUNK // width, count))
    rows = np.empty((batch, width), np.uint8)
    scratch = np.empty(rows.size, np.uint8)
    located: list[tuple[int, StreamBytes]] = []
    at = 0
    for part in parts:
        if isinstance(part, StreamBytes):
            located.append((at, part))
        else:
            rows[:, at : at + len(part)] = np.frombuffer(part, np.uint8)
        at += len(part)
    for first in range(0, count, batch):
        here = rows[: min(batch, count - first)]
        for at, part in located:
            part.make_rows(here[:, at : at + part.size], scratch)
        if seal is not None:
            seal(here, first)
        yield here.reshape(-1).data
