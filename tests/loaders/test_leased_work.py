"""Work that a coordinator hands out: every sample committed once, whoever fails, and the same again from a record."""

from __future__ import annotations

import gc
import json
import pickle
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lease_clock import HOUR, LeaseClock
from patience import PATIENCE
from stoker import StreamingDataset
from stoker.coordination import (
    CommitRefusedError,
    CoordinationSettings,
    EngineError,
    RankTakenError,
    StaleCheckpointError,
    StalledError,
    WorkerState,
    open_store,
)
from stoker.coordination.rules import leasable
from stoker.coordination.run import RunRecords
from stoker.errors import ConfigError, StateError, TransformError
from stoker.loaders.shard_loader import Adaptive, StreamingConfig, StreamingShardLoader
from stoker.order.partition import Elastic, Partition
from stoker.order.partition_strategies import Contiguous, HashBased, RoundRobin, Stratified
from stoker.pipeline.workers.ranges import leased as leased_module
from support import check_sample, make_dataset

QUICK = CoordinationSettings(lease=HOUR, heartbeat=0.1, split=0.05, attempts=3, grid=16)
_names = count()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> LeaseClock:
    return LeaseClock(monkeypatch)


@pytest.fixture
def engine() -> str:
    """An engine of one test, in memory."""
    return f"memory://leased{next(_names)}"


def arrays(samples: int) -> dict[str, Any]:
    return {"id": np.arange(samples), "kind": np.arange(samples) % 5}


def loader(
    engine: str, rank: int = 0, world: int = 1, samples: int = 500, adaptive: Adaptive | None = None, **config: Any
) -> StreamingShardLoader:
    transform = config.pop("transform", None)
    given = {"partition": adaptive or Adaptive(), "coordination": QUICK, "patience": 100 * HOUR, **config}
    made = StreamingConfig(world, rank, coordinator=engine, **given)
    return StreamingShardLoader(arrays(samples), made, transform=transform)


def numbers(items: Any) -> list[int]:
    return [int(number) for item in items for number in np.atleast_1d(item["id"])]


def together(loaders: list[StreamingShardLoader], seconds: Callable[[int], float] = lambda _: 0.0) -> list[list[int]]:
    """What each got, when all take samples at once; worker r takes ``seconds(r)`` a sample."""
    found: list[list[int]] = [[] for _ in loaders]
    errors: list[BaseException] = []

    def work(rank: int) -> None:
        try:
            for item in loaders[rank]:
                found[rank] += numbers([item])
                time.sleep(seconds(rank))
        except BaseException as error:  # shown by the test's thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(len(loaders))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a worker hangs"
    if errors:
        raise errors[0]
    return found


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.005)


def after_the_other(engine: str, workers: list[StreamingShardLoader]) -> list[list[int]]:
    """What each of two got: the first takes a sample, and others when the second has done all that it can have."""
    slow = numbers([workers[0].next()])
    records = RunRecords(open_store(engine), "stoker")
    epoch = records.epoch(0)
    assert epoch is not None

    def no_more() -> bool:
        lanes = records.lanes(epoch)
        splits = [split for lane in lanes for split in lane.splits if split.cursor < split.end]
        return not any(leasable(lane) for lane in lanes) and not any(split.rank for split in splits)

    fast: list[int] = []
    thread = threading.Thread(target=lambda: fast.extend(numbers(workers[1])), daemon=True)
    thread.start()
    until(no_more)
    slow += numbers(workers[0])
    thread.join(PATIENCE)
    return [slow, fast]


# -- every sample once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "base", [Elastic(), RoundRobin(), Contiguous(), HashBased(32), Stratified("kind")], ids=lambda base: str(base.name)
)
@pytest.mark.parametrize("batch_size", [None, 7])
def test_all_of_an_epoch_is_committed_once(engine: str, base: Partition, batch_size: int | None) -> None:
    workers = [
        loader(engine, rank, 4, adaptive=Adaptive(base), shuffle_seed=3, batch_size=batch_size) for rank in range(4)
    ]
    for epoch in range(2):
        found = together(workers, lambda rank: 0.0002 * (1 + rank))
        assert sorted(chain.from_iterable(found)) == list(range(500))
        progress = workers[0].progress()
        assert (progress.finished, progress.committed, progress.again) == (True, 500, 0)
        assert [worker.epoch for worker in workers] == [epoch] * 4
        for worker in workers:
            worker.reset()
    for worker in workers:
        worker.close()


