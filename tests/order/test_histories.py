"""A thousand histories of runs that stop and go on elsewhere: in every epoch each sample comes as often as it should.

A history is some epochs of one course. It is read in legs, each of a world, a batch size and a number of loader workers of
its own. A leg ends with a state, which goes through JSON to all ranks of the next. No shards are read: all is integers.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
import pytest

from stoker.cluster import LoaderWorker, World
from stoker.dataset.pool import ShardPool
from stoker.loader.feed import Feed, FeedSettings
from stoker.loader.progress import StartingPoint
from stoker.loader.seating import Seating
from stoker.loader.state import leg_of
from stoker.order.course import Course, Leg, Run, Seat
from stoker.order.incumbent.sampling import StreamWeight
from stoker.order.native import NativeCourse
from stoker.order.partition import Contiguous, Elastic, HashBased, Partition, RoundRobin, Stratified
from stoker.order.schedule import Schedule
from stoker.order.selection import Everything, Selection, Split, Without
from stoker.order.settings import NativeSettings, Source
from stoker.order.shards import ShardTable
from stoker.types import Ids

HISTORIES: Final = 1000
PLAIN: Final = StreamWeight()
BLOCK: Final = 50


@dataclass
class History:
    """One history: what is read, and what was delivered so far."""

    rng: random.Random
    sources: list[Source]
    settings: NativeSettings
    epochs: int
    delivered: dict[int, Counter[int]] = field(default_factory=dict)
    homes: dict[int, int] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    @property
    def plain(self) -> bool:
        """Whether an epoch has all samples once."""
        settings = self.settings
        return (
            settings.schedule is None and settings.epoch_size is None and all(s.weight == PLAIN for s in self.sources)
        )

    def course(self) -> NativeCourse:
        """The course, made anew as by another process."""
        return NativeCourse(self.sources, self.settings)

    @property
    def static(self) -> bool:
        """Whether ranks own parts."""
        return self.settings.partition.static


def make_history(number: int) -> History:
    """A random history's data and settings."""
    rng = random.Random(number)
    streams = rng.choice([1, 1, 2, 3])
    kind = rng.choice(["all", "all", "proportion", "repeat", "schedule"])
    partitions: list[Partition] = [
        Elastic(),
        Elastic(),
        RoundRobin(),
        Contiguous(),
        HashBased(8, 1),
        Stratified("label"),
    ]
    partition = rng.choice(partitions)
    if kind == "schedule":
        partition = Elastic()
    sources = []
    for stream in range(streams):
        sizes = [rng.randint(0, 11) for _ in range(rng.randint(1, 5))] + [rng.randint(8, 16)]
        table = ShardTable(np.array(sizes, dtype=np.int64))
        selection: Selection = Everything(table)
        if rng.random() < 0.3:
            split = rng.random() < 0.5
            selection = Split(table, 0.1, 0.9, number) if split else Without(Everything(table), [0, 3, 5])
        weight = PLAIN
        if kind == "proportion":
            weight = StreamWeight(proportion=rng.choice([1, 2, 0.7]))
        elif kind == "repeat":
            weight = rng.choice(
                [PLAIN, StreamWeight(repeat=rng.choice([0.8, 1.7, 2])), StreamWeight(choose=rng.randint(8, 60))]
            )
        labels = np.arange(table.total) % 3
        sources.append(Source(f"s{stream}", table, selection, weight, {"fingerprint": f"f{stream}"}, labels))
    schedule = None
    if kind == "schedule":
        points: dict[int | str, dict[str, float]] = {
            time: {f"s{stream}": rng.randint(1, 3) for stream in range(streams)}
            for time in sorted({0, rng.randint(1, 60), rng.randint(1, 150)})
        }
        schedule = Schedule.parse(points, rng.choice([0, 3]))
    sized = kind == "proportion" or (kind == "schedule" and rng.random() < 0.5)
    settings = NativeSettings(
        shuffle=rng.choice(["none", "block", "block", "shard", "global"]),
        seed=number,
        num_canonical_nodes=rng.choice([None, 1, 2, 4, 5]),
        block_size=rng.choice([None, 7]),
        epoch_size=rng.randint(40, 120) if sized else None,
        partition=partition,
        batching_method=rng.choice(["random", "stratified"])
        if kind == "schedule"
        else rng.choice(["random", "stratified", "per_stream", "device_per_stream"]),
        # Fixed sampling draws of some streams less than there may be ranks, which static parts do not allow.
        sampling_method="fixed" if kind == "proportion" and not partition.static and rng.random() < 0.3 else "balanced",
        schedule=schedule,
        remainder=rng.choice(["pad", "uneven", "uneven", "drop"]),
    )
    return History(rng, sources, settings, rng.choice([2, 2, 2, 3]))


def ids_of(sources: Sequence[Source], run: Run, places: list[Ids]) -> list[int]:
    """Samples of batches, by ids that count through all streams."""
    if not places:
        return []
    shards, rows = run.order.locate(np.concatenate(places))
    sizes = np.concatenate([source.table.sizes for source in sources])
    ids: list[int] = ((np.cumsum(sizes) - sizes)[shards] + rows).tolist()
    return ids


def batches_of(run: Run, workers: int) -> list[Ids]:
    """A rank's batches in the order in which a loader of so many workers hands them out."""
    each = [[batch for chunk in run.plan.chunks(20, worker, workers) for batch in chunk] for worker in range(workers)]
    return [batch for turn in zip_longest(*each) for batch in turn if batch is not None]


