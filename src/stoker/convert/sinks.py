"""Where the samples of one task go: the shards of a writer, which nobody finds before the dataset's index names them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from stoker.convert.values import ColumnPlan
from stoker.errors import ConfigError
from stoker.index.index import INDEX_NAME
from stoker.storage import Store
from stoker.storage.types import PutData
from stoker.types import Batch
from stoker.writing import image_folders as folders
from stoker.writing import writers
from stoker.writing.destination import Destination
from stoker.writing.file_sets import size_of
from stoker.writing.megatron_parts import ENDS, MegatronParts, tokens_of
from stoker.writing.parquet_parts import ParquetParts, check_compression

__all__ = [
    "LISTED",
    "TARGETS",
    "ShardSettings",
    "SampleSink",
    "check_columns",
    "encoding_for",
    "file_sizes",
    "open_sink",
]

_WRITERS: Final[dict[str, Any]] = {
    "arrow": writers.ArrowWriter,
    "csv": writers.CSVWriter,
    "hdf5": writers.HDF5Writer,
    "jpeg": folders.JPEGWriter,
    "json": writers.JSONWriter,
    "mds": writers.MDSWriter,
    "npy": writers.NPYWriter,
    "npz": writers.NPZWriter,
    "png": folders.PNGWriter,
    "tar": writers.TarWriter,
    "tfrecord": writers.TFRecordWriter,
    "tsv": writers.TSVWriter,
}
LISTED: Final = ("megatron", "parquet")
"""Formats whose files are found by listing them, without an index."""
TARGETS: Final = (*sorted([*_WRITERS, *LISTED]),)
"""Formats that can be written."""

_LINES: Final = ("csv", "json", "tsv")
_FLOATS: Final = ("float16", "float32", "float64", "bfloat16")


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """How shards are written.

    Attributes:
        format: one of :data:`TARGETS`.
        compression: see :class:`~stoker.writing.writer.WriterOptions`, as for ``hashes``.
        hashes: names.
        size_limit: most raw bytes of a shard.
        shard_samples: most samples of a shard; ``None`` for no limit.
    """

    format: str
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int
    shard_samples: int | None

    def __post_init__(self) -> None:
        if self.format not in TARGETS:
            raise ConfigError(f"to={self.format!r} can not be written; what can: {', '.join(TARGETS)}")
        if self.format == "parquet":
            check_compression(self.compression)
        if self.format == "megatron" and self.compression:
            raise ConfigError("compression: Megatron's files are read where they lie, and so not compressed")
        if self.format in LISTED and self.hashes:
            raise ConfigError(f"hashes: {self.format} files have no index that they could stand in")
        if self.format in ("jpeg", "png") and (self.compression or self.shard_samples):
            raise ConfigError(f"compression and shard_samples mean nothing for {self.format}: a file is a sample")


class SampleSink(Protocol):
    """Takes the samples of one task for one dataset.

    Attributes:
        samples: taken so far.
    """

    samples: int

    def write(self, batch: Batch) -> None:
        """Add samples.

        Raises:
            EncodingError, UnfitValueError: a value does not fit its column; names it and the sample's number here.
        """
        ...

    def finish(self) -> list[dict[str, Any]]:
        """Store what is left; the entries of the index, or ``{"file", "samples", "bytes"}`` where there is none."""
        ...

    def abort(self) -> None:
        """Stop."""
        ...


def encoding_for(settings: ShardSettings, name: str, encoding: str) -> str:
    """The encoding with which a format holds a column of another encoding.

    Raises:
        ConfigError: it can not hold it.
    """
    if settings.format not in _LINES:
        return encoding
    if encoding in ("str", "int", "float"):
        return encoding
    if encoding.lstrip("u").startswith("int") or encoding in ("bool", "str_int"):
        return "int"
    if encoding in _FLOATS or encoding == "str_float":
        return "float"
    raise ConfigError(
        f"column {name!r} is {encoding}, and {settings.format} holds text, whole numbers and floats: leave it out with "
        "select=, make it text with transform=, or write another format"
    )


def check_columns(settings: ShardSettings, plans: Sequence[ColumnPlan]) -> None:
    """See that a format can hold the columns together.

    Raises:
        ConfigError: it can not.
    """
    if settings.format == "megatron":
        tokens_of({plan.name: plan.encoding for plan in plans})


def open_sink(
    settings: ShardSettings, plans: Sequence[ColumnPlan], store: Store, task: int | None, first: int, stage: str
) -> SampleSink:
    """A sink.

    Args:
        settings: how shards are written.
        plans: the columns.
        store: the destination of the dataset.
        task: its number, which shards are named by; ``None`` for an only task.
        first: number of its first sample, for formats that number them.
        stage: folder that files lie in until all are complete; empty to write them where they belong.
    """
    if settings.format in LISTED:
        return _ListedSink(settings, plans, store, task, stage)
    return _ShardSink(settings, plans, store, task, first)


class _TaskDestination(Destination):
    """Puts a writer's files where the task's belong, and keeps its index to itself. A task writes the same again."""

    blank = True

    def __init__(self, store: Store, named: Callable[[str], str]) -> None:
        super().__init__([store])
        self._named = named
        self.index = b""

    def put(self, key: str, data: PutData) -> None:
        """See :class:`Destination`."""
        if key == INDEX_NAME:
            assert isinstance(data, bytes)
            self.index = data
        else:
            self.main.put(self._named(key), data)


def _writer_for(settings: ShardSettings, plans: Sequence[ColumnPlan], destination: _TaskDestination, first: int) -> Any:
    options: dict[str, Any] = {"hashes": list(settings.hashes), "max_workers": 1}
    if settings.format not in ("jpeg", "png"):
        limit = settings.size_limit if settings.shard_samples is None else None
        options.update(compression=settings.compression, size_limit=limit)
    if settings.format == "tar":
        options["first"] = first
    return _WRITERS[settings.format]({plan.name: plan.encoding for plan in plans}, destination, **options)


class _ShardSink:
    def __init__(
        self, settings: ShardSettings, plans: Sequence[ColumnPlan], store: Store, task: int | None, first: int
    ) -> None:
        self._name = _image_name(task) if settings.format in ("jpeg", "png") else _folder_name(task)
        self._destination = _TaskDestination(store, self._name)
        self._writer: Any = _writer_for(settings, plans, self._destination, first)
        self._limit = settings.shard_samples
        self._in_shard = 0
        self.samples = 0

    def write(self, batch: Batch) -> None:
        """See :class:`SampleSink`."""
        count = len(next(iter(batch.values())))
        if self._limit is None:
            self._writer.write_batch(batch)
            self.samples += count
            return
        done = 0
        while done < count:
            some = min(count - done, self._limit - self._in_shard)
            self._writer.write_batch({name: values[done : done + some] for name, values in batch.items()})
            done, self._in_shard, self.samples = done + some, self._in_shard + some, self.samples + some
            if self._in_shard == self._limit:
                self._writer.end_shard()
                self._in_shard = 0

    def finish(self) -> list[dict[str, Any]]:
        """See :class:`SampleSink`."""
        self._writer.finish()
        entries: list[dict[str, Any]] = json.loads(self._destination.index)["shards"]
        for entry in entries:
            for key, value in entry.items():
                if key.startswith(("raw_", "zip_")) and isinstance(value, dict):
                    value["basename"] = self._name(value["basename"])
        return entries

    def abort(self) -> None:
        """See :class:`SampleSink`."""
        self._writer.abort()


class _ListedSink:
    def __init__(
        self, settings: ShardSettings, plans: Sequence[ColumnPlan], store: Store, task: int | None, stage: str
    ) -> None:
        self._task = task or 0
        self._store = store
        self._stage = stage
        self.samples = 0
        self._entries: list[dict[str, Any]] = []
        limits = settings.size_limit, settings.shard_samples
        self._files: ParquetParts | MegatronParts
        if settings.format == "parquet":
            self._ends: Sequence[str] = (".parquet",)
            self._files = ParquetParts(
                plans, check_compression(settings.compression), *limits, lambda k, data, n: self._put(k, [data], n)
            )
        else:
            self._ends = ENDS
            self._files = MegatronParts({plan.name: plan.encoding for plan in plans}, *limits, self._put)

    def write(self, batch: Batch) -> None:
        """See :class:`SampleSink`."""
        self._files.write(batch)
        self.samples += len(next(iter(batch.values())))

    def finish(self) -> list[dict[str, Any]]:
        """See :class:`SampleSink`."""
        # One file at least, so that a dataset without samples has its columns.
        self._files.finish(empty=self._task == 0)
        return self._entries

    def abort(self) -> None:
        """See :class:`SampleSink`."""

    def _put(self, number: int, files: Sequence[PutData], samples: int) -> None:
        for end, data in zip(self._ends, files, strict=True):
            name = f"part-{self._task:05}-{number:05}{end}"
            self._store.put(self._stage + name, data)
            self._entries.append({"file": name, "samples": samples, "bytes": size_of(data)})


def _folder_name(task: int | None) -> Callable[[str], str]:
    return lambda key: key if task is None else f"{task:05}/{key}"


def _image_name(task: int | None) -> Callable[[str], str]:
    """The folder is the image's label, so the task goes into the file's name."""

    def named(key: str) -> str:
        folder, slash, name = key.rpartition("/")
        return key if task is None else f"{folder}{slash}{task:05}-{name}"

    return named


def file_sizes(entries: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Name and bytes of the files that a sink stored, by its entries."""
    sizes: dict[str, int] = {}
    for entry in entries:
        if "file" in entry:
            sizes[entry["file"]] = entry["bytes"]
            continue
        packed = any(entry[key] for key in entry if key.startswith("zip_"))
        for key, value in entry.items():
            if key.startswith("zip_" if packed else "raw_"):
                sizes[value["basename"]] = value["bytes"]
    return sizes
