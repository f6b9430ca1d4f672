"""A conversion, cut into tasks: a pure function of the source and the settings, in any process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

import numpy as np

from stoker.conversion.sinks import ShardSettings
from stoker.conversion.source import ConversionSource
from stoker.conversion.values import ColumnPlan, Transform
from stoker.integers import mix
from stoker.order.selection import Split
from stoker.order.shuffle.shard_table import ShardTable
from stoker.order.shuffle.shuffle import ShuffledStream, ShuffleSettings
from stoker.reading.bad_samples import BadSamples
from stoker.types import Ids, StorageOptions

WORK: Final = "_convert"
"""Folder in the destination of what there is only while a conversion is under way."""

_MOST_SHARDS: Final = 4
_TAG_SHUFFLE: Final = 4
_TASKS: Final = 256
# The number of tasks is a multiple of this, so that two or four processes end together.
_TOGETHER: Final = 4


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The order of the samples, and the split of each.

    Attributes:
        sizes: samples in each shard of the source; int64.
        splits: name, and the part of ``[0, 1]`` that is its.
    """

    sizes: Ids
    shuffle: str
    seed: int
    splits: tuple[tuple[str, Fraction, Fraction], ...]

    @property
    def total(self) -> int:
        """Number of samples."""
        return int(self.sizes.sum())

    def located(self, first: int, stop: int) -> tuple[Ids, Ids]:
        """Shard and row of the samples at positions ``[first, stop)``; int64."""
        table = ShardTable(self.sizes)
        positions = np.arange(first, stop, dtype=np.int64)
        if self.shuffle == "none":
            return table.locate(positions)
        settings = ShuffleSettings.resolve(table, shuffle=self.shuffle)
        return ShuffledStream(table, settings, mix(self.seed, _TAG_SHUFFLE)).locate(positions)

    def split_of(self, shards: Ids, rows: Ids) -> Ids:
        """Number of the split that each sample is in, as :class:`~stoker.streams.subsets.HashSplit` has it; int64."""
        found = np.zeros(len(shards), np.int64)
        if len(self.splits) < 2:
            return found
        table = ShardTable(self.sizes)
        for number, (_, low, high) in enumerate(self.splits):
            found[Split(table, low, high, self.seed).numbers(shards, rows) >= 0] = number
        return found


@dataclass(frozen=True)
class ConversionJob:
    """Everything that a process needs to do any of the tasks.

    Attributes:
        inputs: the columns that are read; without a transform also those that are written.
        bounds: first position of each task, and the end of the last; int64.
        bad_samples: the limits of bad samples, which are left out; ``None``: they are errors. No part of the identity: what
            is written of the good samples is the same.
    """

    source: ConversionSource
    inputs: tuple[ColumnPlan, ...]
    outputs: tuple[ColumnPlan, ...]
    decoded: tuple[str, ...]
    transform: Transform | None
    fill: Mapping[str, Any]
    drop_nulls: bool
    arrangement: Arrangement
    bounds: Ids
    settings: ShardSettings
    destination: str
    storage_options: StorageOptions | None = field(repr=False)
    identity: str
    bad_samples: BadSamples | None = None

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.bounds) - 1


def bounds_of(samples: int, size: int, settings: ShardSettings) -> Ids:
    """First positions of the tasks, and the end of the last: int64, shape ``(tasks + 1,)``.

    A task makes one shard of the output, or up to four where the data set is large, so that few shards are cut short by the
    end of their task; all tasks are of about the same size.
    """
    if not samples:
        return np.zeros(1, np.int64)
    if settings.single:
        tasks = min(_TASKS, -(-size // (16 << 20)))
    elif settings.shard_samples is not None:
        shards = -(-samples // settings.shard_samples)
        step = min(_MOST_SHARDS, max(1, shards // _TASKS)) * settings.shard_samples
        return np.append(np.arange(0, samples, step), samples).astype(np.int64)
    else:
        # A little less than the limit, for what the format adds.
        shards = -(-size * 102 // (100 * max(1, settings.size_limit)))
        tasks = -(-shards // min(_MOST_SHARDS, max(1, shards // _TASKS)))
        if tasks > _TOGETHER:
            tasks = -(-tasks // _TOGETHER) * _TOGETHER
    tasks = max(1, min(samples, tasks))
    return np.arange(tasks + 1, dtype=np.int64) * samples // tasks


def digest(about: Any) -> str:
    """Of a JSON value, such as settings."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
