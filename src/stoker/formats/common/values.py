"""Values that do not fit a column: the error, and how to speak of a value in a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


class UnfitValueError(ValueError):
    """A value does not fit its encoding: ``expected ..., got ...``.

    Attributes:
        row: index of the value in the column that was being encoded; ``None`` for a single value.
        column: the column's name, once known.
    """

    def __init__(self, message: str, *, row: int | None = None, column: str | None = None) -> None:
        super().__init__(message)
        self.row = row
        self.column = column


def describe(value: Any) -> str:
    """Name a value's type and, where short, the value itself, for messages."""
    kind = type(value)
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype} and shape {value.shape}"
    if isinstance(value, bytes | bytearray | memoryview | Sequence) and not isinstance(value, str):
        return f"{kind.__name__} of length {len(value)}"
    if isinstance(value, str) and len(value) > 40:
        return f"str {value[:40]!r}..."
    if isinstance(value, int | float | complex | str | np.generic | bool | None):
        text = repr(value) if not isinstance(value, int) or abs(value) < 1 << 128 else "a huge number"
        return f"{kind.__name__} {text}" if value is not None else "None"
    array = ": make a NumPy array of it, numpy.asarray(value)" if hasattr(value, "__array__") else ""
    return f"a {kind.__module__}.{kind.__qualname__}{array}"
