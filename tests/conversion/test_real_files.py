"""Files that packages ship, and folders as other programs lay them out: streamed as they are, to MDS and back.

Of packages that are not installed nothing is read: ``pip install scikit-learn scikit-image matplotlib`` has all of them read.
Python's own tests ship the sounds.
"""

from __future__ import annotations

import io
import shutil
import wave
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from stoker import StreamingDataset
from stoker.catalog.detect import detect
from stoker.conversion import convert
from stoker.inspection import verify

GOLDEN = Path(__file__).parent / "golden" / "saved_by_datasets"
IMAGES = {
    "matplotlib": "mpl-data/**/*.[jp][pn]g",
    "skimage": "data/*.[jp][pn]g",
    "sklearn": "datasets/images/*.jpg",
}
FEW = 12

pytestmark = pytest.mark.usefixtures("own_cache")


def shipped(package: str, pattern: str) -> list[Path]:
    """Files that a package brings along; the test is skipped where it is not installed. It is not imported."""
    spec = find_spec(package)
    found = []
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        found += sorted(Path(place).glob(pattern))
    if not found:
        pytest.skip(f"{package} is not installed, or ships no {pattern}")
    step = max(1, len(found) // FEW)
    return found[::step][:FEW]


def laid_out(files: list[Path], root: Path, classes: int) -> dict[str, Path]:
    """Files in folders that are their classes, as torchvision, litdata's ``optimize`` and ImageNet have them."""
    placed = {}
    for number, file in enumerate(files):
        key = f"class_{number % classes}/{number:03}{file.suffix}"
        (root / key).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, root / key)
        placed[key] = file
    return placed


@pytest.mark.parametrize("package", IMAGES)
def test_images_are_streamed_in_folders_of_classes_and_go_to_mds_and_back(package: str, tmp_path: Path) -> None:
    files = shipped(package, IMAGES[package])
    placed = laid_out(files, tmp_path / "data" / "train", 2 if len(files) > 1 else 1)
    found = detect(tmp_path / "data" / "train")
    assert found.format in ("images", "jpeg", "png")
    seen = set()
    options: dict[str, Any] = {"remote": tmp_path / "data", "split": "train", "format": found.format}
    for sample in StreamingDataset(**options, shuffle=True, batch_size=2):
        file = placed[sample["path"]]
        assert sample["image"].tobytes() == Image.open(file).tobytes()
        assert sample["class"] == f"class_{sample['label']}"
        seen.add(sample["path"])
    assert seen == set(placed)
    convert(tmp_path / "data" / "train", tmp_path / "mds", processes=1, columns={"image": "bytes"}, size_limit="1mb")
    assert verify(tmp_path / "mds", deep=True).ok
    back = list(StreamingDataset(local=tmp_path / "mds"))
    assert {sample["path"]: sample["image"] for sample in back} == {
        key: file.read_bytes() for key, file in placed.items()
    }
    assert all(sample["class"] == f"class_{sample['label']}" for sample in back)
    kind = "png" if {file.suffix for file in files} == {".png"} else "jpeg"
    if {file.suffix for file in files} <= {".png"} or {file.suffix for file in files} <= {".jpg"}:
        convert(tmp_path / "mds", tmp_path / "files", to=kind, processes=1, select=["image", "class"])
        written = sorted(path.read_bytes() for path in (tmp_path / "files").rglob(f"*.{kind}"))
        assert written == sorted(file.read_bytes() for file in files)


def test_sounds_go_to_mds_and_back(tmp_path: Path) -> None:
    files = shipped("test", "audiodata/*.wav")
    folder = tmp_path / "sounds"
    placed = laid_out(files, folder, 2)
    plain = StreamingDataset(remote=folder, format="files", shuffle=True, batch_size=2)
    assert {sample["path"]: bytes(sample["data"]) for sample in plain} == {
        key: file.read_bytes() for key, file in placed.items()
    }
    convert(folder, tmp_path / "mds", processes=1)
    for sample in StreamingDataset(local=tmp_path / "mds"):
        with wave.open(io.BytesIO(sample["data"])) as found, wave.open(str(placed[sample["path"]])) as expected:
            assert found.getparams() == expected.getparams()
            assert found.readframes(1 << 20) == expected.readframes(1 << 20)
    convert(tmp_path / "mds", tmp_path / "table", to="parquet", processes=1)
    rows = StreamingDataset(remote=tmp_path / "table", format="parquet")
    assert {row["path"]: row["data"] for row in rows} == {key: file.read_bytes() for key, file in placed.items()}


@pytest.mark.parametrize(
    ("package", "pattern", "axis"), [("skimage", "data/lfw_subset.npy", 0), ("skimage", "**/*_decompositions.npy", 0)]
)
def test_arrays_are_streamed_as_numpy_loads_them(package: str, pattern: str, axis: int, tmp_path: Path) -> None:
    for file in shipped(package, pattern):
        expected = np.load(file)
        samples = [sample["data"] for sample in StreamingDataset(remote=file, format="npy")]
        assert np.array_equal(np.stack(samples), np.moveaxis(expected, axis, 0))
    convert(file, tmp_path / "mds", format="npy", processes=1)
    assert np.array_equal(np.stack([sample["data"] for sample in StreamingDataset(local=tmp_path / "mds")]), expected)


def test_what_datasets_saved_to_disk_is_streamed_in_place() -> None:
    samples = list(StreamingDataset(remote=GOLDEN, format="arrow", shuffle=True, batch_size=2))
    assert sorted(sample["text"] for sample in samples) == [f"number {number}" for number in range(7)]
    for sample in samples:
        number = int(sample["text"].split()[1])
        assert list(sample["tokens"]) == list(range(number + 1))
        image = Image.open(io.BytesIO(sample["image"]["bytes"]))
        assert image.getpixel((0, 0)) == (number, 10 * number, 255 - number)
