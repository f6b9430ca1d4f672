"""A direction: something of which there may be more and more, what it costs stoker, and what it has to cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Figures = dict[str, float]
"""What one process measured, by name. Names end in their unit: ``_s``, ``_per_s``, ``_MiB``, ``_kB``, ``_us``."""

Side = Callable[[Path], Figures]
"""Measures in a fresh process, on the data in a folder."""


@dataclass(frozen=True)
class Direction:
    """A direction.

    Attributes:
        name: for the command line.
        what: of which there is more and more, for the table.
        quick: three sizes for a run in CI.
        full: three sizes for the figures of the documents.
        prepare: writes the data of a size into an empty folder.
        sides: by name, what is measured in alternation; ``stoker`` is the first, the others are bounds and variants.
        judged: figures of ``stoker`` whose growth is judged, and the power of the size with which each may grow: 0 for
            what is to stay the same, such as a rate, and 1 for what may grow as the size does.
        reach: what the figures of the largest full size are to reach, in words.
    """

    name: str
    what: str
    quick: tuple[int, int, int]
    full: tuple[int, int, int]
    prepare: Callable[[Path, int], None]
    sides: dict[str, Side]
    judged: dict[str, int]
    reach: str


_WORSE = 1.5
_HARDLY = 1.5
_LEAST_MIB = 1.0
"""Less memory than that is not told from what else a process does."""


def growth(direction: Direction, figure: str, sizes: tuple[int, ...], values: list[float]) -> float:
    """By how much a figure's cost grew from the smallest to the largest size, beyond what it may: 1 is as it should be."""
    cost = [1 / value if figure.endswith("_per_s") else value for value in values]
    if figure.endswith("_MiB"):
        cost = [max(value, _LEAST_MIB) for value in cost]
    return cost[-1] / cost[0] / (sizes[-1] / sizes[0]) ** direction.judged[figure]


def allowed_growth(direction: Direction, figure: str, sizes: tuple[int, ...], before: float) -> float:
    """The growth that a figure may have where it had another before: half as much again.

    A cost that fell with the size, or hardly rose, was not told from noise: what it may grow by is counted from there.
    """
    power = direction.judged[figure]
    least = _HARDLY if power else 1.0
    return _WORSE * max(before, least / (sizes[-1] / sizes[0]) ** power)


def as_record(found: dict[str, Any]) -> dict[str, Any]:
    """Figures rounded for a JSON file."""
    return {name: float(f"{value:.4g}") for name, value in found.items()}
