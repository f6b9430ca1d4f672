"""A worker's samples in lockstep: whose they are, that nothing is lost or comes twice, and going on from a checkpoint."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from patience import PATIENCE
from stoker import Stream, StreamingDataset
from stoker.errors import ConfigError, StateError, TransformError
from stoker.loaders.shard_loader import FILLER, Checkpoint, StreamingConfig, StreamingShardLoader
from stoker.order.partition import Elastic, Partition
from stoker.order.partition_strategies import Contiguous, HashBased, RoundRobin, Stratified
from support import check_batch, check_sample, ids_of, make_dataset

SAMPLES = 260
PARTITIONS: list[Partition | None] = [
    None,
    Elastic(),
    RoundRobin(),
    Contiguous(),
    HashBased(64),
    HashBased(64, hash_seed=3),
    Stratified("kind"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("data"), SAMPLES)


def arrays(count: int) -> dict[str, Any]:
    return {
        "id": np.arange(count),
        "kind": np.arange(count) % 5,
        "user": np.arange(count) % 23,
        "text": [f"number {k}" for k in range(count)],
    }


def numbers(items: Any) -> list[int]:
    """Ids of samples, or of batches."""
    return [int(number) for item in items for number in np.atleast_1d(item["id"])]


def loaders(count: int, world: int, **config: Any) -> list[StreamingShardLoader]:
    return [StreamingShardLoader(arrays(count), StreamingConfig(world, rank, **config)) for rank in range(world)]


# -- whose samples -----------------------------------------------------------------------------------------------------


@given(
    count=st.integers(8, 300),
    world=st.integers(1, 8),
    partition=st.sampled_from(PARTITIONS),
    seed=st.none() | st.integers(0, 1 << 40),
    batch_size=st.none() | st.integers(1, 9),
    buffer=st.sampled_from([0, 1, 7, 128]),
)
@settings(max_examples=60, deadline=None)
def test_every_sample_comes_to_one_worker_once(
    count: int, world: int, partition: Partition | None, seed: int | None, batch_size: int | None, buffer: int
) -> None:
    made = loaders(
        count,
        world,
        partition=partition,
        shuffle_seed=seed,
        batch_size=batch_size,
        prefetch_buffer_size=buffer,
        remainder="uneven",
    )
    parts = [list(loader) for loader in made]
    assert sorted(chain.from_iterable(map(numbers, parts))) == list(range(count))
    assert [len(part) for part in parts] == [len(loader) for loader in made]
    for sample in parts[0]:
        texts = [sample["text"]] if batch_size is None else sample["text"]
        assert texts == [f"number {number}" for number in numbers([sample])]


@pytest.mark.parametrize("partition", [RoundRobin(), Elastic(), HashBased(64)])
@pytest.mark.parametrize("buffer", [0, 50])
def test_shards_give_what_arrays_do_every_sample_once(data: Path, partition: Partition, buffer: int) -> None:
    dataset = StreamingDataset(local=data, shuffle=True)
    parts = []
    for rank in range(3):
        config = StreamingConfig(3, rank, partition, prefetch_buffer_size=buffer, remainder="uneven")
        loader = StreamingShardLoader(dataset, config)
        assert loader.is_empty() is False
        parts.append(ids_of(loader))
        assert len(parts[-1]) == len(loader)
    assert sorted(chain.from_iterable(parts)) == list(range(SAMPLES))


def test_a_dataset_of_streams(tmp_path: Path) -> None:
    for name, ids in (("a", range(100)), ("b", range(100, 150))):
        make_dataset(tmp_path / name, ids)
    streams = [Stream(local=tmp_path / name, name=name) for name in "ab"]
    config = StreamingConfig(2, 0, batch_size=8, shuffle_seed=1, remainder="uneven")
    found = []
    for rank in range(2):
        with StreamingShardLoader(streams, StreamingConfig(**{**_fields(config), "rank": rank})) as loader:
            found += [check_batch(batch) for batch in loader]
    assert sorted(chain.from_iterable(found)) == list(range(150))
    assert any(min(batch) < 100 <= max(batch) for batch in found), "streams were not mixed"


def _fields(config: StreamingConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


def test_without_anything_said_the_dataset_decides(data: Path) -> None:
    dataset = StreamingDataset(local=data, shuffle=True, batch_size=10)
    order = [check_batch(batch) for batch in StreamingDataset(local=data, shuffle=True, batch_size=10).batches()]
    for loader in (StreamingShardLoader(dataset), StreamingShardLoader(dataset, StreamingConfig(batch_size=10))):
        assert [check_batch(batch) for batch in loader] == order
    one_by_one = StreamingShardLoader(dataset, StreamingConfig())
    assert ids_of(one_by_one) == list(chain.from_iterable(order))


def test_each_epoch_has_an_order_of_its_own_and_is_complete() -> None:
    (loader,) = loaders(50, 1, shuffle_seed=3)
    first, second = numbers(loader), numbers(loader)
    assert loader.epoch == 1
    loader.reset()
    third = numbers(loader)
    assert loader.epoch == 2
    assert len({tuple(first), tuple(second), tuple(third)}) == 3
    assert sorted(first) == sorted(second) == sorted(third) == list(range(50))


def test_a_finished_epoch_stays_finished_until_reset() -> None:
    (loader,) = loaders(3, 1)
    assert [loader.next() is None for _ in range(5)] == [False, False, False, True, True]
    loader.reset()
    assert int(loader.next()["id"]) == 0


def test_reset_drops_what_was_read_ahead() -> None:
    (loader,) = loaders(40, 1, shuffle_seed=8)
    loader.prefetch(40)
    loader.next()
    loader.reset()
    (fresh,) = loaders(40, 1, shuffle_seed=8)
    fresh.reset()
    assert numbers(loader) == numbers(fresh)


# -- reading ahead -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer", [1, 5, 25, 128])
def test_prefetching_delivers_nothing_and_advances_nothing(buffer: int) -> None:
    (loader,) = loaders(25, 1, prefetch_buffer_size=buffer)
    before = loader.get_checkpoint()
    ready = loader.prefetch(5)
    assert min(5, buffer) <= ready <= 25
    after = loader.get_checkpoint()
    assert (before.position, before.processed, before.state) == (after.position, after.processed, after.state)
    assert numbers(loader) == list(range(25))
    assert loader.prefetch(5) == 0


def test_the_buffer_is_bounded() -> None:
    class Counted(list[int]):
        taken = 0

        def __getitem__(self, place: Any) -> Any:
            Counted.taken += 1
            return super().__getitem__(place)

    values = Counted(range(10_000))
    loader = StreamingShardLoader({"id": values, "x": np.arange(10_000)}, StreamingConfig(prefetch_buffer_size=16))
    loader._sample_source._columns["id"] = values  # type: ignore[attr-defined]  # a list is copied when it is taken over
    loader.prefetch(10_000)
    assert 16 <= Counted.taken <= 32
    loader.close()


def test_a_prefetched_sample_is_a_hit_and_an_unforeseen_one_a_miss() -> None:
    (ahead,) = loaders(20, 1, prefetch_buffer_size=32)
    ahead.prefetch(20)
    list(ahead)
    stats = ahead.get_stats()
    assert (stats.prefetch_hits, stats.prefetch_misses, stats.samples_loaded) == (20, 0, 20)
    (at_once,) = loaders(20, 1, prefetch_buffer_size=0)
    list(at_once)
    assert (at_once.get_stats().prefetch_hits, at_once.get_stats().prefetch_misses) == (0, 20)


@pytest.mark.parametrize("batch_size", [None, 8])
def test_other_threads_may_ask_how_it_goes(batch_size: int | None) -> None:
    """No order of calls waits for itself, and what is asked for meanwhile is right."""
    (loader,) = loaders(2000, 1, batch_size=batch_size, shuffle_seed=1, prefetch_buffer_size=32)
    done = threading.Event()
    positions: list[int] = []

    def ask() -> None:
        while not done.is_set():
            positions.append(loader.get_checkpoint().position)
            loader.prefetch(16, timeout=0.01)
            assert loader.get_stats().samples_loaded <= 2000

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    found = numbers(loader)
    done.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert sorted(found) == list(range(2000))
    assert all(0 <= position <= 2000 for position in positions)


def test_a_forgotten_loader_ends_its_thread() -> None:
    before = set(threading.enumerate())
    (loader,) = loaders(2000, 1, prefetch_buffer_size=8)
    loader.next()
    (thread,) = [thread for thread in set(threading.enumerate()) - before if thread.name == "stoker-ahead"]
    del loader
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffer", [0, 8, 64])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_an_error_skips_nothing(buffer: int, batch_size: int | None) -> None:
    """A sample that could not be read comes when it is asked for again."""
    failing = {7, 21}

    def transform(sample: Any) -> Any:
        number = int(sample["id"])
        if number in failing:
            failing.discard(number)
            raise OSError(f"number {number}")
        return sample

    config = StreamingConfig(prefetch_buffer_size=buffer, batch_size=batch_size)
    loader = StreamingShardLoader(arrays(30), config, transform=transform)
    found, errors = [], 0
    while True:
        try:
            item = loader.next()
        except TransformError:
            errors += 1
            continue
        if item is None:
            break
        found.append(item)
    assert (errors, numbers(found)) == (2, list(range(30)))


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ({}, "no columns"),
        ({"a": np.arange(3), "b": [1, 2]}, "'a' has 3, 'b' has 2"),
        ({"a": np.int64(3)}, "column 'a' is a"),
        ({"a": 5}, "column 'a' is an int"),
        ([1, 2], r"dataset\[0\] must be a Stream, got 1"),
    ],
)
def test_what_is_no_dataset(dataset: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StreamingShardLoader(dataset)


def test_a_partition_by_a_column_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"needs column 'gone'.*'id', 'kind', 'user', 'text'"):
        loaders(20, 2, partition=Stratified("gone"))


def test_lockstep_has_no_coordinator_to_ask() -> None:
    (loader,) = loaders(5, 1)
    for ask in (loader.progress, loader.health, loader.assignment):
        with pytest.raises(ConfigError, match="only Adaptive"):
            ask()


# -- ranks that run out early ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", [Elastic(), RoundRobin(), HashBased(16, key="user")])
@pytest.mark.parametrize("remainder", ["pad", "drop", "join"])
def test_ranks_in_step_take_the_same_number_of_steps(partition: Partition, remainder: str) -> None:
    parts = [list(loader) for loader in loaders(47, 4, partition=partition, batch_size=3, remainder=remainder)]
    assert len({len(part) for part in parts}) == 1
    assert all(
        len(part) == len(loader)
        for part, loader in zip(
            parts, loaders(47, 4, partition=partition, batch_size=3, remainder=remainder), strict=True
        )
    )


def test_joined_ranks_are_kept_in_step_by_flagged_fillers_and_lose_nothing() -> None:
    parts = [
        list(loader) for loader in loaders(29, 4, partition=HashBased(16, key="user"), batch_size=2, remainder="join")
    ]
    real = [number for part in parts for batch in part for number in batch["id"][~batch[FILLER]].tolist()]
    assert sorted(real) == list(range(29))
    flagged = [bool(batch[FILLER][0]) for part in parts for batch in part]
    assert any(flagged)
    for part in parts:
        flags = [bool(batch[FILLER].all()) for batch in part]
        assert flags == sorted(flags), "a filler came before a real batch"
        assert all(batch[FILLER].all() == batch[FILLER].any() for batch in part)


def test_a_joined_epoch_continues_in_step_from_among_its_fillers() -> None:
    made = loaders(29, 4, partition=HashBased(16, key="user"), batch_size=2, remainder="join")
    steps = len(made[0])
    whole = [list(loader) for loader in made]
    for step in range(1, steps):
        rest = []
        for rank, loader in enumerate(
            loaders(29, 4, partition=HashBased(16, key="user"), batch_size=2, remainder="join")
        ):
            for _ in range(step):
                loader.next()
            checkpoint = loader.get_checkpoint()
            fresh = loaders(29, 4, partition=HashBased(16, key="user"), batch_size=2, remainder="join")[rank]
            fresh.restore_from_checkpoint(checkpoint)
            assert fresh.epoch == 0
            rest.append(list(fresh))
        assert {len(part) for part in rest} == {steps - step}
        for before, after in zip(whole, rest, strict=True):
            kept = [batch for batch in before[step:] if not batch[FILLER].any()]
            assert numbers(kept) == numbers([batch for batch in after if not batch[FILLER].any()])


# -- checkpoints -------------------------------------------------------------------------------------------------------


@given(
    count=st.integers(10, 120),
    world=st.integers(1, 4),
    partition=st.sampled_from(PARTITIONS[:6]),
    batch_size=st.none() | st.integers(1, 5),
    remainder=st.sampled_from(["pad", "drop", "uneven"]),
    part=st.floats(0, 1),
    ahead=st.integers(0, 30),
)
@example(count=10, world=3, partition=None, batch_size=None, remainder="uneven", part=1.0, ahead=0)
@settings(max_examples=60, deadline=None)
def test_a_loader_continues_from_a_checkpoint_with_exactly_the_rest(
    count: int, world: int, partition: Partition | None, batch_size: int | None, remainder: str, part: float, ahead: int
) -> None:
    config = {"partition": partition, "shuffle_seed": 9, "batch_size": batch_size, "remainder": remainder}
    if all(loader.is_empty() for loader in loaders(count, world, **config)):
        with pytest.raises(ConfigError, match="has no batches"):
            next(iter(loaders(count, world, **config)[0]))
        return
    whole = [numbers(loader) for loader in loaders(count, world, **config)]
    for rank, loader in enumerate(loaders(count, world, **config)):
        items = [loader.next() for _ in range(int(part * len(loader)))]
        loader.prefetch(ahead)
        text = json.dumps(loader.get_checkpoint().as_dict())
        loader.close()
        fresh = loaders(count, world, **config)[rank]
        fresh.prefetch(ahead)  # what a loader has read ahead before it is restored must not come
        fresh.restore_from_checkpoint(json.loads(text))
        rest = [] if fresh.epoch else numbers(fresh)
        assert numbers(items) + rest == whole[rank]


def test_a_checkpoint_of_a_finished_epoch_begins_the_next() -> None:
    (loader,) = loaders(10, 1, shuffle_seed=2)
    list(loader)
    checkpoint = loader.get_checkpoint()
    assert (checkpoint.epoch, checkpoint.position, checkpoint.processed) == (1, 0, ())
    (other,) = loaders(10, 1, shuffle_seed=2)
    other.restore_from_checkpoint(checkpoint)
    assert (other.epoch, numbers(other)) == (1, numbers(loader))


def test_a_checkpoint_inside_a_batch_continues_inside_it(data: Path) -> None:
    def fresh() -> StreamingShardLoader:
        return StreamingShardLoader(StreamingDataset(local=data, shuffle=True, batch_size=16), StreamingConfig())

    whole = ids_of(fresh())
    for stop in (1, 15, 16, 17, 100, SAMPLES - 1):
        first = fresh()
        begun = [check_sample(first.next()) for _ in range(stop)]
        second = fresh()
        second.restore_from_checkpoint(first.get_checkpoint())
        more = check_sample(second.next())
        third = fresh()
        third.restore_from_checkpoint(second.get_checkpoint())
        rest = [] if third.epoch else ids_of(third)
        assert [*begun, more, *rest] == whole


def test_a_world_of_another_size_continues_with_the_rest() -> None:
    config = {"batch_size": 3, "shuffle_seed": 5, "remainder": "uneven", "partition": Elastic()}
    first = loaders(60, 4, **config)
    begun = [loader.next() for loader in first for _ in range(2)]
    checkpoint = first[0].get_checkpoint()
    assert checkpoint.processed == ((0, 24),)
    rest = []
    for loader in loaders(60, 3, **config):
        loader.restore_from_checkpoint(checkpoint, any_rank=True)
        rest += numbers(loader)
    assert sorted(numbers(begun) + rest) == list(range(60))


def test_a_checkpoint_holds_as_much_for_many_samples_as_for_few() -> None:
    sizes = []
    for count in (1000, 100_000):
        (loader,) = loaders(count, 1, batch_size=100, prefetch_buffer_size=0)
        for _ in range(count // 200):
            loader.next()
        sizes.append(len(json.dumps(loader.get_checkpoint().as_dict())))
    assert sizes[1] - sizes[0] < 20


def changed(checkpoint: Checkpoint, **values: Any) -> dict[str, Any]:
    return {**checkpoint.as_dict(), **values}


def _bad_checkpoints() -> Iterator[tuple[str, Any, str]]:
    loader = StreamingShardLoader(arrays(40), StreamingConfig(2, 0, batch_size=4, shuffle_seed=1))
    loader.next()
    good = loader.get_checkpoint()
    yield "nothing", {}, "not a checkpoint"
    yield "a later format", changed(good, stoker_checkpoint=7), "format 7, this stoker reads format 1"
    yield "a part missing", {k: v for k, v in good.as_dict().items() if k != "seed"}, "incomplete.*seed"
    yield "a negative position", changed(good, position=-1), "position must be an integer"
    yield "text for a number", changed(good, epoch="1"), "epoch must be an integer"
    yield "falling intervals", changed(good, processed=[[4, 8], [0, 4]]), "rising intervals"
    yield "intervals and position that differ", changed(good, processed=[[0, 4]]), "position is 8"
    yield "another kind", changed(good, kind="leased"), "kind 'leased', this loader makes 'lockstep'"
    yield "no kind", changed(good, kind="mine"), "kind must be one of"
    yield "another rank", changed(good, rank=1), "rank 1 of 2, this loader is rank 0 of 2"
    yield "another world", changed(good, world_size=3), "rank 0 of 3, this loader is rank 0 of 2"
    yield "a rank beyond its world", changed(good, rank=9), "rank 9 is not in a world of 2"
    beyond = {**good.state, "position": 41}
    yield "beyond the epoch", changed(good, position=41, processed=[[0, 41]], state=beyond), "beyond the epoch of 40"
    yield "another position within", changed(good, position=12, processed=[[0, 12]]), "it was changed"
    for name, config in (
        ("seed", StreamingConfig(2, 0, batch_size=4, shuffle_seed=2)),
        ("shuffle", StreamingConfig(2, 0, batch_size=4)),
        ("partition", StreamingConfig(2, 0, batch_size=4, shuffle_seed=1, partition=Contiguous())),
    ):
        one = StreamingShardLoader(arrays(40), config)
        one.next()
        yield f"another {name}", one.get_checkpoint(), f"order.*{name}"
    short = StreamingShardLoader(arrays(39), StreamingConfig(2, 0, batch_size=4, shuffle_seed=1))
    yield "other data", short.get_checkpoint(), "another dataset"
    edited = arrays(40)
    edited["id"][3] = 77
    other = StreamingShardLoader(edited, StreamingConfig(2, 0, batch_size=4, shuffle_seed=1))
    yield "data that was edited", other.get_checkpoint(), "another dataset"


@pytest.mark.parametrize(("checkpoint", "message"), [pytest.param(c, m, id=name) for name, c, m in _bad_checkpoints()])
def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(checkpoint: Any, message: str) -> None:
    loader = StreamingShardLoader(arrays(40), StreamingConfig(2, 0, batch_size=4, shuffle_seed=1))
    first = numbers([loader.next()])
    with pytest.raises(StateError, match=message):
        loader.restore_from_checkpoint(checkpoint)
    (fresh,) = [StreamingShardLoader(arrays(40), StreamingConfig(2, 0, batch_size=4, shuffle_seed=1))]
    assert first + numbers(loader) == numbers(fresh)


def test_orders_of_mosaicml_streaming_are_read_but_not_changed(data: Path) -> None:
    dataset = StreamingDataset(local=data, shuffle=True, shuffle_algo="py1e", batch_size=4)
    with pytest.raises(ConfigError, match="not those of mosaicml-streaming"):
        StreamingShardLoader(dataset, StreamingConfig(shuffle_seed=1))
    expected = ids_of(StreamingDataset(local=data, shuffle=True, shuffle_algo="py1e", batch_size=4))
    assert ids_of(StreamingShardLoader(dataset, StreamingConfig())) == expected


def test_the_world_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "5")
    assert StreamingConfig.detect(batch_size=4) == StreamingConfig(5, 2, batch_size=4)