def choose_world(history: History, begun: tuple[int, int] | None) -> tuple[int, int]:
    """World size and batch size of a leg. ``begun``: those that its epoch was begun with, unless it begins there."""
    rng, batching = history.rng, history.settings.batching_method
    world, batch = rng.randint(1, 5), rng.randint(1, 6)
    if begun is None or len(history.sources) == 1:
        return world, batch
    if batching == "device_per_stream":
        return world, begun[1]
    if batching == "per_stream" and not history.static:
        unit = begun[0] * begun[1]
        world = rng.choice([size for size in range(1, 6) if unit % size == 0])
        return world, unit // world
    return world, batch


def make_feed(course: Course, rank: int, world: int) -> Feed:
    """A rank's feed, without shards to read."""
    pool = cast("ShardPool", SimpleNamespace(most_open=1))
    return Feed(pool, course, FeedSettings(), Seating(World(rank, world, 1)))


def read_leg(history: History, state: dict[str, Any] | None, begun: tuple[int, int] | None) -> dict[str, Any]:
    """One leg: all ranks go on from ``state``, take some batches, and stop.

    Returns:
        The state of rank 0.
    """
    rng = history.rng
    world, batch = choose_world(history, begun)
    workers = rng.choice([1, 1, 2, 3])
    feeds = [make_feed(history.course(), 0, world)]
    feeds += [make_feed(feeds[0].course if rng.random() < 0.9 else history.course(), r, world) for r in range(1, world)]
    if state is not None:
        for feed in feeds:
            feed.load(state, batch)
    history.told.append(f"{world=} {batch=} {workers=}")
    while True:
        first = feeds[0]
        upcoming = first.upcoming()
        assert all(feed.upcoming() == upcoming for feed in feeds[1:])
        if upcoming.epoch >= history.epochs:
            return first.state(batch)
        runs = []
        for feed in feeds:
            seat = feed.seat(batch)
            point, _ = feed._begin(LoaderWorker(), seat)
            runs.append((point, feed.course.run(leg_of(point), seat)))
        point = runs[0][0]
        assert all(other == point for other, _ in runs)
        if not point.position:
            history.homes[point.epoch] = world
        batches = [batches_of(run, workers) for _, run in runs]
        assert [len(each) for each in batches] == [len(run.plan) for _, run in runs]
        most = max(map(len, batches))
        # Where ranks end at different steps, rank 0 can not tell how far the others are once it has ended.
        shared = most if len(set(map(len, batches))) == 1 else min(map(len, batches))
        steps = rng.choice([most, rng.randint(0, shared), rng.randint(0, shared), rng.randint(0, min(2, shared))])
        for (_, run), each in zip(runs, batches, strict=True):
            counted = history.delivered.setdefault(point.epoch, Counter())
            counted.update(ids_of(history.sources, run, each[:steps]))
        history.told.append(f"  {point} took {steps} of {most}")
        if steps == most and rng.random() < 0.6:
            continue  # into the next epoch, without a stop
        return stop(history, first, upcoming, runs[0][1], steps, batch)


def stop(history: History, feed: Feed, upcoming: StartingPoint, run: Run, steps: int, batch: int) -> dict[str, Any]:
    """The state of rank 0, asked for in one of the ways that there are."""
    kind = history.rng.choice(["loader", "loader", "samples", "delivered"])
    if kind == "samples" and steps < len(run.plan) and not run.plan.padding:
        reached = run.plan.position_after(steps)
        if history.rng.random() < 0.5:
            return feed.state(batch, reached)
        return feed.state(batch, reached - upcoming.position, from_beginning=False)
    if kind == "delivered":
        # As if this process had iterated, not its workers.
        seat = feed.seat(batch)
        delivery = feed._session.deliver(feed._session.settled(upcoming, seat), run.plan, 0)
        for _ in range(min(steps, len(run.plan))):
            delivery.batch()
        delivery.finished = steps >= len(run.plan) and history.rng.random() < 0.5
        return feed.state(batch)
    return feed.state_after(upcoming, steps, batch)


def whole(history: History, epoch: int) -> Counter[int]:
    """What an epoch has, nothing repeated or left out: all samples once, or what is read without a stop."""
    if history.plain:
        starts = np.cumsum([0, *(source.table.total for source in history.sources)]).tolist()
        chosen = []
        for first, source in zip(starts, history.sources, strict=False):
            shards, rows = source.table.locate(np.arange(source.table.total))
            chosen.append(first + np.flatnonzero(source.selection.numbers(shards, rows) >= 0))
        return Counter(np.concatenate(chosen).tolist())
    course = NativeCourse(history.sources, replace(history.settings, remainder="uneven"))
    home = history.homes[epoch] if history.static else 1
    counted: Counter[int] = Counter()
    for rank in range(home):
        run = course.run(Leg(epoch), Seat(rank, home, 1, 64))
        counted.update(ids_of(history.sources, run, batches_of(run, 1)))
    return counted


def check(number: int) -> History:
    """Read one history, and compare."""
    history = make_history(number)
    state: dict[str, Any] | None = None
    begun: tuple[int, int] | None = None
    while state is None or state["epoch"] < history.epochs:
        state = json.loads(json.dumps(read_leg(history, state, begun)))
        assert state is not None
        history.told.append(f"  state {state['epoch']} {state['position']}")
        terms = state.get("terms")
        begun = (terms[0], terms[1]) if state["position"] and terms else None
    for epoch in range(history.epochs):
        found = history.delivered[epoch]
        expected = whole(history, epoch)
        remainder = history.settings.remainder
        if remainder != "drop":
            assert not expected - found, (number, epoch, "lost", history)
        if remainder != "pad":
            assert not found - expected, (number, epoch, "twice", history)
        assert found.keys() <= expected.keys()
    return history


@pytest.mark.parametrize("first", range(0, HISTORIES, BLOCK))
def test_each_sample_comes_as_often_as_it_should_in_every_epoch(first: int) -> None:
    for number in range(first, first + BLOCK):
        check(number)
