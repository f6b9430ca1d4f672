"""A pipeline of which all times are known, for the tuner's rules: no clock, no thread."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stoker.pipeline.tuning.knobs import Knob, KnobChange, KnobRange, MemoryUse, Tick
from stoker.pipeline.tuning.rules import Controller
from stoker.policy import PROCESS_BYTES

AUTOMATIC = 8
"""Downloads at once where the tuner does not set them."""

STEP = 16
"""Samples of a step of reading."""


def unchanged(value: int) -> KnobRange:
    """A knob that stays as it is."""
    return KnobRange(value, value, fixed=True)


@dataclass(frozen=True)
class Simulated:
    """Times of a pipeline.

    Attributes:
        consumer: seconds of the consumer for a sample.
        reading: seconds of a thread, or of a process, for a sample.
        waits: part of them in which it needs no processor.
        alone: part of the rest in which no other thread can run.
        handing: seconds of the consumer to receive a sample from a process.
        processes: whether processes read.
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
        load: by how much the rest of the machine may make ticks longer, for a while.
    """

    consumer: float = 1e-4
    reading: float = 1e-4
    waits: float = 0.0
    alone: float = 0.0
    handing: float = 0.0
    processes: bool = False
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
    load: float = 0.0
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
            Knob.READ_PROCESSES: unchanged(0),
        }
        if self.processes:
            found[Knob.READ_THREADS], found[Knob.CHUNKS_AHEAD] = unchanged(0), unchanged(1)
            found[Knob.READ_PROCESSES] = KnobRange(min(8, self.processors), max(8, 2 * self.processors))
        return {**found, **{knob: KnobRange(start, found[knob].most) for knob, start in self.start.items()}}

    def times(self, values: Mapping[Knob, int]) -> tuple[float, float, float]:
        """Seconds of a sample; those of reading it, and of fetching it."""
        threads, width = values[Knob.READ_THREADS], values[Knob.DOWNLOAD_THREADS] or AUTOMATIC
        fetching = max(self.latency / width, 1.0 / self.store) / self.shard
        fetching = max(fetching, self.late / values[Knob.PREDOWNLOAD])
        processes = values[Knob.READ_PROCESSES]
        computing = self.reading * (1.0 - self.waits)
        if processes:
            reading = max(self.reading / processes, computing / self.processors)
            return max(self.consumer + self.handing, reading, fetching), reading, fetching
        if not threads:
            return max(self.consumer + self.reading, fetching), self.reading, fetching
        reading = max(self.reading / threads, computing * max(self.alone, 1.0 / min(threads, self.processors)))
        reading *= 1.0 + 0.02 * (1.0 - self.waits) * max(0, threads - self.processors)
        reading *= 1.0 + self.uneven / values[Knob.CHUNKS_AHEAD]
        return max(self.consumer, reading, fetching), reading, fetching

    def tick(
        self,
        values: Mapping[Knob, int],
        controller: Controller,
        rng: np.random.Generator,
        *,
        least: float = 0.0,
        samples: int = 0,
        slower: float = 1.0,
    ) -> Tick:
        """The observations of a tick, of the sample time ``least`` at least, as others are waited for outside of reading."""
        own, reading, _ = self.times(values)
        time = max(own, least)
        width = values[Knob.DOWNLOAD_THREADS] or AUTOMATIC
        samples = samples or max(controller.tick_chunks * STEP, int(controller.tick_seconds / time))
        most, each = controller.tick_limit
        if time > each and most < math.inf:  # ends with the first step that takes it beyond the limit
            samples = min(samples, STEP * (1 + int(most / (time - each) / STEP)))
        noise = slower * (math.exp(rng.normal(0.0, self.noise)) if self.noise else 1.0)
        waiting = max(0.0, own - self.consumer)
        ahead = values[Knob.READ_THREADS] or values[Knob.READ_PROCESSES]
        stalled = max(0.0, own - (reading if ahead else self.consumer + reading))
        running = min(1.0, self.latency / time / self.shard / width)
        return Tick(
            seconds=samples * time * noise,
            waited=samples * waiting * noise,
            samples=samples,
            shards=min(1.0, stalled / max(1e-12, stalled + reading)),
            full=1.0 if running < 1.0 else 0.0,
            downloads=running,
            width=width,
            chunk_bytes=self.chunk_bytes,
            computed=samples * self.reading * (1.0 - self.waits) * noise,
            at_work=0.0 if ahead else min(1.0, self.reading * (1.0 - self.waits) / max(1e-12, own - self.consumer)),
        )

    def best(self) -> float:
        """The least time of a sample, over a grid of all that there is memory for.

        Where the consumer reads by itself and computes, it goes on to: threads would take more processor time.
        """
        ranges = self.ranges()
        if not ranges[Knob.READ_THREADS].start and self.waits <= 0.2:
            ranges[Knob.READ_THREADS] = unchanged(0)

        def grid(knob: Knob, values: Iterable[int]) -> list[int]:
            one = ranges[knob]
            return [one.start] if one.fixed else [value for value in values if value <= one.most]

        powers = [1 << power for power in range(18)]
        times = []
        for threads, chunks, processes in itertools.product(
            grid(Knob.READ_THREADS, [0, *range(1, 17)]),
            grid(Knob.CHUNKS_AHEAD, powers[:7]),
            grid(Knob.READ_PROCESSES, range(1, 17)),
        ):
            # More lookahead and downloads are never slower here.
            values = {
                Knob.READ_THREADS: threads,
                Knob.CHUNKS_AHEAD: chunks,
                Knob.PREDOWNLOAD: 0,
                Knob.READ_PROCESSES: processes,
            }
            if processes > max(ranges[Knob.READ_PROCESSES].start, self.budget // PROCESS_BYTES):
                continue
            if self.memory.of(values) > self.budget and max(threads, processes) > 1:
                continue
            ahead = [one for one in grid(Knob.PREDOWNLOAD, powers) if one <= self.memory.most(values, Knob.PREDOWNLOAD)]
            if ahead:
                width = max(grid(Knob.DOWNLOAD_THREADS, powers))
                times.append(self.times({**values, Knob.PREDOWNLOAD: max(ahead), Knob.DOWNLOAD_THREADS: width})[0])
        return min(times)


@dataclass
class Ran:
    """A run of the tuner.

    Attributes:
        changes: that were judged.
        seconds: that it took.
        lost: those that trials cost.
        over: the most by which these were ever above 1.5 % of the time so far.
        first: seconds before the first trial.
        most_memory: the greatest memory.
    """

    controller: Controller
    changes: list[KnobChange]
    seconds: float
    lost: float
    most_memory: int
    over: float = -math.inf
    first: float = math.inf


class Load:
    """A machine that others use, too: for some time it is slower."""

    def __init__(self, most: float, rng: np.random.Generator) -> None:
        self._most, self._rng = most, rng
        self._until, self._now = 0.0, 1.0

    def at(self, seconds: float) -> float:
        """How much longer all takes."""
        if self._most and seconds >= self._until:
            self._until = seconds + self._rng.exponential(3.0)
            self._now = 1.0 + self._rng.uniform(0.0, self._most)
        return self._now


def run(simulated: Simulated, ticks: int, seed: int = 0, *, seconds: float = math.inf, epoch: int = 0) -> Ran:
    """Let the tuner run over a simulated pipeline.

    Args:
        simulated: the pipeline.
        ticks: at most.
        seed: of the noise.
        seconds: at most.
        epoch: ticks of an epoch; 0: there is one.
    """
    rng = np.random.default_rng(seed)
    load = Load(simulated.load, rng)
    controller = Controller(simulated.ranges(), simulated.memory, simulated.processors)
    found = Ran(controller, [], 0.0, 0.0, simulated.memory.of(controller.values))
    for number in range(ticks):
        if found.seconds >= seconds:
            break
        if epoch and number and number % epoch == 0:
            controller.restarted(goes_on=True, settles=epoch > 1)
        slower = load.at(found.seconds)
        tick = simulated.tick(controller.values, controller, rng, slower=slower)
        found.seconds += tick.seconds
        costs = simulated.times(controller.values)[0] - simulated.times(controller.confirmed_values)[0]
        found.lost += max(0.0, tick.samples * costs * slower)
        found.over = max(found.over, found.lost - 0.015 * found.seconds)
        if controller.values != controller.confirmed_values:
            found.first = min(found.first, found.seconds - tick.seconds)
        found.changes += controller.observe(tick)
        found.most_memory = max(found.most_memory, simulated.memory.of(controller.values))
    return found


_MOMENT = 0.05


def run_ranks(ranks: Sequence[Simulated], seconds: float, seed: int = 0) -> list[Ran]:
    """Let a tuner run on each of some ranks that wait for each other at each training step."""
    rng = np.random.default_rng(seed)
    controllers = [Controller(one.ranges(), one.memory, one.processors) for one in ranks]
    found = [Ran(each, [], 0.0, 0.0, 0) for each in controllers]
    seen: list[list[Tick]] = [[] for _ in ranks]
    for _ in range(round(seconds / _MOMENT)):
        together = max(one.times(each.values)[0] for one, each in zip(ranks, controllers, strict=True))
        slower = math.exp(rng.normal(0.0, ranks[0].noise))
        for one, each, ticks, ran in zip(ranks, controllers, seen, found, strict=True):
            samples = max(1, int(_MOMENT / together / slower))
            tick = one.tick(each.values, each, rng, least=together, samples=samples, slower=slower)
            ticks.append(tick)
            ran.seconds += tick.seconds
            whole = replace(
                tick,
                seconds=sum(part.seconds for part in ticks),
                waited=sum(part.waited for part in ticks),
                samples=sum(part.samples for part in ticks),
                computed=sum(part.computed for part in ticks),
            )
            if whole.seconds >= each.tick_seconds and whole.samples >= STEP * each.tick_chunks:
                ran.changes += each.observe(whole)
                ticks.clear()
    return found
