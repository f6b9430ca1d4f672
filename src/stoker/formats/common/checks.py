"""Checks that all formats share of an index's shard entries, which come from files and are not trusted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NoReturn

from stoker.errors import CorruptDataError, FormatError, IndexFileError
from stoker.formats.base import NO_HASHES, FileInfo
from stoker.formats.common.compression import parse_compression
from stoker.formats.mds.encodings.registry import UnknownEncoding, get_encoding, mds_encoding
from stoker.storage.files.own import PRIVATE

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


def parse_samples(obj: Mapping[str, Any], where: str) -> int:
    """The number of samples; also checks the entry's version."""
    version = obj.get("version")
    if version != 2 or isinstance(version, bool):
        refuse(where, f"shard version {version!r} is not supported, only 2")
    samples: int = require(obj, "samples", int, where)
    if not 0 <= samples <= MAX_OFFSET:
        refuse(where, f"{samples} samples is impossible")
    return samples


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


def parse_columns(obj: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], int]:
    """The columns that an entry of the index tells; see :func:`mds_spec`.

    IndexFileError if they are incomplete or contradict themselves, FormatError if an encoding is unknown.
    """
    names = string_list(obj, "column_names", where)
    encodings = string_list(obj, "column_encodings", where)
    sizes = tuple(require(obj, "column_sizes", list, where))
    try:
        return mds_spec(names, encodings, sizes, *parse_settings(obj, where))
    except IndexFileError as error:
        raise IndexFileError(f"{where}: {error}") from None
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from None
    except TypeError:  # unhashable, so neither int nor null
        refuse(where, "'column_sizes' should hold integers and nulls")


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
