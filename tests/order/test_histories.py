"""Histories of runs that stop and go on elsewhere: in every epoch each sample comes as often as it should.

A history is some epochs of one sample order. It is read in legs, each of a world, a batch size and a number of loader
workers of its own. A leg ends with a state that any rank saves at any moment; it goes through JSON to all ranks of the
next. No shards are read: all is integers. ``--histories 3000`` reads so many instead of 150.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pytest
from history_cases import History, Place, batches_of, ids_of, make_history

from stoker.cluster import LoaderWorker, World
from stoker.errors import ConfigError, StateError
from stoker.formats.base import ReadOptions
from stoker.order.capabilities import with_epoch_start
from stoker.order.native import NativeOrder
from stoker.order.sample_order import DataRank, EpochPosition, Run, SampleOrder
from stoker.pipeline.epoch_reader import EpochReader
from stoker.pipeline.ranks.data_rank import DataRankFinder
from stoker.pipeline.transforms import EpochReaderSettings
from stoker.reading.fetch_width import FetchWidth
from stoker.reading.shard_pool import ShardPool
from stoker.types import Ids

BLOCK: Final = 50
WORLDS: Final = ((1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 2), (4, 1), (1, 5))

counted: Counter[str] = Counter()
"""What became of all states of all histories of this session."""


class Saved(NamedTuple):
    """A state, and what is known of it.

    Attributes:
        state: as a rank wrote it.
        place: the world that wrote it.
    """

    state: dict[str, Any]
    place: Place

    @property
    def inside(self) -> bool:
        """Whether it was taken inside a batch."""
        return "partial" in self.state


class Unreadable(Exception):  # noqa: N818 - the drawn world can not read this order
    """Said before a history begins."""


def make_reader(sample_order: SampleOrder, rank: int, place: Place) -> EpochReader:
    """A rank's reader, without shards to read."""
    pool = cast(
        "ShardPool",
        SimpleNamespace(
            most_open=1,
            width=FetchWidth(8),
            share=lambda *_: None,
            index=SimpleNamespace(columns={}, samples=0, same_columns=True),
            options=ReadOptions(),
            ids=None,
        ),
    )
    return EpochReader(
        pool, sample_order, EpochReaderSettings(), DataRankFinder(World(rank, place.world, place.ranks_per_node))
    )


def make_readers(history: History, place: Place) -> list[EpochReader]:
    """All ranks' readers, some with a sample order of their own."""
    readers = [make_reader(history.sample_order(), 0, place)]
    shared = readers[0].sample_order
    readers += [
        make_reader(shared if history.rng.random() < 0.9 else history.sample_order(), rank, place)
        for rank in range(1, place.world)
    ]
    return readers


def draw_place(history: History, saved: Saved | None, *, fitting: bool) -> Place:
    """A world; ``fitting``: one that can go on with what the state's epoch was begun with."""
    rng = history.rng
    workers = rng.choice([1, 1, 2, 3])
    if saved is not None and fitting:
        home = history.homes.get(saved.state["epoch"], saved.place)
        return replace(saved.place if saved.inside else home, workers=workers)
    nodes, ranks = rng.choice(WORLDS)
    batch = rng.randint(1, 6)
    if saved is not None and rng.random() < 0.5:
        # The same global batch: what most orders ask for.
        total = saved.place.world * saved.place.batch_size
        if total % (nodes * ranks) == 0:
            batch = total // (nodes * ranks)
    return Place(nodes, ranks, batch, workers)


def go_on(history: History, saved: Saved | None) -> tuple[Place, list[EpochReader]]:
    """All ranks of another world, with the state loaded. Worlds that refuse it are counted, and another is tried."""
    for attempt in range(3):
        place = draw_place(history, saved, fitting=attempt == 2)
        readers = make_readers(history, place)
        try:
            for reader in readers:
                if saved is not None:
                    reader.load(saved.state, place.batch_size)
                reader.plan(
                    reader.resume.upcoming(), place.batch_size
                )  # an epoch of this world must have an order at all
        except StateError as error:
            refused(history, cast("Saved", saved), place, error, last=attempt == 2)
            continue
        except ConfigError:
            if saved is None or not saved.state["position"]:
                if attempt < 2:
                    continue
                raise Unreadable from None
            raise
        if saved is not None:
            counted["resumed"] += 1
            counted[f"resumed: {history.kind}"] += 1
            history.told.append(f"  loaded by {place}")
        return place, readers
    raise AssertionError("the last attempt returns or raises")


