"""The two halves of a run: an order, which locates samples, and a plan, which says which of them a rank takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from stoker.types import Ids


class Order(Protocol):
    """Locates the samples of an epoch."""

    def locate(self, positions: Ids, /) -> tuple[Ids, Ids]:
        """Shard number and row in the shard of each position that a plan names; two int64 arrays of the same shape."""
        ...


class Plan(Protocol):
    """The batches of one rank from a position to the epoch's end. All but the last have ``batch_size`` samples."""

    @property
    def batch_size(self) -> int:
        """Samples in a full batch of this rank."""
        ...

    @property
    def rank(self) -> int:
        """This rank, in ``[0, world_size)``."""
        ...

    @property
    def world_size(self) -> int:
        """Number of ranks that read different samples."""
        ...

    @property
    def end(self) -> int:
        """Position after the last batch."""
        ...

    @property
    def full_batches(self) -> int:
        """Number of this rank's batches that have ``batch_size`` samples."""
        ...

    @property
    def full_steps(self) -> int:
        """Batches of this rank with partial ones left out: the same number for every rank, if all take equally many steps."""
        ...

    @property
    def longest(self) -> int:
        """A rank that takes the most batches."""
        ...

    @property
    def samples(self) -> int:
        """Number of samples that this rank takes."""
        ...

    @property
    def padding(self) -> int:
        """Samples over all ranks that are repeated so that all ranks take the same number of steps."""
        ...

    def __len__(self) -> int:
        """Number of batches that this rank takes."""
        ...

    def position_after(self, batches: int) -> int:
        """The position that a resume starts from after ``batches`` batches of every rank."""
        ...

    def position_at(self, samples: int) -> int:
        """The position that a resume starts from after ``samples`` of all ranks together, repeated ones counted.

        Raises:
            ConfigError: some of them are repeated, and this is no whole number of steps.
        """
        ...

    def chunks(self, samples: int, worker: int = 0, workers: int = 1, skip: int = 0) -> Iterator[list[Ids]]:
        """This rank's batches, or those of one of its loader workers, several at a time.

        Worker w of W takes batches ``w, w + W, ...``, which is the order in which torch's DataLoader asks its workers.

        Args:
            samples: about how many samples to put together.
            worker: number of the loader worker, in ``[0, workers)``.
            workers: number of loader workers.
            skip: batches of this worker to leave out at the beginning.

        Yields:
            Lists of int64 arrays of positions, an array a batch, which the epoch's :class:`Order` locates.
        """
        ...
