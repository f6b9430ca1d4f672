"""``stoker profile``: the table, the sentence, the trace, and traces of several ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from stoker import StreamingDataset, World
from stoker.cli import main
from support import make_dataset


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return make_dataset(tmp_path / "data", 300)


def profile(capsys: pytest.CaptureFixture[str], *arguments: Any, code: int = 0) -> str:
    found = main(["profile", *map(str, arguments)])
    said = capsys.readouterr()
    assert found == code, said
    return said.err if code else said.out


def test_it_reads_and_names_the_bottleneck(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "trace.json"
    said = profile(capsys, data, "--local", tmp_path / "new", "--out", out, "--batch-size", 8, "--step-time", 0.03)
    # What it names depends on the machine in this moment, and is what it says of the same trace again.
    again = profile(capsys, "--traces", out)
    assert again.rstrip().endswith(".")
    assert " ".join(again.split()) in " ".join(said.split())
    assert f"The trace is in {out}" in said.replace("\n", "")
    rows = {line.split()[0] for line in said.splitlines() if line.strip()}
    assert {"list", "fetch", "decode", "wait", "0"} <= rows
    assert json.loads(out.read_text())["traceEvents"]


@pytest.mark.processes
def test_workers_and_a_function(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("--workers", 1, "--steps", 6, "--transform", "copy:deepcopy", "--json", "--no-columns")
    found = json.loads(profile(capsys, data, "--out", tmp_path / "trace.json", *settings, "--columns", "id"))
    spans = {stage["stage"]: stage["spans"] for stage in found["stages"]}
    assert spans["wait"] >= 6
    assert {"transform", "collate"} <= spans.keys()
    assert found["ranks"][0]["workers"] == 1
    assert found["trace"] == str(tmp_path / "trace.json")


def test_bad_samples_are_left_out_as_in_training(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "augmenting.py").write_text(
        "def augment(sample):\n    if sample['id'] == 50: raise ValueError('damaged')\n    return sample\n"
    )
    monkeypatch.chdir(tmp_path)
    settings = ("--steps", 5, "--transform", "augmenting:augment", "--out", "trace.json", "--json", "--no-shuffle")
    assert "damaged" in profile(capsys, data, *settings, code=1)
    found = json.loads(profile(capsys, data, *settings, "--on-bad-sample", "skip"))
    assert found["trace"] == "trace.json"


def test_traces_of_ranks_are_compared(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        dataset = StreamingDataset(data, batch_size=8, world=World(rank, 2))
        with dataset.trace(tmp_path / "trace.json"):
            list(dataset.batches())
    found = json.loads(profile(capsys, "--traces", *sorted(tmp_path.glob("*.json")), "--json"))
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]


def test_a_function_of_this_folder_is_found(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "profiled_here.py").write_text("def same(sample):\n    return sample\n")
    monkeypatch.setattr("sys.path", [one for one in sys.path if one not in ("", str(tmp_path))])
    monkeypatch.chdir(tmp_path)
    assert "transform" in profile(capsys, data, "--batch-size", 32, "--transform", "profiled_here:same")
    assert sys.path[-1] == str(tmp_path), "a folder here may have the name of a package that is imported later"


def test_a_function_draws_random_numbers(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "profiled_random.py").write_text(
        "from stoker import Chain\n"
        "drawn = []\n"
        "def crop(sample, rng):\n    drawn.append(int(rng.integers(100)))\n    return sample\n"
        "chain = Chain().random_map(crop)\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("crop", "chain"):
        given = ("--batch-size", 32, "--no-shuffle", "--read-threads", 0, "--transform", f"profiled_random:{name}")
        assert "transform" in profile(capsys, data, *given)
    drawn = sys.modules["profiled_random"].drawn
    assert len(drawn) > 1
    assert drawn[: len(drawn) // 2] == drawn[len(drawn) // 2 :]
    said = profile(capsys, data, "--transform", "profiled_random:number", code=1)
    assert "--transform profiled_random:number is an int: name a function or a Chain" in said


def test_a_run_that_fails_leaves_an_earlier_trace(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "trace.json"
    profile(capsys, data, "--out", out)
    earlier = out.read_text()
    (tmp_path / "profiled_fails.py").write_text("def fails(sample):\n    raise ValueError('no')\n")
    monkeypatch.chdir(tmp_path)
    said = profile(capsys, data, "--out", out, "--transform", "profiled_fails:fails", code=1)
    assert f"the trace until then is in {tmp_path / 'partial.trace.json'}" in said
    assert json.loads((tmp_path / "partial.trace.json").read_text())["traceEvents"]
    assert out.read_text() == earlier


def test_faults_are_told(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text("[]")
    assert "is not a trace that stoker wrote" in profile(capsys, "--traces", tmp_path / "bad.json", code=1)
    said = profile(capsys, data, "--out", tmp_path / "trace.json", "--transform", "nowhere:f", code=1)
    assert "--transform nowhere:f can not be imported as MODULE:NAME" in said
    for text, remedy in (
        ("steps.crop", "is not MODULE:NAME: write --transform steps:crop"),
        ("steps", "is not MODULE:NAME: write --transform module:function"),
        (":crop", "is not MODULE:NAME: write --transform module:function"),
        ("stoker.image:Decode", "is a class: make an object of it in a module, such as crop = Decode(...)"),
    ):
        said = profile(capsys, data, "--out", tmp_path / "trace.json", "--transform", text, code=1)
        assert f"--transform {text} {remedy}" in said
    assert "can not be written" in profile(capsys, data, "--out", tmp_path / "no" / "trace.json", code=1)
    here = sorted(tmp_path.iterdir())
    assert "trace until then" not in profile(capsys, tmp_path / "none", "--out", tmp_path / "trace.json", code=1)
    assert sorted(tmp_path.iterdir()) == here  # no trace of what was not read
