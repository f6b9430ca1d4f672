"""Batches made some at a time: what making one costs beside its tokens is then spent once for several."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from stoker.tokens.order.token_order import BlockSpan

__all__ = ["join_steps"]

# Memory of batches that are made together: little beside a block, and it stays in the processor's cache.
_BYTES: Final = 4 << 20
_MOST: Final = 8


def join_steps(steps: Iterator[list[BlockSpan]], rows: int, step: int, row_bytes: int) -> Iterator[list[BlockSpan]]:
    """Batches that follow each other within one block as one step.

    Args:
        steps: batches, as stretches of tracks.
        rows: rows of a batch.
        step: amounts in a row.
        row_bytes: memory that a row of a batch takes.
    """
    most = rows * max(1, min(_MOST, _BYTES // max(1, rows * row_bytes)))
    held: BlockSpan | None = None
    for stretches in steps:
        one = stretches[0]
        if held is not None:
            if (
                held.rows < most
                and len(stretches) == 1
                and one.rows == rows
                and (one.track, one.blocks, one.inside) == (held.track, held.blocks, held.inside + held.rows * step)
            ):
                held = held._replace(rows=held.rows + rows)
                continue
            yield [held]
            held = None
        if len(stretches) == 1 and one.rows == rows and one.blocks[1] - one.blocks[0] == 1:
            held = one
        else:
            yield stretches
    if held is not None:
        yield [held]
