"""``results.json``: of the ranks' records, whether all of them came to their end or not. Its schema is in the package."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.bench.checkpoint.outcome import checkpoint_result
from stoker.bench.environment import describe
from stoker.bench.metrics import spread, stall_percentiles
from stoker.bench.pagecache import file_system
from stoker.bench.plan import Plan
from stoker.bench.rules import judge
from stoker.bench.stepfiles import counted_waits, read_steps, steps_path
from stoker.bench.summary import dlio_summary
from stoker.storage import is_local
from stoker.types import Array

__all__ = ["RESULTS", "SUMMARY", "VERSION", "collect", "schema", "write_results"]

RESULTS: Final = "results.json"
SUMMARY: Final = "summary.json"
VERSION: Final = 1
_CLOCKS: Final = 4e-6
"""Seconds by which two clocks may differ that are read as one, at a block's begin and at its end."""


def schema() -> dict[str, Any]:
    """The JSON Schema of ``results.json``."""
    text = resources.files("stoker.bench").joinpath("results.schema.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def collect(
    plan: Plan, folder: Path, ranks: int, *, failure: str | None, began: float, launcher: str
) -> dict[str, Any]:
    """All that was measured, judged.

    Args:
        plan: the run.
        folder: where the ranks' records are.
        ranks: how many there should be.
        failure: why the run ended early; ``None`` if it did not.
        began: when it began, in seconds since 1970.
        launcher: who started the ranks.
    """
    records = _records(folder, ranks)
    workload = plan.workload
    epochs = [
        _epoch([_entry(record, kind, repeat, epoch) for record in records], folder, workload, kind, repeat, epoch)
        for kind, repeat, epoch in _keys(records)
    ]
    repeats = []
    for repeat in sorted({epoch["repeat"] for epoch in epochs}):
        mine = [epoch for epoch in epochs if epoch["repeat"] == repeat]
        parts = {"repeat": repeat, "train": _over([one for one in mine if one["kind"] == "train"])}
        evaluations = [one for one in mine if one["kind"] == "valid"]
        if evaluations:
            parts["evaluate"] = _over(evaluations)
        repeats.append(parts)
    hosts = sorted({record["host"] for record in records})
    result: dict[str, Any] = {
        "version": VERSION,
        "run": plan.run,
        "began": _moment(began),
        "seconds": time.time() - began,
        "complete": failure is None and len(records) == ranks and all(record["complete"] for record in records),
        "failure": failure,
        "plan": {name: value for name, value in plan.as_dict(secrets=False).items() if name != "scratch"},
        "environment": describe(),
        "world": {
            "ranks": ranks,
            "reported": len(records),
            "hosts": hosts,
            "launcher": launcher,
            "said": _said(ranks, hosts, launcher, workload.compute.kind),
        },
        "storage": _storage(plan),
        "generate": next((record["generate"] for record in records if record["generate"] is not None), None),
        "checkpoint": checkpoint_result(records, ranks),
        "calibration": _calibration(records, [epoch for epoch in epochs if epoch["kind"] == "train"]),
        "epochs": epochs,
        "repeats": repeats,
        "train": _over([epoch for epoch in epochs if epoch["kind"] == "train"]),
        "evaluate": _over([epoch for epoch in epochs if epoch["kind"] == "valid"]),
        "ranks": [
            {
                name: record[name]
                for name in ("rank", "host", "processors", "memory_bytes", "read_threads", "complete", "error")
            }
            for record in records
        ],
    }
    findings = judge(result, workload)
    result["findings"] = [finding.as_dict() for finding in findings]
    result["valid"] = not any(finding.invalid for finding in findings)
    au = (result["train"] or {}).get("au")
    result["passed"] = None if au is None else bool(result["valid"] and au["mean"] >= workload.metric.au)
    return result


def write_results(result: Mapping[str, Any], folder: Path) -> None:
    """Write ``results.json``, and ``summary.json`` as DLIO's tools read it."""
    for name, content in ((RESULTS, result), (SUMMARY, dlio_summary(result))):
        path = folder / name
        temporary = folder / f".{name}.{os.getpid()}"
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.replace(path)


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _records(folder: Path, ranks: int) -> list[dict[str, Any]]:
    found = []
    for rank in range(ranks):
        try:
            found.append(json.loads((folder / f"rank{rank:05d}.json").read_text()))
        except (OSError, ValueError):
            continue  # it did not get so far
    return found


