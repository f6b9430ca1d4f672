"""The ``json`` format: a JSON object a line, in files that others wrote, and, with sorted keys, in shards with an index."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from stoker.arguments import must_know
from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import parse_settings, require
from stoker.formats.common.inspect_header import ByteSource, HeaderFacts, piece_bytes
from stoker.formats.mds.encodings.base import UnfitValueError, describe
from stoker.formats.mds.encodings.text import may_hold_infinity
from stoker.formats.text.line_columns import JSONColumns
from stoker.formats.text.line_index import PIECE_BYTES, check_newlines, first_lines, line_spans
from stoker.formats.text.line_shards import LineEncoder, LineFormat, LineShard, check_columns
from stoker.types import Buffer

_KINDS: Final = ("str", "int", "float", "bool", "json")
# The types that the parser makes, by the kinds that they fit; all fit ``json``.
_TYPES: Final = {
    "str": frozenset({str}),
    "int": frozenset({int}),
    "float": frozenset({float, int}),
    "bool": frozenset({bool}),
}
_LOOKED_AT: Final = 1000
# So many lines are parsed together.
_FEW: Final = 8
_MOST_TOLD: Final = 300


def parse_objects(
    lines: Sequence[str], columns: Sequence[str], kinds: Mapping[str, str], *, whole: bool = False
) -> dict[str, list[Any]]:
    """Values of columns in lines of JSON. What is missing in a column of the kind ``json`` is ``None``.

    UnfitValueError if a line is no JSON object, or a value is missing or of another kind; tells the row. ``kinds``: kind of
    each column that there is. ``whole``: whether these are all keys that a line may have.
    """
    found = _parse_together(lines, columns, kinds, whole)
    if found is not None:
        return found
    known = kinds.keys()
    values: dict[str, list[Any]] = {name: [] for name in columns}
    slots = [(name, kinds[name], values[name].append) for name in columns]
    huge: list[str] = []
    for row, line in enumerate(lines):
        try:
            sample = json.loads(line, parse_float=partial(_Huge.read, huge))
        except (ValueError, RecursionError) as error:
            raise UnfitValueError(_with_remedy(f"not JSON: {error}", line), row=row) from None
        if not isinstance(sample, dict):
            said = f"expected a JSON object, found {describe(sample)}"
            raise UnfitValueError(_with_remedy(said, line), row=row)
        if whole and not sample.keys() <= known:
            name = next(name for name in sample if name not in known)
            raise UnfitValueError(f"column {name!r} is not in the first lines of the files", row=row, column=name)
        for name, kind, append in slots:
            if name not in sample:
                if kind == "json":
                    append(None)
                    continue
                raise UnfitValueError(f"column {name!r} is missing", row=row, column=name)
            value = sample[name]
            if huge and _holds_huge(value):
                raise UnfitValueError(
                    f"column {name!r}: a number of the line ({huge[0][:40]}) is larger than a float holds: write it as text",
                    row=row,
                )
            if not _fits(kind, value, exact=whole):
                raise UnfitValueError(
                    f"column {name!r}: expected {kind}, found {describe(value)}", row=row, column=name
                )
            append(value)
        huge.clear()
    return values


class _Huge(float):
    """Infinite in place of a number that no float holds, as 1e400; ``Infinity`` is a plain float."""

    __slots__ = ()

    @classmethod
    def read(cls, found: list[str], text: str) -> float:
        """The number; one that is too large is noted."""
        number = float(text)
        if math.isinf(number):
            found.append(text)
            return cls(number)
        return number


def _holds_huge(value: Any) -> bool:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, _Huge):
            return True
        if isinstance(one, list | dict):
            waiting += one.values() if isinstance(one, dict) else one
    return False


def _parse_together(
    lines: Sequence[str], columns: Sequence[str], kinds: Mapping[str, str], whole: bool
) -> dict[str, list[Any]] | None:
    """The same as :func:`parse_objects`, of all lines at once; ``None`` where a line is wrong, or may be.

    The lines become an array, with a random word between each two that no line can know: that each second value is this word
    says that each line is one value.
    """
    if len(lines) < _FEW:
        return None
    word = secrets.token_hex(16)
    try:
        found = json.loads("[" + f',"{word}",'.join(lines) + "]")
    except (ValueError, RecursionError):
        return None
    samples = found[::2]
    if (
        len(found) != 2 * len(lines) - 1
        or found[1::2].count(word) != len(lines) - 1
        or set(map(type, samples)) != {dict}
    ):
        return None
    if whole and not all(map(set(kinds).issuperset, samples)):
        return None
    values: dict[str, list[Any]] = {}
    for name in columns:
        fitting = _TYPES.get(kinds[name])
        if fitting is None:
            values[name] = [sample.get(name) for sample in samples]
            if may_hold_infinity(values[name]):
                return None
            continue
        try:
            values[name] = [sample[name] for sample in samples]
        except KeyError:
            return None
        types = set(map(type, values[name]))
        if not types <= fitting or (
            kinds[name] == "float" and not _are_floats(values[name], exact=whole and int in types)
        ):
            return None
    return values


def _are_floats(values: Sequence[float], *, exact: bool) -> bool:
    """Whether a column of floats holds these numbers. Where ``False``, some may still fit: check them one by one."""
    try:
        if not math.isfinite(sum(values)) and any(map(math.isinf, values)):
            return False
        return not exact or all(float(value) == value for value in values if type(value) is int)
    except OverflowError:
        return False


def lines_remedy(line: str | bytes) -> str:
    """A remedy for a file whose line is no JSON object, where the line shows that it is other JSON; else empty."""
    text = bytes(line[:80]).decode("utf-8", "replace") if isinstance(line, bytes | bytearray) else line[:80]
    text = text.lstrip("\ufeff \t").rstrip()
    if text.startswith("["):
        return "a JSON array begins here. JSON lines are needed, an object a line: `jq -c '.[]' FILE > FILE.jsonl` makes them"
    if text == "{":
        return "an object over several lines. JSON lines are needed, an object a line: `jq -c . FILE > FILE.jsonl` makes them"
    return ""


def _with_remedy(said: str, line: str) -> str:
    remedy = lines_remedy(line)
    return f"{said}: {remedy}" if remedy else said


class JSONShard(LineShard):
    """An open shard of JSON lines, or a span of a file of others' lines.

    There, columns of the kind ``json`` hold whatever is there, and ``None``.
    """

    def __init__(self, info: ShardInfo, files: Sequence[Buffer], where: str, _: ReadOptions) -> None:
        kinds, own = info.spec["columns"], len(files) > 1
        self._inferred: bool = info.spec.get("inferred", False)
        self._own = own
        together = JSONColumns(tuple(kinds.items()), whole=self._inferred)
        newline = info.spec["newline"] if own else ""
        super().__init__(info, files, where, kinds=kinds, first=0, newline=newline, together=together)

    def _parse(self, lines: list[str], columns: Sequence[str]) -> dict[str, list[Any]]:
        try:
            return parse_objects(lines, columns, self._kinds, whole=self._inferred)
        except UnfitValueError as error:
            if error.column is not None and not self._own:
                columns = str({**self._kinds, error.column: "json"})
                if len(columns) > _MOST_TOLD:
                    columns = f"{{{error.column!r}: 'json', and all others}}"
                remedy = f'If that is right, say so: format_options={{"columns": {columns}}}'
                raise UnfitValueError(f"{error}. {remedy}", row=error.row) from None
            raise


def _infer(lines: Sequence[bytes], where: str) -> dict[str, str]:
    kinds: dict[str, set[str | None]] = {}
    counts: dict[str, int] = {}
    bad: list[str] = []
    for number, line in enumerate(lines):
        try:
            sample = json.loads(line, parse_float=lambda _: 0.0)  # only that it is a float matters, however large
        except (ValueError, RecursionError) as error:
            sample, told = None, f"sample {number} is not JSON: {str(error)[:200]}"
        else:
            told = f"sample {number}: expected a JSON object, found {describe(sample)}"
        if not isinstance(sample, dict):
            if remedy := lines_remedy(line):  # not a bad sample, but a file that has to be made otherwise
                raise CorruptDataError(f"{where}: {told.partition(': ')[0]}: {remedy}")
            bad.append(told)
            continue
        for name, value in sample.items():
            kinds.setdefault(name, set()).add(_kind(value))
            counts[name] = counts.get(name, 0) + 1
    good = len(lines) - len(bad)
    if 2 * good < len(lines):
        many = f"; {len(bad):,} of the first {len(lines):,} are none" if len(lines) > 1 else ""
        raise CorruptDataError(
            f"{where}: {bad[0]}{many}. With the types of keys in "
            'format_options={"columns": {...}} only these samples are bad'
        )
    return {name: _wider(found | ({None} if counts[name] < good else set())) for name, found in kinds.items()}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if _fits("float", value, exact=True) else "long"
    if isinstance(value, float):
        return "float" if math.isfinite(value) else "json"
    return "str" if isinstance(value, str) else "json"


def _wider(kinds: set[str | None]) -> str:
    """One kind for all; ``None`` stands for values that are missing, ``"long"`` for integers that no float holds."""
    if kinds <= {"int", "long"}:
        return "int"
    if len(kinds) == 1 and None not in kinds:
        return str(next(iter(kinds)))
    return "float" if kinds == {"int", "float"} else "json"


def _fits(kind: str, value: Any, *, exact: bool) -> bool:
    """Whether a value is of a kind. With ``exact``, an integer is a float only if the float has the same value."""
    if kind == "json":
        return True
    if type(value) not in _TYPES[kind]:
        return False
    try:
        return kind != "float" or not exact or type(value) is float or float(value) == value
    except OverflowError:
        return False


class JSONFormat(LineFormat):
    """Two files a shard: lines of JSON, and their offsets. Of others' files, spans."""

    name = "json"
    aliases = ("jsonl", "ndjson")
    shard = "lines, an object each"
    describing = (".json",)
    reader = JSONShard
    suffixes = (".jsonl", ".ndjson", ".json")
    settings = ("columns", "piece_bytes")

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
        """See :class:`stoker.formats.format.Format`.

        Settings: ``columns`` (keys to read, to ``str``, ``int``, ``float``, ``bool`` or ``json``, which is anything) and
        ``piece_bytes`` (size of the shards, 32 MiB). By default columns are found out from the first 1000 lines; what is not
        of one kind there, or missing, is ``json``. A line further on that has other keys is then an error when it is read. A
        few lines that are not JSON objects do not decide the format: they are bad samples.

        CorruptDataError if most of these lines are no JSON objects, or one is other JSON, ConfigError for settings that make
        no sense.
        """
        first = first_lines(source, None, _LOOKED_AT, least=1)
        chosen = settings.get("columns")
        if chosen is None:
            columns = _infer(first.lines, source.where)
        else:
            columns = dict(chosen)
            for name, kind in columns.items():
                must_know("kind", [kind], _KINDS, f"columns: {name!r}: ")
        spans = line_spans(source, first.start, None, piece_bytes(settings, PIECE_BYTES), newline=first.newline)
        if spans and not columns:
            raise CorruptDataError(
                f"{source.where}: its first lines hold objects without keys: give columns= in format_options"
            )
        spec = {"columns": columns, **({"inferred": True} if chosen is None else {}), **first.spec}
        return HeaderFacts(sum(samples for _, _, samples in spans), spec, spans)

    def agree(self, first: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`stoker.formats.format.Format`: columns of both, those that differ of the wider kind."""
        check_newlines(first, other)
        one, two = first["columns"], other["columns"]
        columns = {name: _wider({one.get(name), two.get(name)}) for name in dict.fromkeys((*one, *two))}
        return {**first, "columns": columns}

    def parse_spec(self, obj: Mapping[str, Any], where: str) -> Mapping[str, Any]:
        """See :class:`~stoker.formats.format.Format`. It holds ``columns`` and ``newline``."""
        columns = require(obj, "columns", dict, where)
        kinds = check_columns(tuple(columns), tuple(columns.values()), where)
        newline = require(obj, "newline", str, where)
        hashes, size_limit = parse_settings(obj, where)
        return {"columns": kinds, "newline": newline, "hashes": hashes, "size_limit": size_limit}


class JSONEncoder(LineEncoder):
    """Samples to JSON lines. ConfigError for no columns, an unknown kind of column, or a newline that JSON would not skip.

    ``columns``: column name to ``str``, ``int`` or ``float``. ``settings``: ``compression``, ``hashes`` and ``size_limit`` as
    the index holds them. ``newline``: what ends a line: JSON's white space, or nothing.
    """

    format = "json"

    def __init__(self, columns: Mapping[str, str], settings: Mapping[str, Any], newline: str) -> None:
        if newline.strip(" \t\r\n"):
            raise ConfigError(f"newline={newline!r}: readers parse it with the line, so it must be JSON's white space")
        super().__init__(columns, {**settings, "columns": dict(columns), "newline": newline}, header=b"")
        self._newline = newline

    def line(self, values: Mapping[str, Any]) -> str:
        return json.dumps(values, sort_keys=True) + self._newline
