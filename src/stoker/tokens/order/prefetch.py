"""Decodes blocks on threads, ahead of the batches that need them, and makes batches of them, several at a time.

There are no more blocks at once than memory is meant for.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain
from typing import Final, Generic, TypeAlias, TypeVar

from stoker.concurrency.spans.recorder import Stage, begin_span, end_span
from stoker.concurrency.threads import Threads
from stoker.tokens.order.token_order import BlockSpan

# Memory of batches that are made together: little beside a block, and it stays in the processor's cache.
_BYTES: Final = 4 << 20
_MOST: Final = 8

_Block = TypeVar("_Block")
_Batch = TypeVar("_Batch")
_Key: TypeAlias = tuple[int, int]
"""Numbers of a sequence and of a block on it."""


def join_steps(steps: Iterator[list[BlockSpan]], rows: int, step: int, row_bytes: int) -> Iterator[list[BlockSpan]]:
    """Batches that follow each other within one block as one step.

    ``rows``: of a batch; ``step``: amounts in a row; ``row_bytes``: memory that a row takes.
    """
    most = rows * max(1, min(_MOST, _BYTES // max(1, rows * row_bytes)))
    held: BlockSpan | None = None
    for spans in steps:
        one = spans[0]
        if held is not None:
            if (
                held.rows < most
                and len(spans) == 1
                and one.rows == rows
                and (one.sequence, one.blocks, one.inside)
                == (held.sequence, held.blocks, held.inside + held.rows * step)
            ):
                held = held._replace(rows=held.rows + rows)
                continue
            yield [held]
            held = None
        if len(spans) == 1 and one.rows == rows and one.blocks[1] - one.blocks[0] == 1:
            held = one
        else:
            yield spans
    if held is not None:
        yield [held]


def read_ahead(
    steps: Iterator[list[BlockSpan]],
    load: Callable[[int, int], _Block],
    make: Callable[[Sequence[_Block], int, int], _Batch],
    threads: int,
) -> Iterator[list[_Batch]]:
    """Batches, as the chunks that their spans make.

    A block is decoded once, and let go when a batch needs another of its sequence and not this one. So in memory, or being
    decoded, there are one block a sequence and ``threads`` more; and where a batch needs more than that, what it needs. With
    one sequence and one thread that makes two.

    ``load`` decodes a block, by the numbers of its sequence and its own; its errors come where the first batch that needs
    the block would. ``make`` makes rows of a span's blocks, and keeps none of these: from so many amounts inside the first,
    so many rows.
    """
    blocks = _Blocks(load, threads)
    window: deque[list[BlockSpan]] = deque()
    ahead: Iterator[list[BlockSpan] | None] = chain(steps, [None])
    try:
        for later in ahead:
            if later is not None:
                window.append(later)
                blocks.note(later)
            while window:
                step = window[0]
                blocks.turn_to(step)
                while blocks.has_space() and blocks.begin_next():
                    pass
                if later is not None and blocks.has_space():
                    break  # and look further ahead
                needed = [blocks.of(one) for one in step]
                begun = begin_span()
                made = [make(found, one.inside, one.rows) for found, one in zip(needed, step, strict=True)]
                end_span(Stage.COLLATE, begun)
                del needed  # its blocks may go
                yield made
                del made
                blocks.passed(window.popleft())
    finally:
        blocks.close()


class _Blocks(Generic[_Block]):
    """Blocks that are in memory or being decoded, and which are needed next."""

    def __init__(self, load: Callable[[int, int], _Block], threads: int) -> None:
        self._load = load
        self._threads = threads
        self._pool = Threads(threads, "decode")
        self._open: dict[_Key, Future[_Block]] = {}
        self._wanted: Counter[_Key] = Counter()  # by how many batches that were noted and have not passed
        self._coming: deque[_Key] = deque()  # noted and not begun, in the order in which they are needed
        self._last: tuple[tuple[int, tuple[int, int]], ...] = ()

    def note(self, step: Sequence[BlockSpan]) -> None:
        """A batch comes, after those that were noted."""
        for key in _keys(step):
            self._wanted[key] += 1
            if self._wanted[key] == 1 and key not in self._open:
                self._coming.append(key)

    def passed(self, step: Sequence[BlockSpan]) -> None:
        """A batch was made."""
        for key in _keys(step):
            self._wanted[key] -= 1
            if not self._wanted[key]:
                del self._wanted[key]

    def turn_to(self, step: Sequence[BlockSpan]) -> None:
        """A batch is next: release what it has passed, and begin to read what it needs."""
        now = tuple((span.sequence, span.blocks) for span in step)
        if now == self._last:
            return
        self._last = now
        needed = set(_keys(step))
        sequences = {sequence for sequence, _ in needed}
        for key in [key for key in self._open if key[0] in sequences and key not in needed and key not in self._wanted]:
            del self._open[key]
        for key in _keys(step):
            if key not in self._open:
                if key in self._coming:
                    self._coming.remove(key)
                self._begin(key)

    def has_space(self) -> bool:
        """Whether another block may be begun ahead."""
        return len(self._open) - len({sequence for sequence, _ in self._open}) < self._threads

    def begin_next(self) -> bool:
        """Begin the next block that a noted batch needs; ``False`` if there is none."""
        if not self._coming:
            return False
        self._begin(self._coming.popleft())
        return True

    def of(self, span: BlockSpan) -> list[_Block]:
        """A span's blocks, waited for."""
        return [self._open[span.sequence, number].result() for number in range(*span.blocks)]

    def close(self) -> None:
        """Drop what has not begun, and do not wait for what has."""
        self._pool.close(patience=0.0)
        self._open.clear()

    def _begin(self, key: _Key) -> None:
        self._open[key] = self._pool.submit(partial(self._load, *key))


def _keys(step: Sequence[BlockSpan]) -> list[_Key]:
    return [(span.sequence, number) for span in step for number in range(*span.blocks)]
