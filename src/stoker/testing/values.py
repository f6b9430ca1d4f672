"""Comparison of values as datasets hand them out (numbers, text, bytes, arrays, images, JSON), and the error of a test class
that lacks something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stoker.errors import ConfigError
from stoker.formats.common.entries import ColumnKind
from stoker.types import Array, Column


def undefined(test: object, what: str) -> ConfigError:
    """The error of a subclass that does not say how what it tests is made.

    Args:
        what: the method or attribute to define, and what it does: ``"open(), which opens the engine"``.
    """
    base = next(kind.__name__ for kind in type(test).__mro__ if kind.__module__.startswith("stoker.testing."))
    return ConfigError(f"{type(test).__name__} does not define {what}: define it; help({base}) has an example")


def row_of(batch: Mapping[str, Column], row: int) -> dict[str, Any]:
    """One sample of a batch."""
    return {name: column[row] for name, column in batch.items()}


def described(column: Column) -> Any:
    """The kind of a column of a batch: dtype and shape of an array, or the types of a list's values."""
    if isinstance(column, np.ndarray):
        return column.dtype, column.shape
    return [(type(value), getattr(value, "dtype", None), getattr(value, "shape", None)) for value in column]


def equal(one: Any, two: Any) -> bool:
    """Whether two values are the same, be they views or copies, numbers of NumPy's or of Python's. NaN equals NaN."""
    one, two = _plain(one), _plain(two)
    if isinstance(one, np.ndarray) or isinstance(two, np.ndarray):
        return _equal_arrays(np.asarray(one), np.asarray(two))
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(equal(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(equal(a, b) for a, b in zip(one, two, strict=True))
    return bool(one == two or (one != one and two != two))


def _equal_arrays(one: Array, two: Array) -> bool:
    if one.shape != two.shape or one.dtype.kind != two.dtype.kind:
        return False
    return bool(np.array_equal(one, two, equal_nan=one.dtype.kind in "fc"))


def _plain(value: Any) -> Any:
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "getbands"):  # an image of Pillow's
        return value.mode, value.size, value.tobytes()
    return value


def check_kind(kind: ColumnKind, column: Column, name: str) -> None:
    """Check that a column's values are what its description declares.

    Raises:
        AssertionError: they are not; names the column.
    """
    told = f"column {name!r} is declared {kind.word}"
    if isinstance(column, np.ndarray) and kind.base:
        dtype = "float32" if kind.base == "bfloat16" else kind.base
        assert column.dtype.name == dtype, f"{told}, and an array of {column.dtype}"
        assert kind.shape is None or column.shape[1:] == kind.shape, f"{told}, and of shape {column.shape[1:]}"
        return
    types = {"text": str, "bytes": bytes | memoryview, "image": object, "json": object}.get(kind.base, object)
    for value in column:
        assert value is None or isinstance(value, types), f"{told}, and holds {type(value).__name__}"
        if isinstance(value, np.ndarray) and kind.base not in ("", "json"):
            assert value.dtype.name == kind.base, f"{told}, and holds arrays of {value.dtype}"


def raised(
    kind: type[BaseException], call: Callable[..., object], *arguments: object, what: str = "", **named: Any
) -> Any:
    """The error of this kind that a call raises; no other will do.

    Args:
        what: is refused, for the message.

    Raises:
        AssertionError: the call returns, or raises another error.
    """
    told = f"{what}: " if what else ""
    try:
        found = call(*arguments, **named)
    except kind as error:
        return error
    except Exception as error:
        raise AssertionError(f"{told}{kind.__name__} is due, and {error!r} came") from error
    raise AssertionError(f"{told}{kind.__name__} is due, and {str(found)[:200]} came")
