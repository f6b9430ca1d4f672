"""Compares columns with values, exactly: no integer is compared as a float, and no text with a number.

A value of another kind (a number for a struct, text for a list) is an error, whatever the operator.
"""

from __future__ import annotations

import datetime as dt
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import compress, repeat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.types import Array, Column
from stoker.units import as_decimal

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OPERATORS: Final = (*_COMPARISONS, "in", "not in")
"""All comparisons."""

_TEXT, _BYTES, _NUMBER, _DATE = "text", "bytes", "numbers", "dates"
# Types of single values: those that can be compared, then names for the others.
_KINDS: Final[tuple[tuple[str, Any], ...]] = (
    (_TEXT, str),
    (_BYTES, (bytes, memoryview)),
    (_NUMBER, (int, float, np.number, np.bool_, Decimal)),
    (_DATE, (dt.date, np.datetime64)),
)
_OTHERS: Final[tuple[tuple[str, Any], ...]] = (
    ("structs", Mapping),
    ("arrays", np.ndarray),
    ("lists", (list, tuple)),
    ("times of day", dt.time),
    ("durations", (dt.timedelta, np.timedelta64)),
)
# Kinds of arrays' dtypes.
_ARRAYS: Final[Mapping[str, str]] = {
    **dict.fromkeys("biuf", _NUMBER),
    "M": _DATE,
    "m": "durations",
    "c": "complex numbers",
    "V": "structs",
}
_ISO: Final = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?)?")
# Ticks of a day.
_TICKS: Final[Mapping[str, int]] = {
    "D": 1,
    "h": 24,
    "m": 24 * 60,
    **{unit: 86400 * 1000**power for power, unit in enumerate(("s", "ms", "us", "ns", "ps", "fs", "as"))},
}


def plain_operand(op: str, value: Any) -> Any:
    """The value to compare with as Python's own type; for ``in`` and ``not in`` a sorted tuple of different values.

    With ``None``, ``==`` and ``!=`` ask whether a value is null. ConfigError for a value that no column can be compared with,
    or values of different kinds.
    """
    if value is None and op in ("==", "!="):
        return None
    if op not in ("in", "not in"):
        return _plain(value)
    if not isinstance(value, Collection) or isinstance(value, str | bytes | bytearray | Mapping):
        raise ConfigError(f"{op!r} needs a list or set of values, got {type(value).__name__}")
    if any(item is None for item in value):
        raise ConfigError(
            f"{op!r} does not find nulls: leave None out, and add | Where(column, '==', None) to take them"
        )
    values = {_plain(item) for item in value}
    if len({_kind(type(item)) for item in values}) > 1:
        raise ConfigError(f"{op!r} needs values of one kind, got {sorted({type(item).__name__ for item in values})}")
    return tuple(sorted(values))


def null_mask(column: Column) -> NDArray[np.bool_] | None:
    """A mask of the values that are null (``None``, NaN or NaT): bool, shape ``(n,)``. ``None`` where no value is.

    ``column``: an array of shape ``(n, ...)`` or a list of n values. An array as a value is not null, whatever it holds.
    """
    if isinstance(column, np.ndarray) and column.dtype.kind != "O":
        if column.ndim != 1 or column.dtype.kind not in "fmM":
            return None
        null: NDArray[np.bool_] = np.isnan(column) if column.dtype.kind == "f" else np.isnat(column)
    else:
        kinds = set(map(type, column))
        null = np.zeros(len(column), np.bool_)
        if type(None) in kinds:
            null |= np.fromiter(map(operator.is_, column, repeat(None)), np.bool_, len(column))
        if any(issubclass(kind, float | np.floating) for kind in kinds):
            floats = (isinstance(value, float | np.floating) and bool(value != value) for value in column)
            null |= np.fromiter(floats, np.bool_, len(column))
    return null if null.any() else None


def without_nulls(column: Column, null: NDArray[np.bool_]) -> Column:
    """The values of a column that are not null."""
    return column[~null] if isinstance(column, np.ndarray) else list(compress(column, ~null))


