"""Who is taken for lost, slow or idle, and when lanes are opened: by thresholds, and by the observer's own clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.coordination.health import Observer, WorkerState, imbalance, judge, open_lanes, split_size
from stoker.coordination.records import CoordinationSettings, Epoch, Held, Lane, Process, WorkerRecord
from stoker.coordination.rules import first_lane, leasable, lease

SETTINGS = CoordinationSettings(lease=30.0, heartbeat=5.0, slow=0.5)
PROCESS = Process("host", "boot", 1, 0, "n")
HELD = (Held(0, 1, 0),)


def _lane(begin: int, end: int, number: int = 0) -> Lane:
    return Lane(number, begin, end, begin, end, 1 << 40)


@pytest.mark.parametrize(
    ("worker", "quiet", "failed", "state"),
    [
        (None, None, False, WorkerState.UNKNOWN),
        (WorkerRecord(0, 1, 1, PROCESS, held=HELD), None, False, WorkerState.UNKNOWN),
        (WorkerRecord(0, 1, 1, PROCESS, left=True), 0.0, False, WorkerState.UNKNOWN),
        (WorkerRecord(0, 1, 1, PROCESS, held=HELD), 15.0, False, WorkerState.UNKNOWN),
        (WorkerRecord(0, 1, 1, PROCESS, held=HELD), 30.0, True, WorkerState.FAILED),
        (WorkerRecord(0, 1, 1, PROCESS), 1.0, False, WorkerState.IDLE),
        (WorkerRecord(0, 1, 1, PROCESS, held=HELD, rate=49.0), 1.0, False, WorkerState.SLOW),
        (WorkerRecord(0, 1, 1, PROCESS, held=HELD, rate=50.0), 1.0, False, WorkerState.ACTIVE),
        # Nothing was measured yet: that is no sign of slowness, nor of failure.
        (WorkerRecord(0, 1, 1, PROCESS, held=HELD, rate=0.0), 1.0, False, WorkerState.ACTIVE),
    ],
)
def test_states_follow_the_thresholds(
    worker: WorkerRecord | None, quiet: float | None, failed: bool, state: WorkerState
) -> None:
    assert judge(worker, quiet, failed, 100.0, SETTINGS) is state


def test_a_counter_that_stands_still_for_a_lease_fails_and_comes_back_when_it_moves() -> None:
    observer = Observer()
    observer.see(0, (1, 5), 100.0, 101.0)
    observer.see(0, (1, 5), 130.9, 131.0)
    assert not observer.failed(0, SETTINGS)  # seen since 101, asked at 130.9
    observer.see(0, (1, 5), 131.0, 140.0)
    assert observer.failed(0, SETTINGS)
    observer.see(0, (1, 6), 141.0, 142.0)
    assert not observer.failed(0, SETTINGS)


def test_an_answer_that_comes_late_does_not_make_a_silence_longer() -> None:
    observer = Observer()
    observer.see(0, (1, 5), 0.0, 1.0)
    observer.see(0, (1, 5), 2.0, 500.0)  # asked at 2: the observer itself was stopped
    assert not observer.failed(0, SETTINGS)


def test_who_renews_but_never_commits_fails_after_the_stall_time_if_there_is_one() -> None:
    observer, stalling = Observer(), SETTINGS._replace(stall=60.0)
    for second in range(0, 100, 5):
        observer.see(0, (1, second), float(second), float(second), (1, 7))
        observer.see(1, (1, second), float(second), float(second), (0, 7))
    assert observer.failed(0, stalling)
    assert not observer.failed(0, SETTINGS)
    assert not observer.failed(1, stalling)  # it holds nothing: there is nothing to wait for


def test_imbalance_is_the_coefficient_of_variation() -> None:
    assert imbalance([]) == imbalance([0.0, 0.0]) == imbalance([3.0, 3.0]) == 0
    assert imbalance([2.0, 4.0]) == pytest.approx(1 / 3)


def _workers(rates: list[float]) -> dict[int, WorkerRecord]:
    return {rank: WorkerRecord(rank, 1, 1, PROCESS, rate=rate) for rank, rate in enumerate(rates)}


def test_lanes_of_ranks_are_open_only_when_finish_times_vary_too_much() -> None:
    lanes = [_lane(0, 100, 0), _lane(100, 200, 1), _lane(200, 300, 2), _lane(300, 400, 3)]
    alive = frozenset(range(4))
    owned = SETTINGS._replace(threshold=0.2)
    variation, found = open_lanes(lanes, _workers([10, 10, 10, 9]), alive, owned)
    assert 0 < variation < 0.2
    assert found == {}
    variation, found = open_lanes(lanes, _workers([10, 10, 10, 2]), alive, owned)
    assert variation > 0.2
    assert found == {3: 100}
    _, found = open_lanes(lanes, _workers([10, 10, 10, 10]), frozenset([0, 1, 3]), owned)
    assert found == {2: 100}  # its owner is not there
    _, found = open_lanes(lanes, _workers([10, 10, 10, 2]), alive, SETTINGS)
    assert found == {0: 100, 1: 100, 2: 100, 3: 100}  # lanes that are nobody's are always open


@given(
    total=st.integers(1, 10**12),
    taken=st.integers(0, 10**12),
    rate=st.just(0.0) | st.floats(0.1, 1e9),
    share=st.floats(1e-6, 1.0),
    multiple=st.sampled_from([1, 7, 64]),
    back=st.booleans(),
    grid=st.none() | st.sampled_from([1, 10, 1000]),
)
def test_a_split_is_of_some_size_whatever_is_left(
    total: int, taken: int, rate: float, share: float, multiple: int, back: bool, grid: int | None
) -> None:
    settings = SETTINGS._replace(multiple=multiple, threshold=None if grid is None else 0.2, grid=grid or 1)
    lane = first_lane(Epoch(0, 1, 1, (5, 5 + total), None, (), settings), 0)
    lane = lane._replace(front=lane.front + min(taken, total))
    size = split_size(lane, rate=rate, share=share, settings=settings, from_back=back)
    assert size >= 1
    found = lease(lane, 0, 1, 0, size, from_back=back)
    if found is None:
        assert leasable(lane) == 0
        return
    split = found[1]
    if grid is not None:
        bounds = split.begin if back else split.end
        assert (bounds - lane.begin) % grid == 0 or bounds in (lane.front, lane.back)
    elif multiple > 1:
        bounds = split.begin if back else split.end
        assert (bounds - lane.begin) % multiple == 0 or bounds in (lane.front, lane.back)


def test_splits_shrink_towards_the_end_and_the_faster_get_more() -> None:
    lane, sizes = _lane(0, 100_000), []
    while found := lease(lane, 0, 1, 0, split_size(lane, rate=2000.0, share=0.25, settings=SETTINGS, from_back=False)):
        lane, split = found
        sizes.append(split.end - split.begin)
    assert sizes[:-1] == sorted(sizes[:-1], reverse=True)
    assert sizes[0] == 12_500
    assert sizes[-2] == 1000
    fast = split_size(_lane(0, 10**6), rate=2000.0, share=0.5, settings=SETTINGS, from_back=False)
    slow = split_size(_lane(0, 10**6), rate=500.0, share=0.5, settings=SETTINGS, from_back=False)
    assert fast == 4 * slow == 20_000
