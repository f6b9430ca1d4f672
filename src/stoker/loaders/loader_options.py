"""The arguments of torch's ``DataLoader`` that a ``StreamingDataLoader`` takes, and what they may be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from multiprocessing.context import BaseContext
from typing import Any, TypedDict

from torch import Generator

from stoker.arguments import at_least
from stoker.errors import ConfigError


class LoaderOptions(TypedDict, total=False):
    """The arguments of torch's ``DataLoader`` that a :class:`~stoker.loaders.dataloader.StreamingDataLoader` takes, too.

    Attributes:
        num_workers: processes that read; 0: this one.
        collate_fn: makes a batch of a list of samples (or of an ``LMBatch``).
        pin_memory: copy tensors into memory that a GPU reads directly.
        drop_last: leave out the last batch of an epoch if it is not full.
        timeout: seconds to wait for a worker's batch; needs workers.
        worker_init_fn: called with the worker's number in each.
        multiprocessing_context: how workers are started; needs workers.
        generator: random numbers from which the workers' seeds are drawn.
        prefetch_factor: batches that each worker prepares ahead (``columnar=True``: groups of small ones); needs workers.
        persistent_workers: keep the workers from epoch to epoch; needs workers.
        pin_memory_device: see torch.
        in_order: only True; states count batches in order.
        shuffle, sampler, batch_sampler: only False or None; the order is the dataset's.
    """

    num_workers: int
    collate_fn: Callable[..., Any] | None
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: str | BaseContext | None
    generator: Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    shuffle: bool | None
    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None


def check_options(options: LoaderOptions) -> None:
    """Check that options of torch's DataLoader have a meaning for batches whose order and number are the dataset's."""
    for name, given in (
        ("shuffle", options.get("shuffle")),
        ("sampler", options.get("sampler") is not None),
        ("batch_sampler", options.get("batch_sampler") is not None),
    ):
        if given:
            raise ConfigError(
                f"StreamingDataLoader takes no {name}=: the dataset decides the order, see StreamingDataset(shuffle=)"
            )
    if not options.get("in_order", True):
        raise ConfigError(
            "in_order=False would make states wrong, as they count batches in the dataset's order: leave it out"
        )
    workers = options.get("num_workers", 0)
    at_least(0, num_workers=workers)
    if not 0 <= options.get("timeout", 0) < float("inf"):
        raise ConfigError(f"timeout is seconds, at least 0, got {options['timeout']}")
    at_least(1, prefetch_factor=options.get("prefetch_factor"))
    if workers == 0:
        for name in ("prefetch_factor", "persistent_workers", "timeout", "multiprocessing_context"):
            if options.get(name):
                raise ConfigError(
                    f"{name}={options.get(name)!r} is for worker processes, and num_workers is 0: give num_workers= or "
                    "leave it out"
                )
