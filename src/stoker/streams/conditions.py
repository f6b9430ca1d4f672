"""Conditions on a sample's values, and the ids of the samples that fulfil them.

``Where("lang", "==", "en") & ~Where("score", "<", 0.5)`` is a value: it can be compared, pickled and described. It is
evaluated over all samples once; the chosen ids are saved next to the dataset's index.

Nulls have the meaning that SQL gives them: a comparison with a null is unknown, ``not`` unknown is unknown, and a sample is
chosen only where the whole condition is true.
"""

from __future__ import annotations

import functools
import logging
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import DTypeLike

from stoker.arguments import checked
from stoker.catalog.location import DatasetLocation
from stoker.concurrency.user_code import pass_exits
from stoker.display import unknown_operator
from stoker.errors import ConfigError, TransformError
from stoker.formats.base import ReadOptions
from stoker.order.subsets import Condition, Mask
from stoker.streams.compare import OPERATORS, compare, plain_operand
from stoker.streams.derived_arrays import ArraySink, derived_array
from stoker.streams.scan import check_column, scan
from stoker.types import Batch, Ids

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


logger = logging.getLogger(__name__)

_ID: Final = np.dtype(np.int64)
_NULLS: Final = "unknown"
"""Version of the meaning of comparisons with nulls: ids that were chosen by another version are computed again."""


@checked
@dataclass(frozen=True, slots=True)
class Where(Condition):
    """A condition on samples: a column is compared with a value.

    Args:
        column: name of a column of numbers, text, bytes or dates. Structs, lists and arrays need :meth:`function`.
        op: ``==``, ``!=``, ``<``, ``<=``, ``>``, ``>=``, ``in`` or ``not in``.
        value: a number, text, bytes or a date; for the last two a collection of them. Text is ordered by code points. A
            number is rounded to the precision of a float column, as the column's own values were, and compared with decimals
            as it is written. Dates and times are ``datetime.date``, ``datetime.datetime``, ``np.datetime64`` or text like
            ``"2024-01-31"``; UTC unless they tell another time zone. ``== None`` holds where there is no value (null, NaN,
            NaT), of columns of any type, and ``!= None`` where there is one.

    All other comparisons are unknown where there is no value: neither they nor their negation by ``~`` keep the sample.

    Raises:
        ConfigError: an unknown operator, or a value that nothing can be compared with.
    """

    column: str
    op: str
    value: Any

    def __post_init__(self) -> None:
        if self.op not in OPERATORS:
            raise ConfigError(f"Where({self.column!r}): {unknown_operator(self.op, OPERATORS)}")
        object.__setattr__(self, "value", plain_operand(self.op, self.value))

    @staticmethod
    @checked
    def function(columns: str | Sequence[str], fn: Callable[..., Any], name: str) -> WhereFunction:
        """A condition of your own.

        Args:
            columns: the columns that it needs.
            fn: gets the columns' values for many samples, an argument a column: arrays of shape ``(n, ...)`` for columns of
                a fixed width, else lists; nulls are as in batches. Returns n truth values, as a bool array.
            name: stands for the function in states: a run goes on after a function of the same name. What the function chose
                is kept until its code changes (bytecode, constants, default values, and the plain values and functions of its
                module that it uses). What its code does not show, such as a file that it reads, needs another name.
        """
        if not callable(fn):
            raise ConfigError(f"fn={fn!r}: expected a function of the columns' values")
        return WhereFunction((columns,) if isinstance(columns, str) else tuple(columns), fn, name)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def as_dict(self) -> dict[str, Any]:
        value = [_json(item) for item in self.value] if isinstance(self.value, tuple) else _json(self.value)
        return {"column": self.column, "op": self.op, "value": value}

    def evaluate(self, batch: Batch, count: int) -> tuple[Mask, Mask | None]:  # noqa: ARG002 - the column tells
        return compare(batch[self.column], self.op, self.value, f"column {self.column!r}")


