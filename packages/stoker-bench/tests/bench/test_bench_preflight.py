"""Settings with which nothing could be measured are errors before anything is generated, read or started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_faults import small_disk
from bench_threads import ranks_as_threads, run_in_threads

from stoker.cli import main
from stoker.errors import ConfigError, StokerError, StorageFullError
from stoker_bench.preflight import check_settings, foreseen
from stoker_bench.run import run_benchmark
from stoker_bench.settings.extent import epoch_steps, scaled, training_checkpoints
from stoker_bench.settings.sources import read_workload, shipped
from stoker_bench.settings.workload import Workload

MODEL = ("model.size_bytes=1000", "model.type=none")


def made(*given: str) -> Workload:
    """8 files of a sample each, unless it says otherwise."""
    return read_workload(None, given, environ={}, dotenv=None).workload


REFUSED = (
    (
        ("metric.exclude_start=8",),
        r"an epoch has 8 steps, of 8 samples in batches of 1 for 1 accelerator, and 8 do not count \(metric.exclude_start 8",
    ),
    (
        ("metric.exclude_start=4", "metric.exclude_end=5"),
        r"has 8 steps, .* 9 do not count .*start 4 \+ metric.exclude_end 5",
    ),
    (("train.steps=3", "metric.exclude_start=3"), r"train\.steps 3 leaves no step to measure, and 3 do not count"),
    (("reader.batch_size=9",), r"8 samples make no batch of 9 \(reader.batch_size\) for each of 1 accelerator"),
    (("reader.batch_size=9", "reader.last_batch=keep"), "an epoch has 1 step, .* and 1 do not count"),
    (
        ("stages=[train,checkpoint]", *MODEL, "checkpoint.every_steps=2", "metric.exclude_start=2"),
        r"a block has 2 steps \(checkpoint.every_steps\), and 2 do not count",
    ),
    (
        ("stages=[train,checkpoint]", *MODEL, "checkpoint.every_steps=9"),
        r"no checkpoint is saved: the first comes after 9 steps .*, and an epoch has 8 steps",
    ),
    (
        ("stages=[train,checkpoint]", *MODEL, "checkpoint.after_epoch=5", "train.epochs=4"),
        r"no checkpoint is saved: the first comes after epoch 5 \(checkpoint.after_epoch\), of 4 \(train.epochs\)",
    ),
    (("stages=[checkpoint]", *MODEL), "nothing to do: without training, checkpoint.writes or checkpoint.reads"),
    (("stages=[checkpoint]", "checkpoint.writes=1"), "there is nothing to save"),
    (
        ("stages=[train,evaluate]", "dataset.files_eval=4", "evaluation.after_epoch=3", "train.epochs=2"),
        r"nothing is evaluated: the first evaluation comes after epoch 3 \(evaluation.after_epoch\), of 2",
    ),
    (
        ("stages=[train,evaluate]", "dataset.files_eval=4", "reader.batch_size_eval=5"),
        r"4 samples make no batch of 5 \(reader.batch_size_eval\) for each of 1 accelerator",
    ),
    (
        ("metric.calibrate=true", "metric.calibrate_bytes=100000", "dataset.record_bytes=60000"),
        r"calibrate_bytes 100,000 are 1 file and 1 step, and 1 do not count .*: 2 files need 120,000 bytes",
    ),
    (("dataset.format=xyz",), "'xyz' is unknown; known: "),
    (("stages=[generate]", "dataset.format=xyz"), "'xyz' is unknown"),
    (("stages=[generate]", "dataset.compression=xyz"), "compression"),
    (("reader.loader=syntetic",), "did you mean 'synthetic'"),
    (("reader.loader=webdataset",), r"the loader webdataset reads tar, not 'npz'"),
    (("reader.loader=mosaicml", "dataset.format=mds", "reader.decode=false"), "mosaicml always decodes"),
    (
        ("stages=[kv_cache]", "model.layers=2", "kv_cache.capacity_bytes=1mb"),
        r"tokens of 4,096 bytes, .* the storage may hold 1.05 MB \(kv_cache.capacity_bytes\)",
    ),
)


@pytest.mark.parametrize(("given", "said"), REFUSED)
def test_nothing_is_generated_where_nothing_could_be_measured(
    given: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = made(*given)
    with pytest.raises(StokerError, match=said) as refused:
        check_settings(workload, 1)
    stages = dict.fromkeys(("generate", *workload.stages)) if "train" in workload.stages else workload.stages
    resolved = read_workload(None, given, environ={}, dotenv=None)
    with pytest.raises(StokerError):
        run_benchmark(resolved, results=tmp_path / "r", url=str(tmp_path / "d"), stages=tuple(stages))
    assert not list(tmp_path.iterdir())
    (tmp_path / "w.yaml").write_text("{}\n")
    assert main(["bench", "show", str(tmp_path / "w.yaml"), *given, "--json"]) == 1
    out, error = capsys.readouterr()
    assert json.loads(out)["settings"]
    assert str(refused.value) in error


def test_a_loader_of_directories_refuses_a_url_before_anything_is_generated(tmp_path: Path) -> None:
    pytest.importorskip("webdataset")
    given = ("reader.loader=webdataset", "dataset.format=tar", "dataset.samples_per_file=4")
    with pytest.raises(ConfigError, match="the loader webdataset reads directories here, not s3://b/x"):
        run_benchmark(
            read_workload(None, given, environ={}, dotenv=None),
            results=tmp_path / "r",
            url="s3://b/x",
            stages=("generate", "train"),
        )
    with pytest.raises(ConfigError, match="8 files for 9 ranks: the loader webdataset gives each rank whole files"):
        check_settings(made(*given), 9)


def test_the_stage_vectors_refuses_a_url_before_it_is_trained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the stage vectors searches files of a directory"):
        run_benchmark(
            read_workload(None, ["stages=[vectors]"], environ={}, dotenv=None), results=tmp_path / "r", url="s3://b/x"
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "given",
    [
        ("metric.exclude_start=7",),
        ("reader.batch_size=5", "reader.last_batch=keep", "metric.exclude_start=1"),
        ("stages=[train,checkpoint]", *MODEL, "checkpoint.every_steps=8"),
        ("stages=[train,checkpoint]", *MODEL, "checkpoint.after_epoch=5", "checkpoint.writes=1"),
        ("metric.calibrate=true", "metric.calibrate_bytes=120000", "dataset.record_bytes=60000"),
        ("dataset.format=jsonl",),
        ("stages=[kv_cache]", "model.layers=2", "kv_cache.capacity_bytes=103mb"),
    ],
)
def test_what_just_suffices_is_no_error(given: tuple[str, ...]) -> None:
    check_settings(made(*given), 1)


def test_checkpoints_of_training_are_counted_as_they_are_saved() -> None:
    stages = ("stages=[train,checkpoint]", *MODEL, "train.epochs=5", "train.repeats=2")
    assert training_checkpoints(made(*stages, "checkpoint.every_steps=3"), 1) == 2 * 5 * 2
    assert training_checkpoints(made(*stages, "checkpoint.after_epoch=2", "checkpoint.every_epochs=2"), 1) == 2 * 2
    assert training_checkpoints(made(*stages[1:]), 1) == 0


@pytest.mark.parametrize("name", shipped())
@pytest.mark.parametrize("part", [1.0, 0.01])
def test_each_shipped_workload_can_be_measured_whole_and_scaled(name: str, part: float) -> None:
    resolved = read_workload(name, environ={}, dotenv=None)
    model = resolved.workload.model
    ranks = model.tensor * model.pipeline * (model.data or 1)
    given: dict[str, object] = {}
    if part < 1:
        given = scaled(resolved.workload, part, ranks, smoke=True)
    check_settings(
        read_workload(name, [f"{path}={value}" for path, value in given.items()], environ={}).workload, ranks
    )


def test_a_scaled_run_has_steps_that_count_and_checkpoints_and_evaluations() -> None:
    given = (
        *("stages=[train,evaluate,checkpoint]", *MODEL, "dataset.files=1000", "dataset.files_eval=100"),
        *("reader.batch_size_eval=2", "evaluation.after_epoch=3", "train.epochs=5", "metric.exclude_start=6"),
        "checkpoint.every_steps=500",
    )
    whole = made(*given)
    check_settings(whole, 2)
    small = made(*given, *(f"{path}={value}" for path, value in scaled(whole, 0.01, 2, smoke=True).items()))
    check_settings(small, 2)
    assert epoch_steps(small, 2) == 7
    assert small.dataset.files_eval == 4


def test_what_will_make_a_result_invalid_is_told_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = made("stages=[train,checkpoint]", *MODEL, "checkpoint.writes=1", "checkpoint.fsync=false")
    assert [one.partition(":")[0] for one in foreseen(stages, str(tmp_path))] == ["checkpoint.fsync is false"]
    assert foreseen(stages, "s3://bucket/x") == []
    assert foreseen(made(), "/dev/shm/x") == ["/dev/shm/x is in memory (tmpfs): no storage is measured"]
    ruled = ("unet3d-b200", ["metric.rules=mlperf", "dataset.record_bytes=1000"])
    told = foreseen(read_workload(*ruled, environ={}, dotenv=None).workload, str(tmp_path))
    assert any("dataset.record_bytes" in one for one in told)
    workload = tmp_path / "w.yaml"
    workload.write_text("train: {steps: 4}\n")
    with ranks_as_threads():
        assert main(["bench", "run", str(workload), "--loader", "synthetic", "--results", str(tmp_path / "r")]) == 3
    assert "will be invalid: the loader synthetic reads nothing" in capsys.readouterr().err


@pytest.mark.processes
def test_vectors_without_room_are_an_error_before_they_are_made(tmp_path: Path) -> None:
    resolved = read_workload(None, ["stages=[vectors]", "vectors.count=10000"], environ={}, dotenv=None)
    full = pytest.raises(StorageFullError, match=r"10,000 vectors of 128 values have 5\.12 MB, .* 3\.\d+ MB are free")
    with small_disk(tmp_path / "small", "3m") as place, full:
        run_benchmark(resolved, results=tmp_path / "r", url=str(place / "v"))
    assert not (tmp_path / "r").exists()


def test_a_loaded_checkpoint_of_another_model_is_no_result(tmp_path: Path) -> None:
    """It was the speed of other bytes than the settings say, and valid."""
    url = str(tmp_path / "d")

    def run(name: str, *given: str) -> list[str]:
        settings = ["stages=[checkpoint]", "model.type=none", *given]
        resolved = read_workload(None, settings, environ={}, dotenv=None)
        result = run_in_threads(resolved, results=tmp_path / name, url=url)
        return [one["reason"] for one in result["findings"] if one["rule"] == "checkpoint sizes" and one["invalid"]]

    assert run("saved", "checkpoint.writes=1", "model.size_bytes=40000") == []
    assert run("loaded", "checkpoint.reads=1", "model.size_bytes=40000") == []
    assert (
        "has 40 kB (40,000 bytes), those of this workload have 10,000"
        in run("other", "checkpoint.reads=1", "model.size_bytes=10000")[0]
    )
