"""The sample order of a run over tokens: which unit comes when, for whom, in any world.

An epoch is divided for the world that began it (:mod:`stoker.tokens.order.division`), keeps its parts, and can be finished
by any other (:mod:`stoker.order.part_plan`). A *unit* is a row of a batch: a document, a window of joined
documents, or a packed row.

Also the files and the rows of a rank, and what is told of them.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stoker.integers import mix
from stoker.order.global_batches import BatchPlan, Remainder
from stoker.order.part_plan import PART_BITS, PartPlan, plan_parts
from stoker.order.sample_order import DataRank, EpochPosition, EpochStart, Plan, Run
from stoker.tokens.order.division import Granularity, PartFiles, ReadSequence, RowGroupRuns, TokenDivision, divide
from stoker.types import Ids

logger = logging.getLogger(__name__)

UNIT_MASK: Final = (1 << PART_BITS) - 1
"""The bits of a position that hold the number of its unit."""
TOGETHER: Final = 1 << 14
"""Units of which the blocks are looked up together."""
_TAG_BLOCK: Final = 22
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
        blocks: number of the first block that they need, and one past the last.
        inside: amounts of the first block before them.
        rows: number of units.
        slot: number of the part that they are read in; a block is held until another one is read there.
    """

    sequence: int
    blocks: tuple[int, int]
    inside: int
    rows: int
    slot: int


class BatchSpans(NamedTuple):
    """Batches that are made together.

    Attributes:
        spans: of their rows, as they are made.
        rows: number of each row, as they are made, in the order in which they are delivered; ``None``: the same.
    """

    spans: list[BlockSpan]
    rows: Ids | None = None


@dataclass(frozen=True, slots=True)
class TokenStart(EpochStart):
    """The world that an epoch was divided for. ``world_size``: number of its ranks; 0: not known."""

    world_size: int = 0


class TokenSampleOrder:
    """The :class:`~stoker.order.sample_order.SampleOrder` of a run over tokens.

    ``about`` identifies the data, and has a ``fingerprint``; ``url`` is for messages; ``tokens`` are all, eos counted, of
    so many ``documents``.
    """

    def __init__(
        self,
        name: str,
        about: Mapping[str, Any],
        cells: RowGroupRuns,
        files: Sequence[str],
        settings: TokenSettings,
        url: str = "",
        tokens: int = 0,
        documents: int = 0,
    ) -> None:
        self.url = url
        self.tokens, self.documents = tokens, documents
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
        return {self.name: self.url}


class UnitOrder(ABC):
    """Locates the units of an epoch on sequences of blocks, numbered from 0.

    ``settings``: of the order, which all sequences share but for the seed. ``together``: the most batches that are made
    together, and bytes of their ids and labels: little beside a block, and they stay in the processor's cache.
    """

    settings: TokenSettings
    together: ClassVar[tuple[int, int]] = 32, 4 << 20

    @abstractmethod
    def sequence(self, number: int) -> ReadSequence:
        """A sequence of this epoch."""

    @abstractmethod
    def key(self, sequence: int, block: int) -> int | None:
        """The key that shuffles a block's rows; ``None`` where they stay in order."""

    def last_blocks(self, plan: Plan) -> Mapping[int, int]:  # noqa: ARG002 - which may tell
        """Sequence number to the last block of it that a rank reads, where that is known not to be the sequence's last."""
        return {}

    @abstractmethod
    def steps(self, plan: Plan, worker: int, workers: int, skip: int, together: int) -> Iterator[BatchSpans]:
        """A plan's batches, up to so many together; other arguments as those of :meth:`Plan.chunks`."""

    @abstractmethod
    def _by_sequence(self, positions: Ids) -> Iterator[tuple[NDArray[np.bool_], int, Ids]]:
        """For each of some sequences: which of the positions are on it, its number, and their units there."""

    def source(self, sequence: int) -> int:  # noqa: ARG002 - there may be one alone
        """Number of the source that a sequence is of."""
        return 0

    def _slots(self, sequences: Ids, units: Ids) -> Ids:  # noqa: ARG002 - which may tell more
        """See :class:`BlockSpan`; int64 of the shape of ``units``, whose sequences are given. Default: these."""
        return sequences

    @staticmethod
    def split(blocks: Ids) -> tuple[Ids, Ids]:
        """Sequences and numbers of blocks as :meth:`locate` gives them."""
        return blocks >> _BLOCK_BITS, blocks & ((1 << _BLOCK_BITS) - 1)

    def locate(self, positions: Ids) -> tuple[Ids, Ids]:
        """The block in which the unit of each position begins, as ``sequence << 32 | block``, and amounts of it before."""
        return self.block_of(self._units(positions))

    def _units(self, positions: Ids) -> Ids:
        """Positions of a plan as units that :meth:`_by_sequence` knows, of which neighbours follow each other."""
        return positions

    def block_of(self, positions: Ids) -> tuple[Ids, Ids]:
        """:meth:`locate` of units."""
        blocks, inside = np.empty_like(positions), np.empty_like(positions)
        for here, number, units in self._by_sequence(positions):
            sequence, amounts = self.sequence(number), units * self.settings.step
            found = sequence.find(amounts)
            blocks[here] = found | number << _BLOCK_BITS
            inside[here] = amounts - sequence.starts[found]
        return blocks, inside

    def last_block(self, positions: Ids) -> Ids:
        """The last block that each unit needs, as ``sequence << 32 | block``."""
        blocks = np.empty_like(positions)
        for here, number, units in self._by_sequence(positions):
            sequence = self.sequence(number)
            ends = np.minimum((units + 1) * self.settings.step + self.settings.reach, sequence.total)
            blocks[here] = sequence.find(ends - 1) | number << _BLOCK_BITS
        return blocks

    def spans(self, positions: Ids, begins: Ids) -> Iterator[list[BlockSpan]]:
        """Lists of units as spans of sequences.

        ``begins``: where each list begins in ``positions``, and the number of all; int64.
        """
        fresh = np.ones(positions.size, dtype=bool)
        np.not_equal(positions[1:], positions[:-1] + 1, out=fresh[1:])
        fresh[begins[:-1]] = True
        at = np.flatnonzero(fresh)
        counts = np.diff(at, append=positions.size)
        found, inside = self.block_of(positions[at])
        (sequences, first), (_, last) = self.split(found), self.split(self.last_block(positions[at + counts - 1]))
        columns = sequences, first, last + 1, inside, counts, self._slots(sequences, positions[at])
        made = [BlockSpan(t, (a, b), i, n, s) for t, a, b, i, n, s in zip(*(c.tolist() for c in columns), strict=True)]
        bounds = np.searchsorted(at, begins).tolist()
        return (made[a:b] for a, b in pairwise(bounds))


