"""Names of streams: those that users give, or the last parts of their paths."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from stoker.errors import ConfigError

if TYPE_CHECKING:
    from stoker.streams.streams import Stream

__all__ = ["stream_names"]


def stream_names(streams: Sequence[Stream]) -> tuple[str, ...]:
    """The streams' names, those that are not given made of the ends of their paths.

    Raises:
        ConfigError: two streams were given the same name.
    """
    given = Counter(stream.name for stream in streams if stream.name is not None)
    for name, count in given.items():
        if count > 1:
            raise ConfigError(f"{count} streams are called {name!r}: give each a name of its own")
    paths = [_path_parts(stream) for stream in streams]
    # Streams of one path get the same name first, and numbers then.
    length = {path: _shortest(stream) for path, stream in zip(paths, streams, strict=True) if stream.name is None}
    while True:
        chosen = {path: "/".join(path[-count:]) for path, count in length.items()}
        taken = Counter([*chosen.values(), *given])
        longer = [path for path, name in chosen.items() if taken[name] > 1 and length[path] < len(path)]
        if not longer:
            break
        for path in longer:
            length[path] += 1
    names: list[str] = []
    for path, stream in zip(paths, streams, strict=True):
        name = base = stream.name if stream.name is not None else chosen[path]
        if stream.name is None:
            count = 1
            while name in names or name in given:
                count += 1
                name = f"{base}#{count}"
        names.append(name)
    return tuple(names)


def _path_parts(stream: Stream) -> tuple[str, ...]:
    given = stream.remote if stream.remote is not None else stream.local or ""
    # Of a list of files, the first stands for all.
    base = os.fspath(given if isinstance(given, str | os.PathLike) else next(iter(given), ""))
    path = base.partition("://")[2] or (base if "://" in base else os.path.abspath(os.path.expanduser(base)))
    parts = (*PurePosixPath(path).parts, *_split_parts(stream))
    return tuple(part for part in parts if part != "/") or ("stream",)


def _split_parts(stream: Stream) -> tuple[str, ...]:
    return tuple(part for part in (stream.split or "").split("/") if part)


def _shortest(stream: Stream) -> int:
    return max(1, len(_split_parts(stream)))
