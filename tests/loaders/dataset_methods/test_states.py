"""States of datasets and loaders at every moment are complete, or refused with what to do."""

from __future__ import annotations

import json
import logging
import math
import random
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from torch.utils.data import DataLoader, IterableDataset

from stoker import (
    KeepIds,
    LMStream,
    StreamingConfig,
    StreamingDataLoader,
    StreamingDataset,
    StreamingShardLoader,
    World,
)
from stoker.errors import ConfigError, StateError
from stoker.order.partition import Partition
from stoker.partitions import Elastic, HashBased, RangeBased, RoundRobin
from support import PARTITIONS, write_columns

COUNT: Final = 67
SKEWED: Final = RangeBased([(0, 10), (10, 60), (60, COUNT)])
DRAWN: Final = (*PARTITIONS, RangeBased([(0, 20), (20, 30), (30, 60), (60, COUNT)]))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples that hold their own numbers, and a document of tokens each."""
    ids = np.arange(COUNT)
    tokens = [np.full(number % 9 + 1, number, np.int32) for number in range(COUNT)]
    encodings = {"id": "int", "label": "int", "tokens": "ndarray:int32"}
    columns = {"id": ids, "label": ids % 3, "tokens": tokens}
    return write_columns(tmp_path_factory.mktemp("data"), columns, encodings, size_limit="1kb")


def open_rank(data: Path, rank: int, world: int, **options: Any) -> StreamingDataset:
    """The dataset as one rank reads it."""
    defaults = {"batch_size": 4, "shuffle": True, "shuffle_seed": 5, "columns": ["id"]}
    return StreamingDataset(local=data, world=World(rank, world, world), **{**defaults, **options})


def ids(batch: Any) -> list[int]:
    """Numbers of a batch's samples, of arrays or tensors."""
    return [int(number) for number in batch["id"]]


@pytest.mark.parametrize("options", [{"partition_algo": RoundRobin()}, {"shuffle_algo": "py1e"}])
def test_a_state_without_the_start_of_its_epoch_is_refused(data: Path, options: Any) -> None:
    reader = open_rank(data, 0, 2, **options)
    next(iter(reader.batches()))
    state = reader.state_dict()
    fresh = open_rank(data, 0, 1, **options)
    some = dict(list(state["start"].items())[:-1])
    starts: list[Any] = [some, {}, [], 0, None]
    changed = [{**state, "start": start} for start in starts]
    for wrong in ({key: value for key, value in state.items() if key != "start"}, *changed):
        with pytest.raises(StateError, match="start of"):
            fresh.load_state_dict(wrong)
    fresh.load_state_dict(state)


def test_a_state_that_does_not_say_how_nulls_are_treated_is_of_the_default(data: Path) -> None:
    partition = HashBased(4, key="label")
    reader = open_rank(data, 0, 2, partition_algo=partition)
    next(iter(reader.batches()))
    state = reader.state_dict()
    del state["order"]["partition"]["nulls"]
    open_rank(data, 0, 2, partition_algo=partition).load_state_dict(state)
    with pytest.raises(StateError, match=r"partition.nulls was 'error' and is 'group'"):
        open_rank(data, 0, 2, partition_algo=HashBased(4, key="label", nulls="group")).load_state_dict(state)


def test_fields_of_a_state_that_have_wrong_types_are_named(data: Path) -> None:
    reader = open_rank(data, 0, 1)
    state = reader.state_dict()
    (name,) = state["streams"]
    contents: list[Any] = [5, "", []]
    for content in contents:
        with pytest.raises(StateError, match="'content' should be a dict"):
            reader.load_state_dict({**state, "streams": {name: {**state["streams"][name], "content": content}}})
    with pytest.raises(StateError, match="'partial' should have counts of samples, batch_size"):
        reader.load_state_dict({**state, "partial": np.int64(3)})


# -- random histories, through objects -------------------------------------------------------------------------------


