"""Promise: ``--rules mlperf`` says of a run which of MLPerf Storage's rules it breaks, what was seen, and what is wanted."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bench_mlperf import OTHER, enlarge, small_checkpoints, small_training, workload_of
from bench_threads import ranks_as_threads

from stoker.bench.mlperf.verdict import mlperf_findings
from stoker.bench.settings.sources import read_workload
from stoker.cli import main

Result = dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("trained") / "out"
    small_training(folder)
    return enlarge(folder, "dataset.files=7000", "train.repeats=6", "metric.rules=mlperf-v2", published="unet3d-h100")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("saved") / "out"
    small_checkpoints(folder)
    return enlarge(folder, "metric.rules=mlperf", published="llama-8b-checkpoint")


def broken(result: Result, *settings: str) -> list[tuple[str, str]]:
    """Rules that a result breaks, with other settings."""
    workload = workload_of(result)
    if settings:
        name = f"{workload.name}-{workload.accelerator}"
        given = [f"dataset.files={workload.dataset.files}", "train.repeats=6", f"metric.rules={workload.metric.rules}"]
        workload = read_workload(name, [*given, *settings], environ={}, dotenv=None).workload
    return [(name.removeprefix("mlperf "), reason) for name, _, reason in mlperf_findings(result, workload)]


def test_a_run_that_keeps_the_rules_breaks_none(trained: Result, saved: Result) -> None:
    assert broken(trained) == []
    assert broken(saved) == []


def test_without_rules_of_mlperf_none_is_looked_at(trained: Result) -> None:
    assert broken(trained, "metric.rules=stoker", "reader.batch_size=1") == []


@pytest.mark.parametrize(
    ("setting", "seen", "wanted"),
    [
        ("reader.batch_size=4", "reader.batch_size is 4", "wants 7"),
        ("compute.seconds=0.5", "DLIO's train.computation_time", "0.323"),
        ("train.epochs=1", "train.epochs is 1", "wants 5"),
        ("reader.prefetch=3", "DLIO's reader.prefetch_size) is 3", "wants 2"),
        ("metric.au=0.5", "metric.au is 0.5", "wants 0.9"),
        ("dataset.format=hdf5", "dataset.format is hdf5", "wants npz"),
        ("reader.loader=synthetic", "DLIO's reader.data_loader) is synthetic", "wants stoker"),
    ],
)
def test_a_setting_that_may_not_be_changed_is_named_with_the_published_one(
    trained: Result, setting: str, seen: str, wanted: str
) -> None:
    ((rule, reason),) = broken(trained, setting)
    assert rule == "parameters"
    assert seen in reason
    assert wanted in reason


@pytest.mark.parametrize(
    "setting", ["reader.threads=16", "reader.loader=torch", "dataset.subfolders=4", "train.seed=7"]
)
def test_settings_that_may_be_changed_break_nothing(trained: Result, setting: str) -> None:
    assert broken(trained, setting) == []


@pytest.mark.parametrize("setting", ["dataset.format=hdf5", "reader.loader=synthetic"])
def test_the_open_division_allows_more(trained: Result, setting: str) -> None:
    assert broken(trained, setting, "metric.rules=mlperf-v2-open") == []
    assert broken(trained, "reader.batch_size=4", "metric.rules=mlperf-v2-open")


def _with(change: Callable[[Result], object]) -> Callable[[Result], Result]:
    def made(result: Result) -> Result:
        other = copy.deepcopy(result)
        change(other)
        return other

    return made


@pytest.mark.parametrize(
    ("change", "rule", "said"),
    [
        (_with(lambda one: one["plan"]["workload"]["dataset"].update(files=6999)), "data set", "wants 7000 at least"),
        (_with(lambda one: one["ranks"][-1].update(memory_bytes=1 << 38)), "data set", "5 times the"),
        (_with(lambda one: one["epochs"][3].update(steps=[500, 499])), "steps", "has 499 steps"),
        (_with(lambda one: one["repeats"].pop()), None, ""),  # 5 runs do in v2
        (_with(lambda one: one.update(repeats=one["repeats"][:4])), "runs", "run 4 times"),
        (_with(lambda one: one["repeats"][2]["train"]["au"].update(mean=0.89)), "utilization", "run 3 has"),
        (_with(lambda one: one["storage"]["volumes"].update(results=OTHER)), "file systems", "/data"),
        (_with(lambda one: one["ranks"].append({**one["ranks"][0], "host": "two"})), "hosts", "one 2, two 1"),
        (_with(lambda one: one["plan"]["workload"].update(name="mine")), "workload", "mine (h100) is no workload"),
        (_with(lambda one: one["plan"]["workload"].update(accelerator="b200")), "workload", "a100 and h100"),
    ],
)
def test_each_broken_rule_of_training_is_named(
    trained: Result, change: Callable[[Result], Result], rule: str | None, said: str
) -> None:
    found = dict(broken(change(trained)))
    assert list(found) == ([] if rule is None else [rule])
    assert said in found.get(rule or "", "")


@pytest.mark.parametrize(
    ("change", "rule", "said"),
    [
        (_with(lambda one: one["checkpoint"]["saves"].pop()), "checkpoints", "9 checkpoints were saved and 10 loaded"),
        (_with(lambda one: one["checkpoint"].update(loads=[])), None, ""),  # another run may load them
        (_with(lambda one: one["checkpoint"]["layout"].update(ranks=16)), "ranks", "wants 8"),
        (_with(lambda one: one["ranks"][0].update(host="two")), "hosts", "5 at least"),
        (
            _with(lambda one: one["plan"]["workload"]["checkpoint"].update(fsync=False)),
            "parameters",
            "checkpoint.fsync is False",
        ),
        (
            _with(lambda one: one["storage"]["volumes"].update(results=OTHER)),
            "file systems",
            "the file system that is measured",
        ),
        (
            _with(
                lambda one: (
                    one["plan"]["workload"].update(accelerator="b200"),
                    one["checkpoint"]["layout"].update(bytes=2 << 40),
                )
            ),
            "accelerator memory",
            "8 accelerators of 180 GB",
        ),
    ],
)
def test_each_broken_rule_of_checkpoints_is_named(
    saved: Result, change: Callable[[Result], Result], rule: str | None, said: str
) -> None:
    found = dict(broken(change(saved)))
    assert rule is None or rule in found
    assert said in found.get(rule or "", "")
    if rule is None:
        assert found == {}


def test_a_run_that_measured_nothing_that_has_rules_is_told_so(trained: Result) -> None:
    result = _with(lambda one: (one.update(epochs=[], repeats=[]), one["storage"]["volumes"].update(results=OTHER)))(
        trained
    )
    ((rule, reason),) = broken(result)
    assert rule == "workload"
    assert "neither training nor checkpoints were measured" in reason
    result["plan"]["workload"]["stages"] = ["generate"]
    assert broken(result) == []
    cache = read_workload("kv-cache-tiny-1b", ["metric.rules=mlperf"], environ={}, dotenv=None).workload
    assert [name for name, _, _ in mlperf_findings(result, cache)] == ["mlperf workload"]


def test_in_the_open_division_ranks_are_a_multiple_of_tensor_and_pipeline_parallelism(saved: Result) -> None:
    more = _with(
        lambda one: (
            one["plan"]["workload"].update(name="llama-70b"),
            one["plan"]["workload"]["metric"].update(rules="mlperf-open"),
            one["checkpoint"]["layout"].update(ranks=12),
        )
    )(saved)
    assert "a multiple of 8" in dict(broken(more))["ranks"]


def test_the_rules_decide_the_verdict_and_the_exit_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = [
        *("bench", "run", "unet3d-h100", "dataset.files=14", "dataset.record_bytes=1000", "compute.seconds=0.001"),
        *("dataset.record_bytes_stdev=0", "dataset.resize_bytes=0", "--rules", "mlperf-v2"),
        *("--data", str(tmp_path / "data"), "--results", str(tmp_path / "out"), "--stages", "generate,train"),
    ]
    with ranks_as_threads():
        code = main(given)
    said = " ".join(capsys.readouterr().out.split())
    assert code == 3
    assert "dataset.record_bytes (DLIO's dataset.record_length_bytes) is 1000" in said
    assert "an epoch has 2 steps; MLPerf Storage v2 closed wants 500 at least" in said
    assert "the training was run 1 time" in said
    assert "asks for 5 runs" not in said  # which is not the count of each edition
