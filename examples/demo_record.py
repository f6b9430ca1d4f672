"""The samples that one process got, in order; written by the process, read by the checks."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Record", "checksums"]


@dataclass(frozen=True, slots=True)
class Record:
    """The samples that one process got.

    Attributes:
        ids: the ``id`` column, batch after batch; int64.
        lengths: samples in each batch; int64.
        checksums: CRC-32 of each sample's tokens as they were read; uint32.
    """

    ids: NDArray[np.int64]
    lengths: NDArray[np.int64]
    checksums: NDArray[np.uint32]

    @classmethod
    def of(cls, batches: list[dict[str, Any]]) -> Record:
        """The record of batches that have the columns ``id`` and ``tokens``."""
        return cls(
            ids=np.concatenate([batch["id"] for batch in batches]),
            lengths=np.array([len(batch["id"]) for batch in batches], dtype=np.int64),
            checksums=np.concatenate([checksums(batch["tokens"]) for batch in batches]),
        )

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read what :meth:`save` wrote."""
        with np.load(path) as arrays:
            return cls(arrays["ids"], arrays["lengths"], arrays["checksums"])

    def save(self, path: Path) -> None:
        """Write to a ``.npz`` file."""
        np.savez(path, ids=self.ids, lengths=self.lengths, checksums=self.checksums)

    def batches(self) -> list[NDArray[np.int64]]:
        """The ids of each batch."""
        return np.split(self.ids, np.cumsum(self.lengths)[:-1])


def checksums(tokens: NDArray[np.uint16]) -> NDArray[np.uint32]:
    """CRC-32 of each row of an array of shape ``(rows, length)``."""
    return np.array([zlib.crc32(row) for row in np.ascontiguousarray(tokens)], dtype=np.uint32)
