"""The base of encodings: one column's values to bytes and back, one by one and as whole columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.types import Buffer, Column

BytesLike = bytes | bytearray | memoryview
"""Types of an encoded value."""

RawColumn = NDArray[np.uint8] | list[bytes]
"""An encoded column: ``(n, size)`` bytes for a fixed width, a list of n values otherwise."""


class UnfitValueError(ValueError):
    """A value does not fit its encoding: ``expected ..., got ...``.

    ``row``: index of the value in the column that was being encoded; ``None`` for a single value. ``column``: the column's
    name, once known.
    """

    def __init__(self, message: str, *, row: int | None = None, column: str | None = None) -> None:
        super().__init__(message)
        self.row = row
        self.column = column


def describe(value: Any) -> str:
    """Name a value's type and, where short, the value itself, for messages."""
    kind = type(value)
    if isinstance(value, np.ndarray):
        return f"an array of dtype {value.dtype} and shape {value.shape}"
    if isinstance(value, bytes | bytearray | memoryview | Sequence) and not isinstance(value, str):
        return f"{kind.__name__} of length {len(value)}"
    if isinstance(value, str) and len(value) > 40:
        return f"str {value[:40]!r}..."
    if isinstance(value, int | float | complex | str | np.generic | bool | None):
        text = repr(value) if not isinstance(value, int) or abs(value) < 1 << 128 else "a huge number"
        return f"{kind.__name__} {text}" if value is not None else "None"
    array = ": make a NumPy array of it, numpy.asarray(value)" if hasattr(value, "__array__") else ""
    return f"a {kind.__module__}.{kind.__qualname__}{array}"


class Encoding(ABC):
    """One way to store a column's values. Subclass it and register it to add an encoding of your own.

    A subclass needs ``encode`` and ``decode``; the columnar methods have defaults that call them value by
    value. Instances hold no state that changes, so threads may share them.

    Attributes:
        name: as the index spells it, with parameters (``ndarray:uint16:2048``).
        size: bytes of every encoded value, or ``None`` where values differ in width.
        safe: false where decoding can run code from the data.
        verbatim: true where the encoded bytes are the value, so that decoding can be left out.
        what: what a value must be, for messages (``"an integer in [0, 255]"``).
        unpack_from: reads one value, as users see it, from a buffer at an offset, into a tuple of one; ``None`` where
            :meth:`decode_row` does that. It takes a tenth of the time of an array for one number.
    """

    name: str = ""
    size: int | None = None
    safe: bool = True
    what: str = "another value"
    verbatim: bool = False
    unpack_from: Callable[[Buffer, int], tuple[Any, ...]] | None = None

    @classmethod
    def from_config(cls, config: str) -> Encoding:
        """Build the encoding for a name with parameters: what follows the first colon is ``config``.

        Raises:
            ValueError: this encoding has no parameters, or not these.
        """
        raise ValueError(f"takes no parameters, got {config!r}")

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Encode one value.

        Raises:
            ValueError: the value does not fit; the message says what was expected.
        """

    def encode_view(self, value: Any) -> BytesLike:
        """Encode one value, perhaps as a view of the value's own memory, for a caller that copies it at once."""
        return self.encode(value)

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Decode one value.

        Raises:
            ValueError: the bytes are not such a value.
        """

    def encode_column(self, values: Any) -> RawColumn:
        """Encode n values: a C-contiguous uint8 array ``(n, size)`` for a fixed width, else a list of bytes.

        Raises:
            UnfitValueError: a value does not fit; ``row`` says which.
        """
        encoded: list[bytes] = []
        for row, value in enumerate(values):
            try:
                data = self.encode(value)
            except (ValueError, TypeError, OverflowError) as error:
                raise UnfitValueError(str(error), row=row) from error
            if self.size is not None and len(data) != self.size:
                raise UnfitValueError(f"expected {self.size} encoded bytes, got {len(data)}", row=row)
            encoded.append(data)
        if self.size is None:
            return encoded
        return np.frombuffer(b"".join(encoded), np.uint8).reshape(len(encoded), self.size)

    def decode_fixed(self, raw: NDArray[np.uint8]) -> Column:
        """Decode n values of a fixed width: a C-contiguous ``(n, size)`` array that the caller gives away.

        Raises:
            ValueError: the bytes are not such values.
        """
        return [self.decode(row.tobytes()) for row in raw]

    def decode_row(self, raw: NDArray[np.uint8]) -> Any:
        """Decode one value of a fixed width, in the type that users see: ``(size,)`` bytes that the caller gives away.

        Raises:
            ValueError: the bytes are not such a value.
        """
        return self.items(self.decode_fixed(raw.reshape(1, -1)))[0]

    def decode_values(self, values: list[bytes]) -> list[Any]:
        """Decode n values of differing widths; may return ``values`` itself.

        Raises:
            ValueError: the bytes are not such values.
        """
        decode = self.decode
        return [decode(value) for value in values]

    def items(self, column: Column) -> list[Any]:
        """Values of a decoded column for single samples, in the types that users see."""
        return column if isinstance(column, list) else list(column)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"
