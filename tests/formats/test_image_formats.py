"""JPEG and PNG written a file a sample: folders as other programs have them, and files that Pillow opens."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packed_cases import tiny_image
from stoker import StreamingDataset
from stoker.catalog.unindexed.open_files import open_unindexed
from stoker.errors import ConfigError, CorruptDataError, EncodingError
from stoker.writing.image_folders import JPEGWriter, PNGWriter

COLUMNS = {"image": "png", "label": "str"}


def test_files_lie_in_folders_of_their_labels(tmp_path: Path) -> None:
    with PNGWriter(COLUMNS, tmp_path) as writer:
        for number in range(6):
            writer.write({"image": tiny_image(number, "png"), "label": ["dog", "a cat"][number % 2]})
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.png"))
    assert found == sorted(f"{['dog', 'a cat'][n % 2]}/{n:09}.png" for n in range(6))
    for path in found:
        assert (tmp_path / path).read_bytes() == tiny_image(int(Path(path).stem), "png")
    assert open_unindexed(tmp_path, "png").index.columns == ("image", "path", "class", "label")
    assert [sample["label"] for sample in StreamingDataset(local=tmp_path)] == ["dog", "a cat"] * 3


def test_pixels_are_encoded_and_jpeg_files_stay_as_they_are(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 255, (9, 7, 3), np.uint8)
    with PNGWriter({"image": "png"}, tmp_path / "png") as writer:
        writer.write({"image": Image.fromarray(pixels)})
    (sample,) = StreamingDataset(local=tmp_path / "png")
    assert np.array_equal(np.asarray(sample["image"]), pixels)
    data = tiny_image(3, "jpeg")
    (tmp_path / "x.jpg").write_bytes(data)
    with JPEGWriter({"image": "jpeg", "label": "int"}, tmp_path / "jpeg") as writer:
        writer.write({"image": data, "label": 7})
        writer.write({"image": Image.open(tmp_path / "x.jpg"), "label": np.int64(-1)})
    assert (tmp_path / "jpeg" / "7" / "000000000.jpeg").read_bytes() == data
    assert (tmp_path / "jpeg" / "-1" / "000000001.jpeg").read_bytes() == data
    assert [sample["label"] for sample in StreamingDataset(local=tmp_path / "jpeg")] == [7, -1]


@pytest.mark.parametrize("label", ["", "a/b", "..", ".hidden", "_x", "a\0", 7, None])
def test_labels_that_are_no_folders_are_refused(label: Any, tmp_path: Path) -> None:
    with PNGWriter(COLUMNS, tmp_path) as writer:
        with pytest.raises(EncodingError, match="'label' of sample 0"):
            writer.write({"image": tiny_image(1, "png"), "label": label})
        assert writer.samples_written == 0
        with pytest.raises(EncodingError, match=r"'image' of sample 0.*PNG"):
            writer.write({"image": b"GIF", "label": "a"})
    assert not list(tmp_path.rglob("*.png"))


def test_arguments_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for columns in ({}, {"image": "jpeg"}, {"image": "png", "label": "json"}, {"image": "png", "text": "str"}):
        with pytest.raises(ConfigError, match="column"):
            PNGWriter(columns, tmp_path)
    with pytest.raises(ConfigError, match="compressed already"):
        PNGWriter(COLUMNS, tmp_path, compression="zstd")
    with pytest.raises(ConfigError, match="argument 'zip' is unknown"):
        PNGWriter(COLUMNS, tmp_path, zip=1)  # type: ignore[call-arg]


def test_a_folder_that_is_no_number_is_corrupt(tmp_path: Path) -> None:
    with JPEGWriter({"image": "jpeg", "label": "int"}, tmp_path) as writer:
        writer.write({"image": tiny_image(0, "jpeg"), "label": 3})
    (tmp_path / "3").rename(tmp_path / "three")
    index = (tmp_path / "index.json").read_text().replace("3/0000", "three/0000")
    (tmp_path / "index.json").write_text(index)
    with pytest.raises(CorruptDataError, match="'three' is not a whole number"):
        list(StreamingDataset(local=tmp_path))


def test_an_image_that_can_not_be_stored_fails_the_writer(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    writer = PNGWriter(COLUMNS, tmp_path / "out")
    (tmp_path / "out" / "a").write_bytes(b"a file where a folder should be")
    with pytest.raises(Exception, match="out/a"):  # noqa: PT012
        for number in range(500):
            writer.write({"image": tiny_image(number % 3, "png"), "label": "a"})
        writer.finish()
    writer.abort()
    assert not (tmp_path / "out" / "index.json").exists()


def test_pixels_survive_a_reader_that_is_not_ours(tmp_path: Path) -> None:
    with JPEGWriter({"image": "jpeg"}, tmp_path) as writer:
        writer.write({"image": Image.open(io.BytesIO(tiny_image(5, "jpeg")))})
    with Image.open(tmp_path / "000000000.jpeg") as image:
        image.load()
        assert image.format == "JPEG"
