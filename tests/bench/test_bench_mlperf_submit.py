"""Promise: ``stoker bench submit`` writes a tree without faults, and ``check`` names each fault of a tree with its path."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from bench_mlperf import description, enlarge, small_checkpoints, small_training

import stoker
from stoker.bench.mlperf.check import check_submission
from stoker.bench.mlperf.code_image import tree_hash
from stoker.bench.mlperf.editions import EDITIONS
from stoker.bench.mlperf.submit import Submission, write_submission
from stoker.bench.results import report_files
from stoker.bench.results.report_files import find_runs
from stoker.cli import main
from stoker.errors import ConfigError, StorageFullError

TRAINED = ("dataset.files=7000", "train.repeats=6")
HOME = "closed/acme"
RUN = f"{HOME}/results/fast/training/unet3d/run"
SAVED = f"{HOME}/results/fast/checkpointing/llama3-8b"


@pytest.fixture(scope="module", autouse=True)
def _made_up() -> Iterator[None]:
    """Results that these tests make of a small run's would be told as changed after it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(report_files, "as_measured", lambda result, _: result)
        yield


@pytest.fixture(scope="module", autouse=True)
def _small_source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of stoker's source a few files are the image, which each check of a tree reads: one test has all of it."""
    own, small = Path(stoker.__file__).parent, tmp_path_factory.mktemp("source") / "stoker"
    for name in ("__init__.py", "units.py", "bench/__init__.py", "bench/run.py"):
        (small / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(own / name, small / name)
    source = SimpleNamespace(__file__=str(small / "__init__.py"), __version__=stoker.__version__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stoker.bench.mlperf.code_image.stoker", source)
        yield


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    small_training(folder / "train")
    enlarge(folder / "train", *TRAINED, published="unet3d-h100")
    small_checkpoints(folder / "saved")
    enlarge(folder / "saved", published="llama-8b-checkpoint")
    return folder


def write(root: Path, results: Path, edition: str = "v2", **rest: Any) -> Path:
    """A tree of all results, with a description and a document of the system."""
    (root / "about.yaml").write_text(yaml.safe_dump(description("fast")))
    (root / "about.pdf").write_bytes(b"%PDF-1.4\n")
    write_submission(
        root / "tree",
        Submission("acme", "fast", EDITIONS[edition], rest.pop("division", "closed")),
        find_runs([results]),
        description=root / "about.yaml",
        document=root / "about.pdf",
        **rest,
    )
    return root / "tree"


@pytest.fixture(scope="module")
def tree(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("written"), results)


def copy_of(tree: Path, target: Path, *, source: bool) -> Path:
    """A tree to break; with its own image of the source, or the same."""
    made = Path(shutil.copytree(tree, target, ignore=None if source else shutil.ignore_patterns("code")))
    if not source:
        (made / HOME / "code").symlink_to(tree / HOME / "code")
    return made


def wrong(root: Path, edition: str = "v2") -> list[tuple[str, str, str]]:
    return [(one.path, one.rule, one.said) for one in check_submission(root, EDITIONS[edition]) if not one.remark]


def test_what_is_written_has_no_faults(tree: Path) -> None:
    assert wrong(tree) == []
    runs = sorted(path.name for path in (tree / RUN).iterdir() if path.is_dir())
    assert len(runs) == 6
    summary = json.loads((tree / RUN / runs[0] / "summary.json").read_text())
    assert summary["metric"]["train_au_mean_percentage"] == pytest.approx(95)
    assert summary["num_files_train"] == 7000
    mean = json.loads((tree / RUN / "results.json").read_text())["mean_of_counted_runs"]
    assert mean["train_au_mean_percentage"] == pytest.approx(95)
    output = json.loads((tree / RUN / runs[0] / "1_output.json").read_text())
    assert len(output["1"]["load"]["block1"]) > 0
    stats = json.loads(next((tree / SAVED).glob("*/7_per_epoch_stats.json")).read_text())
    assert {"save_ckpt10", "load_ckpt10"} <= stats["1"].keys()


@pytest.fixture
def latest(results: Path, tmp_path: Path) -> Path:
    """A tree of the third edition, which has other workloads."""
    shutil.copytree(results, tmp_path / "results")
    enlarge(tmp_path / "results" / "train", "dataset.files=24000", "train.repeats=6", published="retinanet-b200")
    return write(tmp_path, tmp_path / "results", "v3")


def test_a_tree_of_the_third_edition_names_its_source_in_a_pool(latest: Path) -> None:
    assert wrong(latest, "v3") == []
    image = next((latest / "acme").glob("code-*"))
    assert tree_hash(image).startswith(image.name.removeprefix("code-"))
    next(image.rglob("*.py")).write_text("changed")
    assert [rule for _, rule, _ in wrong(latest, "v3")] == ["2.1.6 codeDirectoryContents"]
    shutil.rmtree(image)
    assert {said for _, _, said in wrong(latest, "v3")} == {f"there is no image {image.name}"}


def test_a_run_on_other_hosts_than_those_described_is_named(latest: Path) -> None:
    where = _json("closed/*/results/*/training/*/run/*/summary.json", lambda one: one.update(num_hosts=2))(latest)
    assert {(path, rule) for path, rule, _ in wrong(latest, "v3")} == {(where, "2.1.9 identicalSystemConfig")}
    _json(where, lambda one: one.update(num_hosts=1, host_memory_GB=[2.0]))(latest)
    assert any("a host has 2.0 GiB, the description says 1" in said for _, _, said in wrong(latest, "v3"))


def _json(path: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], str]:
    def done(root: Path) -> str:
        file = max(root.glob(path))
        found = json.loads(file.read_text())
        change(found)
        file.write_text(json.dumps(found))
        return file.relative_to(root).as_posix()

    return done


def _text(path: str, text: str) -> Callable[[Path], str]:
    def done(root: Path) -> str:
        file = max(root.glob(path))
        file.write_text(text)
        return file.relative_to(root).as_posix()

    return done


def _gone(path: str) -> Callable[[Path], str]:
    def done(root: Path) -> str:
        file = max(root.glob(path))
        shutil.rmtree(file) if file.is_dir() else file.unlink()
        return file.relative_to(root).as_posix()

    return done


def _made(path: str) -> Callable[[Path], str]:
    def done(root: Path) -> str:
        (root / path).mkdir()
        return path

    return done


def _twice(root: Path) -> str:
    file = max(root.glob(f"{RUN}/*/summary.json"))
    return Path(shutil.copy(file, file.with_name("old_summary.json"))).relative_to(root).as_posix()


def _renamed(path: str, name: str) -> Callable[[Path], str]:
    def done(root: Path) -> str:
        file = max(root.glob(path))
        return file.rename(file.with_name(name)).relative_to(root).as_posix()

    return done


def _described(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], str]:
    def done(root: Path) -> str:
        file = root / HOME / "systems" / "fast.yaml"
        found = yaml.safe_load(file.read_text())
        change(found["system_under_test"])
        file.write_text(yaml.safe_dump(found))
        return file.relative_to(root).as_posix()

    return done


