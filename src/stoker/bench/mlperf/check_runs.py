"""Checks of the runs in a submission: each run by itself, and the runs of a workload together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from stoker.bench.mlperf.editions import CHECKPOINTS, GROUPS, LEAST_PER_HOST, RANKS, SUBSET_RANKS
from stoker.bench.mlperf.parameters import may_override
from stoker.bench.mlperf.read_runs import (
    SubmissionFault,
    SubmittedRun,
    Workspace,
    dig,
    folders,
    head_of,
    moment_of,
    number_of,
    read_object,
    read_runs,
)
from stoker.bench.size.rules import MEMORIES, STEPS
from stoker.display import counted
from stoker.units import GIB

_DF: Final = re.compile(r"^Filesystem\s+\S+\s+Used\s+Avail\w*\s+Use%\s+Mounted on\s*\n((?:.+\n?)*)", re.MULTILINE)
_MOST_LOG: Final = 1 << 26
_SLACK: Final = 2
"""Times the length of a run that may lie between the starts of two."""
_CALLOUT: Final = 30
"""Seconds between writing and reading checkpoints in two runs."""
_NAMEPLATE: Final = 0.1
"""Part by which a host's memory may differ from that of the system's description."""


class _CommonRules(NamedTuple):
    """Names of the rules that training and checkpoints have alike.

    Attributes:
        paths: data and results have two paths.
        apart: they are on two file systems.
        closed, open: of the division, for the parameters that may be changed.
    """

    paths: str
    apart: str
    closed: str
    open: str


_TRAINING: Final = _CommonRules(
    "3.4.1 trainingMlpstoragePathArgs",
    "3.4.2 trainingMlpstorageFilesystemCheck",
    "3.6.2 trainingClosedSubmissionParameters",
    "3.6.3 trainingOpenSubmissionParameters",
)
_CHECKPOINTING: Final = _CommonRules(
    "4.4.1 checkpointPathArgs",
    "4.4.2 checkpointFilesystemCheck",
    "4.6.3 checkpointClosedCheckpointParameters",
    "4.6.4 checkpointOpenSubmissionScaling",
)


# -- the directories of a workload ---------------------------------------------------------------------------------


def check_training(space: Workspace, where: Path) -> Iterator[SubmissionFault]:
    """Faults of a training workload's directory."""
    rule = "2.1.12 trainingPhases"
    wanted = ("datagen", "run", *(("datasize",) if space.edition.name == "v3" else ()))
    found = [name for name in folders(where) if name != "code"]
    for name in wanted:
        if name not in found:
            # Trees of v3.0 were accepted without.
            yield SubmissionFault(space.name(where / name), rule, "it is missing", remark=name == "datasize")
    for name in found:
        if name not in wanted:
            yield space.fault(where / name, rule, f"only {', '.join(wanted)} are here")
    made: list[SubmittedRun] = []
    if "datagen" in found:
        made, faults = read_runs(space, where / "datagen", "training_datagen")
        yield from faults
        if len(made) != 1:
            yield space.fault(
                where / "datagen", "2.1.13 datagenTimestamp", f"it has {len(made)} directories, one is wanted"
            )
    if "run" not in found:
        return
    runs, faults = read_runs(space, where / "run", "training_run")
    yield from faults
    if not (where / "run" / "results.json").is_file():
        yield space.fault(where / "run" / "results.json", "2.1.16 runResultsJson", "it is missing")
    least, most = space.edition.runs
    if not least <= len(runs) <= most:
        many = str(most) if least == most else f"{least} or {most}"
        yield space.fault(
            where / "run",
            "2.1.17 runTimestamps",
            f"it has {counted(len(runs), 'run')}, {many} are wanted, the first of {most} a warm-up",
        )
    yield from _gaps(space, runs)
    for run in runs:
        yield from _trained(space, run, where.name)
        yield from _common(space, run, "data_dir", _TRAINING)
    yield from _enough_made(space, made, runs)


