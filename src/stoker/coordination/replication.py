"""Which workers keep a shard in their caches, so that another can go on where one failed without downloading anew.

Rendezvous hashing (D. Thaler, C. Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998): each worker
scores each shard, and the r best keep it. Whoever knows the names of the workers knows the holders. When one of n
workers goes, only the shards that it held, about r/n of all, get one new holder each; all else stays where it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stoker.errors import ConfigError
from stoker.types import Ids

__all__ = ["capped_holders", "holders"]

_Scores = NDArray[np.uint64]
_TOGETHER = 1 << 22


def holders(shards: Ids, workers: Sequence[int], replication: int) -> Ids:
    """The workers that hold each shard, the foremost first.

    Args:
        shards: shard numbers, int64, shape ``(n,)``.
        workers: ranks of the workers that live, in any order, each once.
        replication: how many holders a shard has, in ``[1, len(workers)]``.

    Returns:
        Ranks, int64, shape ``(n, replication)``. The first is whose shard it is; when it fails, the second is, with
        the same numbers for those that are left.

    Raises:
        ConfigError: more holders than workers, or a worker twice.
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


def capped_holders(shards: Ids, workers: Sequence[int], replication: int, slack: float = 0.1) -> Ids:
    """The same with bounded loads: no worker holds more than ``1 + slack`` times the mean, rounded up.

    (V. Mirrokni, M. Thorup, M. Zadimoghaddam, "Consistent Hashing with Bounded Loads", 2016.) A shard whose best worker is
    full goes to the next best; so when a worker goes, some of the others' shards move too. All shards must be given, as
    each depends on those before it: O(shards x workers).

    Raises:
        ConfigError: as :func:`holders`; or a negative slack.
    """
    ranks = _checked(workers, replication)
    if slack < 0:
        raise ConfigError(f"slack must not be negative, got {slack}")
    most = -(-shards.size * replication // ranks.size)
    most = max(most, int(np.ceil(shards.size * replication / ranks.size * (1 + slack))))
    loads = np.zeros(ranks.size, dtype=np.int64)
    found = np.empty((shards.size, replication), dtype=np.int64)
    step = max(1, _TOGETHER // ranks.size)
    for first in range(0, shards.size, step):
        order = np.argsort(~_scores(shards[first : first + step], ranks), axis=1, kind="stable")
        for row in range(order.shape[0]):
            wanted = order[row]
            # Those that are full come last, so that a shard always has its holders.
            chosen = wanted[np.argsort(loads[wanted] >= most, kind="stable")[:replication]]
            loads[chosen] += 1
            found[first + row] = ranks[chosen]
    return found


def _checked(workers: Sequence[int], replication: int) -> Ids:
    ranks: Ids = np.unique(np.asarray(workers, dtype=np.int64))
    if ranks.size != len(workers):
        raise ConfigError("a worker is named twice among those that may hold shards")
    if not 1 <= replication <= ranks.size:
        raise ConfigError(f"replication must be between 1 and the number of workers, {ranks.size}, got {replication}")
    return ranks


def _scores(shards: Ids, ranks: Ids) -> _Scores:
    """Scores, shape ``(shards, workers)``: 64 bits of the pair, by splitmix64's finaliser."""
    state: _Scores = (
        _finalised(shards.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15))[:, None]
        + _finalised(ranks.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03) + np.uint64(1))[None, :]
    )
    return _finalised(state)


def _finalised(state: _Scores) -> _Scores:
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
