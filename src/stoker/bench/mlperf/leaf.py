"""The files of ``mlpstorage`` and DLIO for runs of stoker, which MLCommons' own tools read.

One call lays runs out, see :func:`lay_out`; checking and packing a submission is MLCommons' own ``mlpstorage``.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from stoker.bench.mlperf.dlio_form import dlio_parameters, moment, rank_epochs, rank_output
from stoker.bench.mlperf.editions import Edition, MlperfDivision, checkpoint_model, named_rules, published
from stoker.bench.mlperf.parameters import changes, dlio_name
from stoker.bench.mlperf.verdict import same_volume
from stoker.bench.results.report_files import RunFiles, find_runs
from stoker.bench.results.summary import dlio_summary
from stoker.bench.settings.schema import build, tree_of
from stoker.bench.settings.workload import Workload
from stoker.bench.settings.yaml import write_yaml
from stoker.errors import ConfigError
from stoker.storage.files.file_errors import file_errors
from stoker.units import GIB

Command = Literal["datasize", "datagen", "run"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One run of a command.

    Attributes:
        run: the results.
        command: the command of ``mlpstorage`` that leaves such a directory.
        repeat: the number of the training in the results, from 0; ``None`` where the leaf is no training.
        edition, division: they decide the form.
        valid: whether the results break no rule.
    """

    run: RunFiles
    command: Command
    repeat: int | None
    edition: Edition
    division: MlperfDivision
    valid: bool

    @property
    def workload(self) -> Workload:
        """The settings of the run."""
        return workload_of(self.run)

    @property
    def benchmark(self) -> str:
        """``training`` or ``checkpointing``."""
        return "checkpointing" if checkpoint_model(self.workload.name) is not None else "training"

    @property
    def model(self) -> str:
        """MLPerf's name of the workload."""
        return checkpoint_model(self.workload.name) or self.workload.name

    @property
    def epochs(self) -> list[Mapping[str, Any]]:
        """The epochs of the training."""
        if self.command != "run":
            return []
        return [one for one in self.run.result["epochs"] if one["kind"] == "train" and one["repeat"] == self.repeat]

    @property
    def checkpoints(self) -> list[Mapping[str, Any]]:
        """The complete checkpoints, saved ones first."""
        found = self.run.result["checkpoint"] if self.command == "run" and self.repeat is None else None
        return [] if found is None else [one for one in (*found["saves"], *found["loads"]) if one["complete"]]

    @property
    def span(self) -> tuple[float, float]:
        """Beginning and end, in seconds since 1970."""
        parts = self.epochs or self.checkpoints
        if not parts:
            began = datetime.fromisoformat(self.run.result["began"]).timestamp()
            return began, began + float((self.run.result["generate"] or {}).get("seconds", 0))
        return min(one["began_at"] for one in parts), max(one["ended_at"] for one in parts)


def workload_of(run: RunFiles) -> Workload:
    """The settings of a run.

    Raises:
        ConfigError: this version of stoker does not know one of them.
    """
    return build(Workload, tree_of(run.workload, str(run.folder)))


def lay_out(folders: Sequence[str | Path], out: str | Path) -> list[Path]:
    """Write what ``mlpstorage`` and DLIO leave of runs, below ``out``: ``<kind>/<model>/<command>/<moment>/``.

    Args:
        folders: results of runs with ``metric.rules`` of MLPerf Storage; those of a training with the generation of its data
            have it written, too.
        out: the folder, such as ``closed/<organization>/results/<system>``.

    Returns:
        The folders of the runs, in the order of their time.

    Raises:
        ConfigError: there are no results, they have other rules or stages, or the folder of a run is there already.
        StorageError: a file can not be written.
    """
    written: list[Path] = []
    last = 0
    for run in sorted(find_runs(folders), key=lambda one: str(one.result["began"])):
        workload = workload_of(run)
        if {"kv_cache", "vectors"} & set(workload.stages):
            raise ConfigError(f"{run.folder}: mlpstorage has no such files of KV caches and vectors: leave it out")
        # Several results may together have as many runs as the rules want: mlpstorage counts them.
        broken = [one for one in run.result["findings"] if one["invalid"] and one["rule"] != "mlperf runs"]
        first = Leaf(run, "run", None, *named_rules(workload.metric.rules), not broken)
        for leaf in _commands(first):
            # Two runs may begin in one second, as in a rehearsal.
            last = max(last + 1, int(leaf.span[0]))
            command = () if leaf.benchmark == "checkpointing" else (leaf.command,)
            folder = Path(out, leaf.benchmark, leaf.model, *command, moment(last).strftime("%Y%m%d_%H%M%S"))
            if folder.exists():
                raise ConfigError(f"{folder} is there already: give another folder, or remove it")
            with file_errors(folder):
                write_leaf(leaf, folder)
            written.append(folder)
    return written


