"""Shares that change over training: exact counts, whatever an epoch's borders cut."""

from __future__ import annotations

import contextlib
import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ConfigError
from stoker.order.mixture.mixing import EpochMixture, Mixing
from stoker.order.mixture.schedule import CountingOrigin, EpochPhase, Schedule, Timeline

NAMES = ["web", "books", "code"]
WEIGHT = st.sampled_from([0, 0.1, 0.3, 1, 2.5])


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    gaps = draw(st.lists(st.integers(1, 90), max_size=3))
    times = [sum(gaps[:count]) for count in range(len(gaps) + 1)]
    weights = [dict(zip(NAMES, draw(st.tuples(WEIGHT, WEIGHT, WEIGHT).filter(any)), strict=True)) for _ in times]
    return Schedule.parse(dict(zip(times, weights, strict=True)), draw(st.integers(0, 5)))


def pieces_of(stretches: list[EpochPhase]) -> EpochMixture:
    return EpochMixture(
        [stretch.first for stretch in stretches],
        [stretch.offset for stretch in stretches],
        [Mixing(stretch.counts, stretch.begun, window=8, key=stretch.start) for stretch in stretches],
    )


@given(schedule=schedules(), epoch_size=st.integers(1, 60))
def test_epochs_read_on_where_the_one_before_left_off(schedule: Schedule, epoch_size: int) -> None:
    timeline = schedule.timeline(NAMES, epoch_size)
    epochs = 2 + -(-timeline.starts[-1] // epoch_size)
    codes = np.concatenate([pieces_of(timeline.phases(epoch)).codes(np.arange(epoch_size)) for epoch in range(epochs)])
    # Up to the last whole period, each stream was read from its beginning without a gap.
    end = timeline.starts[-1] + epoch_size
    begun = np.zeros(3, dtype=np.int64)
    for start, counts in zip(timeline.starts, timeline.counts, strict=True):
        last = start + sum(counts)
        begun += counts
        streams = codes[:last] >> 42
        numbers = codes[:last] & (1 << 42) - 1
        for stream in range(3):
            assert np.array_equal(np.sort(numbers[streams == stream]), np.arange(begun[stream]))
    assert last == end


@given(schedule=schedules(), epoch_size=st.integers(1, 200))
def test_a_phase_has_its_weights_shares_but_for_rounding(schedule: Schedule, epoch_size: int) -> None:
    if schedule.interpolate:
        return
    timeline = schedule.timeline(NAMES, epoch_size)
    assert [time for time, _ in schedule.points] == list(timeline.starts)
    for (_, weights), counts in zip(schedule.points, timeline.counts, strict=True):
        whole = sum(weight for _, weight in weights)
        for (_, weight), count in zip(weights, counts, strict=True):
            assert abs(count - sum(counts) * weight / whole) < 1 + 1e-9


def test_interpolation_goes_in_equal_steps_from_point_to_point() -> None:
    schedule = Schedule.parse({0: {"web": 1, "books": 0}, 400: {"web": 0.2, "books": 0.8}}, interpolate=4)
    timeline = schedule.timeline(["web", "books"], 1000)
    assert timeline.starts == (0, 100, 200, 300, 400)
    assert timeline.counts == ((100, 0), (80, 20), (60, 40), (40, 60), (200, 800))


def test_steps_are_no_shorter_than_a_sample() -> None:
    schedule = Schedule.parse({0: {"a": 1}, 100: {"a": 2}}, interpolate=1000)
    assert len(schedule.timeline(["a"], 10).starts) == 101


def test_times_may_be_counts_and_epochs() -> None:
    weights = {"a": 1.0}
    schedule = Schedule.parse({0: weights, "1k": weights, "1.5ep": weights, "10 EP": weights})
    assert schedule.timeline(["a"], 2000).starts == (0, 1000, 3000, 20_000)
    assert schedule.timeline(["a"], 1000).starts == (0, 1000, 1500, 10_000)


def test_an_epoch_has_the_stretches_that_fall_into_it() -> None:
    schedule = Schedule.parse({0: {"a": 1, "b": 1}, 150: {"a": 3, "b": 1}})
    timeline = schedule.timeline(["a", "b"], 100)
    assert timeline.phases(0) == [EpochPhase(0, 0, (75, 75), (0, 0), 0)]
    assert timeline.phases(1) == [
        EpochPhase(0, 100, (75, 75), (0, 0), 0),
        EpochPhase(50, 0, (75, 25), (75, 75), 150),
    ]
    assert timeline.phases(2) == [
        EpochPhase(0, 50, (75, 25), (75, 75), 150),
        EpochPhase(50, 0, (75, 25), (150, 100), 250),
    ]


def test_a_far_epoch_is_as_cheap_as_the_first() -> None:
    far = 10**9
    stretch = Timeline.constant([600, 400]).phases(far)
    assert stretch == [EpochPhase(0, 0, (600, 400), (600 * far, 400 * far), 1000 * far)]


@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=4).filter(any), epoch=st.integers(0, 50))
def test_without_a_schedule_an_epoch_is_one_stretch(counts: list[int], epoch: int) -> None:
    begun = tuple(epoch * count for count in counts)
    assert Timeline.constant(counts).phases(epoch) == [EpochPhase(0, 0, tuple(counts), begun, epoch * sum(counts))]


