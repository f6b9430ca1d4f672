"""``stoker bench report``: results as one page of HTML with charts."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import Final

from stoker.errors import ConfigError
from stoker_bench.cli.bench.arguments import add_results

_NAME: Final = "report.html"


def add(kinds: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Define the command's arguments."""
    parser = kinds.add_parser(
        "report",
        help="make a page of results",
        description="Make one page of HTML of results, with charts, that needs no network. Of several runs, loaders and "
        "storages are compared.",
    )
    add_results(parser)
    parser.add_argument("--title", metavar="TEXT", help="title of the page; default: the workload's name")
    parser.add_argument(
        "--system",
        metavar="FILE",
        help="a description of the system that was measured, shown first: a text, or YAML with names and values",
    )
    parser.add_argument("--output", metavar="FILE", help=f"where to; default: {_NAME} in the first DIR")


def run(chosen: argparse.Namespace) -> None:
    """Do what was asked.

    Raises:
        StokerError: there are no results, the description can not be read, or the page can not be written.
    """
    from stoker_bench.cli.bench.page import bench_page
    from stoker_bench.cli.bench.system_text import read_system_text
    from stoker_bench.results.report_files import find_runs

    system = None if chosen.system is None else read_system_text(Path(chosen.system).expanduser())
    text = bench_page(find_runs(chosen.folders), title=chosen.title, system=system)
    path = Path(chosen.output) if chosen.output else Path(chosen.folders[0]).expanduser() / _NAME
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(text.encode("utf-8", "replace"))  # JSON may hold halves of surrogates
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # as on a file system that is mounted to be read alone
            temporary.unlink(missing_ok=True)
        raise ConfigError(f"{path} can not be written: {error.strerror or error}") from None
    sys.stdout.write(f"{path}\n")
