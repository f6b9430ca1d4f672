"""Row groups of Parquet files as shards: the facts of each that are kept, so that no footer is read again.

They tell what a shard is read from, and how many tokens a column has.

A row group's column is decoded by a footer of its own, which says where its chunks lie in the buffer at hand. So pyarrow
reads parts of files as it reads files; no file's whole footer is kept or parsed again; and a row group of a file of many
thousands costs as much as one of a small file.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError, CorruptDataError
from stoker.formats.base import NO_HASHES, FileInfo, FilePart, ShardInfo
from stoker.formats.common.file_shards import UnindexedFile
from stoker.formats.common.inspect_header import Partition
from stoker.formats.parquet import thrift as compact
from stoker.formats.parquet.schema import ARROW_KEY, ColumnSchema, FileSchema
from stoker.storage.versions import stable_version
from stoker.types import Ids

MAGIC: Final = b"PAR1"
"""The first and last bytes of a Parquet file."""

# Facts of a chunk, in this order. Offsets are bytes from the file's start; -1 where there is none.
START, DATA_PAGE, DICTIONARY_PAGE, COMPRESSED, UNCOMPRESSED, VALUES, NULLS, CODEC = range(8)
FIELDS: Final = 8

GROUP_FIELDS: Final = 4
"""Count of the numbers of a row group before the facts of its chunks: its index in the file, its rows, its uncompressed
bytes with all columns, and whether a row of it may fulfil the predicate."""


@dataclass(frozen=True, slots=True, eq=False)
class FileFacts:
    """Facts of a file's row groups; those without rows are left out.

    Attributes:
        key: the file, relative to the dataset's root.
        version: see :class:`~stoker.formats.base.FilePart`.
        schema: the columns that are read, in the file's order.
        numbers: index of each row group in the file; int64, shape ``(row groups,)``.
        rows: rows of each; int64.
        bytes: uncompressed bytes of each with all columns; int64.
        chunks: facts of the column chunks; int64, shape ``(row groups, leaves, FIELDS)``, leaves in the schema's order.
        possible: whether a row of the group may fulfil the predicate; bool, shape ``(row groups,)``.
    """

    key: str
    size: int
    version: str
    schema: FileSchema
    numbers: Ids
    rows: Ids
    bytes: Ids
    chunks: NDArray[np.int64]
    possible: NDArray[np.bool_]

    @classmethod
    def of(cls, file: UnindexedFile, schema: FileSchema) -> FileFacts:
        """The facts that :func:`~stoker.formats.parquet.footer.read_facts` found, by its numbers of each row group."""
        groups, leaves = file.spans, sum(len(column.paths) for column in schema.columns)
        return cls(
            file.key,
            file.file.size,
            file.file.version,
            schema,
            groups[:, 0],
            groups[:, 1],
            groups[:, 2],
            groups[:, GROUP_FIELDS:].reshape(len(groups), leaves, FIELDS),
            groups[:, 3].astype(np.bool_),
        )


@dataclass(frozen=True, slots=True, eq=False)
class RowGroup:
    """One row group: the detail of a shard.

    Attributes:
        file: the file that it lies in.
        constants: names and values of the columns that its directory's name tells.
    """

    file: FileFacts
    index: int
    constants: tuple[tuple[str, Any], ...]

    @property
    def number(self) -> int:
        """Its number in the file."""
        return int(self.file.numbers[self.index])

    @property
    def bytes(self) -> int:
        """Compressed bytes of the columns that are read."""
        return int(self.file.chunks[self.index, :, COMPRESSED].sum())

    @property
    def identity(self) -> str:
        return f"{self.file.key}\0{self.file.size}\0{self.number}\0{int(self.file.bytes[self.index])}"


# Row groups of one file are fetched together until they have so many bytes.
_FETCH_TOGETHER: Final = 16 << 20
# Numbers of CompressionCodec in parquet.thrift of the Parquet format.
_CODECS: Final = ("none", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4_raw")


def describe_row_groups(
    files: Sequence[UnindexedFile],
    kinds: Mapping[str, str],
    encodings: Mapping[str, str],
    partitions: Mapping[str, Partition],
    *,
    in_place: bool,
    apart: bool = False,
) -> Iterator[ShardInfo]:
    """A description of each row group that may be read. CorruptDataError if chunks of a file overlap.

    Args:
        kinds: names and types of the columns to read.
        encodings: names and encodings of those whose values are decoded.
        partitions: what the folders of each file tell, by its key.
        in_place: whether the files are mapped where they lie.
        apart: fetch each row group by itself, however small.
    """
    spec: dict[str, Any] = {"columns": dict(kinds), "layout": ("parquet", tuple(kinds.items()))}
    if encodings:
        spec |= {"encodings": encodings, "layout": (*spec["layout"], tuple(encodings.items()))}
    schemas: dict[int, FileSchema] = {}
    for file in files:
        schema = schemas.get(id(file.spec))
        if schema is None:
            schema = schemas[id(file.spec)] = FileSchema.from_spec(file.spec)
        one = FileFacts.of(file, schema)
        chosen = tuple((name, value) for name, value in partitions.get(file.key, ()) if name in kinds)
        indices, rows = np.flatnonzero(one.possible).tolist(), one.rows.tolist()
        for part, together in _windows(one, indices) if in_place else _fetched(one, indices, apart):
            for index in together:
                yield ShardInfo("parquet", rows[index], (part,), (), None, spec, RowGroup(one, index, chosen))


def storage_of(files: Sequence[UnindexedFile]) -> tuple[int, tuple[str, ...]]:
    """Bytes of files' columns when they are decompressed, and the names of the codecs that they are compressed with."""
    chunks = [FileFacts.of(one, FileSchema.from_spec(one.spec)).chunks for one in files]
    codecs = {int(number) for one in chunks for number in np.unique(one[:, :, CODEC])}
    names = tuple(_CODECS[number] for number in sorted(codecs) if 0 < number < len(_CODECS))
    return sum(int(one[:, :, UNCOMPRESSED].sum()) for one in chunks), names


