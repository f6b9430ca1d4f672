"""Buckets of a histogram whose width grows with the value, so that each is as exact as any other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LogBuckets:
    """Buckets of whole numbers from 0 on: all below ``2**lowest``, then ``2**fine`` of equal width for each power of two.

    A value is known to ``2**-fine`` of itself.

    Attributes:
        lowest: exponent of the end of the first bucket; at least ``fine``.
        fine: exponent of the number of buckets for a power of two.
        count: number of buckets; the last one holds all larger values, too.

    Example:
        >>> buckets = LogBuckets(10, 2, 192)
        >>> buckets.of(3000), buckets.start(7), buckets.start(8)
        (6, 3072, 3584)
    """

    lowest: int
    fine: int
    count: int

    def of(self, value: int) -> int:
        """The bucket of a value."""
        octave = value.bit_length() - 1
        if octave < self.lowest:
            return 0
        fine = value >> (octave - self.fine) & (1 << self.fine) - 1
        return min(self.count - 1, 1 + (octave - self.lowest << self.fine) + fine)

    def start(self, bucket: int) -> int:
        """The least value of a bucket; of bucket ``count``, one past the most."""
        if bucket == 0:
            return 0
        octave, fine = divmod(bucket - 1, 1 << self.fine)
        return (1 << self.fine) + fine << octave + self.lowest - self.fine

    def starts(self) -> NDArray[np.float64]:
        """The least value of each bucket, and one past the most: shape ``(count + 1,)``."""
        return np.array([self.start(bucket) for bucket in range(self.count + 1)], np.float64)
