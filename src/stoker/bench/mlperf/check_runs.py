"""A checker of the runs in a submission: what they say of the rules, one after the other and together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Final

from stoker.bench.mlperf.editions import CHECKPOINTS, GROUPS, LEAST_PER_HOST, RANKS, SUBSET_RANKS
from stoker.bench.mlperf.submitted import (
    SubmissionFault,
    SubmittedRun,
    Workspace,
    dig,
    folders,
    number_of,
    read_object,
    read_runs,
)
from stoker.bench.size.rules import MEMORIES, STEPS

_GIB: Final = float(1 << 30)
_CHANGEABLE: Final = frozenset(
    {
        *("dataset.num_files_train", "dataset.num_subfolders_train", "dataset.data_folder", "dataset.total_disk_bytes"),
        *("dataset.skip_listing", "dataset.listing_validation_interval", "reader.read_threads"),
        *("reader.computation_threads", "reader.transfer_size", "reader.prefetch_size", "reader.odirect"),
        *("storage.storage_root", "storage.storage_type", "storage.storage_library", "checkpoint.checkpoint_folder"),
        *("storage.storage_options.prefetch_window", "checkpoint.num_checkpoints_write"),
        *("checkpoint.num_checkpoints_read", "checkpoint.mode", "model.parallelism.data"),
    }
)
"""DLIO's keys that a run of the closed division may override, or that ``mlpstorage`` overrides itself."""
_IN_OPEN: Final = frozenset({"framework", "dataset.format", "dataset.num_samples_per_file", "reader.data_loader"})
_DF: Final = re.compile(r"^Filesystem\s+\S+\s+Used\s+Avail\w*\s+Use%\s+Mounted on\s*\n((?:.+\n?)*)", re.MULTILINE)
_TRAINING_PATHS: Final = ("3.4.1 trainingMlpstoragePathArgs", "3.4.2 trainingMlpstorageFilesystemCheck")
_CHECKPOINT_PATHS: Final = ("4.4.1 checkpointPathArgs", "4.4.2 checkpointFilesystemCheck")
_MOST_LOG: Final = 1 << 26
_SLACK: Final = 2
"""Times the length of a run that may lie between the starts of two."""
_CALLOUT: Final = 30
"""Seconds between writing and reading checkpoints in two runs."""
_NAMEPLATE: Final = 0.1


# -- the directories of a workload ---------------------------------------------------------------------------------


def check_training(space: Workspace, where: Path) -> Iterator[SubmissionFault]:
    """Faults of a training workload's directory."""
    rule = "2.1.12 trainingPhases"
    wanted = ("datagen", "run", *(("datasize",) if space.edition.name == "v3" else ()))
    found = [name for name in folders(where) if not name.startswith(".") and name != "code"]
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
            f"it has {len(runs)} runs, {many} are wanted, the first of {most} a warm-up",
        )
    yield from _gaps(space, runs)
    for run in runs:
        yield from _trained(space, run, where.name)
        yield from _shared(
            space, run, "data_dir", "3.4.1 trainingMlpstoragePathArgs", "3.4.2 trainingMlpstorageFilesystemCheck"
        )
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
            f"it has {len(runs)} runs, one or two (saving, then loading) are wanted",
        )
    for run in runs:
        yield from _saved(space, run, where.name)
        yield from _shared(
            space, run, "checkpoint_folder", "4.4.1 checkpointPathArgs", "4.4.2 checkpointFilesystemCheck"
        )
    yield from _both_phases(space, runs, where)


# -- what runs say -------------------------------------------------------------------------------------------------


def _gaps(space: Workspace, runs: list[SubmittedRun]) -> Iterator[SubmissionFault]:
    """Runs follow each other so closely that none lies between them."""
    rule = "2.1.18 runTimestampGap"
    known = [(run, run.moment("start"), run.moment("end")) for run in runs if run.summary]
    for run, start, end in known:
        if start is None or end is None or end < start:
            yield space.fault(run.folder / "summary.json", rule, "start and end are no two moments")
    spans = [(run, start, end) for run, start, end in known if start is not None and end is not None]
    shortest = min(((end - start).total_seconds() for _, start, end in spans), default=0.0)
    for (_, before, _), (run, start, _) in pairwise(spans):
        gap = (start.replace(tzinfo=None) - before.replace(tzinfo=None)).total_seconds()
        if gap >= max(_SLACK * shortest, 1.0):
            yield space.fault(
                run.folder,
                rule,
                f"it began {gap:.0f} s after the run before, of which the shortest took {shortest:.0f} s",
            )