def _windows(facts: FileFacts, indices: Sequence[int]) -> Iterator[tuple[FileInfo, Sequence[int]]]:
    """Row groups one by one, each with the window of the file that holds its chunks."""
    if facts.chunks.shape[1]:
        starts = facts.chunks[:, :, START].min(axis=1).tolist()
        ends = (facts.chunks[:, :, START] + facts.chunks[:, :, COMPRESSED]).max(axis=1).tolist()
    else:  # nothing is read but what the directory's name tells
        starts = ends = [0] * len(facts.rows)
    for index in indices:
        start, end = starts[index], ends[index]
        part = FilePart(facts.key, facts.size, facts.version, (start,), (end,), in_place=True)
        yield FileInfo(facts.key, end - start, NO_HASHES, part), (index,)


def _fetched(facts: FileFacts, indices: Sequence[int], apart: bool) -> Iterator[tuple[FileInfo, Sequence[int]]]:
    """Row groups that share a file of the cache, with this file."""
    sizes = facts.chunks[:, :, COMPRESSED].sum(axis=1).tolist()
    together: list[int] = []
    total = 0
    for index in indices:
        together.append(index)
        total += sizes[index]
        if apart or total >= _FETCH_TOGETHER:
            yield _file(facts, together), together
            together, total = [], 0
    if together:
        yield _file(facts, together), together


