"""Says in words what an annotation asks for, what was given instead, and what was probably meant."""

from __future__ import annotations

import collections.abc
import contextlib
import os
import reprlib
import types
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Union, get_args, get_origin

import numpy as np

from stoker.arguments.values import Unfit, fits, resolved, takes_dtype, union_members
from stoker.display import nearest, with_article

_BOOLS: Final = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
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


def described(hint: Any, *, several: bool = False) -> str:
    """An annotation in words."""
    hint = resolved(hint)
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        options = [one for one in get_args(hint) if one is not type(None)]
        if takes_dtype(options):
            options = [np.dtype]
        words = []
        for one in options:
            found = map(repr, get_args(one)) if get_origin(one) is Literal else [described(one, several=several)]
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
        what = f" of {described(inner[1], several=True)}" if inner and inner[1] is not Any else ""
        return f"{'dicts' if several else 'a dict'}{what}"
    if kind is tuple and inner and inner[-1] is not ...:
        word = "pair" if len(inner) == 2 else f"tuple of {len(inner)}"
        return f"{word.replace(' ', 's ', 1) if ' ' in word else word + 's'}" if several else f"a {word}"
    if isinstance(kind, type) and (kind is tuple or kind.__module__ == "collections.abc" or kind in (list, set)):
        what = f" of {described(inner[0], several=True)}" if inner and inner[0] is not Any else ""
        return f"{'lists' if several else 'a list'}{what}"
    name = str(getattr(kind, "known_as", None) or getattr(kind, "__name__", kind))
    if several:
        return f"{name} objects"
    return with_article(name)


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def shown(value: Any) -> str:
    shorten = reprlib.Repr()
    shorten.maxstring = shorten.maxother = 80
    try:
        text = shorten.repr(value)
    except Exception:  # noqa: BLE001 - a repr of someone else's
        return with_article(type(value).__name__)
    if value is None or isinstance(value, bool | type):
        return text
    return f"{text} ({type(value).__name__})"


def remedy_for(unfit: Unfit, name: str) -> str:
    """Suggests what to write instead; an empty string where nothing can be guessed."""
    value, options = unfit.value, union_members(unfit.hint)
    kinds = {get_origin(one) or one for one in options}
    assign = "write " if unfit.path else f"write {name}="
    if isinstance(value, str):
        literals = [word for one in options if get_origin(one) is Literal for word in get_args(one)]
        if literals:
            return nearest(value, filter(lambda word: isinstance(word, str), literals)).removeprefix("; ")
        if kinds & {int, float} and fits(float if float in kinds else int, _number_in(value)):
            return f"{assign}{value.strip()}, without quotes"
        if os.PathLike in kinds:
            return "a path holds no NUL" if value else "an empty string is not a path: is a variable not set?"
        if bool in kinds and value.strip().lower() in _BOOLS:
            return f"{assign}{_BOOLS[value.strip().lower()]}"
    if isinstance(value, float) and int in kinds and value.is_integer():
        return f"{assign}{int(value)}"
    if isinstance(value, int) and bool in kinds and value in (0, 1):
        return f"{assign}{bool(value)}"
    if isinstance(value, type):
        return "" if str in kinds else f"give an object of it, {value.__name__}(...)"
    for one in options:
        if get_origin(one) is Sequence and fits(get_args(one)[0], value):
            return f"for a single one, {assign}[{reprlib.repr(value)}]"
    if collections.abc.Callable in kinds and isinstance(value, Sequence) and not isinstance(value, str):
        return "for several, give one function that calls them in turn"
    return ""


def _number_in(text: str) -> Any:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return None
