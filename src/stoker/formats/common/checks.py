"""Checks that formats share: of an index's shard entries, which are not trusted, and of what is asked for and read.

A value or a file is recognised by its first bytes, to tell a wrong declaration from damaged data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NoReturn

import numpy as np

from stoker.errors import ConfigError, CorruptDataError, FormatError, IndexFileError, UnsafeDataError
from stoker.formats.base import NO_HASHES, FileInfo, ReadOptions
from stoker.formats.mds.encodings import Encoding, RawColumn, UnknownEncoding, get_encoding, mds_encoding
from stoker.storage.files.own import PRIVATE
from stoker.types import Array, Column, Ids

# What decoders may raise on bytes that are not what they expect. Missing packages are not among them.
DECODE_ERRORS: Final = (ValueError, TypeError, KeyError, IndexError, ArithmeticError, SyntaxError, EOFError, OSError)

MAX_OFFSET: Final = (1 << 32) - 1
"""Largest offset that a shard's header can hold, and so the largest raw file, in bytes."""

# What is decoded and unpacked always, however few bytes it is stored as, and how many times its bytes besides.
_ALWAYS_DECODED: Final = 1 << 30
_DECODED_RATIO: Final = 16
_ALWAYS_UNPACKED: Final = 1 << 28
_UNPACKED_RATIO: Final = 64

MAX_PACKED: Final = 1 << 40
"""Bytes of a compressed file at most: it has no offsets of its own."""
_HEX = frozenset("0123456789abcdef")
USUAL_NAME: Final = "[A-Za-z0-9_-]{1,99}(?:[./][A-Za-z0-9_-]{1,99}){0,9}"
"""Expression for the paths of most files, all of which are safe: words between single dots and slashes."""
_USUAL = re.compile(USUAL_NAME).fullmatch


def refuse(where: str, problem: str) -> NoReturn:
    """Raise the error for an entry that can not be used."""
    raise IndexFileError(f"{where}: {problem}")


