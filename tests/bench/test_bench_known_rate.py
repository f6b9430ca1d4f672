"""Storage of a known rate: what a run says of it is never more, and waiting is waiting.

``benchmarks/known_rate.py`` measures how near it is, where the machine is idle; a busy one makes it only less.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from s3server import Bucket
from stoker.bench.measure.generation import make_data
from stoker.bench.run import run_benchmark
from stoker.bench.settings.sources import read_workload
from throttle import throttled_server

RATE, SIZE, BATCH, STEPS, WARM_UP = 4_000_000, 200_000, 4, 20, 8


@pytest.mark.s3
@pytest.mark.processes
@pytest.mark.parametrize("loader", ["stoker", "torch"])
def test_no_more_is_said_than_the_storage_delivers(loader: str, bucket: Bucket, tmp_path: Path) -> None:
    if loader == "torch":
        pytest.importorskip("torch")
    step = BATCH * SIZE / RATE
    settings = [
        *(f"dataset.files={STEPS * BATCH}", f"dataset.record_bytes={SIZE}", "dataset.resize_bytes=1000"),
        *(
            f"reader.batch_size={BATCH}",
            f"reader.loader={loader}",
            f"metric.exclude_start={WARM_UP}",
            "reader.threads=2",
        ),
        f"compute.seconds={step / 2}",
    ]
    whole = [*settings, f"storage.options={json.dumps(bucket.storage_options)}"]
    make_data(read_workload(None, whole, environ={}, dotenv=None).workload, f"{bucket.url}/data")
    with throttled_server(bucket.server.endpoint, RATE) as endpoint:
        options = {**bucket.storage_options, "endpoint": endpoint}
        result = run_benchmark(
            read_workload(None, [*settings, f"storage.options={json.dumps(options)}"], environ={}, dotenv=None),
            results=tmp_path / "out",
            url=f"{bucket.url}/data",
            accelerators=1,
            stages=("train",),
        )
    (epoch,) = result["epochs"]
    assert epoch["steps"] == [STEPS]
    assert epoch["storage_bytes"] == epoch["fetched_bytes"] == pytest.approx(STEPS * BATCH * SIZE, rel=0.02)
    assert epoch["bytes"] == STEPS * BATCH * 1000
    # A tenth of a second's worth may come at once.
    assert 0 < epoch["storage_bytes_per_second"] < 1.03 * RATE
    # Of the steps that count some were read while others did not.
    assert 0 < epoch["counted_read_bytes"] < epoch["storage_bytes"]
    assert epoch["delivered_bytes_per_second"] < epoch["storage_bytes_per_second"] / 50
    # What was read ahead is there at once, more of it on a busy machine. The rest takes the storage's time.
    computed = (STEPS - WARM_UP) * step / 2
    waited_for = epoch["counted_read_bytes"] / RATE - 0.1
    assert epoch["au_nominal"] < 1.03 * computed / max(computed, waited_for)
    assert "whole samples" not in {one["rule"] for one in result["findings"]}
