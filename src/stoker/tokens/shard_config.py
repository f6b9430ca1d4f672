"""Which rank a loader is of, and what it has delivered."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.arguments import checked
from stoker.errors import ConfigError
from stoker.tokens.batch import LMBatch

__all__ = ["LoaderStats", "ShardConfig"]


@checked
@dataclass(frozen=True, slots=True)
class ShardConfig:
    """Which of the ranks this is, and the seed of the order.

    Attributes:
        rank: in ``[0, world_size)``.
        world_size: number of ranks that read different tokens.
        seed: any integer; the same on all ranks.
    """

    rank: int
    world_size: int
    seed: int = 42

    def __post_init__(self) -> None:
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(f"ShardConfig: rank {self.rank} is not in a world of {self.world_size}")

    @classmethod
    def single(cls) -> ShardConfig:
        """One rank."""
        return cls(0, 1)


@dataclass(slots=True)
class LoaderStats:
    """What a loader has delivered in this process.

    Attributes:
        batches: number of batches.
        tokens: places of batches that hold tokens, those of eos counted.
        places: all places of batches.
        cut_documents: documents of which a layout cut something off.
        cut_tokens: tokens that were cut off.
    """

    batches: int = 0
    tokens: int = 0
    places: int = 0
    cut_documents: int = 0
    cut_tokens: int = 0

    @property
    def padding_waste(self) -> float:
        """The part of all places that is padding, 0 to 1."""
        return 1 - self.tokens / self.places if self.places else 0.0

    def count(self, batch: LMBatch) -> None:
        """A batch is delivered."""
        self.batches += 1
        self.tokens += batch.num_tokens
        self.places += batch.input_ids.size
        self.cut_documents += batch.cut_documents
        self.cut_tokens += batch.cut_tokens
