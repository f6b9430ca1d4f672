"""``dataset.map(f)`` and ``dataset.random_map(f)``: the same dataset with another chain of functions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Self

from stoker.arguments import checked
from stoker.errors import ConfigError
from stoker.pipeline.epoch_reader import EpochReader
from stoker.reading.chain import Chain, Generator

_TRANSFORM = "transform"


class ChainMethods:
    """Base of a dataset: methods that add a function to what makes its samples."""

    _epoch_reader: EpochReader

    @property
    def chain(self) -> Chain:
        """The functions that make the samples: those of ``transform=``, and of the methods that were called since."""
        found = self._epoch_reader.settings.transform
        if isinstance(found, Chain):
            return found
        return Chain() if found is None else Chain().map(found, _TRANSFORM)

    @checked
    def map(self, function: Callable[[Any], Any], name: str | None = None) -> Self:
        """This dataset with a further function of its samples; see :meth:`~stoker.reading.chain.Chain.map`.

        Args:
            function: of a sample.
            name: of the step; default, the function's.

        Returns:
            Another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: this dataset is in the middle of an epoch, or another step has this name.
        """
        return self._with(self.chain.map(function, name))

    @checked
    def random_map(
        self, function: Callable[[Any, Any], Any], name: str | None = None, *, generator: Generator = "numpy"
    ) -> Self:
        """This dataset with a further function of its samples and random numbers, which belong to the sample.

        Args:
            function: of a sample and a generator; see :meth:`~stoker.reading.chain.Chain.random_map`.
            name: of the step; default, the function's.
            generator: ``"numpy"`` or ``"torch"``.

        Returns:
            Another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: this dataset is in the middle of an epoch, or another step has this name.
        """
        return self._with(self.chain.random_map(function, name, generator=generator))

    def _with(self, chain: Chain) -> Self:
        reader = self._epoch_reader
        if reader.begun:
            raise ConfigError(
                f"this {type(self).__name__} has begun an epoch or loaded a state, and map() gives a dataset that begins "
                "anew: call map() and random_map() first, then iterate or load the state"
            )
        made = copy.copy(self)
        made._epoch_reader = reader.with_settings(replace(reader.settings, transform=chain))
        return made
