"""Samples to TFRecord files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from stoker.errors import ConfigError
from stoker.formats.common.container import PackedEncoder, fixed_kind
from stoker.formats.common.records import BytesLike
from stoker.formats.mds.encodings import Encoding
from stoker.formats.tfrecord.example import (
    INTEGERS,
    crc32c_function,
    crc_of_lengths,
    feature_head,
    mask,
    masked,
    pack_integers,
)
from stoker.formats.tfrecord.reader import feature_kind
from stoker.integers import encode_varint
from stoker.types import Ids

_FRAME: Final = 16
_TAGS: Final = 64


class TFRecordEncoder(PackedEncoder):
    """Samples to records.

    ``raw``: records are the bytes of the one column. ConfigError for several columns where records are raw,
    MissingPackageError if no package for the checksums is installed.
    """

    format = "tfrecord"

    def __init__(self, columns: Mapping[str, str], settings: Mapping[str, Any], raw: bool = False) -> None:
        if raw and len(columns) > 1:
            raise ConfigError(f"raw records hold one column, not {', '.join(sorted(columns))}")
        super().__init__(columns, {**settings, "raw": True} if raw else settings)
        self._raw = raw
        self._crc = crc32c_function()
        # Integers are at most two bytes longer than in a record, which has them in eight.
        values = sum(
            2 * int(np.prod(fixed_kind(encoding)[1], dtype=np.int64)) + 9
            for encoding in self.encodings.values()
            if encoding.size is not None
        )
        names = sum(len(name.encode()) for name in columns)
        self.sample_cost = 4 + _FRAME + (0 if raw else names + values + _TAGS * len(columns))

    def lay_out(self, body: memoryview, ends: Ids) -> tuple[list[BytesLike], Ids | None]:
        slices = self.slices(body, ends)
        parts: list[Iterable[bytes | memoryview]] = []
        for name, encoding in self.encodings.items():
            values: list[bytes | memoryview] = [*slices[name].cut(body)]
            if not self._raw:
                convert = _value_encoder(encoding)
                values = [convert(value) for value in values]
                head = lru_cache(maxsize=4096)(partial(feature_head, name.encode(), feature_kind(encoding)))
                parts.append(map(head, map(len, values)))
            parts.append(values)
        records = [b"".join(cells) for cells in zip(*parts, strict=True)]
        if not self._raw:
            records = [b"\x0a" + encode_varint(len(record)) + record for record in records]
        lengths = np.fromiter(map(len, records), np.int64, len(records))
        heads = np.zeros((len(records), 12), np.uint8)
        heads[:, :8] = lengths.astype("<i8").view(np.uint8).reshape(-1, 8)
        heads[:, 8:] = masked(crc_of_lengths(lengths)).astype("<u4").view(np.uint8).reshape(-1, 4)
        flat, crc = heads.tobytes(), self._crc
        framed = [
            part
            for number, record in enumerate(records)
            for part in (flat[12 * number : 12 * number + 12], record, mask(crc(record)).to_bytes(4, "little"))
        ]
        return [b"".join(framed)], np.cumsum(lengths + _FRAME)


def _value_encoder(encoding: Encoding) -> Callable[[bytes | memoryview], bytes | memoryview]:
    """A function from a value's bytes to those that an Example has of it, without what comes before them."""
    kind = feature_kind(encoding)
    if kind != INTEGERS:
        return lambda data: data
    dtype, shape = fixed_kind(encoding)
    if shape:
        return lambda data: pack_integers(np.frombuffer(data, dtype))
    signed = dtype.kind == "i"
    return lambda data: encode_varint(int.from_bytes(data, "little", signed=signed) & 0xFFFFFFFFFFFFFFFF)
