"""``dataset.map(f)``, ``dataset.filter(f)`` and others: the same dataset with a further step of its chain."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

from stoker.arguments import checked
from stoker.arguments.other_libraries import OTHER_OF_MAP
from stoker.errors import ConfigError
from stoker.pipeline.epoch_reader import EpochReader
from stoker.pipeline.joins.other_dataset import OtherDataset
from stoker.reading.chain import Chain, as_chain
from stoker.reading.chain_steps import OF_OTHER, Dropped, Generator, Missing, Step
from stoker.streams.streams import Streams
from stoker.types import Batch


class ChainMethods:
    """Base of a dataset: methods that add a step to what makes its samples.

    Each gives another dataset, which shares the open shards with this one, and raises a ``ConfigError`` if this one is in the
    middle of an epoch, or if the step does not fit those before it.
    """

    known_as: ClassVar[str] = "StreamingDataset"
    """The class that messages name, of arguments that take any with these methods."""
    _epoch_reader: EpochReader
    _streams: Streams

    @property
    def chain(self) -> Chain:
        """The functions that make the samples: those of ``transform=``, and of the methods that were called since."""
        return as_chain(self._epoch_reader.settings.transform)

    @checked(**OTHER_OF_MAP)
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

    @checked(**OTHER_OF_MAP)
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

    @checked(**OTHER_OF_MAP)
    def filter(
        self, function: Callable[[Any], Any], name: str | None = None, *, dropped: Dropped = "leave_out"
    ) -> Self:
        """This dataset without the samples for which a function says no.

        Batch n is made of those that it would have without the filter; ranks take as many steps as without it, which is what
        ``len`` says; any run resumes exactly.

        Args:
            function: of a sample, to whether it is kept.
            name: of the step; default, the function's.
            dropped: ``"leave_out"``: batches are shorter. ``"replace"``: another sample of the epoch comes in its place; see
                :meth:`~stoker.reading.chain.Chain.filter`.

        Returns:
            Another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: this dataset is in the middle of an epoch, or another step has this name.
        """
        return self._with(self.chain.filter(function, name, dropped=dropped))

    @checked(**OTHER_OF_MAP)
    def flat_map(self, function: Callable[[Any], Iterable[Any]], name: str | None = None) -> Self:
        """This dataset with any number of samples, which a function makes of each.

        Batch n is made of all that comes of the samples which it would have without; ranks take as many steps.

        Args:
            function: of a sample, to a list or another iterable of samples, which may be empty.
            name: of the step; default, the function's.

        Returns:
            Another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: this dataset is in the middle of an epoch, or another step has this name.
        """
        return self._with(self.chain.flat_map(function, name))

    @checked(**OTHER_OF_MAP)
    def batch_map(self, function: Callable[[Batch], Batch], name: str | None = None) -> Self:
        """This dataset with a function of its batches, called once for each, before arrays become tensors.

        Args:
            function: of a dict from column name to array of shape ``(n, ...)`` or list of n values, to another such dict; see
                :meth:`~stoker.reading.chain.Chain.batch_map`.
            name: of the step; default, the function's.

        Returns:
            Another dataset, which delivers batches alone: ``batches()``, or a ``StreamingDataLoader`` over it, which reads
            whole columns.

        Raises:
            ConfigError: this dataset is in the middle of an epoch, or another step has this name.
        """
        return self._with(self.chain.batch_map(function, name))

    @checked
    def rename(self, columns: Mapping[str, str]) -> Self:
        """This dataset with other names of columns; see :meth:`~stoker.reading.chain.Chain.rename`.

        Args:
            columns: from old names to new ones.

        Returns:
            Another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: this dataset is in the middle of an epoch, there is no such column, or two would have one name.
        """
        return self._with(self.chain.rename(columns))

    @checked(columns="samples are chosen by subset=KeepIds(ids) of the constructor")
    def select(self, columns: Sequence[str]) -> Self:
        """This dataset with some of its columns; see :meth:`~stoker.reading.chain.Chain.select`.

        Args:
            columns: their names. Others are not decoded, unless a function before this step may need them.

        Returns:
            Another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: this dataset is in the middle of an epoch, or there is no such column.
        """
        return self._with(self.chain.select(columns))

    @checked
    def enumerate(self, column: str = "position") -> Self:
        """This dataset with the position of each sample in the epoch as a column.

        Args:
            column: its name; values are ``numpy.int64``, from 0, the same on any world and after any resume.

        Returns:
            Another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: this dataset is in the middle of an epoch, or has such a column.
        """
        return self._with(self.chain.enumerate(column))

    @checked
    def zip(self, other: ChainMethods, *, name: str | None = None, prefix: str = "") -> Self:
        """This dataset with the columns of another: those of its sample i beside those of sample i here.

        The order, its steps, ids and random numbers stay those of this dataset.

        >>> images.zip(embeddings).batches()                   # doctest: +SKIP

        Args:
            other: a dataset of as many samples, numbered as they are stored: how it shuffles does not matter, and what was
                iterated of it neither. What its chain makes of a sample comes, and its columns= and select() hold.
            name: what states and messages call it; default, the name of its stream.
            prefix: begins the names of its columns here.

        Returns:
            Another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: the datasets have different lengths, or a column of one name; the other has subset=, filter() or
                another step that does not give one sample for each, or a subclass makes its samples; this dataset is in the
                middle of an epoch, or another step has this name.
        """
        return self._with(self.chain.zip(other, name=name, prefix=prefix))

    @checked
    def join(
        self,
        other: ChainMethods,
        on: str | Sequence[str],
        *,
        missing: Missing = "raise",
        name: str | None = None,
        prefix: str = "",
    ) -> Self:
        """This dataset with the columns of that sample of another which has the same key.

        The order, its steps, ids and random numbers stay those of this dataset.

        >>> images.join(captions, on="id", missing="leave_out")   # doctest: +SKIP

        Args:
            other: a dataset; see :meth:`zip`.
            on: the column of keys: integers, text or bytes; or two names, that here and that of the other dataset.
            missing: what becomes of a sample whose key the other dataset has not: ``"raise"``: it is a bad sample;
                ``"leave_out"``: it is left out, as by :meth:`filter`; ``"none"``: its columns are ``None``. See
                :meth:`~stoker.reading.chain.Chain.join`.
            name: what states and messages call it; default, the name of its stream.
            prefix: begins the names of its columns here.

        Returns:
            Another dataset, which shares the open shards with this one.

        Raises:
            ConfigError: two samples of the other dataset have one key: names both; there is no such column; and as for
                :meth:`zip`.
        """
        return self._with(self.chain.join(other, on, missing=missing, name=name, prefix=prefix))

    def as_other(self, method: str) -> OtherDataset:
        """This dataset as a zip or join of another one reads it.

        Args:
            method: ``"zip"`` or ``"join"``, for messages.

        Raises:
            ConfigError: it does not give one sample for each of its own.
        """
        self._check_beside(method)
        reader = self._epoch_reader
        unfit = next((step for step in self.chain.steps if step.kind not in OF_OTHER or step.changes_counts), None)
        if unfit is not None:
            raise ConfigError(
                f"{method}() takes a sample of the other dataset for each of this one, and its {unfit.told} does not give "
                f"one for each, or needs a batch or an order: call it after {method}()"
            )
        return OtherDataset(self._streams, reader.pool, reader.settings)

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
    chain = dataset.chain
    if dataset._epoch_reader.settings.bad_samples is None or chain.has("batch_map"):
        return None
    return dataset._with(
        Chain((*chain.steps, Step("tokenize", "tokenizer of an LMStream", tokenize, columns=(column, limit))))
    )