def refused(history: History, saved: Saved, place: Place, error: StateError, *, last: bool) -> None:
    """Count a refusal, and see that it is one that there must be."""
    assert not last, (history, error)  # the world in which the epoch began is never refused
    said = re.sub(r"\d+", "#", str(error.__cause__ or error)).split(":")[0][:110]
    counted["refused"] += 1
    counted[f"refused: {history.kind}: {said}"] += 1
    same = (place.world, place.batch_size) == (saved.place.world, saved.place.batch_size)
    if saved.inside:
        assert not same or history.incumbent is not None
        return
    if history.incumbent is None:
        # Batches of one stream are as large as they were begun; nothing else is refused.
        assert history.settings.batching_method in ("per_stream", "device_per_stream"), (history, error)
        assert len(history.sources) > 1
        home = history.homes[saved.state["epoch"]]
        if history.settings.batching_method == "per_stream" and not history.static:
            assert home.world * home.batch_size != place.world * place.batch_size, (history, error)
        else:
            assert home.batch_size != place.batch_size, (history, error)


def read_leg(history: History, saved: Saved | None) -> Saved:
    """One leg: all ranks go on from a state, take some batches, and stop.

    Returns:
        The state of some rank.
    """
    rng = history.rng
    place, readers = go_on(history, saved)
    batch = place.batch_size
    history.told.append(str(place))
    while True:
        upcoming = readers[0].resume.upcoming()
        assert all(reader.resume.upcoming() == upcoming for reader in readers[1:])
        if saved is not None and rng.random() < 0.2:
            # Loaded, and saved again without anything read.
            reader = rng.choice(readers)
            again = (
                reader.state(batch) if saved.inside or rng.random() < 0.5 else reader.state_after(upcoming, 0, batch)
            )
            return Saved(again, place)
        if upcoming.epoch >= history.epochs:
            return Saved(rng.choice(readers).state_after(upcoming, 0, batch), place)
        try:
            points, runs = begin(readers, batch)
        except ConfigError:
            assert history.settings.partition.column == "user"  # too few values for the ranks of the new epoch's world
            raise Unreadable from None
        try:
            batches = [batches_of(run, place.workers) for run in runs]
        except ConfigError:
            assert history.incumbent is not None  # so few samples can not be shuffled by this algorithm
            raise Unreadable from None
        assert [len(each) for each in batches] == [len(run.plan) for run in runs]
        if not points[0].position and not points[0].partial:
            remember(history, points[0], runs, place)
        most = max(map(len, batches))
        if not most and not points[0].position:
            return all_left_out(history, readers, points[0], batch)
        assert len(batches[runs[0].plan.longest]) == most
        if history.remainder != "uneven":
            assert {len(each) for each in batches} == {most}, (history, "unequal steps")
            full = min(sum(len(one) == batch for one in each) for each in batches)
            assert len({run.plan.full_steps for run in runs}) == 1, (history, "unequal full steps")
            assert full - 1 <= runs[0].plan.full_steps <= full
        if not points[0].partial:
            history.padding[points[0].epoch] += runs[0].plan.padding
        steps = rng.choice([most, max(0, most - 1), rng.randint(0, most), rng.randint(0, min(2, most))])
        for run, each in zip(runs, batches, strict=True):
            counter = history.delivered.setdefault(points[0].epoch, Counter())
            mine = [places[points[0].partial * (number == 0) :] for number, places in enumerate(each[:steps])]
            counter.update(ids_of(history.sources, run, mine))
        history.told.append(f"  {points[0]} took {steps} of {most}")
        saved = None
        if steps == most and rng.random() < 0.6:
            continue  # into the next epoch, without a stop
        return stop(history, readers, upcoming, runs, steps, batches, place)


def begin(readers: list[EpochReader], batch: int) -> tuple[list[EpochPosition], list[Run]]:
    """All ranks begin the next epoch, or what is left of one."""
    points, runs = [], []
    for reader in readers:
        data_rank = reader.data_rank(batch)
        point, _, _ = reader.resume.begin(LoaderWorker(), data_rank)
        reader.resume._clock._seen -= 1  # as if copies in DataLoader workers had begun
        points.append(point)
        runs.append(reader.sample_order.run(point, data_rank))
    assert all(point == points[0] for point in points)
    return points, runs


def all_left_out(history: History, readers: list[EpochReader], point: EpochPosition, batch: int) -> Saved:
    """An epoch without a batch for anybody is an error in all ranks; a history ends there."""
    for reader in readers:
        with pytest.raises(ConfigError, match="has no batches"):
            reader.resume.run(point, reader.data_rank(batch))
    counted["epochs without a batch, refused"] += 1
    history.epochs = point.epoch
    return Saved({"epoch": point.epoch, "position": 0}, Place(1, 1, 1))


def remember(history: History, point: EpochPosition, runs: list[Run], place: Place) -> None:
    """An epoch begins here."""
    history.homes[point.epoch] = place
    if history.incumbent is not None:
        whole: Counter[int] = Counter()
        for run in runs:
            whole.update(ids_of(history.sources, run, batches_of(run, 1)))
        history.begun[point.epoch] = whole, runs[0].plan.padding