def _keys(records: Sequence[Mapping[str, Any]]) -> list[tuple[str, int, int]]:
    """Kind, repeat and number of each epoch that any rank has begun, in the order in which they ran."""
    found: dict[tuple[str, int, int], None] = {}
    for record in records:
        for entry in record["epochs"]:
            found.setdefault((entry["kind"], entry["repeat"], entry["epoch"]))
    return sorted(found, key=lambda key: (key[1], key[2], key[0]))


def _entry(record: Mapping[str, Any], kind: str, repeat: int, epoch: int) -> dict[str, Any] | None:
    for entry in record["epochs"]:
        if (entry["kind"], entry["repeat"], entry["epoch"]) == (kind, repeat, epoch) and "metrics" in entry:
            return {"rank": record["rank"], "host": record["host"], **entry}
    return None


def _sum(entries: Sequence[Mapping[str, Any]], *path: str) -> float | None:
    """Of all ranks; ``None`` where one of them does not know."""
    total = 0.0
    for entry in entries:
        value: Any = entry
        for name in path:
            value = None if value is None else value.get(name)
        if value is None:
            return None
        total += value
    return total if entries else None


def _epoch(
    entries: Sequence[dict[str, Any] | None], folder: Path, workload: Any, kind: str, repeat: int, epoch: int
) -> dict[str, Any]:
    known = [entry for entry in entries if entry is not None]
    names = ("au", "stall_part", "barrier_part", "overhead_part")
    means = {name: spread([entry["metrics"][name] for entry in known]) for name in names}
    used, samples = _sum(known, "bytes"), _sum(known, "samples")
    cpu = _sum(known, "usage", "cpu_seconds")
    return {
        "kind": kind,
        "repeat": repeat,
        "epoch": epoch,
        "complete": len(known) == len(entries) and all(entry["complete"] for entry in known),
        "steps": [entry["steps"] for entry in known],
        "samples": samples,
        "bytes": used,
        **{name: None if found is None else found["mean"] for name, found in means.items()},
        "residue_part": _residue(known),
        "samples_per_second": _sum(known, "metrics", "samples_per_second"),
        "bytes_per_second": _sum(known, "metrics", "bytes_per_second"),
        "tokens_per_second": _tokens(workload, _sum(known, "metrics", "samples_per_second")),
        "time_to_first_batch": max(
            (entry["time_to_first_batch"] for entry in known if entry["time_to_first_batch"] is not None), default=None
        ),
        "stall_seconds": stall_percentiles(_all_stalls(folder, known, workload, kind, repeat, epoch)),
        "device_bytes": _sum(known, "usage", "device_bytes"),
        "read_bytes": _sum(known, "usage", "read_bytes"),
        "fetched_bytes": _fetched(known, entries),
        "cpu_seconds": cpu,
        "cpu_seconds_per_gb": cpu / used * 1e9 if cpu is not None and used else None,
        "peak_memory_bytes": _sum(known, "usage", "peak_memory_bytes"),
        "spun_seconds": _sum(known, "spun_seconds"),
        "cache": next((entry["cache"] for entry in known if entry.get("cache")), None),
        "checkpoint_seconds": max(
            (entry["checkpoint_seconds"] for entry in known if entry.get("checkpoint_seconds") is not None),
            default=None,
        ),
        "with_checkpoints": _with_checkpoints(known),
        "fingerprints": [entry.get("fingerprint") for entry in known],
        "loader": next((entry["loader"] for entry in known if entry.get("loader")), None),
        "ranks": [
            {
                name: entry.get(name)
                for name in (
                    "rank",
                    "steps",
                    "samples",
                    "bytes",
                    "complete",
                    "metrics",
                    "blocks",
                    "stall_seconds",
                    "usage",
                )
            }
            for entry in known
        ],
    }


