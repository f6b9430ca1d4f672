"""Changes of pixels: against Pillow, arithmetic and torch."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest
from pictures import photo
from PIL import Image, ImageEnhance

import stoker.image.batch_rows
import stoker.image.ops
import stoker.image.picture
import stoker.image.steps
from stoker import MDSWriter, StreamingDataset
from stoker.errors import ConfigError, ImageError, TransformError
from stoker.image import CenterCrop, ColorJitter, Normalize, RandomResizedCrop, decode, mixup, to_tensor
from stoker.types import Array


def test_examples_in_docstrings() -> None:
    for module in (stoker.image.ops, stoker.image.steps, stoker.image.picture, stoker.image.batch_rows):
        found = doctest.testmod(module)
        assert (found.failed, found.attempted > 0) == (0, True), module


def test_colours_are_changed_as_pillow_changes_them() -> None:
    pixels = photo(20, 30)
    made = ColorJitter(0.4, 0.3, 0.9)({"image": pixels}, np.random.default_rng(3))["image"]
    rng = np.random.default_rng(3)
    image = Image.fromarray(pixels)
    for kind, most in ((ImageEnhance.Brightness, 0.4), (ImageEnhance.Contrast, 0.3), (ImageEnhance.Color, 0.9)):
        image = kind(image).enhance(rng.uniform(1 - most, 1 + most))
    assert np.array_equal(made, np.asarray(image))
    assert not np.array_equal(made, pixels)
    assert made.flags.writeable
    assert np.array_equal(ColorJitter()({"image": pixels}, rng)["image"], pixels)
    darkest = [ColorJitter(5.0)({"image": pixels}, np.random.default_rng(one))["image"].mean() for one in range(40)]
    assert min(darkest) < pixels.mean() / 2  # no factor is negative
    for wrong in (pixels[..., 0], pixels.astype(np.float32), [1]):
        with pytest.raises(ConfigError, match="step that decodes"):
            ColorJitter(0.1)({"image": wrong}, rng)


def test_numbers_are_those_of_the_formula() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), np.uint8)
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    exact = (pixels / 255 - mean) / std
    last = Normalize()({"image": pixels, "label": 1})
    assert last["image"].dtype == np.float32
    assert last["label"] == 1
    assert np.abs(last["image"] - exact).max() < 1e-6
    first = Normalize(layout="CHW")({"image": pixels.transpose(0, 3, 1, 2)})["image"]
    assert np.array_equal(first, last["image"].transpose(0, 3, 1, 2))
    assert np.array_equal(Normalize()({"image": pixels[2]})["image"], last["image"][2])
    with pytest.raises(ConfigError, match=r"3 channels on axis -3, .*: layout= tells"):
        Normalize(layout="CHW")({"image": pixels})
    for mean_, std_ in (((0.5,), (0.1, 0.2)), ((), ()), ((0.1,), (0.0,)), ((float("nan"),), (1.0,))):
        with pytest.raises(ConfigError, match=r"mean|std"):
            Normalize(mean_, std_)


def test_mixtures_are_of_pairs_with_one_share() -> None:
    images = np.random.default_rng(0).integers(0, 256, (16, 3, 3), np.uint8)
    labels = np.arange(16) % 5
    for kind in (np.uint8, np.float64):
        mixed, shares = mixup(images.astype(kind), labels, 5, np.random.default_rng(8), alpha=0.8)
        rng = np.random.default_rng(8)
        share, partner = rng.beta(0.8, 0.8), rng.permutation(16)
        assert mixed.dtype == shares.dtype == np.float32
        assert np.abs(mixed - (images * share + images[partner] * (1 - share))).max() < 1e-4
        expected = np.eye(5)[labels] * share + np.eye(5)[labels[partner]] * (1 - share)
        assert np.abs(shares - expected).max() < 1e-6
    for wrong in (labels[:3], labels.astype(float), labels + 1, labels - 1):
        with pytest.raises(ConfigError, match="labels must be"):
            mixup(images, wrong, 5, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="alpha"):
        mixup(images, labels, 5, np.random.default_rng(0), alpha=0.0)


def test_a_tensor_shares_the_memory_of_the_pixels() -> None:
    pixels = np.zeros((2, 4, 5, 3), np.uint8)
    tensor = to_tensor(pixels)
    pixels[1, 2, 3, 0] = 9
    assert tensor[1, 0, 2, 3] == 9
    assert tuple(tensor.shape) == (2, 3, 4, 5)
    for wrong in ([1], np.zeros(3), np.array([[["a"]]])):
        with pytest.raises(ConfigError, match="images must be"):
            to_tensor(wrong)


def test_steps_take_pixels_that_are_decoded_already() -> None:
    pixels = photo(40, 60)
    whole = CenterCrop(40, 1.0)({"image": pixels})["image"]
    assert np.array_equal(whole, pixels[:, 10:50])
    drawn = RandomResizedCrop(16, flip=0.5)
    one, other = (
        drawn({"image": data}, np.random.default_rng(1))["image"] for data in (pixels, Image.fromarray(pixels))
    )
    assert np.array_equal(one, other)
    grey = np.asarray(Image.fromarray(pixels).convert("L"))
    assert np.array_equal(decode(pixels, "L")[..., 0], grey)
    assert np.array_equal(decode(grey)[..., 1], grey)
    assert np.array_equal(decode(grey[..., None], "L")[..., 0], grey)
    for wrong in (np.zeros((0, 4, 3), np.uint8), np.zeros((3, 4, 7), np.uint8)):
        with pytest.raises(ImageError, match="array of pixels"):
            decode(wrong)


def test_a_chain_of_all_steps_gives_the_same_numbers_in_any_batches(tmp_path: Path) -> None:
    with MDSWriter({"image": "ndarray:uint8", "label": "int"}, tmp_path / "data") as out:
        for number in range(12):
            out.write({"image": photo(30, 30 + number, number), "label": number})

    def read(batch_size: int) -> Array:
        dataset = StreamingDataset(tmp_path / "data", batch_size=batch_size)
        dataset = dataset.random_map(RandomResizedCrop(8, flip=0.5)).random_map(ColorJitter(0.4, 0.4, 0.4))
        return np.concatenate([np.asarray(one["image"]) for one in dataset.batch_map(Normalize()).batches()])

    assert read(4).shape == (12, 8, 8, 3)
    assert np.array_equal(read(4), read(6))
    with pytest.raises((ConfigError, TransformError), match="takes pixels, uint8"):
        next(StreamingDataset(tmp_path / "data", batch_size=2).batch_map(Normalize(column="label")).batches())
