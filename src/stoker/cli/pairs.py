"""Names and values on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["pairs", "stdout"]

_WIDE: Final = 1000


def stdout() -> Console:
    """Stdout; where it is no terminal, programs read it, and lines are not broken."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else _WIDE)


def pairs(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    """A table of names and what they are, for the terminal."""
    table = Table(title=title, title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        # Text, so that brackets in a URL are not taken for markup.
        table.add_row(Text(name), Text(value))
    return table
