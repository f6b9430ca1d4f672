"""The verdict on a run: which utilization decides, how many steps it needs, and which exit code tells it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_time import BenchTime

from stoker.cli.running import ExitCode
from stoker_bench.cli.bench.tables.verdicts import exit_code, verdict_text
from stoker_bench.measure.compute import SimulatedStep
from stoker_bench.measure.metrics import block_metrics, epoch_metrics, step_seconds
from stoker_bench.measure.steps import StepBlock, Steps
from stoker_bench.ranks.plan import RunPlan
from stoker_bench.results.results import collect
from stoker_bench.settings.duration import Duration
from stoker_bench.settings.sources import read_workload

MS = 1_000_000


def record(measured: float, drawn: float | None, steps: int = 21, wait: float = 0.2) -> dict[str, Any]:
    """A rank's record: steps that wait, and compute as long as told, in milliseconds."""
    made = Steps(steps)
    for k in range(steps):
        at = round(k * (wait + measured) * MS)
        made.asked[k], made.arrived[k], made.begun[k] = at, at + round(wait * MS), at + round(wait * MS)
        made.ended[k] = at + round((wait + measured) * MS)
        made.samples[k] = made.bytes[k] = 1
    made.count, end = steps, round(steps * (wait + measured) * MS)
    made.drawn = None if drawn is None else np.full(steps, round(drawn * MS), np.int64)
    made.blocks = [StepBlock(0, steps, 0, end, 0, end)]
    block = block_metrics(made, made.blocks[0], 1, 0)
    epoch = {
        "kind": "train",
        "repeat": 0,
        "epoch": 0,
        "began_at": 0.0,
        "ended_at": 1.0,
        "complete": True,
        "steps": steps,
        "samples": 32,
        "bytes": steps,
        "blocks": [block.as_dict()],
        "metrics": epoch_metrics([block]),
        "stall_seconds": None,
        "usage": {},
        "time_to_first_batch": 0.1,
        "fingerprint": None,
        "cache": None,
        "checkpoint_seconds": None,
        "loader": {"decoded": "arrays", "bytes_fetched": None},
        "spun_seconds": 0.0,
    }
    rank = {
        "rank": 0,
        "host": "h",
        "processors": 1,
        "memory_bytes": 1,
        "read_threads": 1,
        "complete": True,
        "error": None,
    }
    return rank | {
        "generate": None,
        "calibration": None,
        "checkpoints": [],
        "checkpoint_layout": None,
        "epochs": [epoch],
    }


