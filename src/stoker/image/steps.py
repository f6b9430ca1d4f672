"""Steps of a chain that put pixels in the place of a column's encoded pictures, resized into memory that is given."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from stoker.arguments import checked, must_be
from stoker.errors import ConfigError, ImageError, import_option
from stoker.formats.mds.encodings.images import pillow
from stoker.image.batch_rows import new_row
from stoker.image.picture import CHANNELS, SHRINKS, Decoder, Mode, Picture, open_picture
from stoker.types import Array, Sample

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

    ``bilinear`` takes the whole pixels that are nearest to the box, of what the picture was shrunk to. ``out`` is uint8, of
    shape ``(height, width, channels)``, C-contiguous; ``flip`` exchanges left and right.
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
    height, width = out.shape[:2]
    edges = (box.x, box.y, min(box.x + box.width, pixels.shape[1]), min(box.y + box.height, pixels.shape[0]))
    # With a gap, whole factors are averaged first, and twice the size is left for the rest.
    pil = pillow()
    image = pil.fromarray(np.ascontiguousarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels))
    made = image.resize((width, height), pil.Resampling.BILINEAR, box=edges, reducing_gap=2.0 if quick else None)
    if flip:
        made = made.transpose(pil.Transpose.FLIP_LEFT_RIGHT)
    out[...] = np.asarray(made).reshape(out.shape)


@lru_cache
def _opencv() -> Any:
    import_option("cv2", "resample='bilinear' needs OpenCV, 'antialias' does not", "stoker[images]")
    from stoker.image.opencv import cv2

    return cv2


Layout: TypeAlias = Literal["HWC", "CHW"]
"""The order of axes: height, width, channels; or channels first, as torch has it."""

Size: TypeAlias = int | tuple[int, int]
"""Height and width in pixels; one number for both."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Settings that all steps have."""

    _: KW_ONLY
    column: str = "image"
    mode: Mode = "RGB"
    layout: Layout = "HWC"
    decoder: Decoder = "auto"
    strict: bool = True

    def _open(self, sample: Sample) -> Picture:
        if not isinstance(sample, dict):
            raise ConfigError(f"{self!r} takes samples that are dicts of columns, got {type(sample).__name__}")
        if self.column not in sample:
            raise ImageError(f"the sample has no column {self.column!r}; it has {', '.join(map(str, sample))}")
        return open_picture(sample[self.column], self.mode, self.decoder, strict=self.strict)

    def _with(self, sample: Sample, pixels: Array) -> Sample:
        """The sample with pixels, given with channels last, in the layout that is asked for."""
        if self.layout == "CHW":
            turned = pixels.transpose(2, 0, 1)
            pixels = new_row(self.column, turned.shape)
            pixels[...] = turned
        return {**sample, self.column: pixels}


@dataclass(frozen=True, slots=True)
class _Resizing(_Step):
    """Settings of all steps that resize."""

    _: KW_ONLY
    resample: Resample = "bilinear"

    def _resized(
        self, sample: Sample, picture: Picture, box: Box, size: tuple[int, int], *, flip: bool = False
    ) -> Sample:
        shape = (*size, CHANNELS[self.mode])
        last = self.layout == "HWC"
        out = new_row(self.column, shape) if last else np.empty(shape, np.uint8)
        resize_part(picture, box, out, self.resample, flip=flip)
        return self._with(sample, out)


@checked
@dataclass(frozen=True, slots=True)
class Decode(_Step):
    """Decodes whole pictures, which keep their sizes.

    >>> Decode(column="jpg")
    Decode(column='jpg', mode='RGB', layout='HWC', decoder='auto', strict=True)

    Args:
        column: with encoded pictures (bytes), images of Pillow, or pixels with channels last. Pixels replace them: uint8,
            ``(height, width, channels)``.
        mode: colours of the pixels.
        layout: ``"HWC"``, or ``"CHW"`` for channels first.
        decoder: of JPEG: ``"simplejpeg"``, ``"pillow"``; ``"auto"``: simplejpeg where it is installed.
        strict: whether a warning of the decoder is an error.
    """

    def __call__(self, sample: Sample) -> Sample:
        """The sample with pixels.

        Raises:
            ImageError: the picture is damaged, or the sample has none.
        """
        return self._with(sample, np.ascontiguousarray(self._open(sample).pixels()))


