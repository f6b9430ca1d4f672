"""A workload in DLIO's keys, and a run's steps and checkpoints in the files that DLIO leaves for each rank."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from stoker.bench.clients import reads_objects
from stoker.bench.measure.step_files import RankSteps, read_steps, steps_path
from stoker.bench.settings.dlio_keys import KEYS, OLD_NAMES
from stoker.bench.settings.workload import Workload, as_plain
from stoker.units import GIB

_APART: Final = frozenset(
    {
        *("stages", "storage.url", "storage.options", "storage.client"),
        *("compute.seconds", "evaluation.seconds", "dataset.settings"),
    }
)
"""Settings that several of DLIO's keys make together, or apart."""

_LOADERS: Final = {"stoker": "pytorch", "torch": "pytorch"}


def moment(seconds: float) -> datetime:
    """A moment, in seconds since 1970, in the time zone of this host."""
    return datetime.fromtimestamp(seconds)


def dlio_parameters(workload: Workload, url: str, *, generating: bool = False) -> dict[str, Any]:
    """A workload in DLIO's keys, as its ``config.yaml`` has them below ``workload``.

    Args:
        workload: the settings.
        url: the data set.
        generating: whether it is of the run that makes the data.
    """
    plain: Mapping[str, Any] = as_plain(workload)
    made: dict[str, Any] = {"framework": "pytorch"}
    for path, key in KEYS.items():
        if key.ours is None or key.ignored or key.ours in _APART or path in OLD_NAMES:
            continue
        value: Any = plain
        for name in key.ours.split("."):
            value = value[name]
        if value is not None and value not in ((), []):
            _put(made, path, _theirs(path, value))
    _put(made, "dataset.data_folder", url)
    if workload.storage.client == "direct":
        _put(made, "reader.odirect", True)
    elif reads_objects(workload.storage.client):
        _put(made, "storage.storage_library", workload.storage.client)
    _put(made, "train.computation_time", as_plain(workload.compute.seconds))
    stages = ("generate",) if generating else workload.stages
    flags = (
        ("generate_data", "generate"),
        ("train", "train"),
        ("evaluation", "evaluate"),
        ("checkpoint", "checkpoint"),
    )
    for name, stage in flags:
        _put(made, f"workflow.{name}", stage in stages and (generating or stage != "generate"))
    return made


def _theirs(path: str, value: Any) -> Any:
    if path in {"reader.file_shuffle", "reader.sample_shuffle"}:
        return "seed" if value else "off"
    if path == "reader.data_loader":
        return _LOADERS.get(value, value)
    if path == "checkpoint.recovery_rank_shift":
        return bool(value)
    return "indexed_binary" if path == "dataset.format" and value == "megatron" else value


def _put(tree: dict[str, Any], path: str, value: Any) -> None:
    *above, last = path.split(".")
    for name in above:
        tree = tree.setdefault(name, {})
    tree[last] = value


def rank_output(result: Mapping[str, Any], folder: Path, rank: int, epochs: list[Mapping[str, Any]]) -> dict[str, Any]:
    """``N_output.json`` of a rank: seconds of loading, computing and both of each step, by epoch and block."""
    about = next(one for one in result["ranks"] if one["rank"] == rank)
    made: dict[str, Any] = {
        "hostname": about["host"],
        "host_cpu_count": about["processors"],
        "host_memory_GB": about["memory_bytes"] / GIB,
    }
    for number, epoch in enumerate(epochs, 1):
        steps = read_steps(steps_path(folder, rank, epoch["kind"], epoch["repeat"], epoch["epoch"]))
        mine = next((one for one in epoch["ranks"] if one["rank"] == rank), None)
        blocks = [] if mine is None else mine["blocks"]
        made[str(number)] = {
            "start": _iso(epoch["began_at"]),
            "end": _iso(epoch["ended_at"]),
            **({} if steps is None else _by_block(steps)),
            "au": {f"block{at}": 100 * one["au"] for at, one in enumerate(blocks, 1) if one["au"] is not None},
            "throughput": {
                f"block{at}": one["samples_per_second"]
                for at, one in enumerate(blocks, 1)
                if one["samples_per_second"] is not None
            },
        }
    return made


def _by_block(steps: RankSteps) -> dict[str, dict[str, list[float]]]:
    ends = [*steps.block[1:].tolist(), len(steps.wait)]
    made: dict[str, dict[str, list[float]]] = {"load": {}, "proc": {}, "compute": {}}
    for at, (first, last) in enumerate(zip(steps.block.tolist(), ends, strict=True), 1):
        wait, compute = steps.wait[first:last] * 1e-9, steps.compute[first:last] * 1e-9
        for name, values in (("load", wait), ("proc", wait + compute), ("compute", compute)):
            made[name][f"block{at}"] = values.tolist()
    return made


def rank_epochs(rank: int, epochs: list[Mapping[str, Any]], checkpoints: list[Mapping[str, Any]]) -> dict[str, Any]:
    """``N_per_epoch_stats.json`` of a rank: when its epochs, blocks and checkpoints began and ended."""
    made: dict[str, Any] = {}
    for number, epoch in enumerate(epochs, 1):
        span = _span(epoch["began_at"], epoch["ended_at"])
        made[str(number)] = {**span, "block1": span}
    if checkpoints:
        events: dict[str, Any] = {"start": _iso(checkpoints[0]["began_at"])}
        counts = {"save": 0, "load": 0}
        for one in checkpoints:
            counts[one["kind"]] += 1
            mine = next((part for part in one["ranks"] if part["rank"] == rank), None)
            span = _span(one["began_at"], one["ended_at"])
            if mine is not None and mine["seconds"]:
                span["throughput"] = mine["bytes"] / GIB / mine["seconds"]
            events[f"{one['kind']}_ckpt{counts[one['kind']]}"] = span
        made["1"] = {**events, "end": _iso(checkpoints[-1]["ended_at"])}
    return made


def _span(began: float | None, ended: float | None) -> dict[str, Any]:
    duration = None if began is None or ended is None else ended - began
    return {"start": _iso(began), "end": _iso(ended), "duration": duration}


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else moment(seconds).isoformat()
