"""A hash of a function's code and of the plain values that it uses.

It changes with the function's bytecode, constants, names, default values, closed-over values and the plain globals and
functions of its module that it names. Python's versions compile to unlike bytecode, so the hash holds for one version: it is
for what can be computed again, not for what a state must recognise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, Final

import numpy as np
import xxhash

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), np.generic, np.dtype)
# Globals that are looked into; modules and other objects tell nothing.
_NAMED = (*_PLAIN, tuple, list, set, frozenset, dict, np.ndarray, FunctionType, functools.partial)


_MOST: Final = 100_000
"""Elements of a list, tuple, set or dict beyond which only their number counts."""


def hash_function(fn: Callable[..., Any]) -> str:
    """A hash in hex digits, the same in every process of the same version of Python.

    Of values that are not plain (numbers, text, bytes, arrays, and lists, tuples, sets and dicts of them) only the type
    counts; of functions of other modules the name.
    """
    found = xxhash.xxh3_128()
    for part in _Walk().parts(fn, frozenset()):
        found.update(part)
        found.update(b"\0")
    return found.hexdigest()


class _Walk:
    """The text that is hashed of a function and of what it uses, each of its functions once.

    ``path`` are the containers that a value lies in, so that one that holds itself comes to an end. What was met elsewhere is
    hashed again: which equal constants are one object differs between processes.
    """

    def __init__(self) -> None:
        self._functions: set[int] = set()
        self._home: Mapping[str, Any] | None = None

    def parts(self, value: Any, path: frozenset[int]) -> Iterator[bytes]:
        yield type(value).__qualname__.encode()
        if isinstance(value, _PLAIN):
            yield repr(value).encode(errors="surrogatepass")
        elif isinstance(value, FunctionType):
            if id(value) not in self._functions:
                self._functions.add(id(value))
                yield from self._of_function(value, path)
        elif isinstance(value, BuiltinFunctionType | type | np.ufunc):
            yield f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}".encode()
        elif isinstance(value, np.ndarray):
            yield f"{value.dtype} {value.shape}".encode()
            yield b"" if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
        elif id(value) not in path:
            yield from self._of_others(value, path | {id(value)})

    def _of_others(self, value: Any, path: frozenset[int]) -> Iterator[bytes]:
        if isinstance(value, tuple | list | set | frozenset | dict):
            yield str(len(value)).encode()
            if len(value) > _MOST:
                return
            found = [b"\1".join(self.parts(one, path)) for one in (value.items() if isinstance(value, dict) else value)]
            # The order of a set of text is another in every process.
            yield from sorted(found) if isinstance(value, set | frozenset) else found
        elif isinstance(value, CodeType):
            yield value.co_code
            yield value.co_exceptiontable
            yield repr(
                (value.co_names, value.co_varnames, value.co_freevars, value.co_argcount, value.co_flags)
            ).encode()
            yield from self.parts(value.co_consts, path)
        elif isinstance(value, functools.partial):
            yield from self.parts((value.func, value.args, value.keywords), path)
        elif isinstance(value, MethodType):
            yield from self.parts((value.__func__, value.__self__), path)
        elif callable(value):
            yield from self.parts((type(value).__call__, getattr(value, "__dict__", None)), path)

    def _of_function(self, value: FunctionType, path: frozenset[int]) -> Iterator[bytes]:
        if self._home is None:
            self._home = value.__globals__
        if value.__globals__ is not self._home:
            yield f"{value.__module__}.{value.__qualname__}".encode()
            return
        yield from self.parts((value.__code__, value.__defaults__, value.__kwdefaults__), path)
        for cell in value.__closure__ or ():
            try:
                yield from self.parts(cell.cell_contents, path)
            except ValueError:
                yield b"empty"
        for name in sorted(_names(value.__code__) & self._home.keys()):
            if isinstance(self._home[name], _NAMED):
                yield name.encode()
                yield from self.parts(self._home[name], path)


def _names(code: CodeType) -> set[str]:
    """Names of globals that a code object and those within it may use."""
    inner = (_names(one) for one in code.co_consts if isinstance(one, CodeType))
    return set(code.co_names).union(*inner)
