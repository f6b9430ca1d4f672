"""Documents of any length as one flat array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Self, TypeAlias, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

from stoker.arguments import must_be
from stoker.errors import ConfigError, FormatError
from stoker.formats.parquet.values import flat_list, is_lists
from stoker.types import Array, Ids

Where: TypeAlias = str | Callable[[int], str]

# From this mean length on, a slice for each span is faster than one gather; measured between 2,000 and 8,000.
_LONG: Final = 4096
# Tokens that are copied at a time: they are in memory twice.
_AT_ONCE: Final = 1 << 18


class Ragged:
    """Documents: rows of tokens of any lengths, concatenated.

    Args:
        values: integers of any width, shape ``(tokens,)``.
        offsets: int64, shape ``(rows + 1,)``: row i is ``values[offsets[i]:offsets[i + 1]]``; the first is 0, the last
            is the number of values.
        column: name of the column, for messages.
        where: the file or row group, for messages; or a function that gives file and row for a row's number.
        rows: number of the first row there, or of each row, for messages.
        loss_mask: whether each token is a label that is trained on; bool, shape ``(tokens,)``. ``None``: all are.

    Raises:
        ConfigError: the arrays are not of these dtypes and shapes, or offsets fall or do not fit the values.
    """

    __slots__ = ("_bounds", "_rows", "column", "loss_mask", "offsets", "values", "where")

    values: Array
    offsets: Ids
    column: str
    where: Where
    loss_mask: NDArray[np.bool_] | None
    _bounds: tuple[int, int] | None
    _rows: Ids | int

    def __init__(
        self,
        values: Array,
        offsets: Ids,
        *,
        column: str = "tokens",
        where: Where = "",
        rows: Ids | int = 0,
        loss_mask: NDArray[np.bool_] | None = None,
    ) -> None:
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise ConfigError(
                f"tokens are a one-dimensional array of integers, not {values.dtype} of shape {values.shape}"
            )
        if offsets.ndim != 1 or offsets.dtype != np.int64 or not offsets.size:
            raise ConfigError(f"offsets are int64 of shape (rows + 1,), not {offsets.dtype} of shape {offsets.shape}")
        if offsets[0] != 0 or offsets[-1] != values.size or bool((offsets[1:] < offsets[:-1]).any()):
            raise ConfigError(f"offsets must rise from 0 to the number of values, {values.size}")
        if loss_mask is not None:
            fits = loss_mask.dtype == np.bool_ and loss_mask.shape == values.shape
            must_be(f"bool of shape {values.shape}", fits, loss_mask=f"{loss_mask.dtype} of shape {loss_mask.shape}")
        self.values, self.offsets, self.column, self.where = values, offsets, column, where
        # Smallest and largest id, known after a check; they bound those of any part, too.
        self._rows, self._bounds, self.loss_mask = rows, None, loss_mask

    @classmethod
    def of(cls, column: Any, *, dtype: DTypeLike | None = None, name: str = "tokens", where: str = "") -> Ragged:
        """Documents from a column of a batch, or from another sequence of arrays.

        Args:
            column: an array of shape ``(rows, tokens)``, a sequence of one-dimensional arrays, lists or ``bytes``, an Arrow
                array of lists, or documents already.
            dtype: what ``bytes`` hold; of no use otherwise.
            name: name of the column, for messages.
            where: the file or row group, for messages.

        Raises:
            FormatError: a row does not hold integers; names it.
        """
        if isinstance(column, Ragged):
            return column
        if isinstance(column, np.ndarray) and column.dtype != object:
            if column.ndim != 2 or column.dtype.kind not in "iu":
                raise FormatError(
                    f"{_column(name, where)} holds {column.dtype} of shape {column.shape[1:]} in each row, not a list of "
                    "token ids: pass the name of the token column"
                )
            offsets = np.arange(len(column) + 1, dtype=np.int64) * column.shape[1]
            return cls._make(np.ascontiguousarray(column).reshape(-1), offsets, name, where, 0, None)
        if type(column).__module__.partition(".")[0] == "pyarrow":
            return cls.from_arrow(column, column=name, where=where)
        return cls.from_arrays(column, dtype=dtype, column=name, where=where)

    @classmethod
    def from_arrays(
        cls, rows: Sequence[Any], *, dtype: DTypeLike | None = None, column: str = "tokens", where: str = ""
    ) -> Ragged:
        """Documents from a sequence of one-dimensional arrays, lists of int, or ``bytes`` that hold ``dtype``.

        Raises:
            FormatError: a row does not hold integers; names it.
        """
        arrays = [_row(row, number, dtype, column, where) for number, row in enumerate(rows)]
        kinds = {array.dtype for array in arrays if array.size}
        if len(kinds) > 1 and np.result_type(*kinds).kind == "f":
            # NumPy has no integer that holds both int64 and uint64, and would make floats.
            arrays = [_as_int64(array, number, column, where) for number, array in enumerate(arrays)]
        offsets = offsets_of([array.size for array in arrays])
        full = [array for array in arrays if array.size]
        values = np.concatenate(full) if full else np.zeros(0, dtype=np.int64)
        return cls._make(values, offsets, column, where, 0, None)

    @classmethod
    def from_arrow(
        cls,
        array: Any,
        *,
        column: str = "tokens",
        where: str = "",
        first_row: int = 0,
        null_token: int | None = None,
    ) -> Ragged:
        """Documents from an Arrow array or chunked array of lists.

        Lists, large lists, list views and lists of a fixed size are taken, of any integer, dictionary-encoded or not.
        Tokens are not copied, except where null lists lie between them, from list views, and from several chunks. A null
        list is a row of no tokens, which every layout leaves out; rows so keep their numbers.

        Args:
            array: what to convert.
            column: name of the column, for messages.
            where: the file or row group, for messages.
            first_row: number of the first row there, for messages.
            null_token: stands for tokens that are null; ``None``: they are an error.

        Raises:
            FormatError: not lists of integers, or a token is null; names file, column, row and remedy.
        """
        import pyarrow as pa

        if isinstance(array, pa.ChunkedArray):
            parts = []
            for chunk in array.chunks or [pa.array([], array.type)]:
                parts.append(
                    cls.from_arrow(chunk, column=column, where=where, first_row=first_row, null_token=null_token)
                )
                first_row += len(chunk)
            return cls.concat(parts)
        here = _column(column, where)
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        kind = array.type
        if not is_lists(kind):
            hint = (
                "make tokens of it with `stoker tokenize`" if "string" in str(kind) else "name the column of token ids"
            )
            raise FormatError(f"{here} holds {kind}, not lists of token ids: {hint}")
        values, offsets = flat_list(array)
        if pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        if pa.types.is_null(values.type) and not len(values):
            values = pa.array([], pa.int64())
        if not pa.types.is_integer(values.type):
            raise FormatError(f"{here} holds {kind}, whose elements are not integers: name the column of token ids")
        if values.null_count and null_token is not None:
            values = values.cast(pa.int64()).fill_null(null_token)
        if values.null_count:
            token = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
            row = int(np.searchsorted(offsets, token, side="right")) - 1
            raise FormatError(
                f"{here}, row {first_row + row}: token {token - int(offsets[row])} is null ({values.null_count} null "
                "tokens in all). Write the column without nulls"
            )
        flat: Array = values.to_numpy(zero_copy_only=True)
        return cls(flat, offsets, column=column, where=where, rows=first_row)

    @classmethod
    def concat(cls, parts: Sequence[Ragged], *, out: Array | None = None) -> Ragged:
        """All rows of all parts, in order. One part is handed back as it is.

        Args:
            parts: what to join.
            out: memory for the tokens, used if it is large enough and of the dtype that they get.
        """
        full = [part for part in parts if len(part)] or list(parts[:1])
        if not full:
            return cls._make(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64), "tokens", "", 0, None)
        if len(full) == 1:
            return full[0]
        flat = [part.values for part in full if part.values.size] or [full[0].values]
        kinds = {values.dtype for values in flat}
        total = sum(values.size for values in flat)
        if len(kinds) > 1:
            values = cls.from_arrays(flat).values
        elif out is not None and out.dtype in kinds and out.size >= total:
            values = np.concatenate(flat, out=out[:total])
        else:
            values = np.concatenate(flat)
        ends = np.cumsum([0, *(part.values.size for part in full)])
        offsets = np.concatenate(
            [full[0].offsets, *(p.offsets[1:] + e for p, e in zip(full[1:], ends[1:], strict=False))]
        )
        rows = np.concatenate([part.rows for part in full])
        bounds = None
        known = [part._bounds for part in full if part.values.size]
        if known and all(known):
            bounds = min(b[0] for b in known if b), max(b[1] for b in known if b)
        mask = None
        if any(part.loss_mask is not None for part in full):
            mask = np.concatenate(
                [np.zeros(part.values.size, np.bool_) if part.loss_mask is None else part.loss_mask for part in full]
            )
        return cls._make(values, offsets, full[0].column, full[0].where, rows, bounds, mask)

    def __len__(self) -> int:
        return self.offsets.size - 1

    @overload
    def __getitem__(self, row: int) -> Array: ...
    @overload
    def __getitem__(self, row: slice) -> Ragged: ...
    def __getitem__(self, row: int | slice) -> Array | Ragged:
        """One document, or a run of documents; both without a copy of tokens."""
        if not isinstance(row, slice):
            number = range(len(self))[row]
            return self.values[self.offsets[number] : self.offsets[number + 1]]
        start, stop, step = row.indices(len(self))
        if step != 1:
            return self.take(np.arange(start, stop, step, dtype=np.int64))
        stop = max(start, stop)
        first, last = int(self.offsets[start]), int(self.offsets[stop])
        rows = self._rows + start if isinstance(self._rows, int) else self._rows[start:stop]
        offsets = self.offsets[start : stop + 1] - first
        mask = None if self.loss_mask is None else self.loss_mask[first:last]
        return self._make(self.values[first:last], offsets, self.column, self.where, rows, self._bounds, mask)

    def __repr__(self) -> str:
        return f"Ragged({len(self)} documents, {self.values.size} tokens of {self.values.dtype})"

    @property
    def lengths(self) -> Ids:
        """Tokens in each row; int64."""
        lengths: Ids = self.offsets[1:] - self.offsets[:-1]
        return lengths

    @property
    def rows(self) -> Ids:
        """The number of each row in its file or row group; int64."""
        if isinstance(self._rows, int):
            return np.arange(self._rows, self._rows + len(self), dtype=np.int64)
        return self._rows

    def describe_row(self, row: int) -> str:
        """Names a row, for messages: its file and number there, as far as known, and the column."""
        number = int(self.rows[row])
        if isinstance(self.where, str):
            return f"{_column(self.column, self.where)}, row {number}"
        return _column(self.column, self.where(number))

    def take(self, rows: Ids) -> Ragged:
        """These rows, in this order, copied; any may be taken more than once."""
        lengths = self.lengths[rows]
        offsets = offsets_of(lengths)
        places, size = self.offsets[rows], int(offsets[-1])
        values = gather_spans(self.values, places, lengths, offsets[:-1], size)
        mask = self.loss_mask
        if mask is not None:
            mask = gather_spans(mask, places, lengths, offsets[:-1], size)
        return self._make(values, offsets, self.column, self.where, self.rows[rows], self._bounds, mask)

    def with_values(self, values: Array) -> Ragged:
        """The same rows with other tokens, as many."""
        return self._make(values, self.offsets, self.column, self.where, self._rows, None, self.loss_mask)

    def check(self, limit: int) -> Self:
        """Check that all ids are in ``[0, limit)``; returns the documents.

        Takes one pass for the smallest and one for the largest id; neither is repeated for documents that are cut or taken
        from documents that passed.

        Raises:
            FormatError: one is not; names file, column, row and id.
        """
        info = np.iinfo(self.values.dtype)
        if not self.values.size or (info.min >= 0 and info.max < limit):
            return self
        if self._bounds is None or self._bounds[0] < 0 or self._bounds[1] >= limit:
            low = 0 if info.min >= 0 else int(self.values.min())
            high = int(self.values.max())
            self._bounds = low, high
            if low < 0 or high >= limit:
                self._refuse(limit)
        return self

    def _refuse(self, limit: int) -> None:
        wrong = self.values < 0
        if limit <= np.iinfo(self.values.dtype).max:
            wrong |= self.values >= limit
        first = int(np.argmax(wrong))
        row = int(np.searchsorted(self.offsets, first, side="right")) - 1
        raise FormatError(
            f"{self.describe_row(row)}: {int(self.values[first])} at token {first - int(self.offsets[row])} is not an id "
            f"in [0, {limit}); {int(wrong.sum())} tokens are out of range. Is this the column of another tokenizer, or "
            "of labels? Ids must be smaller than vocab_size, and fit the dtype that is asked for"
        )

    @classmethod
    def _make(
        cls,
        values: Array,
        offsets: Ids,
        column: str,
        where: Where,
        rows: Ids | int,
        bounds: tuple[int, int] | None,
        loss_mask: NDArray[np.bool_] | None = None,
    ) -> Ragged:
        made = cls.__new__(cls)
        made.values, made.offsets, made.column, made.where = values, offsets, column, where
        made._rows, made._bounds, made.loss_mask = rows, bounds, loss_mask
        return made


def offsets_of(lengths: Ids | Sequence[int]) -> Ids:
    """Begins of rows of these lengths that lie end to end, and their end; int64, shape ``(rows + 1,)``."""
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _column(column: str, where: str) -> str:
    return f"{where}: column {column!r}" if where else f"column {column!r}"


def _row(row: Any, number: int, dtype: DTypeLike | None, column: str, where: str) -> Array:
    if isinstance(row, bytes | memoryview | bytearray):
        if dtype is None:
            raise FormatError(f"{_column(column, where)} holds bytes: say which integers they are, like dtype='uint16'")
        if len(row) % np.dtype(dtype).itemsize:
            raise FormatError(
                f"{_column(column, where)}, row {number}: {len(row)} bytes are not a whole number of {np.dtype(dtype)}"
            )
        return np.frombuffer(row, dtype)
    array = np.zeros(0, np.int64) if row is None else np.asarray(row)
    if array.ndim == 1 and not array.size:
        return np.zeros(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        what = (
            type(row).__name__ if array.ndim == 0 or array.dtype == object else f"{array.dtype} of shape {array.shape}"
        )
        raise FormatError(
            f"{_column(column, where)}, row {number} holds {what}, not token ids: name the column that holds them, or make "
            "tokens of text: LMStream(tokenizer=) while it is read, or tokenize() once"
        )
    return array


def _as_int64(array: Array, number: int, column: str, where: str) -> Array:
    if array.dtype == np.uint64 and array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise FormatError(f"{_column(column, where)}, row {number}: {int(array.max())} is not a token id")
    return array.astype(np.int64)


def gather_spans(values: Array, sources: Ids, lengths: Ids, targets: Ids, size: int) -> Array:
    """A new array that has ``values[sources[i] : sources[i] + lengths[i]]`` from ``targets[i]`` on, for every i.

    Args:
        values: integers, shape ``(tokens,)``.
        sources: where runs begin in ``values``; int64, shape ``(k,)``.
        lengths: of the runs; int64, shape ``(k,)``; zeros are allowed.
        targets: where runs begin in the array; int64, shape ``(k,)``; rising, and runs do not overlap.
        size: of the array. What is not of a run may be anything.
    """
    # Spans that continue the one before in source and target are one span. Joined documents are often a single one.
    fresh = np.ones(lengths.size, dtype=bool)
    ends = lengths[:-1]
    np.not_equal(sources[:-1] + ends, sources[1:], out=fresh[1:])
    fresh[1:] |= targets[:-1] + ends != targets[1:]
    begins = np.flatnonzero(fresh)
    if begins.size < lengths.size:
        lengths = np.add.reduceat(lengths, begins)
        sources, targets = sources[begins], targets[begins]
    if int(lengths.sum()) >= _LONG * lengths.size:
        out: Array = np.empty(size, values.dtype)
        stops, ends = sources + lengths, targets + lengths
        for start, stop, target, end in zip(
            sources.tolist(), stops.tolist(), targets.tolist(), ends.tolist(), strict=True
        ):
            out[target:end] = values[start:stop]
        return out
    # Slots behind a run get what follows it in the values, as they may be anything.
    borders = np.append(targets, size)
    flat = np.ascontiguousarray(values).view(np.uint8).data
    itemsize = values.itemsize
    first, begin = 0, 0
    out = np.empty(size if size > _AT_ONCE else 0, values.dtype)
    while True:
        stop = max(int(np.searchsorted(borders, borders[first] + _AT_ONCE, side="right")) - 1, first + 1)
        until = np.diff(borders[first : stop + 1])
        starts = sources[first:stop]
        parts: list[Any] = [
            flat[start:end]
            for start, end in zip((starts * itemsize).tolist(), ((starts + until) * itemsize).tolist(), strict=True)
        ]
        for number in np.flatnonzero(starts + until > values.size).tolist():
            missing = int(starts[number] + until[number]) - max(values.size, int(starts[number]))
            parts[number] = b"".join([parts[number], bytes(missing * itemsize)])
        before = bytes((int(borders[first]) - begin) * itemsize)
        joined = np.frombuffer(bytearray().join([before, *parts]), dtype=values.dtype)
        if joined.size == size:
            return joined
        out[begin : int(borders[stop])] = joined
        first, begin = stop, int(borders[stop])
        if first == lengths.size:
            return out
