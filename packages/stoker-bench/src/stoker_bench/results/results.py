"""``results.json``: of the ranks' records, whether all of them came to their end or not. Its schema is in the package."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import metadata, resources
from pathlib import Path
from typing import Any, Final

import numpy as np

from stoker.policy import processor_count
from stoker.storage import is_local
from stoker.storage.files.mounts import mount_of
from stoker_bench.checkpoint.outcome import checkpoint_result
from stoker_bench.kv_cache.outcome import kv_cache_result
from stoker_bench.measure import page_cache as pagecache
from stoker_bench.measure.metrics import deciding_au, step_seconds, summarize
from stoker_bench.measure.page_cache import existing_path, file_system
from stoker_bench.ranks.binding import describe_bindings
from stoker_bench.ranks.plan import RunPlan
from stoker_bench.results.epochs import epoch_results
from stoker_bench.results.record import replace_file
from stoker_bench.results.requests import over_checkpoints, over_epochs, over_writes
from stoker_bench.results.rules import check_rules
from stoker_bench.results.summary import MOMENT, dlio_summary
from stoker_bench.results.verdict import verdict
from stoker_bench.vectors.outcome import vector_result

_PACKAGES: Final = (
    *(
        "stoker",
        "numpy",
        "pyarrow",
        "obstore",
        "torch",
        "pillow",
        "h5py",
        "mosaicml-streaming",
        "litdata",
        "webdataset",
    ),
    *("datasets", "ray", "s3torchconnector"),
)


def describe_host() -> dict[str, Any]:
    """This host, for JSON."""
    versions: dict[str, str] = {"python": platform.python_version()}
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    model = ""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": model,
        "processors": os.cpu_count(),
        "processors_usable": processor_count(),
        "memory_bytes": pagecache.memory_bytes(),
        "executable": sys.executable,
        "versions": versions,
    }


def volume_of(path: str) -> dict[str, Any] | None:
    """The file system that a path is on, or would be, for JSON; ``None`` where it can not be asked."""
    inside = existing_path(path.removeprefix("file://"))
    try:
        status = os.statvfs(inside)
        number = os.stat(inside).st_dev
    except OSError:
        return None
    mount, kind, device = mount_of(inside)
    return {
        "mount": mount,
        "device": device,
        "kind": kind,
        "number": number,
        "bytes": status.f_blocks * status.f_frsize,
        "free_bytes": status.f_bavail * status.f_frsize,
    }


RESULTS: Final = "results.json"
SUMMARY: Final = "summary.json"
VERSION: Final = 1


def schema() -> dict[str, Any]:
    """The JSON Schema of ``results.json``."""
    text = resources.files("stoker_bench").joinpath("results.schema.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def collect(
    plan: RunPlan,
    folder: Path,
    ranks: int,
    *,
    failure: str | None,
    began: float,
    launcher: str,
    told: Mapping[int, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """All that was measured, judged.

    Args:
        plan: the run.
        folder: where the ranks' records are.
        ranks: how many there should be.
        failure: why the run ended early; ``None`` if it did not.
        began: when it began, in seconds since 1970.
        launcher: who started the ranks.
        told: records of ranks that ended early, which may not be in the folder.
    """
    records = _records(folder, ranks, told or {})
    workload = plan.workload
    epochs = epoch_results(records, folder, workload)
    repeats = []
    for repeat in sorted({epoch["repeat"] for epoch in epochs}):
        mine = [epoch for epoch in epochs if epoch["repeat"] == repeat]
        parts = {"repeat": repeat, "train": _over([one for one in mine if one["kind"] == "train"])}
        evaluations = [one for one in mine if one["kind"] == "valid"]
        if evaluations:
            parts["evaluate"] = _over(evaluations)
        repeats.append(parts)
    hosts = sorted({record["host"] for record in records})
    made = next((record["generate"] for record in records if record["generate"] is not None), None)
    result: dict[str, Any] = {
        "version": VERSION,
        "run": plan.run,
        "began": _moment(began),
        "seconds": time.time() - began,
        "complete": failure is None and len(records) == ranks and all(record["complete"] for record in records),
        "failure": failure,
        "plan": {name: value for name, value in plan.as_dict(secrets=False).items() if name != "scratch"},
        "environment": describe_host(),
        "world": {
            "ranks": ranks,
            "reported": len(records),
            "hosts": hosts,
            "launcher": launcher,
            "said": "; ".join(
                filter(
                    None,
                    (
                        _said(ranks, hosts, launcher, workload.compute.kind),
                        describe_bindings([record.get("binding") for record in records]),
                    ),
                )
            ),
        },
        "storage": _storage(plan),
        "listing": _listing(next((record["listing"] for record in records if record.get("listing")), {})),
        "content": next((record["content"] for record in records if record.get("content")), None),
        "generate": None if made is None else {name: value for name, value in made.items() if name != "requests"},
        "checkpoint": checkpoint_result(records, ranks),
        "kv_cache": kv_cache_result(records),
        "vectors": vector_result(records),
        "calibration": _calibration(records, [epoch for epoch in epochs if epoch["kind"] == "train"]),
        "epochs": epochs,
        "repeats": repeats,
        "train": _over([epoch for epoch in epochs if epoch["kind"] == "train"]),
        "evaluate": _over([epoch for epoch in epochs if epoch["kind"] == "valid"]),
        "requests": {
            "generate": None if made is None else over_writes(made.get("requests", ())),
            "train": over_epochs(records, "train"),
            "evaluate": over_epochs(records, "valid"),
            "save": over_checkpoints(records, "save"),
            "load": over_checkpoints(records, "load"),
        },
        "ranks": [
            {
                name: record.get(name)
                for name in (
                    "rank",
                    "host",
                    "processors",
                    "memory_bytes",
                    "read_threads",
                    "binding",
                    "complete",
                    "error",
                )
            }
            for record in records
        ],
    }
    findings = check_rules(result, workload)
    result["findings"] = [asdict(finding) for finding in findings]
    result["valid"] = not any(finding.invalid for finding in findings)
    result["verdict"] = verdict(result, workload)
    au = None if result["train"] is None else deciding_au(result["train"])
    result["passed"] = None if au is None else result["verdict"] == "passed"
    return result


def write_results(result: Mapping[str, Any], folder: Path) -> None:
    """Write ``results.json``, and ``summary.json`` as DLIO's tools read it.

    Raises:
        StorageError: they could not be written.
    """
    for name, content in ((RESULTS, result), (SUMMARY, dlio_summary(result))):
        replace_file(folder / name, (json.dumps(content, indent=1) + "\n").encode())


def _moment(seconds: float) -> str:
    return time.strftime(MOMENT, time.gmtime(seconds))


def _records(folder: Path, ranks: int, told: Mapping[int, dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for rank in range(ranks):
        if rank in told:
            found.append(told[rank])
            continue
        try:
            found.append(json.loads((folder / f"rank{rank:05d}.json").read_text()))
        except (OSError, ValueError, RecursionError):
            continue  # it did not get so far
    return found


def _over(epochs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Mean and spread over epochs, as DLIO has it: each rank's mean, then over epochs."""
    if not epochs:
        return None
    names = (
        *("au", "au_nominal", "stall_part", "barrier_part", "overhead_part", "compute_drawn", "compute_measured"),
        *("samples_per_second", "storage_bytes_per_second", "delivered_bytes_per_second", "tokens_per_second"),
        *("time_to_first_batch", "cpu_seconds_per_gb"),
    )
    return {name: summarize([epoch[name] for epoch in epochs]) for name in names} | {"epochs": len(epochs)}


