"""Who holds a shard: the same for all who ask, spread evenly, and hardly changed when a worker goes."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.errors import ConfigError
from stoker.pipeline.workers.replicas import holders

SHARDS = np.arange(20_000, dtype=np.int64)


@pytest.mark.parametrize(("workers", "replication"), [(12, 1), (12, 2), (64, 2), (64, 3)])
def test_losing_one_of_n_workers_moves_one_in_n_of_the_shards(workers: int, replication: int) -> None:
    before = holders(SHARDS, range(workers), replication)
    assert all(len(set(row)) == replication for row in before[:100].tolist())
    gone = 5
    after = holders(SHARDS, [rank for rank in range(workers) if rank != gone], replication)
    lost = (before == gone).any(axis=1)
    assert np.array_equal(after[~lost], before[~lost])
    # The others of a shard's holders stay, and move up.
    for row, now in zip(before[lost][:200].tolist(), after[lost][:200].tolist(), strict=True):
        assert now[: replication - 1] == [rank for rank in row if rank != gone]
    assert lost.mean() == pytest.approx(replication / workers, rel=0.15)


def test_the_second_holder_is_who_takes_over() -> None:
    before = holders(SHARDS[:500], range(9), 2)
    after = holders(SHARDS[:500], [rank for rank in range(9) if rank != 3], 1)
    assert np.array_equal(after[:, 0], np.where(before[:, 0] == 3, before[:, 1], before[:, 0]))


def test_holders_do_not_depend_on_who_asks_for_what() -> None:
    all_of_them = holders(SHARDS, range(17), 2)
    assert np.array_equal(holders(SHARDS[777:780], list(reversed(range(17))), 2), all_of_them[777:780])
    assert holders(SHARDS[:4], [7, 8, 1000], 2).tolist() == [[8, 1000], [8, 1000], [8, 7], [8, 1000]]


def test_every_worker_holds_about_as_much() -> None:
    counts = np.bincount(holders(SHARDS, range(16), 2).reshape(-1), minlength=16)
    assert counts.min() > 0.85 * 2500
    assert counts.max() < 1.15 * 2500


def test_more_holders_than_workers_is_an_error() -> None:
    with pytest.raises(ConfigError, match="between 1 and the number of workers, 3, got 4"):
        holders(SHARDS, range(3), 4)
    with pytest.raises(ConfigError, match="twice"):
        holders(SHARDS, [1, 1], 1)
