"""Pages of HTML by the templates next to this module, and the parts that they show. Jinja escapes all text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from stoker_bench.cli.render.charts import Chart


@dataclass(frozen=True, slots=True)
class Table:
    """A table with headings; a cell that is HTML is :class:`markupsafe.Markup`.

    Raises:
        ValueError: a row has more or fewer cells than there are headings.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        if any(len(row) != len(self.headings) for row in self.rows):
            raise ValueError(f"rows need {len(self.headings)} cells: {', '.join(self.headings)}")


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart, and its colours with what they stand for: of areas and lines, then of dashed lines."""

    chart: Chart
    legend: Sequence[tuple[str, str]] = ()
    dashed: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Card:
    """A part of a page: a heading, a sentence, charts, and the numbers that they were drawn from."""

    title: str
    text: str
    figures: Sequence[Figure] = ()
    table: Table | None = None

    @property
    def wide(self) -> bool:
        """Whether it takes the whole width of the page."""
        return not self.figures or any(figure.chart.wide for figure in self.figures)


def render(template: str, **values: Any) -> str:
    """A page, by a template's name.

    Raises:
        jinja2.UndefinedError: the template shows a value that is not among ``values``.
    """
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("stoker_bench.cli.render"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
