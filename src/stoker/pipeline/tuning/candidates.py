"""Changes that a tuner may try: within the bounds of knobs and the memory, the most likely to help first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from stoker.pipeline.tuning.knobs import Knob, KnobChange, KnobRange, MemoryUse, Why
from stoker.pipeline.tuning.ticks import Tick, Window
from stoker.policy import LOOKAHEAD_FULL, PROCESS_BYTES

_SOME: Final = 0.02
"""Shards are worth a trial where this part of the makers' time is waiting for them, or all downloads run that may."""

_TAKEN: Final = 0.95
"""Where this part of the processors is at work, more of anything does not help."""

_COMPUTES: Final = 0.8
"""Threads that compute for this part of the time: with fewer of them less is done. Where the consumer reads by itself, and
computes for this part of its waiting: threads would take more of the processors to do the same."""

_CHUNKS_TIMES: Final = 4
"""Steps that wait are raised so many times: what they level out is small, and they take memory only."""

_ROOM: Final = 1.2
"""A value that memory or a bound cuts is tried where it is so many times the one before."""

_OF_READING: Final = (
    (Knob.READ_PROCESSES, True, Why.READING),
    (Knob.READ_THREADS, True, Why.READING),
    (Knob.CHUNKS_AHEAD, True, Why.READING),
    (Knob.READ_THREADS, False, Why.LESS),
)
_OF_SHARDS: Final = (
    (Knob.DOWNLOAD_THREADS, True, Why.FETCHING),
    (Knob.PREDOWNLOAD, True, Why.LOOKAHEAD),
)
"""Knobs, whether they are raised, and why."""


