"""The descriptor of a shard format: its names, its files, and how they are read, written, checked and generated.

A format is one subclass of :class:`Format` in a folder or module of its own. ``stoker.formats.registry`` leads from its name
to the class; another package's entry point does the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from stoker.errors import FormatError
from stoker.formats.base import ReadOptions, ShardInfo, ShardReader
from stoker.formats.common.byte_source import ByteSource
from stoker.formats.common.compression import PACKED
from stoker.formats.common.inspect_header import HeaderFacts
from stoker.formats.common.merge import iterate_each, read_each
from stoker.types import Batch, Buffer, Ids

__all__ = ["Format"]


class Format(ABC):
    """One shard format. Only :attr:`name`, :meth:`parse_shard` and :meth:`open` have no default.

    Attributes:
        name: what the index and ``format=`` call it.
        suffixes: ends of names of files that are read without an index, in lower case.
        beside: ends that replace a file's own, of files that belong to it; the last of them is the one with the data.
        whole: whether :meth:`inspect_header` reads about all of a file, so that it had better be fetched first.
        steps: whether it goes from header to header, so that of a file of large members it reads only the headers.
        packed: whether compressed files of the format are read, too: names that end with one of the suffixes and then one
            of :data:`~stoker.formats.common.compression.PACKED`. They are decompressed once, into the cache.
        settings: names of the settings that :meth:`inspect_header` understands.
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    beside: ClassVar[tuple[str, ...]] = ()
    whole: ClassVar[bool] = False
    steps: ClassVar[bool] = False
    packed: ClassVar[bool] = False
    settings: ClassVar[tuple[str, ...]] = ()

    # -- shards ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def parse_shard(self, obj: Mapping[str, Any], where: str) -> ShardInfo:
        """Check one entry of the index's ``shards`` list; ``where`` names it in errors.

        Raises:
            IndexFileError: a key is missing, of a wrong type, or contradicts another; a basename leaves the root.
        """

    @abstractmethod
    def open(
        self, info: ShardInfo, files: Sequence[Buffer], *, where: str, options: ReadOptions = ReadOptions()
    ) -> ShardReader:
        """Open a shard's raw files (parallel to ``info.raw``), checking header, sizes and offsets, not every value.

        Raises:
            CorruptDataError: the bytes contradict the index or themselves; names ``where``.
        """

    def read_many(self, shards: Sequence[Any], which: Ids, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        """Decode samples of several open shards of one layout, in the order given. Default: shard by shard.

        Args:
            shards: readers that :meth:`open` returned, of equal ``layout``.
            which: for each sample, its shard's place in ``shards``; int64, shape ``(n,)``.
            rows: for each sample, its row in that shard; int64, shape ``(n,)``.
            columns: names to read, default all.
        """
        return read_each(shards, which, rows, columns)

    def iterate_many(
        self, shards: Sequence[Any], which: Ids, rows: Ids, columns: Sequence[str] | None = None
    ) -> dict[str, Iterable[Any]]:
        """Like :meth:`read_many`, for taking samples one by one. Default: all at once, numbers as Python's own.

        Returns:
            Column name to its values in order, in the types that users see in a sample; they may be made as they are asked
            for, and errors with them.
        """
        return iterate_each(self.read_many(shards, which, rows, columns))

    # -- files without an index ------------------------------------------------------------------------------------

    @property
    def unindexed(self) -> bool:
        """Whether files without an index are read: the format has an :meth:`inspect_header`."""
        return type(self).inspect_header is not Format.inspect_header

    @property
    def file_suffixes(self) -> tuple[str, ...]:
        """Ends of the names of files that are read without an index, in lower case: also of compressed ones."""
        return (
            (*self.suffixes, *(one + end for one in self.suffixes for end in PACKED)) if self.packed else self.suffixes
        )

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:  # noqa: ARG002
        """What a file holds that no index describes.

        Args:
            source: the file.
            settings: what the caller chose, by name; see :attr:`settings`.

        Raises:
            CorruptDataError, FormatError: it is not of this format, or needs what is not supported; names it.
            ConfigError: the settings do not fit the file.
        """
        raise FormatError(f"{source.where}: files of format {self.name!r} are read only with an index.json")

    def agree(self, first: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
        """The spec of two files together.

        Raises:
            ValueError: they can not be read together; says why.
        """
        if first == other:
            return first
        for name in dict.fromkeys((*first["columns"], *other["columns"])):
            one, two = first["columns"].get(name, "missing"), other["columns"].get(name, "missing")
            if one != two:
                raise ValueError(f"{name!r} is {one} in the first and {two} in the second")
        raise ValueError("they differ in layout")
