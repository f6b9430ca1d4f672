"""The run of a reader from a position on, and whether the epoch has anything for it."""

from __future__ import annotations

import logging
from dataclasses import replace

from stoker.errors import ConfigError, StateError
from stoker.order.protocols import Plan
from stoker.order.sample_order import DataRank, EpochPosition, Run, SampleOrder

logger = logging.getLogger(__name__)


def run_from(sample_order: SampleOrder, point: EpochPosition, data_rank: DataRank) -> Run:
    """The samples of a reader from ``point`` to the end of its epoch.

    Raises:
        StateError: this world can not resume from a state at ``point``; says why.
        ConfigError: settings that do not go together, or an epoch whose samples are all left out.
    """
    try:
        run = sample_order.run(point, data_rank)
    except ConfigError as error:
        if not point.position:
            raise
        raise StateError(
            f"the state was taken at position {point.position} of epoch {point.epoch}, from which {data_rank.world_size} "
            f"ranks with batch_size {data_rank.batch_size} can not resume: {error}"
        ) from error
    check_not_empty(sample_order, point, run, data_rank)
    return run


def others_have_more(plan: Plan) -> bool:
    """Whether other ranks still have batches when this one has taken all of its own."""
    return plan.position_after(len(plan)) < plan.end


def check_not_empty(sample_order: SampleOrder, point: EpochPosition, run: Run, data_rank: DataRank) -> None:
    """Check that an epoch which begins has something for some rank; otherwise a loop over epochs would never end.

    Raises:
        ConfigError: all of its samples are left out. If it has none at all, that is logged.
    """
    if point.position or len(run.plan):
        return
    if not sample_order.epoch_size:
        logger.warning(
            "epoch %d has no samples: there are none in the dataset, or subset=, filters= or the streams' weights leave none",
            point.epoch,
        )
    elif not len(sample_order.run(point, replace(data_rank, rank=run.plan.longest)).plan):
        raise ConfigError(
            f"epoch {point.epoch} has no batch for any of {data_rank.world_size} ranks with batch_size "
            f"{data_rank.batch_size}: what does not fill a batch of every rank is left out (by remainder='drop' or "
            "batching_method=), or what does not fill a row of tokens. Use a smaller batch_size, fewer ranks or more "
            "samples, remainder='pad', or pad_id="
        )
