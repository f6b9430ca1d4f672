"""Attributes that are computed once, when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

_T = TypeVar("_T")


class cached_property(Generic[_T]):  # noqa: N801 - as the one of functools
    """As :class:`functools.cached_property`, without the lock that it has for all objects of a class up to Python 3.11.

    A thread of a parent that held it would be waited for in a forked child for ever. Threads that ask at once may compute the
    value several times; the first that is there stays.
    """

    def __init__(self, compute: Callable[[Any], _T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, one: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(self, one: object, owner: type | None = None) -> _T: ...

    def __get__(self, one: object | None, owner: type | None = None) -> Self | _T:
        if one is None:
            return self
        value: _T = one.__dict__.setdefault(self._name, self._compute(one))
        return value