def test_a_none_of_a_transform_is_a_sample_and_no_end(engine: str, tmp_path: Path) -> None:
    make_dataset(tmp_path, 100)
    dataset = StreamingDataset(local=tmp_path, transform=lambda sample: None if sample["id"] == 37 else sample)
    config = StreamingConfig(1, 0, Adaptive(), coordinator=engine, coordination=QUICK)
    with StreamingShardLoader(dataset, config) as worker:
        found = list(worker)
        assert sum(sample is None for sample in found) == 1
        assert sorted(int(sample["id"]) for sample in found if sample is not None) == [*range(37), *range(38, 100)]
        assert worker.progress().finished


def test_epochs_have_orders_of_their_own(engine: str) -> None:
    with loader(engine, shuffle_seed=1) as worker:
        assert numbers(worker) != numbers(worker)
        assert worker.epoch == 1


def test_shards_are_handed_out_like_arrays(engine: str, tmp_path: Path) -> None:
    make_dataset(tmp_path, 300)
    workers = [
        StreamingShardLoader(
            StreamingDataset(local=tmp_path, shuffle=True),
            StreamingConfig(3, rank, Adaptive(), coordinator=engine, coordination=QUICK, prefetch_buffer_size=buffer),
        )
        for rank, buffer in ((0, 0), (1, 3), (2, 128))
    ]
    found = [[check_sample(sample) for sample in worker] for worker in workers[:1]]
    assert sorted(chain.from_iterable(found)) == list(range(300))
    assert len(workers[0]) == 300
    for worker in workers:
        worker.close()


def test_a_batch_never_holds_samples_of_two_splits(engine: str) -> None:
    workers = [loader(engine, rank, 2, batch_size=8, samples=403) for rank in range(2)]
    together(workers)
    assignment = workers[0].assignment()["entries"]
    for begin, end, *_ in assignment:
        assert begin % 8 == 0 or (begin - 201) % 8 == 0  # from where a lane begins
        assert end > begin
    for worker in workers:
        worker.close()


def test_faster_workers_get_more(engine: str) -> None:
    workers = [loader(engine, rank, 2, samples=600, prefetch_buffer_size=4) for rank in range(2)]
    slow, fast = after_the_other(engine, workers)
    assert len(slow) < len(fast)
    assert sorted(slow + fast) == list(range(600))
    for worker in workers:
        worker.close()


def test_whole_splits_of_a_static_part_move_when_finish_times_differ(engine: str) -> None:
    base = Adaptive(Contiguous(), rebalance_threshold=0.1)
    workers = [loader(engine, rank, 2, samples=640, adaptive=base, prefetch_buffer_size=4) for rank in range(2)]
    slow, fast = after_the_other(engine, workers)
    assert set(range(320, 640)) <= set(fast), "a fast worker's part was moved"
    moved = sorted(set(fast) & set(range(320)))
    assert moved, "nothing was moved"
    assert len(moved) % QUICK.grid == 0
    assert sorted(slow + fast) == list(range(640))
    for worker in workers:
        worker.close()


# -- commits -----------------------------------------------------------------------------------------------------------


def test_what_is_asked_after_is_done_and_what_was_not_goes_to_others(engine: str) -> None:
    first = loader(engine, 0, 2, samples=100, prefetch_buffer_size=50)
    had = [int(first.next()["id"]) for _ in range(30)]
    first.prefetch(40)
    first.close()
    with loader(engine, 1, 2, samples=100) as second:
        rest = numbers(second)
        # The last one was delivered, and nobody asked for the next: it was not done.
        assert sorted(had[:-1] + rest) == list(range(100))
        assert second.progress().again == 1