def compare(column: Column, op: str, value: Any, where: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_] | None]:
    """For which values of a column ``op value`` holds, and for which that is unknown, as they are null.

    Args:
        column: an array of shape ``(n,)`` or a list of n values.
        op: one of :data:`OPERATORS`.
        value: what :func:`plain_operand` made of it.
        where: names the column in errors.

    Returns:
        Two bool arrays of shape ``(n,)``, of which at most one is true of a value; ``None`` for the second where nothing is
        unknown, as with ``value=None``.

    Raises:
        ConfigError: the column's values are of another kind than the value, or have no order.
    """
    null = null_mask(column)
    if value is None:
        found = np.zeros(len(column), np.bool_) if null is None else null
        return (found if op == "==" else ~found), None
    if null is None:
        return _compare(column, op, value, where), None
    holds = np.zeros(len(column), np.bool_)
    holds[~null] = _compare(without_nulls(column, null), op, value, where)
    return holds, null


def _compare(column: Column, op: str, value: Any, where: str) -> NDArray[np.bool_]:
    """As :func:`compare`, of values that are not null."""
    several = op in ("in", "not in")
    column, values = _comparable(column, value if several else (value,), where)
    if not several:
        if isinstance(column, np.ndarray):
            return _compare_array(column, op, values[0])
        return np.fromiter(map(_COMPARISONS[op], column, repeat(values[0])), np.bool_, len(column))
    if isinstance(column, np.ndarray):
        found = _is_in(column, values)
    else:
        found = np.fromiter(map(frozenset(values).__contains__, column), np.bool_, len(column))
    return ~found if op == "not in" else found


def _comparable(column: Column, values: tuple[Any, ...], where: str) -> tuple[Column, tuple[Any, ...]]:
    """A column and values of one kind: an array of numbers with numbers, or a list with what its values can be compared with.

    Dates become their ticks, as integers.
    """
    if isinstance(column, np.ndarray):
        if column.ndim != 1:
            axes = column.ndim - 1
            raise _unfit(where, f"arrays ({column.dtype}, {axes} {'axis' if axes == 1 else 'axes'} each)", values)
        if column.dtype.kind in "OSUT":
            column = column.tolist()
    if isinstance(column, np.ndarray):
        found = {_ARRAYS.get(column.dtype.kind, str(column.dtype))}
    else:
        types = set(map(type, column))
        found = {_kind(kind) for kind in types}
    wanted = {_kind(type(value)) for value in values}
    if found == {_DATE} and wanted == {_TEXT}:
        values, wanted = tuple(_parse_date(value, where) for value in values), {_DATE}
    comparable = {name for name, _ in _KINDS}
    for kind in sorted(found):
        if kind not in comparable or (wanted and wanted != {kind}):
            raise _unfit(where, kind, values)
    if found == {_DATE}:
        # Lists of dates come from formats that have no column types.
        dates = column if isinstance(column, np.ndarray) else np.array([_date(one) for one in column])
        return _ticks(dates, values)
    if not isinstance(column, np.ndarray) and Decimal in types:
        values = tuple(as_decimal(value) for value in values)
    return column, values


def _unfit(where: str, kind: str, values: tuple[Any, ...]) -> ConfigError:
    known = {name for name, _ in _KINDS}
    shown = repr(values[0] if len(values) == 1 else list(values[:3]))
    if kind not in known:
        return ConfigError(f"{where} holds {kind}, which can not be compared with {shown}: use Where.function")
    remedy = {
        _TEXT: "write the value as text, in quotes",
        _BYTES: "write the value as bytes, b'...'",
        _NUMBER: "write the value as a number, without quotes",
        _DATE: "write the value as a datetime.date or like '2024-01-31'",
    }[kind]
    return ConfigError(f"{where} holds {kind}, which can not be compared with {shown}: {remedy}, or use Where.function")


