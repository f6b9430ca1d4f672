"""The sample order of a run over tokens: which unit comes when, for whom, in any world.

An epoch is divided for the world that began it (:mod:`stoker.tokens.order.division`), keeps its parts, and can be finished
by any other (:mod:`stoker.order.partition.part_plan`). A *unit* is a row of a batch: a document, a window of joined
documents, or a packed row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from stoker.errors import ConfigError
from stoker.integers import mix
from stoker.order.global_batches import Remainder
from stoker.order.partition.part_plan import PART_BITS, plan_parts
from stoker.order.protocols import Plan
from stoker.order.sample_order import DataRank, Leg, Run, Terms
from stoker.tokens.order.division import Granularity, ReadSequence, RowGroupRuns, TokenDivision, divide
from stoker.types import Ids

__all__ = ["BlockSpan", "TokenSampleOrder", "TokenOrder", "TokenSettings", "stretches"]

logger = logging.getLogger(__name__)

_NUMBER: Final = (1 << PART_BITS) - 1
_TAG_BLOCK: Final = 22
_TOGETHER: Final = 1 << 14
_BLOCK_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """What decides which unit comes when, beside the data.

    Attributes:
        layout: how documents become rows; only its name is needed here.
        step: amounts in a unit: ``seq_len`` where documents are joined, else 1.
        partial: whether what does not fill a part's last unit is a unit.
        reach: amounts behind a unit that are needed to make it: 1 where a label is the next document's first token.
        seed: of the order; ``None`` for the order of files.
        granularity: see :func:`~stoker.tokens.order.division.divide`.
        block_tokens: see :meth:`~stoker.tokens.order.division.ReadSequence.lay`.
        remainder: what becomes of parts that do not end together; see :class:`~stoker.order.partition.part_plan.PartPlan`.
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
    """Units of a batch that follow each other on a track.

    Attributes:
        track: number of the track.
        blocks: number of the first block that they need, and one past the last.
        inside: amounts of the first block before them.
        rows: number of units.
    """

    track: int
    blocks: tuple[int, int]
    inside: int
    rows: int


class TokenSampleOrder:
    """See :class:`~stoker.order.sample_order.SampleOrder`.

    Args:
        name: what states call the data.
        about: what tells it from other data; has a ``fingerprint``.
        cells: what is divided.
        files: names of the files.
        settings: everything else.
        url: where the data is, for messages.
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
        """No epoch has more positions; how many exactly depends on the world that begins it."""
        return int(self.cells.amounts.sum())

    @property
    def shards_at_once(self) -> int:
        """About how many blocks are read at once, by all readers together."""
        return 1

    def division(self, home: int) -> TokenDivision:
        """The parts of a home world, worked out once."""
        found = self._divisions.get(home)
        if found is None:
            s = self.settings
            found = divide(self.cells, self.files, home, s.granularity, step=s.step, partial=s.partial)
            self._divisions[home] = found
        return found

    def run(self, leg: Leg, data_rank: DataRank) -> Run:
        """What a reader reads; the order is a :class:`TokenOrder`."""
        order = self.order(leg, data_rank)
        rounds = order.division.rounds
        plan = plan_parts(
            rounds, leg.position, data_rank.batch_size, data_rank.rank, data_rank.world_size, self.settings.remainder
        )
        return Run(order, plan)

    def order(self, leg: Leg, data_rank: DataRank) -> TokenOrder:
        """The order of a leg's epoch."""
        return TokenOrder(self.cells, self.division(self.terms(leg, data_rank)[0]), self.settings, leg.epoch)

    def terms(self, leg: Leg, data_rank: DataRank) -> Terms:
        """The home world of the leg's epoch."""
        if leg.position and leg.terms[0] > 0:
            return leg.terms
        return data_rank.world_size, 0, 0

    def ended(self, leg: Leg, data_rank: DataRank) -> bool:
        """Whether nothing of the epoch is left at the leg's position."""
        return leg.position >= self.division(self.terms(leg, data_rank)[0]).rounds.total

    def beyond(self, leg: Leg) -> bool:
        """Whether the leg's position is one that no run can have got to."""
        home = leg.terms[0]
        if not leg.position:
            return False
        return not 0 < home < 1 << 21 or leg.position > self.division(home).rounds.total

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
        """Where the data is, for messages."""
        return {self.name: self._url}

    def consumed(self, leg: Leg) -> dict[str, int]:  # noqa: ARG002
        """Nothing: every epoch has all of the data."""
        return {}

    @property
    def origin(self) -> dict[str, Any]:
        """Never begun anew."""
        return {}

    def continued(
        self, epoch: int, consumed: Mapping[str, int], samples: int, away: Sequence[Mapping[str, Any]] = ()
    ) -> TokenSampleOrder:
        """Not possible: there is one stream.

        Raises:
            ConfigError: always, unless nothing is asked for.
        """
        if epoch or consumed or samples or away:
            raise ConfigError("the state is of a run that changed its streams, which a run over tokens does not")
        return self

    def read_foreign(self, state: Mapping[str, Any]) -> Leg | None:  # noqa: ARG002
        """No other program's states are known."""
        return None

    def write_foreign(self, leg: Leg, data_rank: DataRank) -> dict[str, Any]:  # noqa: ARG002
        """Nothing is carried for other programs."""
        return {}


