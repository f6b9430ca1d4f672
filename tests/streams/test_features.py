"""What Hugging Face's ``datasets`` wrote is read with all its features; golden files are of ``datasets`` itself."""

from __future__ import annotations

import io
import logging
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps

from s3server import Bucket
from stoker import StreamingDataset
from stoker.errors import ConfigError, CorruptDataError
from stoker.storage import open_store
from stoker.streams.features import DecodeImages, class_names

GOLDEN = Path(__file__).parents[1] / "conversion" / "golden"
SOURCES: dict[str, dict[str, Any]] = {
    "saved": {"remote": GOLDEN / "saved_by_datasets", "format": "arrow"},
    "parquet": {"remote": GOLDEN / "saved_by_datasets.parquet", "format": "parquet"},
}

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_samples_are_those_that_datasets_gives(source: dict[str, Any]) -> None:
    """The rows of benchmarks/make_datasets_golden.py."""
    dataset = StreamingDataset(**source, transform=DecodeImages("image"))
    assert dataset.size == 7
    for number in range(7):
        sample = dataset[number]
        assert sample["image"].size == (4, 3)
        assert sample["image"].getpixel((0, 0)) == (number, 10 * number, 255 - number)
        assert sample["label"] == number % 3
        assert sample["text"] == f"number {number}"
        assert np.array_equal(sample["tokens"], np.arange(number + 1))
        assert sample["tokens"].dtype == np.int32
        assert sample["grid"] == [[number + 0.5, 1.0, 2.0], [3.0, 4.0, 5.0]]
        assert sample["flag"] == (number % 2 == 0)
        assert sample["meta"] == {"a": number, "b": [str(number)]}
        assert sample["score"] == number / 4


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_files_come_as_they_are_stored_and_that_is_said(
    source: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    sample = StreamingDataset(**source)[3]
    assert sample["image"]["path"] == "3.png"
    assert sample["image"]["bytes"].startswith(b"\x89PNG")
    assert "'image' hold files as Hugging Face's datasets stores them" in caplog.text
    caplog.clear()
    options: dict[str, Any] = {} if source["format"] == "parquet" else {"format_options": {"columns": ["label"]}}
    with caplog.at_level(logging.WARNING):
        StreamingDataset(**source, columns=["label"], **options)
        StreamingDataset(**source, transform=DecodeImages("image"))
    assert not caplog.text


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_names_of_classes_are_reported(source: dict[str, Any]) -> None:
    assert class_names(source["remote"]) == {"label": ("cat", "dog", "fish")}


def test_names_of_classes_are_reported_for_an_object_store(bucket: Bucket) -> None:
    store = open_store(bucket.url, bucket.storage_options)
    for path in [*(GOLDEN / "saved_by_datasets").iterdir(), GOLDEN / "saved_by_datasets.parquet"]:
        folder = "p" if path.suffix == ".parquet" else "saved"
        store.put(f"{folder}/{path.name}", path.read_bytes())
    for folder in ("p", "saved", "p/saved_by_datasets.parquet"):
        assert class_names(f"{bucket.url}/{folder}", bucket.storage_options) == {"label": ("cat", "dog", "fish")}


def test_what_tells_no_features_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "0.parquet")
    with pytest.raises(ConfigError, match=r"0\.parquet tells no features"):
        class_names(tmp_path)
    shutil.copytree(GOLDEN / "saved_by_datasets", tmp_path / "saved")
    (tmp_path / "saved" / "dataset_info.json").write_text(
        '{"features": {"label": {"_type": "ClassLabel", "names": 3}}}'
    )
    with pytest.raises(CorruptDataError, match="'label' is a ClassLabel without a list of names"):
        class_names(tmp_path / "saved")
    (tmp_path / "saved" / "dataset_info.json").write_text("{")
    with pytest.raises(CorruptDataError, match="not JSON"):
        class_names(tmp_path / "saved")


def test_images_are_decoded_in_lists_and_where_there_is_none() -> None:
    out = io.BytesIO()
    Image.new("RGB", (5, 2)).save(out, "JPEG")
    file = {"bytes": out.getvalue(), "path": None}
    decode = pickle.loads(pickle.dumps(DecodeImages("a", "b")))
    decoded = decode({"a": [file, None, file], "b": None, "c": 1})
    assert [one and one.size for one in decoded["a"]] == [(5, 2), None, (5, 2)]
    assert (decoded["b"], decoded["c"]) == (None, 1)
    for value, error, match in (
        ({"bytes": None, "path": "a.png"}, CorruptDataError, "has the path 'a.png' of a file, and not its bytes"),
        ({"bytes": b"no image", "path": None}, CorruptDataError, "column 'a' does not decode as an image"),
        (b"bytes", ConfigError, "found bytes"),
    ):
        with pytest.raises(error, match=match):
            DecodeImages("a")({"a": value})
    with pytest.raises(ConfigError, match="the sample has c"):
        DecodeImages("a")({"c": 1})
    with pytest.raises(ConfigError, match="names of the columns"):
        DecodeImages()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_datasets_turns_them(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = np.arange(16 * 24 * 3, dtype=np.uint16).reshape(16, 24, 3).astype(np.uint8)
    for kind in ("PNG", "TIFF", "JPEG", "WEBP"):
        Image.fromarray(pixels).save(file := io.BytesIO(), kind, exif=exif, lossless=True)
        decoded = DecodeImages("a")({"a": {"bytes": file.getvalue(), "path": None}})["a"]
        assert decoded.size == ((24, 16) if orientation < 5 else (16, 24)), kind
        Image.fromarray(pixels).save(same := io.BytesIO(), "PNG", exif=exif)
        if kind != "JPEG":
            assert np.array_equal(np.asarray(decoded), np.asarray(ImageOps.exif_transpose(Image.open(same)))), kind


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_large_and_dictionary_types_are_as_their_plain_ones(tmp_path: Path, format: str) -> None:  # noqa: A002
    table = pa.table(
        {
            "text": pa.array(["a", None, "a"], pa.large_string()),
            "blob": pa.array([b"a", None, b"b"], pa.large_binary()),
            "word": pa.array(["x", "y", None]).dictionary_encode(),
            "number": pa.DictionaryArray.from_arrays(pa.array([1, 0, 1], pa.int8()), pa.array([10, 20])),
            "list": pa.array([[1], None, [1, 2]], pa.large_list(pa.int16())),
        }
    )
    if format == "arrow":
        feather.write_feather(table, tmp_path / "0.arrow")
    else:
        pq.write_table(table, tmp_path / "0.parquet")
    (batch,) = StreamingDataset(remote=tmp_path, format=format, batch_size=3).batches()
    assert batch["text"] == ["a", None, "a"]
    assert batch["blob"] == [b"a", None, b"b"]
    assert batch["word"] == ["x", "y", None]
    assert list(batch["number"]) == [20, 10, 20]
    assert [None if one is None else one.tolist() for one in batch["list"]] == [[1], None, [1, 2]]
