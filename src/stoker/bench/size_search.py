"""The search for the most accelerators that are fed.

Utilization falls as accelerators are added, but each run scatters. So the search doubles, halves what is between, and then
repeats the two runs at the border until it has several of each; where that moves the border, it goes on there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from stoker.bench.compare_stats import mean_interval

__all__ = ["CONFIDENCE", "Border", "find_border"]

CONFIDENCE: Final = 0.9
"""Of two-sided intervals: 95 % on the side that counts."""


@dataclass(frozen=True, slots=True)
class Border:
    """Where the search ended.

    Attributes:
        fed: the most accelerators that are fed; 0 if one is too many.
        starved: ``fed + 1``, which are not; ``None`` where the search was not allowed to go so far.
        sure: whether both sides of the border are on their side of the threshold by their intervals.
        values: utilization of all runs, by the number of accelerators.
    """

    fed: int
    starved: int | None
    sure: bool
    values: Mapping[int, tuple[float, ...]]


def find_border(probe: Callable[[int], float], threshold: float, *, most: int, repeats: int) -> Border:
    """Search.

    Args:
        probe: runs so many accelerators, and returns their utilization.
        threshold: utilization with which they count as fed.
        most: accelerators to try.
        repeats: runs on each side of the border.
    """
    values: dict[int, list[float]] = {}
    while True:
        means = {count: math.fsum(found) / len(found) for count, found in sorted(values.items())}
        starved = next((count for count, mean in means.items() if mean < threshold), None)
        fed = max(
            (count for count, mean in means.items() if mean >= threshold and count < (starved or most + 1)), default=0
        )
        if starved is None and fed < most:
            ask = min(2 * fed or 1, most)
        elif starved is not None and starved - fed > 1:
            ask = (fed + starved) // 2
        else:
            border = [count for count in (fed, starved) if count]
            ask = min(border, key=lambda count: len(values[count]))
            if len(values[ask]) >= repeats:
                break
        values.setdefault(ask, []).append(probe(ask))
    low = mean_interval(values[fed], CONFIDENCE)[0] if fed else math.inf
    high = mean_interval(values[starved], CONFIDENCE)[1] if starved else -math.inf
    return Border(
        fed, starved, low >= threshold > high, {count: tuple(found) for count, found in sorted(values.items())}
    )
