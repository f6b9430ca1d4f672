"""``stoker bench compare``: what changed from some runs to others, beyond noise."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from stoker.cli.arguments import number
from stoker.cli.running import ExitCode, add_json, print_json
from stoker.cli.terminal import make_console, make_table, print_table
from stoker_bench.cli.bench.arguments import some_of

if TYPE_CHECKING:
    from stoker_bench.compare.compare import Change, ComparedMetric, Comparison

_GATES = ("au", "samples_per_second")


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = kinds.add_parser(
        "compare",
        help="say what changed between runs",
        description="Say what changed from A to B beyond noise. A directory holds a run's results, or directories that do: "
        "those are runs of one side.",
    )
    parser.add_argument("a", metavar="A", help="results before")
    parser.add_argument("b", metavar="B", help="results after")
    parser.add_argument(
        "--confidence", metavar="PART", type=_part, default=0.95, help="of intervals and verdicts; default: 0.95"
    )
    parser.add_argument(
        "--fail-over",
        metavar="PERCENT",
        type=_percent,
        help="exit with 3 if something is worse beyond noise, by more than so many percent",
    )
    parser.add_argument(
        "--fail-on",
        metavar="A,B",
        type=_metrics,
        default=_GATES,
        help=f"for --fail-over, the metrics that count; default: {','.join(_GATES)}",
    )
    parser.add_argument("--force", action="store_true", help="compare different workloads, and runs that did not end")
    add_json(parser)


def _part(text: str) -> float:
    return number(text, "a number from 0.5 to below 1", lambda value: 0.5 <= value < 1)


def _percent(text: str) -> float:
    return number(text.strip().removesuffix("%"), "a number from 0", lambda value: value >= 0)


def _metrics(text: str) -> tuple[str, ...]:
    from stoker_bench.compare.compare import METRICS

    return some_of(text, [metric.name for metric in METRICS])


def run(chosen: argparse.Namespace) -> int | None:
    """Do what was asked.

    Raises:
        StokerError: there are no results, or they can not be compared.
    """
    from stoker_bench.compare.compare import compare_runs
    from stoker_bench.results.report_files import find_runs

    found = compare_runs(find_runs([chosen.a]), find_runs([chosen.b]), confidence=chosen.confidence, force=chosen.force)
    failed = [] if chosen.fail_over is None else found.regressions(chosen.fail_over / 100, chosen.fail_on)
    if chosen.json:
        print_json(asdict(found) | {"regressions": [change.metric for change in failed]})
    else:
        _show(found, failed)
    return ExitCode.PROBLEMS if failed else None


def _show(found: Comparison, failed: list[Change]) -> None:
    from rich.text import Text

    from stoker_bench.compare.compare import METRICS

    console = make_console(wide=True)
    for letter, names in zip("AB", found.names, strict=True):
        console.print(Text(f"{letter}: {', '.join(names)}", style="bold"))
    headings = ("", "A", "", "B", "", "change", f"{found.confidence:.0%} interval", "p", "verdict")
    table = make_table(headings, left=("", "verdict"))
    metrics = {metric.name: metric for metric in METRICS}
    for change in found.changes:
        metric = metrics[change.metric]
        verdict = {"noise": "no change beyond noise", "unknown": "not known"}.get(change.verdict, change.verdict)
        style = {"better": "green", "worse": "bold red"}.get(change.verdict, "dim")
        interval = "" if change.low is None or change.high is None else f"{change.low:+.1%} to {change.high:+.1%}"
        table.add_row(
            metric.words,
            metric_text(metric, change.a),
            Text(_scatter(metric, change.stdev_a, change.count_a), style="dim"),
            metric_text(metric, change.b),
            Text(_scatter(metric, change.stdev_b, change.count_b), style="dim"),
            "" if change.change is None else f"{change.change:+.1%}",
            interval,
            "" if change.p_adjusted is None else f"{change.p_adjusted:.2g}",
            Text(verdict, style=style),
        )
    print_table(console, table)
    console.print(Text(found.method, style="dim"))
    if found.differences:
        other = make_table(("", "A", "B"), title="what differs", left=("", "A", "B"), fold=True)
        for name, (a, b) in found.differences.items():
            other.add_row(Text(name, style="dim"), Text(a), Text(b))
        console.print(other)
    for said in found.warnings:
        console.print(Text.assemble(("warning: ", "bold yellow"), said))
    for change in failed:
        console.print(Text(f"regression: {metrics[change.metric].words}", style="bold red"))


def metric_text(metric: ComparedMetric, value: float) -> str:
    """A value in words."""
    from stoker.cli.terminal import seconds_text
    from stoker.display import bytes_text

    if metric.unit == "part":
        return f"{value:.2%}"
    if metric.unit == "seconds":
        return seconds_text(value)
    return bytes_text(value) if metric.unit == "bytes" else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def _scatter(metric: ComparedMetric, stdev: float | None, count: int) -> str:
    return f"(of {count})" if stdev is None else f"± {metric_text(metric, stdev)} (of {count})"
