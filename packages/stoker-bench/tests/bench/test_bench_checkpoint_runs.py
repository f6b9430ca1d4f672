"""Checkpoints in whole runs: real files and objects, disks that fill up, and ranks that are killed.

Ranks that are killed are processes, others are threads of this one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from bench_example import reasons
from bench_faults import small_disk, wait_for
from bench_threads import ranks_as_threads, run_in_threads
from bench_time import BenchTime

from patience import PATIENCE
from s3server import Bucket
from stoker.cli import main
from stoker.cluster import World
from stoker.errors import ConfigError, StorageFullError
from stoker.storage import Store, is_local, open_store
from stoker_bench.checkpoint import manifest as manifests
from stoker_bench.checkpoint.content import CheckpointContent
from stoker_bench.checkpoint.layout import checkpoint_layout
from stoker_bench.checkpoint.manifest import Manifest
from stoker_bench.checkpoint.saver import Saver
from stoker_bench.checkpoint.transfer import Mover, Moving
from stoker_bench.ranks.control.client import Link, RankFailedError
from stoker_bench.ranks.control.server import Server
from stoker_bench.ranks.plan import RunPlan
from stoker_bench.ranks.rank_context import RankContext
from stoker_bench.results.results import schema
from stoker_bench.settings.sources import read_workload
from stoker_bench.settings.workload import Stage

SMALL_8B = (
    "model.layers=4",
    "model.hidden_size=128",
    "model.ffn_hidden_size=448",
    "model.vocab_size=4008",
    "model.attention_heads=8",
    "model.kv_heads=2",
    "model.zero_stage=3",
    "model.type=transformer",
)
"""The layout of llama 8b, 1/32 as wide."""


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.chdir(os.environ.get("TMPDIR", "/tmp"))


def bench(
    results: Path,
    *arguments: str,
    url: str | None = None,
    ranks: int = 2,
    stages: tuple[Stage, ...] = ("checkpoint",),
) -> dict[str, Any]:
    resolved = read_workload(None, [*SMALL_8B, *arguments], environ={}, dotenv=None)
    result = run_in_threads(resolved, results=results, url=url, accelerators=ranks, stages=stages)
    jsonschema.validate(result, schema())
    assert json.loads((results / "results.json").read_text()) == json.loads(json.dumps(result))
    return result


def whole(store: Store) -> list[Manifest]:
    """The checkpoints that count, each of which is compared to what was to be saved, byte by byte."""
    found = []
    moving = Mover(store, threads=1, direct=False, fsync=False, verify=True, check=lambda: None)
    for folder in manifests.find(store):
        made = manifests.read(store, folder)
        for file in made.files:
            content = CheckpointContent(made.seed, made.number, made.whole, file.rank)
            moving.load(Moving(f"{folder}/{file.name}", file.bytes, content, file.first_block))
        there = {one.key.rpartition("/")[2]: one.size for one in store.list(folder)}
        there.pop(manifests.NAME)
        assert there == {file.name: file.bytes for file in made.files}
        found.append(made)
    return found


def test_two_ranks_save_and_load_the_formula_s_bytes(tmp_path: Path) -> None:
    place = tmp_path / "data" / "checkpoints"
    chosen = ("checkpoint.writes=3", "checkpoint.reads=2", "checkpoint.keep=2", "checkpoint.shift=1")
    result = bench(tmp_path / "r", *chosen, "checkpoint.verify=true", url=str(tmp_path / "data"))
    model = read_workload(None, SMALL_8B, environ={}, dotenv=None).workload.model
    layout = checkpoint_layout(model, 2)
    found = result["checkpoint"]
    assert found["layout"]["bytes"] == layout.total() == found["layout"]["whole_bytes"]
    assert [one["bytes"] for one in (*found["saves"], *found["loads"])] == [layout.total()] * 5
    assert [one["number"] for one in found["saves"]] == [0, 1, 2]
    assert [one["number"] for one in found["loads"]] == [1, 2]  # the oldest was not kept
    assert [[rank["source_rank"] for rank in one["ranks"]] for one in found["loads"]] == [[1, 0]] * 2
    kept = whole(open_store(place))
    assert [one.number for one in kept] == [1, 2]
    assert sum(path.stat().st_size for path in place.rglob("*.bin")) == 2 * layout.total()
    for rank, files in enumerate(layout.files):
        assert [(file.name, file.bytes) for file in kept[0].of_rank(rank)] == [
            (f"{f.name}.bin", f.bytes) for f in files
        ]
    for save in found["saves"]:
        assert save["complete"]
        assert save["seconds"] == max(rank["seconds"] for rank in save["ranks"])
        assert save["bytes_per_second"] == pytest.approx(save["bytes"] / save["seconds"])
        assert 0 < save["fsync_seconds"] < save["seconds"]
        assert save["commit_seconds"] > 0
    assert found["save"]["count"] == 3
    assert "verification" in reasons(result, invalid=False)
    assert not set(reasons(result, invalid=True)) - {"page cache", "checkpoint storage"}
    summary = json.loads((tmp_path / "r" / "summary.json").read_text())["metric"]
    assert summary["checkpoint_size_GB"] == layout.total() / 2**30
    assert summary["save_checkpoint_duration_mean_seconds"] == found["save"]["seconds"]["mean"]
    assert summary["load_checkpoint_io_mean_GB_per_second"] > 0


@pytest.mark.s3
def test_objects_are_saved_in_one_run_and_loaded_in_another(bucket: Bucket, tmp_path: Path) -> None:
    """As MLPerf Storage does it: writes, then caches are cleared, then reads."""
    options = json.dumps(dict(bucket.storage_options))
    where = (f"checkpoint.url={bucket.url}/ckpt", f"checkpoint.options={options}")
    place = (*where, "model.size_bytes=9000000", "model.layers=0", "model.type=none")  # more than a part of 8 MiB
    first = bench(tmp_path / "a", *place, "checkpoint.writes=2", "checkpoint.ranks=zero")
    assert [one["complete"] for one in first["checkpoint"]["saves"]] == [True, True]
    assert [rank["bytes"] for rank in first["checkpoint"]["saves"][0]["ranks"]] == [9_000_000, 0]
    store = open_store(f"{bucket.url}/ckpt", bucket.storage_options)
    assert [one.number for one in whole(store)] == [0, 1]
    second = bench(tmp_path / "b", *place, "checkpoint.reads=1", "checkpoint.verify=true")
    assert [one["number"] for one in second["checkpoint"]["loads"]] == [1]  # the latest
    assert second["checkpoint"]["load"]["bytes_per_second"]["mean"] > 0
    assert "no fsync apart" in reasons(first, invalid=False)["fsync"]
    assert bucket.storage_options["secret_access_key"] not in (tmp_path / "b" / "results.json").read_text()
    with pytest.raises(RankFailedError, match=r"has 2 whole checkpoints, checkpoint\.reads asks for 3"):
        bench(tmp_path / "c", *place, "checkpoint.reads=3")
    with pytest.raises(RankFailedError, match="was saved by 2 ranks: start as many to load it, not 1"):
        bench(tmp_path / "d", *place, "checkpoint.reads=1", ranks=1)


@pytest.mark.s3
def test_a_bucket_that_is_not_there_is_reported_with_its_name(bucket: Bucket, tmp_path: Path) -> None:
    options = json.dumps(dict(bucket.storage_options))
    with pytest.raises(RankFailedError, match=r"rank \d .*s3://no-such-bucket-of-ours.* what was measured"):
        bench(
            tmp_path / "r",
            "checkpoint.url=s3://no-such-bucket-of-ours/x",
            f"checkpoint.options={options}",
            "checkpoint.writes=1",
        )
    result = json.loads((tmp_path / "r" / "results.json").read_text())
    jsonschema.validate(result, schema())
    assert not result["valid"]
    assert result["checkpoint"]["saves"][0]["complete"] is False
    assert all(rank["error"] for rank in result["ranks"])


TRAIN = (
    "compute.seconds=0.001",
    "dataset.files=4",
    "dataset.samples_per_file=10",
    "reader.batch_size=2",
    "reader.loader=synthetic",
    "metric.exclude_start=0",
)


def test_checkpoints_in_training_are_apart_from_its_stalls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of the steps is data, that of the checkpoints is real."""
    BenchTime(late=(0, 300_000)).replace(monkeypatch.setattr)
    chosen = ("checkpoint.every_steps=5", f"checkpoint.url={tmp_path / 'c'}", "train.epochs=2", "checkpoint.keep=1")
    result = bench(tmp_path / "r", *TRAIN, *chosen, stages=("train", "checkpoint"))
    saves = [(one["epoch"], one["step"], one["place"]) for one in result["checkpoint"]["saves"]]
    assert saves == [(0, 5, "train"), (0, 10, "train"), (1, 5, "train"), (1, 10, "train")]
    for epoch in result["epochs"]:
        assert epoch["steps"] == [10, 10]
        with_ = epoch["with_checkpoints"]
        assert sum(with_.values()) == pytest.approx(1, abs=1e-3)
        assert 0 < with_["au"] < epoch["au"]
        assert epoch["au"] + epoch["stall_part"] + epoch["barrier_part"] + epoch["overhead_part"] == pytest.approx(
            1, abs=1e-3
        )
        slowest = [one["seconds"] for one in result["checkpoint"]["saves"] if one["epoch"] == epoch["epoch"]]
        assert epoch["checkpoint_seconds"] >= sum(slowest) * 0.99
        for rank in epoch["ranks"]:
            assert [block["steps"] for block in rank["blocks"]] == [5, 5]
    assert [one.number for one in whole(open_store(tmp_path / "c"))] == [3]


