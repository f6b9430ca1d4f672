"""The values of a file's columns: where their bytes come from, how long they are, and what makes them of their type."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.lazy import cached_property
from stoker.types import Ids
from stoker_bench.generation.columns import Column
from stoker_bench.generation.noise import noise_of
from stoker_bench.generation.segments import Finish, StreamBytes
from stoker_bench.generation.spec import DatasetSpec
from stoker_bench.generation.streams import ByteStream, noise_stream, text_stream, token_stream

# Numbers of a file's streams. What is drawn for values of the n-th column comes from stream _DRAWN + n.
_NOISE: Final = 0
_TEXT: Final = 1
_TOKENS: Final = 8
_DRAWN: Final = 16
_DRAWS: Final = 12

LETTERS: Final = Finish(table=bytes(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_" * 4))
"""Makes random bytes letters that no format of text has to escape."""

# Without their highest bit but one, floating-point numbers are finite: their exponent is at most that of 1.
_FLOATS: Final = {
    "float16": Finish(clear=b"\xff\xbf"),
    "float32": Finish(clear=b"\xff\xff\xff\xbf"),
    "float64": Finish(clear=b"\xff\xff\xff\xff\xff\xff\xff\xbf"),
}
_BOOLEAN: Final = Finish(clear=b"\1")


@lru_cache(maxsize=64)
def finish_of(dtype: str) -> Finish | None:
    """The step that makes random bytes numbers of a type."""
    return _BOOLEAN if dtype == "bool" else _FLOATS.get(dtype)


def mean_width(column: Column) -> int:
    """Bytes of a value on average; of an image, a guess."""
    if column.dtype in ("jpeg", "png"):
        return column.shape[0] * column.shape[1] * (3 if column.dtype == "png" else 1)
    return column.width if column.width is not None else column.size


class FileContent:
    """The source of the values of one file. Each of its streams is read once, from the beginning, by one thread.

    Args:
        spec: the dataset.
        number: of the file.
    """

    def __init__(self, spec: DatasetSpec, number: int) -> None:
        self.spec = spec
        self.number = number
        self._noise = noise_of(spec.seed)
        self._tokens: dict[str, ByteStream] = {}
        ragged = [column for column in spec.fields if column.width is None] or spec.fields
        self._ragged_number = {column.name: turn for turn, column in enumerate(ragged)}

    @cached_property
    def noise(self) -> ByteStream:
        """Random bytes."""
        spec = self.spec
        size = spec.samples_per_file * sum(mean_width(column) for column in spec.fields)
        return noise_stream(self._noise, self.number, _NOISE, size, spec.compressibility, spec.duplication)

    @cached_property
    def text(self) -> ByteStream:
        """ASCII text."""
        return text_stream(self._noise, self.number, _TEXT)

    def tokens(self, dtype: np.dtype[Any]) -> ByteStream:
        """Token ids as integers of a type."""
        if dtype.str not in self._tokens:
            stream = _TOKENS + len(self._tokens)
            self._tokens[dtype.str] = token_stream(self._noise, self.number, stream, dtype, self.spec.vocabulary)
        return self._tokens[dtype.str]

    def values(self, column: Column, count: int) -> StreamBytes:
        """``count`` values of a column of numbers, as they lie in memory."""
        assert column.width is not None
        if column.tokens:
            return StreamBytes(count * column.width, self.tokens(np.dtype(column.dtype).newbyteorder("<")))
        return StreamBytes(count * column.width, self.noise, finish_of(column.dtype))

    def sized(self, column: Column, size: int) -> StreamBytes:
        """One value of ``bytes`` or ``str``, or several that lie end to end."""
        return StreamBytes(size, self.text if column.dtype == "str" else self.noise)

    def lengths(self, column: Column, first: int, count: int) -> Ids:
        """Bytes of the values ``[first, first + count)`` of a column of ``bytes`` or ``str``; int64, shape ``(count,)``.

        They are normally distributed, in whole numbers that every machine makes the same: the sum of twelve uniform draws
        has, less its mean, a standard deviation of one.
        """
        if not column.stdev:
            return np.full(count, column.size, np.int64)
        return _normal(self.drawn(column, first, count, _DRAWS), column.size, column.stdev)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The columns, as this file has them: in formats of arrays, ``stdev`` is drawn once a file."""
        spec = self.spec
        if not (spec.form.arrays and spec.stdev):
            return spec.fields
        (column,) = spec.fields
        item = np.dtype(column.dtype).itemsize
        size = int(_normal(self.drawn(column, 0, 1, _DRAWS), mean_width(column), spec.stdev)[0])
        return (replace(column, shape=(max(1, size // item),)),)

    def drawn(self, column: Column, first: int, count: int, each: int) -> NDArray[np.uint16]:
        """Random numbers by which a column's values ``[first, first + count)`` differ; shape ``(count, each)``.

        Args:
            column: which.
            first, count: of which values.
            each: numbers for a value, a multiple of 4.
        """
        stream = _DRAWN + self._ragged_number[column.name]
        draws = self._noise.draw(2 * each * count, self.number, stream, 2 * each * first)
        return draws.view("<u2").reshape(count, each)


def _normal(draws: NDArray[np.uint16], mean: int, stdev: int) -> Ids:
    sums = draws.sum(axis=1, dtype=np.int64) - _DRAWS // 2 * 65535
    lengths: Ids = np.maximum(1, mean + sums * stdev // 65536)
    return lengths
