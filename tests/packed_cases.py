"""Datasets of every packed format: what columns each can hold, and samples that are known from their number."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from cases import describe
from stoker.formats.base import FileInfo, ReadOptions, ShardInfo
from stoker.formats.common.inspect_header import MappedSource
from stoker.formats.registry import get_format
from stoker.writing.image_folders import JPEGWriter, PNGWriter
from stoker.writing.shard_formats import TarWriter, TFRecordWriter, writer_of

__all__ = ["CASES", "Case", "number_of", "opened", "sample_of", "same", "tiny_image"]

FIXED = {"flag": "bool", "half": "bfloat16", "id": "int", "pixels": "ndarray:uint8:4,3", "row": "ndarray:float32:5"}
ANY = {**FIXED, "blob": "bytes", "meta": "json", "shape": "ndarray", "text": "str"}


@dataclass(frozen=True)
class Case:
    """A format as its writer makes it.

    Attributes:
        make: the writer.
        columns: what is written.
        added: columns that come back beside those.
        suffix: end of the data files' names.
    """

    make: Callable[..., Any]
    columns: Mapping[str, str]
    suffix: str
    added: tuple[str, ...] = ()


CASES: dict[str, Case] = {
    "arrow": Case(writer_of("arrow"), ANY, ".arrow"),
    "hdf5": Case(writer_of("hdf5"), FIXED, ".hdf5"),
    "npy": Case(writer_of("npy"), {"id": "int"}, ".npy"),
    "npy_rows": Case(writer_of("npy"), {"row": "ndarray:float32:5"}, ".npy"),
    "npz": Case(writer_of("npz"), FIXED, ".npz"),
    "tar": Case(TarWriter, ANY, ".tar", ("__key__",)),
    "tfrecord": Case(TFRecordWriter, ANY, ".tfrecord"),
    "jpeg": Case(JPEGWriter, {"image": "jpeg", "label": "int"}, ".jpeg"),
    "png": Case(PNGWriter, {"image": "png", "label": "str"}, ".png"),
}


def opened(data: bytes, name: str = "npy", options: ReadOptions = ReadOptions(), **settings: Any) -> Any:
    """A reader of a file that others wrote, by its format's header facts."""
    form: Any = get_format(name)
    header = form.inspect_header(MappedSource(data, "the file"), settings)
    info = ShardInfo(name, header.samples, (FileInfo("a", len(data), {}),), (), None, header.spec)
    return form.open(info, [data], where="the file", options=options)


def tiny_image(number: int, kind: str) -> bytes:
    """The bytes of an image file like no other."""
    out = io.BytesIO()
    digest = hashlib.shake_128(b"image" + number.to_bytes(8, "little")).digest(6 * 4 * 3)
    Image.frombytes("RGB", (6, 4), digest).save(out, format=kind)
    return out.getvalue()


def sample_of(number: int, columns: Mapping[str, str]) -> dict[str, Any]:
    """The sample with this number."""
    digest = hashlib.shake_128(b"packed" + number.to_bytes(8, "little")).digest(64)
    values: dict[str, Any] = {
        "blob": digest[: number % 41],
        "flag": number % 3 == 0,
        "half": number / 4,
        "id": number,
        "meta": {"n": number, "t": "é" * (number % 3)},
        "pixels": np.frombuffer(digest[:12], np.uint8).reshape(4, 3),
        "row": np.arange(number, number + 5, dtype=np.float32),
        "shape": np.arange(number % 7 + 1, dtype=np.int16),
        "text": f"number {number} " + "é" * (number % 5),
    }
    if "image" in columns:
        kind = columns["image"]
        label: Any = number % 5 if columns["label"] == "int" else f"class {number % 5}"
        return {"image": tiny_image(number, kind), "label": label}
    return {name: values[name] for name in columns}


def same(found: Mapping[str, Any], number: int, case: Case) -> bool:
    """Whether a sample is that of a number, byte for byte."""
    expected = sample_of(number, case.columns)
    if "image" in expected:
        expected["image"] = Image.open(io.BytesIO(expected["image"]))
    if "half" in expected:
        expected["half"] = np.float32(expected["half"])
    plain = {name: value for name, value in found.items() if name not in case.added}
    return bool(describe(plain) == describe(expected))


@cache
def _numbers_of_images(kind: str, total: int) -> dict[bytes, int]:
    """Numbers of samples by their images' pixels."""
    return {Image.open(io.BytesIO(tiny_image(number, kind))).tobytes(): number for number in range(total)}


def number_of(found: Mapping[str, Any], case: Case, total: int) -> int:
    """The number of a sample that came back; -1 where it is none's."""
    if "id" in found:
        number = int(found["id"])
    elif "row" in found:
        number = int(found["row"][0])
    else:
        number = _numbers_of_images(case.columns["image"], total).get(found["image"].tobytes(), -1)
    return number if number >= 0 and same(found, number, case) else -1
