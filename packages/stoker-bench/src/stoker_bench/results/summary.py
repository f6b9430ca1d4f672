"""``summary.json`` with the keys and the units of DLIO's, for the tools that read it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from statistics import fmean, pstdev
from typing import Any, Final

import numpy as np

from stoker.units import GIB
from stoker_bench.checkpoint.outcome import checkpoint_summary
from stoker_bench.kv_cache.outcome import kv_cache_summary
from stoker_bench.vectors.outcome import vector_summary

MOMENT: Final = "%Y-%m-%dT%H:%M:%SZ"
_MIB: Final = float(1 << 20)


def dlio_summary(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result in DLIO's words.

    Its MB are MiB and its GB GiB, as DLIO's are, which ``units`` says. I/O is what was read from storage, where DLIO has
    samples a second times their nominal size; it is left out where that is not known. Utilization is in percent; deviations
    are the population's, over epochs. An invalid run says so in ``valid``, and why in ``invalid``; it meets no expectation.
    """
    workload = result["plan"]["workload"]
    dataset = workload["dataset"]
    ranks = result["ranks"]
    hosts = result["world"]["hosts"] or ["unknown"]
    record = _nominal(dataset)
    files = dataset["files"] * dataset["samples_per_file"]
    per_host = files * record / GIB / len(hosts)
    memory = [_first(ranks, host, "memory_bytes") / GIB for host in hosts]
    metric: dict[str, Any] = {}
    for kind, name in (("train", "train"), ("valid", "eval")):
        # Of epochs in which all ranks have measured something: one that broke off has a mean over some, but no sum.
        epochs = [
            one
            for one in result["epochs"]
            if one["kind"] == kind and one["au"] is not None and one["samples_per_second"] is not None
        ]
        if not epochs:
            continue
        au = [100 * one["au"] for one in epochs]
        nominal = [100 * one["au_nominal"] for one in epochs if one["au_nominal"] is not None]
        rate = [one["samples_per_second"] for one in epochs]
        passed = min(fmean(au), fmean(nominal or au)) >= 100 * workload["metric"]["au"]
        passed = passed and result["valid"] if kind == "valid" else bool(result["passed"])
        io = [one["storage_bytes_per_second"] for one in epochs if one["storage_bytes_per_second"] is not None]
        metric |= {
            f"{name}_au_percentage": au,
            f"{name}_au_mean_percentage": fmean(au),
            f"{name}_au_meet_expectation": "success" if passed else "fail",
            f"{name}_au_stdev_percentage": pstdev(au),
            f"{name}_au_nominal_percentage": nominal,
            f"{name}_au_nominal_mean_percentage": fmean(nominal) if nominal else None,
            f"{name}_computation_drawn_mean_seconds": _mean(epochs, "compute_drawn"),
            f"{name}_computation_measured_mean_seconds": _mean(epochs, "compute_measured"),
            f"{name}_throughput_samples_per_second": rate,
            f"{name}_throughput_mean_samples_per_second": fmean(rate),
            f"{name}_throughput_stdev_samples_per_second": pstdev(rate),
        }
        if len(io) == len(epochs):
            metric |= {
                f"{name}_io_mean_MB_per_second": fmean(io) / _MIB,
                f"{name}_io_stdev_MB_per_second": pstdev(io) / _MIB,
            }
    metric |= checkpoint_summary(result)
    metric |= kv_cache_summary(result["kv_cache"]) | vector_summary(result["vectors"])
    return {
        "start": result["began"],
        "end": (datetime.fromisoformat(result["began"]) + timedelta(seconds=result["seconds"])).strftime(MOMENT),
        "valid": result["valid"],
        "verdict": result["verdict"],
        "invalid": [one["reason"] for one in result["findings"] if one["invalid"]],
        "units": {"MB": "2**20 bytes", "GB": "2**30 bytes"},
        "num_accelerators": result["world"]["ranks"],
        "num_hosts": len(hosts),
        "hostname": hosts[0],
        "metric": metric,
        "num_files_train": dataset["files"],
        "num_files_eval": dataset["files_eval"],
        "num_samples_per_file": dataset["samples_per_file"],
        "host_cpu_count": [_first(ranks, host, "processors") for host in hosts],
        "host_processor_name": result["environment"]["processor"],
        "host_memory_GB": memory,
        "data_size_per_host_GB": per_host,
        "potential_caching": [int(one > per_host) for one in memory],
        "epochs": sum(one["kind"] == "train" for one in result["epochs"]),
    }


def _mean(epochs: list[dict[str, Any]], name: str) -> float | None:
    known = [one[name] for one in epochs if one[name] is not None]
    return fmean(known) if known else None


def _nominal(dataset: Mapping[str, Any]) -> int:
    columns = dataset["columns"]
    if not columns:
        return int(dataset["record_bytes"])
    return sum(
        (1 if one["dtype"] in {"string", "bytes"} else np.dtype(one["dtype"]).itemsize) * math.prod(one["shape"])
        for one in columns
    )


def _first(ranks: list[dict[str, Any]], host: str, name: str) -> float:
    return next((float(one[name]) for one in ranks if one["host"] == host), 0.0)