def make_options(rng: random.Random) -> dict[str, Any]:
    """A dataset's settings."""
    if rng.random() < 0.3:
        algo = rng.choice(["naive", "py1s", "py2s", "py1br", "py1e"])
        return {"shuffle_algo": algo, "shuffle_block_size": 20, "num_canonical_nodes": rng.choice([None, 2, 4])}
    return {"partition_algo": rng.choice(DRAWN), "remainder": rng.choice(["pad", "uneven", "drop"])}


def read_steps(data: Path, options: dict[str, Any], state: Any, world: int, size: int, rng: random.Random) -> Any:
    """All ranks go on from a state, in loaders or directly, take some steps, and one of them saves."""
    sets = [open_rank(data, rank, world, batch_size=size, **options) for rank in range(world)]
    through_loader = rng.random() < 0.5
    columnar = rng.random() < 0.5
    sources: list[Any] = [StreamingDataLoader(one, columnar=columnar) for one in sets] if through_loader else list(sets)
    for source in sources:
        if state is not None:
            source.load_state_dict(state)
    if state is not None and rng.random() < 0.2:
        return sources[rng.randrange(world)].state_dict(), [], []
    iterators = [iter(source) if through_loader else source.batches() for source in sources]
    steps = rng.choice([rng.randint(0, 6), rng.randint(0, 6), 100])
    had: list[list[list[int]]] = [[] for _ in sources]
    ended = [False] * world
    for _ in range(steps):
        for rank, iterator in enumerate(iterators):
            batch = next(iterator, None)
            ended[rank] = ended[rank] or batch is None
            if batch is not None:
                had[rank].append(ids(batch))
        if all(ended):
            break
    saver = rng.randrange(world)
    taken = list(map(len, had))
    if any(ended) and options.get("remainder") == "uneven":
        saver = taken.index(max(taken))  # it knows how far all are
    saved = sources[saver].state_dict()
    return saved, [number for each in had for batch in each for number in batch], taken


