"""Checks of the arguments of public classes and functions, by their annotations.

:func:`checked` decorates a function or a class. What a caller gives is compared with the annotations before anything else
happens, so that a wrong type is an error that names the argument, and not a TypeError from deep within. NumPy's scalars
become Python's: ``np.int64(8)`` is as good as ``8``. ``True`` and ``8.0`` are not integers.

Whether a value makes sense (its range, what it contradicts) is checked where it is used; a number that is too small by
:func:`at_least`, others that are out of range by :func:`must_be`, and names that are unknown by :func:`must_know`.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, Union, Unpack, get_args, get_origin, get_type_hints, overload

from stoker.arguments.messages import described, remedy_for, shown
from stoker.arguments.values import Unfit, accept, fits, union_members
from stoker.display import unknown_name, with_article
from stoker.errors import ConfigError

_T = TypeVar("_T")

# Sizes and counts go into int64; only seeds are any integer.
_MOST: Final = 1 << 63


@overload
def checked(target: _T, /) -> _T: ...
@overload
def checked(**remedies: str) -> Callable[[_T], _T]: ...
def checked(target: Any = None, /, **remedies: str) -> Any:
    """Decorate a function, or a class for its ``__init__``, to check its arguments' types.

    Args:
        target: the function or class.
        **remedies: for an argument, what its message says to write; otherwise the message says what it can guess. Of a name
            that is no argument, where what it stands for is to be found.

    Raises:
        ConfigError: by what is decorated: an argument of the wrong type, an unknown or a missing one.
    """
    if target is None:
        return functools.partial(_decorate, remedies=remedies)
    return _decorate(target, remedies)


def check_argument(owner: str, name: str, hint: Any, value: Any, remedy: str = "") -> Any:
    """A value, if it is what an annotation says, with Python's numbers for NumPy's.

    ``owner`` and ``name`` are for the message, as is ``remedy``: what to write, where the value does not tell.
    """
    try:
        accepted = accept(hint, value)
    except Unfit as unfit:
        got = with_article(type(value).__name__) if name == "storage_options" else shown(unfit.value)
        remedy = remedy_for(unfit, name) or remedy
        raise ConfigError(
            f"{owner}: {name}{unfit.path} must be {described(unfit.hint)}, got {got}{remedy and '; ' + remedy}"
        ) from None
    if hint is not Any and type(accepted) is int and abs(accepted) >= _MOST and "seed" not in name:
        raise ConfigError(f"{owner}: {name} must be below 2**63, got {accepted}")
    return accepted


def at_least(least: int, /, **given: int | None) -> None:
    """Check that numbers, by the names of their arguments, are not too small; ``None`` is not given.

    Raises:
        ConfigError: one is too small.
    """
    for name, value in given.items():
        if value is not None and value < least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")


def must_be(what: str, good: bool, /, **given: Any) -> None:
    """Check that an argument, by its name, is what it has to be: ``what`` says what that is, ``good`` whether it is.

    Raises:
        ConfigError: it is not.
    """
    if not good:
        ((name, value),) = given.items()
        raise ConfigError(f"{name} must be {what}, got {value!r}")


def must_know(what: str, names: Iterable[Any], known: Iterable[Any], where: str = "") -> None:
    """Check that all names are known. ConfigError of the first that is not, which ``where`` begins: names the known, and
    what was probably meant."""
    known = known if isinstance(known, Collection) else tuple(known)
    for name in names:
        if name not in known:
            raise ConfigError(f"{where}{unknown_name(what, name, known)}")


def _decorate(target: Any, remedies: Mapping[str, str], of: type | None = None) -> Any:
    if isinstance(target, type):
        name = "__new__" if issubclass(target, tuple) else "__init__"  # named tuples have no __init__
        setattr(target, name, _decorate(getattr(target, name), remedies, target))
        return target

    plan: _Plan | None = None

    @functools.wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal plan
        if plan is None:  # when first called: annotations may name what is defined later
            plan = _Plan(target, remedies, of)
        args, kwargs = plan.check(args, kwargs)
        return target(*args, **kwargs)

    return call


def _taken(target: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the annotations of what another takes. Of what it returns, which is not checked, none need be known."""
    made = functools.partial(target)
    made.__annotations__ = {name: hint for name, hint in target.__annotations__.items() if name != "return"}
    made.__wrapped__ = target  # type: ignore[attr-defined]
    return made


