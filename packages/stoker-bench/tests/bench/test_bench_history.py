"""Promise: ``stoker bench history`` lists the runs below a directory, newest first, with verdict, utilization and MB/s."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from bench_example import real_run

from stoker.cli import main
from stoker.errors import ConfigError
from stoker_bench.results.history import history


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench-results")
    real_run(folder / "new", "name=mine", "dataset.files=16", url=str(folder / "data"), stages=("generate", "train"))
    old = json.loads((folder / "new" / "results.json").read_text())
    old["began"] = "2020-01-01T00:00:00Z"
    (folder / "deeper" / "old").mkdir(parents=True)
    (folder / "deeper" / "old" / "results.json").write_text(json.dumps(old))
    (folder / "foreign").mkdir()
    (folder / "foreign" / "results.json").write_text("[]")
    return folder


def test_runs_are_listed_newest_first_and_foreign_files_last(runs: Path) -> None:
    found = history(runs)
    assert [Path(one.folder).name for one in found] == ["new", "old", "foreign"]
    assert found[0].workload == "mine"
    assert found[0].verdict in {"invalid", "smoke test"}
    train = json.loads((runs / "new" / "results.json").read_text())["train"]
    assert found[0].au == min(train["au"]["mean"], train["au_nominal"]["mean"])
    assert found[0].hosts == found[1].hosts != ()
    assert "not what stoker bench writes" in found[2].error


def test_the_command_prints_a_table_or_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "history", str(runs)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [name in line for name, line in zip(("began", "mine", "2020-01-01", "foreign"), lines, strict=True)] == [
        True
    ] * 4
    assert main(["bench", "history", str(runs), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["workload"] for one in found] == ["mine", "mine", ""]


def test_on_a_narrow_terminal_nothing_is_cut(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 80 columns the utilization was 97…, and runs could not be told apart by their directories."""
    monkeypatch.setattr("stoker.cli.terminal._WIDE", 80)
    monkeypatch.chdir(runs)
    assert main(["bench", "history"]) == 0
    out = capsys.readouterr().out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80
    assert f"{history('.')[0].au:.1%}" in out


def test_an_empty_directory_is_said_to_hold_no_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "history"]) == 0
    assert capsys.readouterr().out == "no results below .\n"
    assert main(["bench", "history", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_directory_that_can_not_be_listed_is_named(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = os.scandir

    def refused(path: str) -> Any:
        if Path(path).name == "deeper":
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", refused)
    found = history(runs)
    assert [Path(one.folder).name for one in found] == ["new", "foreign", "deeper"]
    assert "can not be listed: Permission denied" in found[-1].error


def test_a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a directory"):
        history(tmp_path / "none")
