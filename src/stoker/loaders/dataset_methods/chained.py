"""``dataset.map(f)``, ``dataset.filter(f)`` and others: the same dataset with a further step of its chain."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from stoker.errors import ConfigError
from stoker.lazy import shadowed, told
from stoker.loaders.dataset_methods.opened import SAMPLE_METHODS, DatasetBase
from stoker.reading.chain import Chain, as_chain
from stoker.reading.step_methods import OtherSource, StepMethods
from stoker.reading.steps import Step, TokenizeColumn

if TYPE_CHECKING:
    from stoker.pipeline.joins.other_dataset import OtherDataset


class ChainMethods(StepMethods, OtherSource, DatasetBase):
    """Base of a dataset: methods that add a step to what makes its samples, and by which it comes beside another one."""

    @shadowed
    def chain(self) -> Chain:
        """The functions that make the samples: those of ``transform=``, and of the methods that were called since."""
        return as_chain(self._opened.reader.settings.transform)

    def _and(self, step: Step) -> Self:
        if step.other is not None:
            self._opened.check_agreement(step.told)
        return self._with(Chain((*told(self, "chain").steps, step)))

    def as_other(self, method: str) -> OtherDataset:
        """See the base class."""
        self._opened.check_agreement(f"{method}() with it")
        reader = self._opened.reader
        if made := self.overrides(*SAMPLE_METHODS):
            raise ConfigError(
                f"{method}() would not call {made[0]}() of the other dataset's class, which makes its samples: move that "
                "code to a function, StreamingDataset(transform=...)"
            )
        subset = any("subset" in stream for stream in reader.sample_order.as_dict()["streams"].values())
        if subset or reader.quarantine is not None:
            raise ConfigError(
                f"{method}() takes samples of all of the other dataset, which has {'subset' if subset else 'quarantine'}=: "
                "leave it out there, and choose samples of this one"
            )
        unfit = next((step for step in told(self, "chain").steps if not step.makes_one), None)
        if unfit is not None:
            raise ConfigError(
                f"{method}() takes a sample of the other dataset for each of this one, and its {unfit.told} does not give "
                f"one for each, or needs a batch or an order: call it after {method}()"
            )
        from stoker.pipeline.joins.other_dataset import OtherDataset

        return OtherDataset(self._opened.streams, reader.pool, reader.settings)

    def _with(self, chain: Chain) -> Self:
        reader = self._opened.reader
        if reader.begun:
            raise ConfigError(
                f"this {type(self).__name__} has begun an epoch or loaded a state, and a further step gives a dataset that "
                "starts from the beginning: call map(), filter() and other steps first, then iterate or load the state"
            )
        made = copy.copy(self)
        settings = replace(reader.settings, transform=chain)
        made._opened = replace(self._opened, reader=reader.with_settings(settings))
        return made


def tokenized(
    dataset: ChainMethods, column: str, tokenize: Callable[[Sequence[str]], Sequence[Any]], limit: int
) -> ChainMethods | None:
    """A dataset with token ids in the place of texts, where texts that do not become ids are bad samples.

    Args:
        tokenize: from texts to as many lists of ids.
        limit: one more than the largest id.

    Returns:
        Another dataset; ``None`` where bad samples are errors, or where the texts are made of whole batches.

    Raises:
        ConfigError: the dataset is in the middle of an epoch.
    """
    chain = told(dataset, "chain")
    if dataset.epoch_reader.settings.bad_samples is None or chain.takes_batch:
        return None
    return dataset._with(Chain((*chain.steps, TokenizeColumn("tokenizer of an LMStream", tokenize, column, limit))))
