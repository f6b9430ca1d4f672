"""torch's ``DataLoader`` over plain files, one sample at a time, as DLIO's readers and many a training script do it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stoker.bench.clients import CLIENT_PACKAGES, Client, ClientLocation, find_client, open_client
from stoker.bench.loaders.base import LoadedBatch, LoaderJob, LoaderReport
from stoker.bench.loaders.decode import FORMATS, FileSamples, open_samples, resized
from stoker.bench.loaders.peers import data_files, missing, versions
from stoker.bench.loaders.torchloading import data_loader, loaded, stop_workers
from stoker.errors import ConfigError
from stoker.types import Ids

__all__ = ["TorchLoader"]


class _Files:
    """A map-style dataset. The file that was opened last stays decoded, in each worker of its own."""

    def __init__(self, names: list[str], job: LoaderJob) -> None:
        dataset, reader, storage = job.workload.dataset, job.workload.reader, job.workload.storage
        self._names = names
        self._client_name = storage.client
        self._place = ClientLocation(job.place, storage.options, 1)
        self._client: Client | None = None
        self._format = dataset.format if reader.decode else "files"
        self._per_file = dataset.samples_per_file
        self._columns = dataset.read_columns
        self._size = dataset.resize_bytes
        self._held: tuple[int, FileSamples] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_held": None}  # each process has its own

    def __len__(self) -> int:
        return len(self._names) * self._per_file

    def __getitem__(self, index: int) -> Any:
        number, row = divmod(int(index), self._per_file)
        if self._held is None or self._held[0] != number:
            if self._client is None:
                self._client = open_client(self._client_name, self._place)
            name = self._names[number]
            data = self._client.read(name)
            if self._format in ("files", "tfrecord") and not isinstance(data, bytes):
                data = bytes(data)  # which also reads what was only mapped
            where = f"{self._place.url.rstrip('/')}/{name}"
            samples = self._per_file if self._format != "files" else 1
            self._held = number, open_samples(self._format, data, samples, where, self._columns)
        sample = self._held[1].get(row)
        return resized(sample, self._size) if self._size else sample

    def release(self) -> None:
        """Let go of the file and of connections."""
        self._held = None
        if self._client is not None:
            self._client.close()
            self._client = None


class _Open:
    def __init__(self, job: LoaderJob) -> None:
        dataset, reader = job.workload.dataset, job.workload.reader
        if dataset.format not in FORMATS:
            raise ConfigError(f"the loader torch reads plain files of {', '.join(FORMATS)}, not {dataset.format!r}")
        if not reader.decode and dataset.samples_per_file != 1:
            raise ConfigError("reader.decode: false reads files as they are, which must be samples, one a file")
        find_client(job.workload.storage.client, job.place)
        self._job = job
        self._files = _Files(data_files(job), job)
        self._order: list[int] = []
        self._loader = data_loader(self._files, job, sampler=self._order)

    def _part(self, number: int) -> Ids:
        """This rank's samples of an epoch: a slice of one permutation that all ranks compute."""
        workload, world = self._job.workload, self._job.world
        count = len(self._files)
        order = np.arange(count, dtype=np.int64)
        if workload.reader.shuffle and self._job.split == "train":
            seed = workload.train.seed & 0xFFFFFFFF
            order = np.random.default_rng((seed, number if workload.train.reshuffle else 0)).permutation(order)
        each = count // world.world_size  # the same for all, so that all take the same number of steps
        return order[world.rank * each : (world.rank + 1) * each]

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        self._order[:] = self._part(number).tolist()
        yield from loaded(self._loader)

    def release(self) -> None:
        self._files.release()

    def report(self) -> LoaderReport:
        job = self._job
        left = len(self._files) % job.world.world_size
        shuffled = job.workload.reader.shuffle and job.split == "train"
        client = job.workload.storage.client
        notes = [] if client == "auto" else [f"files were fetched by the storage client {client}"]
        return LoaderReport(
            "arrays" if job.workload.reader.decode else "bytes",
            f"{job.threads} processes" if job.threads else "none: in the training process",
            "shuffled sample by sample" if shuffled else "by number",
            None,
            versions("torch", "numpy", *CLIENT_PACKAGES.get(client, ())),
            (*notes, f"{left} samples that do not divide among the ranks are left out") if left else tuple(notes),
        )

    def close(self) -> None:
        stop_workers(self._loader)
        self._files.release()
        self._loader = None


class TorchLoader:
    """``torch.utils.data.DataLoader`` over a map-style dataset of plain files."""

    name = "torch"
    formats = tuple(FORMATS)

    def available(self) -> str | None:
        """See :class:`~stoker.bench.loaders.base.LoaderUnderTest`."""
        return missing({"torch": "'stoker[torch]'"})

    def open(self, job: LoaderJob) -> _Open:
        """See :class:`~stoker.bench.loaders.base.LoaderUnderTest`."""
        return _Open(job)
