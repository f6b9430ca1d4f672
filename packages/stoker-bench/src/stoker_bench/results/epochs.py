"""Epochs, of the ranks' records: what all ranks together did in each, for ``results.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.types import Array
from stoker_bench.measure.metrics import percentiles, step_seconds, summarize
from stoker_bench.measure.step_files import counted_waits, read_steps, steps_path
from stoker_bench.results.requests import counted_requests, repeated_requests, told_requests
from stoker_bench.results.storage_over_time import series_path, storage_series
from stoker_bench.settings.workload import Workload

_RANK: Final = ("rank", "steps", "samples", "bytes", "complete", "metrics", "blocks", "stall_seconds", "usage")
"""Fields of an epoch's result that are taken from each rank's."""
_COARSE: Final = 0.05
"""Seconds by which the clocks of an epoch may differ: one counts hundredths, and a busy process reads them one by one."""
_CLOCKS: Final = 4e-6
"""Seconds by which two clocks may differ that are read as one, at a block's begin and at its end."""


def epoch_results(records: Sequence[Mapping[str, Any]], folder: Path, workload: Workload) -> list[dict[str, Any]]:
    """All epochs that any rank has begun, in the order in which they ran.

    Args:
        records: of the ranks that reported.
        folder: where their steps are.
        workload: what they ran.
    """
    keys = _keys(records)
    found = []
    for kind, repeat, epoch in keys:
        entries = [_entry(record, kind, repeat, epoch) for record in records]
        made = _epoch(entries, folder, workload, kind, repeat, epoch)
        paths = [series_path(folder, entry["rank"], kind, repeat, epoch) for entry in entries if entry is not None]
        began, ended = made["began_at"] or 0.0, made["ended_at"] or 0.0
        found.append(made | {"storage_series": storage_series(paths, began, ended, len(keys))})
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
    entries: Sequence[dict[str, Any] | None], folder: Path, workload: Workload, kind: str, repeat: int, epoch: int
) -> dict[str, Any]:
    known = [entry for entry in entries if entry is not None]
    names = ("au", "au_nominal", "stall_part", "barrier_part", "overhead_part")
    means = {name: summarize([entry["metrics"][name] for entry in known]) for name in names}
    used, samples = _sum(known, "bytes"), _sum(known, "samples")
    cpu = _sum(known, "usage", "cpu_seconds")
    requests = counted_requests(known)
    return {
        "kind": kind,
        "repeat": repeat,
        "epoch": epoch,
        "began_at": min((entry["began_at"] for entry in known), default=None),
        "ended_at": max((entry["ended_at"] for entry in known), default=None),
        "complete": len(known) == len(entries) and all(entry["complete"] for entry in known),
        "steps": [entry["steps"] for entry in known],
        "samples": samples,
        "bytes": used,
        **{name: None if found is None else found["mean"] for name, found in means.items()},
        **step_seconds([block for entry in known for block in entry["blocks"]]),
        "residue_part": _residue(known),
        "samples_per_second": _sum(known, "metrics", "samples_per_second"),
        "delivered_bytes_per_second": _sum(known, "metrics", "delivered_bytes_per_second"),
        "tokens_per_second": _tokens(workload, _sum(known, "metrics", "samples_per_second")),
        "time_to_first_batch": max(
            (entry["time_to_first_batch"] for entry in known if entry["time_to_first_batch"] is not None), default=None
        ),
        "stall_seconds": _stall_seconds(_all_stalls(folder, known, workload, kind, repeat, epoch), known),
        "device_bytes": _sum(known, "usage", "device_bytes"),
        "read_bytes": _sum(known, "usage", "read_bytes"),
        "fetched_bytes": _sum(known, "fetched_bytes"),
        "storage_bytes": _sum(known, "storage", "bytes"),
        "storage_bytes_per_second": _sum(known, "storage", "bytes_per_second"),
        "counted_read_bytes": _sum(known, "counted_read_bytes"),
        "repeated_requests": repeated_requests(known),
        "requests": None if requests is None else told_requests(requests),
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
            {name: entry.get(name) for name in _RANK} | {"requests": told_requests(entry.get("requests") or {}) or None}
            for entry in known
        ],
    }


def _stall_seconds(waits: Array | None, known: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """Of all ranks; of percentiles of ranks those of all can not be made, unless there is one."""
    if waits is not None:
        return percentiles(waits)
    found: dict[str, float] | None = known[0]["stall_seconds"] if len(known) == 1 else None
    return found


def _with_checkpoints(entries: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """The parts of the time of blocks and checkpoints together, as means over ranks; ``None`` where none was saved."""
    found = [entry["with_checkpoints"] for entry in entries if entry.get("with_checkpoints") is not None]
    if not found or len(found) < len(entries):
        return None
    return {name: float(np.mean([one[name] for one in found])) for name in found[0]}


def _tokens(workload: Workload, samples_per_second: float | None) -> float | None:
    """Of workloads with a column of token ids."""
    lengths = [column.shape[0] for column in workload.dataset.columns if column.name == "input_ids" and column.shape]
    return samples_per_second * lengths[0] if lengths and samples_per_second is not None else None


def _residue(entries: Sequence[Mapping[str, Any]]) -> float | None:
    """The largest part of any rank's block that is in no part of the identity, but for what reading two clocks takes.

    Or the part by which the clocks of an epoch differ.
    """
    parts = [
        max(0.0, abs(block["residue"]) - _CLOCKS) / block["seconds"]
        for entry in entries
        for block in entry["blocks"]
        if block["seconds"] > 0 and block["counted"]
    ]
    told = [entry.get("clocks") or [0.0] for entry in entries]
    parts += [max(0.0, max(each) - min(each) - _COARSE) / max(each) for each in told if max(each) > 0 and parts]
    return max(parts, default=None)


def _all_stalls(
    folder: Path, entries: Sequence[Mapping[str, Any]], workload: Workload, kind: str, repeat: int, epoch: int
) -> Array | None:
    """Seconds waited, of all ranks; ``None`` where the steps of one are not here, as where they found no space."""
    metric = workload.metric
    steps = [read_steps(steps_path(folder, entry["rank"], kind, repeat, epoch)) for entry in entries]
    found = [counted_waits(one, metric.exclude_start, metric.exclude_end) for one in steps if one is not None]
    if len(found) < len(steps):
        return None
    return np.concatenate(found) * 1e-9 if found else np.zeros(0)
