"""Token columns: which it is, and how many tokens the footers tell of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np

from stoker.errors import ConfigError
from stoker.formats.base import ShardInfo
from stoker.formats.parquet.footer.facts import NULLS, VALUES, RowGroup
from stoker.types import Ids

TOKEN_COLUMNS: Final = ("input_ids", "token_ids", "tokens")
"""Names by which a token column is found, the first that is there."""

_TOKENS = re.compile(r"list<u?int(?:8|16|32|64)>")


class _Shards(Protocol):
    @property
    def shards(self) -> Sequence[ShardInfo]: ...


def token_column(index: _Shards, name: str | None = None) -> str:
    """Name of the token column of a Parquet dataset.

    Args:
        index: the dataset's index.
        name: its name, if it is known.

    Raises:
        ConfigError: there is none, or it does not hold lists of integers; says what there is.
    """
    columns: dict[str, str] = dict(index.shards[0].spec["columns"]) if len(index.shards) else {}
    described = ", ".join(f"{column} ({kind})" for column, kind in columns.items()) or "no columns, for it has no rows"
    where = _file_of(index)
    chosen = name if name is not None else next((one for one in TOKEN_COLUMNS if one in columns), None)
    if chosen is None:
        raise ConfigError(
            f"{where}there is no token column: none is called {' or '.join(TOKEN_COLUMNS)}; there is {described}. "
            "Name the column, or tokenize text first"
        )
    if chosen not in columns:
        raise ConfigError(f"{where}there is no column {chosen!r}; there is {described}")
    kind = columns[chosen]
    if not _TOKENS.fullmatch(kind):
        text = "tokenize it first" if kind in ("string", "binary") else "write token ids as lists of integers"
        raise ConfigError(f"{where}column {chosen!r} holds {kind}, but tokens are lists of integers: {text}")
    return chosen


def token_counts(index: _Shards, column: str) -> Ids:
    """Tokens of each row group, from footers alone.

    Args:
        index: the dataset's index.
        column: a column of lists of numbers.

    Returns:
        int64, shape ``(shards,)``. The count is exact: numbers of the column's leaf that are not null (a null or empty
        list counts as a null there). -1 where the writer left the number of nulls out; such row groups have to be
        decoded to be counted.
    """
    counts = np.empty(len(index.shards), dtype=np.int64)
    for number, shard in enumerate(index.shards):
        group = shard.detail
        if not isinstance(group, RowGroup):
            raise ConfigError("token_counts: not an index of a Parquet dataset")
        found = group.file.schema.find(column)
        if found is None:
            raise ConfigError(f"{group.file.key} has no column {column!r}")
        facts = group.file.chunks[group.index, found[1]]
        counts[number] = facts[VALUES] - facts[NULLS] if facts[NULLS] >= 0 else -1
    return counts


def _file_of(index: _Shards) -> str:
    """The first file, as an example that can be looked at."""
    group = index.shards[0].detail if len(index.shards) else None
    return f"{group.file.key}: " if isinstance(group, RowGroup) else ""
