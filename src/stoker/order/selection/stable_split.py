"""Cutting a growing row of samples by shares, so that cuts never cross and never move.

Every number u = 0, 1, 2, ... is given a fixed value in [0, 1), and a share f takes the numbers whose value is smaller.
So the samples of a smaller share are all in a larger one, whatever shares are asked for and however long the row is.
The values are a generalised van der Corput sequence: u's digits in a mixed radix, each replaced by a permutation of the
digits, read after the point in reverse (H. Faure, "Discrépance de suites associées à un système de numération (en
dimension un)", Bull. Soc. Math. France 109, 1981). The first digit has radix 20, so that 5 % is one step of it; all
others have radix 10. The permutations were found by search: of the first m numbers of a digit, those below k steps are
never one more or less than ``m * k / radix``.

Hence, for any m, the first m numbers hold ``f * m`` of share f, to within less than

* one, where f is a multiple of 1/20 (0.9, 0.15, ...);
* two, where it is a multiple of 1/200 (0.99, 0.005, ...); one more for each further decimal.

No rule does better than some such bound, growing with the logarithm of m, for all shares at once and all m
(W. M. Schmidt, "Irregularities of distribution VII", Acta Arithmetica 21, 1972).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

import numpy as np

from stoker.errors import ConfigError
from stoker.types import Ids

# A change here would move samples between training and validation sets.
_FIRST: Final = np.array([0, 17, 6, 11, 15, 8, 4, 13, 18, 3, 9, 12, 1, 16, 5, 14, 10, 7, 19, 2])
_OTHERS: Final = np.array([0, 5, 7, 2, 8, 3, 4, 6, 1, 9])


def as_fraction(value: float | Fraction, name: str) -> Fraction:
    """``value`` exactly as it is written in decimals (0.1 is a tenth), checked to lie in [0, 1]."""
    try:
        share = value if isinstance(value, Fraction) else Fraction(str(value))
    except ValueError as error:
        raise ConfigError(f"{name} must be a number from 0 to 1, got {value!r}") from error
    if not 0 <= share <= 1:
        raise ConfigError(f"{name} must be a number from 0 to 1, got {value!r}")
    return share


def below_fraction(ends: Ids, share: Fraction) -> Ids:
    """Number of the numbers ``0 .. ends[i] - 1`` that belong to ``share``; int64 of the shape of ``ends``.

    Takes a few steps for each decimal digit of the largest of ``ends``.
    """
    if share == 1:
        return ends.copy()
    counts = np.zeros_like(ends)
    left, rest, digits = ends, share, _FIRST
    while rest and left.size and int(left.max()) > 1:
        radix = digits.size
        step, rest = divmod(rest * radix, 1)
        turns, some = np.divmod(left, radix)
        # Of each turn the numbers whose first digit's image is below `step` belong, wherever the turn is cut.
        within = np.concatenate([[0], np.cumsum(digits < step)])
        counts += turns * step + within[some]
        # Those whose image is `step` are decided by their other digits, which count 0, 1, 2, ... in turn.
        left = turns + (some > int(np.flatnonzero(digits == step)[0]))
        digits = _OTHERS
    # The number 0 has value 0, so every share but none has it.
    return counts + left if rest else counts