def _trained(space: Workspace, run: SubmittedRun, model: str) -> Iterator[SubmissionFault]:
    if not run.summary or not run.metadata:
        return
    summary, metadata = run.folder / "summary.json", run.folder
    samples, record, batch = (
        run.parameter("dataset", "num_samples_per_file") or 1.0,
        run.parameter("dataset", "record_length_bytes"),
        run.parameter("reader", "batch_size"),
    )
    files, ranks, hosts = (
        run.parameter("dataset", "num_files_train"),
        run.number("num_accelerators"),
        run.number("num_hosts"),
    )
    if not files or not record or not batch or not ranks or not hosts:
        yield space.fault(
            metadata,
            "3.1.1 trainingVerifyDatasizeUsage",
            "number of files, samples of a file, bytes of a sample, batch, accelerators and hosts are not all said",
        )
        return
    memory = run.summary.get("host_memory_GB")
    total = sum(one for one in memory if isinstance(one, int | float)) if isinstance(memory, list) else 0.0
    needed = max(STEPS * batch * ranks, MEMORIES * total * _GIB / record) / samples
    if files < int(needed):
        yield space.fault(
            metadata,
            "3.1.2 trainingRecalculateDatasetSize",
            f"{files:.0f} files, {ceil(needed)} are wanted at least: {STEPS} steps, and {MEMORIES} times {total:.4g} GiB",
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


def _shared(space: Workspace, run: SubmittedRun, key: str, paths: str, apart: str) -> Iterator[SubmissionFault]:
    """Rules for training and checkpoints alike."""
    if not run.metadata:
        return
    data, results = run.args.get(key), run.args.get("results_dir")
    if not data or not results or data == results:
        yield space.fault(run.folder, paths, f"{key} is {data!r} and results_dir is {results!r}: two paths are wanted")
    if run.args.get("data_access_protocol") != "object":
        yield from _separated(space, run, str(data), str(results), apart)
    allowed = _CHANGEABLE | (_IN_OPEN if space.division == "open" else frozenset())
    for name in run.overrides:
        if name not in allowed:
            number = "3.6.2 trainingClosed" if space.division == "closed" else "3.6.3 trainingOpen"
            yield space.fault(
                run.folder, f"{number}SubmissionParameters", f"{name} may not be changed, it is {run.overrides[name]}"
            )
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
    text = logs[0].read_bytes()[:_MOST_LOG].decode("utf-8", "replace") if logs else ""
    found = _DF.search(text)
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
    """Hosts and memory are those of the system's description."""
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
    memory, plate = run.summary.get("host_memory_GB"), number_of(dig(clients[0], "chassis", "memory_capacity"))
    if len(clients) == 1 and isinstance(memory, list) and hosts and plate:
        mean = sum(one for one in memory if isinstance(one, int | float)) / hosts
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
    memory = run.summary.get("host_memory_GB")
    total = sum(one for one in memory if isinstance(one, int | float)) if isinstance(memory, list) else 0.0
    if size and size < 3 * total:
        yield SubmissionFault(
            space.name(where),
            "4.3.1 checkpointDataSizeRatio",
            f"a checkpoint has {size:.4g} GiB, less than 3 times the {total:.4g} GiB of memory: caches must be emptied",
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
    """Ten checkpoints are saved and loaded: by one run, or by two, one soon after the other."""
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
        ended = str(runs[0].metadata.get("invocation_end_time") or runs[0].summary.get("end"))
        began = str(runs[1].metadata.get("invocation_start_time") or runs[1].summary.get("start"))
        try:
            gap = (datetime.fromisoformat(began) - datetime.fromisoformat(ended)).total_seconds()
        except (ValueError, TypeError):
            yield space.fault(where, rule, "when saving ended and loading began is not said")
            return
        if not 0 <= gap <= _CALLOUT:
            yield space.fault(
                runs[1].folder,
                rule,
                f"loading began {gap:.0f} s after saving had ended, {_CALLOUT} s at most are wanted",
            )
