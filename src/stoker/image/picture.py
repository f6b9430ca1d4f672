"""Opens encoded pictures and decodes them: JPEG by libjpeg-turbo with Python's lock released, all else by Pillow.

Which decoder takes a picture is a function of its bytes and of the settings, never of a measurement: processes of one run
must give the same pixels. simplejpeg and Pillow both contain libjpeg-turbo, and give the same bytes for the same picture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from io import BytesIO
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from stoker.arguments import checked
from stoker.errors import ConfigError, ImageError, StokerError, import_option
from stoker.formats.mds.encodings.images import open_image, pillow
from stoker.types import Array

Mode: TypeAlias = Literal["RGB", "L", "RGBA"]
"""Colours of pixels, by Pillow's names: ``RGB``, grey (``L``), colours and opacity (``RGBA``)."""

Decoder: TypeAlias = Literal["auto", "simplejpeg", "pillow"]
"""The decoder of JPEG: ``auto`` is simplejpeg where it is installed."""

CHANNELS: Final = {"RGB": 3, "L": 1, "RGBA": 4}

MAX_PIXELS: Final = 89_478_485
"""Pixels of the largest picture that is decoded, which is where Pillow warns of a decompression bomb."""

SHRINKS: Final = (8, 4, 2)
"""Factors by which libjpeg-turbo makes a picture smaller as it decodes it, by leaving out high frequencies."""

_ORIENTATION_TAG: Final = 0x0112
# Arrays of pixels as EXIF's orientations say that they are to be seen; 1 is as they are.
_TURNED: Final[dict[int, Callable[[Array], Array]]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: pixels[::-1].swapaxes(0, 1),
    7: lambda pixels: pixels[::-1, ::-1].swapaxes(0, 1),
    8: lambda pixels: pixels[:, ::-1].swapaxes(0, 1),
}
_EMPTY: Final = "an empty value"
_KINDS: Final = (
    (0, b"\xff\xd8", "JPEG"),
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (8, b"WEBP", "WebP"),
    (4, b"ftypavif", "AVIF"),
    (0, b"GIF8", "GIF"),
    (0, b"BM", "BMP"),
)


@checked
def decode(data: Any, mode: Mode = "RGB", *, decoder: Decoder = "auto", strict: bool = True) -> Array:
    """The pixels of a picture: uint8, shape ``(height, width, channels)``, turned as its EXIF orientation says.

    >>> from io import BytesIO
    >>> from PIL import Image
    >>> file = BytesIO()
    >>> Image.new("RGB", (4, 2), "red").save(file, "PNG")
    >>> decode(file.getvalue()).shape
    (2, 4, 3)

    Args:
        data: the encoded picture: bytes, an array of them, or a dict with ``"bytes"`` (Hugging Face's images); or an image of
            Pillow; or pixels, uint8, of shape ``(height, width)`` or ``(height, width, channels)``.
        mode: colours of the pixels. Others are converted as Pillow does; 16 bits become their upper 8.
        decoder: of JPEG.
        strict: whether a warning of libjpeg-turbo, such as of a wrong code within the data, is an error. Pillow does not tell
            of warnings.

    Raises:
        ImageError: the picture is ``None``, damaged, of no known kind, or has more than 89 million pixels.
        MissingPackageError: Pillow or simplejpeg is needed, and not installed.
    """
    return open_picture(data, mode, decoder, strict=strict).pixels()


class Picture:
    """A picture of which the header is read.

    Attributes:
        height: in pixels, as it is to be seen.
        width: the same.
        shrinks: whether it can be decoded at an 8th, a 4th and a half of its size.
    """

    def __init__(
        self, size: tuple[int, int], orientation: int, read: Callable[[int], Array], kind: str, *, shrinks: bool
    ) -> None:
        turned = orientation >= 5
        self.height, self.width = size[::-1] if turned else size
        self.shrinks = shrinks
        self._turn, self._read, self._kind = _TURNED.get(orientation), read, kind
        _check_size(*size, kind)

    def pixels(self, shrink: int = 1) -> Array:
        """Its pixels: uint8, shape ``(⌈height / shrink⌉, ⌈width / shrink⌉, channels)``; may be a view."""
        found = self._read(shrink)
        return found if self._turn is None else self._turn(found)


