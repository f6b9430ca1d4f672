"""The ``csv``, ``tsv`` and ``xsv`` formats: a header line, then a line a sample, values split by a separator.

In shards with an index there is no quoting, as in MosaicML Streaming's: text that holds the separator or the newline can not
be written, and such shards are refused as files without an index, where quotes mean what RFC 4180 says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from typing import Any, ClassVar, Final

from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.base import ShardInfo
from stoker.formats.common.byte_source import ByteSource
from stoker.formats.common.checks import parse_files, parse_samples, parse_settings, refuse, require, string_list
from stoker.formats.common.inspect_header import HeaderFacts
from stoker.formats.common.values import UnfitValueError, describe
from stoker.formats.text.csv import SETTINGS, CSVFileShard, agree_on_csv, inspect_csv
from stoker.formats.text.line_columns import CSVColumns
from stoker.formats.text.line_shards import LineEncoder, LineFormat, LineShard, check_columns
from stoker.types import Buffer

SEPARATORS: Final = {"csv": ",", "tsv": "\t"}
"""Separators of the formats that have a fixed one."""

_READERS: Final[dict[str, Callable[[str], Any]]] = {"str": str, "int": int, "float": float}


class XSVShard(LineShard):
    """An open shard of separated values."""

    __slots__ = ("_separator",)

    def __init__(self, info: ShardInfo, files: Sequence[Buffer], where: str) -> None:
        spec = info.spec
        self._separator: str = spec["separator"]
        kinds = check_columns(spec["column_names"], spec["column_encodings"], where)
        header = header_line(spec["column_names"], self._separator, spec["newline"])
        if files[0][: len(header)] != header:
            raise CorruptDataError(f"{where}: the data file's first line does not name the index's columns")
        together = CSVColumns(tuple(kinds.items()), self._separator, quote="", empty=False)
        super().__init__(info, files, where, kinds=kinds, first=len(header), newline=spec["newline"], together=together)

    def _parse(self, lines: list[str], columns: Sequence[str]) -> dict[str, list[Any]]:
        split = map(str.split, lines, repeat(self._separator))
        return self._values(split, self.columns, columns, {name: _READERS[self._kinds[name]] for name in columns})


class XSVFormat(LineFormat):
    """Two files a shard: lines of separated values, and their offsets. Of others' files, spans.

    Attributes:
        separator: what stands between two values; empty where an entry of the index says it.
    """

    name = "xsv"
    shard = "lines, as `csv`, of any separator"
    describing: ClassVar[tuple[str, ...]] = (".csv", ".tsv", ".txt", ".psv")
    quoted = True
    shards = XSVShard, CSVFileShard
    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".tsv", ".txt", ".psv")
    settings = SETTINGS
    separator: ClassVar[str] = ""

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
        return inspect_csv(source, settings, self.name, self.separator or None)

    agree = staticmethod(agree_on_csv)

    def parse_shard(self, obj: Mapping[str, Any], where: str) -> ShardInfo:
        """See :class:`stoker.formats.format.Format`.

        ``spec`` holds ``column_names`` and ``column_encodings`` (parallel), ``separator`` and ``newline``.
        """
        samples = parse_samples(obj, where)
        raw, zipped, compression = parse_files(obj, ("data", "meta"), where)
        names = string_list(obj, "column_names", where)
        kinds = string_list(obj, "column_encodings", where)
        check_columns(names, kinds, where)
        newline = require(obj, "newline", str, where)
        separator = self.separator or require(obj, "separator", str, where)
        if not separator or not newline or separator == newline:
            refuse(where, f"separator {separator!r} and newline {newline!r} can not split lines")
        hashes, size_limit = parse_settings(obj, where)
        spec = {
            "column_names": names,
            "column_encodings": kinds,
            "separator": separator,
            "newline": newline,
            "hashes": hashes,
            "size_limit": size_limit,
        }
        return ShardInfo(self.name, samples, raw, zipped, compression, spec)


class CSVFormat(XSVFormat):
    """Comma-separated values."""

    name = "csv"
    shard = "lines, quoted as RFC 4180 has it²"
    implied = ("separator",)
    suffixes = (".csv",)
    describing = suffixes
    separator = ","


class TSVFormat(XSVFormat):
    """Tab-separated values."""

    name = "tsv"
    shard = "lines, as `csv`"
    implied = ("separator",)
    suffixes = (".tsv",)
    describing = suffixes
    separator = "\t"


def header_line(names: Sequence[str], separator: str, newline: str) -> bytes:
    """The first line of a data file."""
    return (separator.join(names) + newline).encode()


class XSVEncoder(LineEncoder):
    """Samples to lines of separated values.

    Args:
        columns: column name to ``str``, ``int`` or ``float``.
        settings: ``compression``, ``hashes`` and ``size_limit`` as the index holds them.
        newline: what ends a line.
        separator: what stands between two values.
        name: ``csv``, ``tsv`` or ``xsv``.

    Raises:
        ConfigError: no columns, an unknown kind of column, or names that the separator or newline would split.
    """

    def __init__(
        self, columns: Mapping[str, str], settings: Mapping[str, Any], newline: str, separator: str, name: str
    ) -> None:
        self.format = name
        if not separator or not newline or separator in newline or newline in separator:
            raise ConfigError(f"separator={separator!r} and newline={newline!r} can not tell values from lines")
        names = sorted(columns)
        for column in names:
            if separator in column or newline in column:
                raise ConfigError(f"column {column!r} holds the separator {separator!r} or the newline {newline!r}")
        own = {"column_names": names, "column_encodings": [columns[n] for n in names], "newline": newline}
        if name not in SEPARATORS:
            own["separator"] = separator
        super().__init__(
            {n: columns[n] for n in names}, {**settings, **own}, header=header_line(names, separator, newline)
        )
        self._newline = newline
        self._separator = separator

    def convert(self, column: str, value: Any) -> str:
        text = str(super().convert(column, value))
        if self._separator in text or self._newline in text:
            raise UnfitValueError(
                f"expected text without the separator {self._separator!r} and the newline {self._newline!r}, for shards with "
                f"an index hold no quotes: got {describe(text)}. JSON lines and MDS hold any text"
            )
        return text

    def line(self, values: Mapping[str, Any]) -> str:
        texts = list(values.values())
        line = self._separator.join(texts)
        if len(self._separator) > 1 and line.split(self._separator) != texts:
            raise UnfitValueError(f"a value begins or ends with a part of the separator {self._separator!r}")
        return line + self._newline
