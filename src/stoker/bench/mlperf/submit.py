"""Writes a submission's directory tree from the results of several runs."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import stoker
from stoker.bench.mlperf.code_image import POOL_MARK, recorded_hash, write_image
from stoker.bench.mlperf.dlio_form import moment
from stoker.bench.mlperf.editions import EDITIONS, Edition, MlperfDivision
from stoker.bench.mlperf.leaf import Leaf, workload_of, write_leaf
from stoker.bench.mlperf.system import draft_description
from stoker.bench.mlperf.verdict import Case, broken_rules
from stoker.bench.results.report_files import RunFiles
from stoker.errors import ConfigError, FormatError
from stoker.storage.files.file_errors import file_errors

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Submission:
    """The submitter, the system under test, and the rules.

    Attributes:
        organization: the submitter's name, in letters, digits, ``.``, ``_`` and ``-``.
        system: name of the system under test, the same.
        edition, division: they decide the rules and the form.
    """

    organization: str
    system: str
    edition: Edition = EDITIONS["v3"]
    division: MlperfDivision = "closed"

    def __post_init__(self) -> None:
        for what, name in (("organization", self.organization), ("system", self.system)):
            if not _NAME.fullmatch(name) or name in {".", ".."}:
                raise ConfigError(
                    f"the {what} {name!r}: only letters, digits, '.', '_' and '-' (2.1.1): write - for others"
                )


def write_submission(
    root: Path,
    submission: Submission,
    runs: Sequence[RunFiles],
    *,
    description: Path | None = None,
    document: Path | None = None,
    force: bool = False,
) -> list[str]:
    """Write the tree of a submission, or add a system's results to one.

    Args:
        root: the tree; it may hold other organizations or systems.
        submission: the submitter, the system and the rules.
        runs: the results; trainings of one workload are joined, in the order of their time.
        description: the system's YAML; default: a draft is written, to be filled in.
        document: the system's PDF.
        force: write also results that break rules.

    Returns:
        A line for each workload that was written, and for each file that is left to the submitter.

    Raises:
        ConfigError: results are not complete, break rules, are of another version of stoker, or lack the generation of the
            data; the system is in the tree; the tree has another source; the description or document is missing.
        StorageError: the tree could not be written.

    The results appear in the tree last and at once, by a rename.
    """
    runs = sorted(runs, key=lambda run: str(run.result["began"]))
    _check_versions(runs)
    for run in runs:
        other = sorted({"kv_cache", "vectors"} & set(workload_of(run).stages))
        if other:
            raise ConfigError(
                f"{run.folder} has measured {' and '.join(other)}, which has no place in a submission of stoker's: MLPerf "
                "Storage takes KV caches of its own kv-cache.py (6.3) and vectors of Milvus (5.6.2), and its rule for "
                "the directories names training and checkpointing alone (2.1.10). Leave it out"
            )
    for file in (description, document):
        if file is not None and not file.is_file():
            raise ConfigError(f"{file} is no file: give the path of the system's description or document")
    broken = {run.name: _broken(run, submission) for run in runs}
    faults = [f"{name}: {reason}" for name, reasons in broken.items() for reason in reasons]
    if faults and not force:
        raise ConfigError(
            f"the results break {len(faults)} rules; --force writes them nevertheless, as invalid:\n  "
            + "\n  ".join(faults)
        )
    home = root / submission.division / submission.organization
    results = home / "results" / submission.system
    if results.exists():
        raise ConfigError(f"{results} is there already: give another system, or remove it")
    unfinished = results.with_name(f".{submission.system}.{os.getpid()}")
    groups: dict[str, list[Leaf]] = {}
    for run in runs:
        leaf = Leaf(run, "run", None, submission.edition, submission.division, not broken[run.name])
        groups.setdefault(f"{leaf.benchmark}/{leaf.model}", []).append(leaf)
    workloads = {name: _prepared(leaves) for name, leaves in groups.items()}
    with file_errors(root):
        code = _code(root, home, submission, str(runs[-1].result["began"]))
        try:
            for name, (setup, measured) in workloads.items():
                _write_workload(unfinished / name, setup, measured, code)
            said = _systems(home / "systems", submission, runs, description, document)
            unfinished.rename(results)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    counts = {name: len(measured) for name, (_, measured) in workloads.items()}
    return [*(f"{results / name}: {count} run{'s' if count != 1 else ''}" for name, count in counts.items()), *said]


def _check_versions(runs: Sequence[RunFiles]) -> None:
    """Check that the version of stoker whose source will be copied made the results."""
    for run in runs:
        found = run.result["environment"]["versions"].get("stoker")
        if found != stoker.__version__:
            raise ConfigError(
                f"{run.folder} was made by stoker {found}, and the submission would hold the source of "
                f"{stoker.__version__}: run stoker bench submit of version {found}"
            )


def _broken(run: RunFiles, submission: Submission) -> list[str]:
    """The reasons of the rules that a run breaks, without the rule for the number of runs: several results may keep it."""
    result = run.result
    workload = workload_of(run)
    case = Case(result, workload, submission.edition, submission.division)
    own = [one["reason"] for one in result["findings"] if one["invalid"] and not one["rule"].startswith("mlperf ")]
    return own + [one.reason for one in broken_rules(case) if one.rule != "runs"]


def _code(root: Path, home: Path, submission: Submission, captured: str) -> str:
    """Write the image of the source to the place where the edition has it; its hash."""
    if submission.edition.name == "v3":
        pool = root / submission.organization
        pool.mkdir(parents=True, exist_ok=True)
        (pool / POOL_MARK).touch()
        return write_image(pool, captured, submission.edition.name)
    home.mkdir(parents=True, exist_ok=True)
    digest = write_image(home, captured, submission.edition.name)
    image, code = home / f"code-{digest[:8]}", home / "code"
    if not code.exists():
        image.rename(code)
        return digest
    shutil.rmtree(image)
    try:
        known = recorded_hash(code)
    except FormatError:
        known = "unknown"
    if known != digest:
        raise ConfigError(
            f"{code} is another source (hash {known}) than that of this stoker ({digest}), and a tree of v2 has one: give "
            "another DIR"
        )
    return digest


def _prepared(leaves: Sequence[Leaf]) -> tuple[list[Leaf], list[Leaf]]:
    """Of one workload's results, the leaves that come before the measured runs, and those of the measured runs."""
    if leaves[0].benchmark == "checkpointing":
        saved = [leaf for leaf in leaves if leaf.checkpoints]
        if not saved:
            raise ConfigError(f"none of the results of {leaves[0].model} has saved or loaded a checkpoint")
        return [], saved
    generated = next((leaf for leaf in leaves if leaf.run.result["generate"] is not None), None)
    trained = [
        replace(leaf, repeat=one["repeat"])
        for leaf in leaves
        for one in leaf.run.result["repeats"]
        if one["train"] is not None
    ]
    if generated is None or not trained:
        missing = "generated the data (--stages generate)" if generated is None else "trained"
        raise ConfigError(
            f"none of the results of {leaves[0].model} has {missing}: give the results of a run that has, too"
        )
    setup = [replace(generated, command="datagen")]
    if generated.edition.name == "v3":
        setup.append(replace(generated, command="datasize"))
    return setup, trained


