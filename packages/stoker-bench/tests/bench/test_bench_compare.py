"""What changed beyond noise: the statistics, what may be compared, and what the command ends with."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_example import real_run, variant, with_setting
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.cli import main
from stoker.errors import ConfigError
from stoker_bench.compare.compare import METRICS, Change, Comparison, compare_runs
from stoker_bench.compare.statistics import holm, mean_interval, student_cdf, student_quantile, welch
from stoker_bench.results.report_files import RunFiles, find_runs

SYNTHETIC = ("reader.loader=synthetic", "dataset.files=40", "train.epochs=1")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    folder = tmp_path_factory.mktemp("compare") / "real"
    real_run(folder, *SYNTHETIC)
    return find_runs([folder])[0]


def scattered(
    run: RunFiles, rate: float, *, seed: int, count: int = 5, au: float = 0.9, a_repeat: int | None = 1, **more: Any
) -> RunFiles:
    """Epochs whose samples a second scatter by 1 %, and whose utilization does by 0.2 points."""
    random = np.random.default_rng(seed)
    values = [
        {"samples_per_second": rate * (1 + random.normal(0, 0.01)), "au": au + random.normal(0, 0.002)}
        for _ in range(count)
    ]
    return variant(run, values, a_repeat=a_repeat, **more)


def verdict(found: Comparison, metric: str = "samples_per_second") -> Change:
    return next(change for change in found.changes if change.metric == metric)


# -- statistics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("freedom", [1, 2.5, 4, 30, 400])
@pytest.mark.parametrize("t", [0.0, 0.3, 1.7, 6.0])
def test_student_s_distribution_is_the_integral_of_its_density(freedom: float, t: float) -> None:
    x = np.linspace(0, t, 200_001)
    density = (1 + x * x / freedom) ** (-(freedom + 1) / 2)
    angle = np.linspace(0, np.pi / 2, 200_001)[:-1]  # of the whole: t = sqrt(freedom) tan(angle)
    whole = np.sqrt(freedom) * np.trapezoid(np.cos(angle) ** (freedom - 1), angle)
    part = np.trapezoid(density, x) / whole / 2
    if freedom > 1:
        assert student_cdf(t, freedom) == pytest.approx(0.5 + part, abs=1e-5)
    else:
        assert student_cdf(t, freedom) == pytest.approx(0.5 + np.arctan(t) / np.pi, abs=1e-12)  # Cauchy's
    assert student_cdf(-t, freedom) == pytest.approx(1 - student_cdf(t, freedom), abs=1e-12)


@given(st.floats(0.5, 0.999), st.floats(1, 200))
def test_the_quantile_is_the_inverse(part: float, freedom: float) -> None:
    assert student_cdf(student_quantile(part, freedom), freedom) == pytest.approx(part, abs=1e-7)


@pytest.mark.parametrize(("freedom", "value"), [(1, 12.7062), (2, 4.30265), (4, 2.77645), (9, 2.26216), (30, 2.04227)])
def test_quantiles_are_those_of_the_tables(freedom: int, value: float) -> None:
    assert student_quantile(0.975, freedom) == pytest.approx(value, rel=1e-5)


def test_intervals_hold_the_truth_as_often_as_they_say_and_false_alarms_are_as_rare() -> None:
    random = np.random.default_rng(7)
    held = alarms = 0
    runs = 400
    for _ in range(runs):
        a, b = random.normal(100, 1, 5).tolist(), random.normal(103, 4, 6).tolist()
        found = welch(a, b, 0.9)
        held += found.low <= 3 <= found.high
        alarms += welch(a, random.normal(100, 5, 4).tolist(), 0.9).p < 0.1
    assert 0.86 <= held / runs <= 0.94  # 3 of its standard deviations: 0.045
    assert alarms / runs <= 0.15


def test_values_that_are_all_alike_differ_or_do_not() -> None:
    assert welch([1.0, 1.0, 1.0], [1.0, 1.0], 0.95).p == 1
    assert welch([1.0, 1.0, 1.0], [1.5, 1.5], 0.95).p == 0
    assert mean_interval([3.0], 0.9) == (-np.inf, np.inf)
    low, high = mean_interval([1.0, 2.0, 3.0], 0.95)
    assert (low + high) / 2 == pytest.approx(2)
    assert high - 2 == pytest.approx(4.30265 * 1 / np.sqrt(3), rel=1e-5)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_only_makes_probabilities_larger_and_keeps_their_order(given_p: list[float]) -> None:
    found = holm(given_p)
    assert all(one >= p for one, p in zip(found, given_p, strict=True))
    assert min(found) == pytest.approx(min(1, len(given_p) * min(given_p)))
    assert [found[k] for k in np.argsort(given_p)] == sorted(found)


# -- comparisons ---------------------------------------------------------------------------------------------------


def test_noise_is_no_change_and_a_change_is_found(run: RunFiles) -> None:
    before = [scattered(run, 1000, seed=k, count=1) for k in range(5)]
    same = compare_runs(before, [scattered(run, 1000, seed=k, count=1) for k in range(10, 15)])
    assert same.level == "repeats"
    assert verdict(same).verdict == "noise"
    assert verdict(same, "au").verdict == "noise"
    slower = compare_runs(before, [scattered(run, 950, seed=k, count=1, au=0.95) for k in range(20, 25)])
    change = verdict(slower)
    assert (change.verdict, change.count_a, change.count_b) == ("worse", 5, 5)
    assert change.change == pytest.approx(-0.05, abs=0.02)
    assert change.low is not None
    assert change.high is not None
    assert change.low < -0.03
    assert change.high < 0
    assert verdict(slower, "au").verdict == "better"
    assert [one.metric for one in slower.regressions(0.02, ["au", "samples_per_second"])] == ["samples_per_second"]
    assert not slower.regressions(0.2, ["au", "samples_per_second"])


def test_less_is_better_of_what_is_waited(run: RunFiles) -> None:
    def waiting(seconds: float) -> RunFiles:
        return variant(
            run, [{"time_to_first_batch": seconds + k / 1000, "stall_part": seconds} for k in range(4)], a_repeat=1
        )

    found = compare_runs([waiting(1.0)], [waiting(2.0)])
    assert verdict(found, "time_to_first_batch").verdict == "worse"
    assert verdict(found, "stall_part").verdict == "worse"
    assert verdict(compare_runs([waiting(2.0)], [waiting(1.0)]), "time_to_first_batch").verdict == "better"


def test_what_stands_for_one_value_is_said_and_repetitions_go_before_epochs(run: RunFiles) -> None:
    repeats = scattered(run, 1000, seed=1, count=6, a_repeat=2)
    assert compare_runs([repeats], [repeats]).level == "repeats"
    assert verdict(compare_runs([repeats], [repeats])).count_a == 3  # means of two epochs each
    epochs = scattered(run, 1000, seed=1, count=4, a_repeat=None)
    found = compare_runs([epochs], [repeats])
    assert found.level == "epochs"
    assert "weaker" in found.method
    blocks = scattered(run, 1000, seed=1, count=4, blocks=True)
    found = compare_runs([blocks], [repeats])
    assert found.level == "blocks"  # one epoch is too few, and each of the others is a block, too
    found = compare_runs([blocks], [blocks])
    assert found.level == "blocks"
    assert "much weaker" in found.method
    assert {change.metric for change in found.changes} <= {metric.name for metric in METRICS if metric.of_blocks}


def test_where_noise_can_not_be_measured_nothing_is_claimed(run: RunFiles) -> None:
    a, b = scattered(run, 1000, seed=1, count=2), scattered(run, 10, seed=2, count=2)
    found = compare_runs([a], [b])
    assert found.level == "none"
    assert {change.verdict for change in found.changes} == {"unknown"}
    assert verdict(found).change == pytest.approx(-0.99, abs=0.01)
    with pytest.raises(ConfigError, match="can not be told"):
        found.regressions(0.01, ["au"])


@pytest.mark.parametrize(
    ("path", "value"),
    [("reader.batch_size", 7), ("compute.seconds", 0.5), ("dataset.files", 3), ("storage.cache", "keep")],
)
def test_different_workloads_are_refused_unless_forced(run: RunFiles, path: str, value: Any) -> None:
    a = scattered(run, 1000, seed=1)
    b = with_setting(scattered(run, 1000, seed=2), path, value)
    with pytest.raises(ConfigError, match=f"not runs of one workload: {path} is"):
        compare_runs([a], [b])
    with pytest.raises(ConfigError, match="not runs of one workload"):
        compare_runs([a, b], [a])
    assert any(path in said for said in compare_runs([a], [b], force=True).warnings)


def test_other_numbers_of_accelerators_are_other_workloads(run: RunFiles) -> None:
    a = scattered(run, 1000, seed=1)
    result = copy.deepcopy(dict(a.result))
    result["world"]["ranks"] = 9
    with pytest.raises(ConfigError, match="1 and 9 accelerators"):
        compare_runs([a], [RunFiles(a.folder, "b", result)])


def test_differences_of_settings_versions_and_machines_are_shown(run: RunFiles) -> None:
    a = scattered(run, 1000, seed=1)
    b = with_setting(a, "reader.loader", "torch")
    result = copy.deepcopy(dict(b.result))
    result["environment"]["versions"]["numpy"] = "0.1"
    result["environment"]["processor"] = "Another 9000"
    found = compare_runs([a], [RunFiles(a.folder, "b", result)])
    assert set(found.differences) == {"settings reader.loader", "version numpy", "environment processor"}
    assert found.differences["settings reader.loader"] == ("synthetic", "torch")


def test_runs_that_did_not_end_are_refused_and_invalid_ones_named(run: RunFiles) -> None:
    a = scattered(run, 1000, seed=1)
    said = compare_runs([a], [a]).warnings
    assert any(
        " broke " in one and "decoding" in one for one in said
    )  # synthetic reads nothing; a busy host breaks more
    result = copy.deepcopy(dict(a.result)) | {"complete": False, "failure": "rank 1 was killed"}
    with pytest.raises(ConfigError, match=r"did not finish \(rank 1 was killed\)"):
        compare_runs([a], [RunFiles(a.folder, "b", result)])
    found = compare_runs([a], [RunFiles(a.folder, "b", result)], force=True)
    assert "b did not finish." in found.warnings
    same = [one for one in compare_runs([a], [RunFiles(a.folder, "b", a.result)]).warnings if " broke " in one]
    assert [one.split(" broke")[0] for one in same] == [f"{a.name}, b"]  # once for all that broke the same rules


def test_checkpoints_are_compared_one_by_one(run: RunFiles) -> None:
    def saving(rate: float) -> RunFiles:
        saves = [{"bytes_per_second": rate + k, "complete": True} for k in range(4)]
        saves.append({"bytes_per_second": 1.0, "complete": False})
        checkpoint = {"saves": saves, "loads": []}
        return RunFiles(run.folder, "made", dict(run.result) | {"checkpoint": checkpoint, "epochs": []})

    found = compare_runs([saving(100)], [saving(50)])
    assert [change.metric for change in found.changes] == ["checkpoint_save"]
    assert (verdict(found, "checkpoint_save").verdict, verdict(found, "checkpoint_save").count_a) == ("worse", 4)
    other = with_setting(saving(100), "checkpoint.fsync", False)
    with pytest.raises(ConfigError, match=r"checkpoint\.fsync is"):
        compare_runs([saving(100)], [other])
    nothing = variant(run, [{"au": None}])
    with pytest.raises(ConfigError, match="nothing was trained"):
        compare_runs([nothing], [nothing])


@settings(max_examples=30)
@given(st.floats(0.5, 2), st.integers(3, 6), st.integers(3, 6))
def test_sides_changed_give_the_opposite(factor: float, count_a: int, count_b: int) -> None:
    a = [100 + k * 0.5 for k in range(count_a)]
    b = [(100 + k * 0.5) * factor for k in range(count_b)]
    there, back = welch(a, b, 0.95), welch(b, a, 0.95)
    assert there.difference == -back.difference
    assert there.p == back.p
    assert (there.low, there.high) == pytest.approx((-back.high, -back.low))


# -- the command ---------------------------------------------------------------------------------------------------


def save(run: RunFiles, folder: Path) -> str:
    folder.mkdir(parents=True)
    (folder / "results.json").write_text(json.dumps(run.result))
    return str(folder)


def test_the_command_fails_only_where_something_got_worse_by_more(
    run: RunFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for k in range(4):
        save(scattered(run, 1000, seed=k, count=1), tmp_path / "a" / f"{k}")
        save(scattered(run, 950, seed=k + 9, count=1), tmp_path / "b" / f"{k}")
    asked = ["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(asked) == 0
    shown = capsys.readouterr().out
    assert "worse" in shown
    assert "Welch's t-test" in shown
    assert main([*asked, "--fail-over", "20%"]) == 0
    assert main([*asked, "--fail-over", "2", "--fail-on", "au"]) == 0
    capsys.readouterr()
    assert main([*asked, "--fail-over", "2", "--json"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["regressions"] == ["samples_per_second"]
    assert found["names"] == [["0", "1", "2", "3"], ["0", "1", "2", "3"]]
    backwards = ["bench", "compare", str(tmp_path / "b"), str(tmp_path / "a"), "--fail-over", "2"]
    assert main(backwards) == 0  # it got better
    capsys.readouterr()
    assert main(["bench", "compare", str(tmp_path), str(tmp_path / "b")]) == 1
    assert "holds no results" in capsys.readouterr().err


def test_real_runs_are_compared(run: RunFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "compare", str(run.folder), str(run.folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["level"] == "none"
    assert found["differences"] == {}
    assert verdict(compare_runs([run], [run])).a == run.result["epochs"][0]["samples_per_second"]
