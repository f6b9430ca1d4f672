"""From measurements to rates, ratios and the verdict on each line, and how they look on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from sidebyside.cases import TARGETS, Case, Entry, Target


@dataclass
class Row:
    """An entry of a case with what its rounds gave."""

    entry: Entry
    rates: list[float] = field(default_factory=list)
    measurements: list[dict[str, Any]] = field(default_factory=list)

    @property
    def median(self) -> float:
        return median(self.rates) if self.rates else 0.0

    @property
    def errors(self) -> list[str]:
        return [m["error"] for m in self.measurements if "error" in m]

    def add(self, measurement: dict[str, Any]) -> None:
        self.measurements.append(measurement)
        if "error" not in measurement:
            amount = measurement["bytes"] / 1e6 if "bytes" in measurement else measurement["samples"]
            self.rates.append(amount / measurement["seconds"])


@dataclass
class Outcome:
    """A case with its rows in the order of its entries."""

    case: Case
    rows: list[Row]

    def of(self, library: str, pick: str) -> Row | None:
        """The usual or the fastest configuration of a library that was measured, if any was."""
        rows = [r for r in self.rows if r.entry.library == library and r.rates]
        if pick == "usual":
            return next((r for r in rows if r.entry.usual), None)
        return max(rows, key=lambda r: r.median, default=None)


@dataclass(frozen=True)
class Verdict:
    target: Target
    measured: float | None  # a ratio, or a rate where the target has no peer; None if not measured
    against: str
    fastest: float | None  # the ratio to the peer's fastest configuration

    @property
    def reached(self) -> bool | None:
        return None if self.measured is None else self.measured >= self.target.least


def short(value: float) -> str:
    """Three figures: 1.23 M, 45.6 k, 789."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < 999.5 * size else f"{value / size:.0f} {unit}"
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


def table(outcome: Outcome) -> Table:
    out = Table(title=outcome.case.title, title_justify="left", title_style="bold")
    out.add_column("library")
    out.add_column("configuration")
    out.add_column(outcome.case.unit, justify="right")
    out.add_column("min - max", justify="right")
    out.add_column("stoker / it", justify="right")
    ours = outcome.of("stoker", "usual")
    for row in outcome.rows:
        if not row.rates:
            out.add_row(row.entry.library, row.entry.label, "[red]failed" if row.errors else "-")
            continue
        ratio = f"{ours.median / row.median:.2f}" if ours and row is not ours else ""
        spread = f"{short(min(row.rates))} - {short(max(row.rates))}"
        style = "cyan" if row.entry.library == "stoker" else ""
        out.add_row(row.entry.library, row.entry.label, short(row.median), spread, ratio, style=style)
    handed = {
        row.entry.library: row.measurements[0]["sample"]
        for row in outcome.rows
        if row.rates and "sample" in row.measurements[0]
    }
    if handed:
        out.caption = "handed out: " + "; ".join(f"{library} {what}" for library, what in handed.items())
        out.caption_justify = "left"
    return out


def judge(outcomes: Iterable[Outcome]) -> list[Verdict]:
    found = {o.case.name: o for o in outcomes}
    return [verdict(target, found[target.case]) for target in TARGETS if target.case in found]


def verdict(target: Target, outcome: Outcome) -> Verdict:
    ours = outcome.of("stoker", "usual")
    if target.variant:
        named = [r for r in outcome.rows if r.entry.library == "stoker" and r.entry.variant == target.variant]
        ours = next((r for r in named if r.rates), None)
    if not target.peer:
        return Verdict(target, ours.median if ours else None, "", None)
    peer, fastest = outcome.of(target.peer, target.pick), outcome.of(target.peer, "fastest")
    if ours is None or peer is None or fastest is None:
        return Verdict(target, None, "", None)
    against = f"{peer.entry.label}, {short(peer.median)} {outcome.case.unit}"
    return Verdict(target, ours.median / peer.median, against, ours.median / fastest.median)


def verdict_table(verdicts: list[Verdict]) -> Table:
    out = Table(title="The lines to reach", title_justify="left", title_style="bold")
    for name in ("what", "wanted", "measured", "reached", "against", "its fastest"):
        out.add_column(name, justify="right" if name in ("wanted", "measured", "its fastest") else "left")
    for v in verdicts:
        peer = v.target.peer
        wanted = f"≥ {v.target.least:g} x {peer}" if peer else f"≥ {short(v.target.least)}/s"
        measured = "-" if v.measured is None else f"{v.measured:.2f} x" if peer else f"{short(v.measured)}/s"
        reached = {None: "not measured", True: "[green]yes", False: "[red]no"}[v.reached]
        out.add_row(v.target.what, wanted, measured, reached, v.against, f"{v.fastest:.2f} x" if v.fastest else "")
    return out


def print_report(
    console: Console,
    outcomes: list[Outcome],
    verdicts: list[Verdict],
    machine: dict[str, str],
    versions: dict[str, str],
) -> None:
    for outcome in outcomes:
        console.print(table(outcome))
        console.print()
    for outcome in outcomes:
        for row in outcome.rows:
            for error in row.errors[:1]:
                who = f"{outcome.case.name}: {row.entry.library}, {row.entry.label}"
                console.print(f"{who}: {error}", style="red", markup=False)
    console.print(verdict_table(verdicts))
    console.print(f"\n{machine['cpu']}, {machine['cores']} cores, {machine['memory']}; {machine['kernel']}")
    console.print(f"{machine['date']}; load at the start {machine['load']}; {machine['page cache']}")
    if machine["busy"] == "yes":
        console.print(
            "Others were at work on this machine: trust the ratios little and the rates less.", style="yellow"
        )
    console.print("; ".join(f"{library}: {found}" for library, found in versions.items()))


def as_json(outcomes: list[Outcome], verdicts: list[Verdict]) -> dict[str, Any]:
    return {
        "cases": [
            {
                "name": o.case.name,
                "title": o.case.title,
                "unit": o.case.unit,
                "entries": [
                    {
                        "library": r.entry.library,
                        "configuration": r.entry.label,
                        "variant": r.entry.variant,
                        "usual": r.entry.usual,
                        "median": r.median or None,
                        "min": min(r.rates, default=None),
                        "max": max(r.rates, default=None),
                        "measurements": r.measurements,
                    }
                    for r in o.rows
                ],
            }
            for o in outcomes
        ],
        "targets": [
            {
                "what": v.target.what,
                "case": v.target.case,
                "peer": v.target.peer or None,
                "wanted": v.target.least,
                "measured": v.measured,
                "against": v.against or None,
                "ratio_to_fastest": v.fastest,
                "reached": v.reached,
            }
            for v in verdicts
        ],
    }
