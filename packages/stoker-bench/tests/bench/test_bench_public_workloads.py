"""Each public workload file of DLIO and MLPerf Storage loads with its own values; one of each shape runs scaled down."""

from __future__ import annotations

from pathlib import Path

import pytest
from public_workloads import PublicWorkload, all_workloads, one_of_each_shape, run

ALL = all_workloads()
NOT_SMALL = {"page cache", "computation", "checkpoint storage", "page cache of checkpoints", "fsync"}
"""Rules that a run of a moment on a busy host may break."""


def test_the_table_has_all_versions() -> None:
    storage = {ref for one in ALL if one.source == "mlcommons/storage" for ref in one.refs}
    assert {"v0.5", "v1.0", "v1.0.1", "v2.0-rc0", "v2.0-branch"} <= storage
    assert len([one for one in ALL if "main" in one.refs and one.source == "argonne-lcf/dlio_benchmark"]) == 24
    assert len(ALL) == 66


@pytest.mark.parametrize("found", ALL, ids=[one.title for one in ALL])
def test_it_loads_with_its_own_values(found: PublicWorkload, tmp_path: Path) -> None:
    resolved = found.read(tmp_path)
    got, keys = resolved.workload, found.keys
    assert got.name == keys.get("model.name", keys.get("model"))
    assert got.dataset.sample_bytes == found.record_bytes
    for ours, *theirs in (
        (got.dataset.record_bytes_stdev, "dataset.record_length_bytes_stdev", "dataset.record_length_stdev"),
        (got.dataset.resize_bytes, "dataset.record_length_bytes_resize", "dataset.record_length_resize"),
        (got.dataset.files, "dataset.num_files_train"),
        (got.dataset.files_eval, "dataset.num_files_eval"),
        (got.dataset.samples_per_file, "dataset.num_samples_per_file"),
        (got.reader.batch_size, "reader.batch_size"),
        (got.train.epochs, "train.epochs"),
        (got.metric.au, "metric.au"),
        (got.model.size_bytes, "model.model_size_bytes", "checkpoint.model_size"),
        (got.model.hidden_size, "model.transformer.hidden_size"),
        (got.model.pipeline, "model.parallelism.pipeline"),
        (got.checkpoint.writes, "checkpoint.num_checkpoints_write"),
    ):
        value = next((keys[name] for name in theirs if name in keys), None)
        if value is not None:
            assert ours == (int(value) if isinstance(ours, int) else value), theirs
    time = keys.get("train.computation_time")
    if isinstance(time, int | float):
        assert got.compute.seconds.expected == time
    assert ("train" in got.stages) == keys.get("workflow.train", True)
    assert ("checkpoint" in got.stages) == keys.get("workflow.checkpoint", False)


SHAPES = one_of_each_shape()


@pytest.mark.processes
@pytest.mark.parametrize("found", SHAPES, ids=[one.title for one in SHAPES])
def test_it_generates_and_trains_scaled_down(found: PublicWorkload, tmp_path: Path) -> None:
    check(found, tmp_path)


def check(found: PublicWorkload, folder: Path) -> None:
    result = run(found, folder)
    broken = {one["rule"]: one["reason"] for one in result["findings"] if one["invalid"]}
    assert not broken.keys() - NOT_SMALL, broken
    workload = result["plan"]["workload"]
    if "train" in workload["stages"]:
        (epoch,) = (one for one in result["epochs"] if one["kind"] == "train")
        assert epoch["samples"] == min(
            6 * workload["dataset"]["samples_per_file"], workload["train"]["steps"] or 1 << 30
        )
    if "checkpoint" in workload["stages"]:
        assert result["checkpoint"]["saves"]
