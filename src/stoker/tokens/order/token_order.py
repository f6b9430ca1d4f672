"""The sample order of a run over tokens: which unit comes when, for whom, in any world.

An epoch is divided for the world that began it (:mod:`stoker.tokens.order.division`), keeps its parts, and can be finished
by any other (:mod:`stoker.order.part_plan`). A *unit* is a row of a batch: a document, a window of joined
documents, or a packed row.

Also the files and the rows of a rank, and what is told of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.integers import mix
from stoker.order.global_batches import BatchPlan, Remainder
from stoker.order.part_plan import PART_BITS, PartPlan, plan_parts
from stoker.order.sample_order import DataRank, EpochPosition, EpochStart, Plan, Run
from stoker.tokens.order.division import Granularity, PartFiles, ReadSequence, RowGroupRuns, TokenDivision, divide
from stoker.types import Ids

logger = logging.getLogger(__name__)

_NUMBER: Final = (1 << PART_BITS) - 1
_TAG_BLOCK: Final = 22
_TOGETHER: Final = 1 << 14
_BLOCK_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """All settings that decide which unit comes when, apart from the data.

    Attributes:
        layout: how documents become rows; only its name is needed here.
        step: amounts in a unit: ``seq_len`` where documents are joined, else 1.
        partial: whether the remainder of a part, less than ``step``, is a unit.
        reach: amounts behind a unit that are needed to make it: 1 where a label is the next document's first token.
        seed: of the order; ``None`` for the order of files.
        granularity: see :func:`~stoker.tokens.order.division.divide`.
        block_tokens: see :meth:`~stoker.tokens.order.division.ReadSequence.lay`.
        remainder: what becomes of parts that do not end together; see :class:`~stoker.order.part_plan.PartPlan`.
        said: what else the rows depend on, by name, for states.
    """

    layout: str
    step: int
    partial: bool
    reach: int
    seed: int | None
    granularity: Granularity | None
    block_tokens: int
    remainder: Remainder
    said: Mapping[str, Any]


class BlockSpan(NamedTuple):
    """Consecutive units of a batch in one sequence.

    Attributes:
        sequence: number of the sequence.
        blocks: number of the first block that they need, and one past the last.
        inside: amounts of the first block before them.
        rows: number of units.
    """

    sequence: int
    blocks: tuple[int, int]
    inside: int
    rows: int


@dataclass(frozen=True, slots=True)
class TokenStart(EpochStart):
    """The world that an epoch was divided for. ``world_size``: number of its ranks; 0: not known."""

    world_size: int = 0


class TokenSampleOrder:
    """The :class:`~stoker.order.sample_order.SampleOrder` of a run over tokens.

    ``about`` identifies the data, and has a ``fingerprint``; ``url`` is for messages.
    """

    def __init__(
        self,
        name: str,
        about: Mapping[str, Any],
        cells: RowGroupRuns,
        files: Sequence[str],
        settings: TokenSettings,
        url: str = "",
    ) -> None:
        self._url = url
        self.name = name
        self.about = dict(about)
        self.cells = cells
        self.files = tuple(files)
        self.settings = settings
        self._divisions: dict[int, TokenDivision] = {}

    @property
    def epoch_size(self) -> int:
        """The most positions of an epoch; the exact number depends on the world that begins it."""
        return int(self.cells.amounts.sum())

    def division(self, home: int) -> TokenDivision:
        """The parts of a home world, computed once."""
        found = self._divisions.get(home)
        if found is None:
            s = self.settings
            found = divide(self.cells, self.files, home, s.granularity, step=s.step, partial=s.partial)
            self._divisions[home] = found
        return found

    def run(self, position: EpochPosition, data_rank: DataRank) -> Run:
        """The units of one reader; the order is a :class:`TokenOrder`."""
        order = TokenOrder(self.cells, self._divided(position, data_rank), self.settings, position.epoch)
        plan = plan_parts(
            order.division.rounds,
            position.position,
            data_rank.batch_size,
            data_rank.rank,
            data_rank.world_size,
            self.settings.remainder,
        )
        return Run(order, plan)

    def _divided(self, position: EpochPosition, data_rank: DataRank) -> TokenDivision:
        return self.division(self.epoch_start(position, data_rank).world_size)

    @property
    def start_type(self) -> type[TokenStart]:
        """The fields that a state keeps of an epoch's start."""
        return TokenStart

    def epoch_start(self, position: EpochPosition, data_rank: DataRank) -> TokenStart:
        """The world that the epoch was divided for."""
        start = position.start
        if position.position and isinstance(start, TokenStart) and start.world_size:
            return start
        return TokenStart(data_rank.world_size)

    def ended(self, position: EpochPosition, data_rank: DataRank) -> bool:
        """Whether nothing of the epoch is left at the position."""
        return position.position >= self._divided(position, data_rank).rounds.total

    def in_epoch(self, position: EpochPosition) -> bool:
        """Whether a run can have reached the position."""
        if not position.position:
            return True
        home = position.start.world_size if isinstance(position.start, TokenStart) else 0
        return 0 < home < 1 << 21 and position.position <= self.division(home).rounds.total

    def as_dict(self) -> dict[str, Any]:
        """Everything that decides which unit comes when."""
        settings = self.settings
        return {
            "streams": {self.name: dict(self.about)},
            "order": {
                "layout": settings.layout,
                **settings.said,
                "seed": settings.seed,
                "granularity": settings.granularity,
                "shuffle_tokens": settings.block_tokens,
                "partial": settings.partial,
            },
        }

    @property
    def urls(self) -> dict[str, str]:
        """Stream name to URL, for messages."""
        return {self.name: self._url}