def _check_size(height: int, width: int, kind: str) -> None:
    if height * width > MAX_PIXELS:
        raise ImageError(f"{kind} of {width} x {height} pixels: more than {MAX_PIXELS} are not decoded")


def open_picture(data: Any, mode: Mode, decoder: Decoder, *, strict: bool) -> Picture:
    """Read the header of a picture; args and errors are those of :func:`decode`."""
    if isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim in (2, 3):
        return _of_pixels(data, mode)
    if isinstance(data, dict) and "bytes" in data:
        data = data["bytes"]
    if data is None:
        raise ImageError("there is no picture: the value is None")
    image = None if isinstance(data, bytes) else _pillow_image(data)
    if image is not None:
        encoded = _still_encoded(image)
        if encoded is None:
            return _opened_by_pillow(image, mode, "an image of Pillow")
        data = encoded
    elif not isinstance(data, bytes):
        data = _as_bytes(data)
    turbo = _simplejpeg(decoder)
    if turbo is not None and data.startswith(b"\xff\xd8"):
        found = _opened_by_simplejpeg(turbo, data, mode, strict=strict)
        if found is not None:
            return found
    return _opened_by_pillow(BytesIO(data), mode, _kind(data))


@lru_cache
def _simplejpeg(decoder: Decoder) -> Any:
    if decoder == "pillow":
        return None
    try:
        return import_option("simplejpeg", "decoder='simplejpeg' needs simplejpeg", "stoker[images]")
    except ImportError:
        if decoder == "simplejpeg":
            raise
        return None


def _of_pixels(pixels: Array, mode: Mode) -> Picture:
    """Pixels that are decoded already."""
    kind = f"an array of pixels of shape {pixels.shape}"
    if not pixels.size:
        raise ImageError(f"{kind} is empty")
    if pixels.ndim == 3 and pixels.shape[2] == CHANNELS[mode]:
        return Picture(pixels.shape[:2], 1, lambda _: pixels, kind, shrinks=False)
    with _damage(kind):
        image = pillow().fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
    return _opened_by_pillow(image, mode, kind)


