"""Every format there is, in a directory and in an object store: generated, and trained on for two epochs by two ranks.

The ranks are threads of this process; those of other tests are processes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from bench_threads import run_in_threads

from s3server import Bucket
from stoker.formats.registry import format_name, get_format
from stoker_bench.generation.spec import generated_formats
from stoker_bench.results.results import schema
from stoker_bench.settings.sources import read_workload

FILES, SAMPLES = 4, 3


def train(kind: str, url: str, options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A run of two ranks."""
    each = 1 if get_format(format_name(kind)).single else SAMPLES
    chosen = [
        f"dataset.format={kind}",
        f"dataset.files={FILES * SAMPLES // each}",
        f"dataset.samples_per_file={each}",
        "dataset.record_bytes=1000",
        "reader.batch_size=3",
        "reader.threads=1",
        "train.epochs=2",
        f"storage.options={json.dumps(options)}",
    ]
    resolved = read_workload(None, chosen, environ={}, dotenv=None)
    return run_in_threads(resolved, results=folder / "results", url=url, accelerators=2, stages=("generate", "train"))


@pytest.mark.parametrize("place", ["directory", pytest.param("objects", marks=pytest.mark.s3)])
@pytest.mark.parametrize("kind", ["jsonl" if name == "json" else name for name in generated_formats()])
def test_a_format_is_generated_and_trained_on(
    kind: str, place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, options = str(tmp_path / "data"), {}
    if place == "objects":
        bucket: Bucket = request.getfixturevalue("bucket")
        url, options = f"{bucket.url}/data", dict(bucket.storage_options)
    result = train(kind, url, options, tmp_path)
    jsonschema.validate(result, schema())
    assert result["complete"]
    assert result["generate"]["samples"] == FILES * SAMPLES
    assert [epoch["epoch"] for epoch in result["epochs"]] == [0, 1]
    for epoch in result["epochs"]:
        assert epoch["steps"] == [2, 2]
        assert epoch["samples"] == FILES * SAMPLES
        assert epoch["bytes"] >= FILES * SAMPLES * 500
        assert epoch["loader"]["decoded"] == "arrays"
        assert len({*epoch["fingerprints"]}) == 2
        if place == "objects":
            assert epoch["fetched_bytes"] > FILES * SAMPLES * 100
    broken = {one["rule"] for one in result["findings"] if one["invalid"]}
    assert not broken - {"page cache"}
