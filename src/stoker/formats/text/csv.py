"""The ``csv``, ``tsv`` and ``xsv`` formats: a header line, then a line a sample, values split by a separator.

In files that others wrote, quotes mean what RFC 4180 says. In shards with an index there is no quoting, as in MosaicML
Streaming's: text that holds the separator or the newline can not be written.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final

from stoker.arguments import must_know
from stoker.display import counted
from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import parse_settings, refuse, require, string_list
from stoker.formats.common.inspect_header import ByteSource, HeaderFacts, piece_bytes
from stoker.formats.mds.encodings.base import UnfitValueError, describe
from stoker.formats.mds.encodings.text import finite_float
from stoker.formats.text.line_columns import CSVColumns
from stoker.formats.text.line_index import PIECE_BYTES, OddCells, check_newlines, first_lines, line_spans
from stoker.formats.text.line_shards import KINDS, LineEncoder, LineFormat, LineShard, check_columns
from stoker.types import Buffer

_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_LOOKED_AT: Final = 1000
_INT: Final = re.compile(r"0|-?[1-9][0-9]*")
_DIGITS: Final = 18
_FLOAT: Final = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?:nan|inf|infinity)", re.IGNORECASE
)


class CSVShard(LineShard):
    """An open shard of separated values, or a span of a file of others, where an empty cell of a ``float`` column is NaN.

    There, in a column whose type was found out, later lines hold what the first ones could have held. Where the caller gave
    it, what Python reads as that type.
    """

    def __init__(self, info: ShardInfo, files: Sequence[Buffer], where: str, _: ReadOptions) -> None:
        spec, own = info.spec, len(files) > 1
        self._separator: str = spec["separator"]
        self._quote: str = spec.get("quote", "")
        self._own, header = own, b""
        if own:
            kinds = check_columns(spec["column_names"], spec["column_encodings"], where)
            header = header_line(spec["column_names"], self._separator, spec["newline"])
            if files[0][: len(header)] != header:
                raise CorruptDataError(f"{where}: the data file's first line does not name the index's columns")
        else:
            kinds = spec["columns"]
        self._names: list[str] = list(kinds) if own else spec["names"]
        given = frozenset(spec.get("given", ()))
        self._readers = {
            name: (_INDEXED if own else _READERS if name in given else _STRICT)[kinds[name]] for name in self._names
        }
        pairs = tuple((name, kinds[name]) for name in self._names)
        found = () if own else tuple(name for name, kind in pairs if kind != "str" and name not in given)
        odd = frozenset(spec.get("odd", ())).intersection(found)
        super().__init__(
            info,
            files,
            where,
            kinds=kinds,
            first=len(header),
            newline=spec["newline"] if own else "",
            quote=ord(self._quote) if self._quote else None,
            together=CSVColumns(pairs, self._separator, self._quote, empty=not own, found=found, odd=odd),
        )

    def _parse(self, lines: list[str], columns: Sequence[str]) -> dict[str, list[Any]]:
        picks = [(name, self._names.index(name), self._readers[name]) for name in columns]
        values: dict[str, list[Any]] = {name: [] for name in columns}
        for row, line in enumerate(lines):
            try:
                parts = split_line(line, self._separator, self._quote)
                if len(parts) != len(self._names):
                    raise ValueError(f"expected {len(self._names)} values, found {len(parts)}")
                for name, index, convert in picks:
                    try:
                        values[name].append(convert(parts[index]))
                    except ValueError:
                        raise ValueError(self._misfit(name, parts[index])) from None
            except ValueError as error:
                breaks = line.count("\n") if self._quote else 0
                more = f". The sample takes {breaks + 1:,} lines, as quotes hold line breaks" if breaks else ""
                raise UnfitValueError(f"{error}{more}", row=row) from None
        return values

    def _misfit(self, name: str, text: str) -> str:
        """The error of a value that is of another kind."""
        remedy = "" if self._own else f'. If that is right, say so: format_options={{"columns": {{{name!r}: "str"}}}}'
        return f"column {name!r}: expected {self._kinds[name]}, found {describe(text)}{remedy}"


def split_line(line: str, separator: str, quote: str) -> list[str]:
    """The values of a line. Quotes around a value are taken off; two of them inside are one.

    ValueError if text follows a closing quote, or one is missing.
    """
    if not quote or quote not in line:
        return line.split(separator)
    value = _value(separator, quote)
    out: list[str] = []
    at = 0
    while True:
        match = value.match(line, at)
        assert match is not None  # a bare value may be empty
        quoted, bare = match.groups()
        out.append(bare if quoted is None else quoted.replace(quote * 2, quote))
        at = match.end()
        if at == len(line):
            return out
        if line[at] != separator:
            raise ValueError(
                f"a quote ({quote}) is missing, or stands inside of a value, near {line[at : at + 20]!r}. If the file quotes "
                'nothing, say so with format_options={"quote": ""}'
            )
        at += 1


@lru_cache(maxsize=64)
def _value(separator: str, quote: str) -> re.Pattern[str]:
    s, q = re.escape(separator), re.escape(quote)
    return re.compile(f"{q}([^{q}]*(?:{q}{q}[^{q}]*)*){q}|([^{s}{q}]*)", re.DOTALL)


def odd_cells(kinds: Mapping[str, str], given: Container[str], separator: str, quote: str) -> OddCells:
    """A search for cells that are read otherwise together than one by one, in columns whose kind nobody has given."""
    checks = {"int": _is_int, "float": _is_float}
    numbers = [(place, kind) for place, (name, kind) in enumerate(kinds.items()) if kind != "str" and name not in given]
    columns = {place: checks[kind] for place, kind in numbers} if separator.isascii() else {}
    return OddCells(columns, separator, ord(quote) if quote else None)


def _dialect(settings: Mapping[str, Any], name: str, separator: str | None) -> tuple[str, str]:
    separator = settings.get("separator", separator)
    quote = settings.get("quote", '"')
    if not isinstance(separator, str) or len(separator) != 1 or separator in "\r\n":
        raise ConfigError(
            f"format {name!r}: separator={separator!r}: one character, given in format_options. Where each file is a sample: "
            'format="files". Lines of plain text are read with {"separator": "\\x1f", "quote": "", "header": False, '
            '"columns": ["text"]}'
        )
    if not isinstance(quote, str) or len(quote) > 1 or quote in (separator, "\r", "\n") or not quote.isascii():
        raise ConfigError(f"format {name!r}: quote={quote!r}: one ASCII character, or none")
    return separator, quote


def _split(line: bytes, separator: str, quote: str, number: int, where: str) -> list[str] | None:
    """The values of a line; ``None`` where it is not UTF-8."""
    try:
        text = line.decode()
    except UnicodeDecodeError:
        return None
    try:
        return split_line(text, separator, quote)
    except ValueError as error:
        raise CorruptDataError(f"{where}: line {number}: {error}") from None


def _kinds(names: list[str], rows: Sequence[list[str] | None], chosen: Any, where: str) -> dict[str, str]:
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise CorruptDataError(
            f"{where}: two columns are called {twice!r}: rename one in the first line. If that line is a sample, say so: "
            'format_options={"header": False}'
        )
    good = [row for row in rows if row is not None and len(row) == len(names)]
    if 2 * len(good) < len(rows):  # not some bad samples, but another file than it was taken for
        number, row = next((number, row) for number, row in enumerate(rows) if row is None or len(row) != len(names))
        told = "is not UTF-8" if row is None else f"has {counted(len(row), 'value')} for {len(names)} columns"
        many = f": {len(rows) - len(good):,} of the first {len(rows):,} do not fit" if len(rows) > 1 else ""
        raise CorruptDataError(f"{where}: sample {number} {told}{many}")
    if not isinstance(chosen, Mapping):
        raise ConfigError(
            f"format_options columns={chosen!r}: where the first line has the names, these are types by name, such as "
            f"{{{names[0]!r}: 'str'}}. To read some columns only, name them in columns= of the dataset"
        )
    for column, kind in chosen.items():
        must_know("kind", [kind], KINDS, f"columns: {column!r}: ")
    must_know("column", chosen, names, f"{where}: ")
    return {column: chosen.get(column) or _kind([row[index] for row in good]) for index, column in enumerate(names)}


def _kind(texts: Sequence[str]) -> str:
    """The kind of a column's first values. Numbers that would not be the same when read as one are text."""
    filled = [text for text in texts if text]
    if not filled:
        return "str"
    if len(filled) == len(texts) and all(_is_int(text) and len(text.lstrip("-")) <= _DIGITS for text in filled):
        return "int"
    return "float" if all(map(_is_float, filled)) else "str"