def _listing(found: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The listings of the splits, and files a second of each."""
    return {
        split: {**one, "files_per_second": one["files"] / one["seconds"] if one["seconds"] > 0 else None}
        for split, one in found.items()
    }


def _calibration(records: Sequence[Mapping[str, Any]], trained: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The result with the data in memory, and the part of the stall that is therefore the storage's."""
    parts = [record["calibration"] for record in records if record["calibration"] is not None]
    if not parts:
        return None
    failed = next((part["error"] for part in parts if "error" in part), None)
    names = ("au_ceiling", "stall_mean", "storage_stall_mean", "overhead_per_step", "compute_drawn", "compute_measured")
    nothing: dict[str, Any] = dict.fromkeys(names)
    if failed is not None:
        return {**nothing, "error": failed, "files": 0, "bytes": 0}
    blocks = [part["blocks"][0] for part in parts]
    stall = float(np.mean([block["stall"] / max(1, block["counted"]) for block in blocks]))
    seen = [epoch["stall_seconds"]["mean"] for epoch in trained if epoch["stall_seconds"] is not None]
    return {
        "error": None,
        "au_ceiling": deciding_au(
            {name: summarize([part["metrics"][name] for part in parts]) for name in ("au", "au_nominal")}
        ),
        **step_seconds(blocks),
        "stall_mean": stall,
        "storage_stall_mean": max(0.0, float(np.mean(seen)) - stall) if seen else None,
        "overhead_per_step": float(np.mean([block["overhead"] / max(1, block["counted"]) for block in blocks])),
        "files": parts[0]["files"],
        "bytes": parts[0]["bytes"],
    }


def _storage(plan: RunPlan) -> dict[str, Any]:
    local = bool(is_local(plan.url))
    kind, memory = file_system(plan.url) if local else (plan.url.partition(":")[0], False)
    saved = plan.workload.checkpoint.url
    volumes = {
        "data": volume_of(plan.url) if local else None,
        "checkpoints": None if saved is None or not is_local(saved) else volume_of(saved),
        "results": volume_of(plan.results),
    }
    return {"url": plan.url, "local": local, "kind": kind, "in_memory": memory, "volumes": volumes}


def _said(ranks: int, hosts: Sequence[str], launcher: str, compute: str) -> str:
    each = -(-ranks // max(1, len(hosts)))
    accelerators = f"{ranks} {'simulated ' if compute == 'simulated' else ''}accelerator{'s' if ranks != 1 else ''}"
    if len(hosts) == 1 and ranks > 1:
        return f"{accelerators}, all on one host ({launcher}): its network, memory and processors are shared by all of them"
    most = f", up to {each} each" if len(hosts) > 1 else ""
    return f"{accelerators} on {len(hosts)} host{'s' if len(hosts) != 1 else ''} ({launcher}){most}"
