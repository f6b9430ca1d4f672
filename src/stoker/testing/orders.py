"""Tests of a sample order: complete, the same in any process, resumable at any position, and cheap to begin."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from collections import Counter
from collections.abc import Hashable
from itertools import chain

import numpy as np

from stoker.errors import ConfigError
from stoker.order.capabilities import with_epoch_start
from stoker.order.sample_order import DataRank, EpochPosition, Run, SampleOrder
from stoker.pipeline.state.state import make_state, read_state
from stoker.testing.values import undefined
from stoker.types import Ids

_MOST_MEMORY = 64 << 20


class OrderTests:
    """Tests of a sample order, and so of a shuffle or a partition. A subclass makes the order, in :meth:`make`.

    The order should have 40 to 500 samples in several shards: the tests read whole epochs of it, in several worlds.

    Attributes:
        batch_size: samples in a batch of each rank.
        worlds: numbers of ranks that read an epoch.
        shuffled: whether epochs differ.
        complete: whether an epoch delivers all of its samples in every world. Not so with ``remainder="drop"``.
        distinct: whether the samples of an epoch are all different, but for those that :attr:`Plan.padding
            <stoker.order.sample_order.Plan.padding>` counts. Not so where weights repeat samples.
        same_global_batches: whether worlds with equally large global batches have the same ones.
        equal_steps: whether all ranks take the same number of steps.
        any_world: whether an epoch can be finished by a world of another size.

    >>> import numpy as np
    >>> from stoker.order import NativeOrder, NativeSettings, ShardTable, StreamSource
    >>> class TestGlobalShuffle(OrderTests):
    ...     def make(self):
    ...         source = StreamSource.whole("data", ShardTable(np.full(6, 20)))
    ...         return NativeOrder([source], NativeSettings(shuffle="global"))
    >>> TestGlobalShuffle().test_an_epoch_has_all_samples_in_any_world()
    """

    batch_size = 4
    worlds: tuple[int, ...] = (1, 2, 3)
    shuffled = True
    complete = True
    distinct = True
    same_global_batches = True
    equal_steps = True
    any_world = True

    def make(self) -> SampleOrder:
        """The order, made anew, as another process would."""
        raise undefined(self, "make(), which makes the order")

    def samples(self, order: SampleOrder) -> int:
        """Samples in an epoch."""
        return order.epoch_size

    def identify(self, run: Run, positions: Ids) -> list[Hashable]:
        """Identities of the samples at positions of a plan, the same in any world. Default: shard and row."""
        shards, rows = run.order.locate(positions)
        return list(zip(shards.tolist(), rows.tolist(), strict=True))

    def large(self) -> SampleOrder | None:
        """An order of at least 10**9 samples in few shards; ``None`` if it need not be cheap to begin an epoch of it."""
        return None

    # -- one epoch -------------------------------------------------------------------------------------------------

    def test_an_epoch_has_all_samples_in_any_world(self) -> None:
        order = self.make()
        seen: set[Hashable] | None = None
        for world in self.worlds:
            runs = self._runs(order, EpochPosition(1), world)
            found = Counter(chain.from_iterable(chain.from_iterable(self._ids(run) for run in runs)))
            assert found, f"an epoch in a world of {world} has no samples"
            if self.distinct:
                twice = found.total() - len(found)
                assert twice <= runs[0].plan.padding, f"{twice} samples come twice in a world of {world}"
            if self.complete:
                if self.distinct:
                    assert len(found) == self.samples(order), f"an epoch in a world of {world} lacks samples"
                assert seen is None or seen == found.keys(), f"a world of {world} has other samples than one before it"
                seen = set(found)

    def test_worlds_of_one_global_batch_have_the_same_ones(self) -> None:
        if not self.same_global_batches:
            return
        order, together = self.make(), 12
        expected: list[Counter[Hashable]] | None = None
        for world in (1, 2, 3, 4):
            runs = [
                order.run(EpochPosition(2), DataRank(rank, world, world, together // world)) for rank in range(world)
            ]
            full = min(run.plan.full_batches for run in runs)
            ranks = [self._ids(run)[:full] for run in runs]
            found = [Counter(chain.from_iterable(rank[step] for rank in ranks)) for step in range(full)]
            assert expected is None or found == expected[:full], f"a world of {world} has other global batches"
            expected = found

    def test_all_ranks_take_as_many_steps_as_is_said(self) -> None:
        order = self.make()
        for world in self.worlds:
            runs = self._runs(order, EpochPosition(0), world)
            steps = [len(run.plan) for run in runs]
            assert steps == [len(self._ids(run)) for run in runs], "a plan's length is not the number of its batches"
            if self.equal_steps:
                assert len(set(steps)) == 1, f"ranks of a world of {world} take {steps} steps"
            assert max(steps) == steps[runs[0].plan.longest], (
                f"rank {runs[0].plan.longest} does not take most steps: {steps}"
            )

    def test_a_plan_says_what_it_delivers(self) -> None:
        order = self.make()
        for world in self.worlds:
            for rank, run in enumerate(self._runs(order, EpochPosition(0), world)):
                plan, lengths = run.plan, [len(batch) for batch in _batches(run)]
                assert (plan.rank, plan.world_size, plan.batch_size) == (rank, world, self.batch_size)
                assert plan.samples == sum(lengths)
                assert all(length == self.batch_size for length in lengths[:-1]), "a batch before the last is not full"
                assert plan.full_batches in (len(lengths), len(lengths) - 1)
                reached = [plan.position_after(steps) for steps in range(len(lengths) + 1)]
                assert reached == sorted(reached), "positions do not rise with steps"
                assert reached[-1] <= plan.end

    def test_loader_workers_share_the_batches_of_a_rank(self) -> None:
        order = self.make()
        for run in self._runs(order, EpochPosition(0), self.worlds[-1]):
            whole = self._ids(run)
            for workers in (2, 3):
                for worker in range(workers):
                    for skip in (0, 1):
                        found = self._ids(run, worker, workers, skip)
                        assert found == whole[worker + skip * workers :: workers], (
                            f"worker {worker} of {workers}, {skip=}"
                        )

    # -- a pure function -------------------------------------------------------------------------------------------

    def test_the_same_arguments_give_the_same_samples(self) -> None:
        first, second = self.make(), self.make()
        self._runs(first, EpochPosition(0), 2)  # what a run has made can be pickled, too
        copy = pickle.loads(pickle.dumps(first))  # noqa: S301 - made here
        epochs = []
        for epoch in range(3):
            ids = [self._ids(run) for run in self._runs(first, EpochPosition(epoch), 2)]
            for other in (second, copy):
                assert ids == [self._ids(run) for run in self._runs(other, EpochPosition(epoch), 2)], (
                    f"epoch {epoch} differs"
                )
            epochs.append(ids)
        if self.shuffled:
            assert epochs[0] != epochs[1] != epochs[2], "epochs do not differ"

    def test_what_decides_the_order_is_json(self) -> None:
        said = self.make().as_dict()
        assert json.loads(json.dumps(said)) == json.loads(json.dumps(self.make().as_dict()))
        assert said.keys() >= {"streams", "order"}

    # -- states ----------------------------------------------------------------------------------------------------

    def test_a_run_resumes_after_any_step_with_the_batches_that_were_left(self) -> None:
        order, world = self.make(), self.worlds[-1]
        runs = self._runs(order, EpochPosition(1), world)
        batches = [self._ids(run) for run in runs]
        for steps in range(1, max(map(len, batches))):
            position = self._resumed(runs[0].plan.position_after(steps), world)
            if position.epoch > 1:
                continue
            for run, whole, rest in zip(runs, batches, self._runs(order, position, world), strict=True):
                found, left = self._ids(rest), whole[steps:]
                full = max(0, run.plan.full_batches - steps)
                assert found[:full] == left[:full], f"rank {run.plan.rank} reads other batches after {steps} steps"
                if not rest.plan.padding and not run.plan.padding:
                    assert found == left, f"rank {run.plan.rank} ends otherwise after {steps} steps"

    def test_an_epoch_is_finished_by_a_world_of_another_size(self) -> None:
        if not self.any_world:
            return
        order = self.make()
        for world in self.worlds:
            for other in self.worlds:
                runs = self._runs(order, EpochPosition(1), world)
                steps = max(1, min(len(run.plan) for run in runs) // 2)
                found = Counter(chain.from_iterable(chain.from_iterable(self._ids(run)[:steps] for run in runs)))
                position = self._resumed(runs[0].plan.position_after(steps), world)
                rest = self._runs(order, position, other)
                found.update(chain.from_iterable(chain.from_iterable(map(self._ids, rest))))
                if self.distinct:
                    repeated = runs[0].plan.padding + rest[0].plan.padding
                    assert found.total() - len(found) <= repeated, (
                        f"samples come twice, begun by {world}, ended by {other}"
                    )
                    if self.complete:
                        assert len(found) == self.samples(order), (
                            f"samples are lost, begun by {world}, ended by {other}"
                        )

    def test_a_position_beyond_the_epoch_is_refused(self) -> None:
        order, data_rank = self.make(), DataRank(0, 1, 1, self.batch_size)
        beyond = with_epoch_start(order, EpochPosition(0, 1 << 40), data_rank)
        try:
            run = order.run(beyond, data_rank)
        except ConfigError:
            return
        assert not len(run.plan), "there are batches beyond the end of an epoch"

    def test_the_middle_of_a_large_epoch_is_reached_at_once(self) -> None:
        tracemalloc.start()
        try:
            order = self.large()
            if order is None:
                return
            data_rank = DataRank(5, 8, 8, 64)
            middle = order.epoch_size // 2 // (8 * 64) * (8 * 64)
            begin = with_epoch_start(order, EpochPosition(3), data_rank)
            run = order.run(EpochPosition(3, middle, start=begin.start), data_rank)
            run.order.locate(np.concatenate(next(iter(run.plan.chunks(1024)))))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert order.epoch_size >= 10**9, "a large order has 10**9 samples"
        assert peak < _MOST_MEMORY, f"beginning in the middle of an epoch took {peak} bytes"

    def _runs(self, order: SampleOrder, position: EpochPosition, world: int) -> list[Run]:
        return [order.run(position, DataRank(rank, world, world, self.batch_size)) for rank in range(world)]

    def _ids(self, run: Run, worker: int = 0, workers: int = 1, skip: int = 0) -> list[list[Hashable]]:
        """The samples of each batch."""
        return [self.identify(run, batch) for batch in _batches(run, worker, workers, skip)]

    def _resumed(self, position: int, world: int) -> EpochPosition:
        """The position from which a run resumes whose state was saved in epoch 1, begun by a world of this size."""
        order, data_rank = self.make(), DataRank(0, world, world, self.batch_size)
        begun = with_epoch_start(order, EpochPosition(1), data_rank)
        state = make_state(order, EpochPosition(1, position, start=begun.start), data_rank)
        return read_state(json.loads(json.dumps(state)), self.make(), data_rank)[0]


def _batches(run: Run, worker: int = 0, workers: int = 1, skip: int = 0) -> list[Ids]:
    return [batch for chunk in run.plan.chunks(7, worker, workers, skip) for batch in chunk]
