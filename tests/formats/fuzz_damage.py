"""Damage to small files, drawn from a seed: which files a number stands for is the same on every machine.

Most changes go to bytes that a reader was seen to notice, as headers, lengths and offsets are; checksums can be made right
again afterwards, so that what lies behind them is reached, too.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from stoker.formats.tfrecord.example import crc32c_function, mask

__all__ = ["Draws", "Target", "damaged", "seal_png", "seal_tar", "seal_tfrecord"]

_BLOCK = 1000
_WORDS = 10
_EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_PACKED = [
    struct.pack(order + width, value & ((1 << 8 * struct.calcsize(width)) - 1))
    for value in _EXTREMES
    for order, width in (("<", "B"), ("<", "H"), (">", "H"), ("<", "I"), (">", "I"), ("<", "Q"), (">", "Q"))
]
# What text is replaced by, a word, a number or a quoted string at a time.
_WORDS_OF_TEXT = (
    b'-1 0 1 2 3 12 -0 99999999999 -9223372036854775809 18446744073709551616 1e999 NaN true null [] {} [[[[[[[[ }} "" " \' , '
    b": \\ \xff\xfe \xef\xbb\xbf \xc3 <i8 >f8 |O |S0 <U9 |V3 () (9,) (1,0) True None id text"
).split(b" ")
_QUOTED = (
    b'-1 0 1 2 8 5000000000 -9223372036854775809 1e999 1.5 NaN true null [] {} [null] {"a":{}} [[1,2]] "" "id" "../x" '
    b'"/etc/x" "index.json" "a/b" "\\u0000" "\\ud800" "\\u00e9" "int" "str" "json" "bytes" "pkl" "ndarray" "uint64" '
    b'"ndarray:int8:4" "utf8" "jpeg" "mds" "tar" "npz" "parquet" "csv" "zstd" "zstd:99" "br" "sha1" "00" "compression"'
).split(b" ")
_CHARACTERS = b'0123456789-+.eE""\\,,::{}[]()\'<>| \t\r\n\0\xc3\xff'
_TOKEN = re.compile(rb"[0-9]+|[A-Za-z_:]{2,}|\"[^\"]{0,30}\"")


class Draws:
    """Numbers of 64 bits by which each damaged file is made: ten for each, all known from the seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._block = -1
        self._drawn: list[list[int]] = []

    def __getitem__(self, number: int) -> list[int]:
        block, place = divmod(number, _BLOCK)
        if block != self._block:
            raw = np.random.PCG64([self._seed, block]).random_raw(_BLOCK * _WORDS)
            self._drawn, self._block = raw.reshape(_BLOCK, _WORDS).tolist(), block
        return self._drawn[place]


