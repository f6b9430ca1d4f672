"""Output of commands, with escapes for all that could move a terminal: names in a dataset are its author's.

Also bytes, seconds and counts for people.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO, cast

from stoker.display import escape

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


from stoker.display import digits

_TIMES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"))


def time_unit(seconds: float) -> tuple[float, str]:
    """The unit in which a span of time is told; two of it at least."""
    return next((unit for unit in _TIMES if seconds >= 2 * unit[0]), _TIMES[-1])


def seconds_text(seconds: float) -> str:
    """A span of time with three digits: ``3.4 min``."""
    if 0 < seconds < 0.999e-3:
        return f"{seconds * 1e6:.3g} µs"
    if 0 < seconds < 0.9995:
        return f"{digits(seconds * 1000)} ms"
    unit, name = time_unit(seconds)
    return f"{digits(seconds / unit)} {name}"


def count_text(count: float) -> str:
    """A count with separators between thousands."""
    return f"{count:,.0f}" if abs(count) >= 100 or count == int(count) else digits(count)


_WIDE = 1000
_GAP = "  "
"""Between two columns of a table."""


class _Escaped:
    """A stream of text that escapes what is not printable. It is the given stream in all else."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return self.stream.write(escape(text, "\n\t"))

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def escaped_output() -> Iterator[None]:
    """While this lasts, what goes to stdout and stderr is escaped; what :func:`make_console` made escapes by itself."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", _Escaped(stream)) for stream in before)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def make_console(*, stderr: bool = False, wide: bool = False) -> Console:
    """A console whose text is escaped, and whose styles are not.

    ``wide``: where it is no terminal, programs read it, and lines are not broken.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Escaping(Console):
        def render(self, *args: Any, **settings: Any) -> Iterator[Segment]:
            for segment in super().render(*args, **settings):
                text = segment.text
                yield segment if segment.control else Segment(escape(text, "\n"), segment.style)

    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, _Escaped):
        stream = stream.stream
    return Escaping(file=stream, highlight=False, width=_WIDE if wide and not stream.isatty() else None)


def make_table(
    headings: Sequence[str], *, title: str | None = None, left: Sequence[str] = (), fold: bool = False
) -> Table:
    """An empty table for :func:`make_console`.

    ``left``: headings of columns that are aligned to the left; the others are to the right. ``fold``: break long cells,
    instead of letting the table grow wider.
    """
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for heading in headings:
        justify: Any = "left" if heading in left else "right"
        if fold:
            table.add_column(heading, justify=justify, header_style="dim", overflow="fold")
        else:
            table.add_column(heading, justify=justify, header_style="dim", no_wrap=True)
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table of :func:`make_table`. Where it is wider than the console, its rows become columns, as many as fit.

    So digits are never cut, and each number stays next to its name.
    """
    from rich.text import Text

    def text(cell: Any) -> Text:
        return cell if isinstance(cell, Text) else Text.from_markup(str(cell))

    def width(cells: Sequence[Text]) -> int:
        return max((cell.cell_len for cell in cells), default=0)

    columns = [[text(column.header), *map(text, column.cells)] for column in table.columns]
    if sum(map(width, columns)) + len(_GAP) * (len(columns) - 1) <= console.width:
        console.print(table)
        return
    headings, *rows = zip(*columns, strict=True)
    room = console.width - width(headings)
    while rows:
        used = count = 0
        for row in rows:
            used += len(_GAP) + width(row)
            count += used <= room
        shown, rows = rows[: max(1, count)], rows[max(1, count) :]
        turned = make_table([""] * (1 + len(shown)), left=("",), fold=True)
        turned.show_header = False
        for column in turned.columns[1:]:
            column.justify = "right"
        for heading, *cells in zip(headings, *shown, strict=True):
            turned.add_row(Text(heading.plain, style="dim"), *cells)
        console.print(turned)
        if rows:
            console.print()


def make_pairs(title: str, rows: Sequence[tuple[str, str]]) -> Table:
    """A table of names and what they are."""
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(escape(title)), title_justify="left", title_style="bold", show_header=False, box=None, pad_edge=False
    )
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        # Text, so that brackets in a URL are not taken for markup; escaped here, so that the widths are right.
        table.add_row(Text(escape(name)), Text(escape(value)))
    return table
