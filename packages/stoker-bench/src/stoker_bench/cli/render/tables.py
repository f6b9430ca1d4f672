"""A simulation's report on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stoker.cli.terminal import make_pairs, make_table
from stoker_bench.cli.render.report_text import NODE_COLUMNS, NODE_LEGEND, findings, node_rows, settings_in_words
from stoker_bench.simulate import Report

_MOST_NODES = 16


def show_simulation(console: Console, report: Report, settings: Mapping[str, Any], warnings: Sequence[str]) -> None:
    """Write everything: settings, nodes, findings, warnings."""
    console.print(make_pairs("settings", settings_in_words(report, settings)))
    console.print()
    console.print(_nodes(report))
    console.print(Text(NODE_LEGEND, style="dim"))
    console.print()
    console.print(make_pairs("result", findings(report)))
    for warning in warnings:
        console.print()
        console.print(Text.assemble(("warning: ", "bold yellow"), warning))


def _nodes(report: Report) -> Table:
    shown = list(report.nodes)
    left_out = max(0, len(shown) - _MOST_NODES)
    if left_out:
        # Those that fetch the most are those that decide.
        shown = sorted(sorted(shown, key=lambda node: -node.bytes)[:_MOST_NODES], key=lambda node: node.node)
    title = f"nodes ({_MOST_NODES} of {len(report.nodes)}, those that fetch the most)" if left_out else "nodes"
    table = make_table(NODE_COLUMNS, title=title)
    for row in node_rows(shown):
        table.add_row(*row)
    return table
