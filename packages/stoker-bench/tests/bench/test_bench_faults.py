"""Faults: every rank tells what is missing, full or killed, and what was measured is kept and marked.

Ranks that end, or are started by a launcher, are processes; others are threads of this one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from bench_faults import end_started, failed, pid_of, small_disk, start, wait_for
from bench_threads import run_in_threads
from rich.console import Console

from patience import PATIENCE
from s3server import Bucket
from stoker.concurrency.threads import Threads
from stoker.display import bytes_text
from stoker.errors import ConfigError, StorageError
from stoker.storage import open_store
from stoker_bench.checkpoint import manifest as manifests
from stoker_bench.cli.bench.tables.result_table import show_result
from stoker_bench.generation import generate
from stoker_bench.measure.generation import spec_of
from stoker_bench.measure.request_counts import RequestCounts
from stoker_bench.measure.storage_series import StorageSeries
from stoker_bench.ranks.control.client import RankFailedError
from stoker_bench.ranks.plan import RunPlan
from stoker_bench.ranks.termination import TerminatedError, ignore_sigterm, is_stopped, sigterm_interrupts
from stoker_bench.results.results import collect
from stoker_bench.settings.sources import read_workload
from stoker_bench.settings.workload import Stage

TINY = (
    "compute.seconds=0.002",
    "dataset.files=4",
    "dataset.samples_per_file=8",
    "dataset.record_bytes=4096",
    "reader.batch_size=2",
    "reader.threads=1",
)


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.chdir(tmp_path)
    yield
    end_started()


def bench(results: Path, *settings: str, url: str, ranks: int = 2, stages: tuple[Stage, ...]) -> dict[str, Any]:
    resolved = read_workload(None, [*TINY, *settings], environ={}, dotenv=None)
    return run_in_threads(resolved, results=results, url=url, accelerators=ranks, stages=stages)


def content(url: str) -> dict[str, str]:
    store = open_store(url)
    return {one.key: hashlib.sha256(store.get(one.key, max_bytes=1 << 30)).hexdigest() for one in store.list()}


# -- what is missing -----------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_library_that_generation_needs_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    code = "import sys; sys.modules['h5py'] = None; from stoker.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = [
        "bench",
        "run",
        "w.yaml",
        "dataset.format=hdf5",
        "--data",
        "d",
        "--results",
        "r",
        "--stages",
        "generate",
    ]
    (tmp_path / "w.yaml").write_text("name: x\n")
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'stoker[hdf5]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["w.yaml"]


def test_a_data_set_that_can_not_be_made_is_an_error_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.settings\.colour is not understood"):
        bench(tmp_path / "r", "dataset.settings={colour: red}", url=str(tmp_path / "d"), stages=("generate", "train"))
    assert not list(tmp_path.iterdir())


@pytest.mark.processes
def test_a_library_that_one_host_lacks_is_reported_by_every_rank(tmp_path: Path) -> None:
    run = start(tmp_path, {"reader": {"loader": "bench_loaders:Lacks"}}, "--data", "/nothing", "--accelerators", "3")
    said = run.communicate(timeout=PATIENCE)[1]
    assert run.returncode == 1
    assert "Traceback" not in said
    result = failed(tmp_path)
    assert len(result["ranks"]) == 3
    for rank in result["ranks"]:
        assert "nolib is not installed" in rank["error"]
        assert f"rank {rank['rank']}: " in said


def start_ranks(folder: Path, ranks: int, settings: dict[str, Any], *arguments: str) -> list[subprocess.Popen[str]]:
    """Processes that torchrun's variables make ranks."""
    size = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    return [start(folder, settings, *arguments, RANK=str(rank), **size) for rank in range(ranks)]


def launched(folder: Path, *arguments: str) -> list[tuple[int, str]]:
    """Exit codes and errors of two ranks of a launcher."""
    runs = start_ranks(folder, 2, {}, *arguments)
    said = [run.communicate(timeout=PATIENCE)[1] for run in runs]
    return [(run.returncode, one) for run, one in zip(runs, said, strict=True)]


