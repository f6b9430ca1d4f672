"""Vain trials cost no more than a small part of the time, by a clock that is made up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from simulated_pipeline import Simulated, run
from test_rules import random_pipeline

from stoker import ReadOptions, StreamingDataset
from stoker.cluster import LoaderWorker
from stoker.pipeline import pipeline
from stoker.pipeline.epoch_reader import EpochReader
from stoker.pipeline.tuning import tuned_run
from stoker.pipeline.tuning.knobs import Knob, KnobRange, MemoryUse, Regret, Tick
from stoker.pipeline.tuning.rules import Controller
from stoker.pipeline.tuning.tuned_run import TunedRun
from stoker.pipeline.tuning.tuner import Tuner
from support import write_columns

pytestmark = pytest.mark.usefixtures("awake_tuners")


class Hostile(Simulated):
    """Reading that waits, and that any change makes four times as slow."""

    def times(self, values: Mapping[Knob, int]) -> tuple[float, float, float]:
        begun = all(values[knob] == one.start for knob, one in self.ranges().items())
        return (2e-4 if begun else 8e-4), 1e-4, 0.0


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_a_loop_that_only_reads_loses_less_than_a_tenth_of_a_second_in_five(noise: float) -> None:
    for seed in range(20):
        found = run(Hostile(consumer=1e-6, reading=2e-4, waits=1.0, noise=noise), 10**6, seed, seconds=5.0)
        assert found.changes
        assert {one.kept for one in found.changes} == {False}
        assert found.lost < 0.1
        assert found.first >= 2.0


def test_regret_is_bounded_at_any_time() -> None:
    """Beyond the bound comes a step of reading, and what noise hides."""
    rng = np.random.default_rng(3)
    tried = 0
    for seed in range(60):
        simulated = replace(random_pipeline(rng), noise=0.01)
        found = run(simulated, 300, seed)
        tried += len(found.changes)
        assert found.over < 0.1, (simulated, found)
        assert found.first >= 2.0
    assert tried > 60


def test_a_long_loop_is_tuned_as_before() -> None:
    """Trials that were withdrawn for what they cost are made again when more may be lost."""

    class LateGain(Simulated):
        """Threads cost much in the first seconds."""

        now = 0.0

        def times(self, values: Mapping[Knob, int]) -> tuple[float, float, float]:
            threads = values[Knob.READ_THREADS]
            return 1e-3 if not threads else 5e-4 if LateGain.now > 20.0 else 4e-3, 1e-4, 0.0

    simulated = LateGain(consumer=1e-6, waits=1.0, noise=0.0)
    controller = Controller(simulated.ranges(), simulated.memory, 4)
    rng = np.random.default_rng(0)
    for _ in range(800):
        tick = simulated.tick(controller.values, controller, rng)
        LateGain.now += tick.seconds
        controller.observe(tick)
    assert controller.confirmed_values[Knob.READ_THREADS] > 0


def test_reading_that_computes_gets_no_threads() -> None:
    """The consumer's own thread is at work all the time that it waits; nothing else can make its time less."""
    for seed in range(5):
        found = run(Simulated(consumer=1e-6, reading=1e-4, processors=8, noise=0.05), 2000, seed)
        assert Knob.READ_THREADS not in {one.knob for one in found.changes}
    waits = run(Simulated(consumer=1e-6, reading=1e-4, waits=0.9, processors=8), 500)
    assert waits.controller.confirmed_values[Knob.READ_THREADS] > 0


