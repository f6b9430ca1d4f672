"""The base of indexes under test: each is made once, and searched by several threads at once."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from stoker_bench.measure.call_times import CallTimer
from stoker_bench.settings.workload import VectorSettings
from stoker_bench.vectors.points import F32, I64


class Searcher(ABC):
    """An open index, of one thread."""

    @abstractmethod
    def search(self, query: F32, timer: CallTimer) -> tuple[I64, list[NDArray[np.int64]]]:
        """The nearest vectors, and the offsets that each step has read, as far as that is known."""

    def replay(self, hops: list[NDArray[np.int64]], timer: CallTimer) -> None:
        """Read again what a search has read, step by step, and do nothing else."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Close files."""


class VectorIndex(ABC):
    """An index that is in a file, or in a server.

    Args:
        settings: of the stage.
        path: of the file.

    Attributes:
        suffix: of the file's name.
        served: whether a server holds it, which is the same for all hosts.
        path: of the file, or what names it in the server.
        unit: bytes of a read; 0 where the index reads through a mapping, or in a server.
        memory: bytes that it holds in memory.
    """

    suffix: ClassVar[str]
    served: ClassVar[bool] = False

    def __init__(self, settings: VectorSettings, path: str) -> None:
        self.settings, self.path = settings, path
        self.unit = self.memory = 0

    def exists(self) -> bool:
        """Whether it is made."""
        return os.path.exists(self.path)

    def bytes(self) -> int:
        """Bytes that it takes on storage."""
        return os.path.getsize(self.path)

    def bytes_read(self) -> int | None:
        """Bytes that a server has read of it so far beside its own buffers; ``None`` where this host reads it."""
        return None

    @abstractmethod
    def build(self, points: F32) -> None:
        """Make the file.

        Raises:
            StorageError: it could not be written.
        """

    def load(self, points: F32) -> None:  # noqa: B027 - most hold nothing
        """Make what is in memory of the vectors, once."""

    @abstractmethod
    def open(self) -> None:
        """Open the file.

        Raises:
            CorruptDataError: it is not what :meth:`build` makes.
        """

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Let go of the file, so that it can leave the page cache."""

    @abstractmethod
    def searcher(self) -> Searcher:
        """For one thread."""