def _parse_date(text: str, where: str) -> np.datetime64:
    try:
        if _ISO.fullmatch(text):
            return np.datetime64(text)
    except ValueError:
        pass
    raise ConfigError(
        f"{where} holds dates, and {text!r} is none: write it like '2024-01-31' or '2024-01-31T12:30:00' (UTC, without a "
        "time zone)"
    ) from None


def _date(value: Any) -> np.datetime64:
    """A date or time as NumPy's; one with a time zone is brought to UTC, as columns are."""
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        value = value.astimezone(dt.UTC).replace(tzinfo=None)
    return np.datetime64(value)


def _ticks(dates: Array, values: tuple[np.datetime64, ...]) -> tuple[Array, tuple[Any, ...]]:
    """Dates as integers, and the values in the same unit, exactly: NumPy would overflow where units lie far apart."""
    unit, step = np.datetime_data(dates.dtype)
    if unit not in _TICKS or step != 1:
        unit = "D" if unit in "YMW" else unit
        dates = dates.astype(f"datetime64[{unit}]")
    found = []
    for value in values:
        its, step = np.datetime_data(value.dtype)
        if its not in _TICKS:
            value, its, step = value.astype("datetime64[D]"), "D", 1  # noqa: PLW2901
        exact = Fraction(int(value.astype(np.int64)) * step * _TICKS[unit], _TICKS[its])
        found.append(exact.numerator if exact.denominator == 1 else exact)
    return dates.astype(dates.dtype.newbyteorder("=")).view(np.int64), tuple(found)


def _is_in(column: Array, values: tuple[Any, ...]) -> NDArray[np.bool_]:
    if column.dtype.kind == "f":
        return np.isin(column, np.array([_as_float(value) for value in values]).astype(column.dtype))
    if column.dtype.kind == "b":
        column = column.view(np.uint8)
    bounds = np.iinfo(column.dtype)
    whole = [int(value) for value in values if bounds.min <= value <= bounds.max and value == math.floor(value)]
    return np.isin(column, np.array(whole, dtype=column.dtype)) if whole else np.zeros(len(column), np.bool_)


def _compare_array(column: Array, op: str, value: float | Fraction) -> NDArray[np.bool_]:
    compare_with = _COMPARISONS[op]
    if column.dtype.kind == "f":
        # NumPy 1 and 2 differ in what they promote to, so the value is brought to the column's type here.
        with np.errstate(over="ignore"):
            bound = np.array(_as_float(value)).astype(column.dtype)
        return np.asarray(compare_with(column, bound), dtype=np.bool_)
    if column.dtype.kind == "b":
        column = column.view(np.uint8)
    bounds = np.iinfo(column.dtype)
    if not isinstance(value, int) and math.isfinite(value) and value != math.floor(value):
        # Between two integers: no integer equals it, and the order follows from the integer below.
        if op in ("==", "!="):
            return np.full(len(column), op == "!=")
        op = "<=" if op in ("<", "<=") else ">"
        compare_with, value = _COMPARISONS[op], math.floor(value)
    if not bounds.min <= value <= bounds.max:
        # All values of the column are on one side.
        return np.full(len(column), bool(compare_with(0, value)))
    return np.asarray(compare_with(column, column.dtype.type(int(value))), dtype=np.bool_)


def _as_float(value: float | Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _plain(value: Any) -> Any:
    if isinstance(value, dt.date | np.datetime64):
        return _plain_date(value)
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bytearray | memoryview):
        value = bytes(value)
    if not isinstance(value, str | bytes | int | float):
        raise ConfigError(
            f"a column can be compared with a number, text, bytes or a date, not with {type(value).__name__}"
        )
    if value != value:
        raise ConfigError("nothing equals NaN, nor is it less or more: NaN counts as null, which == None finds")
    return value


def _plain_date(value: Any) -> np.datetime64:
    if np.isnat(date := _date(value)):
        raise ConfigError("nothing equals NaT, nor is it less or more: NaT counts as null, which == None finds")
    return date


def _kind(kind: type) -> str:
    return next((name for name, types in (*_KINDS, *_OTHERS) if issubclass(kind, types)), f"{kind.__name__} objects")
