"""Token files in memory whose every token is another, and what a loader should make of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from stoker.loaders.parquet_loader import StreamingParquetLoader
from stoker.tokens.batch import LMBatch
from stoker.tokens.order.division import Groups
from stoker.tokens.sources.ragged import Ragged
from stoker.tokens.sources.source import SkippedFile
from stoker.types import Ids

__all__ = ["FIRST", "MemorySource", "epoch_rows", "rows_of", "write_parquet"]

FIRST = 10
"""The least token, so that smaller numbers can be padding and eos."""


class MemorySource:
    """Files of row groups of documents of given lengths; tokens count up from :data:`FIRST`.

    Args:
        files: of each file, of each of its groups, the lengths of its documents, which may be 0.
    """

    name = "memory"
    url = ""
    skipped: Sequence[SkippedFile] = ()

    def __init__(self, files: Sequence[Sequence[Sequence[int]]]) -> None:
        self._groups: list[Ragged] = []
        owners, first, row = [], FIRST, 0
        firsts = []
        for number, groups in enumerate(files):
            for lengths in groups:
                offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
                values = np.arange(first, first + int(offsets[-1]), dtype=np.int64)
                first += values.size
                self._groups.append(Ragged(values, offsets, where=f"file {number}"))
                owners.append(number)
                firsts.append(row)
                row += len(lengths)
        self.total = first - FIRST
        self.documents = [
            group[k].tolist() for group in self._groups for k in range(len(group)) if len(group[k])
        ]  # of all files, in order
        self.groups = Groups(
            tuple(f"f{number:03}" for number in range(len(files))),
            np.array(owners, dtype=np.int64),
            np.array([(group.lengths > 0).sum() for group in self._groups], dtype=np.int64),
            np.array([group.values.size for group in self._groups], dtype=np.int64),
            np.array(firsts, dtype=np.int64),
        )
        self.about: Mapping[str, Any] = {"fingerprint": hashlib.sha256(repr(files).encode()).hexdigest()}
        self.reads: list[int] = []
        self.fetched: list[int] = []

    def where(self, group: int) -> str:
        return f"group {group}"

    def chunks(self, group: int) -> Iterator[Ragged]:
        self.reads.append(group)
        whole = self._groups[group]
        middle = len(whole) // 2
        yield whole[:middle]
        yield whole[middle:]

    def lengths(self, group: int) -> Ids:
        lengths = self._groups[group].lengths
        return lengths[lengths > 0]

    def fetch(self, groups: Iterable[int]) -> None:
        self.fetched += groups

    def done(self, group: int) -> None: ...

    def rest(self) -> None: ...

    def keep(self, kind: str, recipe: Mapping[str, Any], make: Callable[[], Ids]) -> Ids:
        return make()

    def close(self) -> None: ...


def rows_of(batches: Iterable[LMBatch]) -> list[tuple[int, ...]]:
    """Every row of batches, with its labels."""
    return [
        (*ids, *labels)
        for batch in batches
        for ids, labels in zip(batch.input_ids.tolist(), batch.labels.tolist(), strict=True)
    ]


def epoch_rows(loaders: Sequence[StreamingParquetLoader]) -> list[tuple[int, ...]]:
    """The rows of an epoch of all ranks."""
    return [row for loader in loaders for row in rows_of(loader)]


def write_parquet(
    path: Path, groups: Sequence[Sequence[Any]], kind: Any = None, column: str = "input_ids", **options: Any
) -> None:
    """A Parquet file of these row groups, each a list of documents."""
    kind = pa.list_(pa.uint32()) if kind is None else kind
    schema = pa.schema([(column, kind)])
    with pq.ParquetWriter(path, schema, **options) as writer:
        for rows in groups:
            writer.write_table(
                pa.table({column: pa.array(rows, kind)}, schema=schema), row_group_size=max(1, len(rows))
            )