@pytest.mark.processes
def test_what_one_rank_of_a_launcher_can_not_do_ends_all_before_anything_starts(tmp_path: Path) -> None:
    """Instead of having the others wait for it."""
    for code, said in launched(tmp_path, "--loader", "bench_loaders:LacksAtOnce", "--data", "/nothing"):
        assert code == 1
        assert "nolib is not installed" in said
        assert "Traceback" not in said
    assert not list((tmp_path / "r").iterdir())
    (tmp_path / "r" / "results.json").write_text("another run's")
    for code, said in launched(tmp_path, "--loader", "synthetic"):
        assert code == 1
        assert "holds results already" in said
    assert (tmp_path / "r" / "results.json").read_text() == "another run's"


def test_a_rank_that_ends_before_any_step_counts_leaves_the_others_numbers(tmp_path: Path) -> None:
    with pytest.raises(RankFailedError, match=r"rank 1 .*the disk is gone.* what was measured"):
        bench(tmp_path / "r", "reader.loader=bench_loaders:Stops", url="/nothing", stages=("train",))
    result = failed(tmp_path)
    assert [rank["metrics"]["au"] is None for rank in result["epochs"][0]["ranks"]] == [False, True]
    assert result["epochs"][0]["samples_per_second"] is None
    assert "train_au_percentage" not in json.loads((tmp_path / "r" / "summary.json").read_text())["metric"]


@pytest.mark.s3
def test_a_bucket_that_is_not_there_is_reported_by_every_rank(bucket: Bucket, tmp_path: Path) -> None:
    options = f"storage.options={json.dumps(dict(bucket.storage_options))}"
    with pytest.raises(RankFailedError, match=r"s3://no-such-bucket-of-ours.* what was measured"):
        bench(tmp_path / "r", options, url="s3://no-such-bucket-of-ours/x", stages=("generate",))
    for rank in failed(tmp_path)["ranks"]:
        assert "s3://no-such-bucket-of-ours" in rank["error"]
    with pytest.raises(StorageError, match="s3://no-such-bucket-of-ours"):
        bench(tmp_path / "r2", options, url="s3://no-such-bucket-of-ours/x", stages=("train",))
    assert not (tmp_path / "r2").exists()


@pytest.mark.parametrize("loader", ["stoker", "torch"])
def test_options_of_an_object_store_do_not_damage_local_data(loader: str, tmp_path: Path) -> None:
    options = 'storage.options={endpoint: "http://localhost:1", access_key_id: a, secret_access_key: b}'
    threads = f"reader.threads={int(loader == 'stoker')}"  # of torch they would be processes
    settings = (options, f"reader.loader={loader}", threads, "checkpoint.after_epoch=1", "model.size_bytes=100")
    result = bench(tmp_path / "r", *settings, url=str(tmp_path / "d"), stages=("generate", "train", "checkpoint"))
    assert result["complete"]
    assert result["epochs"][0]["samples"] == 32
    assert f"storage.options are not used: {tmp_path / 'd'} is local" in result["plan"]["notes"]


# -- what is full --------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_disk_that_generation_fills_is_reported_and_whole_files_are_kept(tmp_path: Path) -> None:
    settings = (
        "dataset.files=30",
        "dataset.samples_per_file=1",
        "dataset.record_bytes=200000",
        "dataset.compression=zip",  # else it would be told before
    )
    with small_disk(tmp_path / "small") as place:
        with pytest.raises(RankFailedError, match=r"rank \d .*: No space left on device\. Free some space"):
            bench(tmp_path / "r", *settings, url=str(place / "d"), stages=("generate",))
        assert all("No space left" in rank["error"] for rank in failed(tmp_path)["ranks"])
        made = [path for path in (place / "d" / "train").iterdir() if path.suffix == ".npz"]
        assert 5 < len(made) < 16
        others = {path.name for path in (place / "d" / "train").iterdir()} - {path.name for path in made}
        # Nothing that is half made lies beside them, only the job's own notes.
        assert others <= {"_generated.json", "_generated.shares", "_stoker_unfinished.json"}
        subprocess.run(["mount", "-o", "remount,size=9m", str(place)], check=True)
        told = bench(tmp_path / "again", *settings, url=str(place / "d"), stages=("generate",))["generate"]
        assert (told["made"], told["kept"]) == (30 - len(made), len(made))