METADATA = f"{RUN}/*/*_metadata.json"
CHECKPOINTED = f"{SAVED}/*/*_metadata.json"
BROKEN: dict[str, tuple[str, Callable[[Path], str]]] = {
    "a directory beside closed": ("2.1.2", _made("Closed")),
    "no division": ("2.1.2", _renamed("closed", "shut")),
    "a name with a blank": ("2.1.1", _renamed(HOME, "acme inc")),
    "no systems": ("2.1.5", _gone(f"{HOME}/systems")),
    "something beside results": ("2.1.5", _made(f"{HOME}/notes")),
    "no source": ("2.1.6", _gone(f"{HOME}/code")),
    "changed source": ("2.1.6", _text(f"{HOME}/code/stoker/units.py", "")),
    "no hash of the source": ("2.1.6", _gone(f"{HOME}/code/.code-hash.json")),
    "a hash that is none": ("2.1.6", _text(f"{HOME}/code/.code-hash.json", '{"hash": "x"}')),
    "a file among the systems": ("2.1.7", _made(f"{HOME}/systems/old")),
    "no document of the system": ("2.1.8", _gone(f"{HOME}/systems/fast.pdf")),
    "a system without results": ("2.1.8", _renamed(f"{HOME}/systems/fast.yaml", "slow.yaml")),
    "a category that is none": ("2.1.10", _made(f"{HOME}/results/fast/inference")),
    "a workload of another edition": ("2.1.11", _renamed(f"{HOME}/results/fast/training/unet3d", "retinanet")),
    "no making of the data": ("2.1.12", _gone(f"{HOME}/results/fast/training/unet3d/datagen")),
    "a phase that is none": ("2.1.12", _made(f"{HOME}/results/fast/training/unet3d/train")),
    "no run of the making": ("2.1.13", _gone(f"{HOME}/results/fast/training/unet3d/datagen/*")),
    "no log of the making": ("2.1.14", _gone(f"{HOME}/results/fast/training/unet3d/datagen/*/dlio.log")),
    "no settings of the making": (
        "2.1.15",
        _gone(f"{HOME}/results/fast/training/unet3d/datagen/*/dlio_config/hydra.yaml"),
    ),
    "no results.json": ("2.1.16", _gone(f"{RUN}/results.json")),
    "four runs": ("2.1.17", lambda root: (_gone(f"{RUN}/2*")(root), _gone(f"{RUN}/2*")(root))[1]),
    "a run of another name": ("2.1.17", _renamed(f"{RUN}/2*", "run_6")),
    "a pause between runs": (
        "2.1.18",
        _json(f"{RUN}/*/summary.json", lambda one: one.update(start="2027-01-01", end="2027-01-02")),
    ),
    "an end before the start": ("2.1.18", _json(f"{RUN}/*/summary.json", lambda one: one.update(end="2020-01-01"))),
    "no log of a run": ("2.1.19", _gone(f"{RUN}/*/training_run.stderr.log")),
    "a summary that is no JSON": ("2.1.19", _text(f"{RUN}/*/summary.json", "{")),
    "no summary": ("2.1.19", _gone(f"{RUN}/*/summary.json")),
    "two summaries": ("2.1.19", _twice),
    "no metadata": ("2.1.19", _gone(METADATA)),
    "no settings of a run": ("2.1.20", _gone(f"{RUN}/*/dlio_config/config.yaml")),
    "fewer files than the rules want": (
        "3.1.2",
        _json(METADATA, lambda one: one["combined_params"]["dataset"].update(num_files_train=6999)),
    ),
    "a memory that is not said": ("3.1.1", _json(f"{RUN}/*/summary.json", lambda one: one.pop("host_memory_GB"))),
    "sizes that are not said": ("3.1.1", _json(METADATA, lambda one: one.update(combined_params={}))),
    "fewer files made than read": (
        "3.2.1",
        _json(
            f"{HOME}/results/fast/training/unet3d/datagen/*/*_metadata.json",
            lambda one: one["combined_params"]["dataset"].update(num_files_train=6000),
        ),
    ),
    "another number of files": ("3.3.1", _json(f"{RUN}/*/summary.json", lambda one: one.update(num_files_train=1))),
    "too little utilization": (
        "3.3.2",
        _json(f"{RUN}/*/summary.json", lambda one: one["metric"].update(train_au_mean_percentage=89.9)),
    ),
    "a utilization that is no number": (
        "3.3.2",
        _json(f"{RUN}/*/summary.json", lambda one: one["metric"].update(train_au_mean_percentage=float("nan"))),
    ),
    "a run that failed": (
        "3.3.2",
        _json(f"{RUN}/*/summary.json", lambda one: one["metric"].update(train_au_meet_expectation="fail")),
    ),
    "two hosts named for one": ("3.3.4", _json(METADATA, lambda one: one["args"].update(hosts=["a", "b"]))),
    "uneven hosts": ("3.3.6", _json(f"{RUN}/*/summary.json", lambda one: one.update(num_hosts=3))),
    "results beside the data": (
        "3.4.1",
        _json(METADATA, lambda one: one["args"].update(results_dir=one["args"]["data_dir"])),
    ),
    "one file system": ("3.4.2", _json(f"{RUN}/*/fs_separation.json", lambda one: one.update(same_filesystem=True))),
    "a batch of one's own": ("3.6.2", _json(METADATA, lambda one: one["params_dict"].update({"reader.batch_size": 1}))),
    "a run that says it is invalid": (
        "1 verification",
        _json(METADATA, lambda one: one.update(verification="invalid")),
    ),
    "a model that is none": ("2.1.21", _renamed(SAVED, "llama3-9b")),
    "no results.json of checkpoints": ("2.1.22", _gone(f"{SAVED}/results.json")),
    "no run of checkpoints": ("2.1.23", _gone(f"{SAVED}/2*")),
    "no log of checkpoints": ("2.1.25", _gone(f"{SAVED}/*/dlio.log")),
    "no settings of checkpoints": ("2.1.26", _gone(f"{SAVED}/*/dlio_config/hydra.yaml")),
    "no fsync": ("4.3.2", _json(CHECKPOINTED, lambda one: one["combined_params"]["checkpoint"].update(fsync=False))),
    "checkpoints that no memory holds": (
        "4.3.4",
        lambda root: (
            _json(CHECKPOINTED, lambda one: one["args"].update(accelerator_type="h100"))(root),
            _json(f"{SAVED}/*/summary.json", lambda one: one["metric"].update(checkpoint_size_GB=1e6))(root),
        )[1],
    ),
    "another number of ranks": ("4.6.1", _json(f"{SAVED}/*/summary.json", lambda one: one.update(num_accelerators=16))),
    "a setting of the checkpoints": (
        "4.6.3",
        _json(CHECKPOINTED, lambda one: one["params_dict"].update({"checkpoint.type": "rank_zero"})),
    ),
    "few ranks a host": ("4.6.2", _json(f"{SAVED}/*/summary.json", lambda one: one.update(num_hosts=2))),
    "nine checkpoints": ("4.7.1", _json(CHECKPOINTED, lambda one: one["args"].update(num_checkpoints_write=9))),
}


