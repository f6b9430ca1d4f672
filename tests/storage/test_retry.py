"""The retries under a simulated clock: nothing here sleeps."""

from __future__ import annotations

import logging
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import AccessDeniedError, ConfigError, StorageError
from stoker.storage import RetryPolicy, open_store, retry
from stoker.storage.retry import FIRST_CONTACT, MOST_ASKED, Retries, TransientError

_POLICIES = st.builds(
    RetryPolicy,
    patience=st.floats(0, 1000),
    base_delay=st.floats(0.01, 10),
    max_delay=st.floats(0.01, 100),
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


def fail(message: str = "still failing", after: float = 0.0, *, answered: bool = True) -> TransientError:
    return TransientError(
        lambda attempts, elapsed: StorageError(f"{message} after {attempts} in {elapsed:g}"),
        after,
        answered=answered,
        what="s3://b/a: HTTP 503",
    )


class Server:
    """Fails until some time after the begin; counts how often it was asked."""

    def __init__(self, clock: Clock, until: float, **said: float | bool) -> None:
        self.clock, self.until, self.said, self.asked = clock, clock.now + until, said, 0

    def __call__(self, attempt: int) -> str:
        self.asked += 1
        if self.clock.now < self.until:
            raise fail(**self.said)  # type: ignore[arg-type]
        return "data"


def answer(retries: Retries, server: Server) -> str:
    return retries.run(server, clock=server.clock, sleep=server.clock.sleep, random=lambda: 0.5)


@given(_POLICIES, st.floats(0, 0.999999), st.floats(5, 50))
def test_a_store_that_never_recovers_is_tried_within_the_bounds(policy: RetryPolicy, luck: float, takes: float) -> None:
    clock = Clock()
    starts: list[float] = []

    def attempt(number: int) -> None:
        assert number == len(starts)
        starts.append(clock.now - 1000)
        clock.now += takes
        raise fail()

    with pytest.raises(StorageError, match="still failing after"):
        Retries(policy).run(attempt, clock=clock, sleep=clock.sleep, random=lambda: luck)
    assert all(start <= takes + policy.patience + 1e-6 for start in starts)
    assert (len(starts) == 1) == (policy.patience == 0)
    for number, seconds in enumerate(clock.slept):
        assert 0 <= seconds <= min(policy.max_delay, policy.base_delay * 2.0**number)


@pytest.mark.parametrize("seconds", [0, 3, 30, 100])
def test_a_busy_store_is_waited_for_as_long_as_the_patience(seconds: float) -> None:
    server = Server(Clock(), seconds)
    assert answer(Retries(RetryPolicy(120)), server) == "data"
    assert server.clock.now - 1000 <= seconds + 10
    with pytest.raises(StorageError, match="still failing"):
        answer(Retries(RetryPolicy(120)), Server(Clock(), 1000))


def test_a_server_that_never_answered_ends_soon_and_one_that_did_is_waited_for() -> None:
    retries = Retries(RetryPolicy(120))
    clock = Clock()
    with pytest.raises(StorageError, match="still failing"):
        answer(retries, Server(clock, 30, answered=False))
    assert clock.now - 1000 == pytest.approx(FIRST_CONTACT)
    assert answer(retries, Server(clock, 0)) == "data"
    restarted = Server(clock, 30, answered=False)  # connections are refused while it restarts
    assert answer(pickle.loads(pickle.dumps(retries)), restarted) == "data"


def test_a_refusal_ends_at_once_and_is_an_answer() -> None:
    retries, clock, calls = Retries(RetryPolicy(120)), Clock(), []

    def attempt(number: int) -> None:
        calls.append(number)
        raise AccessDeniedError("no")

    with pytest.raises(AccessDeniedError, match="no"):
        retries.run(attempt, clock=clock, sleep=clock.sleep, random=lambda: 0.5)
    assert (calls, clock.slept, retries.answered) == ([0], [], True)


def test_waits_double_up_to_their_maximum_with_full_jitter() -> None:
    policy = RetryPolicy(100, base_delay=0.5, max_delay=3.0)
    assert [policy.wait(n, 0, lambda: 0.999999) for n in (1, 2, 3, 4, 90)] == pytest.approx([0.5, 1, 2, 3, 3], rel=1e-3)
    assert policy.wait(3, 0, lambda: 0.25) == 0.5
    assert policy.wait(3, 99.9, lambda: 0.25) == pytest.approx(0.1), "the last attempt is at the end"
    assert policy.wait(3, 100, lambda: 0.25) is None


def test_a_server_is_left_alone_for_as_long_as_it_asks() -> None:
    policy = RetryPolicy(100, base_delay=1)
    assert policy.wait(1, 0, lambda: 0.5, 30) == 30.5
    assert policy.wait(1, 80, lambda: 0.5, 301) == 301.5
    assert policy.wait(1, 0, lambda: 0.5, MOST_ASKED + 1) is None
    assert RetryPolicy(0).wait(1, 0, lambda: 0.5, 1) is None


def test_waiting_is_said_once_in_some_seconds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "_said", -float("inf"))
    caplog.set_level(logging.WARNING)
    clock, retries = Clock(), Retries(RetryPolicy(120))
    assert answer(retries, Server(clock, 0.2)) == "data"
    assert not caplog.records, "a short one is nothing to say"
    server = Server(clock, 60)
    assert answer(retries, server) == "data"
    assert 5 <= len(caplog.records) <= 7
    assert server.asked > len(caplog.records)
    assert "s3://b/a: HTTP 503; trying again for up to 120 s (" in caplog.text


@pytest.mark.parametrize("settings", [{"patience": -1}, {"base_delay": -1}, {"max_delay": float("nan")}])
def test_policies_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        RetryPolicy(**settings)


def test_the_patience_of_a_store_is_an_option() -> None:
    store = open_store("s3://b", {"patience": "7"}, retry=RetryPolicy(100, base_delay=0.5))
    assert store._retries.policy == RetryPolicy(7, base_delay=0.5)