def check_checkpoints(space: Workspace, where: Path) -> Iterator[SubmissionFault]:
    """Faults of the directory of a model's checkpoints."""
    runs, faults = read_runs(space, where, "checkpointing_run")
    yield from faults
    if not (where / "results.json").is_file():
        yield space.fault(where / "results.json", "2.1.22 checkpointingResultsJson", "it is missing")
    if len(runs) not in (1, 2):
        yield space.fault(
            where,
            "2.1.23 checkpointingTimestamps",
            f"it has {counted(len(runs), 'run')}, one or two (saving, then loading) are wanted",
        )
    for run in runs:
        yield from _saved(space, run, where.name)
        yield from _common(space, run, "checkpoint_folder", _CHECKPOINTING)
    yield from _both_phases(space, runs, where)


# -- the runs ----------------------------------------------------------------------------------------------------


def _gaps(space: Workspace, runs: list[SubmittedRun]) -> Iterator[SubmissionFault]:
    """Faults of runs between which another run may have been left out."""
    rule = "2.1.18 runTimestampGap"
    known = [(run, run.moment("start"), run.moment("end")) for run in runs if run.summary]
    for run, start, end in known:
        if start is None or end is None or end < start:
            yield space.fault(run.folder / "summary.json", rule, "start and end are no two moments")
    spans = [(run, start, end) for run, start, end in known if start is not None and end is not None]
    shortest = min(((end - start).total_seconds() for _, start, end in spans), default=0.0)
    for (_, before, _), (run, start, _) in pairwise(spans):
        gap = (start - before).total_seconds()
        if gap >= max(_SLACK * shortest, 1.0):
            yield space.fault(
                run.folder,
                rule,
                f"it began {gap:.0f} s after the start of the run before; the shortest run took {shortest:.0f} s",
            )


def _trained(space: Workspace, run: SubmittedRun, model: str) -> Iterator[SubmissionFault]:
    if not run.summary or not run.metadata:
        return
    summary, metadata = run.folder / "summary.json", run.folder
    sizes = (
        run.parameter("dataset", "num_files_train"),
        run.parameter("dataset", "num_samples_per_file") or 1.0,
        run.parameter("dataset", "record_length_bytes"),
        run.parameter("reader", "batch_size"),
        run.number("num_accelerators"),
        run.number("num_hosts"),
        run.memory,
    )
    known = [one for one in sizes if one is not None and one > 0]
    if len(known) < len(sizes):
        yield space.fault(
            metadata,
            "3.1.1 trainingVerifyDatasizeUsage",
            "number of files, samples of a file, bytes of a sample, batch, accelerators, hosts and their memory are not all "
            "said, as numbers above 0",
        )
        return
    files, samples, record, batch, ranks, hosts, memory = known
    needed = max(STEPS * batch * ranks, MEMORIES * memory * GIB / record) / samples
    if files + 1 <= needed:  # rounded down, as MLPerf's own script does
        yield space.fault(
            metadata,
            "3.1.2 trainingRecalculateDatasetSize",
            f"{files:.0f} files, {needed // 1:.0f} are wanted at least: {STEPS} steps, and {MEMORIES} times "
            f"{memory:.4g} GiB",
        )
    counted = run.number("num_files_train")
    if counted != files:
        yield space.fault(
            summary, "3.3.1 trainingRunDataMatchesDatasize", f"it says {counted} files, the parameters say {files:.0f}"
        )
    au, least = run.number("metric", "train_au_mean_percentage"), space.edition.utilization.get(model)
    said = dig(run.summary, "metric", "train_au_meet_expectation")
    if au is None or said != "success" or (least is not None and au < 100 * least):
        yield space.fault(
            summary,
            "3.3.2 trainingAcceleratorUtilizationCheck",
            f"the utilization is {'not said' if au is None else f'{au:.2f} %'} ({said}), "
            f"{'success' if least is None else f'{100 * least:.0f} %'} is wanted",
        )
    named = run.args.get("hosts")
    if hosts == 1 and isinstance(named, list) and len(named) > 1:
        yield space.fault(metadata, "3.3.4 trainingSingleHostClientLimit", f"one host, and {len(named)} are named")
    if ranks % hosts:
        yield space.fault(
            summary, "3.3.6 trainingIdenticalAcceleratorsPerNode", f"{ranks:.0f} accelerators on {hosts:.0f} hosts"
        )


