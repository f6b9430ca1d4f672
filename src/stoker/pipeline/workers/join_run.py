"""From a loader's config to its part in a run at a coordinator."""

from __future__ import annotations

from stoker.coordination import Coordination
from stoker.errors import ConfigError
from stoker.order.capabilities import stream_urls
from stoker.order.native import NativeOrder
from stoker.pipeline.workers.adaptive import Splits
from stoker.pipeline.workers.config import StreamingConfig
from stoker.pipeline.workers.replicas import lanes_held
from stoker.storage.recorded_versions import host_versions

__all__ = ["join_run"]


def join_run(config: StreamingConfig, sample_order: NativeOrder, splits: Splits) -> Coordination:
    """The worker's part in its run; no epoch has begun yet.

    Raises:
        ConfigError: settings that contradict the config.
        EngineError: the coordinator can not be reached.
    """
    adaptive, settings = config.adaptive, config.coordination
    assert adaptive is not None
    assert config.coordinator is not None
    if settings.threshold is not None:
        raise ConfigError(
            f"the coordinator's settings have threshold={settings.threshold}, which Adaptive sets: give it to "
            "Adaptive(rebalance_threshold=...)"
        )
    size = config.batch_size or 1
    settings = settings._replace(
        threshold=adaptive.rebalance_threshold,
        multiple=size,
        smallest=max(settings.smallest, size),
        largest=max(settings.largest, size),
        grid=max(settings.grid, size) // size * size,
    )
    static = adaptive.base.static
    # A lane a worker: those whose shards this one keeps, it goes on with before all else when their worker is lost.
    lanes = config.world_size if static else min(config.world_size, max(1, splits.total))
    held = frozenset(lanes_held(config.rank, lanes, config.world_size, config.replication_factor))
    return Coordination(
        config.coordinator,
        config.run_id,
        rank=config.rank,
        world_size=config.world_size,
        positions=splits.parts if static else splits.total,
        lanes=None if static else lanes,
        identity={**host_versions(sample_order.as_dict(), stream_urls(sample_order)), "batch_size": config.batch_size},
        settings=settings,
        commit_every=config.commit_every,
        patience=config.patience,
        takes_over=held.__contains__,
    )
