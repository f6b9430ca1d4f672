"""Shards of text lines: a data file with a line a sample, and a meta file with the lines' offsets.

The meta file is ``u32 N | u32 offsets[N+1] | config JSON``, with offsets into the data file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np

from stoker.arguments import must_be, must_know
from stoker.errors import CorruptDataError, FormatError
from stoker.formats.base import ReadOptions, ShardInfo, ShardReader
from stoker.formats.common.checks import check_rows, cut_error, refuse, wanted_columns
from stoker.formats.common.container import read_offsets
from stoker.formats.common.file_shards import span_bytes
from stoker.formats.common.gather import gather_spans, run_of
from stoker.formats.common.records import BytesLike, LineRecords, RecordEncoder, Records, batch_length
from stoker.formats.format import Format
from stoker.formats.mds.encodings.base import UnfitValueError
from stoker.formats.mds.encodings.text import as_float, as_int, utf8
from stoker.formats.text.line_columns import CSVColumns, JSONColumns, LineText
from stoker.formats.text.line_index import find_lines
from stoker.formats.unstacked import Unstacked, read_each
from stoker.types import Batch, Buffer, Column, Ids

KINDS: Final = ("str", "int", "float")
"""Types of columns of text formats."""

# So few lines are read one by one sooner than pyarrow is set up for them.
_FEW: Final = 64
_DTYPES: Final[Mapping[str, type[np.generic]]] = {"bool": np.bool_, "float": np.float64, "int": np.int64}


class LineShard(ABC):
    """An open shard of text lines.

    Args:
        files: the data and the meta file; kept, never closed here. Of a file that others wrote the data alone.
        kinds: column name to what it holds.
        first: where the first line must start, in bytes.
        newline: what ends every line of a shard with a meta file; others say it where it is not a newline.
        quote: of others' files, the character inside of whose pairs newlines end nothing.
        together: how many lines are read at once.
    """

    unsafe: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        info: ShardInfo,
        files: Sequence[Buffer],
        where: str,
        *,
        kinds: Mapping[str, str],
        first: int,
        newline: str = "",
        quote: int | None = None,
        together: JSONColumns | CSVColumns,
    ) -> None:
        self.where = where
        self.together = together if len(files) == 1 or newline in ("\n", "\r\n") else None
        self.format = info.format
        self.samples = info.samples
        self.columns = tuple(kinds)
        self.layout: Hashable = (info.format, tuple(kinds.items()))
        self._kinds = kinds
        self._newline = newline.encode()
        self._between = info.spec.get("newline", "\n").encode()
        self._data = files[0]
        self._cut: tuple[int, int] | None = None
        self._begins: Ids
        self._ends: Ids
        offsets = read_offsets(info, files, where, first) if len(files) > 1 else None
        self._begins, self._ends = self._find_lines(info, quote) if offsets is None else (offsets[:-1], offsets[1:])

    def cut_at(self, size: int) -> None:
        """Let rows be errors that lie after the first ``size`` bytes of the data, which are all that there was of it."""
        self._cut = size, len(self._data)
        self.samples = int(np.searchsorted(self._ends, size, "right"))

    @abstractmethod
    def _parse(self, lines: list[str], columns: Sequence[str]) -> dict[str, list[Any]]:
        """The columns' values in these lines, newlines cut off. UnfitValueError names a bad line's row."""

    def read(self, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        """Read rows: ``int`` and ``float`` columns as int64 and float64 arrays, ``str`` as lists.

        An ``int`` column with a number beyond int64 is a list, too. CorruptDataError if a line is not what the format says;
        names the shard and the row.
        """
        wanted = wanted_columns(columns, self._kinds, self.where)
        if self._cut is not None and len(rows) and int(rows.max()) >= self.samples:
            raise cut_error(self.where, int(rows.max()), *self._cut)
        check_rows(rows, self.samples)
        lines: list[str] = []
        data, newline, cut = self._data, self._newline, len(self._newline)
        begins, ends = self._begins[rows].tolist(), self._ends[rows].tolist()
        for begin, end in zip(begins, ends, strict=True):
            line = data[begin:end]
            try:
                lines.append((line[:-cut] if cut and line.endswith(newline) else line).decode())
            except UnicodeDecodeError as error:
                raise CorruptDataError(f"{self.where}: sample {rows[len(lines)]}: {error}") from None
        try:
            values = self._parse(lines, wanted)
        except UnfitValueError as error:
            row = rows[error.row or 0]
            raise CorruptDataError(f"{self.where}: sample {row}: {error}") from error
        return {name: _column(self._kinds[name], values[name]) for name in wanted}

    @staticmethod
    def cut(shards: Sequence[LineShard], which: Ids, rows: Ids) -> LineText | None:
        """Copies of lines of several shards, in this order; ``None`` where not each ends with its shard's newline.

        ``shards``: shards that end their lines alike. ``which``, ``rows``: see
        :meth:`stoker.formats.format.Format.read_many`; checked.
        """
        newline = shards[0]._newline
        begins: Ids
        ends: Ids
        alike = newline or shards[0]._between == b"\n"  # lines that are copied have newlines between them
        if alike and len(shards) == 1 and (run := run_of(rows)) is not None:
            begins, ends = shards[0]._begins[run], shards[0]._ends[run]
            start = int(begins[0])
            text = bytes(shards[0]._data[start : int(ends[-1])])
            begins, ends = begins - start, ends - start
        else:
            begins, ends = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
            for number, shard in enumerate(shards):
                here = np.flatnonzero(which == number)
                begins[here], ends[here] = shard._begins[rows[here]], shard._ends[rows[here]]
            sizes, data = ends - begins, [shard._data for shard in shards]
            text, begins = gather_spans(data, which, begins, ends, b"" if newline else b"\n")
            ends = begins + sizes
        ends = ends - len(newline)
        if (ends <= begins).any():
            return None
        if newline:  # of our own shards no line may hold another newline
            octets = np.frombuffer(text, np.uint8)
            if any((octets[ends + at] != byte).any() for at, byte in enumerate(newline)):
                return None
            if text.count(b"\n") != len(rows):
                return None
        return LineText(text, begins, ends)

    def _find_lines(self, info: ShardInfo, quote: int | None) -> tuple[Ids, Ids]:
        whole = np.frombuffer(self._data, np.uint8)
        span = span_bytes(info, whole, self.where)
        begins, ends = find_lines(span, quote, self._between[0])
        if len(begins) != self.samples:
            raise CorruptDataError(f"{self.where}: {len(begins)} lines, and {self.samples} when it was indexed")
        skip = len(whole) - len(span)
        return begins + skip, ends + skip


class LineFormat(Format):
    """Base of formats of text lines: of stoker's own two files a shard, lines and their offsets; of others' files, spans."""

    roles = ("data", "meta")
    text = True
    packed = True
    reader: ClassVar[Callable[..., LineShard]]

    def open_cut(
        self, info: ShardInfo, files: Sequence[Buffer], *, where: str, options: ReadOptions = ReadOptions()
    ) -> ShardReader:
        size, missing = len(files[0]), info.raw[0].bytes - len(files[0])
        if len(files) < 2 or len(files[1]) != info.raw[1].bytes:
            return super().open_cut(info, files, where=where, options=options)
        shard = type(self).reader(info, (bytes(files[0]) + bytes(missing), files[1]), where, options)
        shard.cut_at(size)
        return shard

    def read_many(
        self, shards: Sequence[LineShard], which: Ids, rows: Ids, columns: Sequence[str] | None = None
    ) -> Batch:
        first = shards[0]
        if first.together is None or len(rows) < _FEW or any(shard.together != first.together for shard in shards):
            return read_each(shards, which, rows, columns)
        wanted = wanted_columns(columns, first.columns, first.where)
        check_rows(rows, np.array([shard.samples for shard in shards], dtype=np.int64)[which])
        lines = LineShard.cut(shards, which, rows)
        batch = None if lines is None else first.together.read(lines, wanted)
        return read_each(shards, which, rows, columns) if batch is None else batch


class LineEncoder(RecordEncoder):
    """Samples to lines of text. ConfigError for no columns, or an unknown kind of column.

    ``columns``: column name to ``str``, ``int`` or ``float``, in the order of the line. ``settings``: the keys that all
    shards' entries share, but for ``format`` and ``version``. ``header``: what the data file begins with.
    """

    roles = ("data", "meta")

    def __init__(self, columns: Mapping[str, str], settings: Mapping[str, Any], header: bytes) -> None:
        must_be("a dict with at least one column", bool(columns), columns=columns)
        for name, kind in columns.items():
            must_know("encoding", [kind], KINDS, f"column {name!r}: ")
        super().__init__({**settings, "format": self.format}, sample_cost=0, overhead=len(header))
        self.encode = self._encode
        self._header = header
        self._plain = {name: _PLAIN[kind] for name, kind in columns.items()}

    @property
    def columns(self) -> Sequence[str]:
        return list(self._plain)

    def encode_column_value(self, column: str, value: Any) -> Any:
        """The value as the line's text is made of it."""
        return self._plain[column](value)

    @abstractmethod
    def line(self, values: Mapping[str, Any]) -> str:
        """The line, newline included, of converted values."""

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        return self.line({name: self.encode_column_value(name, sample[name]) for name in self._plain}).encode()

    def encode_batch(self, columns: Mapping[str, Any], first: int) -> Records:
        count = batch_length(columns, self.columns, first)
        names = list(self._plain)
        lines: list[bytes] = []
        for row in range(count):
            sample = {name: columns[name][row] for name in names}
            try:
                lines.append(self._encode(sample))
            except Exception as error:
                raise self.explain(sample, first + row, error) from error
        return LineRecords(lines)

    def files(self, body: memoryview, ends: Ids) -> list[list[BytesLike]]:
        return [[self._header, body], [self.offsets(len(self._header), ends) + self.config]]


