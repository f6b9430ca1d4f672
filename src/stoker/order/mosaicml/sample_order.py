"""A run in the order of mosaicml-streaming 0.13.0: begun there or here, and resumed there or here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from stoker.errors import ConfigError
from stoker.order.mixture.weights import Mixture
from stoker.order.mosaicml.batching import LAYOUTS, EpochLayout
from stoker.order.mosaicml.settings import (
    MosaicmlSettings,
    MosaicmlStart,
    MosaicmlWorld,
    read_mosaicml_state,
)
from stoker.order.mosaicml.shuffles import choose_units, shuffle_ids
from stoker.order.sample_order import DataRank, EpochPosition, Run, Spans
from stoker.types import Ids


@dataclass(frozen=True, slots=True)
class MosaicmlPlan:
    """The batches of one rank from a position to the epoch's end.

    Without shuffling and sampling, it costs what is asked for and nothing more. With them, the epoch's order is built once by
    each process that reads it (see :mod:`.shuffles` for what that takes); from then on the process keeps 8 bytes for each
    sample that it will deliver itself.

    It stands in for :class:`~stoker.order.global_batches.BatchPlan`, but that its :meth:`chunks` are sample ids, not
    positions: to locate them is :meth:`ShardTable.locate <stoker.order.shuffle.shard_table.ShardTable.locate>` of
    ``mixture.table()``.

    Attributes:
        settings: what the order depends on; those of a resumed run have been through
            :meth:`~stoker.order.mosaicml.settings.MosaicmlSettings.resumed`.
        world: this rank; with replication, as :meth:`~stoker.order.mosaicml.settings.MosaicmlWorld.replicate` gives it.
        start: the ``sample_in_epoch`` at which it begins. Where it is not a multiple of the global batch, reading resumes
            where the reference would, at ``first``, which may be a little earlier.

    ConfigError for settings for which the reference has no order either.
    """

    mixture: Mixture
    settings: MosaicmlSettings
    world: MosaicmlWorld = field(default_factory=MosaicmlWorld)
    epoch: int = 0
    start: int = 0
    _layout: EpochLayout = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kind, seed = LAYOUTS[self.settings.batching_method], self.settings.epoch_seed(self.epoch)
        object.__setattr__(self, "_layout", kind(self.mixture, self.settings, self.world, self.start, seed))

    # -- sizes -----------------------------------------------------------------------------------------------------

    @property
    def batch_size(self) -> int:
        """Samples in a full batch of this rank."""
        return self.settings.batch_size

    @property
    def rank(self) -> int:
        """This rank, in ``[0, world_size)``. Ranks that read the same samples count as one."""
        return self.world.rank

    @property
    def world_size(self) -> int:
        """Number of ranks. Ranks that read the same samples count as one."""
        return self.world.num_ranks

    @property
    def global_batch_size(self) -> int:
        """Samples in a full global batch."""
        return self.batch_size * self.world_size

    @property
    def samples(self) -> int:
        """Number of samples that this rank reads."""
        return self._layout.count(self.rank) + self._lacking(self.rank)

    @property
    def full_batches(self) -> int:
        """Number of this rank's batches that have ``batch_size`` samples."""
        return self.samples // self.batch_size

    @property
    def full_steps(self) -> int:
        """Batches of this rank where partial ones are left out: as many of every rank."""
        return self._layout.count(self.world_size - 1) // self.batch_size

    @property
    def longest(self) -> int:
        """A rank that takes as many batches as any."""
        return 0

    @property
    def padding(self) -> int:
        """Samples of all ranks that come a second time, so that all ranks take the same number of steps."""
        again = max(0, self.start - self.first)
        return again + self._layout.padding + sum(map(self._lacking, range(self.world_size)))

    @property
    def first(self) -> int:
        """The position at which reading really begins: ``start``, rounded down to what the reference can resume from."""
        return self._layout.first

    @property
    def end(self) -> int:
        """Position after the last batch: the epoch's size, more if samples were repeated, less if some were left out."""
        return self.first + self._layout.count(0) * self.world_size

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes that two worlds must have in common for one to finish the other's epoch, each sample once."""
        return self._layout.shape

    def __len__(self) -> int:
        """Number of batches that this rank takes: as many as every other, where the reference gives some ranks one more."""
        return self._own_batches(self.rank) + self._lacking(self.rank)

    def _own_batches(self, rank: int) -> int:
        """Number of batches that a rank takes in the reference."""
        return -(-self._layout.count(rank) // self.batch_size)

    def _lacking(self, rank: int) -> int:
        """Batches that a rank takes fewer in the reference than rank 0, which takes most: 0 or 1.

        The reference lets ranks end apart where their batches were cut anew, and with ``device_per_stream``. Here such a
        rank repeats one sample, the first of rank 0's batch, so that no rank waits for it in vain.
        """
        return self._own_batches(0) - self._own_batches(rank)

    def position_after(self, batches: int) -> int:
        """The position that a resume starts from after ``batches`` batches of every rank.

        It counts from where reading really began, so that nothing is left out; the reference's counts from ``start``.
        """
        return self.first + min(batches * self.batch_size, self._layout.count(0)) * self.world_size

    def position_at(self, samples: int) -> int:
        """The position that a resume starts from after ``samples`` of all ranks together, repeated ones counted."""
        if samples >= sum(map(self._layout.count, range(self.world_size))):
            return self.end
        return self.first + samples

    # -- samples ---------------------------------------------------------------------------------------------------

    def chunks(self, samples: int, worker: int = 0, workers: int = 1, skip: int = 0) -> Iterator[list[Ids]]:
        """This rank's batches as sample ids, several at a time; see :meth:`stoker.order.sample_order.Plan.chunks`.

        Which samples a batch has does not depend on ``workers``.
        """
        batches = range(worker + skip * workers, len(self), workers)
        if not batches:
            return
        together = max(1, samples // self.batch_size)
        if self._closed_form:
            parts = (self._padded_ids(_numbers(batches[k : k + together])) for k in range(0, len(batches), together))
        else:
            # The whole epoch's order is built for these ids and let go; only the ids stay.
            ids = self._padded_ids(_numbers(batches))
            parts = (ids[k : k + together] for k in range(0, len(batches), together))
        for part in parts:
            # There may be -1 in the last batch only.
            whole = len(part) if part[-1].min() >= 0 else len(part) - 1
            yield [*part[:whole], *(row[row >= 0] for row in part[whole:])]

    def spans(self) -> Spans:
        """The ids of each stream that the epoch has samples of; see :class:`stoker.order.sample_order.SpannedPlan`."""
        sizes: Ids = np.array([counts.sum() for counts in self.mixture.shard_sizes], dtype=np.int64)
        ends = np.cumsum(sizes)
        used = np.array(self.mixture.choose) > 0
        return Spans((ends - sizes)[used], ends[used])

    def _padded_ids(self, batches: Ids) -> Ids:
        """Sample ids of some of this rank's batches, with the one that it lacks."""
        sequences, entries = self._layout.entries(self.rank, batches)
        if self._lacking(self.rank) and batches[-1] == len(self) - 1:
            first_sequences, first = self._layout.entries(0, batches[-1:])
            sequences = np.broadcast_to(sequences, entries.shape).copy()
            sequences[-1, 0] = np.broadcast_to(first_sequences, first.shape)[0, 0]
            entries[-1, 0] = first[0, 0]
        return self._to_ids(sequences, entries)

    @property
    def _closed_form(self) -> bool:
        return not self.settings.shuffle and all(map(self.mixture.whole, range(len(self.mixture.choose))))

    def _to_ids(self, sequences: Ids, entries: Ids) -> Ids:
        """Sample ids of entries of sequences, sequence after sequence: only one sequence's order is in memory at a time."""
        ids = np.full(entries.shape, -1, dtype=np.int64)
        streams = range(len(self.mixture.choose))
        for sequence, its_streams in enumerate([tuple(streams)] if self._layout.joint else [(s,) for s in streams]):
            here = np.broadcast_to(sequences == sequence, entries.shape) & (entries >= 0)
            ids[here] = self._sequence_ids(its_streams, entries[here])
        return ids

    def _sequence_ids(self, streams: tuple[int, ...], entries: Ids) -> Ids:
        settings = self.settings
        units = choose_units(
            self.mixture,
            streams,
            sampling_seed=settings.sampling_seed(self.epoch),
            picking_seed=settings.epoch_seed(self.epoch),
            granularity=settings.sampling_granularity,
        )
        if settings.shuffle:
            block = settings.block_size
            if not self._layout.joint:
                # A stream's blocks are to all blocks as its samples are to all samples.
                block = int(block * self.mixture.proportion[streams[0]])
                if not block and settings.batching_method == "device_per_stream":
                    raise ConfigError(
                        f"shuffle_block_size={settings.block_size} leaves none to stream {streams[0]}: raise it, or the "
                        "stream's proportion"
                    )
            order = shuffle_ids(
                settings.shuffle_algo,
                units.sizes,
                settings.num_canonical_nodes,
                settings.shuffle_seed,
                self.epoch,
                block,
            )
            entries = order[entries]
        return units.to_ids(entries)


def _numbers(batches: range) -> Ids:
    return np.arange(batches.start, batches.stop, batches.step, dtype=np.int64)


MOSAICML_KEY = "mosaicml-streaming"
"""Key under which a state carries the five integers that the reference resumes from."""


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
    start_type: ClassVar = MosaicmlStart

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

    @property
    def chosen(self) -> dict[str, int]:
        """Samples of each stream in an epoch, by its name."""
        return {name: int(choose) for (name, _), choose in zip(self.streams, self.mixture.choose, strict=True)}

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
        chosen = self.chosen
        streams = {name: {**about, "choose": chosen[name]} for name, about in self.streams}
        return {"streams": streams, "order": order}

    def read_mosaicml_state(self, state: Mapping[str, Any]) -> EpochPosition:
        """The position at which the reference's ``state_dict`` says that its run stopped."""
        return read_mosaicml_state(state)

    def write_mosaicml_state(self, position: EpochPosition, data_rank: DataRank) -> dict[str, Any]:
        """The state from which the reference resumes at the same position."""
        start = self.epoch_start(position, data_rank)
        return {
            MOSAICML_KEY: {
                "epoch": position.epoch,
                "sample_in_epoch": position.position,
                "num_canonical_nodes": start.num_canonical_nodes,
                "shuffle_seed": start.shuffle_seed,
                "initial_physical_nodes": start.initial_physical_nodes or None,
            }
        }

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
        if isinstance(position.start, MosaicmlStart):
            settings = settings.resumed(position.start)
        return world, settings