def test_explicit_commits_alone_count(engine: str) -> None:
    first = loader(engine, 0, 2, samples=100, commit="explicit")
    had = [int(first.next()["id"]) for _ in range(10)]
    first.commit()
    had += [int(first.next()["id"]) for _ in range(5)]
    first.close()
    with loader(engine, 1, 2, samples=100, commit="explicit") as second:
        rest: list[int] = []
        while len(rest) < 90:
            rest += numbers([second.next()])
            second.commit()
        assert second.next() is None
        assert sorted(had[:10] + rest) == list(range(100))


class AMinuteLater:
    """Stands for the module ``time`` where it is asked how long the worker has waited."""

    @staticmethod
    def monotonic() -> float:
        return time.monotonic() + 60.0


def test_waiting_for_what_only_a_commit_can_bring_is_an_error(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leased_module, "time", AMinuteLater)
    with loader(engine, samples=50, commit="explicit") as worker, pytest.raises(ConfigError, match="call commit"):
        list(worker)
    with loader(engine, samples=50) as other:
        assert len(list(other)) == 50


def test_prefetching_commits_nothing(engine: str) -> None:
    with loader(engine, samples=100, prefetch_buffer_size=64) as worker:
        assert worker.prefetch(20) >= 1
        assert worker.progress().committed == 0
        assert numbers(worker) == list(range(100))


# -- failures ----------------------------------------------------------------------------------------------------------


def test_samples_that_can_not_be_read_are_tried_again_then_set_aside_and_named(engine: str) -> None:
    def transform(sample: Any) -> Any:
        if int(sample["id"]) == 37:
            raise OSError("number 37 is broken")
        return sample

    with loader(engine, samples=60, transform=transform) as worker:
        found: Counter[int] = Counter()
        errors = 0
        stalled = ""
        while not stalled:
            try:
                item = worker.next()
            except TransformError:
                errors += 1
                continue
            except StalledError as error:
                stalled = str(error)
                continue
            assert item is not None, "an epoch that lacks a sample ended as if it were whole"
            found[int(item["id"])] += 1
        assert "number 37 is broken" in stalled
        assert errors == QUICK.attempts
        assert 37 not in found
        progress = worker.progress()
        assert progress.aside + progress.committed == 60
        assert not progress.finished
        assert set(range(60)) - set(found) == {n for begin, end, _ in progress.stalled for n in range(begin, end)}


def test_a_passing_error_costs_nothing(engine: str) -> None:
    failing = {11, 12, 40}

    def transform(sample: Any) -> Any:
        number = int(sample["id"])
        if number in failing:
            failing.discard(number)
            raise OSError("not now")
        return sample

    with loader(engine, samples=60, transform=transform) as worker:
        found = []
        while True:
            try:
                item = worker.next()
            except TransformError:
                continue
            if item is None:
                break
            found += numbers([item])
        assert sorted(found) == list(range(60))
        assert not failing


def test_a_lost_lease_is_noticed_before_its_samples_are_delivered(engine: str) -> None:
    """A worker that goes on after others took its split delivers nothing more of it."""
    worker = loader(engine, 0, 2, samples=200, prefetch_buffer_size=200)
    had = numbers([worker.next() for _ in range(5)])
    assert worker.get_checkpoint().position == 5
    old = worker.get_checkpoint()
    with loader(engine, 1, 2, samples=200) as other:
        # Going back to a checkpoint takes all splits from their workers.
        had += numbers([worker.next() for _ in range(20)])
        worker.commit()
        other.restore_from_checkpoint(old, rollback=True)
        leased: Any = worker._worker.source
        until(lambda: leased._coordination.epoch.incarnation > 1)  # it has seen that
        rest = together([worker, other])
        committed = [number for entry in other.assignment()["entries"] for number in range(entry[0], entry[1])]
        assert sorted(committed) == list(range(200))
        assert sorted(had[:5] + rest[0] + rest[1]) == list(range(200))
        assert worker.get_stats().leases_lost >= 1
    worker.close()


