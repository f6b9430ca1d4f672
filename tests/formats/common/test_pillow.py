"""Pictures are opened as what Pillow decodes itself: no program is run for them."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from PIL import EpsImagePlugin, Image, features

from stoker.errors import ImageError
from stoker.formats.mds.encodings import get_encoding
from stoker.formats.mds.encodings.images import open_image
from stoker.image import decode
from stoker.inspection.facts import show

USUAL = (
    "JPEG",
    "PNG",
    "WEBP",
    "GIF",
    "BMP",
    "TIFF",
    "PPM",
    "JPEG2000",
    "ICO",
    "ICNS",
    "PCX",
    "DDS",
    "SGI",
    "XBM",
    "TGA",
)


def encoded(kind: str) -> bytes:
    file = BytesIO()
    Image.new("1" if kind == "XBM" else "RGB", (32, 32), 1).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", USUAL)
def test_usual_kinds_are_opened(kind: str) -> None:
    if kind in ("WEBP", "JPEG2000", "ICNS") and not features.check({"WEBP": "webp"}.get(kind, "jpg_2000")):
        pytest.skip(f"this Pillow writes no {kind}")
    assert open_image(BytesIO(encoded(kind))).format == kind


def iptc(data: bytes) -> bytes:
    """A picture inside of IPTC, which Pillow opens as any kind."""

    def field(record: int, number: int, value: bytes) -> bytes:
        return bytes([0x1C, record, number, len(value) >> 8, len(value) & 255]) + value

    size = (32).to_bytes(2, "big")
    head = field(3, 60, b"\3\1") + field(3, 65, b"\1") + field(3, 20, size) + field(3, 30, size) + field(3, 120, b"\5")
    return head + field(8, 10, data)


@pytest.mark.parametrize("wrap", [bytes, iptc])
def test_no_program_decodes_a_picture(monkeypatch: pytest.MonkeyPatch, wrap: Callable[[bytes], bytes]) -> None:
    """Of EPS Pillow has Ghostscript make pixels."""
    ran: list[Any] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *args, **_: ran.append(args))
    data = wrap(encoded("EPS"))
    with pytest.raises(ImageError, match="does not know it"):
        decode(data)
    with pytest.raises(ValueError, match="not a whole image file"):
        get_encoding("jpeg").decode(data)
    show(data)
    assert ran == []
