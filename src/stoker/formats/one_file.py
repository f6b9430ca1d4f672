"""A file a sample: ``files`` as they are, ``jpeg``, ``png`` and ``images`` (both) as images, whose folders are their classes.

A shard is one file, so nothing has to be prepared, and the shuffle of shards is one of samples.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from stoker.errors import CorruptDataError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import parse_files, parse_samples, refuse
from stoker.formats.common.container import decode_values
from stoker.formats.common.inspect_header import only_settings
from stoker.formats.common.read_checks import check_rows, wanted_columns
from stoker.formats.format import Format, GeneratedFiles
from stoker.formats.mds.encodings import Encoding, get_encoding
from stoker.formats.mds.spec import parse_columns
from stoker.types import Batch, Buffer, Column, Ids

PATH: Final = "path"
"""Column of the file's path below the root."""
CLASS: Final = "class"
"""Column of the name of the folder that an image is in, the first below the root."""
LABEL: Final = "label"
"""Column of the class's number among all, by name; of images that stoker wrote, the label that was given."""

FILES: Final = "files"
"""Format of any files, a sample each."""
IMAGES: Final = "images"
"""Format of folders that hold JPEG and PNG files; what a file is, its first bytes tell, whatever its name says."""

SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    "jpeg": (".jpg", ".jpeg", ".jpe"),
    "png": (".png",),
    "files": (),
}
SIGNATURES: Final[Mapping[str, bytes]] = {"jpeg": b"\xff\xd8", "png": b"\x89PNG\r\n\x1a\n", "files": b""}
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {IMAGES: ("jpeg", "png")}
_IMAGE: Final = "image"
_COLUMNS: Final = ("image", "data", PATH, CLASS, LABEL)


def content_column(name: str) -> str:
    """The column of a format that holds the file."""
    return "data" if name == "files" else "image"


def content_kind(name: str, *, decode: bool = True) -> str:
    """The type of the column that holds the file: ``jpeg``, ``png``, ``image`` for either, or ``bytes``."""
    if name == "files" or not decode:
        return "bytes"
    return _IMAGE if name == IMAGES else name


def folder_of(path: str) -> str:
    """The first folder of a path; empty for a file that is in none."""
    head, slash, _ = path.partition("/")
    return head if slash else ""


