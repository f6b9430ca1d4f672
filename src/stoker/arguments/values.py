"""Compares values with annotations: whether one is what an annotation says, and which Python value is then meant."""

from __future__ import annotations

import collections.abc
import inspect
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol, TypeVar, Union, get_args, get_origin

import numpy as np

# Elements of longer lists (of ids, say) are checked where they are used, as arrays.
_ELEMENTS: Final = 1000


class Unfit(Exception):  # noqa: N818 - becomes a ConfigError, which says whose value it is
    """A value that is not what an annotation says; ``path`` leads to it within the argument."""

    def __init__(self, hint: Any, value: Any, path: str = "") -> None:
        super().__init__()
        self.hint, self.value, self.path = hint, value, path


def accept(hint: Any, value: Any) -> Any:
    """A value, if it is what an annotation says, with Python's numbers for NumPy's."""
    if hint is Any or hint is object or isinstance(hint, TypeVar) or (hint in _EXACT and type(value) is hint):
        return value
    if hint in _PLAIN:
        return _PLAIN[hint](hint, value)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _accept_union(hint, value)
    if origin is Literal:
        # By type as well: True is no 1.
        if any(type(value) is type(one) and value == one for one in get_args(hint)):
            return value
        raise Unfit(hint, value)
    kind: Any = origin or hint
    if kind is _CALLABLE:
        return _of(callable(value), hint, value)
    if isinstance(kind, type):
        return _accept_class(hint, kind, value)
    return value if (meant := resolved(hint)) is hint else accept(meant, value)


def resolved(hint: Any) -> Any:
    """The meaning of a name of an annotation, as ``DTypeLike`` and ``NDArray`` are since NumPy 2.5; any other itself."""
    name, inner = get_origin(hint) or hint, get_args(hint)
    if not hasattr(name, "__value__"):  # of typing.TypeAliasType, which Python has from 3.12 on
        return hint
    return resolved(name.__value__[inner] if inner else name.__value__)


def _of(fits: bool, hint: Any, value: Any) -> Any:
    if not fits:
        raise Unfit(hint, value)
    return value


def _integer(hint: Any, value: Any) -> Any:
    if isinstance(value, np.integer):
        return int(value)
    return _of(isinstance(value, int) and not isinstance(value, bool), hint, value)


def _number(hint: Any, value: Any) -> Any:
    if isinstance(value, np.integer | np.floating):
        value = value.item()
    # NaN compares as neither too small nor too large.
    return _of(isinstance(value, int | float) and not isinstance(value, bool) and value == value, hint, value)


def _bool(hint: Any, value: Any) -> Any:
    return bool(value) if isinstance(value, np.bool_) else _of(isinstance(value, bool), hint, value)


def _none(hint: Any, value: Any) -> Any:
    return _of(value is None, hint, value)


_CALLABLE: Final = collections.abc.Callable
# Whose values are what they say without a further look: a float may be NaN.
_EXACT: Final = (bool, int, str)
_PLAIN: Final[Mapping[Any, Callable[[Any, Any], Any]]] = {
    int: _integer,
    float: _number,
    bool: _bool,
    type(None): _none,
    None: _none,
}


def _accept_union(hint: Any, value: Any) -> Any:
    options = get_args(hint)
    if any(get_origin(one) is os.PathLike for one in options) and isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if not text or "\0" in str(text):
            raise Unfit(hint, value)
        if isinstance(value, os.PathLike):
            return value
    if takes_dtype(options):
        return _accept_dtype(options, hint, value)
    if int in options and str in options and float not in options and isinstance(value, float) and value.is_integer():
        return int(value)  # sizes and counts, which people also write like 1e9
    deepest: Unfit | None = None
    changed: list[Any] = []
    for option in options:
        try:
            accepted = accept(option, value)
        except Unfit as unfit:
            if unfit.path and (deepest is None or len(unfit.path) > len(deepest.path)):
                deepest = unfit
            continue
        if accepted is value:
            return value
        changed.append(accepted)
    if changed:
        return changed[0]
    raise deepest or Unfit(hint, value)


