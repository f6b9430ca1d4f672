"""Files without an index, each read by itself, without a cache."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from stoker.cache.range_fetch import fetch_part
from stoker.catalog.unindexed.files_location import FilesLocation
from stoker.catalog.unindexed.find_files import find_files
from stoker.catalog.unindexed.inspect_headers import StoreSource, span_array
from stoker.catalog.unindexed.open_files import unindexed_format
from stoker.errors import CorruptDataError, StokerError
from stoker.formats.base import FileInfo, ShardInfo
from stoker.formats.common.byte_source import ByteSource, MappedSource
from stoker.formats.common.checks import most_unpacked
from stoker.formats.common.compression import codec_of, parse_compression
from stoker.formats.common.file_shards import UnindexedFile
from stoker.formats.common.inspect_header import HeaderFacts
from stoker.formats.format import Format
from stoker.inspection.read_files import FileReader
from stoker.storage import ObjectInfo, is_local
from stoker.types import Buffer

# Of remote files, row groups that follow each other are fetched together until they have so many bytes.
_TOGETHER: Final = 16 << 20


class SeparateFiles:
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
        local: whether they are on this machine.
        whole: whether all of a file is read to tell what it holds, of any of them.
    """

    def __init__(self, source: FilesLocation, files: FileReader, name: str, settings: Mapping[str, Any]) -> None:
        self.reader = unindexed_format(name)
        listed = find_files(source, lambda _: files.store, self.reader).sized()
        self.found: Sequence[ObjectInfo] = listed.files
        self.local = is_local(files.store.url) is not None
        self.whole = self.reader.whole or any(self._codec(file) is not None for file in self.found)
        self._beside = listed.beside
        self._files = files
        self._settings = settings = {name: one for name, one in settings.items() if name != "on_bad_files"}
        names = [file.key for file in self.found]
        self._single = HeaderFacts(1, self.reader.inspect_names(names, settings)) if self.reader.single else None

    def files_of(self, file: ObjectInfo) -> tuple[ObjectInfo, ...]:
        """A file and those that belong to it."""
        return (file, *self._beside.get(file.key, ()))

    def inspect(self, file: ObjectInfo, data: Buffer | None = None) -> UnindexedFile:
        """Inspect a file.

        Args:
            file: the file.
            data: its bytes; ``None`` to read what is needed of them.

        Raises:
            StokerError: it is damaged, or can not be read.
        """
        where = self._files.store.url_of(file.key)
        unpacked: int | None = None
        if (codec := self._codec(file)) is not None:
            data = self._unpack(codec, file.key, self._files.read(file.key) if data is None else data)
            unpacked = len(data)
        source: ByteSource = StoreSource(self._files.store, file.key, file.size, where)
        if data is not None:
            source = MappedSource(data, where)
        try:
            facts = self._single or self.reader.inspect_header(source, self._settings)
        except StokerError as error:
            raise error if where in str(error) else type(error)(f"{where}: {error}") from error
        except Exception as error:  # of another package's format
            raise CorruptDataError(f"{where}: {type(error).__name__}: {error}") from error
        beside = self._beside.get(file.key, ())
        return UnindexedFile(file, facts.samples, facts.spec, span_array(facts), beside, unpacked)

    def shards(self, one: UnindexedFile, data: Sequence[Buffer]) -> Iterator[tuple[ShardInfo, list[Buffer]]]:
        """A file's shards, each with the bytes to open.

        Args:
            one: the file.
            data: bytes of all of its files.

        Raises:
            CorruptDataError: the data ends before the last shard does.
        """
        if (codec := self._codec(one.file)) is not None:
            data = [self._unpack(codec, one.key, data[0])]
        for info in self.describe(one):
            start, end = _window_of(info.raw[-1])
            yield info, [*data[:-1], data[-1] if (start, end) == (0, len(data[-1])) else data[-1][start:end]]

    def row_groups(self, one: UnindexedFile) -> Iterator[tuple[tuple[int, int], list[ShardInfo]]]:
        """Row groups that follow each other, with the window of the file that they lie in: one, or some of a remote file.

        Raises:
            CorruptDataError: row groups contradict each other.
        """
        together: list[ShardInfo] = []
        start = end = 0
        for info in self.describe(one):
            first, last = _window_of(info.raw[0])
            low, high = min(start, first), max(end, last)
            if together and (self.local or high - low > _TOGETHER):
                yield (start, end), together
                together = []
            start, end = (low, high) if together else (first, last)
            together.append(info)
        if together:
            yield (start, end), together

    def fetch_shards(self, one: UnindexedFile) -> Iterator[tuple[ShardInfo, list[Buffer]]]:
        """A file's shards, each with the bytes to open, of which no more are read than it has.

        Raises:
            StokerError: they can not be read.
        """
        if self._codec(one.file) is not None or (self.local and not self.reader.row_groups):
            yield from self.shards(one, [self._files.read(file.key) for file in one.files])
            return
        for info in self.describe(one, in_place=False):
            yield info, [self._fetch(file) for file in info.raw]

    def _fetch(self, file: FileInfo) -> Buffer:
        part = file.part
        assert part is not None  # as all files that are described without an index
        return self._files.fetched(lambda path: fetch_part(self._files.store, part, path))

    def describe(self, one: UnindexedFile, *, in_place: bool = True) -> Iterator[ShardInfo]:
        """The shards of a file, as they are mapped where it lies, or as they are fetched.

        Raises:
            CorruptDataError: the data ends before the last shard does, or shards contradict each other.
        """
        return self.reader.describe_shards([one] if one.samples else [], one.spec, in_place=in_place)

    def _codec(self, file: ObjectInfo) -> str | None:
        return codec_of(file.key) if self.reader.packed else None

    def _unpack(self, codec: str, key: str, data: Buffer) -> Buffer:
        """Decompress a file.

        Raises:
            CorruptDataError: it is damaged, or holds more than so few bytes should.
        """
        try:
            return bytes(parse_compression(codec).decompress_unsized(memoryview(data), most_unpacked(len(data))))
        except CorruptDataError as error:
            raise CorruptDataError(f"{self._files.store.url_of(key)}: {error}") from None


def _window_of(file: FileInfo) -> tuple[int, int]:
    assert file.part is not None  # as all files that are described without an index
    return file.part.window


def disagreements(
    reader: Format, specs: Iterable[tuple[str, Mapping[str, Any]]], url_of: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    """Key and message of each file whose columns do not go with those of the files before it.

    Args:
        reader: the format.
        specs: key of each file that has samples, and what it says of its columns.
        url_of: the URL of a key.
    """
    first, agreed = "", None
    for key, spec in specs:
        if agreed is None:
            first, agreed = key, spec
            continue
        try:
            agreed = reader.agree(agreed, spec)
        except ValueError as error:
            yield key, f"{url_of(first)} and {url_of(key)} can not be read together: {error}"
