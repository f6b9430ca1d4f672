"""Checks of a worker's arguments, and the lanes of an epoch, before the worker takes part in a run."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from stoker.coordination.errors import EngineError, stayed_away
from stoker.coordination.history.records import CoordinationSettings
from stoker.errors import ConfigError

_Answer = TypeVar("_Answer")
_MOST_LANES: Final = 1024


def until_answered(ask: Callable[[], _Answer], url: str, patience: float) -> _Answer:
    """Call an engine, again until it answers, as it may be restarting; the call must be one that may be repeated.

    Raises:
        EngineError: it has not answered for ``patience`` seconds.
    """
    begun = time.monotonic()
    while True:
        try:
            return ask()
        except EngineError as error:
            if time.monotonic() >= begun + patience:
                raise stayed_away(error.url or url, begun, patience, error) from error
            time.sleep(0.1)


def check_worker(run: str, rank: int, world_size: int, settings: CoordinationSettings) -> None:
    if not run or "/" in run:
        raise ConfigError(f"a run's id must not be empty or have a slash, got {run!r}")
    if world_size < 1:
        raise ConfigError(f"world_size must be at least 1, got {world_size}")
    if not 0 <= rank < world_size:
        raise ConfigError(
            f"rank {rank} is unknown in run {run!r}: its world has {world_size} workers, 0 to {world_size - 1}"
        )
    if settings.heartbeat <= 0 or settings.lease < 1.5 * settings.heartbeat:
        raise ConfigError(
            f"a lease ({settings.lease:g} s) must be at least one and a half heartbeats ({settings.heartbeat:g} s), or "
            f"one lost message would end it"
        )
    least = {
        "smallest": 1,
        "largest": settings.smallest,
        "attempts": 1,
        "grid": 1,
        "multiple": 1,
        "stall": 0,
        "slow": 0,
    }
    for name, low in least.items():
        if getattr(settings, name) < low:
            raise ConfigError(f"settings.{name} must be at least {low}, got {getattr(settings, name)}")
    if settings.split <= 0 or (settings.threshold is not None and settings.threshold < 0):
        raise ConfigError("settings.split must be positive, and settings.threshold not negative")


def lane_starts(
    positions: int | Sequence[int], world_size: int, settings: CoordinationSettings, lanes: int | None
) -> tuple[int, ...]:
    if settings.threshold is not None:
        if isinstance(positions, int) or len(positions) != world_size:
            given = positions if isinstance(positions, int) else f"{len(positions)} parts"
            raise ConfigError(
                f"with a threshold each of {world_size} ranks needs a part of its own: positions has {given}"
            )
        starts = [0]
        for size in positions:
            starts.append(starts[-1] + int(size))
    else:
        if not isinstance(positions, int):
            raise ConfigError("parts of ranks need settings.threshold")
        count = lanes if lanes is not None else min(world_size, _MOST_LANES)
        count = max(1, min(count, positions))
        starts = [positions * k // count for k in range(count + 1)]
    if any(after < before for before, after in itertools.pairwise(starts)):
        raise ConfigError(f"positions must not be negative, got {positions}")
    return tuple(starts)
