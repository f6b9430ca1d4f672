"""MDS as a format of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.format import Format, GeneratedFiles
from stoker.formats.mds.reader import MDSShard, iterate_many, read_many, read_one
from stoker.formats.mds.spec import parse_mds_shard
from stoker.types import Buffer


class MDSFormat(Format):
    """One file a shard: a header of offsets, the writer's configuration, then the samples."""

    name = "mds"
    shard = "a file"
    writer = "stoker.writing.shard_formats:MDSWriter"
    views = "bytes"
    generated = GeneratedFiles(
        "stoker.generation.formats.mds:MDSLayout", (".mds",), compressions=("zstd", "gz"), compressed_whole=True
    )

    def parse_shard(self, obj: Mapping[str, Any], where: str) -> ShardInfo:
        return parse_mds_shard(obj, where)

    def open(
        self, info: ShardInfo, files: Sequence[Buffer], *, where: str, options: ReadOptions = ReadOptions()
    ) -> MDSShard:
        return MDSShard(info, files[0], where, options)

    read_many = staticmethod(read_many)
    iterate_many = staticmethod(iterate_many)
    read_one = staticmethod(read_one)
