"""Promise: runs are laid out as ``mlpstorage`` and DLIO leave theirs, whole or with an error."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bench_mlperf import enlarge, small_checkpoints, small_training

from stoker.bench.mlperf.leaf import lay_out
from stoker.bench.results import report_files
from stoker.errors import ConfigError, StorageFullError

RULES = "metric.rules=mlperf-v2"
TRAINED = ("dataset.files=7000", "train.repeats=6", RULES)


@pytest.fixture(scope="module", autouse=True)
def _made_up() -> Iterator[None]:
    """Results that these tests make of a small run's would be told as changed after it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(report_files, "as_measured", lambda result, _: result)
        yield


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    small_training(folder / "train")
    enlarge(folder / "train", *TRAINED, published="unet3d-h100")
    small_checkpoints(folder / "saved")
    enlarge(folder / "saved", RULES, published="llama-8b-checkpoint")
    return folder


def _read(folder: Path, name: str) -> Any:
    return json.loads(next(folder.glob(name)).read_text())


def test_each_run_has_the_files_of_dlio_and_mlpstorage(results: Path, tmp_path: Path) -> None:
    written = lay_out([results], tmp_path / "out")
    kinds = [str(one.relative_to(tmp_path / "out").parent) for one in written]
    assert sorted(kinds) == ["checkpointing/llama3-8b", "training/unet3d/datagen", *["training/unet3d/run"] * 6]
    run = next(one for one in written if one.parent.name == "run")
    summary = _read(run, "summary.json")
    assert summary["metric"]["train_au_mean_percentage"] == pytest.approx(95)
    assert summary["num_files_train"] == 7000
    assert len(_read(run, "1_output.json")["1"]["load"]["block1"]) > 0
    metadata = _read(run, f"training_{run.name}_metadata.json")
    assert (metadata["model"], metadata["verification"], metadata["args"]["num_accelerators"]) == (
        "unet3d",
        "closed",
        2,
    )
    saved = next(one for one in written if "checkpointing" in one.parts)
    assert {"save_ckpt10", "load_ckpt10"} <= _read(saved, "7_per_epoch_stats.json")["1"].keys()


def test_the_third_edition_has_the_sizes_of_the_data_too(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results / "train", tmp_path / "train")
    settings = ("dataset.files=24000", "train.repeats=6", "metric.rules=mlperf")
    enlarge(tmp_path / "train", *settings, published="retinanet-b200")
    written = lay_out([tmp_path / "train"], tmp_path / "out")
    (sizes,) = [one for one in written if one.parent.name == "datasize"]
    assert _read(sizes, "*_metadata.json")["parameters"]["dataset"]["total_disk_bytes"] > 0


def test_what_has_no_such_files_is_refused(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results / "train", tmp_path / "train")
    enlarge(tmp_path / "train", *TRAINED[:2], published="unet3d-h100")
    with pytest.raises(ConfigError, match="'stoker' names no rules of MLPerf Storage"):
        lay_out([tmp_path / "train"], tmp_path / "out")


def test_a_run_that_is_there_is_not_written_over(results: Path, tmp_path: Path) -> None:
    lay_out([results], tmp_path / "out")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="is there already"):
        lay_out([results], tmp_path / "out")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_is_an_error_that_says_so(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: Any, **__: Any) -> int:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(StorageFullError, match="Free some space"):
        lay_out([results], tmp_path / "out")
