"""The pictures and the random functions of ``augmented_resume.py``, the same for every library."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BATCH = 48  # samples of all ranks together
SIDE = 32


def pictures(samples: int) -> NDArray[np.uint8]:
    """Pictures of random bytes, shape ``(samples, 40, 40, 3)``."""
    return np.random.default_rng(3).integers(0, 256, (samples, 40, 40, 3), np.uint8)


def crop(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A random part of a picture, mirrored at random."""
    top, left, mirrored = rng.integers(0, 9), rng.integers(0, 9), rng.integers(0, 2)
    part = sample["image"][top : top + SIDE, left : left + SIDE]
    return {**sample, "image": np.ascontiguousarray(part[:, ::-1] if mirrored else part)}


def jitter(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """A picture with random noise, contrast and brightness."""
    image = sample["image"] * rng.uniform(0.8, 1.2) + rng.uniform(-20, 20) + rng.standard_normal((SIDE, SIDE, 3))
    return {**sample, "image": np.clip(image, 0, 255).astype(np.uint8)}
