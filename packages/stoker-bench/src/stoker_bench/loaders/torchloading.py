"""Base of the loaders that end in torch's ``DataLoader``: its settings, its collation, its end."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from stoker.errors import ConfigError, StokerError
from stoker_bench.loaders.base import LoadedBatch, LoaderJob
from stoker_bench.loaders.decode import byte_count
from stoker_bench.loaders.rank_loader import RankLoader
from stoker_bench.ranks.worker_stacks import listen


class SharedCounts:
    """Counts of worker processes, which get it when they are started.

    Attributes:
        began: when the first process began to read, by ``time.monotonic``; 0 where none has.
        fetched: bytes that storage was asked for, again where the same ones are read again.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.began = context.Value("d", 0.0)
        self.fetched = context.Value("q", 0)

    def begin(self, worker: int = 0) -> None:  # noqa: ARG002 - torch's worker_init_fn
        """Note that a process reads from now on, if none does yet."""
        listen()
        with self.began.get_lock():
            self.began.value = self.began.value or time.monotonic()

    def add(self, fetched: int) -> None:
        """Count what was fetched."""
        with self.fetched.get_lock():
            self.fetched.value += fetched


class TorchRankLoader(RankLoader):
    """A loader that ends in torch's ``DataLoader``. Subclasses set ``_loader``, mostly by :meth:`_torch_loader`."""

    _loader: Any = None

    def __init__(self, job: LoaderJob) -> None:
        super().__init__(job)
        self._counts = SharedCounts()

    def _torch_loader(self, dataset: Any, *, kind: Any = None, **settings: Any) -> Any:
        """A ``DataLoader`` as the job says.

        Args:
            dataset: what it loads from.
            kind: the class; default torch's.
            settings: of the ``DataLoader``; ``options`` of the job go before them.

        Raises:
            ConfigError: ``reader.options`` has what it does not know.
        """
        if kind is None:
            from torch.utils.data import DataLoader as kind  # noqa: N813
        reader, count = self.job.workload.reader, self.workers
        given: dict[str, Any] = {"batch_size": self.job.batch_size, "num_workers": count, "collate_fn": collate_or_list}
        given["drop_last"] = reader.last_batch == "drop"
        if count:
            # Never by fork: this process has threads (of storage, of the harness), whose locks a fork would inherit.
            given |= {
                "multiprocessing_context": "spawn",
                "persistent_workers": True,
                "prefetch_factor": max(1, -(-reader.prefetch // count)),
                "worker_init_fn": self._counts.begin,
            }
        try:
            return kind(dataset, **given | settings | self.options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"reader.options: {error}") from None

    def epoch(self, number: int) -> Iterator[LoadedBatch]:  # noqa: ARG002 - most count the epochs themselves
        if not self.workers:
            self._counts.begin()
        try:
            for batch in self._loader:
                first = batch
                while isinstance(first, dict):
                    first = next(iter(first.values()))
                yield LoadedBatch(len(first), byte_count(batch), batch)
        except StokerError as error:
            if "\nOriginal Traceback" not in str(error):
                raise
            # torch makes a worker's error anew, with the worker's traceback as its text.
            raise type(error)(str(error).rpartition(f".{type(error).__name__}: ")[2].strip()) from error

    def _reading_began(self) -> float | None:
        return self._counts.began.value or None

    def _stop_workers(self) -> None:
        """End worker processes: persistent ones have no other end."""
        iterator = getattr(self._loader, "_iterator", None)
        if iterator is not None:
            if hasattr(iterator, "_shutdown_workers"):
                iterator._shutdown_workers()
            self._loader._iterator = None

    def close(self) -> None:
        self._stop_workers()
        self._loader = None


def collate_or_list(samples: list[Any]) -> Any:
    """torch's own collation for numbers and for arrays of equal shapes; a list for all else."""
    import torch
    from torch.utils.data import default_collate

    first = samples[0]
    if isinstance(first, dict):
        return {name: collate_or_list([sample[name] for sample in samples]) for name in first}
    if isinstance(first, np.ndarray):
        if first.dtype.kind in "biuf" and all(one.shape == first.shape for one in samples):
            if not first.flags.writeable:  # which torch warns of, for each process
                return torch.from_numpy(np.stack(samples))
            return default_collate([np.ascontiguousarray(one) for one in samples])
        return samples
    if isinstance(first, int | float | np.number):
        return default_collate(samples)
    return samples
