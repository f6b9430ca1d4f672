"""Tokenizing: ids in the place of the texts of a column; a text that does not become ids is a bad sample."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np

from stoker.concurrency.forks import ProcessLock
from stoker.concurrency.spans.recorder import Stage, span
from stoker.concurrency.user_code import calls_user_code, pass_exits
from stoker.display import with_article
from stoker.errors import ConfigError, SampleError, TransformError
from stoker.formats.unstacked import rows_of
from stoker.pipeline.chunks.chunk import Chunk
from stoker.pipeline.stages.stage import Numbered, SamplesStage
from stoker.reading.bad_samples import is_of_sample
from stoker.reading.row_reader import Rows
from stoker.reading.sample_errors import transform_error
from stoker.reading.steps import TokenizeColumn
from stoker.types import Array

_AT_ONCE: Final = 64
"""Texts that a tokenizer gets at once: what it makes of many more leaves the processor's cache."""


class _NoIdsError(ValueError):
    """A tokenizer returned something else than token ids."""


class Tokenize(SamplesStage):
    """Makes ids of the texts of a column, of columns or of samples: an array of integers, shape ``(tokens,)``, of each.

    ``reader``: of the samples. ``step``: with the column, one more than the largest id, and a function from texts to lists of
    ids.
    """

    def __init__(self, reader: Rows, step: TokenizeColumn) -> None:
        self._reader, self._column, self._limit, self._tokenize = reader, step.column, step.limit, step.function
        # Several threads read chunks, and tokenizers are often not for several at once.
        self._lock = ProcessLock()

    def apply(self, chunk: Chunk) -> Chunk:
        """See the base class. ConfigError if there is no such column, or the tokenizer does not give a list for each text."""
        columns = chunk.values
        if not isinstance(columns, dict):
            return super().apply(chunk)
        if not columns:
            return chunk
        self._check(columns)
        places = chunk.places
        bad: dict[int, SampleError] = {}
        made = self._arrays(chunk, list(zip(places.tolist(), columns[self._column], strict=True)), bad)
        if not bad:
            return replace(chunk, values={**columns, self._column: made})
        good = np.array([number for number, place in enumerate(places.tolist()) if place not in bad], np.int64)
        found = {name: rows_of(column, good) for name, column in columns.items()}
        return chunk.with_bad(bad, {**found, self._column: [made[number] for number in good.tolist()]}, places[good])

    def make(self, chunk: Chunk, samples: Sequence[Numbered], bad: dict[int, SampleError]) -> list[Any]:
        """See the base class."""
        for _, sample in samples:
            self._check(sample)
        made = self._arrays(chunk, [(place, sample[self._column]) for place, sample in samples], bad)
        return [{**sample, self._column: ids} for (_, sample), ids in zip(samples, made, strict=True)]

    def _check(self, columns: Any) -> None:
        if not isinstance(columns, dict) or self._column not in columns:
            has = ", ".join(map(str, columns)) if isinstance(columns, dict) else type(columns).__name__
            raise ConfigError(f"the dataset has no column {self._column!r}; it has {has}")

    def _arrays(self, chunk: Chunk, texts: Sequence[tuple[int, Any]], bad: dict[int, SampleError]) -> list[Any]:
        """The ids of each text, by place."""

        def fail(place: int, what: str, cause: BaseException | None = None) -> None:
            told = self._error(what, chunk, place)
            told.__cause__ = cause
            bad.setdefault(place, told)

        made: list[Any] = [None] * len(texts)
        numbers = [number for number, (_, text) in enumerate(texts) if isinstance(text, str)]
        if len(numbers) < len(texts):
            for place, text in texts:
                if not isinstance(text, str):
                    fail(place, f"takes text, got {'null' if text is None else with_article(type(text).__name__)}")
        if not numbers:
            return made
        with self._lock, span(Stage.TRANSFORM, len(numbers)):
            given = [texts[number][1] for number in numbers]
            pieces = (given[first : first + _AT_ONCE] for first in range(0, len(given), _AT_ONCE))
            found = [ids for piece in pieces for ids in _each(self._tokenize, piece)]
        if len(numbers) == len(texts) and all(type(ids) is list for ids in found):
            try:
                return _joined(found, self._limit)
            except (_NoIdsError, TypeError, OverflowError):  # which one it is, is told below
                pass
        for number, ids in zip(numbers, found, strict=True):
            place = texts[number][0]
            if isinstance(ids, BaseException):
                fail(place, f"raised {type(ids).__name__}: {ids}", ids)
                continue
            try:
                made[number] = _array(ids, self._limit)
            except _NoIdsError as error:
                fail(place, str(error))
        return made

    def _error(self, what: str, chunk: Chunk, place: int) -> TransformError:
        origin = self._reader.origin(chunk.shards, chunk.rows, place)
        return transform_error(what, origin, "the tokenizer", self._column)


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
    """See that a tokenizer gave a list for each text. ConfigError if it gave something else."""
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
        raise ConfigError(f"the tokenizer returned {len(found)} lists of ids for {len(texts)} texts, not one each")


def _joined(found: Sequence[list[int]], limit: int) -> list[Array]:
    """The token ids of many texts as arrays, all in one: it takes lists several times as fast as NumPy does."""
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
    """Token ids as an array. _NoIdsError if they are none."""
    try:
        made = np.asarray(ids)
    except (TypeError, ValueError) as error:  # such as lists of different lengths
        raise _NoIdsError(f"returned {with_article(type(ids).__name__)} that is not a list of ids: {error}") from error
    if not made.size and made.ndim == 1:
        return np.zeros(0, np.int64)
    if made.ndim != 1 or made.dtype.kind not in "iu":
        raise _NoIdsError(f"returned {made.dtype} of shape {made.shape} for a text: expected token ids")
    _check(made, limit)
    return made
