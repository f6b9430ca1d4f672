"""Whole runs: ranks as processes, real files, and results that say what they are worth."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from patience import PATIENCE
from s3server import Bucket
from stoker.cli import main
from stoker.cluster import World
from stoker.errors import ConfigError, MissingPackageError, StokerError
from stoker.storage.files.locked_folder import LockedFolder
from stoker.storage.files.part_files import claim, release
from stoker_bench.loaders import get_loader, loader_names
from stoker_bench.loaders.base import LoaderJob
from stoker_bench.ranks.control.client import RankFailedError
from stoker_bench.ranks.plan import RunPlan
from stoker_bench.results.results import collect, schema
from stoker_bench.run import run_benchmark
from stoker_bench.settings.sources import read_workload
from stoker_bench.settings.workload import Stage

CLOCKS = 4e-6
"""Seconds by which two clocks may differ that are read as one."""

TINY = (
    "compute.seconds=0.002",
    "dataset.files=4",
    "dataset.samples_per_file=8",
    "dataset.record_bytes=4096",
    "reader.batch_size=2",
    "reader.threads=1",
    "train.epochs=2",
)


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.chdir(os.environ.get("TMPDIR", "/tmp"))


def bench(
    results: Path, *settings: str, url: str | None = None, ranks: int = 2, stages: tuple[Stage, ...] = ("train",)
) -> dict[str, Any]:
    resolved = read_workload(None, [*TINY, *settings], environ={}, dotenv=None)
    return run_benchmark(resolved, results=results, url=url, accelerators=ranks, stages=stages)


def broken(result: dict[str, Any]) -> set[str]:
    return {finding["rule"] for finding in result["findings"] if finding["invalid"]}


def noted(result: dict[str, Any]) -> str:
    return " ".join(finding["reason"] for finding in result["findings"])


def check(result: dict[str, Any], results: Path) -> None:
    """What holds of every run."""
    jsonschema.validate(result, schema())
    assert json.loads((results / "results.json").read_text()) == json.loads(json.dumps(result))
    for epoch in result["epochs"]:
        for rank in epoch["ranks"]:
            for block in rank["blocks"]:
                parts = block["compute"] + block["stall"] + block["barrier"] + block["overhead"]
                assert parts == pytest.approx(block["seconds"], rel=1e-3, abs=CLOCKS)
        if epoch["au"] is not None:
            whole = epoch["au"] + epoch["stall_part"] + epoch["barrier_part"] + epoch["overhead_part"]
            least = min(block["seconds"] for rank in epoch["ranks"] for block in rank["blocks"])
            assert whole == pytest.approx(1, abs=1e-3 + CLOCKS / least)
    assert "identity" not in broken(result)


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["npz", "parquet", "mds"])
def test_data_is_generated_trained_on_and_evaluated_by_two_ranks(kind: str, tmp_path: Path) -> None:
    data, results = tmp_path / "data", tmp_path / "results"
    settings = (f"dataset.format={kind}", "dataset.files_eval=2", "reader.batch_size_eval=1", "train.barrier=true")
    result = bench(results, *settings, url=str(data), stages=("generate", "train", "evaluate"))
    check(result, results)
    assert result["complete"]
    assert [(epoch["kind"], epoch["epoch"]) for epoch in result["epochs"]] == [
        ("train", 0),
        ("valid", 0),
        ("train", 1),
        ("valid", 1),
    ]
    for epoch in result["epochs"]:
        train = epoch["kind"] == "train"
        assert epoch["samples"] == (32 if train else 16)
        assert epoch["steps"] == ([8, 8])
        assert epoch["bytes"] >= epoch["samples"] * 4096
        assert len(set(epoch["fingerprints"])) == 2
    assert result["generate"]["files"] == 6
    assert result["train"]["au"]["mean"] > 0
    assert not broken(result) - {"page cache", "computation"}  # which a busy machine breaks
    summary = json.loads((results / "summary.json").read_text())
    assert summary["metric"]["train_au_mean_percentage"] == pytest.approx(100 * result["train"]["au"]["mean"])
    assert summary["num_accelerators"] == 2
    storage = [epoch["storage_bytes_per_second"] for epoch in result["epochs"] if epoch["kind"] == "train"]
    assert summary["metric"]["train_io_mean_MB_per_second"] * 2**20 == pytest.approx(sum(storage) / 2)
    assert (summary["valid"], summary["verdict"]) == (result["valid"], result["verdict"])
    assert summary["invalid"] == [one["reason"] for one in result["findings"] if one["invalid"]]
    assert summary["metric"]["train_au_meet_expectation"] == ("success" if result["passed"] else "fail")
    took = datetime.fromisoformat(summary["end"]) - datetime.fromisoformat(summary["start"])
    assert took.total_seconds() == pytest.approx(result["seconds"], abs=1)
    with np.load(results / "steps" / "rank00001-train-0-1.npz") as steps:
        assert steps["samples"].tolist() == [2] * 8


@pytest.mark.processes
@pytest.mark.s3
@pytest.mark.parametrize("cache", ["disk", "memory"])
def test_objects_are_generated_and_trained_on(cache: str, bucket: Bucket, tmp_path: Path) -> None:
    """``s3://`` goes to no function for paths on the way."""
    options = json.dumps(dict(bucket.storage_options))
    read = "reader.options=" + json.dumps({"cache": "memory"} if cache == "memory" else {})
    settings = ("dataset.format=npz", f"storage.options={options}", "storage.settle_seconds=5", read)
    result = bench(tmp_path / "results", *settings, url=f"{bucket.url}/data", stages=("generate", "train"))
    check(result, tmp_path / "results")
    assert [epoch["samples"] for epoch in result["epochs"]] == [32, 32]
    assert result["epochs"][0]["fetched_bytes"] >= 32 * 4096
    # Each epoch from the store, not from the last one's cache.
    assert result["epochs"][1]["fetched_bytes"] >= 32 * 4096
    assert [epoch["storage_bytes"] for epoch in result["epochs"]] == [e["fetched_bytes"] for e in result["epochs"]]
    said = " ".join(result["epochs"][0]["loader"]["notes"])
    assert ("held in memory" if cache == "memory" else "begins with an empty cache") in said
    assert not (Path.cwd() / "s3:").exists()
    assert bucket.storage_options["secret_access_key"] not in (tmp_path / "results" / "results.json").read_text()


