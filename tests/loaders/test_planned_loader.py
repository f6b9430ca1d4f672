"""Global batches in parts by weights: every sample once, whatever the weights, and however often they are changed."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patience import PATIENCE
from stoker import StreamingDataset
from stoker.coordination.plan_log import apportion
from stoker.errors import ConfigError, StateError
from stoker.loaders.shard_loader import Checkpoint, StreamingConfig, StreamingShardLoader
from stoker.order.partition_strategies import Contiguous, RoundRobin
from support import check_batch, make_dataset


def loaders(samples: int, world: int, size: int, **more: Any) -> list[StreamingShardLoader]:
    data = {"id": np.arange(samples)}
    more = {"shuffle_seed": 3, "prefetch_buffer_size": 8, **more}
    return [
        StreamingShardLoader(data, StreamingConfig(world, rank, global_batch_size=size, **more))
        for rank in range(world)
    ]


def numbers(batch: Any) -> list[int]:
    found: list[int] = batch["id"].tolist()
    return found


def flat(parts: Iterable[list[Any]]) -> list[Any]:
    return list(chain.from_iterable(parts))


def global_batches(samples: int, size: int, epoch: int = 0) -> list[list[int]]:
    """What one rank alone has."""
    (alone,) = loaders(samples, 1, size)
    for _ in range(epoch):
        alone.reset()
    return [numbers(batch) for batch in alone]


def step(ranks: list[StreamingShardLoader]) -> list[list[int]]:
    return [numbers(loader.next()) for loader in ranks]


@given(st.data())
def test_whatever_changes_every_step_has_its_global_batch(data: st.DataObject) -> None:
    world, size = data.draw(st.integers(1, 5)), data.draw(st.integers(40, 90))
    steps, buffer = data.draw(st.integers(1, 25)), data.draw(st.sampled_from([0, 1, 8, 100]))
    weights = st.lists(st.integers(1, 6), min_size=world, max_size=world).map(tuple)
    samples = steps * size + data.draw(st.integers(0, size - 1))
    ranks = loaders(
        samples,
        world,
        size,
        weights=data.draw(st.none() | weights),
        prefetch_buffer_size=buffer,
    )
    expected = global_batches(samples, size)
    assert len(expected) == steps
    changes: dict[int, tuple[int, ...]] = {0: ranks[0].plan()["generations"][0][2]}
    for number in range(steps):
        if data.draw(st.booleans()):
            # Ranks have read ahead unlike far, and are told the same.
            for loader in ranks[:: 1 + number % 2]:
                loader.prefetch(timeout=0.01 if buffer else None)
            new = data.draw(weights)
            plan = ranks[0].plan()
            if plan["horizon"] < plan["end"] and plan["horizon"] > plan["generations"][-1][0]:
                (position,) = {loader.change_plan(new) for loader in ranks}
                assert position > number * size
                changes[position] = new
        found = step(ranks)
        assert flat(found) == expected[number]
        now = changes[max(position for position in changes if position <= number * size)]
        assert [len(part) for part in found] == apportion(size, now)
    assert {loader.next() for loader in ranks} == {None}
    assert len({str(loader.plan()) for loader in ranks}) == 1


def test_a_change_holds_from_the_first_step_that_nobody_can_have_read() -> None:
    ranks = loaders(1000, 2, 20, prefetch_buffer_size=40)  # four steps ahead
    step(ranks)
    for loader in ranks:
        assert loader.prefetch(timeout=PATIENCE) == 40
    assert [loader.change_plan((3, 1)) for loader in ranks] == [100, 100]
    sizes = [[len(part) for part in step(ranks)] for _ in range(6)]
    assert sizes == [[10, 10]] * 4 + [[15, 5]] * 2


def test_a_rank_that_is_left_out_ends_and_comes_back_with_the_next_epoch() -> None:
    ranks = loaders(400, 3, 20, prefetch_buffer_size=0)
    first = step(ranks)
    assert [loader.change_plan((1, 1), ranks=[0, 2]) for loader in ranks] == [40, 40, 40]
    found = first + step(ranks)
    assert ranks[1].next() is None
    found += [numbers(batch) for loader in (ranks[0], ranks[2]) for batch in loader]
    assert sorted(flat(found)) == list(range(400))
    assert [len(loader) for loader in ranks] == [20, 2, 20]
    for loader in ranks:
        loader.reset()
    assert [len(loader) for loader in ranks] == [20, 0, 20]
    assert {loader.change_plan((2, 1, 1)) for loader in ranks} == {20}
    again = [numbers(batch) for loader in ranks for batch in loader]
    assert sorted(flat(again)) == list(range(400))
    assert len(ranks[1]) == 19


def test_the_next_epoch_has_another_order_and_the_last_weights() -> None:
    ranks = loaders(300, 2, 30, weights=(2, 1))
    one = [flat(step(ranks)) for _ in range(10)]
    for loader in ranks:
        loader.reset()
    two = [step(ranks) for _ in range(10)]
    assert [len(part) for part in two[0]] == [20, 10]
    assert one == global_batches(300, 30)
    assert [flat(parts) for parts in two] == global_batches(300, 30, epoch=1) != one


def test_a_run_continues_from_a_checkpoint_with_its_plan_also_with_what_is_yet_to_come() -> None:
    ranks = loaders(1000, 2, 20, prefetch_buffer_size=40)
    for _ in range(3):
        step(ranks)
    for loader in ranks:
        loader.change_plan((3, 1))
    step(ranks)
    saved = ranks[0].get_checkpoint().as_dict()
    left = [step(ranks) for _ in range(46)]
    others = loaders(1000, 2, 20, prefetch_buffer_size=40)
    for loader in others:
        loader.restore_from_checkpoint(saved, any_rank=True)
    assert [step(others) for _ in range(46)] == left
    assert [len(part) for part in left[2]] == [10, 10]
    assert [len(part) for part in left[3]] == [15, 5]


@pytest.mark.parametrize(("world", "weights"), [(1, None), (3, (1, 2, 2)), (5, None)])
def test_a_run_continues_in_another_world(world: int, weights: tuple[int, ...] | None) -> None:
    ranks = loaders(600, 4, 20)
    before = [flat(step(ranks)) for _ in range(7)]
    for loader in ranks:
        loader.change_plan((5, 1, 1, 1))
    saved = ranks[2].get_checkpoint()
    others = loaders(600, world, 20, weights=weights)
    for loader in others:
        loader.restore_from_checkpoint(saved, any_rank=True)
    after = [step(others) for _ in range(23)]
    assert before + [flat(parts) for parts in after] == global_batches(600, 20)
    assert [len(part) for part in after[0]] == apportion(20, weights or (1,) * world)
    assert {loader.next() for loader in others} == {None}
    assert others[0].get_checkpoint().state["plan"]["generations"][0] == [0, [0, 1, 2, 3], [1, 1, 1, 1]]


def test_shards_are_read_by_a_plan(tmp_path: Path) -> None:
    make_dataset(tmp_path / "remote", 500)

    def ranks() -> list[StreamingShardLoader]:
        datasets = [
            StreamingDataset(remote=tmp_path / "remote", local=tmp_path / "cache", shuffle=True) for _ in range(3)
        ]
        return [
            StreamingShardLoader(
                dataset,
                StreamingConfig(
                    3,
                    rank,
                    global_batch_size=48,
                    weights=(4, 1, 1),
                    checkpoint_interval=24,
                    checkpoint_url=tmp_path / "c",
                ),
            )
            for rank, dataset in enumerate(datasets)
        ]

    first = ranks()
    found = [[check_batch(loader.next()) for loader in first] for _ in range(6)]
    assert [len(part) for part in found[0]] == [32, 8, 8]
    for loader in first:
        loader.close()
    second = ranks()
    restored = [loader.restore_latest() for loader in second]
    assert restored[0] is not None
    position = restored[0].position
    assert {None if one is None else one.position for one in restored} == {position}
    assert 0 < position <= 6 * 48
    found = found[: position // 48] + [
        [check_batch(loader.next()) for loader in second] for _ in range(position // 48, 10)
    ]
    everything = flat(flat(found))
    assert len(everything) == len(set(everything)) == 480
    assert [loader.next() for loader in second] == [None] * 3
    for loader in second:
        loader.close()


def test_a_forgotten_loader_ends_its_thread() -> None:
    before = set(threading.enumerate())
    (loader,) = loaders(2000, 1, 10)
    loader.next()
    (thread,) = [thread for thread in set(threading.enumerate()) - before if thread.name == "stoker-ahead"]
    del loader
    gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"batch_size": 4}, "global_batch_size=20 cannot be combined with batch_size"),
        ({"remainder": "join"}, "cannot be combined with remainder='join'"),
        ({"partition": Contiguous()}, "a partition other than Elastic"),
        ({"weights": (1, 2, 3)}, "an integer from 1 for each of the 2 ranks"),
        ({"weights": (1, 0)}, "an integer from 1 for each"),
        ({"weights": (50, 1)}, "rank 1 with weight 1 of 51 gets nothing of a global batch of 20"),
    ],
)
def test_configs_that_contradict_themselves(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        loaders(100, 2, 20, **more)


def test_weights_need_a_global_batch() -> None:
    with pytest.raises(ConfigError, match="weights= needs global_batch_size="):
        StreamingConfig(2, 0, weights=(1, 2))


def test_errors_name_both_sides(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="more than the 10 samples of an epoch"):
        loaders(10, 1, 20)
    ranks = loaders(100, 2, 20, prefetch_buffer_size=0)
    with pytest.raises(ConfigError, match="2 ranks and 3 weights"):
        ranks[0].change_plan((1, 1, 1))
    with pytest.raises(ConfigError, match="rank 2 is not in a world of 2"):
        ranks[0].change_plan((1, 1), ranks=[1, 2])
    step(ranks)
    ranks[0].change_plan((1,), ranks=[0])
    with pytest.raises(ConfigError, match="rank 1 was left out of the plan from position 40 on"):
        ranks[0].change_plan((1, 1))
    saved = ranks[0].get_checkpoint()
    with pytest.raises(StateError, match="of rank 0 of 2, this loader is rank 1 of 2"):
        ranks[1].restore_from_checkpoint(saved)
    with pytest.raises(StateError, match="global batches of 20 up to position 100, this loader 10 up to 100"):
        loaders(100, 2, 10)[0].restore_from_checkpoint(saved)
    with pytest.raises(StateError, match="'planned', this loader makes 'lockstep'"):
        StreamingShardLoader({"id": np.arange(100)}).restore_from_checkpoint(saved)
    with pytest.raises(ConfigError, match="only a config with global_batch_size"):
        StreamingShardLoader({"id": np.arange(100)}).change_plan((1,))
    make_dataset(tmp_path, 60)
    with pytest.raises(ConfigError, match="partition 'round_robin', by which each rank owns"):
        StreamingShardLoader(
            StreamingDataset(local=tmp_path, partition_algo=RoundRobin()), StreamingConfig(global_batch_size=4)
        )


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"end": 100, "step": 20, "horizon": 0, "generations": []},
        {"end": 100, "step": 20, "horizon": 0, "generations": [[0, [0, 1], [1.5, 1]]]},
        {"end": 100, "step": 20, "horizon": 0, "generations": [[0, ["0"], [1]]]},
        {"end": "100", "step": 20, "horizon": 0, "generations": [[0, [0], [1]]]},
    ],
)
def test_a_plan_that_is_none_is_refused(plan: dict[str, Any]) -> None:
    (loader,) = loaders(100, 1, 20)
    saved = loader.get_checkpoint().as_dict()
    saved["state"]["plan"] = plan
    with pytest.raises(StateError, match="not a plan"):
        loader.restore_from_checkpoint(Checkpoint.from_dict(saved))
