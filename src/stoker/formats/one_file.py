"""A file a sample: ``files`` as they are, ``jpeg``, ``png`` and ``images`` (both) as images, whose folders are their classes.

A shard is one file, so nothing has to be prepared, and the shuffle of shards is one of samples.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import check_rows, decode_values, refuse, wanted_columns
from stoker.formats.common.entries import column_words
from stoker.formats.format import Format
from stoker.formats.mds.encodings import Encoding, get_encoding
from stoker.formats.media.source import HANDLED, MEDIA, BytesInMemory, MediaSource, StoredFile
from stoker.types import Batch, Buffer, Column, Ids

if TYPE_CHECKING:
    from stoker.formats.media.columns import Handle

_HANDLED: Final = frozenset(HANDLED)

PATH: Final = "path"
"""Column of the file's path below the root."""
CLASS: Final = "class"
"""Column of the name of the folder that an image is in, the first below the root."""
LABEL: Final = "label"
"""Column of the class's number among all, by name; of images that stoker wrote, the label that was given."""

OTHER_PICTURES: Final = (".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif")
"""Suffixes of pictures that no format opens, and that ``stoker.image`` decodes."""
BYTES_OF_ALL: Final = "format='files' has the bytes of all, which stoker.image decodes"
"""The remedy that errors and warnings about :data:`OTHER_PICTURES` name."""

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


def class_numbers(paths: Sequence[str]) -> dict[str, int] | None:
    """The number of each class of images, which is the first folder of its path; ``None`` where one is in no folder."""
    folders = sorted(set(map(folder_of, paths)))
    return None if "" in folders else {folder: number for number, folder in enumerate(folders)}


@dataclass(frozen=True, slots=True)
class FileKind:
    """Settings that all shards of a dataset of files have in common. ``columns``: names of their columns."""

    format: str
    spec: Mapping[str, Any]
    options: ReadOptions
    columns: tuple[str, ...]
    layout: tuple[str, tuple[str, ...], tuple[str, ...]]

    @classmethod
    def of(cls, name: str, spec: Mapping[str, Any], options: ReadOptions) -> FileKind:
        """The kind by a shard's description."""
        words = column_words(spec)
        return cls(name, spec, options, tuple(words), (name, tuple(words), tuple(words.values())))


