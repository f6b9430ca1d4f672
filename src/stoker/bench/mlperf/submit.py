"""A submission's directory tree, made of the results of several runs."""

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
from stoker.bench.mlperf.code_image import POOL_MARK, write_image
from stoker.bench.mlperf.dlio_form import moment
from stoker.bench.mlperf.editions import EDITIONS, Edition, MlperfDivision, checkpoint_model
from stoker.bench.mlperf.leaf import Command, Leaf, check_of_one_version, workload_of, write_leaf
from stoker.bench.mlperf.system import draft_description
from stoker.bench.mlperf.verdict import Case, broken_rules
from stoker.bench.results.report_files import RunFiles
from stoker.errors import ConfigError, StorageError
from stoker.storage.file_errors import file_errors

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Submission:
    """The submitter, the system under test, and the rules.

    Attributes:
        organization: the submitter's name, in letters, digits, ``.``, ``_`` and ``-``.
        system: name of the system under test, the same.
        edition, division: whose rules and form.
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
        submission: who submits what.
        runs: the results; trainings of one workload are joined, in the order of their time.
        description: the system's YAML; default: a draft is written, to be filled in.
        document: the system's PDF.
        force: write also what breaks rules.

    Returns:
        What was written, in sentences.

    Raises:
        ConfigError: results are not complete, break rules, or lack the making of the data; the system is in the tree.
        StorageError: the tree could not be written.
    """
    runs = sorted(runs, key=lambda run: str(run.result["began"]))
    check_of_one_version(list(runs), stoker.__version__)
    broken = {run.name: _broken(run, submission) for run in runs}
    faults = [f"{name}: {reason}" for name, reasons in broken.items() for reason in reasons]
    if faults and not force:
        raise ConfigError(
            f"{len(faults)} rules are broken, and no such result is submitted; --force writes it nevertheless:\n  "
            + "\n  ".join(faults)
        )
    home = root / submission.division / submission.organization
    results = home / "results" / submission.system
    if results.exists():
        raise ConfigError(f"{results} is there already: name another system, or remove it")
    unfinished = results.with_name(f".{submission.system}.{os.getpid()}")
    groups: dict[str, list[RunFiles]] = {}
    for run in runs:
        name = workload_of(run).name
        groups.setdefault(checkpoint_model(name) or name, []).append(run)
    captured = str(runs[-1].result["began"])
    said: list[str] = []
    with file_errors(root):
        code = _code(root, home, submission, captured)
        try:
            for model, group in groups.items():
                leaf = Leaf(group[0], "run", None, submission.edition, submission.division, True, code)
                leaves = [replace(leaf, run=run, valid=not broken[run.name]) for run in group]
                write = _checkpoints if leaf.benchmark == "checkpointing" else _training
                count = write(unfinished / leaf.benchmark / model, leaves)
                said.append(f"{results / leaf.benchmark / model}: {count} run{'s' if count != 1 else ''}")
            unfinished.rename(results)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        said += _systems(home / "systems", submission, runs, description, document)
    return said


def _broken(run: RunFiles, submission: Submission) -> list[str]:
    """The rules that a run breaks, but for those that several runs together keep."""
    result = run.result
    workload = workload_of(run)
    case = Case(result, workload, submission.edition, submission.division)
    own = [one["reason"] for one in result["findings"] if one["invalid"] and not one["rule"].startswith("mlperf ")]
    return own + [one.reason for one in broken_rules(case) if one.rule != "runs"]


def _code(root: Path, home: Path, submission: Submission, captured: str) -> str:
    """The source, where the edition wants it; its hash."""
    if submission.edition.name == "v3":
        pool = root / submission.organization
        pool.mkdir(parents=True, exist_ok=True)
        (pool / POOL_MARK).touch()
        return write_image(pool, captured, submission.edition.name)
    home.mkdir(parents=True, exist_ok=True)
    digest = write_image(home, captured, submission.edition.name)
    image = home / f"code-{digest[:8]}"
    if (home / "code").exists():
        shutil.rmtree(image)
    else:
        image.rename(home / "code")
    return digest


def _training(folder: Path, leaves: Sequence[Leaf]) -> int:
    made = next((leaf for leaf in leaves if leaf.run.result["generate"] is not None), None)
    trained = [
        replace(leaf, repeat=one["repeat"])
        for leaf in leaves
        for one in leaf.run.result["repeats"]
        if one["train"] is not None
    ]
    if made is None or not trained:
        what = "made the data (--stages generate)" if made is None else "trained"
        raise ConfigError(
            f"none of the results of {leaves[0].model} has {what}: give the results of a run that has, too"
        )
    first: list[tuple[Command, Leaf]] = [("datagen", replace(made, command="datagen"))]
    if made.edition.name == "v3":
        first.append(("datasize", replace(made, command="datasize")))
    for command, leaf in first:
        name = moment(leaf.span[0]).strftime("%Y%m%d_%H%M%S")
        write_leaf(leaf, folder / command / name, name)
    entries = _write_all(folder / "run", trained)
    _results(folder / "run", entries, warm_up=len(entries) == made.edition.runs[1])
    return len(entries)


def _checkpoints(folder: Path, leaves: Sequence[Leaf]) -> int:
    saved = [leaf for leaf in leaves if leaf.checkpoints]
    if not saved:
        raise ConfigError(f"none of the results of {leaves[0].model} has saved or loaded a checkpoint")
    entries = _write_all(folder, saved)
    _results(folder, entries, warm_up=False)
    return len(entries)


def _write_all(folder: Path, leaves: Sequence[Leaf]) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = []
    last = 0
    for leaf in leaves:
        # Runs of less than a second, as of a rehearsal, have names of their own, too.
        last = max(last + 1, int(leaf.span[0]))
        name = moment(last).strftime("%Y%m%d_%H%M%S")
        entries.append(write_leaf(leaf, folder / name, name))
    return entries


def _results(folder: Path, entries: Sequence[Mapping[str, Any]], *, warm_up: bool) -> None:
    """``results.json``: each run's entry, and the means of those that count."""
    counted = [one["metrics"] for one in entries[1 if warm_up else 0 :]]
    names = sorted({name for one in counted for name, value in one.items() if isinstance(value, int | float)})
    means = {name: fmean([one[name] for one in counted if isinstance(one.get(name), int | float)]) for name in names}
    said = {"runs": list(entries), "warm_up": entries[0]["run_id"] if warm_up else None, "mean_of_counted_runs": means}
    (folder / "results.json").write_text(json.dumps(said, indent=2) + "\n")


def _systems(
    folder: Path, submission: Submission, runs: Sequence[RunFiles], description: Path | None, document: Path | None
) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    said = []
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
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError:
        raise ConfigError(f"{source} is not there") from None
    except OSError as error:
        raise StorageError(f"{source} can not be copied to {target}: {error.strerror or error}") from None
