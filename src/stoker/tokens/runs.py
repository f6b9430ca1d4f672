"""Copying many runs of tokens from one array into another, of another dtype if need be."""

from __future__ import annotations

import numpy as np

from stoker.types import Array, Ids

__all__ = ["copy_runs"]

# From this mean length on, one slice a run is faster than an index a token; seen between 150 and 300.
_LONG = 200
_INT32 = 1 << 31


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
    first, last = int(targets[0]), int(targets[-1] + lengths[-1])
    kind = np.int32 if max(values.size, out.size) + last < _INT32 else np.int64
    # Places between two runs go on with the first of them; what they get is overwritten, so it may be anything.
    until = np.append(targets[1:], last) - targets
    index = np.repeat((sources - (targets - first)).astype(kind), until)
    index += np.arange(last - first, dtype=kind)
    out[first:last] = np.take(values, index, mode="clip")