def stop(
    history: History,
    readers: list[EpochReader],
    upcoming: EpochPosition,
    runs: list[Run],
    steps: int,
    batches: list[list[Ids]],
    place: Place,
) -> Saved:
    """The state of some rank, asked for in one of the ways that there are."""
    rng, batch = history.rng, place.batch_size
    rank = rng.randrange(place.world)
    reader, run = readers[rank], runs[rank]
    own = min(steps, len(run.plan))
    most = max(map(len, batches))
    ended = own == len(run.plan) and (own < steps or rng.random() < 0.5)
    kind = rng.choice(["loader", "loader", "samples", "delivered"])
    if upcoming.partial:
        kind = "delivered"
    if ended and own < most:
        # This rank has no more, and can not know how much the others had.
        with pytest.raises(StateError, match="other ranks have more"):
            reader.state_after(upcoming, own, batch, ended=True)
        counted["refused: saved by a rank that ended before others"] += 1
        rank = run.plan.longest
        reader, run, own, ended, kind = readers[rank], runs[rank], steps, False, "loader"
    if kind == "samples":
        delivered = sum(len(places) for each in batches for places in each[:steps])
        if rng.random() < 0.5:
            return Saved(reader.state(batch, upcoming.position + delivered), place)
        return Saved(reader.state(batch, delivered, from_beginning=False), place)
    if kind == "loader":
        with pytest.raises(StateError, match="StreamingDataLoader"):
            reader.state(batch)  # copies iterate
        return Saved(reader.state_after(upcoming, own, batch, ended=ended), place)
    # As if this process had iterated, not its workers.
    session = reader.resume
    session._clock._seen += 1
    delivery = session.deliver(with_epoch_start(reader.sample_order, upcoming, reader.data_rank(batch)), run.plan, 0)
    for _ in range(own):
        delivery.batch()
    delivery.finished = ended
    inside = 0
    nexts = [each[steps] for each in batches if steps < len(each)]
    if (
        not ended
        and len(nexts) == place.world
        and min(map(len, nexts)) > 1
        and rng.random() < 0.4
        and not upcoming.partial
    ):
        inside = rng.randint(1, min(map(len, nexts)) - 1)
        delivery._entered += inside
        for other, each in zip(runs, batches, strict=True):
            history.delivered[upcoming.epoch].update(ids_of(history.sources, other, [each[steps][:inside]]))
    return Saved(reader.state(batch), place)


def whole(history: History, epoch: int) -> Counter[int]:
    """What an epoch has, nothing repeated or left out: all samples once, or what is read without a stop."""
    if history.plain:
        starts = np.cumsum([0, *(source.table.total for source in history.sources)]).tolist()
        chosen = []
        for first, source in zip(starts, history.sources, strict=False):
            shards, rows = source.table.locate(np.arange(source.table.total))
            chosen.append(first + np.flatnonzero(source.selection.numbers(shards, rows) >= 0))
        return Counter(np.concatenate(chosen).tolist())
    sample_order = NativeOrder(history.sources, replace(history.settings, remainder="uneven"))
    home = history.homes[epoch].world if history.static else 1
    found: Counter[int] = Counter()
    for rank in range(home):
        run = sample_order.run(EpochPosition(epoch), DataRank(rank, home, 1, 64))
        found.update(ids_of(history.sources, run, batches_of(run, 1)))
    return found


def check_epoch(history: History, number: int, epoch: int) -> None:
    """Nothing of an epoch was lost, and nothing came twice but what is documented."""
    found, remainder = history.delivered[epoch], history.remainder
    if history.incumbent is None:
        expected = whole(history, epoch)
        if remainder != "drop":
            assert not expected - found, (number, epoch, "lost", history)
        if remainder != "pad":
            assert not found - expected, (number, epoch, "twice", history)
        assert found.keys() <= expected.keys()
    else:
        expected, repeated = history.begun[epoch]
        assert found.keys() == expected.keys(), (number, epoch, "lost", history)
        # Another world repeats other samples to even out its ranks, and at most as many.
        assert (expected - found).total() <= repeated, (number, epoch, "lost", history)
    assert (found - expected).total() <= history.padding[epoch], (number, epoch, "twice", history)


def check(number: int) -> None:
    """Read one history, and compare."""
    history = make_history(number)
    saved: Saved | None = None
    try:
        while saved is None or saved.state["epoch"] < history.epochs:
            saved = read_leg(history, saved)
            saved = saved._replace(state=json.loads(json.dumps(saved.state)))
            history.told.append(f"  state {saved.state['epoch']} {saved.state['position']}")
    except Unreadable:
        counted["ended early: its order does not exist in a world that was drawn"] += 1
        return
    counted["histories"] += 1
    for epoch in range(history.epochs):
        check_epoch(history, number, epoch)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "first" in metafunc.fixturenames:
        metafunc.parametrize("first", range(0, metafunc.config.getoption("--histories"), BLOCK))


def test_each_sample_comes_as_often_as_it_should_in_every_epoch(first: int) -> None:
    for number in range(first, first + BLOCK):
        check(number)


def test_states_are_resumed_and_what_is_refused_has_to_be() -> None:
    if not counted["histories"]:
        check(0)
    print()
    for name, count in sorted(counted.items()):
        print(f"{count:7d}  {name}")
    assert counted["resumed"] >= counted["refused"]
