"""The measured loop of one rank: ask for a batch, wait, compute, and so on, with four moments noted a step.

Every nanosecond of a block is in one of four parts: waiting for a batch, computing, waiting for the other ranks, and the
rest, which is the harness's own overhead. The parts are sums of differences of the noted moments; the block's wall time is
taken by another clock outside the loop, so that the identity of the two is a check and not a definition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker_bench.loaders.base import LoadedBatch
from stoker_bench.measure.compute import ComputeStep

_FIRST: Final = 1024
_TOGETHER: Final = 2_000
"""Nanoseconds within which two readings count as one moment."""
_END: Final = LoadedBatch(0, 0, None)


@dataclass(slots=True)
class StepBlock:
    """Steps from one checkpoint to the next, or of a whole epoch. Times are of ``time.perf_counter_ns``, but ``wall``.

    Attributes:
        first, last: its steps are ``[first, last)`` of the epoch.
        begun: when it began.
        ended: when it ended.
        tail: nanoseconds in which the loader found out that it has no more batches.
        wall: nanoseconds that it took by ``time.monotonic_ns``, asked for outside the loop.
    """

    first: int
    last: int
    begun: int
    ended: int = 0
    tail: int = 0
    wall: int = 0


class Steps:
    """The moments of an epoch's steps, in arrays that are there before it begins, and double when they are full.

    Attributes:
        asked: when a batch was asked for; int64 nanoseconds of ``time.perf_counter_ns``, as all four.
        arrived: when it was there.
        begun: when computing began.
        ended: when it ended.
        barrier: nanoseconds of waiting for other ranks after the step.
        samples, bytes: of the batch.
        blocks: the blocks.
        drawn: nanoseconds that each step was to compute; ``None`` where the work decides that, or the epoch goes on.
        complete: whether the epoch came to its end.
    """

    _NAMES: Final = ("asked", "arrived", "begun", "ended", "barrier", "samples", "bytes")

    def __init__(self, expected: int = _FIRST) -> None:
        for name in self._NAMES:
            setattr(self, name, np.zeros(max(1, expected), np.int64))
        self.count = 0
        self.blocks: list[StepBlock] = []
        self.drawn: NDArray[np.int64] | None = None
        self.complete = False

    asked: NDArray[np.int64]
    arrived: NDArray[np.int64]
    begun: NDArray[np.int64]
    ended: NDArray[np.int64]
    barrier: NDArray[np.int64]
    samples: NDArray[np.int64]
    bytes: NDArray[np.int64]

    def grow(self) -> None:
        """Make room for twice as many steps."""
        for name in self._NAMES:
            old = getattr(self, name)
            new = np.zeros(2 * len(old), np.int64)
            new[: len(old)] = old
            setattr(self, name, new)

    def arrays(self) -> dict[str, NDArray[np.int64]]:
        """The arrays by name, as long as there are steps."""
        return {name: getattr(self, name)[: self.count] for name in self._NAMES}


def run_steps(
    batches: Iterator[LoadedBatch],
    compute: ComputeStep,
    steps: Steps,
    *,
    limit: int | None = None,
    barrier: Callable[[], object] | None = None,
    check: Callable[[], object] | None = None,
    block_steps: int | None = None,
    at_block_end: Callable[[int], object] | None = None,
) -> LoadedBatch | None:
    """Run an epoch; returns the first batch, so that its content can be looked at later.

    What is noted is in ``steps`` as soon as it is known, also where the loader or the computation raises: the block is then
    closed, and ``steps.complete`` false.

    Args:
        batches: the loader's.
        compute: the accelerator.
        steps: where the moments go; empty.
        limit: steps after which the epoch ends.
        barrier: called after each step, to wait for all other ranks.
        check: called before each step; raises where another rank has failed.
        block_steps: steps of a block.
        at_block_end: called, outside of any block, after each that is followed by another one, with the number of steps so
            far: where a checkpoint is saved.
    """
    clock, first = time.perf_counter_ns, None
    asked, arrived, begun, ended, waited, samples, bytes_ = (getattr(steps, name) for name in Steps._NAMES)
    capacity = len(asked)
    count = steps.count
    # next() without an exception at the end, which would take as long as many steps.
    begin, outer = _both_clocks()
    block = StepBlock(count, count, begin)
    steps.blocks.append(block)
    try:
        while limit is None or count < limit:
            if count == capacity:
                steps.grow()
                asked, arrived, begun, ended, waited, samples, bytes_ = (getattr(steps, n) for n in Steps._NAMES)
                capacity = len(asked)
            if check is not None:
                check()
            at = clock()
            batch = next(batches, _END)
            there = clock()
            if batch is _END:
                block.tail = there - at
                break
            asked[count] = at
            arrived[count] = there
            samples[count] = batch.samples
            bytes_[count] = batch.bytes
            begun[count] = clock()
            ended[count] = done = compute(count, batch.data)
            if first is None:
                first = batch
            count += 1
            steps.count = block.last = count
            if barrier is not None:
                barrier()
                waited[count - 1] = clock() - done
            if at_block_end is not None and block_steps is not None and not count % block_steps and count != limit:
                _close(block, outer)
                at_block_end(count)
                begin, outer = _both_clocks()
                block = StepBlock(count, count, begin)
                steps.blocks.append(block)
        steps.complete = True
    finally:
        _close(block, outer)
        steps.drawn = compute.drawn(steps.count)
        if block.first == block.last and len(steps.blocks) > 1:
            steps.blocks.pop()  # the data ended where the block before did
    return first


def _close(block: StepBlock, outer: int) -> None:
    block.ended, now = _both_clocks()
    block.wall = now - outer


def _both_clocks() -> tuple[int, int]:
    """``time.perf_counter_ns`` and ``time.monotonic_ns`` of one moment: again where something came between the two."""
    for _ in range(20):
        before = time.monotonic_ns()
        now = time.perf_counter_ns()
        after = time.monotonic_ns()
        if after - before < _TOGETHER:
            break
    return now, (before + after) // 2
