"""The runs in a submission: their files, read without trust in their content, and the faults of these files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from stoker.bench.mlperf.editions import Edition, MlperfDivision

_STAMP: Final = re.compile(r"\d{8}_\d{6}")
_CONFIG: Final = frozenset({"config.yaml", "hydra.yaml", "overrides.yaml"})
_OUTPUTS: Final = ("output.json", "per_epoch_stats.json")
_MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class SubmissionFault:
    """Something wrong in a submission.

    Attributes:
        path: of the file or directory, from the tree's root.
        rule: its number and name in Rules.md.
        said: what is wrong.
        remark: whether it does not make the submission invalid.
    """

    path: str
    rule: str
    said: str
    remark: bool = False


@dataclass(frozen=True, slots=True)
class Workspace:
    """The part of a tree that is checked.

    Attributes:
        root: of the tree.
        home: of an organization in a division.
        division, edition: whose rules.
        description: of the system, as far as it could be read.
        system: its name.
    """

    root: Path
    home: Path
    division: MlperfDivision
    edition: Edition
    description: dict[str, Any]
    system: str = ""

    def of(self, system: str) -> Workspace:
        """The part of one system."""
        return replace(self, system=system, description={})

    def name(self, path: Path) -> str:
        """A path from the root."""
        return path.relative_to(self.root).as_posix()

    def fault(self, path: Path, rule: str, said: str) -> SubmissionFault:
        """A fault at a path."""
        return SubmissionFault(self.name(path), rule, said)


@dataclass(frozen=True, slots=True)
class SubmittedRun:
    """A run's directory and the content of its files.

    Attributes:
        folder: the directory.
        summary: ``*summary.json``; empty where it could not be read.
        metadata: ``*_metadata.json``; empty where it could not be read.
    """

    folder: Path
    summary: Mapping[str, Any]
    metadata: Mapping[str, Any]

    @property
    def args(self) -> Mapping[str, Any]:
        """The arguments of the command."""
        return _mapping(self.metadata.get("args"))

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The settings, in DLIO's keys."""
        return _mapping(self.metadata.get("parameters") or self.metadata.get("combined_params"))

    @property
    def overrides(self) -> Mapping[str, Any]:
        """The settings that differ from the workload's file."""
        return _mapping(self.metadata.get("override_parameters") or self.metadata.get("params_dict"))

    @property
    def memory(self) -> float:
        """Memory of all hosts in GiB, by the summary; 0 where it has none."""
        found = self.summary.get("host_memory_GB")
        return sum(number_of(one) or 0.0 for one in found) if isinstance(found, list) else 0.0

    def number(self, *path: str) -> float | None:
        """A number of the summary."""
        return number_of(dig(self.summary, *path))

    def parameter(self, *path: str) -> float | None:
        """A number of the parameters."""
        return number_of(dig(self.parameters, *path))

    def moment(self, name: str) -> datetime | None:
        """``start`` or ``end`` of the summary."""
        return moment_of(self.summary.get(name))


def folders(path: Path) -> list[str]:
    """Names of the directories in a directory, in order, without hidden ones."""
    return sorted(one.name for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))


def head_of(path: Path, most: int) -> str:
    """The text in the first ``most`` bytes of a file; empty where there is no regular file.

    Raises:
        OSError: the file can not be read.
    """
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        return file.read(most).decode("utf-8", "replace")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def dig(tree: Any, *path: str) -> Any:
    """The value of a tree of mappings at a path; ``None`` where it has none."""
    for name in path:
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def number_of(value: Any) -> float | None:
    """A finite number, also one that is written as text; ``None`` of all else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def moment_of(value: Any) -> datetime | None:
    """A moment by the clock of its host, from ISO 8601, whether it names a time zone or not; ``None`` of all else."""
    try:
        return datetime.fromisoformat(str(value)).replace(tzinfo=None)
    except ValueError:
        return None


_RULES: Final = {
    "training_datagen": ("2.1.13 datagenTimestamp", "2.1.14 datagenFiles", "2.1.15 datagenDlioConfig"),
    "training_run": ("2.1.17 runTimestamps", "2.1.19 runFiles", "2.1.20 runDlioConfig"),
    "checkpointing_run": (
        "2.1.23 checkpointingTimestamps",
        "2.1.25 checkpointingFiles",
        "2.1.26 checkpointingDlioConfig",
    ),
}
"""For each kind of run: the rules for the directory's name, for its files, and for the files of ``dlio_config``."""


def read_runs(space: Workspace, folder: Path, kind: str) -> tuple[list[SubmittedRun], list[SubmissionFault]]:
    """Read the runs in a directory.

    Args:
        space: the part of the tree.
        folder: with a directory for each run.
        kind: ``training_datagen``, ``training_run`` or ``checkpointing_run``.

    Returns:
        The runs in the order of their names, and the faults of their files.

    Raises:
        OSError: a directory can not be listed.
    """
    runs: list[SubmittedRun] = []
    faults: list[SubmissionFault] = []
    for name in folders(folder):
        if name != "code":
            faults += _named_files(space, folder / name, kind)
            (summary, wrong), (metadata, others) = (
                _only_object(folder / name, pattern) for pattern in ("*summary.json", "*_metadata.json")
            )
            runs.append(SubmittedRun(folder / name, summary, metadata))
            faults += [space.fault(path, _RULES[kind][1], said) for path, said in (*wrong, *others)]
    return runs, faults


def _named_files(space: Workspace, folder: Path, kind: str) -> Iterator[SubmissionFault]:
    stamp, files, config = _RULES[kind]
    if not _STAMP.fullmatch(folder.name):
        yield space.fault(folder, stamp, "its name is no YYYYMMDD_HHmmss")
    found = {one.name for one in folder.iterdir() if one.is_file()}
    for name in (f"{kind}.stdout.log", f"{kind}.stderr.log", "dlio.log"):
        if name not in found:
            yield space.fault(folder / name, files, "it is missing")
    for end in _OUTPUTS:
        if not any(name.endswith(end) for name in found):
            yield space.fault(folder / f"*{end}", files, "there is no such file")
    inside = folder / "dlio_config"
    if not inside.is_dir():
        yield space.fault(inside, files, "it is missing")
        return
    there = {one.name for one in inside.iterdir()}
    if there != _CONFIG:
        yield space.fault(inside, config, f"it has {', '.join(sorted(there))}; wanted are {', '.join(sorted(_CONFIG))}")


Wrong = tuple[tuple[Path, str], ...]
"""Files, each with its fault."""


def _only_object(folder: Path, pattern: str) -> tuple[Mapping[str, Any], Wrong]:
    found = [one for one in sorted(folder.glob(pattern)) if one.is_file()]
    if len(found) != 1:
        return {}, ((folder / pattern, f"there are {len(found)} such files, one is wanted"),)
    return read_object(found[0])


def read_object(path: Path) -> tuple[Mapping[str, Any], Wrong]:
    """The JSON object in a file, empty where there is no file or it has a fault; and the faults."""
    if not path.is_file():
        return {}, ()
    try:
        if path.stat().st_size > _MOST_BYTES:
            return {}, ((path, f"it has more than {_MOST_BYTES} bytes"),)
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        return {}, ((path, f"it is no JSON: {str(error)[:120]}"),)
    return (found, ()) if isinstance(found, dict) else ({}, ((path, "it is no JSON object"),))
