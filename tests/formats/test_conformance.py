"""Every format, written by stoker and as others write it, by the tests that a third party's format has, too."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_table import OTHERS, TEXT, Others
from format_table import sample_of as plain_sample
from litdata_cases import files_of, golden, value_of
from PIL import Image

from packed_cases import ANY, FIXED, sample_of, tiny_image
from stoker import StreamingDataset
from stoker.formats.registry import format_names
from stoker.testing import FormatTests, WrittenFormatTests

pytestmark = pytest.mark.usefixtures("own_cache")


class _Written(WrittenFormatTests):
    """Samples that are known from their number, in any columns."""

    def value(self, number: int) -> dict[str, Any]:
        return sample_of(number, self.columns)

    def sample(self, number: int) -> dict[str, Any]:
        found = self.value(number)
        if "half" in found:
            found["half"] = np.float32(found["half"])
        return found


class TestArrow(_Written):
    format, columns, options = "arrow", ANY, {"size_limit": 4000}


class TestHDF5(_Written):
    format, columns, options = "hdf5", FIXED, {"size_limit": 700}


class TestMDS(_Written):
    format, columns, options = "mds", ANY, {"size_limit": 4000}


class TestNPY(_Written):
    format, columns, options = "npy", {"id": "int"}, {"size_limit": 150}


class TestNPYRows(_Written):
    format, columns, options = "npy", {"row": "ndarray:float32:5"}, {"size_limit": 300}

    def number(self, sample: Mapping[str, Any]) -> int:
        return int(sample["row"][0])


class TestNPZ(_Written):
    format, columns, options = "npz", FIXED, {"size_limit": 700}


class TestTar(_Written):
    format, columns, options = "tar", ANY, {"size_limit": 100_000}


class TestTFRecord(_Written):
    format, columns, options = "tfrecord", ANY, {"size_limit": 9000}
    checksums = True


class _Lines(WrittenFormatTests):
    columns = TEXT

    def sample(self, number: int) -> dict[str, Any]:
        return plain_sample(number, TEXT)


class TestCSV(_Lines):
    format, options = "csv", {"size_limit": 200}


class TestJSON(_Lines):
    format, options = "json", {"size_limit": 500}


class TestTSV(_Lines):
    format, options = "tsv", {"size_limit": 200}


class TestXSV(_Lines):
    format, options = "xsv", {"size_limit": 200, "separator": "|"}


class _Images(WrittenFormatTests):
    """The sample with a number is the image with this number, in the folder of its last digit."""

    empty = False
    rebuilt = False

    def value(self, number: int) -> dict[str, Any]:
        return sample_of(number, self.columns)

    def sample(self, number: int) -> dict[str, Any]:
        found = self.value(number)
        return {**found, "image": Image.open(io.BytesIO(found["image"]))}

    def same(self, one: Any, two: Any) -> bool:
        try:
            return super().same(one, two)
        except Exception:  # Pillow decodes when pixels are asked for, and raises what it likes
            return False

    def number(self, sample: Mapping[str, Any]) -> int:
        image = sample["image"].tobytes()
        kind = self.columns["image"]
        return next(n for n in self.numbers if Image.open(io.BytesIO(tiny_image(n, kind))).tobytes() == image)


class TestJPEG(_Images):
    format, columns = "jpeg", {"image": "jpeg", "label": "int"}


class TestPNG(_Images):
    format, columns = "png", {"image": "png", "label": "str"}
    checksums = True


class _Others(FormatTests):
    """Files as other programs write them, from the table of formats."""

    @property
    def others(self) -> Others:
        return OTHERS[self.format]

    def write(self, folder: Path, numbers: range) -> None:
        for key, data in self.others.files(numbers).items():
            (folder / key).parent.mkdir(exist_ok=True)
            (folder / key).write_bytes(data)

    def number(self, sample: Mapping[str, Any]) -> int:
        return self.others.number(sample)


class TestArrowOfOthers(_Others):
    format = "arrow"

    def sample(self, number: int) -> dict[str, Any]:
        return {"id": number, "text": f"t{number}"}


class TestCSVOfOthers(_Others):
    format = "csv"
    separator = ","

    def sample(self, number: int) -> dict[str, Any]:
        return {"id": number, "text": f'a{self.separator}"b"\nline {number}'}


class TestTSVOfOthers(TestCSVOfOthers):
    format, separator = "tsv", "\t"


class TestXSVOfOthers(TestCSVOfOthers):
    format, separator, settings = "xsv", "|", {"separator": "|"}


class TestHDF5OfOthers(_Others):
    format = "hdf5"

    def sample(self, number: int) -> dict[str, Any]:
        return {"id": number}


class TestJSONOfOthers(_Others):
    format = "json"

    def sample(self, number: int) -> dict[str, Any]:
        return {"id": number, "tags": ["é", None] * (number % 2)}


class TestLitData(_Others):
    format, indexed = "litdata", True

    def sample(self, number: int) -> dict[str, Any]:
        return {"id": number, "text": f"t{number}"}


class _GoldenLitData(FormatTests):
    """Chunks that litdata wrote, and the samples that it reads from them."""

    format, indexed, empty = "litdata", True, False
    numbers = range(11)
    name: str

    def write(self, folder: Path, numbers: range) -> None:
        for key, data in files_of(self.name).items():
            (folder / key).write_bytes(data)

    def sample(self, number: int) -> dict[str, Any]:
        return dict(value_of(golden()[self.name]["samples"][number]))


class TestLitDataOfAllTypes(_GoldenLitData):
    name = "plain"


class TestLitDataInBatches(_GoldenLitData):
    name = "batch-zstd"


class TestLitDataInCompressedSamples(_GoldenLitData):
    name = "sample-zstd"


class TestLitDataOfNestedValues(_GoldenLitData):
    name = "json"


class TestLitDataInRows(_GoldenLitData):
    name = "rows"


class TestLitDataInCompressedRows(_GoldenLitData):
    name = "rows-zstd"


class TestMDSWithoutIndex(_Others):
    format, empty = "mds", False

    def sample(self, number: int) -> dict[str, Any]:
        return plain_sample(number, {"id": "int", "blob": "bytes", "row": "ndarray:float32:5"})


class TestIndexedBinary(_Others):
    format, empty = "indexed_binary", False

    def sample(self, number: int) -> dict[str, Any]:
        return {"data": number.to_bytes(8, "little") + bytes(number % 5)}


class TestMegatron(_Others):
    format = "megatron"

    def sample(self, number: int) -> dict[str, Any]:
        return {"tokens": np.full(number % 4 + 1, number, np.uint16)}


class TestNPYOfOthers(_Others):
    format = "npy"

    def sample(self, number: int) -> dict[str, Any]:
        return {"data": np.array([number, number])}


class TestNPZOfOthers(_Others):
    format = "npz"
    checksums = True

    def sample(self, number: int) -> dict[str, Any]:
        return {"id": number, "row": np.ones(3)}


class TestParquet(_Others):
    format = "parquet"

    def sample(self, number: int) -> dict[str, Any]:
        return {"id": number}


class TestTarOfOthers(_Others):
    format = "tar"

    def sample(self, number: int) -> dict[str, Any]:
        return {"__key__": f"{number:05}", "cls": number, "txt": f"text {number}", "bin": bytes(number)}


class TestTFRecordOfOthers(_Others):
    format = "tfrecord"
    checksums = True

    def sample(self, number: int) -> dict[str, Any]:
        return {"id": number, "x": np.float32(number / 2), "data": bytes(number)}


class TestFiles(_Others):
    format, empty = "files", False

    def sample(self, number: int) -> dict[str, Any]:
        return {"data": str(number).encode(), "path": f"{number % 3}/{number}"}


class TestImagesOfOthers(_Others):
    format, empty = "images", False

    def sample(self, number: int) -> dict[str, Any]:
        image = Image.open(io.BytesIO(tiny_image(number, self.kind(number))))
        return {"image": image, "class": f"class {number % 5}", "label": number % 5}

    def kind(self, number: int) -> str:
        return "jpeg" if number % 2 else "png"

    def same(self, one: Any, two: Any) -> bool:
        try:
            return super().same(one, two)
        except Exception:  # Pillow decodes when pixels are asked for, and raises what it likes
            return False


class TestJPEGOfOthers(TestImagesOfOthers):
    format = "jpeg"

    def kind(self, number: int) -> str:
        return "jpeg"


class TestPNGOfOthers(TestImagesOfOthers):
    format, checksums = "png", True

    def kind(self, number: int) -> str:
        return "png"


class TestSynthetic(FormatTests):
    """Samples that lie nowhere."""

    format, empty = "synthetic", False

    def write(self, folder: Path, numbers: range) -> None:
        """There is nothing to write."""

    def dataset(self, folder: Path, **options: Any) -> StreamingDataset:
        columns = {"id": "number", "x": "ndarray:float32:3", "blob": "bytes:20", "label": "label:7"}
        made = {"samples": len(self.numbers), "shard_samples": 10, "columns": columns}
        return StreamingDataset(format="synthetic", format_options=made, **options)

    def sample(self, number: int) -> dict[str, Any]:
        return {"id": number}


def test_every_format_is_tested_here() -> None:
    tested = {one.format for one in globals().values() if isinstance(one, type) and issubclass(one, FormatTests)}
    assert tested - {""} == set(format_names())
