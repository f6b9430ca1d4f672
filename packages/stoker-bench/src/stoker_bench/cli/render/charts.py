"""Charts as SVG text: axes with round ticks, lines, bands, bars, an image. Colours are the page's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

_LEFT, _RIGHT, _TOP, _BOTTOM = 80, 22, 14, 46
_LETTER = 6.8
"""Width of a letter of a tick, about."""
_ASLANT = 20
"""Room from one name that is written aslant to the next."""
_LONGEST, _LONGEST_WIDE = 16, 26
"""Letters of a name that is written aslant, and of one in a wide chart; of longer ones the middle is left out."""
_WIDE = 540
"""A wider chart is one of the whole width."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis.

    Attributes:
        label: what it is, with its unit.
        low: value at its beginning.
        high: value at its end.
        unit: values are divided by this to be written.
        whole: whether only whole numbers are written.
        names: of 1, 2, 3 ..., to be written in place of numbers.
    """

    label: str
    low: float
    high: float
    unit: float = 1.0
    whole: bool = False
    names: tuple[str, ...] = ()

    def part(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Positions of values along the axis, 0 to 1."""
        return (values - self.low) / ((self.high - self.low) or 1.0)

    def ticks(self, most: int) -> list[float]:
        """Round values along the axis, at most about ``most``."""
        low, high = self.low / self.unit, self.high / self.unit
        if high <= low:
            return [self.low]
        raw = (high - low) / most
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
        if self.whole:
            step = max(1.0, step)
        begin, end = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        return [number * step * self.unit for number in range(begin, end + 1)]

    def text(self, value: float) -> str:
        """A tick's value."""
        return f"{value / self.unit:,.0f}" if self.whole else f"{value / self.unit:,.6g}"