DLIO = """
model: {name: tiny, type: cnn, model_size: 499153191}
framework: pytorch
workflow: {generate_data: True, train: True, checkpoint: True}
dataset:
  data_folder: data/tiny/
  format: npz
  num_files_train: 8
  num_samples_per_file: 1
  record_length_bytes: 40000
  record_length_bytes_stdev: 4000
  record_length_bytes_resize: 10000
reader: {data_loader: pytorch, batch_size: 4, read_threads: 1, file_shuffle: seed, sample_shuffle: seed}
train: {epochs: 1, computation_time: 0.002}
metric: {au: 0.5}
"""


@pytest.mark.processes
def test_a_file_of_dlio_s_runs_unchanged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dlio.yaml").write_text(DLIO)
    arguments = ["bench", "run", str(tmp_path / "dlio.yaml"), "++workload.reader.batch_size=2"]
    code = main([*arguments, "--data", str(tmp_path / "d"), "--results", str(tmp_path / "r"), "--accelerators", "2"])
    told = capfd.readouterr()
    result = json.loads((tmp_path / "r" / "results.json").read_text())
    assert code in {0, 3}  # 3: a file system that is in memory
    check(result, tmp_path / "r")
    assert result["epochs"][0]["steps"] == [2, 2]
    assert result["epochs"][0]["bytes"] == 8 * 10000
    assert "model.model_size: DLIO ignores it" in told.err
    assert [one["bytes"] for one in result["checkpoint"]["saves"]] == [10240]  # DLIO's default size of a model
    assert "utilization" in told.out


