"""Checks of what is read: columns that exist and may be decoded, rows inside the shard, and values of the declared kind.

A value or a file is recognised by its first bytes, to tell a wrong declaration from damaged data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError, CorruptDataError, FormatError, UnsafeDataError
from stoker.formats.base import ReadOptions
from stoker.formats.common.checks import DECODE_ERRORS
from stoker.formats.mds.encodings import Encoding
from stoker.types import Column, Ids

_BEGINS: Final = (
    (b"\xff\xd8\xff", "a JPEG image", "jpeg"),
    (b"\x89PNG\r\n", "a PNG image", "png"),
    (b"\x93NUMPY", "an NPY file", None),
    (b"PK\x03\x04", "a ZIP or NPZ file", None),
    (b"\x1f\x8b", "gzip data", None),
)
_PACKED: Final = (
    (b"\x1f\x8b", "gzip data: end its name with .gz"),
    (b"\x28\xb5\x2f\xfd", "zstd data: end its name with .zst"),
    (b"\xfd7zXZ\0", "xz data: decompress it"),
    (b"BZh91AY&SY", "bzip2 data: decompress it"),
    (b"\xff\xfe", "UTF-16 text: convert it, as by iconv -f utf-16 -t utf-8"),
    (b"\xfe\xff", "UTF-16 text: convert it, as by iconv -f utf-16 -t utf-8"),
)
_IMAGES: Final = ("jpeg", "png", "jpeg_array", "jpegarray")
_INTEGER: Final = re.compile(rb"\s*[+-]?[0-9]{1,40}\s*")
_FLOAT: Final = re.compile(rb"\s*[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?\s*")
_TEXTS: Final = ("str", "str_int", "str_float", "str_decimal", "json", "bytes")


def check_declared(where: str, name: str, encoding: Encoding, value: bytes, cause: Exception) -> None:
    """See whether a value that does not decode is whole, and of another kind than the column was declared to be.

    ConfigError if it is; says what it is, and what to declare.
    """
    found = _kind_of(value)
    if found is None:
        return
    what, declare = found
    if encoding.name in (_IMAGES if declare in _IMAGES else _TEXTS if declare is not None else ()):
        return
    means = {"pil": "raw pixels behind a mode, as MDS has them", "ndarray": "an array as MDS has it"}.get(
        encoding.name.partition(":")[0], f"{encoding.size} raw bytes" if encoding.size is not None else ""
    )
    remedy = (
        f"declare it as {declare!r}"
        if declare is not None
        else "leave it out of encodings=, which gives its bytes, and open them in transform="
    )
    raise ConfigError(
        f"{where}: column {name!r} holds {what}, and is declared as {encoding.name!r}{means and f' ({means})'}: {remedy}"
    ) from cause


def packed_as(begin: bytes) -> str | None:
    """Recognise a compressed or UTF-16 file by its first 16 bytes; returns what it is and the remedy, for an error."""
    for known, what in _PACKED:
        if begin.startswith(known):
            return what
    if len(begin) >= 4 and any(begin) and (not any(begin[::2]) or not any(begin[1::2])):
        return "UTF-16 text without its mark: convert it, as by iconv -f utf-16le -t utf-8"
    return None


def _kind_of(value: bytes) -> tuple[str, str | None] | None:
    for begin, what, declare in _BEGINS:
        if value.startswith(begin):
            return what, declare
    if _INTEGER.fullmatch(value):
        return f"a number in digits ({value[:20].decode().strip()!r})", "str_int"
    if len(value) < 40 and _FLOAT.fullmatch(value):
        return f"a number in digits ({value.decode().strip()!r})", "str_float"
    try:
        text = value[:1000].decode("utf-8", "strict" if len(value) <= 1000 else "ignore")
    except UnicodeDecodeError:
        return None
    if text and text.translate({9: 32, 10: 32, 13: 32}).isprintable():
        return f"text ({text[:20]!r})", "json" if text.lstrip()[:1] in "{[" else "str"
    return None


_NONE: Mapping[str, str] = {}


def wanted_columns(
    chosen: Sequence[str] | None,
    columns: Collection[str],
    where: str,
    options: ReadOptions = ReadOptions(),
    unsafe: Mapping[str, str] = _NONE,
) -> list[str]:
    """The columns to read, in the shard's order.

    FormatError if there is no such column, UnsafeDataError for a pickled column and no consent.

    Args:
        chosen: names; ``None`` for all.
        columns: names of all columns of the shard.
        options: whether columns are decoded whose decoding can run code from the data.
        unsafe: such columns, as :func:`unsafe_columns` gives them.
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

    IndexError if one is not.
    """
    if len(rows) and (int(rows.min()) < 0 or (rows >= samples).any()):
        raise IndexError("row outside its shard")


def decode_values(encoding: Encoding, values: list[bytes], rows: Ids, name: str, where: str) -> list[Any]:
    """Decode n values of a column. CorruptDataError if one does not decode; names the shard, its row and the column."""
    try:
        return encoding.decode_values(values)
    except DECODE_ERRORS as error:
        raise _blame(
            encoding.decode_values, values, error, rows, f"column {name!r} ({encoding.name})", where
        ) from error


def decode_fixed(encoding: Encoding, raw: NDArray[np.uint8], rows: Ids, name: str, where: str) -> Column:
    """Decode n values of a fixed width; ``raw`` has shape ``(n, size)`` and is given away.

    CorruptDataError if one does not decode; names the shard, its row and the column.
    """
    try:
        return encoding.decode_fixed(raw)
    except DECODE_ERRORS as error:
        raise _blame(encoding.decode_fixed, raw, error, rows, f"column {name!r} ({encoding.name})", where) from error


def _blame(
    decode: Callable[[Any], Any], values: Any, error: Exception, rows: Ids, column: str, where: str
) -> CorruptDataError:
    """The error for the first of the values that does not decode alone; for all of them where each does."""
    blamed = int(rows[0])
    for index, row in enumerate(rows.tolist()):
        try:
            decode(values[index : index + 1])
        except DECODE_ERRORS as found:
            error, blamed = found, row
            break
    return CorruptDataError(f"{where}: sample {blamed}: {column} does not decode: {error}")
