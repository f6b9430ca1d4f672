"""stoker's own pipeline: a ``StreamingDataset`` over the workload's files, in whole batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from stoker.concurrency.request_observer import ServedBy, observe
from stoker.errors import ConfigError
from stoker.formats.arrays.npz import read_arrays
from stoker.formats.base import ReadOptions
from stoker.loaders.dataset import StreamingDataset
from stoker.policy import READ_WHOLE
from stoker.storage import is_local, open_store
from stoker.streams.streams import Stream
from stoker.types import CacheKind, Sample
from stoker_bench.loaders.base import LoadedBatch, LoaderJob
from stoker_bench.loaders.decode import (
    FORMATS,
    byte_count,
    compare_checksums,
    open_samples,
    read_counted,
    resized,
    samples_axis,
    suffixes,
)
from stoker_bench.loaders.listing import check_listing, data_files
from stoker_bench.loaders.rank_loader import RankLoader
from stoker_bench.measure.request_counts import BYTES

_INDEXED: Final = frozenset({"mds"})
_ALONE: Final = frozenset({"npz", "npy"})
"""Formats whose files, with a sample each, may have another shape each."""
_OPENED_BY_CALLS: Final = frozenset({"npz", "npy", "hdf5", "tfrecord", "mds", "tar", "csv", "jsonl"})
"""Formats of whose small files all bytes are read by calls that are counted, also to find the samples."""
_IMAGES: Final = frozenset({"jpeg", "png"})
"""Formats that the data set reads as images that are not decoded before they are looked at."""


def _decode(sample: Sample, *, format: str, size: int, checksums: bool, counted: bool) -> Sample:  # noqa: A002
    """A file as it is to a sample, on a reading thread."""
    data = sample["data"]
    if counted:
        read_counted(data)  # by threads that do not hold the interpreter's lock while they wait for it
    where = str(sample.get("path", "a file"))
    if format == "npz":
        # Of what is cut to size only the largest array is looked at.
        views = read_arrays(data, where, checksums=checksums)
        if size:
            return {"data": resized(views, size)}
        return {name if len(views) > 1 else "data": array.copy() for name, array in views.items()}
    if checksums:
        compare_checksums(format, data, where)
    decoded = open_samples(format, data, 1, where, None).get(0)
    if size:
        return {"data": resized(decoded, size)}
    return decoded if isinstance(decoded, dict) else {"data": decoded}


def _resize(sample: Sample, *, size: int, counted: bool) -> Sample:
    if counted:
        read_counted(sample)
    return {"data": resized(sample, size)}


class StokerLoader(RankLoader):
    """``StreamingDataset.batches()``, with threads that read ahead."""

    name = "stoker"
    recorded = ("stoker",)
    heeds = frozenset({"reader.decode", "reader.checksums", "dataset.resize_bytes"})

    def __init__(self, job: LoaderJob) -> None:
        super().__init__(job)
        observe(job.requests)
        self._local = bool(is_local(job.url))
        self._fetched_before = self._network_bytes()
        self._names: list[str] | None = None
        if job.listing is not None:
            check_listing(job, job.listing)
        dataset = job.workload.dataset
        self._read_options = job.workload.storage.read_options(job.split_url, job.world.rank)
        self._called = self._local and self._read_options is not None
        self._cache: CacheKind = self.options.pop("cache", "disk")
        if self._called:
            self._cache = "memory"
        self._held = self._cache == "memory"
        self._format, self._transform = self._plan()
        self._counted = not self._local or self._called or self._counts_files()
        self._observe()
        self._format_options: Mapping[str, Any] | None = self.options.pop("format_options", self._axis())
        self._made: StreamingDataset | None = None
        self._seed = job.workload.train.seed
        if self._transform is not None and not dataset.resize_bytes and dataset.record_bytes_stdev:
            self.notes.append("samples of different sizes are handed over as a list, not stacked")
        if job.workload.storage.client != "auto":
            self.notes.append(f"files were fetched by the storage client {job.workload.storage.client}")
        if (
            self._counted
            and self._local
            and not self._called
            and self._format == "files"
            and self._transform is not None
        ):
            self.notes.append(
                "files are mapped and read ahead: a request takes as long as threads wait for its bytes, the first of a file "
                "also for its headers, which may be less than the device took"
            )
        if not self._local:
            self.notes.append(
                "shards are held in memory, by each rank" if self._held else "each epoch begins with an empty cache"
            )
        self._open(0)

    def _plan(self) -> tuple[str | None, Any]:
        """The format's name, or ``None`` where there is an index; and the function that is applied to a sample."""
        job = self.job
        dataset, reader = job.workload.dataset, job.workload.reader
        size = dataset.resize_bytes
        if open_store(job.split_url, self._read_options).exists("index.json"):
            if not reader.decode:
                raise ConfigError(
                    f"reader.decode: false: {job.split_url} has an index.json, and shards are always decoded"
                )
            return None, self._resizing(counted=False)
        if dataset.format in _INDEXED:
            raise ConfigError(
                f"{job.split_url} has no index.json, which {dataset.format} needs: generate the data, or index it"
            )
        alone = dataset.samples_per_file == 1 and dataset.format in FORMATS
        if not reader.decode:
            if not alone and dataset.format != "files":
                raise ConfigError(
                    f"reader.decode: false reads files as they are, which must be samples; "
                    f"{dataset.format} has {dataset.samples_per_file} a file"
                )
            return "files", self._resizing(counted=not self._held)
        if alone and (dataset.format in _IMAGES or (dataset.format in _ALONE and (size or dataset.record_bytes_stdev))):
            decode = partial(_decode, format=dataset.format, size=size, checksums=reader.checksums)
            return "files", partial(decode, counted=not self._held)
        return dataset.format, self._resizing(counted=False)

    def _resizing(self, *, counted: bool) -> Any:
        """The function that cuts samples to size, if they are; ``counted``: values of mapped files are requests."""
        size = self.job.workload.dataset.resize_bytes
        return partial(_resize, size=size, counted=counted) if size else None

    def _counts_files(self) -> bool:
        """Whether all reads of local files are counted: a part of them would look like all.

        Nobody counts what opening a mapped file of many samples reads, nor the samples that are copied at once, nor what
        decompressing a file or reading its footer takes.
        """
        if self._held or (self._format == "files" and self._transform is not None):
            return not self._held
        listing, dataset = self.job.listing, self.job.workload.dataset
        by_calls = self._format == "files" or (dataset.format in _OPENED_BY_CALLS and dataset.compression == "none")
        return by_calls and listing is not None and listing.most_bytes <= READ_WHOLE

    def _observe(self) -> None:
        """Have requests counted, if all are: the loaders of several splits take turns."""
        observe(self.job.requests if self._counted else None)

    def _axis(self) -> dict[str, Any] | None:
        """Format options for files whose samples lie along the last axis, as those of the first file do."""
        dataset = self.job.workload.dataset
        if self._format not in _ALONE:
            return None
        store = open_store(self.job.split_url, self._read_options)
        ends = suffixes(self._format)
        first = next((one for one in store.list() if one.key.lower().endswith(ends)), None)
        if first is None:
            return None
        axis = samples_axis(store.get(first.key, max_bytes=first.size), dataset.samples_per_file)
        return {"axis": axis} if axis != 0 else None

    def _open(self, epoch: int) -> StreamingDataset:
        self._observe()
        job, workload = self.job, self.job.workload
        source: str | list[str] = job.split_url
        columns = workload.dataset.read_columns
        if self._format == "files":
            source, columns = self._files(), ("data",)
        elif self._format is not None and job.listing is not None and job.listing.used < job.listing.files:
            source = self._files()
        stream = Stream(
            source,
            None if self._local or self._held else f"{job.scratch}/{job.split}-{epoch}",
            format=self._format,
            format_options=self._format_options,
            storage_options=self._read_options,
            name=job.split,
        )
        try:
            self._made = StreamingDataset(
                streams=[stream],
                batch_size=job.batch_size,
                shuffle=job.shuffled,
                shuffle_seed=self._seed + (epoch if workload.train.reshuffle else 0),
                columns=None if columns is None else list(columns),
                transform=self._transform,
                world=job.world,
                remainder="drop" if workload.reader.last_batch == "drop" else "uneven",
                # What a transform makes is its own; without one, samples are handed over that outlive the file.
                read=ReadOptions(
                    cache=self._cache,
                    read_threads=job.threads,
                    views=self._transform is not None,
                    checksums=workload.reader.checksums,
                ),
                **self.options,
            )
        except TypeError as error:
            raise ConfigError(f"reader.options: {error}") from None
        return self._made

    def _files(self) -> list[str]:
        """The files that the workload says, by their URLs; listed once."""
        if self._names is None:
            store = open_store(self.job.split_url, self._read_options)
            self._names = [store.url_of(name) for name in data_files(self.job)]
        return self._names

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        return self._batches(self._made or self._open(number))

    def _batches(self, dataset: StreamingDataset) -> Iterator[LoadedBatch]:
        for batch in dataset.batches():
            yield LoadedBatch(len(next(iter(batch.values()))), byte_count(batch), batch)

    def release(self) -> None:
        if self._made is None:
            return
        self._made.close()
        self._made = None

    def close(self) -> None:
        self.release()
        observe(None)

    def _parallel(self) -> str:
        return f"{self.workers} threads"

    def _order(self) -> str:
        return "shuffled, each sample once" if self.job.shuffled else "by number, each once"

    def _fetched(self) -> int | None:
        return None if self._local or self.job.requests is None else self._network_bytes() - self._fetched_before

    def _network_bytes(self) -> int:
        """Bytes that all requests of this rank have given so far, those for headers among them."""
        return 0 if self.job.requests is None else int(self.job.requests.table()[ServedBy.NETWORK, BYTES])
