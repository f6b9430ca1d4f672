"""Parses JSON and numbers of samples, and refuses numbers that are too large for a float, such as 1e400.

``Infinity`` and ``NaN``, in JSON, and ``inf`` and ``nan``, elsewhere, are values, as the standard library writes them.
"""

from __future__ import annotations

import json
import marshal
import math
import struct
from typing import Any, Final

_INFINITY: Final = struct.pack("<d", math.inf)
_MINUS_INFINITY: Final = struct.pack("<d", -math.inf)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON text with the standard library.

    Raises:
        ValueError: it is not JSON, or holds a number that is too large for a float.
        RecursionError: it is nested too deeply.
    """
    value = json.loads(text)
    if may_hold_infinity(value):  # a function for each number would cost more
        json.loads(text, parse_float=finite_float)
    return value


def finite_float(text: str) -> float:
    """Parse a number with ``float``.

    Raises:
        ValueError: it is not a number, or it is too large for a float.
    """
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
