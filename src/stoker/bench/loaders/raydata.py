"""Ray Data: Parquet files, streamed by a Ray instance of each rank's own, or by the cluster that the ranks are tasks of."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from stoker.bench.loaders.base import LoadedBatch, LoaderJob, LoaderReport
from stoker.bench.loaders.decode import byte_count
from stoker.bench.loaders.peers import (
    array_of,
    data_files,
    local_folder,
    missing,
    need_format,
    refuse_settings,
    versions,
)
from stoker.bench.settings.workload import DatasetSettings
from stoker.errors import ConfigError

__all__ = ["RayDataLoader"]

_WINDOW = 1000
"""Samples that are shuffled at once: Ray Data's ``local_shuffle_buffer_size``, which is off by default."""


class _Open:
    def __init__(self, job: LoaderJob) -> None:
        import ray

        need_format(job, "ray", "parquet")
        folder = local_folder(job, "ray")
        workload = job.workload
        refuse_settings(job, "ray", decodes=True)
        world = job.world
        files = [f"{folder}/{name}" for name in data_files(job)]
        self._left = len(files) % world.world_size
        mine = files[world.rank :: world.world_size]
        if not mine:
            raise ConfigError(
                f"{len(files)} files for {world.world_size} ranks: this loader gives each rank whole files"
            )
        options = dict(workload.reader.options)
        self._window = int(options.pop("shuffle_window", _WINDOW))
        self._job, self._files, self._options = job, mine, options
        self._shuffled = workload.reader.shuffle and job.split == "train"
        self._cores = max(1, job.threads)
        self._started = not ray.is_initialized()
        if self._started:
            ray.init(
                address="local",
                num_cpus=self._cores,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        ray.data.DataContext.get_current().enable_progress_bars = False

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        import ray

        job = self._job
        workload = job.workload
        columns = workload.dataset.read_columns
        seed = (workload.train.seed + (number if workload.train.reshuffle else 0)) & 0x7FFFFFFF
        data = ray.data.read_parquet(
            self._files,
            columns=None if columns is None else list(columns),
            shuffle=ray.data.FileShuffleConfig(seed=seed) if self._shuffled else None,
        )
        settings: dict[str, Any] = {"batch_size": job.batch_size, "batch_format": "pyarrow"}
        settings |= {"drop_last": workload.reader.last_batch == "drop", "prefetch_batches": workload.reader.prefetch}
        if self._shuffled and self._window > job.batch_size:
            settings |= {"local_shuffle_buffer_size": self._window, "local_shuffle_seed": seed}
        batches: Any = data.iter_batches(**settings | self._options)
        for table in batches:
            batch = {name: _stacked(table.column(name), workload.dataset, name) for name in table.column_names}
            yield LoadedBatch(table.num_rows, byte_count(batch), batch)

    def release(self) -> None:
        pass

    def report(self) -> LoaderReport:
        if self._started:
            notes = ["a Ray instance of its own for each rank, which reads whole files"]
            parallel = f"{self._cores} processors for Ray's workers"
        else:
            notes = ["each rank reads whole files, by workers of the cluster, whose processor time is not counted"]
            parallel = "Ray's workers anywhere in the cluster"
        if self._left:
            notes.append("ranks may take different numbers of steps")
        return LoaderReport(
            "arrays",
            parallel,
            f"files shuffled, samples in a window of {self._window}" if self._shuffled else "by number",
            None,
            versions("ray", "pyarrow"),
            tuple(notes),
        )

    def close(self) -> None:
        import ray

        if self._started:
            ray.shutdown()


def _stacked(column: Any, dataset: DatasetSettings, name: str) -> Any:
    """A batch's column: an array where all values have one size, else a list of arrays."""
    import pyarrow as pa

    if pa.types.is_primitive(column.type):
        return column.to_numpy()
    values = [array_of(v, dataset, name) if isinstance(v, bytes) else np.asarray(v) for v in column.to_pylist()]
    return np.stack(values) if values and all(one.shape == values[0].shape for one in values) else values


class RayDataLoader:
    """``ray.data.read_parquet().iter_batches()``."""

    name = "ray"
    formats = ("parquet",)

    def available(self) -> str | None:
        """See :class:`~stoker.bench.loaders.base.LoaderUnderTest`."""
        return missing({"ray": "'ray[data]'", "pandas": "'ray[data]'"})

    def open(self, job: LoaderJob) -> _Open:
        """See :class:`~stoker.bench.loaders.base.LoaderUnderTest`."""
        return _Open(job)
