"""Files that others wrote, each read by itself, without a cache."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.catalog.unindexed.file_facts import UnindexedFile
from stoker.catalog.unindexed.file_shards import describe_file
from stoker.catalog.unindexed.found_files import FilesLocation, FoundFile
from stoker.catalog.unindexed.inspect_headers import StoreSource
from stoker.catalog.unindexed.listing import find_format_files
from stoker.errors import ConfigError, CorruptDataError, StokerError
from stoker.formats.base import ShardInfo
from stoker.formats.common.byte_source import ByteSource, MappedSource
from stoker.formats.common.checks import most_unpacked
from stoker.formats.common.compression import codec_of, parse_compression
from stoker.formats.common.inspect_header import HeaderFacts
from stoker.formats.one_file import CLASS, LABEL, PATH, FileFormat, content_column, content_kind, folder_of
from stoker.formats.registry import get_format
from stoker.inspection.read_files import FileReader
from stoker.types import Buffer

__all__ = ["FormatFiles", "FileGroup"]


@dataclass(frozen=True, slots=True)
class FileGroup:
    """A file, and those that belong to it.

    Attributes:
        file: the one that tells what it holds.
        beside: the others; the last of them holds the data.
    """

    file: FoundFile
    beside: tuple[FoundFile, ...]

    @property
    def all(self) -> tuple[FoundFile, ...]:
        """All of them."""
        return (self.file, *self.beside)

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(one.size for one in self.all)


class FormatFiles:
    """Files of one format.

    Args:
        source: which files.
        files: reads them.
        name: the format.
        settings: what the format's ``inspect_header`` understands.

    Raises:
        ConfigError: files of this format are not read without an index.
        ObjectNotFoundError: there are none.

    Attributes:
        reader: the format.
        found: the files.
        single: whether each is a sample.
        whole: whether all of a file is read to tell what it holds, of any of them.
    """

    def __init__(self, source: FilesLocation, files: FileReader, name: str, settings: Mapping[str, Any]) -> None:
        self.reader = get_format(name)
        self.single: bool = isinstance(self.reader, FileFormat)
        if not self.single and not self.reader.unindexed:
            raise ConfigError(f"format={name!r} is read only from datasets that have an index.json")
        suffixes = self.reader.file_suffixes
        ends = self.reader.beside
        _, _, listed, beside = find_format_files(source, lambda _: files.store, suffixes, name, ends)
        self.found = [FileGroup(file, beside.get(file.key, ())) for file in listed]
        self._files = files
        self._settings = settings
        self.whole = self.reader.whole or any(self._codec(one) is not None for one in self.found)

    def single_spec(self) -> Mapping[str, Any]:
        """Columns of files that are a sample each; folders are classes."""
        name = self.reader.name
        image = name != "files"
        columns = {content_column(name): content_kind(name), PATH: "str"}
        folders = sorted({folder_of(one.file.key) for one in self.found}) if image else [""]
        if "" in folders:
            return {"columns": columns}
        numbers = {folder: number for number, folder in enumerate(folders)}
        return {"columns": {**columns, CLASS: "str", LABEL: "int"}, "numbers": numbers}

    def inspect_header(self, one: FileGroup, data: Buffer | None = None) -> HeaderFacts:
        """What a file holds.

        Args:
            one: the file.
            data: its bytes; ``None`` to read what is needed of them.

        Raises:
            StokerError: it is damaged, or can not be read.
        """
        where = self._files.store.url_of(one.file.key)
        source: ByteSource
        if data is None and self._codec(one) is not None:
            data = self._files.read(one.file.key)
        if data is not None:
            source = MappedSource(self._plain(one, data), where)
        else:
            source = StoreSource(self._files.store, one.file.key, one.file.size, where)
        try:
            header: HeaderFacts = self.reader.inspect_header(source, self._settings)
        except StokerError:
            raise
        except Exception as error:  # of another package's format
            raise CorruptDataError(f"{where}: {type(error).__name__}: {error}") from error
        return header

    def shards(
        self, one: FileGroup, header: HeaderFacts, data: Sequence[Buffer]
    ) -> Iterator[tuple[ShardInfo, list[Buffer]]]:
        """A file's shards, each with the bytes to open.

        Args:
            one: the file.
            header: what it holds.
            data: bytes of all of its files.

        Raises:
            CorruptDataError: the data ends before the last shard does.
        """
        pieces = tuple((piece.start, piece.end, piece.samples) for piece in header.pieces)
        size = one.file.size
        if self._codec(one) is not None:
            data = [self._plain(one, data[0])]
            size = len(data[0])
        file = UnindexedFile(one.file.key, size, one.file.version, header.samples, header.spec, pieces, one.beside)
        for info in describe_file(self.reader.name, file, header.spec, in_place=False):
            *heads, last = data
            part = info.raw[-1].part
            if part is not None and (part.starts[0], part.ends[0]) != (0, len(last)):
                last = last[part.starts[0] : part.ends[0]]
            yield info, [*heads, last]

    def _codec(self, one: FileGroup) -> str | None:
        return codec_of(one.file.key) if self.reader.packed else None

    def _plain(self, one: FileGroup, data: Buffer) -> Buffer:
        """A file's bytes, or of a compressed one what comes out.

        Raises:
            CorruptDataError: it is damaged, or holds more than so few bytes should.
        """
        codec = self._codec(one)
        if codec is None:
            return data
        try:
            return bytes(parse_compression(codec).decompress_unsized(memoryview(data), most_unpacked(len(data))))
        except CorruptDataError as error:
            raise CorruptDataError(f"{self._files.store.url_of(one.file.key)}: {error}") from None
