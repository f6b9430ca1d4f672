"""The files and the rows of a rank of a token order, and what is told of them."""

from __future__ import annotations

import logging

from stoker.order.part_plan import PartPlan
from stoker.order.sample_order import DataRank, EpochPosition, Plan
from stoker.tokens.order.division import PartFiles, TokenDivision
from stoker.tokens.order.token_order import TokenSampleOrder

logger = logging.getLogger(__name__)

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
        logger.warning(
            "epoch %d: %d of %d rows are left out, so that all %d ranks take the same number of full batches",
            position.epoch,
            getattr(plan, "tail", 0),
            plan.end - position.position,
            plan.world_size,
        )
