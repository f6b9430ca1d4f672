"""Vectors to search, queries, and the right answers, which are found by comparing each query with all vectors."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker_bench.settings.workload import VectorSettings

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

_FREEDOM: Final = 16
"""Real embeddings lie near a surface of few dimensions; so many directions of these vectors are drawn, the rest is small."""
_SMALL: Final = 0.1
_ROWS: Final = 1 << 14
_QUERIES: Final = 1 << 10
"""Queries that are compared at once, with so many rows: about 0.5 GB of memory."""


def draw_points(count: int, dimension: int, seed: int, *, queries_of: int | None = None) -> F32:
    """Vectors of a seed.

    Args:
        count: how many.
        dimension: values of each.
        seed: of the distribution, and of the vectors drawn from it.
        queries_of: a rank: its queries are drawn instead, from the same distribution.

    Returns:
        float32, shape ``(count, dimension)``.
    """
    plane = np.random.default_rng([seed, 0]).standard_normal((_FREEDOM, dimension), np.float32)
    draw = np.random.default_rng([seed, 1] if queries_of is None else [seed, 2, queries_of])
    made = np.empty((count, dimension), np.float32)
    for at in range(0, count, _ROWS):
        rows = made[at : at + _ROWS]
        draw.standard_normal(out=rows, dtype=np.float32)
        rows *= _SMALL
        rows += draw.standard_normal((len(rows), _FREEDOM), np.float32) @ plane
    return made


def draw_search(settings: VectorSettings, rank: int) -> tuple[F32, F32]:
    """The vectors of the index, which are those of all ranks, and the queries of one rank.

    Returns:
        float32, shapes ``(settings.count, settings.dimension)`` and ``(settings.queries, settings.dimension)``.
    """
    return (
        draw_points(settings.count, settings.dimension, settings.seed),
        draw_points(settings.queries, settings.dimension, settings.seed, queries_of=rank),
    )


def squared_distances(some: F32, others: F32) -> F32:
    """Squared Euclidean distances, shape ``(len(some), len(others))``; rounding may make small ones negative."""
    norms = np.einsum("ij,ij->i", some, some)[:, None] + np.einsum("ij,ij->i", others, others)[None, :]
    found: F32 = norms - 2 * (some @ others.T)
    return found


def nearest_vectors(points: F32, queries: F32, count: int) -> I64:
    """The nearest vectors of each query, by comparison with all: int64, shape ``(len(queries), count)``, nearest first."""
    if len(queries) > _QUERIES:
        parts = range(0, len(queries), _QUERIES)
        return np.concatenate([nearest_vectors(points, queries[at : at + _QUERIES], count) for at in parts])
    best = np.full((len(queries), count), np.inf, np.float32)
    found = np.zeros((len(queries), count), np.int64)
    for at in range(0, len(points), _ROWS):
        rows = squared_distances(queries, points[at : at + _ROWS])
        both = np.concatenate([best, rows], axis=1)
        numbers = np.concatenate([found, np.broadcast_to(np.arange(at, at + rows.shape[1]), rows.shape)], axis=1)
        order = np.argsort(both, axis=1, kind="stable")[:, :count]
        best, found = np.take_along_axis(both, order, 1), np.take_along_axis(numbers, order, 1)
    return found


def recall(found: I64, right: I64) -> float:
    """The part of the right answers that was found, 0 to 1."""
    hits = [len(np.intersect1d(one, other)) for one, other in zip(found, right, strict=True)]
    return float(np.sum(hits) / right.size)
