"""Samples that a process delivers to a wrapper that divides them; see :mod:`stoker.cluster.outer_division`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NoReturn

from stoker.cluster import LoaderWorker
from stoker.cluster.outer_division import REMEDY, OuterDivision
from stoker.errors import ConfigError
from stoker.order.sample_order import Plan
from stoker.types import Ids


@dataclass(frozen=True, slots=True)
class OuterPlan:
    """The global batches of a plan, as a wrapper's loader asks for them.

    ``whole``: the global batches, of all ranks. ``division``: what the wrapper does with them.
    """

    whole: Plan
    division: OuterDivision

    @property
    def batch_size(self) -> int:
        """Samples in a full batch that the loader asks for."""
        return self.whole.batch_size // self.division.requests

    def chunks(self, samples: int, worker: int = 0, workers: int = 1, skip: int = 0) -> Iterator[list[Ids]]:
        """See :meth:`stoker.order.sample_order.Plan.chunks`. Of batches that the wrapper cuts, the parts that it keeps."""
        if self.division.kept is not None:
            return self._kept(samples, worker, workers, skip)
        return self._requested(samples, worker, workers, skip)

    def _requested(self, samples: int, worker: int, workers: int, skip: int) -> Iterator[list[Ids]]:
        size, number = self.batch_size, 0
        for batches in self.whole.chunks(samples * workers):
            mine = []
            for batch in batches:
                for begin in range(0, len(batch), size):
                    if number % workers == worker and number // workers >= skip:
                        mine.append(batch[begin : begin + size])
                    number += 1
            if mine:
                yield mine

    def _kept(self, samples: int, worker: int, workers: int, skip: int) -> Iterator[list[Ids]]:
        kept, first = _slice(self.whole, self.division), True
        for batches in self.whole.chunks(samples, worker, workers, skip):
            # A wrapper fills its last batch with samples of the first that it has seen, so that both come whole.
            cut = [batch[kept] if len(batch) == self.whole.batch_size else batch for batch in batches]
            yield [batches[0], *cut[1:]] if first else cut
            first = False


def keep_own_slice(samples: Iterator[Any], plan: Plan, division: OuterDivision, worker: LoaderWorker) -> Iterator[Any]:
    """The samples of :class:`OuterPlan`, with a stand-in for each that the wrapper throws away in this process."""
    kept = _slice(plan, division)
    before: list[Any] = [_PLACEHOLDER] * kept.start
    after: list[Any] = [_PLACEHOLDER] * (plan.batch_size - kept.stop)
    full = len(range(worker.number, plan.full_batches, worker.count))
    yield from islice(samples, plan.batch_size)
    for _ in range(full - 1):
        yield from before
        yield from islice(samples, kept.stop - kept.start)
        yield from after
    yield from samples


def repeated_by_wrapper(plan: Plan, division: OuterDivision) -> int:
    """Samples that the wrapper repeats to divide the last, partial global batch equally."""
    tail = plan.samples - plan.full_batches * plan.batch_size
    if not division.fills or not tail:
        return 0
    # IterableDatasetShard makes a full batch of it, DataLoaderDispatcher the same number of samples for each rank.
    return -tail % (division.ranks if division.sends else plan.batch_size)


def _slice(plan: Plan, division: OuterDivision) -> slice:
    each, kept = plan.batch_size // division.ranks, division.kept or 0
    return slice(kept * each, (kept + 1) * each)


class Placeholder:
    """Stands for a sample that a wrapper keeps on another rank, and throws away on this one; any use is an error."""

    __slots__ = ()

    def _refuse(self, *_: object) -> NoReturn:
        raise ConfigError(f"a sample of another rank was not thrown away by the wrapper that divides them: {REMEDY}")

    __getitem__ = __iter__ = __reduce__ = _refuse


_PLACEHOLDER: Final = Placeholder()
