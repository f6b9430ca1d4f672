"""The samples that a run leaves out: in each epoch by as many lines of the quarantine as its first process found."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial

from stoker.order.left_out import run_without
from stoker.order.sample_order import Run
from stoker.pipeline.state.epoch_counter import EpochClock, Pin
from stoker.reading.sample_errors import url_of_shard
from stoker.reading.shard_pool import ShardPool
from stoker.streams.quarantine import Mark, Quarantine

logger = logging.getLogger(__name__)


class PinnedQuarantine:
    """A quarantine of which each epoch has pinned the part that holds.

    Args:
        quarantine: names the samples.
        pool: holds them.
        clock: what processes that share it have pinned.
    """

    def __init__(self, quarantine: Quarantine, pool: ShardPool, clock: EpochClock) -> None:
        self.quarantine = quarantine
        self._pool = pool
        self._clock = clock

    def pin(self, epoch: int, loads: int, agree: Callable[[str, str], str] | None = None) -> None:
        """Read the list of samples to leave out, where no process that shares the clock has done so for an epoch.

        Args:
            epoch: its number.
            loads: how many states were loaded, by which ranks tell their questions apart.
            agree: makes ranks agree on a text, given its name.

        Raises:
            ConfigError: the list has changed otherwise than at its end, or this rank has another one than others.
        """
        quarantine = self.quarantine

        def read(last: Pin | None) -> Pin:
            mark = quarantine.newest(last and Mark(*last))
            if agree is not None:
                mark = Mark(*json.loads(agree(f"{epoch}/{loads}/quarantine", json.dumps([mark.lines, mark.digest]))))
                quarantine.check(mark)
            logger.info("epoch %d is without the samples of %s: %s", epoch, quarantine.told, mark.as_dict())
            return mark.lines, mark.digest

        self._clock.pin(epoch, read)

    def mark(self, epoch: int) -> Mark | None:
        """The part that holds in an epoch, or did in the one that was pinned last; ``None`` where none was."""
        pin = self._clock.pinned(epoch)
        return None if pin is None else Mark(*pin)

    def run_without(self, run: Run, epoch: int) -> Run:
        """A run of an epoch without the samples in quarantine."""
        table = self._pool.index.table
        mark = None if self._clock.begins(epoch) else self.mark(epoch)
        return run_without(run, table, self.quarantine.left_out(table, partial(url_of_shard, self._pool), epoch, mark))