@given(
    schedule=schedules(),
    epoch=st.integers(0, 9),
    position=st.integers(0, 19),
    samples=st.integers(0, 300),
    consumed=st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
)
def test_a_run_with_changed_streams_continues_from_what_each_has_had(
    schedule: Schedule, epoch: int, position: int, samples: int, consumed: tuple[int, int, int]
) -> None:
    origin = CountingOrigin(epoch, position, samples, consumed)
    timeline = schedule.timeline(NAMES, 20, origin)
    first = timeline.phases(epoch)
    if position < 20:
        assert (first[0].first, first[0].offset, first[0].begun, first[0].start) == (position, 0, consumed, samples)
    codes = np.concatenate(
        [
            pieces_of(timeline.phases(number)).codes(np.arange(position if number == epoch else 0, 20))
            for number in range(epoch, epoch + 30)
        ]
    )
    whole = timeline.starts[-1] + 20 - samples
    for stream in range(3):
        numbers = np.sort(codes[:whole][codes[:whole] >> 42 == stream] & (1 << 42) - 1)
        had = sum(counts[stream] for counts in timeline.counts)
        assert np.array_equal(numbers, consumed[stream] + np.arange(had))
    # The same weights hold as if nothing had changed.
    starts = schedule.timeline(NAMES, 20).starts
    assert timeline.starts[1:] == tuple(start for start in starts if start > samples)


