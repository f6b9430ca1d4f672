"""The measured loop: where a rank's time goes, and that it all goes somewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import repeat

import numpy as np
import pytest
from bench_time import READING, BenchTime
from hypothesis import given
from hypothesis import strategies as st

from stoker.cluster import World
from stoker.errors import ConfigError
from stoker_bench.loaders import LoadedBatch
from stoker_bench.measure.compute import SimulatedStep, TorchStep, make_step
from stoker_bench.measure.metrics import block_metrics, epoch_metrics, percentiles, stalls
from stoker_bench.measure.steps import StepBlock, Steps, run_steps
from stoker_bench.settings.duration import Duration

BATCH = LoadedBatch(4, 400, None)


MS = 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> BenchTime:
    """The time of the loop and of its accelerator, which wakes up in time, and late, and very late."""
    made = BenchTime(late=(0, 40_000, 700_000))
    made.replace(monkeypatch.setattr)
    return made


class Slow:
    """A loader that makes its caller wait, also for the word that it has no more; it keeps count of it."""

    def __init__(self, clock: BenchTime, steps: int, wait: int) -> None:
        self.clock, self.left, self.wait, self.waits = clock, steps, wait, list[int]()

    def __iter__(self) -> Iterator[LoadedBatch]:
        return self

    def __next__(self) -> LoadedBatch:
        self.clock.now += self.wait
        if not self.left:
            raise StopIteration
        self.left -= 1
        self.waits.append(self.wait)
        self.wait += 1000
        return BATCH


def accelerator(seconds: float, rank: int = 0, **more: float) -> SimulatedStep:
    step = SimulatedStep(Duration(mean=seconds) if not more else Duration("normal", mean=seconds, **more), 7, rank)
    step.begin(0)
    return step


@pytest.mark.parametrize(("wait", "compute"), [(4 * MS, 0.002), (0, 0.003), (3 * MS, 0.0)])
def test_all_of_a_block_s_time_is_in_its_parts(clock: BenchTime, wait: int, compute: float) -> None:
    steps = Steps()
    run_steps(Slow(clock, 40, wait), accelerator(compute), steps, barrier=lambda: clock.sleep(0.0002))
    got = block_metrics(steps, steps.blocks[0], 1, 0)
    assert got.counted == 39
    # The wall time is another clock's, read outside of the loop, so that the sum could be wrong.
    parts = got.compute + got.stall + got.barrier + got.overhead
    assert parts == pytest.approx(got.seconds, abs=1e-9)
    assert got.residue == pytest.approx(0, abs=1e-9)
    row = got.as_dict()
    assert row["au"] + row["stall_part"] + row["barrier_part"] + row["overhead_part"] == pytest.approx(1)
    assert got.overhead <= 41 * 5 * READING * 1e-9


def test_a_loader_that_stalls_by_a_known_amount_is_measured_to_two_percent(clock: BenchTime) -> None:
    """To the time that it takes to read the clock."""
    loader, steps = Slow(clock, 60, 5 * MS), Steps()
    run_steps(loader, accelerator(0.001), steps)
    got = block_metrics(steps, steps.blocks[0], 1, 0)
    known, reading = np.array(loader.waits[1:]) * 1e-9, 2 * READING * 1e-9
    assert got.stall == pytest.approx(known.sum() + loader.wait * 1e-9, abs=60 * reading)
    waits = stalls(steps, 1, 0)
    assert waits == pytest.approx(known, abs=reading)
    found = percentiles(waits)
    assert found is not None
    assert found["p50"] == pytest.approx(np.median(known), abs=reading)


def test_compute_is_as_long_as_was_drawn_and_not_shorter(clock: BenchTime) -> None:
    """However late it wakes up, which is seen."""
    steps, compute = Steps(), accelerator(0.002, stdev=0.0005)
    run_steps(repeat(BATCH, 50), compute, steps)
    again = Duration("normal", mean=0.002, stdev=0.0005).draw(4096, np.random.default_rng((7, 0, 0)))[:50]
    took = (steps.ended - steps.begun)[:50]
    assert (took >= again).all()
    assert len(set(again.tolist())) > 40
    late = took - again
    assert (late[::3] <= 3 * READING).all()  # it woke up in time
    assert (late[2::3] > 500_000).all()


def test_draws_differ_between_ranks_and_epochs_and_are_the_same_again() -> None:
    def drawn(rank: int, epoch: int) -> list[int]:
        step = SimulatedStep(Duration("exponential", scale=1e-7), 7, rank)
        step.begin(epoch)
        step(0, None)
        return list(step._drawn)

    assert drawn(0, 0) == drawn(0, 0)
    assert len({tuple(drawn(rank, epoch)) for rank in range(3) for epoch in range(3)}) == 9


def test_an_epoch_that_ends_early_still_has_its_numbers(clock: BenchTime) -> None:
    """A loop that broke at its top left its last block open, and all metrics 0."""
    steps = Steps()
    run_steps(repeat(BATCH, 100), accelerator(0.001), steps, limit=10)
    assert (steps.count, steps.complete, len(steps.blocks)) == (10, True, 1)
    got = block_metrics(steps, steps.blocks[0], 1, 0)
    assert got.au is not None
    assert got.au > 0.99
    assert got.samples == 9 * 4


def test_a_loader_that_fails_leaves_what_was_measured_until_then(clock: BenchTime) -> None:
    def broken() -> Iterator[LoadedBatch]:
        yield from repeat(BATCH, 5)
        raise OSError("gone")

    steps = Steps()
    with pytest.raises(OSError, match="gone"):
        run_steps(broken(), accelerator(0.0), steps)
    assert (steps.count, steps.complete) == (5, False)
    assert steps.blocks[0].wall > 0
    assert block_metrics(steps, steps.blocks[0], 1, 0).counted == 4


def test_blocks_end_at_checkpoints_which_are_in_none_of_them(clock: BenchTime) -> None:
    steps, saved = Steps(), list[int]()

    def save(step: int) -> None:
        saved.append(step)
        clock.now += 50 * MS

    begun = clock.now
    run_steps(repeat(BATCH, 10), accelerator(0.001), steps, block_steps=4, at_block_end=save)
    took = clock.now - begun
    assert saved == [4, 8]
    assert [(block.first, block.last) for block in steps.blocks] == [(0, 4), (4, 8), (8, 10)]
    assert took - sum(block.wall for block in steps.blocks) == pytest.approx(2 * 50 * MS, abs=50 * READING)
    counted = [block_metrics(steps, block, 1, 0).counted for block in steps.blocks]
    assert counted == [3, 3, 1]


def test_no_block_of_nothing_follows_data_that_ends_with_one(clock: BenchTime) -> None:
    steps = Steps()
    run_steps(repeat(BATCH, 8), accelerator(0.0), steps, block_steps=4, at_block_end=lambda step: None)
    assert [(block.first, block.last) for block in steps.blocks] == [(0, 4), (4, 8)]


def test_waiting_for_other_ranks_is_a_part_of_its_own(clock: BenchTime) -> None:
    steps, waits = Steps(), [3 * MS + k for k in range(10)]
    left = iter(waits)

    def wait() -> None:
        clock.now += next(left)

    run_steps(repeat(BATCH, 10), accelerator(0.001), steps, barrier=wait)
    got = block_metrics(steps, steps.blocks[0], 0, 0)
    assert steps.barrier[:10].tolist() == [one + READING for one in waits]
    assert got.barrier == pytest.approx(steps.barrier[:10].sum() * 1e-9)
    assert got.stall <= 11 * READING * 1e-9


def test_arrays_grow_without_losing_steps(clock: BenchTime) -> None:
    steps = Steps(3)
    run_steps((LoadedBatch(number, 0, None) for number in range(100)), accelerator(0.0), steps)
    assert steps.arrays()["samples"].tolist() == list(range(100))
    assert (np.diff(steps.arrays()["asked"]) > 0).all()


def test_an_epoch_without_steps_has_no_numbers_instead_of_wrong_ones(clock: BenchTime) -> None:
    steps = Steps()
    run_steps(iter(()), accelerator(0.0), steps)
    got = block_metrics(steps, steps.blocks[0], 1, 0)
    assert (got.steps, got.counted, got.au) == (0, 0, None)
    assert epoch_metrics([got])["au"] is None
    assert percentiles(stalls(steps, 1, 0)) is None


def dlio(steps: Steps, block: StepBlock, start: int, end: int, batch: int) -> tuple[float, float]:
    """AU and samples a second by statscounter.py's compute_metrics_train, with its window for the count of samples."""
    proc = (steps.ended - steps.asked)[block.first : block.last] * 1e-9
    compute = (steps.ended - steps.begun)[block.first : block.last] * 1e-9
    last = len(proc) - 1 - end
    total = block.wall * 1e-9 - proc[:start].sum() - proc[last + 1 :].sum()
    kept = compute[start : last + 1]
    return kept.sum() / total, len(kept) * batch / total