@pytest.mark.processes
def test_results_that_find_no_space_are_an_error_on_every_rank(tmp_path: Path) -> None:
    with small_disk(tmp_path / "r", "64k") as place:
        (place / "filler").write_bytes(bytes(48 << 10))
        run = start(tmp_path, {"train": {"epochs": 300}}, *TINY, "--loader", "synthetic", "--accelerators", "2")
        said = run.communicate(timeout=PATIENCE)[1]
        assert run.returncode == 1
        assert "No space left on device" in said
        assert "Traceback" not in said
        assert said.count("rank ") >= 2


def test_numbers_of_some_ranks_are_printed(tmp_path: Path) -> None:
    """Where no step of a rank counts, utilization is known, and a sum over ranks is not."""
    folder = tmp_path / "r"
    settings = ("reader.loader=synthetic", "train.epochs=1")
    bench(folder, *settings, url=str(tmp_path), stages=("train",))
    resolved = read_workload(None, [*TINY, *settings], environ={}, dotenv=None)
    plan = RunPlan(resolved.workload, str(tmp_path), str(folder), "0" * 16, "", {}, (), ())
    record = json.loads((folder / "rank00001.json").read_text())
    record["epochs"][0]["metrics"] = dict.fromkeys(record["epochs"][0]["metrics"])
    (folder / "rank00001.json").write_text(json.dumps(record))
    result = collect(plan, folder, 2, failure="rank 1 came to no step", began=0.0, launcher="local processes")
    said = StringIO()
    show_result(Console(file=said, width=300), result)
    assert "utilization " in said.getvalue()
    assert ", - samples/s" in said.getvalue()


# -- what is killed ------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_generation_that_was_killed_is_completed_and_not_begun_again(tmp_path: Path) -> None:
    """By another number of ranks, to the same bytes as if one had made all of it."""
    data, kind, files = tmp_path / "d", "mds", 40  # which also has an index
    settings = {
        "dataset": {"format": kind, "files": files, "record_bytes": 20000},
        "reader": {"loader": "bench_loaders:GatedGeneration"},
        "stages": ["generate"],
    }
    runs = start_ranks(tmp_path, 2, settings, "--data", str(data))
    wait_for((tmp_path / "gated").exists, runs[0])  # rank 1 is in the midst of its sixth file
    runs[1].kill()
    said = runs[0].communicate(timeout=PATIENCE)[1]
    assert runs[0].returncode == 1
    assert "rank 1" in said
    assert "Traceback" not in said
    failed(tmp_path)
    made = {path: path.stat().st_mtime_ns for path in (data / "train").glob("*") if path.name[0] not in "._"}
    assert 5 <= len(made) <= 5 + files // 2
    chosen = [
        f"dataset.format={kind}",
        f"dataset.files={files}",
        "dataset.samples_per_file=1",
        "dataset.record_bytes=20000",
    ]
    result = bench(tmp_path / "again", *chosen, url=str(data), ranks=3, stages=("generate",))
    told = result["generate"]
    assert (told["files"], told["made"], told["kept"]) == (files, files - len(made), len(made))
    assert {path: path.stat().st_mtime_ns for path in made} == made
    spec = spec_of(read_workload(None, [*TINY, *chosen], environ={}, dotenv=None).workload)
    generate(spec, f"memory://{tmp_path.name}")
    assert content(str(data / "train")) == content(f"memory://{tmp_path.name}")