def test_histories_through_datasets_and_loaders(data: Path, pytestconfig: pytest.Config) -> None:
    for number in range(pytestconfig.getoption("--histories") // 5):
        rng = random.Random(number)
        options = make_options(rng)
        seen: Counter[int] = Counter()
        state: Any = None
        told: list[Any] = [options]
        while state is None or not state["epoch"]:
            world, size = rng.randint(1, 4), rng.randint(1, 6)
            saved, had, taken = read_steps(data, options, state, world, size, rng)
            seen.update(had)
            told.append((world, size, taken, saved and (saved["epoch"], saved["position"])))
            if options.get("remainder", "pad") != "uneven":
                assert len(set(taken)) <= 1, told
            state = json.loads(json.dumps(saved))
        if options.get("remainder") != "drop":
            assert seen.keys() == set(range(COUNT)), (number, told)
        if options.get("remainder") in ("drop", "uneven"):
            assert max(seen.values()) == 1, (number, told)


# -- ranks that end before others --------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["dataset", "loader"])
def test_a_rank_that_ends_before_others_has_no_state_and_says_who_has(data: Path, through: str) -> None:
    sets = [open_rank(data, rank, 3, partition_algo=SKEWED, remainder="uneven") for rank in range(3)]
    sources: list[Any] = [StreamingDataLoader(one) for one in sets] if through == "loader" else list(sets)
    iterators = [iter(s) if through == "loader" else s.batches() for s in sources]
    had = [ids(batch) for iterator in iterators for _, batch in zip(range(3), iterator, strict=False)]
    before = sources[0].state_dict()  # all three batches, and not yet told that there are no more
    assert before["position"] == sources[1].state_dict()["position"] > 0
    assert next(iterators[0], None) is None
    with pytest.raises(StateError, match=r"rank 0 has had all of its 3 batches.*Take the state of rank 1.*epoch_size"):
        sources[0].state_dict()
    state = sources[1].state_dict()
    rest = [ids(batch) for rank in range(2) for batch in resumed(data, rank, 2, state)]
    assert sorted(number for batch in had + rest for number in batch) == list(range(COUNT))
    # Where all have ended, a rank that knows it can say so.
    over = sets[0].state_dict(num_samples=sets[0].epoch_size)
    assert (over["epoch"], over["position"]) == (1, 0)


def resumed(data: Path, rank: int, world: int, state: Any) -> Any:
    """The rest of an epoch in another world."""
    one = open_rank(data, rank, world, partition_algo=SKEWED, remainder="uneven")
    one.load_state_dict(state)
    return one.batches()


@pytest.mark.parametrize("steps", [3, 10])
def test_num_samples_counts_what_padded_ranks_repeat(data: Path, steps: int) -> None:
    sets = [open_rank(data, rank, 3, partition_algo=SKEWED) for rank in range(3)]
    had = [ids(batch) for one in sets for _, batch in zip(range(steps), one.batches(), strict=False)]
    count = sum(map(len, had))
    assert len({number for batch in had for number in batch}) < count  # short ranks repeat theirs
    state = sets[0].state_dict(count, from_beginning=False)
    for rank in range(2):
        one = open_rank(data, rank, 2, partition_algo=SKEWED)
        one.load_state_dict(state)
        had += map(ids, one.batches())
    assert {number for batch in had for number in batch} == set(range(COUNT))
    with pytest.raises(StateError, match="not a whole number of steps"):
        sets[0].state_dict(count - 1)


def test_a_shard_loader_that_ended_first_continues_alone_and_for_nobody_else() -> None:
    arrays = {"x": np.arange(COUNT)}
    config: dict[str, Any] = {"partition": SKEWED, "remainder": "uneven", "batch_size": 4}
    first = StreamingShardLoader(arrays, StreamingConfig(3, 0, **config))
    assert sum(len(batch["x"]) for batch in first) == 10
    checkpoint = first.get_checkpoint()
    again = StreamingShardLoader(arrays, StreamingConfig(3, 0, **config))
    again.restore_from_checkpoint(checkpoint)
    assert sum(len(batch["x"]) for batch in again) == 10  # the next epoch
    assert again.epoch == 1
    other = StreamingShardLoader(arrays, StreamingConfig(3, 1, **config))
    with pytest.raises(StateError, match="had ended epoch 0 before others"):
        other.restore_from_checkpoint(checkpoint, any_rank=True)


def test_a_rank_that_the_plan_left_out_has_no_checkpoint() -> None:
    config: dict[str, Any] = {"global_batch_size": 6, "prefetch_buffer_size": 0}
    ranks = [StreamingShardLoader({"x": np.arange(COUNT)}, StreamingConfig(2, rank, **config)) for rank in range(2)]
    for loader in ranks:
        loader.next()
        loader.change_plan((1,), ranks=(0,))
    assert len(list(ranks[1])) < len(list(ranks[0]))
    assert ranks[0].get_checkpoint().position == 66
    with pytest.raises(StateError, match=r"left out of the plan of epoch 0.*take the checkpoint of rank 0"):
        ranks[1].get_checkpoint()


# -- copies in DataLoader workers ----------------------------------------------------------------------------------------


@pytest.mark.processes
def test_next_to_a_plain_dataloader_with_workers_a_state_needs_a_count(data: Path) -> None:
    dataset = open_rank(data, 0, 1)
    fresh = dataset.state_dict()
    assert (fresh["epoch"], fresh["position"]) == (0, 0)
    plain = DataLoader(dataset, batch_size=4, num_workers=2)
    batches = iter(plain)
    had = [ids(next(batches)) for _ in range(5)]
    for ask in (dataset.state_dict, StreamingDataLoader(dataset).state_dict):
        with pytest.raises(StateError, match=r"Use StreamingDataLoader.*state_dict\(num_samples=...\)"):
            ask()
    state = dataset.state_dict(20, from_beginning=False)
    assert state == dataset.state_dict(num_samples=20)
    del batches
    one = open_rank(data, 0, 1)
    one.load_state_dict(state)
    loaded = one.state_dict(0, from_beginning=False)  # nothing was read since
    assert (loaded["epoch"], loaded["position"]) == (0, 20)
    assert sorted([*chain(*had), *chain(*map(ids, one.batches()))]) == list(range(COUNT))
    dataset.load_state_dict(state)  # what copies did before does not matter after a load
    assert dataset.state_dict()["position"] == 20


@pytest.mark.processes
def test_after_an_own_iteration_the_workers_epoch_counts(data: Path) -> None:
    dataset = open_rank(data, 0, 1)
    assert len(list(dataset)) == COUNT
    plain = iter(DataLoader(dataset, batch_size=4, num_workers=1))
    next(plain)
    state = dataset.state_dict(num_samples=4)
    assert (state["epoch"], state["position"]) == (1, 4)
    with pytest.raises(StateError, match="copies"):
        dataset.state_dict()


@pytest.mark.processes
def test_the_loaders_own_state_stays_right_with_workers_that_live_on(data: Path) -> None:
    loader = StreamingDataLoader(open_rank(data, 0, 1), num_workers=2, persistent_workers=True, columnar=True)
    first = [ids(batch) for batch in loader]
    assert loader.state_dict()["epoch"] == 1
    had = []
    for batch in loader:
        had += ids(batch)
        if len(had) == 12:
            break
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 12)
    loader.load_state_dict(state)
    loader.load_state_dict(state)  # twice is as once
    assert loader.state_dict() == state
    assert sorted([*had, *chain(*map(ids, loader))]) == sorted(chain(*first))