def test_shares() -> None:
    regret = Regret()
    assert regret.until_stake == pytest.approx(2.0)
    regret.passes(10.0)
    assert regret.left == pytest.approx(0.15)
    assert regret.until_stake == 0.0
    regret.begin(pace=1e-3, noise=0.0)
    regret.tries(Tick(seconds=0.45, waited=0.45, samples=300))
    assert regret.cost == pytest.approx(0.15)
    assert regret.gain == pytest.approx(-0.5)
    regret.withdrawn()
    assert regret.left == pytest.approx(0.0)
    assert regret.until_stake == pytest.approx(2.0)
    regret.begin(pace=1e-3, noise=0.0)
    regret.tries(Tick(seconds=0.1, waited=0.1, samples=300))
    regret.withdrawn()  # one that has saved time costs nothing, and pays for no other
    assert regret.left == pytest.approx(0.0)
    assert regret.more == pytest.approx(0.2)
    regret.begin(pace=1e-3, noise=0.01)
    assert regret.more == pytest.approx(0.02)
    regret.passes(990.0)
    assert regret.left == pytest.approx(1.0 + 5.0 - 0.15)


def test_what_was_tried_is_paid_where_the_next_iteration_is_another() -> None:
    simulated = Hostile(consumer=1e-6, reading=2e-4, waits=1.0, noise=0.0)
    controller = Controller(simulated.ranges(), simulated.memory)
    rng = np.random.default_rng(0)
    while controller.values == controller.confirmed_values:
        controller.observe(simulated.tick(controller.values, controller, rng))
    left = controller.tick_limit[0]
    controller.observe(Tick(seconds=0.01, waited=0.01, samples=0))
    assert controller.values != controller.confirmed_values, "the trial goes on"
    controller.restarted(goes_on=False)
    assert controller.values == controller.confirmed_values
    assert controller.tick_limit == (math.inf, 0.0)
    assert controller._regret.left == pytest.approx(left - 0.01, abs=1e-3)


class OneTrial:
    """Rules that note ticks, all of which are of a trial."""

    tick_seconds, tick_chunks, idle, rests = 0.1, 4, False, False

    def __init__(self, ranges: Mapping[Knob, KnobRange], limit: tuple[float, float]) -> None:
        self.values = {knob: one.start for knob, one in ranges.items()}
        self.tick_limit = limit
        self.ticks: list[Tick] = []

    @property
    def confirmed_values(self) -> dict[Knob, int]:
        return self.values

    def restarted(self, *, goes_on: bool, settles: bool) -> None:
        pass

    def bar(self, *knobs: Knob) -> None:
        pass

    def observe(self, tick: Tick) -> list[Any]:
        self.ticks.append(tick)
        return []


def begun(reader: EpochReader, *, batch_size: int, threads: int) -> TunedRun:
    """A run that is tuned and told by hand what it takes."""
    assert reader._tuner is not None
    run_of = reader._tuner.begin(
        reader.settings.amounts,
        batch_size=batch_size,
        chunk_bytes=8,
        threads=threads,
        tune_threads=True,
        processes=0,
        tune_processes=False,
        worker=LoaderWorker(),
    )
    runner: Any = SimpleNamespace(workers=threads, changing=False, in_processes=False, processor_time=0)
    run_of.runner = runner
    return run_of


