"""Descriptions of shards and their files, and the protocol of an open shard.

A *shard* is one file, or a data file and a meta file, that the index describes by a :class:`ShardInfo`. A
:class:`~stoker.formats.format.Format` checks such a description and opens the bytes as a :class:`ShardReader`. Formats
know neither networks nor caches.
"""

from __future__ import annotations

import mmap
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from stoker.arguments import at_least, check_argument, checked, must_be
from stoker.errors import ConfigError
from stoker.policy import decoded_memory
from stoker.types import Batch, CacheKind, Ids, StartMethod
from stoker.units import parse_bytes

if TYPE_CHECKING:
    from stoker.order.subsets import QuarantineSource
else:  # who writes shards imports no order
    QuarantineSource = Any

RunIn: TypeAlias = Literal["threads", "processes", "auto"]
"""Where functions of samples run: threads of the process that reads, processes of stoker's own, or whichever is faster."""

UNKNOWN: Final = -1
"""Size of a file that only decompressing it tells."""

NO_HASHES: Final[Mapping[str, str]] = {}
"""Hashes of a file without any: one dict for all, as an index may have millions of files."""


@dataclass(frozen=True, slots=True)
class FilePart:
    """Byte ranges of a file that is not read whole.

    Attributes:
        key: the file, relative to the dataset's root.
        size: bytes of the whole file when it was indexed.
        version: what changes when the file is replaced (an ETag, a time of last change); empty where nothing tells.
        starts: where each range begins; rising, and no range overlaps another.
        in_place: whether the file is mapped where it lies. Then what is opened is a window of it: all from the first
            range's start, less one, rounded down to :data:`mmap.ALLOCATIONGRANULARITY`, to the last range's end.
            Otherwise it is a file of the cache that holds the ranges one after the other. Of a compressed file, the range
            is in the cache, where it is decompressed whole, and all else is said of what comes out.
        head: bytes that come before the ranges in such a file of the cache.
    """

    key: str
    size: int
    version: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    in_place: bool
    head: bytes = b""

    @property
    def window(self) -> tuple[int, int]:
        """First byte and end of what is mapped of a file in place. The first range does not begin at the first byte."""
        if self.ends[-1] == self.starts[0]:
            return self.starts[0], self.starts[0]
        return max(0, self.starts[0] - 1) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY, self.ends[-1]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file of a shard, as the index describes it.

    Attributes:
        basename: path relative to the dataset's root, ``/``-separated; checked to stay inside it.
        bytes: size in bytes.
        hashes: algorithm name to lower-case hex digest of the whole file; may be empty.
        part: of which file, and which bytes of it, this is; ``None`` for a whole file. Shards of one file share
            what they are read from, so such a basename may come more than once in an index.
    """

    basename: str
    bytes: int
    hashes: Mapping[str, str]
    part: FilePart | None = None

    @property
    def whole(self) -> int:
        """Bytes of the file as it lies where it is mapped, all parts of it."""
        return self.part.size if self.part is not None and self.part.in_place else self.bytes


class ShardDetail(Protocol):
    """Facts of one shard that a format needs beyond the ``spec`` that shards share."""

    @property
    def bytes(self) -> int:
        """Bytes of this shard alone, of files that it shares with others."""

    @property
    def identity(self) -> str:
        """Tells the shard from others, wherever the dataset lies and whatever columns are read."""


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard, as the index describes it.

    Attributes:
        format: name of the format (``mds``, ``json``, ``csv``, ``tsv``, ``xsv``, ``parquet``).
        samples: number of samples; may be 0.
        raw: the uncompressed files (one for MDS; data and meta for JSON and XSV).
        zip: the compressed files, parallel to ``raw``; empty where the shard is stored uncompressed.
        compression: codec with optional level (``"zstd"``, ``"zstd:7"``), or ``None``.
        spec: what else the format needs, as found in the index (column names, encodings, separator, ...).
        detail: what the format needs for this shard alone; ``None`` for formats whose shards are files.
    """

    format: str
    samples: int
    raw: tuple[FileInfo, ...]
    zip: tuple[FileInfo, ...]
    compression: str | None
    spec: Mapping[str, Any]
    detail: ShardDetail | None = None

    @property
    def size(self) -> int:
        """Bytes of the shard's raw files, or of its own part of them."""
        if self.detail is not None:
            return self.detail.bytes
        return sum(file.bytes for file in self.raw)

    @property
    def stored(self) -> tuple[FileInfo, ...]:
        """The files as they lie in the remote store: compressed if there are such, else raw."""
        return self.zip or self.raw


