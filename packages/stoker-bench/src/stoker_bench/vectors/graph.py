"""A graph over vectors for greedy search: each has edges to near vectors in different directions, and to some far ones.

It is pruned as DiskANN's (S. Jayaram Subramanya et al., "DiskANN", NeurIPS 2019): of the vectors near one, an edge goes to
each that is not much nearer to one that has an edge already. The vectors near one come from the cells around it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker_bench.vectors.points import F32, I64, squared_distances

I32 = NDArray[np.int32]

_CELLS: Final = 10
"""Cells around a vector's own, in which the vectors near it are looked for."""
_CANDIDATES: Final = 2
"""Candidates for an edge, in multiples of edges."""
_ALPHA: Final = 1.2
_FAR: Final = 2
"""Edges to vectors anywhere, which keep the graph in one piece."""
_NO_EDGE: Final = -1


def build_graph(points: F32, degree: int, seed: int) -> tuple[I32, int]:
    """The edges of each vector, and the vector where a search begins.

    Args:
        points: shape ``(count, dimension)``.
        degree: most edges of a vector.
        seed: of cells and far edges.

    Returns:
        int32, shape ``(count, degree)``, with -1 where there is no edge; and the vector nearest to the mean of all.
    """
    count = len(points)
    draw = np.random.default_rng([seed, 3])
    centres = points[draw.choice(count, max(1, int(count**0.5)), replace=False)]
    cell = _assign(points, centres)
    members = np.split(np.argsort(cell, kind="stable"), np.cumsum(np.bincount(cell, minlength=len(centres)))[:-1])
    around = np.argsort(squared_distances(centres, centres), axis=1)[:, : 1 + _CELLS]
    edges = np.full((count, degree), _NO_EDGE, np.int32)
    near = max(1, degree * 2 // 3)
    for own, cells in zip(members, around, strict=True):
        if len(own):
            others = np.concatenate([members[one] for one in cells])
            edges[own, :near] = _pruned(points, own, others, near)
    _add_reverse(edges, degree - _FAR)
    edges[:, -_FAR:] = draw.integers(0, count, (count, _FAR), np.int32)
    middle = squared_distances(points.mean(axis=0, dtype=np.float32)[None], points)
    return edges, int(middle.argmin())


def _assign(points: F32, centres: F32) -> I64:
    """The nearest centre of each vector."""
    rows = 1 << 14
    parts = [squared_distances(points[at : at + rows], centres).argmin(axis=1) for at in range(0, len(points), rows)]
    return np.concatenate(parts)


def _pruned(points: F32, own: I64, others: I64, most: int) -> I32:
    """Edges of some vectors, from candidates: nearest first, without those that are near one that is chosen."""
    count = min(len(others) - 1, most * _CANDIDATES)
    edges = np.full((len(own), most), _NO_EDGE, np.int32)
    if count < 1:
        return edges
    away = squared_distances(points[own], points[others])
    away[own[:, None] == others[None, :]] = np.inf
    chosen = np.argpartition(away, count - 1, axis=1)[:, :count]
    away = np.take_along_axis(away, chosen, 1)
    order = np.argsort(away, axis=1)
    away, chosen = np.take_along_axis(away, order, 1), others[np.take_along_axis(chosen, order, 1)]
    vectors = points[chosen]
    norms = np.einsum("ijk,ijk->ij", vectors, vectors)
    between = norms[:, :, None] + norms[:, None, :] - 2 * (vectors @ vectors.transpose(0, 2, 1))
    left = np.isfinite(away)
    taken = np.zeros(len(own), np.int64)
    for at in range(count):
        rows = np.flatnonzero(left[:, at] & (taken < most))
        edges[rows, taken[rows]] = chosen[rows, at]
        taken[rows] += 1
        left[rows] &= between[rows, at] * _ALPHA**2 > away[rows]
    return edges


def _add_reverse(edges: I32, most: int) -> None:
    """Add edges back, as far as there is room."""
    at, _ = np.nonzero(edges >= 0)
    to = edges[edges >= 0]
    order = np.argsort(to, kind="stable")
    to, at = to[order], at[order]
    taken = (edges >= 0).sum(axis=1)
    first = np.searchsorted(to, np.arange(len(edges)))
    place = taken[to] + np.arange(len(to)) - first[to]
    fits = place < most
    edges[to[fits], place[fits]] = at[fits]
