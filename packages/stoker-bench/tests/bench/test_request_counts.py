"""Counts of requests: buckets that are exact enough, processes whose counts add up, and where local bytes came from."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from patience import PATIENCE
from stoker.concurrency.request_observer import ServedBy, observe, observer
from stoker.concurrency.shared.counters import LogBuckets
from stoker.storage.files.mapped import map_file
from stoker.storage.files.mounts import mount_of
from stoker_bench.measure.request_counts import (
    BYTES,
    COUNT,
    FETCHED,
    LATENCIES,
    LATENCY,
    SIZE,
    SIZES,
    TIME,
    RequestCounts,
)


@pytest.mark.parametrize("buckets", [LATENCIES, SIZES, LogBuckets(10, 2, 192)])
def test_a_bucket_holds_the_values_from_its_start_to_the_next(buckets: LogBuckets) -> None:
    for value in [*range(3000), *(1 << np.arange(12, 40)).tolist(), *((1 << np.arange(12, 40)) - 1).tolist()]:
        bucket = buckets.of(value)
        assert buckets.start(bucket) <= value < buckets.start(bucket + 1)
    assert buckets.of(1 << 62) == buckets.count - 1
    starts = buckets.starts()
    assert (np.diff(starts) > 0).all()
    width = np.diff(starts)[1:] / starts[1:-1]
    assert width.max() == 2.0**-buckets.fine


def test_requests_are_counted_in_the_buckets_of_their_time_and_size() -> None:
    counts = RequestCounts()
    values = [0, 1, 255, 256, 257, 511, 512, 513, 1023, 1024, *(3**power for power in range(6, 40)), 1 << 60]
    for value in values:
        before = counts.table()[ServedBy.DEVICE]
        counts.add(ServedBy.DEVICE, value, value, fetched=value)
        added = counts.table()[ServedBy.DEVICE] - before
        assert added[[COUNT, LATENCY + LATENCIES.of(value), SIZE + SIZES.of(value)]].tolist() == [1, 1, 1]
        assert added[LATENCY:].sum() == 2
        assert added[[BYTES, FETCHED, TIME]].tolist() == [value] * 3


def _add(counts: RequestCounts, times: int) -> None:
    for _ in range(times):
        counts.add(ServedBy.NETWORK, 1_000_000, 4096)


def test_counts_of_spawned_processes_add_up() -> None:
    counts = RequestCounts()
    _add(counts, 2)
    context = multiprocessing.get_context("spawn")
    children = [context.Process(target=_add, args=(counts, 3), daemon=True) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(PATIENCE)
        assert child.exitcode == 0
    network = counts.table()[ServedBy.NETWORK]
    assert network[[COUNT, BYTES, FETCHED, TIME]].tolist() == [8, 8 * 4096, 0, 8_000_000]
    assert network[LATENCY + LATENCIES.of(1_000_000)] == 8
    assert not counts.table()[[ServedBy.DEVICE, ServedBy.PAGE_CACHE, ServedBy.CACHE_DIRECTORY]].any()


def test_a_small_file_is_counted_and_told_from_the_page_cache(tmp_path: Path) -> None:
    if mount_of(tmp_path)[1] in ("tmpfs", "ramfs"):
        pytest.skip(f"{tmp_path} lies in memory")
    path = tmp_path / "small"
    path.write_bytes(os.urandom(10_000))
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    counts = RequestCounts()
    assert observer() is None
    observe(counts)
    try:
        first, second = map_file(path), map_file(path)
    finally:
        observe(None)
    assert first == second == map_file(path)  # which nobody counts
    table = counts.table()
    assert table[ServedBy.DEVICE, [COUNT, BYTES]].tolist() == [1, 10_000]
    assert table[ServedBy.DEVICE, FETCHED] >= 10_000
    assert table[ServedBy.PAGE_CACHE, [COUNT, BYTES, FETCHED]].tolist() == [1, 10_000, 0]
