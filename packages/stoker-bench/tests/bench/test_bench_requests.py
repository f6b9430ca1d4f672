"""Requests for stored bytes: how many, how large, how long, by where they were served, of all ranks, and over time."""

from __future__ import annotations

import copy
import io
import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_example import real_run
from rich.console import Console

from patience import PATIENCE
from s3server import Bucket
from stoker.cluster import World
from stoker.concurrency.request_observer import ServedBy, observe
from stoker.policy import READ_WHOLE, SMALL_OBJECT
from stoker.storage.files.mapped import MappedFile, map_file
from stoker_bench.cli.bench.page import bench_page
from stoker_bench.cli.bench.tables.requests_table import SERVED_BY, device_read, show_requests
from stoker_bench.compare.compare import compare_runs
from stoker_bench.loaders import LoaderJob, get_loader
from stoker_bench.loaders.decode import read_counted
from stoker_bench.loaders.listing import list_split
from stoker_bench.measure.generation import make_data
from stoker_bench.measure.request_counts import BYTES, COUNT, WIDTH, RequestCounts
from stoker_bench.measure.requests import Moment, latency_summary, request_record
from stoker_bench.measure.storage_series import COLUMNS, MOST_BINS, StorageSeries, block_device
from stoker_bench.results.report_files import RunFiles, find_runs
from stoker_bench.results.requests import merged_requests, told_requests
from stoker_bench.results.results import RESULTS
from stoker_bench.results.storage_over_time import storage_series
from stoker_bench.settings.sources import read_workload
from stoker_bench.settings.workload import Stage

