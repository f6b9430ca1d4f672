"""Decodes blocks on threads, ahead of the batches that need them, and makes batches of them, several at a time.

There are no more blocks at once than memory is meant for.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain
from typing import Generic, TypeAlias, TypeVar

from stoker.concurrency.spans.recorder import Stage, begin_span, end_span
from stoker.concurrency.threads import Threads
from stoker.tokens.order.token_order import BatchSpans, BlockSpan
from stoker.types import Ids

_Block = TypeVar("_Block")
_Batch = TypeVar("_Batch")
_Key: TypeAlias = tuple[int, int]
"""Numbers of a sequence and of a block on it."""


def read_ahead(
    steps: Iterator[BatchSpans],
    load: Callable[[int, int], _Block],
    make: Callable[[Sequence[_Block], int, int], _Batch],
    threads: int,
) -> Iterator[tuple[list[_Batch], Ids | None]]:
    """Batches, as the chunks that the spans of each step make, and the step's order of their rows.

    A block is decoded once, and let go when a batch needs another in its slot and not this one. So in memory, or being
    decoded, there are one block a slot and ``threads`` more; and where a batch needs more than that, what it needs. With
    one slot and one thread that makes two.

    ``load`` decodes a block, by the numbers of its sequence and its own; its errors come where the first batch that needs
    the block would. ``make`` makes rows of a span's blocks, and keeps none of these: from so many amounts inside the first,
    so many rows.
    """
    blocks = _Blocks(load, threads)
    window: deque[BatchSpans] = deque()
    ahead: Iterator[BatchSpans | None] = chain(steps, [None])
    try:
        for later in ahead:
            if later is not None:
                window.append(later)
                blocks.note(later.spans)
            while window:
                step, rows = window[0]
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
                yield made, rows
                del made
                blocks.passed(window.popleft().spans)
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
        self._held: dict[int, _Key] = {}  # by slot
        self._last: tuple[tuple[int, tuple[int, int], int], ...] = ()

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
        now = tuple((span.sequence, span.blocks, span.slot) for span in step)
        if now == self._last:
            return
        self._last = now
        needed = dict.fromkeys(_keys(step))
        self._held |= {span.slot: (span.sequence, span.blocks[1] - 1) for span in step}
        kept = {*self._held.values(), *needed, *self._wanted}
        for key in self._open.keys() - kept:
            del self._open[key]
        for key in needed:
            if key not in self._open:
                if key in self._coming:
                    self._coming.remove(key)
                self._begin(key)

    def has_space(self) -> bool:
        """Whether another block may be begun ahead."""
        return len(self._open) - len(self._open.keys() & set(self._held.values())) < self._threads

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
