"""What loaders that end in torch's ``DataLoader`` share: its settings, its collation, its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stoker.bench.loaders.base import LoadedBatch, LoaderJob
from stoker.bench.loaders.decode import byte_count
from stoker.errors import ConfigError

__all__ = ["collate", "data_loader", "loaded", "stop_workers"]


def data_loader(
    dataset: Any,
    job: LoaderJob,
    *,
    kind: Any = None,
    workers: int | None = None,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> Any:
    """A ``DataLoader`` as the job says.

    Args:
        dataset: what it loads from.
        job: the job.
        kind: the class; default torch's.
        workers: processes; default the job's threads.
        options: what goes before all else; default ``reader.options``.
        settings: of the ``DataLoader``.

    Raises:
        ConfigError: ``reader.options`` has what it does not know.
    """
    if kind is None:
        from torch.utils.data import DataLoader as kind  # noqa: N813
    reader = job.workload.reader
    count = job.threads if workers is None else workers
    given: dict[str, Any] = {"batch_size": job.batch_size, "num_workers": count, "collate_fn": collate}
    given["drop_last"] = reader.last_batch == "drop"
    if count:
        # Never by fork: this process has threads (of storage, of the harness), whose locks a fork would inherit.
        given |= {
            "multiprocessing_context": "spawn",
            "persistent_workers": True,
            "prefetch_factor": max(1, -(-reader.prefetch // count)),
        }
    given |= settings | (reader.options if options is None else options)
    try:
        return kind(dataset, **given)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"reader.options: {error}") from None


def collate(samples: list[Any]) -> Any:
    """torch's own collation for numbers and for arrays of equal shapes; a list for all else."""
    import torch
    from torch.utils.data import default_collate

    first = samples[0]
    if isinstance(first, dict):
        return {name: collate([sample[name] for sample in samples]) for name in first}
    if isinstance(first, np.ndarray):
        if first.dtype.kind in "biuf" and all(one.shape == first.shape for one in samples):
            if not first.flags.writeable:  # which torch warns of, for each process
                return torch.from_numpy(np.stack(samples))
            return default_collate([np.ascontiguousarray(one) for one in samples])
        return samples
    if isinstance(first, int | float | np.number):
        return default_collate(samples)
    return samples


def loaded(batches: Any) -> Iterator[LoadedBatch]:
    """Collated batches, counted."""
    for batch in batches:
        first = batch
        while isinstance(first, dict):
            first = next(iter(first.values()))
        yield LoadedBatch(len(first), byte_count(batch), batch)


def stop_workers(loader: Any) -> None:
    """End a loader's worker processes: persistent ones have no other end."""
    iterator = getattr(loader, "_iterator", None)
    if iterator is not None and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
