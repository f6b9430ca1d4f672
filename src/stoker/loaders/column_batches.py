"""The items that a DataLoader gets of a dataset: batches of columns, or samples with a place for each that is left out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterableDataset

from stoker.cluster.outer_division import REMEDY, outer_division
from stoker.concurrency.spans.recorder import Stage, span
from stoker.errors import ConfigError, TransformError
from stoker.loaders.dataset import StreamingDataset
from stoker.pipeline.batch_groups import BatchGroup, to_message
from stoker.pipeline.collate import as_tensors
from stoker.reading.steps import LEFT_OUT, SeveralSamples
from stoker.types import Batch


def to_send(found: Batch | BatchGroup) -> Any:
    """Batches as a worker sends them."""
    with span(Stage.SEND):
        return to_message(found) if isinstance(found, BatchGroup) else as_tensors(found)


class ColumnBatches(IterableDataset[Batch | BatchGroup]):
    """A dataset's batches as the items of a DataLoader that does not batch.

    ``full_only`` is for trainers that make a DataLoader of their own over this; a ``StreamingDataLoader`` counts by itself.
    """

    def __init__(self, dataset: StreamingDataset, *, full_only: bool) -> None:
        self._dataset = dataset
        self._full_only = full_only
        self._grouped = False

    @contextlib.contextmanager
    def grouping(self) -> Iterator[None]:
        """Let the workers that are started inside send groups of batches, all of them whatever their lengths."""
        self._grouped = True
        try:
            yield
        finally:
            self._grouped = False

    def __iter__(self) -> Iterator[Batch | BatchGroup]:
        if self._grouped:
            if self._dataset.overrides("batches"):
                # One length alone cuts nothing: a subclass may give values that have none.
                return (BatchGroup(batch, [1]) for batch in self._dataset.batches())
            return self._dataset.batch_groups()
        batches = self._dataset.batches()
        if not self._full_only:
            return batches
        division = outer_division()
        if division is not None:
            raise ConfigError(
                f"{division.wrapper} is not told of drop_last=True with columnar=True: use remainder='drop' of the dataset, "
                f"or {REMEDY}"
            )
        return (batch for batch in batches if len(next(iter(batch.values()))) == self._dataset.batch_size)

    def set_epoch(self, epoch: int) -> None:
        self._dataset.set_epoch(epoch)


class SamplesInPlaces(IterableDataset[Any]):
    """A dataset's samples as the items of a DataLoader, in which something stands for each sample that is left out.

    So each batch is of the positions that it would have if none were, and steps are as many. :class:`CollatePresent` takes
    the places out again.
    """

    def __init__(self, dataset: StreamingDataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return self._dataset.samples_in_places()

    def set_epoch(self, epoch: int) -> None:
        self._dataset.set_epoch(epoch)


class CollatePresent:
    """Collates what is left of a batch.

    Args:
        of_none: whether it may make one of none: it is the user's, who knows what a step without samples is.
    """

    def __init__(self, collate: Callable[[list[Any]], Any], *, of_none: bool) -> None:
        self._collate, self._of_none = collate, of_none

    def __call__(self, samples: list[Any]) -> Any:
        """The batch.

        Raises:
            TransformError: nothing is left of it.
        """
        present: list[Any] = []
        for sample in samples:
            if isinstance(sample, SeveralSamples):
                present += sample
            elif sample is not LEFT_OUT:
                present.append(sample)
        if present:
            return self._collate(present)
        reason: Exception | None = None
        if self._of_none:
            try:
                return self._collate(present)
            except Exception as error:  # noqa: BLE001 - the user's
                reason = error
        told = "" if reason is None else f" ({type(reason).__name__}: {reason})"
        raise TransformError(
            f"all {len(samples)} samples of a batch are bad or filtered, so that nothing is left of it: use "
            "on_bad_sample='replace' or filter(dropped='replace'), columnar=True, whose batches may be empty, or a "
            f"collate_fn= that makes a batch of an empty list{told}"
        ) from reason
