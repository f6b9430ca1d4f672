"""The simulation against one by hand, and what its report says of real orders."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from literal import TablePlan, literal_run

from stoker.errors import ConfigError
from stoker.order import BatchPlan, DataRank, EpochPosition, NativeOrder, NativeSettings, Run, ShardTable, StreamSource
from stoker_bench.simulate import Cluster, CostModel, Report, Shards, simulate
from stoker_bench.simulate.clock import Ticks
from stoker_bench.simulate.settings import RankRun


def ids(values: Any) -> Any:
    return np.array(values, dtype=np.int64)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Cluster, Shards, list[list[list[int]]]]:
    """A cluster, shards, and for each rank the shards of the samples of its batches."""
    cluster = Cluster(draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    count = draw(st.integers(1, 8))
    steps = draw(st.integers(1, 12))
    size = draw(st.integers(1, 4))
    batch = st.lists(st.integers(0, count - 1), min_size=size, max_size=size)
    ranks = [draw(st.lists(batch, min_size=steps, max_size=steps)) for _ in range(cluster.world_size)]
    for rank in ranks:
        rank[-1] = rank[-1][: draw(st.integers(1, size))]
    sizes = st.lists(st.integers(1, 100), min_size=count, max_size=count)
    return cluster, Shards(ids([1000] * count), ids(draw(sizes)), ids(draw(sizes))), ranks


models = st.builds(
    CostModel,
    step_time=st.sampled_from([0.25, 1.0, 3.0]),
    bandwidth=st.sampled_from([None, 8.0, 64.0, 1024.0]),
    latency=st.sampled_from([0.0, 0.5, 2.0]),
    connections=st.sampled_from([1, 2, 8]),
    lookahead=st.integers(0, 20),
    cache_limit=st.one_of(st.none(), st.integers(1, 400)),
)


def made_of(cluster: Cluster, ranks: list[list[list[int]]]) -> RankRun:
    plans = [TablePlan(batches, len(batches[0]), rank, cluster.world_size) for rank, batches in enumerate(ranks)]

    def make(rank: int, world_size: int) -> Run:
        assert world_size == cluster.world_size
        return Run(plans[rank].order, plans[rank])

    return make


def uses_of(cluster: Cluster, ranks: list[list[list[int]]]) -> list[list[set[int]]]:
    per = cluster.ranks_per_node
    return [
        [
            {shard for rank in ranks[node * per : (node + 1) * per] for shard in rank[step]}
            for step in range(len(ranks[0]))
        ]
        for node in range(cluster.nodes)
    ]


@given(runs(), models)
def test_it_is_what_one_gets_by_hand(run: tuple[Cluster, Shards, list[list[list[int]]]], model: CostModel) -> None:
    cluster, shards, ranks = run
    report = simulate(made_of(cluster, ranks), shards, cluster, model)
    uses = uses_of(cluster, ranks)
    lookaheads = [node.cache.lookahead for node in report.nodes]
    assert model.cache_limit is not None or set(lookaheads) == {model.lookahead // len(ranks[0][0])}
    nodes, begin, waits = literal_run(uses, shards.raw.tolist(), shards.stored.tolist(), model, lookaheads)
    assert report.clock.begin.tolist() == pytest.approx(begin)
    assert report.clock.stall.tolist() == pytest.approx(waits, abs=1e-9)
    assert report.clock.total == pytest.approx(begin[-1] + model.step_time)
    for found, node in zip(report.nodes, nodes, strict=True):
        cache = found.cache
        assert list(zip(cache.fetched.tolist(), cache.needed_at.tolist(), strict=True)) == node.fetched
        assert (cache.evictions, cache.over, cache.held.tolist()) == (node.evictions, node.over, node.held)
        assert found.bytes == sum(int(shards.stored[shard]) for shard, _ in node.fetched)
        first = {shard: step for step in reversed(range(len(node.uses))) for shard in node.uses[step]}
        assert dict(zip(cache.shards.tolist(), cache.first.tolist(), strict=True)) == first
    # The first batch of all ranks is that of the slowest.
    assert report.first_batches.max() == pytest.approx(begin[0])


@given(runs(), models)
def test_shares_and_what_must_be_held(run: tuple[Cluster, Shards, list[list[list[int]]]], model: CostModel) -> None:
    cluster, shards, ranks = run
    report = simulate(made_of(cluster, ranks), shards, cluster, model, search=False)
    uses = uses_of(cluster, ranks)
    of_nodes = [set.union(*steps) for steps in uses]
    users = {shard: sum(shard in used for used in of_nodes) for used in of_nodes for shard in used}
    assert report.shards == len(users)
    assert report.sharing.shards == sum(count > 1 for count in users.values())
    assert report.sharing.extra_bytes == sum((count - 1) * int(shards.stored[k]) for k, count in users.items())
    assert report.sharing.most_nodes == max(users.values())
    assert report.balance.samples.tolist() == [sum(map(len, rank)) for rank in ranks]
    for node, steps, used in zip(report.nodes, uses, of_nodes, strict=True):
        assert node.shared == sum(users[shard] > 1 for shard in used)
        spans = {shard: [step for step, now in enumerate(steps) if shard in now] for shard in used}
        for ahead, most in ((0, node.cache.live), (report.lookahead, node.cache.needed)):
            sums = [
                sum(int(shards.raw[k]) for k, at in spans.items() if at[0] - ahead <= step <= at[-1])
                for step in range(len(steps))
            ]
            assert most == max(sums)


@given(runs(), models, st.integers(1, 40))
def test_bytes_flow_once_whatever_the_moments(
    run: tuple[Cluster, Shards, list[list[list[int]]]], model: CostModel, bins: int
) -> None:
    cluster, shards, ranks = run
    report = simulate(made_of(cluster, ranks), shards, cluster, model, search=False)
    moments = np.linspace(0.0, report.clock.total, bins + 1)
    through = report.rates(moments).T @ np.diff(moments)
    if model.bandwidth is not None:
        assert through.tolist() == pytest.approx([node.bytes for node in report.nodes])
        assert report.rates(moments).max() <= model.bandwidth * (1 + 1e-9)
    assert report.held(moments)[-1].tolist() == [int(node.cache.held[-1]) for node in report.nodes]


@given(runs(), models)
def test_with_the_least_bandwidth_nothing_waits_and_with_less_something_does(
    run: tuple[Cluster, Shards, list[list[list[int]]]], model: CostModel
) -> None:
    cluster, shards, ranks = run

    def waiting(bandwidth: float | None) -> float:
        found = simulate(made_of(cluster, ranks), shards, cluster, replace(model, bandwidth=bandwidth), search=False)
        return found.clock.waiting

    least = simulate(made_of(cluster, ranks), shards, cluster, model).least_bandwidth
    if least is None:
        # Nothing is enough: with latency even an unbounded link waits, without it each bounded one does.
        assert waiting(1e12) > 0
    elif least == 0:
        assert waiting(1e-3) == 0
    else:
        assert waiting(least) == pytest.approx(0, abs=1e-6)
        assert least == 1 or waiting(least * 0.995) > 0


def real(
    samples: int, shard: int, cluster: Cluster, batch: int, shuffle: Any = "block", nodes: int | None = None
) -> tuple[RankRun, Shards]:
    sizes = np.full(-(-samples // shard), shard, dtype=np.int64)
    sizes[-1] = samples - shard * (len(sizes) - 1)
    table = ShardTable(sizes)
    settings = NativeSettings(shuffle=shuffle, seed=3, num_canonical_nodes=nodes)
    order = NativeOrder([StreamSource.whole("data", table)], settings)

    def make(rank: int, world_size: int) -> Run:
        return order.run(EpochPosition(0), DataRank(rank, world_size, batch_size=batch))

    return make, Shards(sizes, sizes * 100, sizes * 50)


def test_a_real_order_is_evaluated_position_by_position() -> None:
    cluster = Cluster(2, 2)
    make, shards = real(5000, 70, cluster, 7)
    report = simulate(make, shards, cluster, CostModel())
    for node in report.nodes:
        first: dict[int, int] = {}
        for rank in (2 * node.node, 2 * node.node + 1):
            run = make(rank, 4)
            for step, batch in enumerate(batch for chunk in run.plan.chunks(1) for batch in chunk):
                for shard in run.order.locate(batch)[0].tolist():
                    first[shard] = min(step, first.get(shard, step))
        assert dict(zip(node.cache.shards.tolist(), node.cache.first.tolist(), strict=True)) == first
    assert report.sampling.exact
    assert report.sampling.steps == -(-5000 // 28)
    assert report.balance.samples.sum() == 5000


def test_what_is_left_out_where_there_is_much_changes_little() -> None:
    cluster = Cluster(4, 4)
    make, shards = real(800_000, 4000, cluster, 8, nodes=8)
    model = CostModel(bandwidth=2000.0, lookahead=64, step_time=1.0)
    whole = simulate(make, shards, cluster, model)
    part = simulate(make, shards, cluster, model, budget=100_000)
    assert part.sampling.stride == 8
    assert not part.sampling.exact
    assert "one in 8 of each rank" in str(part.sampling)
    assert part.first_batches.tolist() == whole.first_batches.tolist()
    for some, all_ in zip(part.nodes, whole.nodes, strict=True):
        assert set(some.cache.shards.tolist()) <= set(all_.cache.shards.tolist())
        first = dict(zip(all_.cache.shards.tolist(), all_.cache.first.tolist(), strict=True))
        late = [step - first[k] for k, step in zip(some.cache.shards.tolist(), some.cache.first.tolist(), strict=True)]
        assert min(late) >= 0
        assert max(late) <= 8
        assert some.bytes == pytest.approx(all_.bytes, rel=0.02)
        assert some.cache.live == pytest.approx(all_.cache.live, rel=0.25)
    assert part.clock.total == pytest.approx(whole.clock.total, rel=0.02)


def test_shards_stay_with_nodes_only_where_nodes_divide_the_canonical_nodes() -> None:
    cluster = Cluster(4, 2)
    kept = simulate(*real(64_000, 500, cluster, 8, nodes=8), cluster, CostModel())
    torn = simulate(*real(64_000, 500, cluster, 8, nodes=2), cluster, CostModel())
    assert kept.sharing.shards <= 4
    assert torn.sharing.shards == torn.shards
    assert torn.sharing.most_nodes >= 2


def test_quality_tells_orders_apart() -> None:
    cluster = Cluster(1, 4)
    none, block = (
        simulate(*real(64_000, 500, cluster, 8, shuffle, 1), cluster, CostModel()).quality
        for shuffle in ("none", "block")
    )
    assert none.position_correlation == pytest.approx(1)
    assert none.neighbour_distance < 0.001
    assert none.shards_a_batch < 1.2
    assert none.samples == 64_000
    assert block.position_correlation < 0.5  # 128 shards: their order alone makes some
    assert block.shards_a_batch > 1.5
    assert 27 < block.shards_if_random < 32


def test_a_cache_limit_brings_refetches_only_where_it_is_too_small() -> None:
    cluster = Cluster(1, 4)
    make, shards = real(64_000, 500, cluster, 8, nodes=4)
    free = simulate(make, shards, cluster, CostModel(lookahead=256))
    enough = simulate(make, shards, cluster, CostModel(lookahead=256, cache_limit=3 * free.cache_needed))
    assert enough.nodes[0].cache.evictions > 0
    assert enough.nodes[0].refetched == 0
    short = simulate(make, shards, cluster, CostModel(lookahead=256, cache_limit=free.nodes[0].cache.live // 2))
    assert short.nodes[0].cache.over > 0


def test_ticks_cover_the_steps_once() -> None:
    for steps, nodes in ((1, 1), (2, 1), (1000, 64), (10**6, 3), (10**9, 2000)):
        ticks = Ticks.of(steps, nodes)
        first = ticks.first
        assert first[0] == 0
        assert first[-1] == steps
        assert (np.diff(first) > 0).all()
        assert len(first) == len(ticks) + 1
        assert np.array_equal(ticks.of_steps(first[:-1]), np.arange(len(ticks)))
        assert np.array_equal(ticks.of_steps(first[1:] - 1), np.arange(len(ticks)))
        assert len(ticks) * nodes <= 1 << 22 or len(ticks) == 2


def test_steps_told_together_take_as_long_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    # A shard of two seconds in every second step of one second, fetched when it comes into sight, six steps before.
    cluster = Cluster(1, 1)
    make = made_of(cluster, [[[step // 2] for step in range(400)]])
    shards = Shards(ids([2] * 200), ids([10] * 200), ids([10] * 200))
    for bandwidth in (4.0, 5.1, 50.0):
        model = CostModel(step_time=1.0, bandwidth=bandwidth, lookahead=6)
        one_by_one = simulate(make, shards, cluster, model).clock
        with monkeypatch.context() as patch:
            patch.setattr("stoker_bench.simulate.clock._MOST_TICKS", 101)
            together = simulate(make, shards, cluster, model).clock
        assert len(together.ticks) == 101
        assert together.first_batch == one_by_one.first_batch
        assert together.total == pytest.approx(one_by_one.total, rel=0.01)
        firsts = together.ticks.first[:-1]
        ends = together.fetched[:, 0]
        if not together.waiting:
            # Fetching begins when the tick's first step comes into sight, in the middle of another tick.
            begun = (ends - together.busy[:, 0])[firsts > 6]
            assert begun == pytest.approx(together.first_batch + firsts[firsts > 6] - 6.0)
        assert ends == pytest.approx(one_by_one.fetched[np.append(firsts[1:], 400) - 1, 0], abs=8.0)


def test_the_report_is_json() -> None:
    cluster = Cluster(2, 2)
    report = simulate(*real(5000, 70, cluster, 7), cluster, CostModel(bandwidth=1e3, cache_limit=50_000, lookahead=40))
    found = json.loads(json.dumps(report.as_dict(shards=True)))
    assert found["samples"] == 5000
    assert found["nodes"][1]["first_use"]["shards"] == report.nodes[1].cache.shards.tolist()
    assert len(found["timeline"]["bytes_a_second"]) == 2
    assert "first_use" not in report.as_dict()["nodes"][0]
    assert sum(wait["seconds"] for wait in report.waits(10**6)) == pytest.approx(report.clock.waiting)


def test_waits_are_reported_as_intervals_of_steps() -> None:
    # A shard a step, each of which takes two steps' time: every step after the first waits.
    cluster = Cluster(1, 1)
    make = made_of(cluster, [[[step] for step in range(5)]])
    shards = Shards(ids([1] * 5), ids([10] * 5), ids([10] * 5))
    report: Report = simulate(make, shards, cluster, CostModel(step_time=1.0, bandwidth=5.0, lookahead=1))
    assert report.clock.first_batch == 2.0
    (wait,) = report.waits()
    assert (wait["first"], wait["last"]) == (1, 4)
    assert report.clock.total == 2.0 + 4 * 2.0 + 1.0
    assert report.samples_a_second == pytest.approx(5 / 11)
    assert report.least_bandwidth == pytest.approx(10.0, rel=2e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cluster(0, 1), "nodes must be at least 1, got 0"),
        (lambda: Cluster(1, 0), "ranks_per_node must be at least 1"),
        (lambda: CostModel(step_time=0.0), "step_time must be above 0"),
        (lambda: CostModel(bandwidth=-1.0), "bandwidth must be above 0"),
        (lambda: CostModel(latency=float("nan")), "latency must be a number, got nan"),
        (lambda: CostModel(cache_limit=0), "cache_limit must be above 0"),
        (lambda: Shards(ids([1]), ids([1, 2]), ids([1])), "each shard needs"),
    ],
)
def test_settings_that_make_no_sense_are_errors(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_an_empty_epoch_is_an_error() -> None:
    cluster = Cluster(1, 1)
    with pytest.raises(ConfigError, match="nothing to simulate"):
        simulate(real_empty, Shards(ids([5]), ids([5]), ids([5])), cluster, CostModel())


def real_empty(rank: int, world_size: int) -> Run:
    return Run(ShardTable(ids([5])), BatchPlan(5, 5, 2, rank, world_size))
