"""mosaicml-streaming: MDS shards, in a ``DataLoader``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from stoker.bench.loaders.base import LoadedBatch, LoaderJob, LoaderReport
from stoker.bench.loaders.peers import leave_torch, meet_in_torch, missing, need_format, refuse_settings, versions
from stoker.bench.loaders.torchloading import data_loader, loaded, stop_workers
from stoker.errors import ConfigError
from stoker.storage import is_local

__all__ = ["MosaicLoader"]

_KEYS = {
    "endpoint": "S3_ENDPOINT_URL",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_DEFAULT_REGION",
}


class _Open:
    def __init__(self, job: LoaderJob) -> None:
        need_format(job, "mosaicml", "mds")
        refuse_settings(job, "mosaicml", decodes=True)
        self._job = job
        self._folder = is_local(job.place)
        if self._folder is None:
            for name, value in job.workload.storage.options.items():
                variable = _KEYS.get(name.lower().removeprefix("aws_"))
                if variable is None:
                    raise ConfigError(
                        f"storage.options.{name} can not be passed on to mosaicml-streaming; {', '.join(_KEYS)} can"
                    )
                os.environ[variable] = str(value)
        self._met = meet_in_torch(job)
        self._loader: Any = None
        self._data: Any = None
        self._open(0)

    def _open(self, epoch: int) -> None:
        import streaming

        job = self._job
        workload = job.workload
        there = self._folder is not None
        settings: dict[str, Any] = dict(workload.reader.options)
        local = str(self._folder) if there else f"{job.scratch}/{job.split}-{epoch}"
        try:
            self._data = streaming.StreamingDataset(
                remote=None if there else job.place,
                local=local,
                batch_size=job.batch_size,
                shuffle=workload.reader.shuffle and job.split == "train",
                shuffle_seed=(workload.train.seed + (0 if there else epoch)) & 0x7FFFFFFF,
                **settings,
            )
        except TypeError as error:
            raise ConfigError(f"reader.options: {error}") from None
        self._loader = data_loader(self._data, job, options={})

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        if self._loader is None:
            self._open(number)
        yield from loaded(self._loader)

    def release(self) -> None:
        if self._folder is None:  # the next epoch fetches all anew, into another folder
            self.close_data()

    def close_data(self) -> None:
        """End the workers and let go of the data set."""
        stop_workers(self._loader)
        self._loader = self._data = None

    def report(self) -> LoaderReport:
        job = self._job
        shuffled = job.workload.reader.shuffle and job.split == "train"
        notes = ["samples are repeated where they do not divide among ranks"]
        if self._folder is None:
            notes.append("each epoch begins with an empty cache")
        return LoaderReport(
            "arrays",
            f"{job.threads} processes" if job.threads else "none: in the training process",
            "shuffled by py1e or reader.options.shuffle_algo" if shuffled else "by number",
            None,
            versions("mosaicml-streaming", "torch"),
            tuple(notes),
        )

    def close(self) -> None:
        self.close_data()
        leave_torch(self._met)
        self._met = False


class MosaicLoader:
    """``streaming.StreamingDataset`` in a ``DataLoader``."""

    name = "mosaicml"
    formats = ("mds",)

    def available(self) -> str | None:
        """See :class:`~stoker.bench.loaders.base.LoaderUnderTest`."""
        return missing({"streaming": "mosaicml-streaming", "torch": "torch"})

    def open(self, job: LoaderJob) -> _Open:
        """See :class:`~stoker.bench.loaders.base.LoaderUnderTest`."""
        return _Open(job)
