"""Spans of samples that are made one by one: long ones each, short ones summed up, of very short ones some measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from operator import length_hint
from time import perf_counter_ns
from typing import Any, Final, TypeVar

from stoker.concurrency.spans.recorder import Recorder, Stage

_T = TypeVar("_T")
_S = TypeVar("_S")

_LONG: Final = 500_000
"""Nanoseconds of a piece of work that is recorded by itself."""

_SHORT: Final = ((10_000, 64), (100_000, 16), (_LONG, 4))
"""Nanoseconds of a sample below which only some are measured, and one of how many at least: measuring takes 2 to 5 µs."""
_FASTER: Final = 4
"""One of so many times as many is measured after each, up to that: the first ones of a step may be slow."""

_TRIVIAL: Final = 4_000
"""Nanoseconds of a sample below which, after so many of them, the rest of a step of reading is taken to be like them."""
_SEEN: Final = 64
_STEPS: Final = 15
"""Steps of reading after such a one in which none is measured: in steps of 3000 tokens' samples that would take 3 %."""

_SUMMED: Final = 10_000_000
"""Nanoseconds after which a sum is recorded."""


_ALONE: Final = 1_000_000
"""Nanoseconds of one of samples that are made in one go for which it is recorded by itself."""

_OF_MANY: Final = ((100_000, 64), (_ALONE, 16))
"""As :data:`_SHORT`, of samples that are made in one go: what those that are not measured take is known, too."""


class ShortSamples:
    """The time of a dataset's samples that take less than 4 µs, found in one step of reading, for the next ones."""

    __slots__ = ("each", "steps")

    def __init__(self) -> None:
        self.each = self.steps = 0


