"""What all long commands share: exit codes, ``--json``, a bar with rate and time left, and what Ctrl-C says.

A command's ``run(chosen)`` returns its exit code, or ``None`` for 0. It calls the library and prints what that returned;
errors and Ctrl-C are told by :func:`stoker.cli.main`, so that they look alike everywhere.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, Self

from stoker.cli.terminal import make_console

__all__ = [
    "Bar",
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
    """What a command ends with, so that scripts can tell."""

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
        type=_named,
        help="a setting of the object store by obstore's name, such as endpoint=http://host:9000; may be given again",
    )


def storage_options(chosen: argparse.Namespace) -> dict[str, str] | None:
    """What ``--storage-option`` gave, for ``storage_options=``."""
    return dict(chosen.storage_option) or None


def add_format(parser: argparse.ArgumentParser) -> None:
    """Define ``--format`` and ``--format-option NAME=VALUE``, for files that are read without an index."""
    parser.add_argument("--format", metavar="NAME", help="of files without an index.json; default: by their names")
    parser.add_argument(
        "--format-option",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_named,
        help="a setting of the format, as JSON or text, such as axis=-1; may be given again",
    )


def format_options(chosen: argparse.Namespace) -> dict[str, Any] | None:
    """What ``--format-option`` gave, for ``format_options=``."""
    found: dict[str, Any] = {}
    for name, text in chosen.format_option:
        try:
            found[name] = json.loads(text)
        except (ValueError, RecursionError):
            found[name] = text
    return found or None


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    return name, value


class Bar:
    """How far work is, on one line of the terminal: part, amount, rate, time left. Threads may advance it.

    Args:
        title: what is done.
        total: how much there is to do, in ``unit``; ``None`` while nobody knows.
        unit: ``bytes``, or what is counted, in the plural.
    """

    def __init__(self, title: str, total: float | None, unit: str) -> None:
        from rich import progress

        amount: list[Any] = [progress.DownloadColumn(binary_units=True), progress.TransferSpeedColumn()]
        if unit != "bytes":
            amount = [progress.MofNCompleteColumn(), progress.TextColumn(unit + "{task.fields[rate]}")]
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            *amount,
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=make_console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(title, total=total, rate="")
        self._began = time.monotonic()
        self._done = 0.0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def advance(self, count: float) -> None:
        """Count work that was done."""
        with self._lock:
            self._done += count
            seconds = max(time.monotonic() - self._began, 1e-9)
            self._bar.update(self._task, advance=count, rate=f", {self._done / seconds:,.0f}/s")

    def expect(self, total: float) -> None:
        """Say how much there is to do, once that is known."""
        self._bar.update(self._task, total=total)


class _NoBar(Bar):
    """Shows nothing."""

    def __init__(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, count: float) -> None:
        pass

    def expect(self, total: float) -> None:
        pass


def shows_progress(chosen: argparse.Namespace) -> bool:
    """Whether bars are shown: not with ``--json``, nor where stderr is no terminal."""
    return not getattr(chosen, "json", False) and sys.stderr.isatty()


def bar(chosen: argparse.Namespace, title: str, total: float | None = None, unit: str = "bytes") -> Bar:
    """A bar to enter, which shows nothing unless :func:`shows_progress`; see :class:`Bar`."""
    return Bar(title, total, unit) if shows_progress(chosen) else _NoBar()


@contextlib.contextmanager
def on_interrupt(said: str) -> Iterator[None]:
    """What to say where Ctrl-C ends what is inside: in what state things are, and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(said) from None
