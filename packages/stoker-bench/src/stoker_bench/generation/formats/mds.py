"""MDS shards: a table of offsets, and records of all columns."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from stoker.errors import ConfigError
from stoker.formats.common.checks import MAX_OFFSET
from stoker.formats.mds.encoder import MDSEncoder
from stoker.lazy import cached_property
from stoker.types import Ids
from stoker_bench.generation.columns import Column
from stoker_bench.generation.content import FileContent
from stoker_bench.generation.formats.base import GeneratedLayout
from stoker_bench.generation.ragged import cells, one_value, sizes
from stoker_bench.generation.segments import Segment, record_segments
from stoker_bench.generation.spec import DatasetSpec


class MDSLayout(GeneratedLayout):
    """A shard; its index is written by :mod:`stoker_bench.generation.marker`."""

    def __init__(self, spec: DatasetSpec) -> None:
        super().__init__(spec)
        self._fixed = all(column.width is not None for column in spec.fields)

    @cached_property
    def encoder(self) -> MDSEncoder:
        """The encoder that makes the header and the entries of the index."""
        columns = {column.name: _encoding(column) for column in self.spec.fields}
        settings: dict[str, Any] = {
            "compression": self.spec.compression,
            "hashes": list(self.spec.hashes),
            "size_limit": None,
        }
        return MDSEncoder(columns, settings)

    def size(self, number: int) -> int:
        ends = self._ends(number)
        return 8 + 4 * len(ends) + len(self.encoder.config) + (int(ends[-1]) if len(ends) else 0)

    def segments(self, number: int) -> Iterator[Segment]:
        ends = self._ends(number)
        encoder, rows = self.encoder, self.spec.samples_per_file
        first = 4 + 4 * (rows + 1) + len(encoder.config)
        if first + int(ends[-1]) > MAX_OFFSET:
            raise ConfigError(
                f"samples_per_file={rows:,}: an MDS shard of {first + int(ends[-1]):,} bytes, where {MAX_OFFSET:,} are the "
                "most; make more files of fewer samples"
            )
        content = FileContent(self.spec, number)
        yield encoder.offsets(first, ends) + encoder.config
        sized = [index for index, column in enumerate(self.spec.fields) if not column.numeric]
        pack = struct.Struct(f"<{len(sized)}I").pack
        if self._fixed:
            head = pack(*[self.spec.fields[index].size for index in sized])
            yield from record_segments([head, *[one_value(content, column) for column in self.spec.fields]], rows)
            return
        for row in cells(content, rows):
            yield pack(*[row[index].size for index in sized])
            for cell in row:
                yield from cell.segments

    def _ends(self, number: int) -> Ids:
        content, rows = FileContent(self.spec, number), self.spec.samples_per_file
        heads = 4 * sum(not column.numeric for column in self.spec.fields)
        return np.cumsum(heads + sizes(content, 0, rows))


def _encoding(column: Column) -> str:
    """The MDS encoding of a column."""
    if not column.numeric:
        return column.dtype
    if not column.shape:
        return column.dtype
    return f"ndarray:{column.dtype}:{','.join(map(str, column.shape))}"
