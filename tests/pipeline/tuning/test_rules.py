"""The tuner's rules over simulated pipelines: they find what is slow, keep to the memory, and rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from simulated_pipeline import Simulated, run, run_ranks, unchanged

from stoker.pipeline.tuning.knobs import Knob, KnobChange, KnobRange, MemoryUse, Tick, Why, Window
from stoker.pipeline.tuning.rules import Candidates, Controller

SLOW = {
    "slow decoding": (Simulated(consumer=5e-5, reading=4e-4, start={Knob.READ_THREADS: 1}), Knob.READ_THREADS),
    "slow store": (Simulated(latency=0.3, consumer=1e-5, reading=1e-5), Knob.DOWNLOAD_THREADS),
    "short lookahead": (Simulated(late=0.5, latency=0.01, sample_bytes=1 << 12), Knob.PREDOWNLOAD),
    "uneven reading": (
        Simulated(uneven=0.5, reading=3e-4, alone=0.25, start={Knob.READ_THREADS: 2}),
        Knob.CHUNKS_AHEAD,
    ),
    "reading that waits": (Simulated(consumer=5e-5, reading=4e-4, waits=0.9), Knob.READ_THREADS),
    "functions in processes that wait": (
        Simulated(consumer=1e-5, reading=1e-3, waits=1.0, handing=1e-6, processes=True),
        Knob.READ_PROCESSES,
    ),
}


@pytest.mark.parametrize("case", SLOW)
@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1])
def test_the_knob_of_what_is_slow_is_raised(case: str, noise: float) -> None:
    simulated, knob = SLOW[case]
    simulated = replace(simulated, noise=noise)
    for seed in range(5):
        found = run(simulated, 250, seed)
        kept = [one for one in found.changes if one.kept]
        assert knob in {one.knob for one in kept}, found.changes
        assert simulated.best() >= 0.95 * simulated.times(found.controller.confirmed_values)[0], found
        assert all(one.gain > 0 for one in kept)


def random_pipeline(rng: np.random.Generator) -> Simulated:
    """A pipeline of any times."""
    processors = int(rng.choice([1, 2, 4, 8]))
    return Simulated(
        consumer=10 ** rng.uniform(-5, -3),
        reading=10 ** rng.uniform(-5, -3),
        waits=float(rng.choice([0.0, 0.0, 0.5, 1.0])),
        alone=float(rng.choice([0.0, 0.3, 1.0])),
        processes=bool(rng.choice([False, False, True])),
        handing=10 ** rng.uniform(-6, -4.5),
        processors=processors,
        latency=float(rng.choice([0.0, 0.01, 0.1, 0.3])),
        late=float(rng.choice([0.0, 0.0, 0.3, 1.0])),
        store=float(rng.choice([1e9, 300.0])),
        uneven=float(rng.choice([0.0, 0.1])),
        shard=int(rng.choice([8, 64, 512])),
        sample_bytes=int(rng.choice([0, 1 << 12])),
        budget=int(rng.choice([8 << 20, 64 << 20, 1 << 30])),
        noise=float(rng.choice([0.01, 0.03, 0.1])),
        # Functions begin with threads.
        start={Knob.READ_THREADS: processors} if rng.choice([False, True]) else {},
    )


def test_a_thousand_pipelines() -> None:
    """After 500 ticks nearly all come near the best of a grid, none comes over its memory, and none is made slower."""
    rng = np.random.default_rng(1)
    ratios = []
    for seed in range(1000):
        simulated = random_pipeline(rng)
        found = run(simulated, 500, seed)
        begun = {knob: one.start for knob, one in simulated.ranges().items()}
        assert found.most_memory <= max(simulated.budget, simulated.memory.of(begun)), simulated
        time = simulated.times(found.controller.confirmed_values)[0]
        assert time <= 1.05 * simulated.times(begun)[0] or simulated.memory.of(begun) > simulated.budget, simulated
        ratios.append(simulated.best() / time)
    assert np.mean(np.array(ratios) >= 0.95) >= 0.98
    assert min(ratios) >= 0.85


def test_a_lookahead_that_helps_is_not_cut_for_threads() -> None:
    """Where memory is short, threads are not tried in place of what a trial has just shown to help."""
    rng = np.random.default_rng(3)
    raised = 0
    for seed in range(150):
        kept = None
        for one in run(random_pipeline(rng), 500, seed).changes:
            if one.knob is Knob.PREDOWNLOAD and one.kept:
                kept = one.after if one.after > one.before else None
                raised += kept is not None
            cut = one.knob is Knob.PREDOWNLOAD and not one.kept and one.after < one.before
            assert not cut or one.before != kept, (seed, one)
    assert raised > 20


@pytest.mark.parametrize("load", [0.0, 1.0])
def test_vain_trials_cost_less_than_a_hundredth_of_an_hour(load: float) -> None:
    """Also where the rest of the machine makes all take up to twice as long, now and then."""
    rng = np.random.default_rng(int(load))
    ratios = []
    for seed in range(12):
        simulated = replace(random_pipeline(rng), load=load)
        found = run(simulated, 10**6, seed, seconds=3600.0)
        assert found.seconds >= 3600.0
        assert found.lost < 0.01 * found.seconds, (simulated, found)
        ratios.append(simulated.best() / simulated.times(found.controller.confirmed_values)[0])
    assert np.mean(np.array(ratios) >= 0.95) >= 0.9


def test_trials_that_always_cost_much_are_bounded() -> None:
    """A pipeline in which any change makes all four times as slow, and that never waits for the same for long."""

    class Hostile(Simulated):
        def times(self, values: Mapping[Knob, int]) -> tuple[float, float, float]:
            begun = all(values[knob] == one.start for knob, one in self.ranges().items())
            return (2e-4 if begun else 8e-4), 1e-4, 0.0

    found = run(Hostile(noise=0.03, waits=1.0), 10**6, seconds=3600.0)
    assert {one.kept for one in found.changes} == {False}
    assert found.lost < 0.01 * found.seconds


@pytest.mark.parametrize("threads", [2, 4])
def test_what_takes_all_processors_is_left_alone(threads: int) -> None:
    """As many threads as processors that all compute: neither more nor fewer are tried."""
    for seed in range(10):
        simulated = Simulated(
            consumer=1e-6, reading=1e-3, processors=threads, noise=0.1, start={Knob.READ_THREADS: threads}
        )
        assert not run(simulated, 1000, seed).changes


@pytest.mark.parametrize("epoch", [1, 3, 8, 25])
def test_short_epochs_are_tuned(epoch: int) -> None:
    """Epochs of so many ticks, of which some are left out at the beginning; of one: whole epochs are measured."""
    for case, (simulated, knob) in SLOW.items():
        found = run(simulated, 1000, epoch=epoch)
        assert simulated.best() >= 0.95 * simulated.times(found.controller.confirmed_values)[0], case
        assert knob in {one.knob for one in found.changes if one.kept}


def test_ranks_that_wait_for_each_other() -> None:
    """The slow one is made faster; one that only waits for it at the training step changes nothing."""
    rng = np.random.default_rng(7)
    ratios = []
    for seed in range(40):
        one = random_pipeline(rng)
        other = replace(random_pipeline(rng), consumer=one.consumer, noise=one.noise)
        found = run_ranks([one, other], 60.0, seed)
        best = max(one.best(), other.best())
        times = [each.times(ran.controller.confirmed_values)[0] for each, ran in zip((one, other), found, strict=True)]
        ratios.append(best / max(times))
    assert np.mean(np.array(ratios) >= 0.95) >= 0.95
    quick, slow = run_ranks([Simulated(consumer=1e-4, reading=1e-6), Simulated(latency=0.3, consumer=1e-4)], 60.0)
    assert not quick.changes
    assert Knob.DOWNLOAD_THREADS in {one.knob for one in slow.changes if one.kept}


def test_less_is_not_kept_because_the_machine_became_faster() -> None:
    """Fewer threads are measured twice: with more again after that."""
    simulated = Simulated(consumer=1e-6, reading=1e-3, alone=0.5, noise=0.0, start={Knob.READ_THREADS: 4})
    controller = Controller(simulated.ranges(), simulated.memory, simulated.processors)
    rng = np.random.default_rng(0)
    slower, changes = 2.0, []
    for _ in range(300):
        if controller.values[Knob.READ_THREADS] == 2:
            slower = 1.0  # what else ran on the machine ends just now
        changes += controller.observe(simulated.tick(controller.values, controller, rng, slower=slower))
    assert slower == 1.0
    assert controller.confirmed_values[Knob.READ_THREADS] >= 4
    assert all(not one.kept for one in changes if one.after < one.before)


def test_a_slow_consumer_changes_nothing() -> None:
    for seed in range(20):
        found = run(Simulated(consumer=1e-3, reading=1e-6, noise=0.1), 2000, seed)
        assert not found.changes
        assert found.controller.tick_seconds == 1.0


def test_noise_makes_no_tuner_wander() -> None:
    """What no knob helps is tried ever less often: in minutes a few times, each of them withdrawn."""
    tried, kept = [], 0
    for seed in range(20):
        found = run(Simulated(consumer=1e-5, reading=2e-4, alone=1.0, processors=1, noise=0.1), 1500, seed)
        tried.append(len(found.changes))
        kept += sum(one.kept for one in found.changes)
        assert found.seconds > 400
    assert max(tried) < 60, tried
    assert kept < 2 * len(tried)


def test_what_is_set_stays() -> None:
    """A fixed knob is not changed, and in a vain search nothing else is worse for it."""
    simulated = Simulated(consumer=1e-5, reading=4e-4, latency=0.3, late=0.5)
    ranges = {knob: unchanged(one.start) for knob, one in simulated.ranges().items()}
    controller = Controller(ranges, simulated.memory)
    assert controller.idle
    rng = np.random.default_rng(0)
    for knob in Knob:
        controller = Controller({**simulated.ranges(), knob: ranges[knob]}, simulated.memory)
        assert not controller.idle
        for _ in range(500):
            controller.observe(simulated.tick(controller.values, controller, rng))
            assert controller.values[knob] == ranges[knob].start


def test_steps_that_are_larger_than_thought_give_memory_back() -> None:
    memory = MemoryUse(budget=64 << 20, chunk_bytes=1 << 20, sample_bytes=0)
    ranges = {**Simulated().ranges(), Knob.READ_THREADS: KnobRange(8, 16), Knob.CHUNKS_AHEAD: KnobRange(16, 64)}
    controller = Controller(ranges, memory)
    tick = Tick(1.0, 0.0, 100, chunk_bytes=5 << 20)
    changes = controller.observe(tick)
    assert [(one.knob, one.why) for one in changes] == [(Knob.CHUNKS_AHEAD, Why.MEMORY)]
    assert replace(memory, chunk_bytes=5 << 20).of(controller.values) <= memory.budget
    for _ in range(3):
        controller.observe(replace(tick, chunk_bytes=40 << 20))
    assert controller.values[Knob.READ_THREADS] == 1, "one thread and one step are the least"


def test_a_trial_goes_on_where_memory_cuts_a_little_of_it() -> None:
    """Steps of reading are not all alike: at the limit of memory a trial would be begun again and again."""
    memory = MemoryUse(budget=1000, chunk_bytes=10, sample_bytes=1)
    ranges = {knob: KnobRange(one.start, one.start) for knob, one in Simulated().ranges().items()}
    ranges[Knob.PREDOWNLOAD] = KnobRange(500, 1 << 20)
    controller = Controller(ranges, memory)
    tick = Tick(0.1, 0.05, 1000, shards=1.0, full=1.0, chunk_bytes=10)
    while controller.values[Knob.PREDOWNLOAD] == 500:
        assert not controller.observe(tick)
    begun = controller.values[Knob.PREDOWNLOAD]
    (cut,) = controller.observe(replace(tick, chunk_bytes=30))
    after = controller.values[Knob.PREDOWNLOAD]
    assert (cut.why, cut.after) == (Why.MEMORY, after)
    assert 500 < after < begun
    assert controller.confirmed_values[Knob.PREDOWNLOAD] == 500, "it is still on trial"
    better = replace(tick, samples=2000, chunk_bytes=30)
    while not (changes := controller.observe(better)):
        pass
    assert [(one.before, one.after, one.kept) for one in changes] == [(500, after, True)]


def test_fewer_threads_on_trial_stay_as_many_where_memory_cuts_those_before() -> None:
    """While what was before is measured again, memory takes one of these threads: the trial is still of half as many."""
    memory = MemoryUse(budget=300, chunk_bytes=10, sample_bytes=0)
    ranges = {knob: KnobRange(one.start, one.start) for knob, one in Simulated().ranges().items()}
    ranges[Knob.READ_THREADS] = KnobRange(20, 1 << 10)
    controller = Controller(ranges, memory, processors=4)
    slow = Tick(0.1, 0.05, 1000, chunk_bytes=10, computed=0.4)
    while controller.values[Knob.READ_THREADS] == 20:
        assert not controller.observe(slow)
    assert controller.values[Knob.READ_THREADS] == 10
    while controller.values[Knob.READ_THREADS] == 10:  # until they are withdrawn, and those before measured again
        assert not controller.observe(replace(slow, samples=2000))
    (cut,) = controller.observe(replace(slow, chunk_bytes=15))
    assert (cut.why, controller.values[Knob.READ_THREADS]) == (Why.MEMORY, 20 - 1)
    while not (changes := controller.observe(replace(slow, chunk_bytes=15))):
        pass
    assert [(one.after, one.kept) for one in changes] == [(10, True)]
    assert controller.values[Knob.READ_THREADS] == 10


def test_a_lookahead_that_memory_has_cut_is_still_one_that_helps() -> None:
    memory = MemoryUse(budget=400, chunk_bytes=100, sample_bytes=1)
    ranges = {**Simulated().ranges(), Knob.READ_THREADS: KnobRange(1, 8), Knob.PREDOWNLOAD: KnobRange(100, 1000)}
    candidates, window = Candidates(ranges, memory, 8.0), Window()
    window.add(Tick(0.1, 0.05, 100))
    values = {**{knob: one.start for knob, one in ranges.items()}, Knob.CHUNKS_AHEAD: 0, Knob.PREDOWNLOAD: 290}

    def lowers() -> bool:
        return any(one.knob is Knob.PREDOWNLOAD for changes in candidates.found(window, values) for one in changes)

    assert lowers(), "to make memory for a thread"
    candidates.helped(KnobChange(Knob.PREDOWNLOAD, 150, 300, Why.LOOKAHEAD))
    assert not lowers()


def test_what_is_on_trial_is_withdrawn_where_the_next_iteration_is_another() -> None:
    simulated = Simulated(consumer=1e-5, reading=4e-4, waits=0.9, noise=0.0)
    controller = Controller(simulated.ranges(), simulated.memory)
    rng = np.random.default_rng(0)
    while controller.values[Knob.READ_THREADS] == 0:
        controller.observe(simulated.tick(controller.values, controller, rng))
    assert controller.confirmed_values[Knob.READ_THREADS] == 0
    controller.restarted(goes_on=True)
    assert controller.values[Knob.READ_THREADS] == 2
    controller.restarted(goes_on=False)
    assert controller.values[Knob.READ_THREADS] == 0