class SampleClock:
    """Records the making of samples that are decoded and transformed when they are asked for.

    Work of less than 500 µs is summed up, over 10 ms at most: one span a stage, which lie one after the other from where the
    sum began. Of those samples one of 4 is measured, of samples that take less than 100 µs one of 16, of those below 10 µs
    one of 64, and counts for all of these; where samples take less than 4 µs and are not transformed, only some of the first
    ones of a step of reading, and none in the 15 steps after it.

    Args:
        recorder: of this process.
        known: of the dataset, for :meth:`first_decoded`.
    """

    __slots__ = (
        "_decode",
        "_decoded",
        "_each",
        "_known",
        "_measured",
        "_most",
        "_recorder",
        "_since",
        "_took",
        "_transform",
        "_transformed",
        "_weight",
    )

    def __init__(self, recorder: Recorder, known: ShortSamples | None = None) -> None:
        self._recorder, self._known = recorder, known
        self._measured = True
        self._weight = 1
        self._took = 0  # by the sample that is measured
        # Sums, in ns and in samples, and when they begin; 0: nothing is summed up.
        self._decode = self._decoded = self._transform = self._transformed = self._since = 0
        self._each = self._most = 0  # ns of each of the samples that are taken to be alike, and how many come at most

    def decoded(self, samples: Iterator[_T], remaining: Iterator[object]) -> Iterator[_T]:
        """The same samples; taking each is recorded as its decoding.

        Args:
            samples: each is made when it is asked for.
            remaining: an iterator whose length hint is the number of samples not yet taken.
        """
        # A generator in between would cost more than 2 % of a small sample.
        return chain.from_iterable(self._parts(samples, remaining, None))

    def all_alike(self, remaining: Iterator[object]) -> bool:
        """Whether all samples are taken to be like those of an earlier step: take them, then call :meth:`end`."""
        known = self._known
        if known is None or known.steps <= 0:
            return False
        known.steps -= 1
        self._each, self._most, self._since = known.each, length_hint(remaining), perf_counter_ns()
        return True

    def first_decoded(self, samples: Iterator[_T], remaining: Iterator[object]) -> Iterator[_T]:
        """The same, up to where the others are taken to be like these: take them from ``samples``, then call :meth:`end`.

        Even what ``chain`` costs is more than 2 % of half a microsecond.
        """
        return chain.from_iterable(self._parts(samples, remaining, self._known))

    def end(self, left: int) -> None:
        """Record those that were taken after :meth:`all_alike` or :meth:`first_decoded`; so many of all are left."""
        if self._each:
            self._decode += self._each * (self._most - left)
            self._decoded += self._most - left
            self._flush(perf_counter_ns())

    def _parts(
        self, samples: Iterator[_T], remaining: Iterator[object], known: ShortSamples | None
    ) -> Iterator[Iterable[_T]]:
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
                stride = min(_FASTER * stride, most)
                if known is not None and seen >= _SEEN and took < _TRIVIAL * seen:
                    known.each, known.steps = max(1, took // seen), _STEPS
                    self._each, self._most = known.each, length_hint(remaining)
                    self._since = self._since or end
                    return
        finally:
            if not self._each:
                self._flush(perf_counter_ns())

    def transforming(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The same function; its calls for samples that are measured are recorded."""

        def timed(sample: Any) -> Any:
            if not self._measured:
                return function(sample)
            begin = perf_counter_ns()
            made = function(sample)
            self._add(Stage.TRANSFORM, begin, perf_counter_ns())
            return made

        return timed

    def _add(self, stage: Stage, begin: int, end: int) -> None:
        """Sum up a piece of work, or record a long one by itself."""
        took = end - begin
        self._took += took
        if took >= _LONG and self._weight == 1:
            self._flush(begin)
            self._recorder.add(stage, begin, end, 1)
            return
        if self._since and end - self._since > _SUMMED:
            self._flush(begin)
        self._since = self._since or begin
        if stage is Stage.DECODE:
            self._decode += took * self._weight
            self._decoded += self._weight
        else:
            self._transform += took * self._weight
            self._transformed += self._weight

    def _flush(self, now: int) -> None:
        """Record what was summed up, in the time that has passed since."""
        begin = self._since
        if self._decode:
            end = min(begin + self._decode, now)
            self._recorder.add(Stage.DECODE, begin, end, self._decoded)
            begin = end
        if self._transform:
            self._recorder.add(Stage.TRANSFORM, begin, min(begin + self._transform, now), self._transformed)
        self._decode = self._decoded = self._transform = self._transformed = self._since = 0
        self._recorder.look(now)


class StretchClock:
    """Records the making of samples that are decoded and transformed in one go, with nothing else in between.

    The time of a stretch of them is measured as a whole, and divided as that of some of its samples is: one of 16, of
    samples that take less than 100 µs one of 64. A stretch takes 10 ms, or is a sample of 1 ms or more.

    Args:
        recorder: of this process.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._decode = self._transform = 0

    def made(
        self,
        samples: Iterator[_T],
        remaining: Iterator[object],
        apply: Callable[[Iterator[_T]], Iterator[_S]] | None = None,
    ) -> Iterator[_S]:
        """Samples, or what is made of them. Taking each is recorded as its decoding, and the rest as its transforming.

        Args:
            samples: each is made when it is asked for.
            remaining: an iterator whose length hint is the number of samples not yet taken.
            apply: makes something of each of some samples; ``None``: they are not transformed.
        """
        return chain.from_iterable(self._parts(samples, remaining, apply))

    def _parts(
        self,
        samples: Iterator[_T],
        remaining: Iterator[object],
        apply: Callable[[Iterator[_T]], Iterator[_S]] | None,
    ) -> Iterator[Iterator[_S]]:
        stride, left = 1, length_hint(remaining)
        begin = since = perf_counter_ns()
        try:
            while (sample := next(samples, self)) is not self:
                decoded = end = perf_counter_ns()
                one: Iterator[Any] = iter((sample,))
                del sample
                yield one if apply is None else apply(one)
                if apply is not None:
                    end = perf_counter_ns()
                self._decode += decoded - begin
                self._transform += end - decoded
                if stride > 1:
                    # No Python code is added for each of these: work on pictures empties the processor's caches, so that
                    # even a function that only calls another takes long.
                    some: Iterator[Any] = islice(samples, stride - 1)
                    yield some if apply is None else apply(some)
                took = end - begin
                stride = min(_FASTER * stride, next((most for below, most in _OF_MANY if took < below), 1))
                begin = perf_counter_ns()
                if begin - since > _SUMMED or took >= _ALONE:
                    now_left = length_hint(remaining)
                    self._flush(since, begin - since, left - now_left)
                    since, left = begin, now_left
        except BaseException:  # a sample could not be made, and what happened since is not known
            self._flush(since, self._decode + self._transform, left - length_hint(remaining))
            raise
        self._flush(since, perf_counter_ns() - since, left - length_hint(remaining))

    def _flush(self, since: int, took: int, samples: int) -> None:
        """Record a stretch."""
        measured = self._decode + self._transform
        if not measured:
            return
        between = since + took * self._decode // measured
        self._recorder.add(Stage.DECODE, since, between, samples)
        if self._transform:
            self._recorder.add(Stage.TRANSFORM, between, since + took, samples)
        self._decode = self._transform = 0
        self._recorder.look(since + took)
