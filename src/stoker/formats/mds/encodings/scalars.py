"""Numbers of a fixed width: ``int``, ``uint8`` to ``float64``, and stoker's ``bool`` and ``bfloat16``.

A number is stored only if the column can hold it: an integer outside the range, a float in an integer
column and a finite float that would become infinite are refused. Floats are rounded to the column's
precision, as the column's type says.
"""

from __future__ import annotations

import operator
import struct
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from stoker.formats.mds.encodings.base import Encoding, RawColumn, UnfitValueError, describe
from stoker.integers import first_true
from stoker.types import Array, Column

_STRUCT_CODES = {
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
    "float64": "d",
}


class _Scalar(Encoding):
    """Base of the numbers that NumPy has a type of: stored as their bytes, little-endian; decode to NumPy scalars."""

    _kinds: ClassVar[str]
    """Kinds of NumPy types whose arrays a column takes."""

    def __init__(self, dtype: str) -> None:
        self.name = dtype
        self.dtype = np.dtype(dtype)
        self.size = self.dtype.itemsize
        self._pack = struct.Struct("<" + _STRUCT_CODES[dtype]).pack

    @abstractmethod
    def _packed(self, array: Array) -> Array:
        """An array of numbers as contiguous ones of this type, or an error that names the row."""

    def encode_column(self, values: Any) -> RawColumn:
        array = values if isinstance(values, np.ndarray) else _numeric_array(values)
        if array is None or array.dtype.kind not in self._kinds:
            if isinstance(values, np.ndarray) and values.dtype.kind != "O":
                raise UnfitValueError(f"expected {self.what} a row, got {describe(values)}")
            return super().encode_column(values)
        if array.ndim != 1:
            raise UnfitValueError(f"expected {self.what} a row, got {describe(array)}")
        packed = self._packed(array)
        return packed.view(np.uint8).reshape(len(packed), packed.itemsize)

    def decode(self, data: bytes) -> Any:
        _check_size(data, self)
        return np.frombuffer(data, self.dtype)[0]

    def decode_fixed(self, raw: NDArray[np.uint8]) -> Column:
        return raw.view(self.dtype).reshape(len(raw))

    def decode_row(self, raw: NDArray[np.uint8]) -> Any:
        return raw.view(self.dtype)[0]


class IntScalar(_Scalar):
    """An integer of 1 to 8 bytes, little-endian; decodes to a NumPy scalar.

    Accepts Python and NumPy integers and booleans (``True`` is 1) that are in range.
    """

    _kinds = "biu"

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        info = np.iinfo(self.dtype)
        self.low, self.high = int(info.min), int(info.max)
        self.what = f"an integer in [{self.low}, {self.high}]"

    def encode(self, value: Any) -> bytes:
        try:
            return self._pack(value)  # refuses floats and whatever is out of range
        except (struct.error, TypeError):
            return self._pack(self._integer(value))

    def _integer(self, value: Any) -> int:
        """The value as a Python int in range, or an error."""
        if isinstance(value, np.bool_):
            return int(value)
        try:
            number = operator.index(value)
        except TypeError:
            number = None
        if number is None or not self.low <= number <= self.high:
            raise UnfitValueError(f"expected {self.what}, got {describe(value)}")
        return number

    def _packed(self, array: Array) -> Array:
        if array.dtype != self.dtype:
            self._check_range(array)
        return np.ascontiguousarray(array, dtype=self.dtype)

    def _check_range(self, array: Array) -> None:
        if array.size == 0 or array.dtype.kind == "b":
            return
        if int(array.min()) < self.low or int(array.max()) > self.high:
            # As Python ints: NumPy would compare uint64 with a negative bound through float64.
            row = next(i for i, v in enumerate(array.tolist()) if not self.low <= v <= self.high)
            raise UnfitValueError(f"expected {self.what}, got {array[row]}", row=row)


class Int(IntScalar):
    """``int``: a Python int stored as int64. A batch column is an int64 array, one sample's value an int."""

    def __init__(self) -> None:
        super().__init__("int64")
        self.name = "int"
        self.unpack_from = struct.Struct("<q").unpack_from

    def decode(self, data: bytes) -> int:
        return int(super().decode(data))

    def decode_row(self, raw: NDArray[np.uint8]) -> int:
        return int(super().decode_row(raw))

    def items(self, column: Column) -> list[Any]:
        return column if isinstance(column, list) else column.tolist()


class FloatScalar(_Scalar):
    """A float of 2, 4 or 8 bytes; decodes to a NumPy scalar. Values are rounded to the column's precision."""

    _kinds = "biuf"

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self.what = f"a number that {dtype} can hold"

    def encode(self, value: Any) -> bytes:
        number = _as_float(value, self.what)
        if number != number:
            # NumPy keeps the payload of a NaN, struct may not.
            source = value if isinstance(value, np.floating) else number
            return np.array(source, dtype=self.dtype).tobytes()
        try:
            return self._pack(number)
        except OverflowError:
            raise UnfitValueError(f"expected {self.what}, got {describe(value)}") from None

    def _packed(self, array: Array) -> Array:
        return _round_floats(array, self.dtype, self.what)