class _Plan:
    """Checks calls of one function against its signature and annotations."""

    def __init__(self, target: Callable[..., Any], remedies: Mapping[str, str], of: type | None) -> None:
        self._signature = inspect.signature(target)
        # A named tuple's __new__ lives in a namespace without builtins; its class tells the same.
        self._hints = get_type_hints(of if of is not None and issubclass(of, tuple) else _taken(target))
        self._makes = target.__name__ == "__new__"
        self._method = self._makes or target.__name__ == "__init__"
        self._name = target.__qualname__
        self._remedies = remedies
        self._names = list(self._signature.parameters)
        parameters = self._signature.parameters.values()
        # Where no parameter takes several arguments, most calls are bound here, in a tenth of the time of `bind`.
        self._simple = all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in parameters)
        self._by_place = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self._needed = {p.name for p in parameters if p.default is p.empty}
        unions = (Union, types.UnionType)
        self._optional = {
            name for name, hint in self._hints.items() if get_origin(hint) in unions and type(None) in get_args(hint)
        }
        rest = next((p for p in self._signature.parameters.values() if p.kind is p.VAR_KEYWORD), None)
        self._rest: str | None = None if rest is None else rest.name
        self._options: dict[str, Any] | None = None
        if rest is not None:
            hint = self._hints.get(rest.name)
            if get_origin(hint) is Unpack:
                self._options = get_type_hints(get_args(hint)[0])

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        owner = self._name
        if self._method and args:
            owner = (args[0] if self._makes else type(args[0])).__name__
        elif args and self._names[0] == "self":  # of its class, where a base defines the method
            owner = f"{type(args[0]).__name__}.{self._name.rpartition('.')[2]}"
        if self._simple:
            given = dict(zip(self._by_place, args, strict=False))
            if len(given) == len(args) and given.keys().isdisjoint(kwargs):
                given |= kwargs
                if given.keys() <= self._signature.parameters.keys() and self._needed <= given.keys():
                    for name, value in given.items():
                        given[name] = self._accepted(owner, name, value)
                    return tuple([given.pop(name) for name in self._by_place[: len(args)]]), given
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ConfigError(f"{owner}: {self._misfit(error, args, kwargs)}") from error
        for name, value in bound.arguments.items():
            if name == self._rest:
                self._check_options(owner, value)
            else:
                bound.arguments[name] = self._accepted(owner, name, value)
        return bound.args, bound.kwargs

    def _accepted(self, owner: str, name: str, value: Any) -> Any:
        if name not in self._hints or (value is None and name in self._optional):
            return value
        return check_argument(owner, name, self._hints[name], value, self._remedies.get(name, ""))

    def _check_options(self, owner: str, given: dict[str, Any]) -> None:
        if self._options is None:
            return
        for name, value in given.items():
            if name not in self._options:
                known = [
                    *(one for one in self._names if one not in ("self", "cls", "_cls", self._rest)),
                    *self._options,
                ]
                raise ConfigError(f"{owner}: {self._unknown(name, known)}")
            given[name] = check_argument(owner, name, self._options[name], value, self._remedies.get(name, ""))

    def _unknown(self, name: str, known: Sequence[str]) -> str:
        moved = self._remedies.get(name)
        return f"there is no argument {name!r}: {moved}" if moved else unknown_name("argument", name, known)

    def _misfit(self, error: TypeError, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        known = [name for name in self._names if name not in ("self", "cls", "_cls", self._rest)]
        for name in kwargs:
            if name not in known and self._rest is None:
                return self._unknown(name, known)
        if "too many positional" in str(error):
            together = self._together(args)
            if together:
                return f"{error}; write {together}"
            named = [p.name for p in self._signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
            known_named = f"name them, as in {', '.join(f'{name}=...' for name in named[:3])}"
            return f"{error}; {known_named if named else 'known: ' + ', '.join(known)}"
        return str(error)

    def _together(self, args: Sequence[Any]) -> str:
        """Text of arguments that belong into the last one with a place, a list or a dict; empty where they do not."""
        if self._method or not self._by_place:  # of a class, what has no place is another argument
            return ""
        last, extra = self._by_place[-1], args[len(self._by_place) - 1 :]
        for one in union_members(self._hints.get(last)):
            kind, inner = get_origin(one), get_args(one)
            if kind is Sequence and inner and all(fits(inner[0], value) for value in extra):
                return f"{last}={list(extra)!r}"
            if kind is Mapping and len(extra) == 2 and all(fits(*pair) for pair in zip(inner, extra, strict=True)):
                return f"{last}={{{extra[0]!r}: {extra[1]!r}}}"
        return ""