@pytest.mark.processes
def test_ctrl_c_leaves_what_was_measured_marked_as_invalid(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("name: x\n")
    settings = [*TINY, "train.epochs=1000", "compute.seconds=0.01"]
    command = [
        sys.executable,
        "-m",
        "stoker",
        "bench",
        "run",
        str(tmp_path / "w.yaml"),
        *settings,
        "--loader",
        "synthetic",
    ]
    with subprocess.Popen(
        [*command, "--results", str(tmp_path / "r"), "--accelerators", "2"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        while not list((tmp_path / "r").glob("steps/rank00001-train-0-1.npz")):
            assert run.poll() is None
            time.sleep(0.05)
        os.killpg(run.pid, signal.SIGINT)  # as the terminal does it: to all of them
        said = run.communicate(timeout=PATIENCE)[1]
    assert run.returncode == 130
    assert "interrupted" in said
    assert "Traceback" not in said
    result = json.loads((tmp_path / "r" / "results.json").read_text())
    jsonschema.validate(result, schema())
    assert (result["failure"], result["valid"]) == ("interrupted", False)
    assert result["epochs"][0]["complete"]


@pytest.mark.processes
@pytest.mark.parametrize(("record", "said"), [(4096, "too few to tell"), (1 << 20, "from the page cache")])
def test_the_page_cache_is_noticed(record: int, said: str, tmp_path: Path) -> None:
    """And what is so little that the kernel's count may be of anything, code of the processes for one, is not believed."""
    data = tmp_path / "data"
    settings = ("storage.cache=keep", f"dataset.record_bytes={record}")
    first = bench(tmp_path / "a", *settings, url=str(data), stages=("generate", "train"))
    assert "page cache" in broken(first)
    assert not first["valid"]
    assert not first["passed"]
    assert "in memory" in noted(first) or said in noted(first)


@pytest.mark.processes
def test_storage_in_memory_is_no_storage(tmp_path: Path) -> None:
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK):
        pytest.skip("no /dev/shm")
    data = place / f"bench-test-{os.getpid()}"
    try:
        result = bench(tmp_path / "a", url=str(data), stages=("generate", "train"))
    finally:
        subprocess.run(["rm", "-rf", str(data)], check=True)
    assert "page cache" in broken(result)
    assert "in memory" in noted(result)


@pytest.mark.processes
def test_calibration_tells_what_endless_storage_would_give(tmp_path: Path) -> None:
    settings = ("metric.calibrate=true", "metric.au=0", "train.epochs=1")
    killed = LockedFolder(Path("/dev/shm"), "stoker-bench-")
    os.close(killed._descriptor)  # as a rank that is killed lets go of the lock, and leaves its copy in memory
    result = bench(tmp_path / "a", *settings, url=str(tmp_path / "data"), stages=("generate", "train"))
    check(result, tmp_path / "a")
    calibration = result["calibration"]
    assert calibration["error"] is None
    assert 0 < calibration["au_ceiling"] <= 1
    assert calibration["files"] == 4
    assert calibration["storage_stall_mean"] >= 0
    assert not list(Path("/dev/shm").glob("stoker-bench-*"))
    high = bench(tmp_path / "b", "metric.calibrate=true", "metric.au=1", "train.epochs=1", url=str(tmp_path / "data"))
    assert "calibration" in broken(high)  # no loader leaves 2 % above 100 %


@pytest.mark.processes
def test_a_killed_rank_ends_all_and_leaves_what_was_measured(tmp_path: Path) -> None:
    with pytest.raises(RankFailedError, match=r"rank 1 .* ended without a word|rank 1 was killed"):
        bench(tmp_path, "reader.loader=bench_loaders:Killed", url=str(tmp_path / "nothing"))
    result = json.loads((tmp_path / "results.json").read_text())
    jsonschema.validate(result, schema())
    assert not result["valid"]
    assert not result["complete"]
    assert "rank 1" in result["failure"]
    first = result["epochs"][0]
    assert (first["epoch"], first["complete"], first["steps"]) == (0, True, [6, 6])
    assert "rank 1" in result["ranks"][0]["error"]


@pytest.mark.processes
def test_an_error_of_one_rank_is_reported_unchanged(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = [*TINY, "reader.loader=bench_loaders:Raises"]
    (tmp_path / "w.yaml").write_text("name: x\n")
    arguments = ["bench", "run", str(tmp_path / "w.yaml"), *settings, "--data", "/nothing", "--accelerators", "2"]
    assert main([*arguments, "--results", str(tmp_path / "r")]) == 1
    assert "OSError: the disk is gone" in capfd.readouterr().err
    result = json.loads((tmp_path / "r" / "results.json").read_text())
    assert "the disk is gone" in result["failure"]
    assert result["epochs"][1]["complete"] is False


@pytest.mark.processes
def test_ranks_with_the_same_data_are_noticed(tmp_path: Path) -> None:
    result = bench(tmp_path, "reader.loader=bench_loaders:Same", url=str(tmp_path / "nothing"))
    assert "different data" in broken(result)


def test_a_missing_library_is_an_error_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    with pytest.raises(
        MissingPackageError, match="'bench_loaders:Missing' can not be used here: nolib is not installed"
    ):
        bench(tmp_path / "r", "reader.loader=bench_loaders:Missing", url="/nothing")
    assert not (tmp_path / "r").exists()
    with pytest.raises(ConfigError, match=r"it needs name, available\(\) and open\(job\)"):
        get_loader("bench_loaders:Wrong")
    with pytest.raises(ConfigError, match="did you mean 'synthetic'"):
        get_loader("syntetic")


def test_no_step_to_measure_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.steps 1 leaves no step to measure, and 1 do not count"):
        bench(tmp_path, "train.steps=1", "reader.loader=synthetic")


@pytest.mark.parametrize("loader", ["stoker", "torch"])
def test_data_of_which_no_batch_can_be_made_is_an_error_that_names_the_settings(loader: str, tmp_path: Path) -> None:
    """It named arguments of stoker's data set, or was an epoch without a step."""
    with pytest.raises(StokerError, match=r"no step: 32 samples make no batch of 33 \(reader.batch_size\)"):
        bench(
            tmp_path / "r",
            "reader.batch_size=33",
            f"reader.loader={loader}",
            url=str(tmp_path),
            ranks=1,
            stages=("generate", "train"),
        )


@pytest.mark.processes
def test_a_known_stall_is_measured_to_two_percent(tmp_path: Path) -> None:
    """From the loader's own clock, which is data, to the numbers of the results, through a rank of its own."""
    result = bench(tmp_path, "reader.loader=bench_loaders:Stalls", "train.epochs=1", url="/nothing", ranks=1)
    check(result, tmp_path)
    epoch = result["epochs"][0]
    known = int(epoch["loader"]["notes"][0]) * 1e-9
    (block,) = epoch["ranks"][0]["blocks"]
    assert known > 79 * 0.004
    assert block["stall"] == pytest.approx(known, rel=1e-4)
    assert epoch["stall_part"] == pytest.approx(known / block["seconds"], rel=1e-4)
    assert epoch["stall_seconds"]["mean"] == pytest.approx(known / 79, rel=1e-4)
    assert block["compute"] == pytest.approx(79 * 0.002, rel=1e-2)


@pytest.mark.processes
def test_time_that_is_in_no_part_makes_a_run_invalid(tmp_path: Path) -> None:
    """Or in two parts: as if a clock had jumped while a real run was under way."""
    bench(tmp_path, "reader.loader=bench_loaders:Stalls", "train.epochs=1", url="/nothing", ranks=1)
    path = tmp_path / "rank00000.json"
    measured = path.read_text()
    settings = [*TINY, "reader.loader=bench_loaders:Stalls", "train.epochs=1"]
    workload = read_workload(None, settings, environ={}, dotenv=None).workload
    plan = RunPlan(workload, "/nothing", str(tmp_path), "x")
    for missing, valid in ((0.0005, True), (0.002, False), (-0.002, False)):
        record = json.loads(measured)
        (block,) = record["epochs"][0]["blocks"]
        lost = missing * block["seconds"]
        block["overhead"] -= lost
        block["residue"] += lost
        path.write_text(json.dumps(record))
        result = collect(plan, tmp_path, 1, failure=None, began=0, launcher="x")
        assert ("identity" not in broken(result)) is valid
        if not valid:
            assert not result["valid"]
            assert "0.20% of the time is in no part of it" in noted(result)


@pytest.mark.processes
def test_the_harness_alone_is_marked_as_such(tmp_path: Path) -> None:
    result = bench(tmp_path, "reader.loader=synthetic", "compute.seconds=0", "dataset.files=400", ranks=1)
    check(result, tmp_path)
    assert "decoding" in broken(result)
    assert result["epochs"][0]["steps"] == [1600]


@pytest.mark.processes
def test_results_are_never_written_over(tmp_path: Path) -> None:
    bench(tmp_path, "reader.loader=synthetic", ranks=1)
    with pytest.raises(ConfigError, match="holds results already"):
        bench(tmp_path, "reader.loader=synthetic", ranks=1)


@pytest.mark.processes
def test_of_two_runs_at_once_one_has_the_directory(tmp_path: Path) -> None:
    held = claim(tmp_path / ".running")  # as the other run does, before it has written anything
    assert held is not None
    with pytest.raises(ConfigError, match="another run writes its results to"):
        bench(tmp_path, "reader.loader=synthetic", ranks=1)
    assert [path.name for path in tmp_path.iterdir()] == [".running"]
    release(held)  # a run that was killed leaves the file, and no lock
    result = bench(tmp_path, "reader.loader=synthetic", ranks=1)
    assert result["complete"]
    assert not (tmp_path / ".running").exists()


@pytest.mark.processes
def test_an_epoch_too_short_to_measure_is_no_success(tmp_path: Path) -> None:
    """The loader gives 6 batches, whatever the workload says."""
    result = bench(tmp_path, "reader.loader=bench_loaders:Same", "metric.exclude_start=6", url="/nothing", ranks=1)
    assert "metrics" in broken(result)
    assert result["passed"] is None
    check(result, tmp_path)


@pytest.mark.processes
def test_ranks_of_a_launcher_meet_and_rank_0_writes(tmp_path: Path) -> None:
    """torchrun's variables are enough; rank 0's address is in the results directory."""
    arguments = ["-m", "stoker", "bench", "run", str(tmp_path / "w.yaml"), *TINY, "--loader", "synthetic", "--json"]
    (tmp_path / "w.yaml").write_text("name: x\n")
    started = []
    for rank in (1, 0):
        environ = os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        command = [sys.executable, *arguments, "--results", str(tmp_path / "r")]
        started.append(subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate(timeout=PATIENCE)[0] for process in started]
    assert [process.returncode for process in started] == [0, 3]  # rank 0 tells that a synthetic run is none
    result = json.loads(outputs[1])
    assert outputs[0] == ""
    assert result["world"]["launcher"] == "torchrun"
    assert result["complete"]
    assert len(result["epochs"][0]["ranks"]) == 2
    assert not (tmp_path / "r" / "meeting.json").exists()


def _samples(folder: Path, files: int, each: int) -> None:
    (folder / "train").mkdir(parents=True)
    for number in range(files):
        values = np.arange(number * each, (number + 1) * each, dtype=np.int64)
        np.savez(folder / "train" / f"img_{number}.npz", x=np.repeat(values[:, None], 4, axis=1))


@pytest.fixture
def numbered(tmp_path: Path) -> Path:
    _samples(tmp_path / "numbered", 5, 8)
    return tmp_path / "numbered"


@pytest.mark.parametrize("name", ["stoker", "torch"])
@pytest.mark.parametrize("threads", [0, pytest.param(2, marks=pytest.mark.processes)])
def test_each_rank_reads_its_own_part_in_every_epoch(name: str, threads: int, numbered: Path, tmp_path: Path) -> None:
    settings = ("dataset.files=5", "dataset.samples_per_file=8", "reader.batch_size=3", f"reader.loader={name}")
    workload = read_workload(None, settings, environ={}, dotenv=None).workload
    seen = []
    loaders = [
        get_loader(name).open(LoaderJob(workload, "train", str(numbered), World(rank, 2, 2), threads, 3))
        for rank in range(2)
    ]
    for epoch in range(2):
        parts = [
            [
                int(value)
                for batch in loader.epoch(epoch)
                for value in np.asarray(
                    next(iter(batch.data.values())) if isinstance(batch.data, dict) else batch.data
                )[:, 0]
            ]
            for loader in loaders
        ]
        for loader in loaders:
            loader.release()
        assert [len(part) for part in parts] == [18, 18]  # whole batches, formed of all that a rank's threads read
        assert not set(parts[0]) & set(parts[1])
        assert len({*parts[0], *parts[1]}) == 36
        seen.append(parts)
    assert seen[0] != seen[1]
    for loader in loaders:
        assert loader.report().decoded == "arrays"
        loader.close()


@pytest.mark.processes
def test_samples_that_do_not_fill_a_batch_are_said(numbered: Path, tmp_path: Path) -> None:
    settings = ("dataset.files=5", "reader.batch_size=3", "train.epochs=1")
    result = bench(tmp_path / "r", *settings, url=str(numbered))
    assert "4 of the 40 samples of epoch 0 were not delivered" in noted(result)


def test_bytes_alone_are_the_files_bytes_and_labelled(tmp_path: Path) -> None:
    _samples(tmp_path, 6, 1)
    sizes = sum(path.stat().st_size for path in (tmp_path / "train").iterdir())
    for name in ("stoker", "torch"):
        settings = ("dataset.files=6", "reader.batch_size=2", "reader.decode=false", f"reader.loader={name}")
        workload = read_workload(None, settings, environ={}, dotenv=None).workload
        loader = get_loader(name).open(LoaderJob(workload, "train", str(tmp_path), World(), 0, 2))
        assert sum(batch.bytes for batch in loader.epoch(0)) == sizes
        assert loader.report().decoded == "bytes"
        loader.close()


@pytest.mark.parametrize("name", ["stoker", "torch"])
def test_files_of_any_size_become_samples_of_one(name: str, tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    for number in range(4):
        np.savez(tmp_path / "train" / f"img_{number}.npz", x=np.full((1, 5 + number, 7), number, np.uint8))
    settings = ("dataset.files=4", "dataset.resize_bytes=50", "reader.batch_size=2", f"reader.loader={name}")
    workload = read_workload(None, settings, environ={}, dotenv=None).workload
    loader = get_loader(name).open(LoaderJob(workload, "train", str(tmp_path), World(), 0, 2))
    rows = [
        row
        for batch in loader.epoch(0)
        for row in np.asarray(batch.data["data"] if isinstance(batch.data, dict) else batch.data)
    ]
    loader.close()
    assert {tuple(row[:35].tolist()) for row in rows} == {(number,) * 35 for number in range(4)}
    assert all(row.shape == (50,) for row in rows)


def test_the_commands_list_and_write_workloads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {"stoker", "synthetic", "torch"} <= set(listed["loaders"])
    assert "flux-b200" in listed["workloads"]
    assert set(loader_names()) == set(listed["loaders"])
    path = tmp_path / "w.yaml"
    assert main(["bench", "init", str(path), "--like", "cosmoflow-a100"]) == 0
    again = read_workload(path, environ={}, dotenv=None).workload
    assert again == read_workload("cosmoflow-a100", environ={}, dotenv=None).workload
    assert main(["bench", "init", str(path)]) == 1
    assert "is there already" in capsys.readouterr().err