DLIO = """
model: {name: tiny, type: cnn, model_size_bytes: 300001}
framework: pytorch
workflow: {train: True, checkpoint: True}
dataset: {data_folder: data/, format: synthetic, num_files_train: 8, num_samples_per_file: 1}
reader: {batch_size: 1}
train: {epochs: 4, computation_time: 0.001}
checkpoint: {checkpoint_folder: CKPT, checkpoint_after_epoch: 2, epochs_between_checkpoints: 2, fsync: True, type: all_ranks}
"""


def test_a_file_of_dlio_s_saves_when_and_what_dlio_does(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w.yaml").write_text(DLIO.replace("CKPT", str(tmp_path / "c")))
    arguments = ["bench", "run", str(tmp_path / "w.yaml"), "--results", str(tmp_path / "r"), "--accelerators", "2"]
    with ranks_as_threads():
        assert main([*arguments]) == 3  # a synthetic run is none
    told = capfd.readouterr()
    result = json.loads((tmp_path / "r" / "results.json").read_text())
    found = result["checkpoint"]
    assert [(one["epoch"], one["step"]) for one in found["saves"]] == [(1, 4), (3, 4)]
    assert [[rank["bytes"] for rank in one["ranks"]] for one in found["saves"]] == [[300_001, 0]] * 2
    assert "checkpoint.type: DLIO ignores it" in told.err
    assert "saved" in told.out


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for one checkpoint and no second one."""
    with small_disk(tmp_path / "small") as place:
        yield place


@pytest.mark.processes
def test_a_disk_that_fills_up_leaves_what_was_whole_and_nothing_else(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if another program had filled it since.
    monkeypatch.setattr("stoker_bench.preflight.check_checkpoint_space", lambda *_: None)
    chosen = ("checkpoint.every_steps=2", f"checkpoint.url={small}", "model.layers=0", "model.type=none")
    with pytest.raises(RankFailedError, match=r"rank \d .*: No space left on device\. Free some space"):
        bench(tmp_path / "r", *TRAIN, *chosen, "model.size_bytes=2000000", stages=("train", "checkpoint"))
    result = json.loads((tmp_path / "r" / "results.json").read_text())
    jsonschema.validate(result, schema())
    assert not result["valid"]
    assert [one["complete"] for one in result["checkpoint"]["saves"]] == [True, False]
    assert result["checkpoint"]["save"]["count"] == 1
    assert [one.number for one in whole(open_store(small))] == [0]
    assert len(list(small.iterdir())) == 1
    assert [rank["error"] for rank in result["ranks"] if "No space left" not in (rank["error"] or "")] == []


@pytest.mark.processes
def test_too_little_space_is_reported_before_anything_is_written(small: Path, tmp_path: Path) -> None:
    chosen = (f"checkpoint.url={small}", "checkpoint.writes=2", "model.layers=0", "model.type=none")
    with pytest.raises(StorageFullError, match=r"2 checkpoints of this host's ranks need 4 MB, 3\.\d+ MB are free"):
        bench(tmp_path / "r", *chosen, "model.size_bytes=2000000")
    assert not (tmp_path / "r").exists()
    assert not list(small.iterdir())


@pytest.mark.processes
def test_storage_in_memory_and_no_fsync_make_a_run_invalid(small: Path, tmp_path: Path) -> None:
    chosen = (f"checkpoint.url={small}", "checkpoint.writes=1", "model.layers=0", "model.type=none")
    result = bench(tmp_path / "r", *chosen, "model.size_bytes=100", "checkpoint.fsync=false")
    broken = reasons(result, invalid=True)
    assert "is in memory (tmpfs)" in broken["checkpoint storage"]
    assert "checkpoint.fsync is false" in broken["fsync"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("kind", "rank"), [("files", 1), ("files", 0), pytest.param("objects", 1, marks=pytest.mark.s3)]
)
def test_a_rank_that_is_killed_leaves_no_half_checkpoint_that_counts(
    kind: str, rank: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    options: dict[str, str] = {}
    url = str(tmp_path / "c")
    if kind == "objects":
        bucket = request.getfixturevalue("bucket")
        url, options = f"{bucket.url}/c", dict(bucket.storage_options)
    arguments = [*SMALL_8B, "checkpoint.writes=100000", "checkpoint.keep=2", f"checkpoint.url={url}"]
    (tmp_path / "w.yaml").write_text(json.dumps({"checkpoint": {"options": options}}))
    command = [sys.executable, "-m", "stoker", "bench", "run", str(tmp_path / "w.yaml"), *arguments]
    command += ["--results", str(tmp_path / "r"), "--accelerators", "2", "--stages", "checkpoint"]
    record = tmp_path / "r" / f"rank{rank:05d}.json"
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run:

        def saved() -> int:
            if not record.exists():
                return 0
            return sum(one["complete"] for one in json.loads(record.read_text())["checkpoints"])

        wait_for(lambda: saved() >= 3, run)
        os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)
        said = run.communicate(timeout=PATIENCE)[1]
    assert run.returncode == 1
    assert f"rank {rank}" in said
    assert "killed" in said
    assert "Traceback" not in said
    result = json.loads((tmp_path / "r" / "results.json").read_text())
    jsonschema.validate(result, schema())
    assert not result["valid"]
    assert not result["complete"]
    done = [one["number"] for one in result["checkpoint"]["saves"] if one["complete"]]
    assert len(done) >= 3
    left = whole(open_store(url, options or None))
    # One may count that the rank did not live to write down.
    assert 1 <= len(left) <= 3
    assert left[0].number >= done[-1] - 2  # two are kept, and an older one until it is removed
    if is_local(url):
        folders = {path.name for path in Path(url).iterdir()}
        assert folders == {manifests.checkpoint_folder(one.run, one.number) for one in left}


def test_a_checkpoint_that_comes_from_the_page_cache_is_noticed(tmp_path: Path) -> None:
    chosen = ("checkpoint.writes=1", "checkpoint.reads=1", "storage.cache=keep")
    result = bench(tmp_path / "r", *chosen, url=str(tmp_path), ranks=1)
    broken = reasons(result, invalid=True)
    assert not result["valid"]
    if not result["checkpoint"]["storage"]["in_memory"]:
        assert "% of checkpoint 0 did not come from the device" in broken["page cache"]


@pytest.mark.processes
def test_what_may_count_is_not_taken_apart_by_a_rank_that_hears_of_a_failure(tmp_path: Path) -> None:
    """Between the last rank's word and its own, rank 0 may have written the manifest."""
    chosen = [*SMALL_8B, f"checkpoint.url={tmp_path / 'c'}"]
    plan = RunPlan(read_workload(None, chosen, environ={}, dotenv=None).workload, "memory://x", str(tmp_path), "0" * 16)
    server = Server(2, "token", "digest", join_seconds=PATIENCE)
    links = [
        Link(lambda: ("127.0.0.1", server.port, "token"), rank, "digest", join_seconds=PATIENCE) for rank in range(2)
    ]
    record: dict[str, Any] = {"checkpoints": []}
    told: list[str] = []

    def save() -> None:
        try:
            Saver(RankContext(plan, World(1, 2, 2), links[1], record, lambda: None)).save({"place": "stage"})
        except RankFailedError as error:
            told.append(str(error))

    saving = threading.Thread(target=save, daemon=True)
    saving.start()
    links[0].barrier("save")
    links[0].barrier("saved")
    links[0].fail("struck by lightning")
    saving.join(PATIENCE)
    server.close()
    assert "struck by lightning" in told[0]
    assert len(list((tmp_path / "c").rglob("zero_pp_rank_1_*"))) == 2
    assert record["checkpoints"][0]["complete"] is False
    assert record["checkpoints"][0]["seconds"] > 0


@pytest.mark.processes
def test_ranks_of_different_numbers_of_steps_do_not_wait_for_ever() -> None:
    """One saves after its step 10, the other one has only 9: they would wait in different places."""
    server = Server(2, "token", "digest", join_seconds=PATIENCE)
    links = [
        Link(lambda: ("127.0.0.1", server.port, "token"), rank, "digest", join_seconds=PATIENCE) for rank in range(2)
    ]
    told: list[str] = []

    def wait(link: Link, name: str) -> None:
        try:
            link.gather(name)
        except RankFailedError as error:
            told.append(str(error))

    threads = [
        threading.Thread(target=wait, args=[link, name], daemon=True)
        for link, name in zip(links, ("save", "epoch ended"), strict=True)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join(PATIENCE)
    server.close()
    assert len(told) == 2
    assert all("different numbers of steps. Set train.steps" in one for one in told)


def test_what_makes_no_sense_is_reported_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.url is not set"):
        bench(tmp_path / "r", "checkpoint.writes=1")
    with pytest.raises(ConfigError, match=r"checkpoint\.writes or checkpoint\.reads say how many"):
        bench(tmp_path / "r", url=str(tmp_path))
    with pytest.raises(ConfigError, match=r"3 ranks: no multiple of model\.tensor x model\.pipeline = 2"):
        bench(tmp_path / "r", "model.tensor=2", "checkpoint.writes=1", url=str(tmp_path), ranks=3)
    assert not (tmp_path / "r").exists()


def test_ranks_of_a_host_stand_for_a_part_of_many(tmp_path: Path) -> None:
    chosen = ("model.zero_stage=1", "model.tensor=2", "model.data=8", "checkpoint.writes=1")
    result = bench(tmp_path / "r", *chosen, url=str(tmp_path))
    layout = result["checkpoint"]["layout"]
    assert (layout["ranks"], layout["whole_ranks"]) == (2, 16)
    assert layout["bytes"] == result["checkpoint"]["saves"][0]["bytes"] < layout["whole_bytes"]
    assert "2 of 16 ranks" in reasons(result, invalid=False)["subset"]