class TokenOrder(UnitOrder):
    """The units of a home world's parts."""

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
        return block_key(self.settings.seed, self.epoch, self.sequence(sequence), block)

    def last_blocks(self, plan: Plan) -> Mapping[int, int]:
        """See :meth:`UnitOrder.last_blocks`; known where the rank reads one part alone."""
        if not isinstance(plan, PartPlan) or not (size := plan.rounds.size(plan.rank)):
            return {}
        position = np.array([plan.rank << PART_BITS | (size - 1)], dtype=np.int64)
        sequence, block = self.split(self.last_block(position))
        return {int(sequence[0]): int(block[0])}

    def steps(self, plan: Plan, worker: int, workers: int, skip: int, together: int) -> Iterator[BatchSpans]:
        """See :meth:`UnitOrder.steps`; batches that follow each other within one block are made together."""
        return map(BatchSpans, self._joined(self._batches(plan, worker, workers, skip), plan.batch_size, together))

    def _batches(self, plan: Plan, worker: int, workers: int, skip: int) -> Iterator[list[BlockSpan]]:
        for batches in plan.chunks(TOGETHER, worker, workers, skip):
            yield from self.spans(*joined_batches(batches))

    def _joined(self, batches: Iterator[list[BlockSpan]], rows: int, together: int) -> Iterator[list[BlockSpan]]:
        held: BlockSpan | None = None
        for spans in batches:
            one = spans[0]
            if held is not None:
                end = held.inside + held.rows * self.settings.step
                if (
                    held.rows < rows * together
                    and len(spans) == 1
                    and one.rows == rows
                    and (one.sequence, one.blocks, one.inside) == (held.sequence, held.blocks, end)
                ):
                    held = held._replace(rows=held.rows + rows)
                    continue
                yield [held]
                held = None
            if len(spans) == 1 and one.rows == rows and one.blocks[1] - one.blocks[0] == 1:
                held = one
            else:
                yield spans
        if held is not None:
            yield [held]

    def _by_sequence(self, positions: Ids) -> Iterator[tuple[NDArray[np.bool_], int, Ids]]:
        parts = positions >> PART_BITS
        for part in np.unique(parts).tolist():
            here = parts == part
            yield here, self.division.sequence_of(part), self.division.firsts[part] + (positions[here] & UNIT_MASK)


def block_key(seed: int | None, epoch: int, sequence: ReadSequence, block: int) -> int | None:
    """The key that shuffles a block's rows in an epoch; ``None`` where they stay in order."""
    return None if seed is None else mix(seed, _TAG_BLOCK, epoch, int(sequence.members(block)[0]))


def joined_batches(batches: Sequence[Ids]) -> tuple[Ids, Ids]:
    """The positions of batches in one array, where each begins in it, and the number of all; int64."""
    positions = batches[0] if len(batches) == 1 else np.concatenate(batches)
    return positions, np.cumsum([0, *(len(batch) for batch in batches)])


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
                logger.warning("%s: ranks divide %ss, not files: %s", self._sample_order.name, word, division.reason)
        return division

    def of(self, data_rank: DataRank) -> PartFiles:
        """The files of a rank."""
        found = self._known.get((data_rank.world_size, data_rank.rank))
        if found is None:
            found = PartFiles.of(self._sample_order.cells, self.division(data_rank), data_rank.rank)
            self._known = {(data_rank.world_size, data_rank.rank): found}
        return found

    def tokens(self, data_rank: DataRank) -> int:
        """Tokens of a rank's files; where rows are divided, about."""
        return self.division(data_rank).tokens(self._sample_order.cells, data_rank.rank)

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
            "epoch %d: %d rows are repeated, so that all %d ranks take the same number of steps (remainder='uneven' or "
            "'drop' avoids this)",
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
