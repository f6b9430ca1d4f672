"""Token ids of the documents in a column of a dataset's batches, which a tokenizer makes of texts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from numpy.typing import DTypeLike

from stoker.arguments import must_know
from stoker.concurrency.user_code import pass_exits
from stoker.errors import ConfigError, TransformError
from stoker.pipeline.stages.tokenize import check_tokenized
from stoker.tokens.sources.ragged import Ragged
from stoker.types import Batch

Tokenize: TypeAlias = Callable[[Sequence[str]], Sequence[Any]]
"""A function from texts to a list of ids for each."""


class DocumentColumn:
    """A column of token ids, or of texts.

    ``tokenize`` is for texts; without it the column holds ids, of ``dtype`` where they are ``bytes``.
    """

    def __init__(self, name: str, tokenize: Tokenize | None, dtype: DTypeLike | None) -> None:
        self._name, self._tokenize, self._dtype = name, tokenize, dtype

    def documents(self, batch: Batch, first: int) -> Ragged:
        """The ids of a batch's documents; ``first`` is the number of the first in this rank's iteration."""
        if not batch:  # all of its samples were left out, and none was read before
            return Ragged.of([])
        must_know("the dataset's column", [self._name], batch)
        column: Any = batch[self._name]
        if self._tokenize is not None:
            for number, text in enumerate(column, first):
                if not isinstance(text, str):
                    raise ConfigError(
                        f"document {number} of this rank's iteration: column {self._name!r} holds "
                        f"{'null' if text is None else f'a value of type {type(text).__name__}'}, and a tokenizer takes "
                        "text: make text of it by the dataset's transform=, or leave such samples out by subset="
                    )
            column = _tokenized(self._tokenize, column, first)
        return Ragged.of(column, dtype=self._dtype, name=self._name)


def _tokenized(tokenize: Tokenize, texts: list[str], first: int) -> Sequence[Any]:
    try:
        found = tokenize(texts)
    except BaseException as error:
        pass_exits(error)
        for number, text in enumerate(texts, first):
            try:
                tokenize([text])
            except BaseException as alone:
                pass_exits(alone)
                raise _tokenizer_error(alone, f"document {number}") from alone
        raise _tokenizer_error(error, f"documents {first} to {first + len(texts) - 1} together") from error
    check_tokenized(found, texts)
    return found


def _tokenizer_error(error: BaseException, which: str) -> TransformError:
    told = f"{which} of this rank's iteration: the tokenizer raised {type(error).__name__}: {error}"
    if isinstance(error, AttributeError | TypeError):  # as one that takes a single text does
        told += ". It is called with a list of texts, and returns a list of ids for each"
    return TransformError(told)


def as_function(tokenizer: Any) -> Tokenize:
    """A tokenizer as a function.

    Special tokens in a text are text like any other for a ``tokenizers.Tokenizer``.
    """
    if hasattr(tokenizer, "encode_batch"):
        if hasattr(tokenizer, "encode_special_tokens"):
            with contextlib.suppress(Exception):  # one with parts in Python has no copy
                tokenizer = type(tokenizer).from_str(tokenizer.to_str())
                tokenizer.no_padding()  # which makes ids depend on the texts beside
        return partial(_encoded, tokenizer)
    if not callable(tokenizer):
        raise ConfigError(
            f"tokenizer must be a tokenizer object, or a function from a list of texts to lists of ids, got {tokenizer!r}"
        )
    call: Tokenize = tokenizer
    return call


def _encoded(tokenizer: Any, texts: Sequence[str]) -> list[Sequence[int]]:
    """The ids that a ``tokenizers.Tokenizer`` gives texts."""
    if getattr(tokenizer, "encode_special_tokens", True) is False:  # which pickling forgets
        tokenizer.encode_special_tokens = True
    return [found.ids for found in tokenizer.encode_batch(list(texts), add_special_tokens=False)]
