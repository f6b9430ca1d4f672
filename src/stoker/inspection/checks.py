"""Checks of one shard and of its samples, the report of :func:`stoker.inspection.verify`, and files as buffers: mapped where
they lie, or fetched into one that has no name any more.
"""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from stoker.digests import fastest_hash, hash_hex, hash_names
from stoker.display import error_text
from stoker.errors import CorruptDataError, MissingPackageError, ObjectNotFoundError, StokerError
from stoker.formats.base import FileInfo, ReadOptions, ShardInfo, ShardReader
from stoker.formats.registry import get_format
from stoker.storage import Store, is_local
from stoker.storage.files.mapped import map_file, map_open_file
from stoker.storage.files.regular import open_regular
from stoker.types import Buffer, Ids


class FileReader:
    """Whole files of one store, one at a time in each thread. They take disk space of ``scratch``, and no memory.

    ``scratch``: a directory for files of remote stores. Each is unlinked as soon as it is mapped.
    """

    def __init__(self, store: Store, scratch: Path) -> None:
        self.store = store
        self._directory = is_local(store.url)
        self._scratch: Path | None = scratch

    def __getstate__(self) -> dict[str, Any]:
        # On another node the scratch directory is not there.
        return {**self.__dict__, "_scratch": None}

    def read(self, key: str) -> Buffer:
        """All of a file."""
        if self._directory is not None:
            return map_file(self._directory / key)
        return self.fetched(lambda path: self.store.download(key, path))

    def window(self, key: str, start: int, end: int, *, version: str = "") -> Buffer:
        """Bytes ``[start, end)`` of a file; of a local one ``start`` is a multiple of :data:`mmap.ALLOCATIONGRANULARITY`.

        StorageError, OSError, ValueError if they can not be read. ``version``: of the file, if another is an error.
        """
        if start == end:
            return b""
        if self._directory is None:
            return self.fetched(lambda path: self.store.download_range(key, path, start, end, version=version))
        path = self._directory / key
        descriptor, status = open_regular(path)
        try:
            if end > status.st_size:
                raise CorruptDataError(f"{path} has {status.st_size} bytes: there are none from {start} to {end}")
            return map_open_file(descriptor, start, end, str(path), status)
        finally:
            os.close(descriptor)

    def fetched(self, fetch: Callable[[Path], object]) -> Buffer:
        """The bytes that ``fetch`` writes into the file that it is given."""
        path = (self._scratch or Path(tempfile.gettempdir())) / secrets.token_hex(8)
        try:
            fetch(path)
            return map_file(path)
        finally:
            path.unlink(missing_ok=True)


class Budget:
    """Bytes of memory that threads share. What needs more than all of it waits until it is alone."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        self._changed = threading.Condition()

    @contextmanager
    def take(self, size: int) -> Iterator[None]:
        """Wait for room for so many bytes, and give it back in the end."""
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + size <= self._size)
            self._used += size
        try:
            yield
        finally:
            with self._changed:
                self._used -= size
                self._changed.notify_all()


Kind: TypeAlias = Literal["index", "missing", "size", "hash", "structure", "decode", "unreadable"]
"""Kinds of problems. ``index``: the index itself, or files that contradict each other. ``missing``: a file is not there.
``size``, ``hash``: a file is not the one that the index describes. ``structure``: header, offsets, counts or checksums of a
shard contradict themselves or the index. ``decode``: a sample does not decode. ``unreadable``: the store did not give it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        kind: see :data:`Kind`.
        where: URL or path of the file.
        message: what is wrong, in a sentence.
        key: the file, relative to the dataset's root.
        shard: number of the shard, or ``None`` where it is not of one.
        row: the sample's row in its shard, where it is of one sample.
        sample: the sample's number in the dataset, where that is known.
        column: the column, where it is of one.
    """

    kind: Kind
    where: str
    message: str
    key: str = ""
    shard: int | None = None
    row: int | None = None
    sample: int | None = None
    column: str | None = None

    def __str__(self) -> str:
        """A line for people."""
        parts = [] if self.shard is None else [f"shard {self.shard}"]
        if self.row is not None:
            parts.append(f"sample {self.row}" if self.sample is None else f"sample {self.row} ({self.sample} of all)")
        if self.column is not None:
            parts.append(f"column {self.column!r}")
        return f"{self.kind}: {', '.join(parts)}{': ' if parts else ''}{self.message}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The number of files and bytes that were checked, and the problems found.

    Attributes:
        url: the dataset.
        format: of its shards; ``None`` for an index without any.
        level: ``quick`` (names and sizes), ``normal`` (all bytes: hashes, checksums, offsets) or ``deep`` (every sample was
            decoded).
        shards: shards that were checked.
        samples: samples in them, by the index or their headers.
        bytes: bytes that were read.
        hashed: files whose hash was compared.
        problems: what is wrong now, in the order of the shards.
        strange: keys of files below the root that belong to no shard; not a problem in itself.
        notes: what was not checked, and why.
        repaired: what was repaired, a sentence each.
        stopped: whether there were too many problems to go on.
        seconds: it took.
    """

    url: str
    format: str | None
    level: Literal["quick", "normal", "deep"]
    shards: int
    samples: int
    bytes: int
    hashed: int
    problems: tuple[Problem, ...]
    strange: tuple[str, ...]
    notes: tuple[str, ...]
    repaired: tuple[str, ...]
    stopped: bool
    seconds: float

    @property
    def ok(self) -> bool:
        """True if no problem is left: none was found, or all were repaired."""
        return not self.problems

    def as_dict(self) -> Mapping[str, Any]:
        """Plain values for JSON."""
        return {"ok": self.ok, **asdict(self)}


