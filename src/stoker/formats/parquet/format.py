"""Parquet as one of the pipeline's formats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from stoker.errors import IndexFileError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.byte_source import ByteSource
from stoker.formats.common.file_shards import UnindexedFile
from stoker.formats.common.inspect_header import HeaderFacts, Partition, only_settings
from stoker.formats.common.rows.merge import iterate_rows, read_each
from stoker.formats.format import Format
from stoker.formats.parquet.footer.facts import RowGroup
from stoker.formats.parquet.footer.footer import KnownSchema, read_facts, read_footer
from stoker.formats.parquet.footer.row_groups import describe_row_groups
from stoker.formats.parquet.pages.page_headers import bad_pages
from stoker.formats.parquet.pages.values import AddressedValues, gather
from stoker.formats.parquet.reader import ParquetReader
from stoker.types import Array, Batch, Buffer, Ids

_MOST_SCHEMAS: Final = 256


class ParquetFormat(Format):
    """Row groups as shards, decoded by pyarrow."""

    name = "parquet"
    shard = "a row group"
    magic = (b"PAR1",)
    views = "runs of rows"
    suffixes = (".parquet", ".parq", ".pq")
    row_groups = True
    settings = ("filters", "hive")
    types = {"halffloat": "float16", "float": "float32", "double": "float64"}  # noqa: RUF012

    def __init__(self) -> None:
        self._schemas: dict[Any, KnownSchema] = {}

    def inspect_header(self, source: ByteSource, settings: Mapping[str, Any]) -> HeaderFacts:
        """See :class:`stoker.formats.format.Format`: the header is the footer.

        Raises:
            MissingPackageError: pyarrow is not installed.
        """
        only_settings(settings, (*self.settings, "columns", "partition", "predicate"), self.name)
        columns = settings.get("columns")
        if len(self._schemas) > _MOST_SCHEMAS:
            self._schemas.clear()
        return read_facts(
            read_footer(source),
            source.size,
            columns=None if columns is None else tuple(columns),
            predicate=settings.get("predicate"),
            partition=settings.get("partition", {}),
            schemas=self._schemas,
        )

    def describe_shards(
        self,
        files: Sequence[UnindexedFile],
        spec: Mapping[str, Any],
        *,
        in_place: bool,
        partitions: Mapping[str, Partition] | None = None,
        apart: bool = False,
    ) -> Iterator[ShardInfo]:
        """See :class:`stoker.formats.format.Format`: row groups, without those that the predicate leaves out.

        Small ones of a file that follow each other are fetched together.
        """
        encodings = {name: kind for name, kind in spec.get("encodings", {}).items() if name in spec["columns"]}
        return describe_row_groups(files, spec["columns"], encodings, partitions or {}, in_place=in_place, apart=apart)

    def agree(self, first: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
        """See :class:`stoker.formats.format.Format`; how columns are stored may differ."""
        one, two = ({**spec["columns"], **spec.get("encodings", {})} for spec in (first, other))
        return first if one == two else super().agree({"columns": one}, {"columns": two})

    def parse_shard(self, obj: Mapping[str, Any], where: str) -> ShardInfo:  # noqa: ARG002
        """Parquet files say themselves what an index says of other formats.

        Raises:
            IndexFileError: always.
        """
        raise IndexFileError(
            f'{where}: Parquet is not listed in an index.json: open the directory that holds the files with format="parquet"'
        )

    def open(
        self, info: ShardInfo, files: Sequence[Buffer], *, where: str, options: ReadOptions = ReadOptions()
    ) -> ParquetReader:
        return ParquetReader(info, files[0], where, options)

    def bad_checksums(self, info: ShardInfo, data: Buffer, where: str) -> Iterator[tuple[int | None, str]]:  # noqa: ARG002
        """Pages of each chunk of a row group: that they are there, as many values, and CRC-32 where they carry it."""
        group, part = info.detail, info.raw[0].part
        assert isinstance(group, RowGroup)
        assert part is not None  # all makers of a RowGroup describe its file so
        paths = [path for column in group.file.schema.columns for path in column.paths]
        for path, facts in zip(paths, group.file.chunks[group.index], strict=True):
            for message in bad_pages(data, facts, part.window[0]):
                yield None, f"row group {group.number}, column {'.'.join(path)!r}: {message}"

    def read_many(
        self, shards: Sequence[ParquetReader], which: Ids, rows: Ids, columns: Sequence[str] | None = None
    ) -> Batch:
        if len(shards) == 1:
            return shards[0].read(rows, columns)
        batch: Batch = {}
        rest: list[str] = []
        for name in shards[0].wanted(columns):
            gathered = _gather(shards, which, rows, name)
            if gathered is None:
                rest.append(name)
            else:
                batch[name] = gathered
        if rest:
            batch.update(read_each(shards, which, rows, rest))
        return {name: batch[name] for name in shards[0].columns if name in batch}

    def iterate_many(
        self, shards: Sequence[ParquetReader], which: Ids, rows: Ids, columns: Sequence[str] | None = None
    ) -> dict[str, Iterable[Any]]:
        """See :class:`stoker.formats.format.Format`. Numbers are Python's; rows of array columns are arrays."""
        return iterate_rows(self.read_many(shards, which, rows, columns))


def _gather(shards: Sequence[ParquetReader], which: Ids, rows: Ids, name: str) -> Array | None:
    """A fixed-width column of several row groups in one copy; ``None`` where it is none, or not all of them fit in memory."""
    first = shards[0].values(name)
    if not isinstance(first, AddressedValues) or first.nbytes * len(shards) > shards[0].options.decoded_bytes:
        return None
    if len(rows) and int(rows.min()) < 0:
        raise IndexError("row outside its shard")
    columns: list[AddressedValues] = [first]
    for shard in shards[1:]:
        values = shard.values(name)
        if not isinstance(values, AddressedValues) or values.dtype != first.dtype or values.shape != first.shape:
            return None
        columns.append(values)
    if (np.array([len(column) for column in columns])[which] <= rows).any():
        raise IndexError("row outside its shard")
    return gather(columns, which, rows)
