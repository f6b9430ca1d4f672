"""Draws which sample came when and to which process, as a PNG and in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.text import Text

from demo_launch import Reading

__all__ = ["Picture", "Points", "draw", "picture_of", "sketch"]

# Blues before the stop, warm colours after it, with different lightness.
_COLORS = ("#2b6cb0", "#63b3ed", "#c2410c", "#f59e0b", "#7c2d8e")
_INK, _FAINT = "#22303c", "#8a97a3"
# A Braille character holds 2 x 4 dots; the bit of each, by row and column.
_BRAILLE = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])


@dataclass(frozen=True, slots=True)
class Points:
    """Position in the epoch and id of each sample that one process got."""

    label: str
    color: str
    positions: NDArray[np.int64]
    ids: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Picture:
    """Data of the picture.

    Attributes:
        points: samples of each process.
        samples: samples in the dataset, and positions in the epoch.
        stop: the position at which the first job stopped.
        before: number of processes of the first job, which come first in ``points``.
        after: number of processes of the second job.
        note: line below the title.
    """

    points: Sequence[Points]
    samples: int
    stop: int
    before: int
    after: int
    note: str


def picture_of(
    before: Sequence[Reading], after: Sequence[Reading], shards: Sequence[int], global_batch: int
) -> Picture:
    """Make the picture of a job and of the job that resumed it; ``shards`` are the samples of each shard."""
    stop = sum(len(reading.record.ids) for reading in before)
    points: list[Points] = []
    for job, start in ((before, 0), (after, stop)):
        for reading, positions in zip(job, _positions(job), strict=True):
            label = f"rank {reading.rank} of {len(job)}"
            points.append(Points(label, _COLORS[len(points)], start + positions, reading.record.ids))
    mixed = _shards_a_batch(points, shards, global_batch)
    note = (
        f"A dot is a sample, a band is a shard. A global batch of {global_batch} draws on {mixed:.0f} of the "
        f"{len(shards)} shards; processes mostly keep to different ones."
    )
    return Picture(points, sum(shards), stop, len(before), len(after), note)


def _shards_a_batch(points: Sequence[Points], shards: Sequence[int], global_batch: int) -> float:
    """Mean number of shards in a global batch."""
    positions = np.concatenate([one.positions for one in points])
    ids = np.concatenate([one.ids for one in points])
    numbers = np.searchsorted(np.cumsum(shards), ids, side="right")
    pairs = np.unique(np.stack([positions // global_batch, numbers]), axis=1)
    return float(np.bincount(pairs[0]).mean())


def _positions(job: Sequence[Reading]) -> list[NDArray[np.int64]]:
    """Positions of each rank's samples in the job: batch after batch, rank after rank."""
    longest = max(len(reading.record.lengths) for reading in job)
    lengths = np.zeros((longest, len(job)), dtype=np.int64)
    for reading in job:
        lengths[: len(reading.record.lengths), reading.rank] = reading.record.lengths
    owners = np.repeat(np.tile(np.arange(len(job)), longest), lengths.ravel())
    return [np.flatnonzero(owners == rank) for rank in range(len(job))]


def draw(picture: Picture, path: Path) -> None:
    """Draw as a PNG."""
    figure = Figure(figsize=(11, 6.4), dpi=160, layout="constrained", facecolor="white")
    axes = figure.add_subplot()
    for points in picture.points:
        axes.scatter(points.positions, points.ids, s=5, linewidths=0, color=points.color, label=points.label)
    _frame(axes, picture)
    _mark_stop(axes, picture)
    figure.legend(
        loc="outside lower center", ncols=len(picture.points), frameon=False, markerscale=3.5, handletextpad=0.2
    )
    figure.savefig(path)


def _frame(axes: Axes, picture: Picture) -> None:
    axes.set_xlim(0, picture.samples)
    axes.set_ylim(0, picture.samples)
    axes.set_xlabel("position in the epoch", color=_INK)
    axes.set_ylabel("sample id, in the order written", color=_INK)
    axes.set_title(
        "One shuffled epoch, stopped on 2 processes and resumed on 3",
        loc="left",
        pad=38,
        size=14,
        color=_INK,
        weight="bold",
    )
    axes.text(0, 1.062, picture.note, transform=axes.transAxes, color=_FAINT, size=10)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.tick_params(colors=_INK, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("bottom", "left"):
        axes.spines[side].set_color(_FAINT)


def _mark_stop(axes: Axes, picture: Picture) -> None:
    axes.axvline(picture.stop, color=_INK, linewidth=1.2, linestyle=(0, (4, 3)))
    middle_before, middle_after = picture.stop / 2, (picture.stop + picture.samples) / 2
    for place, words in (
        (middle_before, f"{picture.before} processes"),
        (picture.stop, "stop"),
        (middle_after, f"{picture.after} processes"),
    ):
        axes.text(place, picture.samples * 1.012, words, ha="center", va="bottom", color=_INK, size=10)


def sketch(picture: Picture, columns: int, rows: int) -> Text:
    """Draw in ``rows`` lines of ``columns`` characters, with axes and a legend around them."""
    owners, dots = _cells(picture, columns, rows)
    stop = min(picture.stop * columns // picture.samples, columns - 1)
    text = Text(no_wrap=True)
    for row in range(rows):
        edge = {0: f"{picture.samples:,}", rows - 1: "0"}.get(row, "sample id" if row == rows // 2 else "")
        text.append(f"{edge:>9} ", "dim").append("│", "dim")
        for column in range(columns):
            if column == stop:
                text.append("┊", "bold")
            else:
                color = picture.points[owners[row, column]].color if dots[row, column] else ""
                text.append(chr(0x2800 + dots[row, column]), color)
        text.append("\n")
    text.append(" " * 10 + "└" + "─" * columns + "\n", "dim")
    text.append(" " * 11 + _ruler(picture, columns, stop), "dim")
    for when, points in (("before", picture.points[: picture.before]), ("after", picture.points[picture.before :])):
        text.append(f"\n{when:>9}  ", "dim")
        for one in points:
            text.append("⣿ ", one.color).append(f"{one.label}   ")
    return text


def _cells(picture: Picture, columns: int, rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each character cell: the process with the most samples in it, and the pattern of dots."""
    counts = np.zeros((len(picture.points), rows, columns), dtype=np.int64)
    dots = np.zeros((rows, columns), dtype=np.int64)
    for number, points in enumerate(picture.points):
        x = points.positions * (2 * columns) // picture.samples
        y = (4 * rows - 1) - points.ids * (4 * rows) // picture.samples
        np.add.at(counts[number], (y // 4, x // 2), 1)
        np.bitwise_or.at(dots, (y // 4, x // 2), _BRAILLE[y % 4, x % 2])
    return counts.argmax(axis=0), dots


def _ruler(picture: Picture, columns: int, stop: int) -> str:
    """The axis of positions, with 0, the stop and the end."""
    mark, end = f"stop {picture.stop:,}", f"{picture.samples:,}"
    line = list("0" + " " * (columns - 1))
    start = max(2, min(stop - len(mark) // 2, columns - len(end) - len(mark) - 2))
    line[start : start + len(mark)] = mark
    line[columns - len(end) :] = end
    return "".join(line)