def test_a_forgotten_worker_gives_its_work_back(engine: str) -> None:
    first = loader(engine, 0, 2, samples=100)
    had = [int(first.next()["id"]) for _ in range(10)]
    del first
    gc.collect()
    with loader(engine, 1, 2, samples=100) as second:
        assert sorted(set(had) | set(numbers(second))) == list(range(100))


@contextmanager
def standing_still(worker: StreamingShardLoader, clock: LeaseClock) -> Iterator[None]:
    """A worker's thread does nothing, while leases end."""
    leased: Any = worker._worker.source
    with leased._coordination._driver.changed, clock.passing():
        yield


def taken_over(engine: str, worker: StreamingShardLoader, clock: LeaseClock) -> list[int]:
    """What another delivers and commits of an epoch of 60, while a worker stands still for longer than a lease."""
    with standing_still(worker, clock), loader(engine, 1, 2, samples=60) as other:
        return numbers(other)


@pytest.mark.parametrize("batch_size", [None, 3])
def test_a_commit_that_was_refused_is_reported_with_who_has_what(
    engine: str, clock: LeaseClock, batch_size: int | None
) -> None:
    first = loader(engine, 0, 2, samples=60, commit="explicit", batch_size=batch_size)
    had = numbers([first.next()])
    first.commit()
    lost = numbers([first.next()])
    assert lost == list(first.last_positions())  # not shuffled: a sample's id is its position
    with standing_still(first, clock), loader(engine, 1, 2, samples=60, batch_size=batch_size) as other:
        assert sorted([*had, *numbers(other)]) == list(range(60))
    with pytest.raises(CommitRefusedError, match=r"rank 1 has committed \[\d+, \d+\).*Discard") as refused:
        first.commit()
    assert [position for one in refused.value.refused for position in range(one.begin, one.end)] == lost
    assert {owner.rank for one in refused.value.refused for owner in one.owners} == {1}
    assert [position for position in range(60) if refused.value.covers(position)] == lost
    assert pickle.loads(pickle.dumps(refused.value)).refused == refused.value.refused
    first.commit()  # told once
    stats = first.get_stats()
    assert (stats.commits_refused, stats.delivered_again, stats.leases_lost) == (1, len(lost), 1)
    assert first.next() is None
    first.close()


def test_a_commit_under_way_that_is_refused_is_reported(engine: str, clock: LeaseClock) -> None:
    """The end of the split was asked to be committed, so that the loader lets go of it, before the lease is lost."""
    first = loader(engine, 0, 2, samples=60, commit="explicit")
    lost = numbers([first.next() for _ in range(3)])  # all of the first split
    leased: Any = first._worker.source
    with leased._coordination._driver.changed:
        leased._say_done()
        assert sorted(taken_over(engine, first, clock)) == list(range(60))
    with pytest.raises(CommitRefusedError, match=r"\[0, 3\) \(rank 1 has committed") as refused:
        first.commit()
    assert [position for position in range(60) if refused.value.covers(position)] == lost
    first.close()


def test_refused_commits_in_the_background_are_counted_and_logged(
    engine: str, clock: LeaseClock, caplog: pytest.LogCaptureFixture
) -> None:
    first = loader(engine, 0, 2, samples=60)
    first.next()
    assert sorted(taken_over(engine, first, clock)) == list(range(60))
    assert first.next() is None
    assert first.get_stats().commits_refused == 1
    assert "positions [0, 1) of the epoch were delivered, not committed, and are others' now" in caplog.text
    first.close()


def out(engine: str, rank: int) -> int:
    """Samples that a rank has leased and not committed."""
    records = RunRecords(open_store(engine), "stoker")
    epoch = records.epoch(0)
    assert epoch is not None
    return sum([one.end - one.cursor for lane in records.lanes(epoch) for one in lane.splits if one.rank == rank])


