"""Values that are bytes or text of any length: ``bytes``, ``str``, ``str_*``, ``json``, ``pkl``.

``Infinity`` and ``NaN``, in JSON, and ``inf`` and ``nan``, elsewhere, are values, as the standard library writes them.
Numbers that are too large for a float, such as 1e400, are refused.
"""

from __future__ import annotations

import decimal
import json
import marshal
import math
import operator
import pickle
import struct
from decimal import Decimal
from typing import Any, Final

import numpy as np

from stoker.formats.mds.encodings.base import Encoding, RawColumn, UnfitValueError, describe
from stoker.formats.unstacked import Unstacked, items_of
from stoker.types import Column

_INFINITY: Final = struct.pack("<d", math.inf)
_MINUS_INFINITY: Final = struct.pack("<d", -math.inf)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON text with the standard library.

    ValueError if it is not JSON, or holds a number that is too large for a float, RecursionError if it is nested too deeply.
    """
    value = json.loads(text)
    if may_hold_infinity(value):  # a function for each number would cost more
        json.loads(text, parse_float=finite_float)
    return value


def finite_float(text: str) -> float:
    """Parse a number with ``float``. ValueError if it is not a number, or it is too large for a float."""
    number = float(text)
    if math.isinf(number) and "i" not in text.lower():
        raise ValueError(f"a number ({text[:40]}) is larger than a float holds: write it as text")
    return number


def may_hold_infinity(value: Any) -> bool:
    """Check whether a parsed JSON value may contain an infinite number.

    The value is serialised, and the bytes of an infinity are searched in it, which is faster than a walk over the value. A
    string may have the same bytes, so a caller has to look closer where this is true.
    """
    try:
        data = marshal.dumps(value, 2)
    except ValueError:  # nested very deeply
        return True
    return _INFINITY in data or _MINUS_INFINITY in data


class Bytes(Encoding):
    """``bytes``: as they are."""

    name = "bytes"
    what = "bytes"
    verbatim = True

    def encode(self, value: Any) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise UnfitValueError(f"expected {self.what}, got {describe(value)}")

    def encode_column(self, values: Any) -> RawColumn:
        if type(values) is list and set(map(type, values)) <= {bytes}:
            return values
        return super().encode_column(values)

    def decode(self, data: bytes) -> bytes:
        return data

    def decode_values(self, values: list[bytes]) -> list[Any]:
        return values


class Str(Encoding):
    """``str``: UTF-8."""

    name = "str"
    what = "str"

    def encode(self, value: Any) -> bytes:
        return utf8(value)

    def decode(self, data: bytes) -> str:
        return data.decode()

    def decode_values(self, values: list[bytes]) -> list[Any]:
        return [value.decode() for value in values]


class _Digits(Encoding):
    """A number as text. Those of a batch are an array where its dtype holds them, else a list; one alone is Python's own."""

    dtype: type[np.generic]

    def decode_values(self, values: list[bytes]) -> Unstacked:
        return Unstacked(super().decode_values(values), np.dtype(self.dtype))

    def items(self, column: Column) -> list[Any]:
        return items_of(column)


class StrInt(_Digits):
    """``str_int``: an integer of any size, as decimal digits."""

    name = "str_int"
    dtype = np.int64
    what = "an integer"

    def encode(self, value: Any) -> bytes:
        return str(as_int(value)).encode()

    def decode(self, data: bytes) -> int:
        return int(data.decode())


class StrFloat(_Digits):
    """``str_float``: a float as the shortest decimal text that gives it back."""

    name = "str_float"
    dtype = np.float64
    what = "a float"

    def encode(self, value: Any) -> bytes:
        return str(as_float(value)).encode()

    def decode(self, data: bytes) -> float:
        return finite_float(data.decode())


class StrDecimal(Encoding):
    """``str_decimal``: a ``decimal.Decimal``, with all its digits."""

    name = "str_decimal"
    what = "a decimal.Decimal"

    def encode(self, value: Any) -> bytes:
        if isinstance(value, Decimal):
            return str(value).encode()
        raise UnfitValueError(f"expected {self.what}, got {describe(value)}")

    def decode(self, data: bytes) -> Decimal:
        try:
            return Decimal(data.decode())
        except decimal.InvalidOperation:
            raise ValueError(f"not a decimal number: {data[:40]!r}") from None


class Json(Encoding):
    """``json``: what the standard ``json`` module makes of a value.

    An array becomes a list; NaN and infinities pass, as in the reference. A number that no float holds is an error.
    """

    name = "json"
    what = "something that JSON can hold"

    def encode(self, value: Any) -> bytes:
        if isinstance(value, np.ndarray):
            value = value.tolist()
        try:
            return utf8(json.dumps(value))
        except (TypeError, ValueError, RecursionError) as error:
            raise UnfitValueError(f"expected {self.what}, got {describe(value)}: {error}") from error

    def decode(self, data: bytes) -> Any:
        try:
            return parse_json(data.decode())
        except RecursionError:
            raise ValueError("JSON nested too deeply") from None


class Pickle(Encoding):
    """``pkl``: any Python object. Decoding runs whatever the data says, so readers ask for consent first."""

    name = "pkl"
    safe = False
    what = "an object that pickle can store"

    def encode(self, value: Any) -> bytes:
        try:
            return pickle.dumps(value)
        except Exception as error:  # pickle passes on whatever the object's own code raises
            raise UnfitValueError(f"expected {self.what}, got {describe(value)}: {error}") from error

    def decode(self, data: bytes) -> Any:
        try:
            return pickle.loads(data)  # noqa: S301 - the reader refuses unsafe encodings without consent
        except Exception as error:
            raise ValueError(f"not a pickle that can be read here: {error!r}") from error


def as_int(value: Any) -> int:
    """A whole number as Python's own. UnfitValueError for anything else, and for booleans, whose text is ``True``."""
    if not isinstance(value, bool | np.bool_):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise UnfitValueError(f"expected an integer, got {describe(value)}")


def as_float(value: Any) -> float:
    """A number as Python's own float. UnfitValueError for anything else, and for integers that no float holds."""
    if isinstance(value, float | np.floating | int | np.integer) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if number == value or number != number:
            return number
    raise UnfitValueError(f"expected a float, got {describe(value)}")


def utf8(text: Any) -> bytes:
    """The bytes of text. UnfitValueError for anything else, and for text that UTF-8 has no bytes of."""
    if not isinstance(text, str):
        raise UnfitValueError(f"expected str, got {describe(text)}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnfitValueError(f"expected text that UTF-8 can hold, got {describe(text)}: {error}") from None
