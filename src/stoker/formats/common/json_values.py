"""JSON and numbers of samples, without numbers that became infinite because no float holds them, such as 1e400.

``Infinity`` and ``NaN``, in JSON, and ``inf`` and ``nan``, elsewhere, are values, as the standard library writes them.
"""

from __future__ import annotations

import json
import marshal
import math
import struct
from typing import Any, Final

_INFINITE: Final = struct.pack("<d", math.inf), struct.pack("<d", -math.inf)


def parse_json(text: str | bytes) -> Any:
    """The value of JSON text, by the standard library.

    Raises:
        ValueError: it is no JSON, or a number of it is larger than a float holds; RecursionError: it is nested too deeply.
    """
    value = json.loads(text)
    if may_hold_infinity(value):  # a function for each number would cost more
        json.loads(text, parse_float=finite_float)
    return value


def finite_float(text: str) -> float:
    """The number that a text says, as ``float`` reads it.

    Raises:
        ValueError: it is no number, or one that is larger than a float holds.
    """
    number = float(text)
    if math.isinf(number) and "i" not in text.lower():
        raise ValueError(f"a number ({text[:40]}) is larger than a float holds: write it as text")
    return number


def may_hold_infinity(value: Any) -> bool:
    """Whether a value of JSON may be or hold an infinite number: its bytes are looked for in all of it, in one piece."""
    try:
        data = marshal.dumps(value, 2)
    except ValueError:  # nested very deeply
        return True
    return any(one in data for one in _INFINITE)
