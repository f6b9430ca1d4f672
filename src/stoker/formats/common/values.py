"""Values of samples: the error of one that does not fit, its words in a message, and JSON and numbers that are text.

``Infinity`` and ``NaN``, in JSON, and ``inf`` and ``nan``, elsewhere, are values, as the standard library writes them.
Numbers that are too large for a float, such as 1e400, are refused.
"""

from __future__ import annotations

import json
import marshal
import math
import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

_INFINITY: Final = struct.pack("<d", math.inf)
_MINUS_INFINITY: Final = struct.pack("<d", -math.inf)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON text with the standard library.

    ValueError if it is not JSON, or holds a number that is too large for a float, RecursionError if it is nested too deeply.
    """
    value = json.loads(text)
    if may_hold_infinity(value):  # a function for each number would cost more
        json.loads(text, parse_float=finite_float)
    return value


def finite_float(text: str) -> float:
    """Parse a number with ``float``. ValueError if it is not a number, or it is too large for a float."""
    number = float(text)
    if math.isinf(number) and "i" not in text.lower():
        raise ValueError(f"a number ({text[:40]}) is larger than a float holds: write it as text")
    return number


def may_hold_infinity(value: Any) -> bool:
    """Check whether a parsed JSON value may contain an infinite number.

    The value is serialised, and the bytes of an infinity are searched in it, which is faster than a walk over the value. A
    string may have the same bytes, so a caller has to look closer where this is true.
    """
    try:
        data = marshal.dumps(value, 2)
    except ValueError:  # nested very deeply
        return True
    return _INFINITY in data or _MINUS_INFINITY in data


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