@checked
@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of reading. Except for ``quarantine``, they change neither the samples of an epoch nor their order.

    >>> ReadOptions(views=True, decoded_limit="2gb").decoded_bytes
    2147483648

    Attributes:
        ids: name of an additional column with each sample's id, the number that ``dataset[id]`` takes. A transform gets this
            column with the others, and must return it.
        quarantine: samples to exclude, in whose place other samples come: ``SkipSteps`` and ``SkipIds`` in a list, or a file
            that lists them. The file is read at the start of each epoch and after a state was loaded, so you can add lines
            during training. See docs/lineage.md.
        cache: ``"disk"``: shards of a remote are kept in files below ``local``, which all processes of the node share.
            ``"memory"``: they are held in memory from before a process of the node needs them until none does, and written
            nowhere: less work where an epoch is all there is, or there is no disk. ``cache_limit`` is then what the node's
            processes hold together; default 8 GiB, or half of the memory of the machine or container.
        allow_unsafe_types: decode columns whose decoding can run code from the data (``pkl``).
        views: hand out values that lie in the file as they are (``bytes``) as read-only views of the mapped shard, without a
            copy, for decoders that take any buffer; of Parquet, fixed-width columns of consecutive rows, as read-only
            arrays. A view keeps its shard's file mapped.
        decoded_limit: bytes (int or ``"2gb"``) of decoded row groups that each process keeps. ``None``: 1 GiB, or an eighth
            of the memory of the machine or container. One row group is kept whatever its size, unless a column of it is over
            this, over 1 GiB and over 16 times what is stored: that is refused.
        read_threads: threads that read (and transform) ahead of the consumer. ``None``: with a transform one for each
            processor, 8 at most; up to 4, and no more than this process's part of the processors, for batches of lines of
            text, which are parsed; else, and in DataLoader workers, none. With ``tune="auto"`` these are those at the
            beginning. A transform that draws from a global random generator needs 0, which runs it in the consumer's thread,
            to be reproducible; 1 will do if nobody else draws.
        run_in: where transforms and chains run: ``"threads"`` of this process; ``"processes"`` of stoker's own, for functions
            that hold Python's lock; ``"auto"``: threads, or processes where these get clearly more done, which is measured
            with the first batches. See docs/transforms.md. In DataLoader workers, in these.
        read_processes: processes that read ahead. ``None``: one for each processor, 8 at most, at the beginning.
        start_method: ``"spawn"``: fresh processes, which import the functions; ``"fork"``: copies of this one, which have
            them, and are not safe where other threads run or a GPU is in use.
        download_threads: shards fetched at once by this process. ``None``: at least 8, and up to 128 small ones where storage
            answers late: as many as keep this process at work, by the time that fetches take.
        compare_ranks: in an epoch's first batch, see that the ranks of an initialised ``torch.distributed`` read the same
            data in the same order, and each its own part: through the process group's store, without waiting for any of them.
            Ranks that are out of step are a warning.
        checksums: compare the checksums that a shard carries in itself (arrays of NPZ, records of TFRecord, chunks of PNG,
            pages of Parquet) when it is opened, which reads all of it. Hashes of an index are compared in any case.
        tune: ``"auto"``: threads or processes, steps read ahead, lookahead and downloads are chosen anew while the consumer
            waits, by what the waiting is for, and kept where it becomes less; those that are set stay as they are. Which
            sample comes when does not change, but in how many steps they are read may, and so ``stats().reads``.
            ``"off"``: all stay as they are at the beginning. See :class:`~stoker.pipeline.tuning.tuner.Tuner`.
        tune_memory: bytes (int or ``"2gb"``) that what is read and fetched ahead may take in a rank, its DataLoader workers
            included. ``None``: a quarter of what is free when reading begins, divided among the processes of the node.
        decoded_bytes: ``decoded_limit`` as a number.

    Raises:
        ConfigError: a number out of range.
    """

    ids: str | None = None
    quarantine: QuarantineSource | None = None
    cache: CacheKind = "disk"
    allow_unsafe_types: bool = False
    views: bool = False
    decoded_limit: int | str | None = None
    read_threads: int | None = None
    run_in: RunIn = "threads"
    read_processes: int | None = None
    start_method: StartMethod = "spawn"
    download_threads: int | None = None
    compare_ranks: bool = True
    checksums: bool = False
    tune: Literal["auto", "off"] = "auto"
    tune_memory: int | str | None = None
    decoded_bytes: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        decoded = decoded_memory() if self.decoded_limit is None else parse_bytes(self.decoded_limit, "decoded_limit")
        object.__setattr__(self, "decoded_bytes", decoded)
        if self.quarantine is not None:
            from stoker.order.subsets import QuarantineSource as Source

            such = "such as [SkipSteps(340, 343, epoch=0, global_batch=512), SkipIds([17])], or the path of a file"
            given = check_argument("ReadOptions", "quarantine", Source, self.quarantine, such)
            object.__setattr__(self, "quarantine", given)
        at_least(0, read_threads=self.read_threads)
        at_least(1, read_processes=self.read_processes, download_threads=self.download_threads)
        if self.run_in == "threads" and (self.read_processes is not None or self.start_method != "spawn"):
            raise ConfigError("read_processes= and start_method= are for processes: give run_in='processes' or 'auto'")
        if self.run_in == "processes" and self.read_threads is not None:
            raise ConfigError("read_threads= is for threads, and run_in='processes': give read_processes=")
        if self.run_in == "auto" and self.read_threads == 0:
            raise ConfigError(
                "read_threads=0 runs functions in the consumer's thread, and run_in='auto' in threads or processes: leave "
                "out one of them"
            )
        must_be("at least 1 byte", self.tune_memory is None or self.tuned_bytes >= 1, tune_memory=self.tune_memory)
        if self.tune_memory is not None and self.tune == "off":
            raise ConfigError(
                "tune_memory= bounds what the tuner takes, which is off: leave out tune='off', or tune_memory="
            )

    @property
    def tuned_bytes(self) -> int:
        """``tune_memory`` as a number; 0: it is not given."""
        return 0 if self.tune_memory is None else parse_bytes(self.tune_memory, "tune_memory")


IN_READ_OPTIONS: Final[Mapping[str, str]] = {
    option.name: f"it is in read=ReadOptions({option.name}=...)"
    for option in fields(ReadOptions)
    if option.init and option.name != "allow_unsafe_types"
}
"""The remedy for each option of :class:`ReadOptions` that is given to a loader as an argument, by its name."""


class ShardReader(Protocol):
    """An open shard. Thread-safe: reads share no state that they change."""

    @property
    def format(self) -> str:
        """Name of the shard's format."""

    @property
    def layout(self) -> Hashable:
        """Equal for shards that ``Format.read_many`` can read together: same format, same columns and encodings."""

    @property
    def samples(self) -> int:
        """Number of samples in the shard."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns, in the shard's order."""

    @property
    def unsafe(self) -> Mapping[str, str]:
        """Columns whose decoding can run code from the data, and the names of their encodings."""

    @property
    def where(self) -> str:
        """The name of the shard in errors."""

    def read(self, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        """Decode ``rows`` (int64, each in ``[0, samples)``, any order, repeats allowed) of ``columns`` (default all).

        Raises:
            CorruptDataError: bytes contradict themselves; names the shard, the column and the row.
            UnsafeDataError: a pickled column and no consent.
        """
