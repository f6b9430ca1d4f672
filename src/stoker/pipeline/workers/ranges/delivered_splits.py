"""``Ledger``: the samples of each split that a worker has delivered, and those of them that it has committed."""

from __future__ import annotations

import logging
import time
from typing import Final

from stoker.concurrency.shared.counters import Count, Counts
from stoker.coordination import LeasedSplit, LeaseLostError, RefusedRange

_log = logging.getLogger(__name__)

# Commits are asked for so often, in seconds; each wakes a thread.
_COMMIT_EVERY: Final = 0.05


class Ledger:
    """Splits that were delivered from, by the consumer's thread.

    ``lost``: splits whose lease was lost. ``refused``: what was delivered, and lost before it was committed.
    """

    def __init__(self, counts: Counts) -> None:
        self.lost: set[LeasedSplit] = set()
        self.refused: list[RefusedRange] = []
        self._counts = counts
        self._delivered: dict[LeasedSplit, int] = {}
        self._done: dict[LeasedSplit, int] = {}
        self._requested: dict[LeasedSplit, int] = {}
        self._unsettled: dict[LeasedSplit, int] = {}  # of what was asked for, what is neither committed nor refused
        self._requested_at = 0.0

    @property
    def uncommitted(self) -> int:
        """Samples that were delivered and not asked to be committed."""
        return sum(end - self._requested.get(split, split.begin) for split, end in self._delivered.items())

    def knows(self, split: LeasedSplit) -> bool:
        """Whether some of a split was delivered."""
        return split in self._delivered

    def deliver(self, split: LeasedSplit, end: int) -> bool:
        """Note that the samples before position ``end`` are about to be delivered; ``False`` if they must not be."""
        if split in self.lost:
            return False
        try:
            split.deliver(end)
        except LeaseLostError:
            self._lose(split)
            return False
        self._delivered[split] = end
        return True

    def pass_over(self, split: LeasedSplit, begin: int, end: int) -> bool:
        """Note that of the positions ``[begin, end)`` nothing is delivered; ``False`` if they are others'.

        They are done as soon as all before them in their split is: nobody is told of them, who could say that they are.
        """
        if not self.deliver(split, end):
            return False
        if self._done.get(split, split.begin) == begin:
            self._done[split] = end
        return True

    def done(self) -> None:
        """Note that all that was delivered is done. Its commit is asked for every now and then, and where a split ends."""
        if not self._delivered:
            return
        self._done.update(self._delivered)
        moment = time.monotonic()
        late = moment - self._requested_at > _COMMIT_EVERY
        for split, end in list(self._delivered.items()):
            if late or end == split.end:
                self._requested_at = moment
                self._request(split, end)
        if late:
            self.settle()

    def settle(self) -> None:
        """Note which commits that were asked for are acknowledged by now, and which leases are lost."""
        for split, end in list(self._unsettled.items()):
            if split.committed >= end:
                del self._unsettled[split]
        for split in {**self._unsettled, **self._delivered}:
            if split.lost:
                self._lose(split)

    def commit(self) -> None:
        """Ask for all that is done to be committed."""
        for split, end in list(self._done.items()):
            self._request(split, end)

    def _request(self, split: LeasedSplit, end: int) -> None:
        if end > self._requested.get(split, split.begin):
            try:
                split.commit(end)
            except LeaseLostError:
                self._lose(split)
                return
            self._requested[split] = self._unsettled[split] = end
        if end == split.end:
            self._forget(split)

    def give_up(self, split: LeasedSplit, reason: str) -> None:
        """Give back what was not asked to be committed of a split; what was delivered of that is others', too."""
        begin = self._requested.get(split, split.begin)
        if self._delivered.get(split, begin) > begin:
            self.refused.append(RefusedRange(begin, self._delivered[split], token=split.token))
        split.give_up(reason)
        self._forget(split)

    def _lose(self, split: LeasedSplit) -> None:
        self.lost.add(split)
        self._counts.add(Count.LEASES_LOST, 1)
        begin = split.committed
        end = max(self._delivered.get(split, begin), self._unsettled.pop(split, begin))
        if end > begin:
            self._counts.add(Count.DELIVERED_AGAIN, end - begin)
            self._counts.add(Count.COMMITS_REFUSED, 1)
            self.refused.append(RefusedRange(begin, end, token=split.token))
            _log.warning(
                "a lease was lost: positions [%d, %d) of the epoch were delivered, not committed, and are others' now",
                begin,
                end,
            )
        self._forget(split)

    def _forget(self, split: LeasedSplit) -> None:
        self._delivered.pop(split, None)
        self._done.pop(split, None)
        self._requested.pop(split, None)