class FileShard:
    """An open file. ``path``: of the file below the dataset's root. CorruptDataError if it is not of the format."""

    unsafe: ClassVar[Mapping[str, str]] = {}
    samples: ClassVar[int] = 1
    __slots__ = ("_common", "data", "kind", "layout", "path", "where")

    def __init__(self, common: FileKind, data: Buffer, path: str, where: str) -> None:
        begins = data[:8]
        for kind in _KINDS.get(common.format) or (common.format,):
            if begins.startswith(SIGNATURES[kind]):
                break
        else:
            raise _other_file(common.format, begins, where)
        self.kind = kind
        self.layout = common.layout
        self.data = data
        self.path = path
        self.where = where
        self._common = common

    @property
    def format(self) -> str:
        return self._common.format

    @property
    def columns(self) -> tuple[str, ...]:
        return self._common.columns

    @property
    def options(self) -> ReadOptions:
        """Options by which its sample is handed out."""
        return self._common.options

    def encoding(self, name: str) -> Encoding:
        """The encoding of a column."""
        kind = self.layout[2][self.columns.index(name)]
        return get_encoding(self.kind if kind == _IMAGE else kind)

    def label(self) -> Any:
        """The image's label."""
        classes: Mapping[str, int] | None = self._common.spec.get("numbers")
        if classes is None:  # written by stoker: the file's own folder is the label's text, wherever that lies
            folder = self.path.rpartition("/")[0].rpartition("/")[2]
            if self.encoding(LABEL).name == "str":
                return folder
            try:
                return int(folder)
            except ValueError:
                raise CorruptDataError(
                    f"{self.where}: the folder {folder!r} is not a whole number, as labels are"
                ) from None
        folder = folder_of(self.path)
        number = classes.get(folder)
        if number is None:
            raise CorruptDataError(f"{self.where}: the folder {folder!r} is not among the classes of the index")
        return number

    def read(self, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        return _read([self], np.zeros(len(rows), np.int64), rows, columns)


class HandleShard(FileShard):
    """A file of which nothing is read here: its sample has a handle, which reads what it needs.

    ``source``: its bytes, or the place where they are. ``path``: of the file below the dataset's root.
    """

    __slots__ = ("_source",)

    def __init__(self, common: FileKind, source: MediaSource, path: str, where: str) -> None:
        self.kind, self.layout, self.data, self.path, self.where = common.format, common.layout, b"", path, where
        self._common = common
        self._source = source

    def handle(self) -> Handle:
        """A new handle."""
        from stoker.formats.media.columns import HANDLES  # most files are none

        return HANDLES[self._common.spec["columns"][content_column(self.format)]].of(self._source)


def _other_file(name: str, begins: bytes, where: str) -> CorruptDataError:
    kinds = _KINDS.get(name, (name,))
    remedy = "" if len(kinds) > 1 else f'; format="{IMAGES}" reads JPEG and PNG alike'
    return CorruptDataError(f"{where}: not a {' or '.join(map(str.upper, kinds))} file: it begins {begins!r}{remedy}")


def _read(shards: Sequence[FileShard], which: Ids, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
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
    handles = [shard.handle() for shard in map(shards.__getitem__, order) if isinstance(shard, HandleShard)]
    if handles:
        return handles
    values: list[Any] = []
    encodings: dict[str, Encoding] = {}
    for number in order:
        shard = shards[number]
        encoding = encodings.get(shard.kind)
        if encoding is None:
            encoding = encodings[shard.kind] = shard.encoding(name)
        if encoding.verbatim:
            values.append(memoryview(shard.data) if shard.options.views else bytes(shard.data[:]))
        else:
            values += decode_values(encoding, [shard.data[:]], np.zeros(1, np.int64), name, shard.where)
    return values


class FileFormat(Format):
    """One file a shard and a sample: the files as they are."""

    name = "files"
    shard = "a file, which is a sample"
    views = "bytes"
    single = True
    settings = (MEDIA,)

    def inspect_names(self, keys: Sequence[str], settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`stoker.formats.format.Format`. The first folders of images are their classes.

        Settings: ``decode``, of images; false for the files' bytes. ``media``, of other files; ``"video"`` or ``"audio"`` for
        handles that read what a clip needs, instead of the files' bytes.
        """
        kind = content_kind(self.name, decode=settings.get("decode", True))
        if (media := settings.get(MEDIA)) is not None:
            if media not in HANDLED:
                raise ConfigError(f"format 'files': {MEDIA}={media!r}: 'video', 'audio', or none for the files' bytes")
            kind = media
        columns = {content_column(self.name): kind, PATH: "str"}
        numbers = class_numbers(keys) if self.name != "files" else None
        if numbers is None:
            return {"columns": columns}
        return {"columns": {**columns, CLASS: "str", LABEL: "int"}, "numbers": numbers}

    def parse_shard(self, obj: Mapping[str, Any], where: str) -> ShardInfo:
        info = super().parse_shard(obj, where)
        if info.samples != 1 or info.zip or not set(info.spec["column_names"]) <= set(_COLUMNS):
            refuse(where, f"a shard of {self.name} is one file with one sample, not compressed, of known columns")
        return info

    def open(
        self, info: ShardInfo, files: Sequence[Buffer], *, where: str, options: ReadOptions = ReadOptions()
    ) -> FileShard:
        kind = FileKind.of(info.format, info.spec, options)
        if isinstance(info.detail, StoredFile):
            return HandleShard(kind, info.detail.source, info.detail.key, where)
        data, file = files[0], info.raw[0]
        if len(data) != file.bytes or info.samples != 1:
            raise CorruptDataError(f"{where}: the file has {len(data)} bytes, the index says {file.bytes}")
        path = file.basename if file.part is None else file.part.key
        if not _HANDLED.isdisjoint(kind.layout[2]):
            return HandleShard(kind, BytesInMemory(memoryview(data), "a file"), path, where)
        return FileShard(kind, data, path, where)

    read_many = staticmethod(_read)


class _ImageFormat(FileFormat):
    """Base of the formats of images."""

    shard = "a file, which is a sample; its folder is its class"
    views = ""
    extra = "images"
    settings = ("decode",)


class JPEGFormat(_ImageFormat):
    """JPEG files."""

    name = "jpeg"
    aliases = ("jpg",)
    magic = (SIGNATURES["jpeg"],)
    suffixes = SUFFIXES["jpeg"]


class PNGFormat(_ImageFormat):
    """PNG files."""

    name = "png"
    magic = (SIGNATURES["png"],)
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


class ImagesFormat(_ImageFormat):
    """JPEG and PNG files; the first bytes of each say which it is."""

    name = IMAGES
    shard = "a JPEG or PNG file, which is a sample; its folder is its class"
    suffixes = (*SUFFIXES["jpeg"], *SUFFIXES["png"])
