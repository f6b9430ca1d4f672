"""Images of natural size that decode, at the speed of copying bytes.

A few pictures with the spectrum of photographs are made and encoded once, in strips that decode on their own: in JPEG between
restart markers (ITU-T T.81, section E.1.4), in PNG as deflated data that ends at a full flush (RFC 1950 to 1952). An image is
a header, strips drawn from all pictures, and an end. So no two images are alike, all have natural sizes, and each costs a
copy; but strips come again in other images, which a store that looks for duplicates at any offset would find.
"""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import import_option
from stoker_bench.generation.noise import BLOCK, Noise, noise_of

VERSION: Final = "2"
"""Changes when a seed has other pictures."""

_ROWS: Final = 16
_PICTURES: Final = 8
_STREAM: Final = 255
_FILE: Final = (1 << 32) - 1
_COARSEST: Final = 4
_ADLER: Final = 65521


def _pillow() -> ModuleType:
    return import_option("PIL.Image", "images need Pillow", "stoker[images]")


def draws_per_image(shape: tuple[int, ...]) -> int:
    """Random bytes that an image takes: 2 for its height, 2 for each strip, in a multiple of 8."""
    return -(-2 * (1 + -(-shape[0] // _ROWS)) // 8) * 8


@dataclass(frozen=True)
class Strips:
    """The parts from which images are assembled.

    Attributes:
        kind: ``jpeg`` or ``png``.
        height, width: most pixels.
        head: what an image begins with.
        strips: pixels of 16 rows, encoded.
        sizes: bytes of each strip; int64, shape ``(n,)``.
        sums: of PNG: Adler-32 of each strip, and the bytes that it is of.
        height_at: of JPEG: offset of the height in the head.
    """

    kind: str
    height: int
    width: int
    head: bytes
    strips: list[bytes]
    sizes: NDArray[np.int64]
    sums: list[tuple[int, int]]
    height_at: int

    def plan(self, draws: NDArray[np.uint16]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Heights, strips and sizes of images.

        Args:
            draws: random; shape ``(n, draws_per_image // 2)``.

        Returns:
            Pixels of height, shape ``(n,)``, three quarters of the most to the most; numbers of strips, shape ``(n, most)``,
            of which an image has as many as its height needs; bytes, shape ``(n,)``.
        """
        most = -(-self.height // _ROWS) if self.kind == "jpeg" else max(1, self.height // _ROWS)
        heights = self.height - draws[:, 0].astype(np.int64) % (self.height // 4 + 1)
        if self.kind == "png":
            heights = np.maximum(1, heights // _ROWS) * _ROWS
        chosen = draws[:, 1 : 1 + most].astype(np.int64) % len(self.strips)
        used = np.arange(most) < (-(-heights // _ROWS))[:, None]
        each = 2 if self.kind == "jpeg" else 0  # the marker behind a strip
        end = 0 if self.kind == "jpeg" else _PNG_END
        sizes = len(self.head) + end + ((self.sizes[chosen] + each) * used).sum(axis=1)
        return heights, chosen, sizes

    def image(self, height: int, chosen: list[int]) -> list[bytes]:
        """An image as segments."""
        count = -(-height // _ROWS)
        if self.kind == "jpeg":
            segments = [self.head[: self.height_at] + height.to_bytes(2, "big") + self.head[self.height_at + 2 :]]
            for number, strip in enumerate(chosen[:count]):
                end = b"\xff\xd9" if number == count - 1 else b"\xff" + bytes((0xD0 + number % 8,))
                segments += [self.strips[strip], end]
            return segments
        size = struct.pack(">2I5B", self.width, height, 8, 2, 0, 0, 0)
        low, high = 1, 0
        for strip in chosen[:count]:
            adler, length = self.sums[strip]
            high = (high + (adler >> 16) + length * (low - 1)) % _ADLER
            low = (low + (adler & 0xFFFF) - 1) % _ADLER
        end = _png_chunk(b"IDAT", b"\3\0" + struct.pack(">2H", high, low)) + _png_chunk(b"IEND", b"")
        head = _SIGNATURE + _png_chunk(b"IHDR", size) + _png_chunk(b"IDAT", b"\x78\x9c")
        return [head, *[self.strips[strip] for strip in chosen[:count]], end]


_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_PNG_END: Final = 12 + 6 + 12


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@lru_cache(maxsize=4)
def strips_of(kind: str, shape: tuple[int, ...], quality: int, seed: int) -> Strips:
    """The strips of a column's images; takes 0.2 s of CPU time for a megapixel.

    Raises:
        MissingPackageError: Pillow is not installed.
    """
    pictures = _pictures(noise_of(seed), *shape)
    if kind == "jpeg":
        return _jpeg_strips(pictures, quality)
    strips: list[bytes] = []
    sums: list[tuple[int, int]] = []
    for picture in pictures:
        rows = len(picture) // _ROWS * _ROWS
        pixels = picture[:rows] if rows else np.resize(picture, (_ROWS, *picture.shape[1:]))
        before = np.zeros_like(pixels)
        before[:, 1:] = pixels[:, :-1]
        lines = np.ones((len(pixels), 1 + pixels[0].size), np.uint8)  # 1: each byte less that of the pixel on its left
        lines[:, 1:] = (pixels - before).reshape(len(pixels), -1)
        for first in range(0, len(lines), _ROWS):
            raw = lines[first : first + _ROWS].tobytes()
            packer = zlib.compressobj(4, zlib.DEFLATED, -15)
            packed = packer.compress(raw) + packer.flush(zlib.Z_FULL_FLUSH)
            strips.append(_png_chunk(b"IDAT", packed))
            sums.append((zlib.adler32(raw), len(raw)))
    head = 8 + 25 + 14
    sizes = np.fromiter(map(len, strips), np.int64, len(strips))
    return Strips("png", shape[0], shape[1], bytes(head), strips, sizes, sums, 0)


def _jpeg_strips(pictures: list[NDArray[np.uint8]], quality: int) -> Strips:
    pillow = _pillow()
    head = b""
    strips: list[bytes] = []
    height_at = 0
    for picture in pictures:
        out = io.BytesIO()
        pillow.fromarray(picture).save(out, "JPEG", quality=quality, subsampling="4:2:0", restart_marker_rows=1)
        data = out.getvalue()
        start, height_at = _scan(data)
        head = data[:start]
        at = start
        while (end := data.find(b"\xff", at)) >= 0:
            if data[end + 1] == 0:
                at = end + 2
                continue
            strips.append(data[start:end])
            start = at = end + 2
            if data[end + 1] == 0xD9:
                break
    height, width = pictures[0].shape[:2]
    sizes = np.fromiter(map(len, strips), np.int64, len(strips))
    return Strips("jpeg", height, width, head, strips, sizes, [], height_at)


def _scan(data: bytes) -> tuple[int, int]:
    """Finds the coded pixels of a JPEG file, and the offset of its height."""
    at, height_at = 2, 0
    while True:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xC0:
            height_at = at + 5
        at += 2 + length
        if marker == 0xDA:
            return at, height_at


def _pictures(noise: Noise, height: int, width: int) -> list[NDArray[np.uint8]]:
    """Sums of random grids, each twice as fine as the one before and weaker by a fifth: spectra like those of photographs."""
    shapes = [(height, width)]
    while max(shapes[0]) > _COARSEST:
        shapes.insert(0, (shapes[0][0] // 2 + 1, shapes[0][1] // 2 + 1))
    made: list[NDArray[np.uint8]] = []
    block = 0
    for _ in range(_PICTURES):
        total: NDArray[np.int16] | None = None
        weight = 20.0  # all weights are below 100 together: two sums of signed bytes so weighted, added, are 16 bits
        for rows, columns in shapes:
            grid = noise.draw(3 * rows * columns, _FILE, _STREAM, block * BLOCK).view(np.int8)
            block += -(-len(grid) // BLOCK)
            layer = grid.reshape(3, rows, columns) * np.int16(round(weight))
            total = layer if total is None else layer + _finer(total, rows, columns)
            weight *= 0.8
        assert total is not None
        picture = np.empty((height, width, 3), np.uint8)
        np.clip((total >> 5) + 128, 0, 255, out=picture.transpose(2, 0, 1), casting="unsafe")
        made.append(picture)
    return made


def _finer(grid: NDArray[np.int16], height: int, width: int) -> NDArray[np.int16]:
    """A grid with twice as many points, those between of the mean of their neighbours; shape ``(3, height, width)``."""
    rows = np.empty((3, height, grid.shape[2]), np.int16)
    rows[:, ::2] = grid[:, : -(-height // 2)]
    rows[:, 1::2] = grid[:, : height // 2] + grid[:, 1 : height // 2 + 1] >> 1
    fine = np.empty((3, height, width), np.int16)
    fine[:, :, ::2] = rows[:, :, : -(-width // 2)]
    fine[:, :, 1::2] = rows[:, :, : width // 2] + rows[:, :, 1 : width // 2 + 1] >> 1
    return fine
