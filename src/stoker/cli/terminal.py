"""What commands print, with escapes for all that could move a terminal: names in a dataset are its author's."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO, cast

from stoker.display import escape

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["escaped_output", "make_console"]

_WIDE = 1000


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

    Args:
        stderr: for stderr; else stdout.
        wide: where it is no terminal, programs read it, and lines are not broken.
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
