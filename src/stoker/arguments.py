"""Checks of the arguments of public classes and functions, by their annotations.

:func:`checked` decorates a function or a class. What a caller gives is compared with the annotations before anything else
happens, so that a wrong type is an error that names the argument, and not a TypeError from deep within. NumPy's scalars
become Python's: ``np.int64(8)`` is as good as ``8``. ``True`` and ``8.0`` are not integers.

Whether a value makes sense (its range, what it contradicts) is checked where it is used.
"""

from __future__ import annotations

import collections.abc
import contextlib
import functools
import inspect
import os
import reprlib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import (
    Any,
    Final,
    Literal,
    Protocol,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import numpy as np

from stoker.display import with_article
from stoker.errors import ConfigError

__all__ = ["check_argument", "checked", "nearest", "unknown_name", "unknown_operator"]

_T = TypeVar("_T")

# Elements of longer lists (of ids, say) are checked where they are used, as arrays.
_ELEMENTS: Final = 1000
# Sizes and counts go into int64; only seeds are any integer.
_MOST: Final = 1 << 63
_BOOLS: Final = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
# Comparisons as they are written elsewhere.
_OPERATORS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("=", "===", "eq", "is"), "=="),
    **dict.fromkeys(("<>", "=!", "~=", "≠", "ne", "is not"), "!="),
    **dict.fromkeys(("=<", "≤", "le"), "<="),
    **dict.fromkeys(("=>", "≥", "ge"), ">="),
    **dict.fromkeys(("isin", "is in"), "in"),
    **dict.fromkeys(("notin", "not_in", "!in"), "not in"),
    **{word: word for word in ("in", "not in")},
    "lt": "<",
    "gt": ">",
}
_NAMES: Final[Mapping[Any, tuple[str, str]]] = {
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    bool: ("True or False", "bools"),
    str: ("a string", "strings"),
    bytes: ("bytes", "bytes"),
    os.PathLike: ("a path", "paths"),
    collections.abc.Callable: ("a function", "functions"),
    np.ndarray: ("an array", "arrays"),
    np.dtype: ("a dtype", "dtypes"),
    type: ("a class", "classes"),
}


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


