"""``ndarray`` in its three spellings: anything goes, a fixed dtype, a fixed dtype and shape."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.display import unknown_name
from stoker.formats.mds.encodings.base import BytesLike, Encoding, RawColumn, UnfitValueError, describe
from stoker.formats.mds.encodings.scalars import bfloat16_bits, bfloat16_values
from stoker.types import Array, Column

_CODES = {
    "uint8": 8,
    "int8": 9,
    "uint16": 16,
    "int16": 17,
    "float16": 18,
    "uint32": 32,
    "int32": 33,
    "float32": 34,
    "uint64": 64,
    "int64": 65,
    "float64": 66,
}
_NAMES = {code: name for name, code in _CODES.items()}
# Plain dtypes are NumPy's singletons, which an identity test recognises; hosts are little-endian, as MDS is.
_DTYPES = {name: np.dtype(name) for name in _CODES}
_DIM_DTYPES = tuple(np.dtype(name) for name in ("<u1", "<u2", "<u4", "<u8"))
# Only where the dtype is in the encoding's name: the reference reader refuses the name, it can not misread.
_EXTENSIONS = {"bool": np.dtype("?"), "bfloat16": np.dtype("<u2")}
_SHAPE = re.compile(r"\s*[0-9]{1,18}\s*(,\s*[0-9]{1,18}\s*)*")
_MAX_NDIM = 63


class _DtypeRules:
    """Checks, stores and reads arrays of one dtype name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stored = {**_DTYPES, **_EXTENSIONS}[name]

    def matches(self, dtype: np.dtype[Any]) -> bool:
        if self.name == "bfloat16":
            return dtype.name == "bfloat16" or dtype.kind == "f"
        return dtype == self.stored or dtype.newbyteorder("<") == self.stored

    def to_stored(self, array: Array) -> Array:
        """The array in the dtype that is stored, little-endian, C-contiguous."""
        if self.name == "bfloat16":
            return bfloat16_bits(array, "numbers that bfloat16 can hold")
        return np.ascontiguousarray(array, dtype=self.stored)

    def from_stored(self, array: Array) -> Array:
        if self.name == "bfloat16":
            return bfloat16_values(array)
        if self.name == "bool" and array.size and array.view(np.uint8).max() > 1:
            raise ValueError("a bool array holds a byte that is neither 0 nor 1")
        return array