@pytest.mark.parametrize(
    ("limit", "chunks", "computes"), [((math.inf, 0.0), 4, 1.0), ((0.05, 1e-3), 2, 1.0), ((0.05, 1e-3), 2, 0.25)]
)
def test_a_tick_ends_when_its_trial_has_cost_what_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: tuple[float, float], chunks: int, computes: float
) -> None:
    """Each step of 10 samples takes 40 ms, of which the consumer's thread computes a part."""
    now = 0

    def clock() -> int:
        return now

    def processor() -> int:
        return int(computes * now)

    write_columns(tmp_path, {"n": list(range(8))})
    made: list[OneTrial] = []

    def rules(_: Tuner, ranges: Mapping[Knob, KnobRange], __: MemoryUse) -> OneTrial:
        made.append(OneTrial(ranges, limit))
        return made[-1]

    monkeypatch.setattr(Tuner, "rules", rules)
    monkeypatch.setattr(tuned_run, "displaced_time", lambda: 0)
    with StreamingDataset(tmp_path, batch_size=4, read=ReadOptions(tune="auto")) as dataset:
        own = SimpleNamespace(perf_counter_ns=clock, thread_time_ns=processor, process_time_ns=processor)
        monkeypatch.setattr(tuned_run, "time", own)
        batches = dataset.batches()
        next(batches)
        reader = dataset.epoch_reader
        run_of = begun(reader, batch_size=4, threads=0)
        for _ in range(8):
            run_of.takes()
            now += 40_000_000
            run_of.took(10, 40_000_000, None, full=False)
    ticks = made[-1].ticks
    assert [tick.samples for tick in ticks] == [10 * chunks] * (8 // chunks)
    assert ticks[0].at_work == pytest.approx(computes)


def test_steps_are_not_cut_by_the_first_of_a_burst(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 threads take 32 ms for each step of 8 samples, and all end together: 15 of 16 steps are there at once."""
    now = 0
    write_columns(tmp_path, {"n": list(range(8))})
    monkeypatch.setattr(Tuner, "rules", lambda _, ranges, __: OneTrial(ranges, (math.inf, 0.0)))
    with StreamingDataset(tmp_path, batch_size=4, read=ReadOptions(tune="auto")) as dataset:
        next(dataset.batches())
        clocks = SimpleNamespace(perf_counter_ns=lambda: now, process_time_ns=lambda: now)
        monkeypatch.setattr(tuned_run, "time", clocks)
        reader = dataset.epoch_reader
        pool = reader.pool
        run_of = begun(reader, batch_size=8, threads=16)
        sizes = []
        for step in range(160):
            waited = 20_000 if step % 16 else 32_000_000
            if step % 16 == 0:
                pool.times.step(16 * 8, 16 * 32_000_000)
            now += waited
            run_of.took(8, waited, None, full=False)
            sizes.append(run_of.step_samples)
    assert sizes[-1] == 10  # 40 ms
    assert set(sizes[16:]) == {10}


@pytest.mark.parametrize("rests", [False, True])
def test_steps_that_are_only_counted_are_in_the_ticks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, rests: bool
) -> None:
    """The clock of the pipeline goes on by 20 us each time that it is asked, before and after each step of reading."""
    now = told = 0

    def clock() -> int:
        nonlocal now
        now += 20_000
        return now - 20_000

    write_columns(tmp_path, {"n": list(range(4000))})
    made: list[OneTrial] = []

    def rules(_: Tuner, ranges: Mapping[Knob, KnobRange], __: MemoryUse) -> OneTrial:
        made.append(OneTrial(ranges, (math.inf, 0.0)))
        made[-1].tick_seconds, made[-1].rests = 0.001, rests
        return made[-1]

    took = TunedRun.took

    def counted(*given: Any, **named: Any) -> bool:
        nonlocal told
        told += 1
        return took(*given, **named)

    monkeypatch.setattr(Tuner, "rules", rules)
    monkeypatch.setattr(TunedRun, "took", counted)
    own = SimpleNamespace(perf_counter_ns=lambda: now, thread_time_ns=lambda: now, process_time_ns=lambda: now)
    monkeypatch.setattr(tuned_run, "time", own)
    monkeypatch.setattr(pipeline, "time", SimpleNamespace(perf_counter_ns=clock))
    read = ReadOptions(tune="auto", tune_memory=8 * 8 * 8)
    with StreamingDataset(tmp_path, batch_size=8, read=read) as dataset:
        assert sum(len(batch["n"]) for batch in dataset.batches()) == 4000
    [seen] = made
    assert 15 <= len(seen.ticks) <= 20, "500 steps of 40 us, and what takes a tick to its end"
    assert 0 <= 4000 - sum(tick.samples for tick in seen.ticks) <= 8 * 30
    for tick in seen.ticks:
        assert tick.seconds == pytest.approx(40e-6 * tick.samples / 8, abs=41e-6)
        assert tick.waited == pytest.approx(20e-6 * tick.samples / 8)
        assert tick.at_work == (0.0 if rests else pytest.approx(1.0))
    assert len(seen.ticks) <= told <= 7 * len(seen.ticks)
