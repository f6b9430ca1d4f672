"""Steps: what they cut out and resize, and that a chain gives the same bytes wherever it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import encoded, exif, photo
from PIL import Image

from stoker import BadSamples, MDSWriter, ReadOptions, StreamingDataset, World
from stoker.errors import ConfigError, ImageError, MissingPackageError, TransformError
from stoker.formats.unstacked import stacked
from stoker.image import CenterCrop, Decode, RandomResizedCrop, Resize, decode, steps
from stoker.image.batch_rows import BatchRows, new_row
from stoker.image.picture import Mode, open_picture
from stoker.image.steps import Box, Layout, Resample, resize_part
from stoker.pipeline import columns
from stoker.types import Array

KINDS = ("JPEG", "PNG")
RESAMPLES: tuple[Resample, ...] = ("bilinear", "antialias")
FORMS: tuple[tuple[Mode, Layout], ...] = (("RGB", "HWC"), ("L", "HWC"), ("RGB", "CHW"))


def part(data: bytes, box: Box, size: tuple[int, int], resample: Resample = "bilinear", channels: int = 3) -> Array:
    out = np.full((*size, channels), 77, np.uint8)
    mode: Mode = "L" if channels == 1 else "RGB" if channels == 3 else "RGBA"
    resize_part(open_picture(data, mode, "auto", strict=True), box, out, resample)
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("resample", RESAMPLES)
def test_a_part_is_that_of_the_whole_picture(kind: str, resample: Resample) -> None:
    data = encoded(photo(60, 90), kind)
    whole = decode(data)
    for box in (Box(0, 0, 90, 60), Box(10, 5, 20, 30), Box(89, 59, 1, 1), Box(0, 59, 90, 1)):
        x, y, width, height = (int(one) for one in (box.x, box.y, box.width, box.height))
        cut = whole[y : y + height, x : x + width]
        assert np.array_equal(part(data, box, (height, width), resample), cut)  # as large: not resized
        for channels in (1, 4):
            same = decode(data, "L" if channels == 1 else "RGBA")[y : y + height, x : x + width]
            assert np.array_equal(part(data, box, (height, width), resample, channels), same)


@pytest.mark.parametrize("kind", KINDS)
def test_antialias_is_what_pillow_gives(kind: str) -> None:
    data = encoded(photo(200, 300), kind)
    whole = Image.fromarray(decode(data))
    for box, size in (
        (Box(0, 0, 300, 200), (50, 60)),
        (Box(13.5, 4.25, 100.5, 90.0), (128, 40)),
        (Box(3, 9, 20, 11), (64, 64)),
    ):
        edges = (box.x, box.y, box.x + box.width, box.y + box.height)
        reference = whole.resize(size[::-1], Image.Resampling.BILINEAR, box=edges)
        assert np.array_equal(part(data, box, size, "antialias"), np.asarray(reference))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(50, 60), (20, 20), (7, 100), (90, 33), (200, 300)])
def test_bilinear_is_near_to_antialias(kind: str, size: tuple[int, int]) -> None:
    """Also where a picture becomes much smaller: pixels are left out by neither."""
    data = encoded(photo(400, 600), kind)
    box = Box(40, 21, 501, 377)
    fast, slow = (part(data, box, size, resample).astype(int) for resample in RESAMPLES)
    assert np.abs(fast - slow).mean() < 3


def test_pixels_of_a_noisy_picture_are_averaged_where_it_becomes_smaller() -> None:
    noise = np.random.default_rng(1).integers(0, 256, (512, 512, 3), np.uint8)
    for kind in KINDS:
        data = encoded(noise, kind)
        for side, most in ((64, 14), (32, 8)):
            assert part(data, Box(0, 0, 512, 512), (side, side)).std() < most, kind


@pytest.mark.parametrize("orientation", [3, 5, 6])
def test_parts_are_those_of_the_turned_picture(orientation: int) -> None:
    data = encoded(photo(64, 100), exif=exif(orientation))
    whole = decode(data)
    assert np.array_equal(part(data, Box(4, 8, 20, 40), (40, 20)), whole[8:48, 4:24])
    height, width = whole.shape[:2]
    small = part(data, Box(0, 0, width, height), (height // 4, width // 4)).astype(int)
    reference = part(encoded(whole, "PNG"), Box(0, 0, width, height), (height // 4, width // 4))
    assert np.abs(small - reference).mean() < 3


def test_steps_give_pixels_in_the_place_of_bytes() -> None:
    sample = {"jpg": encoded(photo(60, 90)), "label": 3}
    for step, shape in (
        (Decode(column="jpg"), (60, 90, 3)),
        (Decode(column="jpg", mode="L", layout="CHW"), (1, 60, 90)),
        (Resize(30, column="jpg"), (30, 45, 3)),
        (Resize((10, 20), column="jpg", layout="CHW"), (3, 10, 20)),
        (CenterCrop(32, column="jpg", mode="RGBA"), (32, 32, 4)),
        (CenterCrop((200, 10), column="jpg", resample="antialias"), (200, 10, 3)),
    ):
        made = step(sample)
        assert made["label"] == 3
        assert isinstance(sample["jpg"], bytes)
        assert made["jpg"].shape == shape
        assert made["jpg"].dtype == np.uint8
        assert made["jpg"].flags.c_contiguous
    whole = decode(sample["jpg"])
    assert np.array_equal(Decode(column="jpg", layout="CHW")(sample)["jpg"], whole.transpose(2, 0, 1))
    assert np.array_equal(CenterCrop(60, 1.0, column="jpg")(sample)["jpg"], whole[:, 15:75])


def test_a_random_part_has_the_area_and_proportions_that_are_asked_for() -> None:
    step = RandomResizedCrop(8, (0.2, 0.5), (0.5, 2.0))
    picture = open_picture(encoded(photo(300, 500)), "RGB", "auto", strict=True)
    rng = np.random.default_rng(0)
    boxes = [step._draw(picture, rng) for _ in range(500)]
    for box in boxes:
        assert 0 <= box.x <= 500 - box.width
        assert 0 <= box.y <= 300 - box.height
        assert 0.19 < box.width * box.height / 150_000 < 0.51
        assert 0.48 < box.width / box.height < 2.05
    rng = np.random.default_rng(0)
    for box in boxes[:100]:  # numbers are those that torchvision's way of drawing gives
        while True:
            area, ratio = 150_000 * rng.uniform(0.2, 0.5), np.exp(rng.uniform(np.log(0.5), np.log(2.0)))
            width, height = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
            if width <= 500 and height <= 300:
                break
        assert box == Box(int(rng.integers(501 - width)), int(rng.integers(301 - height)), width, height)
    rng = np.random.default_rng(0)
    assert {box.x for box in boxes} > set(range(0, 100, 50))
    assert len({box.y for box in boxes}) > 100
    narrow = open_picture(encoded(photo(10, 500)), "RGB", "auto", strict=True)
    middle = RandomResizedCrop(8, (1.0, 1.0))._draw(narrow, rng)
    assert (middle.x, middle.y, middle.width, middle.height) == pytest.approx(((500 - 40 / 3) / 2, 0, 40 / 3, 10))


def test_left_and_right_are_exchanged_as_often_as_asked_for() -> None:
    sample = {"image": encoded(photo(40, 40))}
    for resample in RESAMPLES:
        for mode, layout in FORMS:
            steps = [
                RandomResizedCrop(16, flip=flip, resample=resample, mode=mode, layout=layout) for flip in (0.0, 1.0)
            ]
            made = [step(sample, np.random.default_rng(5)) for step in steps]
            axis = 2 if layout == "CHW" else 1
            assert np.array_equal(made[0]["image"], np.flip(made[1]["image"], axis))
            assert not np.array_equal(made[0]["image"], made[1]["image"])
    half = RandomResizedCrop(8, flip=0.5, scale=(1, 1), ratio=(1, 1))
    rng = np.random.default_rng(0)
    kinds = [half(sample, rng)["image"].tobytes() for _ in range(200)]
    assert len(set(kinds)) == 2
    assert 70 < kinds.count(kinds[0]) < 130


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Resize(0), "size must be positive"),
        (lambda: CenterCrop((3, -1)), "size must be positive"),
        (lambda: CenterCrop(8, 0.0), "share must be"),
        (lambda: RandomResizedCrop(8, (0.5, 0.2)), "scale must be"),
        (lambda: RandomResizedCrop(8, ratio=(0.0, 1.0)), "ratio must be"),
        (lambda: RandomResizedCrop(8, flip=1.5), "flip must be"),
        (lambda: Resize(8, resample="lanczos"), "resample"),  # type: ignore[arg-type]
        (lambda: Decode(mode="BGR"), "mode"),  # type: ignore[arg-type]
    ],
)
def test_settings_that_make_no_sense_are_errors(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_without_opencv_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    steps._opencv.cache_clear()
    try:
        sample = {"image": encoded(photo(20, 20))}
        with pytest.raises(MissingPackageError, match=r"'antialias' does not.*stoker\[images\]"):
            Resize((8, 8))(sample)
        assert Resize((8, 8), resample="antialias")(sample)["image"].shape == (8, 8, 3)
    finally:
        steps._opencv.cache_clear()


COUNT = 60


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures as bytes and as a column of MDS that opens as Pillow's images; number 17 is damaged."""
    root = tmp_path_factory.mktemp("pictures") / "data"
    with MDSWriter({"jpg": "bytes", "image": "jpeg", "id": "int"}, root, size_limit=60_000) as out:
        for number in range(COUNT):
            data = encoded(photo(40 + number, 50, number))
            out.write({"jpg": data[: len(data) // 2] if number == 17 else data, "image": data, "id": number})
    return root


def augmented(root: Path, **options: Any) -> StreamingDataset:
    step = RandomResizedCrop(24, flip=0.5, column="jpg")
    settings: dict[str, Any] = {"batch_size": 5, "shuffle": True, "shuffle_seed": 9, "on_bad_sample": "skip", **options}
    return StreamingDataset(root, columns=["jpg", "id"], **settings).random_map(step)


def by_id(batches: Iterator[Any]) -> dict[int, bytes]:
    return {
        int(one): pixels.tobytes() for batch in batches for one, pixels in zip(batch["id"], batch["jpg"], strict=True)
    }


@pytest.fixture(scope="module")
def reference(pictures: Path) -> dict[int, bytes]:
    return by_id(augmented(pictures).batches())


def test_pixels_of_a_sample_are_the_same_on_any_threads_and_world(pictures: Path, reference: dict[int, bytes]) -> None:
    assert sorted(reference) == [one for one in range(COUNT) if one != 17]
    assert len(set(reference.values())) == COUNT - 1
    for threads in (0, 4):
        assert by_id(augmented(pictures, read=ReadOptions(read_threads=threads)).batches()) == reference
    ranks: dict[int, bytes] = {}
    for rank in range(3):
        ranks |= by_id(augmented(pictures, world=World(rank, 3), batch_size=2).batches())
    assert ranks == reference
    single = {one["id"]: one["jpg"].tobytes() for one in augmented(pictures)}
    assert single == reference
    by_bytes = augmented(pictures).random_map(lambda sample, rng: {**sample, "drawn": rng.random()}, name="other")
    assert by_id(by_bytes.batches()) == reference


@pytest.mark.processes
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_pixels_of_a_sample_are_the_same_in_workers(pictures: Path, reference: dict[int, bytes], context: str) -> None:
    from stoker import StreamingDataLoader

    loader = StreamingDataLoader(augmented(pictures), num_workers=2, columnar=True, multiprocessing_context=context)
    assert by_id({name: np.asarray(column) for name, column in batch.items()} for batch in loader) == reference


def test_a_column_of_images_gives_the_pixels_of_its_bytes(pictures: Path) -> None:
    def read(column: str, name: str) -> list[Array]:
        dataset = StreamingDataset(pictures, columns=[column], batch_size=8, on_bad_sample="skip")
        step = RandomResizedCrop(24, flip=0.5, column=column)
        return [one for batch in dataset.random_map(step, name=name).batches() for one in batch[column]]

    images, encoded_ones = read("image", "crop"), read("jpg", "crop")
    del images[17]
    assert all(np.array_equal(one, other) for one, other in zip(images, encoded_ones, strict=True))


def test_a_damaged_picture_is_a_bad_sample_with_reason_and_place(pictures: Path, tmp_path: Path) -> None:
    listed = tmp_path / "bad.jsonl"
    dataset = augmented(pictures, on_bad_sample=BadSamples("skip", file=str(listed)))
    assert len(by_id(dataset.batches())) == COUNT - 1
    assert dataset.stats().bad_samples == 1
    (line,) = (json.loads(one) for one in listed.read_text().splitlines())
    assert line["sample"] == 17
    assert "shard." in line["url"]
    assert "Premature end" in line["reason"]
    with pytest.raises(TransformError, match=r"sample 17.*ImageError: a JPEG picture of .* does not decode") as caught:
        for _ in augmented(pictures, on_bad_sample="raise"):
            pass
    assert isinstance(caught.value.__cause__, ImageError)
    assert caught.value.sample == 17


def test_a_sample_without_the_column_is_bad_and_names_its_columns() -> None:
    with pytest.raises(ImageError, match="no column 'image'; it has jpg, id"):
        Decode()({"jpg": b"", "id": 1})
    with pytest.raises(ConfigError, match="dicts of columns, got bytes"):
        Decode()(b"")  # type: ignore[arg-type]


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_pixels_are_written_where_the_batch_has_them(
    pictures: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[Any] = []

    def noted(values: Any) -> Any:
        copied.append(values[0].shape)
        return stacked(values)

    def read(**options: Any) -> list[Array]:
        dataset = StreamingDataset(pictures, columns=["image", "jpg"], batch_size=7, **options)
        dataset = dataset.map(CenterCrop(20, layout=layout))
        with_label = dataset.map(lambda sample: {"a": sample["image"], "b": sample["image"], "c": len(sample["jpg"])})
        batches = list(with_label.batches())
        for batch in batches:
            assert np.array_equal(batch["a"], batch["b"])
            assert not np.shares_memory(np.asarray(batch["a"]), np.asarray(batch["b"]))
        return [one for batch in batches for one in batch["a"]]

    monkeypatch.setattr(columns, "stacked", noted)
    alone = [one["image"] for one in StreamingDataset(pictures).map(CenterCrop(20, layout=layout))]
    assert not copied
    kinds: tuple[dict[str, Any], ...] = ({}, {"on_bad_sample": "replace"})
    for options in kinds:
        copied.clear()
        assert all(np.array_equal(one, other) for one, other in zip(read(**options), alone, strict=True))
        assert copied  # of the second column
        copied.clear()
        dataset = StreamingDataset(pictures, columns=["image"], batch_size=7, **options)
        assert sum(len(batch["image"]) for batch in dataset.map(CenterCrop(20, layout=layout)).batches()) == COUNT
        assert not copied


def test_rows_that_are_not_those_of_the_batch_are_copied() -> None:
    own = np.zeros((4, 2, 2), np.uint8)
    with BatchRows(3) as rows:
        made = [new_row("a", (2, 2)) for _ in range(4)]  # one more than there are
        others = [new_row("b", (2, 2)) for _ in range(3)]
    assert made[3].base is None
    assert rows.joined(list(own)) is None
    assert rows.joined([others[0], others[2]]) is None
    assert rows.joined([others[0], made[1], others[2]]) is None
    assert rows.joined([one.T for one in others]) is None
    assert rows.joined([one.view(np.int8) for one in others]) is None
    found = rows.joined(made[1:3])
    assert found is not None
    assert np.shares_memory(found, made[1])
    assert len(found) == 2
    assert new_row("b", (2, 2)).base is None


LEFT = """
import sys
from stoker import ReadOptions, StreamingDataset
from stoker.image import CenterCrop
dataset = StreamingDataset(sys.argv[1], columns=["image"], batch_size=2, read=ReadOptions(read_threads=4))
next(dataset.map(CenterCrop(300)).batches())
"""


@pytest.mark.processes
def test_a_process_ends_while_threads_decode(pictures: Path) -> None:
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", LEFT, str(pictures)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_torchvision_style_functions_take_the_pixels() -> None:
    torch = pytest.importorskip("torch")
    sample = Resize((8, 9), layout="CHW")({"image": encoded(photo(30, 40))})
    assert torch.from_numpy(sample["image"]).shape == (3, 8, 9)
    assert Image.open(BytesIO(encoded(Resize((8, 9))({"image": encoded(photo(30, 40))})["image"], "PNG"))).size == (
        9,
        8,
    )
