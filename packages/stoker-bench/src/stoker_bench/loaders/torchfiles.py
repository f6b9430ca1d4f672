"""torch's ``DataLoader`` over plain files, one sample at a time, as DLIO's readers and many a training script do it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from stoker.concurrency.request_observer import ServedBy, observe
from stoker.errors import ConfigError
from stoker.storage import is_local
from stoker.storage.files.mapped import MappedFile
from stoker.types import Ids
from stoker_bench.clients import Client, find_client, open_client
from stoker_bench.clients.base import Data
from stoker_bench.loaders.base import LoadedBatch, LoaderJob
from stoker_bench.loaders.decode import FORMATS, FileSamples, compare_checksums, open_samples, read_whole, resized
from stoker_bench.loaders.listing import data_files
from stoker_bench.loaders.torchloading import SharedCounts, TorchRankLoader
from stoker_bench.settings.workload import Workload


class _Files:
    """A map-style dataset. The file that was opened last stays decoded, in each worker of its own."""

    def __init__(self, names: list[str], job: LoaderJob, counts: SharedCounts) -> None:
        self._counts, self._requests = counts, job.requests
        self._local = bool(is_local(job.url))
        dataset, reader, storage = job.workload.dataset, job.workload.reader, job.workload.storage
        self._names = names
        self._storage, self._url, self._rank = storage, job.split_url, job.world.rank
        self._client: Client | None = None
        self._format = dataset.format if reader.decode else "files"
        self._checksums = reader.checksums and self._format != "npz"  # whose checksums NumPy compares in any case
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
                self._client = open_client(self._storage, self._url, self._rank)
                if self._client.counts_requests:
                    observe(self._requests)
            name = self._names[number]
            data = self._read(self._client, name)
            self._counts.add(len(data))
            if self._format in ("files", "tfrecord") and not isinstance(data, bytes):
                data = bytes(data)  # which also reads what was only mapped
            where = f"{self._url.rstrip('/')}/{name}"
            if self._checksums:
                compare_checksums(self._format, data, where)
            samples = self._per_file if self._format != "files" else 1
            self._held = number, open_samples(self._format, data, samples, where, self._columns)
        sample = self._held[1].get(row)
        return resized(sample, self._size) if self._size else sample

    def _read(self, client: Client, name: str) -> Data:
        """All of a file, counted as one request where the client does not count those that it makes."""
        counts = self._requests
        # Of a mapped file only some columns may be read, whenever that is: what is read of smaller ones would look like all.
        in_part = self._columns is not None and self._storage.client == "mmap"
        if counts is None or client.counts_requests or in_part:
            return client.read(name)
        begun = counts.begin()
        data = client.read(name)
        if not self._local:
            counts.add(ServedBy.NETWORK, time.perf_counter_ns() - begun[1], len(data))
            return data
        if isinstance(data, MappedFile):
            read_whole(data)
        counts.end(begun, len(data))
        return data

    def release(self) -> None:
        """Close the file and connections."""
        self._held = None
        if self._client is not None:
            self._client.close()
            self._client = None
            observe(None)


class TorchLoader(TorchRankLoader):
    """``torch.utils.data.DataLoader`` over a map-style dataset of plain files."""

    name = "torch"
    formats = tuple(FORMATS)
    packages = (("torch", "'stoker[torch]'"),)
    heeds = frozenset({"reader.decode", "reader.checksums", "dataset.resize_bytes"})

    def __init__(self, job: LoaderJob) -> None:
        super().__init__(job)
        client = find_client(job.workload.storage.client, job.split_url)
        self.recorded = ("torch", "numpy", *((client.package,) if client.package else ()))
        self._files = _Files(data_files(job), job, self._counts)
        self._numbers: list[int] = []
        self._loader = self._torch_loader(self._files, sampler=self._numbers)
        if job.workload.storage.client != "auto":
            self.notes.append(f"files were fetched by the storage client {job.workload.storage.client}")
        left = len(self._files) % job.world.world_size
        if left:
            self.notes.append(f"{left} samples that do not divide among the ranks are left out")

    @classmethod
    def check(cls, workload: Workload, ranks: int) -> None:
        super().check(workload, ranks)
        if not workload.reader.decode and workload.dataset.samples_per_file != 1:
            raise ConfigError("reader.decode: false reads files as they are, which must be samples, one a file")
        if workload.reader.checksums and workload.dataset.format == "parquet":
            raise ConfigError("reader.checksums: the loader torch compares none of Parquet; the loader stoker does")

    def _part(self, number: int) -> Ids:
        """This rank's samples of an epoch: a slice of one permutation that all ranks compute."""
        train, world = self.job.workload.train, self.job.world
        count = len(self._files)
        order = np.arange(count, dtype=np.int64)
        if self.job.shuffled:
            order = np.random.default_rng((train.seed & 0xFFFFFFFF, number if train.reshuffle else 0)).permutation(
                order
            )
        each = count // world.world_size  # the same for all, so that all take the same number of steps
        return order[world.rank * each : (world.rank + 1) * each]

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        self._numbers[:] = self._part(number).tolist()
        return super().epoch(number)

    def release(self) -> None:
        self._files.release()

    def close(self) -> None:
        super().close()
        self._files.release()

    def _fetched(self) -> int:
        return int(self._counts.fetched.value)

    def _order(self) -> str:
        return "shuffled sample by sample" if self.job.shuffled else "by number"
