"""The map of shards against steps as pixels: far too many for shapes, few enough for a small PNG."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from stoker_bench.simulate import Report

COLOURS = ("#3b82c4", "#d9822b", "#2a9d76", "#b5539c", "#c2a012", "#7a6bd1", "#cc4f4f", "#6a8f2f")
"""Of nodes, told apart by most eyes on light and dark grounds; they begin again after the last."""
SHARED = "#8a8f98"
"""The colour of shards that several nodes have."""

_MOST_ROWS = 240
_MOST_COLUMNS = 1000


def node_colour(node: int) -> str:
    """The colour of a node."""
    return COLOURS[node % len(COLOURS)]


def shard_map(report: Report) -> NDArray[np.uint8]:
    """The map of the shards that each node has in use at each step.

    Returns:
        uint8, shape ``(rows, columns)``. Rows are shards, several in a row where there are many, those of a node together
        and in the order of its first uses; columns are steps from the first to the last. 0: not in use; k + 1: in use on
        a node of colour k; the number of colours + 1: on several nodes.
    """
    count = max(int(node.cache.shards.max(initial=0)) for node in report.nodes) + 1
    first = np.full(count, np.iinfo(np.int64).max)
    owner = np.zeros(count, dtype=np.int64)
    for node in report.nodes:
        cache = node.cache
        earlier = cache.first < first[cache.shards]
        first[cache.shards[earlier]] = cache.first[earlier]
        owner[cache.shards[earlier]] = node.node
    used = np.flatnonzero(first < np.iinfo(np.int64).max)
    row_of = np.zeros(count, dtype=np.int64)
    rows, columns = min(_MOST_ROWS, used.size), min(_MOST_COLUMNS, report.sampling.steps)
    row_of[used[np.lexsort((first[used], owner[used]))]] = np.arange(used.size) * rows // used.size
    cells = np.zeros((rows, columns), dtype=np.uint8)
    for node in report.nodes:
        shards, begin, end = node.cache.spans
        change = np.zeros((rows, columns + 1), dtype=np.int32)
        np.add.at(change, (row_of[shards], begin * columns // report.sampling.steps), 1)
        np.add.at(change, (row_of[shards], end * columns // report.sampling.steps + 1), -1)
        here = np.cumsum(change, axis=1)[:, :columns] > 0
        cells[here] = np.where(cells[here] == 0, node.node % len(COLOURS) + 1, len(COLOURS) + 1)
    return cells


def map_url(cells: NDArray[np.uint8]) -> str:
    """Cells of :func:`shard_map` as a ``data:`` URL of a PNG with a transparent ground."""
    height, width = cells.shape
    palette = b"\0\0\0" + b"".join(bytes.fromhex(colour[1:]) for colour in (*COLOURS, SHARED))
    lines = np.zeros((height, width + 1), dtype=np.uint8)  # each line begins with its filter: none
    lines[:, 1:] = cells
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, body)
        for kind, body in (
            (b"IHDR", header),
            (b"PLTE", palette),
            (b"tRNS", b"\0"),
            (b"IDAT", zlib.compress(lines.tobytes(), 9)),
            (b"IEND", b""),
        )
    )
    return "data:image/png;base64," + base64.b64encode(data).decode()


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
