"""Spans of an epoch: ranges of positions, in which another sample is found for the place of one that is bad or left out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from stoker.errors import ConfigError
from stoker.order.protocols import Plan
from stoker.types import Ids


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Ranges that have every position of an epoch, and none that the epoch's order can not locate.

    They follow from the epoch alone: not from the rank, the world or where a run resumed. So what is found in them is the
    same in each run.

    Attributes:
        begins, ends: int64, shape ``(spans,)``, rising and apart.
        alone: whether a sample may only be replaced by one of its own span.
    """

    begins: Ids
    ends: Ids
    alone: bool = False

    @classmethod
    def one(cls, end: int) -> Spans:
        """All positions below ``end``."""
        return cls(np.zeros(1, np.int64), np.array([end], np.int64))

    def bounds_of(self, positions: Ids) -> tuple[Ids, Ids]:
        """Begin and end of the span that each position is in; int64 of the same shape."""
        numbers = np.searchsorted(self.begins, positions, side="right") - 1
        return self.begins[numbers], self.ends[numbers]

    def span(self, position: int) -> range:
        """The span that a position is in."""
        return self._span(self._number(position))

    def others(self, position: int) -> Iterator[range]:
        """The spans from which a sample may come where that of a position has none: those after it, and then the first."""
        if not self.alone:
            count, own = len(self.begins), self._number(position)
            for step in range(1, count):
                yield self._span((own + step) % count)

    def _number(self, position: int) -> int:
        return int(np.searchsorted(self.begins, position, side="right")) - 1

    def _span(self, number: int) -> range:
        return range(int(self.begins[number]), int(self.ends[number]))


class SpannedPlan(Protocol):
    """A :class:`~stoker.order.protocols.Plan` that knows the spans of its epoch."""

    def spans(self) -> Spans:
        """The spans of the whole epoch, the same for every rank and wherever the plan begins."""
        ...


def check_spanned(plan: Plan, setting: str) -> None:
    """See that a plan knows the spans of its epoch; args and errors are those of :func:`spans_of`."""
    if not callable(getattr(plan, "spans", None)):  # as isinstance() of a protocol, which takes ten times as long
        raise ConfigError(
            f"{setting} takes other samples of the epoch, and {type(plan).__name__} does not say where they are: give the "
            "plan a method spans(), as stoker.order.spans.SpannedPlan has it, or leave samples out"
        )


def spans_of(plan: Plan, setting: str) -> Spans:
    """The spans of a plan's epoch.

    Args:
        plan: of any rank.
        setting: what asks for other samples, for the message.

    Raises:
        ConfigError: the plan is one's own, and does not know them.
    """
    check_spanned(plan, setting)
    return cast(SpannedPlan, plan).spans()
