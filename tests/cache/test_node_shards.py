"""Shards in memory of a node: who wants one gets its very bytes or nothing, and what nobody needs takes no memory."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import random
import secrets
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.cache import node_shards
from stoker.cache.node_shards import NodeShards, open_table, shard_key
from stoker.types import PooledBuffer

pytestmark = pytest.mark.processes

KB, MB = 1 << 10, 1 << 20


@pytest.fixture
def table() -> str:
    gc.collect()  # open files that other tests have left, and that would go while this one counts
    return f"stoker-test-{secrets.token_hex(8)}"


def content(number: int, size: int) -> bytes:
    """Another one for another number, in each byte."""
    return ((np.arange(size) * 7 + number * 31) % 251).astype(np.uint8).tobytes()


def put(shards: NodeShards, number: int, size: int) -> PooledBuffer:
    allocation = shards.allocate(size)
    allocation.reserve()
    memoryview(allocation.data)[:] = content(number, size)
    return shards.publish(shard_key(number), allocation)


def files() -> int:
    """Files of shards that this process has open."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith("/memfd:stoker-shard-")
        except OSError:
            continue
    return found


def maps() -> int:
    """Files of shards that this process has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return len({line.split("/memfd:")[1] for line in lines if "/memfd:stoker-shard-" in line})


def test_as_many_files_of_others_stay_mapped_as_are_spare_and_kept(table: str) -> None:
    first, second = NodeShards(open_table(table)), NodeShards(open_table(table))
    first.spare, second.spare = 32 * MB, 7 * MB
    for number in range(6):
        put(first, number, 3 * MB)
    first._kept_maps.clear()
    assert maps() == 0
    for number in range(6):
        found = second.find(shard_key(number))
        assert found is not None
        assert bytes(found) == content(number, 3 * MB)
        del found
        assert maps() <= 3
    second.trim()
    assert maps() == 2
    mapped = second.find(shard_key(4))
    first.spare = 0
    first.trim()  # which keeps the last one alone
    second.trim()
    assert maps() == 2
    assert mapped is not None
    assert bytes(mapped) == content(4, 3 * MB)
    del mapped
    second.trim()
    assert maps() == 1
    second.spare = 0
    second.trim()
    assert maps() == 0


@pytest.mark.parametrize("size", [1, 100, 70_000, 3 * MB, 9 * MB])
def test_what_one_has_all_find(size: int, table: str) -> None:
    first, second = NodeShards(open_table(table)), NodeShards(open_table(table))
    assert second.find(shard_key(1)) is None
    mine = put(first, 1, size)
    found = second.find(shard_key(1))
    assert found is not None
    assert bytes(mine) == bytes(found) == content(1, size)
    assert second.find(shard_key(2)) is None
    for data in (mine, found):
        with pytest.raises(ValueError, match="read-only"):
            data[0] = 1
    first.forget(shard_key(1))
    assert second.find(shard_key(1)) is None
    assert bytes(found) == content(1, size)


@pytest.mark.parametrize("error", [errno.EACCES, errno.EMFILE, errno.ENOMEM], ids=errno.errorcode.get)
def test_what_one_can_not_have_others_have(error: int, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fetches the shard itself, and does not take it from the others."""

    def refuse(*_: Any) -> int:
        raise OSError(error, os.strerror(error))

    first, second, third = (NodeShards(open_table(table)) for _ in range(3))
    put(first, 1, 3 * MB)
    with monkeypatch.context() as patch:
        patch.setattr(node_shards, "open_file_of", refuse)
        assert second.find(shard_key(1)) is None
        patch.undo()
        found = third.find(shard_key(1))
        assert found is not None
        assert bytes(found) == content(1, 3 * MB)
        patch.setattr(node_shards, "open_file_of", refuse)
        assert second.claim(shard_key(1))
        assert bytes(put(second, 1, 3 * MB)) == content(1, 3 * MB)
        assert second.find(shard_key(1)) is not None


