"""The rules of a valid result. A rule that is broken marks the run as invalid, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stoker.display import counted
from stoker_bench.checkpoint.findings import checkpoint_findings
from stoker_bench.kv_cache.findings import kv_cache_findings
from stoker_bench.measure.metrics import step_seconds
from stoker_bench.mlperf.rules import changes
from stoker_bench.mlperf.verdict import mlperf_findings
from stoker_bench.results.bytes_read import bytes_findings
from stoker_bench.results.counts import count_findings
from stoker_bench.results.requests import request_findings
from stoker_bench.results.verdict import COMPLETE, LEAST_STEPS, least_counted_steps
from stoker_bench.settings.sources import as_published
from stoker_bench.settings.workload import Workload
from stoker_bench.vectors.outcome import vector_findings

_RESIDUE: Final = 0.001
_REPEATS: Final = 5
_LONGER: Final = 0.02
"""The part by which a simulated computation may take longer than was drawn for it."""
_CLOCK_READ: Final = 2e-6
"""Seconds that a step's computation takes longer because the clock is read."""
_MARGIN: Final = 0.02
PUBLISHED: Final = "published workload"
"""The rule that tells what a published workload was run with instead of its own settings."""
_TOLD: Final = 12
_DISTINCT: Final = 0.75
"""Part of the blocks of others' data below which these are told to be copies."""
_CONSTANT: Final = 0.5
"""Part of the blocks of the data that may be of one byte."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of a rule.

    Attributes:
        rule: its name.
        invalid: whether the numbers are not to be relied on; else it is a remark.
        reason: in a sentence.
    """

    rule: str
    invalid: bool
    reason: str


Rule = Callable[[Mapping[str, Any], Workload], Iterator[Finding]]


def check_rules(result: Mapping[str, Any], workload: Workload) -> list[Finding]:
    """The findings of all rules, broken ones first."""
    found = [finding for rule in _RULES for finding in rule(result, workload)]
    return sorted(found, key=lambda finding: not finding.invalid)


