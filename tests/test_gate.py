"""The gate fails for a fault, names a flake and goes on, and fails for a flake that comes again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from environments import ROOT
from gate import (
    TOUCHED_BY_TRAINERS,
    Failure,
    Verdict,
    record_flaky,
    run_commands,
    run_pytest,
    summary,
    touched_by_trainers,
    try_again,
)

PLANTED = """
from pathlib import Path

import pytest

RUNS = Path(__file__).with_name("runs")


def test_right() -> None:
    pass


@pytest.mark.skip(reason="planted")
def test_skipped() -> None:
    pass


def test_wrong() -> None:
    assert sum([1, 1]) == 3, "planted fault"


@pytest.mark.parametrize("value", ["a b"])
def test_flaky(value: str) -> None:
    before = RUNS.read_text() if RUNS.exists() else ""
    RUNS.write_text(before + "x")
    assert before, "planted flake"


@pytest.fixture
def broken():
    raise OSError("planted fault of a fixture")


def test_fixture(broken) -> None:
    pass
"""


def planted(folder: Path, *keep: str) -> Path:
    """A file of tests, of which those with these names are kept."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    head, *tests = PLANTED.split("\n\n\n")
    kept = [test for test in tests if "broken():" in test or any(f"def test_{name}(" in test for name in keep)]
    (folder / "test_planted.py").write_text("\n\n\n".join([head, *kept]))
    return folder


def run(folder: Path, *, again: bool = True) -> Verdict:
    verdict = run_pytest("system", [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"], cwd=folder)
    if again:
        try_again(verdict, cwd=folder)
    return verdict


@pytest.mark.processes
def test_a_fault_fails_the_stage_and_a_flake_is_named(tmp_path: Path) -> None:
    verdict = run(planted(tmp_path, "right", "skipped", "wrong", "flaky"))
    assert verdict.counts == {"passed": 1, "skipped": 1, "failed": 2}
    assert verdict.flaky == ["test_planted.py::test_flaky[a b]"]
    assert (tmp_path / "runs").read_text() == "xxxx"  # once with the others, then three times alone
    (failure,) = verdict.failures
    assert failure.name == "test_planted.py::test_wrong"
    assert failure.command.endswith("-m pytest test_planted.py::test_wrong")
    assert "planted fault" in failure.error
    assert "again, alone, 1 of 3" in failure.error
    assert not verdict.passed


@pytest.mark.processes
def test_a_pure_test_is_not_run_again(tmp_path: Path) -> None:
    verdict = run(planted(tmp_path, "right", "flaky"), again=False)
    assert [failure.name for failure in verdict.failures] == ["test_planted.py::test_flaky[a b]"]
    assert verdict.flaky == []


@pytest.mark.processes
@pytest.mark.parametrize(
    ("content", "name", "error"),
    [
        ("import no_such_module", "test_planted.py", "no_such_module"),
        ("import os\ndef test_dies(): os._exit(3)", "pytest", "status 3"),
        ("", "pytest", "status 5"),  # no test was chosen
    ],
)
def test_what_runs_no_test_to_its_end_fails(tmp_path: Path, content: str, name: str, error: str) -> None:
    planted(tmp_path)
    (tmp_path / "test_planted.py").write_text(content)
    verdict = run(tmp_path)
    assert [failure.name for failure in verdict.failures] == [name]
    assert error in verdict.failures[0].error


@pytest.mark.processes
def test_an_error_of_a_fixture_fails_the_stage(tmp_path: Path) -> None:
    verdict = run(planted(tmp_path, "right", "fixture"))
    assert [failure.name for failure in verdict.failures] == ["test_planted.py::test_fixture"]
    assert "planted fault of a fixture" in verdict.failures[0].error


@pytest.mark.processes
def test_a_test_without_a_mark_starts_no_process_and_no_server(tmp_path: Path) -> None:
    planted(tmp_path)
    for name, code in (
        ("process", "import subprocess; subprocess.run(['true'])"),
        ("fork", "import os; os.waitpid(os.fork() or os._exit(0), 0)"),
        ("server", "import socket; socket.create_server(('127.0.0.1', 0)).close()"),
    ):
        (tmp_path / "test_planted.py").write_text(f"def test_it():\n    {code}\n")
        verdict = run(tmp_path, again=False)
        assert len(verdict.failures) == 1, name
        assert "mark it with pytest.mark.processes" in verdict.failures[0].error, name
        marked = f"import pytest\n@pytest.mark.processes\ndef test_it():\n    {code}\n"
        (tmp_path / "test_planted.py").write_text(marked)
        assert run(tmp_path).passed, name


@pytest.mark.processes
def test_all_commands_run_and_those_that_fail_are_named() -> None:
    verdict = run_commands("lint", [["sh", "-c", "echo one; exit 1"], ["true"], ["sh", "-c", "echo three; exit 3"]])
    assert verdict.counts == {"passed": 1, "failed": 2}
    assert [failure.error for failure in verdict.failures] == ["one", "three"]


_dates = (f"2026-01-01T00:00:{second:02}+00:00" for second in range(60))


def flaky_run(*tests: str) -> Verdict:
    return Verdict("system", flaky=list(tests), commit="0" * 40, date=next(_dates))


def test_a_flake_is_written_once_and_fails_the_gate_when_it_comes_again(tmp_path: Path) -> None:
    path = tmp_path / "flaky.json"
    assert record_flaky([flaky_run()], path) == []
    assert not path.exists()
    assert record_flaky([flaky_run("a", "b")], path) == []
    assert record_flaky([flaky_run()], path) == []
    assert [run["flaky"] for run in json.loads(path.read_text())] == [["a", "b"], []]
    (again,) = record_flaky([flaky_run("b")], path)
    assert again.name == "b"
    assert "flaky in 2 of the last 3 runs" in again.error


def test_a_flake_is_forgotten_after_ten_runs(tmp_path: Path) -> None:
    path = tmp_path / "flaky.json"
    for tests in (["a"], *([],) * 9):
        assert record_flaky([flaky_run(*tests)], path) == []
    assert len(json.loads(path.read_text())) == 10
    assert record_flaky([flaky_run("a")], path) == []  # the first of these ten runs is the one after it
    assert [run["flaky"] for run in json.loads(path.read_text())] == [["a"]]


@pytest.mark.processes
def test_what_trainers_touch_is_there() -> None:
    assert [name for name in TOUCHED_BY_TRAINERS if not (ROOT / name).exists()] == []
    assert len(touched_by_trainers()) == 64


def test_what_failed_comes_last_with_its_command() -> None:
    failed = Verdict("pure", 2.0, {"passed": 3, "failed": 1}, [Failure("test_x", "python -m pytest test_x", "why\nit")])
    text = summary([Verdict("lint", 1.0), failed, Verdict("system", 3.0, {"passed": 2}, flaky=["test_y"])])
    lines = [line.strip() for line in text.splitlines() if line]
    assert lines[0].split() == ["stage", "verdict", "minutes", "tests"]
    assert lines[1].split()[:3] == ["lint", "passed", "1.0"]
    assert lines[2].split() == ["pure", "FAILED", "2.0", "1", "failed,", "3", "passed"]
    assert lines[4].startswith("FLAKY   test_y")
    assert lines[5:] == ["FAILED  test_x", "why", "it", "run it again: python -m pytest test_x"]
