"""Whether two means differ by more than their values scatter: Welch's test, and Holm's correction for several of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev, variance
from typing import Final

_TINY: Final = 1e-300
_CLOSE: Final = 1e-14


@dataclass(frozen=True, slots=True)
class Difference:
    """Of two means, ``b - a``.

    Attributes:
        difference: of the means.
        low, high: of its confidence interval.
        p: the probability of a difference at least so large where there is none.
        freedom: degrees of freedom, by Welch and Satterthwaite.
    """

    difference: float
    low: float
    high: float
    p: float
    freedom: float


def welch(a: Sequence[float], b: Sequence[float], confidence: float) -> Difference:
    """Welch's t-test of two independent samples, which may scatter differently (B. L. Welch, Biometrika 34, 1947).

    Args:
        a, b: at least two values each.
        confidence: of the interval, such as 0.95.

    Raises:
        ValueError: there are fewer values.
    """
    if min(len(a), len(b)) < 2:
        raise ValueError("Welch's test needs two values on each side")
    means = fmean(a), fmean(b)
    errors = [variance(one) / len(one) for one in (a, b)]
    difference, error = means[1] - means[0], math.sqrt(sum(errors))
    if error <= 1e-15 * max(abs(means[0]), abs(means[1])):  # values that are all alike
        return Difference(difference, difference, difference, 1.0 if difference == 0 else 0.0, math.inf)
    freedom = sum(errors) ** 2 / sum(
        one**2 / (len(values) - 1) for one, values in zip(errors, (a, b), strict=True) if one > 0
    )
    margin = student_quantile((1 + confidence) / 2, freedom) * error
    p = 2 * (1 - student_cdf(abs(difference) / error, freedom))
    return Difference(difference, difference - margin, difference + margin, max(0.0, min(1.0, p)), freedom)


def mean_interval(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Confidence interval of a mean by Student's distribution; unbounded for fewer than two values."""
    if len(values) < 2:
        return -math.inf, math.inf
    mean = fmean(values)
    margin = student_quantile((1 + confidence) / 2, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean - margin, mean + margin


def holm(probabilities: Sequence[float]) -> list[float]:
    """Each ``p`` so adjusted that all of them together err no more often than one would (S. Holm, 1979)."""
    order = sorted(range(len(probabilities)), key=lambda k: probabilities[k])
    adjusted = [0.0] * len(probabilities)
    least = 0.0
    for rank, k in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * probabilities[k]))
        adjusted[k] = least
    return adjusted


def student_cdf(t: float, freedom: float) -> float:
    """Of Student's t distribution, by the incomplete beta function."""
    if math.isinf(freedom):
        return (1 + math.erf(t / math.sqrt(2))) / 2
    tail = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2
    return 1 - tail if t >= 0 else tail


def student_quantile(part: float, freedom: float) -> float:
    """The inverse of :func:`student_cdf`, for parts from 0.5 to below 1."""
    if not 0.5 <= part < 1:
        raise ValueError(f"a part must be from 0.5 to below 1, got {part}")
    low, high = 0.0, 1.0
    while student_cdf(high, freedom) < part and high < 1e12:
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        if student_cdf(middle, freedom) < part:
            low = middle
        else:
            high = middle
        if high - low <= _CLOSE * high:
            break
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularized, by its continued fraction (DLMF 8.17.22) in Lentz's way."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # where the fraction converges fast is on the other side
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        a * math.log(x) + b * math.log1p(-x) - math.lgamma(a) - math.lgamma(b) + math.lgamma(a + b) - math.log(a)
    )
    value, c, d = 1.0, 1.0, 0.0
    for k in range(1000):
        half = k // 2
        if k == 0:
            term = 1.0
        elif k % 2:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        d = 1 / _away(1 + term * d)
        c = _away(1 + term / c)
        value *= c * d
        if abs(c * d - 1) < _CLOSE and k > 1:
            break
    return front * (value - 1)


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
