"""Values of columns that Parquet has no type for: the file holds text or bytes, and its metadata the encoding's name."""

from __future__ import annotations

import numpy as np

from stoker.errors import CorruptDataError
from stoker.formats.common.container import decode_fixed, decode_values
from stoker.formats.mds.encodings import Encoding
from stoker.formats.parquet.pages.values import ColumnValues
from stoker.formats.unstacked import spread
from stoker.types import Column, Ids


class EncodedValues(ColumnValues):
    """A column whose stored values are decoded when rows of it are taken. Nulls stay ``None``.

    Args:
        stored: the values as they are stored.
        encoding: their encoding.
        name: the column's name.
        where: names the row group in errors.
    """

    def __init__(self, stored: ColumnValues, encoding: Encoding, name: str, where: str) -> None:
        self._stored, self._encoding, self._name, self._where = stored, encoding, name, where
        self.nbytes = stored.nbytes

    def take(self, rows: Ids, *, views: bool = False) -> Column:  # noqa: ARG002 - what is decoded is no view
        column, size = self._stored.take(rows), self._encoding.size
        if size is not None:
            if not isinstance(column, np.ndarray) or column.nbytes != len(rows) * size:
                raise CorruptDataError(
                    f"{self._where}, column {self._name!r} is declared {self._encoding.name}, and has nulls, or values that "
                    f"are not of {size} bytes"
                )
            raw = np.ascontiguousarray(column).view(np.uint8).reshape(len(rows), size)
            return decode_fixed(self._encoding, raw, rows, self._name, self._where)
        there = [place for place, value in enumerate(column) if value is not None]
        data = [value.encode() if isinstance(value, str) else value for value in map(column.__getitem__, there)]
        values = decode_values(self._encoding, data, rows[there], self._name, self._where)
        return values if len(there) == len(column) else spread(values, there, len(column))
