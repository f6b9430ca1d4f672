"""Samples whose columns differ in size: sizes first, for tables of offsets, then the values one by one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.types import Ids
from stoker_bench.generation.columns import Column
from stoker_bench.generation.content import FileContent
from stoker_bench.generation.formats.images import VERSION, Strips, draws_per_image, strips_of
from stoker_bench.generation.segments import Segment, StreamBytes
from stoker_bench.generation.spec import DatasetSpec

BATCH: Final = 1 << 12
"""Samples whose sizes are drawn at a time."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One value.

    Attributes:
        size: its bytes.
        segments: what they are.
    """

    size: int
    segments: list[Segment]


def column_sizes(content: FileContent, column: Column, first: int, count: int) -> Ids:
    """Bytes of values ``[first, first + count)`` of a column; int64, shape ``(count,)``."""
    if column.numeric:
        return np.full(count, column.width, np.int64)
    if column.dtype not in ("jpeg", "png"):
        return content.lengths(column, first, count)
    planned: Ids = _strips(content.spec, column).plan(_draws(content, column, first, count))[2]
    return planned


def column_cells(content: FileContent, column: Column, first: int, count: int) -> Iterator[Cell]:
    """Values ``[first, first + count)`` of a column. Its streams continue from call to call."""
    if column.dtype in ("jpeg", "png"):
        strips = _strips(content.spec, column)
        plan = strips.plan(_draws(content, column, first, count))
        for height, chosen, size in zip(*(part.tolist() for part in plan), strict=True):
            yield Cell(size, list(strips.image(height, chosen)))
        return
    for size in column_sizes(content, column, first, count).tolist():
        yield Cell(size, [content.values(column, 1) if column.numeric else content.sized(column, size)])


def cells(content: FileContent, count: int, start: int = 0) -> Iterator[tuple[Cell, ...]]:
    """Samples ``[start, start + count)``, each with a cell a column."""
    for first in range(start, start + count, BATCH):
        here = min(BATCH, start + count - first)
        yield from zip(*(column_cells(content, column, first, here) for column in content.columns), strict=True)


def one_value(content: FileContent, column: Column) -> StreamBytes:
    """One value of a column whose values have one size."""
    return content.values(column, 1) if column.numeric else content.sized(column, column.size)


def sizes(content: FileContent, first: int, count: int) -> Ids:
    """Bytes of all columns of samples ``[first, first + count)``; int64, shape ``(count,)``."""
    total = np.zeros(count, np.int64)
    for begin in range(0, count, BATCH):
        here = min(BATCH, count - begin)
        for column in content.columns:
            total[begin : begin + here] += column_sizes(content, column, first + begin, here)
    return total


def image_versions(spec: DatasetSpec) -> dict[str, str]:
    """Versions of what images depend on."""
    if not any(column.dtype in ("jpeg", "png") for column in spec.fields):
        return {}
    import PIL
    from PIL import features

    return {
        "pillow": PIL.__version__,
        "jpeg": str(features.version("jpg")),
        "stoker.generation.formats.images": VERSION,  # as datasets say it that were made when it was there
    }


def make_pictures(spec: DatasetSpec) -> None:
    """Make the pictures of which images are parts, before several threads would each make them."""
    for column in spec.fields:
        if column.dtype in ("jpeg", "png"):
            _strips(spec, column)


def _strips(spec: DatasetSpec, column: Column) -> Strips:
    return strips_of(column.dtype, column.shape, spec.image_quality, spec.seed)


def _draws(content: FileContent, column: Column, first: int, count: int) -> NDArray[Any]:
    return content.drawn(column, first, count, draws_per_image(column.shape) // 2)
