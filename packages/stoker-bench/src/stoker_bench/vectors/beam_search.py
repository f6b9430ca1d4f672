"""Greedy search over a graph on disk, as DiskANN does it: vectors in memory say what to read, those read what is nearest."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError
from stoker_bench.measure.call_times import CallTimer
from stoker_bench.vectors.disk_graph import DiskGraph
from stoker_bench.vectors.page_reader import PageReader
from stoker_bench.vectors.points import F32, I64

_LEVELS: Final = 255


class ShortVectors:
    """Vectors in memory with one byte for each value, from which distances are estimated.

    Args:
        points: shape ``(count, dimension)``.

    Attributes:
        bytes: of memory.
    """

    def __init__(self, points: F32) -> None:
        self._low = points.min(axis=0)
        self._step = np.maximum(points.max(axis=0) - self._low, np.float32(1e-20)) / np.float32(_LEVELS)
        self._codes = np.empty(points.shape, np.uint8)
        for at in range(0, len(points), 1 << 14):
            rows = points[at : at + (1 << 14)]
            self._codes[at : at + len(rows)] = np.rint((rows - self._low) / self._step)
        self.bytes = self._codes.nbytes

    def away(self, nodes: I64, query: F32) -> F32:
        """Estimated squared distances of nodes from a query: float32, shape ``(len(nodes),)``."""
        difference = self._codes[nodes] * self._step
        difference += self._low - query
        found: F32 = np.einsum("ij,ij->i", difference, difference)
        return found


class Searched(NamedTuple):
    """The result of a search.

    Attributes:
        found: numbers of the nearest nodes, nearest first.
        hops: offsets in the file that each step has read, in bytes.
    """

    found: I64
    hops: list[NDArray[np.int64]]


class BeamSearch:
    """Searches a graph. One thread uses it.

    Args:
        graph: the file's layout.
        short: the vectors in memory; threads may share them.
        reader: of the file, for as many reads at once as there are in the beam.
        beam: nodes that are read in each step.
        kept: the nearest nodes that are kept while it searches; more find more.
    """

    def __init__(self, graph: DiskGraph, short: ShortVectors, reader: PageReader, *, beam: int, kept: int) -> None:
        self._graph, self._short, self._reader, self._beam, self._kept = graph, short, reader, beam, kept
        self._seen = np.zeros(graph.count, np.bool_)

    def search(self, query: F32, count: int, timer: CallTimer) -> Searched:
        """The nearest of the nodes that the search reads on its way.

        Args:
            query: float32, shape ``(dimension,)``.
            count: most nodes to find.
            timer: of this thread; times the reads.

        Raises:
            StorageError: a read failed.
            CorruptDataError: the file is too short, or an edge leads nowhere.
        """
        near = np.array([self._graph.start], np.int64)
        away = self._short.away(near, query)
        done = np.zeros(1, np.bool_)
        self._seen[near] = True
        touched, hops, read, exact = [near], [], [], []
        while len(next_ones := np.flatnonzero(~done)[: self._beam]):
            nodes = near[next_ones]
            done[next_ones] = True
            offsets = self._graph.offsets(nodes)
            self._reader.read(offsets, timer)
            hops.append(offsets)
            rows = self._graph.nodes_in(self._reader.buffers, nodes)
            difference = rows["vector"] - query
            read.append(nodes)
            exact.append(np.einsum("ij,ij->i", difference, difference))
            edges = rows["edges"].ravel()
            new = np.unique(edges[edges >= 0]).astype(np.int64)
            if len(new) and new[-1] >= self._graph.count:
                raise CorruptDataError(
                    f"{self._reader.path}: an edge leads to vector {new[-1]:,} of {self._graph.count:,}: remove the file, "
                    "and it is made again"
                )
            new = new[~self._seen[new]]
            if not len(new):
                continue
            self._seen[new] = True
            touched.append(new)
            near, away = np.concatenate([near, new]), np.concatenate([away, self._short.away(new, query)])
            done = np.concatenate([done, np.zeros(len(new), np.bool_)])
            order = np.argsort(away, kind="stable")[: self._kept]
            near, away, done = near[order], away[order], done[order]
        self._seen[np.concatenate(touched)] = False
        all_read, all_exact = np.concatenate(read), np.concatenate(exact)
        return Searched(all_read[np.argsort(all_exact, kind="stable")[:count]], hops)