def _is_int(text: str) -> bool:
    return _INT.fullmatch(text) is not None


def _is_float(text: str) -> bool:
    """Whether a float keeps this number: an integer has at most 15 digits, no plus and no leading zeros; it is finite."""
    if not _FLOAT.fullmatch(text):
        return False
    digits = text.lstrip("+-")
    if digits.isdigit():
        return text[0] != "+" and (digits[0] != "0" or len(digits) == 1) and len(digits) <= 15
    return digits[0] in "iInN" or math.isfinite(float(text))


def _wider(kinds: set[str]) -> str:
    if len(kinds) == 1:
        return next(iter(kinds))
    return "float" if kinds == {"int", "float"} else "str"


def _int(text: str) -> int:
    if "_" in text:
        raise ValueError("not a number")
    return int(text)


def _float(text: str) -> float:
    if "_" in text:
        raise ValueError("not a number")
    return finite_float(text) if text else math.nan


def _strict_int(text: str) -> int:
    if not _is_int(text):
        raise ValueError("not a number as columns of numbers hold it")
    return int(text)


def _strict_float(text: str) -> float:
    if text and not _is_float(text):
        raise ValueError("not a number as columns of numbers hold it")
    return float(text) if text else math.nan


_READERS: Final[Mapping[str, Callable[[str], Any]]] = {"str": str, "int": _int, "float": _float}
_STRICT: Final[Mapping[str, Callable[[str], Any]]] = {"str": str, "int": _strict_int, "float": _strict_float}
_INDEXED: Final[Mapping[str, Callable[[str], Any]]] = {"str": str, "int": int, "float": float}


