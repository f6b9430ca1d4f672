"""Ray Data: Parquet files, streamed by a Ray instance of each rank's own, or by the cluster that the ranks are tasks of."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from stoker_bench.loaders.base import LoadedBatch, LoaderJob
from stoker_bench.loaders.decode import byte_count
from stoker_bench.loaders.peers import array_of, files_of_rank
from stoker_bench.loaders.rank_loader import RankLoader
from stoker_bench.settings.workload import DatasetSettings


class RayDataLoader(RankLoader):
    """``ray.data.read_parquet().iter_batches()``."""

    name = "ray"
    formats = ("parquet",)
    packages = (("ray", "'ray[data]'"), ("pandas", "'ray[data]'"))
    recorded = ("ray", "pyarrow")
    directories = whole_files = True
    window = 1000  # Ray Data's local_shuffle_buffer_size, which is off by default

    def __init__(self, job: LoaderJob) -> None:
        import ray

        super().__init__(job)
        self._files, left = files_of_rank(job, "this loader")
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
            self.notes.append("a Ray instance of its own for each rank, which reads whole files")
        else:
            self.notes.append(
                "each rank reads whole files, by workers of the cluster, whose processor time is not counted"
            )
        if left:
            self.notes.append("ranks may take different numbers of steps")
        logging.getLogger("ray.data").setLevel(logging.WARNING)
        ray.data.DataContext.get_current().enable_progress_bars = False

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        import ray

        job = self.job
        dataset, reader, seed = job.workload.dataset, job.workload.reader, job.seed(number)
        columns = dataset.read_columns
        data = ray.data.read_parquet(
            self._files,
            columns=None if columns is None else list(columns),
            shuffle=ray.data.FileShuffleConfig(seed=seed) if job.shuffled else None,
        )
        settings: dict[str, Any] = {"batch_size": job.batch_size, "batch_format": "pyarrow"}
        settings |= {"drop_last": reader.last_batch == "drop", "prefetch_batches": reader.prefetch}
        if job.shuffled and self.window > job.batch_size:
            settings |= {"local_shuffle_buffer_size": self.window, "local_shuffle_seed": seed}
        batches: Any = data.iter_batches(**settings | self.options)
        for table in batches:
            batch = {name: _stacked(table.column(name), dataset, name) for name in table.column_names}
            yield LoadedBatch(table.num_rows, byte_count(batch), batch)

    def close(self) -> None:
        import ray

        if self._started:
            ray.shutdown()

    def _parallel(self) -> str:
        return (
            f"{self._cores} processors for Ray's workers" if self._started else "Ray's workers anywhere in the cluster"
        )


def _stacked(column: Any, dataset: DatasetSettings, name: str) -> Any:
    """A batch's column: an array where all values have one size, else a list of arrays."""
    import pyarrow as pa

    if pa.types.is_primitive(column.type):
        return column.to_numpy()
    values = [array_of(v, dataset, name) if isinstance(v, bytes) else np.asarray(v) for v in column.to_pylist()]
    return np.stack(values) if values and all(one.shape == values[0].shape for one in values) else values
