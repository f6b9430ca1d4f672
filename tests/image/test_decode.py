"""Decoding: every way gives what Pillow gives, and damage is an error of our own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
from pictures import encoded, exif, photo
from PIL import Image, ImageOps, features

from stoker.errors import ConfigError, ImageError, MissingPackageError
from stoker.image import decode
from stoker.image.picture import MAX_PIXELS, SHRINKS, Decoder, Mode, _simplejpeg, open_picture
from stoker.types import Array

SIZES = ((1, 1), (7, 13), (33, 65), (120, 90))
DECODERS: tuple[Decoder, ...] = ("simplejpeg", "pillow")


def expected(data: bytes, mode: str = "RGB") -> Array:
    with Image.open(BytesIO(data)) as image:
        turned = ImageOps.exif_transpose(image)
        found = np.asarray(turned.convert(mode))
    return found.reshape(*found.shape[:2], -1)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("size", SIZES)
def test_jpeg_is_what_pillow_gives(decoder: Decoder, size: tuple[int, int]) -> None:
    for options in (
        {},
        {"subsampling": 0},
        {"subsampling": 1},
        {"progressive": True},
        {"quality": 20},
        {"keep_rgb": True},
    ):
        data = encoded(photo(*size), **options)
        found = decode(data, decoder=decoder)
        assert found.dtype == np.uint8
        assert np.array_equal(found, expected(data)), options
        assert np.array_equal(decode(data, "RGBA", decoder=decoder), expected(data, "RGBA")), options


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_decoders_of_jpeg_give_the_same_bytes_at_any_size(size: tuple[int, int], mode: Mode) -> None:
    for colours in ("RGB", "L", "CMYK"):
        image = Image.fromarray(photo(*size)).convert(colours)
        for options in ({}, {"subsampling": 0}, {"progressive": True}, {"exif": exif(6)}):
            data = encoded(image, **options)
            for shrink in (1, *(one for one in SHRINKS if min(size) >= one)):
                one, other = (open_picture(data, mode, decoder, strict=True).pixels(shrink) for decoder in DECODERS)
                assert np.array_equal(one, other), (options, shrink)
                assert one.shape[:2] == tuple(
                    -(-side // shrink) for side in (size[::-1] if "exif" in options else size)
                )


def test_grey_of_a_colour_jpeg_is_its_brightness() -> None:
    data = encoded(photo(40, 50))
    image = Image.open(BytesIO(data))
    image.draft("L", None)
    assert np.array_equal(decode(data, "L")[..., 0], np.asarray(image))
    computed = expected(data, "L").astype(int)  # from colours that are cut at 0 and 255
    assert np.abs(decode(data, "L") - computed).mean() < 0.5
    kept = encoded(photo(40, 50), keep_rgb=True)  # has no such channel
    assert np.array_equal(decode(kept, "L"), expected(kept, "L"))


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("orientation", range(10))
def test_pictures_are_turned_as_exif_says(decoder: Decoder, orientation: int) -> None:
    for kind in ("JPEG", "PNG", "WEBP"):
        data = encoded(photo(24, 40), kind, exif=exif(orientation))
        picture = open_picture(data, "RGB", decoder, strict=True)
        assert np.array_equal(picture.pixels(), expected(data)), kind
        assert (picture.height, picture.width) == expected(data).shape[:2]


@pytest.mark.parametrize("compression", [None, "tiff_lzw", "tiff_adobe_deflate"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_tiff_is_turned_once(compression: str | None, orientation: int) -> None:
    """Pillow turns it when it loads it, after which it has no orientation."""
    same = encoded(photo(24, 40), "PNG", exif=exif(orientation))
    data = encoded(photo(24, 40), "TIFF", exif=exif(orientation), compression=compression)
    picture = open_picture(data, "RGB", "auto", strict=True)
    assert (picture.height, picture.width) == expected(same).shape[:2]
    assert np.array_equal(picture.pixels(), expected(same))
    image = Image.open(BytesIO(data))
    assert np.array_equal(decode(image), expected(same))
    assert np.array_equal(decode(image), expected(same))  # it is loaded now


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
@pytest.mark.parametrize("orientation", range(1, 9))
def test_avif_is_turned_once(orientation: int) -> None:
    data = encoded(photo(24, 40), "AVIF", exif=exif(orientation), quality=100, subsampling="4:4:4")
    same = encoded(photo(24, 40), "PNG", exif=exif(orientation))
    assert np.allclose(decode(data).astype(int), expected(same), atol=6)


def test_an_orientation_is_found_behind_other_headers() -> None:
    profile = bytes(200_000)  # comes in several segments
    data = encoded(photo(24, 40), icc_profile=profile, exif=exif(8))
    assert decode(data).shape == (40, 24, 3)
    at = data.index(b"Exif\0\0") - 4
    size = int.from_bytes(data[at + 2 : at + 4], "big") + 2
    moved = data[:at] + data[at + size :]
    scan = moved.index(b"\xff\xdb")
    moved = moved[:scan] + data[at : at + size] + moved[scan:]
    assert np.array_equal(decode(moved), decode(data))


MODES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "1": lambda image: image.convert("1"),
    "L": lambda image: image.convert("L"),
    "LA": lambda image: image.convert("LA"),
    "P": lambda image: image.quantize(16),
    "RGBA": lambda image: Image.merge("RGBA", (*image.split(), image.getchannel(0))),
}


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_modes_are_converted_as_pillow_does(mode: Mode) -> None:
    image = Image.fromarray(photo(20, 31))
    for name, make in MODES.items():
        made = make(image)
        assert made.mode == name
        for kind in ("PNG", *(["WEBP"] if name in ("RGBA", "L") else [])):
            data = encoded(made, kind, lossless=True)
            assert np.array_equal(decode(data, mode), expected(data, mode)), name
    with_transparency = encoded(image.quantize(4), "PNG", transparency=bytes([0, 80, 160, 255]))
    with Image.open(BytesIO(with_transparency)) as opened:
        assert np.array_equal(
            decode(with_transparency, mode), np.asarray(opened.convert("RGBA").convert(mode)).reshape(20, 31, -1)
        )


@pytest.mark.parametrize("dtype", ["<u2", ">u2"])
def test_sixteen_bits_become_their_upper_eight(dtype: str) -> None:
    values = np.arange(0, 60_000, 100, dtype=np.uint16).reshape(20, 30)
    for kind in ("PNG", "TIFF"):
        data = encoded(Image.fromarray(values.astype(dtype)), kind)
        assert np.array_equal(decode(data, "L")[..., 0], values >> 8)
        assert np.array_equal(decode(data)[..., 2], values >> 8)
    with pytest.raises(ImageError, match="32 bits"):
        decode(encoded(Image.fromarray(np.ones((3, 4), np.float32)), "TIFF"))


def test_a_value_without_a_picture_is_its_samples_fault_and_a_dict_has_the_bytes() -> None:
    data = encoded(photo(32, 48), "JPEG")
    assert np.array_equal(decode({"bytes": data, "path": "a.jpg"}), decode(data))
    for missing in (None, {"bytes": None, "path": "a.jpg"}):
        with pytest.raises(ImageError, match="None"):
            decode(missing)


def test_avif_and_others_by_their_bytes_whatever_they_are_called() -> None:
    pixels = photo(32, 48)
    for kind in ("PNG", "BMP", "GIF", *(["AVIF"] if features.check("avif") else [])):
        data = encoded(pixels, kind)
        assert np.array_equal(decode(data), expected(data)), kind


def test_an_image_of_pillow_is_decoded_from_its_bytes_where_it_is_not_loaded() -> None:
    data = encoded(photo(33, 20), exif=exif(6))
    image = Image.open(BytesIO(data))
    assert np.array_equal(decode(image), decode(data))
    assert image.fp is not None  # nothing was loaded
    image.load()
    assert np.array_equal(decode(image), decode(data))
    assert np.array_equal(decode(Image.fromarray(photo(5, 6))), photo(5, 6))
    for same in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        assert np.array_equal(decode(same), decode(data))


@pytest.mark.parametrize("decoder", DECODERS)
def test_damage_is_an_error_that_says_what(decoder: Decoder) -> None:
    for kind in ("JPEG", "PNG", "WEBP"):
        data = encoded(photo(100, 120), kind)
        for broken in (data[:-200], data[: len(data) // 2], data[:60], data[:10]):
            with pytest.raises(ImageError, match=r"a (JPEG|PNG|WebP) picture|which begin"):
                decode(broken, decoder=decoder)
    with pytest.raises(ImageError, match=r"^an empty value, which is not a picture$"):
        decode(b"", decoder=decoder)
    for other in (b"nothing", b"\xff\xd8", b"\xff\xd8\xff\xda" + bytes(50), bytes(1000)):
        with pytest.raises(ImageError):
            decode(other, decoder=decoder)


def test_a_wrong_code_within_the_data_is_damage_unless_warnings_are_accepted() -> None:
    data = bytearray(encoded(photo(100, 120), quality=90))
    begin = data.index(b"\xff\xda") + 14
    rng = np.random.default_rng(4)
    told = 0
    for _ in range(20):
        broken = bytearray(data)
        at = int(rng.integers(begin, len(data) - 100))
        broken[at : at + 20] = rng.integers(0, 255, 20, np.uint8).tobytes()
        try:
            decode(bytes(broken))
        except ImageError:
            told += 1
            try:
                accepted = decode(bytes(broken), strict=False)
            except ImageError:
                with pytest.raises(ImageError):
                    decode(bytes(broken), decoder="pillow")
            else:
                assert np.array_equal(accepted, decode(bytes(broken), decoder="pillow"))
    assert told > 5


def test_any_damage_is_an_error_of_our_own_or_none() -> None:
    rng = np.random.default_rng(7)
    for kind in ("JPEG", "PNG", "WEBP", "GIF"):
        data = encoded(photo(16, 24), kind)
        for _ in range(150):
            broken = bytearray(data)
            for at in rng.integers(0, len(data), 3).tolist():
                broken[at] = int(rng.integers(256))
            try:
                found = decode(bytes(broken))
            except ImageError:
                continue
            assert found.ndim == 3


def test_a_picture_of_too_many_pixels_is_refused_by_its_header() -> None:
    data = bytearray(encoded(photo(8, 8)))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = (60_000).to_bytes(2, "big") * 2
    for decoder in DECODERS:
        with pytest.raises(ImageError, match=f"{MAX_PIXELS}|bomb"):
            decode(bytes(data), decoder=decoder)


def test_what_is_no_picture_at_all_is_an_error_of_arguments() -> None:
    for wrong in ("photo.jpg", {"path": "a.jpg"}, 3, np.zeros((2, 2))):
        with pytest.raises(ConfigError, match=r"a picture is bytes, .*: name the column"):
            decode(wrong)
    with pytest.raises(ConfigError, match=r"got list: of a list, decode each .* by stoker\.image\.decode"):
        decode([b""])


def test_pillow_stands_in_for_simplejpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    _simplejpeg.cache_clear()
    try:
        data = encoded(photo(20, 20))
        assert np.array_equal(decode(data), expected(data))
        with pytest.raises(MissingPackageError, match=r"simplejpeg.*stoker\[images\]"):
            decode(data, decoder="simplejpeg")
    finally:
        _simplejpeg.cache_clear()
