"""Token ids and text whose frequencies are those of language: the k-th most frequent comes k times rarer (Zipf's law).

Both are made of random words by tables of integers, so that every machine makes the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.formats.parquet.arrow import pyarrow
from stoker.types import Array

_SLOTS: Final = 1 << 16
_VOCABULARY: Final = 8192
_WIDEST: Final = 24
# So many words and what is made of them stay in the processor's cache.
_AT_A_TIME: Final = 1 << 15
# Bytes of a pair of words, a little less than the mean.
_PAIR_BYTES: Final = 12

TEXT_WORDS: Final = 1 << 17
"""Random words of two bytes that :func:`text_block` wants for 1 MiB of text: each stands for two words of text, which with
their spaces have at least 8 bytes."""


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
    for begin in range(0, len(words), _AT_A_TIME):
        part = words[begin : begin + _AT_A_TIME]
        found = ranks.take((part >> np.uint32(16)).astype(np.intp), mode="clip")
        within = (part & np.uint32(0xFFFF)).astype(kind, copy=False)
        within *= found & kind((1 << bits) - 1)
        within >>= kind(16)
        found >>= kind(bits)
        np.add(found, within, out=out[begin : begin + _AT_A_TIME], casting="unsafe")


def text_block(words: NDArray[np.uint16], out: NDArray[np.uint8]) -> None:
    """Fill ``out`` with ASCII text: words of letters, spaces between them, and full stops.

    Args:
        words: random; :data:`TEXT_WORDS` for 1 MiB.
        out: uint8.
    """
    pa, pairs = pyarrow(), _pairs()
    at = first = 0
    while at < len(out):
        chosen = words[first : first + (len(out) - at) // _PAIR_BYTES + 1]
        first += len(chosen)
        _, offsets, data = pairs.take(pa.array(chosen)).buffers()
        size = min(int(np.frombuffer(offsets, np.int32)[len(chosen)]), len(out) - at)
        assert size, "too few random words"
        out[at : at + size] = np.frombuffer(data, np.uint8)[:size]
        at += size


@lru_cache(maxsize=1)
def _pairs() -> Any:
    """65,536 pairs of words, each word as often as Zipf's law has it; a ``pyarrow.BinaryArray``."""
    draws = np.random.SFC64(20261121).random_raw(_SLOTS).view(np.uint32)
    chosen = np.empty(2 * _SLOTS, np.int64)
    zipf_tokens(draws, _VOCABULARY, chosen)
    vocabulary = _vocabulary()
    pa = pyarrow()
    return pa.array([vocabulary[a] + vocabulary[b] for a, b in chosen.reshape(-1, 2).tolist()], pa.binary())


def _vocabulary() -> list[bytes]:
    """Words of letters, each with a space behind it; one of 16 ends a sentence."""
    syllables = [a + b for a in "bcdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "u", "an", "er", "in", "on")]
    made: dict[str, None] = {}
    draws: list[Any] = np.random.SFC64(1).random_raw(4 * _VOCABULARY).tolist()
    for draw in draws:
        count = 2 + (len(made) > 400) * (draw >> 60 & 1)
        word = "".join([syllables[(draw >> 16 * k) % len(syllables)] for k in range(count)])
        if 3 <= len(word) <= _WIDEST // 2 - 2:
            made[word] = None
        if len(made) == _VOCABULARY:
            break
    assert len(made) == _VOCABULARY
    return [f"{word}. ".encode() if number % 16 == 15 else f"{word} ".encode() for number, word in enumerate(made)]
