"""The clock that figures are taken by, and how long a rate is measured."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

_chosen: dict[str, Any] = {"now": time.perf_counter, "seconds": 2.0}


def use(clock: str, seconds: float) -> None:
    """Choose for this process.

    Args:
        clock: ``"wall"``, or ``"cpu"``: the time that processors worked for this process and for its children that ended,
            which other work on the machine changes little.
        seconds: for which a rate is measured at least.
    """
    _chosen.update(now=_worked if clock == "cpu" else time.perf_counter, seconds=seconds)


def by_processor() -> bool:
    """Whether the time of the processor was chosen."""
    return _chosen["now"] is _worked


def now() -> float:
    """Seconds by the chosen clock."""
    found: float = _chosen["now"]()
    return found


def rate(batches: Callable[[], Iterator[int]]) -> float:
    """Items a second of iterations that give how many items each step had; the first is for warming up and is short."""
    for _ in zip(range(3), batches(), strict=False):
        pass
    seconds = _chosen["seconds"]
    count, begin, begun = 0, now(), time.perf_counter()
    while time.perf_counter() - begun < seconds:
        for items in batches():
            count += items
            if time.perf_counter() - begun > 4 * seconds:
                break
    return count / (now() - begin)


def timed(task: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that a call takes, and its result."""
    begin = now()
    found = task()
    return now() - begin, found


def _worked() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
