"""Random data and settings for histories of runs that stop and go on: stoker's own orders and mosaicml-streaming's."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stoker.order.mixture.schedule import Schedule
from stoker.order.mixture.weights import Mixture, StreamWeight
from stoker.order.mosaicml.sample_order import MosaicmlOrder
from stoker.order.native import NativeOrder
from stoker.order.number_sets import Without
from stoker.order.partition import Elastic, Partition
from stoker.order.partition_strategies import HashBased, RangeBased
from stoker.order.sample_order import Run, SampleOrder
from stoker.order.selection import Everything, Selection, Split
from stoker.order.settings import NativeSettings, StreamSource
from stoker.order.shuffle.shard_table import ShardTable
from stoker.types import Ids
from support import PARTITIONS, batches_of_workers

__all__ = ["History", "Place", "batches_of", "ids_of", "make_history"]

PLAIN = StreamWeight()
DRAWN: list[Partition] = [Elastic(), *PARTITIONS, HashBased(9, 1, "user")]
"""Partitions of stoker's own orders; ``Elastic()`` is there twice, and so drawn twice as often."""
ALGOS = ("naive", "py1s", "py2s", "py1br", "py1e")


@dataclass(frozen=True)
class Place:
    """A world, and how it reads."""

    nodes: int
    ranks_per_node: int
    batch_size: int
    workers: int = 1

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.nodes * self.ranks_per_node


@dataclass
class History:
    """One history: what is read, and what was delivered so far.

    Attributes:
        delivered: of each epoch, how often each sample was delivered.
        padding: of each epoch, how many samples the plans that were followed repeat at most.
        homes: of each epoch, the world in which it began.
        begun: of each epoch of an order of mosaicml-streaming, what the world in which it began reads without a stop, and how
            much of that repeats other samples of it.
        told: what happened, for failures.
    """

    rng: random.Random
    sources: list[StreamSource]
    settings: NativeSettings
    epochs: int
    incumbent: dict[str, object] | None = None
    mixture: Mixture | None = None
    delivered: dict[int, Counter[int]] = field(default_factory=dict)
    padding: Counter[int] = field(default_factory=Counter)
    homes: dict[int, Place] = field(default_factory=dict)
    begun: dict[int, tuple[Counter[int], int]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)

    @property
    def plain(self) -> bool:
        """Whether an epoch has all samples once."""
        settings = self.settings
        return (
            settings.schedule is None and settings.epoch_size is None and all(s.weight == PLAIN for s in self.sources)
        )

    @property
    def remainder(self) -> str:
        """What becomes of ranks that do not end together."""
        return "pad" if self.incumbent is not None else self.settings.remainder

    @property
    def static(self) -> bool:
        """Whether ranks own parts."""
        return self.incumbent is None and self.settings.partition.static

    @property
    def kind(self) -> str:
        """What is read, in two words."""
        if self.incumbent is not None:
            return f"mosaicml-streaming {self.incumbent['batching_method']}"
        batching = self.settings.batching_method if len(self.sources) > 1 else "one stream"
        return f"{self.settings.partition.name} {batching}"

    def sample_order(self) -> SampleOrder:
        """The sample order, made anew as by another process."""
        if self.incumbent is None:
            return NativeOrder(self.sources, self.settings)
        assert self.mixture is not None
        return MosaicmlOrder(self.mixture, [(s.name, s.about()) for s in self.sources], self.incumbent)


