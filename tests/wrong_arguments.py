"""Values that no argument is, given to each argument of a public function or class in turn."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from stoker.errors import ConfigError, StokerError

OUT = "the place of what is written"

Valid = Callable[[Path], dict[str, Any]]


class Nonsense:
    """Something that no argument is."""

    def __init__(self, *_: Any) -> None:
        """As a class it can be called, as functions are."""


def nothing(*_: Any) -> None:
    """A function of anything."""


WRONG: dict[str, Any] = {
    "an object": Nonsense(),
    "a class": Nonsense,
    "None": None,
    "true": True,
    "negative": -1,
    "huge": 2**65,
    "fraction": 2.5,
    "nan": float("nan"),
    "inf": float("inf"),
    "text": "nonsense",
    "empty text": "",
    "nul": "a\0b",
    "bytes": b"nonsense",
    "empty list": [],
    "list of nonsense": [Nonsense()],
    "list of text": ["nonsense"],
    "list of numbers": [1.5],
    "empty dict": {},
    "dict of nonsense": {"nonsense": Nonsense()},
    "dict of text": {"nonsense": "nonsense"},
    "dict of numbers": {1: 2},
    "function": nothing,
    "array": np.array([[1.5]]),
}


def _found(name: str) -> Any:
    module, _, rest = name.rpartition(".")
    try:
        return getattr(import_module(module), rest)
    except ModuleNotFoundError:
        return getattr(_found(module), rest)


def _parameters(target: Any) -> dict[str, Any]:
    """Name to annotation of all arguments, those of ``**options: Unpack[...]`` among them."""
    function = target.__new__ if isinstance(target, type) and issubclass(target, tuple) else target
    function = target.__init__ if isinstance(target, type) and function is target else function
    hints = get_type_hints(target if isinstance(target, type) and issubclass(target, tuple) else function)
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            found[name] = hints[name]
        else:
            found |= get_type_hints(get_args(hints[name])[0])
    return found


def check_arguments(
    name: str,
    make: Callable[[], dict[str, Any]],
    use: Callable[[Any], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A wrong value of any argument is a StokerError that names the argument, or is taken for what it is.

    Args:
        name: module and name of the function or class.
        make: arguments with which it works; :data:`OUT` becomes a new folder.
        use: what to do with what it returns.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    target = _found(name)

    def valid(place: str) -> dict[str, Any]:
        arguments = make()
        return {key: tmp_path / place if value == OUT else value for key, value in arguments.items()}

    use(target(**valid("out")))
    for number, (argument, hint) in enumerate(_parameters(target).items()):
        for kind, wrong in WRONG.items():
            arguments = valid(f"{number}/{kind}") | {argument: wrong}
            called = f"{name}({argument}={wrong!r})"
            try:
                use(target(**arguments))
            except StokerError as error:
                told = str(error)
            except Exception as error:
                raise AssertionError(f"{called}: a raw {type(error).__name__}: {error}") from error
            else:
                told = ""
            if kind == "an object" and hint is not Any:
                assert argument in told, f"{called}: accepted, or an error that does not name the argument: {told!r}"
    with pytest.raises(ConfigError, match="argument 'nonsense' is unknown"):
        target(**valid("last"), nonsense=1)
