"""Counts of what was loaded: right, over processes and threads, and as metrics."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from patience import PATIENCE
from stoker import ReadOptions, StreamingDataset
from stoker.concurrency.shared.counters import BUCKETS, Count, Counts, bucket_of, bucket_start
from stoker.errors import ConfigError, ObjectNotFoundError
from stoker.loaders.shard_loader import StreamingConfig, StreamingShardLoader
from stoker.pipeline.stats.metrics import observe_with_opentelemetry, register_with_prometheus
from stoker.pipeline.stats.stats import METRICS, StreamStats, percentile, prometheus_text
from support import cache_of, make_dataset

SAMPLES = 200


def stats_of(dataset: StreamingDataset) -> StreamStats:
    return dataset.stats()


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return make_dataset(tmp_path / "remote", SAMPLES)


def stored(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("shard.*"))


@pytest.mark.parametrize("threads", [0, 3])
def test_what_comes_from_afar_and_what_was_there(remote: Path, tmp_path: Path, threads: int) -> None:
    def read() -> StreamStats:
        dataset = StreamingDataset(
            remote=remote, local=tmp_path / "cache", batch_size=8, read=ReadOptions(read_threads=threads)
        )
        assert sum(len(batch["id"]) for batch in dataset.batches()) == SAMPLES
        return stats_of(dataset)

    shards = len(list(remote.glob("shard.*")))
    cold, warm = read(), read()
    assert (cold.samples_loaded, cold.remote_samples, cold.local_samples) == (SAMPLES, SAMPLES, 0)
    assert (warm.samples_loaded, warm.remote_samples, warm.local_samples) == (SAMPLES, 0, SAMPLES)
    assert (cold.bytes_fetched, warm.bytes_fetched) == (stored(remote), 0)
    assert cold.bytes_read == warm.bytes_read == stored(remote)
    assert (cold.cache_hits, cold.cache_misses) == (0, shards)
    assert (warm.cache_hits, warm.cache_misses) == (shards, 0)
    assert cold.prefetch_hits + cold.prefetch_misses >= shards
    assert cold.reads > 0
    assert 0 < cold.mean_load_time < cold.elapsed + cold.waited
    assert 0 <= cold.worker_utilization <= 1


def test_a_shard_that_many_threads_want_at_once_is_opened_once(remote: Path, tmp_path: Path) -> None:
    dataset = StreamingDataset(remote=remote, local=tmp_path / "cache")
    pool, shards = dataset.epoch_reader.pool, len(list(remote.glob("shard.*")))
    together = threading.Barrier(8)
    readers: list[set[int]] = [set() for _ in range(shards)]

    def want_all(ahead: bool) -> None:
        for shard in range(shards):
            together.wait(PATIENCE)
            if ahead:
                pool.prefetch([shard])
            readers[shard].add(id(pool.get(shard)))

    threads = [threading.Thread(target=want_all, args=(number == 0,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    stats = stats_of(dataset)
    assert (stats.cache_misses, stats.cache_hits) == (shards, 0)
    assert stats.bytes_read == stored(remote)
    assert [len(ids) for ids in readers] == [1] * shards


def test_all_who_wait_for_a_shard_hear_that_it_can_not_be_had_and_may_ask_again(remote: Path, tmp_path: Path) -> None:
    dataset = StreamingDataset(remote=remote, local=tmp_path / "cache")
    pool = dataset.epoch_reader.pool
    first = min(remote.glob("shard.*"))
    away = first.rename(tmp_path / "away")
    together, heard = threading.Barrier(4), []

    def want() -> None:
        together.wait(PATIENCE)
        try:
            pool.get(0)
        except ObjectNotFoundError as error:
            heard.append(error)

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(heard) == 4
    away.rename(first)
    assert pool.get(0) is pool.get(0)


def test_a_shard_that_was_corrupt_on_the_way_counts_as_a_retry(remote: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    list(StreamingDataset(remote=remote, local=cache))
    victim = sorted(cache_of(cache).glob("shard.*"))[1]
    victim.write_bytes(b"\xff" * victim.stat().st_size)
    dataset = StreamingDataset(remote=remote, local=cache)
    assert len(list(dataset)) == SAMPLES
    assert stats_of(dataset).retries == 1


@pytest.mark.processes
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_dataloader_workers_are_counted(remote: Path, context: str) -> None:
    from torch.utils.data import DataLoader

    dataset = StreamingDataset(local=remote)
    loader: Any = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
    for epochs in (1, 2):
        assert len(list(loader)) == SAMPLES
        assert stats_of(dataset).samples_loaded == epochs * SAMPLES


def _add(counts: Counts, times: int) -> None:
    for _ in range(times):
        counts.read_step(2, 1, 1, 0, 5_000)
        counts.add(Count.RETRIES, 1)


@pytest.mark.processes
def test_nothing_is_lost_between_processes_that_come_and_go() -> None:
    counts = Counts()
    context = multiprocessing.get_context("fork")
    for _ in range(3):
        children = [context.Process(target=_add, args=(counts, 10)) for _ in range(60)]
        for child in children:
            child.start()
        for child in children:
            child.join()
            assert child.exitcode == 0
    stats = StreamStats.of(counts)
    assert (stats.samples_loaded, stats.remote_samples, stats.retries, stats.reads) == (3600, 1800, 1800, 1800)


def test_nothing_is_lost_between_threads() -> None:
    counts = Counts()
    threads = [threading.Thread(target=_add, args=(counts, 2000)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert StreamStats.of(counts).samples_loaded == 24_000


def test_a_copy_that_was_sent_elsewhere_counts_for_itself() -> None:
    import pickle

    counts = Counts()
    counts.add(Count.RETRIES, 3)
    copy = pickle.loads(pickle.dumps(counts))
    copy.add(Count.RETRIES, 1)
    assert (StreamStats.of(counts).retries, StreamStats.of(copy).retries) == (3, 1)


def test_counts_are_gone_with_their_object() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        Counts().add(Count.RETRIES, 1)
    assert len(os.listdir("/proc/self/fd")) <= before + 1


# -- percentiles -------------------------------------------------------------------------------------------------------


@given(st.integers(0, (1 << 56) - 1))
def test_a_time_lies_in_its_bucket(nanoseconds: int) -> None:
    bucket = bucket_of(nanoseconds)
    low, high = bucket_start(bucket) * 1e9, bucket_start(bucket + 1) * 1e9
    assert bucket == BUCKETS - 1 or low * (1 - 1e-12) <= nanoseconds < high * (1 + 1e-12)


@given(st.lists(st.integers(1 << 10, 1 << 45), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99]))
def test_percentiles_are_right_within_a_quarter(times: list[int], part: float) -> None:
    histogram = np.zeros(BUCKETS, dtype=np.int64)
    for time in times:
        histogram[bucket_of(time)] += 1
    # The least time that so many reads did not exceed.
    exact = sorted(times)[max(0, int(np.ceil(part * len(times))) - 1)] * 1e-9
    assert exact * 0.79 <= percentile(histogram, part) <= exact * 1.26


def test_no_reads_no_percentile() -> None:
    assert StreamStats.of(Counts()).load_percentiles == {50: 0.0, 90: 0.0, 99: 0.0}


# -- metrics -----------------------------------------------------------------------------------------------------------


def loaded() -> StreamingShardLoader:
    loader = StreamingShardLoader({"x": np.arange(100)}, StreamingConfig(prefetch_buffer_size=16))
    list(loader)
    return loader


def parsed(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_prometheus_text_has_every_number() -> None:
    stats = loaded().get_stats()
    found = parsed(stats.prometheus(rank="3", job='a"b\\c\nd'))
    labels = '{rank="3",job="a\\"b\\\\c\\nd"}'
    assert found[f"stoker_samples_total{labels}"] == 100
    assert found[f"stoker_prefetch_hits_total{labels}"] + found[f"stoker_prefetch_misses_total{labels}"] == 100
    assert found[f"stoker_read_seconds_count{labels}"] == stats.reads
    assert found[f"stoker_worker_utilization_ratio{labels}"] == pytest.approx(stats.worker_utilization)
    assert len(found) == len(METRICS) + 5
    with pytest.raises(ConfigError, match="not a name for a label"):
        stats.prometheus(**{"a-b": "c"})


def test_prometheus_can_read_the_text() -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    stats = loaded().get_stats()
    families = {family.name: family for family in parser.text_string_to_metric_families(prometheus_text(stats))}
    assert families["stoker_samples"].type == "counter"
    assert families["stoker_read_seconds"].type == "summary"


def test_a_collector_reads_when_it_is_asked() -> None:
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    loader = StreamingShardLoader({"x": np.arange(100)}, StreamingConfig())
    register_with_prometheus(loader.get_stats, {"rank": "0"}, registry)
    assert registry.get_sample_value("stoker_samples_total", {"rank": "0"}) == 0
    list(loader)
    assert registry.get_sample_value("stoker_samples_total", {"rank": "0"}) == 100


def test_opentelemetry_reads_when_it_collects() -> None:
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    loader = loaded()
    observe_with_opentelemetry(loader.get_stats, {"rank": "0"}, MeterProvider([reader]).get_meter("test"))
    data: Any = reader.get_metrics_data()
    metrics = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    (point,) = metrics["stoker.samples"].data.data_points
    assert (point.value, dict(point.attributes)) == (100, {"rank": "0"})
    assert len(metrics["stoker.read_time"].data.data_points) == 3
