"""``dataset.map(f)``, ``dataset.filter(f)`` and others: the same dataset with a further step of its chain."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

from stoker.errors import ConfigError
from stoker.lazy import shadowed, told
from stoker.pipeline.epoch_reader import EpochReader
from stoker.pipeline.joins.other_dataset import OtherDataset
from stoker.reading.chain import Chain, as_chain
from stoker.reading.step_methods import OtherSource, StepMethods
from stoker.reading.steps import Step, TokenizeColumn
from stoker.streams.streams import Streams


class ChainMethods(StepMethods, OtherSource):
    """Base of a dataset: methods that add a step to what makes its samples, and by which it comes beside another one."""

    _epoch_reader: EpochReader
    _streams: Streams

    @shadowed
    def chain(self) -> Chain:
        """The functions that make the samples: those of ``transform=``, and of the methods that were called since."""
        return as_chain(self._epoch_reader.settings.transform)

    def _and(self, step: Step) -> Self:
        if step.other is not None:
            self._check_agreement(step.told)
        return self._with(Chain((*told(self, "chain").steps, step)))

    def as_other(self, method: str) -> OtherDataset:
        """See the base class."""
        self._check_beside(method)
        reader = self._epoch_reader
        unfit = next((step for step in told(self, "chain").steps if not step.makes_one), None)
        if unfit is not None:
            raise ConfigError(
                f"{method}() takes a sample of the other dataset for each of this one, and its {unfit.told} does not give "
                f"one for each, or needs a batch or an order: call it after {method}()"
            )
        return OtherDataset(self._streams, reader.pool, reader.settings)

    def _check_agreement(self, reader: str) -> None:
        """See that all shards have the same columns, which ``reader`` reads."""
        raise NotImplementedError

    def _check_beside(self, method: str) -> None:
        """See that all samples of this dataset can come beside those of another."""
        raise NotImplementedError

    def _with(self, chain: Chain) -> Self:
        reader = self._epoch_reader
        if reader.begun:
            raise ConfigError(
                f"this {type(self).__name__} has begun an epoch or loaded a state, and a further step gives a dataset that "
                "begins anew: call map(), filter() and other steps first, then iterate or load the state"
            )
        made = copy.copy(self)
        made._epoch_reader = reader.with_settings(replace(reader.settings, transform=chain))
        return made


def tokenized(
    dataset: ChainMethods, column: str, tokenize: Callable[[Sequence[str]], Sequence[Any]], limit: int
) -> ChainMethods | None:
    """A dataset with token ids in the place of texts, where texts that do not become ids are bad samples.

    Args:
        dataset: with the texts.
        column: of them.
        tokenize: from texts to as many lists of ids.
        limit: one more than the largest id.

    Returns:
        Another dataset; ``None`` where bad samples are errors, or where the texts are made of whole batches.

    Raises:
        ConfigError: the dataset is in the middle of an epoch.
    """
    chain = told(dataset, "chain")
    if dataset._epoch_reader.settings.bad_samples is None or chain.has("batch_map"):
        return None
    return dataset._with(Chain((*chain.steps, TokenizeColumn("tokenizer of an LMStream", tokenize, column, limit))))