FILES, SIZE = 6, 200_000
SETTINGS = (
    *("dataset.format=npz", f"dataset.files={FILES}", "dataset.samples_per_file=1", f"dataset.record_bytes={SIZE}"),
    *("reader.batch_size=2", "train.epochs=2", "compute.seconds=0", "dataset.resize_bytes=1000"),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("requests")
    if block_device(str(base)) is None:
        pytest.skip(f"{base} is on no block device")
    real_run(base / "made", *SETTINGS, url=str(base / "data"), stages=("generate",))
    return str(base / "data")


def read(folder: Path) -> RunFiles:
    return find_runs([folder])[0]


@pytest.mark.parametrize(
    ("loader", "client", "caches"),
    [
        ("stoker", "auto", ("drop", "keep")),
        pytest.param("stoker", "direct", ("keep",), marks=pytest.mark.processes),  # which shares with other ranks
        ("torch", "auto", ("drop",)),
        ("torch", "mmap", ("keep",)),
    ],
)
def test_requests_of_the_device_and_the_page_cache_stand_apart(
    loader: str, client: str, caches: tuple[str, ...], data: str, tmp_path: Path
) -> None:
    if loader == "torch":
        pytest.importorskip("torch")
    threads = int(loader == "stoker")
    settings = (*SETTINGS, f"reader.loader={loader}", f"reader.threads={threads}", f"storage.client={client}")
    for cache in caches:
        source = "device" if cache == "drop" or client == "direct" else "page_cache"
        real_run(tmp_path / cache, *settings, f"storage.cache={cache}", url=data)
        result = read(tmp_path / cache).result
        for epoch in result["epochs"]:
            parts = epoch["requests"]
            # The kernel may have given away a page or two of a file that was read before.
            assert set(parts) <= {source, "device"}
            assert sum(one["fetched_bytes"] for one in parts.values()) < FILES * SIZE / 2 or source == "device"
            assert sum(one["count"] for one in parts.values()) == FILES
            assert FILES * SIZE <= sum(one["bytes"] for one in parts.values()) <= 1.1 * FILES * SIZE
            found = parts[source]
            assert sum(found["sizes"].values()) == found["count"]
            assert 0 < found["latency"]["p50"] <= found["latency"]["p99.9"] <= found["latency"]["max"]
            assert found["per_second"] > 0 < found["bytes_per_second"]
            assert epoch["ranks"][0]["requests"][source]["count"] == found["count"]
            series = epoch["storage_series"]
            assert sum(series["requests"][source]) == found["count"]
            if source == "device":
                assert sum(series["bytes"]["device"]) > 0.9 * FILES * SIZE  # and what else the processes read
                # The kernel counts whole milliseconds, of which a fast device may need none.
                assert series["block_device"]["mean_seconds"] >= 0 < series["block_device"]["mean_bytes"]
        whole = result["requests"]["train"][source]
        assert whole["count"] == sum(whole["latency_histogram"]["count"])
        assert whole["count"] == sum(epoch["requests"][source]["count"] for epoch in result["epochs"])
        assert result["requests"]["evaluate"] is None


def test_the_wait_for_headers_is_in_the_first_request_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a small file is there when it is open: its only request would have taken no time."""
    (tmp_path / "a").write_bytes(bytes(100_000))
    clock = iter([(0, 0), (100_000, 7_000_000), (5, 10_000_000), (5, 11_000_000)])
    monkeypatch.setattr(RequestCounts, "begin", staticmethod(lambda: next(clock)))
    ended: list[tuple[tuple[int, int], int]] = []
    monkeypatch.setattr(RequestCounts, "end", lambda _, begun, size, **__: ended.append((begun, size)))
    observe(RequestCounts())
    try:
        file = map_file(tmp_path / "a")
        assert isinstance(file, MappedFile)
        file.await_headers(first=False)
        whole = np.frombuffer(file, np.uint8)
        read_counted([whole[:60_000], whole[60_000:]])
    finally:
        observe(None)
    assert ended == [((5 - 100_000, 3_000_000), 60_000), ((5, 11_000_000), 40_000)]


@pytest.mark.s3
@pytest.mark.parametrize("size", [SMALL_OBJECT - 1000, SMALL_OBJECT + 1])
def test_requests_over_the_network_and_to_the_cache_directory_stand_apart(
    size: int, bucket: Bucket, tmp_path: Path
) -> None:
    """What is small is held as it came: nobody reads it from the cache directory."""
    pairs = ", ".join(f"{name}: {value!r}" for name, value in bucket.storage_options.items())
    settings = (*SETTINGS, f"dataset.record_bytes={size}", "reader.threads=2", f"storage.options={{{pairs}}}")
    real_run(tmp_path / "out", *settings, url=f"{bucket.url}/data", stages=("generate", "train"))
    ((source, made),) = read(tmp_path / "out").result["requests"]["generate"].items()
    assert (source, made["count"]) == ("network", FILES)
    sources = {"network", "cache_directory"} if size > SMALL_OBJECT else {"network"}
    for epoch in read(tmp_path / "out").result["epochs"]:
        parts = epoch["requests"]
        assert set(parts) == sources == set(epoch["storage_series"]["bytes"])
        assert parts["network"]["bytes"] == epoch["fetched_bytes"] >= FILES * size
        assert parts["network"]["count"] >= FILES
        if size > SMALL_OBJECT:
            assert parts["cache_directory"]["count"] == FILES
            assert FILES * size <= parts["cache_directory"]["bytes"] <= 1.1 * FILES * size


def counted_by_loader(tmp_path: Path, *settings: str) -> tuple[int, int, list[int]]:
    """Requests of the loader ``stoker`` for local files and their bytes, in one epoch; and sizes of the files."""
    base = ("dataset.files=4", "reader.batch_size=1", "reader.shuffle=false", *settings)
    workload = read_workload(None, base, environ={}, dotenv=None).workload
    make_data(workload, str(tmp_path))
    job = LoaderJob(workload, "train", str(tmp_path), World(), 1, 1)
    counts = RequestCounts()
    job = replace(job, listing=list_split(job), requests=counts)
    opened = get_loader("stoker").open(job)
    try:
        assert sum(batch.samples for batch in opened.epoch(0)) == 4 * workload.dataset.samples_per_file
    finally:
        opened.close()
    table = counts.table().sum(axis=0)
    sizes = [path.stat().st_size for path in sorted((tmp_path / "train").glob("img*"))]
    return int(table[COUNT]), int(table[BYTES]), sizes


@pytest.mark.parametrize("shape", ["npz", "npy", "hdf5", "tfrecord", "tar", "csv", "jsonl"])
@pytest.mark.parametrize("resized", [False, True])
def test_all_reads_of_small_files_are_counted(shape: str, resized: bool, tmp_path: Path) -> None:
    """Once when the file's samples are found, and once when they are read; one of arrays is looked at for their axis."""
    more = ("dataset.resize_bytes=500",) if resized else ()
    count, size, files = counted_by_loader(
        tmp_path, f"dataset.format={shape}", "dataset.samples_per_file=3", "dataset.record_bytes=2000", *more
    )
    assert max(files) <= READ_WHOLE
    assert len(files) == 4
    assert count == (9 if shape in ("npz", "npy") else 8)
    assert size == sum(files) * count // 4


@pytest.mark.parametrize(
    "settings",
    [
        ("dataset.format=tfrecord", "dataset.record_bytes=15800", "dataset.record_bytes_stdev=2000"),
        ("dataset.format=tar", "dataset.record_bytes=15000", "dataset.record_bytes_stdev=2000"),
        (
            "dataset.format=hdf5",
            "dataset.samples_per_file=4",
            "dataset.record_bytes=1500000",
            "dataset.resize_bytes=99",
        ),
        ("dataset.format=npz", "dataset.samples_per_file=4", "dataset.record_bytes=9000"),
        (
            "dataset.format=parquet",
            "dataset.samples_per_file=4",
            "dataset.record_bytes=3000",
        ),  # whose footers nobody counts
        ("dataset.format=npy", "dataset.record_bytes=20000", "reader.decode=false"),
    ],
)
def test_files_of_which_some_reads_are_not_counted_have_no_requests(settings: tuple[str, ...], tmp_path: Path) -> None:
    """A part of the requests would look like all."""
    count, size, files = counted_by_loader(tmp_path, *settings)
    if "dataset.record_bytes_stdev=2000" in settings:
        assert min(files) <= READ_WHOLE < max(files)
    assert (count, size) == (0, 0)


@pytest.mark.processes
def test_what_ranks_share_in_memory_is_no_request(tmp_path: Path) -> None:
    """It came by requests that were counted."""
    settings = ("dataset.format=npy", "dataset.files=8", "dataset.record_bytes=120000", "dataset.resize_bytes=1000")
    more = ("storage.client=direct", "compute.seconds=0", "train.epochs=1", "reader.batch_size=2")
    if block_device(str(tmp_path)) is None:
        pytest.skip(f"{tmp_path} is on no block device")
    stages: tuple[Stage, ...] = ("generate", "train")
    real_run(tmp_path / "out", *settings, *more, url=str(tmp_path / "data"), stages=stages, ranks=2, processes=True)
    (epoch,) = read(tmp_path / "out").result["epochs"]
    assert {name: one["count"] for name, one in epoch["requests"].items()} == {"device": 8}


@pytest.mark.s3
@pytest.mark.parametrize("shape", ["npz", "parquet"])
def test_bytes_from_an_object_store_are_those_of_all_requests(shape: str, bucket: Bucket, tmp_path: Path) -> None:
    """Headers and footers came over the network, too: they once were in requests, and not in MB/s from storage."""
    pairs = ", ".join(f"{name}: {value!r}" for name, value in bucket.storage_options.items())
    settings = (
        *(f"dataset.format={shape}", "dataset.files=6", "dataset.record_bytes=200_000", "reader.batch_size=2"),
        *("train.epochs=2", "compute.seconds=0", f"storage.options={{{pairs}}}"),
    )
    real_run(tmp_path / "out", *settings, url=f"{bucket.url}/{shape}", stages=("generate", "train"))
    for epoch in read(tmp_path / "out").result["epochs"]:
        requested = epoch["requests"]["network"]
        assert requested["bytes"] == epoch["fetched_bytes"] == epoch["storage_bytes"] > 6 * 200_000
        # Counters are read one after the other, between which more may have come.
        assert requested["bytes_per_second"] == pytest.approx(epoch["storage_bytes_per_second"], rel=0.5)


def test_both_rates_of_requests_are_of_the_same_time() -> None:
    """Small requests while files are opened, large ones later: the most of each would be of two times."""
    before = RequestCounts()
    for _ in range(300):
        before.add(ServedBy.NETWORK, 1000, 10)
    opened = before.table()
    for _ in range(100):
        before.add(ServedBy.NETWORK, 1000, 10_000)
    nothing = Moment(0.0, np.zeros((len(ServedBy), WIDTH), np.int64))
    found = request_record(nothing, Moment(1.0, opened), Moment(2.0, before.table()), told=True)["network"]
    assert (found["bytes_per_second"], found["per_second"]) == (1e6, 100.0)


@pytest.mark.parametrize("direct", [False, True])
def test_parts_of_checkpoints_are_requests(direct: bool, tmp_path: Path) -> None:
    if block_device(str(tmp_path)) is None:
        pytest.skip(f"{tmp_path} is on no block device")
    size = 20_000_000
    model = (f"model.size_bytes={size}", "checkpoint.writes=2", "checkpoint.reads=1", f"checkpoint.direct={direct}")
    real_run(tmp_path / "out", *model, url=str(tmp_path / "data"), stages=("checkpoint",))
    result = read(tmp_path / "out").result
    for kind, source, count in (("save", "device" if direct else "page_cache", 2), ("load", "device", 1)):
        found = result["requests"][kind]
        # On a busy machine the kernel may keep pages that it was told to drop.
        assert {source} <= found.keys() <= {source, "page_cache"}
        written = sum(one["bytes"] for one in result["checkpoint"][f"{kind}s"])
        assert len(result["checkpoint"][f"{kind}s"]) == count
        assert sum(one["bytes"] for one in found.values()) == written
        assert sum(one["count"] for one in found.values()) >= count
        first = result["checkpoint"][f"{kind}s"][0]["requests"]
        assert sum(one["bytes"] for one in first.values()) == written / count
        assert 0 < first[source]["latency"]["p50"] <= first[source]["latency"]["max"]
    assert result["requests"]["train"] is None
    out = io.StringIO()
    show_requests(Console(file=out, width=80), result)
    assert "load device" in out.getvalue()
    assert "not measured" not in out.getvalue()
    assert "loaded, device, P99: " in bench_page([read(tmp_path / "out")])


def test_requests_that_a_loader_does_not_count_are_not_measured(tmp_path: Path) -> None:
    """The files are larger than what is read whole by one call when it is opened."""
    settings = ("dataset.format=tfrecord", "dataset.files=2", "dataset.samples_per_file=2", "dataset.record_bytes=9000")
    real_run(tmp_path / "out", *settings, url=str(tmp_path / "data"), stages=("generate", "train"))
    result = read(tmp_path / "out").result
    assert result["requests"]["train"] is None
    page = bench_page([read(tmp_path / "out")])
    assert "Of out, training: not measured with the loader stoker" in page
    assert "99th percentile of a step&#39;s wait for its batch" in page
    assert ("mean read of the block device, all programs" in page) == (device_read(result) is not None)
    assert result["epochs"][0]["requests"] is None
    # Each file that was generated is a request.
    ((source, made),) = result["requests"]["generate"].items()
    assert source in ("device", "page_cache", "local")
    assert (made["count"], made["bytes"]) == (result["generate"]["files"], result["generate"]["bytes"])
    assert 0 < made["latency"]["p50"] <= made["latency"]["max"]
    assert sum(made["latency_histogram"]["count"]) == made["count"]
    out = io.StringIO()
    show_requests(Console(file=out, width=80), result)
    assert f"generated {SERVED_BY[source]}" in out.getvalue()
    assert result["epochs"][0]["storage_series"]["requests"] == {}


def record(counts: RequestCounts, *, told: bool = True) -> dict[str, dict[str, Any]]:
    nothing = Moment(0.0, np.zeros((len(ServedBy), WIDTH), np.int64))
    return request_record(nothing, nothing, Moment(2.0, counts.table()), told=told)


def test_percentiles_are_those_of_all_ranks_requests() -> None:
    drawn = np.random.default_rng(0)
    times = [drawn.lognormal(13, 1.5, 5000).astype(np.int64), drawn.lognormal(16, 0.5, 300).astype(np.int64)]
    parts = []
    for mine in times:
        counts = RequestCounts()
        for nanoseconds in mine.tolist():
            counts.add(ServedBy.NETWORK, nanoseconds, 1000)
        parts.append(json.loads(json.dumps(record(counts))))
    everything = np.concatenate(times) * 1e-9
    found = told_requests(merged_requests(parts, at_once=True))["network"]
    assert (found["count"], found["bytes"], found["per_second"]) == (5300, 5_300_000, 2650)
    assert found["latency"]["mean"] == pytest.approx(everything.mean())
    for percent in (50, 90, 95, 99, 99.9):
        exact = np.percentile(everything, percent, method="inverted_cdf")
        assert found["latency"][f"p{percent:g}"] == pytest.approx(exact, rel=0.032)
    assert found["latency"]["max"] == pytest.approx(everything.max(), rel=0.032)
    # Epochs ran one after the other: their requests add up, and their rates do not.
    found = told_requests(merged_requests(parts, at_once=False))["network"]
    assert (found["count"], found["per_second"]) == (5300, 1325)
    assert latency_summary({}, 0.0) is None


def test_local_requests_are_not_told_apart_where_the_kernel_does_not_count() -> None:
    counts = RequestCounts()
    counts.add(ServedBy.PAGE_CACHE, 1000, 10)
    assert list(record(counts)) == ["page_cache"]
    assert list(record(counts, told=False)) == ["local"]
    counts.add(ServedBy.DEVICE, 1000, 10, fetched=512)  # such as from a file system's own cache
    assert list(record(counts)) == ["device", "page_cache"]
    assert record(counts, told=False)["local"]["count"] == 2


def test_a_series_holds_all_bytes_in_few_bins(tmp_path: Path) -> None:
    rows = 4000
    rising = np.arange(rows, dtype=np.int64)
    paths = []
    for rank in range(2):
        counters = np.full((rows, len(COLUMNS)), -1, np.int64)
        counters[:, COLUMNS.index("device_requests") :] = 0
        counters[:, 0] = counters[:, COLUMNS.index("device_request_bytes")] = rising * 1000
        counters[:, COLUMNS.index("page_cache_request_bytes")] = rising * 500
        counters[:, COLUMNS.index("device_requests")] = rising
        paths.append(tmp_path / f"{rank}.npz")
        np.savez(paths[-1], moments=1000 + np.linspace(0, 400, rows), counters=counters)
    found = storage_series(paths, 1000.0, 1400.0, 1)
    assert found is not None
    assert len(found["requests"]["device"]) == MOST_BINS == len(found["bytes"]["device"])
    assert found["bin_seconds"] == pytest.approx(400 / MOST_BINS)
    assert sum(found["requests"]["device"]) == 2 * (rows - 1)
    assert sum(found["bytes"]["device"]) == 2 * 1000 * (rows - 1)
    assert sum(found["bytes"]["page_cache"]) == 2 * 500 * (rows - 1)
    assert found["block_device"] is None  # which nobody looked at
    many = storage_series(paths, 1000.0, 1400.0, 100)
    assert many is not None
    assert len(many["bytes"]["device"]) == 60
    assert sum(many["bytes"]["device"]) == 2 * 1000 * (rows - 1)
    counters[:, COLUMNS.index("device_bytes")] = -1  # as the kernel does not say
    np.savez(paths[1], moments=1000 + np.linspace(0, 400, rows), counters=counters)
    untold = storage_series(paths, 1000.0, 1400.0, 1)
    assert untold is not None
    assert {kind: list(untold[kind]) for kind in ("bytes", "requests")} == {"bytes": ["local"], "requests": ["local"]}
    assert sum(untold["bytes"]["local"]) == 2 * 1500 * (rows - 1)
    paths[1].write_bytes(b"no archive")
    assert storage_series(paths, 1000.0, 1400.0, 1) is None


def test_a_series_tells_what_came_until_when(monkeypatch: pytest.MonkeyPatch) -> None:
    series = StorageSeries(RequestCounts(), None)
    counters = np.zeros((21, len(COLUMNS)), np.int64)
    counters[:, COLUMNS.index("device_bytes")] = np.minimum(100, 10 * np.arange(21))
    monkeypatch.setattr(series, "arrays", lambda: (np.linspace(1000, 1002, 21), counters))
    found = series.stored_until([1000.0, 1000.45, 1001.5], local=True)
    assert found is not None
    assert found.tolist() == pytest.approx([0, 45, 100])
    assert series.stored_until([1000.0], local=False) is None  # nothing came
    counters = counters[:5]
    monkeypatch.setattr(series, "arrays", lambda: (np.linspace(1000, 1002, 5), counters))
    assert series.stored_until([1000.0], local=True) is None  # too few looks


def test_looks_become_rarer_in_long_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    series = StorageSeries(RequestCounts(), None)
    waits = iter([False] * (10 * MOST_BINS))
    monkeypatch.setattr(series._stopped, "wait", lambda _: next(waits, True))
    series.start()
    series._thread.join(PATIENCE)
    moments, counters = series.arrays()
    assert len(moments) == len(counters) <= 2 * MOST_BINS
    assert (np.diff(moments) >= 0).all()
    assert (np.diff(counters, axis=0) >= 0).all()
    series.close()


@pytest.fixture(scope="module")
def run(data: str, tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    folder = tmp_path_factory.mktemp("run") / "out"
    real_run(folder, *SETTINGS, "train.epochs=3", url=data)
    return read(folder)


def with_source(run: RunFiles, source: str, factor: float) -> RunFiles:
    """The run, as if this source had served it, and each request had taken longer."""
    result = copy.deepcopy(dict(run.result))
    for epoch in result["epochs"]:
        epoch["requests"] = {source: copy.deepcopy(next(iter(epoch["requests"].values())))}
        latency = epoch["requests"][source]["latency"]
        latency |= {name: factor * value for name, value in latency.items()}
        series = epoch["storage_series"]
        epoch["storage_series"] = series | {
            kind: {source: next(iter(series[kind].values()))} for kind in ("bytes", "requests")
        }
    result["requests"] = {"train": {source: next(iter(result["requests"]["train"].values()))}, "evaluate": None}
    return RunFiles(run.folder, "made", result)


@pytest.mark.parametrize("source", ["device", "page_cache", "cache_directory", "network", "local"])
def test_latency_sizes_and_rates_of_each_source_are_drawn_and_told(run: RunFiles, source: str) -> None:
    made = with_source(run, source, 1.0)
    if source == "local":
        for epoch in made.result["epochs"]:
            epoch["storage_series"] = None
    text, words = bench_page([made]), SERVED_BY[source]
    told = [unescape(one) for one in re.findall(r"<title>([^<]*)</title>", text)]
    assert f"{words}, P99: " in " ".join(told)
    assert f"{words}, from 128 KiB: 100.00%" in told
    assert f'data-path="requests.train.{source}.latency.p50"' in text
    assert (f'data-path="epochs.0.requests.{source}.latency.p99"' in text) == (
        source not in ("page_cache", "cache_directory")
    )
    if source != "local":
        assert f"{words}, a second" in told
        assert f"epoch 0: from the {words}, over time" in told
    out = io.StringIO()
    show_requests(Console(file=out, width=80), made.result)
    shown = out.getvalue()
    assert max(map(len, shown.splitlines())) <= 80
    assert words in shown
    assert re.search(r"listed train: 6 files in .* files/s\)", shown)


def test_a_loader_whose_requests_are_not_counted_is_told_so(run: RunFiles) -> None:
    made = with_source(run, "device", 1.0)
    made.result["requests"]["train"] = None
    out = io.StringIO()
    show_requests(Console(file=out, width=80), made.result)
    assert "requests: not measured with the loader stoker" in out.getvalue()
    epochs = [made.result["epochs"][0] | {"kind": kind} for kind in ("train", "train", "train", "eval")]
    told = zip(epochs, (0.001, 0.004, 0.05, 0.009), (1_000, 900_000, 100, 2_000_000), strict=True)
    for epoch, seconds, read in told:
        epoch["device_bytes"] = read
        epoch["storage_series"] = {"block_device": {"mean_seconds": seconds, "bytes": [400_000, 600_000]}}
    show_requests(Console(file=out, width=400), {**made.result, "epochs": epochs})
    assert (
        "; the block device took 4.00 ms for a read in the mean, in the epoch that read most of it; 90%"
        in out.getvalue()
    )
    for epoch in epochs[:3]:
        epoch["device_bytes"] = 0  # all that was read there was read by others
    assert device_read({"epochs": epochs}) is None


def test_slower_requests_are_worse_and_older_results_have_none(run: RunFiles) -> None:
    fast, slow = with_source(run, "network", 1.0), with_source(run, "network", 3.0)
    found = {one.metric: one for one in compare_runs([fast], [slow], force=True).changes}
    assert found["request_p50"].change == pytest.approx(2.0)
    assert found["request_p99"].change == pytest.approx(2.0)
    assert found["requests_per_second"].change == pytest.approx(0.0)
    older = with_source(run, "network", 1.0)
    for epoch in older.result["epochs"]:
        del epoch["requests"]
    assert "request_p50" not in {one.metric for one in compare_runs([older], [slow], force=True).changes}


def test_results_from_before_requests_were_counted_are_read(data: str, tmp_path: Path) -> None:
    real_run(tmp_path / "out", *SETTINGS, url=data)
    path = tmp_path / "out" / RESULTS
    older = copy.deepcopy(dict(read(tmp_path / "out").result))
    del older["requests"], older["listing"]["train"]["files_per_second"]
    for epoch in older["epochs"]:
        del epoch["requests"], epoch["storage_series"]
        for rank in epoch["ranks"]:
            del rank["requests"]
    path.write_text(json.dumps(older))
    assert "from storage" in bench_page([read(tmp_path / "out")])
