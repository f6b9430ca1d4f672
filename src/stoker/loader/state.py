"""What a stopped run leaves behind, and whether it fits the one that takes over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from stoker.errors import StateError
from stoker.loader.progress import StartingPoint
from stoker.order import OrderSettings

__all__ = ["STATE_VERSION", "make_state", "read_state"]

STATE_VERSION: Final = 1


def make_state(
    fingerprint: str, settings: OrderSettings, point: StartingPoint, *, batch_size: int, world_size: int
) -> dict[str, Any]:
    """The state of a run as a JSON-serialisable dict: position, what the order depends on, and the dataset's identity."""
    if point.position >= settings.epoch_size > 0:
        point = StartingPoint(point.epoch + 1)
    state: dict[str, Any] = {
        "version": STATE_VERSION,
        "fingerprint": fingerprint,
        "epoch": point.epoch,
        "position": point.position,
        "order": settings.as_dict(),
    }
    if point.partial:
        # Inside a batch: which samples it still lacks depends on how the batch was cut.
        state["partial"] = {"samples": point.partial, "batch_size": batch_size, "world_size": world_size}
    return state


def read_state(
    state: Mapping[str, Any], fingerprint: str, settings: OrderSettings, *, batch_size: int, world_size: int
) -> StartingPoint:
    """Check a state against the dataset and settings at hand.

    Returns:
        Where to go on.

    Raises:
        StateError: it is no state, or belongs to another dataset or another order; says exactly what differs.
    """
    if not isinstance(state, Mapping) or "version" not in state:
        raise StateError("this is no state of a StreamingDataset: it has no version")
    if state["version"] != STATE_VERSION:
        raise StateError(f"state version {state['version']!r} is unknown; this is stoker with version {STATE_VERSION}")
    try:
        epoch, position = state["epoch"], state["position"]
        order = dict(state["order"])
        theirs = state["fingerprint"]
        partial = state.get("partial")
        inside = () if partial is None else (partial[key] for key in ("samples", "batch_size", "world_size"))
        numbers = [epoch, position, *inside]
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"this state of a StreamingDataset is incomplete: {error}") from None
    if not all(type(number) is int and 0 <= number < 1 << 62 for number in numbers):
        raise StateError(f"this state's epoch and position must be integers from 0, got {epoch!r} and {position!r}")
    if theirs != fingerprint:
        raise StateError(
            f"this state belongs to another dataset (fingerprint {theirs}, this one has {fingerprint}): its shards "
            "differ in number, size or content"
        )
    ours = settings.as_dict()
    different = [
        f"{name} was {order.get(name)!r} and is {ours.get(name)!r}"
        for name in sorted(ours.keys() | order.keys())
        if order.get(name) != ours.get(name)
    ]
    if different:
        raise StateError(
            f"this state belongs to another order: {'; '.join(different)}. Use the settings it was taken with"
        )
    if position > settings.epoch_size:
        raise StateError(f"position {position} lies beyond the epoch of {settings.epoch_size} samples")
    if partial is None:
        return StartingPoint(epoch, position)
    if (partial["batch_size"], partial["world_size"]) != (batch_size, world_size):
        raise StateError(
            f"this state was taken inside a batch, {partial['samples']} samples into it, with batch_size "
            f"{partial['batch_size']} on {partial['world_size']} ranks; here they are {batch_size} and {world_size}. Take "
            "states between batches to resume on another cluster"
        )
    if not partial["samples"] < batch_size:
        raise StateError(f"{partial['samples']} samples can not lie inside a batch of {batch_size}")
    return StartingPoint(epoch, position, partial["samples"])
