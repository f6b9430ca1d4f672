"""What a worker has of a run: splits, commits, checkpoints, replays; and errors that name both sides."""

from __future__ import annotations

import contextlib
import itertools
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

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
    open_store,
)
from stoker.errors import ConfigError, StateError
from support import run_script

QUICK = CoordinationSettings(lease=2.0, heartbeat=0.5, split=0.1, largest=50)
OWNED = QUICK._replace(threshold=0.2, grid=10)


class Flaky:
    """An engine that can be cut off."""

    def __init__(self, inner: CoordinationStore) -> None:
        self.url = inner.url
        self._inner = inner
        self.down = False

    def __getattr__(self, name: str) -> Any:
        if self.down and name != "close":
            time.sleep(0.05)
            raise EngineError(f"the engine {self.url} is cut off")
        return getattr(self._inner, name)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"memory://{tmp_path}"


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
        split = run.next_split(timeout=10)
        assert split is not None
        yield store, run, split


def work(run: Coordination, step: int = 10, stop_after: int = 10**9) -> list[int]:
    """Deliver and commit until the epoch is over, or so many samples are done."""
    done: list[int] = []
    while len(done) < stop_after and (split := run.next_split(timeout=30)) is not None:
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

    threads = [threading.Thread(target=one, args=item) for item in enumerate(runs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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
        one.flush(10)
        assert one.progress().committed >= 300
        with make(url, 1) as other:
            other.begin_epoch(0)
            one.leave()
            rest = work(other)
            other.wait_finished(10)
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
        split = late.next_split(timeout=10)
        assert split is not None
        time.sleep(0.3)
        split.deliver(split.end)
        split.commit()  # 10 samples in 0.3 s
        one.begin_epoch(0)
        taken: list[int] = []
        moved = threading.Event()

        def slowly() -> None:
            while (part := late.next_split(timeout=30)) is not None:
                time.sleep(0.2)
                part.deliver(part.end)
                taken.extend(range(part.begin, part.end))
                part.commit()
            moved.set()

        thread = threading.Thread(target=slowly)
        thread.start()
        done = work(one)
        thread.join()
        assert set(range(500)) <= set(done)
        assert len(done) > 700
        assert sorted(done + taken + list(range(split.begin, split.end))) == list(range(1000))
        assert all((p - 500) % 10 or p in done or p in taken or p == 500 for p in range(500, 1000))


def test_a_split_that_always_fails_stalls_the_epoch_by_name(url: str) -> None:
    with make(url, settings=QUICK._replace(attempts=3)) as run:
        run.begin_epoch(0)
        done: list[int] = []

        def all_but_77() -> None:
            while (split := run.next_split(timeout=30)) is not None:
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
            run.wait_finished(5)


def test_a_lost_workers_lane_goes_to_its_heir_from_the_last_commit(url: str) -> None:
    """Within two heartbeats, if a lease is one and a half."""
    settings = QUICK._replace(lease=1.5, heartbeat=1.0, largest=10)
    lost = Flaky(open_store(url))
    told: dict[str, Any] = {"world_size": 3, "settings": settings, "positions": 30_000}
    with make(lost, 0, **told) as one:
        one.begin_epoch(0)
        done = work(one, stop_after=50)
        one.flush(10)
        begun: list[float] = []

        def heir() -> None:
            with make(url, 1, **told, takes_over=lambda lane: lane == 0) as other:
                other.begin_epoch(0)
                while not begun and (split := other.next_split(timeout=30)) is not None:
                    time.sleep(0.02)
                    split.deliver(split.end)
                    if split.begin < 10_000:
                        begun.extend([time.monotonic(), split.begin])
                    split.commit()

        thread = threading.Thread(target=heir)
        thread.start()
        time.sleep(1.0)
        assert not begun
        away = time.monotonic()
        lost.down = True
        thread.join()
        lost.down = False
        assert begun[1] == len(done) == done[-1] + 1
        assert begun[0] - away < 10  # no more than two heartbeats, if the machine has nothing else to do
        print(f"taken over after {(begun[0] - away) / settings.heartbeat:.2f} heartbeats")


# -- leases ------------------------------------------------------------------------------------------------------------


def test_an_engine_that_is_away_for_a_while_stops_delivery_and_loses_nothing(url: str) -> None:
    with with_split(url, patience=60) as (store, run, split):
        store.down = True
        time.sleep(QUICK.lease)
        back = threading.Timer(0.5, lambda: setattr(store, "down", False))
        back.start()
        begun = time.monotonic()
        split.deliver(split.end)  # waits
        assert time.monotonic() - begun > 0.3
        split.commit()
        assert len(work(run)) == 1000 - len(split)
        assert run.progress().exposed == 0


def test_a_worker_whose_lease_was_lost_hears_of_it_before_it_delivers(url: str) -> None:
    with with_split(url) as (store, one, split):
        split.deliver(split.begin + 3)
        store.down = True
        with make(url, 1) as other:
            other.begin_epoch(0)
            rest = work(other)
            assert sorted(rest) == list(range(1000))
            store.down = False
            with pytest.raises(LeaseLostError, match=r"LeasedSplit\(\d+, \d+\) is lost"):
                split.deliver(split.end)
            with pytest.raises(LeaseLostError):
                split.commit(split.begin + 3)
            assert one.next_split(timeout=10) is None
            progress = one.progress()
            assert progress.finished
            # It had told nobody of the three.
            assert 0 <= progress.again <= 3 <= progress.exposed


def test_waiting_for_commits_says_which_were_refused(url: str) -> None:
    with with_split(url) as (store, one, split):
        store.down = True
        split.deliver(split.begin + 3)
        split.commit(split.begin + 3)  # which can not be told to the engine
        with make(url, 1) as other:
            other.begin_epoch(0)
            assert sorted(work(other)) == list(range(1000))
        store.down = False
        with pytest.raises(CommitRefusedError, match="rank 1 has committed") as refused:
            one.flush()
        assert [(range_.begin, range_.end) for range_ in refused.value.refused] == [(split.begin, split.begin + 3)]
        assert (split.lost, split.committed) == (True, split.begin)
        one.flush()  # told once


def test_an_engine_that_stays_away_is_an_error_that_names_it(url: str) -> None:
    store = Flaky(open_store(url))
    run = make(store, patience=0.5)
    run.begin_epoch(0)
    store.down = True
    begun = time.monotonic()
    with pytest.raises(EngineError, match=r"memory://.* is cut off"):
        work(run)
    with pytest.raises(EngineError, match=r"memory://.* is cut off"):
        run.flush()
    with pytest.raises(EngineError, match=r"memory://.* is cut off"):
        run.leave(timeout=0.5)
    assert time.monotonic() - begun < 30
    store.down = False  # so that the thread ends


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
def test_a_commit_without_an_answer_names_what_is_in_doubt_and_the_next_one_knows(url: str, done: bool) -> None:
    store = CutOffAtCommit(open_store(url))
    with make(store, patience=0.3) as run:
        run.begin_epoch(0)
        split = run.next_split(timeout=10)
        assert split is not None
        end = split.begin + 5
        split.deliver(end)
        store.done = done
        split.commit(end)
        with pytest.raises(
            EngineError, match=rf"cut off.* Whether \[{split.begin}, {end}\) are committed is not known"
        ):
            run.flush()
        assert split.committed == split.begin
        store.down = False
        while True:
            with contextlib.suppress(EngineError):  # as long as the worker has not asked again
                run.flush(timeout=30)
                break
            time.sleep(0.05)
        assert (split.committed, run.progress().committed) == (end, 5)


@pytest.mark.parametrize("call", ["next_split", "flush", "leave", "begin_epoch", "open"])
def test_the_patience_that_is_reported_is_that_which_was_given_and_waited_for(tmp_path: Path, call: str) -> None:
    """SQLite's file is locked: reads go on, and writes do not; for who opens it, nothing does."""
    run = Coordination(
        f"sqlite://{tmp_path}/run.db", "run", rank=0, world_size=1, positions=1000, settings=QUICK, patience=1.5
    )
    split: Any = None
    if call != "begin_epoch":
        run.begin_epoch(0)
        split = run.next_split(timeout=10)
        split.deliver(split.end)
    if call == "open":
        run.leave()
    holder = sqlite3.connect(tmp_path / "run.db", isolation_level=None)
    if call == "open":
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    begun = time.monotonic()

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

    calls: dict[str, Callable[[], object]] = {
        "flush": flush,
        "next_split": next_split,
        "leave": lambda: run.leave(timeout=1.5),
        "begin_epoch": lambda: run.begin_epoch(0),
        "open": lambda: Coordination(
            f"sqlite://{tmp_path}/run.db", "run", rank=0, world_size=1, positions=1000, patience=1.5
        ),
    }
    with pytest.raises(EngineError) as caught:
        calls[call]()
    took = time.monotonic() - begun
    said = re.search(r"has not answered for ([0-9.]+) s, and 1\.5 s were allowed.*locked", str(caught.value))
    assert said is not None, caught.value
    assert 1.5 <= float(said[1]) <= took + 0.1
    holder.close()


def test_a_process_that_forgets_to_leave_ends_all_the_same(tmp_path: Path) -> None:
    script = tmp_path / "forgets.py"
    script.write_text(
        "from stoker.coordination import Coordination, CoordinationSettings\n"
        f"run = Coordination('sqlite://{tmp_path}/run.db', 'run', rank=0, world_size=1, positions=10**9)\n"
        "run.begin_epoch(0)\n"
        "assert run.next_split(timeout=30) is not None\n"
        "print('1')\n"
    )
    assert run_script([script], timeout=60) == [1]


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
            r"settings.lease is 2.0 in the run and 9.0 in this worker",
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
        ({"settings": QUICK._replace(lease=0.6)}, "a lease .0.6 s. must be at least one and a half heartbeats .0.5 s."),
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
        split = run.next_split(timeout=10)
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
        split = one.next_split(timeout=10)
        assert split is not None
        assert len(split) == 20
        other = make(url, 1, positions=20, settings=all_in_one, lanes=1)
        other.begin_epoch(0)
        with pytest.raises(WaitTimeoutError, match=r"a split did not come within 0\.3 s"):
            other.next_split(timeout=0.3)
        with pytest.raises(WaitTimeoutError, match=r"the end of the epoch did not come within 0\.3 s"):
            other.wait_finished(0.3)
        other.leave()


# -- checkpoints and replay --------------------------------------------------------------------------------------------


def test_a_run_continues_from_a_checkpoint_where_its_engine_is_lost(url: str) -> None:
    with make(url, 0) as one:
        one.begin_epoch(0)
        before = work(one, stop_after=400)
        one.flush(10)
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
        one.flush(10)
        checkpoint = one.checkpoint()
        out = one.next_split(timeout=10)
        assert out is not None
        work(one, stop_after=200)
        one.flush(10)
        with pytest.raises(
            StaleCheckpointError, match=r"stale: .* incarnation 1 .* engine is at incarnation 1 with \d+"
        ):
            other.restore(checkpoint)
        other.restore(checkpoint, rollback=True)
        other.begin_epoch(0)
        assert other.epoch.incarnation == 2
        parts = [work(other, stop_after=100)]
        deadline = time.monotonic() + 10
        while one.epoch.incarnation == 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(LeaseLostError, match="restored from a checkpoint"):
            out.deliver(out.end)
        thread = threading.Thread(target=lambda: parts.append(work(other)))
        thread.start()
        parts.append(work(one))
        thread.join()
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
            threading.Thread(target=lambda k=k, run=run: parts[k].extend(work(run)))
            for k, run in enumerate((one, other))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
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
        split = one.next_split(timeout=10)
        assert split is not None
        deadline = time.monotonic() + 20
        wanted = [WorkerState.ACTIVE, WorkerState.ACTIVE, WorkerState.UNKNOWN]
        while [h.state for h in one.health()] != wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        health = one.health()
        assert [h.state for h in health] == wanted
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