@checked
@dataclass(frozen=True, slots=True)
class Resize(_Resizing):
    """Decodes pictures at one size, or with a shorter side of one length.

    >>> Resize((2, 4), column="jpg").size
    (2, 4)

    Args:
        size: height and width, to which the picture is stretched; one number: the length of the shorter side, where the
            longer one keeps its proportion.
        resample: ``"bilinear"``, fast, or ``"antialias"``, as Pillow and torchvision resize. They give other pixels.

    Other args are those of :class:`Decode`.

    Raises:
        ConfigError: ``size`` is not positive.
    """

    size: Size

    def __post_init__(self) -> None:
        _pair(self.size)

    def __call__(self, sample: Sample) -> Sample:
        """The sample with pixels; errors are those of :class:`Decode`."""
        picture = self._open(sample)
        height, width = picture.height, picture.width
        if isinstance(self.size, int):
            short = min(height, width)
            size = (max(1, height * self.size // short), max(1, width * self.size // short))
        else:
            size = self.size
        return self._resized(sample, picture, Box(0, 0, width, height), size)


@checked
@dataclass(frozen=True, slots=True)
class CenterCrop(_Resizing):
    """Decodes the middle of pictures at one size.

    The part is the largest of the size's proportions, or a share of it. ``CenterCrop(224)`` is what torchvision calls
    ``Resize(256)`` and ``CenterCrop(224)``, resized once instead of cut after it.

    >>> CenterCrop(224).share
    0.875

    Args:
        size: height and width of the result; one number for both.
        share: height of the part as a share of the largest, above 0 and at most 1.
        resample: as :class:`Resize` has it.

    Other args are those of :class:`Decode`.

    Raises:
        ConfigError: ``size`` or ``share`` makes no sense.
    """

    size: Size
    share: float = 0.875

    def __post_init__(self) -> None:
        _pair(self.size)
        must_be("above 0 and at most 1", 0 < self.share <= 1, share=self.share)

    def __call__(self, sample: Sample) -> Sample:
        """The sample with pixels; errors are those of :class:`Decode`."""
        picture = self._open(sample)
        size = _pair(self.size)
        return self._resized(sample, picture, _middle(picture, size[1] / size[0], self.share), size)


@checked
@dataclass(frozen=True, slots=True)
class RandomResizedCrop(_Resizing):
    """Decodes a random part of pictures at one size, as torchvision's ``RandomResizedCrop`` draws it; for ``random_map``.

    >>> dataset.random_map(RandomResizedCrop(224, flip=0.5, column="jpg"))  # doctest: +SKIP

    Args:
        size: height and width of the result; one number for both.
        scale: least and largest area of the part, as shares of the picture's.
        ratio: least and largest width of the part as a multiple of its height.
        flip: probability that left and right are exchanged.
        resample: as :class:`Resize` has it.

    Other args are those of :class:`Decode`.

    Raises:
        ConfigError: a range or the size makes no sense.
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0

    def __post_init__(self) -> None:
        _pair(self.size)
        (low, high), (narrow, wide) = self.scale, self.ratio
        must_be("two rising shares above 0 and at most 1", 0 < low <= high <= 1, scale=self.scale)
        must_be("two rising numbers above 0", 0 < narrow <= wide < math.inf, ratio=self.ratio)
        must_be("a probability, 0 to 1", 0 <= self.flip <= 1, flip=self.flip)

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """The sample with pixels; errors are those of :class:`Decode`."""
        picture = self._open(sample)
        box = self._draw(picture, rng)
        flip = bool(rng.random() < self.flip)
        return self._resized(sample, picture, box, _pair(self.size), flip=flip)

    def _draw(self, picture: Picture, rng: np.random.Generator) -> Box:
        area = picture.height * picture.width
        least, log = self.scale[0], math.log(self.ratio[0])
        # The numbers of rng.uniform(low, high), which takes four times as long.
        more_scale, more_log = self.scale[1] - least, math.log(self.ratio[1]) - log
        for _ in range(10):
            chosen = area * (least + more_scale * rng.random())
            ratio = math.exp(log + more_log * rng.random())
            width, height = round(math.sqrt(chosen * ratio)), round(math.sqrt(chosen / ratio))
            if 0 < width <= picture.width and 0 < height <= picture.height:
                x, y = rng.integers(picture.width - width + 1), rng.integers(picture.height - height + 1)
                return Box(int(x), int(y), width, height)
        ratio = min(max(picture.width / picture.height, self.ratio[0]), self.ratio[1])
        return _middle(picture, ratio, 1.0)


def _middle(picture: Picture, ratio: float, share: float) -> Box:
    """The middle of a picture: ``share`` of the largest part of which the width is ``ratio`` times the height."""
    height = share * min(picture.height, picture.width / ratio)
    width = min(height * ratio, float(picture.width))
    return Box((picture.width - width) / 2, (picture.height - height) / 2, width, height)


def _pair(size: Any) -> tuple[int, int]:
    height, width = (size, size) if isinstance(size, int) else size
    must_be("positive", min(height, width) >= 1, size=size)
    return height, width
