"""DLIO's indexed binary files: records end to end, and two files that tell where each begins and how long it is.

Beside ``x.indexed_binary`` lie ``x.indexed_binary.off.idx`` and ``x.indexed_binary.sz.idx``, of a little-endian u64 a record
each: its first byte, and its bytes. As DLIO's own reader takes them, records may overlap: its generator begins to count from
0 again where a file is larger than its buffer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker.errors import CorruptDataError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.container import PackedFormat, PackedShard
from stoker.formats.common.inspect_header import ByteSource, HeaderFacts, check_count, only_settings
from stoker.types import Array, Buffer, Column, Ids

_WIDTH = 8


class IndexedBinaryShard(PackedShard):
    """The three open files of a data file."""

    def __init__(self, info: ShardInfo, files: Sequence[Buffer], where: str, options: ReadOptions) -> None:
        super().__init__(info, where, options)
        begins, sizes = (
            _numbers(file, f"{where}: {name}")
            for file, name in zip(files, ("its .off.idx", "its .sz.idx"), strict=False)
        )
        if len(begins) != info.samples or len(sizes) != info.samples:
            raise CorruptDataError(
                f"{where}: its .off.idx has {len(begins)} records, its .sz.idx {len(sizes)}, and {info.samples} were "
                "indexed. Were the files written together?"
            )
        self._begins, self._sizes = begins, sizes
        self._data = memoryview(files[2]).cast("B")

    def take(self, name: str, rows: Ids) -> Column:  # noqa: ARG002 - there is one column
        """See :class:`~stoker.formats.common.container.PackedShard`: the bytes of each record, or a view of them.

        CorruptDataError if a record does not lie in the data file; names its row.
        """
        begins, sizes, total = self._begins[rows], self._sizes[rows], len(self._data)
        wrong = (begins > total) | (sizes > total - np.minimum(begins, total))
        if wrong.any():
            at = int(np.argmax(wrong))
            raise CorruptDataError(
                f"{self.where}: record {int(rows[at])} of {int(sizes[at])} bytes begins at byte {int(begins[at])} of {total}"
                ". Were the files written together?"
            )
        spans = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
        if self.options.views:
            return [self._data[begin:end] for begin, end in spans]
        return [bytes(self._data[begin:end]) for begin, end in spans]


class IndexedBinaryFormat(PackedFormat):
    """A file of records with its two indexes, as DLIO writes and reads them."""

    name = "indexed_binary"
    shard = "a file of DLIO's records"
    reader = IndexedBinaryShard
    views = "bytes"
    suffixes = (".indexed_binary.off.idx",)
    beside = (".indexed_binary.sz.idx", ".indexed_binary")
    settings = ("column",)

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
        """See :class:`~stoker.formats.common.container.PackedFormat`: of the offsets, only how many there are is looked at.

        Settings: ``column`` (the column's name, ``"data"``).
        """
        only_settings(settings, self.settings, self.name)
        if source.size % _WIDTH or not source.size:
            raise CorruptDataError(
                f"{source.where} has {source.size} bytes, which are not the u64 offsets of one or more records. Was it "
                "written to the end?"
            )
        count = check_count(source.size // _WIDTH, source.where)
        return HeaderFacts(count, {"columns": {str(settings.get("column", "data")): "bytes"}})


def _numbers(file: Buffer, where: str) -> Array:
    if memoryview(file).nbytes % _WIDTH:
        raise CorruptDataError(f"{where} has {memoryview(file).nbytes} bytes, which are not a whole number of u64")
    return np.frombuffer(file, "<u8")
