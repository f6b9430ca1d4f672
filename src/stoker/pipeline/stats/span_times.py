"""Times of stages from spans: what threads did at each moment, and during which intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.concurrency.spans.recorder import Stage

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals that do not overlap, by begin; ns, shape ``(n,)``."""

    begins: Times
    ends: Times

    @classmethod
    def union(cls, begins: NDArray[Any], ends: NDArray[Any]) -> Intervals:
        """The times in any of some intervals, which may overlap."""
        if not len(begins):
            return cls(np.zeros(0), np.zeros(0))
        order = np.argsort(begins, kind="stable")
        begins, reached = begins[order].astype(float), np.maximum.accumulate(ends[order]).astype(float)
        first = np.concatenate(([True], begins[1:] > reached[:-1]))
        last = np.concatenate((first[1:], [True]))
        return cls(begins[first], reached[last])

    @property
    def total(self) -> float:
        """Their length together."""
        return float((self.ends - self.begins).sum())

    def within(self, begins: NDArray[Any], ends: NDArray[Any]) -> Times:
        """Lengths of the parts of some other intervals that lie in these."""
        if not len(self.begins) or not len(begins):
            return np.zeros(len(begins))
        edges = np.stack([self.begins, self.ends], axis=1).ravel()
        lengths = self.ends - self.begins
        passed = np.cumsum(np.stack([np.zeros(len(lengths)), lengths], axis=1).ravel())
        found: Times = np.interp(ends, edges, passed) - np.interp(begins, edges, passed)
        return found

    def clipped(self, begin: float, end: float) -> Intervals:
        """Their parts between two times."""
        begins, ends = np.clip(self.begins, begin, end), np.clip(self.ends, begin, end)
        kept = ends > begins
        return Intervals(begins[kept], ends[kept])


@dataclass(frozen=True, slots=True)
class Activity:
    """The innermost span's stage of one thread at each moment: pieces that do not overlap."""

    begins: Times
    ends: Times
    stages: NDArray[np.uint8]

    @classmethod
    def of(cls, spans: NDArray[Any]) -> Activity:
        """The activity of the spans of a thread, by begin and, of those alike, the longer first."""
        pieces: list[tuple[int, int, int]] = []
        around: list[tuple[int, int]] = []  # ends and stages of the spans that we are in
        now = 0
        for begin, end, stage in zip(
            spans["begin"].tolist(), spans["end"].tolist(), spans["stage"].tolist(), strict=True
        ):
            while around and around[-1][0] <= begin:
                past, inner = around.pop()
                if past > now:
                    pieces.append((now, past, inner))
                    now = past
            if around and begin > now:
                pieces.append((now, begin, around[-1][1]))
            now = max(now, begin)
            around.append((end, stage))
        while around:
            past, inner = around.pop()
            if past > now:
                pieces.append((now, past, inner))
                now = past
        table = np.array(pieces, np.int64).reshape(-1, 3)
        return cls(table[:, 0].astype(float), table[:, 1].astype(float), table[:, 2].astype(np.uint8))

    def of_stage(self, stage: Stage) -> Intervals:
        """The times in which it was in a stage."""
        here = self.stages == stage
        return Intervals(self.begins[here], self.ends[here])

    def during(self, when: Intervals) -> Times:
        """Nanoseconds in each stage during some intervals; shape ``(len(Stage) + 1,)``."""
        return np.bincount(self.stages, when.within(self.begins, self.ends), len(Stage) + 1).astype(float)