# -- two iterations, early leaves --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["dataset", "loader"])
def test_two_iterations_that_take_turns_have_no_state(data: Path, through: str) -> None:
    dataset = open_rank(data, 0, 1)
    source: Any = StreamingDataLoader(dataset) if through == "loader" else dataset
    one = iter(source) if through == "loader" else dataset.batches()
    next(one)
    two = iter(source) if through == "loader" else dataset.batches()
    next(two)
    state = source.state_dict()  # the first was left for the second
    assert (state["epoch"], state["position"]) == (1, 4)
    next(one)
    with pytest.raises(StateError, match="ambiguous: two iterators over this"):
        source.state_dict()
    source.load_state_dict(state)
    assert source.state_dict()["position"] == 4


def test_a_state_that_was_loaded_inside_a_batch_stays_so_until_something_is_read(data: Path) -> None:
    dataset = open_rank(data, 0, 1)
    samples = iter(dataset)
    had = [next(samples)["id"] for _ in range(6)]
    state = dataset.state_dict()
    assert state["partial"]["samples"] == 2
    dataset.load_state_dict(state)
    assert dataset.state_dict() == state
    again = iter(dataset)
    had.append(next(again)["id"])
    later = dataset.state_dict()
    assert (later["position"], later["partial"]["samples"]) == (4, 3)
    assert sorted([*had, *(sample["id"] for sample in again)]) == list(range(COUNT))


# -- partial batches left out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partition", [Elastic(), SKEWED, HashBased(8, 1)])
@pytest.mark.parametrize("columns", [["id"]])
def test_ranks_that_drop_the_last_batch_take_equally_many_steps(
    data: Path, partition: Partition, columns: list[str]
) -> None:
    for size in range(2, 9):
        loaders = [
            StreamingDataLoader(
                open_rank(data, rank, 3, partition_algo=partition, batch_size=size, columns=columns), drop_last=True
            )
            for rank in range(3)
        ]
        counts = [[len(ids(batch)) for batch in loader] for loader in loaders]
        assert len({len(each) for each in counts}) == 1
        assert {one for each in counts for one in each} == {size}
        assert {len(loader) for loader in loaders} == {len(counts[0])}
        assert {loader.state_dict()["epoch"] for loader in loaders} == {1}


# -- epochs with nothing -----------------------------------------------------------------------------------------------------


def test_an_epoch_of_which_all_is_left_out_is_an_error(data: Path) -> None:
    few = {"subset": KeepIds(range(5)), "remainder": "drop"}
    for rank in range(2):
        dataset = open_rank(data, rank, 2, **few)
        for read in (dataset.batches(), iter(dataset), iter(StreamingDataLoader(dataset))):
            with pytest.raises(ConfigError, match=r"no batches: .* one batch of 4 on each of 2 ranks.*remainder='pad'"):
                next(read)
    with pytest.raises(ConfigError, match="drop_last=True leaves nothing of epoch 0: its 5 samples"):
        next(iter(StreamingDataLoader(open_rank(data, 0, 2, subset=KeepIds(range(5))), drop_last=True)))
    # A rank alone may have nothing.
    assert not list(open_rank(data, 2, 3, subset=KeepIds(range(2)), remainder="uneven"))


