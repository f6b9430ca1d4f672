"""Whether shards can be read together: the same columns, each of one type in all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stoker.arguments import must_know
from stoker.errors import ConfigError
from stoker.formats.base import ShardInfo
from stoker.formats.common.entries import ColumnKind, column_kinds
from stoker.streams.streams import Streams

_MOST_TOLD = 5


def disagreement(streams: Streams, columns: Sequence[str] | None) -> str:
    """Why columns of all shards of all streams can not be read together; empty where they can. Samples can be read always.

    ConfigError if one of ``columns`` is missing somewhere. ``streams``: the opened streams. ``columns``: the columns to read;
    ``None`` for all. The text names streams or shards, columns and types.
    """
    described = [
        (name, info)
        for name, location in zip(streams.names, streams.locations, strict=True)
        for info in location.index.distinct_shards
        if info.samples
    ]
    if len({id(info.spec) for _, info in described}) < 2:  # all shards have one description
        return ""
    different = list(_different(described))
    first, others = different[0], different[1:]
    for name in columns or ():
        if not any(name in one.kinds for one in different):
            must_know("column", [name], first.kinds, "columns: ")
    for other in others:
        differing = _differing(first.kinds, other.kinds, columns)
        if not differing:
            continue
        told = "; ".join(f"{name!r} is {one} in the first and {two} in the second" for name, one, two in differing)
        common = [
            name
            for name, kind in first.kinds.items()
            if all(name in one.kinds and kind.agrees(one.kinds[name]) for one in others)
        ]
        remedy = (
            f"Read only columns that all have with one type, as columns={common[:_MOST_TOLD]}"
            if common
            else "No column agrees in all of them: open them as datasets of their own"
        )
        found = f"{_names(first, other)} can not be read together: {told}. {remedy}, or write them alike"
        if columns is not None and any(None in (first.kinds.get(name), other.kinds.get(name)) for name in columns):
            raise ConfigError(found)
        return found
    return ""


@dataclass(frozen=True, slots=True)
class _Kinds:
    """Columns of shards of one description, and one of these shards."""

    stream: str
    shard: str
    kinds: Mapping[str, ColumnKind]


def _different(described: Iterable[tuple[str, ShardInfo]]) -> Iterator[_Kinds]:
    """The different sets of columns of shards, of each stream."""
    seen: set[int] = set()
    found: list[tuple[str, dict[str, ColumnKind]]] = []
    for name, info in described:
        if id(info.spec) in seen:
            continue
        seen.add(id(info.spec))
        kinds = column_kinds(info)
        if (name, kinds) not in found:
            found.append((name, kinds))
            file = info.raw[0] if info.raw else None
            shard = "its shards" if file is None else file.part.key if file.part is not None else file.basename
            yield _Kinds(name, shard, kinds)


def _differing(
    first: Mapping[str, ColumnKind], other: Mapping[str, ColumnKind], columns: Sequence[str] | None
) -> list[tuple[str, str, str]]:
    """Columns that differ, and what they are in both."""
    differing = []
    for name in dict.fromkeys((*first, *other)) if columns is None else columns:
        one, two = first.get(name), other.get(name)
        if one is None or two is None or not one.agrees(two):
            differing.append((name, "missing" if one is None else one.word, "missing" if two is None else two.word))
    return differing[:_MOST_TOLD]


def _names(first: _Kinds, other: _Kinds) -> str:
    if first.stream == other.stream:
        return f"shards {first.shard!r} and {other.shard!r} of stream {first.stream!r}"
    return f"streams {first.stream!r} and {other.stream!r}"