class FixedArray(Encoding):
    """``ndarray:DTYPE:d0,d1``: values only. A batch column is one array of shape ``(n, d0, d1)``."""

    def __init__(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        self.name = name
        self.shape = shape
        self._rules = _DtypeRules(dtype)
        self.dtype = self._rules.stored
        self.size = math.prod(shape) * self.dtype.itemsize
        self.what = f"a {dtype} array of shape {shape}"

    def encode(self, value: Any) -> bytes:
        return bytes(self.encode_view(value))

    def encode_view(self, value: Any) -> BytesLike:
        # The identity test is the fast one: NumPy's own dtypes are singletons.
        if type(value) is np.ndarray and value.dtype is self.dtype and value.shape == self.shape:
            try:
                return value.data.cast("B")
            except TypeError:  # not C-contiguous
                return value.tobytes()
        return self._checked(value, self.shape).tobytes()

    def encode_column(self, values: Any) -> RawColumn:
        if isinstance(values, np.ndarray) and values.dtype != object:
            stored = self._checked(values, (len(values), *self.shape) if values.ndim else self.shape)
            return stored.reshape(len(stored), -1).view(np.uint8)
        return super().encode_column(values)

    def _checked(self, value: Any, shape: tuple[int, ...]) -> Array:
        array = _plain_array(value, self.what)
        if array.shape != shape or not self._rules.matches(array.dtype):
            rows = f"rows of {self.what}" if len(shape) > len(self.shape) else self.what
            raise UnfitValueError(f"expected {rows}, got {describe(value)}")
        return self._rules.to_stored(array)

    def decode(self, data: bytes) -> Array:
        if len(data) != self.size:
            raise ValueError(f"expected {self.size} bytes of {self.name}, got {len(data)}")
        return self._rules.from_stored(np.frombuffer(data, self.dtype).reshape(self.shape))

    def decode_fixed(self, raw: NDArray[np.uint8]) -> Column:
        return self._rules.from_stored(raw.view(self.dtype).reshape(len(raw), *self.shape))

    def decode_row(self, raw: NDArray[np.uint8]) -> Any:
        values = raw.view(self.dtype)
        return self._rules.from_stored(values if len(self.shape) == 1 else values.reshape(self.shape))


class DynamicArray(Encoding):
    """``ndarray`` and ``ndarray:DTYPE``: a header with the shape (and the dtype), then the values.

    Arrays have 1 to 63 dimensions, none of them zero. They are read back without a copy, read-only.
    """

    def __init__(self, name: str, dtype: str | None) -> None:
        self.name = name
        self._rules = _DtypeRules(dtype) if dtype else None
        of = f"{dtype} " if dtype else ""
        self.what = f"a non-empty {of}array of 1 to {_MAX_NDIM} dimensions"

    def encode(self, value: Any) -> bytes:
        array = _plain_array(value, self.what)
        if self._rules is None:
            code = _CODES.get(array.dtype.name)
            if code is None:
                known = ", ".join(_CODES)
                raise UnfitValueError(f"expected an array of {known}, got {describe(value)}")
            head = bytes((code,))
            rules = _RULES[array.dtype.name]
        else:
            rules = self._rules
            head = b""
            if not rules.matches(array.dtype):
                raise UnfitValueError(f"expected {self.what}, got {describe(value)}")
        if not 1 <= array.ndim <= _MAX_NDIM or array.size == 0:
            raise UnfitValueError(f"expected {self.what}, got {describe(value)}")
        return head + _encode_shape(array.shape) + rules.to_stored(array).tobytes()

    def decode(self, data: bytes) -> Array:
        at = 0
        rules = self._rules
        if rules is None:
            if not data:
                raise ValueError("an array without its header")
            name = _NAMES.get(data[0])
            if name is None:
                raise ValueError(f"unknown array dtype code {data[0]}")
            rules = _RULES[name]
            at = 1
        shape, at = _decode_shape(data, at)
        claimed = math.prod(shape) * rules.stored.itemsize
        if claimed != len(data) - at:
            raise ValueError(f"an array of shape {shape} takes {claimed} bytes, but {len(data) - at} are there")
        return rules.from_stored(np.frombuffer(data, rules.stored, offset=at).reshape(shape))


_RULES = {name: _DtypeRules(name) for name in _CODES}


def parse_ndarray(config: str) -> Encoding:
    """The encoding for ``ndarray:config``, where config is ``""``, ``DTYPE`` or ``DTYPE:d0,d1``.

    ValueError for no such dtype, or not a shape.
    """
    dtype, colon, dims = config.partition(":")
    known = (*_CODES, *_EXTENSIONS)
    name = f"ndarray:{config}" if config else "ndarray"
    if not config:
        return DynamicArray(name, None)
    if dtype not in known:
        raise ValueError(unknown_name("array dtype", dtype, known))
    if not colon:
        return DynamicArray(name, dtype)
    if not _SHAPE.fullmatch(dims):
        raise ValueError(f"not a shape: {dims!r}; write it like ndarray:{dtype}:224,224,3")
    shape = tuple(int(dim) for dim in dims.split(","))
    if 0 in shape or len(shape) > _MAX_NDIM:
        raise ValueError(f"a shape has 1 to {_MAX_NDIM} dimensions, none of them zero, not {dims!r}")
    encoding = FixedArray(name, dtype, shape)
    if encoding.size is None or encoding.size >= 1 << 32:
        raise ValueError(f"arrays of {encoding.size} bytes do not fit a shard, which holds less than 4 GiB")
    return encoding


def _plain_array(value: Any, what: str) -> Array:
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        raise UnfitValueError(f"expected {what}, got {describe(value)}")
    return value


def _encode_shape(shape: tuple[int, ...]) -> bytes:
    largest = max(shape)
    width = 0 if largest < 1 << 8 else 1 if largest < 1 << 16 else 2 if largest < 1 << 32 else 3
    return bytes((len(shape) << 2 | width,)) + np.array(shape, _DIM_DTYPES[width]).tobytes()


def _decode_shape(data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """The shape whose header starts at ``at``, and where the values start."""
    if len(data) <= at:
        raise ValueError("an array without its shape")
    ndim, dims = data[at] >> 2, _DIM_DTYPES[data[at] & 3]
    end = at + 1 + ndim * dims.itemsize
    if ndim == 0 or len(data) < end:
        raise ValueError(f"an array's shape of {ndim} dimensions in {len(data) - at - 1} bytes")
    shape = tuple(np.frombuffer(data, dims, ndim, at + 1).tolist())
    if 0 in shape:
        raise ValueError(f"an array of shape {shape} has no values")
    return shape, end
