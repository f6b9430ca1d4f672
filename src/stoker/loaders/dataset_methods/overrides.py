"""Methods of ``StreamingDataset`` that a subclass overrides: which ones, and what can not be done with such a dataset."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from stoker.errors import ConfigError

__all__ = ["SAMPLE_METHODS", "asked_by_loader", "check_columns_allowed", "loader_state", "overridden"]

logger = logging.getLogger(__name__)

SAMPLE_METHODS: Final = ("__getitem__", "get_item", "__iter__")
"""Methods by which a subclass decides what a sample is."""

# The dataset whose state_dict() a loader calls, the state that the loader has counted, and the samples that it gives.
_counted: ContextVar[tuple[object, Mapping[str, Any], int] | None] = ContextVar("_counted", default=None)


def overridden(dataset: object, base: type, *names: str) -> tuple[str, ...]:
    """Those of the methods ``names`` that the class of ``dataset`` does not have from ``base``."""
    kind = type(dataset)
    return tuple(name for name in names if getattr(kind, name) is not getattr(base, name))


def check_columns_allowed(dataset: object, found: Sequence[str], reader: str) -> None:
    """See that whole columns may be read, past the methods that make samples.

    Args:
        dataset: what is read.
        found: those of :data:`SAMPLE_METHODS` that its class overrides.
        reader: what would read columns, for the message.

    Raises:
        ConfigError: there are some.
    """
    if found:
        raise ConfigError(
            f"{reader} would read past {type(dataset).__name__}.{found[0]}(), which makes the samples: iterate over the "
            "dataset or a DataLoader of it, or let a function of a sample do it, StreamingDataset(transform=...), which is "
            "applied everywhere"
        )


@contextmanager
def asked_by_loader(dataset: object, state: Mapping[str, Any], samples: int) -> Iterator[None]:
    """While a loader calls the overridden ``state_dict(samples, False)`` of a dataset.

    Args:
        dataset: whose.
        state: what the loader knows that the state is.
        samples: what it calls the method with.
    """
    token = _counted.set((dataset, state, samples))
    try:
        yield
    finally:
        _counted.reset(token)


def loader_state(dataset: object, num_samples: int | None) -> dict[str, Any] | None:
    """The state that the calling loader has counted; ``None`` where no loader calls.

    Args:
        dataset: whose state is asked for.
        num_samples: what the overridden method says that it is after. A loader counts samples of the dataset, however
            ``collate_fn`` packs them, so another number is not followed.
    """
    counted = _counted.get()
    if counted is None or counted[0] is not dataset:
        return None
    _, state, samples = counted
    if num_samples != samples:
        logger.warning(
            "state_dict() of %s asks for the state after %s samples; the loader has delivered %d, counted before collate_fn, "
            "and that is where its state is",
            type(dataset).__name__,
            num_samples,
            samples,
        )
    return dict(state)