def _file(facts: FileFacts, indices: Sequence[int]) -> FileInfo:
    """A file of the cache that holds the chunks of some row groups."""
    chunks = facts.chunks[indices]
    starts = np.sort(chunks[:, :, START], axis=None)
    order = np.argsort(chunks[:, :, START], axis=None, kind="stable")
    ends = starts + chunks[:, :, COMPRESSED].ravel()[order]
    if (starts[1:] < ends[:-1]).any():
        raise CorruptDataError(f"{facts.key}: column chunks overlap: write the file again")
    # Chunks that touch are one range.
    apart = np.flatnonzero(starts[1:] != ends[:-1])
    firsts = starts[np.concatenate([[0], apart + 1])] if len(starts) else np.zeros(1, dtype=np.int64)
    lasts = ends[np.concatenate([apart, [len(ends) - 1]])] if len(ends) else np.zeros(1, dtype=np.int64)
    part = FilePart(
        facts.key,
        facts.size,
        facts.version,
        tuple(firsts.tolist()),
        tuple(lasts.tolist()),
        in_place=False,
        head=MAGIC,  # to pyarrow a dictionary that begins at the first byte is none, so nothing does
    )
    digest = hashlib.sha256(
        repr((part.size, stable_version(part.version), part.starts, part.ends)).encode()
    ).hexdigest()[:16]
    name = f"{facts.key}/{facts.numbers[indices[0]]}-{facts.numbers[indices[-1]]}-{digest}.chunks"
    return FileInfo(name, len(MAGIC) + int((lasts - firsts).sum()), NO_HASHES, part)


TOKEN_COLUMNS: Final = ("input_ids", "token_ids", "tokens")
"""Names by which a token column is found, the first that is there."""

DOCUMENT_LENGTHS: Final = "seq_lengths"
"""The column of the tokens of each document in a packed row, by the name that TRL's packing gives it."""

_TOKENS = re.compile(r"list<u?int(?:8|16|32|64)>")


def has_packed_rows(columns: Mapping[str, str]) -> bool:
    """Whether a column says how long the documents in each row are."""
    return _TOKENS.fullmatch(columns.get(DOCUMENT_LENGTHS, "")) is not None


class _Shards(Protocol):
    @property
    def shards(self) -> Sequence[ShardInfo]: ...


def token_column(index: _Shards, name: str | None = None) -> str:
    """Name of the token column of a Parquet dataset, as :func:`choose_tokens` tells it."""
    return choose_tokens(index.shards[0].spec["columns"] if len(index.shards) else {}, _file_of(index), name)


def choose_tokens(columns: Mapping[str, str], where: str, name: str | None = None) -> str:
    """Name of the column of tokens among those of a file; ``name``: if it is known.

    ConfigError if there is none, or it does not hold lists of integers; says what there is.
    """
    described = ", ".join(f"{column} ({kind})" for column, kind in columns.items()) or "no columns, for it has no rows"
    chosen = name if name is not None else next((one for one in TOKEN_COLUMNS if one in columns), None)
    if chosen is None:
        raise ConfigError(
            f"{where}there is no token column (none is called {' or '.join(TOKEN_COLUMNS)}); it has {described}. "
            "Name the token column with column=, or tokenize text with `stoker tokenize`"
        )
    if chosen not in columns:
        raise ConfigError(f"{where}there is no column {chosen!r}; it has {described}")
    kind = columns[chosen]
    if not _TOKENS.fullmatch(kind):
        text = "tokenize it first" if kind in ("string", "binary") else "write token ids as lists of integers"
        raise ConfigError(f"{where}column {chosen!r} holds {kind}, but tokens are lists of integers: {text}")
    return chosen


def token_counts(index: _Shards, column: str) -> Ids:
    """Tokens of each row group, from footers alone. ``column``: a column of lists of numbers.

    Gives int64, shape ``(shards,)``. The count is exact: numbers of the column's leaf that are not null (a null or empty list
    counts as a null there). -1 where the writer left the number of nulls out; such row groups have to be decoded to be
    counted.
    """
    counts = np.empty(len(index.shards), dtype=np.int64)
    for number, shard in enumerate(index.shards):
        group = shard.detail
        if not isinstance(group, RowGroup):
            raise ConfigError("token_counts: not an index of a Parquet dataset")
        found = group.file.schema.find(column)
        if found is None:
            raise ConfigError(f"{group.file.key} has no column {column!r}")
        facts = group.file.chunks[group.index, found[1]]
        counts[number] = facts[VALUES] - facts[NULLS] if facts[NULLS] >= 0 else -1
    return counts


