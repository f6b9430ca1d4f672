"""Folders that hold JPEG and PNG files are one data set; what a file is, its bytes tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packed_cases import tiny_image
from stoker import StreamingDataset
from stoker.catalog.detect import Detected, detect
from stoker.conversion import convert
from stoker.errors import CorruptDataError
from stoker.inspection import inspect, verify

COUNT = 24
KINDS = ("jpeg", "png")

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four classes of either kind; one file has the other kind's name, as one of ImageNet's has."""
    root = tmp_path / "photos"
    for number in range(COUNT):
        kind = KINDS[number % 2]
        path = root / f"class {number % 4}" / f"{number:03}.{'png' if kind == 'png' and number != 5 else 'jpg'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tiny_image(number, kind))
        (path.parent / "notes.txt").write_text("not an image")
    return root


def check(sample: dict[str, Any]) -> int:
    number = int(Path(sample["path"]).stem)
    expected = Image.open(Path(sample["root"]) / sample["path"]) if "root" in sample else None
    image = sample["image"]
    assert image.format == KINDS[number % 2].upper()
    assert expected is None or image.tobytes() == expected.tobytes()
    assert (sample["class"], sample["label"]) == (f"class {number % 4}", number % 4)
    return number


def test_they_are_found_and_streamed_as_one(photos: Path) -> None:
    assert detect(photos) == Detected("files", "images")
    options: dict[str, Any] = {"remote": photos, "format": "images", "shuffle": True, "batch_size": 8}
    numbers = [check({**sample, "root": str(photos)}) for sample in StreamingDataset(**options)]
    assert sorted(numbers) == list(range(COUNT))
    seen: list[int] = []
    for batch in StreamingDataset(**options).batches():
        assert isinstance(batch["label"], np.ndarray)
        seen += [check({name: column[place] for name, column in batch.items()}) for place in range(len(batch["path"]))]
    assert sorted(seen) == list(range(COUNT))
    raw = StreamingDataset(remote=photos, format="images", format_options={"decode": False})
    assert all(sample["image"] == (photos / sample["path"]).read_bytes() for sample in raw)


def test_a_format_of_one_kind_names_the_other_and_says_what_reads_both(photos: Path) -> None:
    with pytest.raises(CorruptDataError, match=r'005\.jpg: not a JPEG file.*format="images" reads JPEG and PNG'):
        list(StreamingDataset(remote=photos, format="jpeg"))
    (photos / "class 1" / "false.png").write_bytes(b"GIF89a")
    with pytest.raises(CorruptDataError, match=r"false\.png: not a JPEG or PNG file: it begins b'GIF89a'$"):
        list(StreamingDataset(remote=photos, format="images"))


def test_they_are_converted_byte_for_byte(photos: Path, tmp_path: Path) -> None:
    convert(photos, tmp_path / "mds", to="mds")
    samples = list(StreamingDataset(local=tmp_path / "mds"))
    assert len(samples) == COUNT
    for sample in samples:
        assert sample["image"] == (photos / sample["path"]).read_bytes()
        assert sample["class"] == f"class {sample['label']}"
    convert(photos, tmp_path / "png", to="png", columns={"image": "png"}, select=["image", "label"])
    found = {sample["image"].convert("RGB").tobytes() for sample in StreamingDataset(local=tmp_path / "png")}
    assert found == {Image.open(path).convert("RGB").tobytes() for path in photos.rglob("*.[jp][pn]g")}


def test_they_are_inspected_and_verified(photos: Path) -> None:
    facts = inspect(photos, samples=4)
    assert (facts.format, facts.samples) == ("images", COUNT)
    assert {column.name for column in facts.columns} == {"image", "path", "class", "label"}
    assert verify(photos, deep=True).ok
    path = photos / "class 3" / "003.png"
    path.write_bytes(path.read_bytes()[:40])
    assert [problem.key for problem in verify(photos, deep=True).problems] == ["class 3/003.png"]
