"""Hugging Face ``datasets``: Parquet files as an iterable data set, in a ``DataLoader``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from stoker_bench.loaders.base import LoadedBatch, LoaderJob
from stoker_bench.loaders.listing import data_files
from stoker_bench.loaders.peers import array_of, local_folder
from stoker_bench.loaders.torchloading import TorchRankLoader, collate_or_list
from stoker_bench.settings.workload import DatasetSettings


def collate_values(samples: list[dict[str, Any]], *, dataset: DatasetSettings) -> Any:
    """Values as the package has them: bytes are those of arrays, lists those of numbers."""
    return collate_or_list(
        [{name: _value(value, dataset, name) for name, value in sample.items()} for sample in samples]
    )


def _value(value: Any, dataset: DatasetSettings, name: str) -> Any:
    if isinstance(value, bytes):
        return array_of(value, dataset, name)
    return np.asarray(value) if isinstance(value, list) else value


def _features(file: str, columns: tuple[str, ...] | None) -> Any:
    """The package's features of a file. It has no type for values of a fixed number of bytes, which come as bytes of any."""
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    fields = [field for field in pq.read_schema(file) if columns is None or field.name in columns]
    schema = pa.schema(
        field.with_type(pa.binary()) if pa.types.is_fixed_size_binary(field.type) else field for field in fields
    )
    return datasets.Features.from_arrow_schema(schema)


class HuggingFaceLoader(TorchRankLoader):
    """``datasets.load_dataset("parquet", streaming=True)`` in a ``DataLoader``."""

    name = "huggingface"
    formats = ("parquet",)
    batching_workers = True
    packages = (("datasets", "datasets"), ("torch", "torch"))
    recorded = ("datasets", "pyarrow", "torch")
    directories = True
    window = 1000  # what the package has by default

    def __init__(self, job: LoaderJob) -> None:
        import datasets
        from datasets.distributed import split_dataset_by_node

        super().__init__(job)
        folder = local_folder(job, self.name)
        files = [f"{folder}/{name}" for name in data_files(job)]
        datasets.disable_progress_bars()
        columns = job.workload.dataset.read_columns
        data: Any = datasets.load_dataset(
            "parquet",
            data_files={job.split: files},
            split=job.split,
            streaming=True,
            cache_dir=job.scratch or None,
            columns=None if columns is None else list(columns),
            features=_features(files[0], columns),
        )
        if job.shuffled:
            data = data.shuffle(seed=job.seed(), buffer_size=self.window)
        self._data = split_dataset_by_node(data, job.world.rank, job.world.world_size)
        if self._data.num_shards % job.world.world_size:
            self.notes.append("ranks may take different numbers of steps")
        self.workers = min(job.threads, self._data.num_shards)
        if self.workers > 1:
            self.notes.append("each worker process makes batches of its own files")
        self._loader = self._torch_loader(self._data, collate_fn=partial(collate_values, dataset=job.workload.dataset))

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        self._data.set_epoch(number if self.job.workload.train.reshuffle else 0)
        return super().epoch(number)

    def release(self) -> None:
        self._stop_workers()
