"""A graph over vectors in a file, in pages of 4096 bytes as DiskANN has it: each node's vector beside its edges."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import CorruptDataError
from stoker.storage import open_store
from stoker.storage.files.file_errors import file_errors
from stoker_bench.vectors.graph import I32
from stoker_bench.vectors.page_reader import PAGE
from stoker_bench.vectors.points import F32

_MAGIC: Final = b"stoker vectors 1\n"
_ROWS: Final = 1 << 12


@dataclass(frozen=True, slots=True)
class DiskGraph:
    """The layout of a file.

    Attributes:
        count: of nodes.
        dimension: of their vectors.
        degree: most edges of one.
        start: the node where searches begin.
    """

    count: int
    dimension: int
    degree: int
    start: int

    @property
    def node(self) -> np.dtype[Any]:
        """A node in the file."""
        return np.dtype([("vector", "<f4", (self.dimension,)), ("edges", "<i4", (self.degree,))])

    @property
    def nodes_a_read(self) -> int:
        """Nodes that a page holds; 1 where a node takes several."""
        return max(1, PAGE // self.node.itemsize)

    @property
    def unit(self) -> int:
        """Bytes that are read for a node."""
        return -(-self.node.itemsize // PAGE) * PAGE

    @property
    def bytes(self) -> int:
        """Of the file."""
        return PAGE + -(-self.count // self.nodes_a_read) * self.unit

    def offsets(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The offset of the read of each node."""
        return PAGE + nodes // self.nodes_a_read * self.unit

    def nodes_in(self, buffers: NDArray[np.uint8], nodes: NDArray[np.int64]) -> NDArray[Any]:
        """The nodes in what was read for them."""
        width = self.nodes_a_read * self.node.itemsize
        rows = buffers[: len(nodes), :width].view(self.node)
        found: NDArray[Any] = rows[np.arange(len(nodes)), nodes % self.nodes_a_read]
        return found


def write_graph(path: str, points: F32, edges: I32, start: int) -> DiskGraph:
    """Write a file, which appears whole or not at all.

    Raises:
        StorageError: it could not be written.
    """
    graph = DiskGraph(len(points), points.shape[1], edges.shape[1], start)

    def parts() -> Iterator[memoryview]:
        header = json.dumps([graph.count, graph.dimension, graph.degree, graph.start]).encode()
        yield memoryview((_MAGIC + header).ljust(PAGE, b"\0"))
        rows, width = _ROWS * graph.nodes_a_read, graph.nodes_a_read * graph.node.itemsize
        for at in range(0, graph.count, rows):
            size = min(rows, graph.count - at)
            pages = -(-size // graph.nodes_a_read)
            made = np.zeros((pages, graph.unit), np.uint8)
            nodes = np.zeros(pages * graph.nodes_a_read, graph.node)
            nodes["vector"][:size], nodes["edges"][:size] = points[at : at + size], edges[at : at + size]
            made[:, :width] = nodes.view(np.uint8).reshape(pages, width)
            yield made.reshape(-1).data

    folder, name = os.path.split(path)
    open_store(folder).put_stream(name, parts)
    return graph


def open_graph(path: str) -> DiskGraph:
    """The layout of a file that :func:`write_graph` wrote.

    Raises:
        StorageError: it can not be read.
        CorruptDataError: it is no such file, or was cut off.
    """
    with file_errors(path):
        with open(path, "rb") as file:
            page = file.read(PAGE)
        size = os.path.getsize(path)
    try:
        if not page.startswith(_MAGIC):
            raise ValueError("it does not begin as one")
        graph = DiskGraph(*map(int, json.loads(page[len(_MAGIC) :].rstrip(b"\0"))))
        if not (min(graph.count, graph.dimension, graph.degree) > 0 and 0 <= graph.start < graph.count):
            raise ValueError(f"its header says {graph}")
    except (ValueError, TypeError) as error:
        raise CorruptDataError(f"{path} is not a graph of vectors ({error}): remove it, and it is made again") from None
    if size != graph.bytes:
        raise CorruptDataError(
            f"{path} has {size:,} bytes, and should have {graph.bytes:,}: remove it, and it is made again"
        )
    return graph