@dataclass(frozen=True, slots=True, eq=False)
class WhereFunction(Condition):
    """The condition that :meth:`Where.function` makes. Two of the same name and columns are equal.

    A function that can not be pickled is left out; the copy still finds ids that were computed before.
    """

    needs: tuple[str, ...]
    fn: Callable[..., Any] | None
    name: str
    code: str = ""

    def __post_init__(self) -> None:
        if not self.needs or not all(isinstance(column, str) for column in self.needs):
            raise ConfigError(f"columns={self.needs!r}: expected the names of one column or several")
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError(f"name={self.name!r}: a function needs a name, which stands for it in states")
        if self.fn is not None and not self.code:
            object.__setattr__(self, "code", hash_function(self.fn))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WhereFunction) and self.as_dict() == other.as_dict()

    def __hash__(self) -> int:
        return hash((self.needs, self.name))

    def __reduce__(self) -> tuple[Any, ...]:
        fn = self.fn
        try:
            pickle.dumps(fn)
        except Exception:  # noqa: BLE001 - whatever pickle says: the name is what counts
            fn = None
        return WhereFunction, (self.needs, fn, self.name, self.code)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.needs)))

    def as_dict(self) -> dict[str, Any]:
        return {"columns": list(self.needs), "function": self.name}

    @property
    def functions(self) -> tuple[str, ...]:
        return (self.code,)

    def evaluate(self, batch: Batch, count: int) -> tuple[Mask, Mask | None]:
        if self.fn is None:
            raise ConfigError(f"function {self.name!r} did not come along into this process: define it in a module")
        try:
            found = np.asarray(self.fn(*(batch[column] for column in self.needs)))
        except BaseException as error:
            pass_exits(error)
            raise TransformError(f"function {self.name!r} raised {type(error).__name__}: {error}") from error
        if found.dtype != np.bool_ or found.shape != (count,):
            raise ConfigError(
                f"function {self.name!r} should return {count} truth values (a bool array of shape ({count},)) for as many "
                f"samples; it returned dtype {found.dtype} and shape {found.shape}"
            )
        return found, None


def chosen_ids(location: DatasetLocation, where: Condition, *, options: ReadOptions = ReadOptions()) -> Ids:
    """Return the ids of the samples that a condition holds for, and of those that can not be read: reading these is an error.

    The first call reads the condition's columns of all samples; later ones, in any process, map the file.

    Args:
        options: how values are handed to a function.

    Returns:
        int64, shape ``(n,)``, rising; mapped read-only (8 bytes of disk each, no memory of its own).

    Raises:
        ConfigError: the dataset has no such column, or its values can not be compared so.
        CacheError, StorageFullError: the ids can not be saved.
        TransformError: a function raised an error.
        StorageError, CorruptDataError: a shard can not be read.
    """
    for column in where.columns:
        check_column(location, column)
    description = where.as_dict()

    def make(sink: ArraySink) -> tuple[DTypeLike, bytes]:
        logger.info(
            "reading %s of all %d samples of %s, once, for a filter: %s",
            ", ".join(where.columns),
            location.index.samples,
            location.where,
            description,
        )
        bad: list[int] = []
        for first, count, batch in scan(location, where.columns, options, bad):
            try:
                mask, _ = where.evaluate(batch, count)
            except ConfigError as error:
                raise ConfigError(f"{location.where}: {error}") from error
            except TransformError as error:
                last = first + count - 1
                raise TransformError(f"{location.where}, samples {first} to {last}: {error}") from error.__cause__
            while bad and bad[0] < first:
                sink.append(np.array([bad.pop(0)], _ID))
            sink.append((np.flatnonzero(mask) + first).astype(_ID))
            sink.beat()
        sink.append(np.array(bad, _ID))
        return _ID, b""

    recipe: dict[str, Any] = {"condition": description, "nulls": _NULLS}
    if where.functions:
        recipe["functions"] = where.functions
    array: Ids = derived_array(location, "where", "+".join(where.columns), recipe, make).array
    return array


def _json(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        return {"date": str(value)}
    return {"bytes": value.hex()} if isinstance(value, bytes) else value
