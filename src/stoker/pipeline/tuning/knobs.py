"""The numbers that the tuner may set, between which bounds, and the memory that it takes."""

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
