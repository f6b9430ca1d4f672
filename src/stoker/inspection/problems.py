"""The report of :func:`stoker.inspection.verify`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["index", "missing", "size", "hash", "structure", "decode", "unreadable"]
"""Kinds of problems. ``index``: the index itself, or files that contradict each other. ``missing``: a file is not there.
``size``, ``hash``: a file is not the one that the index describes. ``structure``: header, offsets, counts or checksums of a
shard contradict themselves or the index. ``decode``: a sample does not decode. ``unreadable``: the store did not give it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        kind: see :data:`Kind`.
        where: URL or path of the file.
        message: what is wrong, in a sentence.
        key: the file, relative to the dataset's root.
        shard: number of the shard, or ``None`` where it is not of one.
        row: the sample's row in its shard, where it is of one sample.
        sample: the sample's number in the dataset, where that is known.
        column: the column, where it is of one.
    """

    kind: Kind
    where: str
    message: str
    key: str = ""
    shard: int | None = None
    row: int | None = None
    sample: int | None = None
    column: str | None = None

    def __str__(self) -> str:
        """A line for people."""
        parts = [] if self.shard is None else [f"shard {self.shard}"]
        if self.row is not None:
            parts.append(f"sample {self.row}" if self.sample is None else f"sample {self.row} ({self.sample} of all)")
        if self.column is not None:
            parts.append(f"column {self.column!r}")
        return f"{self.kind}: {', '.join(parts)}{': ' if parts else ''}{self.message}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The number of files and bytes that were checked, and the problems found.

    Attributes:
        url: the dataset.
        format: of its shards; ``None`` for an index without any.
        level: ``quick`` (names and sizes), ``normal`` (all bytes: hashes, checksums, offsets) or ``deep`` (every sample was
            decoded).
        shards: shards that were checked.
        samples: samples in them, by the index or their headers.
        bytes: bytes that were read.
        hashed: files whose hash was compared.
        problems: what is wrong now, in the order of the shards.
        strange: keys of files below the root that belong to no shard; not a problem in itself.
        notes: what was not checked, and why.
        repaired: what was repaired, a sentence each.
        stopped: whether there were too many problems to go on.
        seconds: it took.
    """

    url: str
    format: str | None
    level: Literal["quick", "normal", "deep"]
    shards: int
    samples: int
    bytes: int
    hashed: int
    problems: tuple[Problem, ...]
    strange: tuple[str, ...]
    notes: tuple[str, ...]
    repaired: tuple[str, ...]
    stopped: bool
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong, or nothing any more."""
        return not self.problems

    def as_dict(self) -> Mapping[str, Any]:
        """Plain values for JSON."""
        return {"ok": self.ok, **asdict(self)}
