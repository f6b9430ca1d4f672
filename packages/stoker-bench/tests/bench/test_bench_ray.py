"""Ranks on Ray: as many on each node, measured as elsewhere, and none waits for one that is gone."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patience import PATIENCE
from servers import ray_cluster
from stoker.cli import main
from stoker.errors import ConfigError, MissingPackageError
from stoker_bench.ranks import launch
from stoker_bench.ranks.control.client import RankFailedError
from stoker_bench.ranks.ray import RayRanks, deal
from stoker_bench.run import run_benchmark
from stoker_bench.settings.sources import Resolved, read_workload
from stoker_bench.settings.workload import Workload

TINY = (
    *("dataset.format=npz", "dataset.files=4", "dataset.samples_per_file=8", "dataset.record_bytes=512"),
    *("reader.batch_size=4", "reader.threads=1", "train.epochs=2", "compute.seconds=0.001"),
)


def tiny(*more: str) -> Resolved:
    return read_workload(None, [*TINY, *more], environ={}, dotenv=None)


# -- which node has which rank -------------------------------------------------------------------------------------


@given(st.integers(1, 64), st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.integers(0, 40), max_size=8))
def test_each_node_has_as_many_ranks_one_after_the_other(ranks: int, room: dict[str, int]) -> None:
    even = [count for count in range(1, ranks + 1) if ranks % count == 0]
    fits = [count for count in even if sum(free >= ranks // count for free in room.values()) >= count]
    if not fits:
        with pytest.raises(ConfigError, match=f"{ranks} ranks? can not be placed on the Ray cluster"):
            deal(ranks, room)
        return
    nodes = deal(ranks, room)
    counts = Counter(nodes)
    assert len(nodes) == ranks
    assert len(counts) == max(fits)
    assert set(counts.values()) == {ranks // max(fits)}
    assert all(room[node] >= count for node, count in counts.items())
    assert sum(first != second for first, second in itertools.pairwise(nodes)) == len(counts) - 1


# -- without a cluster ---------------------------------------------------------------------------------------------


def test_a_cluster_that_is_not_there_is_reported_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # of a cluster that runs here, nothing is known there
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "w.yaml").write_text("name: tiny\n")
    asked = ["bench", "run", str(tmp_path / "w.yaml"), *TINY, "--data", str(tmp_path / "data"), "--launcher", "ray"]
    assert main([*asked, "--results", str(tmp_path / "out")]) == 1
    assert "no Ray cluster is found at 'auto'" in capsys.readouterr().err
    assert not list((tmp_path / "out").iterdir())
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    assert main([*asked, "--results", str(tmp_path / "out")]) == 1
    assert "start it in the cluster, as by ray job submit" in capsys.readouterr().err


def test_ray_that_is_missing_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'stoker\[ray\]'"):
        RayRanks(1, Workload(), tmp_path).prepare()


# -- on a cluster --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A Ray cluster of one node, whose processes can import the loaders of tests; its address."""
    here = str(Path(__file__).parent)
    with pytest.MonkeyPatch.context() as patch, ray_cluster({"PYTHONPATH": here}) as (_, _, address):
        patch.syspath_prepend(here)
        yield address


