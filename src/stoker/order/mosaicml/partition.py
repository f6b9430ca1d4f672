"""The two ways in which mosaicml-streaming 0.13.0 deals out an epoch's samples, ``orig`` and ``relaxed``, in closed form.

The N samples are cut into C rows, one for each canonical node, and the rows are read side by side: the first of each,
then the second of each. From there on, node n of P takes every P-th (entry ``n, n + P, ...``), and inside the node rank r
of R every R-th of those, in batches. Where things do not come out even, samples are repeated:

- rows shorter than the longest repeat their last sample, and where P is a multiple of C, rows are filled up to one of P / C;
- a node whose share is no multiple of R repeats samples from R before its end;
- with fewer samples than canonical nodes the samples are gone through again and again.

A resume drops samples at the beginning of that reading, rounded down to a multiple of P, and deals out the rest.

``relaxed`` lets a run be resumed on a number of nodes that neither divides C nor is a multiple of it: batches are made as on
the first run's nodes, and each global batch is then cut anew.

The reference builds all of this as arrays over all samples of all ranks. Here an entry is computed where it is asked for.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from stoker.errors import ConfigError
from stoker.types import Ids

PARTITIONS: Final = ("orig", "relaxed")


class MosaicmlPartition:
    """Assigns N samples to ranks and batches.

    Args:
        algo: ``"orig"`` or ``"relaxed"``.
        num_samples: N.
        num_canonical_nodes: C.
        num_physical_nodes: P, which divides C or is a multiple of it; with ``relaxed`` and ``initial_physical_nodes``, any.
        ranks_per_node: R, ranks on each node.
        batch_size: samples in a batch of one rank.
        drop_first: samples that were read before.
        initial_physical_nodes: nodes that the run began with, if this is a resume. It must have had as many ranks a node
            and the same global batch.

    Attributes:
        batches: number of global batches, the last one partial where ``full_batches`` is one less.
        full_batches: number of global batches that have a sample at each position.
        first: samples that are dropped: ``drop_first``, rounded down.
        total: samples that all ranks read, repeats included.
        regrouped: whether batches are made as on the first run's nodes and cut anew.

    Raises:
        ConfigError: numbers that do not divide each other, or too few samples for them.
    """

    def __init__(
        self,
        algo: str,
        num_samples: int,
        num_canonical_nodes: int,
        num_physical_nodes: int,
        ranks_per_node: int,
        batch_size: int,
        drop_first: int = 0,
        initial_physical_nodes: int | None = None,
    ) -> None:
        ranks = num_physical_nodes * ranks_per_node
        self.num_physical_nodes = num_physical_nodes
        self.ranks_per_node = ranks_per_node
        self.batch_size = batch_size
        nodes, its_batch = num_physical_nodes, batch_size
        self.regrouped = algo == "relaxed" and not _fits(num_canonical_nodes, nodes)
        if initial_physical_nodes is None:
            self.regrouped = False
        elif self.regrouped:
            nodes = initial_physical_nodes
            if nodes < 1 or (ranks * batch_size) % (nodes * ranks_per_node):
                raise ConfigError(
                    f"a global batch of {ranks * batch_size} samples cannot be divided among the {nodes} nodes of "
                    f"{ranks_per_node} ranks with which the run began. Choose batch_size so that the global batch stays "
                    "the same"
                )
            its_batch = ranks * batch_size // (nodes * ranks_per_node)
        self._dealt = _Deal(num_samples, num_canonical_nodes, nodes, ranks_per_node, drop_first)
        self._dealt_batch = its_batch
        self.first = self._dealt.first
        self.total = self._dealt.turns * nodes * ranks_per_node
        self.full_batches = self._dealt.turns // its_batch
        self.batches = -(-self._dealt.turns // its_batch)

    @property
    def width(self) -> int:
        """Entries of each canonical node, repeats included."""
        return self._dealt.width

    @property
    def num_ranks(self) -> int:
        """Number of ranks on all nodes."""
        return self.num_physical_nodes * self.ranks_per_node

    def count(self, rank: int) -> int:
        """Number of samples that a rank reads, repeats included."""
        last = self._dealt.turns % self._dealt_batch
        inside = np.arange(rank * self.batch_size, (rank + 1) * self.batch_size) % self._dealt_batch
        return self.full_batches * self.batch_size + int(np.count_nonzero(inside < last))

    def ids(self, rank: int, batches: Ids) -> Ids:
        """The samples of a rank in some global batches.

        ``rank``: in ``[0, num_ranks)``; rank r is number ``r % ranks_per_node`` of node ``r // ranks_per_node``. ``batches``:
        numbers of global batches, shape ``(k,)``. Gives int64 of shape ``(k, batch_size)``: sample numbers in ``[0,
        num_samples)``, and -1 where there is none.
        """
        positions = np.arange(rank * self.batch_size, (rank + 1) * self.batch_size, dtype=np.int64)
        dealt_to, inside = np.divmod(positions, self._dealt_batch)
        node, its_rank = np.divmod(dealt_to, self.ranks_per_node)
        return self._dealt.ids(node, its_rank, batches[:, None] * self._dealt_batch + inside)

    def at(self, node: Ids | int, rank: Ids, turn: Ids) -> Ids:
        """The sample that number ``rank`` of a node's ranks reads as its ``turn``-th, -1 from its end on.

        Arrays of one shape, or that broadcast to one. Not for a run resumed on other nodes than it began with.
        """
        return self._dealt.ids(np.asarray(node), rank, turn)


class _Deal:
    """Samples dealt out to the ranks of P nodes one by one; each rank's are numbered by turns, from 0."""

    def __init__(self, samples: int, canonical: int, nodes: int, ranks: int, drop_first: int) -> None:
        if not _fits(canonical, nodes):
            raise ConfigError(
                f"num_canonical_nodes={canonical} must be a multiple of the {nodes} nodes, or divide them, or every node "
                "would need every shard"
            )
        self._samples = samples
        self._canonical = canonical
        self._nodes = nodes
        self._ranks = ranks
        self._row = -(-samples // canonical)
        ratio = nodes // canonical if canonical < nodes else 1
        fill = -self._row % ratio
        self.width = self._row + fill
        self._again = not (samples > canonical or (samples == canonical >= nodes))
        self._fill_from, self._fill_step = 0, 1
        if fill and not self._again:
            # Filled up from a stretch further back; if the row is too short for that, NumPy's slicing rules decide.
            low, high = max(0, self._row - fill - ratio + 1), max(0, self._row - ratio + 1)
            if high - low not in (1, fill):
                raise ConfigError(
                    f"{samples} samples are too few for {nodes} nodes with {canonical} canonical nodes. Use fewer nodes"
                )
            self._fill_from, self._fill_step = low, int(high - low == fill)
        # The reference resumes from no later sample than the first that evens out its ranks: what is behind it is lost.
        if not 0 <= drop_first <= max(canonical * self.width, samples + nodes * ranks - samples % (nodes * ranks)):
            raise ConfigError(f"a resume at sample {drop_first} does not lie in an epoch of {samples} samples")
        self.first = drop_first - drop_first % nodes
        # Entries of one node, without and with those that even out its ranks.
        self._share = max(0, canonical * self.width - self.first) // nodes
        self._extra = -self._share % ranks
        self.turns = (self._share + self._extra) // ranks

    def ids(self, node: Ids, rank: Ids, turn: Ids) -> Ids:
        """Samples of ranks by turn (arrays of one shape, or that broadcast to one), -1 from the end on."""
        entry = turn * self._ranks + rank
        if self._extra:
            more = entry - self._share
            if self._ranks + self._extra - 1 <= self._share:
                again = self._share - self._ranks - self._extra + 1 + more
            else:
                again = more % self._share
            entry = np.where(more >= 0, again, entry)
        column, row = np.divmod(self.first + entry * self._nodes + node, self._canonical)
        return np.where(turn < self.turns, self._at(row, column), -1)

    def _at(self, row: Ids, column: Ids) -> Ids:
        if self._again:
            return (row * self.width + column) % self._samples
        start = row * self._samples // self._canonical
        short = (row + 1) * self._samples // self._canonical - start < self._row
        column = np.where(
            column >= self._row,
            self._fill_from + (column - self._row) * self._fill_step,
            column - (short & (column == self._row - 1)),
        )
        return start + column


def _fits(canonical: int, nodes: int) -> bool:
    return canonical % nodes == 0 or nodes % canonical == 0
