"""Stages of a chain that take the samples of a chunk together, as functions before them have made them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, TypeAlias

from stoker.errors import SampleError
from stoker.reading.apply_chain import BAD, LEFT_OUT, LeftOut, SeveralSamples
from stoker.reading.sample_errors import SampleLocation, location_at
from stoker.reading.shard_pool import ShardPool
from stoker.types import Ids

Numbered: TypeAlias = tuple[int, Any]
"""The number of a stored sample in its chunk, and a sample that was made of it."""


class Together:
    """The samples of a chunk that a stage takes.

    Args:
        samples: they, n of them.
        pool: of the dataset whose samples they are.
        shards, rows: of the stored samples of the chunk.
        strict: whether bad samples are raised.

    Attributes:
        samples, pool, shards, rows, strict: as given.
        failed: errors of bad samples, by the number of the stored one.
    """

    def __init__(self, samples: Sequence[Numbered], pool: ShardPool, shards: Ids, rows: Ids, *, strict: bool) -> None:
        self.samples, self.pool, self.shards, self.rows, self.strict = samples, pool, shards, rows, strict
        self.failed: dict[int, SampleError] = {}

    def fail(self, number: int, error: SampleError) -> None:
        """Note that what was made of a stored sample is bad; raises the error where bad samples are raised."""
        if self.strict:
            raise error
        self.failed.setdefault(number, error)

    def origin(self, number: int) -> SampleLocation:
        """The place where a stored sample lies."""
        return location_at(self.pool, self.shards, self.rows, number)


class ChunkStage(ABC):
    """A stage that takes the samples of a chunk together."""

    @abstractmethod
    def make(self, together: Together) -> list[Any]:
        """The samples that come in the place of these: each a sample, :data:`LEFT_OUT`, or anything where it is bad.

        Args:
            together: at least one sample; gets the errors of bad ones.
        """

    def apply(
        self, found: list[Any], pool: ShardPool, shards: Ids, rows: Ids, bad: MutableMapping[int, SampleError] | None
    ) -> None:
        """Replace samples by what the stage makes of them.

        Args:
            found: what the functions made of each sample: a sample, several, or what stands for one that is left out.
            pool: of the dataset whose samples they are.
            shards, rows: of the samples that they were made of.
            bad: gets the errors of bad samples, by number; ``None``: they are raised.
        """
        flat = [
            (number, sample)
            for number, one in enumerate(found)
            if not isinstance(one, LeftOut)
            for sample in (one if isinstance(one, SeveralSamples) else (one,))
        ]
        if not flat:
            return
        together = Together(flat, pool, shards, rows, strict=bad is None)
        results = iter(self.make(together))
        _put_back(found, lambda: next(results))
        for number, error in together.failed.items():
            found[number] = BAD
            assert bad is not None
            bad[number] = error


def _put_back(found: list[Any], following: Callable[[], Any]) -> None:
    for number, one in enumerate(found):
        if isinstance(one, LeftOut):
            continue
        if not isinstance(one, SeveralSamples):
            found[number] = following()
            continue
        pairs = [(item, following()) for item in one.numbers]
        kept = SeveralSamples(sample for _, sample in pairs if sample is not LEFT_OUT)
        kept.numbers = [item for item, sample in pairs if sample is not LEFT_OUT]
        kept.dropped = one.dropped + len(pairs) - len(kept)
        found[number] = kept
