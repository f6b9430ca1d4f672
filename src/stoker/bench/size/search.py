"""The search for the most accelerators that are fed.

Utilization falls as accelerators are added, but each run scatters. So the search doubles, halves what is between, and then
repeats the two runs at the border until it has several of each; where that moves the border, it goes on there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from stoker.bench.compare.statistics import mean_interval

CONFIDENCE: Final = 0.9
"""Of two-sided intervals: 95 % on the side that counts."""


@dataclass(frozen=True, slots=True)
class Border:
    """The end of the search.

    Attributes:
        fed: the most accelerators that are fed; 0 if the fewest are too many.
        starved: the next number that can be had, which are not; ``None`` where there is none.
        sure: whether both sides of the border are on their side of the threshold by their intervals.
        values: utilization of all runs, by the number of accelerators.
    """

    fed: int
    starved: int | None
    sure: bool
    values: Mapping[int, tuple[float, ...]]


def find_border(probe: Callable[[int], float], threshold: float, *, counts: Sequence[int], repeats: int) -> Border:
    """Search.

    Args:
        probe: runs so many accelerators, and returns their utilization.
        threshold: utilization with which they count as fed.
        counts: numbers of accelerators that can be had, rising.
        repeats: runs on each side of the border.
    """
    # Counts are named by their index among all counts, from 1.
    values: dict[int, list[float]] = {}
    last = len(counts)
    while True:
        means = {index: math.fsum(found) / len(found) for index, found in sorted(values.items())}
        starved = next((index for index, mean in means.items() if mean < threshold), None)
        fed = max(
            (index for index, mean in means.items() if mean >= threshold and index < (starved or last + 1)), default=0
        )
        if starved is None and fed < last:
            ask = min(2 * fed or 1, last)
        elif starved is not None and starved - fed > 1:
            ask = (fed + starved) // 2
        else:
            border = [index for index in (fed, starved) if index]
            ask = min(border, key=lambda index: len(values[index]))
            if len(values[ask]) >= repeats:
                break
        values.setdefault(ask, []).append(probe(counts[ask - 1]))
    low = mean_interval(values[fed], CONFIDENCE)[0] if fed else math.inf
    high = mean_interval(values[starved], CONFIDENCE)[1] if starved else -math.inf
    return Border(
        counts[fed - 1] if fed else 0,
        counts[starved - 1] if starved else None,
        low >= threshold > high,
        {counts[index - 1]: tuple(found) for index, found in sorted(values.items())},
    )
