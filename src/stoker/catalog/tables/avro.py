"""Avro files of others, decompressed within bounds: libraries that read Avro decompress and count as a file says.

Apache Avro's specification, "Object Container Files".
"""

from __future__ import annotations

import binascii
import bz2
import json
import zlib
from typing import Any, Final

from stoker.errors import CorruptDataError
from stoker.formats.common.compression import parse_compression
from stoker.integers import encode_varint

MAGIC: Final = b"Obj\1"
"""The first bytes of a file."""

# Bytes that are decompressed always, and how many times the file's own besides: manifests of wide tables have 10 to 20.
_ALWAYS: Final = 1 << 25
_RATIO: Final = 64
_SYNC: Final = 16
_CODEC, _SCHEMA = b"avro.codec", b"avro.schema"


def plain_avro(data: bytes, where: str) -> bytes:
    """The same file without compression."""
    try:
        return _plain(data)
    except (ValueError, IndexError, TypeError, KeyError, RecursionError, OSError, zlib.error) as error:
        raise CorruptDataError(f"{where}: the Avro file can not be read: {error}") from None


def _plain(data: bytes) -> bytes:
    facts, at = _facts(data)
    codec = facts.get(_CODEC, b"null").decode()
    _check_schema(json.loads(facts[_SCHEMA]))
    sync, at = data[at : at + _SYNC], at + _SYNC
    facts[_CODEC] = b"null"
    out = [MAGIC, _long(len(facts))]
    for key, value in facts.items():
        out += [_long(len(key)), key, _long(len(value)), value]
    out += [_long(0), sync]
    left = most = max(_ALWAYS, _RATIO * len(data))
    while at < len(data):
        count, at = _read(data, at)
        block, at = _bytes(data, at)
        if data[at : at + _SYNC] != sync:
            raise ValueError(f"the block that ends at byte {at} is not followed by the file's mark")
        at += _SYNC
        raw = _decompress(codec, block, left)
        left -= len(raw)
        if left < 0:
            raise ValueError(f"{len(data):,} bytes decompress to more than the {most:,} that are allowed")
        if not 0 <= count <= len(raw):
            raise ValueError(f"a block of {len(raw):,} bytes claims to hold {count:,} records")
        out += [_long(count), _long(len(raw)), raw, sync]
    return b"".join(out)


def _facts(data: bytes) -> tuple[dict[bytes, bytes], int]:
    """The facts of the header, and where the mark behind it begins."""
    facts: dict[bytes, bytes] = {}
    at = len(MAGIC)
    while True:
        count, at = _read(data, at)
        if count < 0:  # then its bytes follow
            count, (_, at) = -count, _read(data, at)
        if count == 0:
            return facts, at
        for _ in range(count):  # each takes bytes, or is an error
            key, at = _bytes(data, at)
            facts[key], at = _bytes(data, at)


def _decompress(codec: str, block: bytes, most: int) -> bytes:
    """A block's bytes; one more than ``most`` where there are more."""
    if codec == "null":
        return block
    if codec in ("deflate", "bzip2"):
        unpacker: Any = zlib.decompressobj(-zlib.MAX_WBITS) if codec == "deflate" else bz2.BZ2Decompressor()
        raw: bytes = unpacker.decompress(block, most + 1)
        if not unpacker.eof and len(raw) <= most:
            raise ValueError("a block is cut off")
        return raw
    if codec == "zstandard":
        return bytes(parse_compression("zstd").decompress_unsized(block, most))
    if codec == "snappy":
        raw = bytes(parse_compression("snappy").decompress_unsized(block[:-4], most))
        if binascii.crc32(raw) != int.from_bytes(block[-4:], "big"):
            raise ValueError("a block does not have its checksum")
        return raw
    raise ValueError(f"its compression {codec[:40]!r} is not known")


def _check_schema(schema: Any) -> None:
    """Refuse lists of values that take no bytes: a few bytes could claim any number of them."""
    if isinstance(schema, list):
        for one in schema:
            _check_schema(one)
    elif isinstance(schema, dict):
        if schema.get("type") == "array" and _is_empty(schema["items"]):
            raise ValueError("it has lists of values that take no bytes")
        for one in (schema.get("type"), schema.get("items"), schema.get("values")):
            _check_schema(one)
        for field in schema.get("fields", ()):
            _check_schema(field)


def _is_empty(schema: Any) -> bool:
    """Return whether values of a type are encoded in zero bytes: null, and what consists of nulls."""
    if not isinstance(schema, dict):
        return bool(schema == "null")
    kind = schema.get("type")
    if kind == "record":
        return all(_is_empty(field["type"]) for field in schema["fields"])
    return int(schema["size"]) < 1 if kind == "fixed" else _is_empty(kind)


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _read(data, at)
    if not 0 <= size <= len(data) - at:
        raise ValueError(f"{size} bytes at byte {at} of a file of {len(data)}")
    return data[at : at + size], at + size


def _read(data: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = 0
    for turn in range(10):
        byte = data[at + turn]
        value |= (byte & 0x7F) << 7 * turn
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), at + turn + 1
    raise ValueError(f"a number without an end at byte {at}")


def _long(value: int) -> bytes:
    return encode_varint(value << 1)
