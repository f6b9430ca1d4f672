"""Settings of stoker's own orders: the streams, and everything else that an order depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from numpy.typing import NDArray

from stoker.arguments import at_least, must_know
from stoker.errors import ConfigError
from stoker.order.global_batches import Remainder
from stoker.order.mixture.mixing import WINDOW
from stoker.order.mixture.schedule import Schedule
from stoker.order.mixture.weights import BATCHING_METHODS, SAMPLING_METHODS, StreamWeight
from stoker.order.partition import Elastic, Partition
from stoker.order.selection import Everything, Selection
from stoker.order.shuffle.shard_table import ShardTable
from stoker.order.shuffle.shuffle import SHUFFLES


@dataclass(frozen=True, slots=True)
class StreamSource:
    """A stream, as the order sees it.

    Attributes:
        name: its name.
        table: its shards' sizes.
        selection: which of its samples belong.
        weight: how much of it an epoch has.
        fingerprint: text that is another for other data, which decides its order.
        labels: a number for each sample of the table, where the partition needs a column.
        url: where its data is, for messages.
        about: gives what identifies its data in a state.
        first: gives what identified the data of its first shards alone, where these have so many samples; one description,
            several where shards without samples follow, or none.
    """

    name: str
    table: ShardTable
    selection: Selection
    weight: StreamWeight = field(default_factory=StreamWeight)
    fingerprint: str = ""
    labels: NDArray[Any] | None = None
    url: str = ""
    about: Callable[[], Mapping[str, Any]] = dict
    first: Callable[[int], Sequence[Mapping[str, Any]]] | None = None

    @classmethod
    def whole(cls, name: str, table: ShardTable) -> StreamSource:
        """A stream of all samples of some shards."""
        return cls(name, table, Everything(table))


@dataclass(frozen=True, slots=True)
class OrderChoices:
    """Settings of an order that users choose; see :class:`~stoker.loaders.dataset.StreamingDataset`."""

    shuffle: str = "none"
    seed: int = 9176
    num_canonical_nodes: int | None = None
    block_size: int | None = None
    epoch_size: int | None = None
    partition: Partition = field(default_factory=Elastic)
    batching_method: str = "random"
    sampling_method: str = "balanced"
    sampling_granularity: int = 1
    schedule: Schedule | None = None
    remainder: Remainder = "pad"


@dataclass(frozen=True, slots=True)
class NativeSettings(OrderChoices):
    """Everything that stoker's own order depends on, apart from the streams.

    Raises:
        ConfigError: choices that make no sense, or do not go together.
    """

    shuffle: str = "none"

    @property
    def window(self) -> int:
        """Units of streams in a window that is scrambled; 0 without shuffling."""
        return 0 if self.shuffle == "none" else WINDOW

    def __post_init__(self) -> None:
        for name, known in (
            ("shuffle", SHUFFLES),
            ("batching_method", BATCHING_METHODS),
            ("sampling_method", SAMPLING_METHODS),
            ("remainder", get_args(Remainder)),
        ):
            must_know("shuffle algorithm" if name == "shuffle" else name, [getattr(self, name)], known)
        at_least(1, num_canonical_nodes=self.num_canonical_nodes, block_size=self.block_size)
        at_least(1, sampling_granularity=self.sampling_granularity)
        at_least(0, epoch_size=self.epoch_size)
        if self.schedule is not None:
            for name, wanted in (("sampling_method", ("balanced",)), ("batching_method", ("random", "stratified"))):
                if getattr(self, name) not in wanted:
                    raise ConfigError(f"a schedule goes with {name} {' or '.join(wanted)}, not {getattr(self, name)}")
            if self.partition.static:
                raise ConfigError(f"a schedule goes with the elastic partition, not {self.partition.name}")