SEPARATORS: Final = {"csv": ",", "tsv": "\t"}
"""Separators of the formats that have a fixed one."""


class XSVFormat(LineFormat):
    """Two files a shard: lines of separated values, and their offsets. Of others' files, spans.

    ``separator``: what stands between two values; empty where an entry of the index says it.
    """

    name = "xsv"
    shard = "lines, as `csv`, of any separator"
    describing: ClassVar[tuple[str, ...]] = (".csv", ".tsv", ".txt", ".psv")
    quoted = True
    reader = CSVShard
    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".tsv", ".txt", ".psv")
    settings = ("columns", "header", "piece_bytes", "quote", "separator")
    separator: ClassVar[str] = ""

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
        """See :class:`stoker.formats.format.Format`.

        Settings: ``columns`` (kinds by name: ``str``, ``int`` or ``float``; or all names, in order, where there is no header:
        a single one, where nothing is quoted, is that of lines of text), ``header`` (whether the first line has the names,
        default true), ``quote`` (default ``"``; empty for none), ``separator`` (default the format's) and ``piece_bytes``
        (size of the shards, 32 MiB). Kinds that are not given are found out from the first 1000 lines. A few of these that
        have more or fewer values than there are columns, or no UTF-8, tell nothing: they are bad samples.

        CorruptDataError if most of the file's first lines do not have as many values as there are columns, or a quote is
        wrong, ConfigError for settings that make no sense, or a first line that may be a sample.
        """
        separator, quote = _dialect(settings, self.name, self.separator or None)
        code = ord(quote) if quote else None
        chosen = settings.get("columns") or {}
        header = settings.get("header", True)
        first = first_lines(source, code, _LOOKED_AT + 1, least=2 if header else 1)
        start, lines = first.start, first.lines
        if not lines:
            return HeaderFacts(0, {"columns": {}, "names": [], "separator": separator, "quote": quote})
        rows = [_split(line, separator, quote, number, source.where) for number, line in enumerate(lines)]
        if header:
            names, *rows = rows
            if names is None:
                raise CorruptDataError(f"{source.where}: its first line, with the names of columns, is not UTF-8")
            if (
                "header" not in settings
                and all(map(_NUMBER.fullmatch, names))
                and names != [*map(str, range(len(names)))]
            ):
                raise ConfigError(
                    f"{source.where}: its first line holds numbers alone, {separator.join(names)[:40]}: if it is a sample, "
                    'say format_options={"header": False}; if these are names of columns, {"header": True}'
                )
            start = first.second
        elif isinstance(chosen, Mapping):
            widths = Counter(len(row) for row in rows if row is not None)
            usual = widths.most_common(1)[0][0] if widths else 1
            names = list(chosen) or [f"column_{number}" for number in range(usual)]
        else:
            names = list(chosen)
            chosen = {name: "str" for name in names if len(names) == 1 and not quote}
        kinds = _kinds(names, rows, chosen, source.where)
        cells = odd_cells(kinds, chosen, separator, quote)
        spans = line_spans(source, start, code, piece_bytes(settings, PIECE_BYTES), cells.look, first.newline)
        spec: dict[str, Any] = {"columns": kinds, "names": names, "separator": separator, "quote": quote}
        spec.update(first.spec)
        if chosen:
            spec["given"] = list(chosen)
        if cells.found:
            spec["odd"] = sorted(names[place] for place in cells.found)
        return HeaderFacts(sum(samples for _, _, samples in spans), spec, spans)

    def agree(self, first: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
        """The spec of two files with the same names in the same order: columns that differ of the wider kind.

        ValueError if their names or newlines differ.
        """
        if first["names"] != other["names"]:
            one, two = ", ".join(first["names"]), ", ".join(other["names"])
            raise ValueError(f"the first has the columns {one[:200]}, the second {two[:200]}")
        check_newlines(first, other)
        columns = {name: _wider({kind, other["columns"][name]}) for name, kind in first["columns"].items()}
        odd = {*first.get("odd", ()), *other.get("odd", ())}
        return {**first, "columns": columns} | ({"odd": sorted(odd)} if odd else {})

    def parse_spec(self, obj: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """See :class:`stoker.formats.format.Format`.

        It holds ``column_names`` and ``column_encodings`` (parallel), ``separator`` and ``newline``.
        """
        names = string_list(obj, "column_names", where)
        kinds = string_list(obj, "column_encodings", where)
        check_columns(names, kinds, where)
        newline = require(obj, "newline", str, where)
        separator = self.separator or require(obj, "separator", str, where)
        if not separator or not newline or separator == newline:
            refuse(where, f"separator {separator!r} and newline {newline!r} can not split lines")
        hashes, size_limit = parse_settings(obj, where)
        return {
            "column_names": names,
            "column_encodings": kinds,
            "separator": separator,
            "newline": newline,
            "hashes": hashes,
            "size_limit": size_limit,
        }


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

    ConfigError for no columns, an unknown kind of column, or names that the separator or newline would split.

    Args:
        columns: column name to ``str``, ``int`` or ``float``.
        settings: ``compression``, ``hashes`` and ``size_limit`` as the index holds them.
        newline: what ends a line.
        separator: what stands between two values.
        name: ``csv``, ``tsv`` or ``xsv``.
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

    def encode_column_value(self, column: str, value: Any) -> str:
        text = str(super().encode_column_value(column, value))
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