class TokenOrder:
    """Locates the units of an epoch."""

    def __init__(self, cells: RowGroupRuns, division: TokenDivision, settings: TokenSettings, epoch: int) -> None:
        self.cells = cells
        self.division = division
        self.settings = settings
        self.epoch = epoch
        self._sequence = lru_cache(maxsize=None)(self._lay)

    def sequence(self, number: int) -> ReadSequence:
        """A sequence of this epoch."""
        return self._sequence(number)

    def _lay(self, number: int) -> ReadSequence:
        return self.division.sequence(self.cells, number, self.settings.seed, self.epoch, self.settings.block_tokens)

    def key(self, sequence: int, block: int) -> int | None:
        """The key that shuffles a block's rows; ``None`` where they stay in order."""
        seed = self.settings.seed
        if seed is None:
            return None
        first = int(self.sequence(sequence).members(block)[0])
        return mix(seed, _TAG_BLOCK, self.epoch, first)

    def part_position(self, part: int, number: int) -> int:
        """The position of a part's unit."""
        return part << PART_BITS | number

    @staticmethod
    def split(blocks: Ids) -> tuple[Ids, Ids]:
        """Sequences and numbers of blocks as :meth:`locate` gives them."""
        return blocks >> _BLOCK_BITS, blocks & ((1 << _BLOCK_BITS) - 1)

    def locate(self, positions: Ids) -> tuple[Ids, Ids]:
        """The block in which each unit begins, as ``sequence << 32 | block``, and amounts of the block before it."""
        blocks, inside = np.empty_like(positions), np.empty_like(positions)
        for here, number, units in self._by_part(positions):
            sequence, amounts = self.sequence(number), units * self.settings.step
            found = sequence.find(amounts)
            blocks[here] = found | number << _BLOCK_BITS
            inside[here] = amounts - sequence.starts[found]
        return blocks, inside

    def last_block(self, positions: Ids) -> Ids:
        """The last block that is needed to make each unit, as ``sequence << 32 | block``."""
        blocks = np.empty_like(positions)
        for here, number, units in self._by_part(positions):
            sequence = self.sequence(number)
            ends = np.minimum((units + 1) * self.settings.step + self.settings.reach, sequence.total)
            blocks[here] = sequence.find(ends - 1) | number << _BLOCK_BITS
        return blocks

    def _by_part(self, positions: Ids) -> Iterator[tuple[NDArray[np.bool_], int, Ids]]:
        """For each part: which of the positions are its, the number of its sequence, and their units there."""
        parts = positions >> PART_BITS
        for part in np.unique(parts).tolist():
            here = parts == part
            yield here, self.division.sequence_of(part), self.division.firsts[part] + (positions[here] & _NUMBER)


