"""Documents from Arrow arrays. Imports pyarrow only when called."""

from __future__ import annotations

from typing import Any

import numpy as np

from stoker.errors import FormatError
from stoker.tokens.sources.ragged import Ragged
from stoker.types import Array, Ids

__all__ = ["from_arrow"]


def from_arrow(array: Any, *, column: str = "tokens", where: str = "", first_row: int = 0) -> Ragged:
    """Documents from an Arrow array or chunked array of lists.

    Lists, large lists, list views and lists of a fixed size are taken, of any integer, dictionary-encoded or not. Tokens are
    not copied, except where null lists lie between them, from list views, and from several chunks. A null list is a row of
    no tokens, which every layout leaves out; rows so keep their numbers.

    Args:
        array: what to convert.
        column: name of the column, for messages.
        where: the file or row group, for messages.
        first_row: number of the first row there, for messages.

    Raises:
        FormatError: not lists of integers, or a token is null; names file, column, row and remedy.
    """
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        parts = []
        for chunk in array.chunks or [pa.array([], array.type)]:
            parts.append(from_arrow(chunk, column=column, where=where, first_row=first_row))
            first_row += len(chunk)
        return Ragged.concat(parts)
    place = f"{where}: column {column!r}" if where else f"column {column!r}"
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if not (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    ):
        hint = "make tokens of it with `stoker tokenize`" if "string" in str(kind) else "name the column of token ids"
        raise FormatError(f"{place} holds {kind}, not lists of token ids: {hint}")
    offsets, values = _flat(array)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_null(values.type) and not len(values):
        values = pa.array([], pa.int64())
    if not pa.types.is_integer(values.type):
        raise FormatError(f"{place} holds {kind}, whose elements are not integers: name the column of token ids")
    if values.null_count:
        token = int(np.argmax(values.is_null().to_numpy(zero_copy_only=False)))
        row = int(np.searchsorted(offsets, token, side="right")) - 1
        raise FormatError(
            f"{place}, row {first_row + row}: token {token - int(offsets[row])} is null; {values.null_count} tokens are. "
            "Write the column without nulls"
        )
    flat: Array = values.to_numpy(zero_copy_only=True)
    return Ragged(flat, offsets, column=column, where=where, rows=first_row)


def _flat(array: Any) -> tuple[Ids, Any]:
    """Offsets of rows, int64 from 0, and the Arrow array of all their tokens."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and len(array):
        raw = array.offsets.to_numpy().astype(np.int64)
        plain = not array.null_count
        if not plain:
            null = array.is_null().to_numpy(zero_copy_only=False)
            plain = not (raw[1:] - raw[:-1])[null].any()
        if plain:
            return raw - raw[0], array.values.slice(int(raw[0]), int(raw[-1] - raw[0]))
    lengths = pc.list_value_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    offsets = np.zeros(len(array) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets, array.flatten()
