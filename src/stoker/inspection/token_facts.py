"""Tokens of a dataset: their number, the lengths of documents, and the waste of each layout of the token loaders.

Lengths are read a group at a time (a row group, a shard, a run of Megatron's documents) and kept as a histogram; documents
are packed a cell at a time, as the loaders do. So memory does not grow with the number of documents. Of large data, runs of
groups that lie evenly in it are a sample.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike

from stoker.arguments import must_be, must_know
from stoker.display import error_text
from stoker.errors import ConfigError, StokerError
from stoker.formats.base import ReadOptions, ShardInfo
from stoker.formats.common.file_shards import UnindexedFile
from stoker.formats.parquet.facts import TOKEN_COLUMNS, choose_tokens, document_counts, token_counts
from stoker.formats.registry import get_format
from stoker.index.index import Index, ShardList
from stoker.inspection.checks import FileReader
from stoker.inspection.facts import LARGEST, LayoutFacts, TokenFacts, read_shard
from stoker.inspection.unindexed_files import SeparateFiles
from stoker.storage import is_local
from stoker.tokens.layouts.pack import PackLayout
from stoker.tokens.order.division import GroupJoiner
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.block_buffer import lengths_of, measure, rows_of_lengths
from stoker.tokens.sources.parquet import decode_chunks
from stoker.tokens.sources.ragged import Ragged
from stoker.tokens.sources.source import MegatronSource, RawSource
from stoker.tokens.tokenize.sinks import tokenizer_of
from stoker.types import Buffer, Ids

_SURVEYED: Final = 1 << 25
"""Tokens of which documents are looked at, about, unless all are asked for."""
_A_DOCUMENT: Final = 16
"""Tokens that a document counts for where its length lies in an index, and no token is read."""
_ROWS: Final = 8192
_DTYPE: Final = re.compile(r"u?int(?:8|16|32|64)")
_TOKENS: Final = re.compile(rf"(?:list<|ndarray:|tokens:){_DTYPE.pattern}(?:>|:\d+)?|bytes|ndarray")
_QUANTILES: Final = {"min": 0.0, "5%": 0.05, "50%": 0.5, "95%": 0.95, "99%": 0.99, "max": 1.0}


@dataclass(frozen=True, slots=True)
class TokenQuestion:
    """The arguments of :func:`~stoker.inspection.inspect` for tokens.

    Attributes:
        whole: whether the lengths of all documents are read.
    """

    column: str | None
    dtype: DTypeLike | None
    sequence_lengths: Sequence[int] | None
    whole: bool

    @property
    def asked(self) -> bool:
        """Whether tokens are asked for; otherwise they are told of where there are any."""
        return (self.column, self.dtype, self.sequence_lengths) != (None, None, None)

    @property
    def lengths(self) -> Sequence[int]:
        """Sequence lengths, rising."""
        return sorted({*(self.sequence_lengths or (2048, 4096, 8192))})

    def column_of(self, columns: Mapping[str, str], where: str) -> str | None:
        """The column of tokens among some columns and their types; ``None`` where none is known and none was asked for."""
        if self.column is not None:
            must_know("the dataset's column", [self.column], columns, f"{where}: ")
        known = (name for name in TOKEN_COLUMNS if _TOKENS.fullmatch(columns.get(name, "")))
        column = self.column or next(known, None)
        told = column is not None and (columns[column] != "bytes" or self.dtype is not None)
        if told or not self.asked:
            return column if told else None
        if column is not None:
            raise ConfigError(
                f"{where}: column {column!r} holds bytes: say which integers they are, such as token_dtype='uint16'"
            )
        described = ", ".join(f"{name} ({kind})" for name, kind in columns.items()) or "no columns"
        raise ConfigError(
            f"{where}: no column of token ids is called {' or '.join(TOKEN_COLUMNS)}; it has {described}. Name the column "
            "that holds them with column=, or tokenize text with `stoker tokenize`"
        )

    def dtype_of(self, kind: str) -> str:
        """The dtype of tokens in a column of a type, as far as it tells; of bytes, what they were said to hold."""
        found = _DTYPE.search(kind)
        return found.group() if found else "" if self.dtype is None else np.dtype(self.dtype).name


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Groups of documents.

    Attributes:
        file: number of each group's file, rising; int64, shape ``(groups,)``.
        weight: tokens of each, about; likewise.
        lengths: tokens in each document of some groups that is not empty, a group at a time.
        documents: those of all groups that have tokens; ``None``: only reading them tells.
        tokens: likewise.
    """

    file: Ids
    weight: Ids
    lengths: Callable[[Sequence[int]], Iterator[Ids]]
    documents: int | None = None
    tokens: int | None = None


