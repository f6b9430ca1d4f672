"""Parts that all long commands share: exit codes, ``--json``, a bar with rate and time left, the message after Ctrl-C.

A command's ``run(chosen)`` returns its exit code, or ``None`` for 0. It calls the library and prints what that returned;
errors and Ctrl-C are told by :func:`stoker.cli.main`, so that they look alike everywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from stoker.cli.arguments import named, named_json
from stoker.cli.terminal import make_console
from stoker.writing.progress import ProgressBar

__all__ = [
    "ExitCode",
    "add_format",
    "add_json",
    "add_storage_options",
    "bar",
    "format_options",
    "on_interrupt",
    "print_json",
    "shows_progress",
    "storage_options",
]


class ExitCode(IntEnum):
    """The exit code of a command."""

    FINE = 0
    FAILED = 1
    USAGE = 2
    PROBLEMS = 3
    INTERRUPTED = 130


def add_json(parser: argparse.ArgumentParser) -> None:
    """Define ``--json``, which :func:`bar` heeds, too."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text, and no progress")


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def add_storage_options(parser: argparse.ArgumentParser) -> None:
    """Define ``--storage-option NAME=VALUE``, to be given any number of times."""
    parser.add_argument(
        "--storage-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=named,
        help="a setting of the object store by obstore's name, such as endpoint=http://host:9000; may be given again",
    )


def storage_options(chosen: argparse.Namespace) -> dict[str, str] | None:
    """The values of ``--storage-option``, for ``storage_options=``."""
    return dict(chosen.storage_option) or None


def add_format(
    parser: argparse.ArgumentParser, said: str = "of files without an index.json; default: by their names"
) -> None:
    """Define ``--format`` and ``--format-option NAME=VALUE``, for files that are read without an index."""
    parser.add_argument("--format", metavar="NAME", help=said)
    parser.add_argument(
        "--format-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=named_json,
        help="a setting of the format, as JSON or text, such as axis=-1; may be given again",
    )


def format_options(chosen: argparse.Namespace) -> dict[str, Any] | None:
    """The values of ``--format-option``, for ``format_options=``."""
    return dict(chosen.format_option) or None


def shows_progress(chosen: argparse.Namespace) -> bool:
    """Whether bars are shown: not with ``--json``, nor where stderr is no terminal."""
    return not getattr(chosen, "json", False) and sys.stderr.isatty()


def bar(chosen: argparse.Namespace, title: str, total: float | None = None, unit: str = "bytes") -> ProgressBar:
    """A bar to enter, which shows nothing unless :func:`shows_progress`."""
    shown = shows_progress(chosen)
    return ProgressBar(title, total, unit, console=make_console(stderr=True) if shown else None, shown=shown)


@contextlib.contextmanager
def on_interrupt(said: str) -> Iterator[None]:
    """Set the message for a Ctrl-C that ends the block: the state of the work, and how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(said) from None
