"""Records as bytes, as the engine holds them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from stoker.coordination.history.records import Entry, Epoch, Lane, LogChunk, Record, Summary, WorkerRecord
from stoker.errors import StateError

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


def _decoder(kind: Any) -> Callable[[Any], Any] | None:
    """Makes tuples and records of the lists that JSON has for them, by a type; ``None`` where values stay as they are."""
    if get_origin(kind) is UnionType:
        decode_some = _decoder(next(one for one in get_args(kind) if one is not type(None)))
        return None if decode_some is None else lambda value: None if value is None else decode_some(value)
    if get_origin(kind) is tuple:
        item, *rest = get_args(kind)
        decode_item = _decoder(item) if rest == [...] else None
        return tuple if decode_item is None else lambda values: tuple([decode_item(value) for value in values])
    if not (isinstance(kind, type) and issubclass(kind, tuple)):
        return None
    decoders = [(place, _decoder(one)) for place, one in enumerate(get_type_hints(kind).values())]
    inner = [(place, decode_field) for place, decode_field in decoders if decode_field is not None]

    def record(values: list[Any]) -> Any:
        for place, decode_field in inner:
            values[place] = decode_field(values[place])
        return kind(*values)

    return record


# As engines hold them: they stay, whatever the classes are called.
_KINDS: Final[dict[type, str]] = {
    Epoch: "Epoch",
    Lane: "Lane",
    LogChunk: "LogChunk",
    Summary: "Summary",
    WorkerRecord: "Worker",
}
_DECODERS: Final = {name: decoder for kind, name in _KINDS.items() if (decoder := _decoder(kind)) is not None}


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