def inspect_tokens(
    found: Callable[[str], _Groups], columns: Mapping[str, str], question: TokenQuestion, files: FileReader
) -> tuple[TokenFacts | None, list[str]]:
    """The facts of tokens, and why there are none where a column of them can not be read.

    ``found`` gives the groups of a column; ``columns``: names and types.
    """
    column = question.column_of(columns, files.store.url)
    if column is None:
        return None, []
    try:
        facts = _survey(found(column), column, question.dtype_of(columns[column]), question)
    except (StokerError, OSError) as error:
        if question.asked:
            raise
        return None, [f"tokens of column {column!r} are not looked into: {error_text(error)}"]
    with contextlib.suppress(StokerError):  # as of a store that does not say what is not there
        facts = replace(facts, tokenizer=tokenizer_of(files.store))
    return facts, []


def groups_of_index(index: Index, files: FileReader, question: TokenQuestion, column: str) -> _Groups:
    """The shards of a dataset with an index."""
    infos = index.shards
    if not question.whole and is_local(files.store.url) is None:
        large = any(sum(file.bytes for file in info.stored) > LARGEST for info in infos)
        must_be("True, as shards are large, and have to be fetched whole", not large, count=False)

    def lengths(chosen: Sequence[int]) -> Iterator[Ids]:
        for info in map(infos.__getitem__, chosen):
            where = files.store.url_of(info.stored[0].basename)
            yield _lengths_in(info, read_shard(files, info), column, where, question)

    weight = np.array([info.size for info in infos], np.int64) // 2
    return _Groups(np.arange(len(infos)), weight, lengths)


def groups_of_files(
    of: SeparateFiles, read: Sequence[UnindexedFile] | None, files: FileReader, question: TokenQuestion, column: str
) -> _Groups:
    """Row groups of Parquet files, of which only this column is read; or shards of other files without an index.

    ``read``: the files that can be read; ``None`` where not all were looked at.
    """
    folder = is_local(files.store.url)
    if of.reader.name == "megatron" and folder is not None:
        return _groups_of_megatron(
            [folder / file.key for file in (of.found if read is None else [one.file for one in read])]
        )
    must_be("True, as only the first file was looked at", read is not None, count=False)
    assert read is not None
    infos = [list(of.describe(one)) for one in read]
    firsts = np.cumsum([0, *map(len, infos)])
    owner = np.repeat(np.arange(len(read)), np.diff(firsts))
    shards = ShardList(info for some in infos for info in some)
    documents = tokens = None
    weight = np.array([info.size for info in shards.shards], np.int64) // 2
    if of.reader.row_groups:
        for one in read:
            choose_tokens(one.spec["columns"], f"{files.store.url_of(one.key)}: ", column)
        weight = token_counts(shards, column)
        if weight.size and weight.min() >= 0:
            rows = document_counts(shards, column, weight)
            tokens, documents = int(weight.sum()), int(rows.sum()) if rows.min() >= 0 else None
        weight = np.where(weight < 0, shards.sizes, weight)

    def lengths(chosen: Sequence[int]) -> Iterator[Ids]:
        for file, numbers in groupby(chosen, owner.__getitem__):
            inside, one = [number - int(firsts[file]) for number in numbers], read[file]
            found = of.fetch_row_groups(one, column, inside) if of.reader.row_groups else of.fetch_shards(one, inside)
            for info, data in found:
                yield _lengths_in(info, data, column, files.store.url_of(one.key), question)

    return _Groups(owner, weight, lengths, documents, tokens)


def _groups_of_megatron(paths: Sequence[Path]) -> _Groups:
    """Megatron's files as the token loaders divide them; indexes tell the lengths."""
    source = MegatronSource(paths)
    groups = source.groups

    def lengths(chosen: Sequence[int]) -> Iterator[Ids]:
        return measure(source, chosen, partial(lengths_of, source))

    totals = int(groups.rows.sum()), int(groups.tokens.sum())
    return _Groups(groups.file, groups.rows * _A_DOCUMENT, lengths, *totals)


def inspect_raw(paths: Sequence[str], header_bytes: int, question: TokenQuestion) -> tuple[RawSource, TokenFacts]:
    """Arrays of tokens, and their facts. Where documents end is not known: rows are cut of all tokens joined.

    CorruptDataError if a file is no whole number of tokens.
    """
    assert question.dtype is not None
    source = RawSource(paths, question.dtype, row_tokens=_SURVEYED, header_bytes=header_bytes)
    tokens = int(source.groups.tokens.sum())
    layouts = tuple(_concat(tokens, length) for length in question.lengths)
    return source, TokenFacts(None, np.dtype(question.dtype).name, None, tokens, 0, tokens, {}, layouts)


def _lengths_in(info: ShardInfo, data: Sequence[Buffer], column: str, where: str, question: TokenQuestion) -> Ids:
    """Tokens in each document of a shard that is not empty."""
    reader: Any = get_format(info.format).open(info, data, where=where, options=ReadOptions(views=True))
    if info.format == "parquet":
        chunks = decode_chunks(reader, column, where, -1)
    else:
        rows = np.arange(info.samples, dtype=np.int64)
        parts = (reader.read(rows[first : first + _ROWS], [column])[column] for first in range(0, rows.size, _ROWS))
        chunks = (Ragged.of(part, dtype=question.dtype, name=column, where=where) for part in parts)
    lengths = np.concatenate([np.zeros(0, np.int64), *(chunk.lengths for chunk in chunks)])
    return lengths[lengths > 0]


