"""Hugging Face ``datasets``: Parquet files as an iterable data set, in a ``DataLoader``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from stoker.bench.loaders.base import LoadedBatch, LoaderJob, LoaderReport
from stoker.bench.loaders.peers import (
    array_of,
    data_files,
    local_folder,
    missing,
    need_format,
    refuse_settings,
    versions,
)
from stoker.bench.loaders.torchloading import collate, data_loader, loaded, stop_workers
from stoker.bench.settings.workload import DatasetSettings

__all__ = ["HuggingFaceLoader"]

_WINDOW = 1000
"""Samples that are shuffled at once: what the package has by default."""


def collate_values(samples: list[dict[str, Any]], *, dataset: DatasetSettings) -> Any:
    """Values as the package has them: bytes are those of arrays, lists those of numbers."""
    return collate([{name: _value(value, dataset, name) for name, value in sample.items()} for sample in samples])


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


class _Open:
    def __init__(self, job: LoaderJob) -> None:
        import datasets
        from datasets.distributed import split_dataset_by_node

        need_format(job, "huggingface", "parquet")
        folder = local_folder(job, "huggingface")
        workload = job.workload
        refuse_settings(job, "huggingface", decodes=True)
        files = [f"{folder}/{name}" for name in data_files(job)]
        options = dict(workload.reader.options)
        self._window = int(options.pop("shuffle_window", _WINDOW))
        self._job = job
        self._shuffled = workload.reader.shuffle and job.split == "train"
        datasets.disable_progress_bars()
        columns = workload.dataset.read_columns
        data: Any = datasets.load_dataset(
            "parquet",
            data_files={job.split: files},
            split=job.split,
            streaming=True,
            cache_dir=job.scratch or None,
            columns=None if columns is None else list(columns),
            features=_features(files[0], columns),
        )
        if self._shuffled:
            data = data.shuffle(seed=workload.train.seed & 0x7FFFFFFF, buffer_size=self._window)
        self._data = split_dataset_by_node(data, job.world.rank, job.world.world_size)
        self._workers = min(job.threads, self._data.num_shards)
        self._loader = data_loader(
            self._data,
            job,
            workers=self._workers,
            options=options,
            collate_fn=partial(collate_values, dataset=workload.dataset),
        )

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        self._data.set_epoch(number if self._job.workload.train.reshuffle else 0)
        yield from loaded(self._loader)

    def release(self) -> None:
        stop_workers(self._loader)
        self._loader._iterator = None

    def report(self) -> LoaderReport:
        notes = []
        if self._data.num_shards % max(1, self._job.world.world_size):
            notes.append("ranks may take different numbers of steps")
        if self._workers > 1:
            notes.append("each worker process makes batches of its own files")
        return LoaderReport(
            "arrays",
            f"{self._workers} processes" if self._workers else "none: in the training process",
            f"files shuffled, samples in a window of {self._window}" if self._shuffled else "by number",
            None,
            versions("datasets", "pyarrow", "torch"),
            tuple(notes),
        )

    def close(self) -> None:
        self.release()


class HuggingFaceLoader:
    """``datasets.load_dataset("parquet", streaming=True)`` in a ``DataLoader``."""

    name = "huggingface"
    formats = ("parquet",)

    def available(self) -> str | None:
        """See :class:`~stoker.bench.loaders.base.LoaderUnderTest`."""
        return missing({"datasets": "datasets", "torch": "torch"})

    def open(self, job: LoaderJob) -> _Open:
        """See :class:`~stoker.bench.loaders.base.LoaderUnderTest`."""
        return _Open(job)