def require(obj: Mapping[str, Any], key: str, kind: type | tuple[type, ...], where: str) -> Any:
    """The value of a key, of the given type (``bool`` does not pass for ``int``)."""
    try:
        value = obj[key]
    except KeyError:
        refuse(where, f"key {key!r} is missing")
    if not isinstance(value, kind) or isinstance(value, bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join("null" if k is type(None) else k.__name__ for k in kinds)
        refuse(where, f"{key!r} should be {names}, found {type(value).__name__}")
    return value


def string_list(obj: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """The value of a key that holds a list of strings."""
    value = require(obj, key, list, where)
    if not all(type(item) is str for item in value):
        refuse(where, f"{key!r} should be a list of strings")
    return tuple(value)


def parse_settings(obj: Mapping[str, Any], where: str) -> tuple[tuple[str, ...], int | str | None]:
    """Settings of the writer that readers do not need: ``hashes`` and ``size_limit``."""
    hashes = string_list(obj, "hashes", where) if "hashes" in obj else ()
    size_limit = obj.get("size_limit")
    if not isinstance(size_limit, int | str | None) or isinstance(size_limit, bool):
        refuse(where, f"'size_limit' should be int, str or null, found {type(size_limit).__name__}")
    return hashes, size_limit


def parse_files(
    obj: Mapping[str, Any], roles: Sequence[str], where: str
) -> tuple[tuple[FileInfo, ...], tuple[FileInfo, ...], str | None]:
    """The raw files, the compressed files (none where the shard is not compressed) and the compression.

    ``roles``: ``data``, ``meta``: what follows ``raw_`` and ``zip_`` in the entry's keys.
    """
    raw = tuple([_parse_file(obj, f"raw_{role}", where, MAX_OFFSET) for role in roles])
    zipped = [obj.get(f"zip_{role}") for role in roles]
    compression: str | None = require(obj, "compression", (str, type(None)), where)
    if not compression:
        if any(info is not None for info in zipped):
            refuse(where, "has compressed files but names no compression")
        files = raw
        zip_: tuple[FileInfo, ...] = ()
        compression = None
    else:
        if None in zipped:
            refuse(where, f"is compressed with {compression!r} but lists no compressed file")
        from stoker.formats.common.compression import parse_compression

        try:
            parse_compression(compression)
        except FormatError as error:
            refuse(where, str(error))
        zip_ = tuple([_parse_file(obj, f"zip_{role}", where, MAX_PACKED) for role in roles])
        files = raw + zip_
    if len(files) > 1 and len({info.basename for info in files}) != len(files):
        refuse(where, "two of its files have the same name")
    return raw, zip_, compression


def _parse_file(obj: Mapping[str, Any], key: str, where: str, limit: int) -> FileInfo:
    info = require(obj, key, dict, where)
    basename = require(info, "basename", str, where)
    size = require(info, "bytes", int, where)
    hashes = require(info, "hashes", dict, where)
    if not 0 <= size <= limit:
        refuse(where, f"{key} of {size} bytes is impossible")
    problem = check_basename(basename)
    if problem:
        refuse(where, f"{key} has the unsafe name {basename!r}: {problem}")
    for name, digest in hashes.items():
        if not isinstance(digest, str) or not digest or not _HEX.issuperset(digest):
            refuse(where, f"the {name} hash of {key} is not lower-case hex")
    return FileInfo(basename, size, hashes or NO_HASHES)


def check_basename(basename: str) -> str | None:
    """The reason why a path can not name a file below a dataset's root; ``None`` where it can."""
    # One test for the usual case: words of letters, digits, dashes and underscores between single dots and slashes.
    if _USUAL(basename) is not None:
        return None
    if not basename:
        return "it is empty"
    if len(basename.encode(errors="surrogatepass")) > 1024:
        return "it is too long"
    if "\0" in basename or any(ord(char) < 32 for char in basename):
        return "it holds control characters"
    if "\\" in basename:
        return "it holds a backslash"
    if any("\ud800" <= char <= "\udfff" for char in basename):
        return "it is not valid Unicode"
    if basename.startswith("/"):
        return "it is absolute"
    if basename[1:2] == ":" or "://" in basename:
        return "it begins with a drive or scheme"
    if any(part in ("", ".", "..") for part in basename.split("/")):
        return "it holds an empty part, '.' or '..'"
    if basename.split("/", maxsplit=1)[0] == PRIVATE:
        return "stoker's caches use that directory themselves"
    return None


def check_indexed(said: str, found: int, indexed: int, unit: str) -> None:
    """Check a number that a file tells by the index. CorruptDataError, which ``said`` begins, if they are not the same."""
    if found != indexed:
        raise CorruptDataError(f"{said} {found} {unit}, the index says {indexed}")


def most_unpacked(stored: int) -> int:
    """Bytes that so many compressed bytes may hold where nothing tells how many they are."""
    return min(MAX_OFFSET, max(_ALWAYS_UNPACKED, stored * _UNPACKED_RATIO))


def check_memory(size: int, stored: int, limit: int, where: str) -> None:
    """Refuse to decode what few bytes make much of: up to 1 GiB, or 16 times what is stored, is decoded always.

    CorruptDataError if it is too much. ``size``: bytes that would be decoded at once. ``stored``: bytes that they are stored
    as. ``limit``: bytes that may be decoded all the same: ``decoded_limit``.
    """
    most = max(limit, _ALWAYS_DECODED, stored * _DECODED_RATIO)
    if size > most:
        raise CorruptDataError(
            f"{where}: {stored:,} bytes decode to {size:,}, and {most:,} are allowed: it is damaged or made to fill memory; "
            "if it is right, raise ReadOptions(decoded_limit=)"
        )


@lru_cache(maxsize=256)
def mds_spec(
    names: tuple[str, ...],
    encodings: tuple[str, ...],
    sizes: tuple[int | None, ...],
    hashes: tuple[str, ...],
    size_limit: int | str | None,
) -> tuple[Mapping[str, Any], int]:
    """The checked spec of these columns and settings, and the least bytes that a sample of them takes."""
    if not len(names) == len(encodings) == len(sizes):
        raise IndexFileError(
            f"column_names, column_encodings and column_sizes have {len(names)}, {len(encodings)} and "
            f"{len(sizes)} entries"
        )
    if len(set(names)) != len(names):
        raise IndexFileError("two columns have the same name")
    width = 0
    for name, encoding_name, size in zip(names, encodings, sizes, strict=True):
        try:
            found = mds_encoding(encoding_name, size)
            expected = get_encoding(encoding_name).size if isinstance(found, UnknownEncoding) else found.size
        except FormatError as error:
            raise FormatError(f"column {name!r}: {error}") from None
        own = (size is None) != (expected is None) and size != 0  # the writer's
        if isinstance(size, bool) or (size != expected and not own) or (size or 0) < 0:
            raise IndexFileError(f"column {name!r} ({encoding_name}) should have size {expected}, found {size!r}")
        width += 4 if size is None else size
    spec = {
        "column_names": names,
        "column_encodings": encodings,
        "column_sizes": sizes,
        "hashes": hashes,
        "size_limit": size_limit,
    }
    return spec, width


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

    FormatError if there is no such column, UnsafeDataError for a pickled column and no consent. ``chosen``: names; ``None``
    for all. ``columns``: names of all columns of the shard. ``options``: whether columns are decoded whose decoding can run
    code from the data. ``unsafe``: such columns, as :func:`unsafe_columns` gives them.
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
        raise undecodable(encoding, values, rows, name, lambda _: where, error) from error


def decode_fixed(encoding: Encoding, stored: Array, rows: Ids, name: str, where: str) -> Column:
    """Decode n values of a fixed width; each row of ``stored``, of any data type, has the bytes of one, and is given away.

    CorruptDataError if one does not decode; names the shard, its row and the column.
    """
    if not len(rows):
        return encoding.decode_fixed(np.zeros((0, encoding.size or 0), np.uint8))
    raw = np.ascontiguousarray(stored).reshape(len(rows), -1).view(np.uint8)
    try:
        return encoding.decode_fixed(raw)
    except DECODE_ERRORS as error:
        raise undecodable(encoding, raw, rows, name, lambda _: where, error) from error


def undecodable(
    encoding: Encoding, stored: RawColumn, rows: Ids, name: str, where: Callable[[int], str], error: Exception
) -> CorruptDataError:
    """The error for the first of the values that does not decode alone; for all of them where each does.

    ``where``: names the shard of a value. ``error``: of all values together.
    """
    blamed = 0
    decode: Callable[[Any], Any] = encoding.decode_fixed if isinstance(stored, np.ndarray) else encoding.decode_values
    for index in range(len(rows)):
        try:
            decode(stored[index : index + 1])
        except Exception as found:  # noqa: BLE001 - whatever a decoder raises is what is being looked for
            error, blamed = found, index
            break
    return CorruptDataError(
        f"{where(blamed)}: sample {int(rows[blamed])}: column {name!r} ({encoding.name}) does not decode: {error}"
    )
