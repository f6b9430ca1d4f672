"""Synchronous training without a coordinator on its way: who takes which positions, from an append-only plan.

A plan is a list of generations ``(from_position, ranks, weights)``. From it each rank derives its part by pure
functions of integers, so ranks that have the same plan need not talk. Unlike machines get unlike weights.

The plan is changed only ahead: a generation may begin no earlier than the *horizon*, the end of what was granted for
prefetching. So nothing that any rank may have fetched is ever given to another. It travels in the checkpoint, and a run
that goes back to a checkpoint goes back to the plan in it.

Positions are divided step by step: a step is ``step`` positions, the global batch. In each, a rank's part is by largest
remainder (A. Hamilton, 1792) in integers, ties to the lower rank; parts lie one behind the other in rank order.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.arguments import at_least, must_be
from stoker.errors import ConfigError, StateError


def apportion(count: int, weights: Sequence[int]) -> list[int]:
    """Divide ``count`` in proportion to integer weights by largest remainder; ties go to the first."""
    total = sum(weights)
    must_be("not negative, and one above 0", min(weights, default=-1) >= 0 < total, weights=list(weights))
    parts = [count * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda k: (-(count * weights[k] % total), k))
    for k in by_remainder[: count - sum(parts)]:
        parts[k] += 1
    return parts


@dataclass(frozen=True, slots=True)
class Generation:
    """The ranks that take part from a position on, and their weights.

    Attributes:
        ranks: ascending.
        weights: for each rank, an integer of at least 1.
    """

    start: int
    ranks: tuple[int, ...]
    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        at_least(0, start=self.start)
        rising = bool(self.ranks) and list(self.ranks) == sorted(set(self.ranks)) and self.ranks[0] >= 0
        must_be("numbers from 0 in ascending order, each once", rising, ranks=list(self.ranks))
        weighed = len(self.weights) == len(self.ranks) and min(self.weights) >= 1
        must_be(f"at least 1 for each of the ranks {list(self.ranks)}", weighed, weights=list(self.weights))


@dataclass(frozen=True)
class PlanLog:
    """An epoch's plan.

    Attributes:
        step: positions of a global batch.
        generations: by where they begin; the first begins at 0.
        horizon: one past the last position that was granted.
    """

    end: int
    step: int
    generations: tuple[Generation, ...]
    horizon: int = 0

    def __post_init__(self) -> None:
        at_least(1, step=self.step)
        at_least(0, end=self.end)
        starts = [generation.start for generation in self.generations]
        rising = bool(starts) and starts[0] == 0 and starts == sorted(set(starts))
        must_be("rising from 0", rising, generations=starts)
        must_be(f"from 0 to {self.end}", 0 <= self.horizon <= self.end, horizon=self.horizon)

    def grant(self, horizon: int) -> PlanLog:
        """Allow prefetching up to a position, and to the end of its step. What was granted stays granted.

        Steps are granted whole: were a later generation to cut one short, its parts would be others.
        """
        horizon = min(horizon, self.end)
        if horizon > 0:
            horizon = self.step_at(horizon - 1)[1]
        return PlanLog(self.end, self.step, self.generations, max(self.horizon, horizon))

    def append(self, generation: Generation) -> PlanLog:
        """Change who takes part, from a position on."""
        if generation.start < self.horizon:
            raise ConfigError(
                f"a generation can not begin at {generation.start}: positions up to {self.horizon} are granted, and may have "
                f"been fetched"
            )
        last = self.generations[-1].start
        if generation.start <= last and not (generation.start == last == 0):
            raise ConfigError(f"a generation can not begin at {generation.start}: one begins at {last} already")
        kept = self.generations if generation.start > last else ()
        return PlanLog(self.end, self.step, (*kept, generation), self.horizon)

    def generation_at(self, position: int) -> Generation:
        """The generation that holds at a position."""
        return self.generations[bisect.bisect_right(self.generations, position, key=lambda g: g.start) - 1]

    def counts(self) -> list[tuple[Generation, int]]:
        """The generations, each with its number of steps."""
        ends = [generation.start for generation in self.generations[1:]] + [self.end]
        return [(one, -(-(end - one.start) // self.step)) for one, end in zip(self.generations, ends, strict=True)]

    def step_at(self, position: int) -> tuple[int, int]:
        """The step that a position is in, as ``(begin, end)``. Steps are counted from their generation's beginning; the next
        generation, or the epoch's end, can cut one short.
        """
        if not 0 <= position < self.end:
            raise ConfigError(f"position {position} is not in an epoch of {self.end}")
        number = bisect.bisect_right(self.generations, position, key=lambda g: g.start) - 1
        start = self.generations[number].start
        limit = self.generations[number + 1].start if number + 1 < len(self.generations) else self.end
        begin = start + (position - start) // self.step * self.step
        return begin, min(begin + self.step, limit, self.end)

    def part(self, rank: int, position: int) -> tuple[int, int]:
        """A rank's positions in the step that ``position`` is in, as ``(begin, end)``; empty if it has none."""
        begin, end = self.step_at(position)
        generation = self.generation_at(position)
        if rank not in generation.ranks:
            return begin, begin
        parts = apportion(end - begin, generation.weights)
        index = generation.ranks.index(rank)
        first = begin + sum(parts[:index])
        return first, first + parts[index]

    def as_dict(self) -> dict[str, Any]:
        """The plan for a checkpoint, JSON-serialisable."""
        rows = [[g.start, list(g.ranks), list(g.weights)] for g in self.generations]
        return {"end": self.end, "step": self.step, "horizon": self.horizon, "generations": rows}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], position: int | None = None) -> PlanLog:
        """The plan of a checkpoint.

        Nothing beyond ``position``, where the run resumes, is granted any more: the ranks that had fetched it are rolled
        back too. Generations stay.
        """
        try:
            rows = tuple(
                [Generation(start, tuple(ranks), tuple(weights)) for start, ranks, weights in values["generations"]]
            )
            numbers = [values[name] for name in ("end", "step", "horizon")]
            numbers += [n for row in rows for n in (row.start, *row.ranks, *row.weights)]
            if any(type(number) is not int for number in numbers):
                raise TypeError("all of it must be integers")
            horizon = values["horizon"] if position is None else min(values["horizon"], position)
            return cls(values["end"], values["step"], rows, horizon)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"not a plan: {error}") from error
