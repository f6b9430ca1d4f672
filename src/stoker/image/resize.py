"""Resizes a part of a picture into memory that is given.

Both ways compute with integers, so that they give the same bytes on any processor.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from stoker.errors import import_option
from stoker.image.picture import SHRINKS, Picture
from stoker.types import Array

Resample: TypeAlias = Literal["bilinear", "antialias"]
"""The way in which pictures are resized.

``bilinear``: JPEG is made smaller by 2, 4 or 8 as it is decoded; the rest, of less than 2, is computed by OpenCV from the
four pixels that are nearest. Where more is left, Pillow averages all pixels. ``antialias``: by Pillow, from the whole
picture, as torchvision does.
"""


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a picture, in its pixels: left and upper edge, width and height."""

    x: float
    y: float
    width: float
    height: float


def resize_part(picture: Picture, box: Box, out: Array, resample: Resample, *, flip: bool = False) -> None:
    """Decode a part of a picture at the size of ``out``.

    Args:
        picture: to decode.
        box: the part; ``bilinear`` takes the whole pixels that are nearest, of what it was shrunk to.
        out: pixels, uint8, shape ``(height, width, channels)``, C-contiguous.
        resample: see :data:`Resample`.
        flip: whether left and right are exchanged.

    Raises:
        ImageError: the picture is damaged.
        MissingPackageError: OpenCV or Pillow is not installed.
    """
    height, width = out.shape[:2]
    shrink = 1
    if resample == "bilinear" and picture.shrinks:
        for one in SHRINKS:
            if box.width >= one * width and box.height >= one * height:
                shrink = one
                box = Box(box.x / one, box.y / one, box.width / one, box.height / one)
                break
    pixels = picture.pixels(shrink)
    if resample == "antialias" or box.width >= 2 * width or box.height >= 2 * height:
        _resize_by_pillow(pixels, box, out, flip=flip, quick=resample == "bilinear")
        return
    top, rows = _whole(box.y, box.height, pixels.shape[0])
    left, columns = _whole(box.x, box.width, pixels.shape[1])
    _resize_by_opencv(pixels[top : top + rows, left : left + columns], out, flip=flip)


def _whole(start: float, length: float, limit: int) -> tuple[int, int]:
    """The whole pixels that are nearest to a stretch: the first, and how many."""
    count = min(max(1, round(length)), limit)
    return min(max(0, round(start)), limit - count), count


def _resize_by_opencv(pixels: Array, out: Array, *, flip: bool) -> None:
    cv2 = _opencv()
    height, width = out.shape[:2]
    if pixels.strides[1:] != (pixels.shape[2], 1):  # turned; rows may be apart
        pixels = np.ascontiguousarray(pixels)
    into = out[..., 0] if out.shape[2] == 1 else out  # as OpenCV returns one channel
    cv2.resize(pixels, (width, height), dst=into, interpolation=cv2.INTER_LINEAR_EXACT)
    if flip:
        cv2.flip(into, 1, dst=into)


def _resize_by_pillow(pixels: Array, box: Box, out: Array, *, flip: bool, quick: bool) -> None:
    from PIL import Image

    height, width = out.shape[:2]
    edges = (box.x, box.y, min(box.x + box.width, pixels.shape[1]), min(box.y + box.height, pixels.shape[0]))
    # With a gap, whole factors are averaged first, and twice the size is left for the rest.
    made = _image_of(pixels).resize(
        (width, height), Image.Resampling.BILINEAR, box=edges, reducing_gap=2.0 if quick else None
    )
    if flip:
        made = made.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    out[...] = np.asarray(made).reshape(out.shape)


def _image_of(pixels: Array) -> Any:
    image = import_option("PIL.Image", "pictures need Pillow", "stoker[images]")
    return image.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))


@lru_cache
def _opencv() -> Any:
    import_option("cv2", "resample='bilinear' needs OpenCV, 'antialias' does not", "stoker[images]")
    from stoker.image.opencv import cv2

    return cv2
