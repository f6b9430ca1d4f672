"""Copying many runs of tokens from one array into another, of another dtype if need be."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from stoker.types import Array, Ids

__all__ = ["copy_runs"]

# From this mean length on, one slice a run is faster than joining them; seen between 2,000 and 8,000.
_LONG: Final = 4096
# Places that are joined at a time: what is joined lies in memory twice.
_AT_ONCE: Final = 1 << 18


def copy_runs(values: Array, sources: Ids, lengths: Ids, out: Array, targets: Ids) -> None:
    """``out[targets[i] : targets[i] + lengths[i]] = values[sources[i] : sources[i] + lengths[i]]`` for every i.

    Args:
        values: integers, shape ``(tokens,)``.
        sources: where runs begin in ``values``; int64, shape ``(k,)``.
        lengths: of the runs; int64, shape ``(k,)``; zeros are allowed.
        out: integers that hold those of ``values``, shape ``(places,)``. What lies between runs may be overwritten.
        targets: where runs begin in ``out``; int64, shape ``(k,)``; rising, and runs do not overlap.
    """
    if not lengths.size:
        return
    # Runs that go on where the one before ended, here and there, are one run. Joined documents are often one altogether.
    fresh = np.ones(lengths.size, dtype=bool)
    ends = lengths[:-1]
    np.not_equal(sources[:-1] + ends, sources[1:], out=fresh[1:])
    fresh[1:] |= targets[:-1] + ends != targets[1:]
    begins = np.flatnonzero(fresh)
    if begins.size < lengths.size:
        lengths = np.add.reduceat(lengths, begins)
        sources, targets = sources[begins], targets[begins]
    total = int(lengths.sum())
    if total >= _LONG * lengths.size:
        stops, ends = sources + lengths, targets + lengths
        for start, stop, target, end in zip(
            sources.tolist(), stops.tolist(), targets.tolist(), ends.tolist(), strict=True
        ):
            out[target:end] = values[start:stop]
        return
    if not total:
        return
    # Places between two runs get what follows the first of them in the values, as it may be anything.
    borders = np.append(targets, targets[-1] + lengths[-1])
    flat = np.ascontiguousarray(values).view(np.uint8).data
    size = values.itemsize
    first = 0
    while first < lengths.size:
        stop = max(int(np.searchsorted(borders, borders[first] + _AT_ONCE, side="right")) - 1, first + 1)
        until = np.diff(borders[first : stop + 1])
        starts = sources[first:stop]
        parts: list[Any] = [
            flat[start:end]
            for start, end in zip((starts * size).tolist(), ((starts + until) * size).tolist(), strict=True)
        ]
        for number in np.flatnonzero(starts + until > values.size).tolist():
            missing = int(starts[number] + until[number]) - max(values.size, int(starts[number]))
            parts[number] = b"".join([parts[number], bytes(missing * size)])
        joined = np.frombuffer(b"".join(parts), dtype=values.dtype)
        out[int(borders[first]) : int(borders[stop])] = joined
        first = stop