@pytest.mark.parametrize("case", BROKEN)
def test_each_broken_rule_is_named_with_the_path(tree: Path, tmp_path: Path, case: str) -> None:
    rule, damage = BROKEN[case]
    copied = copy_of(tree, tmp_path / "tree", source=rule == "2.1.6")
    where = damage(copied)
    found = wrong(copied)
    assert found, case
    number = [path for path, name, _ in found if name == rule or name.startswith(f"{rule} ")]
    assert number, found
    assert any(path in where or where in path or where.rpartition("/")[0] in path for path in number), (where, found)


SUMMARY = f"{RUN}/*/summary.json"
HOSTILE: dict[str, Callable[[Path], str]] = {
    "an integer that no float holds": _json(SUMMARY, lambda one: one.update(num_accelerators=10**400)),
    "an infinite memory": _json(SUMMARY, lambda one: one.update(host_memory_GB=[float("inf")])),
    "a memory that no float holds": _json(SUMMARY, lambda one: one.update(host_memory_GB=[10**400])),
    "a start in a time zone, the end in none": _json(SUMMARY, lambda one: one.update(start="2030-01-01T00:00:00Z")),
    "a batch that is no number": _json(METADATA, lambda one: one["combined_params"]["reader"].update(batch_size="nan")),
    "a sample of hardly any bytes": _json(
        METADATA, lambda one: one["combined_params"]["dataset"].update(record_length_bytes=5e-324)
    ),
    "an infinity of checkpoints": _json(
        CHECKPOINTED, lambda one: one["args"].update(num_checkpoints_write=float("inf"))
    ),
    "lists for mappings": _json(METADATA, lambda one: one.update(args=[], combined_params=[], params_dict=[])),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_values_that_no_run_writes_are_faults_and_end_no_check(tree: Path, tmp_path: Path, case: str) -> None:
    copied = copy_of(tree, tmp_path / "tree", source=False)
    HOSTILE[case](copied)
    assert wrong(copied)


def test_clients_that_are_an_empty_list_are_a_fault(latest: Path) -> None:
    file = latest / HOME / "systems" / "fast.yaml"
    found = yaml.safe_load(file.read_text())
    found["system_under_test"]["clients"] = []
    file.write_text(yaml.safe_dump(found))
    assert any(path.endswith("fast.yaml") and "clients" in said for path, _, said in wrong(latest, "v3"))


def test_pipes_in_a_tree_are_not_waited_for(latest: Path) -> None:
    image = next((latest / "acme").glob("code-*"))
    run = max((latest / HOME).glob("results/fast/training/*/run/2*"))
    for path in (
        image / ".code-hash.json",
        run / ".mlps-code-image",
        run / "training_run.stdout.log",
        run / "fs_separation.json",
    ):
        path.unlink()
        os.mkfifo(path)
    os.mkfifo(image / "pipe")
    found = {rule for _, rule, _ in wrong(latest, "v3")}
    assert {"2.1.6 codeDirectoryContents", "3.4.2 trainingMlpstorageFilesystemCheck"} <= found


def test_a_directory_that_can_not_be_read_is_an_error_of_our_own(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Path.iterdir

    def refused(path: Path) -> Any:
        if path.name == "systems":
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refused)
    assert main(["bench", "check", str(tree), "--edition", "v2"]) == 1
    assert "Permission denied" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one["solution"].pop("friendly_description"), "friendly_description"),
        (lambda one: one.update(colour="red"), "colour"),
        (lambda one: one["solution"]["capabilities"].update(simultaneous_write=False), "remap_time_in_seconds"),
        (lambda one: one["solution"]["architecture"].update(client_footprint="n/a"), "both n/a"),
        (lambda one: one["clients"][0].pop("networking"), "networking is wanted"),
        (lambda one: one["clients"][0]["chassis"].update(rack_units=1), "no place in a cloud"),
        (lambda one: one.update(deployment="onprem"), "is wanted onprem"),
        (lambda one: one["clients"][0]["networking"][0].pop("speed"), "a port that is up"),
    ],
)
def test_what_is_wrong_with_a_description_is_named(
    tree: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    copied = copy_of(tree, tmp_path / "tree", source=False)
    where = _described(change)(copied)
    assert any(path == where and said in text for path, _, text in wrong(copied, "v3"))


def test_a_draft_of_the_description_says_what_is_to_be_filled_in(results: Path, tmp_path: Path) -> None:
    write_submission(tmp_path / "tree", Submission("acme", "fast", EDITIONS["v2"]), find_runs([results]))
    open_ones = [said for path, _, said in wrong(tmp_path / "tree", "v3") if path.endswith("fast.yaml")]
    assert any("deployment: is not filled in" in one for one in open_ones)


def test_results_that_break_rules_are_no_submission(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path / "other")
    enlarge(tmp_path / "other" / "train", "reader.batch_size=4", *TRAINED, published="unet3d-h100")
    with pytest.raises(ConfigError, match=r"reader.batch_size is 4"):
        write(tmp_path, tmp_path / "other")
    root = write(tmp_path, tmp_path / "other", force=True)
    assert {"1 verification", "3.6.2 trainingClosedSubmissionParameters"} <= {rule for _, rule, _ in wrong(root)}


def test_the_runs_of_several_results_are_joined(results: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(results / "train", tmp_path / "all" / name)
        file = tmp_path / "all" / name / "results.json"
        result = json.loads(file.read_text())
        keep = (0, 1, 2) if name == "one" else (3, 4, 5)
        result["began"] = f"2026-09-21T14:13:2{keep[0]}Z"
        result["epochs"] = [one for one in result["epochs"] if one["repeat"] in keep]
        result["repeats"] = [one for one in result["repeats"] if one["repeat"] in keep]
        file.write_text(json.dumps(result))
    assert wrong(write(tmp_path, tmp_path / "all")) == []


@pytest.mark.parametrize(
    ("name", "said"), [("a b", "organization"), ("..", "organization")], ids=["blank", "the folder above"]
)
def test_names_that_lead_elsewhere_are_errors(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Submission(name, "fast")


def test_a_system_that_is_in_the_tree_is_not_written_over(results: Path, tmp_path: Path) -> None:
    root = write(tmp_path, results)
    before = sorted(root.rglob("*"))
    with pytest.raises(ConfigError, match="is there already"):
        write(tmp_path, results)
    assert sorted(root.rglob("*")) == before


def results_in(folder: Path, results: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy of the results of the training, changed."""
    shutil.copytree(results / "train", folder / "train")
    _json("train/results.json", change)(folder)
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one.update(generate=None), "has generated the data"),
        (lambda one: one["environment"]["versions"].update(stoker="0.0.1"), "was made by stoker 0.0.1"),
        (lambda one: one.update(repeats=[]), "has trained"),
    ],
)
def test_results_that_make_no_submission_leave_nothing(
    results: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        write(tmp_path, results_in(tmp_path / "some", results, change), force=True)
    assert not (tmp_path / "tree").exists()


def test_a_description_that_is_missing_leaves_nothing_and_one_in_the_tree_stays(results: Path, tmp_path: Path) -> None:
    systems = tmp_path / "tree" / HOME / "systems" / "fast.yaml"
    found, submission = find_runs([results]), Submission("acme", "fast", EDITIONS["v2"])
    with pytest.raises(ConfigError, match=r"fast.yaml is no file"):
        write_submission(tmp_path / "tree", submission, found, description=systems)
    assert not (tmp_path / "tree").exists()
    systems.parent.mkdir(parents=True)
    systems.write_text(yaml.safe_dump(description("fast")))
    write_submission(tmp_path / "tree", submission, found, description=systems)
    assert [rule for _, rule, _ in wrong(tmp_path / "tree")] == ["2.1.8 resultsDirectorySystems"]  # the document


@pytest.mark.parametrize("file", [".code-hash.json", "7_output.json", "results.json"])
def test_a_full_disk_leaves_no_part_of_a_submission(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    written = Path.write_text

    def full(path: Path, *rest: Any, **more: Any) -> int:
        if path.name == file:
            raise OSError(28, "No space left on device", str(path))
        return written(path, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(StorageFullError, match="Free some space"):
            write(tmp_path, results)
    home = tmp_path / "tree" / HOME
    assert {path.name for path in home.iterdir()} <= {"code", "results", "systems"}
    assert not list(home.glob("results/*"))
    assert wrong(write(tmp_path, results)) == []


def test_a_tree_of_the_second_edition_holds_one_source(tree: Path, results: Path, tmp_path: Path) -> None:
    copied = copy_of(tree, tmp_path / "tree", source=True)
    found = find_runs([results])
    write_submission(copied, Submission("acme", "slow", EDITIONS["v2"]), found)
    _json(f"{HOME}/code/.code-hash.json", lambda one: one.update(hash="0" * 32))(copied)
    with pytest.raises(ConfigError, match="is another source"):
        write_submission(copied, Submission("acme", "third", EDITIONS["v2"]), found)
    assert sorted(path.name for path in (copied / HOME).iterdir()) == ["code", "results", "systems"]


def test_the_command_writes_and_checks(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all of stoker's source."""
    monkeypatch.setattr("stoker.bench.mlperf.code_image.stoker", stoker)
    arguments = ["--results", str(results), "--organization", "acme", "--system", "fast", "--edition", "v2"]
    assert main(["bench", "submit", str(tmp_path / "tree"), *arguments]) == 3  # the document is missing
    assert "fast.pdf: it is missing" in capsys.readouterr().out
    (tmp_path / "tree" / HOME / "systems" / "fast.pdf").write_bytes(b"%PDF-1.4\n")
    own, image = Path(stoker.__file__).parent, tmp_path / "tree" / HOME / "code" / "stoker"
    assert {path.relative_to(image) for path in image.rglob("*.py")} == {
        path.relative_to(own) for path in own.rglob("*.py")
    }
    assert main(["bench", "check", str(tmp_path / "tree"), "--edition", "v2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["valid"] is True
    assert main(["bench", "check", str(tmp_path / "nowhere")]) == 1
