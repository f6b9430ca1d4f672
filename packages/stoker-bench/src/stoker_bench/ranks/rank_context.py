"""The part of a run that all stages of one rank share: its plan, its ranks, and the record of this one's measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stoker.cluster import World
from stoker_bench.ranks.control.client import Link
from stoker_bench.ranks.plan import RunPlan


@dataclass(frozen=True, slots=True)
class RankContext:
    """A rank of a run, as its stages see it.

    Attributes:
        plan: the run.
        world: this rank, and how many there are.
        link: to the other ranks.
        record: this rank's measurements, to which each stage adds its own.
        save: writes the record to its file.
    """

    plan: RunPlan
    world: World
    link: Link
    record: dict[str, Any]
    save: Callable[[], object]

    @property
    def first_on_host(self) -> bool:
        """Whether this rank does what is done once a host."""
        return self.world.rank % self.world.local_world_size == 0