def _enough_made(space: Workspace, made: list[SubmittedRun], runs: list[SubmittedRun]) -> Iterator[SubmissionFault]:
    wanted = max((run.parameter("dataset", "num_files_train") or 0.0 for run in runs), default=0.0)
    for one in made:
        files = one.parameter("dataset", "num_files_train")
        if one.metadata and files is not None and files < wanted:
            yield space.fault(
                one.folder,
                "3.2.1 trainingDatagenMinimumSize",
                f"{files:.0f} files were made, {wanted:.0f} are trained on",
            )


def _common(space: Workspace, run: SubmittedRun, key: str, rules: _CommonRules) -> Iterator[SubmissionFault]:
    """Faults by the rules that training and checkpoints have alike; ``key`` is the argument that names the data."""
    if not run.metadata:
        return
    data, results = run.args.get(key), run.args.get("results_dir")
    if not data or not results or data == results:
        yield space.fault(
            run.folder, rules.paths, f"{key} is {data!r} and results_dir is {results!r}: two paths are wanted"
        )
    if run.args.get("data_access_protocol") != "object":
        yield from _separated(space, run, str(data), str(results), rules.apart)
    rule = rules.closed if space.division == "closed" else rules.open
    for name in run.overrides:
        if not may_override(name, space.division):
            yield space.fault(run.folder, rule, f"{name} may not be changed, it is {run.overrides[name]}")
    verdict = str(run.metadata.get("verification", space.division)).lower()
    if verdict != space.division and not (verdict == "closed" and space.division == "open"):
        yield space.fault(run.folder, "1 verification", f"the run says of itself that it is {verdict}")
    yield from _as_described(space, run)


def _separated(space: Workspace, run: SubmittedRun, data: str, results: str, rule: str) -> Iterator[SubmissionFault]:
    said, wrong = read_object(run.folder / "fs_separation.json")
    for path, reason in wrong:
        yield space.fault(path, rule, reason)
    if said or wrong:
        if said and said.get("same_filesystem") is not False:
            yield space.fault(
                run.folder / "fs_separation.json", rule, "data and results are on one file system, two are wanted"
            )
    else:
        yield from _by_df(space, run, data, results, rule)


def _by_df(space: Workspace, run: SubmittedRun, data: str, results: str, rule: str) -> Iterator[SubmissionFault]:
    logs = sorted(run.folder.glob("*_run.stdout.log"))
    found = _DF.search(head_of(logs[0], _MOST_LOG)) if logs else None
    if found is None:
        yield space.fault(
            run.folder, rule, "neither fs_separation.json nor df in the log says where data and results are"
        )
        return
    mounts = [line.split()[-1] for line in found[1].splitlines() if len(line.split()) >= 6]
    of = [
        max((one for one in mounts if path == one or path.startswith(one.rstrip("/") + "/")), key=len, default=None)
        for path in (data, results)
    ]
    if of[0] is not None and of[0] == of[1]:
        yield space.fault(logs[0], rule, f"data and results are both on {of[0]}, two file systems are wanted")


def _as_described(space: Workspace, run: SubmittedRun) -> Iterator[SubmissionFault]:
    """Faults where hosts and memory are not those of the system's description."""
    clients = dig(space.description, "system_under_test", "clients")
    if not isinstance(clients, list) or not run.summary:
        return
    rule, hosts = "2.1.9 identicalSystemConfig", run.number("num_hosts")
    wanted = sum(number_of(dig(one, "quantity")) or 0.0 for one in clients)
    if hosts is not None and hosts != wanted:
        yield space.fault(
            run.folder / "summary.json", rule, f"{hosts:.0f} hosts, the description has {wanted:.0f} clients"
        )
    if (
        dig(space.description, "system_under_test", "solution", "capabilities", "multi_host") is False
        and (hosts or 0) > 1
    ):
        yield space.fault(run.folder / "summary.json", rule, f"{hosts:.0f} hosts, and multi_host is false")
    plate = number_of(dig(clients[0], "chassis", "memory_capacity")) if len(clients) == 1 else None
    if hosts and plate:
        mean = run.memory / hosts
        if mean and abs(mean - plate) > _NAMEPLATE * plate:
            yield space.fault(
                run.folder / "summary.json", rule, f"a host has {mean:.1f} GiB, the description says {plate:.0f}"
            )