def test_nothing_that_was_leased_after_a_loss_is_delivered_before_it_was_said(engine: str, clock: LeaseClock) -> None:
    first = loader(engine, 0, 2, samples=60, commit="explicit")
    lost = numbers([first.next() for _ in range(2)])
    with loader(engine, 1, 2, samples=60, commit="explicit") as other:
        with standing_still(first, clock):
            other.next()
            until(lambda: not out(engine, 0))
        for _ in range(2):  # until it is told
            with pytest.raises(ConfigError, match=r"positions \[0, 2\) were lost.*Call commit\(\)"):
                first.next()
        with pytest.raises(CommitRefusedError) as refused:
            first.commit()
        assert [position for position in range(60) if refused.value.covers(position)] == lost
        assert numbers([first.next() for _ in range(2)]) == lost  # its own again
        first.commit()
        assert [entry[:3] for entry in first.assignment()["entries"]] == [[0, 2, 0]]
    first.close()


def test_a_refusal_is_kept_until_the_engine_says_whose_the_positions_are(
    engine: str, clock: LeaseClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = loader(engine, 0, 2, samples=60, commit="explicit")
    lost = numbers([first.next()])
    assert sorted(taken_over(engine, first, clock)) == list(range(60))
    with monkeypatch.context() as patch:
        patch.setattr(RunRecords, "owners", lambda *_: raise_(EngineError("gone")))
        first._worker.source._coordination._driver._patience = 0.0  # type: ignore[attr-defined]
        with pytest.raises(EngineError):
            first.commit()
    with pytest.raises(CommitRefusedError) as refused:
        first.commit()
    assert [position for position in range(60) if refused.value.covers(position)] == lost
    first.close()


def raise_(error: Exception) -> Any:
    raise error


def test_what_was_delivered_of_a_split_that_is_given_back_is_refused(engine: str) -> None:
    def transform(sample: Any) -> Any:
        if int(sample["id"]) == 4 and not failed:
            failed.append(4)
            raise OSError("not now")
        return sample

    failed: list[int] = []
    with loader(engine, samples=60, transform=transform, commit="explicit", batch_size=2) as worker:
        had = numbers([worker.next() for _ in range(2)])
        with pytest.raises(TransformError):
            worker.next()
        with pytest.raises(CommitRefusedError) as refused:
            worker.commit()
        assert [position for position in range(60) if refused.value.covers(position)] == had == [0, 1, 2, 3]
        assert sorted(kept_of(worker, 3, set(), lambda: None)) == list(range(60))


def kept_of(
    worker: StreamingShardLoader,
    every: int,
    stops: set[int],
    stop: Callable[[], None],
    *,
    refusals: list[int] | None = None,
) -> dict[int, int]:
    """The results by position that a worker keeps which commits every few samples and is stopped after some."""
    kept: dict[int, int] = {}

    def commit() -> None:
        try:
            worker.commit()
        except CommitRefusedError as error:
            for position in [position for position in kept if error.covers(position)]:
                del kept[position]
                if refusals is not None:
                    refusals.append(position)

    for number in count(1):
        try:
            item = worker.next()
        except ConfigError:
            commit()
            continue
        if item is None:
            break
        kept.update(zip(worker.last_positions(), numbers([item]), strict=True))
        if number in stops:
            stop()
        if number % every == 0:
            commit()
    commit()
    return kept


@pytest.mark.parametrize("seed", range(6))
def test_the_results_that_are_kept_are_those_of_the_record(
    engine: str, clock: LeaseClock, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leased_module, "time", AMinuteLater)
    draw = random.Random(seed)
    batch_size = draw.choice((None, None, 3))
    often = QUICK._replace(attempts=99)  # a stop is no reason to set samples aside
    config: dict[str, Any] = {"commit": "explicit", "batch_size": batch_size, "samples": 90, "coordination": often}
    workers = [loader(engine, rank, 2, prefetch_buffer_size=draw.choice((1, 8, 64)), **config) for rank in range(2)]
    told = [(draw.randint(2, 9), {draw.randint(1, 40 // (batch_size or 1)) for _ in range(3)}) for _ in workers]
    alone = threading.Lock()
    refusals: list[int] = []
    kept: list[dict[int, int]] = [{}, {}]
    errors: list[BaseException] = []

    def stop(rank: int) -> None:
        with alone, standing_still(workers[rank], clock):
            until(lambda: not out(engine, rank))

    def work(rank: int) -> None:
        try:
            kept[rank] = kept_of(workers[rank], *told[rank], partial(stop, rank), refusals=refusals)
        except BaseException as error:  # shown by the test's thread
            errors.append(error)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    if errors:
        raise errors[0]
    assert refusals, "no stop has cost a result"
    owner = {p: entry[2] for entry in workers[0].assignment()["entries"] for p in range(entry[0], entry[1])}
    assert sorted(owner) == list(range(90))
    for rank in range(2):
        assert kept[rank] == {position: position for position, whose in owner.items() if whose == rank}
        workers[rank].close()


def test_health_is_right_after_the_end_of_an_epoch_and_in_the_next(engine: str) -> None:
    slow = QUICK._replace(heartbeat=4.0)  # mostly the epoch is over before the first renewal is due
    workers = [loader(engine, rank, 2, coordination=slow) for rank in range(2)]
    found = together(workers)
    for worker in workers:
        assert [(one.delivered, one.committed) for one in worker.health()] == [(len(had), len(had)) for had in found]
    workers[1].close()
    assert [one.committed for one in workers[0].health()] == [len(had) for had in found]
    workers[0].reset()
    workers[0].next()
    assert sum(one.committed for one in workers[0].health()) == 0
    assert workers[0].health()[1].delivered == 0
    workers[0].close()


def test_a_worker_that_falls_silent_after_the_end_of_an_epoch_is_seen_to(engine: str, clock: LeaseClock) -> None:
    workers = [loader(engine, rank, 2) for rank in range(2)]
    together(workers)
    with standing_still(workers[1], clock):
        until(lambda: workers[0].health()[1].state is WorkerState.FAILED)
    # And that it is back.
    until(lambda: [one.state for one in workers[0].health()] == [WorkerState.IDLE, WorkerState.IDLE])
    for worker in workers:
        worker.close()


# -- checkpoints and replay ----------------------------------------------------------------------------------------------


def test_a_checkpoint_is_that_of_all_workers(engine: str) -> None:
    workers = [loader(engine, rank, 3, samples=300, shuffle_seed=2) for rank in range(3)]
    had = [numbers([worker.next() for _ in range(20 * (rank + 1))]) for rank, worker in enumerate(workers)]
    for worker in workers:
        worker.commit()
    checkpoint = workers[1].get_checkpoint()
    assert checkpoint.position == 120 == sum(end - begin for begin, end in checkpoint.processed)
    for worker in workers:
        worker.close()
    # Another engine, which knows nothing.
    with loader(f"{engine}-other", 0, 3, samples=300, shuffle_seed=2) as fresh:
        fresh.restore_from_checkpoint(checkpoint.as_dict())
        assert sorted(chain(*had, numbers(fresh))) == list(range(300))


def test_a_stale_checkpoint_is_refused_unless_commits_are_to_be_undone(engine: str) -> None:
    with loader(engine, samples=100) as worker:
        old = worker.get_checkpoint()
        had = numbers([worker.next() for _ in range(40)])
        worker.commit()
        with pytest.raises(StaleCheckpointError, match=r"0 samples committed; the engine.*40"):
            worker.restore_from_checkpoint(old)
        assert sorted(had + numbers(worker)) == list(range(100))
        worker.restore_from_checkpoint(old, rollback=True)
        assert sorted(numbers(worker)) == list(range(100))


def test_checkpoints_of_other_runs_are_refused(engine: str) -> None:
    with loader(engine, samples=100, shuffle_seed=1) as worker:
        worker.next()
        checkpoint = worker.get_checkpoint()
    for name, other in (
        ("streams", loader(f"{engine}2", samples=101, shuffle_seed=1)),
        ("order", loader(f"{engine}3", samples=100, shuffle_seed=2)),
        ("batch_size", loader(f"{engine}4", samples=100, shuffle_seed=1, batch_size=2)),
    ):
        with pytest.raises(StateError, match=f"{name} is .* in the checkpoint and .* in this run"):
            other.restore_from_checkpoint(checkpoint)
        other.close()
    lockstep = StreamingShardLoader(arrays(100), StreamingConfig(shuffle_seed=1))
    with pytest.raises(StateError, match="kind 'leased'"):
        lockstep.restore_from_checkpoint(checkpoint)


def test_checkpoints_at_the_interval_are_of_what_is_committed(engine: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {"checkpoint_interval": 50, "checkpoint_url": tmp_path}
    worker = loader(engine, samples=400, **config)
    had = numbers([worker.next() for _ in range(260)])
    worker._checkpoints().flush()
    fresh = loader(f"{engine}2", samples=400, **config)
    found = fresh.restore_latest()
    assert found is not None
    assert 0 < found.position <= 260
    rest = numbers(fresh)
    assert set(had) | set(rest) == set(range(400))
    assert len(rest) == 400 - found.position
    for one in (worker, fresh):
        one.close()


@pytest.mark.parametrize("base", [Elastic(), RoundRobin()], ids=["elastic", "round_robin"])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_recorded_assignment_runs_again(engine: str, base: Partition, batch_size: int | None) -> None:
    config: dict[str, Any] = {"shuffle_seed": 6, "batch_size": batch_size}
    workers = [loader(engine, rank, 3, adaptive=Adaptive(base), **config) for rank in range(3)]
    found = together(workers, lambda rank: 0.0005 * rank)
    assignment = workers[2].assignment()
    for worker in workers:
        worker.close()

    def replayed(rank: int) -> StreamingShardLoader:
        return StreamingShardLoader(arrays(500), StreamingConfig(3, rank, Adaptive(base, replay=assignment), **config))

    assert [numbers(replayed(rank)) for rank in range(3)] == found
    for rank in range(3):
        first = replayed(rank)
        assert len(list(replayed(rank))) == len(first)
        begun = numbers([first.next() for _ in range(len(first) // 2)])
        first.prefetch(10)
        second = replayed(rank)
        second.restore_from_checkpoint(first.get_checkpoint().as_dict())
        assert begun + numbers(second) == found[rank]
    with pytest.raises(ConfigError, match="a replay has one epoch"):
        first.reset()
    cut = {**assignment, "entries": assignment["entries"][1:]}
    with pytest.raises(StateError, match="gap or an overlap"):
        StreamingShardLoader(arrays(500), StreamingConfig(3, 0, Adaptive(base, replay=cut), **config)).next()


def test_a_recorded_assignment_is_of_its_epoch_and_refuses_all_else(engine: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {"shuffle_seed": 6, "batch_size": 4}
    workers = [loader(engine, rank, 2, adaptive=Adaptive(RoundRobin()), **config) for rank in range(2)]
    together(workers)
    for worker in workers:
        worker.reset()
    found = together(workers)  # the second epoch, whose order is another
    assignment = json.loads(json.dumps(workers[0].assignment()))
    for worker in workers:
        worker.close()

    def replayed(
        rank: int = 0,
        world: int = 2,
        data: dict[str, Any] | StreamingDataset | None = None,
        base: Partition | None = None,
        recorded: Any = assignment,
        **other: Any,
    ) -> StreamingShardLoader:
        adaptive = Adaptive(base or RoundRobin(), replay=recorded)
        made = StreamingConfig(world, rank, adaptive, **{**config, **other})
        return StreamingShardLoader(arrays(500) if data is None else data, made)

    assert [numbers(replayed(rank)) for rank in range(2)] == found
    for options, said in (
        ({"shuffle_seed": 7}, "order is .*'seed': 6.* in the recorded assignment and .*'seed': 7.* in this loader"),
        ({"batch_size": 5}, "batch_size is 4 in the recorded assignment and 5 in this loader"),
        ({"base": HashBased(32)}, "order is .*round_robin.* in the recorded assignment and .*hash.* in this loader"),
        ({"base": Elastic()}, "order is .* in the recorded assignment"),
        ({"world": 3}, "is of a world of 2, this one has 3 ranks"),
        ({"data": {"id": np.arange(500)}}, "streams is .* in the recorded assignment and .* in this loader"),
        ({"recorded": {"entries": assignment["entries"]}}, "give what loader.assignment"),
        ({"recorded": {**assignment, "epoch": "1"}}, "give what loader.assignment"),
    ):
        with pytest.raises(StateError, match=said):
            replayed(**options).next()
    make_dataset(tmp_path / "one", 100)
    make_dataset(tmp_path / "two", 100, size_limit=2000)
    where: dict[str, Any] = {"coordination": QUICK, "batch_size": 4}
    made = StreamingConfig(1, 0, Adaptive(), coordinator=f"{engine}2", **where)
    with StreamingShardLoader(StreamingDataset(local=tmp_path / "one"), made) as worker:
        list(worker)
        recorded = worker.assignment()
    (tmp_path / "one").rename(tmp_path / "moved")
    again = StreamingConfig(1, 0, Adaptive(replay=recorded), batch_size=4)
    assert len(list(StreamingShardLoader(StreamingDataset(local=tmp_path / "moved"), again))) == 25
    with pytest.raises(StateError, match="streams is"):
        StreamingShardLoader(
            StreamingDataset(local=tmp_path / "two"), StreamingConfig(1, 0, Adaptive(replay=recorded), batch_size=4)
        )


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_a_rank_can_not_be_taken_twice(engine: str) -> None:
    with loader(engine, 0, 2) as first:
        first.next()
        with (
            loader(engine, 0, 2) as second,
            pytest.raises(RankTakenError, match=r"rank 0 is taken: process \d+ .*process \d+"),
        ):
            second.next()
        assert first.next() is not None


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"world": 3}, "world_size is 2 in the run and 3 in this worker"),
        ({"samples": 400}, "positions is 500 in the run and 400 in this worker"),
        ({"shuffle_seed": 1}, "order is .* in the run and .* in this worker"),
        ({"batch_size": 2}, "batch_size is None in the run and 2 in this worker"),
        ({"coordination": QUICK._replace(lease=3.0)}, "settings.lease is 3600.0 in the run and 3.0 in this worker"),
        ({"adaptive": Adaptive(RoundRobin())}, "settings.threshold is None in the run and 0.2 in this worker"),
    ],
    ids=["world", "samples", "seed", "batch size", "lease", "partition"],
)
def test_workers_that_contradict_each_other_see_both_sides(engine: str, other: dict[str, Any], message: str) -> None:
    with loader(engine, 0, 2) as first:
        first.next()
        with loader(engine, 1, **{"world": 2, **other}) as second, pytest.raises(ConfigError, match=message):
            second.next()


def test_a_coordinator_that_is_not_there_is_named_and_nothing_hangs(tmp_path: Path) -> None:
    with pytest.raises((EngineError, ConfigError), match="gone"):
        loader(f"sqlite://{tmp_path}/gone/there/a.db").next()
    with pytest.raises(ConfigError, match="no engine is called 'carrier'"):
        loader("carrier://pigeon").next()


def test_the_next_epoch_can_not_begin_before_this_one_is_over(engine: str) -> None:
    with loader(engine, samples=50) as worker:
        had = numbers([worker.next() for _ in range(10)])
        with pytest.raises(ConfigError, match="epoch 0 is not over: 41 of 50"):
            worker.reset()
        assert sorted(had + numbers(worker)) == list(range(50))


def test_a_threshold_belongs_to_adaptive(engine: str) -> None:
    with pytest.raises(ConfigError, match=r"threshold=0.3, which Adaptive sets"):
        loader(engine, coordination=QUICK._replace(threshold=0.3)).next()


def test_what_can_not_be_handed_out_one_by_one(engine: str, tmp_path: Path) -> None:
    make_dataset(tmp_path, 50)
    dataset = StreamingDataset(local=tmp_path, shuffle=True, shuffle_algo="py1e", batch_size=4)
    with pytest.raises(ConfigError, match="mosaicml-streaming"):
        StreamingShardLoader(dataset, StreamingConfig(1, 0, Adaptive(), coordinator=engine))
