"""Whole runs over objects, through each package that jobs read them with: each rank is given its part of what is stored."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest

from s3server import Bucket
from stoker.bench.measure.fingerprint import fingerprint
from stoker.bench.run import run_benchmark
from stoker.bench.settings.sources import Resolved, read_workload

FILES, BATCH = 8, 2


def resolved(client: str, bucket: Bucket) -> Resolved:
    pairs = ", ".join(f"{name}: {value!r}" for name, value in bucket.storage_options.items())
    settings = (
        *("dataset.format=npz", f"dataset.files={FILES}", "dataset.samples_per_file=1", "dataset.record_bytes=10000"),
        *("reader.loader=torch", f"reader.batch_size={BATCH}", "reader.threads=0", "reader.shuffle=false"),
        *("train.epochs=2", "compute.seconds=0", f"storage.client={client}", f"storage.options={{{pairs}}}"),
    )
    return read_workload(None, settings, environ={}, dotenv=None)


@pytest.mark.s3
@pytest.mark.processes
@pytest.mark.parametrize("client", ["obstore", "s3dlio", "s3torchconnector", "minio"])
def test_a_run_through_this_client_reads_what_the_bucket_holds(
    client: str, bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(client)
    for variable in [one for one in os.environ if one.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    result = run_benchmark(
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
