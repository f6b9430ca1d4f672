"""How many samples of each shard a random subset of a given size has.

Systematic sampling with random starts: W. G. Madow and L. H. Madow, "On the Theory of Systematic Sampling", Annals of
Mathematical Statistics 15, 1944.
"""

from __future__ import annotations

import numpy as np

from stoker.integers import mix, mix_array
from stoker.types import Ids

__all__ = ["drawn"]

_TAG_START = 13

_PHASES = 20
"""Bits of the resolution of time; times 2**42 samples they fit in 63 bits."""


def drawn(available: Ids, count: int, granularity: int, key: int) -> Ids:
    """Samples of each shard in a random draw of exactly ``count``; int64, of the shape of ``available``.

    Shards are cut into units of ``granularity`` samples. Unit i of n in a shard comes up at time ``(i + t) / n``, where
    t is the shard's own random start, and units are taken as they come up until there are ``count`` samples, the last
    unit cut. So with small units each shard gives its share, within one unit; with units as large as a shard, whole
    shards are taken in random order; and a larger draw of the same key takes at least as much of every shard.

    Args:
        available: samples in each shard, fewer than 2**42 in one.
        count: samples to draw, at most all.
        granularity: samples that are taken of a shard at a time.
        key: of the draw.
    """
    unit = min(granularity, max(int(available.max(initial=1)), 1))
    units = -(-available // unit)
    hashes = mix_array(mix(key, _TAG_START), np.arange(available.size))
    starts = (hashes >> np.uint64(64 - _PHASES)).astype(np.int64)

    def taken(time: int) -> Ids:
        """Samples of each shard whose units come up before ``time``, in 2**-20."""
        up = np.clip(-(-(time * units - starts) >> _PHASES), 0, units)
        sizes: Ids = np.minimum(up * unit, available)
        return sizes

    early, late = 0, 1 << _PHASES
    while late - early > 1:
        middle = (early + late) // 2
        early, late = (middle, late) if int(taken(middle).sum()) <= count else (early, middle)
    sizes = taken(early)
    # What comes up within the same 2**-20 is taken in the order of the whole hashes.
    order = np.argsort(hashes, kind="stable")
    more = (taken(late) - sizes)[order]
    sizes[order] += np.clip(count - int(sizes.sum()) - (np.cumsum(more) - more), 0, more)
    return sizes