def _commands(leaf: Leaf) -> list[Leaf]:
    """The commands of ``mlpstorage`` that do what a run did."""
    if leaf.benchmark == "checkpointing":
        return [leaf] if leaf.checkpoints else []
    found = [replace(leaf, command="datagen")] if leaf.run.result["generate"] is not None else []
    if found and leaf.edition.name == "v3":
        found.append(replace(leaf, command="datasize"))
    return found + [
        replace(leaf, repeat=one["repeat"]) for one in leaf.run.result["repeats"] if one["train"] is not None
    ]


def write_leaf(leaf: Leaf, folder: Path) -> None:
    """Write the directory of a run, whose name is its moment, ``YYYYMMDD_HHmmss``.

    Raises:
        OSError: it could not be written.
    """
    folder.mkdir(parents=True)
    name = folder.name
    parameters = _parameters(leaf)
    overrides = _overrides(leaf)
    _json(folder / f"{leaf.benchmark}_{name}_metadata.json", _metadata(leaf, name, parameters, overrides))
    if leaf.command == "datasize":
        return
    configured = folder / "dlio_config"
    configured.mkdir()
    listed = [f"workload={leaf.model}", *(f"++workload.{path}={value}" for path, value in overrides.items())]
    for file, content in (
        ("config.yaml", {"workload": parameters}),
        ("hydra.yaml", {"hydra": {"run": {"dir": str(leaf.run.folder)}, "job": {"name": "stoker bench run"}}}),
        ("overrides.yaml", listed),
    ):
        (configured / file).write_text(write_yaml(content))
    separation = _separation(leaf)
    if separation is not None:
        _json(folder / "fs_separation.json", separation)
    summary = _summary(leaf)
    _json(folder / "summary.json", summary)
    epochs, checkpoints = leaf.epochs, leaf.checkpoints
    for rank in range(leaf.run.result["world"]["ranks"] if leaf.command == "run" else 1):
        output = rank_output(leaf.run.result, leaf.run.folder, rank, epochs)
        _json(folder / f"{rank}_output.json", output)
        _json(folder / f"{rank}_per_epoch_stats.json", rank_epochs(rank, epochs, checkpoints))
    _logs(leaf, folder, summary)


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _parameters(leaf: Leaf) -> dict[str, Any]:
    made = dlio_parameters(leaf.workload, leaf.run.result["plan"]["url"], generating=leaf.command == "datagen")
    if leaf.benchmark == "checkpointing":
        for section in ("dataset", "reader", "train", "metric"):
            made.pop(section, None)
    if leaf.command == "datasize":
        dataset = leaf.workload.dataset
        made["dataset"]["total_disk_bytes"] = dataset.files * dataset.samples_per_file * dataset.sample_bytes
    return made


def _overrides(leaf: Leaf) -> dict[str, Any]:
    """The settings that differ from the published workload, in DLIO's keys."""
    found = published(leaf.workload, leaf.edition)
    made = {} if found is None else {dlio_name(one.path): one.seen for one in changes(leaf.workload, found[1])}
    url = leaf.run.result["plan"]["url"]
    if leaf.benchmark == "checkpointing":
        return {**made, "checkpoint.checkpoint_folder": leaf.workload.checkpoint.url or url}
    return {**made, "dataset.data_folder": url}


