"""A workload before it is run: DLIO's keys as arguments, what is said of them, the extent of the run, a smoke test of it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from bench_faults import small_disk

from stoker.cli import main
from stoker.errors import ConfigError, StorageFullError
from stoker_bench.measure.generation import check_space
from stoker_bench.results.report_files import read_run
from stoker_bench.results.verdict import verdict
from stoker_bench.settings.extent import SMOKE_BYTES, SMOKE_SECONDS, extent, scaled
from stoker_bench.settings.sources import Resolved, read_workload, shipped
from stoker_bench.settings.workload import Workload

DLIO = """
framework: pytorch
workflow: {generate_data: False, train: True}
dataset: {format: npz, num_files_train: 16.0, record_length_bytes: 4096.7, record_length_bytes_stdev: 12.5, chunk_size: 3}
reader: {batch_size: 1.0, read_threads: 2.0, prefetch_size: 4.0, data_loader: pytorch}
train: {epochs: 5., computation_time: 0.5, total_training_steps: 8.0}
output: {folder: x}
foo: {bar: 1}
"""


def read(tmp_path: Path, *arguments: str) -> Resolved:
    (tmp_path / "dlio.yaml").write_text(DLIO)
    return read_workload(tmp_path / "dlio.yaml", arguments, environ={}, dotenv=None)


def test_whole_numbers_may_be_written_as_floats(tmp_path: Path) -> None:
    got = read(tmp_path).workload
    assert (got.dataset.files, got.dataset.record_bytes, got.dataset.record_bytes_stdev) == (16, 4096, 12)
    assert (got.reader.batch_size, got.reader.threads, got.reader.prefetch) == (1, 2, 4)
    assert (got.train.epochs, got.train.steps) == (5, 8)
    assert isinstance(got.train.epochs, int)
    with pytest.raises(ConfigError, match=r"train\.epochs must be a whole number, got 1\.5"):
        read(tmp_path, "train.epochs=1.5")


@pytest.mark.parametrize("source", ["dlio.yaml", "unet3d-h100"])
def test_dlio_s_keys_are_arguments_as_they_are(source: str, tmp_path: Path) -> None:
    (tmp_path / "dlio.yaml").write_text(DLIO)
    name = str(tmp_path / source) if source.endswith("yaml") else source
    arguments = ("dataset.num_files_train=8", "reader.read_threads=3", "workflow.generate_data=True", "train.epochs=2")
    found = read_workload(name, arguments, environ={}, dotenv=None)
    got = found.workload
    assert (got.dataset.files, got.reader.threads, got.train.epochs) == (8, 3, 2)
    assert got.stages == ("generate", "train")
    assert found.origins["dataset.files"] == "the argument dataset.num_files_train=8"
    assert found.origins["stages"] == "the argument workflow.generate_data=True"


def test_what_changes_the_result_is_told_apart_from_what_is_ignored(tmp_path: Path) -> None:
    notes = read(tmp_path).notes
    assert any("dataset.chunk_size" in one for one in notes.changes)
    assert any("reader.data_loader" in one for one in notes.changes)
    for name in ("framework", "output.folder", "foo.bar"):
        assert any(name in one for one in notes.ignored)
        assert not any(name in one for one in notes.changes)
    assert read_workload("unet3d-h100", ["train.computation_time=1"], environ={}, dotenv=None).notes == ((), ())


def test_show_says_the_settings_their_origins_and_the_extent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read(tmp_path)
    name = str(tmp_path / "dlio.yaml")
    assert main(["bench", "show", name, "--accelerators", "2", "--param", "reader.batch_size=2", "--json"]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert shown["settings"]["reader.batch_size"] == {"value": 2, "origin": "the argument reader.batch_size=2"}
    assert shown["settings"]["train.epochs"]["origin"] == f"{name}, line 6"
    assert shown["extent"] == {
        "files": 16,
        "samples": 16,
        "bytes": 16 * 4096,
        "steps": 4,
        "read_bytes": 4 * 2 * 2 * 5 * 4096,
        "seconds": 10.0,
    }
    assert main(["bench", "show", name]) == 0
    out, said = capsys.readouterr()
    assert "8 steps an epoch, 5 epochs" in out
    assert said.startswith("changes the result:\n")
    assert "\nignored:\n" in said


def test_show_says_that_no_step_is_left_and_writes_values_as_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "show", "unet3d-h100", "reader.batch_size=1000", "reader.checksums=true"]) == 1
    out, said = capsys.readouterr()
    words = " ".join(out.split())
    assert "0 steps an epoch" in words
    assert "reader.checksums true the argument" in words
    assert "no step: 168 samples make no batch of 1000 (reader.batch_size) for each of 1 accelerator" in said


@pytest.mark.parametrize("kind", ["run", "size"])
def test_results_without_a_name_are_not_those_of_the_current_directory(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of ``--results "$OUT"`` where the variable is not set."""
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(SystemExit):
        main(["bench", kind, "unet3d-h100", "--data", "d", "--results", ""])
    assert "--results: is empty" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_show_hides_credentials_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    storage = 'storage.options={"endpoint": "http://s3", "secret_access_key": "word"}'
    assert main(["bench", "show", "unet3d-h100", storage, 'reader.options={"cache": "memory"}', "--json"]) == 0
    out = capsys.readouterr().out
    shown = json.loads(out)["settings"]
    assert shown["storage.options"]["value"] == {"endpoint": "http://s3", "secret_access_key": "(not recorded)"}
    assert shown["reader.options"]["value"] == {"cache": "memory"}
    assert "word" not in out


