"""The base of layouts: how blocks of documents become rows of batches. Each layout is a class in a module of this folder, by
its name in :data:`LAYOUTS`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, Protocol

import numpy as np

from stoker.errors import ConfigError, StateError
from stoker.formats.registry import load
from stoker.order.shuffle.bijection import permute
from stoker.tokens.batch import LMBatch
from stoker.tokens.layouts.assemble import TokenRows
from stoker.tokens.layouts.bin_packing import PackedRows, TooLong
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.block_buffer import LostDocuments
from stoker.tokens.sources.ragged import Ragged
from stoker.tokens.sources.source import TokenSource
from stoker.types import Ids


@dataclass(frozen=True, slots=True, eq=False)
class DocumentBlock:
    """Documents of some cells in memory, ready to be made into batches.

    Attributes:
        documents: all of them, none empty, as they lie in the files.
        numbers: number of each document; int64.
        order: the order in which documents, or packed rows, come; ``None``: as they lie.
        starts: where documents, or packed rows, begin in amounts, in that order, and the total; int64.
        whole: every document is as long as a row, and nothing is put behind it.
        rows: the order in which rows come that are cut of the joined documents and lie in the block; ``None``: as they lie.
        place: numbers of the sequence and of the block on it, where bad rows are looked for.
        lost: documents of which tokens can not be read, rising; there are zeros in their places.
        other: the same block with ones for these zeros; ``None`` where nothing is lost. A row that the two make alike has
            nothing of what is lost.
    """

    documents: Ragged
    numbers: Ids
    order: Ids | None
    starts: Ids
    packed: PackedRows | None = None
    whole: bool = False
    rows: Ids | None = None
    place: tuple[int, int] = (0, 0)
    lost: Sequence[LostDocuments] = ()
    other: DocumentBlock | None = None


@dataclass(frozen=True, slots=True, eq=False)
class BlockInput:
    """The documents read for a block.

    Attributes:
        documents: all of them, none empty.
        numbers: number of each; int64.
        bounds: first document of each cell, and their number; int64.
        amounts: what each cell should have; int64.
        before: amounts before the block on its sequence.
        key: shuffles; ``None``: order of files.
        lost: documents that can not be read, rising.
    """

    documents: Ragged
    numbers: Ids
    bounds: Ids
    amounts: Ids
    before: int
    key: int | None
    where: str
    lost: Sequence[LostDocuments]


class RowMaker(Protocol):
    """Makes batches of documents that come little by little, resumable at any row."""

    @property
    def next_document(self) -> int:
        """The number of the document to be fed next."""

    def feed(self, documents: Ragged) -> Iterator[LMBatch]:
        """Take in the next documents, all at once, and yield the batches that are ready."""

    def finish(self) -> Iterator[LMBatch]:
        """Yield the last batches, of which the last may have fewer rows."""

    def state_dict(self) -> dict[str, Any]:
        """The position after the batch that was yielded last; JSON-serialisable."""


class TokenLayout(ABC):
    """Makes rows of batches from documents.

    A layout counts *amounts*: rows, or tokens where documents are joined. To add one, write a subclass in a module of this
    folder, and name it in :data:`LAYOUTS`.

    Args:
        too_long: what becomes of documents that are longer than a row, where the layout asks.

    Raises:
        ConfigError: there is no ``pad_id`` and the layout needs one.

    Attributes:
        name: for ``layout=``.
        needs_padding: whether rows may have slots that no token fills.
        document_rows: whether each document is one row.
        joins: whether documents are joined, and rows cut anywhere, so that a loss mask of documents has no meaning.
        rows_a_cell: row groups are put together until they have tokens for so many rows; 0: each is read by itself.
        step: amounts in a row.
        partial: whether what does not fill the last row of a rank's part becomes a row.
        reach: amounts behind a row that are needed to make it.
        parts: whether rows may be made together and then shared out: not where a batch says what was cut off its documents.
        salvage: whether damaged documents are no errors when documents are counted; see ``on_bad_sample=`` of the loader.
    """

    name: ClassVar[str]
    needs_padding: ClassVar[bool] = True
    document_rows: ClassVar[bool] = False
    joins: ClassVar[bool] = False
    rows_a_cell: ClassVar[int] = 0
    step: int = 1
    partial: bool = True
    reach: int = 0
    parts: bool = True
    salvage: bool = False

    def __init__(self, settings: LMSettings, too_long: TooLong) -> None:
        if self.needs_padding:
            settings.padding(f"the {self.name} layout")
        self.settings = settings
        self.too_long: TooLong = too_long

    def identity(self) -> dict[str, Any]:
        """The settings that rows depend on, for states."""
        return {"seq_len": self.settings.seq_len, "eos_id": self.settings.eos_id}

    @abstractmethod
    def amounts(self, source: TokenSource, bounds: Ids, tokens: Ids, rows: Ids) -> Ids:
        """Amounts of each cell; int64, shape ``(cells,)``.

        Args:
            source: the files.
            bounds: first row group of each cell, and their number; int64, shape ``(cells + 1,)``.
            tokens: of each cell; int64, shape ``(cells,)``.
            rows: documents of each cell that are not empty; likewise.
        """

    @abstractmethod
    def block(self, found: BlockInput) -> DocumentBlock:
        """Prepare a block of what was read."""

    def take(self, blocks: Sequence[DocumentBlock], inside: int, count: int) -> TokenRows:
        """Some rows of blocks that follow each other, from amount ``inside`` of the first on.

        Default: an amount is a row of a block, see :meth:`rows_of`.
        """
        parts = []
        for block in blocks:
            stop = min(inside + count, int(block.starts[-1]))
            rows = np.arange(inside, stop, dtype=np.int64) if block.order is None else block.order[inside:stop]
            if rows.size:
                parts.append(self.rows_of(block, rows))
            count -= stop - inside
            inside = 0
        return TokenRows.concat(parts)

    def rows_of(self, block: DocumentBlock, rows: Ids) -> TokenRows:
        """Rows of a block, by their numbers; of layouts with the default of :meth:`take`."""
        raise NotImplementedError

    def rows(self, documents: Ragged, first: int) -> LMBatch:
        """A row of each document, of which the first has the number ``first``; of layouts with ``document_rows``."""
        raise NotImplementedError

    def row_maker(
        self, batch_size: int, lookahead: int, state: Mapping[str, Any] | None, fetch: Callable[[Ids], Ragged]
    ) -> RowMaker:
        """Makes rows of a stream of documents; of layouts without ``document_rows``.

        Args:
            lookahead: documents that are looked at together.
            state: of a maker before, to go on there.
            fetch: gives documents by number, which a state may need again.
        """
        raise NotImplementedError


def state_number(state: Mapping[str, Any], name: str) -> int:
    """A count in the state of a :class:`RowMaker` or of the stream around it."""
    value = state.get(name)
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise StateError(f"this state's {name!r} should be an integer from 0, found {value!r}: it is not complete")
    return value


def order_of(count: int, key: int | None) -> Ids | None:
    """A random order by a key; ``None`` where there is no key."""
    if key is None:
        return None
    return permute(np.arange(count, dtype=np.int64), count, key) if count else np.zeros(0, dtype=np.int64)


LayoutName = Literal["concat", "pack", "pad", "truncate"]

LAYOUTS: Final[dict[str, str]] = {
    "concat": "stoker.tokens.layouts.concat:ConcatLayout",
    "pack": "stoker.tokens.layouts.pack:PackLayout",
    "pad": "stoker.tokens.layouts.pad:PadLayout",
    "truncate": "stoker.tokens.layouts.pad:TruncateLayout",
}
"""Modules and classes of layouts by name, imported when they are asked for."""


def layout_class(name: str) -> type[TokenLayout]:
    """The class of a layout of :data:`LAYOUTS`."""
    found: type[TokenLayout] = load(LAYOUTS[name])
    return found


def make_layout(name: LayoutName, settings: LMSettings, too_long: TooLong) -> TokenLayout:
    """The layout of a name.

    ``too_long`` is for ``"pack"`` alone.
    """
    made = layout_class(name)(settings, too_long)
    if too_long != "split" and name != "pack":
        raise ConfigError(
            f"too_long={too_long!r} is for layout='pack', not {name!r}: 'truncate' cuts long documents, 'pad' refuses them"
        )
    return made