def block_spans(
    order: TokenOrder, plan: Plan, worker: int = 0, workers: int = 1, skip: int = 0
) -> Iterator[list[BlockSpan]]:
    """A plan's batches as spans of sequences, batch by batch; arguments as those of :meth:`Plan.chunks`."""
    for batches in plan.chunks(_TOGETHER, worker, workers, skip):
        positions = batches[0] if len(batches) == 1 else np.concatenate(batches)
        begins = np.cumsum([0, *(len(batch) for batch in batches)])
        fresh = np.ones(positions.size, dtype=bool)
        np.not_equal(positions[1:], positions[:-1] + 1, out=fresh[1:])
        fresh[begins[:-1]] = True
        at = np.flatnonzero(fresh)
        counts = np.diff(at, append=positions.size)
        found, inside = order.locate(positions[at])
        (sequences, first), (_, last) = order.split(found), order.split(order.last_block(positions[at + counts - 1]))
        columns = sequences, first, last + 1, inside, counts
        made = [BlockSpan(t, (a, b), i, n) for t, a, b, i, n in zip(*(c.tolist() for c in columns), strict=True)]
        bounds = np.searchsorted(at, begins).tolist()
        yield from (made[a:b] for a, b in pairwise(bounds))


_WORDS = {"file": "file", "row_group": "row group", "row": "row"}


class RankFiles:
    """The files that a rank has something of."""

    def __init__(self, sample_order: TokenSampleOrder) -> None:
        self._sample_order = sample_order
        self._told: set[int] = set()
        self._known: dict[tuple[int, int], PartFiles] = {}

    def division(self, data_rank: DataRank) -> TokenDivision:
        """The parts of a rank's world."""
        division = self._sample_order.division(data_rank.world_size)
        if data_rank.world_size not in self._told:
            self._told.add(data_rank.world_size)
            if division.reason and data_rank.rank == 0:
                word = _WORDS[division.granularity]
                logger.warning("%s: ranks share out %ss: %s", self._sample_order.name, word, division.reason)
        return division

    def of(self, data_rank: DataRank) -> PartFiles:
        """The files of a rank."""
        found = self._known.get((data_rank.world_size, data_rank.rank))
        if found is None:
            found = PartFiles.of(self._sample_order.cells, self.division(data_rank), data_rank.rank)
            self._known = {(data_rank.world_size, data_rank.rank): found}
        return found

    def done(self, data_rank: DataRank, position: EpochPosition, plan: Plan, batches: int) -> int:
        """The number of a rank's files that have had their share after some batches of a plan from a position on."""
        files = self.of(data_rank)
        if batches >= len(plan):
            return files.files.size
        if isinstance(plan, PartPlan):
            done, whole = plan.start_round + batches * plan.batch_size, plan.rounds.size(plan.rank)
        else:
            done, whole = position.position + batches * plan.batch_size * plan.world_size, plan.end
        return files.ended(done, whole)


def tell_of_remainder(plan: Plan, position: EpochPosition, *, drops: bool) -> None:
    """Say on rank 0 which rows come twice, or are left out where ``drops``, so that ranks take equally many steps."""
    if plan.rank:
        return
    if plan.padding:
        logger.warning(
            "epoch %d: %d rows come twice, so that all %d ranks take the same number of steps (remainder='uneven' or "
            "'drop' repeats none)",
            position.epoch,
            plan.padding,
            plan.world_size,
        )
    if drops:
        assert isinstance(plan, BatchPlan | PartPlan)
        logger.warning(
            "epoch %d: %d of %d rows are left out, so that all %d ranks take the same number of full batches",
            position.epoch,
            plan.tail,
            plan.end - position.position,
            plan.world_size,
        )
