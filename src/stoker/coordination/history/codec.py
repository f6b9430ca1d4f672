"""Records as bytes, as the engine holds them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from stoker.coordination.history.records import (
    CoordinationSettings,
    Entry,
    Epoch,
    Held,
    History,
    Lane,
    LogChunk,
    Process,
    Record,
    ReturnedRange,
    SplitRecord,
    Summary,
    WorkerRecord,
)
from stoker.errors import StateError

__all__ = ["decode", "encode", "from_rows", "to_rows"]

_VERSION: Final = 2


def encode(record: Record) -> bytes:
    """A record as bytes: a JSON list of its format's version, its kind and its fields in order."""
    return json.dumps([_VERSION, _KINDS[type(record)], record], separators=(",", ":")).encode()


def decode(value: bytes) -> Any:
    """The record that :func:`encode` made.

    Raises:
        StateError: it is none, or was written by a version of stoker with other records.
    """
    try:
        version, kind, fields = json.loads(value)
        if version != _VERSION:
            raise StateError(
                f"the engine holds a record of format {version}, this stoker reads format {_VERSION}: all workers of a "
                f"run need the same version of stoker"
            )
        return _DECODERS[kind](fields)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(
            f"not a record of a stoker run: {value[:80]!r}: give the run an engine, or a run id, of its own"
        ) from error


def _entries(rows: list[list[int]]) -> tuple[Entry, ...]:
    return tuple([Entry(*row) for row in rows])


def _lane(f: list[Any]) -> Lane:
    f[6] = tuple([SplitRecord(*row) for row in f[6]])
    f[7] = tuple([ReturnedRange(*row) for row in f[7]])
    f[8] = tuple([ReturnedRange(*row) for row in f[8]])
    f[11] = _entries(f[11])
    return Lane(*f)


def _worker(f: list[Any]) -> WorkerRecord:
    f[3] = Process(*f[3])
    f[9] = tuple([Held(*row) for row in f[9]])
    return WorkerRecord(*f)


def _epoch(f: list[Any]) -> Epoch:
    f[3] = tuple(f[3])
    f[4] = None if f[4] is None else tuple([(begin, end) for begin, end in f[4]])
    f[5] = tuple([(name, value) for name, value in f[5]])
    f[6] = CoordinationSettings(*f[6])
    f[7] = tuple([History(k, tuple(counts), _entries(partial)) for k, counts, partial in f[7]])
    return Epoch(*f)


def _summary(f: list[Any]) -> Summary:
    f[8] = tuple([(lane, samples) for lane, samples in f[8]])
    f[9] = tuple(f[9])
    return Summary(*f)


# As engines hold them: they stay, whatever the classes are called.
_KINDS: Final[dict[type, str]] = {
    Epoch: "Epoch",
    Lane: "Lane",
    LogChunk: "LogChunk",
    Summary: "Summary",
    WorkerRecord: "Worker",
}
_DECODERS = {
    "Epoch": _epoch,
    "Lane": _lane,
    "LogChunk": lambda f: LogChunk(_entries(f[0])),
    "Summary": _summary,
    "Worker": _worker,
}


def to_rows(entries: Iterable[Entry]) -> list[list[int]]:
    """Entries as JSON can have them."""
    return [list(entry) for entry in entries]


def from_rows(rows: Iterable[Sequence[int]]) -> list[Entry]:
    """The entries that :func:`to_rows` made.

    Raises:
        StateError: they are none.
    """
    try:
        return [Entry(*[int(number) for number in row]) for row in rows]
    except (TypeError, ValueError) as error:
        raise StateError(f"not a recorded assignment: {error}") from error
