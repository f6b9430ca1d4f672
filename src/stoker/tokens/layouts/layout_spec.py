"""From token files and a layout's name to a sample order, and from the sample order's blocks to documents in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, get_args

import numpy as np

from stoker.errors import ConfigError
from stoker.order.global_batches import Remainder
from stoker.tokens.layouts.bin_packing import TooLong, check_too_long
from stoker.tokens.layouts.concat import Joined
from stoker.tokens.layouts.pad import BlockInput, DocumentBlock, Packed, Padded, TokenLayout
from stoker.tokens.order.division import Granularity, RowGroupRuns, join_groups
from stoker.tokens.order.token_order import TokenOrder, TokenSampleOrder, TokenSettings
from stoker.tokens.settings import LMSettings
from stoker.tokens.sources.block_buffer import Gathered
from stoker.tokens.sources.measure import packed_rows
from stoker.tokens.sources.memory import Memory
from stoker.tokens.sources.source import TokenSource, place_of
from stoker.types import Ids

__all__ = ["LayoutName", "LayoutSpec", "BlockBuilder"]

LayoutName = Literal["concat", "pack", "pad", "truncate"]

# Small groups are packed together until they fill so many rows: of one that is packed by itself about a row is wasted.
_ROWS_A_CELL: Final = 512
# Tokens that lie ahead of the block that is decoded and are fetched meanwhile, where they come from afar.
_FETCH_TOKENS: Final = 1 << 26
# Written into what is kept of packing; another number makes it be counted anew.
_PACKING: Final = 1


@dataclass(frozen=True, slots=True)
class LayoutSpec:
    """How documents become rows.

    Attributes:
        settings: see :class:`LMSettings`.
        name: of the layout.
        too_long: what becomes of documents that are too long to be packed.

    Raises:
        ConfigError: the layout is unknown, or needs a ``pad_id``.
    """

    settings: LMSettings
    name: LayoutName
    too_long: TooLong

    def __post_init__(self) -> None:
        if self.name not in get_args(LayoutName):
            raise ConfigError(f"layout={self.name!r} is unknown; known: {', '.join(get_args(LayoutName))}")
        check_too_long(self.too_long)
        if self.name != "concat":
            self.settings.padding(f"the {self.name} layout")

    def over(self, source: TokenSource, threads: int) -> BlockBuilder:
        """Batches of these files, with so many threads that decode."""
        return BlockBuilder(source, self, threads)

    def layout(self) -> TokenLayout:
        """What makes batches."""
        if self.name == "concat":
            return Joined(self.settings)
        if self.name == "pack":
            return Packed(self.settings, self.too_long)
        return Padded(self.settings, truncate=self.name == "truncate")

    def said(self) -> dict[str, Any]:
        """What rows depend on, for states."""
        if self.name in ("pad", "truncate"):
            return {}
        said: dict[str, Any] = {"seq_len": self.settings.seq_len, "eos_id": self.settings.eos_id}
        return said if self.name == "concat" else {**said, "too_long": self.too_long}


class BlockBuilder:
    """Makes blocks of documents out of groups of files.

    Args:
        source: the files.
        making: how documents become rows.
        threads: how many blocks are decoded at once.
    """

    def __init__(self, source: TokenSource, making: LayoutSpec, threads: int) -> None:
        self.source = source
        self.settings = making.settings
        self.name = making.name
        self.layout = making.layout()
        self._making = making
        # The block that is delivered, those that are decoded, and what one of these outgrew.
        self._memory = Memory(threads + 2)
        self._cells = self._make_cells()

    def sample_order(
        self, granularity: Granularity | None, seed: int | None, shuffle_tokens: int, remainder: Remainder
    ) -> TokenSampleOrder:
        """The sample order over these files; ``seed`` is ``None`` for the order of files."""
        settings = self.settings
        joined = self.name == "concat"
        return TokenSampleOrder(
            self.source.name,
            self.source.about,
            self._cells,
            self.source.groups.files,
            TokenSettings(
                layout=self.name,
                step=settings.seq_len if joined else 1,
                partial=not joined or settings.pad_id is not None,
                reach=int(joined and settings.labels == "shifted" and settings.cross_document_labels),
                seed=seed,
                granularity=granularity,
                block_tokens=shuffle_tokens,
                remainder=remainder,
                said=self._making.said(),
            ),
            self.source.url,
        )

    def load(self, order: TokenOrder, last: Mapping[int, int], track: int, block: int) -> DocumentBlock:
        """Decode a block.

        Args:
            order: of the epoch.
            last: track to the last block of it that is read; the others are read to their ends.
            track: number of the track.
            block: number of the block.

        Raises:
            StokerError: a group can not be read, or is not what was said of it.
        """
        way = order.track(track)
        self._fetch(order, track, block, last.get(track, way.blocks - 1))
        members = way.members(block)
        cells, groups = self._cells, self.source.groups
        gathered = Gathered(int(cells.tokens[members].sum()), self.settings.limit, self._memory)
        bounds = [0]
        for cell in members.tolist():
            for group in range(int(cells.bounds[cell]), int(cells.bounds[cell + 1])):
                facts = int(groups.first_rows[group]), int(groups.rows[group]), int(groups.tokens[group])
                if facts[2]:
                    gathered.add(self.source.pieces(group), *facts, self.source.where(group))
            bounds.append(gathered.documents)
        documents, numbers = gathered.finish(partial(place_of, self.source))
        documents.check(self.settings.limit)
        return self.layout.block(
            BlockInput(
                documents,
                numbers,
                np.array(bounds, dtype=np.int64),
                cells.amounts[members],
                int(way.starts[block]),
                order.key(track, block),
                self.source.where(int(cells.bounds[members[0]])),
            )
        )

    def _fetch(self, order: TokenOrder, track: int, block: int, last: int) -> None:
        """Begin to fetch this block and some of those that follow."""
        way = order.track(track)
        groups: list[int] = []
        tokens = 0
        for number in range(block, last + 1):
            for cell in way.members(number).tolist():
                groups += range(int(self._cells.bounds[cell]), int(self._cells.bounds[cell + 1]))
                tokens += int(self._cells.tokens[cell])
            if tokens > _FETCH_TOKENS and number > block:
                break
        self.source.fetch(groups)

    def _make_cells(self) -> RowGroupRuns:
        groups, settings = self.source.groups, self.settings
        bounds = join_groups(groups, _ROWS_A_CELL * settings.seq_len if self.name == "pack" else 1)
        tokens = np.add.reduceat(groups.tokens, bounds[:-1])
        rows = np.add.reduceat(groups.rows, bounds[:-1])
        if self.name == "concat":
            amounts = tokens if settings.eos_id is None else tokens + rows
        elif self.name == "pack":
            amounts = self._count_packed(bounds)
        else:
            amounts = rows
        return RowGroupRuns(bounds, groups.file[bounds[:-1]], tokens, amounts)

    def _count_packed(self, bounds: Ids) -> Ids:
        recipe = {
            "seq_len": self.settings.seq_len,
            "eos": self.settings.eos_id is not None,
            "too_long": self._making.too_long,
            "rows": _ROWS_A_CELL,
            "version": _PACKING,
        }
        return self.source.keep(
            "packed-rows", recipe, lambda: packed_rows(self.source, bounds, self.settings, self._making.too_long)
        )
