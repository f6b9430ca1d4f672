"""Opens pictures by Pillow, of the kinds that Pillow itself decodes."""

from __future__ import annotations

from functools import cache
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:
    from PIL.Image import Image

# Pillow finds out what bytes are. Of the kinds that are left out it runs Ghostscript for EPS, calls the system or what a
# program has registered for WMF, BUFR, GRIB and HDF5, and opens what IPTC holds as any kind. TGA, of no signature, is last.
_KINDS: Final = "JPEG PNG WEBP GIF BMP TIFF PPM AVIF JPEG2000 DIB ICO CUR ICNS PCX DDS PSD QOI SGI SUN XBM XPM TGA"


def open_image(file: IO[bytes]) -> Image:
    """Open a picture, as ``PIL.Image.open``; its errors are those of that.

    Raises:
        ImportError: Pillow is not installed.
    """
    from PIL import Image

    return Image.open(file, formats=_kinds())


@cache
def _kinds() -> tuple[str, ...]:
    """Those that this Pillow has."""
    from PIL import Image

    Image.init()
    return tuple(kind for kind in _KINDS.split() if kind in Image.OPEN)