def nearest(name: object, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the known name that is most like ``name``, else nothing."""
    import difflib  # of an error alone

    lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(str(name).lower(), list(lower), 1, 0.65)
    return f"; did you mean {lower[close[0]]!r}?" if close else ""


def unknown_name(what: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that is none of the known: names all of them, and the one that was probably meant."""
    names = list(known)
    return f"{what} {name!r} is unknown{nearest(name, names) or ';'} known: {', '.join(names) or 'none'}"


def unknown_operator(op: object, known: Iterable[str]) -> str:
    """As :func:`unknown_name`, of comparisons: letters that are alike tell nothing, other ways to write one do."""
    meant = _OPERATORS.get(" ".join(str(op).lower().split()))
    names = list(known)
    return (
        f"operator {op!r} is unknown; {f'did you mean {meant!r}? ' if meant in names else ''}known: {', '.join(names)}"
    )


def check_argument(owner: str, name: str, hint: Any, value: Any, remedy: str = "") -> Any:
    """A value, if it is what an annotation says, with Python's numbers for NumPy's.

    Args:
        owner: whose argument it is, for the message.
        name: of the argument.
        hint: the annotation.
        value: what was given.
        remedy: what to write, where the value does not tell.

    Raises:
        ConfigError: it is something else.
    """
    try:
        accepted = _accept(hint, value)
    except _Unfit as unfit:
        got = with_article(type(value).__name__) if name == "storage_options" else _shown(unfit.value)
        remedy = _remedy(unfit, name) or remedy
        raise ConfigError(
            f"{owner}: {name}{unfit.path} must be {_described(unfit.hint)}, got {got}{remedy and '; ' + remedy}"
        ) from None
    if hint is not Any and type(accepted) is int and abs(accepted) >= _MOST and "seed" not in name:
        raise ConfigError(f"{owner}: {name} must be below 2**63, got {accepted}")
    return accepted


def _decorate(target: Any, remedies: Mapping[str, str], of: type | None = None) -> Any:
    if isinstance(target, type):
        name = "__new__" if issubclass(target, tuple) else "__init__"  # named tuples have no __init__
        setattr(target, name, _decorate(getattr(target, name), remedies, target))
        return target

    @functools.cache
    def plan() -> _Plan:
        # When first called: annotations may name what is defined later.
        return _Plan(target, remedies, of)

    @functools.wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = plan().check(args, kwargs)
        return target(*args, **kwargs)

    return call


class _Plan:
    """Checks calls of one function against its signature and annotations."""

    def __init__(self, target: Callable[..., Any], remedies: Mapping[str, str], of: type | None) -> None:
        self._signature = inspect.signature(target)
        # A named tuple's __new__ lives in a namespace without builtins; its class tells the same.
        self._hints = get_type_hints(of if of is not None and issubclass(of, tuple) else target)
        self._method = target.__name__ in ("__init__", "__new__")
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
            owner = (args[0] if isinstance(args[0], type) else type(args[0])).__name__
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
            raise ConfigError(f"{owner}: {self._misfit(error, kwargs)}") from error
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

    def _misfit(self, error: TypeError, kwargs: Mapping[str, Any]) -> str:
        known = [name for name in self._names if name not in ("self", "cls", "_cls", self._rest)]
        for name in kwargs:
            if name not in known and self._rest is None:
                return self._unknown(name, known)
        if "too many positional" in str(error):
            named = [p.name for p in self._signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
            known_named = f"name them, as in {', '.join(f'{name}=...' for name in named[:3])}"
            return f"{error}; {known_named if named else 'known: ' + ', '.join(known)}"
        return str(error)


class _Unfit(Exception):  # noqa: N818 - becomes a ConfigError, which says whose value it is
    """A value that is not what an annotation says; ``path`` leads to it within the argument."""

    def __init__(self, hint: Any, value: Any, path: str = "") -> None:
        super().__init__()
        self.hint, self.value, self.path = hint, value, path


def _accept(hint: Any, value: Any) -> Any:
    """The value, with Python's numbers for NumPy's; raises _Unfit."""
    if hint is Any or hint is object or isinstance(hint, TypeVar):
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
        raise _Unfit(hint, value)
    kind: Any = origin or hint
    if kind is _CALLABLE:
        return _of(callable(value), hint, value)
    if isinstance(kind, type):
        return _accept_class(hint, kind, value)
    return value


def _of(fits: bool, hint: Any, value: Any) -> Any:
    if not fits:
        raise _Unfit(hint, value)
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
_PLAIN: Final[Mapping[Any, Callable[[Any, Any], Any]]] = {
    int: _integer,
    float: _number,
    bool: _bool,
    type(None): _none,
    None: _none,
}


def _accept_union(hint: Any, value: Any) -> Any:
    options = get_args(hint)
    if any(get_origin(one) is np.dtype for one in options):
        return _accept_dtype(options, hint, value)
    if int in options and str in options and float not in options and isinstance(value, float) and value.is_integer():
        return int(value)  # sizes and counts, which people also write like 1e9
    if any(get_origin(one) is os.PathLike for one in options) and isinstance(value, str | os.PathLike):
        text = os.fspath(value)
        if not text or "\0" in str(text):
            raise _Unfit(hint, value)
    deepest: _Unfit | None = None
    changed: list[Any] = []
    for option in options:
        try:
            accepted = _accept(option, value)
        except _Unfit as unfit:
            if unfit.path and (deepest is None or len(unfit.path) > len(deepest.path)):
                deepest = unfit
            continue
        if accepted is value:
            return value
        changed.append(accepted)
    if changed:
        return changed[0]
    raise deepest or _Unfit(hint, value)


def _accept_dtype(options: Sequence[Any], hint: Any, value: Any) -> Any:
    if value is None:
        return _of(type(None) in options, hint, value)
    try:
        np.dtype(value)
    except (TypeError, ValueError):
        raise _Unfit(np.dtype, value) from None
    return value


def _accept_class(hint: Any, kind: type, value: Any) -> Any:
    inner = get_args(hint)
    if kind is tuple:
        return _accept_tuple(hint, inner, value)
    if issubclass(kind, Mapping):
        if not isinstance(value, kind):
            raise _Unfit(hint, value)
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
            name = _accept(inner[0], key)
        except _Unfit as unfit:
            raise _Unfit(unfit.hint, key, ": a key") from None
        try:
            found[name] = _accept(inner[1], one)
        except _Unfit as unfit:
            raise _Unfit(unfit.hint, unfit.value, f"[{key!r}]{unfit.path}") from None
        same = same and name is key and found[name] is one
    return value if same else found


def _accept_elements(hint: Any, kind: type, inner: tuple[Any, ...], value: Any) -> Any:
    if kind in (bytes, bytearray, memoryview):
        return _of(isinstance(value, kind), hint, value)
    if isinstance(value, str | bytes) or (isinstance(value, Mapping) and issubclass(kind, Sequence)):
        raise _Unfit(hint, value)
    if isinstance(value, np.ndarray) and value.ndim == 1 and kind is not list:
        value = value.tolist()
    if not isinstance(value, kind):
        raise _Unfit(hint, value)
    if not inner or not isinstance(value, Sequence):
        return value
    found = [_element(inner[0], number, one) for number, one in enumerate(value[:_ELEMENTS])]
    if all(one is before for one, before in zip(found, value, strict=False)):
        return value
    whole = [*found, *value[_ELEMENTS:]]
    return whole if isinstance(value, list) else tuple(whole)


def _accept_tuple(hint: Any, inner: tuple[Any, ...], value: Any) -> Any:
    if not isinstance(value, tuple | list):
        raise _Unfit(hint, value)
    if not inner:
        return tuple(value)
    kinds = [inner[0]] * len(value) if len(inner) == 2 and inner[1] is ... else inner
    if len(kinds) != len(value):
        raise _Unfit(hint, value)
    found = tuple(_element(kind, number, one) for number, (kind, one) in enumerate(zip(kinds, value, strict=True)))
    same = isinstance(value, tuple) and all(one is before for one, before in zip(found, value, strict=True))
    return value if same else found


def _element(hint: Any, number: int, value: Any) -> Any:
    try:
        return _accept(hint, value)
    except _Unfit as unfit:
        raise _Unfit(unfit.hint, unfit.value, f"[{number}]{unfit.path}") from None


def _has_all(protocol: type, value: Any) -> bool:
    """Whether a value, not a class, has what a protocol names. Properties are not evaluated: they may raise."""
    if isinstance(value, type):
        return False
    missing = object()
    return all(
        inspect.getattr_static(value, name, missing) is not missing or hasattr(value, name)
        for one in protocol.__mro__
        if one not in (object, Protocol) and getattr(one, "_is_protocol", False)
        for name in (*vars(one), *vars(one).get("__annotations__", {}))
        if not name.startswith("_")
    )


def _described(hint: Any, *, several: bool = False) -> str:
    """An annotation in words."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        options = [one for one in get_args(hint) if one is not type(None)]
        if any(get_origin(one) is np.dtype for one in options):
            options = [np.dtype]
        words = []
        for one in options:
            found = map(repr, get_args(one)) if get_origin(one) is Literal else [_described(one, several=several)]
            words += [word for word in found if word not in words]
        if all(word.endswith(" objects") for word in words):
            words[:-1] = [word.removesuffix(" objects") for word in words[:-1]]
        if type(None) in get_args(hint):
            words.append("None")
        return _listed(words)
    if origin is Literal:
        return _listed([repr(one) for one in get_args(hint)])
    kind: Any = origin or hint
    inner = get_args(hint)
    if kind in _NAMES:
        return _NAMES[kind][several]
    if isinstance(kind, type) and issubclass(kind, Mapping):
        what = f" of {_described(inner[1], several=True)}" if inner and inner[1] is not Any else ""
        return f"{'dicts' if several else 'a dict'}{what}"
    if kind is tuple and inner and inner[-1] is not ...:
        word = "pair" if len(inner) == 2 else f"tuple of {len(inner)}"
        return f"{word.replace(' ', 's ', 1) if ' ' in word else word + 's'}" if several else f"a {word}"
    if isinstance(kind, type) and (kind is tuple or kind.__module__ == "collections.abc" or kind in (list, set)):
        what = f" of {_described(inner[0], several=True)}" if inner and inner[0] is not Any else ""
        return f"{'lists' if several else 'a list'}{what}"
    name = str(getattr(kind, "known_as", None) or getattr(kind, "__name__", kind))
    if several:
        return f"{name} objects"
    return with_article(name)


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _shown(value: Any) -> str:
    shorten = reprlib.Repr()
    shorten.maxstring = shorten.maxother = 80
    try:
        text = shorten.repr(value)
    except Exception:  # noqa: BLE001 - a repr of someone else's
        return with_article(type(value).__name__)
    if value is None or isinstance(value, bool | type):
        return text
    return f"{text} ({type(value).__name__})"


def _remedy(unfit: _Unfit, name: str) -> str:
    """Suggests what to write instead; an empty string where nothing can be guessed."""
    value, options = unfit.value, _options(unfit.hint)
    kinds = {get_origin(one) or one for one in options}
    assign = "write " if unfit.path else f"write {name}="
    if isinstance(value, str):
        literals = [word for one in options if get_origin(one) is Literal for word in get_args(one)]
        if literals:
            return nearest(value, filter(lambda word: isinstance(word, str), literals)).removeprefix("; ")
        if kinds & {int, float} and _fits(float if float in kinds else int, _number_in(value)):
            return f"{assign}{value.strip()}, without quotes"
        if os.PathLike in kinds:
            return "a path holds no NUL" if value else "an empty string is no path: is a variable not set?"
        if bool in kinds and value.strip().lower() in _BOOLS:
            return f"{assign}{_BOOLS[value.strip().lower()]}"
    if isinstance(value, float) and int in kinds and value.is_integer():
        return f"{assign}{int(value)}"
    if isinstance(value, int) and bool in kinds and value in (0, 1):
        return f"{assign}{bool(value)}"
    if isinstance(value, type):
        return "" if str in kinds else f"give an object of it, {value.__name__}(...)"
    for one in options:
        if get_origin(one) is Sequence and _fits(get_args(one)[0], value):
            return f"for a single one, {assign}[{reprlib.repr(value)}]"
    if _CALLABLE in kinds and isinstance(value, Sequence) and not isinstance(value, str):
        return "for several, give one function that calls them in turn"
    return ""


def _options(hint: Any) -> tuple[Any, ...]:
    """The members of a union annotation; of any other annotation, itself alone."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _fits(hint: Any, value: Any) -> bool:
    try:
        _accept(hint, value)
    except _Unfit:
        return False
    return True


def _number_in(text: str) -> Any:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return None