def _column(kind: str, values: list[Any]) -> Column:
    dtype = _DTYPES.get(kind)
    if dtype is None:
        return values
    try:
        return np.array(values, dtype=dtype)
    except OverflowError:  # beyond int64
        return Unstacked((_number(value, dtype) for value in values), np.dtype(dtype))


def _number(value: Any, dtype: type[np.generic]) -> Any:
    """A number as an array has it, if one can."""
    try:
        return dtype(value).item()
    except OverflowError:
        return value


def _as_str(value: Any) -> str:
    utf8(value)
    return str(value)


_PLAIN: Final[Mapping[str, Callable[[Any], Any]]] = {"str": _as_str, "int": as_int, "float": as_float}
"""Functions from a value that fits a column of a kind to Python's own, of which a line's text is made."""


def check_columns(names: Sequence[str], kinds: Sequence[str], where: str) -> Mapping[str, str]:
    """Column name to kind. IndexFileError if a name comes twice, or a kind is unknown."""
    if len(names) != len(kinds):
        refuse(where, f"{len(names)} column names, but {len(kinds)} encodings")
    if len(set(names)) != len(names):
        refuse(where, "two columns have the same name")
    for name, kind in zip(names, kinds, strict=True):
        if kind not in KINDS:
            raise FormatError(f"{where}: column {name!r}: unknown encoding {kind!r}; known: {', '.join(KINDS)}")
    return dict(zip(names, kinds, strict=True))
