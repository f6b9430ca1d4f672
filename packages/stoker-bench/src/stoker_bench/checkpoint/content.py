"""The content of a checkpoint's files: random bytes by address, all different, which can be compared when read back."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

from stoker_bench.generation.noise import BLOCK, noise_of

PART: Final = 8 * BLOCK
"""Bytes that are made, written and read at once."""


def draw_seed(run: str, seed: int) -> int:
    """A run's own seed: a store that knows the checkpoints of an earlier run finds nothing that it has."""
    return int.from_bytes(hashlib.sha256(f"{run} {seed}".encode()).digest()[:6], "little")


class CheckpointContent:
    """The bytes of one rank's part of one checkpoint. Threads may share it.

    Args:
        seed: of the run.
        number: of the checkpoint in the run.
        ranks: that save a whole checkpoint.
        rank: whose part.
    """

    def __init__(self, seed: int, number: int, ranks: int, rank: int) -> None:
        self._noise = noise_of(seed)
        self._file = number * ranks + rank

    def fill(self, out: NDArray[np.uint8], first_block: int, start: int) -> None:
        """Make bytes ``[start, start + len(out))`` of a file.

        Args:
            out: contiguous.
            first_block: of the file, among all of this rank's.
            start: a multiple of :data:`BLOCK`.
        """
        block = first_block + start // BLOCK
        for at in range(0, len(out), BLOCK):
            self._noise.fill(out[at : at + BLOCK], self._file, 0, block + at // BLOCK)


def blocks(size: int) -> int:
    """Blocks of a file of ``size`` bytes; the next file begins after them."""
    return -(-size // BLOCK)
