"""The report of :func:`stoker.inspection.inspect`, values as text for people, and the first samples of a shard, from as few
bytes as its format allows.

Of long values it has the beginning, of arrays the shape, of pictures the size. Nothing in it moves a terminal.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import numpy as np

from stoker.display import error_text, escape
from stoker.errors import CorruptDataError, MissingPackageError, StokerError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import check_indexed
from stoker.formats.common.compression import parse_compression
from stoker.formats.mds.encodings.images import open_image
from stoker.formats.one_file import SIGNATURES
from stoker.formats.registry import get_format
from stoker.inspection.checks import FileReader
from stoker.storage import is_local
from stoker.types import Buffer

_TEXT: Final = 200
_BYTES: Final = 24
_NUMBERS: Final = 8
_ITEMS: Final = 3

Kind = Literal["null", "number", "text", "bytes", "array", "image", "list", "object", "error"]


@dataclass(frozen=True, slots=True)
class Shown:
    """The text that stands for a value.

    Attributes:
        kind: what it is.
        text: its beginning, in printable characters.
        length: characters of text, bytes, or items of a list.
        dtype: of an array.
        shape: of an array.
        size: width and height of an image.
        mode: of an image: ``RGB``, ``L``, ...
        image: the image itself, as a ``PIL.Image``; not part of :meth:`as_dict`.
    """

    kind: Kind
    text: str
    length: int | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    size: tuple[int, int] | None = None
    mode: str | None = None
    image: Any = None

    def as_dict(self) -> Mapping[str, Any]:
        """Plain values for JSON; what does not apply is left out."""
        values = {name: getattr(self, name) for name in self.__slots__ if name != "image"}
        return {name: value for name, value in values.items() if value is not None}


def show(value: Any) -> Shown:
    """Render a value; of a long one only the beginning is read."""
    if value is None:
        return Shown("null", "null")
    if isinstance(value, np.ndarray) and value.ndim:
        return _array(value)
    if isinstance(value, np.ndarray | np.generic):
        return show(value.item())
    if isinstance(value, str):
        return Shown("text", printable(value, _TEXT), len(value))
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes(value)
    if hasattr(value, "getbands"):
        return _image(value)
    if isinstance(value, list | tuple):
        inside = ", ".join(show(item).text for item in value[:_ITEMS])
        return Shown("list", f"[{inside}{', ...' if len(value) > _ITEMS else ''}]", len(value))
    if isinstance(value, Mapping):
        return Shown("object", printable(json.dumps(value, default=repr, ensure_ascii=False), _TEXT), len(value))
    if isinstance(value, bool | int | float):
        return Shown("number", printable(repr(value), _TEXT))
    return Shown("object", printable(str(value), _TEXT))


def printable(text: str, most: int) -> str:
    """The beginning of a text, with escapes for all that is not printable: a dataset's author is not trusted."""
    return escape(text[:most]) + ("..." if len(text) > most else "")


def _array(value: np.ndarray[Any, Any]) -> Shown:
    head = value.reshape(-1)[:_NUMBERS] if value.flags.c_contiguous else value.ravel()[:_NUMBERS]
    numbers = " ".join(printable(str(number), 40) for number in head.tolist())
    text = f"{value.dtype.name} {value.shape}: {numbers}{' ...' if value.size > _NUMBERS else ''}"
    return Shown("array", text, dtype=value.dtype.name, shape=value.shape)


def _bytes(value: bytes | bytearray | memoryview) -> Shown:
    head = bytes(value[:_BYTES])
    if any(mark and head.startswith(mark) for mark in SIGNATURES.values()):
        image = _opened(value)
        if image is not None:
            shown = _image(image)
            return replace(shown, text=f"{len(value):,} bytes: {shown.text}", length=len(value))
    first = printable(repr(head)[2:-1], 4 * _BYTES) + ("..." if len(value) > _BYTES else "")
    text = f"{len(value):,} bytes{': ' if first else ''}{first}"
    return Shown("bytes", text, len(value))


def _opened(value: bytes | bytearray | memoryview) -> Any:
    """An image file as an image, if it is one and Pillow is there."""
    try:
        return open_image(io.BytesIO(value))
    except Exception:  # noqa: BLE001 - then it is shown as bytes
        return None


