"""A shard that was loaded: fetched, if need be, and opened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stoker.errors import CorruptDataError
from stoker.formats.base import ReadOptions, ShardInfo, ShardReader
from stoker.formats.format import Format
from stoker.formats.media.source import StoredFile
from stoker.storage.files.mapped import MappedFile
from stoker.types import Buffer


class Loaded(NamedTuple):
    """A shard that was fetched, if need be, and opened, and is to be kept open.

    Attributes:
        shard: its number.
        reader: its reader.
        maps: maps of its files.
        fetched: whether it was not in the cache.
        size: bytes of the shard.
        counted: those of them that were opened now.
        held: bytes that are held in memory although the cache has them.
        seconds: that fetching it took; 0 where nothing was fetched from a store.
        work: seconds of them in which a thread of this process computed.
    """

    shard: int
    reader: ShardReader
    maps: list[MappedFile]
    fetched: bool
    size: int
    counted: int
    held: int
    seconds: float
    work: float

    @classmethod
    def of(
        cls,
        shard: int,
        info: ShardInfo,
        reader: ShardReader,
        files: Sequence[Buffer],
        *,
        fetched: bool,
        held: bool,
        took: tuple[float, float] = (0.0, 0.0),
    ) -> Loaded:
        """A shard of which these files were opened; ``held`` says whether the cache has what is not mapped, too."""
        maps = [file for file in files if isinstance(file, MappedFile)]
        size = info.size
        counted = 0 if isinstance(info.detail, StoredFile) else size  # its handle reads it
        return cls(shard, reader, maps, fetched, size, counted, size if held and not maps else 0, *took)


def open_files(
    form: Format, info: ShardInfo, files: Sequence[Buffer], where: str, options: ReadOptions, *, cut: bool = False
) -> ShardReader:
    """Open a shard's files, and compare the checksums in them where that is asked for.

    Raises:
        CorruptDataError: they are not what the index describes.
    """
    opened = (form.open_cut if cut else form.open)(info, files, where=where, options=options)
    if options.checksums and files:  # rows of tables have no files here
        for row, message in form.bad_checksums(info, files[0], where):
            raise CorruptDataError(f"{where}: {'' if row is None else f'row {row}: '}{message}")
    return opened
