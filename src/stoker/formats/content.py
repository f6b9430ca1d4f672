"""Recognises a value by its first bytes: tells a column that was declared with the wrong encoding from damaged data."""

from __future__ import annotations

import re
from typing import Final

from stoker.errors import ConfigError
from stoker.formats.mds.encodings import Encoding

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

    Raises:
        ConfigError: it is; says what it is, and what to declare.
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
