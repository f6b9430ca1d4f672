"""``stoker bench history``: the runs whose results are below a directory."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from stoker.cli.running import add_json, print_json
from stoker.cli.terminal import make_console, make_table

_NUMBERS = ("ranks", "lower AU", "storage MB/s")
_FOLDED = ("began (UTC)", "workload", "verdict", "lower AU", "storage MB/s", "hosts", "results")
_COLUMNS = ("began (UTC)", "workload", "ranks", "verdict", "lower AU", "storage MB/s", "hosts", "results")


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = kinds.add_parser(
        "history",
        help="list the runs of a directory",
        description="List the runs whose results are below a directory, newest first.",
    )
    parser.add_argument("folder", metavar="DIR", nargs="?", default=".", help="default: the current directory")
    add_json(parser)


def run(chosen: argparse.Namespace) -> None:
    """Do what was asked.

    Raises:
        StokerError: there is no such directory.
    """
    from stoker_bench.results.history import history

    found = history(chosen.folder)
    if chosen.json:
        print_json([asdict(one) for one in found])
        return
    if not found:
        sys.stdout.write(f"no results below {chosen.folder}\n")
        return
    console = make_console(wide=True)
    table = make_table(_COLUMNS, left=[name for name in _COLUMNS if name not in _NUMBERS])
    for column in table.columns:
        # On a narrow terminal, names are folded, so that neither a number nor a path is cut.
        if column.header in _FOLDED:
            column.no_wrap, column.overflow = False, "fold"
    for one in found:
        name = one.workload + (f" {one.accelerator}" if one.accelerator not in {"", "none"} else "")
        table.add_row(
            one.began.replace("T", " ").removesuffix("Z"),
            name,
            str(one.ranks) if one.began else "",
            one.verdict or one.error,
            "" if one.au is None else f"{one.au:.1%}",
            "" if one.storage_bytes_per_second is None else f"{one.storage_bytes_per_second / 1e6:,.1f}",
            ", ".join(one.hosts),
            one.folder,
        )
    console.print(table)
