"""Whole runs over objects, through each package that jobs read them with: each rank is given its part of what is stored.

Ranks are processes where one alone is to be counted, or where the loader has some of its own; else threads of this process.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from bench_threads import run_in_threads

from s3server import Bucket, CountingProxy
from stoker_bench.measure.fingerprint import fingerprint
from stoker_bench.run import run_benchmark
from stoker_bench.settings.sources import Resolved, read_workload
from stoker_bench.settings.workload import Stage

FILES, BATCH = 8, 2


def resolved(client: str, bucket: Bucket, *more: str) -> Resolved:
    pairs = ", ".join(f"{name}: {value!r}" for name, value in bucket.storage_options.items())
    settings = (
        *("dataset.format=npz", f"dataset.files={FILES}", "dataset.samples_per_file=1", "dataset.record_bytes=10000"),
        *("reader.loader=torch", f"reader.batch_size={BATCH}", "reader.threads=0", "reader.shuffle=false"),
        *("train.epochs=2", "compute.seconds=0", f"storage.client={client}", f"storage.options={{{pairs}}}"),
        *more,
    )
    return read_workload(None, settings, environ={}, dotenv=None)


@pytest.mark.s3
@pytest.mark.parametrize(
    "client", [pytest.param("obstore", marks=pytest.mark.processes), "s3dlio", "s3torchconnector", "minio", "boto3"]
)
def test_a_run_through_this_client_reads_what_the_bucket_holds(
    client: str, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(client)
    for variable in [one for one in os.environ if one.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    run = run_benchmark if client == "obstore" else run_in_threads  # whose requests are counted for a process
    result = run(
        resolved(client, bucket),
        results=tmp_path / "out",
        url=f"{bucket.url}/some/data",
        accelerators=2,
        stages=("generate", "train"),
    )
    assert (result["complete"], result["failure"]) == (True, None)
    assert result["storage"]["kind"] == "s3"
    keys = sorted(filter(lambda key: key.endswith(".npz"), bucket.keys()))
    assert len(keys) == FILES
    assert all(key.startswith("some/data/train/") for key in keys)
    witness = bucket.server.client()
    bodies = [witness.get_object(Bucket=bucket.name, Key=key)["Body"].read() for key in keys]
    stored = [np.load(io.BytesIO(body))["data"] for body in bodies]
    for epoch in result["epochs"]:
        assert epoch["steps"] == [FILES // BATCH // 2] * 2
        assert epoch["bytes"] == sum(one.nbytes for one in stored)
        network = epoch["requests"]["network"]
        assert list(epoch["requests"]) == ["network"]
        assert (network["count"], network["bytes"]) == (FILES, sum(map(len, bodies)))
        assert [rank["requests"]["network"]["count"] for rank in epoch["ranks"]] == [FILES // 2] * 2
        first = [np.concatenate(stored[rank * FILES // 2 :][:BATCH]) for rank in (0, 1)]
        assert epoch["fingerprints"] == [fingerprint(batch) for batch in first]
        assert any(client in note for note in epoch["loader"]["notes"])
        assert client in epoch["loader"]["versions"]


@pytest.mark.s3
@pytest.mark.parametrize("per", ["request", "rank"])
def test_a_run_over_two_endpoints_reads_through_both_by_the_library_that_was_asked_for(
    per: str, bucket: Bucket, proxies: list[CountingProxy], tmp_path: Path
) -> None:
    client = "minio" if per == "rank" else "boto3"
    pytest.importorskip(client)
    settings = (
        *("reader.loader=stoker", "train.epochs=1", f"storage.endpoints={[one.endpoint for one in proxies]}"),
        *(f"storage.endpoint_per={per}", "storage.part_bytes=1MB", "storage.part_requests=2", "storage.attempts=3"),
        *("dataset.record_bytes=1500000", "model.size_bytes=1000", "checkpoint.verify=true", "dataset.files=4"),
        "metric.exclude_start=0",
    )
    found = resolved(client, bucket, *settings)
    stages: tuple[Stage, ...] = ("generate", "train", "checkpoint")
    result = run_in_threads(found, results=tmp_path / "out", url=f"{bucket.url}/d", accelerators=2, stages=stages)
    assert (result["complete"], result["failure"]) == (True, None)
    epoch = result["epochs"][0]
    assert (epoch["samples"], epoch["bytes"]) == (4, 4 * 1_500_000)
    assert any(client in note for note in epoch["loader"]["notes"])
    recorded = result["plan"]["workload"]["storage"]
    assert [recorded[name] for name in ("endpoint_per", "part_bytes", "part_requests", "attempts")] == [
        per,
        1 << 20,
        2,
        3,
    ]
    for proxy in proxies:
        reads = [line for line in proxy.requests if line.startswith(b"GET ") and b".npz" in line]
        assert len(reads) >= 4  # of the 4 files of two parts, half of the requests
        assert any(b"/checkpoints/" in line for line in proxy.requests)


@pytest.mark.s3
@pytest.mark.parametrize("loader", ["stoker", pytest.param("torch", marks=pytest.mark.processes)])
def test_a_dead_endpoint_of_two_is_named_with_the_requests_that_were_made_again(
    loader: str, bucket: Bucket, proxies: list[CountingProxy], tmp_path: Path
) -> None:
    if loader == "torch":
        pytest.importorskip("torch")
    made = resolved("obstore", bucket)
    run_in_threads(made, results=tmp_path / "made", url=f"{bucket.url}/d", stages=("generate",))
    proxies[0].close()
    alive, dead = proxies[1].endpoint, proxies[0].endpoint
    settings = (f"reader.loader={loader}", f"reader.threads={int(loader == 'torch')}", "train.epochs=1")
    found = resolved("obstore", bucket, *settings, f"storage.endpoints=['{dead}/', '{alive}']")
    run = run_benchmark if loader == "torch" else run_in_threads
    result = run(found, results=tmp_path / "out", url=f"{bucket.url}/d", stages=("train",))
    assert (result["complete"], result["epochs"][0]["samples"]) == (True, FILES)
    repeated = result["epochs"][0]["repeated_requests"]
    assert list(repeated) == [dead]
    assert 1 <= repeated[dead] <= 2 * FILES
    (said,) = [one["reason"] for one in result["findings"] if one["rule"] == "repeated requests"]
    assert f" to {dead} failed, and " in said
    assert "again at another endpoint: is the server down?" in said


def test_keys_of_dlio_choose_library_attempts_and_direct_reads() -> None:
    settings = ("storage.storage_library=minio", "storage.storage_options.s3_max_attempts=3")
    found = read_workload(None, [f"++workload.{one}" for one in settings], environ={}, dotenv=None)
    assert (found.workload.storage.client, found.workload.storage.attempts) == ("minio", 3)
    assert found.workload.storage.store_options("s3://b/x") == {"patience": 120.0}
    assert found.workload.storage.read_options("s3://b/x") == {"patience": 120.0, "library": "minio"}
    for kind, client in (("local_fs", "auto"), ("direct_fs", "direct"), ("s3", "minio")):
        more = [f"++workload.{one}" for one in (*settings, f"storage.storage_type={kind}")]
        found = read_workload(None, more, environ={}, dotenv=None)
        assert found.workload.storage.client == client
        assert any("storage_library: it is for objects" in note for note in found.notes.ignored) == (kind != "s3")
    direct = read_workload(None, ["reader.odirect=true", "storage.part_requests=3"], environ={}, dotenv=None)
    assert direct.workload.storage.read_options("/d") == {"read_by": "direct", "part_requests": 3}
    assert direct.workload.storage.store_options("/d") is None
