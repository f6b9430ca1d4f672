"""Every format there is, in a directory and in an object store: generated, and trained on for two epochs by two ranks.

The ranks are threads of this process, as in :mod:`test_bench_ranks`; those of other tests are processes.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from s3server import Bucket
from stoker.bench.ranks.control.client import Link
from stoker.bench.ranks.control.server import Server
from stoker.bench.ranks.plan import RunPlan
from stoker.bench.ranks.rank_main import run_member
from stoker.bench.results.results import collect, schema
from stoker.bench.settings.sources import read_workload
from stoker.cluster import World
from stoker.formats.registry import format_name, get_format
from stoker.generation.spec import generated_formats

FILES, SAMPLES = 4, 6


@pytest.fixture(scope="module", autouse=True)
def _only_own_objects() -> Iterator[None]:
    """A dataset that a thread reads looks through all objects for wrappers around it: not through those of other tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def train(kind: str, url: str, options: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A run of two ranks, as :func:`stoker.bench.run.run_benchmark` starts them."""
    each = 1 if get_format(format_name(kind)).single else SAMPLES
    chosen = [
        f"dataset.format={kind}",
        f"dataset.files={FILES * SAMPLES // each}",
        f"dataset.samples_per_file={each}",
        "dataset.record_bytes=1000",
        "reader.batch_size=3",
        "reader.threads=1",
        "train.epochs=2",
        "stages=[generate, train]",
        f"storage.url={url}",
        f"storage.options={json.dumps(options)}",
    ]
    resolved = read_workload(None, chosen, environ={}, dotenv=None)
    results, scratch = folder / "results", folder / "scratch"
    results.mkdir()
    scratch.mkdir()
    plan = RunPlan(resolved.workload, url, str(results), "run", origins=resolved.origins, scratch=str(scratch))
    server, began = Server(2, "token", plan.digest), time.time()

    def run(rank: int) -> None:
        link = Link(lambda: ("127.0.0.1", server.port, "token"), rank, plan.digest, join_seconds=30)
        run_member(plan, World(rank, 2, 2, "local"), link)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    server.close()
    return collect(plan, results, 2, failure=server.failure, began=began, launcher="threads")


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
        assert epoch["steps"] == [4, 4]
        assert epoch["samples"] == FILES * SAMPLES
        assert epoch["bytes"] >= FILES * SAMPLES * 500
        assert epoch["loader"]["decoded"] == "arrays"
        assert len({*epoch["fingerprints"]}) == 2
        if place == "objects":
            assert epoch["fetched_bytes"] > FILES * SAMPLES * 100
    broken = {one["rule"] for one in result["findings"] if one["invalid"]}
    assert not broken - {"page cache"}
