"""Samples to tar files in WebDataset's layout: deterministic headers, in the format that all programs read (ustar)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.formats.common.container import PackedEncoder, Slices
from stoker.formats.common.records import BytesLike, Records, blame
from stoker.formats.mds.encodings.base import UnfitValueError, describe
from stoker.formats.tar.reader import DIGITS, KEY, is_number
from stoker.types import Ids

_BLOCK: Final = 512
_NAME: Final = 100
_PREFIX: Final = 155
_TRAILER: Final = 1024
_LEAST_DIGITS: Final = 9


class TarEncoder(PackedEncoder):
    """Samples to archives: a file a column.

    ``columns``: extension to encoding. ``__key__`` may be among them, as ``str``: then it names the samples' files. Whole
    numbers are digits in the files where readers take an extension's files for such (``cls``, ``id``, ...). ConfigError for a
    column that can not be an extension.
    """

    format = "tar"

    def __init__(self, columns: Mapping[str, str], settings: Mapping[str, Any]) -> None:
        self._numbered = KEY not in columns
        extensions = sorted(name for name in columns if name != KEY)
        if not extensions:
            raise ConfigError("columns is empty: give at least one, beside the key")
        for name in extensions:
            if not name or name != name.lower() or "/" in name or "\0" in name or len(name.encode()) > _NAME // 2:
                raise ConfigError(
                    f"column {name!r} can not be an extension of files, which is in lower case and has no slash"
                )
        if columns.get(KEY, "str") != "str":
            raise ConfigError(f"column {KEY!r} is the samples' key, and so str, not {columns[KEY]!r}")
        self._digits = [name for name in extensions if is_number(name, columns[name])]
        more = {DIGITS: self._digits} if self._digits else {}
        super().__init__({**columns, KEY: "str"}, {**settings, **more})
        self._extensions = extensions
        self._longest = max(len(name.encode()) for name in extensions) + 1
        self._next = self._shift = 0
        self._last = ""
        self.sample_cost = 4 + len(extensions) * (2 * _BLOCK - 1)
        self._encode_record = self.encode
        self.encode = self._encode_keyed

    @property
    def columns(self) -> list[str]:
        """See :class:`~stoker.formats.common.records.RecordEncoder`: the key is asked for only where it was declared."""
        return self._extensions if self._numbered else [*self._extensions, KEY]

    def begin(self, number: int, written: int = 0) -> None:
        """Say which number the next sample has in its key, and how many were written before it."""
        self._next = number
        self._shift = number - written

    def encode_column_value(self, column: str, value: Any) -> Any:
        encoded = super().encode_column_value(column, value)
        if column == KEY:
            self._check_key(value)
        return encoded

    def encode_batch(self, columns: Mapping[str, Any], first: int) -> Records:
        if not self._numbered:
            records = super().encode_batch(columns, first)
            last = self._last
            for row, key in enumerate(columns[KEY]):
                try:
                    self._check_key(key)
                except UnfitValueError as error:
                    self._last = last
                    raise blame(KEY, first + row, error) from error
                self._last = key
            return records
        count = (
            len(columns[self._extensions[0]]) if isinstance(columns, Mapping) and self._extensions[0] in columns else 0
        )
        number = first + self._shift
        records = super().encode_batch({**columns, KEY: [_numbered(number + row) for row in range(count)]}, first)
        self._next = number + count
        return records

    def lay_out(self, body: memoryview, ends: Ids) -> tuple[list[BytesLike], Ids | None]:
        slices = self.slices(body, ends)
        digits = self._texts(body, ends)
        slices.update({name: texts for name, (_, texts) in digits.items()})
        count = len(ends)
        spans = {name: _BLOCK + -(-slices[name].lengths // _BLOCK) * _BLOCK for name in self._extensions}
        bounds = np.cumsum(sum(spans.values(), start=np.zeros(count, np.int64)))
        total = (int(bounds[-1]) if count else 0) + _TRAILER
        out: NDArray[np.uint8] = np.zeros(total, np.uint8)
        view = out.data
        at = np.concatenate([np.zeros(1, np.int64), bounds[:-1]]) if count else bounds
        keys = list(map(bytes, slices[KEY].cut(body)))
        for name in self._extensions:
            values, source = slices[name], digits[name][0] if name in digits else body
            heads = member_headers(keys, name.encode(), values.lengths)
            out[at[:, None] + np.arange(_BLOCK)] = heads
            for start, value in zip((at + _BLOCK).tolist(), values.cut(source), strict=True):
                view[start : start + len(value)] = value
            at = at + spans[name]
        if count:
            bounds[-1] = total
        return [out.data], bounds

    def _texts(self, body: memoryview, ends: Ids) -> dict[str, tuple[memoryview, Slices]]:
        """Columns of numbers as digits: all of a column's, and where in them each is."""
        if not self._digits or not len(ends):
            return {}
        arrays = self.arrays(body, ends)
        found: dict[str, tuple[memoryview, Slices]] = {}
        for name in self._digits:
            texts = [b"%d" % value for value in arrays[name].tolist()]
            lengths = np.fromiter(map(len, texts), np.int64, len(texts))
            found[name] = memoryview(b"".join(texts)), Slices(np.cumsum(lengths) - lengths, lengths)
        return found

    def _encode_keyed(self, sample: Mapping[str, Any]) -> Any:
        if self._numbered:
            record = self._encode_record({**sample, KEY: _numbered(self._next)})
            self._next += 1
            return record
        self._check_key(sample[KEY])
        record = self._encode_record(sample)
        self._last = sample[KEY]
        return record

    def _check_key(self, key: Any) -> None:
        """Check that a key gives names of files by which a reader finds the sample again."""
        what = "a key: a path without dots in its last part, other than that of the sample before"
        if not isinstance(key, str):
            raise UnfitValueError(f"expected {what}, got {describe(key)}")
        folder, _, base = key.rpartition("/")
        if not base or "." in base or "\0" in key or key.startswith("/") or key == self._last:
            raise UnfitValueError(f"expected {what}, got {describe(key)}")
        name = key.encode(errors="surrogatepass")
        if len(name) + self._longest > _NAME and (
            len(folder.encode(errors="surrogatepass")) > _PREFIX
            or len(base.encode(errors="surrogatepass")) + self._longest > _NAME
        ):
            raise UnfitValueError(f"expected a key that fits a tar header, got one of {len(name)} bytes")