@pytest.mark.processes
def test_every_rank_makes_its_share_of_the_files(tmp_path: Path) -> None:
    """By what the kernel says that each process has written when all is made."""
    settings = {
        "dataset": {"files": 24, "samples_per_file": 1, "record_bytes": 500_000},
        "reader": {"loader": "bench_loaders:WaitsWhenMade"},
        "stages": ["generate"],
    }
    run = start(tmp_path, settings, "--data", str(tmp_path / "d"), "--accelerators", "2")
    wait_for((tmp_path / "made").exists, run)
    told = [Path(f"/proc/{pid_of(tmp_path, rank)}/io").read_text() for rank in range(2)]
    (tmp_path / "go").touch()
    assert run.communicate(timeout=PATIENCE)[1] == ""
    assert run.returncode == 0
    wrote = [int(one.split("wchar:")[1].split()[0]) for one in told]
    assert all(12 * 500_000 <= one < 13 * 500_000 for one in wrote)


def training_ranks(folder: Path, ranks: int) -> list[subprocess.Popen[str]]:
    """Ranks of a launcher, once all have ended two epochs of a thousand."""
    runs = start_ranks(folder, ranks, {"train": {"epochs": 1000}}, *TINY, "--loader", "synthetic")
    wait_for(lambda: len(list((folder / "r" / "steps").glob("*-train-0-1.npz"))) == ranks, runs[0])
    return runs


@pytest.mark.processes
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_of_a_launcher_ends_the_others_and_the_results_say_so(rank: int, tmp_path: Path) -> None:
    """Rank 0, too, which would have written them."""
    runs = training_ranks(tmp_path, 3)
    os.kill(runs[rank].pid, signal.SIGKILL)
    told = [run.communicate(timeout=PATIENCE)[1] for run in runs]
    assert [run.returncode for run in runs] == [-signal.SIGKILL if one == rank else 1 for one in range(3)]
    for one in {0, 1, 2} - {rank}:
        assert "Traceback" not in told[one]
        assert ("rank 1" if rank else "is gone: killed") in told[one]
    result = failed(tmp_path)
    assert result["epochs"][0]["complete"]
    assert len(result["epochs"][0]["ranks"]) == 3
    assert ("rank 1" if rank else "the process that the ranks meet at") in result["failure"]


@pytest.mark.processes
def test_ranks_whose_starter_is_killed_end_and_write_the_results(tmp_path: Path) -> None:
    arguments = (*TINY, "--loader", "synthetic", "--accelerators", "2")
    run = start(tmp_path, {"train": {"epochs": 1000}}, *arguments, TMPDIR=str(tmp_path))
    wait_for(lambda: len(list((tmp_path / "r" / "steps").glob("*-train-0-1.npz"))) == 2, run)
    ranks = [pid_of(tmp_path, rank) for rank in range(2)]
    os.kill(run.pid, signal.SIGKILL)
    run.communicate(timeout=PATIENCE)  # until the ranks have let go of it
    assert run.returncode == -signal.SIGKILL
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in ranks) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}/cmdline").exists() for pid in ranks)
    result = failed(tmp_path)
    assert "is gone" in result["failure"]
    assert result["epochs"][0]["complete"]
    assert not list(tmp_path.glob("stoker-bench-*"))


@pytest.mark.processes
@pytest.mark.parametrize("late", [False, True])
def test_sigterm_to_the_ranks_of_a_launcher_leaves_results(late: bool, tmp_path: Path) -> None:
    """As Slurm and torchrun end a job: all ranks get it, and rank 0 may get it when it writes what another has told."""
    runs = training_ranks(tmp_path, 2)
    runs[1].terminate()
    if late:
        runs[1].wait(PATIENCE)
    runs[0].terminate()
    for run in runs:
        assert "Traceback" not in run.communicate(timeout=PATIENCE)[1]
    # 1: told of by another before the signal was seen; -15: it came when all was written
    assert {run.returncode for run in runs} <= {1, 143, -signal.SIGTERM if late else 1}
    result = failed(tmp_path)
    assert "terminated" in result["failure"]
    assert [len(epoch["ranks"]) for epoch in result["epochs"][:2]] == [2, 2]


