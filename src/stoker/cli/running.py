"""Parts that all long commands share: exit codes, ``--json``, a bar with rate and time left, the message after Ctrl-C.

A command's ``run(chosen)`` returns its exit code, or ``None`` for 0. It calls the library and prints what that returned;
errors and Ctrl-C are told by :func:`stoker.cli.main`, so that they look alike everywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Any

from stoker.cli.arguments import named, named_json
from stoker.cli.terminal import make_console
from stoker.writing.progress import ProgressBar


class ExitCode(IntEnum):
    """The exit code of a command."""

    FINE = 0
    FAILED = 1
    USAGE = 2
    PROBLEMS = 3
    NOT_PASSED = 4
    INTERRUPTED = 130
    TERMINATED = 143


def add_json(parser: argparse.ArgumentParser) -> None:
    """Define ``--json``, which :func:`bar` heeds, too."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text, and no progress")


def add_engine(parser: argparse._ActionsContainer) -> None:
    """Define ``--engine``, one of :data:`stoker.types.Engine`; that module takes too long to import for ``--help``."""
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help="ray: tasks of a Ray cluster")


def print_json(value: Any) -> None:
    """Print one JSON document on stdout."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


class Pairs(argparse.Action):
    """Collects pairs of a name and a value, given any number of times, as a dict; ``None`` where there is none."""

    def __call__(self, _: object, namespace: argparse.Namespace, pair: Any, __: str | None = None) -> None:
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), pair[0]: pair[1]})


def add_storage_options(parser: argparse._ActionsContainer) -> None:
    """Define ``--storage-option NAME=VALUE``, for an argument ``storage_options=``."""
    parser.add_argument(
        "--storage-option",
        dest="storage_options",
        metavar="NAME=VALUE",
        action=Pairs,
        type=named,
        help="a setting of the object store by obstore's name, such as endpoint=http://host:9000; may be given again",
    )


def add_format(
    parser: argparse.ArgumentParser, said: str = "of files without an index.json; default: by their names"
) -> None:
    """Define ``--format`` and ``--format-option NAME=VALUE``, for arguments ``format=`` and ``format_options=``."""
    parser.add_argument("--format", metavar="NAME", help=said)
    parser.add_argument(
        "--format-option",
        dest="format_options",
        metavar="NAME=VALUE",
        action=Pairs,
        type=named_json,
        help="a setting of the format, as JSON or text, such as axis=-1; may be given again",
    )


def arguments_of(function: Callable[..., Any], chosen: argparse.Namespace) -> dict[str, Any]:
    """The options (by ``dest``) that have the name of a parameter of a function, or of a field of a dataclass."""
    import inspect  # here, as the command line starts without it

    known = inspect.signature(function).parameters
    return {name: value for name, value in vars(chosen).items() if name in known}


def shows_progress(chosen: argparse.Namespace) -> bool:
    """Whether bars are shown: not with ``--json``, nor where stderr is no terminal."""
    return not getattr(chosen, "json", False) and sys.stderr.isatty()


def bar(chosen: argparse.Namespace, title: str, total: float | None = None, unit: str = "bytes") -> ProgressBar:
    """A bar to enter, which shows nothing unless :func:`shows_progress`."""
    shown = shows_progress(chosen)
    return ProgressBar(title, total, unit, console=make_console(stderr=True) if shown else None, shown=shown)


@contextlib.contextmanager
def on_interrupt(said: str) -> Iterator[None]:
    """Set the message for a Ctrl-C (or SIGTERM) that ends the block: the state of the work, and how to continue."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise type(error)(said) from None
