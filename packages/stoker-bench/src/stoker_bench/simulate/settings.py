"""Inputs of a simulation: the shards, the machines, and what time things take."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stoker.arguments import checked
from stoker.errors import ConfigError
from stoker.index.index import Index
from stoker.order.sample_order import Run
from stoker.types import Ids

RankRun: TypeAlias = Callable[[int, int], Run]
"""From rank and world size to the samples that the loader would read there. Orders that are alike should be one object."""


@dataclass(frozen=True, slots=True)
class Shards:
    """Sizes of the shards, numbered as the order numbers them.

    Attributes:
        samples: int64, shape ``(shards,)``.
        raw: bytes of their files as they are read; int64, shape ``(shards,)``.
        stored: bytes that are fetched, compressed where they are; int64, shape ``(shards,)``.
    """

    samples: Ids
    raw: Ids
    stored: Ids

    def __post_init__(self) -> None:
        if not self.samples.shape == self.raw.shape == self.stored.shape:
            raise ConfigError("each shard needs its samples, its raw bytes and its stored bytes")

    @classmethod
    def of(cls, index: Index) -> Shards:
        """The shards of a dataset's index."""
        raw = [sum(file.bytes for file in shard.raw) for shard in index.shards]
        stored = [sum(file.bytes for file in shard.stored) for shard in index.shards]
        return cls(index.sizes, np.array(raw, dtype=np.int64), np.array(stored, dtype=np.int64))

    def __len__(self) -> int:
        return int(self.samples.size)


@checked
@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines.

    Attributes:
        nodes: how many; each has a network link and a cache of its own.
        ranks_per_node: processes on each that take batches. Ranks fill one node after the other.
    """

    nodes: int
    ranks_per_node: int

    def __post_init__(self) -> None:
        for name in ("nodes", "ranks_per_node"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node


@checked
@dataclass(frozen=True, slots=True)
class CostModel:
    """Times that things take, and sizes that fit.

    A node fetches shards in the order in which its ranks need them first. A shard holds the link for
    ``max(bytes / bandwidth, latency / connections)`` seconds, since so many requests run side by side, and is there
    ``latency`` seconds after that. All ranks step together. Decompressing and decoding are taken to cost nothing.

    Attributes:
        step_time: seconds that a training step takes once its batch is there.
        bandwidth: bytes a second that a node's link carries; ``None`` for no bound.
        latency: seconds from a request to its first byte.
        connections: downloads that a node has under way at once.
        lookahead: samples of a rank, ahead of its batch, whose shards are fetched.
        cache_limit: bytes of shard files that a node's cache may hold; ``None`` for no limit.
    """

    step_time: float = 0.25
    bandwidth: float | None = None
    latency: float = 0.0
    connections: int = 8
    lookahead: int = 0
    cache_limit: int | None = None

    def __post_init__(self) -> None:
        for name, value, positive in (
            ("step_time", self.step_time, True),
            ("bandwidth", self.bandwidth, True),
            ("latency", self.latency, False),
            ("connections", self.connections, True),
            ("lookahead", self.lookahead, False),
            ("cache_limit", self.cache_limit, True),
        ):
            if value is not None and not (math.isfinite(value) and (value > 0 or (value == 0 and not positive))):
                raise ConfigError(f"{name} must be {'above' if positive else 'at least'} 0, got {value}")

    def seconds(self, size: Ids, bandwidth: float | None) -> NDArray[np.float64]:
        """Seconds for which shards of ``size`` bytes hold a link of ``bandwidth``; float64 of the shape of ``size``."""
        wire = np.zeros(size.shape) if bandwidth is None else size / bandwidth
        return np.maximum(wire, self.latency / self.connections)