@dataclass
class Target:
    """Small files of one shard, and how they are read.

    Attributes:
        files: whole ones.
        read: reads files like them; bits say how.
        seal: makes checksums of a damaged file right again; ``None`` where there are none.
        at: which of the files are damaged.
        places: of each file, bytes that the reader notices when they are wrong.
        tokens: of each file, where words, numbers and quoted strings begin and end.
        text: of each file, whether it is mostly text.
    """

    files: Sequence[bytes]
    read: Callable[[list[bytes], int], None]
    seal: Callable[[bytearray], None] | None = None
    at: Sequence[int] = (0,)
    places: list[list[int]] = field(default_factory=list)
    tokens: list[list[tuple[int, int]]] = field(default_factory=list)
    text: list[bool] = field(default_factory=list)

    def probe(self, refused: type[Exception], most: int = 400) -> None:
        """Find out which bytes matter, by damaging them one by one; in larger files a few of each neighbourhood."""
        for turn, whole in enumerate(self.files):
            noticed: list[int] = []
            step = -(-len(whole) // most)
            for place in range(0, len(whole), step) if turn in self.at and whole else ():
                data = bytearray(whole)
                data[place] ^= 0xFF
                files = list(self.files)
                files[turn] = bytes(data)
                try:
                    self.read(files, 0)
                except refused:
                    noticed += range(place, min(place + step, len(whole)))
            self.places.append(noticed)
            self.tokens.append([match.span() for match in _TOKEN.finditer(whole)])
            self.text.append(sum(byte > 31 for byte in whole) > 0.7 * len(whole))


def damaged(target: Target, draw: Sequence[int]) -> list[bytes]:
    """The target's files, one of them with one to three changes."""
    control = draw[1]
    turn = target.at[control % len(target.at)]
    out = bytearray(target.files[turn])
    for word in range(2, 2 + 2 * (1, 1, 1, 1, 1, 2, 2, 3)[control >> 8 & 7], 2):
        if out and target.text[turn] and draw[word] & 7:
            _change_text(out, draw[word] >> 3, draw[word + 1], target.tokens[turn])
        elif out:
            _change(out, draw[word] >> 3, draw[word + 1], target.places[turn])
    if target.seal is not None and control >> 16 & 3:
        target.seal(out)
    files = list(target.files)
    files[turn] = bytes(out)
    return files


def _change_text(out: bytearray, how: int, value: int, tokens: Sequence[tuple[int, int]]) -> None:
    """Another word or number, half of the times of the same length, or another character."""
    if tokens and how & 7:
        begin, end = tokens[(how >> 3) % len(tokens)]
        quoted = out[begin : begin + 1] == b'"' or bool(value >> 40 & 3)
        words = _words(quoted, end - begin) if value >> 42 & 1 else _QUOTED if quoted else _WORDS_OF_TEXT
        out[begin:end] = words[value % len(words)]
    else:
        out[(how >> 3) % len(out)] = _CHARACTERS[value % len(_CHARACTERS)]


@cache
def _words(quoted: bool, length: int) -> list[bytes]:
    """Words that are filled up to a length."""
    return [word.ljust(length) for word in (_QUOTED if quoted else _WORDS_OF_TEXT) if len(word) <= length]


def _change(out: bytearray, how: int, value: int, places: Sequence[int]) -> None:
    """Other bytes; half of the times where they were seen to matter, or where most headers are."""
    size = len(out)
    kind, near, at = how & 255, how >> 8 & 7, how >> 16
    if near < 2 and places:
        at = min(places[at % len(places)], size - 1)
    elif near == 2:
        at = size - 1 - at % min(size, 64)
    elif near == 3:
        at = at % min(size, 64)
    else:
        at = at % size
    if kind < 64:
        out[at] = value & 255
    elif kind < 100:
        out[at] ^= 1 << (value & 7)
    elif kind < 130:
        out[at] = (out[at] + (-2, -1, 1, 2)[value & 3]) & 255
    elif kind < 180:
        number = _PACKED[value % len(_PACKED)]
        out[at : at + len(number)] = number[: size - at]
    elif kind < 205:  # a little more or less, of 32 bits
        number = (int.from_bytes(out[at : at + 4], "little") + (value & 255) - 128 & 0xFFFFFFFF).to_bytes(4, "little")
        out[at : at + 4] = number[: size - at]
    elif kind < 215:
        del out[at:]
    elif kind < 225:
        del out[at : at + 1 + value % 40]
    else:  # a copy of other bytes of the file, instead or between
        source = (value >> 8) % size
        piece = out[source : source + 1 + value % 40]
        if kind < 245:
            piece = piece[: size - at]
            out[at : at + len(piece)] = piece
        else:
            out[at:at] = piece


def seal_tfrecord(data: bytearray) -> None:
    """Checksums of the records as far as their lengths lead."""
    crc, at = crc32c_function(), 0
    while at + 16 <= len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        data[at + 8 : at + 12] = mask(crc(bytes(data[at : at + 8]))).to_bytes(4, "little")
        at += 12
        if at + length + 4 > len(data):
            return
        data[at + length : at + length + 4] = mask(crc(bytes(data[at : at + length]))).to_bytes(4, "little")
        at += length + 4


def seal_tar(data: bytearray) -> None:
    """Checksums of all blocks that look like headers."""
    for at in range(0, len(data) - 511, 512):
        if data[at + 257 : at + 262] == b"ustar":
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])


def seal_png(data: bytearray) -> None:
    """Checksums of the chunks as far as their lengths lead."""
    at = 8
    while at + 12 <= len(data):
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        if end + 4 > len(data):
            return
        data[end : end + 4] = zlib.crc32(data[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
