"""Writes the samples of one task: by the writer of the format, into files named by the task, without an index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Unpack

from stoker.conversion.values import ColumnPlan
from stoker.errors import ConfigError
from stoker.formats.parquet.columns import ParquetColumn
from stoker.formats.registry import get_format, is_format
from stoker.storage import Store
from stoker.storage.files.staged_file import StagedFile
from stoker.storage.types import PutData
from stoker.types import Batch
from stoker.writing.base import Writer, WriterOptions, size_of
from stoker.writing.destination import Begun, Destination
from stoker.writing.output_files import OutputFiles
from stoker.writing.parquet_writer import ParquetWriter
from stoker.writing.shard_formats import WriterClass, find_writer, writable_formats, writer_of

_FLOATS: Final = ("float16", "float32", "float64", "bfloat16")
OUTPUT: Final = (
    r"(?:[0-9]{5,}/)?shard\.[0-9]+\.[^/]*|part-[0-9]+-[0-9]+\.(?:parquet|bin|idx)|index\.json"
    r"|(?:[^/]+/)?(?:[0-9]{5,}-)?[0-9]{9,}\.(?:jpeg|png)"
)
"""Names of shards, listed files, indexes and images, as a :class:`SampleSink` names them; a regular expression."""


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """Settings of the shards.

    ``size_limit``: most raw bytes of a shard. ``shard_samples``: most samples of a shard; ``None`` for no limit.
    """

    format: str
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int
    shard_samples: int | None

    def __post_init__(self) -> None:
        self.writer.check_compression(self.compression)
        if not self.writer.indexed and self.hashes:
            raise ConfigError(f"hashes: {self.format} files have no index that they could stand in")
        if self.single and (self.compression or self.shard_samples):
            raise ConfigError(f"compression and shard_samples mean nothing for {self.format}: a file is a sample")

    @property
    def writer(self) -> WriterClass:
        """The format's writer."""
        return target_writer(self.format)

    @property
    def single(self) -> bool:
        """Whether a file is a sample."""
        return get_format(self.format).single


def target_writer(name: str) -> WriterClass:
    """The writer of a format.

    One that must be told more than the columns is none.
    """
    writer = find_writer(name) if is_format(name) else None
    if writer is None or writer.required:
        known = ", ".join(one for one in writable_formats() if not writer_of(one).required)
        raise ConfigError(f"to={name!r}: this format cannot be written; those that can are {known}")
    return writer


def encoding_for(settings: ShardSettings, name: str, encoding: str) -> str:
    """The encoding with which a format holds a column of another encoding."""
    if not get_format(settings.format).text:
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


class _TaskDestination(Destination):
    """Puts a writer's files where those of a task belong, and keeps its index to itself. A task writes the same again.

    ``index``: the writer's index, once it is finished. ``sizes``: bytes of each file, by its name.
    """

    def __init__(self, store: Store, settings: ShardSettings, task: int | None) -> None:
        super().__init__([store])
        self._indexed, self._single, self._task = settings.writer.indexed, settings.single, task
        self.whole = not task
        self.index: bytes | None = None
        self.sizes: dict[str, int] = {}

    def named(self, key: str) -> str:
        """A file's name, in which is the number of its task."""
        if not self._indexed:
            return key.replace("part-", f"part-{self._task or 0:05}-", 1)
        if self._task is None:
            return key
        if not self._single:
            return f"{self._task:05}/{key}"
        folder, slash, name = key.rpartition("/")  # the folder is the image's label
        return f"{folder}{slash}{self._task:05}-{name}"

    def begin(
        self,
        files: OutputFiles,
        *,
        append: bool = False,  # noqa: ARG002
        resume: bool = False,  # noqa: ARG002
        exist_ok: bool = False,  # noqa: ARG002
    ) -> Begun:
        """See :class:`Destination`. The job looks at what is there, and marks it as unfinished."""
        self._staged, self._marked = not files.indexed, True
        return Begun()

    def put(self, key: str, data: PutData | StagedFile) -> None:
        self.sizes[self.named(key)] = size_of(data)
        super().put(self.named(key), data)

    def commit(self, index: bytes | None = None) -> None:
        """See :class:`Destination`. The job commits."""
        self.index = index


class _PlannedParquetWriter(ParquetWriter):
    """Writes Parquet columns of Arrow types that the source has."""

    def __init__(
        self, plans: Sequence[ColumnPlan], destination: _TaskDestination, **options: Unpack[WriterOptions]
    ) -> None:
        columns = [ParquetColumn(plan.name, plan.encoding, plan.arrow) for plan in plans]
        self._begin_columns(columns, destination, None, options)


def _writer_for(
    settings: ShardSettings, plans: Sequence[ColumnPlan], destination: _TaskDestination, first: int
) -> Writer:
    options: dict[str, Any] = {"hashes": list(settings.hashes), "max_workers": 1}
    if not settings.single:
        cut_by_size = settings.shard_samples is None or not settings.writer.indexed
        options.update(compression=settings.compression, size_limit=settings.size_limit if cut_by_size else None)
    if settings.writer.numbers_samples:
        options["first"] = first
    if settings.format == "parquet":
        return _PlannedParquetWriter(plans, destination, **options)
    make: Any = settings.writer
    writer: Writer = make({plan.name: plan.encoding for plan in plans}, destination, **options)
    return writer


class SampleSink:
    """Takes the samples of one task for one dataset.

    Shards are named by the number of the ``task``, ``None`` for an only one; ``first`` is the number of its first sample.
    """

    def __init__(
        self, settings: ShardSettings, plans: Sequence[ColumnPlan], store: Store, task: int | None, first: int
    ) -> None:
        self._destination = _TaskDestination(store, settings, task)
        self._writer = _writer_for(settings, plans, self._destination, first)
        self._limit, self._single = settings.shard_samples, settings.single
        self._in_shard = 0
        self.samples = 0

    def write(self, batch: Batch) -> None:
        """Add samples.

        Where a value does not fit, ``samples`` says how many were written before it.
        """
        count = len(next(iter(batch.values())))
        if self._single:  # so that it is known which are written where one does not fit
            for row in range(count):
                self._writer.write({name: values[row] for name, values in batch.items()})
                self.samples += 1
            return
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

    def finish(self) -> dict[str, Any]:
        """Store what is left; a note of it: the index's ``entries``, ``files`` and their bytes, and ``samples``."""
        self._writer.finish()
        index = self._destination.index
        entries = [] if index is None else json.loads(index)["shards"]
        for entry in entries:
            for key, value in entry.items():
                if key.startswith(("raw_", "zip_")) and isinstance(value, dict):
                    value["basename"] = self._destination.named(value["basename"])
        return {"entries": entries, "files": self._destination.sizes, "samples": self.samples}

    def abort(self) -> None:
        """Stop."""
        self._writer.abort()