def _numbered(number: int) -> str:
    return str(number).zfill(_LEAST_DIGITS)


def member_headers(keys: list[bytes], extension: bytes, lengths: Ids) -> NDArray[np.uint8]:
    """Headers of one column's files; uint8, shape ``(n, 512)``."""
    heads = np.zeros((len(keys), _BLOCK), np.uint8)
    names = [b"%b.%b" % (key, extension) for key in keys]
    prefixes = [b""] * len(keys)
    if any(len(name) > _NAME for name in names):
        for row, name in enumerate(names):
            if len(name) > _NAME:
                prefixes[row], _, names[row] = name.rpartition(b"/")
        heads[:, 345 : 345 + _PREFIX] = _padded(prefixes, _PREFIX)
    heads[:, :_NAME] = _padded(names, _NAME)
    for offset, text in ((100, b"0000644\0"), (108, b"0000000\0"), (116, b"0000000\0"), (136, b"00000000000\0")):
        heads[:, offset : offset + len(text)] = np.frombuffer(text, np.uint8)
    heads[:, 124:135] = _octal(lengths, 11)
    heads[:, 156] = ord("0")
    heads[:, 257:265] = np.frombuffer(b"ustar\x0000", np.uint8)
    heads[:, 148:156] = 32
    heads[:, 148:154] = _octal(heads.sum(axis=1, dtype=np.int64), 6)
    heads[:, 154] = 0
    return heads


def _octal(numbers: Ids, digits: int) -> NDArray[np.uint8]:
    shifts = 3 * np.arange(digits - 1, -1, -1)
    return ((numbers[:, None] >> shifts & 7) + ord("0")).astype(np.uint8)


def _padded(texts: list[bytes], width: int) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join([text.ljust(width, b"\0") for text in texts]), np.uint8).reshape(len(texts), width)