def _write_workload(folder: Path, setup: Sequence[Leaf], measured: Sequence[Leaf], code: str) -> None:
    for leaf in setup:
        write_leaf(leaf, folder / leaf.command / _stamp(leaf.span[0]), code)
    training = measured[0].benchmark == "training"
    target = folder / "run" if training else folder
    entries: list[dict[str, Any]] = []
    last = 0
    for leaf in measured:
        # Two runs may begin in one second, as in a rehearsal.
        last = max(last + 1, int(leaf.span[0]))
        entries.append(write_leaf(leaf, target / _stamp(last), code))
    _results(target, entries, warm_up=training and len(entries) == measured[0].edition.runs[1])


def _stamp(seconds: float) -> str:
    return moment(seconds).strftime("%Y%m%d_%H%M%S")


def _results(folder: Path, entries: Sequence[Mapping[str, Any]], *, warm_up: bool) -> None:
    """Write ``results.json``: each run's entry, and the means over the runs that count."""
    counted = [one["metrics"] for one in entries[1 if warm_up else 0 :]]
    names = sorted({name for one in counted for name, value in one.items() if isinstance(value, int | float)})
    means = {name: fmean([one[name] for one in counted if isinstance(one.get(name), int | float)]) for name in names}
    said = {"runs": list(entries), "warm_up": entries[0]["run_id"] if warm_up else None, "mean_of_counted_runs": means}
    (folder / "results.json").write_text(json.dumps(said, indent=2) + "\n")


def _systems(
    folder: Path, submission: Submission, runs: Sequence[RunFiles], description: Path | None, document: Path | None
) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    said: list[str] = []
    yaml, pdf = folder / f"{submission.system}.yaml", folder / f"{submission.system}.pdf"
    if description is not None:
        _copy(description, yaml)
    elif not yaml.exists():
        yaml.write_text(draft_description(submission.system, runs[-1].result))
        said.append(f"{yaml}: a draft, fill it in")
    if document is not None:
        _copy(document, pdf)
    elif not pdf.exists():
        said.append(f"{pdf}: missing, put the description of the system there")
    return said


def _copy(source: Path, target: Path) -> None:
    if not target.exists() or not source.samefile(target):
        shutil.copyfile(source, target)
