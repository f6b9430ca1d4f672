"""Checks of what open shards are to read: columns that exist and may be decoded, and rows inside the shard."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from stoker.errors import CorruptDataError, FormatError, UnsafeDataError
from stoker.formats.base import ReadOptions
from stoker.formats.mds.encodings import Encoding
from stoker.types import Ids

_NONE: Mapping[str, str] = {}


def wanted_columns(
    chosen: Sequence[str] | None,
    columns: Collection[str],
    where: str,
    options: ReadOptions = ReadOptions(),
    unsafe: Mapping[str, str] = _NONE,
) -> list[str]:
    """The columns to read, in the shard's order.

    Args:
        chosen: names; ``None`` for all.
        columns: names of all columns of the shard.
        where: names the shard in errors.
        options: whether columns are decoded whose decoding can run code from the data.
        unsafe: such columns, as :func:`unsafe_columns` gives them.

    Raises:
        FormatError: there is no such column.
        UnsafeDataError: a pickled column and no consent.
    """
    names = list(columns)
    if chosen is not None:
        some = set(chosen)
        if unknown := some.difference(names):
            raise FormatError(f"{where} has no column {min(unknown)!r}; it has {', '.join(names)}")
        names = [name for name in names if name in some]
    if unsafe and not options.allow_unsafe_types:
        for name in names:
            if name in unsafe:
                raise UnsafeDataError(
                    f"{where}: column {name!r} is {unsafe[name]}, and reading it runs code from the data. "
                    "Pass allow_unsafe_types=True if you trust its author, or leave the column out with columns="
                )
    return names


def unsafe_columns(encodings: Mapping[str, Encoding]) -> Mapping[str, str]:
    """Columns whose decoding can run code from the data, and the names of their encodings."""
    return {name: encoding.name for name, encoding in encodings.items() if not encoding.safe}


def cut_error(where: str, row: int, size: int, whole: int) -> CorruptDataError:
    """The error of a sample that lies after the end of a shard's file, which has ``size`` of ``whole`` bytes."""
    return CorruptDataError(
        f"{where}: sample {row} is lost: the file ends after {size} of {whole} bytes. Copy it or write the dataset again"
    )


def check_rows(rows: Ids, samples: int | Ids) -> None:
    """Check that rows are inside a shard of ``samples``, or each inside the shard whose number of samples has the same index.

    Raises:
        IndexError: one is not.
    """
    if len(rows) and (int(rows.min()) < 0 or (rows >= samples).any()):
        raise IndexError("row outside its shard")