@given(
    st.lists(st.tuples(*[st.integers(0, 1000)] * 4), min_size=3, max_size=30),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 500),
)
def test_utilization_and_rate_are_dlio_s(
    parts: list[tuple[int, int, int, int]], start: int, end: int, tail: int
) -> None:
    steps, now = Steps(len(parts)), 1000
    for at, (wait, before, compute, after) in enumerate(parts):
        steps.asked[at], steps.arrived[at] = now, now + wait
        steps.begun[at] = now + wait + before
        steps.ended[at] = now + wait + before + compute
        now += wait + before + compute + after
        steps.samples[at] = 4
    steps.count = len(parts)
    block = StepBlock(0, len(parts), 990, now + tail, tail, now + tail - 990)
    got = block_metrics(steps, block, start, end)
    if not got.counted or not got.seconds:
        assert got.au is None
        return
    au, rate = dlio(steps, block, start, end, 4)
    assert got.au == pytest.approx(au)
    assert got.as_dict()["samples_per_second"] == pytest.approx(rate)
    assert got.residue == pytest.approx(0, abs=1e-12)
    assert got.overhead >= 0


def test_blocks_are_weighted_by_their_steps(clock: BenchTime) -> None:
    steps = Steps()
    run_steps(repeat(BATCH, 9), accelerator(0.0005), steps, block_steps=6, at_block_end=lambda step: None)
    blocks = [block_metrics(steps, block, 1, 0) for block in steps.blocks]
    first, second = (block.au for block in blocks)
    assert first is not None
    assert second is not None
    assert epoch_metrics(blocks)["au"] == pytest.approx((6 * first + 3 * second) / 9)


def test_a_real_step_computes_on_the_batch_whatever_it_holds() -> None:
    pytest.importorskip("torch")
    from stoker_bench.settings.sources import read_workload

    workload = read_workload(None, ["compute.kind=torch", "compute.hidden=8"], environ={}, dotenv=None).workload
    step = make_step(workload, World())
    assert isinstance(step, TorchStep)
    before = [parameter.clone() for parameter in step._model.parameters()]
    batch = {"x": np.full((4, 100), 200, np.uint8), "y": [b"abc"], "z": np.full((2, 600), np.nan, np.float32)}
    now = time.perf_counter_ns()
    assert step(0, batch) > now
    after = list(step._model.parameters())
    assert any(bool((one != two).any()) for one, two in zip(before, after, strict=True))
    assert all(bool(one.isfinite().all()) for one in after)
    with pytest.raises(ConfigError, match=r"compute.device: 'quantum' can not be used here"):
        TorchStep("quantum", 8, 0, World())