def _metadata(leaf: Leaf, name: str, parameters: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    result, workload = leaf.run.result, leaf.workload
    ranks, hosts = result["world"]["ranks"], result["world"]["hosts"]
    memory = [next(one for one in result["ranks"] if one["host"] == host) for host in hosts]
    url = result["plan"]["url"]
    began, ended = leaf.span
    args: dict[str, Any] = {
        "mode": leaf.division,
        "benchmark": leaf.benchmark,
        "model": leaf.model,
        "command": leaf.command,
        "hosts": hosts,
        "num_processes": ranks,
        "client_host_memory_in_gb": max(one["memory_bytes"] for one in memory) / GIB,
        "num_client_hosts": len(hosts),
        "data_access_protocol": "file" if result["storage"]["local"] else "object",
        "results_dir": result["plan"]["results"],
        "params": [f"{path}={value}" for path, value in overrides.items()],
        "accelerator_type": _accelerator(leaf),
    }
    if leaf.benchmark == "checkpointing":
        writes, reads = (sum(one["kind"] == kind for one in leaf.checkpoints) for kind in ("save", "load"))
        args |= {"num_checkpoints_write": writes, "num_checkpoints_read": reads}
        args["checkpoint_folder"] = workload.checkpoint.url or f"{url.rstrip('/')}/checkpoints"
    else:
        key = "max_accelerators" if leaf.command == "datasize" else "num_accelerators"
        args |= {key: ranks, "data_dir": url}
    # The checkers of v2 read other names of the same.
    names = ("parameters", "override_parameters") if leaf.edition.name == "v3" else ("combined_params", "params_dict")
    return {
        "benchmark_type": leaf.benchmark,
        "model": leaf.model,
        "command": leaf.command,
        "run_datetime": name,
        "num_processes": ranks,
        "accelerator": args["accelerator_type"],
        "result_dir": str(leaf.run.folder),
        names[0]: parameters,
        names[1]: dict(overrides),
        "system_info": {
            "total_memory_bytes": sum(one["memory_bytes"] for one in memory),
            "total_cores": sum(one["processors"] for one in memory),
            "num_hosts": len(hosts),
            "hosts": [
                {
                    "hostname": one["host"],
                    "memory": {"total": one["memory_bytes"]},
                    "cpu": {"num_logical_cores": one["processors"], "model": result["environment"]["processor"]},
                }
                for one in memory
            ],
        },
        "runtime": ended - began,
        "invocation_start_time": moment(began).isoformat(),
        "invocation_end_time": moment(ended).isoformat(),
        "verification": leaf.division if leaf.valid else "invalid",
        "executed_command": shlex.join(result["plan"]["command"]),
        "tool": {"name": "stoker", "version": result["environment"]["versions"].get("stoker"), "run": result["run"]},
        "args": args,
    }


def _accelerator(leaf: Leaf) -> str | None:
    if leaf.workload.accelerator != "none":
        return leaf.workload.accelerator
    found = published(leaf.workload, leaf.edition)
    return None if found is None or found[1].accelerator == "none" else found[1].accelerator


def _volumes(leaf: Leaf) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    volumes = leaf.run.result["storage"]["volumes"]
    data = (volumes["checkpoints"] if leaf.benchmark == "checkpointing" else None) or volumes["data"]
    return None if data is None or volumes["results"] is None else (data, volumes["results"])


def _separation(leaf: Leaf) -> dict[str, Any] | None:
    """``fs_separation.json``: whether data and results are on one file system; ``None`` of an object store."""
    found = _volumes(leaf)
    if found is None:
        return None
    plan = leaf.run.result["plan"]
    return {
        "version": 1,
        "method": "st_dev",
        "data_or_chkpt_path": plan["url"],
        "results_path": plan["results"],
        "same_filesystem": same_volume(*found),
        "probed_at": moment(leaf.span[0]).isoformat(),
        "probed_by_rank": 0,
        "probed_by_host": leaf.run.result["environment"]["host"],
    }


def _summary(leaf: Leaf) -> dict[str, Any]:
    epochs = leaf.epochs
    least = leaf.edition.utilization.get(leaf.workload.name, leaf.workload.metric.au)
    passed = bool(epochs) and all(
        fmean([one[name] for one in epochs if one[name] is not None] or [0.0]) >= least for name in ("au", "au_nominal")
    )
    result = leaf.run.result
    # Judged anew: the results of a part of the runs break rules that all runs together keep.
    judged = {
        "epochs": epochs,
        "passed": passed and leaf.valid,
        "valid": leaf.valid,
        "verdict": "invalid"
        if not leaf.valid
        else result["verdict"]
        if not epochs
        else "passed"
        if passed
        else "not passed",
        "findings": [] if leaf.valid else result["findings"],
    }
    made = dlio_summary({**result, **judged})
    began, ended = leaf.span
    return {**made, "start": moment(began).isoformat(), "end": moment(ended).isoformat()}


def _logs(leaf: Leaf, folder: Path, summary: Mapping[str, Any]) -> None:
    """Write the logs: the command, the findings, the numbers, and the file systems in the form of ``df``."""
    result = leaf.run.result
    lines = [
        f"{summary['start']} stoker bench run, run {result['run']}: {shlex.join(result['plan']['command'])}",
        f"{summary['start']} {result['world']['said']}",
        *(f"{'invalid' if one['invalid'] else 'note'}: {one['rule']}: {one['reason']}" for one in result["findings"]),
        *(f"{name}: {value}" for name, value in summary["metric"].items()),
        f"{summary['end']} end of the run",
    ]
    (folder / "dlio.log").write_text("\n".join(lines) + "\n")
    name = f"{leaf.benchmark}_{leaf.command}"
    (folder / f"{name}.stdout.log").write_text("\n".join([*lines, "", *_df(leaf)]) + "\n")
    (folder / f"{name}.stderr.log").write_text("".join(f"note: {note}\n" for note in result["plan"]["notes"]))


def _df(leaf: Leaf) -> list[str]:
    found = _volumes(leaf)
    if found is None:
        return []
    rows = {one["mount"]: one for one in found}
    made = ["Filesystem 1K-blocks Used Available Use% Mounted on"]
    for mount, one in rows.items():
        used = one["bytes"] - one["free_bytes"]
        part = f"{100 * used / max(1, one['bytes']):.0f}%"
        device = one["device"].replace(" ", "_")
        made.append(f"{device} {one['bytes'] >> 10} {used >> 10} {one['free_bytes'] >> 10} {part} {mount}")
    return made