def _survey(groups: _Groups, column: str, dtype: str, question: TokenQuestion) -> TokenFacts:
    histogram, packed = _Lengths(), dict.fromkeys(question.lengths, 0)
    runs = _runs(groups.weight, question)
    for run in runs:
        packs = [_PackedRows(length) for length in question.lengths]
        for number, lengths in zip(run, groups.lengths(run), strict=True):
            histogram.add(lengths)
            for pack in packs:
                pack.add(int(groups.file[number]), lengths)
        for pack in packs:
            pack.end_cell()
            packed[pack.settings.seq_len] += pack.rows
    whole = sum(map(len, runs)) == len(groups.file)
    return TokenFacts(
        column,
        dtype,
        histogram.documents if whole else groups.documents,
        histogram.tokens if whole else groups.tokens,
        histogram.documents,
        histogram.tokens,
        {name: histogram.quantile(part) for name, part in _QUANTILES.items()} if histogram.documents else {},
        tuple(one for length, rows in packed.items() for one in histogram.layouts(length, rows)),
    )


def _runs(weight: Ids, question: TokenQuestion) -> list[range]:
    """Groups to look at: all, or runs that lie evenly among them, each of at least a cell of packed rows, if that fits."""
    total = int(weight.sum())
    if question.whole or total <= _SURVEYED:
        return [range(weight.size)]
    cell = PackLayout.rows_a_cell * question.lengths[-1]
    count = max(1, _SURVEYED // max(cell, total // weight.size))
    each = _SURVEYED // count
    ends = np.cumsum(weight)
    runs: list[range] = []
    for number in range(count):
        start = max(0, total * (2 * number + 1) // (2 * count) - each // 2)
        first = max(int(np.searchsorted(ends, start, side="right")), runs[-1].stop if runs else 0)
        if first < weight.size:
            stop = int(np.searchsorted(ends, int(ends[first] - weight[first]) + each)) + 1
            runs.append(range(first, min(stop, weight.size)))
    return runs


@dataclass(slots=True)
class _Lengths:
    """A histogram of lengths: n different ones are those of about n² / 2 tokens or more, so there are never many."""

    values: Ids = field(default_factory=lambda: np.zeros(0, np.int64))
    counts: Ids = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, lengths: Ids) -> None:
        values, counts = np.unique(lengths, return_counts=True)
        self.values, places = np.unique(np.concatenate([self.values, values]), return_inverse=True)
        merged = np.zeros(self.values.size, np.int64)
        np.add.at(merged, places, np.concatenate([self.counts, counts]))
        self.counts = merged

    @property
    def documents(self) -> int:
        return int(self.counts.sum())

    @property
    def tokens(self) -> int:
        return int((self.values * self.counts).sum())

    def quantile(self, part: float) -> int:
        """The smallest length that at least this part of the documents does not exceed."""
        rank = max(1, int(np.ceil(part * self.documents)))
        return int(self.values[np.searchsorted(np.cumsum(self.counts), rank)])

    def layouts(self, length: int, packed_rows: int) -> Iterator[LayoutFacts]:
        """The rows and the waste of each layout; ``packed_rows``: rows that they fill when they are packed."""
        documents, tokens = self.documents, self.tokens
        kept = int((np.minimum(self.values, length) * self.counts).sum())
        longer = int(self.counts[self.values > length].sum())
        yield _concat(tokens, length)
        yield LayoutFacts("pack", length, packed_rows, packed_rows * length - tokens, 0, longer)
        yield LayoutFacts("pad", length, documents, documents * length - kept, 0, longer)
        yield LayoutFacts("truncate", length, documents, documents * length - kept, tokens - kept, longer)


def _concat(tokens: int, length: int) -> LayoutFacts:
    rows = -(-tokens // length)
    return LayoutFacts("concat", length, rows, rows * length - tokens, 0, 0)


class _PackedRows:
    """Counts the rows that documents fill when the pack layout of the loaders packs them, cell by cell."""

    def __init__(self, length: int) -> None:
        self.settings = LMSettings(length, pad_id=0)
        self.rows = 0
        self._joiner = GroupJoiner(PackLayout.rows_a_cell * length)
        self._cell: list[Ids] = []

    def add(self, file: int, lengths: Ids) -> None:
        """Add a group of a file."""
        if self._joiner.begins_cell(file, int(lengths.sum())):
            self.end_cell()
        self._cell.append(lengths)

    def end_cell(self) -> None:
        """Pack what was added since the last cell."""
        if self._cell:
            self.rows += rows_of_lengths(np.concatenate(self._cell), self.settings, "split")
        self._cell = []
