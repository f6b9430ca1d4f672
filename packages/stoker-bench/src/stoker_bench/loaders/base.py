"""The protocol of a loader under test: an iterable of batches, opened for one rank, that reports what it did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from stoker.cluster import World
from stoker_bench.measure.request_counts import RequestCounts
from stoker_bench.settings.workload import Workload

Split = Literal["train", "valid"]


class LoadedBatch(NamedTuple):
    """A batch.

    Attributes:
        samples: how many samples it holds.
        bytes: bytes of what the accelerator gets: of arrays where samples are decoded, else of the files' or records' bytes.
        data: arrays, tensors or bytes, in any nesting of dicts and lists; ``None`` only where the loader makes none.
    """

    samples: int
    bytes: int
    data: Any


@dataclass(frozen=True, slots=True)
class SplitListing:
    """A listing of a split.

    Attributes:
        files: of the data set's format, or shards of its index.
        used: how many of them the workload reads: the first by name.
        samples: of the index; ``None`` where there is none, and only reading the files could tell.
        bytes: of the files that are used.
        least_bytes, most_bytes: of one of them.
        seconds: that listing took.
    """

    files: int
    used: int
    samples: int | None
    bytes: int
    least_bytes: int
    most_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LoaderJob:
    """The task of a loader: what one rank is to read.

    Attributes:
        workload: all settings.
        split: ``train`` or ``valid``: the folder below ``url``.
        url: the data set, without the split.
        world: this rank, and how many there are.
        threads: how many threads or processes may read ahead; 0 for none.
        batch_size: samples of a batch of this rank.
        scratch: a folder of this host's ranks for what a loader keeps on disk; the harness removes it.
        listing: of the split, made before anything is timed; ``None`` where nobody has listed it.
        requests: where a loader counts the requests that it makes itself. Those of stoker's own stores in this process count
            in any case.
    """

    workload: Workload
    split: Split
    url: str
    world: World
    threads: int
    batch_size: int
    scratch: str = ""
    listing: SplitListing | None = None
    requests: RequestCounts | None = None

    @property
    def split_url(self) -> str:
        """The directory or URL of the split's files."""
        return f"{self.url.rstrip('/')}/{self.split}"

    @property
    def files(self) -> int:
        """The number of files of the split."""
        dataset = self.workload.dataset
        return dataset.files if self.split == "train" else dataset.files_eval

    @property
    def shuffled(self) -> bool:
        """Whether samples are to be read in another order than they are stored in."""
        return self.workload.reader.shuffle and self.split == "train"

    def seed(self, epoch: int = 0) -> int:
        """The seed of an epoch's order, below 2**31, as other packages want it."""
        train = self.workload.train
        return (train.seed + (epoch if train.reshuffle else 0)) & 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class LoaderReport:
    """A loader's account of what it did, for the result: what is not in it did not happen.

    Attributes:
        decoded: what became of the bytes: ``"arrays"``, ``"bytes"`` (nothing was decoded), or ``"none"`` (nothing was read).
        parallel: such as ``"4 threads"`` or ``"2 processes"``.
        order: what is known of the order of samples, such as ``"shuffled"``.
        bytes_fetched: that it has fetched so far, over the network or of files, again where it read the same ones again;
            ``None`` where the loader does not know.
        versions: of packages that did the work.
        notes: all else that a reader of the result should know, such as samples that were left out.
        last_batches: of this rank, that may be left out because they are not full: one, or one of each process that batches.
        reading_began: by ``time.monotonic``, when the first byte was asked for, after processes had started for example;
            ``None`` for when the epoch began.
    """

    decoded: Literal["arrays", "bytes", "none"]
    parallel: str
    order: str
    bytes_fetched: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    last_batches: int = 1
    reading_began: float | None = None


class OpenLoader(Protocol):
    """A loader of one rank and split, for all epochs."""

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        """Batches of an epoch, from 0 on: this rank's part, which no other rank has."""

    def release(self) -> None:
        """Release files and data that was read, so that the next epoch reads again; called between epochs."""
        return  # of what holds nothing

    def report(self) -> LoaderReport:
        """The account of what was done so far."""

    def close(self) -> None:
        """Stop all threads and processes, and release all resources."""
        return  # of what holds nothing


@runtime_checkable
class LoaderUnderTest(Protocol):
    """A kind of loader. A class of this shape is named in the entry points ``stoker_bench.loaders``, or as module:Class.

    One that reads a format of its own may also have ``prepare(workload, url)``, which the stage ``generate`` calls on rank 0
    when the files are there. One that does not read all formats may have ``formats``, their names, the usual one first.
    One that can tell by the settings alone what it can not do may have ``check(workload, ranks)``, which raises a
    ``ConfigError`` for it before anything is generated or read.

    Attributes:
        name: for ``--loader``.
    """

    name: str

    def available(self) -> str | None:
        """``None`` where it can be used, else what is missing and how to get it. Imports nothing that takes long."""

    def open(self, job: LoaderJob) -> OpenLoader:
        """Open it. What the loader can not do of the job is an error here, never something else done silently.

        Raises:
            StokerError: it can not be opened.
        """
