"""Compares the samples of a stopped and resumed job with those of a single process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from demo_record import Record

__all__ = ["Check", "content_is_right", "every_sample_once", "merge", "same_order"]

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Check:
    """A promise, whether it was kept, and the evidence."""

    promise: str
    kept: bool
    evidence: str


def merge(ranks: Sequence[Record]) -> list[NDArray[np.int64]]:
    """Global batches of a job: for each batch the ids of all ranks in rank order."""
    parts = [record.batches() for record in ranks]
    steps = max(len(batches) for batches in parts)
    return [np.concatenate([batches[step] for batches in parts if step < len(batches)]) for step in range(steps)]


def every_sample_once(ids: NDArray[np.int64], total: int) -> Check:
    """Check that ``ids`` are ``0 .. total-1``, each exactly once."""
    promise = "every sample came exactly once"
    inside = ids[(ids >= 0) & (ids < total)]
    times = np.bincount(inside, minlength=total)
    missing, repeated = np.flatnonzero(times == 0), np.flatnonzero(times > 1)
    if len(inside) == len(ids) and not missing.size and not repeated.size:
        return Check(promise, True, f"{total:,} ids, none missing, none twice")
    evidence = (
        f"{_some(missing)} missing, {_some(repeated)} more than once, {len(ids) - len(inside)} ids that do not exist"
    )
    return Check(promise, False, evidence)


def same_order(merged: Sequence[NDArray[np.int64]], alone: Sequence[NDArray[np.int64]]) -> Check:
    """Check that two lists of global batches are equal, sample by sample."""
    promise = "the order is the one that a single process sees"
    if len(merged) != len(alone):
        return Check(promise, False, f"{len(merged)} global batches, {len(alone)} in one process")
    for number, (ours, theirs) in enumerate(zip(merged, alone, strict=True)):
        if not np.array_equal(ours, theirs):
            return Check(promise, False, f"global batch {number} is {_some(ours)}, in one process {_some(theirs)}")
    return Check(promise, True, f"{len(alone)} of {len(alone)} global batches are equal, id by id")


def content_is_right(records: Sequence[Record], written: NDArray[np.uint32]) -> Check:
    """Check that the tokens of all samples are those that were written; ``written[id]`` is a checksum."""
    promise = "every row holds the tokens that were written"
    ids = np.concatenate([record.ids for record in records])
    read = np.concatenate([record.checksums for record in records])
    known = ids < len(written)
    wrong = ids[known][read[known] != written[ids[known]]]
    if wrong.size or not known.all():
        return Check(promise, False, f"{_some(wrong)} of {len(ids):,} rows differ")
    return Check(promise, True, f"CRC-32 of {len(ids):,} rows compared")


def _some(ids: NDArray[np.int64]) -> str:
    """The number of ids and the first few, for a message."""
    if not ids.size:
        return "none"
    listed = ", ".join(str(one) for one in ids[:_SHOWN])
    return f"{ids.size:,} ({listed}{', …' if ids.size > _SHOWN else ''})"
