"""The descriptor of a shard format: its names, its files, and how they are read and checked.

A format is one subclass of :class:`Format` in a folder or module of its own. ``stoker.formats.registry`` leads from its name
to the class; another package's entry point does the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import numpy as np

from stoker.errors import ConfigError, CorruptDataError, FormatError
from stoker.formats.base import ReadOptions, ShardInfo, ShardReader
from stoker.formats.common.checks import (
    MAX_OFFSET,
    mds_spec,
    parse_files,
    parse_settings,
    refuse,
    require,
    string_list,
)
from stoker.formats.unstacked import iterate_each, read_each
from stoker.types import Batch, Buffer, Ids, Sample

if TYPE_CHECKING:
    from stoker.formats.common.file_shards import UnindexedFile
    from stoker.formats.common.inspect_header import ByteSource, HeaderFacts, Partition

_FIRST: Final = np.zeros(1, dtype=np.int64)


class OpenedBy(Protocol):
    """A class of open shards, which is made of a shard's description, its files, what names it in errors, and options."""

    def __call__(
        self, info: ShardInfo, files: Sequence[Buffer], where: str, options: ReadOptions, /
    ) -> ShardReader: ...


class Format:
    """One shard format. Only :attr:`name` and :attr:`reader` have no default.

    Attributes:
        name: what the index and ``format=`` call it.
        reader: the class of open shards.
        aliases: other names that ``format=`` takes.
        shard: what a shard is, in a few words, for the documentation.
        views: what is handed out without a copy with ``views=True``, in words; empty for nothing.
        extra: name of the extra whose packages reading needs.
        roles: what the files of a shard are called in an entry of the index, after ``raw_`` and ``zip_``; the last of them
            has the header, ``u32 samples | u32 offsets | config JSON``.
        unlisted: why an index can not have shards of the format, for formats of which it has none.
        implied: keys of a shard's spec that the name of the format implies, so that entries do not have them.
        types: words for types of columns that are the format's own, without what follows a colon, and the data types that
            they mean.
        text: whether shards are lines, which hold text, whole numbers and floats.
        quoted: whether values in files without an index may be quoted, while those in shards with an index are not.
        single: whether a file is a sample. Nothing of it is read: :meth:`inspect_names` tells the columns.
        row_groups: whether parts of a file are read by columns. :meth:`inspect_header` then gets three more settings:
            ``columns``, which are to be read (``None`` for all); ``predicate``, which shards are; and ``partition``, the
            file's :data:`~stoker.formats.common.inspect_header.Partition` as a dict. The setting ``filters`` says what the
            predicate is, ``hive`` whether folders tell columns.
        suffixes: ends of names of files that are read without an index, in lower case.
        describing: those of them whose files often lie beside a dataset and describe it: they count where nothing else does.
        magic: bytes that such files begin with, any of them; empty where nothing tells.
        beside: ends that replace a file's own, of files that belong to it; the last of them is the one with the data.
        whole: whether :meth:`inspect_header` reads about all of a file, so that it had better be fetched first.
        steps: whether it goes from header to header, so that of a file of large members it reads only the headers.
        packed: whether compressed files of the format are read, too: names that end with one of the suffixes and then one
            of :data:`~stoker.formats.common.compression.PACKED`. They are decompressed once, into the cache.
        settings: names of the settings that :meth:`inspect_header` understands.
        encoder: module and class of the encoder, ``"module:Class"``, of a format of stoker's own that is written and whose
            writer takes nothing beside the columns and the options of all writers.
        iterate: gives the values of columns one by one, by default numbers as Python's own.
    """

    name: ClassVar[str]
    reader: ClassVar[OpenedBy]
    aliases: ClassVar[tuple[str, ...]] = ()
    shard: ClassVar[str] = ""
    views: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    roles: ClassVar[tuple[str, ...]] = ("data",)
    unlisted: ClassVar[str] = ""
    implied: ClassVar[tuple[str, ...]] = ()
    types: ClassVar[Mapping[str, str]] = {}
    text: ClassVar[bool] = False
    quoted: ClassVar[bool] = False
    single: ClassVar[bool] = False
    row_groups: ClassVar[bool] = False
    suffixes: ClassVar[tuple[str, ...]] = ()
    describing: ClassVar[tuple[str, ...]] = ()
    magic: ClassVar[tuple[bytes, ...]] = ()
    beside: ClassVar[tuple[str, ...]] = ()
    whole: ClassVar[bool] = False
    steps: ClassVar[bool] = False
    packed: ClassVar[bool] = False
    settings: ClassVar[tuple[str, ...]] = ()
    encoder: ClassVar[str] = ""
    iterate = staticmethod(iterate_each)

    # -- shards ----------------------------------------------------------------------------------------------------

    def parse_shard(self, obj: Mapping[str, Any], where: str) -> ShardInfo:
        """Check one entry of the index's ``shards`` list; ``where`` names it in errors.

        Raises:
            IndexFileError: a key is missing, of a wrong type, or contradicts another; a basename leaves the root.
            FormatError: an encoding is unknown.
        """
        if self.unlisted:
            refuse(where, self.unlisted)
        version = obj.get("version")
        if version != 2 or isinstance(version, bool):
            refuse(where, f"shard version {version!r} is not supported, only 2")
        samples: int = require(obj, "samples", int, where)
        if not 0 <= samples <= MAX_OFFSET:
            refuse(where, f"{samples} samples is impossible")
        raw, zipped, compression = parse_files(obj, self.roles, where)
        spec = self.parse_spec(obj, where)
        least = self.least_bytes(spec)
        if least is not None and raw[0].bytes < (need := least[0] + samples * least[1]):
            refuse(where, f"{samples} samples need at least {need} bytes, but the shard has {raw[0].bytes}")
        return ShardInfo(self.name, samples, raw, zipped, compression, spec)

    def parse_spec(self, obj: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """The ``spec`` of an entry; arguments and errors are those of :meth:`parse_shard`. Default: that of MDS.

        It holds ``column_names``, ``column_encodings`` and ``column_sizes``, parallel tuples, and the writer's ``hashes`` and
        ``size_limit``; shards where all of these are equal share one.
        """
        names = string_list(obj, "column_names", where)
        encodings = string_list(obj, "column_encodings", where)
        sizes = tuple(require(obj, "column_sizes", list, where))
        try:
            return mds_spec(names, encodings, sizes, *parse_settings(obj, where))[0]
        except FormatError as error:  # an IndexFileError is one
            raise type(error)(f"{where}: {error}") from None
        except TypeError:  # unhashable, so neither int nor null
            refuse(where, "'column_sizes' should hold integers and nulls")

    def least_bytes(self, spec: Mapping[str, Any]) -> tuple[int, int] | None:  # noqa: ARG002
        """Bytes that the first raw file of a shard has at least, and that each sample adds to them.

        Args:
            spec: of the shard, which was checked.

        Returns:
            ``None`` where :meth:`parse_shard` checks more than that of samples and files, beside their usual ranges.
        """
        return None

    def open(
        self, info: ShardInfo, files: Sequence[Buffer], *, where: str, options: ReadOptions = ReadOptions()
    ) -> ShardReader:
        """Open a shard's raw files (parallel to ``info.raw``), checking header, sizes and offsets, not every value.

        Raises:
            CorruptDataError: the bytes contradict the index or themselves; names ``where``.
        """
        return type(self).reader(info, files, where, options)

    def open_cut(
        self,
        info: ShardInfo,
        files: Sequence[Buffer],
        *,
        where: str,
        options: ReadOptions = ReadOptions(),
    ) -> ShardReader:
        """Open a shard of which a file ends too early: rows before that are read, the others are a ``CorruptDataError``.

        Default: none are. Arguments are those of :meth:`open`.

        Raises:
            CorruptDataError: no row can be read; says how long the file is.
        """
        for file, data in zip(info.raw, files, strict=True):
            if len(data) != file.bytes:
                raise CorruptDataError(
                    f"{where}: {file.basename} has {len(data)} bytes, the index says {file.bytes}: copy it or write the "
                    "dataset again"
                )
        return self.open(info, files, where=where, options=options)  # somebody has completed it just now

    def read_many(self, shards: Sequence[Any], which: Ids, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        """Decode samples of several open shards of one layout, in the order given. Default: shard by shard.

        They may be of several batches. A column that is an array or a list by its values, and not always the same, is given
        as a :class:`~stoker.formats.unstacked.Unstacked` where not all of them are one array.

        Args:
            shards: readers that :meth:`open` returned, of equal ``layout``.
            which: for each sample, its shard's index in ``shards``; int64, shape ``(n,)``.
            rows: for each sample, its row in that shard; int64, shape ``(n,)``.
            columns: names to read, default all.
        """
        return read_each(shards, which, rows, columns)

    def iterate_many(
        self, shards: Sequence[Any], which: Ids, rows: Ids, columns: Sequence[str] | None = None
    ) -> dict[str, Iterable[Any]]:
        """Like :meth:`read_many`, for taking samples one by one. Default: all at once, as :attr:`iterate` gives them.

        Returns:
            Column name to its values in order, in the types that users see in a sample; they may be made as they are asked
            for, and errors with them.
        """
        return self.iterate(self.read_many(shards, which, rows, columns))

    def read_one(self, shard: Any, row: int, columns: Sequence[str] | None = None) -> Sample:
        """One sample, in the types of :meth:`iterate_many`. Default: through that.

        Args:
            shard: a reader that :meth:`open` returned.
            row: in ``[0, shard.samples)``.
            columns: names to read, default all.
        """
        values = self.iterate_many([shard], _FIRST, np.array([row], dtype=np.int64), columns)
        return {name: next(iter(items)) for name, items in values.items()}

    def read_ahead(self, shard: Any) -> None:
        """Begin to read what an open shard, from :meth:`open`, will be asked for. Default: nothing.

        For formats whose shards are not files, which a cache reads ahead. It is called in a thread of its own, as far ahead
        as files are fetched.
        """

    def bad_checksums(self, info: ShardInfo, data: Buffer, where: str) -> Iterator[tuple[int | None, str]]:  # noqa: ARG002
        """Row (if it is of one) and message of each checksum in a shard that its bytes do not have. Default: none.

        Args:
            info: the shard.
            data: its data file.
            where: names it.

        Raises:
            CorruptDataError: the file is too damaged to find its checksums.
        """
        return iter(())

    # -- files without an index ------------------------------------------------------------------------------------

    @property
    def unindexed(self) -> bool:
        """Whether files without an index are read: files are samples, or the format has an :meth:`inspect_header`."""
        return self.single or type(self).inspect_header is not Format.inspect_header

    @property
    def file_suffixes(self) -> tuple[str, ...]:
        """Ends of the names of files that are read without an index, in lower case: also of compressed ones."""
        if not self.packed:
            return self.suffixes
        from stoker.formats.common.compression import PACKED

        return (*self.suffixes, *(one + end for one in self.suffixes for end in PACKED))

    def main_name(self, key: str) -> str:
        """The name of the file to which a named file belongs, where the format's are several: ``x.idx`` of ``x.bin``.

        Raises:
            ConfigError: no file of a format of several is named so.
        """
        lower = key.lower()
        if not self.beside or lower.endswith(self.suffixes):
            return key
        end = max((one for one in self.beside if lower.endswith(one)), key=len, default=None)
        if end is None:
            ends = ", ".join((*self.suffixes, *self.beside))
            raise ConfigError(f"{key}: files of format {self.name!r} end with {ends}")
        return key[: len(key) - len(end)] + self.suffixes[0]

    def names_beside(self, key: str) -> list[str]:
        """Names of the files that belong to a file of the format, as :attr:`beside` says."""
        suffix = next((one for one in self.suffixes if key.lower().endswith(one)), os.path.splitext(key)[1])
        return [key[: len(key) - len(suffix)] + end for end in self.beside]

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:  # noqa: ARG002
        """Reads the header of a file without an index.

        Args:
            source: the file.
            settings: what the caller chose, by name; none but :attr:`settings`.

        Raises:
            CorruptDataError, FormatError: it is not of this format, or needs what is not supported; names it.
            ConfigError: the settings do not fit the file.
        """
        raise FormatError(f"{source.where}: files of format {self.name!r} are read only with an index.json")

    def inspect_names(self, keys: Sequence[str], settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """The spec of all files of a format whose files are :attr:`single` samples.

        Args:
            keys: the files, relative to the dataset's root.
            settings: what the caller chose, by name; see :attr:`settings`.

        Raises:
            ConfigError: the settings make no sense.
        """
        raise NotImplementedError

    def describe_shards(
        self,
        files: Sequence[UnindexedFile],
        spec: Mapping[str, Any],
        *,
        in_place: bool,
        partitions: Mapping[str, Partition] | None = None,  # noqa: ARG002
        apart: bool = False,  # noqa: ARG002
    ) -> Iterator[ShardInfo]:
        """Descriptions of the shards of files that have samples, in order.

        Args:
            files: the files.
            spec: of all files together, as :meth:`agree` gives it, with the columns that folders tell.
            in_place: whether files are mapped where they lie.
            partitions: what the folders of each file tell, by its key.
            apart: fetch each shard by itself, however small.

        Raises:
            CorruptDataError: a file contradicts itself.
        """
        from stoker.formats.common.file_shards import describe_file

        for one in files:
            yield from describe_file(self.name, one, spec, in_place=in_place)

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