def _file_of(index: _Shards) -> str:
    """The first file, as an example that can be looked at."""
    group = index.shards[0].detail if len(index.shards) else None
    return f"{group.file.key}: " if isinstance(group, RowGroup) else ""


_PLAIN, _RLE, _RLE_DICTIONARY = 0, 3, 8


@dataclass(frozen=True, slots=True)
class ColumnPart:
    """A column in one row group.

    ``chunks``: facts of the column's chunks, one a leaf, offsets counted from the start of the buffer that holds them.
    ``statistics``: statistics of a column with one leaf, made by :func:`~stoker.formats.parquet.thrift.struct`.
    """

    rows: int
    chunks: Sequence[Sequence[int]]
    statistics: tuple[int, bytes] | None = None


def open_limits(length: int) -> dict[str, int]:
    """Arguments for pyarrow: what a footer of so many bytes can hold, so that a forged one takes no memory."""
    return {"thrift_string_size_limit": length, "thrift_container_size_limit": length}


def column_footer(column: ColumnSchema, parts: Sequence[ColumnPart], created_by: str) -> bytes:
    """The end of a Parquet file with one column: footer, length and magic."""
    root = compact.struct((4, compact.binary(b"schema")), (5, compact.integer(1, wide=False)))
    arrow = None
    if column.arrow:
        entry = compact.struct((1, compact.binary(ARROW_KEY)), (2, compact.binary(base64.b64encode(column.arrow))))
        arrow = compact.list_of([entry])
    # Without the orders readers take no notice of statistics.
    orders = compact.list_of([compact.struct((1, compact.struct()))] * len(column.paths))
    footer = compact.struct(
        (1, compact.integer(2, wide=False)),
        (2, _schema_list(root, column)),
        (3, compact.integer(sum(part.rows for part in parts))),
        (4, compact.list_of(_group(column, part) for part in parts)),
        (5, arrow),
        (6, compact.binary(created_by.encode())),
        (7, orders),
    )[1]
    return footer + len(footer).to_bytes(4, "little") + MAGIC


def _group(column: ColumnSchema, part: ColumnPart) -> tuple[int, bytes]:
    encodings = compact.list_of(compact.integer(one, wide=False) for one in (_PLAIN, _RLE, _RLE_DICTIONARY))
    members = [
        compact.struct(
            (2, compact.integer(facts[START])),
            (
                3,
                compact.struct(
                    (1, compact.integer(kind, wide=False)),
                    (2, encodings),
                    (3, compact.list_of(compact.binary(name.encode()) for name in path)),
                    (4, compact.integer(facts[CODEC], wide=False)),
                    (5, compact.integer(facts[VALUES])),
                    (6, compact.integer(facts[UNCOMPRESSED])),
                    (7, compact.integer(facts[COMPRESSED])),
                    (9, compact.integer(facts[DATA_PAGE])),
                    (11, compact.integer(facts[DICTIONARY_PAGE]) if facts[DICTIONARY_PAGE] >= 0 else None),
                    (12, part.statistics),
                ),
            ),
        )
        for facts, kind, path in zip(part.chunks, column.kinds, column.paths, strict=True)
    ]
    return compact.struct(
        (1, compact.list_of(members)),
        (2, compact.integer(sum(facts[UNCOMPRESSED] for facts in part.chunks))),
        (3, compact.integer(part.rows)),
    )


def _schema_list(root: tuple[int, bytes], column: ColumnSchema) -> tuple[int, bytes]:
    # The head of a list tells how many elements follow; the column's lie end to end.
    kind, head = compact.list_of([root, *[(root[0], b"")] * column.count])
    return kind, head + column.elements
