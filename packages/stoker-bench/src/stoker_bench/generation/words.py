"""Token ids and text whose frequencies are those of language: the k-th most frequent comes k times rarer (Zipf's law).

Both are put together of runs, two tokens or 32 bytes of text each, that 16 random bits choose from a table of 65,536. The
tables are made of random words by integers alone, so that every machine makes the same. To draw each token or word by itself
takes several times as long.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.types import Array

VERSION: Final = "2"
"""Changes when the same random words make other tokens or another text."""

TEXT_RUN: Final = 32
"""Bytes of text that 16 random bits choose: whole words, with the spaces and full stops behind them."""

_SLOTS: Final = 1 << 16
_VOCABULARY: Final = 8192
_LONGEST: Final = 10
# Words that are drawn for the runs, of which three quarters are looked at.
_DRAWN: Final = 1 << 20
# Ids whose frequencies differ by less than 1 / _ALIKE are changed for each other.
_ALIKE: Final = 16


@lru_cache(maxsize=4)
def _ranks(vocabulary: int) -> tuple[NDArray[Any], int]:
    """For each 65,536th of all draws the first rank in it, the number of its ranks in the lowest bits; and these bits."""
    # Division and addition are exact everywhere; powers would not be.
    ends = np.cumsum(1.0 / np.arange(1, vocabulary + 1))
    bounds = np.searchsorted(ends, ends[-1] * (np.arange(_SLOTS + 1) / _SLOTS), side="right")
    bounds = np.minimum(bounds, vocabulary - 1)
    counts = np.diff(bounds) + 1
    bits = int(counts.max()).bit_length()
    return (bounds[:-1] << bits | counts).astype(np.uint32 if vocabulary < 1 << 32 - bits else np.uint64), bits


def zipf_tokens(words: NDArray[np.uint32], vocabulary: int, out: Array) -> None:
    """Token ids of a vocabulary: id 0 is the most frequent, id k comes 1 / (k + 1) as often.

    Args:
        words: random; uint32, shape ``(n,)``.
        vocabulary: ids are below it.
        out: integers of any dtype that holds them, shape ``(n,)``.
    """
    ranks, bits = _ranks(vocabulary)
    kind = ranks.dtype.type
    found = ranks.take((words >> np.uint32(16)).astype(np.intp), mode="clip")
    within = (words & np.uint32(0xFFFF)).astype(kind, copy=False)
    within *= found & kind((1 << bits) - 1)
    within >>= kind(16)
    found >>= kind(bits)
    np.add(found, within, out=out, casting="unsafe")


def token_block(choices: NDArray[np.uint16], key: int, vocabulary: int, out: Array) -> None:
    """Fill ``out`` with token ids, of which id 0 is the most frequent, and id k comes 1 / (k + 1) as often.

    Each choice is a pair of the table. Ids that come about as often as each other are changed for each other by ``key``: a
    block has 131,072 different ids at most, but all blocks together have all.

    Args:
        choices: random; shape ``(n,)``.
        key: random, of 32 bits; another for each block.
        vocabulary: ids are below it.
        out: integers of any dtype that holds them, shape ``(2 * n,)``.
    """
    tokens, changed = _token_pairs(vocabulary, out.dtype.str)
    pairs = (changed & (key & np.iinfo(out.dtype).max)) ^ tokens
    np.take(pairs.reshape(-1, 2), choices, axis=0, out=out.reshape(-1, 2), mode="clip")


@lru_cache(maxsize=4)
def _token_pairs(vocabulary: int, dtype: str) -> tuple[Array, Array]:
    """65,536 pairs of token ids, one pair after the other, and the bits of each id that may change."""
    # A draw from each 131,072th of all draws, so that ids come as often as they should; then in a random order.
    count = 2 * _SLOTS
    draws = np.random.SFC64(20261124).random_raw(count)
    words = np.arange(count, dtype=np.uint32) << np.uint32(15) | (draws & np.uint64(0x7FFF)).astype(np.uint32)
    tokens = np.empty(count, np.int64)
    zipf_tokens(words, vocabulary, tokens)
    tokens = tokens[np.argsort(draws, kind="stable")]
    # Of ids from 2**n * 16 to 2**n * 32 the lowest n bits, as long as what they make is an id, too.
    bits = np.zeros(count, np.int64)
    while (more := tokens >> 1 >= _ALIKE * (bits + 1)).any():
        bits[more] = bits[more] << 1 | 1
    while (beyond := tokens | bits >= vocabulary).any():
        bits[beyond] >>= 1
    return tokens.astype(dtype), bits.astype(dtype)


def text_block(choices: NDArray[np.uint16], out: NDArray[np.uint8]) -> None:
    """Fill ``out`` with ASCII text: words of letters, spaces between them, and full stops.

    Args:
        choices: random; shape ``(n,)``.
        out: uint8, shape ``(TEXT_RUN * n,)``.
    """
    np.take(_runs(), choices, axis=0, out=out.reshape(-1, TEXT_RUN), mode="clip")


@lru_cache(maxsize=1)
def _runs() -> NDArray[np.uint8]:
    """The runs of text; uint8, shape ``(65536, TEXT_RUN)``.

    They are those parts of a long text that begin with a word and end with one, so that a word is nearly as often in them as
    in that text: what words make 32 bytes changes it by up to an eighth.
    """
    words = np.empty(_DRAWN, np.int64)
    zipf_tokens(np.random.SFC64(20261121).random_raw(_DRAWN // 2).view(np.uint32), _VOCABULARY, words)
    vocabulary = _vocabulary()
    text = b"".join([vocabulary[word] for word in words.tolist()])
    ends = np.cumsum(np.array([len(word) for word in vocabulary])[words])
    starts = np.append(0, ends[:-1])
    whole = ends[np.minimum(np.searchsorted(ends, starts + TEXT_RUN), _DRAWN - 1)] == starts + TEXT_RUN
    runs: list[bytes] = []
    end = 0
    for start in starts[whole].tolist():
        if start >= end:
            end = start + TEXT_RUN
            runs.append(text[start:end])
    assert len(runs) >= _SLOTS
    return np.frombuffer(b"".join(runs[:_SLOTS]), np.uint8).reshape(_SLOTS, TEXT_RUN)


def _vocabulary() -> list[bytes]:
    """Words of letters, each with a space behind it; one of 16 ends a sentence."""
    syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "u", "an", "er", "in", "on")]
    made: dict[str, None] = {}
    draws: list[Any] = np.random.SFC64(1).random_raw(4 * _VOCABULARY).tolist()
    for draw in draws:
        count = 2 + (len(made) > 400) * (draw >> 60 & 1)
        word = "".join([syllables[(draw >> 16 * k) % len(syllables)] for k in range(count)])
        if 3 <= len(word) <= _LONGEST:
            made[word] = None
        if len(made) == _VOCABULARY:
            break
    assert len(made) == _VOCABULARY
    return [f"{word}. ".encode() if number % 16 == 15 else f"{word} ".encode() for number, word in enumerate(made)]
