"""A pipeline of which all times are known, for the tuner's rules: no clock, no thread."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from stoker.pipeline.tuning.controller import Controller, JudgedChange, Tick
from stoker.pipeline.tuning.knobs import Knob, KnobRange, MemoryUse

AUTOMATIC = 8
"""Downloads at once where the tuner does not set them."""


@dataclass(frozen=True)
class Simulated:
    """Times of a pipeline.

    Attributes:
        consumer: seconds of the consumer for a sample.
        reading: seconds of a thread for a sample.
        alone: part of them in which no other thread can run.
        processors: of the process.
        latency: seconds of a fetch.
        late: seconds of the slowest fetches, which the lookahead has to bridge.
        store: shards a second that the store sends at most.
        shard: samples of a shard.
        uneven: how much longer steps of reading take where none waits ready.
        chunk_bytes: of a step of reading.
        sample_bytes: of a sample ahead.
        budget: bytes.
        noise: standard deviation of the logarithm of a tick's time.
    """

    consumer: float = 1e-4
    reading: float = 1e-4
    alone: float = 0.0
    processors: int = 4
    latency: float = 0.0
    late: float = 0.0
    store: float = 1e9
    shard: int = 64
    uneven: float = 0.0
    chunk_bytes: int = 1 << 20
    sample_bytes: int = 0
    budget: int = 1 << 30
    noise: float = 0.03
    start: Mapping[Knob, int] = field(default_factory=dict)

    @property
    def memory(self) -> MemoryUse:
        return MemoryUse(self.budget, self.chunk_bytes, self.sample_bytes)

    def ranges(self) -> dict[Knob, KnobRange]:
        found = {
            Knob.READ_THREADS: KnobRange(0, max(8, 2 * self.processors), step=2),
            Knob.CHUNKS_AHEAD: KnobRange(1, 64),
            Knob.PREDOWNLOAD: KnobRange(1 << 10, 1 << 16),
            Knob.DOWNLOAD_THREADS: KnobRange(0, 128),
        }
        return {**found, **{knob: KnobRange(start, found[knob].most) for knob, start in self.start.items()}}

    def times(self, values: Mapping[Knob, int]) -> tuple[float, float, float]:
        """Seconds of a sample; those of reading it, and of fetching it."""
        threads, width = values[Knob.READ_THREADS], values[Knob.DOWNLOAD_THREADS] or AUTOMATIC
        fetching = max(self.latency / width, 1.0 / self.store) / self.shard
        fetching = max(fetching, self.late / values[Knob.PREDOWNLOAD])
        if not threads:
            return max(self.consumer + self.reading, fetching), self.reading, fetching
        at_once = min(threads, self.processors)
        reading = self.reading * max(self.alone, 1.0 / at_once) * (1.0 + 0.02 * max(0, threads - self.processors))
        reading *= 1.0 + self.uneven / values[Knob.CHUNKS_AHEAD]
        return max(self.consumer, reading, fetching), reading, fetching

    def tick(self, values: Mapping[Knob, int], controller: Controller, rng: np.random.Generator) -> Tick:
        time, reading, _ = self.times(values)
        width = values[Knob.DOWNLOAD_THREADS] or AUTOMATIC
        samples = max(controller.tick_chunks * 16, int(controller.tick_seconds / time))
        noise = math.exp(rng.normal(0.0, self.noise)) if self.noise else 1.0
        waiting = max(0.0, time - self.consumer)
        stalled = max(0.0, time - (reading if values[Knob.READ_THREADS] else self.consumer + reading))
        running = min(1.0, self.latency / time / self.shard / width)
        return Tick(
            seconds=samples * (self.consumer + waiting) * noise,
            waited=samples * waiting * noise,
            samples=samples,
            shards=min(1.0, stalled / max(1e-12, stalled + reading)),
            full=1.0 if running < 1.0 else 0.0,
            downloads=running,
            width=width,
            chunk_bytes=self.chunk_bytes,
        )

    def best(self) -> float:
        """The least time of a sample, over a grid of all that there is memory for."""
        ranges = self.ranges()

        def grid(knob: Knob, values: Iterable[int]) -> list[int]:
            one = ranges[knob]
            return [one.start] if one.fixed else [value for value in values if value <= one.most]

        powers = [1 << power for power in range(18)]
        times = []
        for threads, chunks in itertools.product(
            grid(Knob.READ_THREADS, [0, *range(1, 17)]), grid(Knob.CHUNKS_AHEAD, powers[:7])
        ):
            # More lookahead and downloads are never slower here.
            values = {Knob.READ_THREADS: threads, Knob.CHUNKS_AHEAD: chunks, Knob.PREDOWNLOAD: 0}
            ahead = [one for one in grid(Knob.PREDOWNLOAD, powers) if one <= self.memory.most(values, Knob.PREDOWNLOAD)]
            if ahead:
                width = max(grid(Knob.DOWNLOAD_THREADS, powers))
                times.append(self.times({**values, Knob.PREDOWNLOAD: max(ahead), Knob.DOWNLOAD_THREADS: width})[0])
        return min(times)


@dataclass
class Ran:
    """A run of the tuner: its changes, the seconds that it took and the greatest memory."""

    controller: Controller
    changes: list[JudgedChange]
    seconds: float
    most_memory: int


def run(simulated: Simulated, ticks: int, seed: int = 0) -> Ran:
    """Let the tuner run over a simulated pipeline."""
    rng = np.random.default_rng(seed)
    controller = Controller(simulated.ranges(), simulated.memory)
    changes: list[JudgedChange] = []
    seconds, most = 0.0, simulated.memory.of(controller.values)
    for _ in range(ticks):
        tick = simulated.tick(controller.values, controller, rng)
        seconds += tick.seconds
        changes += controller.observe(tick)
        most = max(most, simulated.memory.of(controller.values))
    return Ran(controller, changes, seconds, most)
