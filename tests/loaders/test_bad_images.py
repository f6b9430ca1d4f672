"""Images that do not load are bad samples, also one by one, in the first chunk, and after the process has read others."""

from __future__ import annotations

import tarfile
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stoker import MDSWriter, ReadOptions, StreamingDataset

COUNT = 200
BAD = {0, 1, 40, 150}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of which some are cut off behind their headers: they open, and do not load."""
    root = tmp_path_factory.mktemp("images") / "data"
    out = BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)).save(out, "jpeg")
    whole = out.getvalue()
    with MDSWriter({"id": "int", "image": "jpeg"}, root) as writer:
        for number in range(COUNT):
            writer.write({"id": number, "image": whole[: len(whole) // 2] if number in BAD else whole})
    return root


@pytest.mark.parametrize("batch_size", [16, COUNT])
def test_images_that_do_not_load_are_left_out_in_any_epoch(data: Path, batch_size: int) -> None:
    assert next(iter(StreamingDataset(data, batch_size=1, shuffle=False, on_bad_sample="skip")))["id"] == 2
    dataset = StreamingDataset(data, batch_size=batch_size, shuffle=False, on_bad_sample="skip")
    for _ in range(2):
        found = []
        for sample in dataset:
            sample["image"].load()
            found.append(sample["id"])
        assert found == [number for number in range(COUNT) if number not in BAD]
    assert dataset.stats().bad_samples == 2 * len(BAD)


def test_images_that_only_later_samples_have_are_left_out_where_they_do_not_load(tmp_path: Path) -> None:
    """In the first chunk that had any, a bad one came to its user, whose own loading failed."""
    out = BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8)).save(out, "jpeg")
    whole = out.getvalue()
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(800):
            values = {"txt": str(number).encode()}
            if number >= 700:
                values["jpg"] = whole[: len(whole) // 2] if number == 720 else whole
            for name, value in values.items():
                member = tarfile.TarInfo(f"{number:04}.{name}")
                member.size = len(value)
                archive.addfile(member, BytesIO(value))
    options = {"columns": ["txt", "jpg"], "encodings": {"jpg": "jpeg"}}
    dataset = StreamingDataset(tmp_path, format="tar", format_options=options, on_bad_sample="skip", shuffle=False)
    found = []
    for sample in dataset:
        if sample["jpg"] is not None:
            sample["jpg"].load()
            found.append(int(sample["txt"]))
    assert found == [*range(700, 720), *range(721, 800)]


def test_images_that_a_function_keeps_for_the_next_epoch_are_loaded(data: Path) -> None:
    kept: list[Image.Image] = []

    def one_before(sample: dict[str, object]) -> dict[str, object]:
        image = sample.pop("image")
        assert isinstance(image, Image.Image)
        kept.append(image)
        return {**sample, "image": kept[-2] if len(kept) > 1 else None}

    alone = ReadOptions(
        read_threads=0
    )  # the function calls for the order of samples, which several threads do not keep
    dataset = StreamingDataset(
        data, batch_size=16, shuffle=False, transform=one_before, on_bad_sample="skip", read=alone
    )
    for epoch in range(2):
        images = {sample["id"]: sample["image"] for sample in dataset}
        # The image of the sample before is bad, not its own.
        assert sorted(images) == [n for n in range(COUNT) if n - 1 not in BAD]
        for image in images.values():
            assert image is None or image.load() is not None
        assert (images[0] is None) == (epoch == 0)
