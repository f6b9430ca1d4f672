"""Storage of a known rate: what a run says of it is never more, and waiting is waiting.

``benchmarks/known_rate.py`` measures how near it is, where the machine is idle; a busy one makes it only less.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3server import Bucket, S3Server, make_bucket
from stoker_bench.measure.generation import make_data
from stoker_bench.run import run_benchmark
from stoker_bench.settings.sources import read_workload
from throttle import throttled_server

RATE, SIZE, BATCH, STEPS, WARM_UP = 8_000_000, 200_000, 4, 20, 8
STEP = BATCH * SIZE / RATE
"""Seconds in which a batch comes."""
LATE = 0.1
"""Seconds for which the storage may make good at once: a part of the 2 s of a run."""
SETTINGS = (
    *(f"dataset.files={STEPS * BATCH}", f"dataset.record_bytes={SIZE}", "dataset.resize_bytes=1000"),
    *(f"reader.batch_size={BATCH}", f"metric.exclude_start={WARM_UP}", "reader.threads=1"),
    f"compute.seconds={STEP / 4}",
)
AHEAD: dict[str, dict[str, int]] = {"stoker": {"predownload": BATCH}, "torch": {"prefetch_factor": 1}}
MOST_AHEAD = 4
"""Batches that are read ahead at most: those above, one that is made, and one that is handed over."""


@pytest.fixture(scope="module")
def stored(s3_server: S3Server) -> Iterator[Bucket]:
    with make_bucket(s3_server) as bucket:
        whole = [*SETTINGS, f"storage.options={json.dumps(bucket.storage_options)}"]
        make_data(read_workload(None, whole, environ={}, dotenv=None).workload, f"{bucket.url}/data")
        yield bucket


# It must measure: that bytes of real connections, which processes and threads of a real loader wait for, are counted when
# they come and not twice is what a simulated clock would take for granted. Bounds are upper ones, which hold on a machine
# that is late, and far enough for what the storage makes good at once.
@pytest.mark.timing
@pytest.mark.s3
@pytest.mark.processes
@pytest.mark.parametrize("loader", ["stoker", "torch"])
def test_no_more_is_said_than_the_storage_delivers(loader: str, stored: Bucket, tmp_path: Path) -> None:
    if loader == "torch":
        pytest.importorskip("torch")
    with throttled_server(stored.server.endpoint, RATE) as endpoint:
        options = {**stored.storage_options, "endpoint": endpoint}
        ahead = f"reader.options={json.dumps(AHEAD[loader])}"
        given = [*SETTINGS, f"reader.loader={loader}", ahead, f"storage.options={json.dumps(options)}"]
        result = run_benchmark(
            read_workload(None, given, environ={}, dotenv=None),
            results=tmp_path / "out",
            url=f"{stored.url}/data",
            accelerators=1,
            stages=("train",),
        )
    (epoch,) = result["epochs"]
    assert epoch["steps"] == [STEPS]
    assert epoch["storage_bytes"] == epoch["fetched_bytes"] == pytest.approx(STEPS * BATCH * SIZE, rel=0.02)
    assert epoch["bytes"] == STEPS * BATCH * 1000
    assert 0 < epoch["storage_bytes_per_second"] < 1.2 * RATE
    # Of the steps that count some were read while others did not.
    assert 0 < epoch["counted_read_bytes"] < epoch["storage_bytes"]
    assert epoch["delivered_bytes_per_second"] < epoch["storage_bytes_per_second"] / 10  # of 200
    # What was read ahead is there at once. The rest takes the storage's time. (Bytes that were counted meanwhile are looked
    # at every now and then: how often is a matter of the machine.)
    computed = (STEPS - WARM_UP) * STEP / 4
    waited_for = (STEPS - WARM_UP - MOST_AHEAD) * STEP - 2 * LATE
    assert epoch["au_nominal"] < 1.03 * computed / max(computed, waited_for)
    assert "whole samples" not in {one["rule"] for one in result["findings"]}