@dataclass
class Chart:
    """A chart that is drawn piece by piece.

    Attributes:
        title: what it shows, for those who can not see it.
        x: the axis to the right.
        y: the axis upwards; downwards if ``down``.
        width: of the whole chart, about as many pixels as it gets, so that text has the same size in all charts.
        height: likewise.
        down: whether ``y`` grows downwards.
    """

    title: str
    x: Axis
    y: Axis
    width: int = 540
    height: int = 260
    down: bool = False
    _elements: list[str] = field(default_factory=list)

    def line(
        self,
        x: Sequence[float] | NDArray[np.float64],
        y: NDArray[np.float64],
        colour: str,
        name: str,
        *,
        dashed: bool = False,
    ) -> None:
        """A line through points."""
        across, up = self._at(np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64))
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across.tolist(), up.tolist(), strict=True))
        kind = "line dashed" if dashed else "line"
        self._elements.append(
            f'<polyline class="{kind}" stroke="{colour}" points="{points}"><title>{escape(name)}</title></polyline>'
        )

    def band(
        self,
        x: NDArray[np.float64],
        low: NDArray[np.float64],
        high: NDArray[np.float64],
        name: str,
        *,
        colour: str | None = None,
    ) -> None:
        """The area between two lines; of the page's colour unless one is given."""
        across, bottom = self._at(x, low)
        _, top = self._at(x, high)
        there = zip(across.tolist(), top.tolist(), strict=True)
        back = zip(across[::-1].tolist(), bottom[::-1].tolist(), strict=True)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*there, *back])
        fill = "" if colour is None else f' style="fill:{colour}"'
        self._elements.append(f'<polygon class="band"{fill} points="{points}"><title>{escape(name)}</title></polygon>')

    def level(self, value: float, name: str, *, named: bool = True) -> None:
        """A dashed line across, with its name above it; unless ``named``, which a legend must tell then."""
        _, up = self._at(np.array([self.x.low]), np.array([value]))
        height = float(up[0])
        self._elements.append(
            f'<line class="level" x1="{_LEFT}" x2="{self._end}" y1="{height:.1f}" y2="{height:.1f}">'
            f"<title>{escape(name)}</title></line>"
        )
        if named:
            self._elements.append(
                f'<text class="name" x="{self._end - 4}" y="{height - 5:.1f}" text-anchor="end">{escape(name)}</text>'
            )

    def headings(self, spans: Sequence[tuple[float, float, str]]) -> None:
        """Names of parts of the axis, at the top; none where not all of them have room."""
        edges = [self._at(np.array(span[:2]), np.full(2, self.y.low))[0].tolist() for span in spans]
        if any(len(name) * _LETTER > right - left for (left, right), (_, _, name) in zip(edges, spans, strict=True)):
            return
        for (left, right), (_, _, name) in zip(edges, spans, strict=True):
            self._elements.append(
                f'<text x="{(left + right) / 2:.1f}" y="{_TOP + 10}" text-anchor="middle">{escape(name)}</text>'
            )

    def dot(self, x: float, y: float, colour: str, name: str) -> None:
        """A point."""
        across, up = self._at(np.array([x]), np.array([y]))
        self._elements.append(
            f'<circle style="fill:{colour}" cx="{across[0]:.1f}" cy="{up[0]:.1f}" r="3.5">'
            f"<title>{escape(name)}</title></circle>"
        )

    def bar(
        self, low: float, high: float, value: float, name: str, *, begin: float = 0.0, colour: str | None = None
    ) -> None:
        """A bar from ``begin`` to ``value`` over ``[low, high]``; of the page's colour unless one is given."""
        across, up = self._at(np.array([low, high]), np.array([begin, value]))
        left, right = across.tolist()
        bottom, top = up.tolist()
        gap = min(1.0, (right - left) / 8)
        fill = "" if colour is None else f' style="fill:{colour}"'
        self._elements.append(
            f'<rect class="bar"{fill} x="{left + gap:.1f}" width="{max(0.5, right - left - 2 * gap):.1f}" y="{top:.1f}" '
            f'height="{max(0.0, bottom - top):.1f}"><title>{escape(name)}</title></rect>'
        )

    def span(self, at: float, low: float, high: float, name: str) -> None:
        """A thin line upwards: from where to where values lie."""
        across, up = self._at(np.array([at]), np.array([low, high]))
        self._elements.append(
            f'<line class="axis" x1="{across[0]:.1f}" x2="{across[0]:.1f}" y1="{up[0]:.1f}" y2="{up[1]:.1f}">'
            f"<title>{escape(name)}</title></line>"
        )

    def mark(self, left: float, right: float, value: float, name: str) -> None:
        """A thin line across at a value."""
        across, up = self._at(np.array([left, right]), np.array([value]))
        self._elements.append(
            f'<line class="axis" x1="{across[0]:.1f}" x2="{across[1]:.1f}" y1="{up[0]:.1f}" y2="{up[0]:.1f}">'
            f"<title>{escape(name)}</title></line>"
        )

    def image(self, url: str) -> None:
        """An image over the whole plot."""
        self._elements.append(
            f'<image class="cells" href="{url}" x="{_LEFT}" y="{_TOP}" width="{self._end - _LEFT}" '
            f'height="{self._plot}" preserveAspectRatio="none"/>'
        )

    @property
    def wide(self) -> bool:
        """Whether it is for the whole width of a page."""
        return self.width > _WIDE

    def svg(self) -> Markup:
        """The chart."""
        bottom = _TOP + self._plot
        axes, below = self._named() if self.x.names else ([], 0)
        for value in [] if self.x.names else self.x.ticks(8):
            across, _ = self._at(np.array([value]), np.array([self.y.low]))
            axes.append(
                f'<line class="tick" x1="{across[0]:.1f}" x2="{across[0]:.1f}" y1="{bottom}" y2="{bottom + 4}"/>'
                f'<text x="{across[0]:.1f}" y="{bottom + 17}" text-anchor="middle">{self.x.text(value)}</text>'
            )
        for value in self.y.ticks(5):
            _, up = self._at(np.array([self.x.low]), np.array([value]))
            axes.append(
                f'<line class="grid" x1="{_LEFT}" x2="{self._end}" y1="{up[0]:.1f}" y2="{up[0]:.1f}"/>'
                f'<text x="{_LEFT - 7}" y="{up[0] + 4:.1f}" text-anchor="end">{self.y.text(value)}</text>'
            )
        middle = _TOP + self._plot / 2
        height = self.height + below
        return Markup(  # noqa: S704 - the texts in it are escaped where it is drawn
            f'<svg viewBox="0 0 {self.width} {height}" role="img" aria-label="{escape(self.title)}">'
            f"{''.join(axes)}{''.join(self._elements)}"
            f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{self._end}"/>'
            f'<text class="label" x="{(_LEFT + self._end) / 2:.0f}" y="{height - 6}" text-anchor="middle">'
            f"{escape(self.x.label)}</text>"
            f'<text class="label" transform="translate(13 {middle:.0f}) rotate(-90)" text-anchor="middle">'
            f"{escape(self.y.label)}</text></svg>"
        )

    def _named(self) -> tuple[list[str], int]:
        """Names below the axis, and by how much they make the chart higher. Those that do not fit side by side are aslant."""
        across, _ = self._at(np.arange(1.0, len(self.x.names) + 1), np.array([self.y.low]))
        room = (self._end - _LEFT) / (self.x.high - self.x.low)
        longest, most = max(map(len, self.x.names)), _LONGEST_WIDE if self.wide else _LONGEST
        # On a narrow page the letters of a chart of the whole width are larger, see .wide in the style.
        aslant = longest * _LETTER * (1.25 if self.wide else 1.0) > room - 4
        every = max(1, math.ceil(_ASLANT / room)) if aslant else 1
        elements = []
        for at, name in list(zip(across.tolist(), self.x.names, strict=True))[::every]:
            y = _TOP + self._plot + 17
            turned = f'end" transform="rotate(-35 {at:.1f} {y - 5})' if aslant else "middle"
            elements.append(
                f'<text x="{at:.1f}" y="{y}" text-anchor="{turned}">{escape(_shortened(name, most) if aslant else name)}'
                f"<title>{escape(name)}</title></text>"
            )
        return elements, round(0.57 * _LETTER * min(longest, most)) if aslant else 0

    @property
    def _end(self) -> int:
        return self.width - _RIGHT

    @property
    def _plot(self) -> int:
        return self.height - _TOP - _BOTTOM

    def _at(self, x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        across = _LEFT + self.x.part(x) * (self._end - _LEFT)
        part = self.y.part(y)
        return across, _TOP + (part if self.down else 1 - part) * self._plot


def _shortened(name: str, most: int) -> str:
    """A name without its middle, where it has more letters: what tells it from others is mostly at its end."""
    return name if len(name) <= most else f"{name[: most // 2 - 2]}…{name[-(most // 2 + 1) :]}"