def test_an_epoch_without_samples_is_said(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    dataset = open_rank(data, 0, 1, subset=KeepIds([]))
    with caplog.at_level(logging.WARNING):
        assert not list(dataset.batches())
    assert "epoch 0 has no samples: there are none in the dataset, or subset=" in caplog.text


# -- LMStream ----------------------------------------------------------------------------------------------------------------


def stream_of(data: Path, **options: Any) -> LMStream:
    """Rows of eight tokens."""
    opened = open_rank(data, 0, 1, columns=["tokens"], **options.pop("dataset", {}))
    return LMStream(opened, "tokens", 2, 8, **{"eos_id": 0, "pad_id": 0, **options})


@pytest.mark.parametrize("layout", ["concat", "pack", "truncate"])
def test_a_stream_that_was_loaded_and_asked_for_an_iterator_keeps_its_state(data: Path, layout: Any) -> None:
    options: dict[str, Any] = {"layout": layout, "dataset": {"batch_size": 2}}
    stream = stream_of(data, **options)
    batches = iter(stream)
    for _ in range(5):
        next(batches)
    state = stream.state_dict()
    fresh = stream_of(data, **options)
    fresh.load_state_dict(state)
    going_on = iter(fresh)
    assert fresh.state_dict() == state  # before the first batch, too
    rest = [batch.input_ids.tolist() for batch in going_on]
    assert rest == [batch.input_ids.tolist() for batch in batches]


def test_only_one_iteration_over_a_stream_continues(data: Path) -> None:
    stream = stream_of(data)
    one = iter(stream)
    next(one)
    two = iter(stream)
    next(two)
    with pytest.raises(StateError, match="another iteration over this LMStream has begun"):
        next(one)
    assert stream.state_dict()["dataset"]["epoch"] == 1


def test_an_endless_stream_continues_after_an_epoch_that_had_ended_for_this_rank(data: Path) -> None:
    def opened() -> LMStream:
        dataset = open_rank(data, 0, 3, columns=["tokens"], partition_algo=SKEWED, remainder="uneven", batch_size=2)
        return LMStream(dataset, "tokens", 2, 8, layout="truncate", pad_id=0, endless=True)

    stream = opened()
    batches = iter(stream)
    for _ in range(5):  # ten documents: all that this rank has in an epoch
        next(batches)
    state = stream.state_dict()
    assert state["dataset"]["epoch"] == 0
    fresh = opened()
    fresh.load_state_dict(state)
    going_on = iter(fresh)
    for _ in range(7):
        assert next(going_on).input_ids.tolist() == next(batches).input_ids.tolist()


def test_an_endless_stream_over_epochs_without_documents_is_an_error(data: Path) -> None:
    stream = stream_of(data, endless=True, dataset={"subset": KeepIds([])})
    with pytest.raises(ConfigError, match="epoch 0 has no documents for rank 0"):
        next(iter(stream))


class _Batches(IterableDataset[Any]):
    def __init__(self, stream: LMStream) -> None:
        self.stream = stream

    def __iter__(self) -> Any:
        return (batch.input_ids for batch in self.stream)


@pytest.mark.processes
def test_a_stream_in_workers_has_no_state_in_the_main_process(data: Path) -> None:
    stream = stream_of(data)
    plain = iter(DataLoader(_Batches(stream), batch_size=None, num_workers=1))
    next(plain)
    with pytest.raises(StateError, match="workers of a DataLoader iterate copies of this dataset"):
        stream.state_dict()


@pytest.mark.parametrize(
    "consumed", [-1, 10**30, None, "x", [], 1.5, True, math.nan, {"": -1}, {"": True}, {"": 1 << 70}]
)
def test_a_state_whose_consumed_is_no_count_of_samples_is_refused(data: Path, consumed: Any) -> None:
    state = StreamingDataset(local=data).state_dict()
    with pytest.raises(StateError, match="'consumed' should say how many samples"):
        StreamingDataset(local=data).load_state_dict({**state, "consumed": consumed})
