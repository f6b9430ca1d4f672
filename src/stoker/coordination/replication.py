"""Assigns each shard to workers that keep it in their caches, so that another can continue for one that failed at once.

Rendezvous hashing (D. Thaler, C. Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998): each worker
scores each shard, and the r best keep it. The names of the workers determine the holders. When one of n
workers goes, only the shards that it held, about r/n of all, get one new holder each; all else stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stoker.errors import ConfigError
from stoker.integers import U64, finalise_array, mix_array
from stoker.types import Ids

_TOGETHER = 1 << 22


def holders(shards: Ids, workers: Sequence[int], replication: int) -> Ids:
    """The workers that hold each shard, the foremost first.

    The first of a row is whose shard it is; when it fails, the second is, with the same numbers for those that are left.
    Shards are of shape ``(n,)``, holders of ``(n, replication)``.
    """
    ranks = _checked(workers, replication)
    found = np.empty((shards.size, replication), dtype=np.int64)
    step = max(1, _TOGETHER // ranks.size)
    for first in range(0, shards.size, step):
        scores = _scores(shards[first : first + step], ranks)
        # Ties between 64-bit scores go to the lower rank, as ranks are sorted and the sort is stable.
        best = np.argsort(~scores, axis=1, kind="stable")[:, :replication]
        found[first : first + step] = ranks[best]
    return found


def _checked(workers: Sequence[int], replication: int) -> Ids:
    ranks: Ids = np.unique(np.asarray(workers, dtype=np.int64))
    if ranks.size != len(workers):
        raise ConfigError("a worker is named twice among those that may hold shards")
    if not 1 <= replication <= ranks.size:
        raise ConfigError(f"replication must be between 1 and the number of workers, {ranks.size}, got {replication}")
    return ranks


def _scores(shards: Ids, ranks: Ids) -> U64:
    """Scores, shape ``(shards, workers)``: 64 bits of the pair."""
    of_ranks = finalise_array(ranks.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03) + np.uint64(1))
    return finalise_array(mix_array(0, shards)[:, None] + of_ranks[None, :])
