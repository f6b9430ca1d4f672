"""What came before still comes: runs of features, their pairs and triples, and of token loaders, against their record.

``pytest tests/recorded --recorded 1`` compares all runs; by default every eighth, and of those that start processes fewer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest
from dataset_runs import SEPARATOR, without_neutral
from features import NEUTRAL
from runs import RECORD, names, run, starts_processes, write_all

TOGETHER: Final = 20
"""Runs of one test."""
_OF_PROCESSES: Final = 4
"""Of the runs that start processes, one of so many of those that would be compared."""
DIFFERENCES: Final = Path(__file__).with_name("differences.json")
"""Runs that differ from the record on purpose: why, and what is found now in place of what was recorded."""


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RECORD.read_text())
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recorded") / "data"
    write_all(root)
    return root


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "chosen" not in metafunc.fixturenames:
        return
    every: int = metafunc.config.getoption("recorded")
    forks = "processes" in metafunc.function.__name__
    if forks and every > 1:
        every *= _OF_PROCESSES
    some = [name for name in names() if starts_processes(name) == forks][::every]
    parts = [some[first : first + TOGETHER] for first in range(0, len(some), TOGETHER)]
    metafunc.parametrize("chosen", parts, ids=[part[0] for part in parts])


def compare(chosen: list[str], recorded: dict[str, Any], data: Path, scratch: Path) -> None:
    differ = {}
    expected = json.loads(DIFFERENCES.read_text())
    for name in chosen:
        found = json.loads(json.dumps(run(name, data, scratch)))
        wanted = recorded[name] | expected.get(name, {"now": {}})["now"]
        keys = [key for key in found.keys() | wanted.keys() if wanted.get(key) != found.get(key)]
        if keys:
            differ[name] = {key: (wanted.get(key), found.get(key)) for key in keys}
    assert not differ, f"recorded, and found now: {json.dumps(differ, indent=1)}"


def test_runs_are_as_recorded(
    chosen: list[str], recorded: dict[str, Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_CACHE", "")  # and as it was, after the runs' own
    compare(chosen, recorded, data, tmp_path / "scratch")


@pytest.mark.processes
def test_runs_of_processes_are_as_recorded(
    chosen: list[str], recorded: dict[str, Any], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_CACHE", "")
    compare(chosen, recorded, data, tmp_path / "scratch")


def test_all_runs_are_recorded(recorded: dict[str, Any]) -> None:
    assert list(recorded) == names()


@pytest.mark.parametrize("neutral", sorted(NEUTRAL - {"zstd"}))
def test_what_is_read_does_not_depend_on_how(recorded: dict[str, Any], neutral: str) -> None:
    """Of the record alone: a run with a neutral feature has what it has without, where neither was refused."""
    differ = []
    for name, found in recorded.items():
        if neutral not in name.split(SEPARATOR):
            continue
        plain = recorded.get(without_neutral(name))
        if plain is None or {"refused", "not resumed", "not resumed elsewhere"} & {*found, *plain}:
            continue
        parts = [part for part in ("begun", "resumed", "next epoch", "epoch") if plain.get(part) != found.get(part)]
        if plain.get("listed", [0])[0] != found.get("listed", [0])[0]:  # their number: lines name the copies in a cache
            parts.append("listed")
        if parts and "error" not in str(found) + str(plain):
            differ.append((name, parts))
    assert differ == []


def test_differences_are_of_runs_and_have_a_reason() -> None:
    differences = json.loads(DIFFERENCES.read_text())
    assert {name for name, one in differences.items() if not one["why"].strip() or not one["now"]} == set()
    assert differences.keys() <= set(names())
