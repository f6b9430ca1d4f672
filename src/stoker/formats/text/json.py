"""JSON lines that others wrote: a JSON object a line, read as they are."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stoker.arguments import unknown_name
from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.base import ShardInfo
from stoker.formats.common.byte_source import ByteSource
from stoker.formats.common.inspect_header import HeaderFacts, only_settings, piece_bytes
from stoker.formats.common.values import UnfitValueError, describe
from stoker.formats.text.json_shards import lines_remedy, parse_objects
from stoker.formats.text.line_index import PIECE_BYTES, first_lines, line_pieces
from stoker.formats.text.line_shards import LineShard
from stoker.types import Buffer

__all__ = ["SETTINGS", "JSONFileShard", "agree_on_json", "inspect_json"]

SETTINGS: Final = ("columns", "piece_bytes")
_KINDS: Final = ("str", "int", "float", "bool", "json")
_LOOKED_AT: Final = 1000
_MOST_TOLD: Final = 300


class JSONFileShard(LineShard):
    """An open piece of a file of JSON lines. Columns of the kind ``json`` hold whatever is there, and ``None``."""

    __slots__ = ("_inferred",)

    def __init__(self, info: ShardInfo, files: Sequence[Buffer], where: str) -> None:
        super().__init__(info, files, where, kinds=info.spec["columns"], first=0, newline="")
        self._inferred: bool = info.spec.get("inferred", False)

    @property
    def format(self) -> str:
        return "json"

    def _parse(self, lines: list[str], columns: Sequence[str]) -> dict[str, list[Any]]:
        try:
            return parse_objects(lines, columns, self._kinds, whole=self._inferred)
        except UnfitValueError as error:
            if error.column is not None:
                columns = str({**self._kinds, error.column: "json"})
                if len(columns) > _MOST_TOLD:
                    columns = f"{{{error.column!r}: 'json', and all others}}"
                remedy = f'If that is right, say so: format_options={{"columns": {columns}}}'
                raise UnfitValueError(f"{error}. {remedy}", row=error.row) from None
            raise


def inspect_json(source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
    """Inspects a file of JSON lines.

    Settings: ``columns`` (keys to read, to ``str``, ``int``, ``float``, ``bool`` or ``json``, which is anything). By default
    these are found out from the first 1000 lines; what is not of one kind there, or missing, is ``json``. A line further on
    that has other keys is then an error when it is read.
    ``piece_bytes``: size of the shards, 32 MiB.

    Raises:
        CorruptDataError: a line is no JSON object.
        ConfigError: settings that make no sense.
    """
    only_settings(settings, SETTINGS, "json")
    start, _, lines = first_lines(source, None, _LOOKED_AT)
    chosen = settings.get("columns")
    if chosen is None:
        columns = _infer(lines, source.where)
    else:
        columns = dict(chosen)
        for name, kind in columns.items():
            if kind not in _KINDS:
                raise ConfigError(f"columns: {name!r}: {unknown_name('kind', kind, _KINDS)}")
    pieces = line_pieces(source, start, None, piece_bytes(settings, PIECE_BYTES))
    if pieces and not columns:
        why = "its first lines hold objects without keys" if lines else "its first lines are longer than 1 MiB"
        raise CorruptDataError(f"{source.where}: {why}: give columns= in format_options")
    spec = {"columns": columns} | ({"inferred": True} if chosen is None else {})
    return HeaderFacts(sum(piece.samples for piece in pieces), spec, pieces)


def agree_on_json(first: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    """The spec of two files: columns of both, those that differ of the wider kind."""
    one, two = first["columns"], other["columns"]
    columns = {name: _wider({one.get(name), two.get(name)}) for name in dict.fromkeys((*one, *two))}
    return {**first, "columns": columns}


def _infer(lines: Sequence[bytes], where: str) -> dict[str, str]:
    kinds: dict[str, set[str | None]] = {}
    counts: dict[str, int] = {}
    for number, line in enumerate(lines):
        try:
            sample = json.loads(line)
        except (ValueError, RecursionError) as error:
            remedy = lines_remedy(line)
            raise CorruptDataError(f"{where}: sample {number} is not JSON: {remedy or str(error)[:200]}") from None
        if not isinstance(sample, dict) and (remedy := lines_remedy(line)):
            raise CorruptDataError(f"{where}: sample {number}: {remedy}")
        if not isinstance(sample, dict):
            raise CorruptDataError(f"{where}: sample {number}: expected a JSON object, found {describe(sample)}")
        for name, value in sample.items():
            kinds.setdefault(name, set()).add(_kind(value))
            counts[name] = counts.get(name, 0) + 1
    return {name: _wider(found | ({None} if counts[name] < len(lines) else set())) for name, found in kinds.items()}


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int"
    if isinstance(value, float):
        return "float" if math.isfinite(value) else "json"
    return "str" if isinstance(value, str) else "json"


def _wider(kinds: set[str | None]) -> str:
    """One kind for all; ``None`` stands for values that are missing."""
    if len(kinds) == 1 and None not in kinds:
        return str(next(iter(kinds)))
    return "float" if kinds == {"int", "float"} else "json"
