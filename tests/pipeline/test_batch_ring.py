"""Blocks that workers fill and the main process reads: never overwritten while in use, never waited for, used again."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from torch.utils.data import DataLoader

from stoker import MDSWriter, StreamingDataLoader, StreamingDataset
from stoker.errors import StateError
from stoker.pipeline.batch_ring import IN_USE, Ring, RingBlock, receive


def region_of(ring: Ring) -> Any:
    region = ring.region()
    assert region is not None
    return region


class Traffic(RuleBasedStateMachine):
    """Blocks are taken, filled, sent, read and let go in any order; each reader sees what was written for it."""

    def __init__(self) -> None:
        super().__init__()
        self.ring = Ring()
        self.sent: list[tuple[RingBlock, int, int]] = []
        self.held: list[tuple[Any, int]] = []
        self.number = 0

    @rule(size=st.integers(1, 20_000))
    def fill(self, size: int) -> None:
        taken = region_of(self.ring).take(size)
        if taken is None:
            return
        block, data = taken
        self.number = self.number % 250 + 1
        data[:] = self.number
        self.sent.append((block, size, self.number))

    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        if self.sent:
            block, size, number = self.sent.pop(data.draw(st.integers(0, len(self.sent) - 1)))
            self.held.append((receive(block, size), number))

    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        if self.held:
            self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))

    @rule(data=st.data())
    def drop_unsent(self, data: st.DataObject) -> None:
        if self.sent:
            block, _, _ = self.sent.pop(data.draw(st.integers(0, len(self.sent) - 1)))
            region_of(self.ring).drop(block)

    @invariant()
    def readers_see_what_was_written_for_them(self) -> None:
        for data, number in self.held:
            assert (data == number).all()

    @invariant()
    def only_what_is_held_is_in_use(self) -> None:
        assert int((self.ring.table[:, :, 2] == IN_USE).sum()) == len(self.held)


TestTraffic = Traffic.TestCase
TestTraffic.settings = settings(max_examples=40, stateful_step_count=60, deadline=None)


def test_a_block_is_used_again_and_a_full_region_is_no_error() -> None:
    region = region_of(Ring())
    slots = set()
    for _ in range(500):
        block, _ = region.take(100_000)
        slots.add(block.slot)
        del _
        receive(block, 100_000)
    assert slots == {0}
    held = []
    while (taken := region.take(1 << 20)) is not None:
        held.append(taken)
    assert 60 <= len(held) <= 64
    assert region.take(1 << 40) is None


def test_a_block_that_the_worker_still_holds_is_not_filled_again() -> None:
    region = region_of(Ring())
    block, kept = region.take(1000)
    kept[:] = 5
    received = receive(block, 1000)
    del received
    other, data = region.take(1000)
    data[:] = 6
    assert other.slot != block.slot
    assert (kept == 5).all()
    del kept
    assert region.take(1000)[0].slot == block.slot


def test_two_threads_never_take_one_block() -> None:
    region = region_of(Ring())
    failures: list[int] = []

    def work(number: int) -> None:
        for turn in range(400):
            taken = region.take(500 + 3000 * (turn % 5))
            if taken is None:
                continue
            block, data = taken
            data[:] = number
            if (data != number).any():
                failures.append(turn)
            region.drop(block)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failures


def test_blocks_of_a_worker_that_is_gone_are_not_delivered() -> None:
    ring = Ring()
    block, _ = region_of(ring).take(10)
    ring.table[0, block.slot, 3] += 1
    with pytest.raises(StateError, match="worker was replaced"):
        receive(block, 10)
    with pytest.raises(StateError, match="does not hold its dataset"):
        receive(RingBlock(ring.number + 1, 0, 0, 1), 10)


@pytest.mark.processes
def test_a_block_that_a_forked_child_uses_is_not_filled_again_before_it_ends() -> None:
    region = region_of(Ring())
    block, data = region.take(1000)
    data[:] = 5
    del data
    received = [receive(block, 1000)]
    (asking, answering), (going, gone) = os.pipe(), os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.read(asking, 1)
            os.write(gone, received[0][:10].tobytes())
            os.read(asking, 1)
        finally:
            os._exit(0)
    received.clear()
    other, data = region.take(1000)
    data[:] = 6
    assert other.slot != block.slot
    os.write(answering, b" ")
    assert os.read(going, 10) == bytes([5]) * 10
    os.write(answering, b" ")
    os.waitpid(pid, 0)
    assert region.take(1000)[0].slot == block.slot
    for number in (asking, answering, going, gone):
        os.close(number)


def test_a_thread_that_forks_leaves_what_the_child_of_another_thread_is_to_hold() -> None:
    ring = Ring()
    region = region_of(ring)
    block, _ = region.take(1000)
    received = receive(block, 1000)

    def fork() -> None:
        ring.before_fork()
        ring.after_fork_in_parent()

    ring.before_fork()
    other = threading.Thread(target=fork)
    other.start()
    other.join()
    del received, _
    assert region.take(1000)[0].slot != block.slot
    ring.after_fork_in_parent()  # there was no child after all
    assert region.take(1000)[0].slot == block.slot


@pytest.mark.processes
def test_a_forked_child_gives_nothing_back() -> None:
    ring = Ring()
    block, data = region_of(ring).take(1000)
    data[:] = 7
    received = receive(block, 1000)
    child = os.fork()
    if child == 0:
        del received
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert int(ring.table[0, block.slot, 2]) == IN_USE
    assert (received == 7).all()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with MDSWriter({"id": "int", "x": "ndarray:int32:1000"}, str(tmp_path), size_limit=1 << 18) as out:
        ids = np.arange(2000)
        out.write_batch({"id": ids, "x": np.repeat(ids[:, None], 1000, axis=1).astype(np.int32)})
    return tmp_path


def double(samples: list[dict[str, Any]]) -> Any:
    batch = torch.utils.data.default_collate(samples)
    x = batch["x"]
    leaf = torch.ones(2, requires_grad=True)
    extra = [torch.zeros(0), torch.tensor(5), x.to(torch.bfloat16), x > 3, x.T, x[2:4], leaf, x.to_sparse(), x[:1] * 1j]
    return {"id": batch["id"], "x": x * 2, "half": x[::2], "same": x, "extra": extra}


class WithThePreviousBatch:
    """A collate function that sends each batch a second time, with the next one."""

    def __init__(self) -> None:
        self.previous: Any = None

    def __call__(self, samples: list[dict[str, Any]]) -> Any:
        batch = torch.utils.data.default_collate(samples)
        both = {"now": batch, "before": self.previous or batch}
        self.previous = batch
        return both


@pytest.mark.processes
def test_a_worker_may_keep_what_it_has_sent(tmp_path: Path) -> None:
    with MDSWriter({"id": "ndarray:int64:1", "x": "ndarray:int64:4"}, str(tmp_path)) as out:
        ids = np.arange(3000)[:, None]
        out.write_batch({"id": ids, "x": np.repeat(ids, 4, axis=1)})
    dataset = StreamingDataset(local=tmp_path, batch_size=10)
    last: dict[int, int] = {}
    loader = DataLoader(dataset, batch_size=10, num_workers=2, collate_fn=WithThePreviousBatch())
    for number, both in enumerate(loader):
        for batch in both.values():
            assert torch.equal(batch["x"], batch["id"].expand(-1, 4))
        if number % 2 in last:
            assert int(both["before"]["id"][0]) == last[number % 2]
        last[number % 2] = int(both["now"]["id"][0])


LOADERS: dict[str, Callable[[StreamingDataset, str], Any]] = {
    "torch": lambda dataset, method: DataLoader(
        dataset, batch_size=16, num_workers=3, multiprocessing_context=method, persistent_workers=True
    ),
    "streaming": lambda dataset, method: StreamingDataLoader(dataset, num_workers=2, multiprocessing_context=method),
    "columnar": lambda dataset, method: StreamingDataLoader(
        dataset, num_workers=2, columnar=True, multiprocessing_context=method
    ),
}


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("kind", LOADERS)
def test_batches_that_are_kept_stay_what_they_are(data: Path, kind: str, method: str) -> None:
    loader = LOADERS[kind](StreamingDataset(local=data, shuffle=True, batch_size=16), method)
    for _ in range(2 if method == "fork" else 1):  # spawned workers import torch again in each epoch
        # All are kept, which is more than there are blocks; some are let go again while others come.
        kept = []
        for number, batch in enumerate(loader):
            kept.append(batch)
            if number % 3 == 0:
                kept.pop(len(kept) // 2)
        for batch in kept:
            assert torch.equal(batch["x"], batch["id"].int()[:, None].expand(-1, 1000))
        assert sum(len(batch["id"]) for batch in kept) > 1000


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_collate_function_of_ones_own_may_do_anything_with_the_tensors(data: Path) -> None:
    dataset = StreamingDataset(local=data, shuffle=True, batch_size=16)
    seen = []
    for batch in DataLoader(dataset, batch_size=16, num_workers=2, collate_fn=double):
        expected = batch["id"].int()[:, None].expand(-1, 1000)
        assert torch.equal(batch["x"], 2 * expected)
        assert torch.equal(batch["half"], expected[::2])
        assert torch.equal(batch["same"], expected)
        none, five, floats, large, turned, part, leaf, sparse, imaginary = batch["extra"]
        assert none.shape == (0,)
        assert five.shape == ()
        assert five == 5
        assert torch.equal(floats, expected.to(torch.bfloat16))
        assert torch.equal(large, expected > 3)
        assert torch.equal(turned, expected.T)
        assert torch.equal(part, expected[2:4])
        assert leaf.requires_grad
        assert torch.equal(sparse.to_dense(), expected)
        assert torch.equal(imaginary, expected[:1] * 1j)
        seen += batch["id"].tolist()
    assert sorted(seen) == list(range(2000))


@pytest.mark.processes
def test_leaving_a_loop_early_over_and_over_uses_no_more_memory(data: Path) -> None:
    dataset = StreamingDataset(local=data, shuffle=True, batch_size=16)
    loader = StreamingDataLoader(dataset, num_workers=2, columnar=True)
    for _ in range(12):
        for batch in loader:
            assert torch.equal(batch["x"][:, 0], batch["id"].int())
            break
    del batch, loader
    gc.collect()
    used = dataset.epoch_reader._ring.table[:, :, 1] > 0
    # Two tensors a batch, a few batches ahead, for each of two workers; not twelve times that.
    assert int(used.sum()) <= 2 * 2 * 8
