"""``stoker order``: the samples of a step, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker import StreamingDataset
from stoker.cli import main
from stoker.cluster import World
from support import make_dataset

SAMPLES = 200


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_dataset(tmp_path / "data", SAMPLES)


def stoker(capsys: pytest.CaptureFixture[str], *arguments: Any, code: int = 0) -> str:
    """Run ``stoker order`` in this process; what it says on stdout, or on stderr where it fails."""
    try:
        found = main(["order", *map(str, arguments)])
    except SystemExit as end:
        found = int(end.code or 0)
    said = capsys.readouterr()
    assert found == code, said
    return said.err if code else said.out


def as_json(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stoker(capsys, *arguments, "--json"))
    return found


def test_samples_of_files_lie_where_the_dataset_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        (tmp_path / f"{number}.csv").write_text("id,text\n" + "".join(f"{row},a\n" for row in range(8)))
    for source in (tmp_path / "1.csv", f"{tmp_path}/*.csv", tmp_path):
        dataset = StreamingDataset(str(source), shuffle=True, batch_size=4)
        told = as_json(capsys, source, "--step", 1, "--samples", "--batch-size", 4)["samples"]
        assert [one["sample"] for one in told] == dataset.ids_of(1).tolist()
        assert [one["url"] for one in told] == [dataset.where(one["sample"]).url for one in told]


def test_a_state_is_resumed(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = StreamingDataset(local=data, shuffle=True, shuffle_seed=3, batch_size=10, world=World(0, 2, 2))
    running = dataset.batches()
    for _ in range(4):
        next(running)
    state = tmp_path / "state.json"
    state.write_text(json.dumps(dataset.state_dict()))
    later = list(next(running)["id"])
    common = (data, "--ranks", 2, "--batch-size", 10, "--resume", state, "--samples", "--rank", 0)
    for step in (("--step", 4), ("--step", 0, "--since-resume")):
        found = as_json(capsys, *common, *step)
        assert (found["settings"]["position"], found["settings"]["seed"]) == (80, 3)
        assert [one["sample"] for one in found["samples"]] == later


def test_what_can_not_be_is_refused(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "torn.json").write_text('{"epoch"')
    for arguments, code, message in (
        ((data,), 1, "stoker simulate"),
        ((data, "--step=-1"), 2, "argument --step"),
        ((data, "--step", 0, "--shuffle", "well"), 2, "invalid choice: 'well'"),
        ((data, "--step", 0, "--rank", 1), 1, "--rank 1: expected 0 to 0"),
        ((data, "--step", 0, "--since-resume"), 1, "--since-resume is for --resume"),
        ((data, "--step", 0, "--resume", tmp_path / "torn.json"), 1, "not JSON"),
        ((data, "--step", 0, "--resume", tmp_path / "none.json"), 1, "none.json can not be read: No such file"),
        ((data, "--step", 10_000), 1, "step"),
        ((tmp_path / "nothing", "--step", 0), 1, "nothing does not exist"),
    ):
        assert message in stoker(capsys, *arguments, code=code)
