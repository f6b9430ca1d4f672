"""Finds results that were edited after the run, by computing their numbers again from their parts and from the step files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from stoker.errors import ConfigError
from stoker.version import __version__
from stoker_bench.measure.metrics import deciding_au
from stoker_bench.measure.step_files import counted, read_steps, steps_path
from stoker_bench.results.rules import check_rules
from stoker_bench.results.verdict import verdict
from stoker_bench.settings.schema import build, tree_of
from stoker_bench.settings.workload import Workload

_PARTS: Final = ("compute", "stall", "barrier", "overhead", "residue")
_NEAR: Final = 1e-6
"""Part by which sums of floating-point numbers may differ."""
_CLOCK: Final = 1e-6
"""Seconds by which a sum of steps may differ that are noted in nanoseconds."""


def as_measured(result: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The results; those that were changed after the run are invalid.

    Args:
        result: ``results.json``, checked against its schema.
        folder: where it is, beside the files of its steps.
    """
    try:
        said = next(_differences(result, folder), None)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # results that somebody made up
        said = f"its numbers can not be computed again ({type(error).__name__})" if _is_ours(result) else None
    if said is None:
        return result
    reason = f"{said}: results.json was changed after the run"
    finding = {"rule": "as measured", "invalid": True, "reason": reason}
    passed = None if result["passed"] is None else False
    return {
        **result,
        "valid": False,
        "verdict": "invalid",
        "passed": passed,
        "findings": [finding, *result["findings"]],
    }


def _differences(result: Mapping[str, Any], folder: Path) -> Iterator[str]:
    for epoch in result["epochs"]:
        where = f"epoch {epoch['epoch']} of {epoch['kind']}" + (
            f", repeat {epoch['repeat']}" if epoch["repeat"] else ""
        )
        for rank in epoch["ranks"]:
            for block in rank["blocks"]:
                parts = sum(block[part] for part in _PARTS)
                if not _same(parts, block["seconds"]):
                    yield f"the parts of rank {rank['rank']}'s time in {where} make {parts:.6g} s of {block['seconds']:.6g} s"
                if block["au"] is not None:
                    yield from _differ(
                        f"utilization of rank {rank['rank']} in {where}", block["au"], *_over(block, "compute")
                    )
                    yield from _differ(
                        f"nominal utilization of rank {rank['rank']} in {where}",
                        block["au_nominal"],
                        *_over(block, "drawn"),
                    )
            for name in ("au", "au_nominal"):
                yield from _differ(
                    f"{name} of rank {rank['rank']} in {where}", rank["metrics"][name], *_mean(rank["blocks"], name)
                )
            yield from _of_steps(result, rank, epoch, where, folder)
        for name in ("au", "au_nominal"):
            yield from _differ(
                f"{name} of {where}", epoch[name], *_plain(rank["metrics"][name] for rank in epoch["ranks"])
            )
    for kind, name in (("train", "train"), ("valid", "evaluate")):
        over = result[name]
        epochs = [epoch for epoch in result["epochs"] if epoch["kind"] == kind]
        for value in ("au", "au_nominal") if over is not None else ():
            told = None if over[value] is None else over[value]["mean"]
            yield from _differ(f"mean {value} of {name}", told, *_plain(epoch[value] for epoch in epochs))
    yield from _judged(result)


def _of_steps(
    result: Mapping[str, Any], rank: Mapping[str, Any], epoch: Mapping[str, Any], where: str, folder: Path
) -> Iterator[str]:
    """Compare the blocks of a rank with its step file, if there is one."""
    steps = read_steps(steps_path(folder, rank["rank"], epoch["kind"], epoch["repeat"], epoch["epoch"]))
    metric = result["plan"]["workload"].get("metric", {})
    if steps is None or len(steps.block) != len(rank["blocks"]):
        return
    kept = counted(steps, metric.get("exclude_start", 0), metric.get("exclude_end", 0))
    for block, part in zip(rank["blocks"], kept, strict=True):
        who = f"rank {rank['rank']}"
        computed, waited = (float(one[part].sum()) * 1e-9 for one in (steps.compute, steps.wait))
        if abs(computed - block["compute"]) > _CLOCK:
            yield f"{who} computed {block['compute']:.6g} s in {where}, by its steps {computed:.6g} s"
        if waited > block["stall"] + _CLOCK:
            yield f"{who} waited {block['stall']:.6g} s in {where}, by its steps {waited:.6g} s"


def _judged(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield where the verdict does not follow from the numbers.

    Results of another version are not judged: its rules may differ.
    """
    if result["valid"] == any(one["invalid"] for one in result["findings"]):
        yield f"it is {'valid' if result['valid'] else 'invalid'} against its findings"
    if not _is_ours(result):
        return
    try:
        workload = build(Workload, tree_of(result["plan"]["workload"], "results.json"))
    except ConfigError:
        return  # it was run with other checks of the settings
    found = {one.rule for one in check_rules(result, workload) if one.invalid}
    missing = sorted(found - {one["rule"] for one in result["findings"] if one["invalid"]})
    if missing:
        yield f"the rule {missing[0]!r} is broken, which its findings do not say"
    told = verdict(result, workload)
    if told != result["verdict"]:
        yield f"its verdict is {result['verdict']!r}, where the numbers give {told!r}"
    au = None if result["train"] is None else deciding_au(result["train"])
    if result["passed"] != (None if au is None else told == "passed"):
        yield "whether it passed does not follow from its verdict"


def _is_ours(result: Mapping[str, Any]) -> bool:
    """Return whether this version of stoker wrote the results."""
    versions = result["environment"].get("versions")
    return isinstance(versions, Mapping) and versions.get("stoker") == __version__


def _over(block: Mapping[str, Any], name: str) -> tuple[float, ...]:
    return () if block[name] is None else (block[name] / block["seconds"],)


def _mean(blocks: Sequence[Mapping[str, Any]], name: str) -> tuple[float, ...]:
    known = [block for block in blocks if block["au"] is not None]
    weight = sum(block["steps"] for block in known)
    if not weight or any(block[name] is None for block in known):
        return ()
    return (sum(block[name] * block["steps"] for block in known) / weight,)


def _plain(values: Iterable[float | None]) -> tuple[float, ...]:
    known = [value for value in values if value is not None]
    return (sum(known) / len(known),) if known else ()


def _differ(what: str, told: float | None, *computed: float) -> Iterator[str]:
    """Yield a sentence if a number is not the one that was computed from its parts."""
    if told is not None and not (computed and _same(told, computed[0])):
        yield f"{what} is {told:.2%}, where its parts give {f'{computed[0]:.2%}' if computed else 'none'}"


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_NEAR, abs_tol=_CLOCK)