def make_history(number: int) -> History:
    """A random history's data and settings."""
    rng = random.Random(number)
    streams = rng.choice([1, 1, 2, 3])
    foreign = rng.random() < 0.3
    kind = rng.choice(["all", "all", "proportion", "repeat", "repeat" if foreign else "schedule"])
    partition = rng.choice(DRAWN)
    if kind == "schedule":
        partition = Elastic()
    sources = []
    for stream in range(streams):
        sizes = [rng.randint(0, 11) for _ in range(rng.randint(1, 5))] + [rng.randint(8, 16)]
        table = ShardTable(np.array(sizes, dtype=np.int64))
        selection: Selection = Everything(table)
        if not foreign and rng.random() < 0.3:
            split = rng.random() < 0.5
            selection = Split(table, 0.1, 0.9, number) if split else Without(Everything(table), [0, 3, 5])
        weight = PLAIN
        if kind == "proportion":
            weight = StreamWeight(proportion=rng.choice([1, 2, 0.7]))
        elif kind == "repeat":
            weight = rng.choice(
                [PLAIN, StreamWeight(repeat=rng.choice([0.8, 1.7, 2])), StreamWeight(choose=rng.randint(8, 60))]
            )
        labels = np.arange(table.total) % (8 if partition.column == "user" else 3)
        sources.append(StreamSource(f"s{stream}", table, selection, weight, f"f{stream}", labels))
    if streams == 1 and kind == "all" and not partition.static and rng.random() < 0.3:
        partition = _ranges(rng, int(sources[0].selection.sizes.sum()))
    schedule = None
    if kind == "schedule":
        points: dict[int | str, dict[str, float]] = {
            time: {f"s{stream}": rng.randint(1, 3) for stream in range(streams)}
            for time in sorted({0, rng.randint(1, 60), rng.randint(1, 150)})
        }
        schedule = Schedule.parse(points, rng.choice([0, 3]))
    sized = kind == "proportion" or (kind == "schedule" and rng.random() < 0.5)
    settings = NativeSettings(
        shuffle=rng.choice(["none", "block", "block", "shard", "global"]),
        seed=number,
        num_canonical_nodes=rng.choice([None, 1, 2, 4, 5]),
        block_size=rng.choice([None, 7]),
        epoch_size=rng.randint(40, 120) if sized else None,
        partition=partition,
        batching_method=rng.choice(["random", "stratified"])
        if kind == "schedule"
        else rng.choice(["random", "stratified", "per_stream", "device_per_stream"]),
        # Fixed sampling draws of some streams less than there may be ranks, which static parts do not allow.
        sampling_method="fixed" if kind == "proportion" and not partition.static and rng.random() < 0.3 else "balanced",
        schedule=schedule,
        remainder=rng.choice(["pad", "uneven", "uneven", "drop"]),
    )
    history = History(rng, sources, settings, rng.choice([2, 2, 2, 3]))
    if foreign:
        _make_foreign(history, number)
    return history


def _ranges(rng: random.Random, samples: int) -> RangeBased:
    """As many ranges as the largest world has ranks, or more."""
    borders = sorted(rng.sample(range(1, samples), rng.randint(4, 6)))
    return RangeBased(list(zip([0, *borders], [*borders, samples], strict=True)))


def _make_foreign(history: History, number: int) -> None:
    rng, settings = history.rng, history.settings
    sizes = [source.table.sizes for source in history.sources]
    history.mixture = Mixture.resolve(sizes, [source.weight for source in history.sources], settings.epoch_size, number)
    history.incumbent = {
        "shuffle": rng.random() < 0.8,
        "shuffle_algo": rng.choice(ALGOS),
        "shuffle_seed": number,
        "num_canonical_nodes": rng.choice([None, None, 1, 2, 4, 6, 12]),
        "shuffle_block_size": rng.choice([None, 11, 40]),
        "sampling_method": rng.choice(["balanced", "balanced", "fixed"]),
        "sampling_granularity": 1,
        "batching_method": rng.choice(["random", "random", "stratified", "per_stream", "device_per_stream"]),
        "partition_algo": rng.choice(["relaxed", "relaxed", "orig"]),
    }


def ids_of(sources: Sequence[StreamSource], run: Run, places: list[Ids]) -> list[int]:
    """Samples of batches, by ids that count through all streams."""
    if not places:
        return []
    shards, rows = run.order.locate(np.concatenate(places))
    sizes = np.concatenate([source.table.sizes for source in sources])
    ids: list[int] = ((np.cumsum(sizes) - sizes)[shards] + rows).tolist()
    return ids


def batches_of(run: Run, workers: int) -> list[Ids]:
    return batches_of_workers(run.plan, workers, 20)