def test_show_has_endpoints_requests_client_and_binding_with_their_origins(capsys: pytest.CaptureFixture[str]) -> None:
    given = {
        "storage.client": "minio",
        "storage.endpoints": ["http://a:1", "http://b:1"],
        "storage.part_bytes": 16 << 20,
        "storage.part_requests": 8,
        "storage.attempts": 3,
        "reader.bind": "numa",
    }
    assert main(["bench", "show", "unet3d-h100", *(f"{name}={value}" for name, value in given.items()), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["settings"]
    for name, value in given.items():
        assert shown[name] == {"value": value, "origin": f"the argument {name}={value}"}


@pytest.mark.parametrize("name", sorted(shipped()))
def test_a_smoke_test_of_each_workload_is_small(name: str) -> None:
    whole = read_workload(name, environ={}, dotenv=None).workload
    if "kv_cache" in whole.stages:
        pytest.skip("has no data set, and no epochs")
    small = {key: str(value) for key, value in scaled(whole, 0.01, 1, smoke=True).items()}
    got = read_workload(name, [f"{key}={value}" for key, value in small.items()], environ={}, dotenv=None).workload
    assert got.metric.smoke
    found = extent(got, 1)
    one_file = got.dataset.samples_per_file * got.dataset.sample_bytes
    least = 4 * got.reader.batch_size * got.dataset.sample_bytes
    assert found.bytes <= max(SMOKE_BYTES, least + one_file)
    assert found.seconds <= max(SMOKE_SECONDS, 4 * got.compute.seconds.expected)
    if "train" in got.stages:
        assert found.steps >= 4
    assert got.checkpoint.writes <= 1


def test_a_scale_is_of_the_files_and_arguments_hold_over_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "show", "retinanet-b200", "--scale", "10%", "train.epochs=3", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["settings"]
    assert (shown["dataset.files"]["value"], shown["train.epochs"]["value"]) == (117030, 3)


@pytest.mark.processes
def test_a_smoke_test_is_called_so_and_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["dataset.files=40", "compute.seconds=0.001", "reader.threads=1", "stages=[generate, train]"]
    command = ["bench", "run", "unet3d-h100", "--smoke", "--loader", "synthetic", "--results", str(tmp_path / "r")]
    code = main(
        [*command, "--data", str(tmp_path / "d"), "dataset.record_bytes=4096", "dataset.record_bytes_stdev=0", *chosen]
    )
    result = json.loads((tmp_path / "r" / "results.json").read_text())
    assert not result["valid"]  # the loader reads nothing
    assert (result["verdict"], result["passed"], code) == ("smoke test", False, 0)
    said = capsys.readouterr()
    assert "It is not a valid result" in " ".join(said.out.split())
    assert "invalid: " not in said.out + said.err
    assert read_run(tmp_path / "r")["verdict"] == "smoke test"
    result["findings"].append({"rule": "complete", "invalid": True, "reason": "a rank failed"})
    assert verdict(result, read_workload(None, ["metric.smoke=true"], environ={}, dotenv=None).workload) == "invalid"


@pytest.mark.processes
def test_room_is_looked_at_before_the_first_file_is_made(tmp_path: Path) -> None:
    def made(files: int) -> Workload:
        settings = ["dataset.files=" + str(files), "dataset.record_bytes=1000000"]
        return read_workload(None, settings, environ={}, dotenv=None).workload

    with small_disk(tmp_path / "small", "3m") as place:
        check_space(made(2), str(place / "d"))
        with pytest.raises(
            StorageFullError, match=r"the data set has 4 MB, of which 0 B are there, and 3\.\d* MB are free"
        ):
            check_space(made(4), str(place / "d"))
        (place / "d" / "train").mkdir(parents=True)
        (place / "d" / "train" / "there").write_bytes(bytes(2_000_000))
        check_space(made(3), str(place / "d"))
        (place / "d" / "train").rename(place / "d" / "checkpoints")
        with pytest.raises(StorageFullError, match="of which 0 B are there"):
            check_space(made(3), str(place / "d"))


def test_a_workload_may_be_like_another(tmp_path: Path) -> None:
    ours = read_workload("dlrm-mi355", environ={}, dotenv=None)
    theirs = read_workload("dlrm-b200", environ={}, dotenv=None)
    assert ours.workload.dataset == theirs.workload.dataset
    assert ours.workload.compute.seconds.mean == 0.0005625
    assert ours.origins["compute.seconds"] == "dlrm-mi355.yaml, line 5"
    assert ours.origins["metric.au"].startswith("dlrm-b200.yaml")
    (tmp_path / "w.yaml").write_text("like: nothing\n")
    with pytest.raises(ConfigError, match=r"line 1: like names a shipped workload, one of bert-v100, .*got 'nothing'"):
        read_workload(tmp_path / "w.yaml", environ={}, dotenv=None)


@pytest.mark.parametrize(
    ("name", "batch", "seconds", "files", "sample"),
    [
        ("retinanet-b200", 24, 0.04755, 1170301, 322957),
        ("retinanet-mi355", 32, 0.0634, 1170301, 322957),
        ("flux-b200", 48, 1.35, 4296, 2164832),
        ("flux-mi355", 72, 2.025, 4296, 2164832),
        ("dlrm-b200", 16384, 0.000375, 1024, 761),
        ("dlrm-mi355", 16384, 0.0005625, 1024, 761),
        ("unet3d-b200", 7, 0.162, 7200, 146600628),
    ],
)
def test_the_workloads_of_mlperf_storage_3_have_its_values(
    name: str, batch: int, seconds: float, files: int, sample: int
) -> None:
    got = read_workload(name, environ={}, dotenv=None).workload
    assert (got.reader.batch_size, got.compute.seconds.mean) == (batch, seconds)
    assert (got.dataset.files, got.dataset.sample_bytes) == (files, sample)
