"""Columns that folders of files tell: Hive's ``name=value`` between the dataset's root and a file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

from stoker.errors import IndexFileError
from stoker.formats.common.inspect_header import Partition

# How Hive spells a null in a directory's name.
_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]{0,17}")


def partitions_of(keys: Sequence[str], where: str) -> dict[str, Partition]:
    """Names and values that folders of the form ``name=value`` tell, by each file's key.

    Values are integers where all of a name are, else text.

    Raises:
        IndexFileError: files are partitioned by different names.
    """
    raw: list[dict[str, str | None]] = []
    for key in keys:
        values: dict[str, str | None] = {}
        for part in key.split("/")[:-1]:
            name, equals, value = part.partition("=")
            if equals and name:
                values[unquote(name)] = None if value == _HIVE_NULL else unquote(value)
        raw.append(values)
        if values.keys() != raw[0].keys():
            raise IndexFileError(
                f"{where}: {keys[0]} is partitioned by {', '.join(raw[0]) or 'nothing'}, {key} by "
                f"{', '.join(values) or 'nothing'}: open them apart, or name the files in a list with hive=False"
            )
    numeric = {name for name in (raw[0] if raw else {}) if all(_is_integer(values[name]) for values in raw)}
    return {
        key: tuple((name, _typed(value, name in numeric)) for name, value in values.items())
        for key, values in zip(keys, raw, strict=True)
    }


def kinds_of(partitions: Mapping[str, Partition]) -> dict[str, str]:
    """Types of the partitions' columns."""
    first = dict(next(iter(partitions.values()), ()))
    whole = {name for name in first if all(isinstance(dict(one)[name], int | None) for one in partitions.values())}
    return {name: "int64" if name in whole else "string" for name in first}


def _is_integer(value: str | None) -> bool:
    return value is None or _INTEGER.fullmatch(value) is not None


def _typed(value: str | None, numeric: bool) -> Any:
    return int(value) if numeric and value is not None else value
