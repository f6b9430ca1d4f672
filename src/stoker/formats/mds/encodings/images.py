"""Images: ``pil`` (raw pixels), ``jpeg``, ``png``, lists of them, ``jpeg_array``.

Pillow is imported at the first use.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np

from stoker.errors import import_option
from stoker.formats.mds.encodings.base import Encoding, UnfitValueError, describe

if TYPE_CHECKING:
    from PIL.Image import Image

# Pillow finds out what bytes are. Of the kinds that are left out it runs Ghostscript for EPS, calls the system or what a
# program has registered for WMF, BUFR, GRIB and HDF5, and opens what IPTC holds as any kind. TGA, of no signature, is last.
_PILLOW_KINDS: Final = (
    "JPEG PNG WEBP GIF BMP TIFF PPM AVIF JPEG2000 DIB ICO CUR ICNS PCX DDS PSD QOI SGI SUN XBM XPM TGA"
)
_MAX_MODE = 16
_SIGNATURES = {"jpeg": b"\xff\xd8", "png": b"\x89PNG\r\n\x1a\n"}


# Whether images are loaded when they are opened; and what stands for the last one that was left for its user to load.
_at_once = False
_last_left: object = None


def load_at_once() -> None:
    """From now on, load images when they are opened, in this process: a damaged one is an error of its sample.

    In a DataLoader worker a batch is pickled by a thread of its own, which loads them. An error there is printed, and the
    batch never arrives.
    """
    global _at_once
    _at_once = True


def last_left() -> object:
    """Something that stands for the image that was opened last in this process and left to load; ``None``: none was.

    Where it is the same object after some samples were decoded, these have no such image.
    """
    return _last_left


def loaded(made: Any) -> Any:
    """Loads the images that a transform returned and left to be loaded."""
    if _last_left is not None:
        values = made.values() if isinstance(made, dict) else made if isinstance(made, list | tuple) else (made,)
        for value in values:
            for image in value if isinstance(value, list | tuple) else (value,):
                if isinstance(image, pillow().Image):
                    image.load()
    return made


class RawImage(Encoding):
    """``pil``: mode, size and raw pixels. Of a palette image (mode ``P``) only the indices are kept."""

    name = "pil"
    what = "a PIL image"

    def encode(self, value: Any) -> bytes:
        image = _as_image(value, self.what)
        mode = image.mode.encode()
        try:
            pixels = image.tobytes()  # loads it
        except (OSError, SyntaxError, ValueError) as error:
            raise UnfitValueError(f"expected {self.what}, got one that can not be loaded: {error}") from error
        return struct.pack("<3I", *image.size, len(mode)) + mode + pixels

    def decode(self, data: bytes) -> Image:
        if len(data) < 12:
            raise ValueError(f"an image's header of {len(data)} bytes")
        width, height, mode_size = struct.unpack_from("<3I", data)
        if mode_size > _MAX_MODE or len(data) < 12 + mode_size:
            raise ValueError(f"an image's mode of {mode_size} bytes")
        mode = data[12 : 12 + mode_size].decode()
        pixels = data[12 + mode_size :]
        # The narrowest mode packs 8 pixels a byte; so what Pillow allocates stays in proportion to the data.
        if -(-width // 8) * height > len(pixels):
            raise ValueError(f"an image of {width} x {height} pixels in {len(pixels)} bytes")
        try:
            image: Image = pillow().frombytes(mode, (width, height), pixels)
        except (ValueError, KeyError, TypeError, OSError, OverflowError, MemoryError, SystemError) as error:
            raise ValueError(f"not an image of mode {mode!r}, {width} x {height} pixels: {error}") from error
        return image


class ImageFile(Encoding):
    """``jpeg`` or ``png``: an encoded file, opened lazily as Pillow does.

    Also takes the bytes of a file of that kind. A JPEG image that was opened from a file is stored as
    that file, without a second lossy encoding.
    """

    def __init__(self, kind: str) -> None:
        self.name = kind
        self.what = f"a PIL image or the bytes of a {kind.upper()} file"

    def encode(self, value: Any) -> bytes:
        if isinstance(value, bytes | bytearray | memoryview):
            data = bytes(value)
            if not data.startswith(_SIGNATURES[self.name]):
                raise UnfitValueError(f"expected {self.what}, got {describe(value)} that begins {data[:8]!r}")
            return data
        image = _as_image(value, self.what)
        source = getattr(image, "filename", "")
        if self.name == "jpeg" and type(image).__name__ == "JpegImageFile" and source:
            try:
                with open(source, "rb") as file:
                    data = file.read()
                return bytes(data)
            except FileNotFoundError:
                pass  # gone since it was opened: encode the pixels
        out = BytesIO()
        try:
            image.save(out, format=self.name.upper())
        except (OSError, SyntaxError, ValueError, KeyError) as error:
            raise UnfitValueError(f"expected {self.what}, got one of mode {image.mode}: {error}") from error
        return out.getvalue()

    def decode(self, data: bytes) -> Image:
        return _image_of(data)


class ImageList(Encoding):
    """``list[pil]``, ``list[jpeg]``, ``list[png]``: images of one encoding, any number of them."""

    def __init__(self, element: Encoding) -> None:
        self.name = f"list[{element.name}]"
        self.what = f"a list of images, each {element.what}"
        self._element = element

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, list | tuple):
            raise UnfitValueError(f"expected {self.what}, got {describe(value)}")
        parts = []
        for number, image in enumerate(value):
            try:
                parts.append(self._element.encode(image))
            except UnfitValueError as error:
                raise UnfitValueError(f"image {number} of the list: {error}") from error
        return b"".join((bytes(4), _pack_parts(parts)))

    def decode(self, data: bytes) -> list[Any]:
        return [self._element.decode(part) for part in _split_parts(data, 4)]


class JpegArray(Encoding):
    """``jpeg_array`` (also spelled ``jpegarray``): the bytes of one or more JPEG files; decodes to images."""

    what = "a sequence of at least one JPEG file's bytes"

    def __init__(self, name: str) -> None:
        self.name = name

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray) or not value:
            raise UnfitValueError(f"expected {self.what}, got {describe(value)}")
        for number, image in enumerate(value):
            if not isinstance(image, bytes | bytearray | memoryview) or bytes(image[:2]) != _SIGNATURES["jpeg"]:
                raise UnfitValueError(f"expected {self.what}, got {describe(image)} as image {number}")
        return _pack_parts(value)

    def decode(self, data: bytes) -> list[Any]:
        parts = _split_parts(data, 0)
        if not parts:
            raise ValueError("an array of no images")
        return [_image_of(part) for part in parts]


def _pack_parts(parts: Sequence[Any]) -> bytes:
    """``u32 n | u32 sizes[n] | parts``."""
    sizes = [len(part) for part in parts]
    try:
        head = struct.pack(f"<I{len(sizes)}I", len(sizes), *sizes)
    except struct.error:
        raise UnfitValueError("expected images of less than 4 GiB each") from None
    return b"".join((head, *parts))


def _split_parts(data: bytes, at: int) -> list[bytes]:
    """The parts of ``u32 n | u32 sizes[n] | parts`` that starts at ``at`` and fills the rest exactly."""
    if len(data) < at + 4:
        raise ValueError(f"a list of images in {len(data)} bytes")
    (count,) = struct.unpack_from("<I", data, at)
    start = at + 4 + 4 * count
    if len(data) < start:
        raise ValueError(f"a list of {count} images in {len(data)} bytes")
    ends = start + np.cumsum(np.frombuffer(data, "<u4", count, at + 4), dtype=np.int64)
    if (int(ends[-1]) if count else start) != len(data):
        raise ValueError("the images of a list do not fill it exactly")
    bounds = [start, *ends.tolist()]
    return [data[lo:hi] for lo, hi in pairwise(bounds)]


def _image_of(data: bytes) -> Image:
    global _last_left
    pil = pillow()
    try:
        image = open_image(BytesIO(data))
        if _at_once:
            image.load()
        else:
            _last_left = object()
    except (OSError, ValueError, SyntaxError, TypeError, EOFError, pil.DecompressionBombError) as error:
        raise ValueError(f"not a whole image file: {error}") from error
    return image


def _as_image(value: Any, what: str) -> Image:
    if not isinstance(value, pillow().Image):
        raise UnfitValueError(f"expected {what}, got {describe(value)}")
    image: Image = value
    return image


def pillow() -> Any:
    """``PIL.Image``."""
    return import_option("PIL.Image", "images need Pillow", "stoker[images]")


def open_image(file: IO[bytes]) -> Image:
    """Open a picture, as ``PIL.Image.open``; its errors are those of that. ImportError if Pillow is not installed."""
    image: Image = pillow().open(file, formats=_pillow_kinds())
    return image


@cache
def _pillow_kinds() -> tuple[str, ...]:
    """Those that this Pillow has."""
    pillow().init()
    return tuple(kind for kind in _PILLOW_KINDS.split() if kind in pillow().OPEN)