class Candidates:
    """Finds changes that may make the waiting less, and remembers which did and did not.

    Args:
        ranges: bounds of each knob.
        memory: what they may take.
        processors: that this process may have.

    Attributes:
        barred: knobs that would change nothing now.
    """

    def __init__(self, ranges: Mapping[Knob, KnobRange], memory: MemoryUse, processors: float) -> None:
        self.barred: frozenset[Knob] = frozenset()
        self._ranges, self._memory, self._processors = dict(ranges), memory, processors
        self._vain: set[tuple[Knob, bool]] = set()
        self._raised: dict[Knob, int] = {}

    @property
    def all_fixed(self) -> bool:
        """Whether no knob may change."""
        return all(one.fixed for one in self._ranges.values())

    # -- what trials said --------------------------------------------------------------------------------------------

    def helped(self, change: KnobChange) -> None:
        """Note a change that was kept: others may help again, and lowering this knob again would not."""
        self._vain.clear()
        if change.is_raise:
            self._raised[change.knob] = change.after
        else:
            self._raised.pop(change.knob, None)

    def failed(self, change: KnobChange) -> None:
        """Note a change that was withdrawn, so that it is not found again."""
        self._vain.add((change.knob, change.is_raise))

    def retry(self) -> None:
        """Let changes that failed be found again."""
        self._vain.clear()

    def forget(self) -> None:
        """Forget all that trials said."""
        self._vain.clear()
        self._raised.clear()

    # -- changes -----------------------------------------------------------------------------------------------------

    def excess(self, tick: Tick, values: Mapping[Knob, int]) -> KnobChange | None:
        """The change that is needed where values take more memory than there is, by what steps of reading really take."""
        memory = replace(self._memory, chunk_bytes=max(1, tick.chunk_bytes))
        if tick.chunk_bytes:
            self._memory = memory
        if memory.of(values) <= memory.budget:
            return None
        for knob in (Knob.CHUNKS_AHEAD, Knob.READ_THREADS, Knob.READ_PROCESSES, Knob.PREDOWNLOAD):
            value, most = values[knob], max(1, memory.most(values, knob))
            if not self._ranges[knob].fixed and value > most:
                return KnobChange(knob, value, value, most, Why.MEMORY)
        return None

    def found(self, window: Window, values: Mapping[Knob, int]) -> Iterator[tuple[KnobChange, ...]]:
        """Changes to be tried, the most likely to help first; some need another that makes memory for them."""
        for knob, up, why in _likely(window):
            if (knob, up) in self._vain or not self._may_help(knob, window, values, up=up):
                continue
            after = self._next(knob, window.latest, values, up=up)
            if after is not None:
                yield (_change(knob, after, why, window.latest, values),)
            elif up and why is Why.READING and self._may_make_room(values):
                less = values[Knob.PREDOWNLOAD] // 2
                after = self._next(knob, window.latest, {**values, Knob.PREDOWNLOAD: less}, up=up)
                if less and after is not None:
                    making = _change(Knob.PREDOWNLOAD, less, Why.MEMORY, window.latest, values)
                    yield (_change(knob, after, why, window.latest, values), making)

    def _may_make_room(self, values: Mapping[Knob, int]) -> bool:
        """Whether less may be looked ahead to make memory for something else."""
        return not self._ranges[Knob.PREDOWNLOAD].fixed and not self._has_helped(Knob.PREDOWNLOAD, values)

    def _has_helped(self, knob: Knob, values: Mapping[Knob, int]) -> bool:
        """Whether a trial has shown that a knob does better at its value, or at one that memory has cut to it, than below."""
        return values[knob] <= self._raised.get(knob, -1)

    def _may_help(self, knob: Knob, window: Window, values: Mapping[Knob, int], *, up: bool) -> bool:
        """Whether a change may make the time less, by what computes now."""
        at_work = window.processors
        if up:
            reads_here = knob is Knob.READ_THREADS and not values[knob]
            computes = reads_here and window.mean(lambda tick: tick.at_work) >= _COMPUTES
            return not computes and at_work < _TAKEN * self._processors
        if self._has_helped(knob, values):
            return False
        return knob is not Knob.READ_THREADS or at_work < _COMPUTES * values[knob]

    def _next(self, knob: Knob, tick: Tick, values: Mapping[Knob, int], *, up: bool) -> int | None:
        """The value to be tried beside others; ``None``: there is none."""
        bounds = self._ranges[knob]
        if bounds.fixed or knob in self.barred:
            return None
        value = _told(knob, tick, values)
        if not up:
            less = value // 2
            return less if less >= 1 else None
        if knob is Knob.CHUNKS_AHEAD and not values[Knob.READ_THREADS]:
            return None
        most = min(bounds.most, self._memory.most(values, knob))
        if knob is Knob.DOWNLOAD_THREADS:
            most = min(most, tick.most_width)
        if knob is Knob.READ_PROCESSES:
            most = min(most, max(bounds.start, self._memory.budget // PROCESS_BYTES))
        after = min(max((_CHUNKS_TIMES if knob is Knob.CHUNKS_AHEAD else 2) * value, bounds.step), most)
        return after if after >= value * _ROOM and after > value else None


def _likely(window: Window) -> Iterator[tuple[Knob, bool, Why]]:
    """Knobs that may make the waiting less, the most likely first, and whether they are raised."""
    shards, downloads = window.mean(lambda tick: tick.shards), window.mean(lambda tick: tick.downloads)
    short = window.mean(lambda tick: tick.full) >= LOOKAHEAD_FULL and downloads <= LOOKAHEAD_FULL
    if shards < 0.5:
        yield from _OF_READING
    if shards >= _SOME or downloads > LOOKAHEAD_FULL:
        yield from _OF_SHARDS[::-1] if short else _OF_SHARDS
        yield (Knob.DOWNLOAD_THREADS, False, Why.LESS)
    if shards >= 0.5:
        yield from _OF_READING


def _change(knob: Knob, after: int, why: Why, tick: Tick, values: Mapping[Knob, int]) -> KnobChange:
    return KnobChange(knob, values[knob], _told(knob, tick, values), after, why)


def _told(knob: Knob, tick: Tick, values: Mapping[Knob, int]) -> int:
    """The value of a knob; of one that is chosen elsewhere, what that is."""
    value = values[knob]
    return value or tick.width if knob is Knob.DOWNLOAD_THREADS else value
