"""Whole documents side by side in rows, as full as can be; only what is longer than a row is split.

:class:`PackLayout` makes rows of blocks in memory; :class:`Packer` of documents that come little by little.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from stoker.arguments import at_least, checked
from stoker.errors import ConfigError, CorruptDataError, StateError
from stoker.tokens.batch import LMBatch
from stoker.tokens.layouts.assemble import TokenRows, assemble, full_lengths
from stoker.tokens.layouts.base import (
    BlockInput,
    DocumentBlock,
    RowMaker,
    TokenLayout,
    order_of,
    state_number,
)
from stoker.tokens.layouts.bin_packing import (
    PackedRows,
    TooLong,
    best_fit,
    into_rows,
    split,
)
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.block_buffer import packed_rows
from stoker.tokens.sources.ragged import Ragged
from stoker.tokens.sources.source import TokenSource
from stoker.types import Array, Ids

# A row with more than this part of it free may wait for documents that fill it.
_POOR = 100
_HELD_PART = 16
_TOKENS_A_BLOCK = 1 << 22
_ROWS_A_BLOCK = 256


class Packer:
    """Packs a stream of documents, resumable at any row.

    Documents are numbered in the order in which they are fed. They are packed a block at a time; a block ends after
    ``lookahead`` documents or ``lookahead_tokens`` tokens, whichever comes first, however they are fed. Spans in rows with
    more than 1 % free may be held back, once, to be packed with the next block, at most ``lookahead / 16`` of them. So a
    document comes at most two blocks late, and batches depend on nothing but the documents and these arguments.

    A state is small: where the block begins, which spans it was handed, and how many of its rows have been delivered.

    Args:
        settings: see :class:`LMSettings`; needs ``pad_id``.
        batch_size: rows in a batch; all but the last have so many. It may be another after a resume.
        lookahead: documents in a block.
        lookahead_tokens: tokens in a block; default 4 Mi or 256 rows, whichever is more.
        too_long: a document longer than ``seq_len``, its eos counted, is ``"split"`` into spans, of which all but the last
            fill a row, cut (``"truncate"``), or an ``"error"``.
        state: from :meth:`state_dict`, to go on there; then feed documents from number :attr:`next_document` on.
        fetch: with a state, hands out the documents of these numbers, in this order.

    Raises:
        ConfigError: an argument makes no sense.
        StateError: the state is of a packer with other settings.
    """

    @checked
    def __init__(
        self,
        settings: LMSettings,
        batch_size: int,
        *,
        lookahead: int = 8192,
        lookahead_tokens: int | None = None,
        too_long: TooLong = "split",
        state: Mapping[str, Any] | None = None,
        fetch: Callable[[Ids], Ragged] | None = None,
    ) -> None:
        settings.padding("the pack layout")
        tokens = (
            max(_TOKENS_A_BLOCK, _ROWS_A_BLOCK * settings.seq_len) if lookahead_tokens is None else lookahead_tokens
        )
        at_least(1, batch_size=batch_size, lookahead=lookahead, lookahead_tokens=tokens)
        self._settings = settings
        self._batch_size = batch_size
        self._lookahead = lookahead
        self._lookahead_tokens = tokens
        self._too_long: TooLong = too_long
        self._held = _Held.nothing()
        self._first = 0  # the number of the first document that is not in a packed block
        self._fed = 0
        self._filling: list[Ragged] = []
        self._filled = (0, 0)  # documents and tokens in it
        self._closed: deque[list[Ragged]] = deque()
        self._packed: deque[_Block] = deque()
        # Memory of a finished block, to be reused: new memory costs more than the copy into it.
        self._spare: Array | None = None
        self._skip = 0
        self._finished = False
        if state is not None:
            self._load(state, fetch)

    @property
    def next_document(self) -> int:
        """The number of the document to be fed next."""
        return self._fed

    def feed(self, documents: Ragged) -> Iterator[LMBatch]:
        """Add documents, and yield the batches that are ready.

        Batches that were not taken come with those of the next call.

        Raises:
            FormatError: an id is not in the vocabulary, or a document is too long.
            ConfigError: :meth:`finish` was called before.
        """
        if self._finished:
            raise ConfigError("this packer is finished: make a new one for more documents")
        documents.check(self._settings.limit)
        self._fed += len(documents)
        at = 0
        ends = np.cumsum(documents.lengths)
        while at < len(documents):
            count, tokens = self._filled
            before = int(ends[at - 1]) if at else 0
            full = int(np.searchsorted(ends, before + self._lookahead_tokens - tokens)) + 1
            stop = min(at + self._lookahead - count, full, len(documents))
            self._filling.append(documents[at:stop])
            self._filled = count + stop - at, tokens + int(ends[stop - 1]) - before
            at = stop
            if self._filled[0] >= self._lookahead or self._filled[1] >= self._lookahead_tokens:
                self._close()
        return self._batches()

    def finish(self) -> Iterator[LMBatch]:
        """Pack what is left, and yield the last batches, of which the last may have fewer rows."""
        if not self._finished:
            self._finished = True
            # Even if it is empty: whether a block is the last must not depend on when its rows were requested.
            self._close()
        return self._batches()

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch that was yielded last; JSON-serialisable."""
        if self._packed:
            block = self._packed[0]
            first, held, rows = block.first, block.held, block.delivered
        else:
            first, held, rows = self._first, self._held, self._skip
        return {
            "version": 1,
            "document": first,
            "held": held.as_list(),
            "rows": rows,
            "settings": self._identity(),
        }

    def _identity(self) -> dict[str, Any]:
        """The settings that the rows depend on."""
        return {
            "seq_len": self._settings.seq_len,
            "eos": self._settings.eos_id is not None,
            "lookahead": self._lookahead,
            "lookahead_tokens": self._lookahead_tokens,
            "too_long": self._too_long,
        }

    def _load(self, state: Mapping[str, Any], fetch: Callable[[Ids], Ragged] | None) -> None:
        mine = self._identity()
        theirs = state.get("settings")
        if state.get("version") != 1 or not isinstance(theirs, dict):
            raise StateError(f"this is not a state of a packer of this version: {dict(state)!r}")
        for name, value in mine.items():
            if theirs.get(name) != value:
                raise StateError(f"the state was made with {name}={theirs.get(name)!r}, this packer has {value!r}")
        self._first = self._fed = state_number(state, "document")
        self._skip = state_number(state, "rows")
        listed = state.get("held")
        if not isinstance(listed, list) or not all(
            isinstance(one, list | tuple)
            and len(one) == 3
            and all(type(number) is int and number >= 0 for number in one)
            for one in listed
        ):
            raise StateError(f"this state's 'held' should be a list of three integers from 0 each, found {listed!r}")
        held = np.array(listed, dtype=np.int64).reshape(-1, 3)
        if not len(held):
            return
        if fetch is None:
            raise ConfigError(
                "the state has documents that were held back: pass fetch=, a function that reads them by number"
            )
        numbers, rows = np.unique(held[:, 0], return_inverse=True)
        documents = fetch(numbers)
        whole = full_lengths(documents.lengths, self._settings) if len(documents) == len(numbers) else held[:0, 0]
        if whole.size != numbers.size or bool((whole[rows] < held[:, 1] + held[:, 2]).any()):
            raise StateError(
                "the documents that were held back are not the same as in the state: has the data changed?"
            )
        documents.check(self._settings.limit)
        self._held = _Held(documents, numbers, rows.reshape(-1).astype(np.int64), held[:, 1], held[:, 2])

    def _close(self) -> None:
        self._closed.append(self._filling)
        self._filling, self._filled = [], (0, 0)

    def _batches(self) -> Iterator[LMBatch]:
        while True:
            while self._closed and sum(block.left for block in self._packed) < self._batch_size:
                last = self._finished and len(self._closed) == 1
                block = self._pack(self._closed.popleft(), last)
                if block.left:
                    self._packed.append(block)
            rows = min(self._batch_size, sum(block.left for block in self._packed))
            if not rows or (rows < self._batch_size and not self._finished):
                return
            parts = []
            while rows:
                block = self._packed[0]
                taken = min(rows, block.left)
                parts.append(block.take(taken, self._settings))
                rows -= taken
                if not block.left:
                    self._packed.popleft()
                    self._spare = block.memory
            yield TokenRows.concat(parts).batch(self._settings)

    def _pack(self, fresh: list[Ragged], last: bool) -> _Block:
        """Pack a block: what was held back, then new documents."""
        held = self._held
        count = len(held.documents)
        parts = [part for part in (held.documents, *fresh) if len(part)]
        memory, self._spare = self._spare, None
        total = sum(part.values.size for part in parts)
        if len(parts) > 1 and (memory is None or memory.size < total or memory.dtype != parts[-1].values.dtype):
            memory = np.empty(total + total // 8, dtype=parts[-1].values.dtype)
        documents = Ragged.concat(parts, out=memory)
        new = len(documents) - count
        numbers = np.concatenate([held.numbers, np.arange(self._first, self._first + new, dtype=np.int64)])
        rows, firsts, lengths, cut = split(documents[count:], self._settings, self._too_long)
        rows = np.concatenate([held.rows, rows + count])
        firsts = np.concatenate([held.firsts, firsts])
        lengths = np.concatenate([held.lengths, lengths])
        row = best_fit(lengths, self._settings.seq_len)
        first, self._first = self._first, self._first + new
        self._held = _Held.nothing()
        if not last:
            kept = self._hold(row, lengths, held.rows.size)
            if kept.any():
                self._held = _Held.of(documents, numbers, rows[kept], firsts[kept], lengths[kept])
                go = ~kept
                rows, firsts, lengths = rows[go], firsts[go], lengths[go]
                row = np.unique(row[go], return_inverse=True)[1].reshape(-1).astype(np.int64)
        packed = into_rows(rows, firsts, lengths, row, cut)
        skip, self._skip = self._skip, 0
        if skip > packed.count:
            raise StateError(
                f"the state has delivered {skip} rows, but there are {packed.count}: has the data changed?"
            )
        return _Block(documents, numbers, packed, first, held, skip, memory, (0, 0) if skip else packed.cut)

    def _hold(self, row: Ids, lengths: Ids, old: int) -> Array:
        """Choose the spans to hold back: those in rows with space, the emptiest first; none of the ``old`` first spans."""
        if not row.size:
            return np.zeros(0, dtype=bool)
        count = int(row.max()) + 1
        space = self._settings.seq_len - np.bincount(row, weights=lengths, minlength=count).astype(np.int64)
        space[row[:old]] = 0
        poor = np.flatnonzero(space * _POOR > self._settings.seq_len)
        poor = poor[np.argsort(-space[poor], kind="stable")]
        counts = np.cumsum(np.bincount(row, minlength=count)[poor])
        chosen = np.zeros(count, dtype=bool)
        chosen[poor[counts <= max(1, self._lookahead // _HELD_PART)]] = True
        return chosen[row]


@dataclass(frozen=True, slots=True)
class _Held:
    """Spans that wait for the next block: documents, their numbers, and for each span its row there and its extent."""

    documents: Ragged
    numbers: Ids
    rows: Ids
    firsts: Ids
    lengths: Ids

    @classmethod
    def nothing(cls) -> _Held:
        none = np.zeros(0, dtype=np.int64)
        return cls(Ragged.concat([]), none, none, none, none)

    @classmethod
    def of(cls, documents: Ragged, numbers: Ids, rows: Ids, firsts: Ids, lengths: Ids) -> _Held:
        needed, which = np.unique(rows, return_inverse=True)
        return cls(documents.take(needed), numbers[needed], which.reshape(-1).astype(np.int64), firsts, lengths)

    def as_list(self) -> list[list[int]]:
        made: list[list[int]] = np.stack([self.numbers[self.rows], self.firsts, self.lengths], axis=1).tolist()
        return made


@dataclass(slots=True)
class _Block:
    """Packed rows, of which some have been delivered.

    ``cut``: documents that were cut, to be reported with the block's first row. ``memory``: may hold the documents' tokens;
    free to be used again after the last row.
    """

    documents: Ragged
    numbers: Ids
    packed: PackedRows
    first: int
    held: _Held
    delivered: int
    memory: Array | None
    cut: tuple[int, int]

    @property
    def left(self) -> int:
        return self.packed.count - self.delivered

    def take(self, rows: int, settings: LMSettings) -> TokenRows:
        first = self.delivered
        spans = self.packed.spans(np.arange(first, first + rows, dtype=np.int64), settings.seq_len)
        cut, self.cut = self.cut, (0, 0)
        shape = rows, settings.seq_len
        made = assemble(self.documents, spans, shape, settings, first_document=self.numbers, cut=cut)
        self.delivered += rows
        return made


# Written into what is kept of packing; another number makes it be counted anew.
_VERSION: Final = 1


class PackLayout(TokenLayout):
    """Documents side by side in rows, as :func:`~stoker.tokens.layouts.bin_packing.pack_documents` packs each cell."""

    name = "pack"
    rows_a_cell = 512  # of a group that is packed by itself about a row is wasted

    def __init__(self, settings: LMSettings, too_long: TooLong) -> None:
        super().__init__(settings, too_long)
        self.parts = too_long != "truncate"

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "too_long": self.too_long}

    def amounts(self, source: TokenSource, bounds: Ids, tokens: Ids, rows: Ids) -> Ids:  # noqa: ARG002
        """See :class:`TokenLayout`; only the lengths of all documents tell, so it is counted once and kept."""
        recipe = {
            "seq_len": self.settings.seq_len,
            "eos": self.settings.eos_id is not None,
            "too_long": self.too_long,
            "rows": self.rows_a_cell,
            "version": _VERSION,
            **({"salvage": True, "limit": self.settings.limit} if self.salvage else {}),
        }

        def count() -> Ids:
            return packed_rows(source, bounds, self.settings, self.too_long, salvage=self.salvage)

        return source.keep("packed-rows", recipe, count)

    def block(self, found: BlockInput) -> DocumentBlock:
        spans, rows, made = [], [np.zeros(0, dtype=np.int64)], 0
        bounds = found.bounds.tolist()
        for first, stop, counted in zip(bounds[:-1], bounds[1:], found.amounts.tolist(), strict=True):
            documents, firsts, lengths, _ = split(found.documents[first:stop], self.settings, self.too_long)
            row = best_fit(lengths, self.settings.seq_len)
            count = int(row.max(initial=-1)) + 1
            if count != counted:
                raise CorruptDataError(
                    f"{found.where}: its documents fill {count} rows, and filled {counted} when they were counted: the "
                    "file was replaced, or a side file of it is of another version: remove the cache directory"
                )
            spans.append((documents + first, firsts, lengths))
            rows.append(row + made)
            made += count
        documents, firsts, lengths = (np.concatenate(columns) for columns in zip(*spans, strict=True))
        packed = into_rows(documents, firsts, lengths, np.concatenate(rows), (0, 0))
        starts = np.arange(packed.count + 1, dtype=np.int64)
        return DocumentBlock(found.documents, found.numbers, order_of(packed.count, found.key), starts, packed)

    def rows_of(self, block: DocumentBlock, rows: Ids) -> TokenRows:
        packed, width = block.packed, self.settings.seq_len
        assert packed is not None
        spans = packed.spans(rows, width)
        cut = (0, 0)
        if self.too_long == "truncate":
            over = full_lengths(block.documents.lengths[spans.rows], self.settings) - width
            over = over[over > 0]
            cut = over.size, int(over.sum())
        shape = rows.size, width
        return assemble(block.documents, spans, shape, self.settings, first_document=block.numbers, cut=cut)

    def row_maker(
        self, batch_size: int, lookahead: int, state: Mapping[str, Any] | None, fetch: Callable[[Ids], Ragged]
    ) -> RowMaker:
        return Packer(self.settings, batch_size, lookahead=lookahead, too_long=self.too_long, state=state, fetch=fetch)
