"""Changes of pixels that are decoded: colours, numbers, mixtures of pictures, tensors."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from stoker.arguments import checked, must_be
from stoker.errors import ConfigError, import_option
from stoker.formats.mds.encodings.images import pillow
from stoker.image.steps import Layout
from stoker.types import Array, Sample

IMAGENET_MEAN = (0.485, 0.456, 0.406)
"""Means of red, green and blue over ImageNet, of values from 0 to 1."""

IMAGENET_STD = (0.229, 0.224, 0.225)
"""Their standard deviations."""


@checked
@dataclass(frozen=True, slots=True)
class ColorJitter:
    """Changes brightness, contrast and saturation of pictures at random, in this order, as Pillow's ``ImageEnhance`` does.

    For ``random_map``, after a step that decodes. Each factor is drawn from ``[max(0, 1 - x), 1 + x]``, as torchvision draws
    it, which changes the order, too.

    >>> pixels = np.full((2, 2, 3), 100, np.uint8)
    >>> ColorJitter(brightness=0.5)({"image": pixels}, np.random.default_rng(0))["image"].shape
    (2, 2, 3)

    Args:
        brightness: x of the factor of all values.
        contrast: x of the factor of their distance from the mean brightness of the picture.
        saturation: x of the factor of their distance from the brightness of the pixel.
        column: of pixels, uint8, shape ``(height, width, 3)``.

    Raises:
        ConfigError: a number is negative.
    """

    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    _: KW_ONLY
    column: str = "image"

    def __post_init__(self) -> None:
        for name in ("brightness", "contrast", "saturation"):
            value = getattr(self, name)
            must_be("0 or more", 0 <= value < math.inf, **{name: value})

    def __call__(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """The sample with other colours.

        Raises:
            ConfigError: the column holds no such pixels.
        """
        pixels = _pixels(sample, self.column, self)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise ConfigError(
                f"{self!r} takes pixels, uint8, of shape (height, width, 3), got {pixels.dtype} {pixels.shape}: put it "
                "after a step that decodes with mode='RGB', layout='HWC'"
            )
        enhance = import_option("PIL.ImageEnhance", "pictures need Pillow", "stoker[images]")
        image = pillow().fromarray(pixels)
        kinds = (
            (enhance.Brightness, self.brightness),
            (enhance.Contrast, self.contrast),
            (enhance.Color, self.saturation),
        )
        for kind, most in kinds:
            factor = rng.uniform(max(0.0, 1 - most), 1 + most)
            if most:
                image = kind(image).enhance(factor)
        return {**sample, self.column: np.array(image)}


@checked
@dataclass(frozen=True, slots=True)
class Normalize:
    """Makes numbers of pixels: ``(pixels / 255 - mean) / std``, float32; for ``batch_map`` or ``map``.

    >>> Normalize((0.5,), (0.5,))({"image": np.array([[[0], [255]]], np.uint8)})["image"].ravel().tolist()
    [-1.0, 1.0]

    Args:
        mean: of each channel, of values from 0 to 1; default, ImageNet's.
        std: standard deviation of each channel.
        column: of pixels, uint8, shape ``(height, width, channels)``, or ``(n, height, width, channels)`` of a batch.
        layout: ``"CHW"`` where channels come before height and width.

    Raises:
        ConfigError: the numbers of channels differ, or a deviation is not positive.
    """

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    _: KW_ONLY
    column: str = "image"
    layout: Layout = "HWC"

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not self.mean:
            raise ConfigError(f"mean and std must have a number for each channel, got {self.mean} and {self.std}")
        must_be("finite", all(map(math.isfinite, self.mean)), mean=self.mean)
        must_be("positive", all(0 < one < math.inf for one in self.std), std=self.std)

    def __call__(self, columns: Sample) -> Sample:
        """The sample or batch with numbers.

        Raises:
            ConfigError: the column holds no such pixels.
        """
        pixels = _pixels(columns, self.column, self)
        axis = -1 if self.layout == "HWC" else -3
        if pixels.dtype != np.uint8 or pixels.ndim < 3 or pixels.shape[axis] != len(self.mean):
            raise ConfigError(
                f"{self!r} takes pixels, uint8, with {len(self.mean)} channels on axis {axis}, got {pixels.dtype} "
                f"{pixels.shape}: layout= tells which axis has the channels, mean= and std= have a number for each"
            )
        shape = (-1,) if self.layout == "HWC" else (-1, 1, 1)
        scale, shift = (np.array(one, np.float64).reshape(shape) for one in (self.std, self.mean))
        found = np.multiply(pixels, (1 / (255 * scale)).astype(np.float32), dtype=np.float32)
        found -= (shift / scale).astype(np.float32)
        return {**columns, self.column: found}


@checked
def mixup(
    images: Any, labels: Any, classes: int, rng: np.random.Generator, *, alpha: float = 0.2
) -> tuple[Array, Array]:
    """Mixtures of each picture of a batch with another of it, and of their labels (Zhang et al., "mixup", 2017).

    Which pictures are mixed depends on the batch, and so on the world size. In a training loop,
    ``np.random.default_rng((seed, step, rank))`` gives the same numbers after a resume.

    >>> images, labels = np.zeros((4, 2, 2, 3), np.uint8), np.array([0, 1, 2, 1])
    >>> mixed, shares = mixup(images, labels, 3, np.random.default_rng(0))
    >>> mixed.shape, shares.shape, shares.sum(axis=1).tolist()
    ((4, 2, 2, 3), (4, 3), [1.0, 1.0, 1.0, 1.0])

    Args:
        images: of any shape ``(n, ...)`` and dtype.
        labels: numbers of classes, shape ``(n,)``.
        classes: how many classes there are.
        rng: draws the share, one for all of the batch, and the partners.
        alpha: of the beta distribution of the share; small ones mix little.

    Returns:
        Mixed pictures, float32, and shares of the classes, float32, shape ``(n, classes)``.

    Raises:
        ConfigError: numbers of pictures and labels differ, or a label is no class.
    """
    pictures, numbers = _array("images", images), _array("labels", labels)
    if not pictures.ndim or numbers.shape != pictures.shape[:1] or numbers.dtype.kind not in "iu":
        raise ConfigError(
            f"labels must be integers of shape (n,) for n images, got {numbers.dtype} {numbers.shape} for images "
            f"{pictures.shape}"
        )
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < classes:
        raise ConfigError(
            f"labels must be at least 0 and below classes={classes}, got {numbers.min()} to {numbers.max()}"
        )
    must_be("above 0", 0 < alpha < math.inf, alpha=alpha)
    share = np.float32(rng.beta(alpha, alpha))
    partner = rng.permutation(len(numbers))
    whole = np.zeros((len(numbers), classes), np.float32)
    whole[np.arange(len(numbers)), numbers] = 1
    mixed = pictures * share
    mixed = mixed.astype(np.float32, copy=False)
    mixed += pictures[partner] * (1 - share)
    return mixed, whole * share + whole[partner] * (1 - share)


@checked
def to_tensor(images: Any) -> Any:
    """Pixels as a torch tensor with channels before height and width, without a copy: in memory channels stay last.

    >>> to_tensor(np.zeros((2, 4, 5, 3), np.uint8)).shape
    torch.Size([2, 3, 4, 5])

    Args:
        images: shape ``(..., height, width, channels)``.

    Raises:
        ConfigError: it is no such array.
    """
    pixels = _array("images", images)
    must_be("of shape (..., height, width, channels)", pixels.ndim >= 3, images=pixels.shape)
    torch = import_option("torch", "tensors need torch", "stoker[torch]")
    return torch.from_numpy(pixels).movedim(-1, -3)


def _array(name: str, value: Any) -> Array:
    try:
        found = np.asarray(value)
    except Exception as error:  # whatever the value's own conversion raises
        raise ConfigError(f"{name} must be an array of numbers, got {type(value).__name__}: {error}") from error
    if found.dtype.kind not in "biuf":
        raise ConfigError(f"{name} must be an array of numbers, got {found.dtype} of shape {found.shape}")
    return found


def _pixels(columns: Sample, name: str, step: object) -> Array:
    found = columns.get(name) if isinstance(columns, dict) else None
    if isinstance(found, np.ndarray):
        return found
    if isinstance(columns, dict) and name not in columns:
        got = f"there is none; there are {', '.join(map(str, columns))}: name the column, column=..."
    else:
        got = f"got {type(found).__name__}: put it after a step that decodes all pictures at one size"
    raise ConfigError(f"{step!r} takes a dict with an array {name!r}, {got}")
