"""MDS as a format of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import parse_files, parse_samples, refuse
from stoker.formats.format import Format
from stoker.formats.mds.reader import MDSShard, iterate_many, read_many, read_one
from stoker.formats.mds.spec import mds_spec, parse_columns
from stoker.types import Buffer

# The count of samples and the end of the last one, and where each sample begins.
_HEADER: Final = 8
_OFFSET: Final = 4


class MDSFormat(Format):
    """One file a shard: a header of offsets, the writer's configuration, then the samples."""

    name = "mds"
    shard = "a file"
    views = "bytes"

    def parse_shard(self, obj: Mapping[str, Any], where: str) -> ShardInfo:
        """See :class:`~stoker.formats.format.Format`.

        ``spec`` holds ``column_names``, ``column_encodings`` and ``column_sizes``, parallel tuples, and the writer's
        ``hashes`` and ``size_limit``; shards where all of these are equal share one.
        """
        samples = parse_samples(obj, where)
        raw, zipped, compression = parse_files(obj, self.roles, where)
        spec, width = parse_columns(obj, where)
        need = _HEADER + samples * (_OFFSET + width)
        if raw[0].bytes < need:
            refuse(where, f"{samples} samples need at least {need} bytes, but the shard has {raw[0].bytes}")
        return ShardInfo(self.name, samples, raw, zipped, compression, spec)

    def least_bytes(self, spec: Mapping[str, Any]) -> tuple[int, int]:
        """See :class:`~stoker.formats.format.Format`."""
        columns = (spec["column_names"], spec["column_encodings"], spec["column_sizes"])
        _, width = mds_spec(*columns, spec["hashes"], spec["size_limit"])
        return _HEADER, _OFFSET + width

    def open(
        self, info: ShardInfo, files: Sequence[Buffer], *, where: str, options: ReadOptions = ReadOptions()
    ) -> MDSShard:
        return MDSShard(info, files[0], where, options)

    def open_cut(
        self, info: ShardInfo, files: Sequence[Buffer], *, where: str, options: ReadOptions = ReadOptions()
    ) -> MDSShard:
        return MDSShard(info, files[0], where, options, cut=True)

    read_many = staticmethod(read_many)
    iterate_many = staticmethod(iterate_many)
    read_one = staticmethod(read_one)