def test_the_reason_and_what_is_kept_are_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("stoker_bench.run.await_ranks", lambda _, server: server.fail("rank 0: it has failed."))
    with pytest.raises(RankFailedError, match="it has failed; what was measured until then is in"):
        bench(tmp_path / "out", "reader.loader=synthetic", url=str(tmp_path), ranks=1, stages=("train",))
    out = StringIO()
    show_result(Console(file=out, width=200), json.loads((tmp_path / "out" / "results.json").read_text()))
    assert "1 ranks" not in out.getvalue()


def test_sigterm_does_not_disturb_what_is_being_saved() -> None:
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        pytest.skip("the tests' runner handles SIGTERM itself")
    with sigterm_interrupts(), pytest.raises(TerminatedError):
        signal.raise_signal(signal.SIGTERM)
    with sigterm_interrupts():
        ignore_sigterm()
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    ignore_sigterm()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_an_interrupt_while_a_thread_is_started_stays_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ended in its place: an error that a thread which does not run yet can not be waited for."""

    def start(_: threading.Thread) -> None:
        raise TerminatedError

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(TerminatedError), contextlib.closing(StorageSeries(RequestCounts(), None)) as series:
        series.start()
    with pytest.raises(TerminatedError), contextlib.closing(Threads(1, "test")) as threads:
        threads.submit(list)


SAVED = {"writes": 1000, "keep": 2}
CHECKPOINTS = {"model": {"size_bytes": 6_000_000}, "stages": ["checkpoint"]}


@pytest.mark.processes
@pytest.mark.s3
def test_what_a_killed_rank_0_had_begun_to_save_is_removed(bucket: Bucket, tmp_path: Path) -> None:
    """As objects; of files see the tests of checkpoints."""
    url, options = f"{bucket.url}/c", dict(bucket.storage_options)
    settings = {**CHECKPOINTS, "checkpoint": {**SAVED, "url": url, "options": options}}
    store = open_store(url, options)
    run = start(tmp_path, settings, "--accelerators", "2")
    while True:  # in the middle of one
        wait_for(lambda: manifests.find(store), run)
        if manifests.unfinished(store):
            break
    os.kill(pid_of(tmp_path, 0), signal.SIGKILL)
    said = run.communicate(timeout=PATIENCE)[1]
    assert run.returncode == 1
    assert "Traceback" not in said
    failed(tmp_path)
    assert manifests.find(store)
    assert manifests.unfinished(store) == []


@pytest.mark.processes
def test_what_another_run_has_left_is_reported_by_the_next_and_stays(tmp_path: Path) -> None:
    """It may be just being saved."""
    settings = {**CHECKPOINTS, "checkpoint": SAVED}
    arguments = ("--data", str(tmp_path / "d"), "--accelerators", "1")
    run = start(tmp_path, settings, *arguments, TMPDIR=str(tmp_path))
    store = open_store(tmp_path / "d" / "checkpoints")
    while True:
        wait_for(lambda: (tmp_path / "r" / "rank00000.json").exists(), run)
        os.killpg(run.pid, signal.SIGSTOP)
        wait_for(lambda: is_stopped(run.pid) and is_stopped(pid_of(tmp_path, 0)), run)
        if manifests.unfinished(store):
            break
        os.killpg(run.pid, signal.SIGCONT)
        time.sleep(0.003)
    os.killpg(run.pid, signal.SIGKILL)  # all at once, as a host does that loses its power
    run.communicate(timeout=PATIENCE)
    left = manifests.unfinished(store)
    chosen = ["model.size_bytes=100", "checkpoint.writes=1"]
    result = bench(tmp_path / "next", *chosen, url=str(tmp_path / "d"), ranks=1, stages=("checkpoint",))
    said = next(one["reason"] for one in result["findings"] if one["rule"] == "leftovers")
    assert left[0].folder in said
    assert bytes_text(sum(one.bytes for one in left)) in said
    assert manifests.unfinished(store) == left
