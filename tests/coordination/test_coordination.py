"""What a worker has of a run: splits, commits, checkpoints, replays; and errors that name both sides."""

from __future__ import annotations

import contextlib
import itertools
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from simulation import Faults, World

from lease_clock import HOUR, LeaseClock
from patience import PATIENCE
from stoker.coordination import (
    CommitRefusedError,
    Coordination,
    CoordinationSettings,
    CoordinationStore,
    EngineError,
    LeasedSplit,
    LeaseLostError,
    RankTakenError,
    Replay,
    StaleCheckpointError,
    StalledError,
    WaitTimeoutError,
    WorkerState,
    client,
    open_store,
)
from stoker.coordination.run import RunRecords
from stoker.errors import ConfigError, StateError
from support import run_script

QUICK = CoordinationSettings(lease=HOUR, heartbeat=0.1, split=0.1, largest=50)
OWNED = QUICK._replace(threshold=0.2, grid=10)
KIND = Faults(0, 0.001, 0, 0, 0, 0, 0, 0, 0, 0)


class Flaky:
    """An engine that can be cut off.

    Attributes:
        down: whether it is.
        locked: whether it answers reads alone.
        returns: after how many calls in vain it is there again; ``None``: when the test says so.
        happened: what did, in order.
    """

    def __init__(self, inner: CoordinationStore) -> None:
        self.url = inner.url
        self._inner = inner
        self.down = self.locked = False
        self.returns: int | None = None
        self.happened: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name != "close" and (self.down or (self.locked and name not in ("get", "scan"))):
            if self.returns is not None:
                self.returns -= 1
                if self.returns == 0:
                    self.happened.append("it is back")
                    self.down = False
            raise EngineError(f"the engine {self.url} is {'cut off' if self.down else 'locked'}")
        return getattr(self._inner, name)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory://{tmp_path}"


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> LeaseClock:
    return LeaseClock(monkeypatch)


def make(url: str | CoordinationStore, rank: int = 0, **more: Any) -> Coordination:
    told: dict[str, Any] = {"world_size": 2, "positions": 1000, "settings": QUICK, "commit_every": 0.1}
    told["identity"] = {"fingerprint": "abc", "seed": 1}
    return Coordination(url, "run", rank=rank, **{**told, **more})


@contextmanager
def with_split(url: str, **more: Any) -> Iterator[tuple[Flaky, Coordination, LeasedSplit]]:
    """Rank 0 with the first split that it leased, and its engine."""
    store = Flaky(open_store(url))
    with make(store, 0, **more) as run:
        run.begin_epoch(0)
        split = run.next_split(timeout=PATIENCE)
        assert split is not None
        yield store, run, split


def work(run: Coordination, step: int = 10, stop_after: int = 10**9, timeout: float | None = PATIENCE) -> list[int]:
    """Deliver and commit until the epoch is over, or so many samples are done."""
    done: list[int] = []
    while len(done) < stop_after and (split := run.next_split(timeout=timeout)) is not None:
        for first in range(split.begin, split.end, step):
            last = min(first + step, split.end)
            split.deliver(last)
            done += range(first, last)
            split.commit(last)
    return done


