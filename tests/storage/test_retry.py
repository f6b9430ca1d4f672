"""The retry policy under a simulated clock: nothing here sleeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ConfigError, StorageError
from stoker.storage import RetryPolicy
from stoker.storage.retry import TransientError, run

_POLICIES = st.builds(
    RetryPolicy,
    attempts=st.integers(1, 60),
    base_delay=st.floats(0, 10),
    max_delay=st.floats(0, 100),
    deadline=st.none() | st.floats(0, 1000),
)


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def fail(message: str = "still failing") -> TransientError:
    return TransientError(lambda attempts, elapsed: StorageError(f"{message} after {attempts} in {elapsed:g}"))


@given(_POLICIES, st.floats(0, 0.999999), st.floats(0, 50))
def test_a_store_that_never_recovers_is_tried_within_the_bounds(policy: RetryPolicy, luck: float, takes: float) -> None:
    clock = Clock()
    starts: list[float] = []

    def attempt(number: int) -> None:
        assert number == len(starts)
        starts.append(clock.now - 1000)
        clock.now += takes
        raise fail()

    with pytest.raises(StorageError, match="still failing after"):
        run(attempt, policy, clock=clock, sleep=clock.sleep, random=lambda: luck)
    assert len(starts) <= policy.attempts
    if policy.deadline is not None:
        assert all(start < policy.deadline for start in starts[1:])
    else:
        assert len(starts) == policy.attempts
    for number, seconds in enumerate(clock.slept):
        assert 0 <= seconds <= min(policy.max_delay, policy.base_delay * 2.0**number)


@given(st.integers(0, 5), st.integers(1, 6))
def test_the_first_success_ends_it(failures: int, attempts: int) -> None:
    clock = Clock()

    def attempt(number: int) -> str:
        if number < failures:
            raise fail()
        return f"done at {number}"

    policy = RetryPolicy(attempts=attempts, deadline=None)
    if failures < attempts:
        assert run(attempt, policy, clock=clock, sleep=clock.sleep, random=lambda: 0.5) == f"done at {failures}"
        assert len(clock.slept) == failures
    else:
        with pytest.raises(StorageError, match=f"after {attempts} in"):
            run(attempt, policy, clock=clock, sleep=clock.sleep, random=lambda: 0.5)


def test_waits_double_up_to_their_maximum_with_full_jitter() -> None:
    policy = RetryPolicy(attempts=100, base_delay=0.5, max_delay=3.0, deadline=None)
    assert [policy.wait(n, 0, lambda: 0.999999) for n in (1, 2, 3, 4, 90)] == pytest.approx([0.5, 1, 2, 3, 3], rel=1e-3)
    assert policy.wait(3, 0, lambda: 0.25) == 0.5
    assert policy.wait(100, 0, lambda: 0.25) is None


def test_what_can_not_succeed_later_is_not_tried_again() -> None:
    clock = Clock()
    calls = []

    def attempt(number: int) -> None:
        calls.append(number)
        raise StorageError("no")

    with pytest.raises(StorageError, match="no"):
        run(attempt, RetryPolicy(), clock=clock, sleep=clock.sleep, random=lambda: 0.5)
    assert calls == [0]
    assert clock.slept == []


@pytest.mark.parametrize(
    "settings", [{"attempts": 0}, {"base_delay": -1}, {"max_delay": float("nan")}, {"deadline": -1}]
)
def test_policies_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        RetryPolicy(**settings)  # type: ignore[arg-type]
