"""Spans of samples that are made one by one: long ones each, short ones summed up, of which some are measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from operator import length_hint
from time import perf_counter_ns
from typing import Any, Final, TypeVar

from stoker.concurrency.spans.recorder import Recorder, Stage
from stoker.concurrency.spans.thread_times import ReadTimes

_T = TypeVar("_T")

_LONG: Final = 500_000
"""Nanoseconds of a sample that is recorded by itself."""
_SHORT: Final = ((10_000, 64), (100_000, 16), (_LONG, 4))
"""Nanoseconds of a sample below which only some are measured, and one of how many at least: measuring takes 2 to 5 µs."""

_ALONE: Final = 1_000_000
_OF_MANY: Final = ((100_000, 64), (_ALONE, 16))
"""The same of samples that are made in one go: what those that are not measured take is known, too."""

_FASTER: Final = 4
"""One of so many times as many is measured after each, up to that: the first ones of a step may be slow."""

_TRIVIAL: Final = 4_000
"""Nanoseconds of a sample below which, after so many of them, the rest of a step of reading is taken to be like them."""
_SEEN: Final = 64
_STEPS: Final = 15
"""Steps of reading after such a one in which none is measured: in steps of 3000 tokens' samples that would take 3 %."""

_SUMMED: Final = 10_000_000
"""Nanoseconds after which a sum is recorded."""


class SampleClock:
    """Records the making of samples that are decoded and transformed when they are asked for.

    Short ones are summed up, over 10 ms at most: one span a stage, which lie one after the other from where the sum began. Of
    samples that take less than 500 µs one of 4 is measured, of those below 100 µs one of 16, of those below 10 µs one of 64,
    and counts for all of these; where samples take less than 4 µs and are not transformed, only some of the first ones of a
    step of reading, and none in the 15 steps after it. Of samples that are made in one go, the time of all is known, and is
    divided as that of those that are measured is: one of 16, of those below 100 µs one of 64.

    ``recorder``: of this process. ``known``: of the dataset, for :meth:`first_decoded`. ``together``: whether they are made
    in one go, with nothing else in between.
    """

    def __init__(self, recorder: Recorder, known: ReadTimes | None = None, *, together: bool = False) -> None:
        self._recorder, self._known, self._together = recorder, known, together
        self._alone = _ALONE if together else _LONG
        self._short: tuple[tuple[int, int], ...] = _OF_MANY if together else _SHORT
        # Sums in ns, when they begin (0: nothing is summed up), and how many samples were left then.
        self._decode = self._transform = self._since = self._left = 0
        self._each = self._most = 0  # ns of each of the samples that are taken to be alike, and how many come at most

    def made(
        self,
        samples: Iterator[Any],
        remaining: Iterator[object],
        apply: Callable[[Iterator[Any]], Iterator[Any]] | None = None,
    ) -> Iterator[Any]:
        """Samples, or what is made of them. Taking each is recorded as its decoding, and the rest as its transforming.

        ``samples``: each is made when it is asked for. ``remaining``: an iterator whose length hint is the number of samples
        not yet taken. ``apply``: makes something of each of some samples; ``None``: they are not transformed.
        """
        # A generator in between would cost more than 2 % of a small sample.
        return chain.from_iterable(self._parts(samples, remaining, apply, None))

    def all_alike(self, remaining: Iterator[object]) -> bool:
        """Whether all samples are taken to be like those of an earlier step: take them, then call :meth:`end`."""
        known = self._known
        if known is None or known.steps <= 0:
            return False
        known.steps -= 1
        self._each, self._since = known.each, perf_counter_ns()
        self._most = self._left = length_hint(remaining)
        return True

    def first_decoded(self, samples: Iterator[_T], remaining: Iterator[object]) -> Iterator[_T]:
        """The same, up to where the others are taken to be like these: take them from ``samples``, then call :meth:`end`.

        Even what ``chain`` costs is more than 2 % of half a microsecond.
        """
        return chain.from_iterable(self._parts(samples, remaining, None, self._known))

    def end(self, left: int) -> None:
        """Record those that were taken after :meth:`all_alike` or :meth:`first_decoded`; so many of all are left."""
        if self._each:
            self._decode += self._each * (self._most - left)
            self._flush(perf_counter_ns(), left)

    def _parts(
        self,
        samples: Iterator[Any],
        remaining: Iterator[object],
        apply: Callable[[Iterator[Any]], Iterator[Any]] | None,
        known: ReadTimes | None,
    ) -> Iterator[Iterable[Any]]:
        stride, seen, took_all, begin = 1, 0, 0, perf_counter_ns()
        try:
            while (sample := next(samples, self)) is not self:
                decoded = end = perf_counter_ns()
                if apply is not None:
                    sample = next(apply(iter((sample,))))
                    end = perf_counter_ns()
                left, took = length_hint(remaining), end - begin
                weight = min(stride, 1 + left)
                alone = took >= self._alone and weight == 1
                if alone:
                    self._flush(begin, left + 1)
                if not self._since:
                    self._since, self._left = begin, left + 1
                self._decode += (decoded - begin) * weight
                self._transform += (end - decoded) * weight
                if alone:
                    self._flush(end, left)
                yield (sample,)
                del sample
                if weight > 1:
                    # No Python code is added for each of these: work on pictures empties the processor's caches, so that
                    # even a function that only calls another takes long.
                    some = islice(samples, weight - 1)
                    yield some if apply is None else apply(some)
                stride = min(_FASTER * stride, next((most for below, most in self._short if took < below), 1))
                seen, took_all = seen + weight, took_all + took * weight
                if known is not None and seen >= _SEEN and took_all < _TRIVIAL * seen:
                    known.each, known.steps = max(1, took_all // seen), _STEPS
                    self._each, self._most = known.each, length_hint(remaining)
                    return
                begin = perf_counter_ns()
                if self._since and begin - self._since > _SUMMED:
                    self._flush(begin, length_hint(remaining))
        except BaseException:  # a sample could not be made, or is not asked for: what happened since is not known
            self._together = False
            raise
        finally:
            if not self._each:
                self._flush(perf_counter_ns(), length_hint(remaining))

    def _flush(self, now: int, left: int) -> None:
        """Record what was summed up in the time that has passed since; so many of all samples are left."""
        begin, measured = self._since, self._decode + self._transform
        if begin and measured:
            took = now - begin if self._together else min(measured, now - begin)
            between = begin + took * self._decode // measured
            self._recorder.add(Stage.DECODE, begin, between, self._left - left)
            if self._transform:
                self._recorder.add(Stage.TRANSFORM, between, begin + took, self._left - left)
            self._recorder.look(now)
        self._decode = self._transform = self._since = 0
