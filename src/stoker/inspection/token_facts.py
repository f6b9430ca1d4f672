"""Facts of token data: documents, tokens, lengths of documents, and what each layout of the token loaders wastes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from stoker.arguments import at_least, checked, must_be
from stoker.catalog.unindexed.files_location import Files
from stoker.storage import is_local
from stoker.tokens.layouts.pack import PackLayout
from stoker.tokens.order.division import join_groups
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.block_buffer import lengths_of, measure, rows_of_lengths
from stoker.tokens.sources.parquet import open_source
from stoker.tokens.sources.source import MegatronSource, RawSource, TokenSource
from stoker.types import Ids, StorageOptions

_SURVEYED: Final = 1 << 25
"""Tokens of which documents are looked at, about, unless all are asked for."""
_AT_ONCE: Final = 1 << 20
_QUANTILES: Final = {"min": 0.0, "5%": 0.05, "50%": 0.5, "95%": 0.95, "99%": 0.99, "max": 1.0}


@dataclass(frozen=True, slots=True)
class LayoutFacts:
    """The rows that a layout of the token loaders makes of the documents that were looked at.

    Attributes:
        layout: ``"concat"``, ``"pack"``, ``"pad"`` or ``"truncate"``.
        sequence_length: tokens in a row.
        rows: rows that the documents make.
        padding: slots of these rows that no token fills; of ``"concat"``, those of the last row.
        cut: tokens that are cut off.
        longer: documents with more tokens than a row: ``"pack"`` splits them, ``"truncate"`` cuts them, ``"pad"`` refuses
            them.
    """

    layout: str
    sequence_length: int
    rows: int
    padding: int
    cut: int
    longer: int


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """Tokens as they are stored; ``eos_id=`` of a loader adds one to each document.

    Attributes:
        url: of the files.
        documents: documents that have tokens; ``None`` of a raw array, which does not say where documents end.
        tokens: in all documents.
        dtype: of the tokens as they are read, such as ``"uint16"``.
        looked_at: documents whose lengths were looked at: all, or a sample from places that lie evenly in the data.
        lengths: of these, tokens in a document: ``min``, ``5%``, ``50%``, ``95%``, ``99%`` and ``max``.
        layouts: what layouts make of these, for each sequence length.
    """

    url: str
    documents: int | None
    tokens: int
    dtype: str
    looked_at: int
    lengths: dict[str, int]
    layouts: tuple[LayoutFacts, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON-serialisable."""
        return asdict(self)


@checked
def inspect_tokens(
    source: Files | TokenSource,
    *,
    column: str | None = None,
    sequence_lengths: Sequence[int] = (2048, 4096, 8192),
    count: bool = False,
    storage_options: StorageOptions | None = None,
) -> TokenFacts:
    """Describe token data: how long documents are, and what each layout of the token loaders wastes.

    The lengths of about 32 million tokens of documents are looked at, at places that lie evenly in the data; of Parquet files
    only these row groups are read. Memory does not grow with the data.

    >>> facts = inspect_tokens("s3://bucket/tokens", sequence_lengths=[4096])  # doctest: +SKIP

    Args:
        source: what a :class:`~stoker.StreamingParquetLoader` takes: Parquet files, Megatron's, or a source such as
            :class:`~stoker.tokens.sources.dataset.DatasetSource` or :class:`~stoker.tokens.sources.source.RawSource`.
        column: of Parquet files. Default: ``input_ids``, ``token_ids`` or ``tokens``.
        sequence_lengths: for which layouts are compared.
        count: look at all documents.
        storage_options: credentials and settings for remote files.

    Raises:
        ConfigError: there is no column of tokens.
        StorageError, CorruptDataError, FormatError: files can not be read, or are damaged.
    """
    must_be("one at least", len(sequence_lengths) > 0, sequence_lengths=sequence_lengths)
    for length in sequence_lengths:
        at_least(1, sequence_lengths=length)
    remote = isinstance(source, str) and is_local(source) is None
    opened = open_source(source, column, None, storage_options, "error", None, in_memory=remote)
    try:
        return _facts(opened, sorted(set(sequence_lengths)), whole=count)
    finally:
        if opened is not source:
            opened.close()


