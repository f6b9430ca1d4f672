"""A run in the order of mosaicml-streaming 0.13.0: begun there or here, and gone on with there or here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stoker.errors import ConfigError
from stoker.order.mosaicml.plan import MosaicmlPlan
from stoker.order.mosaicml.sampling import Mixture
from stoker.order.mosaicml.settings import (
    MosaicmlSettings,
    MosaicmlState,
    MosaicmlWorld,
    read_mosaicml_state,
)
from stoker.order.sample_order import DataRank, Leg, Run, Terms

__all__ = ["FOREIGN_KEY", "MosaicmlOrder"]

FOREIGN_KEY = "mosaicml-streaming"
"""Key under which a state carries the five integers that the reference resumes from."""

_TERMS = 6


@dataclass(frozen=True, slots=True)
class MosaicmlOrder:
    """The reference's order of an epoch, for any epoch and reader.

    Attributes:
        mixture: the streams and how much of each an epoch has.
        streams: for each stream, its name and what identifies its data and weight in a state.
        options: arguments of :meth:`MosaicmlSettings.resolve <stoker.order.mosaicml.MosaicmlSettings.resolve>` beside the
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

    def run(self, leg: Leg, data_rank: DataRank) -> Run:
        """What a reader reads. With shuffling, the epoch's order is built when the first batch is asked for."""
        world, settings = self._settings(leg, data_rank)
        plan = MosaicmlPlan(self.mixture, settings, world, leg.epoch, leg.position)
        nodes, ranks, batch = leg.terms[3:] or (0, 0, 0)
        if leg.position and nodes:
            begun = MosaicmlPlan(
                self.mixture, replace(settings, batch_size=batch), MosaicmlWorld(0, nodes, ranks), leg.epoch
            )
            if begun.shape != plan.shape:
                raise ConfigError(
                    f"the epoch was begun on {nodes} x {ranks} ranks with batch_size {batch}, and another division has other "
                    f"batches with batching_method={settings.batching_method!r}: go on with the same global batch, and if "
                    "that is refused the same ranks, until the epoch ends. The state's "
                    f"{FOREIGN_KEY!r} alone goes on as mosaicml-streaming does, which loses and repeats samples"
                )
        return Run(self.mixture.table(), plan)

    def terms(self, leg: Leg, data_rank: DataRank) -> Terms:
        """Canonical nodes, seed, the nodes that the run began on (0: not known), and the nodes, ranks of each and batch size
        that the epoch was begun with.
        """
        if leg.position and len(leg.terms) == _TERMS:
            return leg.terms
        world, settings = self._settings(leg, data_rank)
        run = leg.terms[:3] if any(leg.terms) else ()
        run = run or (settings.num_canonical_nodes, settings.shuffle_seed, world.num_nodes)
        return *run, world.num_nodes, world.ranks_per_node, data_rank.batch_size

    def ended(self, leg: Leg, data_rank: DataRank) -> bool:
        """Whether nothing of the epoch is left. What the reference repeats to even out ranks comes after ``epoch_size``."""
        if leg.position < self.epoch_size:
            return False
        world, settings = self._settings(leg, data_rank)
        return MosaicmlPlan(self.mixture, settings, world, leg.epoch, leg.position).end <= leg.position

    def beyond(self, leg: Leg) -> bool:  # noqa: ARG002
        """No position is: how many samples are repeated depends on the world that a state was taken in."""
        return False

    def as_dict(self) -> dict[str, Any]:
        """Settings but for those that a state brings along, as the reference's states do: canonical nodes and seed."""
        settings = MosaicmlSettings.resolve(MosaicmlWorld(), batch_size=1, **self.options)
        order: dict[str, Any] = {
            "like": FOREIGN_KEY,
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

    def consumed(self, leg: Leg) -> dict[str, int]:  # noqa: ARG002
        """Nothing: each epoch draws its samples anew."""
        return {}

    @property
    def origin(self) -> dict[str, Any]:
        """None: no epoch depends on an earlier one."""
        return {}

    def continued(self, *_: Any, **__: Any) -> MosaicmlOrder:
        """This order unchanged: no epoch depends on an earlier one."""
        return self

    def read_foreign(self, state: Mapping[str, Any]) -> Leg | None:
        """Where the reference's ``state_dict`` says that its run stopped."""
        if "sample_in_epoch" not in state:
            return None
        read = read_mosaicml_state(state)
        return Leg(
            read.epoch,
            read.sample_in_epoch,
            (read.num_canonical_nodes, read.shuffle_seed, read.initial_physical_nodes or 0),
        )

    def write_foreign(self, leg: Leg, data_rank: DataRank) -> dict[str, Any]:
        """The state that the reference resumes from at the same place."""
        nodes, seed, began = self.terms(leg, data_rank)[:3]
        state = MosaicmlState(leg.epoch, leg.position, nodes, seed, began or None)
        return {FOREIGN_KEY: state.as_dict()}

    def _settings(self, leg: Leg, data_rank: DataRank) -> tuple[MosaicmlWorld, MosaicmlSettings]:
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
        if any(leg.terms):
            canonical, seed, began = leg.terms[:3]
            settings = settings.resumed(MosaicmlState(leg.epoch, leg.position, canonical, seed, began or None))
        return world, settings
