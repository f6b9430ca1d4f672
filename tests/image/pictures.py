"""Pictures for tests: photo-like pixels, encoded in many ways."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from stoker.types import Array


def photo(height: int, width: int, seed: int = 0) -> Array:
    """Smooth colours and some texture: uint8, ``(height, width, 3)``."""
    rng = np.random.default_rng(seed)
    found = np.full((height, width, 3), 128.0)
    for cells, strength in ((3, 70), (9, 30), (40, 12)):
        coarse = rng.normal(0, strength, (cells, cells, 3)).clip(-127, 127) + 128
        image = Image.fromarray(coarse.astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
        found += np.asarray(image, np.float64) - 128
    return (found + rng.normal(0, 3, (height, width, 1))).clip(0, 255).astype(np.uint8)


def encoded(pixels: Array | Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    """The file of a picture."""
    file = BytesIO()
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(file, kind, **options)
    return file.getvalue()


def exif(orientation: int) -> bytes:
    """The bytes of EXIF with an orientation."""
    made = Image.Exif()
    made[0x0112] = orientation
    return made.tobytes()
