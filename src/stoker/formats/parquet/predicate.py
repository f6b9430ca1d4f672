"""Chooses the row groups that can hold a row that is asked for, by the bounds of columns in footers.

Nulls mean what they mean to :class:`~stoker.streams.conditions.Where`: no comparison keeps a null, but ``== None`` does. NaN
is null, and statistics do not tell of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, TypeAlias

import numpy as np

from stoker.display import unknown_operator
from stoker.errors import ConfigError
from stoker.units import as_decimal

Filters: TypeAlias = Sequence[tuple[str, str, Any]] | Sequence[Sequence[tuple[str, str, Any]]]
"""Conditions ``(column, op, value)`` that must all hold, or a list of such lists of which one must hold."""

_OPERATORS: Final = ("==", "!=", "<", "<=", ">", ">=", "in", "not in")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of a column's values in a row group.

    Attributes:
        low: no value is less.
        high: no value is greater.
        exact: whether values that equal the bounds are there, and no others than between them.
        empty: whether all values are null.
        holes: whether some values may be null.
    """

    low: Any
    high: Any
    exact: bool
    empty: bool
    holes: bool = True


@dataclass(frozen=True, slots=True)
class _Condition:
    column: str
    op: str
    value: Any

    def possible(self, bounds: Bounds | None) -> bool:
        """Whether a value can fulfil it."""
        if bounds is None:
            return True
        if self.value is None:
            if self.op == "!=":
                return not bounds.empty
            return bounds.empty or bounds.holes or isinstance(bounds.low, float)
        if bounds.empty:
            return False
        low, high, value = bounds.low, bounds.high, self.value
        if isinstance(low, float):
            # A number is rounded to the column's precision before it is compared, and the bounds do not tell which that is.
            return any(self._within(low, high, one) for one in _roundings(value))
        if isinstance(low, Decimal):
            value = tuple(map(as_decimal, value)) if isinstance(value, tuple) else as_decimal(value)
        return self._within(low, high, value, exact=bounds.exact)

    def _within(self, low: Any, high: Any, value: Any, *, exact: bool = False) -> bool:
        try:
            match self.op:
                case "==":
                    return bool(low <= value <= high)
                case "!=":
                    return not (exact and low == high == value)
                case "<":
                    return bool(low < value)
                case "<=":
                    return bool(low <= value)
                case ">":
                    return bool(high > value)
                case ">=":
                    return bool(high >= value)
                case "in":
                    return any(low <= one <= high for one in value)
                case _:
                    return not (exact and low == high and low in value)
        except TypeError:
            raise ConfigError(
                f"filters= compares column {self.column!r}, which holds {type(low).__name__}, with {value!r}"
            ) from None


def _roundings(value: Any) -> list[Any]:
    """A number, or a tuple of numbers, in the precisions that float columns have."""
    with np.errstate(over="ignore"):
        try:
            rounded = [np.asarray(value, np.float64).astype(kind).tolist() for kind in (np.float32, np.float16)]
        except (TypeError, ValueError, OverflowError):
            return [value]
    return [value, *rounded]


@dataclass(frozen=True, slots=True)
class Predicate:
    """Conditions in disjunctive normal form: one of the lists must hold, with all of its conditions."""

    alternatives: tuple[tuple[_Condition, ...], ...]

    @classmethod
    def parse(cls, filters: Filters | None) -> Predicate | None:
        """The predicate of ``filters=``; ``None`` if there is none.

        ConfigError if it is not such a list, or an operator is unknown.
        """
        if not filters:
            return None
        lists = [filters] if isinstance(filters[0], tuple) else filters
        return cls(tuple(tuple(_condition(one) for one in conditions) for conditions in lists))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that it asks about."""
        return tuple(dict.fromkeys(one.column for conditions in self.alternatives for one in conditions))

    def possible(self, bounds: Callable[[str], Bounds | None]) -> bool:
        """Whether a row group with these bounds can hold a row that fulfils the predicate.

        ``bounds``: bounds of a column by name; ``None`` where they are not known.
        """
        return any(all(one.possible(bounds(one.column)) for one in conditions) for conditions in self.alternatives)


def _condition(given: Any) -> _Condition:
    if not (isinstance(given, tuple | list) and len(given) == 3 and isinstance(given[0], str)):
        raise ConfigError(f"filters= should be a list of (column, op, value), or a list of such lists; found {given!r}")
    column, op, value = given
    op = "==" if op == "=" else op
    if op not in _OPERATORS:
        raise ConfigError(f"filters= on column {column!r}: {unknown_operator(op, _OPERATORS)}")
    if op in ("in", "not in"):
        if isinstance(value, str | bytes) or not isinstance(value, Collection):
            raise ConfigError(f"filters= on column {column!r}: {op!r} needs a list or set of values, got {value!r}")
        value = tuple(value)
    if (value is None and op not in ("==", "!=")) or (isinstance(value, tuple) and None in value):
        raise ConfigError(
            f"filters= on column {column!r}: null can not be compared with {op!r}; ('{column}', '==', None) finds nulls"
        )
    if any(isinstance(one, float) and one != one for one in (value if isinstance(value, tuple) else (value,))):
        raise ConfigError(
            f"filters= on column {column!r}: nothing equals NaN, which counts as null: ('{column}', '==', None) finds it"
        )
    return _Condition(column, op, value)