class FileShard:
    """An open file."""

    unsafe: ClassVar[Mapping[str, str]] = {}
    __slots__ = ("_spec", "columns", "data", "format", "kind", "layout", "options", "path", "samples", "where")

    def __init__(self, info: ShardInfo, data: Buffer, where: str, options: ReadOptions) -> None:
        spec = info.spec
        if len(data) != info.raw[0].bytes or info.samples != 1:
            raise CorruptDataError(f"{where}: the file has {len(data)} bytes, the index says {info.raw[0].bytes}")
        self.format = info.format
        kinds_here = _KINDS.get(info.format, (info.format,))
        begins = data[:8]
        self.kind = next((kind for kind in kinds_here if begins.startswith(SIGNATURES[kind])), None)
        if self.kind is None:
            told = " or ".join(kinds_here).upper()
            remedy = (
                "" if len(kinds_here) > 1 or info.format == "files" else f'; format="{IMAGES}" reads JPEG and PNG alike'
            )
            raise CorruptDataError(f"{where}: not a {told} file: it begins {begins!r}{remedy}")
        self.columns: tuple[str, ...] = tuple(spec["columns"] if "columns" in spec else spec["column_names"])
        kinds = spec["columns"].values() if "columns" in spec else spec["column_encodings"]
        self.layout = (info.format, self.columns, tuple(kinds))
        self.data = data
        self.where = where
        self.samples = 1
        self.path = info.raw[0].part.key if info.raw[0].part is not None else info.raw[0].basename
        self.options = options
        self._spec = spec

    def encoding(self, name: str) -> Encoding:
        """The encoding of a column."""
        kind = self.layout[2][self.columns.index(name)]
        return get_encoding(str(self.kind) if kind == _IMAGE else kind)

    def label(self) -> Any:
        """The image's label."""
        classes: Mapping[str, int] | None = self._spec.get("numbers")
        if classes is None:  # written by stoker: the file's own folder is the label's text, wherever that lies
            folder = self.path.rpartition("/")[0].rpartition("/")[2]
            if self.encoding(LABEL).name == "str":
                return folder
            try:
                return int(folder)
            except ValueError:
                raise CorruptDataError(
                    f"{self.where}: the folder {folder!r} is no whole number, as labels are"
                ) from None
        folder = folder_of(self.path)
        number = classes.get(folder)
        if number is None:
            raise CorruptDataError(f"{self.where}: the folder {folder!r} is not among the classes of the index")
        return number

    def read(self, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        return _read([self], np.zeros(len(rows), np.int64), rows, columns)


_LAYOUT: Final = "stoker.generation.formats.files:FileLayout"


class FileFormat(Format):
    """One file a shard and a sample: the files as they are."""

    name = "files"
    shard = "a file, which is a sample"
    views = "bytes"
    single = True
    generated: ClassVar[GeneratedFiles | None] = GeneratedFiles(_LAYOUT, (".bin",), one_column=True)

    def inspect_names(self, keys: Sequence[str], settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`stoker.formats.format.Format`. The first folders of images are their classes.

        Settings: ``decode``, of images; false for the files' bytes.
        """
        image = self.name != "files"
        only_settings(settings, ("decode",) if image else (), self.name)
        kind = content_kind(self.name, decode=settings.get("decode", True))
        columns = {content_column(self.name): kind, PATH: "str"}
        folders = sorted({folder_of(key) for key in keys}) if image else [""]
        if "" in folders:
            return {"columns": columns}
        numbers = {folder: number for number, folder in enumerate(folders)}
        return {"columns": {**columns, CLASS: "str", LABEL: "int"}, "numbers": numbers}

    def parse_shard(self, obj: Mapping[str, Any], where: str) -> ShardInfo:
        """See :class:`stoker.formats.format.Format`. ``spec`` is that of MDS."""
        samples = parse_samples(obj, where)
        raw, zipped, compression = parse_files(obj, ("data",), where)
        spec, _ = parse_columns(obj, where)
        if samples != 1 or zipped or not set(spec["column_names"]) <= set(_COLUMNS):
            refuse(where, f"a shard of {self.name} is one file with one sample, not compressed, of known columns")
        return ShardInfo(self.name, samples, raw, zipped, compression, spec)

    def open(
        self, info: ShardInfo, files: Sequence[Buffer], *, where: str, options: ReadOptions = ReadOptions()
    ) -> FileShard:
        return FileShard(info, files[0], where, options)

    def read_many(
        self, shards: Sequence[FileShard], which: Ids, rows: Ids, columns: Sequence[str] | None = None
    ) -> Batch:
        return _read(shards, which, rows, columns)


class JPEGFormat(FileFormat):
    """JPEG files."""

    name = "jpeg"
    aliases = ("jpg",)
    shard = "a file, which is a sample; its folder is its class"
    magic = (SIGNATURES["jpeg"],)
    writer = "stoker.writing.image_folders:JPEGWriter"
    views = ""
    extra = "images"
    generated = GeneratedFiles(_LAYOUT, (".jpeg",), one_column=True, image="jpeg")
    suffixes = SUFFIXES["jpeg"]


class PNGFormat(FileFormat):
    """PNG files."""

    name = "png"
    shard = "a file, which is a sample; its folder is its class"
    magic = (SIGNATURES["png"],)
    writer = "stoker.writing.image_folders:PNGWriter"
    views = ""
    extra = "images"
    generated = GeneratedFiles(_LAYOUT, (".png",), one_column=True, image="png")
    suffixes = SUFFIXES["png"]

    def bad_checksums(self, info: ShardInfo, data: Buffer, where: str) -> Iterator[tuple[int | None, str]]:  # noqa: ARG002
        """CRC-32 of each chunk (PNG specification, section 5.3); all bytes belong to one."""
        at, size, kind = 8, len(data), b""
        while kind != b"IEND":
            length = int.from_bytes(data[at : at + 4], "big")
            end = at + 12 + length
            kind = bytes(data[at + 4 : at + 8])
            if end > size:
                raise CorruptDataError(f"{where}: a PNG file that is cut off in its chunk {kind!r} at byte {at}")
            if zlib.crc32(memoryview(data)[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
                yield 0, f"the chunk {kind!r} at byte {at} does not have its checksum"
            at = end


class ImagesFormat(FileFormat):
    """JPEG and PNG files; the first bytes of each say which it is."""

    name = IMAGES
    shard = "a JPEG or PNG file, which is a sample; its folder is its class"
    views = ""
    extra = "images"
    generated = None
    suffixes = (*SUFFIXES["jpeg"], *SUFFIXES["png"])


def _read(shards: Sequence[FileShard], which: Ids, rows: Ids, columns: Sequence[str] | None) -> Batch:
    first = shards[0]
    wanted = wanted_columns(columns, first.columns, first.where)
    check_rows(rows, 1)
    order = which.tolist()
    return {name: _column(shards, order, name) for name in wanted}


def _column(shards: Sequence[FileShard], order: list[int], name: str) -> Column:
    if name == PATH:
        return [shards[number].path for number in order]
    if name == CLASS:
        return [folder_of(shards[number].path) for number in order]
    if name == LABEL:
        labels = [shards[number].label() for number in order]
        return labels if shards[0].encoding(LABEL).name == "str" else np.array(labels, np.int64)
    values: list[Any] = []
    for number in order:
        shard = shards[number]
        encoding = shard.encoding(name)
        if encoding.verbatim:
            values.append(memoryview(shard.data) if shard.options.views else bytes(shard.data[:]))
        else:
            values += decode_values(encoding, [shard.data[:]], np.zeros(1, np.int64), name, shard.where)
    return values