def _image(value: Any) -> Shown:
    width, height = value.size
    kind = getattr(value, "format", None) or "image"
    return Shown("image", f"{kind} {width}x{height} {value.mode}", size=(width, height), mode=value.mode, image=value)


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """A column.

    Attributes:
        name: its name.
        type: encoding or type, as the format calls it.
        shape: of a value, where all have the same and the type tells it; ``()`` for single numbers.
    """

    name: str
    type: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetFacts:
    """A dataset, as its index or its files' headers tell.

    Attributes:
        url: where it is.
        format: of its shards; several with commas between.
        indexed: whether it has an ``index.json``.
        files: files of the dataset, indexes not counted.
        shards: shards; of Parquet, row groups. ``None`` where that would take reading whole files.
        samples: samples; ``None`` likewise.
        columns: the columns that all shards have.
        stored_bytes: bytes of the files as they are stored.
        raw_bytes: bytes of the decompressed shards, or of Parquet's uncompressed pages; ``None`` where nothing tells.
        compression: codecs, with levels where the index tells.
        hashes: names of the hashes that the index has of its files.
        smallest_shard: stored bytes of the smallest shard; of files without an index, of the smallest file.
        largest_shard: likewise.
        notes: what is to be known beside that.
        preview: the first samples: column to what is shown of its value.
    """

    url: str
    format: str
    indexed: bool = False
    files: int
    shards: int | None
    samples: int | None
    columns: tuple[ColumnFacts, ...]
    stored_bytes: int
    raw_bytes: int | None = None
    compression: tuple[str, ...] = ()
    hashes: tuple[str, ...] = ()
    smallest_shard: int
    largest_shard: int
    notes: tuple[str, ...] = ()
    preview: tuple[Mapping[str, Shown], ...] = ()

    def as_dict(self) -> Mapping[str, Any]:
        """Plain values for JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in ("columns", "preview")}
        return {
            **plain,
            "columns": [asdict(column) for column in self.columns],
            "preview": [{name: shown.as_dict() for name, shown in sample.items()} for sample in self.preview],
        }


def shape_of(kind: str) -> tuple[int, ...] | None:
    """The shape that a type's name tells: ``ndarray:uint8:4,3`` and ``uint8[4,3]`` have ``(4, 3)``, ``int`` has ``()``."""
    if kind.startswith("ndarray"):
        parts = kind.split(":")
        return _dims(parts[2]) if len(parts) == 3 else None
    head, bracket, dims = kind.partition("[")
    if bracket:
        return _dims(dims.rstrip("]")) if dims != "]" else None
    number = head.rstrip("0123456789")
    return () if number in ("int", "uint", "float", "bool", "bfloat", "double", "half") else None


def _dims(text: str) -> tuple[int, ...] | None:
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError:
        return None


LARGEST: Final = 256 << 20
"""More bytes of a remote dataset than these are not fetched to show samples."""

_Preview = tuple[list[Mapping[str, Shown]], list[str]]


def preview_shard(files: FileReader, info: ShardInfo, count: int) -> _Preview:
    """The first samples of a shard of a dataset with an index, and what hindered."""
    where = files.store.url_of(info.stored[0].basename)
    count = min(count, info.samples)
    try:
        if (
            not info.zip
            and (info.format == "mds" or get_format(info.format).text)
            and is_local(files.store.url) is None
        ):
            small, data = _excerpt(files, info, count)
        elif sum(file.bytes for file in info.stored) > LARGEST and is_local(files.store.url) is None:
            return [], [f"no samples are shown: the first shard, {where}, would have to be fetched whole"]
        else:
            small, data = info, _whole(files, info)
    except (StokerError, OSError) as error:
        return [], [f"no samples are shown: {error}"]
    return preview_files(small, data, count, where)


def preview_files(info: ShardInfo, data: Sequence[Buffer], count: int, where: str) -> _Preview:
    """The first samples of an open shard's files."""
    notes: list[str] = []
    try:
        reader = get_format(info.format).open(info, data, where=where, options=ReadOptions(views=True))
        unsafe = reader.unsafe
        rows = np.arange(min(count, info.samples), dtype=np.int64)
    except MissingPackageError:
        raise
    except Exception as error:  # noqa: BLE001 - other packages' formats may raise anything
        return [], [f"no samples are shown: {error_text(error)}"]
    notes += [f"column {name!r} is not shown: reading it runs code from the data" for name in unsafe]
    columns: dict[str, list[Shown]] = {}
    for name in reader.columns:
        if name in unsafe:
            continue
        try:
            columns[name] = [show(value) for value in reader.read(rows, [name])[name]]
        except Exception as error:  # noqa: BLE001 - as above, and of one column only
            columns[name] = [Shown("error", printable(error_text(error), 200))] * len(rows)
    return [{name: values[row] for name, values in columns.items()} for row in range(len(rows))], notes


def _whole(files: FileReader, info: ShardInfo) -> list[Buffer]:
    """A shard's raw files, decompressed in memory if need be."""
    stored = [files.read(file.basename) for file in info.stored]
    for file, data in zip(info.stored, stored, strict=True):
        check_indexed(f"{files.store.url_of(file.basename)} has", len(data), file.bytes, "bytes")
    if not info.zip:
        return stored
    assert info.compression is not None
    compression = parse_compression(info.compression)
    return [
        bytes(compression.decompress(memoryview(data), file.bytes)) for data, file in zip(stored, info.raw, strict=True)
    ]


def _excerpt(files: FileReader, info: ShardInfo, count: int) -> tuple[ShardInfo, list[Buffer]]:
    """A smaller shard that holds the first samples, made of ranges of a shard's files."""
    data, head = info.raw[0], info.raw[-1]
    end = 4 + 4 * (count + 1)
    if head.bytes < end:
        raise CorruptDataError(f"{files.store.url_of(head.basename)}: too small for {count} samples")
    words = np.frombuffer(files.store.get_range(head.basename, 0, end), "<u4").astype(np.int64)
    offsets = words[1:]
    first, last = int(offsets[0]), int(offsets[-1])
    if int(words[0]) != info.samples or (np.diff(offsets) < 0).any() or last > data.bytes:
        raise CorruptDataError(f"{files.store.url_of(head.basename)}: its offsets contradict the index or each other")
    parts: list[Any]
    if info.format == "mds":
        body = files.store.get_range(data.basename, first, last)
        parts = [_table(count, offsets - first + end) + body]
    else:
        parts = [files.store.get_range(data.basename, 0, last), _table(count, offsets)]
    raw = tuple(replace(file, bytes=len(part)) for file, part in zip(info.raw, parts, strict=True))
    return replace(info, samples=count, raw=raw), parts


def _table(count: int, offsets: np.ndarray[Any, Any]) -> bytes:
    return np.concatenate([[count], offsets]).astype("<u4").tobytes()
