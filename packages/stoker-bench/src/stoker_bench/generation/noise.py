"""Random bytes by address: they depend on a seed, a file, a stream and a block, and on nothing else.

Two pools of random words are drawn once for a seed, by NumPy's SFC64. A block is the exclusive or of a piece of the one, a
piece of the other, and a word of its own: three reads of memory that the processor's cache holds, about four times as fast as
SFC64, and without a state that would tie a block to the ones before it.

No two blocks are alike, and no two runs of words in them: let the words of two blocks at indices ``i`` and ``j`` be
``A[i+a] ^ B[i+b] ^ k`` and ``A[j+c] ^ B[j+d] ^ l``. Where both pieces are shifted by the same, that is ``i+a = j+c`` and
``i+b = j+d``, the words differ by ``k ^ l``, which is not 0, for a one-to-one mixing function makes ``k`` of the block's
address. Elsewhere words of the pools meet that are independent, and are equal with a chance of 2**-64. So neither
deduplication nor a compressor finds anything. It is not for secrets: the exclusive or of four blocks can be 0.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.integers import GOLDEN, finalise

BLOCK: Final = 1 << 20
"""Bytes of a block."""

_WORDS: Final = BLOCK // 8
_SHIFTS: Final = 1 << 12  # how far, in words, pieces are shifted in their pool
_ALL: Final = (1 << 64) - 1
_BITS: Final = {"file": 32, "stream": 8, "block": 24}


class Noise:
    """Random bytes of one seed. Threads may share it.

    Args:
        seed: any integer of at least 0.
    """

    def __init__(self, seed: int) -> None:
        # The name is part of every byte that a seed has ever made: it stays, whatever this package is called.
        digest = hashlib.sha256(b"stoker.generate" + str(seed).encode()).digest()
        words = np.random.SFC64(int.from_bytes(digest, "little")).random_raw(2 * (_WORDS + _SHIFTS))
        self._pools = {_ALL: (words[: len(words) // 2], words[len(words) // 2 :])}
        self._salt = int.from_bytes(digest[:8], "little")

    def fill(
        self, out: NDArray[np.uint8], file: int, stream: int, block: int, first: int = 0, bits: int = _ALL
    ) -> None:
        """Write bytes ``[first, first + len(out))`` of a block.

        Args:
            out: contiguous, and at an address that is a multiple of 8, which is faster; any number of bytes.
            file: below 2**32.
            stream: below 2**8.
            block: below 2**24.
            first: a multiple of 8.
            bits: of each 8 bytes, those that may be set. It costs nothing, for it is done to the pools.

        Raises:
            ConfigError: an address out of these bounds.
        """
        word, one, other = self._block_key(file, stream, block)
        key = np.uint64(word & bits)
        first_pool, other_pool = self._masked(bits)
        begin, count = first // 8, len(out) // 8
        words = out[: 8 * count].view(np.uint64)
        np.bitwise_xor(first_pool[one + begin :][:count], other_pool[other + begin :][:count], out=words)
        np.bitwise_xor(words, key, out=words)
        if rest := len(out) % 8:
            last = first_pool[one + begin + count] ^ other_pool[other + begin + count] ^ key
            out[8 * count :] = np.frombuffer(last.tobytes(), np.uint8)[:rest]

    def draw(self, size: int, file: int, stream: int, first: int) -> NDArray[np.uint8]:
        """Bytes ``[first, first + size)`` of a stream, whose blocks follow each other; uint8, shape ``(size,)``."""
        out = np.empty(size, np.uint8)
        done = 0
        while done < size:
            block, inside = divmod(first + done, BLOCK)
            part = out[done : done + BLOCK - inside]
            self.fill(part, file, stream, block, inside)
            done += len(part)
        return out

    def _masked(self, bits: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Pools of words that have no other bits."""
        found = self._pools.get(bits)
        if found is None:
            one, other = self._pools[_ALL]
            found = self._pools[bits] = one & np.uint64(bits), other & np.uint64(bits)
        return found

    def _block_key(self, file: int, stream: int, block: int) -> tuple[int, int, int]:
        """A block's own word, and by how much its pieces are shifted."""
        address = 0
        for (name, bits), value in zip(_BITS.items(), (file, stream, block), strict=True):
            if value >> bits:
                raise ConfigError(f"{name} {value:,}: there can be {1 << bits:,} at most; make smaller or fewer files")
            address = address << bits | value
        key = finalise(address ^ self._salt)
        shifts = finalise(key ^ GOLDEN)
        return key, shifts % _SHIFTS, shifts // _SHIFTS % _SHIFTS


@lru_cache(maxsize=4)
def noise_of(seed: int) -> Noise:
    """The noise of a seed, whose pools take 2 MiB and some milliseconds."""
    return Noise(seed)
