"""The four batching methods of mosaicml-streaming 0.13.0: which sample of which stream each position of each batch has.

A :class:`EpochLayout` knows the *sequences* (one for all streams together, or one a stream; each a partition of its own) and
says for any rank and global batch which entry of which sequence is where. What an entry's sample id is, :mod:`.sample_order`
says.

random
    One sequence of all streams together, dealt out as :mod:`.partition` describes.
stratified
    Each global batch has the same number of entries of each sequence, in stream order, and ranks cut it into equal parts. The
    epoch ends with the first sequence that can not fill its part.
per_stream
    Each global batch is of one sequence; which one is drawn. What does not fill a global batch is left out.
device_per_stream
    The batch of each rank is of one stream, drawn for each node; each canonical node's entries stay with one node. What does
    not fill a batch is left out. (Batches of nodes are then put one behind the other and dealt out to all ranks in turn, so
    that with several nodes a rank does get batches of other nodes than its own. The reference does so; so it is here.)

Counts and entries are closed forms, but for the two that draw: O(batches) time, 16 bytes each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

import numpy as np

from stoker.errors import ConfigError
from stoker.lazy import cached_property
from stoker.order.mixture.weights import Mixture
from stoker.order.mosaicml.partition import MosaicmlPartition
from stoker.order.mosaicml.settings import MosaicmlSettings, MosaicmlWorld
from stoker.types import Ids


class EpochLayout(ABC):
    """The entry of each position of an epoch, from the position of a resume on.

    Attributes:
        joint: whether there is one sequence of all streams, or one for each stream.
        rows: number of global batches; in the last of them ranks may have fewer samples than ``batch_size``, or none.
        first: samples of the epoch that are left out, as they were read before.
        padding: samples that come a second time, so that all ranks take the same number of steps.
        shape: what must be the same in two worlds for one to finish the other's epoch, each sample once.

    ConfigError for numbers that do not divide each other; or too few samples for the method.
    """

    joint: bool = False
    rows: int
    padding: int = 0
    shape: tuple[int, ...] = ()

    def __init__(
        self, mixture: Mixture, settings: MosaicmlSettings, world: MosaicmlWorld, start: int, draw_seed: int
    ) -> None:
        """Lay out an epoch.

        Args:
            mixture: the streams, and how many samples of each an epoch has.
            settings: see the class.
            world: any rank of the world that reads.
            start: samples of the epoch that were read before.
            draw_seed: of the generator that draws which stream a batch is of.
        """
        self._settings = settings
        self._batch_size = settings.batch_size
        self._nodes, self._ranks, self._all = world.num_nodes, world.ranks_per_node, world.num_ranks
        self._global_batch_size = self._batch_size * self._all
        self._seed = draw_seed
        # Global batches that were read before.
        self._first = start // self._global_batch_size
        self.first = self._first * self._global_batch_size
        self._lay_out(mixture, start)

    @abstractmethod
    def _lay_out(self, mixture: Mixture, start: int) -> None:
        """Set the attributes above."""

    def _deal(self, samples: int, nodes: int, ranks: int, batch_size: int, start: int = 0) -> MosaicmlPartition:
        settings = self._settings
        return MosaicmlPartition(
            settings.partition_algo,
            samples,
            settings.num_canonical_nodes,
            nodes,
            ranks,
            batch_size,
            start,
            settings.initial_physical_nodes,
        )

    def count(self, rank: int) -> int:  # noqa: ARG002 - of this rank, in some layouts
        """Number of samples that a rank reads. They come in full batches, but for the last."""
        return self.rows * self._batch_size

    @abstractmethod
    def entries(self, rank: int, batches: Ids) -> tuple[Ids, Ids]:
        """The entries of a rank in some global batches.

        ``rank``: in ``[0, num_ranks)``. ``batches``: numbers of global batches, below ``rows``, shape ``(k,)``. Gives
        sequences (that broadcast to the second array) and entries of them (-1: none), the latter of shape ``(k,
        batch_size)``.
        """


class _Random(EpochLayout):
    joint = True

    def _lay_out(self, mixture: Mixture, start: int) -> None:
        self._partition = self._deal(mixture.epoch_size, self._nodes, self._ranks, self._batch_size, start)
        self.rows = self._partition.batches
        self.first = self._partition.first
        self.padding = max(0, self._partition.total - max(0, mixture.epoch_size - self.first))

    def count(self, rank: int) -> int:
        return self._partition.count(rank)

    def entries(self, rank: int, batches: Ids) -> tuple[Ids, Ids]:
        return np.zeros((1, 1), dtype=np.int64), self._partition.ids(rank, batches)


class _Stratified(EpochLayout):
    def _lay_out(self, mixture: Mixture, start: int) -> None:  # noqa: ARG002
        _check_streams(mixture)
        size = self._global_batch_size
        wanted = size * np.array(mixture.proportion)
        parts = np.array([int(proportion * size) for proportion in mixture.proportion], dtype=np.int64)
        missing = size - int(parts.sum())
        if missing:
            # Streams that came nearest to one more get it. NumPy's default sort decides ties, as in the reference; from four
            # streams on its answer differs between processors with and without AVX2 or AVX-512.
            parts[np.flip(np.argsort(wanted - parts))[:missing]] += 1
        if parts.min() < 1:
            raise ConfigError(
                f"stream {int(parts.argmin())} has no sample in a global batch of {size}: enlarge the batch, or the "
                "stream's proportion"
            )
        # One node whose ranks take turns reads a sequence in order; what is read is then cut anew.
        self._partitions = [self._deal(count, 1, self._ranks, 1) for count in mixture.choose]
        self._parts = parts
        self._begins = parts.cumsum() - parts
        full = min(
            partition.full_batches * self._ranks // part
            for partition, part in zip(self._partitions, parts.tolist(), strict=True)
        )
        self.rows = max(0, full - self._first)
        self.shape = (size, full)

    def entries(self, rank: int, batches: Ids) -> tuple[Ids, Ids]:
        positions = np.arange(rank * self._batch_size, (rank + 1) * self._batch_size, dtype=np.int64)
        sequences = np.searchsorted(self._begins, positions, side="right") - 1
        entries = (batches[:, None] + self._first) * self._parts[sequences] + positions - self._begins[sequences]
        turns, ranks = np.divmod(entries, self._ranks)
        for sequence in np.unique(sequences).tolist():
            here = sequences == sequence
            entries[:, here] = self._partitions[sequence].at(0, ranks[:, here], turns[:, here])
        return sequences[None, :], entries


class _PerStream(EpochLayout):
    def _lay_out(self, mixture: Mixture, start: int) -> None:  # noqa: ARG002
        _check_streams(mixture)
        self._partitions = [self._deal(count, self._nodes, self._ranks, self._batch_size) for count in mixture.choose]
        counts = [partition.full_batches for partition in self._partitions]
        if min(counts) < 1:
            raise ConfigError(
                f"stream {counts.index(min(counts))} has too few samples for one global batch of "
                f"{self._global_batch_size}. Use smaller batches, or choose more of it"
            )
        self._counts = counts
        self.rows = max(0, sum(counts) - self._first)
        self.shape = (self._global_batch_size, *counts, *(partition.width for partition in self._partitions))

    @cached_property
    def _drawn(self) -> tuple[Ids, Ids]:
        return _number(_draw(self._counts, self._seed, 1), len(self._counts))

    def entries(self, rank: int, batches: Ids) -> tuple[Ids, Ids]:
        all_sequences, all_numbers = self._drawn
        sequences, numbers = all_sequences[batches + self._first], all_numbers[batches + self._first]
        entries = np.empty((len(batches), self._batch_size), dtype=np.int64)
        for sequence in np.unique(sequences).tolist():
            here = sequences == sequence
            entries[here] = self._partitions[sequence].ids(rank, numbers[here].astype(np.int64))
        return sequences[:, None], entries


class _DevicePerStream(EpochLayout):
    def _lay_out(self, mixture: Mixture, start: int) -> None:  # noqa: ARG002
        _check_streams(mixture)
        canonical, ranks = self._settings.num_canonical_nodes, self._ranks
        if canonical % self._nodes:
            raise ConfigError(
                f"device_per_stream needs num_canonical_nodes={canonical} to be a multiple of the {self._nodes} nodes"
            )
        self._canonical = canonical // self._nodes
        # Each canonical node's entries are dealt out to a node's ranks; a node goes through its canonical nodes in turn.
        self._partitions = [self._deal(count, canonical, ranks, 1) for count in mixture.choose]
        counts = [partition.batches * self._canonical * ranks // self._batch_size for partition in self._partitions]
        if min(counts) < 1:
            raise ConfigError(
                f"stream {counts.index(min(counts))} has too few samples for one batch of {self._batch_size} on each "
                "node. Use smaller batches, or choose more of it"
            )
        self._counts = counts
        self._batches = sum(counts)
        # All nodes have the same number of batches, filled up (by one at least) to a multiple of the ranks.
        self.rows = max(0, (self._batches // self._all + 1) * self._nodes - self._first)
        self._drawn: tuple[int, tuple[Ids, Ids]] | None = None
        self.shape = (self._nodes, ranks, self._batch_size)

    def _draw_node(self, node: int) -> tuple[Ids, Ids]:
        if self._drawn is None or self._drawn[0] != node:
            self._drawn = node, _number(_draw(self._counts, self._seed, node + 1), len(self._counts))
        return self._drawn[1]

    def _source(self, rank: int, batches: Ids) -> tuple[int, Ids]:
        """The node whose batches a rank gets, and their numbers there."""
        node = rank % self._nodes
        return node, ((batches + self._first) * self._all + rank) // self._nodes

    def count(self, rank: int) -> int:
        # Batch k has number (k + first) * ranks + (rank // nodes) on its node, of which there are `batches`.
        own = -(-(self._batches - rank // self._nodes) // self._ranks) - self._first
        return max(0, own) * self._batch_size

    def entries(self, rank: int, batches: Ids) -> tuple[Ids, Ids]:
        node, numbers = self._source(rank, batches)
        all_sequences, all_numbers = self._draw_node(node)
        real = numbers < self._batches
        sequences = np.zeros(len(batches), dtype=np.int64)
        sequences[real] = all_sequences[numbers[real]]
        entries = np.full((len(batches), self._batch_size), -1, dtype=np.int64)
        inside = np.arange(self._batch_size, dtype=np.int64)
        for sequence in np.unique(sequences[real]).tolist():
            here = np.flatnonzero(real & (sequences == sequence))
            which = all_numbers[numbers[here]].astype(np.int64)[:, None] * self._batch_size + inside
            rest, its_rank = np.divmod(which, self._ranks)
            turn, canonical = np.divmod(rest, self._canonical)
            entries[here] = self._partitions[sequence].at(node * self._canonical + canonical, its_rank, turn)
        return sequences[:, None], entries


def _check_streams(mixture: Mixture) -> None:
    for stream, count in enumerate(mixture.choose):
        if not count:
            raise ConfigError(f"stream {stream} gives no samples to an epoch: raise its weight, or leave it out")


def _draw(counts: list[int], seed: int, times: int) -> Ids:
    """The stream of each batch: ``counts[s]`` of stream s, in the order of the generator's ``times``-th shuffle."""
    rng = np.random.default_rng(seed)
    in_order = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    drawn = in_order
    for _ in range(times):
        drawn = in_order.copy()
        rng.shuffle(drawn)
    return drawn.astype(np.int64)


def _number(sequences: Ids, count: int) -> tuple[Ids, Ids]:
    """With each batch's sequence, its number among the batches of that sequence."""
    numbers = np.empty(len(sequences), dtype=np.int64)
    for sequence in range(count):
        here = np.flatnonzero(sequences == sequence)
        numbers[here] = np.arange(len(here))
    return sequences, numbers


LAYOUTS: Final[dict[str, type[EpochLayout]]] = {
    "random": _Random,
    "stratified": _Stratified,
    "per_stream": _PerStream,
    "device_per_stream": _DevicePerStream,
}
"""The layouts by batching method."""
