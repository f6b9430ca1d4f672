"""What every shard format provides: from the bytes of a shard's files to columns.

A *shard* is one file, or a data file and a meta file, that the index describes by a :class:`ShardInfo`. A
:class:`Format` checks such a description and opens the bytes as a :class:`ShardReader`. Formats know
neither networks nor caches.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from stoker.types import Batch, Buffer, Ids

__all__ = ["FileInfo", "Format", "ReadOptions", "ShardInfo", "ShardReader"]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file of a shard, as the index describes it.

    Attributes:
        basename: path relative to the dataset's root, ``/``-separated; checked to stay inside it.
        bytes: size in bytes.
        hashes: algorithm name to lower-case hex digest of the whole file; may be empty.
    """

    basename: str
    bytes: int
    hashes: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard, as the index describes it.

    Attributes:
        format: name of the format (``mds``, ``json``, ``csv``, ``tsv``, ``xsv``).
        samples: number of samples; may be 0.
        raw: the uncompressed files (one for MDS; data and meta for JSON and XSV).
        zip: the compressed files, parallel to ``raw``; empty where the shard is stored uncompressed.
        compression: codec with optional level (``"zstd"``, ``"zstd:7"``), or ``None``.
        spec: what else the format needs, as found in the index (column names, encodings, separator, ...).
    """

    format: str
    samples: int
    raw: tuple[FileInfo, ...]
    zip: tuple[FileInfo, ...]
    compression: str | None
    spec: Mapping[str, Any]

    @property
    def stored(self) -> tuple[FileInfo, ...]:
        """The files as they lie in the remote store: compressed if there are such, else raw."""
        return self.zip or self.raw


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How samples are handed out.

    Attributes:
        allow_unsafe_types: decode columns whose decoding can run code from the data.
        views: hand out values that lie in the file as they are (``bytes``) as views of it, without a copy.
    """

    allow_unsafe_types: bool = False
    views: bool = False


class ShardReader(Protocol):
    """An open shard. Thread-safe: reads share no state that they change."""

    @property
    def format(self) -> str:
        """Name of the shard's format."""
        ...

    @property
    def layout(self) -> Hashable:
        """Equal for shards that :meth:`Format.read_many` can read together: same format, same columns and encodings."""
        ...

    @property
    def samples(self) -> int:
        """Number of samples in the shard."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns, in the shard's order."""
        ...

    def read(self, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        """Decode ``rows`` (int64, each in ``[0, samples)``, any order, repeats allowed) of ``columns`` (default all).

        Raises:
            CorruptDataError: bytes contradict themselves; names the shard, the column and the row.
            UnsafeDataError: a pickled column and no consent.
        """
        ...


class Format(Protocol):
    """One shard format."""

    @property
    def name(self) -> str:
        """The name that the index gives it."""
        ...

    def parse_shard(self, obj: Mapping[str, Any], where: str) -> ShardInfo:
        """Check one entry of the index's ``shards`` list; ``where`` names it in errors.

        Raises:
            IndexFileError: a key is missing, of a wrong type, or contradicts another; a basename leaves the root.
        """
        ...

    def open(
        self, info: ShardInfo, files: Sequence[Buffer], *, where: str, options: ReadOptions = ReadOptions()
    ) -> ShardReader:
        """Open a shard's raw files (parallel to ``info.raw``), checking header, sizes and offsets, not every value.

        Raises:
            CorruptDataError: the bytes contradict the index or themselves; names ``where``.
        """
        ...

    def read_many(self, shards: Sequence[Any], which: Ids, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        """Decode samples of several open shards of one layout, in the order given.

        Args:
            shards: readers that :meth:`open` returned, of equal ``layout``.
            which: for each sample, its shard's place in ``shards``; int64, shape ``(n,)``.
            rows: for each sample, its row in that shard; int64, shape ``(n,)``.
            columns: names to read, default all.
        """
        ...

    def iterate_many(
        self, shards: Sequence[Any], which: Ids, rows: Ids, columns: Sequence[str] | None = None
    ) -> dict[str, Iterable[Any]]:
        """Like :meth:`read_many`, for taking samples one by one.

        Returns:
            Column name to its values in order, in the types that users see in a sample; they may be made as they are asked
            for, and errors with them.
        """
        ...
