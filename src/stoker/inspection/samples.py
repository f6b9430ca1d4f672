"""Every sample of an open shard, decoded, a few megabytes at a time; those that do not decode are named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from stoker.display import error_text
from stoker.errors import MissingPackageError
from stoker.formats.base import ShardReader
from stoker.types import Ids

_CHUNK_BYTES: Final = 8 << 20
_MOST_ROWS: Final = 4096


def bad_samples(
    reader: ShardReader, size: int, columns: Sequence[str], stopped: Callable[[], bool]
) -> Iterator[tuple[int, str | None, str]]:
    """Row, column and message of each value that does not decode; no column where none of the sample's does.

    Args:
        reader: an open shard.
        size: bytes of the shard, which tell how many rows are decoded at once.
        columns: columns to decode.
        stopped: whether to give up, asked between pieces.

    Raises:
        MissingPackageError: a decoder is not installed.
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
