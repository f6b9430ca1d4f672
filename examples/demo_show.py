"""Prints headings, progress bars, checks and tables of measurements."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from demo_launch import Reading
from demo_proof import Check

__all__ = ["Show", "megabytes"]

_PACKAGES = ("stoker", "numpy", "obstore", "tokenizers")


class Show:
    """Prints to one console."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)

    def opening(self) -> None:
        """Print what the demo does, the machine and the versions."""
        self.line(
            "[bold]stoker[/] writes training data as shards, streams them in one order, and resumes on any number of "
            "processes. This demo does that with real text.",
            indent=0,
        )
        versions = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
        self.line(f"[dim]{os.cpu_count()} x {_processor()}, {platform.system()} {platform.machine()}[/]", indent=0)
        self.line(f"[dim]Python {platform.python_version()}, {versions}[/]", indent=0)

    def heading(self, title: str, why: str) -> None:
        """Print the heading of a step."""
        self.console.print()
        self.line(f"[bold cyan]{title}[/]  {why}", indent=0)

    def line(self, markup: str, *, indent: int = 2) -> None:
        """Print a paragraph with rich's markup."""
        self.console.print(Padding(markup, (0, 0, 0, indent), expand=False))

    def plain(self, text: str | Text, *, indent: int = 2) -> None:
        """Print text without markup and without wrapping, as paths need it."""
        text = Text(text) if isinstance(text, str) else text
        for line in text.split(allow_blank=True):
            self.console.print(Text(" " * indent).append_text(line), soft_wrap=True)

    @contextmanager
    def bars(self) -> Iterator[Progress]:
        """Progress bars, one per task."""
        columns = (
            TextColumn("  {task.description:<22}"),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console) as progress:
            yield progress

    @contextmanager
    def bar(self, description: str, total: int) -> Iterator[Callable[[int], None]]:
        """One progress bar, and the function that advances it."""
        with self.bars() as progress:
            task = progress.add_task(description, total=total)
            yield lambda amount: progress.advance(task, amount)

    def checks(self, checks: Sequence[Check]) -> None:
        """Print each check and its evidence."""
        for check in checks:
            mark, style = ("✓", "green") if check.kept else ("✗", "bold red")
            promise = check.promise if check.kept else f"NOT TRUE: {check.promise}"
            self.plain(Text.assemble((f"{mark} {promise}", style), (f"\n    {check.evidence}", "dim")))

    def processes(self, jobs: Sequence[tuple[str, Sequence[Reading]]], row_tokens: int) -> None:
        """A table with a row for each process of each job."""
        table = _table("Reading: each job began with an empty cache")
        table.add_column("process")
        for name in ("samples", "first batch", "all in", "samples/s", "tokens/s"):
            table.add_column(name, justify="right")
        for name, readings in jobs:
            for reading in readings:
                table.add_row(
                    f"{name}, rank {reading.rank}",
                    f"{len(reading.record.ids):,}",
                    f"{reading.first_batch * 1000:,.0f} ms",
                    f"{reading.total * 1000:,.0f} ms",
                    *_rates(reading.rate, row_tokens),
                )
            table.add_section()
            for reading in readings:
                if reading.again:
                    rates = _rates(reading.again, row_tokens)
                    table.add_row(f"{name}, cache full", "", "", "", *rates, style="bold")
        self.console.print(table)

    def facts(self, title: str, facts: Sequence[tuple[str, str]]) -> None:
        """A table of names and values."""
        table = _table(title)
        table.show_header = False
        for name, value in facts:
            table.add_row(name, value)
        self.console.print(table)


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE, pad_edge=False)


def _rates(samples: float, row_tokens: int) -> tuple[str, str]:
    return f"{samples:,.0f}", f"{samples * row_tokens / 1e6:,.1f} M"


def megabytes(count: int) -> str:
    """A number of bytes as MB."""
    return f"{count / 1e6:,.2f} MB"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "processor"
