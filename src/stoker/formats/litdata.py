"""litdata's chunks as a format: the ``index.json`` of litdata as an index of stoker's own kind, and an open chunk.

A chunk is ``u32 N | u32 offsets[N + 1] | items``; an item is ``u32 sizes[leaves] | leaves``, and of chunks of tokens the
tokens alone. Compressed chunks hold items that are compressed each (``sample``) or many together (``batch``, which begin with
a directory of their own). Rows of plain values may lie behind the items, as an Arrow file, and then nowhere else.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError, CorruptDataError, FormatError
from stoker.formats.arrow import ArrowFormat, ArrowShard
from stoker.formats.base import FileInfo, ReadOptions, ShardInfo
from stoker.formats.common.checks import (
    DECODE_ERRORS,
    MAX_OFFSET,
    check_indexed,
    check_memory,
    check_rows,
    most_unpacked,
    refuse,
    require,
    string_list,
)
from stoker.formats.common.compression import parse_compression
from stoker.formats.common.container import OpenShard
from stoker.formats.common.entries import Sizes
from stoker.formats.common.gather import address_of, gather_rows
from stoker.formats.common.inspect_header import MappedSource
from stoker.formats.format import Format
from stoker.formats.litdata_values import (
    ALONE,
    BFLOAT16,
    FIXED,
    decoder_of,
    dtype_of,
    pickled,
    sample_tree,
    word_of,
)
from stoker.formats.unstacked import iterate_rows
from stoker.integers import first_true
from stoker.types import Batch, Buffer, Column, Ids, PooledBuffer

TREES: Final = "PyTreeLoader"
TOKENS: Final = "TokensLoader"
_LEVELS: Final = ("chunk", "batch", "sample")
_KEPT: Final = ("data_format", "data_spec", "types", "item_loader")


def shards_of(index: Mapping[str, Any], where: str, sizes: Sizes, block_size: int | None = None) -> dict[str, Any]:
    """The index of stoker's own kind that says the same.

    IndexFileError if it is not valid, FormatError if the chunks are encrypted, or of a loader that is not read, ConfigError
    for a block size, and chunks that are not of tokens. ``sizes``: asked for the bytes of files that are compressed whole,
    which litdata's index does not tell. ``block_size``: tokens of a sample, of chunks that ``TokensLoader`` reads. ``None``:
    a sample is what was written.
    """
    config = require(index, "config", dict, where)
    chunks = require(index, "chunks", list, where)
    loader = config.get("item_loader") or TREES
    _check_readable(config, loader, where)
    if block_size is not None and loader != TOKENS:
        raise ConfigError(f"{where}: block_size= is for chunks of tokens (TokensLoader), and these are of {loader}")
    level = config.get("compression_level") or "chunk"
    if level not in _LEVELS:
        refuse(where, f"compression_level {level!r} is unknown; known: {', '.join(_LEVELS)}")
    spec = {key: config.get(key) for key in _KEPT} | {"item_loader": loader, "compression_level": level}
    spec["block_size"] = block_size
    codec = config.get("compression") if level == "chunk" else None
    ends = f".{codec}"
    names = [require(chunk, "filename", str, where) for chunk in chunks if isinstance(chunk, dict)]
    if len(names) != len(chunks):
        refuse(where, "'chunks' should be a list of objects")
    packed = [name for name in names if codec and ends in name]
    known = sizes(packed) if packed else {}
    shards = []
    for number, chunk in enumerate(chunks):
        here, name = f"{where}: chunk {number}", names[number]
        count: int = require(chunk, "chunk_size", int, here)
        if block_size is not None:
            count = require(chunk, "dim", int, here) // block_size
        if count < 0 or count > MAX_OFFSET:
            refuse(here, f"{count} samples is impossible")
        if not count:
            continue
        raw = name.replace(ends, "") if name in known else name
        entry: dict[str, Any] = {
            **spec,
            "format": "litdata",
            "version": 2,
            "samples": count,
            "compression": codec if name in known else None,
            "raw_data": {"basename": raw, "bytes": require(chunk, "chunk_bytes", int, here), "hashes": {}},
            "zip_data": {"basename": name, "bytes": known[name], "hashes": {}} if name in known else None,
        }
        shards.append(entry)
    return {"version": 2, "shards": shards}


def _check_readable(config: Mapping[str, Any], loader: str, where: str) -> None:
    if config.get("encryption"):
        algorithm = (
            config["encryption"].get("algorithm") if isinstance(config["encryption"], dict) else "some algorithm"
        )
        raise FormatError(
            f"{where}: the chunks are encrypted ({algorithm}), which stoker can not read: write them again without "
            "encryption=, by litdata's optimize over its StreamingDataset(..., encryption=...)"
        )
    if loader == "ParquetLoader":
        raise FormatError(f"{where}: the chunks are Parquet files: read them by format='parquet'")
    if loader not in (TREES, TOKENS):
        raise FormatError(f"{where}: chunks of {loader} are not read, only of {TREES} and {TOKENS}")


_ZSTD: Final = parse_compression("zstd")
_FRAMED: Final = b"LDFZ01\0\0"
_ROWS: Final = b"LDARW01\0"
_HEAD: Final = struct.Struct("<8sHHIII")
_FRAME: Final = np.dtype([("first", "<u4"), ("items", "<u4"), ("at", "<u8"), ("stored", "<u4"), ("size", "<u4")])


@dataclass(frozen=True, slots=True)
class Items:
    """Bytes in which items lie one after the other. ``begins``: where each item begins, int64. ``sizes``: bytes of each."""

    data: NDArray[np.uint8]
    begins: Ids
    sizes: Ids


class LitDataShard(OpenShard):
    """An open chunk: its directory checked against the index and against itself."""

    def __init__(self, info: ShardInfo, files: Sequence[Buffer], where: str, options: ReadOptions) -> None:
        super().__init__(info, where, options)
        spec = info.spec
        self._tree = tree = sample_tree(tuple(spec["data_format"]), spec["data_spec"], json.dumps(spec["types"]))
        self.unsafe = {
            name: "pickled"
            for name, one in tree.branches.items()
            if any(map(pickled, tree.leaves[one.first : one.end]))
        }
        self._data = np.frombuffer(files[0], np.uint8)
        self._packed = info.spec["compression_level"] == "sample"
        self._tokens = info.spec["item_loader"] == TOKENS
        self._block: int | None = info.spec["block_size"]
        self._frames = np.zeros(0, _FRAME)
        self._rows: ArrowShard | None = None
        self._items: int = 0
        check_indexed(f"{where}: the file has", len(self._data), info.raw[0].bytes, "bytes")
        framed = info.spec["compression_level"] == "batch"
        if framed and bytes(self._data[:8]) == _FRAMED:
            self._offsets = self._read_frames()
        else:
            self._rows = self._open_rows()
            if framed and self._rows is None:
                raise CorruptDataError(f"{where}: it does not begin as a chunk of compressed batches does")
            self._offsets = self._read_offsets()
        if self._block is None:
            check_indexed(f"{where}: the file holds", self._items, info.samples, "samples")

    def read(self, rows: Ids, columns: Sequence[str] | None = None) -> Batch:
        wanted = self.wanted(columns)
        check_rows(rows, self.samples)
        if self._rows is not None:
            there = set(self._rows.columns)
            found = self._rows.read(rows, [name for name in wanted if name in there])
            return {name: found[name] if name in there else [None] * len(rows) for name in wanted}
        if self._block is not None:
            return {name: self._blocks(rows, self._block) for name in wanted}
        decoders = {name: self._decoders(name) for name in wanted if name in self._tree.branches}
        items = self._take(rows)
        begins, sizes = self._leaves(items, rows)
        return {
            name: self._column(name, decoders[name], items.data, begins, sizes, rows)
            if name in decoders
            else [None] * len(rows)  # a column of other chunks
            for name in wanted
        }

    # -- the directory ---------------------------------------------------------------------------------------------

    def _read_offsets(self) -> Ids:
        """Offsets of items, from the head of the file."""
        count = self._words(0, 1)[0]
        head = 4 * (int(count) + 2)
        offsets = self._words(4, int(count) + 1)
        last = head if self._rows is not None else len(self._data)
        self._check_offsets(offsets, head, last)
        self._items = int(count)
        return offsets

    def _read_frames(self) -> Ids:
        """Offsets of items in the joined bytes of the frames, which are kept."""
        if len(self._data) < _HEAD.size:
            raise CorruptDataError(f"{self.where}: it is cut off inside its header")
        _, version, _, count, _, frames = _HEAD.unpack_from(self._data.data)
        if version != 1:
            raise CorruptDataError(f"{self.where}: compressed batches of version {version} are not read")
        offsets = self._words(_HEAD.size, count + 1)
        begin = _HEAD.size + 4 * (count + 1)
        end = begin + _FRAME.itemsize * frames
        if end > len(self._data):
            raise CorruptDataError(f"{self.where}: {frames} batches leave the file")
        table = np.frombuffer(self._data[begin:end], _FRAME)
        firsts, items = table["first"].astype(np.int64), table["items"].astype(np.int64)
        at, stored = table["at"].astype(np.int64), table["stored"].astype(np.int64)
        if (
            not frames
            or (np.cumsum(items) - items != firsts).any()
            or int(items.sum()) != count
            or (at < end).any()
            or (at + stored > len(self._data)).any()
        ):
            raise CorruptDataError(f"{self.where}: its batches leave the file, or do not hold its {count} samples")
        self._check_offsets(offsets, 0, int(table["size"].astype(np.int64).sum()))
        sums = offsets[firsts + items] - offsets[firsts]
        if (sums != table["size"]).any():
            raise CorruptDataError(f"{self.where}: a batch is not as large as its samples")
        self._frames, self._items = table, count
        return offsets

    def _words(self, start: int, count: int) -> Ids:
        if start + 4 * count > len(self._data):
            raise CorruptDataError(
                f"{self.where}: its head of {count} samples leaves the file of {len(self._data)} bytes"
            )
        return self._data[start : start + 4 * count].view("<u4").astype(np.int64)

    def _check_offsets(self, offsets: Ids, first: int, last: int) -> None:
        if int(offsets[0]) != first or int(offsets[-1]) > last or (np.diff(offsets) < 0).any():
            raise CorruptDataError(f"{self.where}: the offsets of samples run backwards or leave the file")
        if self._rows is None and int(offsets[-1]) != last:
            raise CorruptDataError(f"{self.where}: samples end at byte {offsets[-1]} of {last}")

    def _open_rows(self) -> ArrowShard | None:
        """The Arrow file behind the items, if there is one."""
        data = self._data
        if len(data) < 12 or bytes(data[-8:]) != _ROWS:
            return None
        size = int(data[-12:-8].view("<u4")[0])
        if size > len(data) - 12:
            raise CorruptDataError(f"{self.where}: rows of {size} bytes leave the file")
        ipc = data[len(data) - 12 - size : len(data) - 12].view(PooledBuffer)
        where = f"{self.where}: its rows"
        facts = ArrowFormat().inspect_header(MappedSource(ipc, where), {})
        file = FileInfo("rows", size, {})
        info = ShardInfo("arrow", facts.samples, (file,), (), None, facts.spec)
        check_indexed(f"{where} are", facts.samples, self.samples, "samples")
        return ArrowShard(info, [ipc], where, self.options)

    # -- items -----------------------------------------------------------------------------------------------------

    def _take(self, rows: Ids) -> Items:
        """The bytes of items, as they were before compression."""
        if len(self._frames):
            return self._from_frames(rows)
        begins, sizes = self._offsets[rows], self._offsets[rows + 1] - self._offsets[rows]
        if not self._packed:
            return Items(self._data, begins, sizes)
        parts = []
        for row, begin, size in zip(rows.tolist(), begins.tolist(), sizes.tolist(), strict=True):
            try:
                parts.append(_ZSTD.decompress_unsized(self._data[begin : begin + size].data, most_unpacked(size)))
            except CorruptDataError as error:
                raise CorruptDataError(f"{self.where}: sample {row}: {error}") from error
        return _joined([np.frombuffer(part, np.uint8) for part in parts])

    def _from_frames(self, rows: Ids) -> Items:
        parts: list[NDArray[np.uint8]] = [np.zeros(0, np.uint8)] * len(rows)
        frame_of = np.searchsorted(self._frames["first"], rows, side="right") - 1
        for number in np.unique(frame_of).tolist():
            frame: NDArray[np.uint8] = self.kept(str(number), partial(self._frame, number))
            first = int(self._offsets[int(self._frames["first"][number])])
            for index in np.flatnonzero(frame_of == number).tolist():
                begin, end = self._offsets[rows[index]] - first, self._offsets[rows[index] + 1] - first
                parts[index] = frame[begin:end]
        return _joined(parts)

    def _frame(self, number: int) -> NDArray[np.uint8]:
        at, stored, size = (int(self._frames[name][number]) for name in ("at", "stored", "size"))
        here = f"{self.where}: batch {number}"
        check_memory(size, stored, self.options.decoded_bytes, here)
        try:
            data = _ZSTD.decompress(self._data[at : at + stored].data, size)
        except CorruptDataError as error:
            raise CorruptDataError(f"{here}: {error}") from error
        return np.frombuffer(data, np.uint8)

    # -- values ----------------------------------------------------------------------------------------------------

    def _leaves(self, items: Items, rows: Ids) -> tuple[Ids, Ids]:
        """Offsets and sizes of the leaves of items: int64, shape ``(rows, leaves)``."""
        count = len(self._tree.leaves)
        if self._tokens:
            return items.begins[:, None], items.sizes[:, None]
        if not len(rows):
            return np.zeros((0, count), np.int64), np.zeros((0, count), np.int64)
        if (short := first_true(items.sizes < 4 * count)) is not None:
            raise CorruptDataError(
                f"{self.where}: sample {rows[short]} has {items.sizes[short]} bytes, too few for the sizes of its "
                f"{count} values"
            )
        sizes = gather_rows(address_of(items.data) + items.begins, 4 * count).view("<u4").astype(np.int64)
        ends = np.cumsum(sizes, axis=1) + 4 * count
        if (wrong := first_true(ends[:, -1] != items.sizes)) is not None:
            raise CorruptDataError(f"{self.where}: sample {rows[wrong]}: the sizes of its values do not add up")
        return items.begins[:, None] + ends - sizes, sizes

    def _decoders(self, name: str) -> list[Callable[[bytes], Any]]:
        branch = self._tree.branches[name]
        try:
            return [decoder_of(leaf) for leaf in self._tree.leaves[branch.first : branch.end]]
        except FormatError as error:
            raise FormatError(f"{self.where}: column {name!r}: {error}") from None

    def _column(
        self,
        name: str,
        decoders: list[Callable[[bytes], Any]],
        data: NDArray[np.uint8],
        begins: Ids,
        sizes: Ids,
        rows: Ids,
    ) -> Column:
        branch = self._tree.branches[name]
        leaf = self._tree.leaves[branch.first]
        if branch.build is None and leaf in FIXED:
            return self._numbers(name, leaf, data, begins[:, branch.first], sizes[:, branch.first], rows)
        spans = [
            list(zip(begins[:, k].tolist(), (begins[:, k] + sizes[:, k]).tolist(), strict=True))
            for k in range(branch.first, branch.end)
        ]
        values: list[Any] = []
        for index, row in enumerate(rows.tolist()):
            try:
                leaves = [
                    decode(data[slice(*span[index])].tobytes()) for decode, span in zip(decoders, spans, strict=True)
                ]
                values.append(leaves[0] if branch.build is None else branch.build(iter(leaves)))
            except (*DECODE_ERRORS, struct.error) as error:
                raise CorruptDataError(
                    f"{self.where}: sample {row}: column {name!r} does not decode: {error}"
                ) from error
        return values

    def _numbers(self, name: str, leaf: str, data: NDArray[np.uint8], begins: Ids, sizes: Ids, rows: Ids) -> Column:
        dtype = np.dtype(FIXED[leaf])
        if (wrong := first_true(sizes != dtype.itemsize)) is not None:
            raise CorruptDataError(f"{self.where}: sample {rows[wrong]}: {name!r} is {leaf} of {sizes[wrong]} bytes")
        if not len(rows):
            return np.zeros(0, bool if leaf == "bool" else dtype)
        values = gather_rows(address_of(data) + begins, dtype.itemsize).view(dtype)[:, 0]
        return values != 0 if leaf == "bool" else values

    def _blocks(self, rows: Ids, size: int) -> Column:
        """Blocks of tokens, which lie one after the other, over the ends of documents."""
        dtype = np.dtype(dtype_of(self._tree.leaves[0]))
        width = dtype.itemsize
        first = int(self._offsets[0])
        if (len(self._data) - first) // width // size != self.samples:
            raise CorruptDataError(
                f"{self.where}: the index says {self.samples} blocks of {size} tokens, the file does not"
            )
        if not len(rows):
            return np.zeros((0, size), dtype)
        return gather_rows(address_of(self._data) + first + rows * width * size, width * size).view(dtype)


def _joined(parts: Sequence[NDArray[np.uint8]]) -> Items:
    sizes: Ids = np.array([len(part) for part in parts], np.int64)
    data = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
    return Items(data, np.cumsum(sizes) - sizes, sizes)


class LitDataFormat(Format):
    """One file a shard, as litdata's ``optimize`` writes it; an entry of the index has what litdata's ``config`` has."""

    name = "litdata"
    shard = "a chunk"
    reader = LitDataShard
    implied = ("columns",)
    iterate = staticmethod(iterate_rows)  # blocks of tokens stay arrays

    def parse_spec(self, obj: Mapping[str, Any], where: str) -> Mapping[str, Any]:
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
        return {
            "columns": columns,
            "data_format": list(leaves),
            "data_spec": data_spec,
            "types": obj.get("types"),
            "item_loader": loader,
            "compression_level": obj.get("compression_level"),
            "block_size": block,
        }