_CHUNK_BYTES: Final = 8 << 20
_MOST_ROWS: Final = 4096

Level = Literal["quick", "normal", "deep"]
_DECODED: Final = 256 << 20


def bad_samples(
    reader: ShardReader, size: int, columns: Sequence[str], stopped: Callable[[], bool]
) -> Iterator[tuple[int, str | None, str]]:
    """Row, column and message of each value that does not decode; no column where none of the sample's does.

    MissingPackageError if a decoder is not installed. ``size``: bytes of the shard, which tell how many rows are decoded at
    once. ``stopped``: whether to give up, asked between pieces.
    """
    count = reader.samples
    step = min(_MOST_ROWS, max(1, _CHUNK_BYTES * count // max(size, 1)))
    for begin in range(0, count, step):
        if stopped():
            return
        rows = np.arange(begin, min(begin + step, count), dtype=np.int64)
        if _failure(reader, rows, columns) is not None:
            yield from _named(reader, rows, columns, stopped)


def _named(
    reader: ShardReader, rows: Ids, columns: Sequence[str], stopped: Callable[[], bool]
) -> Iterator[tuple[int, str | None, str]]:
    bad = [name for name in columns if _failure(reader, rows, [name]) is not None]
    found = False
    for row in rows.tolist():
        if stopped():
            return
        here = np.array([row], dtype=np.int64)
        failures = {name: message for name in bad if (message := _failure(reader, here, [name])) is not None}
        found = found or bool(failures)
        if len(failures) == len(columns) > 1:
            yield row, None, next(iter(failures.values()))
        else:
            yield from ((row, name, message) for name, message in failures.items())
    if not found:  # together they fail, alone they do not
        yield int(rows[0]), None, _failure(reader, rows, columns) or "samples decode one by one, but not together"


def _failure(reader: ShardReader, rows: Ids, columns: Sequence[str]) -> str | None:
    """Why these values do not decode; ``None`` where they do."""
    try:
        for values in reader.read(rows, columns).values():
            if isinstance(values, list):
                _load(values)
    except MissingPackageError:
        raise
    except Exception as error:  # noqa: BLE001 - decoders and other packages' formats may raise anything
        return error_text(error)
    return None


def _load(values: list[Any]) -> None:
    """Images are opened when they are read, and decoded when somebody looks at them; that is now."""
    for value in values:
        if isinstance(value, list):
            _load(value)
        elif hasattr(value, "load") and hasattr(value, "getbands"):
            value.load()


@dataclass(slots=True)
class Outcome:
    """The result of a task.

    Attributes:
        hashed: files whose hash was compared.
        spec: what a file that others wrote says of its columns, and the file's key.
    """

    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    shards: int = 0
    samples: int = 0
    bytes: int = 0
    hashed: int = 0
    spec: tuple[str, Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """Work that one thread does. ``size``: about how many bytes it reads. ``run``: does it, and notes what it finds."""

    size: int
    run: Callable[[Outcome], None]


@dataclass(slots=True)
class CheckPlan:
    """The tasks of a verification.

    Attributes:
        format: of the shards; ``None`` where there are none.
        tasks: work, in the order of the shards.
        problems: what is known to be wrong already.
        strange: files that belong to no shard.
        finish: looks at all outcomes together, for what only shows so.
    """

    format: str | None
    tasks: Sequence[Task]
    problems: list[Problem] = field(default_factory=list)
    strange: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    finish: Callable[[Sequence[Outcome]], list[Problem]] = lambda _: []


class Checker:
    """Checks shards as deep as asked.

    ``allow_unsafe_types``: decode columns whose decoding can run code from the data. ``memory``: bytes that decompressed
    shards may take together; a larger one is alone.
    """

    def __init__(self, files: FileReader, level: Level, *, allow_unsafe_types: bool, memory: int) -> None:
        self.files = files
        self.level = level
        self._memory = memory
        self._options = ReadOptions(allow_unsafe_types=allow_unsafe_types, decoded_limit=_DECODED)
        self.__setstate__({})

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("budget", "stop")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self.budget = Budget(self._memory)
        self.stop = Event()

    @property
    def deep(self) -> bool:
        """Whether samples are decoded."""
        return self.level == "deep"

    def problem(self, kind: Kind, key: str, message: str, shard: int | None = None, **more: Any) -> Problem:
        """A problem of a file."""
        return Problem(kind, self.files.store.url_of(key), message, key, shard, **more)

    def read(self, key: str, shard: int | None, out: Outcome) -> Buffer | None:
        """A file; ``None``, and a problem, where it can not be read."""
        where = self.files.store.url_of(key)
        try:
            data = self.files.read(key)
        except (ObjectNotFoundError, FileNotFoundError):
            out.problems.append(self.problem("missing", key, f"{where} is not there", shard))
            return None
        except (StokerError, OSError) as error:
            out.problems.append(self.problem("unreadable", key, str(error), shard))
            return None
        out.bytes += len(data)
        return data

    def read_files(self, files: Sequence[FileInfo], shard: int, out: Outcome) -> list[Buffer] | None:
        """Files of a shard; ``None``, and problems, where one can not be read or is not what the index says."""
        read = [self.read(file.basename, shard, out) for file in files]
        good = [
            data is not None and self.is_file(file, data, shard, out) for file, data in zip(files, read, strict=True)
        ]
        return [data for data in read if data is not None] if all(good) else None

    def is_file(self, file: FileInfo, data: Any, shard: int, out: Outcome, where: str = "") -> bool:
        """Whether bytes have the size that the index says; its hashes are compared, too."""
        where = where or self.files.store.url_of(file.basename)
        if (wrong := self.wrong_size(file, len(data), shard, where)) is not None:
            out.problems.append(wrong)
            return False
        for name in self._hashes(file):
            found = hash_hex(name, data)
            if found != file.hashes[name]:
                message = f"{where}: its {name} is {found}, the index says {file.hashes[name]}"
                out.problems.append(self.problem("hash", file.basename, message, shard))
                break
        else:
            out.hashed += bool(file.hashes)
        return True

    def wrong_size(self, file: FileInfo, size: int, shard: int, where: str = "") -> Problem | None:
        """The problem of a file that has another size than the index says."""
        where = where or self.files.store.url_of(file.basename)
        said = f"{where} has {size} bytes, the index says {file.bytes}"
        return None if size == file.bytes else self.problem("size", file.basename, said, shard)

    def _hashes(self, file: FileInfo) -> Sequence[str]:
        """The hashes to compare: the fastest, or all of them."""
        if self.deep:
            return [name for name in hash_names() if name in file.hashes]
        name = fastest_hash(file.hashes)
        return [] if name is None else [name]

    def content(
        self,
        info: ShardInfo,
        files: Sequence[Buffer],
        key: str,
        out: Outcome,
        *,
        shard: int | None = None,
        first: int | None = None,
        before: int = 0,
    ) -> None:
        """Check what is in a shard's raw files: structure, checksums, and every sample if asked.

        MissingPackageError if what decodes its samples is not installed. ``first``: number of its first sample in the
        dataset. ``before``: samples of the same file that come before the shard; rows are told as the file's.
        """
        where = self.files.store.url_of(key)

        def note(kind: Kind, row: int | None, column: str | None, message: str) -> None:
            sample = None if row is None or first is None else first + row
            row = None if row is None else before + row
            out.problems.append(self.problem(kind, key, message, shard, row=row, sample=sample, column=column))

        try:
            form = get_format(info.format)
            reader = form.open(info, files, where=where, options=self._options)
        except MissingPackageError:
            raise
        except Exception as error:  # noqa: BLE001 - other packages' formats may raise anything
            note("structure", None, None, error_text(error))
            return
        known: set[int] = set()
        try:
            for row, message in form.bad_checksums(info, files[0], where):
                note("structure", row, None, message if message.startswith(where) else f"{where}: {message}")
                if row is not None:
                    known.add(row)
        except CorruptDataError as error:
            note("structure", None, None, str(error))
        if not self.deep:
            return
        unsafe = () if self._options.allow_unsafe_types else tuple(reader.unsafe)
        for name in unsafe:
            out.notes.append(
                f"column {name!r} is not decoded: that would run code from the data; pass allow_unsafe_types"
            )
        columns = [name for name in reader.columns if name not in unsafe]
        if not columns:
            return
        for row, column, message in bad_samples(reader, info.size, columns, self.stop.is_set):
            if row not in known:
                note("decode", row, column, message)


def first_samples(shards: Sequence[ShardInfo]) -> Iterator[int]:
    """Number of each shard's first sample in the dataset."""
    total = 0
    for info in shards:
        yield total
        total += info.samples
