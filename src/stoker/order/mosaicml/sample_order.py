"""A run in the order of mosaicml-streaming 0.13.0: begun there or here, and resumed there or here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.errors import ConfigError
from stoker.order.mixture.weights import Mixture
from stoker.order.mosaicml.plan import MosaicmlPlan
from stoker.order.mosaicml.settings import (
    MosaicmlSettings,
    MosaicmlState,
    MosaicmlWorld,
    read_mosaicml_state,
)
from stoker.order.sample_order import DataRank, EpochPosition, EpochStart, Run

MOSAICML_KEY = "mosaicml-streaming"
"""Key under which a state carries the five integers that the reference resumes from."""


@dataclass(frozen=True, slots=True)
class MosaicmlStart(EpochStart):
    """The start of a run in the reference's order, and of the epoch that it is in.

    Attributes:
        num_canonical_nodes: of the run.
        shuffle_seed: of the run.
        initial_physical_nodes: nodes that the run began on; 0: not known.
        num_nodes: nodes that the epoch began on; 0: not known, as in a state of the reference.
        ranks_per_node: ranks on each of them.
        batch_size: samples in a batch of each rank.
    """

    num_canonical_nodes: int = 1
    shuffle_seed: int = 0
    initial_physical_nodes: int = 0
    num_nodes: int = 0
    ranks_per_node: int = 0
    batch_size: int = 0


@dataclass(frozen=True, slots=True)
class MosaicmlOrder:
    """The reference's order of an epoch, for any epoch and reader.

    Attributes:
        mixture: the streams and how much of each an epoch has.
        streams: for each stream, its name and what identifies its data and weight in a state.
        options: arguments of :meth:`MosaicmlSettings.resolve <stoker.order.mosaicml.MosaicmlSettings.resolve>` but the
            batch size: ``shuffle``, ``shuffle_algo``, ``shuffle_seed``, ``num_canonical_nodes``, ...
        urls: where the streams' data is, by name, for messages.
    """

    mixture: Mixture
    streams: Sequence[tuple[str, Mapping[str, Any]]]
    options: Mapping[str, Any]
    urls: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Bad settings are said at once, not when the first batch is asked for.
        MosaicmlSettings.resolve(MosaicmlWorld(), batch_size=1, **self.options)

    @property
    def epoch_size(self) -> int:
        """Samples of an epoch, before the reference repeats or leaves out some to even out its ranks."""
        return self.mixture.epoch_size

    @property
    def shards_at_once(self) -> int:
        """About how many shards are read at once: those that a shuffle block of each canonical node lies in."""
        sizes = self.mixture.table().sizes
        settings = MosaicmlSettings.resolve(MosaicmlWorld(), batch_size=1, **self.options)
        if not settings.shuffle:
            return settings.num_canonical_nodes
        average = max(1, int(sizes.sum()) // max(1, len(sizes)))
        per_node = {
            "naive": len(sizes),
            "py1br": settings.block_size // average + 1,
            "py1e": settings.block_size // average + 1,
        }
        return min(len(sizes), per_node.get(settings.shuffle_algo, 2) * settings.num_canonical_nodes)

    def run(self, position: EpochPosition, data_rank: DataRank) -> Run:
        """The samples of one reader. With shuffling, the epoch's order is built when the first batch is asked for."""
        world, settings = self._settings(position, data_rank)
        plan = MosaicmlPlan(self.mixture, settings, world, position.epoch, position.position)
        start = position.start
        if position.position and isinstance(start, MosaicmlStart) and start.num_nodes:
            begun = MosaicmlPlan(
                self.mixture,
                replace(settings, batch_size=start.batch_size),
                MosaicmlWorld(0, start.num_nodes, start.ranks_per_node),
                position.epoch,
            )
            if begun.shape != plan.shape:
                raise ConfigError(
                    f"the epoch was begun on {start.num_nodes} x {start.ranks_per_node} ranks with batch_size "
                    f"{start.batch_size}, and another division has other batches with "
                    f"batching_method={settings.batching_method!r}: resume with the same global batch, and if that is "
                    "refused "
                    f"the same ranks, until the epoch ends. The state's {MOSAICML_KEY!r} alone resumes as mosaicml-streaming "
                    "does, which loses and repeats samples"
                )
        return Run(self.mixture.table(), plan)

    @property
    def start_type(self) -> type[MosaicmlStart]:
        """The fields that a state keeps of the starts of run and epoch."""
        return MosaicmlStart

    def epoch_start(self, position: EpochPosition, data_rank: DataRank) -> MosaicmlStart:
        """The starts of run and epoch."""
        start = position.start if isinstance(position.start, MosaicmlStart) else None
        if start is not None and position.position and start.num_nodes:
            return start
        world, settings = self._settings(position, data_rank)
        if start is None:
            start = MosaicmlStart(settings.num_canonical_nodes, settings.shuffle_seed, world.num_nodes)
        return replace(
            start, num_nodes=world.num_nodes, ranks_per_node=world.ranks_per_node, batch_size=data_rank.batch_size
        )

    def ended(self, position: EpochPosition, data_rank: DataRank) -> bool:
        """Whether nothing of the epoch is left. What the reference repeats to even out ranks comes after ``epoch_size``."""
        if position.position < self.epoch_size:
            return False
        world, settings = self._settings(position, data_rank)
        return MosaicmlPlan(self.mixture, settings, world, position.epoch, position.position).end <= position.position

    def in_epoch(self, position: EpochPosition) -> bool:  # noqa: ARG002
        """Always: how many samples are repeated depends on the world that a state was taken in."""
        return True

    def as_dict(self) -> dict[str, Any]:
        """Settings but for those that a state brings along, as the reference's states do: canonical nodes and seed."""
        settings = MosaicmlSettings.resolve(MosaicmlWorld(), batch_size=1, **self.options)
        order: dict[str, Any] = {
            "like": MOSAICML_KEY,
            "shuffle": settings.shuffle_algo if settings.shuffle else "none",
            "block_size": settings.shuffle_block_size,
            "sampling_method": settings.sampling_method,
            "sampling_granularity": settings.sampling_granularity,
            "partition": settings.partition_algo,
            "batching_method": settings.batching_method,
            "epoch_size": self.epoch_size,
        }
        if len(self.streams) > 1:
            order["streams"] = [name for name, _ in self.streams]
        streams = {
            name: {**about, "choose": choose}
            for (name, about), choose in zip(self.streams, self.mixture.choose, strict=True)
        }
        return {"streams": streams, "order": order}

    def read_mosaicml_state(self, state: Mapping[str, Any]) -> EpochPosition:
        """The position at which the reference's ``state_dict`` says that its run stopped."""
        read = read_mosaicml_state(state)
        start = MosaicmlStart(read.num_canonical_nodes, read.shuffle_seed, read.initial_physical_nodes or 0)
        return EpochPosition(read.epoch, read.sample_in_epoch, start=start)

    def write_mosaicml_state(self, position: EpochPosition, data_rank: DataRank) -> dict[str, Any]:
        """The state from which the reference resumes at the same position."""
        return {MOSAICML_KEY: _state(position, self.epoch_start(position, data_rank)).as_dict()}

    def _settings(self, position: EpochPosition, data_rank: DataRank) -> tuple[MosaicmlWorld, MosaicmlSettings]:
        processes = data_rank.world_size * data_rank.replication
        nodes, rest = divmod(processes, data_rank.ranks_per_node)
        if rest:
            raise ConfigError(
                f"the order of mosaicml-streaming needs nodes of equally many ranks, got {processes} ranks and "
                f"{data_rank.ranks_per_node} on this node"
            )
        physical = MosaicmlWorld(data_rank.rank * data_rank.replication, nodes, data_rank.ranks_per_node)
        world = physical.replicate(data_rank.replication)
        settings = MosaicmlSettings.resolve(world, batch_size=data_rank.batch_size, **self.options)
        start = position.start
        if isinstance(start, MosaicmlStart):
            settings = settings.resumed(_state(position, start))
        return world, settings


def _state(position: EpochPosition, start: MosaicmlStart) -> MosaicmlState:
    """The reference's state at a position of a run that began so."""
    return MosaicmlState(
        position.epoch,
        position.position,
        start.num_canonical_nodes,
        start.shuffle_seed,
        start.initial_physical_nodes or None,
    )