@pytest.fixture
def judged(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def judge(*arguments: Any, calibration: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        made = record(*arguments, **options) | {"calibration": calibration}
        (tmp_path / "rank00000.json").write_text(json.dumps(made))
        workload = read_workload(None, ["dataset.files=32"], environ={}, dotenv=None).workload
        plan = RunPlan(workload, "s3://bucket/data", str(tmp_path), "x")
        return collect(plan, tmp_path, 1, failure=None, began=0, launcher="x")

    return judge


def reasons(result: dict[str, Any], rule: str) -> list[str]:
    return [one["reason"] for one in result["findings"] if one["rule"] == rule]


def test_time_that_is_overslept_is_no_use(judged: Callable[..., dict[str, Any]]) -> None:
    """Half of the throughput, 98 % by DLIO's arithmetic."""
    result = judged(10.0, 5.0)
    assert result["train"]["au"]["mean"] == pytest.approx(10 / 10.2, rel=0.01)
    assert result["train"]["au_nominal"]["mean"] == pytest.approx(5 / 10.2, rel=0.01)
    epoch = result["epochs"][0]
    assert (epoch["compute_drawn"], epoch["compute_measured"]) == (pytest.approx(0.005), pytest.approx(0.010))
    (said,) = reasons(result, "computation")
    assert "of rank 0 took 10 ms, 100% longer than the 5 ms drawn for it" in said
    assert (result["verdict"], result["passed"], exit_code([result])) == ("invalid", False, ExitCode.PROBLEMS)
    (said,) = reasons(judged(5.12, 5.0), "computation")  # where 2 % are allowed, 2.4 % are not told as "2%"
    assert "2.4% longer" in said


@pytest.mark.parametrize(
    ("measured", "drawn", "wait", "verdict", "code"),
    [
        (5.0, 5.0, 0.2, "passed", ExitCode.FINE),
        (5.09, 5.0, 0.2, "passed", ExitCode.FINE),
        (5.09, 5.0, 0.51, "not passed", ExitCode.NOT_PASSED),  # 90.9 %, and 89.3 % nominal
        (5.11, 5.0, 0.2, "invalid", ExitCode.PROBLEMS),
        (5.0, 5.0, 5.0, "not passed", ExitCode.NOT_PASSED),
        (0.0119, 0.01, 0.0001, "not passed", ExitCode.NOT_PASSED),  # 1.9 µs are the clock's
        (5.0, None, 0.2, "passed", ExitCode.FINE),  # a real model's step: nothing was drawn
    ],
)
def test_the_lower_utilization_decides(
    measured: float,
    drawn: float | None,
    wait: float,
    verdict: str,
    code: ExitCode,
    judged: Callable[..., dict[str, Any]],
) -> None:
    result = judged(measured, drawn, wait=wait)
    assert (result["verdict"], exit_code([result])) == (verdict, code)
    assert result["passed"] is (verdict == "passed")
    assert verdict_text(result).startswith("passed" if verdict == "passed" else "not passed")


@pytest.mark.parametrize(("steps", "verdict"), [(2, "smoke test"), (10, "smoke test"), (11, "passed")])
def test_less_than_ten_counted_steps_are_a_smoke_test(
    steps: int, verdict: str, judged: Callable[..., dict[str, Any]]
) -> None:
    result = judged(5.0, 5.0, steps=steps)
    assert result["verdict"] == verdict
    assert bool(reasons(result, "smoke test")) is (verdict == "smoke test")
    assert exit_code([result]) == (ExitCode.NOT_PASSED if verdict == "smoke test" else ExitCode.FINE)


def test_a_calibration_on_an_overloaded_host_is_invalid(judged: Callable[..., dict[str, Any]]) -> None:
    slow = record(10.0, 5.0)["epochs"][0]
    result = judged(
        5.0, 5.0, calibration={"files": 1, "bytes": 1, "blocks": slow["blocks"], "metrics": slow["metrics"]}
    )
    assert result["calibration"]["au_ceiling"] == pytest.approx(5 / 10.2, rel=0.01)
    assert "in the calibration" in reasons(result, "computation")[0]
    assert result["verdict"] == "invalid"


def test_the_worst_of_several_runs_is_the_exit_code() -> None:
    runs = [{"verdict": one} for one in ("passed", "valid", "not passed", "invalid")]
    assert [exit_code(runs[:count]) for count in range(1, 5)] == [0, 0, 4, 3]


def test_drawn_times_are_those_of_the_steps_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a normal distribution around 2 ms: no step is shorter than its own, and no two ranks or epochs have the same."""
    clock = BenchTime(late=(0, 500_000))
    clock.replace(monkeypatch.setattr)

    def drawn(rank: int, epoch: int) -> list[int]:
        step = SimulatedStep(Duration("normal", mean=2e-3, stdev=2e-4), 7, rank)
        step.begin(epoch)
        took = []
        for k in range(5):
            begun = clock.perf_counter_ns()
            took.append(step(k, None) - begun)
        found: list[int] = step.drawn(5).tolist()
        assert all(least <= one for least, one in zip(found, took, strict=True))
        assert all(1_000_000 < one < 3_000_000 for one in found)
        return found

    first = drawn(0, 0)
    assert drawn(0, 0) == first
    assert len({*first, *drawn(0, 1), *drawn(1, 0)}) == 15
    assert step_seconds([]) == {"compute_drawn": None, "compute_measured": None}