def _training(result: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [epoch for epoch in result["epochs"] if epoch["kind"] == "train"]


def _complete(result: Mapping[str, Any], workload: Workload) -> Iterator[Finding]:
    if result["failure"] is not None:
        yield Finding(COMPLETE, True, f"the run did not finish: {result['failure']}")
    elif not result["complete"]:
        yield Finding(
            COMPLETE, True, f"{result['world']['reported']} of {counted(result['world']['ranks'], 'rank')} reported"
        )
    if "train" in workload.stages and result["failure"] is None:
        if not _training(result):
            yield Finding("metrics", True, "no epoch was trained, so that there is nothing to tell")
        for epoch in _training(result):
            if epoch["au"] is None:
                yield Finding(
                    "metrics",
                    True,
                    f"epoch {epoch['epoch']} has no step that counts: {min(epoch['steps'], default=0)} steps, of which "
                    f"{workload.metric.exclude_start} + {workload.metric.exclude_end} are left out",
                )
                break


def _identity(result: Mapping[str, Any], workload: Workload) -> Iterator[Finding]:  # noqa: ARG001
    worst = max((epoch["residue_part"] for epoch in result["epochs"] if epoch["residue_part"] is not None), default=0.0)
    if worst > _RESIDUE:
        yield Finding(
            "identity", True, f"{worst:.2%} of the time is in no part of it, or in one clock alone: the clocks disagree"
        )


def _bytes(result: Mapping[str, Any], workload: Workload) -> Iterator[Finding]:
    for rule, invalid, reason in bytes_findings(result, workload):
        yield Finding(rule, invalid, reason)


def _requests(result: Mapping[str, Any], workload: Workload) -> Iterator[Finding]:  # noqa: ARG001
    for rule, invalid, reason in request_findings(result):
        yield Finding(rule, invalid, reason)


def _unique(result: Mapping[str, Any], workload: Workload) -> Iterator[Finding]:
    if workload.reader.loader == "synthetic":
        return
    for epoch in result["epochs"]:
        prints = [one for one in epoch["fingerprints"] if one is not None]
        if len(set(prints)) < len(prints):
            yield Finding(
                "different data", True, f"in epoch {epoch['epoch']} two ranks were given the same first batch"
            )
            return
        if len(prints) < len(epoch["fingerprints"]) and epoch["complete"]:
            yield Finding("different data", False, "the loader hands over no data, so that ranks can not be compared")
            return


def _warm_up(result: Mapping[str, Any], workload: Workload) -> Iterator[Finding]:
    epochs = _training(result)
    if not epochs:
        return
    start, end = workload.metric.exclude_start, workload.metric.exclude_end
    if not start:
        yield Finding("warm-up", False, "no step is left out at the beginning, so that warming up counts")
    counted = least_counted_steps(result)
    if 0 < counted < LEAST_STEPS:
        yield Finding(
            "smoke test",
            False,
            f"only {counted} steps of an epoch count ({start} + {end} of a block are left out), and a pass needs "
            f"{LEAST_STEPS}: this is a smoke test",
        )


def _computation(result: Mapping[str, Any], workload: Workload) -> Iterator[Finding]:  # noqa: ARG001
    calibration = result["calibration"]
    places = [("in the calibration", "", calibration)] if calibration is not None else []
    for epoch in result["epochs"]:
        where = f"in epoch {epoch['epoch']}" + (f" of repeat {epoch['repeat']}" if epoch["repeat"] else "")
        places += [(where, f" of rank {rank['rank']}", step_seconds(rank["blocks"])) for rank in epoch["ranks"]]
    worst = 0.0
    for place, whose, found in places:
        drawn, measured = found["compute_drawn"], found["compute_measured"]
        longer = (measured - drawn - _CLOCK_READ) / drawn if drawn else 0.0
        if longer > max(_LONGER, worst):
            worst, where, who, times = longer, place, whose, (drawn, measured)
    if worst:
        more = times[1] / times[0] - 1
        yield Finding(
            "computation",
            True,
            f"{where} a step's computation{who} took {times[1] * 1e3:.4g} ms, {more:.{int(more < 0.1)}%} longer than the "
            f"{times[0] * 1e3:.4g} ms drawn for it: this host is overloaded. Use fewer accelerators or read threads a host",
        )


def content_rule(result: Mapping[str, Any], workload: Workload) -> Iterator[Finding]:  # noqa: ARG001
    """Find data that storage may deliver without reading a device: zeros, copies, or bytes that were not generated."""
    found = result.get("content")
    if found is None or not found["blocks"]:
        return
    if found["as_generated"] is False:
        yield Finding(
            "data", True, "the files are not those that were generated: blocks of one are not those of its seed"
        )
    elif found["constant"] > _CONSTANT * found["blocks"]:
        yield Finding(
            "data",
            True,
            f"{found['constant']} of {found['blocks']} blocks of the files are one byte again and again, such as zeros: "
            "storage may keep them without reading a device. Generate the data, or measure with real files",
        )
    elif found["as_generated"] is None and found["distinct"] < _DISTINCT * found["blocks"]:
        reason = (
            f"of {found['blocks']} blocks of the files {found['distinct']} differ: storage that keeps equal blocks once, or "
            "caches them so, reads less than it delivers"
        )
        yield Finding("data", False, reason)


def _published(result: Mapping[str, Any], workload: Workload) -> Iterator[Finding]:  # noqa: ARG001
    found = as_published(workload)
    if found is None or workload.metric.rules != "stoker":  # MLPerf Storage's say themselves what may differ
        return
    name, original = found
    told = [f"{one.path} is {one.seen}, not {one.wanted}" for one in changes(workload, original)]
    if told:
        more = f", and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
        yield Finding(PUBLISHED, False, f"this is not {name} as it is published: {'; '.join(told[:_TOLD])}{more}")


def _repeated(result: Mapping[str, Any], workload: Workload) -> Iterator[Finding]:
    if workload.metric.rules != "stoker":  # MLPerf Storage's own rule of the runs, which differs by edition, decides
        return
    if _training(result) and workload.train.repeats < _REPEATS:
        times = {1: "once", 2: "twice"}.get(workload.train.repeats, f"{workload.train.repeats} times")
        yield Finding("repeats", False, f"the training was run {times}; MLPerf Storage asks for {_REPEATS} runs")


def _even(result: Mapping[str, Any], workload: Workload) -> Iterator[Finding]:  # noqa: ARG001
    for epoch in _training(result):
        if epoch["complete"] and len(set(epoch["steps"])) > 1:
            yield Finding(
                "steps",
                False,
                f"ranks took {min(epoch['steps'])} to {max(epoch['steps'])} steps in epoch {epoch['epoch']}",
            )
            break


def _counts(result: Mapping[str, Any], workload: Workload) -> Iterator[Finding]:
    for rule, invalid, reason in count_findings(result, workload):
        yield Finding(rule, invalid, reason)


def _ceiling(result: Mapping[str, Any], workload: Workload) -> Iterator[Finding]:
    calibration = result["calibration"]
    if calibration is None:
        if _training(result):
            yield Finding(
                "calibration", False, "not calibrated: metric.calibrate tells what endless storage would give"
            )
    elif calibration["error"] is not None:
        yield Finding("calibration", True, f"calibration was asked for and failed: {calibration['error']}")
    elif calibration["au_ceiling"] is not None and calibration["au_ceiling"] < workload.metric.au + _MARGIN:
        yield Finding(
            "calibration",
            True,
            f"with data in memory the utilization is {calibration['au_ceiling']:.1%}, not {_MARGIN:.0%} above the "
            f"{workload.metric.au:.0%} asked for: the loader or this host is too slow, whatever the storage",
        )


def _decoding(result: Mapping[str, Any], workload: Workload) -> Iterator[Finding]:
    loaders = [epoch["loader"] for epoch in _training(result) if epoch["loader"] is not None]
    if not loaders:
        return
    decoded = loaders[0]["decoded"]
    if decoded == "none":
        yield Finding("decoding", True, "nothing was read: the result is the harness's own cost")
    elif decoded == "bytes":
        yield Finding("decoding", False, "bytes alone: nothing was decoded, as reader.decode says")
    elif not workload.reader.decode:
        yield Finding("decoding", True, "the loader decoded although reader.decode is false")


def _crowded(result: Mapping[str, Any], workload: Workload) -> Iterator[Finding]:  # noqa: ARG001
    hosts: dict[str, int] = {}
    for rank in result["ranks"]:
        hosts[rank["host"]] = hosts.get(rank["host"], 0) + 1
    for rank in result["ranks"]:
        if hosts[rank["host"]] > rank["processors"]:
            yield Finding(
                "processors",
                False,
                f"{hosts[rank['host']]} accelerators share {rank['processors']} processors of {rank['host']}",
            )
            return


def _stages(result: Mapping[str, Any], workload: Workload) -> Iterator[Finding]:
    for findings in (checkpoint_findings, mlperf_findings):
        for rule, invalid, reason in findings(result, workload):
            yield Finding(rule, invalid, reason)
    for stage, measured_findings in (("kv_cache", kv_cache_findings), ("vectors", vector_findings)):
        measured = result[stage]
        if stage not in workload.stages:
            continue
        if measured is not None and measured["repeats"]:
            for rule, invalid, reason in measured_findings(measured, workload):
                yield Finding(rule, invalid, reason)
        elif result["failure"] is None:
            yield Finding(stage.replace("_", " "), True, f"nothing was measured in the stage {stage}")


_RULES: Final[tuple[Rule, ...]] = (
    _complete,
    _identity,
    _counts,
    content_rule,
    _bytes,
    _requests,
    _unique,
    _warm_up,
    _computation,
    _published,
    _repeated,
    _even,
    _ceiling,
    _decoding,
    _crowded,
    _stages,
)