class TokenOrder:
    """Where the units of an epoch lie.

    Args:
        cells: what was divided.
        division: how.
        settings: of the sample order.
        epoch: the epoch's number.
    """

    def __init__(self, cells: RowGroupRuns, division: TokenDivision, settings: TokenSettings, epoch: int) -> None:
        self.cells = cells
        self.division = division
        self.settings = settings
        self.epoch = epoch
        self._track = lru_cache(maxsize=None)(self._lay)

    def track(self, number: int) -> ReadSequence:
        """A track of this epoch."""
        return self._track(number)

    def _lay(self, number: int) -> ReadSequence:
        return self.division.track(self.cells, number, self.settings.seed, self.epoch, self.settings.block_tokens)

    def key(self, track: int, block: int) -> int | None:
        """What shuffles a block's rows; ``None`` where they stay in order."""
        seed = self.settings.seed
        if seed is None:
            return None
        first = int(self.track(track).members(block)[0])
        return mix(seed, _TAG_BLOCK, self.epoch, first)

    def place(self, part: int, number: int) -> int:
        """The place of a part's unit."""
        return part << PART_BITS | number

    @staticmethod
    def split(blocks: Ids) -> tuple[Ids, Ids]:
        """Tracks and numbers of blocks as :meth:`locate` gives them."""
        return blocks >> _BLOCK_BITS, blocks & ((1 << _BLOCK_BITS) - 1)

    def locate(self, places: Ids) -> tuple[Ids, Ids]:
        """The block in which each unit begins, as ``track << 32 | block``, and amounts of the block before it."""
        blocks, inside = np.empty_like(places), np.empty_like(places)
        parts = places >> PART_BITS
        for part in np.unique(parts).tolist():
            here = parts == part
            number, track = self.division.track_of(part), self.track(self.division.track_of(part))
            amounts = (self.division.firsts[part] + (places[here] & _NUMBER)) * self.settings.step
            found = track.find(amounts)
            blocks[here] = found | number << _BLOCK_BITS
            inside[here] = amounts - track.starts[found]
        return blocks, inside

    def last_block(self, places: Ids) -> Ids:
        """The block in which that ends which is needed to make each unit, as ``track << 32 | block``."""
        blocks = np.empty_like(places)
        parts = places >> PART_BITS
        for part in np.unique(parts).tolist():
            here = parts == part
            number, track = self.division.track_of(part), self.track(self.division.track_of(part))
            ends = (self.division.firsts[part] + (places[here] & _NUMBER) + 1) * self.settings.step
            ends = np.minimum(ends + self.settings.reach, track.total)
            blocks[here] = track.find(ends - 1) | number << _BLOCK_BITS
        return blocks


def stretches(
    order: TokenOrder, plan: Plan, worker: int = 0, workers: int = 1, skip: int = 0
) -> Iterator[list[BlockSpan]]:
    """A plan's batches as stretches of tracks, batch by batch; arguments as those of :meth:`Plan.chunks`."""
    for batches in plan.chunks(_TOGETHER, worker, workers, skip):
        places = batches[0] if len(batches) == 1 else np.concatenate(batches)
        begins = np.cumsum([0, *(len(batch) for batch in batches)])
        fresh = np.ones(places.size, dtype=bool)
        np.not_equal(places[1:], places[:-1] + 1, out=fresh[1:])
        fresh[begins[:-1]] = True
        at = np.flatnonzero(fresh)
        counts = np.diff(at, append=places.size)
        found, inside = order.locate(places[at])
        (tracks, first), (_, last) = order.split(found), order.split(order.last_block(places[at + counts - 1]))
        columns = tracks, first, last + 1, inside, counts
        made = [BlockSpan(t, (a, b), i, n) for t, a, b, i, n in zip(*(c.tolist() for c in columns), strict=True)]
        bounds = np.searchsorted(at, begins).tolist()
        yield from (made[a:b] for a, b in pairwise(bounds))