def test_random_steps_of_three(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets overflow and files are let go: a shard may be gone, but never be another."""
    monkeypatch.setattr(node_shards, "_BUCKETS", 4)
    monkeypatch.setattr(node_shards, "SHARED_SHARDS", 64 * KB)
    chance = random.Random(1)
    readers = [NodeShards(open_table(table)) for _ in range(3)]
    for one in readers:
        one.spare = 200 * KB
    held: list[tuple[int, PooledBuffer]] = []
    hits = 0
    for _ in range(600):
        one, number = chance.choice(readers), chance.randrange(40)
        size = (number * 2503) % 30_000 + 1
        found = one.find(shard_key(number))
        hits += found is not None
        if found is None:
            found = put(one, number, size)
        assert bytes(found) == content(number, size)
        held.append((number, found))
        if len(held) > 20:
            held.pop(chance.randrange(20))
        if chance.random() < 0.05:
            one.forget(shard_key(number))
        for other, data in held:
            assert bytes(data[:9]) == content(other, 9)[: len(data)]
    assert hits > 100


def test_a_line_that_two_have_written_at_once_is_none(table: str) -> None:
    first = NodeShards(open_table(table))
    put(first, 1, 100)
    ((place, entry),) = [(place, one) for place, one in first._bucket(shard_key(1)) if one is not None]
    other = entry._replace(key=shard_key(2), start=50)
    first._table.write(place, entry.line()[:40] + other.line()[40:])
    assert first.find(shard_key(1)) is None
    assert first.find(shard_key(2)) is None


def test_what_nobody_reads_goes_beyond_what_is_spare(table: str) -> None:
    first, second = NodeShards(open_table(table)), NodeShards(open_table(table))
    first.spare = 8 * MB
    base = files()
    for number in range(10):
        put(first, number, 3 * MB)
    assert files() - base == 3  # the one that is spare beyond it was used last
    assert [second.find(shard_key(number)) is None for number in range(10)] == [True] * 7 + [False] * 3
    held = [put(first, number, 3 * MB) for number in range(20, 30)]
    assert files() - base >= 10
    read = [second.find(shard_key(number)) for number in range(20, 30)]
    first.spare = 0
    del held
    gc.collect()
    first.trim()
    assert files() - base == 1
    assert [bytes(one) for one in read if one is not None] == [content(number, 3 * MB) for number in range(20, 30)]
    del first
    gc.collect()
    assert files() == base


def test_a_process_has_only_so_many_files(table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_shards, "most_shared_shards", lambda: 4)
    monkeypatch.setattr(node_shards, "SHARED_SHARDS", 64 * KB)
    base, first = files(), NodeShards(open_table(table))
    held = [put(first, number, 20_000) for number in range(20)]
    assert files() - base <= 4
    assert [bytes(one) for one in held] == [content(number, 20_000) for number in range(20)]


def test_small_shards_share_files(table: str) -> None:
    base, first = files(), NodeShards(open_table(table))
    held = [put(first, number, 2000) for number in range(300)]
    assert files() - base == 1
    assert [bytes(one) for one in held] == [content(number, 2000) for number in range(300)]


def test_an_allocation_that_is_left_goes(table: str) -> None:
    first, base = NodeShards(open_table(table)), files()
    for _ in range(5):
        first.allocate(9 * MB).reserve()
        first.trim()
    assert files() - base <= 1


def allocate_or_leave(shards: NodeShards, size: int) -> None:
    allocation = shards.allocate(size)
    try:
        allocation.reserve()
    finally:
        shards.leave(allocation)


@pytest.mark.parametrize("call", ["posix_fallocate", "ftruncate"])
def test_no_memory_is_an_error_and_not_a_signal(call: str, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    shards, base = NodeShards(open_table(table)), files()
    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space"):
        shards.allocate(100).reserve()
    for _ in range(5):
        with pytest.raises(OSError, match="No space"):
            allocate_or_leave(shards, 3 * MB)
    assert files() - base <= 2  # that of small shards, and the map of the last allocation


def read_and_wait(table: str, pipe: Any) -> None:
    """A process that reads and keeps shard 1, fetches and keeps shard 2, and has claimed shard 3."""
    shards = NodeShards(open_table(table))
    read = shards.find(shard_key(1))
    put(shards, 2, 3 * MB)
    pipe.send((None if read is None else bytes(read), shards.claim(shard_key(3))))
    pipe.recv()
    pipe.send(bytes(read) if read is not None else None)
    pipe.recv()


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_have_what_others_fetched_as_long_as_these_live(method: str, table: str) -> None:
    shards = NodeShards(open_table(table))
    mine = put(shards, 1, 3 * MB)
    context: Any = multiprocessing.get_context(method)
    pipe, theirs = context.Pipe()
    child = context.Process(target=read_and_wait, args=(table, theirs), daemon=True)
    child.start()
    assert pipe.recv() == (content(1, 3 * MB), True)
    assert not shards.claim(shard_key(3))
    found = shards.find(shard_key(2))
    assert found is not None
    del mine
    gc.collect()
    shards.forget(shard_key(1))
    for number in range(10, 20):
        put(shards, number, 3 * MB)  # which lets go of shard 1
    pipe.send(None)
    assert pipe.recv() == content(1, 3 * MB)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert shards.claim(shard_key(3))
    assert bytes(found) == content(2, 3 * MB)
    del found
    gc.collect()
    again = shards.find(shard_key(2))
    assert again is None or bytes(again) == content(2, 3 * MB)  # as long as its map is here
    del again
    gc.collect()
    shards.trim()
    assert shards.find(shard_key(2)) is None
    put(shards, 2, 3 * MB)
    assert shards.find(shard_key(2)) is not None


def hold_inherited(pipe: Any) -> None:
    pipe.recv()
    pipe.send((files(), [bytes(one) for one in INHERITED]))
    pipe.recv()


INHERITED: list[PooledBuffer] = []


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_keeps_what_it_reads_and_no_file(table: str) -> None:
    shards = NodeShards(open_table(table))
    INHERITED[:] = [put(shards, number, 3 * MB) for number in (1, 2)]
    context: Any = multiprocessing.get_context("fork")
    pipe, theirs = context.Pipe()
    child = context.Process(target=hold_inherited, args=(theirs,), daemon=True)
    child.start()
    INHERITED.clear()
    gc.collect()
    for number in range(10, 20):
        put(shards, number, 3 * MB)
    pipe.send(None)
    assert pipe.recv() == (0, [content(1, 3 * MB), content(2, 3 * MB)])
    pipe.send(None)
    child.join()


@pytest.mark.processes
def test_nothing_is_in_a_file_system(table: str) -> None:
    before = set(Path("/dev/shm").iterdir())
    shards = NodeShards(open_table(table))
    put(shards, 1, MB)
    assert set(Path("/dev/shm").iterdir()) <= before
