"""Lance tables, whose rows come from a helper process by way of memory that both have; spans of fragments are shards.

Rows are taken one by one as long as few are wanted, else a span is read.

Lance takes single rows at random at a fraction of the speed at which it reads rows that follow each other. So a span is
read, and kept in the memory of decoded rows, as soon as the rows that were taken from it have cost as much as that.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from stoker.concurrency.shared.node_file import path_for_others
from stoker.errors import FormatError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import check_rows
from stoker.formats.common.container import OpenShard
from stoker.formats.common.decoded_memory import memory_of
from stoker.formats.common.entries import FLOATS
from stoker.formats.format import Format
from stoker.formats.lance_connection import LanceConnection, LanceFacts
from stoker.formats.parquet.arrow import pyarrow
from stoker.formats.parquet.values import ColumnValues, as_values, take_each
from stoker.formats.unstacked import iterate_rows, scatter
from stoker.lazy import cached_property
from stoker.storage.files.file_errors import file_errors
from stoker.storage.fork_proxy import RemoteObject
from stoker.types import Batch, Buffer, Ids

_PATIENCE: Final = 60.0


def _remote(connection: LanceConnection) -> RemoteObject:
    return RemoteObject(connection.url, connection, _PATIENCE, "tables of Lance are read in")


@dataclass(frozen=True, eq=False)
class LanceTable:
    """A version of a table, to read from. It goes to other processes by pickling.

    ``facts``: what is known of it. ``options``: settings of the store, as text.
    """

    url: str
    facts: LanceFacts
    options: Mapping[str, str] = field(repr=False)

    @classmethod
    def find(cls, url: str, version: int | str | None, options: Mapping[str, str]) -> LanceTable:
        """A version of the table at a path or URL.

        ObjectNotFoundError if there is none, MissingPackageError if ``lance`` is not installed.
        """
        return cls(url, _remote(LanceConnection(url, version, options)).call("facts"), options)

    @cached_property
    def schema(self) -> Any:
        """Its Arrow schema."""
        pa = pyarrow()
        return pa.ipc.read_schema(pa.py_buffer(self.facts.schema))

    @cached_property
    def blobs(self) -> frozenset[str]:
        """Its columns of blobs, which are read one by one."""
        return frozenset(self.facts.blobs)

    @cached_property
    def _helper(self) -> RemoteObject:
        return _remote(LanceConnection(self.url, self.facts.version, self.options, self.facts.mark))

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("url", "facts", "options")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)

    def take(self, numbers: Ids, columns: Sequence[str]) -> dict[str, ColumnValues]:
        """Columns of rows, by their numbers in the version; int64, rising. StokerError if they can not be read; says why."""
        return self._read(lambda path: self._helper.call("take", path, numbers, list(columns)))

    def scan(self, fragment: int, first: int, count: int, columns: Sequence[str]) -> dict[str, ColumnValues]:
        """Columns of ``count`` rows of a fragment that follow each other from ``first`` on.

        StokerError if they can not be read; says why.
        """
        return self._read(lambda path: self._helper.call("scan", path, fragment, first, count, list(columns)))

    def _read(self, ask: Callable[[str], int]) -> dict[str, ColumnValues]:
        pa = pyarrow()
        with file_errors("memory shared with the helper process"):
            shared = os.memfd_create("stoker-lance", os.MFD_CLOEXEC)
            try:
                size = ask(path_for_others(shared))
                mapped = mmap.mmap(shared, size, prot=mmap.PROT_READ)
            finally:
                os.close(shared)
        table = pa.ipc.open_stream(pa.py_buffer(mapped)).read_all()
        found = {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            if column.num_chunks != 1:
                raise FormatError(
                    f"{self.url}: column {name!r} has more than 2 GiB in {table.num_rows} rows that are read at once: read "
                    "fewer at once, by a smaller batch size"
                )
            found[name] = as_values(column.chunk(0))
        return found


NAME: Final = "lance"
# Taking a row costs as much as to read so many bytes of rows that follow each other; measured on a local disk.
_ROW_BYTES: Final = 20 << 10


@dataclass(frozen=True, slots=True)
class LanceSpan:
    """The rows of a fragment that are a shard; see :class:`stoker.formats.base.ShardDetail`.

    Attributes:
        bytes: of the rows, about.
        identity: tells it from other spans of other fragments.
        first: its first row, among those of the fragment that are not deleted.
        number: number of that row in the version.
    """

    bytes: int
    identity: str
    table: LanceTable
    fragment: int
    first: int
    number: int

    def __str__(self) -> str:
        version = self.table.facts.version
        return f"{self.table.url} (version {version}), fragment {self.fragment} from row {self.first} on"


class _Decoded:
    """Columns of all rows of a span, as what decoded memory keeps."""

    def __init__(self, span: LanceSpan, samples: int, columns: Sequence[str]) -> None:
        self.columns = span.table.scan(span.fragment, span.first, samples, columns)
        self.nbytes = sum(column.nbytes for column in self.columns.values())


class LanceShard(OpenShard):
    """A span of a fragment."""

    def __init__(self, info: ShardInfo, _: Sequence[Buffer], where: str, options: ReadOptions) -> None:
        assert isinstance(info.detail, LanceSpan)
        self.span = info.detail
        super().__init__(info, where, options, (info.format, id(self.span.table), repr(info.spec)))
        self._cost = 0

    def read(self, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        return _read_many([self], np.zeros(len(rows), np.int64), rows, columns)

    def decoded(self, columns: Sequence[str], rows: int) -> Mapping[str, ColumnValues] | None:
        """Columns of the whole span, where it is read or worth reading for ``rows`` more rows; ``None`` otherwise."""
        names = set(columns)
        for held in list(self._shelf.columns.values()):
            if names <= held.columns.keys():
                found: Mapping[str, ColumnValues] = held.columns
                return found
        self._cost += rows * max(_ROW_BYTES, self.span.bytes // self.samples)
        if self._cost < self.span.bytes or self._has_blobs(columns):
            return None
        self._cost = 0  # if it is dropped, counting begins again
        return self._decode(columns)

    def read_ahead(self) -> None:
        """Read all columns of the span, as far as decoded memory has room."""
        memory = memory_of(self.options.decoded_bytes)
        if memory.used + self.span.bytes <= memory.limit and not self._has_blobs(self.columns):
            self._decode(self.columns)

    def _has_blobs(self, columns: Sequence[str]) -> bool:
        """Whether blobs are among the columns, of which a span may have more than memory holds."""
        return not self.span.table.blobs.isdisjoint(columns)

    def _decode(self, columns: Sequence[str]) -> Mapping[str, ColumnValues]:
        decoded: _Decoded = self.kept("\0".join(columns), partial(_Decoded, self.span, self.samples, columns))
        return decoded.columns


def _read_many(shards: Sequence[LanceShard], which: Ids, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
    """Rows of several spans of one table; see :meth:`stoker.formats.format.Format.read_many`."""
    check_rows(rows, np.array([shard.samples for shard in shards], np.int64)[which])
    names = shards[0].wanted(columns)
    counts = np.bincount(which, minlength=len(shards)).tolist()
    spans = [shard.decoded(names, count) if count else None for shard, count in zip(shards, counts, strict=True)]
    whole = np.array([span is not None for span in spans], np.bool_)[which]
    parts: list[tuple[Ids, Batch]] = []
    if (at := np.flatnonzero(whole)).size:
        held = [span for span in spans if span is not None]
        turn = (np.cumsum([span is not None for span in spans]) - 1)[which[at]]
        parts.append((at, {name: take_each([span[name] for span in held], turn, rows[at]) for name in names}))
    if (at := np.flatnonzero(~whole)).size or not len(rows):
        firsts = np.array([shard.span.number for shard in shards], np.int64)
        numbers, place = np.unique(firsts[which[at]] + rows[at], return_inverse=True)
        taken = shards[0].span.table.take(numbers, names)
        parts.append((at, {name: taken[name].take(place) for name in names}))
    return parts[0][1] if len(parts) == 1 else scatter(parts, len(rows))


class LanceFormat(Format):
    """Spans of fragments of a Lance table."""

    name = NAME
    shard = "rows of a fragment"
    extra = "lance"
    reader = LanceShard
    types = FLOATS
    unlisted = 'rows of tables are in no index.json: open the table with format="lance"'
    iterate = staticmethod(iterate_rows)  # as Parquet has them

    def read_ahead(self, shard: LanceShard) -> None:
        shard.read_ahead()

    read_many = staticmethod(_read_many)
