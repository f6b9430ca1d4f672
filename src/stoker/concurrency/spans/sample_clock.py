"""Spans of samples that are made one by one: long ones each, short ones summed up, of very short ones some measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from operator import length_hint
from time import perf_counter_ns
from typing import Any, Final, TypeVar

from stoker.concurrency.spans.recorder import Recorder, Stage

_T = TypeVar("_T")

_LONG: Final = 500_000
"""Nanoseconds of a piece of work that is recorded by itself."""

_SHORT: Final = ((10_000, 64), (100_000, 8))
"""Nanoseconds of a sample below which only some are measured, and one of how many at least: measuring takes 2 µs."""

_TRIVIAL: Final = 2_000
"""Nanoseconds of a sample below which, after so many of them, the rest of a step of reading is taken to be like them."""
_SEEN: Final = 512
_SUMMED: Final = 10_000_000
"""Nanoseconds after which a sum is recorded."""


class SampleClock:
    """Records the making of samples that are decoded and transformed when they are asked for.

    Work of less than 500 µs is summed up, over 10 ms at most: one span a stage, which lie one after the other from where the
    sum began. Of samples that take less than 100 µs one of 2 to 8 is measured, of those below 10 µs one of 2 to 64, and
    counts for all of these; where samples take less than 2 µs and are not transformed, only those of the first 512 of a step
    of reading.

    Args:
        recorder: of this process.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._transforms = False
        self._measured = True
        self._weight = 1
        self._took = 0
        self._since = 0
        self._sums: dict[Stage, list[int]] = {}

    def decoded(self, samples: Iterator[_T], remaining: Iterator[object]) -> Iterator[_T]:
        """The same samples; taking each is recorded as its decoding.

        Args:
            samples: each is made when it is asked for.
            remaining: an iterator whose length hint is the number of samples not yet taken.
        """
        # A generator in between would cost more than 2 % of a small sample.
        return chain.from_iterable(self._parts(samples, remaining))

    def _parts(self, samples: Iterator[_T], remaining: Iterator[object]) -> Iterator[Iterable[_T]]:
        stride, seen, took = 1, 0, 0
        try:
            while True:
                self._measured, self._took = True, 0
                begin = perf_counter_ns()
                sample = next(samples, self)
                end = perf_counter_ns()
                if sample is self:
                    return
                self._weight = min(stride, 1 + length_hint(remaining))
                self._add(Stage.DECODE, begin, end)
                seen, took = seen + self._weight, took + (end - begin) * self._weight
                yield (sample,)  # type: ignore[misc]
                del sample
                self._measured = False
                if self._weight > 1:
                    yield islice(samples, self._weight - 1)
                most = next((most for below, most in _SHORT if self._took < below), 1)
                stride = min(2 * stride, most)
                if seen >= _SEEN and took < _TRIVIAL * seen and not self._transforms:
                    self._weight = length_hint(remaining)
                    yield samples
                    now = perf_counter_ns()
                    if self._weight:
                        self._add(Stage.DECODE, now - took // seen, now)
                    return
        finally:
            self._flush(perf_counter_ns())

    def transforming(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The same function; its calls for samples that are measured are recorded."""
        self._transforms = True

        def timed(sample: Any) -> Any:
            if not self._measured:
                return function(sample)
            begin = perf_counter_ns()
            made = function(sample)
            self._add(Stage.TRANSFORM, begin, perf_counter_ns())
            return made

        return timed

    def _add(self, stage: Stage, begin: int, end: int) -> None:
        took = end - begin
        self._took += took
        if took >= _LONG and self._weight == 1:
            self._flush(begin)
            self._recorder.add(stage, begin, end, 1)
            return
        if not self._since:
            self._since = begin
        total = self._sums.setdefault(stage, [0, 0])
        total[0] += took * self._weight
        total[1] += self._weight
        if end - self._since > _SUMMED:
            self._flush(end)

    def _flush(self, now: int) -> None:
        """Record what was summed up, in the time that has passed since."""
        begin = self._since
        for stage, (took, samples) in self._sums.items():
            end = min(begin + took, now)
            self._recorder.add(stage, begin, end, samples)
            begin = end
        self._sums.clear()
        self._since = 0