@pytest.mark.processes
@pytest.mark.usefixtures("cluster")
def test_a_run_on_ray_is_measured_as_any_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # That Ray itself was started by another launcher makes no rank of this process.
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "3"), ("LOCAL_WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    (tmp_path / "w.yaml").write_text("name: tiny\n")
    asked = ["bench", "run", str(tmp_path / "w.yaml"), *TINY, "storage.cache=keep", "--data", str(tmp_path / "data")]
    asked += ["--results", str(tmp_path / "out"), "--accelerators", "2", "--stages", "generate,train"]
    code = main([*asked, "--launcher", "ray", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert code in (0, 3)  # 3 where the files are in memory
    assert result == json.loads((tmp_path / "out" / "results.json").read_text())
    assert (result["complete"], result["failure"]) == (True, None)
    assert result["world"]["launcher"] == "Ray"
    assert (result["world"]["ranks"], result["world"]["reported"]) == (2, 2)
    assert [epoch["samples"] for epoch in result["epochs"]] == [32, 32]
    assert [epoch["steps"] for epoch in result["epochs"]] == [[4, 4], [4, 4]]
    assert result["epochs"][0]["stall_seconds"] is not None  # steps came back, too
    assert not list(Path(tempfile.gettempdir()).glob(f"stoker-bench-{result['run']}"))


@pytest.mark.processes
@pytest.mark.usefixtures("cluster")
def test_what_ranks_measured_comes_back_from_nodes_that_do_not_share_the_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prepared = RayRanks.prepare

    def elsewhere(self: RayRanks) -> None:
        prepared(self)
        shutil.rmtree(tmp_path / "out")  # as ranks on another host see it

    monkeypatch.setattr(RayRanks, "prepare", elsewhere)
    resolved = tiny("reader.loader=synthetic", "train.steps=5")
    result = run_benchmark(resolved, results=tmp_path / "out", accelerators=2, stages=("train",), launcher="ray")
    assert (result["complete"], result["world"]["reported"]) == (True, 2)
    assert sorted(path.name for path in (tmp_path / "out" / "steps").iterdir()) == [
        f"rank0000{rank}-train-0-{epoch}.{what}npz" for rank in (0, 1) for epoch in (0, 1) for what in ("", "storage.")
    ]


@pytest.mark.processes
@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("loader", "said"), [("Killed", "ended without a word"), ("Raises", "the disk is gone")])
def test_a_rank_that_is_gone_ends_the_run_and_what_was_measured_is_kept(loader: str, said: str, tmp_path: Path) -> None:
    resolved = tiny(f"reader.loader=bench_loaders:{loader}", "train.barrier=false")
    with pytest.raises(RankFailedError, match=f"rank 1 .*{said}"):
        run_benchmark(
            resolved,
            results=tmp_path / "out",
            url=str(tmp_path),
            accelerators=2,
            stages=("train",),
            launcher="ray",
        )
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert not result["valid"]
    assert said in result["failure"]
    assert result["epochs"][0]["complete"]  # the first one was whole
    assert [rank["rank"] for rank in result["ranks"]] == [0, 1]


@pytest.mark.processes
@pytest.mark.usefixtures("cluster")
def test_a_rank_that_does_not_answer_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_END_SECONDS", 2.0)  # in which it could have saved what it has
    resolved = tiny("reader.loader=bench_loaders:StopsItself", "train.barrier=true", "train.step_timeout=4")
    with pytest.raises(RankFailedError, match=r"rank 1 .*hangs: it gave no sign for 4 s"):
        run_benchmark(
            resolved, results=tmp_path / "out", url=str(tmp_path), accelerators=2, stages=("train",), launcher="ray"
        )
    stopped = int((tmp_path / "stopped").read_text())
    deadline = time.monotonic() + PATIENCE  # Ray does not wait for its end, either
    while Path(f"/proc/{stopped}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{stopped}").exists()


@pytest.mark.processes
@pytest.mark.usefixtures("cluster")
def test_a_storage_is_sized_by_ranks_of_the_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Which has room for two."""
    (tmp_path / "w.yaml").write_text("name: tiny\n")
    data = str(tmp_path / "data")
    made = ["bench", "run", str(tmp_path / "w.yaml"), "--data", data, "--stages", "generate", *TINY, "dataset.files=64"]
    assert main([*made, "--results", str(tmp_path / "g")]) in (0, 3)
    asked = ["bench", "size", str(tmp_path / "w.yaml"), "--data", data, "--results", str(tmp_path / "out")]
    asked += ["--launcher", "ray", "--steps", "20", "--repeats", "1", "--no-calibrate", "--json"]
    capsys.readouterr()
    assert main([*asked, *TINY, "dataset.files=64", "metric.au=0"]) in (0, 3)
    found = json.loads(capsys.readouterr().out)
    assert (found["accelerators"], found["limited_by"]) == (2, "cluster")
    assert "the cluster can have no more" in found["said"]
    assert {point["accelerators"] for point in found["points"]} == {1, 2}
    runs = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("*/results.json")]
    assert {run["world"]["launcher"] for run in runs} == {"Ray"}


@pytest.mark.processes
@pytest.mark.usefixtures("cluster")
def test_more_ranks_than_the_cluster_has_processors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="3 ranks can not be placed on the Ray cluster, whose nodes have room for 2"):
        run_benchmark(
            tiny("reader.loader=synthetic"),
            results=tmp_path / "out",
            accelerators=3,
            stages=("train",),
            launcher="ray",
        )
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.processes
def test_ctrl_c_ends_the_ranks_of_a_cluster_and_keeps_what_they_measured(cluster: str, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("name: long\n")
    command = [sys.executable, "-m", "stoker", "bench", "run", str(tmp_path / "w.yaml"), "compute.seconds=0.01"]
    command += ["train.steps=20", "train.epochs=100000", "--loader", "synthetic", "--stages", "train"]
    command += ["--results", str(tmp_path / "out"), "--accelerators", "2", "--launcher", "ray"]
    with subprocess.Popen(command, env={**os.environ, "RAY_ADDRESS": cluster}, stderr=subprocess.PIPE) as run:
        assert run.stderr is not None
        while len(list(tmp_path.glob("out/steps/rank*-train-0-1.npz"))) < 2:
            assert run.poll() is None, run.stderr.read().decode()
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=PATIENCE)
    assert run.returncode == 130, said.decode()
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert (result["failure"], result["valid"]) == ("interrupted", False)
    assert result["epochs"][0]["complete"]
    assert [rank["error"] for rank in result["ranks"]] == ["interrupted"] * 2
    assert not list(Path(tempfile.gettempdir()).glob(f"stoker-bench-{result['run']}"))