def _saved(space: Workspace, run: SubmittedRun, model: str) -> Iterator[SubmissionFault]:
    if not run.summary or not run.metadata:
        return
    where, ranks, hosts = run.folder, run.number("num_accelerators") or 0.0, run.number("num_hosts") or 1.0
    if not dig(run.parameters, "checkpoint", "fsync"):
        yield space.fault(where, "4.3.2 checkpointFsyncVerification", "checkpoint.fsync is not true")
    size = run.number("metric", "checkpoint_size_GB") or 0.0
    if size and size < 3 * run.memory:
        yield SubmissionFault(
            space.name(where),
            "4.3.1 checkpointDataSizeRatio",
            f"a checkpoint has {size:.4g} GiB, less than 3 times the {run.memory:.4g} GiB of memory: "
            "caches must be emptied",
            remark=True,
        )
    accelerator = str(run.args.get("accelerator_type") or "")
    each = space.edition.accelerators.get(accelerator)
    if each is None:
        yield SubmissionFault(
            space.name(where), "4.3.4 checkpointAggregateAcceleratorMemory", "no accelerator is named", remark=True
        )
    elif size > each * ranks:
        yield space.fault(
            where,
            "4.3.4 checkpointAggregateAcceleratorMemory",
            f"{ranks:.0f} {accelerator} of {each} GB hold less than {size:.5g} GiB",
        )
    whole = RANKS.get(model)
    if whole is None:
        return
    if space.division == "open":
        if not ranks or ranks % GROUPS[model]:
            yield space.fault(
                where,
                "4.6.4 checkpointOpenSubmissionScaling",
                f"{ranks:.0f} ranks, a multiple of {GROUPS[model]} is wanted",
            )
        return
    if ranks != whole and not (ranks == SUBSET_RANKS and model in space.edition.subsets):
        yield space.fault(where, "4.6.1 checkpointClosedMpiProcesses", f"{ranks:.0f} ranks, {whole} are wanted")
    if ranks / hosts < LEAST_PER_HOST:
        yield space.fault(
            where,
            "4.6.2 checkpointClosedAcceleratorsPerHost",
            f"{ranks / hosts:.3g} accelerators a host, {LEAST_PER_HOST} are wanted at least",
        )


def _both_phases(space: Workspace, runs: list[SubmittedRun], where: Path) -> Iterator[SubmissionFault]:
    """Faults unless ten checkpoints were saved and loaded, by one run or by two, of which the second followed soon."""
    rule = "4.7.1 checkpointCacheFlushValidation"
    counts = [
        tuple(int(number_of(run.args.get(f"num_checkpoints_{kind}")) or 0) for kind in ("write", "read"))
        for run in runs
        if run.metadata
    ]
    if len(counts) != len(runs) or not runs or space.division == "open":
        return
    wanted = {
        ((CHECKPOINTS, CHECKPOINTS),),
        ((CHECKPOINTS, 0), (0, CHECKPOINTS)),
    }
    if tuple(counts) not in wanted:
        seen = ", then ".join(f"{saved} saved and {loaded} loaded" for saved, loaded in counts)
        yield space.fault(where, rule, f"{seen}; wanted are {CHECKPOINTS} of each, in one run or in two")
    elif len(runs) == 2:
        ended = runs[0].moment("end")
        began = moment_of(runs[1].metadata.get("invocation_start_time")) or runs[1].moment("start")
        if ended is None or began is None:
            yield space.fault(where, rule, "when saving ended and loading began is not said")
            return
        gap = (began - ended).total_seconds()
        if not 0 <= gap <= _CALLOUT:
            yield space.fault(
                runs[1].folder,
                rule,
                f"loading began {gap:.0f} s after saving had ended, {_CALLOUT} s at most are wanted",
            )