def _opened_by_simplejpeg(turbo: Any, data: bytes, mode: Mode, *, strict: bool) -> Picture | None:
    """A JPEG picture of usual colours; ``None`` for any other, and for one of which the header is damaged."""
    try:
        height, width, colours, _ = turbo.decode_jpeg_header(data)
    except ValueError:
        return None  # Pillow says why, or reads it
    if colours not in ("YCbCr", "Gray") or mode == "RGBA":
        return None
    space = "GRAY" if mode == "L" else "RGB"
    orientation = 1
    header = data[: _header_size(data)]
    if b"Exif\0\0" in header or b"tiff:Orientation" in header:
        orientation = _orientation(_open(BytesIO(data), "a JPEG picture"), "a JPEG picture")

    def read(shrink: int) -> Array:
        size = -(-height // shrink), -(-width // shrink)
        try:
            found: Array = turbo.decode_jpeg(data, space, min_height=size[0], min_width=size[1], min_factor=shrink)
        except ValueError as error:
            if not strict:
                return _opened_by_pillow(BytesIO(data), mode, "a JPEG picture", turned=False).pixels(shrink)
            raise ImageError(f"a JPEG picture of {len(data)} bytes does not decode: {error}") from error
        return found

    return Picture((height, width), orientation, read, "a JPEG picture", shrinks=True)


def _header_size(data: bytes) -> int:
    """Bytes of a JPEG picture before its first scan; all of them where it has none."""
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:  # a marker, and the size of what follows
        if data[at + 1] == 0xDA:
            return at
        at += 2 + (data[at + 2] << 8 | data[at + 3])
    return len(data)


def _opened_by_pillow(source: Any, mode: Mode, kind: str, *, turned: bool = True) -> Picture:
    """A picture that Pillow decodes.

    The source is a file, or an image that is open already; ``turned``: whether its orientation counts.
    """
    image = _open(source, kind)
    if image.format == "TIFF":  # which Pillow turns as it loads it, and then tells no orientation
        _check_size(image.height, image.width, kind)
        with _damage(kind):
            image.load()
    jpeg = image.format == "JPEG" and source is not image
    orientation = _orientation(image, kind) if turned else 1

    def read(shrink: int) -> Array:
        with _damage(kind):
            again = image
            if jpeg:  # which Pillow decodes at a size once
                source.seek(0)
                again = _open(source, kind)
                # Of YCbCr, grey is a channel of its own; of all other colours it is computed.
                as_grey = mode == "L" and again.mode == "RGB" and _is_ycbcr(again)
                size = (max(1, again.width // shrink), max(1, again.height // shrink))
                again.draft("L" if as_grey else None, size if shrink > 1 or as_grey else None)
            return _converted(again, mode)

    return Picture((image.height, image.width), orientation, read, kind, shrinks=jpeg)


def _is_ycbcr(image: Any) -> bool:
    return bool(image.info.get("adobe_transform", 1) == 1 and [one[0] for one in image.layer] != [82, 71, 66])


def _open(source: Any, kind: str) -> Any:
    pil = pillow()
    if isinstance(source, pil.Image):
        return source
    with _damage(kind):
        try:
            return open_image(source)
        except pil.DecompressionBombError as error:
            raise ImageError(f"{kind}: {error}") from error
        except pil.UnidentifiedImageError as error:
            unknown = f"{kind}: Pillow does not know it, or its header is damaged"
            raise ImageError(unknown if kind != _EMPTY else f"{kind}, which is not a picture") from error


def _orientation(image: Any, kind: str) -> int:
    with _damage(kind):
        found = image.getexif().get(_ORIENTATION_TAG, 1)
    return found if found in _TURNED else 1


def _converted(image: Any, mode: Mode) -> Array:
    """The pixels of an image, uint8, of a mode."""
    image.load()
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):
        image = pillow().fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ImageError(
            f"an image of mode {image.mode!r} has values of 32 bits, of which the range is not known: convert it in a map()"
        )
    elif "transparency" in image.info or image.mode in ("PA", "La", "RGBa"):
        image = image.convert("RGBA" if image.mode != "La" else "LA")
    if image.mode != mode:
        image = image.convert(mode)
    pixels: Array = np.asarray(image)
    return pixels.reshape(image.height, image.width, CHANNELS[mode])


@contextmanager
def _damage(kind: str) -> Iterator[None]:
    """Make one error of all that Pillow raises for damaged pictures, which may be nearly anything."""
    try:
        yield
    except (StokerError, MemoryError, ImportError):
        raise
    except Exception as error:
        raise ImageError(f"{kind} does not decode: {type(error).__name__}: {error}") from error


def _pillow_image(data: Any) -> Any | None:
    """An image of Pillow; ``None`` for anything else. Pillow is not imported for it: who has an image has imported it."""
    if type(data).__module__.partition(".")[0] == "PIL" or hasattr(data, "getexif"):
        return data
    return None


def _still_encoded(image: Any) -> bytes | None:
    """The bytes of a JPEG image that was opened and not yet loaded."""
    file = getattr(image, "fp", None)
    return file.getvalue() if image.format == "JPEG" and isinstance(file, BytesIO) else None


def _as_bytes(data: Any) -> bytes:
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    if isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 1:
        return data.tobytes()
    raise ConfigError(
        f"a picture is bytes, an array of bytes or pixels, or an image of Pillow, got {type(data).__name__}: "
        + (
            "of a list, decode each in a function of your own, by stoker.image.decode"
            if isinstance(data, list | tuple)
            else "name the column that holds pictures"
        )
    )


def _kind(data: bytes) -> str:
    for at, begin, name in _KINDS:
        if data.startswith(begin, at):
            return f"a {name} picture of {len(data)} bytes"
    return f"data of {len(data)} bytes, which begin {data[:8]!r}" if data else _EMPTY