def _accept_dtype(options: Sequence[Any], hint: Any, value: Any) -> Any:
    if value is None:
        return _of(type(None) in options, hint, value)
    try:
        np.dtype(value)
    except (TypeError, ValueError):
        raise Unfit(np.dtype, value) from None
    return value


def _accept_class(hint: Any, kind: type, value: Any) -> Any:
    inner = get_args(hint)
    if kind is tuple:
        return _accept_tuple(hint, inner, value)
    if issubclass(kind, Mapping):
        if not isinstance(value, kind):
            raise Unfit(hint, value)
        return _accept_items(inner, value)
    if issubclass(kind, Iterable) and kind.__module__ in ("collections.abc", "builtins") and kind is not str:
        return _accept_elements(hint, kind, inner, value)
    if getattr(kind, "_is_protocol", False):
        return _of(_has_all(kind, value), hint, value)
    return _of(isinstance(value, kind), hint, value)


def _accept_items(inner: tuple[Any, ...], value: Mapping[Any, Any]) -> Any:
    if not inner:
        return value
    found: dict[Any, Any] = {}
    same = True
    for key, one in value.items():
        try:
            name = accept(inner[0], key)
        except Unfit as unfit:
            raise Unfit(unfit.hint, key, ": a key") from None
        try:
            found[name] = accept(inner[1], one)
        except Unfit as unfit:
            raise Unfit(unfit.hint, unfit.value, f"[{key!r}]{unfit.path}") from None
        same = same and name is key and found[name] is one
    return value if same else found


def _accept_elements(hint: Any, kind: type, inner: tuple[Any, ...], value: Any) -> Any:
    if kind in (bytes, bytearray, memoryview):
        return _of(isinstance(value, kind), hint, value)
    if isinstance(value, str | bytes) or (isinstance(value, Mapping) and issubclass(kind, Sequence)):
        raise Unfit(hint, value)
    if isinstance(value, np.ndarray) and value.ndim == 1 and kind is not list:
        value = value.tolist()
    if not isinstance(value, kind):
        raise Unfit(hint, value)
    if not inner or not isinstance(value, Sequence):
        return value
    found = [_element(inner[0], number, one) for number, one in enumerate(value[:_ELEMENTS])]
    if all(one is before for one, before in zip(found, value, strict=False)):
        return value
    whole = [*found, *value[_ELEMENTS:]]
    return whole if isinstance(value, list) else tuple(whole)


def _accept_tuple(hint: Any, inner: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, tuple | list):
        raise Unfit(hint, value)
    if not inner:
        return tuple(value)
    kinds = [inner[0]] * len(value) if len(inner) == 2 and inner[1] is ... else inner
    if len(kinds) != len(value):
        raise Unfit(hint, value)
    found = tuple(_element(kind, number, one) for number, (kind, one) in enumerate(zip(kinds, value, strict=True)))
    same = isinstance(value, tuple) and all(one is before for one, before in zip(found, value, strict=True))
    return value if same else found


def _element(hint: Any, number: int, value: Any) -> Any:
    try:
        return accept(hint, value)
    except Unfit as unfit:
        raise Unfit(unfit.hint, unfit.value, f"[{number}]{unfit.path}") from None


def _has_all(protocol: type, value: Any) -> bool:
    """Whether a value, not a class, has what a protocol names. Properties are not evaluated: they may raise."""
    if isinstance(value, type):
        return False
    missing = object()
    return all(
        inspect.getattr_static(value, name, missing) is not missing or hasattr(value, name)
        for one in protocol.__mro__
        if one not in (object, Protocol) and getattr(one, "_is_protocol", False)
        for name in (*vars(one), *inspect.get_annotations(one))
        if not name.startswith("_")
    )


def union_members(hint: Any) -> tuple[Any, ...]:
    """The members of a union annotation; of any other annotation, itself alone."""
    hint = resolved(hint)
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def takes_dtype(options: Iterable[Any]) -> bool:
    """Whether these are members of ``DTypeLike``: ``np.dtype`` itself, whose others are what a dtype is made of."""
    return any(np.dtype in (one, get_origin(one)) for one in options)


def fits(hint: Any, value: Any) -> bool:
    """Whether a value is what an annotation says."""
    try:
        accept(hint, value)
    except Unfit:
        return False
    return True
