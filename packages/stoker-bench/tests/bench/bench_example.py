"""Results to compare and to show: a real run's, and what tests make of it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
from bench_threads import run_in_threads

from stoker_bench.results.report_files import RunFiles
from stoker_bench.results.results import schema
from stoker_bench.run import run_benchmark
from stoker_bench.settings.sources import read_workload
from stoker_bench.settings.workload import Stage


def real_run(
    results: Path,
    *settings: str,
    ranks: int = 1,
    url: str | None = None,
    stages: tuple[Stage, ...] = ("train",),
    processes: bool = False,
) -> None:
    """A run that takes a moment, by ranks that are threads, or processes."""
    resolved = read_workload(None, ["compute.seconds=0.001", *settings], environ={}, dotenv=None)
    run = run_benchmark if processes else run_in_threads
    run(
        resolved,
        results=results,
        url=url,
        accelerators=ranks,
        stages=stages,
        command=["stoker", "bench", "run"],
    )


def variant(
    run: RunFiles,
    values: Sequence[Mapping[str, Any]],
    *,
    name: str = "made",
    a_repeat: int | None = None,
    blocks: bool = False,
) -> RunFiles:
    """A run whose epochs have other values, a mapping for each; ``a_repeat`` epochs of each repetition.

    With ``blocks`` it is one epoch, of so many blocks.
    """
    result = copy.deepcopy(dict(run.result))
    one = result["epochs"][0]
    result["epochs"] = [
        copy.deepcopy(one)
        | {"repeat": k // (a_repeat or len(values)), "epoch": k % (a_repeat or len(values))}
        | dict(each)
        for k, each in enumerate(values)
    ]
    if blocks:
        made = copy.deepcopy(one)
        for rank in made["ranks"]:
            rank["blocks"] = [copy.deepcopy(rank["blocks"][0]) | dict(each) for each in values]
        result["epochs"] = [made]
    return RunFiles(run.folder, name, result)


def with_setting(run: RunFiles, path: str, value: Any) -> RunFiles:
    """The same run, as if a setting had been another."""
    result = copy.deepcopy(dict(run.result))
    *sections, last = path.split(".")
    inner = result["plan"]["workload"]
    for section in sections:
        inner = inner[section]
    inner[last] = value
    return RunFiles(run.folder, run.name, result)


def run_stage(
    stage: Stage,
    small: Sequence[str],
    folder: Path,
    *settings: str,
    url: str | None = None,
    ranks: int = 1,
    name: str = "results",
) -> dict[str, Any]:
    """The results of a run of one stage, which have the shape of results; the data is in ``folder``, or at ``url``."""
    resolved = read_workload(None, [f"stages=[{stage}]", *small, *settings], environ={}, dotenv=None)
    data = url or str(folder / "data")
    result = run_in_threads(resolved, results=folder / name, url=data, accelerators=ranks)
    jsonschema.validate(result, schema())
    return result


def reasons(result: Mapping[str, Any], *, invalid: bool) -> dict[str, str]:
    """The reasons of the rules that a run breaks, or its remarks."""
    return {one["rule"]: one["reason"] for one in result["findings"] if one["invalid"] is invalid}
