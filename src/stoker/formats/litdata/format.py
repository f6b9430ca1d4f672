"""litdata's chunks as a format of the pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stoker.errors import FormatError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.checks import parse_files, parse_samples, refuse, string_list
from stoker.formats.format import Format
from stoker.formats.litdata.index import TOKENS
from stoker.formats.litdata.reader import LitDataShard, iterate
from stoker.formats.litdata.tree import ALONE, sample_tree
from stoker.formats.litdata.values import BFLOAT16, dtype_of, word_of
from stoker.types import Buffer, Ids


class LitDataFormat(Format):
    """One file a shard, as litdata's ``optimize`` writes it; an entry of the index has what litdata's ``config`` has."""

    name = "litdata"
    shard = "a chunk"
    implied = ("columns",)

    def parse_shard(self, obj: Mapping[str, Any], where: str) -> ShardInfo:
        """See :class:`~stoker.formats.format.Format`."""
        samples = parse_samples(obj, where)
        raw, zipped, compression = parse_files(obj, self.roles, where)
        leaves = string_list(obj, "data_format", where)
        data_spec, loader, block = obj.get("data_spec"), obj.get("item_loader"), obj.get("block_size")
        if not isinstance(data_spec, str | None) or not leaves:
            refuse(where, "'data_spec' should be str or null, and 'data_format' not empty")
        if block is not None and (type(block) is not int or block < 1):
            refuse(where, f"'block_size' should be a positive int or null, found {block!r}")
        try:
            columns = dict(sample_tree(leaves, data_spec, json.dumps(obj.get("types"))).kinds)
        except (ValueError, FormatError) as error:
            refuse(where, str(error))
        if loader == TOKENS:
            if (
                len(leaves) != 1
                or not leaves[0].startswith("no_header_")
                or (block and dtype_of(leaves[0]) == BFLOAT16)
            ):
                refuse(where, f"chunks of {TOKENS} hold {', '.join(leaves)}, not one array of tokens")
            columns = {ALONE: word_of(leaves[0]) + (f":{block}" if block else "")}
        spec = {
            "columns": columns,
            "data_format": list(leaves),
            "data_spec": data_spec,
            "types": obj.get("types"),
            "item_loader": loader,
            "compression_level": obj.get("compression_level"),
            "block_size": block,
        }
        return ShardInfo(self.name, samples, raw, zipped, compression, spec)

    def open(
        self, info: ShardInfo, files: Sequence[Buffer], *, where: str, options: ReadOptions = ReadOptions()
    ) -> LitDataShard:
        spec = info.spec
        tree = sample_tree(tuple(spec["data_format"]), spec["data_spec"], json.dumps(spec["types"]))
        return LitDataShard(info, files[0], tree, where, options)

    def iterate_many(
        self, shards: Sequence[LitDataShard], which: Ids, rows: Ids, columns: Sequence[str] | None = None
    ) -> dict[str, Iterable[Any]]:
        return iterate(self.read_many(shards, which, rows, columns))
