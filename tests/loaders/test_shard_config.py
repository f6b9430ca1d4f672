"""Configs that make no sense, or contradict themselves, are errors when they are made."""

from __future__ import annotations

from typing import Any

import pytest

from stoker import StreamingDataset
from stoker.coordination import CoordinationSettings
from stoker.errors import ConfigError, StateError
from stoker.loaders.shard_loader import Adaptive, StreamingConfig
from stoker.order.partition import Elastic
from stoker.order.partition_strategies import RoundRobin

RECORDED = {"version": 1, "epoch": 0, "world_size": 1, "identity": {}, "entries": []}
ENGINE = "memory://config"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"world_size": 0}, "world_size must be at least 1"),
        ({"world_size": 2, "rank": 2}, "rank 2 is not in a world of 2"),
        ({"rank": -1}, "rank -1 is not in a world of 1"),
        ({"prefetch_buffer_size": -1}, "prefetch_buffer_size must be at least 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": 2.0}, "batch_size must be an integer or None, got 2.0"),
        ({"checkpoint_interval": 0}, "checkpoint_interval must be at least 1"),
        ({"replication_factor": 0}, "replication_factor must be at least 1"),
        ({"replication_factor": 3, "world_size": 2}, "replication_factor 3 exceeds world_size 2"),
        ({"remainder": "stop"}, "remainder must be 'pad', 'drop', 'uneven', 'join' or None"),
        ({"remainder": "join"}, "give batch_size="),
        ({"commit": "always"}, "commit must be 'next' or 'explicit'"),
        ({"patience": 0}, "patience is seconds above 0"),
        ({"commit_every": float("inf")}, "commit_every is seconds above 0"),
        ({"coordinator": ENGINE}, "coordinator is for work that is leased"),
        ({"fault_tolerant": True}, "fault_tolerant is for work that is leased"),
        ({"replication_factor": 2, "world_size": 2}, "replication_factor is for work that is leased"),
        ({"commit": "explicit"}, "commit='explicit' is for work that is leased"),
        ({"partition": Adaptive()}, "needs coordinator="),
        ({"dynamic_balancing": True}, "needs coordinator="),
        (
            {"partition": Adaptive(), "coordinator": ENGINE, "remainder": "pad"},
            "remainder='pad' is for workers in lockstep",
        ),
        ({"partition": Adaptive(replay=RECORDED), "coordinator": ENGINE}, "a replay runs a recorded assignment"),
        (
            {"partition": Adaptive(), "coordinator": ENGINE, "replication_factor": 2, "world_size": 2},
            "replication_factor=2 keeps shards.*fault_tolerant is False",
        ),
    ],
)
def test_what_contradicts_itself(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StreamingConfig(**values)


def test_builders_give_checked_copies() -> None:
    plain = StreamingConfig(8, 3)
    made = (
        plain.with_partition(RoundRobin())
        .with_prefetch_buffer_size(16)
        .with_shuffle_seed(7)
        .with_batch_size(4)
        .with_checkpointing(500, "memory://x")
        .with_coordinator(ENGINE, "job", CoordinationSettings(lease=10, heartbeat=2))
        .with_fault_tolerance(3)
    )
    assert plain == StreamingConfig(8, 3)
    assert made == StreamingConfig(
        8,
        3,
        partition=Adaptive(RoundRobin()),
        prefetch_buffer_size=16,
        shuffle_seed=7,
        batch_size=4,
        checkpoint_interval=500,
        checkpoint_url="memory://x",
        coordinator=ENGINE,
        run_id="job",
        coordination=CoordinationSettings(lease=10, heartbeat=2),
        fault_tolerant=True,
        replication_factor=3,
    )
    assert made.leased
    with pytest.raises(ConfigError, match="exceeds world_size"):
        made.with_fault_tolerance(9)
    assert StreamingConfig(2, 0, RoundRobin(), coordinator=ENGINE, dynamic_balancing=True).adaptive == Adaptive(
        RoundRobin()
    )


def test_adaptive_says_what_it_can_not_be() -> None:
    with pytest.raises(ConfigError, match="no parts that could be moved"):
        Adaptive(Elastic(), rebalance_threshold=0.1)
    with pytest.raises(ConfigError, match="must be a number from 0"):
        Adaptive(RoundRobin(), rebalance_threshold=-1)
    with pytest.raises(ConfigError, match="base must be a Partition"):
        Adaptive(Adaptive())  # type: ignore[arg-type]
    with pytest.raises(StateError, match="not a recorded assignment"):
        Adaptive(replay={**RECORDED, "entries": [[1, 2]]})
    assert Adaptive(RoundRobin()).rebalance_threshold == 0.2
    assert Adaptive().rebalance_threshold is None


def test_adaptive_is_no_partition_of_a_streaming_dataset(tmp_path: Any) -> None:
    from support import make_dataset

    make_dataset(tmp_path, 10)
    with pytest.raises(ConfigError, match="Adaptive is for a StreamingShardLoader"):
        StreamingDataset(local=tmp_path, partition_algo=Adaptive())  # type: ignore[arg-type]
