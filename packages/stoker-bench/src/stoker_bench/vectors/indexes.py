"""Indexes under test that are files, and the names of all kinds."""

from __future__ import annotations

import os
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError, import_option
from stoker.storage import open_store
from stoker.storage.files.file_errors import file_errors
from stoker_bench.measure.call_times import CallTimer
from stoker_bench.settings.workload import VectorSettings
from stoker_bench.vectors.base import Searcher, VectorIndex
from stoker_bench.vectors.beam_search import BeamSearch, ShortVectors
from stoker_bench.vectors.disk_graph import open_graph, write_graph
from stoker_bench.vectors.graph import build_graph
from stoker_bench.vectors.page_reader import PageReader
from stoker_bench.vectors.pgvector import PgVectorIndex
from stoker_bench.vectors.points import F32, I64

_BUILT_WITH: Final = 128
"""Nearest vectors that usearch keeps while it builds."""


class DiskGraphIndex(VectorIndex):
    """A graph in pages of 4 KiB, with vectors of a byte a value in memory."""

    suffix = "graph"

    def build(self, points: F32) -> None:
        edges, start = build_graph(points, self.settings.degree, self.settings.seed)
        write_graph(self.path, points, edges, start)

    def load(self, points: F32) -> None:
        self.short = ShortVectors(points)
        self.memory = self.short.bytes

    def open(self) -> None:
        self.graph = open_graph(self.path)
        settings, graph = self.settings, self.graph
        if (graph.count, graph.dimension, graph.degree) != (settings.count, settings.dimension, settings.degree):
            raise CorruptDataError(f"{self.path} holds other vectors: remove it, and it is made again")
        self.unit = graph.unit

    def searcher(self) -> Searcher:
        return _GraphSearcher(self)


class _GraphSearcher(Searcher):
    def __init__(self, index: DiskGraphIndex) -> None:
        settings = index.settings
        self._count = settings.neighbours
        self._reader = PageReader(index.path, index.unit, settings.beam, direct=settings.direct)
        self._search = BeamSearch(index.graph, index.short, self._reader, beam=settings.beam, kept=settings.kept)

    def search(self, query: F32, timer: CallTimer) -> tuple[I64, list[NDArray[np.int64]]]:
        return self._search.search(query, self._count, timer)

    def replay(self, hops: list[NDArray[np.int64]], timer: CallTimer) -> None:
        for offsets in hops:
            self._reader.read(offsets, timer)

    def close(self) -> None:
        self._reader.close()


class UsearchIndex(VectorIndex):
    """usearch's HNSW, mapped from its file: the kernel reads what is touched, and keeps it while there is memory."""

    suffix = "usearch"

    def __init__(self, settings: VectorSettings, path: str) -> None:
        super().__init__(settings, path)
        self._package: Any = import_option(
            "usearch.index", "vectors.index usearch needs usearch", "stoker-bench[vectors]"
        )
        self._index: Any = None

    def build(self, points: F32) -> None:
        index = self._package.Index(
            ndim=points.shape[1],
            metric="l2sq",
            dtype="f32",
            connectivity=self.settings.degree // 2,
            expansion_add=_BUILT_WITH,
        )
        index.add(np.arange(len(points), dtype=np.uint64), points)
        folder, name = os.path.split(self.path)
        open_store(folder).put(name, index.save())

    def close(self) -> None:
        self._index = None

    def open(self) -> None:
        with file_errors(self.path), open(self.path, "rb"):
            pass  # its errors tell more than usearch's
        try:
            index = self._package.Index.restore(self.path, view=True)
        except (RuntimeError, ValueError) as error:
            raise CorruptDataError(f"{self.path} is not an index ({error}): remove it, and it is made again") from None
        if index is None or (len(index), index.ndim) != (self.settings.count, self.settings.dimension):
            raise CorruptDataError(f"{self.path} is not an index of these vectors: remove it, and it is made again")
        index.expansion_search = self.settings.kept
        self._index = index

    def searcher(self) -> Searcher:
        return _MappedSearcher(self._index, self.settings.neighbours)


class _MappedSearcher(Searcher):
    def __init__(self, index: Any, count: int) -> None:
        self._index, self._count = index, count

    def search(self, query: F32, timer: CallTimer) -> tuple[I64, list[NDArray[np.int64]]]:
        found = timer.call(self._index.search, query, self._count)
        return found.keys.astype(np.int64), []


INDEXES: Final[dict[str, type[VectorIndex]]] = {
    "diskann": DiskGraphIndex,
    "usearch": UsearchIndex,
    "pgvector": PgVectorIndex,
}
"""By the name for ``vectors.index``."""
