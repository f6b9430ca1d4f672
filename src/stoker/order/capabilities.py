"""Optional capabilities of a sample order: a function each, with the default of orders that lack the protocol or attribute.

:class:`~stoker.order.sample_order.SampleOrder` is all that an order must have. By default, an epoch does not depend on the
world that began it or on earlier epochs, has exactly ``epoch_size`` positions, and no other program knows the order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from stoker.errors import ConfigError, StateError
from stoker.order.mixture.reached import RunOrigin, RunProgress
from stoker.order.sample_order import DataRank, EpochPosition, EpochStart, SampleOrder


@runtime_checkable
class StartDependent(Protocol):
    """The rest of an epoch depends on how the epoch began: on the world's size, say."""

    @property
    def start_type(self) -> type[EpochStart]:
        """The fields that a state keeps of it."""
        ...

    def epoch_start(self, position: EpochPosition, data_rank: DataRank) -> EpochStart | None:
        """The start of the epoch at ``position``: ``position.start`` while that holds, else as this reader begins it."""
        ...


def with_epoch_start(order: SampleOrder, position: EpochPosition, data_rank: DataRank) -> EpochPosition:
    """The position with the start that holds for the rest of its epoch, begun or resumed by this reader."""
    if isinstance(order, StartDependent):
        return replace(position, start=order.epoch_start(position, data_rank))
    return position


def read_start(order: SampleOrder, values: Any) -> EpochStart | None:
    """The start that a state holds, ``None`` where it has none or the order depends on none.

    StateError if it is not of this order.
    """
    return order.start_type.read(values) if values is not None and isinstance(order, StartDependent) else None


@runtime_checkable
class EpochEnds(Protocol):
    """An epoch does not always end at position ``epoch_size``."""

    def ended(self, position: EpochPosition, data_rank: DataRank) -> bool:
        """Whether nothing of the epoch is left at the position."""
        ...

    def in_epoch(self, position: EpochPosition) -> bool:
        """Whether a run can have reached the position."""
        ...


def epoch_ended(order: SampleOrder, position: EpochPosition, data_rank: DataRank) -> bool:
    """Whether nothing of the epoch is left at the position. Default: from ``epoch_size`` on."""
    if isinstance(order, EpochEnds):
        return order.ended(position, data_rank)
    return position.position >= order.epoch_size


def in_epoch(order: SampleOrder, position: EpochPosition) -> bool:
    """Whether a run can have reached the position. Default: up to ``epoch_size``."""
    return order.in_epoch(position) if isinstance(order, EpochEnds) else position.position <= order.epoch_size


@runtime_checkable
class StreamHistory(Protocol):
    """Epochs take up each stream where the one before left off, also after streams were added or removed."""

    @property
    def origin(self) -> RunOrigin:
        """The point from which the run counts its streams: the beginning, if these never changed."""
        ...

    def consumed(self, position: EpochPosition) -> dict[str, int]:
        """Stream name to the number of its samples that are used up when the position's epoch ends, or before it if it is
        whole."""
        ...

    def reached(
        self, told: Mapping[str, Any], origin: RunOrigin, point: EpochPosition, inside: DataRank | None
    ) -> RunProgress | None:
        """The progress of a run in this order, but with other streams.

        Args:
            told: its :meth:`~stoker.order.sample_order.SampleOrder.as_dict`, as a state has it.
            origin: its :attr:`origin`.
            point: where it stopped.
            inside: its world, where it stopped inside a batch.

        Returns:
            ``None`` where every epoch has the same samples.
        """
        ...

    def with_changed_streams(self, origin: RunOrigin) -> SampleOrder:
        """The same order, restarted after its streams were changed; in the next epoch where it can not go on in that one."""
        ...

    def with_weights_of(self, saved: Mapping[str, Any]) -> SampleOrder:
        """The same order with the weights that the run of a state had set, if it began with the weights of this one.

        Without them, as the order was made. StateError if they are damaged. ``saved``: the state in plain text.
        """
        ...

    def first_shards(self, name: str, samples: int) -> Sequence[Mapping[str, Any]]:
        """Descriptions of a stream as if it had only its first shards, where these have so many samples: one description,
        several where shards without samples follow, or none."""
        ...


def repeats_samples(order: SampleOrder) -> bool:
    """Whether an epoch may have a sample more than once, those aside that are repeated at its end: the order's ``repeats``.
    Default: it may."""
    return bool(getattr(order, "repeats", True))


def makes_batches(order: SampleOrder) -> bool:
    """Return whether the order itself decides how many samples each batch has: its attribute ``makes_batches``.

    Its plans are then made with ``batch_size=1``. Default: batches have as many samples as are asked for.
    """
    return bool(getattr(order, "makes_batches", False))


def origin_of(order: SampleOrder) -> RunOrigin:
    """The point from which a run in the order counts its streams. Default: the beginning."""
    return order.origin if isinstance(order, StreamHistory) else RunOrigin()


def with_weights_of(order: SampleOrder, saved: Mapping[str, Any]) -> SampleOrder:
    """The order with the weights that a state's run had set. Default: weights are not set while a run goes on."""
    return order.with_weights_of(saved) if isinstance(order, StreamHistory) else order


def consumed_samples(order: SampleOrder, position: EpochPosition) -> dict[str, int]:
    """Samples of each stream that are used up. Default: none, as every epoch is independent of those before."""
    return order.consumed(position) if isinstance(order, StreamHistory) else {}


def stream_urls(order: SampleOrder) -> Mapping[str, str]:
    """Stream name to URL, for messages: the order's ``urls``, which may lack any. Default: not known."""
    urls: Mapping[str, str] = getattr(order, "urls", {})
    return urls


def shards_at_once(order: SampleOrder) -> int:
    """About how many shards are read at once, by all readers together: the order's ``shards_at_once``. Default: one."""
    return int(getattr(order, "shards_at_once", 1))


@runtime_checkable
class MosaicmlStates(Protocol):
    """States can be exchanged with mosaicml-streaming."""

    def read_mosaicml_state(self, state: Mapping[str, Any]) -> EpochPosition:
        """The position at which a ``state_dict`` of mosaicml-streaming says that its run stopped.

        StateError if it is none.
        """
        ...

    def write_mosaicml_state(self, position: EpochPosition, data_rank: DataRank) -> dict[str, Any]:
        """Entries of a state from which mosaicml-streaming can resume."""
        ...


def mosaicml_position(order: SampleOrder, state: Mapping[str, Any]) -> EpochPosition:
    """The position of a ``state_dict`` of mosaicml-streaming.

    StateError if the dict is no such state. ConfigError if the order is not mosaicml-streaming's.
    """
    if "sample_in_epoch" not in state:
        raise StateError("this is not a state of a StreamingDataset: it has no version")
    if isinstance(order, MosaicmlStates):
        return order.read_mosaicml_state(state)
    raise ConfigError(
        "this is a state of mosaicml-streaming: its run can be resumed in its own order only, with shuffle_algo= and the "
        'other settings as they were there (shuffle_algo="py1e" is its default)'
    )


def mosaicml_state(order: SampleOrder, position: EpochPosition, data_rank: DataRank) -> dict[str, Any]:
    """Entries of a state from which mosaicml-streaming can resume. Default: none."""
    return order.write_mosaicml_state(position, data_rank) if isinstance(order, MosaicmlStates) else {}
