"""Settings of mosaicml-streaming's orders, and the states that its runs save."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stoker.arguments import at_least, must_know
from stoker.errors import ConfigError, StateError
from stoker.order.mixture.weights import BATCHING_METHODS, SAMPLING_METHODS
from stoker.order.mosaicml.partition import PARTITIONS
from stoker.order.mosaicml.shuffles import MOSAICML_SHUFFLES
from stoker.order.sample_order import EpochPosition, EpochStart

_LEAST_BLOCK = 1 << 18
_BLOCKS = 4_000_000
# A state of the reference brings its number, and the order has entries for each.
_MOST_NODES = 1 << 20


@dataclass(frozen=True, slots=True)
class MosaicmlWorld:
    """A rank in a world of nodes with equally many ranks.

    Attributes:
        rank: number of the rank; r is on node ``r // ranks_per_node``.
        ranks_per_node: ranks on each.
    """

    rank: int = 0
    num_nodes: int = 1
    ranks_per_node: int = 1

    def __post_init__(self) -> None:
        if self.num_nodes < 1 or self.ranks_per_node < 1 or not 0 <= self.rank < self.num_ranks:
            raise ConfigError(f"rank {self.rank} is not in a world of {self.num_nodes} x {self.ranks_per_node} ranks")

    @property
    def num_ranks(self) -> int:
        """Number of ranks on all nodes."""
        return self.num_nodes * self.ranks_per_node

    def replicate(self, replication: int) -> MosaicmlWorld:
        """The world as the order sees it where ``replication`` consecutive ranks read the same samples.

        Nodes keep their number of ranks if the groups fill them; else all groups count as ranks of one node.
        """
        if replication < 1 or self.num_ranks % replication:
            raise ConfigError(f"replication={replication} must divide the {self.num_ranks} ranks")
        groups = self.num_ranks // replication
        per_node = self.ranks_per_node if groups % self.ranks_per_node == 0 else groups
        return MosaicmlWorld(self.rank // replication, groups // per_node, per_node)


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
class MosaicmlSettings:
    """The reference's arguments that its order depends on, by the reference's names.

    Attributes:
        batch_size: samples in a batch of one rank.
        num_canonical_nodes: parts that samples are cut into; see :meth:`resolve` for the reference's default.
        shuffle_algo: ``"naive"``, ``"py1s"``, ``"py2s"``, ``"py1br"`` or ``"py1e"``.
        shuffle_seed: from 0.
        shuffle_block_size: of ``py1br`` and ``py1e``. ``None``: ``max(4_000_000 // num_canonical_nodes, 1 << 18)``.
        sampling_method: ``"balanced"`` draws a stream's samples anew in each epoch, ``"fixed"`` once.
        sampling_granularity: samples picked from one shard at a time.
        partition_algo: ``"orig"`` or ``"relaxed"``.
        batching_method: ``"random"``, ``"stratified"``, ``"per_stream"`` or ``"device_per_stream"``.
        initial_physical_nodes: nodes that a resumed run began with; ``None`` in a run that is not resumed.
    """

    batch_size: int
    num_canonical_nodes: int
    shuffle: bool = False
    shuffle_algo: str = "py1e"
    shuffle_seed: int = 9176
    shuffle_block_size: int | None = None
    sampling_method: str = "balanced"
    sampling_granularity: int = 1
    partition_algo: str = "relaxed"
    batching_method: str = "random"
    initial_physical_nodes: int | None = None

    def __post_init__(self) -> None:
        for name, known in (
            ("shuffle_algo", tuple(MOSAICML_SHUFFLES)),
            ("sampling_method", SAMPLING_METHODS),
            ("partition_algo", PARTITIONS),
            ("batching_method", BATCHING_METHODS),
        ):
            must_know(name, [getattr(self, name)], known)
        at_least(1, batch_size=self.batch_size, num_canonical_nodes=self.num_canonical_nodes)
        at_least(1, sampling_granularity=self.sampling_granularity)
        at_least(0, shuffle_seed=self.shuffle_seed)
        if self.num_canonical_nodes > _MOST_NODES:
            raise ConfigError(
                f"num_canonical_nodes must be at most {_MOST_NODES}, got {self.num_canonical_nodes}: each takes memory"
            )

    @classmethod
    def resolve(
        cls, world: MosaicmlWorld, *, batch_size: int, num_canonical_nodes: int | None = None, **others: Any
    ) -> MosaicmlSettings:
        """Fill in the reference's default for ``num_canonical_nodes``.

        It is the number of nodes that the run begins on (after :meth:`MosaicmlWorld.replicate`), for ``py1s`` and
        ``py2s`` times 64.
        """
        if not num_canonical_nodes:
            times = 64 if others.get("shuffle_algo", "py1e") in ("py1s", "py2s") else 1
            num_canonical_nodes = times * world.num_nodes
        return cls(batch_size, num_canonical_nodes, **others)

    @property
    def block_size(self) -> int:
        """Samples in a shuffle block."""
        if self.shuffle_block_size is not None:
            return self.shuffle_block_size
        return max(_BLOCKS // self.num_canonical_nodes, _LEAST_BLOCK)

    def epoch_seed(self, epoch: int) -> int:
        """Seed of the generators that pick samples and draw batches' streams: of the epoch, where those may change."""
        return self.shuffle_seed + (epoch if self.shuffle and self.sampling_method == "balanced" else 0)

    def sampling_seed(self, epoch: int) -> int:
        """Seed of the generator that draws samples of a shard."""
        return self.shuffle_seed + (epoch if self.sampling_method == "balanced" else 0)

    def resumed(self, start: MosaicmlStart) -> MosaicmlSettings:
        """The settings with those that a state brings in place of one's own, as the reference takes them."""
        return replace(
            self,
            num_canonical_nodes=start.num_canonical_nodes,
            shuffle_seed=start.shuffle_seed,
            initial_physical_nodes=start.initial_physical_nodes or None,
        )


_LEAST = {"epoch": 0, "sample_in_epoch": 0, "num_canonical_nodes": 1, "shuffle_seed": 0, "initial_physical_nodes": 1}


def read_mosaicml_state(state: Any) -> EpochPosition:
    """The position that a ``state_dict`` of the reference's dataset or loader holds, and the start of its run.

    The position counts the samples that all ranks together had read, those that were repeated included. StateError if it is
    none; says what is missing, unknown or out of range.
    """
    if not isinstance(state, Mapping):
        raise StateError(f"a state of mosaicml-streaming is a dict, got {type(state).__name__}")
    missing = _LEAST.keys() - state.keys() - {"initial_physical_nodes"}
    unknown = state.keys() - _LEAST.keys()
    if missing or unknown:
        said = [f"lacks {', '.join(sorted(missing))}"] if missing else []
        said += [f"has {', '.join(sorted(map(str, unknown)))}"] if unknown else []
        raise StateError(f"this is not a state of mosaicml-streaming 0.13: it {' and '.join(said)}")
    values: dict[str, Any] = {name: state.get(name) for name in _LEAST}
    for name, value in values.items():
        if value is None and name == "initial_physical_nodes":
            continue
        if type(value) is not int or not _LEAST[name] <= value < 1 << 62:
            raise StateError(
                f"{name} in a state of mosaicml-streaming is an integer from {_LEAST[name]}, got {value!r}"
            )
    start = MosaicmlStart(values["num_canonical_nodes"], values["shuffle_seed"], values["initial_physical_nodes"] or 0)
    return EpochPosition(values["epoch"], values["sample_in_epoch"], start=start)
