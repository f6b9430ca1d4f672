"""Arguments that several actions of ``stoker bench`` have."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Define the workload of a benchmark, settings that go before its file's, ``--data`` (``url=``) and ``--launcher``."""
    parser.add_argument(
        "workload", metavar="WORKLOAD", help="a YAML file, stoker's or DLIO's, or a name of stoker bench list"
    )
    parser.add_argument(
        "settings", metavar="SECTION.KEY=VALUE", nargs="*", default=[], help="settings that go before the file's"
    )
    parser.add_argument(
        *("--param", "--params"),
        dest="params",
        metavar="KEY=VALUE",
        action="extend",
        nargs="+",
        default=[],
        help="the same settings, as MLPerf Storage's command has them; keys may be DLIO's, as dataset.num_files_train=8",
    )
    parser.add_argument("--data", dest="url", metavar="URL", help="the data set: a directory or URL, with train/ below")
    parser.add_argument(
        "--launcher", choices=["ray"], help="ranks are tasks of the Ray cluster that this process is in"
    )


def add_results(parser: argparse.ArgumentParser, name: str = "folders", **settings: Any) -> None:
    """Define an argument of directories with results of a benchmark, for ``find_runs``."""
    parser.add_argument(
        name,
        metavar="DIR",
        nargs="+",
        help="results of stoker bench run, or a directory that holds several of them",
        **settings,
    )


def some_of(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Names with commas between, all of them known."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if not names or set(names) - set(known):
        raise argparse.ArgumentTypeError(f"must be of {', '.join(known)}, with commas between, got {text!r}")
    return names