class Bool(Encoding):
    """``bool``: one byte, 0 or 1. A stoker extension: other readers of MDS refuse the name."""

    name = "bool"
    size = 1
    what = "True or False"

    def encode(self, value: Any) -> bytes:
        if isinstance(value, bool | np.bool_):
            return b"\x01" if value else b"\x00"
        raise UnfitValueError(f"expected {self.what}, got {describe(value)}")

    def encode_column(self, values: Any) -> RawColumn:
        if isinstance(values, np.ndarray):
            if values.dtype.kind != "b" or values.ndim != 1:
                raise UnfitValueError(f"expected {self.what} a row, got {describe(values)}")
            return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), 1)
        return super().encode_column(values)

    def decode(self, data: bytes) -> bool:
        _check_size(data, self)
        if data[0] > 1:
            raise ValueError(f"a bool is 0 or 1, not {data[0]}")
        return data[0] == 1

    def decode_fixed(self, raw: NDArray[np.uint8]) -> Column:
        if raw.size and raw.max() > 1:
            raise ValueError(f"a bool is 0 or 1, not {raw.max()}")
        return raw.view(np.bool_).reshape(len(raw))

    def items(self, column: Column) -> list[Any]:
        return column if isinstance(column, list) else column.tolist()


class BFloat16(Encoding):
    """``bfloat16``: the upper half of a float32, rounded to nearest even. A stoker extension, like ``bool``.

    Decodes to float32, which holds it exactly: NumPy itself has no bfloat16.
    """

    name = "bfloat16"
    size = 2
    what = "a number that bfloat16 can hold"

    def encode(self, value: Any) -> bytes:
        number = _as_float(value, self.what)
        return bfloat16_bits(np.array([number], np.float64), self.what).tobytes()

    def encode_column(self, values: Any) -> RawColumn:
        array = values if isinstance(values, np.ndarray) else _numeric_array(values)
        if array is None or array.dtype.kind not in "biufV" or array.ndim != 1:
            return super().encode_column(values)
        bits = bfloat16_bits(array, self.what)
        return bits.view(np.uint8).reshape(len(bits), 2)

    def decode(self, data: bytes) -> Any:
        _check_size(data, self)
        return bfloat16_values(np.frombuffer(data, "<u2"))[0]

    def decode_fixed(self, raw: NDArray[np.uint8]) -> Column:
        return bfloat16_values(raw.view("<u2").reshape(len(raw)))


def bfloat16_bits(array: Array, what: str) -> NDArray[np.uint16]:
    """Numbers of any shape to bfloat16's bits (``<u2``), rounding to nearest even.

    UnfitValueError if a finite number would become infinite, or the array is not of numbers.
    """
    if array.dtype.name == "bfloat16":  # ml_dtypes' own type: the bits as they are
        return np.ascontiguousarray(array).view("<u2").reshape(array.shape)
    if array.dtype.kind not in "biuf":
        raise UnfitValueError(f"expected {what}, got {describe(array)}")
    flat = np.ascontiguousarray(array).reshape(-1)
    single = _round_floats(flat, np.dtype("<f4"), what)
    bits = single.view("<u4")
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    nan = np.isnan(single)
    out = np.where(nan, (bits >> np.uint32(16)) | np.uint32(0x40), rounded >> np.uint32(16)).astype("<u2")
    overflow = ((out & 0x7FFF) == 0x7F80) & np.isfinite(single)
    if (row := first_true(overflow)) is not None:
        raise UnfitValueError(f"expected {what}, got {flat[row]}", row=row)
    return out.reshape(array.shape)


def bfloat16_values(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """bfloat16's bits (``<u2``) of any shape to the same numbers as float32."""
    return (bits.astype("<u4") << np.uint32(16)).view("<f4")


def _round_floats(array: Array, dtype: np.dtype[Any], what: str) -> Array:
    """Numbers as contiguous ``dtype``; finite ones must stay finite."""
    if array.dtype == dtype:
        return np.ascontiguousarray(array)
    if array.dtype.kind in "iu":
        array = array.astype(np.float64)  # as for a single number: Python's float first
    with np.errstate(over="ignore"):
        packed = np.ascontiguousarray(array, dtype=dtype)
    if array.dtype.kind == "f" and array.dtype.itemsize <= dtype.itemsize:
        return packed
    if (row := first_true(np.isinf(packed) & np.isfinite(array))) is not None:
        raise UnfitValueError(f"expected {what}, got {array[row]}", row=row)
    return packed


def _as_float(value: Any, what: str) -> float:
    """The value as a Python float; text and sequences are not numbers."""
    if isinstance(value, float):
        return value
    if not isinstance(value, str | bytes | bytearray | memoryview) and getattr(value, "ndim", 0) == 0:
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
    raise UnfitValueError(f"expected {what}, got {describe(value)}")


def _numeric_array(values: Any) -> Array | None:
    """A list of plain numbers as an array, or ``None`` where NumPy would have to guess."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        return None
    return array if array.dtype.kind in "biuf" and array.ndim == 1 and array.dtype != np.longdouble else None


def _check_size(data: bytes, encoding: Encoding) -> None:
    if len(data) != encoding.size:
        raise ValueError(f"expected {encoding.size} bytes of {encoding.name}, got {len(data)}")