def _with_checkpoints(entries: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """The parts of the time of blocks and checkpoints together, as means over ranks; ``None`` where none was saved."""
    found = [entry["with_checkpoints"] for entry in entries if entry.get("with_checkpoints") is not None]
    if not found or len(found) < len(entries):
        return None
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def _tokens(workload: Any, samples_per_second: float | None) -> float | None:
    """Of workloads with a column of token ids."""
    lengths = [column.shape[0] for column in workload.dataset.columns if column.name == "input_ids" and column.shape]
    return samples_per_second * lengths[0] if lengths and samples_per_second is not None else None


def _fetched(known: Sequence[Mapping[str, Any]], entries: Sequence[object]) -> float | None:
    """Bytes from remote storage so far, as the loaders say; those of this epoch are the difference to the one before."""
    return _sum(known, "loader", "bytes_fetched") if len(known) == len(entries) else None


def _residue(entries: Sequence[Mapping[str, Any]]) -> float | None:
    """The largest part of any rank's block that is in no part of the identity, but for what reading two clocks takes."""
    parts = [
        max(0.0, abs(block["residue"]) - _CLOCKS) / block["seconds"]
        for entry in entries
        for block in entry["blocks"]
        if block["seconds"] > 0 and block["counted"]
    ]
    return max(parts, default=None)


def _all_stalls(
    folder: Path, entries: Sequence[Mapping[str, Any]], workload: Any, kind: str, repeat: int, epoch: int
) -> Array:
    """Seconds waited, of all ranks whose steps are here."""
    metric = workload.metric
    steps = [read_steps(steps_path(folder, entry["rank"], kind, repeat, epoch)) for entry in entries]
    found = [counted_waits(one, metric.exclude_start, metric.exclude_end) for one in steps if one is not None]
    return np.concatenate(found) * 1e-9 if found else np.zeros(0)


def _over(epochs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Mean and spread over epochs, as DLIO has it: each rank's mean, then over epochs."""
    if not epochs:
        return None
    names = (
        *("au", "stall_part", "barrier_part", "overhead_part"),
        *("samples_per_second", "bytes_per_second", "tokens_per_second", "time_to_first_batch", "cpu_seconds_per_gb"),
    )
    return {name: spread([epoch[name] for epoch in epochs]) for name in names} | {"epochs": len(epochs)}


def _calibration(records: Sequence[Mapping[str, Any]], trained: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What the copy in memory gave, and how much of the stall is therefore the storage's."""
    parts = [record["calibration"] for record in records if record["calibration"] is not None]
    if not parts:
        return None
    failed = next((part["error"] for part in parts if "error" in part), None)
    nothing: dict[str, Any] = dict.fromkeys(("au_ceiling", "stall_mean", "storage_stall_mean", "overhead_per_step"))
    if failed is not None:
        return {**nothing, "error": failed, "files": 0, "bytes": 0}
    blocks = [part["blocks"][0] for part in parts]
    stall = float(np.mean([block["stall"] / max(1, block["counted"]) for block in blocks]))
    seen = [epoch["stall_seconds"]["mean"] for epoch in trained if epoch["stall_seconds"] is not None]
    return {
        "error": None,
        "au_ceiling": (spread([part["metrics"]["au"] for part in parts]) or {}).get("mean"),
        "stall_mean": stall,
        "storage_stall_mean": max(0.0, float(np.mean(seen)) - stall) if seen else None,
        "overhead_per_step": float(np.mean([block["overhead"] / max(1, block["counted"]) for block in blocks])),
        "files": parts[0]["files"],
        "bytes": parts[0]["bytes"],
    }


def _storage(plan: Plan) -> dict[str, Any]:
    local = bool(is_local(plan.url))
    kind, memory = file_system(plan.url) if local else (plan.url.partition(":")[0], False)
    return {"url": plan.url, "local": local, "kind": kind, "in_memory": memory}


def _said(ranks: int, hosts: Sequence[str], launcher: str, compute: str) -> str:
    each = -(-ranks // max(1, len(hosts)))
    accelerators = f"{ranks} {'simulated ' if compute == 'simulated' else ''}accelerator{'s' if ranks != 1 else ''}"
    if len(hosts) == 1 and ranks > 1:
        return f"{accelerators}, all on one host ({launcher}): its network, memory and processors are shared by all of them"
    return f"{accelerators} on {len(hosts)} host{'s' if len(hosts) != 1 else ''} ({launcher}), up to {each} each"
