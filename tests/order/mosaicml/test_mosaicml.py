"""The reference's orders, by what was recorded of them and by what they promise; beside it: ``test_mosaicml_peer``."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mosaicml_cases import (
    ALGOS,
    METHODS,
    mixture_of,
    partition_array,
    plan_of,
    start_of,
    state_after,
    work_array,
    work_case,
)

from stoker import StreamingDataset
from stoker.cluster import LoaderWorker
from stoker.errors import ConfigError, StateError
from stoker.order.mixture.weights import Mixture, StreamWeight
from stoker.order.mosaicml.partition import MosaicmlPartition
from stoker.order.mosaicml.sample_order import MosaicmlPlan
from stoker.order.mosaicml.settings import MosaicmlSettings, MosaicmlStart, MosaicmlWorld, read_mosaicml_state
from stoker.order.mosaicml.shuffles import choose_units, sample_counts, shuffle_ids
from stoker.order.sample_order import EpochPosition, Run
from stoker.types import Array
from support import write_samples

GOLDEN = json.loads((Path(__file__).parent / "golden" / "mosaicml.json").read_text())


def check(record: dict[str, Any], ids: Array) -> None:
    flat = np.ascontiguousarray(ids, dtype="<i8")
    assert list(flat.shape) == record["shape"]
    assert flat.ravel()[:8].tolist() == record["begins"]
    assert hashlib.sha1(flat.tobytes()).hexdigest() == record["sha1"]


# -- what was recorded ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("record", GOLDEN["shuffle"])
def test_recorded_shuffles(record: dict[str, Any]) -> None:
    case = record["case"]
    check(record, shuffle_ids(**{**case, "shard_sizes": np.array(case["shard_sizes"])}))


@pytest.mark.parametrize("record", GOLDEN["partition"])
def test_recorded_partitions(record: dict[str, Any]) -> None:
    case = dict(record["case"])
    workers = case.pop("workers_per_rank")
    check(record, partition_array(MosaicmlPartition(**case), workers))


@pytest.mark.parametrize("record", GOLDEN["sampling"])
def test_recorded_sampling(record: dict[str, Any]) -> None:
    case = record["case"]
    seed = case["seed"] + case["epoch"] * case["use_epoch"]
    check(record, sample_counts(np.array(case["samples_per_shard"]), case["choose"], case["granularity"], seed))


@pytest.mark.parametrize("record", GOLDEN["work"])
def test_recorded_epochs(record: dict[str, Any]) -> None:
    check(record, work_array(plan_of(record["case"]), record["case"]["workers"]))


def test_the_record_has_something_of_everything() -> None:
    seen = Counter(record["case"]["settings"]["batching_method"] for record in GOLDEN["work"])
    assert all(seen[method] >= 5 for method in METHODS)
    seen = Counter(record["case"]["algo"] for record in GOLDEN["shuffle"])
    assert all(seen[algo] >= 2 for algo in ALGOS)


# -- by hand -------------------------------------------------------------------------------------------------------


def test_each_node_reads_its_canonical_nodes_side_by_side() -> None:
    # 10 samples, 4 canonical nodes: 0 1 | 2 3 4 | 5 6 | 7 8 9, short ones repeating their last. Read side by side:
    # 0 2 5 7, 1 3 6 8, 1 4 6 9. Of two nodes, one takes every other entry.
    partition = MosaicmlPartition("orig", 10, 4, 2, 1, batch_size=4)
    assert partition_array(partition, 1).reshape(2, -1).tolist() == [
        [0, 5, 1, 6, 1, 6, -1, -1],
        [2, 7, 3, 8, 4, 9, -1, -1],
    ]
    assert (partition.batches, partition.full_batches, partition.count(0)) == (2, 1, 6)


def test_weights() -> None:
    sizes = [np.array([10, 20]), np.array([50])]
    mixture = Mixture.resolve(sizes, [StreamWeight(repeat=1.5), StreamWeight(choose=7)])
    assert (mixture.choose, mixture.epoch_size) == ((45, 7), 52)
    mixture = Mixture.resolve(sizes, [StreamWeight(proportion=1), StreamWeight(proportion=3)], 1000)
    assert (mixture.choose, mixture.proportion) == ((250, 750), (0.25, 0.75))
    assert Mixture.resolve(sizes).choose == (30, 50)
    assert sum(Mixture.resolve(sizes, None, 7).choose) == 7


def test_what_is_sampled_of_a_shard() -> None:
    mixture = Mixture.resolve([np.array([4, 6])], [StreamWeight(choose=25)])
    units = choose_units(mixture, [0], sampling_seed=1, picking_seed=1, granularity=1)
    assert units.sizes.sum() == 25
    assert units.ids is not None
    counts = np.bincount(units.ids, minlength=10)
    assert set(counts.tolist()) == {2, 3}
    assert (np.diff(units.ids)[np.diff(units.ids) < 0].size) == len(units.sizes) - 2


# -- what plans promise --------------------------------------------------------------------------------------------


def plans(seed: int) -> tuple[dict[str, Any], list[MosaicmlPlan]]:
    case = work_case(random.Random(seed))
    groups = case["nodes"] * case["ranks_per_node"] // case["replication"]
    try:
        return case, [plan_of(case, rank * case["replication"]) for rank in range(groups)]
    except ConfigError:
        assume(False)
        raise


def delivered(plan: MosaicmlPlan, **options: int) -> list[list[int]]:
    try:
        return [batch.tolist() for chunk in plan.chunks(**{"samples": 50, **options}) for batch in chunk]
    except ConfigError:
        assume(False)
        raise


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**40), workers=st.integers(1, 4), skip=st.integers(0, 5), together=st.integers(1, 300))
def test_workers_share_a_rank_s_batches(seed: int, workers: int, skip: int, together: int) -> None:
    _, ranks = plans(seed)
    plan = ranks[seed % len(ranks)]
    batches = delivered(plan)
    assert len(batches) == len(plan)
    assert sum(map(len, batches)) == plan.samples
    assert [len(batch) for batch in batches[: plan.full_batches]] == [plan.batch_size] * plan.full_batches
    tail = plan.samples % plan.batch_size
    assert [len(batch) for batch in batches[plan.full_batches :]] == [tail] * bool(tail)
    for worker in range(workers):
        part = delivered(plan, samples=together, worker=worker, workers=workers, skip=skip)
        assert part == batches[worker + skip * workers :: workers]


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**40), data=st.data())
def test_a_resume_continues_where_a_run_stopped(seed: int, data: st.DataObject) -> None:
    case, ranks = plans(seed)
    assume(len(ranks[0]) > 1)
    stop = data.draw(st.integers(0, ranks[0].full_batches - 1))
    state = read_mosaicml_state(json.loads(json.dumps(state_after(ranks[0], stop))))
    assert state.position == case["sample_in_epoch"] + stop * ranks[0].global_batch_size
    for plan in ranks:
        rest = MosaicmlPlan(
            plan.mixture, plan.settings.resumed(start_of(state)), plan.world, state.epoch, state.position
        )
        whole, remaining = delivered(plan), delivered(rest)
        assert len(remaining) == max(0, len(whole) - stop)
        # What fills up the last batches may be other samples: those are repeated from what is left.
        full = min(p.full_batches for p in ranks) - 1
        assert remaining[: max(0, full - stop)] == whole[stop : max(stop, full)]
        assert rest.end == plan.end


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**40))
def test_an_epoch_has_what_was_chosen(seed: int) -> None:
    case, _ = plans(seed)
    case["sample_in_epoch"] = 0
    try:
        plan = plan_of(case)
        ids = work_array(plan, case["workers"])
    except ConfigError:
        assume(False)
        raise
    had = Counter(ids[ids >= 0].tolist())
    mixture = mixture_of(case)
    joint = case["settings"]["batching_method"] == "random"
    wanted: Counter[int] = Counter()
    for streams in [range(len(mixture.choose))] if joint else [[s] for s in range(len(mixture.choose))]:
        units = choose_units(
            mixture,
            list(streams),
            sampling_seed=plan.settings.sampling_seed(plan.epoch),
            picking_seed=plan.settings.epoch_seed(plan.epoch),
            granularity=plan.settings.sampling_granularity,
        )
        wanted.update(units.to_ids(np.arange(units.sizes.sum())).tolist())
    if joint:
        assert not wanted - had
        assert plan.padding == (had - wanted).total()
    else:
        # Other methods leave out what fills no batch, and repeat to even out ranks at most.
        assert set(had) <= set(wanted)
        assert case["settings"]["batching_method"] == "device_per_stream" or plan.padding == 0
    groups = [plan_of(case, rank) for rank in range(0, case["nodes"] * case["ranks_per_node"], case["replication"])]
    # Ranks to which the reference gives a batch less repeat one sample here, to take as many steps.
    again = sum(
        len(groups[0]) > -(-int((ids[place] >= 0).sum()) // plan.batch_size) for place in np.ndindex(ids.shape[:2])
    )
    assert had.total() + again == sum(each.samples for each in groups)
    assert len({len(each) for each in groups}) == 1


def test_another_world_reads_the_same_global_batches() -> None:
    mixture = Mixture.resolve([np.full(40, 25)])
    batches: list[list[tuple[int, ...]]] = []
    for nodes, ranks, batch in [(1, 1, 16), (2, 2, 4), (4, 1, 4), (2, 4, 2)]:
        settings = MosaicmlSettings(batch, 4, shuffle=True, shuffle_block_size=200)
        plans = [MosaicmlPlan(mixture, settings, MosaicmlWorld(r, nodes, ranks)) for r in range(nodes * ranks)]
        parts = [delivered(plan) for plan in plans]
        batches.append([tuple(sorted(i for part in parts for i in part[k])) for k in range(1000 // 16)])
    assert batches.count(batches[0]) == len(batches)


def test_an_order_that_draws_nothing_costs_nothing_to_start() -> None:
    mixture = Mixture.resolve([np.full(1000, 10**9)])
    settings = MosaicmlSettings(64, 16)
    plan = MosaicmlPlan(mixture, settings, MosaicmlWorld(1023, 256, 8), start=10**11)
    chunk = next(plan.chunks(640))
    assert [len(batch) for batch in chunk] == [64] * 10
    assert plan.samples == (10**12 - 10**11) // 2048
    shards, rows = mixture.table().locate(chunk[0])
    assert np.array_equal(shards * 10**9 + rows, chunk[0])
    alone = MosaicmlPlan(mixture, settings)
    (batch,) = next(alone.chunks(64, skip=len(alone) // 2))
    # 64 positions are 4 of each of 16 canonical nodes.
    first = len(alone) // 2 * 64 // 16
    assert batch.tolist() == [node * 10**12 // 16 + first + k for k in range(4) for node in range(16)]


def test_a_plan_drives_the_loader(tmp_path: Path) -> None:
    write_samples(str(tmp_path), ({"id": number} for number in range(300)), size_limit=400)
    dataset = StreamingDataset(local=tmp_path)
    mixture = Mixture.resolve([dataset.index.sizes], None, 400)
    plan = MosaicmlPlan(mixture, MosaicmlSettings(7, 2, shuffle=True, shuffle_block_size=90), start=70)
    pipeline = dataset.epoch_reader.pipeline(
        Run(mixture.table(), plan), LoaderWorker(), sharers=1, threads=0, as_columns=True
    )
    assert [np.asarray(batch["id"]).tolist() for batch in pipeline.batches()] == delivered(plan)
    dataset.close()


def test_empty_shards_change_nothing_but_the_draws() -> None:
    for algo in ALGOS:
        ids = shuffle_ids(algo, np.array([0, 3, 0, 0, 5, 0]), 2, 1, 1, 8)
        assert sorted(ids.tolist()) == list(range(8))


def test_replication_makes_groups() -> None:
    assert MosaicmlWorld(13, 2, 8).replicate(2) == MosaicmlWorld(6, 1, 8)
    assert MosaicmlWorld(13, 4, 4).replicate(2) == MosaicmlWorld(6, 2, 4)
    assert MosaicmlWorld(7, 2, 4).replicate(8) == MosaicmlWorld(0, 1, 1)
    assert MosaicmlWorld(11, 3, 4).replicate(2) == MosaicmlWorld(5, 1, 6)
    with pytest.raises(ConfigError, match="replication=3 must divide the 8 ranks"):
        MosaicmlWorld(7, 2, 4).replicate(3)


# -- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ([], "is a dict, got list"),
        ({"epoch": 1}, "lacks num_canonical_nodes, sample_in_epoch, shuffle_seed"),
        ({"epoch": 1, "sample_in_epoch": 2, "num_canonical_nodes": 3, "shuffle_seed": 4, "version": 1}, "has version"),
        ({"epoch": 1, "sample_in_epoch": -2, "num_canonical_nodes": 3, "shuffle_seed": 4}, "sample_in_epoch.* got -2"),
        (
            {"epoch": 1, "sample_in_epoch": 2, "num_canonical_nodes": 0, "shuffle_seed": 4},
            "num_canonical_nodes.* got 0",
        ),
        ({"epoch": True, "sample_in_epoch": 2, "num_canonical_nodes": 1, "shuffle_seed": 4}, "epoch.* got True"),
    ],
)
def test_states_that_are_none(state: Any, said: str) -> None:
    with pytest.raises(StateError, match=said):
        read_mosaicml_state(state)


def test_states_of_old_versions_lack_the_first_run_s_nodes() -> None:
    state = {"epoch": 1, "sample_in_epoch": 2, "num_canonical_nodes": 3, "shuffle_seed": 4}
    assert read_mosaicml_state(state) == EpochPosition(1, 2, start=MosaicmlStart(3, 4))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: MosaicmlSettings(4, 1, shuffle_algo="py9"), "'py9' is unknown; known: naive, py1s"),
        (lambda: shuffle_ids("py1e", np.array([3]), 4, 0, 0), "one would have none"),
        (lambda: shuffle_ids("py1br", np.array([3]), 1, 0, 0, 1), "at least 2 samples, got 1"),
        (lambda: MosaicmlSettings(4, 1, shuffle_seed=-1), "shuffle_seed must be at least 0, got -1"),
        (lambda: MosaicmlPartition("orig", 100, 4, 3, 1, 1), "multiple of the 3 nodes"),
        (lambda: MosaicmlPartition("orig", 10, 1, 1, 1, 1, 20), "resume at sample 20"),
        (lambda: MosaicmlPartition("relaxed", 100, 4, 3, 1, 1, 0, 2), "global batch of 3"),
        (lambda: StreamWeight(proportion=1, repeat=2), "proportion and repeat"),
        (lambda: Mixture.resolve([np.array([3])] * 2, [StreamWeight(1), StreamWeight()]), "can not be mixed"),
        (lambda: Mixture.resolve([np.array([3])], [StreamWeight(choose=2)], 5), "needs proportion="),
        (lambda: Mixture.resolve([np.array([3]), np.array([0])]), "stream 1 has no samples"),
        (lambda: MosaicmlSettings(4, 1, batching_method="any"), "batching_method 'any' is unknown"),
        (lambda: MosaicmlWorld(4, 2, 2), "rank 4 is not in a world of 2 x 2"),
    ],
)
def test_refusals_say_why(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()
