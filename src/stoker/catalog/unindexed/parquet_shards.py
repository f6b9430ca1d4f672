"""Row groups of Parquet files as shards: what each is read from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stoker.errors import CorruptDataError
from stoker.formats.base import FileInfo, FilePart, ShardInfo
from stoker.formats.parquet.footer.facts import COMPRESSED, MAGIC, START, FileFacts, RowGroup
from stoker.storage.versions import stable_version

__all__ = ["describe_row_groups"]

# Row groups of one file are fetched together until they have so many bytes.
_FETCH_TOGETHER: Final = 16 << 20
_NO_HASHES: Final[Mapping[str, str]] = {}


def describe_row_groups(
    facts: Sequence[FileFacts],
    constants: Mapping[str, tuple[tuple[str, Any], ...]],
    kinds: Mapping[str, str],
    *,
    in_place: bool,
    apart: bool = False,
) -> Iterator[ShardInfo]:
    """A description of each row group that may be read.

    Args:
        facts: the files.
        constants: of each file, by key, the values that its directory tells.
        kinds: names and types of the columns to read.
        in_place: whether the files are mapped where they lie.
        apart: fetch each row group by itself, however small.

    Raises:
        CorruptDataError: chunks of a file overlap.
    """
    spec = {"columns": dict(kinds), "layout": ("parquet", tuple(kinds.items()))}
    for one in facts:
        chosen = tuple((name, value) for name, value in constants[one.key] if name in kinds)
        places, rows = np.flatnonzero(one.possible).tolist(), one.rows.tolist()
        for file, together in _windows(one, places) if in_place else _fetched(one, places, apart):
            for place in together:
                yield ShardInfo("parquet", rows[place], (file,), (), None, spec, RowGroup(one, place, chosen))


def _windows(facts: FileFacts, places: Sequence[int]) -> Iterator[tuple[FileInfo, Sequence[int]]]:
    """Row groups one by one, each with the window of the file that holds its chunks."""
    if facts.chunks.shape[1]:
        starts = facts.chunks[:, :, START].min(axis=1).tolist()
        ends = (facts.chunks[:, :, START] + facts.chunks[:, :, COMPRESSED]).max(axis=1).tolist()
    else:  # nothing is read but what the directory's name tells
        starts = ends = [0] * len(facts.rows)
    for place in places:
        start, end = starts[place], ends[place]
        part = FilePart(facts.key, facts.size, facts.version, (start,), (end,), in_place=True)
        yield FileInfo(facts.key, end - start, _NO_HASHES, part), (place,)


def _fetched(facts: FileFacts, places: Sequence[int], apart: bool) -> Iterator[tuple[FileInfo, Sequence[int]]]:
    """Row groups that share a file of the cache, with this file."""
    sizes = facts.chunks[:, :, COMPRESSED].sum(axis=1).tolist()
    together: list[int] = []
    total = 0
    for place in places:
        together.append(place)
        total += sizes[place]
        if apart or total >= _FETCH_TOGETHER:
            yield _file(facts, together), together
            together, total = [], 0
    if together:
        yield _file(facts, together), together


def _file(facts: FileFacts, places: Sequence[int]) -> FileInfo:
    """A file of the cache that holds the chunks of some row groups."""
    chunks = facts.chunks[places]
    starts = np.sort(chunks[:, :, START], axis=None)
    order = np.argsort(chunks[:, :, START], axis=None, kind="stable")
    ends = starts + chunks[:, :, COMPRESSED].ravel()[order]
    if (starts[1:] < ends[:-1]).any():
        raise CorruptDataError(f"{facts.key}: column chunks overlap: write the file again")
    # Chunks that touch are one range.
    apart = np.flatnonzero(starts[1:] != ends[:-1])
    firsts = starts[np.concatenate([[0], apart + 1])] if len(starts) else np.zeros(1, dtype=np.int64)
    lasts = ends[np.concatenate([apart, [len(ends) - 1]])] if len(ends) else np.zeros(1, dtype=np.int64)
    part = FilePart(
        facts.key,
        facts.size,
        facts.version,
        tuple(firsts.tolist()),
        tuple(lasts.tolist()),
        in_place=False,
        head=MAGIC,  # to pyarrow a dictionary that begins at the first byte is none, so nothing does
    )
    digest = hashlib.sha256(
        repr((part.size, stable_version(part.version), part.starts, part.ends)).encode()
    ).hexdigest()[:16]
    name = f"{facts.key}/{facts.numbers[places[0]]}-{facts.numbers[places[-1]]}-{digest}.chunks"
    return FileInfo(name, len(MAGIC) + int((lasts - firsts).sum()), _NO_HASHES, part)
