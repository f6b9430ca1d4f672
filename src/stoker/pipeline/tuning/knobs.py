"""The numbers that the tuner may set: their bounds, the memory that they take, and the changes that were tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from stoker.policy import CHUNKS_OF_PROCESS


class Knob(IntEnum):
    """A number that the tuner may set."""

    READ_THREADS = 0
    """Threads that read, decode and transform ahead of the consumer; 0: its own thread does."""
    CHUNKS_AHEAD = 1
    """Steps of reading that may be done and wait for the consumer, beyond those that a thread works at."""
    PREDOWNLOAD = 2
    """Samples ahead whose shards are fetched or opened."""
    DOWNLOAD_THREADS = 3
    """Shards fetched at once; 0: as :class:`~stoker.reading.fetch_width.FetchWidth` chooses."""
    READ_PROCESSES = 4
    """Processes that read, decode and transform ahead of the consumer; 0: threads do."""

    @property
    def argument(self) -> str:
        """The name of the knob, which is that of the setting where there is one."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class KnobRange:
    """Bounds of a knob.

    Attributes:
        start: its value at the beginning.
        most: its greatest value.
        step: the least value above ``start`` that makes a difference.
        fixed: whether it stays as it is, as the user set it or as it would change nothing.
    """

    start: int
    most: int
    step: int = 1
    fixed: bool = False

    @classmethod
    def at(cls, value: int) -> KnobRange:
        """A knob that stays as it is."""
        return cls(value, value, fixed=True)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory that knobs take.

    Attributes:
        budget: bytes that they may take together.
        chunk_bytes: of what one step of reading makes.
        sample_bytes: of a sample whose shard is fetched, where that is held in this process's memory; else 0.
    """

    budget: int
    chunk_bytes: int
    sample_bytes: int

    def of(self, values: Mapping[Knob, int]) -> int:
        """Bytes that some values take: shards ahead, and steps of reading ahead."""
        threads, processes = values[Knob.READ_THREADS], values[Knob.READ_PROCESSES]
        chunks = threads + values[Knob.CHUNKS_AHEAD] if threads else CHUNKS_OF_PROCESS * processes or 1
        return chunks * self.chunk_bytes + values[Knob.PREDOWNLOAD] * self.sample_bytes

    def most(self, values: Mapping[Knob, int], knob: Knob) -> int:
        """The greatest value of a knob for which there is memory, while the others stay."""
        free = self.budget - self.of({**values, knob: 0})
        if knob is Knob.PREDOWNLOAD and self.sample_bytes:
            return max(0, free // self.sample_bytes)
        if knob is Knob.CHUNKS_AHEAD and values[Knob.READ_THREADS]:
            return max(0, free // max(1, self.chunk_bytes))
        if knob is Knob.READ_THREADS:
            free = self.budget - values[Knob.PREDOWNLOAD] * self.sample_bytes
            return max(0, free // max(1, self.chunk_bytes) - values[Knob.CHUNKS_AHEAD])
        if knob is Knob.READ_PROCESSES:
            free = self.budget - values[Knob.PREDOWNLOAD] * self.sample_bytes
            return max(0, free // (CHUNKS_OF_PROCESS * max(1, self.chunk_bytes)))
        return 1 << 62


class Why(IntEnum):
    """Reasons of a change."""

    READING = 0
    """The consumer waits for reading, decoding and functions."""
    FETCHING = 1
    """It waits for shards, and all downloads run that may."""
    LOOKAHEAD = 2
    """It waits for shards, and no more are asked for."""
    LESS = 3
    """More gained nothing, so that less is tried."""
    MEMORY = 4
    """Steps of reading turned out larger than there is memory for."""


class TrialOutcome(IntEnum):
    """Ends of a trial."""

    KEPT = 0
    WITHDRAWN = 1


@dataclass(frozen=True, slots=True)
class KnobChange:
    """A change of a knob that may be tried.

    Attributes:
        knob: what is changed.
        before: its value before.
        told_before: the same; of a knob that is left to others to choose, what they have chosen.
        after: its value in the trial.
        why: what it is for.
    """

    knob: Knob
    before: int
    told_before: int
    after: int
    why: Why

    @property
    def is_raise(self) -> bool:
        """Whether the knob is raised."""
        return self.after > self.told_before

    def judged(self, outcome: TrialOutcome, gain: float) -> JudgedChange:
        """The change after its trial."""
        return JudgedChange(self.knob, self.told_before, self.after, self.why, outcome, gain)


@dataclass(frozen=True, slots=True)
class JudgedChange:
    """A change that was made and judged.

    Attributes:
        knob: what was changed.
        before: its value before.
        after: its value in the trial.
        why: what it was for.
        outcome: whether it stays.
        gain: the part of the time of a sample that it saved; negative: that it cost.
    """

    knob: Knob
    before: int
    after: int
    why: Why
    outcome: TrialOutcome
    gain: float
