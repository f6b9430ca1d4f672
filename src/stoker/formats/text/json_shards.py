"""The ``json`` format: a JSON object a line, keys sorted."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from stoker.errors import ConfigError
from stoker.formats.base import ShardInfo
from stoker.formats.common.checks import parse_files, parse_samples, parse_settings, require
from stoker.formats.text.json import SETTINGS, JSONFileShard, agree_on_json, inspect_json, parse_objects
from stoker.formats.text.line_columns import JSONColumns
from stoker.formats.text.line_shards import LineEncoder, LineFormat, LineShard, check_columns
from stoker.types import Buffer


class JSONShard(LineShard):
    """An open shard of JSON lines."""

    __slots__ = ()

    def __init__(self, info: ShardInfo, files: Sequence[Buffer], where: str) -> None:
        kinds, newline = info.spec["columns"], info.spec["newline"]
        together = JSONColumns(tuple(kinds.items()), whole=False)
        super().__init__(info, files, where, kinds=kinds, first=0, newline=newline, together=together)

    def _parse(self, lines: list[str], columns: Sequence[str]) -> dict[str, list[Any]]:
        return parse_objects(lines, columns, self._kinds)


class JSONFormat(LineFormat):
    """Two files a shard: lines of JSON, and their offsets. Of others' files, spans."""

    name = "json"
    aliases = ("jsonl", "ndjson")
    shard = "lines, an object each"
    describing = (".json",)
    shards = JSONShard, JSONFileShard
    suffixes = (".jsonl", ".ndjson", ".json")
    settings = SETTINGS

    inspect_header = staticmethod(inspect_json)
    agree = staticmethod(agree_on_json)

    def parse_shard(self, obj: Mapping[str, Any], where: str) -> ShardInfo:
        """See :class:`~stoker.formats.format.Format`. ``spec`` holds ``columns`` and ``newline``."""
        samples = parse_samples(obj, where)
        raw, zipped, compression = parse_files(obj, ("data", "meta"), where)
        columns = require(obj, "columns", dict, where)
        kinds = check_columns(tuple(columns), tuple(columns.values()), where)
        newline = require(obj, "newline", str, where)
        hashes, size_limit = parse_settings(obj, where)
        spec = {"columns": kinds, "newline": newline, "hashes": hashes, "size_limit": size_limit}
        return ShardInfo("json", samples, raw, zipped, compression, spec)


class JSONEncoder(LineEncoder):
    """Samples to JSON lines.

    Args:
        columns: column name to ``str``, ``int`` or ``float``.
        settings: ``compression``, ``hashes`` and ``size_limit`` as the index holds them.
        newline: what ends a line: JSON's white space, or nothing.

    Raises:
        ConfigError: no columns, an unknown kind of column, or a newline that JSON would not skip.
    """

    format = "json"

    def __init__(self, columns: Mapping[str, str], settings: Mapping[str, Any], newline: str) -> None:
        if newline.strip(" \t\r\n"):
            raise ConfigError(f"newline={newline!r}: readers parse it with the line, so it must be JSON's white space")
        super().__init__(columns, {**settings, "columns": dict(columns), "newline": newline}, header=b"")
        self._newline = newline

    def line(self, values: Mapping[str, Any]) -> str:
        return json.dumps(values, sort_keys=True) + self._newline
