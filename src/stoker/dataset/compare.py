"""Columns compared with values, exactly: no integer is compared as a float, and no text with a number."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping
from itertools import compress, repeat
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.types import Array, Column

__all__ = ["OPERATORS", "compare", "null_mask", "plain_operand", "without_nulls"]

_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OPERATORS: Final = (*_COMPARISONS, "in", "not in")
"""What a column can be asked."""

_TEXT, _BYTES, _NUMBER = "text", "bytes", "numbers"


def plain_operand(op: str, value: Any) -> Any:
    """The value to compare with as Python's own type; for ``in`` and ``not in`` a sorted tuple of different values.

    ``None`` goes with ``==`` and ``!=``, which then ask whether there is a value.

    Raises:
        ConfigError: a value that no column can be compared with, or values of different kinds.
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
    """Which values are null: ``None``, NaN or NaT; bool, shape ``(n,)``. ``None`` where no value is.

    Args:
        column: an array of shape ``(n, ...)`` or a list of n values. An array as a value is not null, whatever it holds.
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
    if op in ("in", "not in"):
        found = _is_in(column, value, where)
        return ~found if op == "not in" else found
    if isinstance(column, np.ndarray):
        _check_array(column, (value,), where)
        return _compare_array(column, op, value)
    _check_list(column, (value,), where)
    try:
        return np.fromiter(map(_COMPARISONS[op], column, repeat(value)), np.bool_, len(column))
    except TypeError as error:
        raise ConfigError(f"{where}: {error}: compare such values with Where.function") from None


def _is_in(column: Column, values: tuple[Any, ...], where: str) -> NDArray[np.bool_]:
    if isinstance(column, np.ndarray):
        _check_array(column, values, where)
        found = np.zeros(len(column), np.bool_)
        if column.dtype.kind == "f":
            return np.isin(column, np.array(values, dtype=column.dtype))
        if column.dtype.kind == "b":
            column = column.view(np.uint8)
        bounds = np.iinfo(column.dtype)
        whole = [int(value) for value in values if bounds.min <= value <= bounds.max and value == math.floor(value)]
        return np.isin(column, np.array(whole, dtype=column.dtype)) if whole else found
    _check_list(column, values, where)
    try:
        return np.fromiter(map(frozenset(values).__contains__, column), np.bool_, len(column))
    except TypeError as error:
        raise ConfigError(f"{where}: {error}: compare such values with Where.function") from None


def _compare_array(column: Array, op: str, value: float) -> NDArray[np.bool_]:
    compare_with = _COMPARISONS[op]
    if column.dtype.kind == "f":
        # NumPy 1 and 2 differ in what they promote to, so the value is brought to the column's type here.
        with np.errstate(over="ignore"):
            bound = np.array(_as_float(value)).astype(column.dtype)
        return np.asarray(compare_with(column, bound), dtype=np.bool_)
    if column.dtype.kind == "b":
        column = column.view(np.uint8)
    bounds = np.iinfo(column.dtype)
    if isinstance(value, float) and math.isfinite(value) and not value.is_integer():
        # Between two integers: nothing equals it, and the rest is a question of the integer below.
        if op in ("==", "!="):
            return np.full(len(column), op == "!=")
        op = "<=" if op in ("<", "<=") else ">"
        compare_with, value = _COMPARISONS[op], math.floor(value)
    if not bounds.min <= value <= bounds.max:
        # All of the column lies on one side.
        return np.full(len(column), bool(compare_with(0, value)))
    return np.asarray(compare_with(column, column.dtype.type(int(value))), dtype=np.bool_)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _plain(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bytearray | memoryview):
        value = bytes(value)
    if not isinstance(value, str | bytes | int | float):
        raise ConfigError(f"a column can be compared with a number, text or bytes, not with {type(value).__name__}")
    if value != value:
        raise ConfigError("nothing equals NaN, nor is it less or more: NaN counts as null, which == None finds")
    return value


def _kind(kind: type) -> str | None:
    for name, types in ((_TEXT, str), (_BYTES, (bytes, memoryview)), (_NUMBER, (int, float, np.number, np.bool_))):
        if issubclass(kind, types):
            return name
    return None


def _check_array(column: Array, values: tuple[Any, ...], where: str) -> None:
    if column.ndim != 1 or column.dtype.kind not in "biuf":
        raise ConfigError(f"{where} holds arrays ({column.dtype}, {column.ndim - 1} axes each): use Where.function")
    _check_kinds({_NUMBER}, values, where)


def _check_list(column: list[Any], values: tuple[Any, ...], where: str) -> None:
    _check_kinds({_kind(kind) for kind in set(map(type, column))}, values, where)


def _check_kinds(found: set[str | None], values: tuple[Any, ...], where: str) -> None:
    """See that text is compared with text, and so on; values of other kinds (JSON objects) may be among them."""
    for value in values[:1]:
        wanted = _kind(type(value))
        for kind in found:
            if kind is not None and kind != wanted:
                raise ConfigError(f"{where} holds {kind}, which can not be compared with {value!r}")