def _facts(source: TokenSource, sequence_lengths: Sequence[int], *, whole: bool) -> TokenFacts:
    groups = source.groups
    tokens, documents = int(groups.tokens.sum()), int(groups.rows.sum())
    first = next(source.chunks(0), None) if len(groups) else None
    dtype = "" if first is None else first.values.dtype.name
    if isinstance(source, RawSource) or not documents:
        layouts = [_concat(tokens, length) for length in sequence_lengths]
        return TokenFacts(source.url, None if tokens else 0, tokens, dtype, 0, {}, tuple(layouts))
    # The cells that the pack layout packs, of which some are looked at.
    cells = {length: join_groups(groups, PackLayout.rows_a_cell * length) for length in sequence_lengths}
    bounds = cells[sequence_lengths[-1]]
    chosen = np.arange(bounds.size - 1)
    amount = documents if isinstance(source, MegatronSource) else tokens  # an index tells lengths
    if not whole and amount > _SURVEYED:
        most = max(1, _SURVEYED * chosen.size // amount)
        chosen = chosen[(2 * np.arange(most) + 1) * chosen.size // (2 * most)]
    numbers = np.concatenate([np.arange(bounds[cell], bounds[cell + 1]) for cell in chosen])
    packs = [_PackedRows(length, {*cells[length].tolist(), *bounds[chosen].tolist()}) for length in sequence_lengths]
    lengths = _Lengths()
    for number, found in zip(
        numbers.tolist(), measure(source, numbers.tolist(), partial(lengths_of, source)), strict=True
    ):
        lengths.add(found)
        for pack in packs:
            pack.add(number, found)
    lengths.merge()
    return TokenFacts(
        source.url,
        documents,
        tokens,
        dtype,
        lengths.documents,
        {name: lengths.quantile(part) for name, part in _QUANTILES.items()},
        tuple(one for pack in packs for one in lengths.layouts(pack.length, pack.rows())),
    )


class _Lengths:
    """A histogram of lengths. Documents of n different lengths have n² / 2 tokens, so there are never many."""

    def __init__(self) -> None:
        self._values, self._counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._added: list[Ids] = []
        self._waiting = 0

    def add(self, lengths: Ids) -> None:
        """Add documents."""
        self._added.append(lengths)
        self._waiting += lengths.size
        if self._waiting > _AT_ONCE:
            self.merge()

    def merge(self) -> None:
        """Count what was added."""
        values, counts = np.unique(np.concatenate([*self._added, np.zeros(0, np.int64)]), return_counts=True)
        self._values, places = np.unique(np.concatenate([self._values, values]), return_inverse=True)
        before = np.concatenate([self._counts, counts])
        self._counts = np.zeros(self._values.size, np.int64)
        np.add.at(self._counts, places, before)
        self._added, self._waiting = [], 0

    @property
    def documents(self) -> int:
        """Documents that were counted."""
        return int(self._counts.sum())

    def quantile(self, part: float) -> int:
        """The smallest length that at least this part of the documents does not exceed."""
        rank = max(1, int(np.ceil(part * self.documents)))
        return int(self._values[np.searchsorted(np.cumsum(self._counts), rank)])

    def layouts(self, length: int, packed: int) -> Iterator[LayoutFacts]:
        """The rows that layouts make of the documents; ``packed``: rows that they fill when they are packed."""
        values, counts, documents = self._values, self._counts, self.documents
        tokens = int((values * counts).sum())
        kept = int((np.minimum(values, length) * counts).sum())
        longer = int(counts[values > length].sum())
        yield _concat(tokens, length)
        yield LayoutFacts("pack", length, packed, packed * length - tokens, 0, longer)
        yield LayoutFacts("pad", length, documents, documents * length - kept, 0, longer)
        yield LayoutFacts("truncate", length, documents, documents * length - kept, tokens - kept, longer)


def _concat(tokens: int, length: int) -> LayoutFacts:
    rows = -(-tokens // length)
    return LayoutFacts("concat", length, rows, rows * length - tokens, 0, 0)


class _PackedRows:
    """Counts the rows that documents fill when they are packed. ``begins``: the first group of each cell."""

    def __init__(self, length: int, begins: set[int]) -> None:
        self.length = length
        self._begins, self._cell = begins, list[Ids]()
        self._settings, self._rows = LMSettings(length, pad_id=0), 0

    def add(self, group: int, lengths: Ids) -> None:
        """Add the documents of a group."""
        if group in self._begins:
            self.rows()
        self._cell.append(lengths)

    def rows(self) -> int:
        """Rows of all cells, of which the last has ended."""
        if self._cell:
            self._rows += rows_of_lengths(np.concatenate(self._cell), self._settings, "split")
        self._cell = []
        return self._rows
