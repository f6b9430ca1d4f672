"""Token ids and text whose frequencies are those of language: the k-th most frequent comes k times rarer (Zipf's law).

Both are made of random words by tables of integers, so that every machine makes the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stoker.types import Array

_SLOTS: Final = 1 << 16
_VOCABULARY: Final = 8192
_WIDEST: Final = 24
# So many words and what is made of them stay in the processor's cache.
_AT_A_TIME: Final = 1 << 13

TEXT_WORDS: Final = 1 << 17
"""Random words of two bytes that :func:`text_block` wants for 1 MiB of text: each stands for two words of text, which with
their spaces have at least 8 bytes."""


@lru_cache(maxsize=4)
def _ranks(count: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """For each 65,536th of all draws: the first rank that falls into it, and how many do."""
    ends = np.cumsum(1.0 / np.arange(1, count + 1))  # division and addition are exact everywhere; powers would not be
    bounds = np.searchsorted(ends, ends[-1] * (np.arange(_SLOTS + 1) / _SLOTS), side="right")
    bounds = np.minimum(bounds, count - 1)
    return bounds[:-1].astype(np.uint32), (np.diff(bounds) + 1).astype(np.uint32)


def zipf_tokens(words: NDArray[np.uint32], vocabulary: int, out: Array) -> None:
    """Token ids of a vocabulary: id 0 is the most frequent, id k comes 1 / (k + 1) as often.

    Args:
        words: random; uint32, shape ``(n,)``.
        vocabulary: ids are below it.
        out: integers of any dtype that holds them, shape ``(n,)``.
    """
    first, count = _ranks(vocabulary)
    for begin in range(0, len(words), _AT_A_TIME):
        part = words[begin : begin + _AT_A_TIME]
        slot = (part >> np.uint32(16)).astype(np.intp)
        ids = part & np.uint32(0xFFFF)
        ids *= count.take(slot, mode="clip")
        ids >>= np.uint32(16)
        ids += first.take(slot, mode="clip")
        out[begin : begin + _AT_A_TIME] = ids


def text_block(words: NDArray[np.uint16], out: NDArray[np.uint8]) -> None:
    """Fill ``out`` with ASCII text: words of letters, spaces between them, and full stops.

    Args:
        words: random; :data:`TEXT_WORDS` for 1 MiB.
        out: uint8.
    """
    pairs, lengths = _pairs()
    text = np.empty(len(out) + _WIDEST, np.uint8)
    # At each byte a pair may begin. It is written with the spaces behind it, which the next one covers.
    anywhere = np.ndarray((len(out) + 1,), pairs.dtype, text.data, strides=(1,))
    at = 0
    for first in range(0, len(words), _AT_A_TIME):
        chosen = words[first : first + _AT_A_TIME].astype(np.intp)
        sizes = lengths.take(chosen, mode="clip")
        ends = at + np.cumsum(sizes)
        count = int(np.searchsorted(ends - sizes, len(out)))
        anywhere[(ends - sizes)[:count]] = pairs.take(chosen[:count], mode="clip")
        at = int(ends[-1])
        if at >= len(out):
            out[:] = text[: len(out)]
            return
    raise AssertionError("too few random words")  # pragma: no cover - eight bytes each


@lru_cache(maxsize=1)
def _pairs() -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """65,536 pairs of words, each word as often as Zipf's law has it, of 24 bytes with spaces at their ends; and their
    lengths."""
    draws = np.random.SFC64(20261121).random_raw(_SLOTS).view(np.uint32)
    chosen = np.empty(2 * _SLOTS, np.int64)
    zipf_tokens(draws, _VOCABULARY, chosen)
    vocabulary = _vocabulary()
    pairs = [vocabulary[a] + vocabulary[b] for a, b in chosen.reshape(-1, 2).tolist()]
    lengths = np.fromiter(map(len, pairs), np.int64, _SLOTS)
    text = b"".join([pair.ljust(_WIDEST) for pair in pairs])
    return np.frombuffer(text, f"V{_WIDEST}"), lengths


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
