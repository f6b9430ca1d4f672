"""Memory for the rows of a batch: each is written where the batch has it, and not copied there from an array of its own."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from stoker.formats.common.gather import empty
from stoker.types import Array


class BatchRows:
    """Arrays for the rows of a batch that this thread makes, while it is entered.

    >>> with BatchRows(2) as rows:
    ...     made = [new_row("image", (4, 3)), new_row("image", (4, 3))]
    >>> rows.joined(made).shape, rows.joined(made)
    ((2, 4, 3), None)
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._before: BatchRows | None = None
        self._blocks: dict[tuple[str, tuple[int, ...]], tuple[Array, list[Array]]] = {}

    def __enter__(self) -> Self:
        self._before, _of_thread.rows = _of_thread.rows, self
        return self

    def __exit__(self, *_: object) -> None:
        _of_thread.rows = self._before

    def new(self, name: str, shape: tuple[int, ...]) -> Array | None:
        """The next row of a column, uint8; ``None`` where all are taken."""
        if (name, shape) not in self._blocks:
            block = empty(self._count, math.prod(shape)).reshape(self._count, *shape)
            self._blocks[name, shape] = block, list(block)[::-1]
        left = self._blocks[name, shape][1]
        return left.pop() if left else None

    def joined(self, values: Sequence[Any]) -> Array | None:
        """The array of which some values are the rows, one after the other, and which was not asked for before.

        The values are of one shape and dtype.
        """
        for key, (block, _) in self._blocks.items():
            owner = block.base
            if values[0].base is owner and values[0].dtype == block.dtype and values[0].shape == block.shape[1:]:
                first = (_address(values[0]) - _address(block)) // block.strides[0]
                if all(
                    value.base is owner
                    and value.strides == block.strides[1:]
                    and _address(value) == _address(block) + number * block.strides[0]
                    for number, value in enumerate(values, first)
                ):
                    del self._blocks[key]
                    found: Array = block[first : first + len(values)]
                    return found
                return None
        return None


class _OfThread(threading.local):
    rows: BatchRows | None = None


_of_thread = _OfThread()


def new_row(name: str, shape: tuple[int, ...]) -> Array:
    """An array for a value of a column, uint8, uninitialised: a row of the batch that this thread makes, if it makes one."""
    rows = _of_thread.rows
    row = None if rows is None else rows.new(name, shape)
    return np.empty(shape, np.uint8) if row is None else row


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
