"""The verdict on a run for people, and as an exit code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from stoker.cli.running import ExitCode
from stoker_bench.results.rules import PUBLISHED

_SMOKE = "smoke test: a small run, to see that all works. It is not a valid result: that needs the whole workload"


def exit_code(results: Iterable[Mapping[str, Any]]) -> ExitCode:
    """The code for all of these results: the worst one's.

    Example:
        >>> exit_code([{"verdict": "passed"}, {"verdict": "smoke test"}])
        <ExitCode.NOT_PASSED: 4>
    """
    # One that was asked for is what was wanted.
    found = {"valid" if is_smoke_test(result) else result["verdict"] for result in results}
    if "invalid" in found:
        return ExitCode.PROBLEMS
    return ExitCode.NOT_PASSED if found & {"not passed", "smoke test"} else ExitCode.FINE


def is_smoke_test(result: Mapping[str, Any]) -> bool:
    """Whether the run was meant as a smoke test, and has finished."""
    meant = bool(result.get("plan", {}).get("workload", {}).get("metric", {}).get("smoke"))
    return meant and result["verdict"] == "smoke test"


def verdict_text(result: Mapping[str, Any]) -> str:
    """The verdict, and what a pass would have needed; empty where nothing was trained that could pass.

    Example:
        >>> verdict_text({"verdict": "passed", "passed": True, "plan": {"workload": {"metric": {"au": 0.9}}}})
        'passed: a valid run with a utilization of at least 90%, both as measured and nominal'
    """
    if is_smoke_test(result):
        return _SMOKE
    if result["passed"] is None:
        return ""
    changed = next((f"; {one['reason']}" for one in result.get("findings", ()) if one["rule"] == PUBLISHED), "")
    return _told(result) + changed


def _told(result: Mapping[str, Any]) -> str:
    asked = f"a utilization of at least {result['plan']['workload']['metric']['au']:.0%}, both as measured and nominal"
    if result["verdict"] == "smoke test":
        return f"smoke test, not passed: too few steps count; a pass needs a valid run with {asked}"
    needed = "" if result["passed"] else "a pass needs "
    return f"{'passed' if result['passed'] else 'not passed'}: {needed}a valid run with {asked}"
