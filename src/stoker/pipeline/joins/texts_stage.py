"""Texts to token ids after all functions of samples: a tokenizer takes those of a chunk together, and bad ones are found."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from stoker.concurrency.forks import reset_in_children
from stoker.concurrency.spans.recorder import Stage, span
from stoker.concurrency.user_code import calls_user_code, pass_exits
from stoker.display import with_article
from stoker.errors import ConfigError, TransformError
from stoker.pipeline.joins.chunk_stage import ChunkStage, Together
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.chain_steps import Step
from stoker.reading.sample_errors import transform_error
from stoker.types import Array, Batch

_AT_ONCE: Final = 64
"""Texts that a tokenizer gets at once: what it makes of many more leaves the processor's cache."""


class _NoIdsError(ValueError):
    """A tokenizer returned something else than token ids."""


class TextsStage(ChunkStage):
    """Puts token ids in the place of the texts of a column; a text that does not become ids is a bad sample.

    Args:
        step: with the column, one more than the largest id, and a function from texts to lists of ids.
    """

    def __init__(self, step: Step) -> None:
        assert step.function is not None
        self._column, self._limit = step.columns
        self._tokenize: Callable[[Sequence[str]], Sequence[Any]] = step.function
        self.after_fork()
        reset_in_children(self)

    def after_fork(self) -> None:
        """See :class:`~stoker.concurrency.forks.Forkable`: a thread of the parent may be inside of the tokenizer."""
        # Several threads read chunks, and tokenizers are often not for several at once.
        self._lock = threading.Lock()

    def make(self, together: Together) -> list[Any]:
        """See the base class. Ids are an array of integers, shape ``(tokens,)``.

        Raises:
            ConfigError: there is no such column, or the tokenizer does not give a list for each text.
        """
        column = self._column
        numbers: list[int] = []
        texts: list[str] = []
        made: list[Any] = []
        for number, sample in together.samples:
            if not isinstance(sample, dict) or column not in sample:
                has = ", ".join(map(str, sample)) if isinstance(sample, dict) else type(sample).__name__
                raise ConfigError(f"the dataset has no column {column!r}; it has {has}")
            text = sample[column]
            if isinstance(text, str):
                numbers.append(len(made))
                texts.append(text)
            else:
                holds = "null" if text is None else with_article(type(text).__name__)
                together.fail(number, self._error(f"takes text, got {holds}", together, number))
            made.append(sample)
        found = self._each(texts) if texts else []
        for at, ids in zip(numbers, found, strict=True):
            number, sample = together.samples[at]
            try:
                made[at] = {**sample, column: ids if isinstance(ids, BaseException) else _array(ids, self._limit)}
            except _NoIdsError as error:
                together.fail(number, self._error(str(error), together, number))
            if isinstance(ids, BaseException):
                told = self._error(f"raised {type(ids).__name__}: {ids}", together, number)
                told.__cause__ = ids
                together.fail(number, told)
        return made

    def columns(self, batch: Batch) -> Batch:
        """Columns with ids in the place of texts, where all are good.

        Args:
            batch: of at least one sample.

        Raises:
            Exception: a text is none, or the tokenizer raised an error: :meth:`make` tells for which.
            ConfigError: as of :meth:`make`.
        """
        if self._column not in batch:
            raise ConfigError(f"the dataset has no column {self._column!r}; it has {', '.join(batch)}")
        texts = list(batch[self._column])
        if not all(isinstance(text, str) for text in texts):
            raise TypeError("a text is none")
        with self._lock, span(Stage.TRANSFORM, len(texts)):
            found = _tokenized(self._tokenize, texts)
        return {**batch, self._column: _arrays(found, self._limit)}

    def _each(self, texts: list[str]) -> list[Any]:
        """The ids of each text, or the error of the tokenizer for it."""
        with self._lock, span(Stage.TRANSFORM, len(texts)):
            pieces = (texts[first : first + _AT_ONCE] for first in range(0, len(texts), _AT_ONCE))
            return [ids for piece in pieces for ids in _each(self._tokenize, piece)]

    def _error(self, what: str, together: Together, number: int) -> TransformError:
        return transform_error(what, together.origin(number), "the tokenizer", self._column)


@calls_user_code
def _tokenized(tokenize: Callable[[Sequence[str]], Sequence[Any]], texts: list[str]) -> list[Any]:
    made: list[Any] = []
    for first in range(0, len(texts), _AT_ONCE):
        some = texts[first : first + _AT_ONCE]
        found = tokenize(some)
        check_tokenized(found, some)
        made += found
    return made


@calls_user_code
def _each(tokenize: Callable[[Sequence[str]], Sequence[Any]], texts: list[str]) -> list[Any]:
    """The ids of each text, or the error of the tokenizer for it."""
    try:
        found = tokenize(texts)
    except BaseException as error:
        pass_exits(error)
        if not is_of_sample(error):
            raise
        if len(texts) == 1:
            return [error]
        half = len(texts) // 2
        return [*_each(tokenize, texts[:half]), *_each(tokenize, texts[half:])]
    check_tokenized(found, texts)
    return list(found)


def check_tokenized(found: Any, texts: Sequence[str]) -> None:
    """See that a tokenizer gave a list for each text.

    Raises:
        ConfigError: it gave something else.
    """
    if isinstance(found, Mapping):  # as a tokenizer of transformers does
        raise ConfigError(
            f"the tokenizer returned {with_article(type(found).__name__)} with {', '.join(map(str, found))}: expected a list "
            'of ids for each text, such as by tokenizer=lambda texts: tokenizer(texts, add_special_tokens=False)["input_ids"]'
        )
    if not hasattr(found, "__len__"):
        raise ConfigError(
            f"the tokenizer returned {with_article(type(found).__name__)}: expected a list of ids for each text"
        )
    if len(found) != len(texts):
        raise ConfigError(f"the tokenizer returned {len(found)} lists of ids for {len(texts)} texts")


def _arrays(found: Sequence[Any], limit: int) -> list[Array]:
    """The token ids of many texts as arrays; raises an error where some are none."""
    if not all(type(ids) is list for ids in found):
        return [_array(ids, limit) for ids in found]
    # All in one, which takes lists several times as fast as NumPy does.
    values: array[int] = array("q")
    bounds = [0]
    for ids in found:
        values.fromlist(ids)
        bounds.append(len(values))
    whole = np.frombuffer(values, np.int64)
    _check(whole, limit)
    return [whole[begin:end] for begin, end in pairwise(bounds)]


def _check(ids: Array, limit: int) -> None:
    """See that ids are in ``[0, limit)``."""
    if ids.size and (int(ids.min()) < 0 or int(ids.max()) >= limit):
        wrong = ids[(ids < 0) | (ids >= limit)][0]
        raise _NoIdsError(f"returned {wrong}, which is not an id in [0, {limit})")


def _array(ids: Any, limit: int) -> Array:
    """Token ids as an array.

    Raises:
        _NoIdsError: they are none.
    """
    try:
        made = np.asarray(ids)
    except (TypeError, ValueError) as error:  # such as lists of different lengths
        raise _NoIdsError(f"returned {with_article(type(ids).__name__)} that is no list of ids: {error}") from error
    if not made.size and made.ndim == 1:
        return np.zeros(0, np.int64)
    if made.ndim != 1 or made.dtype.kind not in "iu":
        raise _NoIdsError(f"returned {made.dtype} of shape {made.shape} for a text: expected token ids")
    _check(made, limit)
    return made
