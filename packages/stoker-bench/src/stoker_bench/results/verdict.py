"""The verdict on a run in a word: whether its number holds, and whether it is enough."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

from stoker_bench.measure.metrics import deciding_au
from stoker_bench.settings.workload import Workload

LEAST_STEPS: Final = 10
"""Steps of each rank's epoch that have to count for a pass."""

COMPLETE: Final = "complete"
"""The rule that a run breaks which did not finish."""

Verdict = Literal["invalid", "smoke test", "not passed", "passed", "valid"]


def verdict(result: Mapping[str, Any], workload: Workload) -> Verdict:
    """The verdict on a result of which the rules have been asked; ``valid`` where nothing was trained that could pass.

    A smoke test that was asked for ends as one, whatever rules its few bytes break, unless a rank failed.

    Example:
        >>> from stoker_bench.settings.workload import Workload
        >>> block = {"counted": 3}
        >>> epoch = {"kind": "train", "ranks": [{"blocks": [block]}]}
        >>> au = {"mean": 0.99}
        >>> verdict({"valid": True, "train": {"au": au, "au_nominal": au}, "epochs": [epoch]}, Workload())
        'smoke test'
    """
    broken = {one["rule"] for one in result.get("findings", ()) if one["invalid"]}
    if workload.metric.smoke and COMPLETE not in broken:
        return "smoke test"
    if not result["valid"]:
        return "invalid"
    au = None if result["train"] is None else deciding_au(result["train"])
    if au is None:
        return "valid"
    if least_counted_steps(result) < LEAST_STEPS:
        return "smoke test"
    return "passed" if au >= workload.metric.au else "not passed"


def least_counted_steps(result: Mapping[str, Any]) -> int:
    """The fewest steps of a rank's training epoch that count."""
    return min(
        (
            sum(block["counted"] for block in rank["blocks"])
            for epoch in result["epochs"]
            if epoch["kind"] == "train"
            for rank in epoch["ranks"]
        ),
        default=0,
    )
