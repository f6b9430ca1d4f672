"""Chooses how many threads of a process read ahead of the consumer, and whether a tuner may change that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from stoker.cluster import LoaderWorker
from stoker.formats.mds.encodings import others_registered
from stoker.formats.registry import get_format, is_own
from stoker.index.concat_index import ConcatIndex
from stoker.lazy import cached_property
from stoker.order.sample_order import Plan
from stoker.pipeline.transforms import EpochReaderSettings
from stoker.policy import FEW_LINES, parsers, processors
from stoker.reading.shard_pool import ShardPool

if TYPE_CHECKING:
    from stoker.pipeline.joins.other_dataset import OtherDataset


class ReadThreads:
    """Chooses how many threads read ahead.

    ``settings``: how samples are read. ``pool``: the dataset's shards. ``others``: datasets that are read next to it.
    """

    def __init__(self, settings: EpochReaderSettings, pool: ShardPool, others: Sequence[OtherDataset]) -> None:
        self._settings, self._pool, self._others = settings, pool, others

    def count(self, worker: LoaderWorker, sharers: int, in_batches: Plan | None) -> int:
        """The threads of an iteration.

        ``worker``: this process. ``sharers``: processes on this node that read through the same cache. ``in_batches``: what
        is to come, where batches are asked for.
        """
        settings, asked = self._settings, self._pool.options.read_threads
        if asked is not None:
            return asked
        if worker.token is not None:
            return 0
        if settings.steps and settings.only_tokenizes:
            return 1  # one thread at a time does
        if settings.steps and settings.calls_functions:
            return min(8, math.ceil(processors(1)))
        # Gathering takes less time than handing its result over from a thread; a transform may take any time, and text is
        # parsed without Python's lock.
        if in_batches is None or not self.parse_text:
            return 0
        return parsers(sharers) if in_batches.samples > FEW_LINES else 0

    def may_tune(self, threads: int) -> bool:
        """Whether a tuner may change how many threads read, where so many do without it.

        Code of others, which may not be thread-safe, is run by threads only where it is without a tuner. A tokenizer is
        called by one thread at a time.
        """
        settings = self._settings
        if self._pool.options.read_threads is not None or (settings.steps and settings.only_tokenizes):
            return False
        calls = bool(settings.steps) and settings.calls_functions
        return threads > 0 or not (calls or self._run_foreign_code)

    @cached_property
    def parse_text(self) -> bool:
        """Whether shards of the dataset are lines of text."""
        index = self._pool.index
        parts = index.parts if isinstance(index, ConcatIndex) else (index,)
        return any(len(part) and get_format(part.shards[0].format).text for part in parts)

    @cached_property
    def _run_foreign_code(self) -> bool:
        """Whether decoding may call code that is not stoker's: another package's format, an encoding, or unpickling."""
        if self._pool.options.allow_unsafe_types or others_registered():
            return True
        indexes = [self._pool.index, *(other.pool.index for other in self._others)]
        return not all(is_own(shard.format) for index in indexes for shard in index.distinct_shards)
