"""Names and values on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stoker.cli.terminal import make_console
from stoker.display import escape

__all__ = ["pairs", "stdout"]


def stdout() -> Console:
    """Stdout; where it is no terminal, programs read it, and lines are not broken."""
    return make_console(wide=True)


def pairs(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    """A table of names and what they are, for the terminal."""
    table = Table(
        title=Text(escape(title)), title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        # Text, so that brackets in a URL are not taken for markup; escaped here, so that the widths are right.
        table.add_row(Text(escape(name)), Text(escape(value)))
    return table