@given(
    schedule=schedules(),
    most=st.dictionaries(st.sampled_from(NAMES), st.integers(0, 150), min_size=1),
    samples=st.integers(0, 200),
    consumed=st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
)
def test_a_stream_that_has_had_the_most_of_its_samples_leaves_its_share_to_the_others(
    schedule: Schedule, most: dict[str, int], samples: int, consumed: tuple[int, int, int]
) -> None:
    limited = Schedule(schedule.points, schedule.interpolate, tuple(most.items()))
    assert Schedule.from_dict(json.loads(json.dumps(limited.as_dict()))) == limited
    origin = CountingOrigin(samples // 20, samples % 20, samples, consumed)
    free = schedule.timeline(NAMES, 20, origin)
    if any(all(not weight or name in most for name, weight in weights) for _, weights in schedule.points):
        # There may be a time from which no stream is left.
        with contextlib.suppress(ConfigError):
            limited.timeline(NAMES, 20, origin)
        return
    timeline = limited.timeline(NAMES, 20, origin)
    had = list(consumed)
    for start, counts in zip(timeline.starts, timeline.counts, strict=True):
        wanted = free.counts[max(number for number, one in enumerate(free.starts) if one <= start)]
        ended = [name in most and had[number] >= most[name] - 1 for number, name in enumerate(NAMES)]
        whole = sum(share for share, end in zip(wanted, ended, strict=True) if not end)
        for number, (count, share) in enumerate(zip(counts, wanted, strict=True)):
            if not ended[number] and whole and sum(wanted) == 20 and sum(counts) == 20 and not schedule.interpolate:
                assert abs(count - 20 * share / whole) <= 2
            had[number] += count
    for number, name in enumerate(NAMES):
        if name in most:
            assert had[number] <= max(most[name], consumed[number])
            assert not timeline.counts[-1][number]


def test_what_came_before_the_origin_is_not_known() -> None:
    timeline = Timeline.constant([5, 5], CountingOrigin(3, 4, 34, (17, 17)))
    assert timeline.samples_before(3, 4) == 34
    assert timeline.samples_before(4, 2) == 42
    with pytest.raises(ConfigError, match="position 3 of epoch 3 comes before position 4 of epoch 3"):
        timeline.samples_before(3, 3)
    with pytest.raises(ConfigError, match="epoch 2 comes before"):
        timeline.phases(2)


@given(schedule=schedules())
def test_a_schedule_goes_through_json(schedule: Schedule) -> None:
    assert Schedule.from_dict(json.loads(json.dumps(schedule.as_dict()))) == schedule


@given(size=st.integers(1, 10**12), weights=st.tuples(WEIGHT, WEIGHT, WEIGHT).filter(any))
def test_counts_are_exact_whatever_the_size(size: int, weights: tuple[float, float, float]) -> None:
    timeline = Schedule.parse({0: dict(zip(NAMES, weights, strict=True))}).timeline(NAMES, size)
    exact = [Fraction(str(weight)) for weight in weights]
    assert sum(timeline.counts[0]) == size
    for count, weight in zip(timeline.counts[0], exact, strict=True):
        assert abs(count - size * weight / sum(exact)) < 1


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ({}, "a schedule needs at least the weights that hold from 0 on"),
        ({5: {"a": 1, "b": 1}}, "the first point of a schedule must be at 0, got 5"),
        ({0: {"a": 1, "b": -1}}, "weight of stream 'b' from 0 on must be a number, not negative, got -1"),
        ({0: {"a": float("nan"), "b": 1}}, "must be a number, got nan"),
        ({0: {"a": "much", "b": 1}}, "got 'much'"),
        ({0: {"a": 0, "b": 0}}, "weights from 0 on must not all be 0"),
        ({0: {"a": 1}}, "weights from 0 on lack 'b': give every stream a weight, 0 for none"),
        ({0: {"a": 1, "b": 1, "c": 1}}, "weights from 0 on are for 'c' too, but the streams are 'a', 'b'"),
        ({0: {"a": 1, "b": 1}, "x": {"a": 1, "b": 1}}, "'x' is not a count"),
        ({0: {"a": 1, "b": 1}, "xep": {"a": 1, "b": 1}}, "'xep' is not a number of epochs"),
        ({0: {"a": 1, "b": 1}, "1/0ep": {"a": 1, "b": 1}}, "'1/0ep' is not a number of epochs"),
        ({0: {"a": 1, "b": 1}, "1ep": {"a": 1, "b": 1}, 90: {"a": 1, "b": 1}}, "90 does not come after '1ep'"),
    ],
)
def test_nonsense_is_refused(points: dict[int | str, dict[str, float]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Schedule.parse(points).timeline(["a", "b"], 100)


def test_interpolation_in_no_number_of_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="interpolate must be at least 0, got -1"):
        Schedule.parse({0: {"a": 1}}, interpolate=-1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((0,), ((0, 0),), 0), "can not be mixed in an epoch of 0 samples"),
        (((0,), ((1, 1),), 3), r"phases of \[3\] samples have \[2\]"),
        (((0,), ((1, 1),), 2, CountingOrigin(position=3)), "position 3 is not in an epoch of 2"),
    ],
)
def test_a_timeline_that_contradicts_itself_is_refused(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Timeline(*arguments)  # type: ignore[arg-type]