def together(runs: list[Coordination], epoch: int, **more: Any) -> list[list[int]]:
    """All workers of a run, each in a thread."""
    results: list[list[int]] = [[] for _ in runs]
    failures: list[BaseException] = []

    def one(number: int, run: Coordination) -> None:
        try:
            run.begin_epoch(epoch)
            results[number] = work(run, **more)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=item, daemon=True) for item in enumerate(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if failures:
        raise failures[0]
    return results


def test_each_epoch_is_delivered_once_by_all_workers_together(url: str) -> None:
    with make(url, 0) as one, make(url, 1) as other:
        for epoch in range(3):
            parts = together([one, other], epoch)
            assert sorted(parts[0] + parts[1]) == list(range(1000))
            assert one.progress().finished
            assert one.progress().exposed == 0


def test_a_worker_that_joins_late_finds_what_is_left(url: str) -> None:
    with make(url, 0) as one:
        one.begin_epoch(0)
        first = work(one, stop_after=300)
        one.flush(PATIENCE)
        assert one.progress().committed >= 300
        with make(url, 1) as other:
            other.begin_epoch(0)
            one.leave()
            rest = work(other)
            other.wait_finished(PATIENCE)
    assert sorted(first + rest) == list(range(1000))


def test_lanes_of_ranks_are_read_by_their_ranks_and_shared_when_they_are_late(url: str) -> None:
    """Parts of 500 and 500; the second worker comes only when the first has nothing left but the other's part."""
    with make(url, 0, positions=[500, 500], settings=OWNED) as one:
        one.begin_epoch(0)
        mine = work(one, stop_after=500)
        assert sorted(mine) == list(range(500))
        assert len(work(one)) == 500  # its owner is not there
        assert one.progress().finished


def test_whole_splits_are_moved_from_a_rank_that_is_late(url: str) -> None:
    with (
        make(url, 0, positions=[500, 500], settings=OWNED) as one,
        make(url, 1, positions=[500, 500], settings=OWNED) as late,
    ):
        late.begin_epoch(0)
        first = work(late, stop_after=10)
        one.begin_epoch(0)
        done = work(one, stop_after=700)  # which comes from nowhere else, as long as the late one does nothing
        assert set(range(500)) <= set(done)
        rest: list[int] = []
        thread = threading.Thread(target=lambda: rest.extend(work(late)), daemon=True)
        thread.start()
        done += work(one)
        thread.join(PATIENCE)
        assert sorted(first + done + rest) == list(range(1000))
        moved = {position // 10 for position in done if position >= 500}
        assert len(moved) >= 20
        assert {position // 10 for position in first + rest}.isdisjoint(moved), "a split was moved in part"


def test_a_split_that_always_fails_stalls_the_epoch_by_name(url: str) -> None:
    with make(url, settings=QUICK._replace(attempts=3)) as run:
        run.begin_epoch(0)
        done: list[int] = []

        def all_but_77() -> None:
            while (split := run.next_split(timeout=PATIENCE)) is not None:
                if split.begin <= 77 < split.end:
                    split.give_up("sample 77 is bad")
                    continue
                split.deliver(split.end)
                done.extend(range(split.begin, split.end))
                split.commit()

        with pytest.raises(StalledError, match=r"after 3 attempts each were set aside \[\d+, \d+\): sample 77 is bad"):
            all_but_77()
        progress = run.progress()
        assert not progress.finished
        assert progress.stalled[0][0] <= 77 < progress.stalled[0][1]
        assert progress.committed == len(done) == 1000 - progress.aside
        with pytest.raises(StalledError):
            run.wait_finished(PATIENCE)


def test_a_lost_workers_lane_goes_to_its_heir_from_the_last_commit(url: str, clock: LeaseClock) -> None:
    lost = Flaky(open_store(url))
    told: dict[str, Any] = {"world_size": 3, "settings": QUICK._replace(largest=10), "positions": 3_000_000}
    with make(lost, 0, **told) as one:
        one.begin_epoch(0)
        done = work(one, stop_after=50)
        one.flush(PATIENCE)
        begun: list[int] = []

        def heir() -> None:
            with make(url, 1, **told, takes_over=lambda lane: lane == 0) as other:
                other.begin_epoch(0)
                while not any(begin < 1_000_000 for begin in begun):
                    split = other.next_split()
                    assert split is not None
                    time.sleep(0.005)
                    split.deliver(split.end)
                    begun.append(split.begin)
                    split.commit()

        thread = threading.Thread(target=heir, daemon=True)
        thread.start()
        _until(lambda: len(begun) > 20)
        assert min(begun) >= 1_000_000, "the heir did not wait until the lane's worker was lost"
        lost.down = True
        with clock.passing():
            thread.join(PATIENCE)
        lost.down = False
        assert begun[-1] == len(done) == done[-1] + 1


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.002)


# -- simulated time ----------------------------------------------------------------------------------------------------


class Killing(World):
    """A world of three with a lane each, whose first dies.

    Attributes:
        killed: when.
        taken: when its lane went on, by which rank, from which position; and the first that was not committed.
    """

    def __init__(self, seed: int, killed: float, settings: CoordinationSettings) -> None:
        super().__init__(seed, KIND, workers=3, samples=2400, lanes=3, settings=settings, restarts=False)
        self.heirs = True
        self.killed = killed
        self.taken: tuple[float, int, int, int] | None = None
        self.at(killed, "kill", None)

    def _on_start(self, what: tuple[int, float]) -> None:
        super()._on_start((what[0], 40.0))

    def _on_kill(self, _: None) -> None:
        for process in self.processes:
            process.alive = process.rank != 0

    def _apply(self, operation: Any) -> Any:
        answer = super()._apply(operation)
        if self.time > self.killed and self.taken is None:
            out = [split for split in self.lane(0).splits if split.cursor < split.end]
            first = min([(split.begin, split.rank) for split in out], default=(0, 0))
            if first[1]:
                self.taken = (self.time, first[1], first[0], self.checker.committed.index(None))
        return answer


@pytest.mark.parametrize("seed", range(10))
def test_an_heir_goes_on_a_lease_and_a_half_after_a_worker_died_at_most(seed: int) -> None:
    """An eighth each to see its last sign of life, to see that none follows, to tell the heir, and for the heir's split."""
    settings = CoordinationSettings(lease=1.5, heartbeat=1.0, split=0.1, largest=10)
    world = Killing(seed, 2.0 + seed * 0.1, settings)
    world.run(limit=100.0)
    assert world.taken is not None
    moment, rank, begin, committed = world.taken
    assert (rank, begin) == (1, committed)
    assert moment - world.killed <= 1.5 * settings.lease


class Unlike(World):
    """A world of eight of whom one is four times slower than the others."""

    def _on_start(self, what: tuple[int, float]) -> None:
        super()._on_start((what[0], 10.0 if what[0] == 1 else 40.0))


@pytest.mark.parametrize("seed", range(4))
def test_unlike_workers_need_far_less_time_than_round_robin(seed: int) -> None:
    samples = 4000
    settings = CoordinationSettings(lease=6.0, heartbeat=2.0, split=0.5, largest=64)
    history = Unlike(seed, KIND, workers=8, samples=samples, lanes=8, settings=settings).run(limit=100.0)
    fixed = samples / 8 / 10.0  # of the slow one's part
    assert history.delivered == samples
    assert history.seconds < 0.4 * fixed


# -- leases ------------------------------------------------------------------------------------------------------------


def test_an_engine_that_is_away_for_a_while_stops_delivery_and_loses_nothing(url: str, clock: LeaseClock) -> None:
    with with_split(url, patience=100 * HOUR) as (store, run, split):
        store.returns = 5
        store.down = True
        clock.skip(HOUR)
        split.deliver(split.end)  # waits
        store.happened.append("delivered")
        assert store.happened == ["it is back", "delivered"]
        split.commit()
        assert len(work(run)) == 1000 - len(split)
        assert run.progress().exposed == 0


def test_a_worker_whose_lease_was_lost_hears_of_it_before_it_delivers(url: str, clock: LeaseClock) -> None:
    with with_split(url, patience=1e9) as (store, one, split):
        split.deliver(split.begin + 3)
        store.down = True
        with make(url, 1) as other:
            other.begin_epoch(0)
            with clock.passing():
                rest = work(other, timeout=None)
            assert sorted(rest) == list(range(1000))
            store.down = False
            with pytest.raises(LeaseLostError, match=r"LeasedSplit\(\d+, \d+\) is lost"):
                split.deliver(split.end)
            with pytest.raises(LeaseLostError):
                split.commit(split.begin + 3)
            assert one.next_split(timeout=PATIENCE) is None
            progress = one.progress()
            assert progress.finished
            # It had told nobody of the three.
            assert 0 <= progress.again <= 3 <= progress.exposed


def test_waiting_for_commits_says_which_were_refused(url: str, clock: LeaseClock) -> None:
    with with_split(url, patience=1e9) as (store, one, split):
        store.down = True
        split.deliver(split.begin + 3)
        split.commit(split.begin + 3)  # which can not be told to the engine
        with make(url, 1) as other:
            other.begin_epoch(0)
            with clock.passing():
                assert sorted(work(other, timeout=None)) == list(range(1000))
        store.down = False
        with pytest.raises(CommitRefusedError, match="rank 1 has committed") as refused:
            one.flush()
        assert [(range_.begin, range_.end) for range_ in refused.value.refused] == [(split.begin, split.begin + 3)]
        assert (split.lost, split.committed) == (True, split.begin)
        one.flush()  # told once


def test_a_refusal_is_of_a_delivery_and_not_of_the_same_positions_under_a_later_lease(
    url: str, clock: LeaseClock
) -> None:
    with with_split(url, patience=1e9) as (store, one, split):
        store.down = True
        split.deliver(split.begin + 3)
        split.commit(split.begin + 3)  # which can not be told to the engine
        with make(url, 1) as other:
            other.begin_epoch(0)
            records = RunRecords(open_store(url), "run")
            with clock.passing():
                _until(lambda: all(one.rank for lane in records.lanes(other.epoch) for one in lane.splits))
            store.down = False
            _until(lambda: split.lost)
            again = one.next_split(timeout=PATIENCE)
            assert again is not None
            assert (again.begin, again.token > split.token) == (split.begin, True)
            again.deliver(again.begin + 1)
            again.commit(again.begin + 1)
            with pytest.raises(CommitRefusedError, match="delivered to this worker again since") as refused:
                one.flush()
            begin = split.begin
            assert [one[:2] + one[3:] for one in refused.value.refused] == [
                (begin, begin + 1, split.token, True),
                (begin + 1, begin + 3, split.token, False),
            ]
            assert [p for p in range(1000) if refused.value.covers(p)] == [begin + 1, begin + 2]
            assert again.committed == begin + 1


def test_an_engine_that_stays_away_is_an_error_that_names_it(url: str, clock: LeaseClock) -> None:
    store = Flaky(open_store(url))
    run = make(store, patience=60.0)
    run.begin_epoch(0)
    store.down = True
    with clock.passing(10.0):
        with pytest.raises(EngineError, match=r"memory://.* is cut off"):
            work(run, timeout=None)
        with pytest.raises(EngineError, match=r"memory://.* is cut off"):
            run.flush()
        with pytest.raises(EngineError, match=r"memory://.* is cut off"):
            run.leave(timeout=0.05)
    store.down = False
    run.leave()


class CutOffAtCommit(Flaky):
    """An engine that is cut off by the next write of a lane, which it has done, or not.

    Attributes:
        done: whether it does it; ``None``: it is not cut off.
    """

    done: bool | None = None

    def swap(self, key: str, value: bytes, version: int) -> int | None:
        if "/lane/" in key and self.done is not None:
            if self.done:
                assert self._inner.swap(key, value, version) is not None
            self.done, self.down = None, True
        found: int | None = self.__getattr__("swap")(key, value, version)
        return found


@pytest.mark.parametrize("done", [True, False])
def test_a_commit_without_an_answer_names_what_is_in_doubt_and_the_next_one_knows(
    url: str, clock: LeaseClock, done: bool
) -> None:
    store = CutOffAtCommit(open_store(url))
    with make(store, patience=60.0) as run:
        run.begin_epoch(0)
        split = run.next_split(timeout=PATIENCE)
        assert split is not None
        end = split.begin + 5
        split.deliver(end)
        store.done = done
        split.commit(end)
        said = rf"cut off.* Whether \[{split.begin}, {end}\) are committed is not known"
        with clock.passing(10.0), pytest.raises(EngineError, match=said):
            run.flush()
        assert split.committed == split.begin
        store.down = False
        while True:
            with contextlib.suppress(EngineError):  # as long as the worker has not asked again
                run.flush(timeout=PATIENCE)
                break
            time.sleep(0.002)
        assert (split.committed, run.progress().committed) == (end, 5)


@pytest.mark.parametrize("call", ["next_split", "flush", "leave", "begin_epoch", "open"])
def test_the_patience_that_is_reported_is_that_which_was_given_and_waited_for(
    url: str, monkeypatch: pytest.MonkeyPatch, clock: LeaseClock, call: str
) -> None:
    """The engine is like an SQLite file that is locked: reads go on, and writes do not; who opens it gets nothing."""
    began = clock.monotonic()
    store = Flaky(open_store(url))
    run = make(store, patience=20.0)
    split: Any = None
    if call != "begin_epoch":
        run.begin_epoch(0)
        split = run.next_split(timeout=PATIENCE)
        split.deliver(split.end)
    store.locked = True

    def flush() -> None:
        split.commit()
        run.flush()

    def next_split() -> None:
        taken = split
        while True:  # what is leased ahead comes all the same
            taken.commit()
            found = run.next_split()
            assert found is not None
            found.deliver(found.end)
            taken = found

    def open_one() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(client, "open_store", lambda url, *, timeout: store.create("a", b""))
            make(url, patience=20.0)

    calls: dict[str, Callable[[], object]] = {
        "flush": flush,
        "next_split": next_split,
        "leave": lambda: run.leave(timeout=0.2),
        "begin_epoch": lambda: run.begin_epoch(0),
        "open": open_one,
    }
    # Who leaves waits for a thread, by the machine's clock.
    allowed, passing = (0.2, contextlib.nullcontext()) if call == "leave" else (20.0, clock.passing(3.0))
    with passing, pytest.raises(EngineError) as caught:
        calls[call]()
    waited = clock.monotonic() - began
    said = re.search(
        rf"has not answered for ([0-9.]+) s, more than patience={allowed:g} allows.*locked", str(caught.value)
    )
    assert said is not None, caught.value
    assert allowed <= float(said[1]) <= waited + 0.1  # it is rounded
    store.locked = False
    run.leave()


@pytest.mark.processes
def test_a_process_that_forgets_to_leave_ends_all_the_same(tmp_path: Path) -> None:
    script = tmp_path / "forgets.py"
    script.write_text(
        "from stoker.coordination import Coordination, CoordinationSettings\n"
        f"run = Coordination('sqlite://{tmp_path}/run.db', 'run', rank=0, world_size=1, positions=10**9)\n"
        "run.begin_epoch(0)\n"
        f"assert run.next_split(timeout={PATIENCE}) is not None\n"
        "print('1')\n"
    )
    assert run_script([script]) == [1]


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_a_rank_that_is_taken_is_an_error_that_names_both(url: str) -> None:
    with make(url, 0) as run, make(url, 0) as second:
        run.begin_epoch(0)
        with pytest.raises(RankTakenError, match=r"rank 0 is taken: process \d+ on .* and process \d+ on .* wants it"):
            second.begin_epoch(0)
        assert len(work(run)) == 1000


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"identity": {"fingerprint": "abc", "seed": 2}}, "seed is 1 in the run and 2 in this worker"),
        ({"identity": {"fingerprint": "x", "seed": 1}}, "fingerprint is 'abc' in the run and 'x' in this worker"),
        ({"world_size": 4}, "world_size is 2 in the run and 4 in this worker"),
        ({"positions": 999}, "positions is 1000 in the run and 999 in this worker"),
        (
            {"settings": QUICK._replace(lease=9.0)},
            r"settings.lease is 3600.0 in the run and 9.0 in this worker",
        ),
        ({"settings": OWNED, "positions": [400, 600]}, "settings.threshold is None in the run and 0.2 in this worker"),
    ],
)
def test_a_configuration_that_contradicts_its_peers_is_an_error_that_names_both(
    url: str, more: dict[str, Any], said: str
) -> None:
    with make(url, 0) as run:
        run.begin_epoch(0)
        with make(url, 1, **more) as other, pytest.raises(ConfigError, match=said):
            other.begin_epoch(0)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"rank": 2}, "rank 2 is unknown in run 'run': its world has 2 workers, 0 to 1"),
        ({"rank": -1}, "rank -1 is unknown"),
        ({"world_size": 0}, "world_size must be at least 1"),
        ({"positions": -5}, "must not be negative"),
        ({"positions": [1, 2, 3], "settings": OWNED}, "each of 2 ranks needs a part of its own: positions has 3 parts"),
        ({"positions": [1, 2]}, "parts of ranks need settings.threshold"),
        (
            {"settings": QUICK._replace(lease=0.12)},
            "a lease .0.12 s. must be at least one and a half heartbeats .0.1 s.",
        ),
        ({"settings": QUICK._replace(attempts=0)}, "settings.attempts must be at least 1, got 0"),
        ({"settings": QUICK._replace(largest=0)}, "settings.largest must be at least 1, got 0"),
        ({"settings": QUICK._replace(split=0.0)}, "settings.split must be positive"),
    ],
)
def test_arguments_that_make_no_sense_are_errors(url: str, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make(url, **more)


def test_only_what_was_delivered_can_be_committed_and_only_forwards(url: str) -> None:
    with make(url) as run:
        with pytest.raises(ConfigError, match="call begin_epoch first"):
            run.next_split()
        run.begin_epoch(0)
        split = run.next_split(timeout=PATIENCE)
        assert split is not None
        with pytest.raises(ConfigError, match="only what was delivered"):
            split.commit()
        split.deliver(split.begin + 2)
        with pytest.raises(ConfigError, match="does not follow"):
            split.deliver(split.begin + 1)
        with pytest.raises(ConfigError, match="does not follow"):
            split.deliver(split.end + 1)


def test_an_epoch_does_not_begin_before_the_last_one_is_over(url: str) -> None:
    with make(url, 0) as one, make(url, 1) as other:
        one.begin_epoch(0)
        with pytest.raises(ConfigError, match="1000 samples of epoch 0 of run 'run' are not committed yet"):
            other.begin_epoch(1)


def test_waiting_ends_in_time(url: str) -> None:
    all_in_one = QUICK._replace(smallest=20)
    with make(url, 0, positions=20, settings=all_in_one, lanes=1) as one:
        one.begin_epoch(0)
        split = one.next_split(timeout=PATIENCE)
        assert split is not None
        assert len(split) == 20
        other = make(url, 1, positions=20, settings=all_in_one, lanes=1)
        other.begin_epoch(0)
        with pytest.raises(WaitTimeoutError, match=r"a split did not come within 0\.05 s"):
            other.next_split(timeout=0.05)
        with pytest.raises(WaitTimeoutError, match=r"the end of the epoch did not come within 0\.05 s"):
            other.wait_finished(0.05)
        other.leave()


# -- checkpoints and replay --------------------------------------------------------------------------------------------


def test_a_run_continues_from_a_checkpoint_where_its_engine_is_lost(url: str) -> None:
    with make(url, 0) as one:
        one.begin_epoch(0)
        before = work(one, stop_after=400)
        one.flush(PATIENCE)
        checkpoint = one.checkpoint()
        work(one, stop_after=200)
    with make(url + "-new", 0) as again, make(url + "-new", 1) as other:
        again.restore(checkpoint)
        other.restore(checkpoint)  # all ask for it; it is done once
        parts = together([again, other], 0)
        after = Counter(parts[0] + parts[1])
        assert max(after.values()) == 1
        committed = 1000 - sum(end - begin for begin, end in checkpoint["left"])
        assert len(after) == 1000 - committed
        assert set(after) | set(before) == set(range(1000))
        assert again.progress().finished


def test_a_roll_back_delivers_again_what_came_after_the_checkpoint_and_fences_what_was_out(url: str) -> None:
    with make(url, 0) as one, make(url, 1) as other:
        one.begin_epoch(0)
        work(one, stop_after=300)
        one.flush(PATIENCE)
        checkpoint = one.checkpoint()
        out = one.next_split(timeout=PATIENCE)
        assert out is not None
        work(one, stop_after=200)
        one.flush(PATIENCE)
        with pytest.raises(
            StaleCheckpointError, match=r"stale: .* incarnation 1 .* engine is at incarnation 1 with \d+"
        ):
            other.restore(checkpoint)
        other.restore(checkpoint, rollback=True)
        other.begin_epoch(0)
        assert other.epoch.incarnation == 2
        parts = [work(other, stop_after=100)]
        _until(lambda: one.epoch.incarnation > 1)
        with pytest.raises(LeaseLostError, match="restored from a checkpoint"):
            out.deliver(out.end)
        thread = threading.Thread(target=lambda: parts.append(work(other)), daemon=True)
        thread.start()
        parts.append(work(one))
        thread.join(PATIENCE)
        left = [p for begin, end in checkpoint["left"] for p in range(begin, end)]
        assert sorted([p for part in parts for p in part]) == left
        # The assignment is that of the first incarnation up to the checkpoint, and of the second from there.
        entries = one.assignment()
        Replay(entries, 1000, 2)
        # It was done once for all who ask. Going back to the same checkpoint again is another attempt.
        one.restore(checkpoint, rollback=True)
        assert one.progress().finished
        with pytest.raises(StaleCheckpointError):
            one.restore(checkpoint, attempt=1)


def test_a_checkpoint_of_something_else_is_refused_by_name(url: str) -> None:
    with make(url, 0) as one:
        one.begin_epoch(0)
        checkpoint = one.checkpoint()
    with make(url + "2", 0, identity={"fingerprint": "abc", "seed": 5}) as other:
        with pytest.raises(StateError, match="seed is 1 in the checkpoint and 5 in this run"):
            other.restore(checkpoint)
        with pytest.raises(StateError, match="not a checkpoint"):
            other.restore({"version": 1})
        with pytest.raises(StateError, match="format 9"):
            other.restore({**checkpoint, "version": 9})


def test_a_recorded_assignment_runs_again(url: str) -> None:
    told: dict[str, Any] = {"positions": 4000, "lanes": 1, "settings": QUICK._replace(largest=10)}
    with make(url, 0, **told) as one, make(url, 1, **told) as other:
        one.begin_epoch(0)
        other.begin_epoch(0)
        parts: list[list[int]] = [[], []]
        for part, run in itertools.islice(itertools.cycle(zip(parts, (one, other), strict=True)), 320):
            part += work(run, stop_after=1)  # a split each, in turn
        threads = [
            threading.Thread(target=lambda k=k, run=run: parts[k].extend(work(run)), daemon=True)
            for k, run in enumerate((one, other))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        entries = one.assignment()
        assert one.checkpoint()["left"] == []
    replay = Replay(entries, 4000, 2)
    for rank, part in enumerate(parts):
        assert [p for begin, end in replay.splits(rank) for p in range(begin, end)] == part
    # So long a log does not fit the lanes' records; none of it is lost.
    assert len(entries) > 60


def test_the_health_of_all_ranks_is_known(url: str) -> None:
    with make(url, 0, world_size=3) as one, make(url, 1, world_size=3) as other:
        one.begin_epoch(0)
        other.begin_epoch(0)
        split = one.next_split(timeout=PATIENCE)
        assert split is not None
        wanted = [WorkerState.ACTIVE, WorkerState.ACTIVE, WorkerState.UNKNOWN]
        _until(lambda: [h.state for h in one.health()] == wanted)
        health = one.health()
        assert health[2].process is None
        assert health[0].process == health[1].process
        assert health[0].splits >= 1


def test_the_records_of_an_epoch_that_is_over_can_be_removed(url: str) -> None:
    store = open_store(url)
    with make(url) as run:
        run.begin_epoch(0)
        with pytest.raises(StateError, match="is not over"):
            run.forget_epoch(0)
        work(run)
        run.begin_epoch(1)
        assert run.forget_epoch(0) > 2
        assert [key for key, _ in store.scan("run/") if "/00000000" in key] == []
        assert len(work(run)) == 1000
