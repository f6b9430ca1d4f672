"""webdataset: tar files, read from one end to the other, and shuffled in a window of samples."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

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
from stoker.errors import ConfigError

__all__ = ["WebDatasetLoader"]

_WINDOW = 1000
"""Samples that are shuffled at once: what webdataset's own examples have."""


def _batch(samples: list[dict[str, Any]], *, dataset: DatasetSettings, decode: bool) -> Any:
    """Fields of samples: what webdataset has not decoded itself is an array's bytes. Its own fields are left out."""
    wanted = dataset.read_columns

    def value(name: str, found: Any) -> Any:
        return array_of(found, dataset, name) if decode and isinstance(found, bytes) else found

    return collate(
        [
            {
                name: value(name, found)
                for name, found in sample.items()
                if not name.startswith("__") and (wanted is None or name in wanted)
            }
            for sample in samples
        ]
    )


class _Open:
    def __init__(self, job: LoaderJob) -> None:
        import webdataset as wds

        need_format(job, "webdataset", "tar")
        folder = local_folder(job, "webdataset")
        files = [f"{folder}/{name}" for name in data_files(job)]
        world, reader, dataset = job.world, job.workload.reader, job.workload.dataset
        refuse_settings(job, "webdataset", decodes=False)
        mine = files[world.rank :: world.world_size]
        if not mine:
            raise ConfigError(
                f"{len(files)} files for {world.world_size} ranks: webdataset gives each rank whole files"
            )
        self._job, self._left = job, len(files) % world.world_size
        self._shuffled = reader.shuffle and job.split == "train"
        self._workers = min(job.threads, len(mine))
        options = dict(reader.options)
        self._window = int(options.pop("shuffle_window", _WINDOW)) if self._shuffled else 0
        seed = job.workload.train.seed
        # These shuffles count the epochs themselves, in each worker.
        made = wds.WebDataset(
            mine,
            shardshuffle=len(mine) if self._shuffled else False,
            detshuffle=True,
            nodesplitter=wds.shardlists.single_node_only,
            seed=seed,
            empty_check=False,
        )
        if self._window > 1:
            made = made.compose(wds.detshuffle(self._window, seed=seed))
        if reader.decode:
            made = made.decode("rgb8")
        self._loader: Any = data_loader(
            made,
            job,
            workers=self._workers,
            options=options,
            collate_fn=partial(_batch, dataset=dataset, decode=reader.decode),
        )

    def epoch(self, number: int) -> Iterator[LoadedBatch]:  # noqa: ARG002 - it counts them itself
        yield from loaded(self._loader)

    def release(self) -> None:
        pass  # a tar file is closed when it was read to its end

    def report(self) -> LoaderReport:
        notes = ["each rank reads whole files: ranks may take different numbers of steps"] if self._left else []
        if self._shuffled and not self._job.workload.train.reshuffle:
            notes.append("train.reshuffle: false has no effect: each epoch has another order")
        if self._workers > 1 and self._job.workload.reader.last_batch == "drop":
            notes.append("each worker process drops its own last batch where it is not full")
        order = f"files shuffled, samples in a window of {self._window}" if self._shuffled else "by number"
        return LoaderReport(
            "arrays" if self._job.workload.reader.decode else "bytes",
            f"{self._workers} processes" if self._workers else "none: in the training process",
            order,
            None,
            versions("webdataset", "torch"),
            tuple(notes),
        )

    def close(self) -> None:
        stop_workers(self._loader)
        self._loader = None


class WebDatasetLoader:
    """``webdataset.WebDataset`` in a ``DataLoader``."""

    name = "webdataset"
    formats = ("tar",)

    def available(self) -> str | None:
        """See :class:`~stoker.bench.loaders.base.LoaderUnderTest`."""
        return missing({"webdataset": "webdataset", "torch": "torch"})

    def open(self, job: LoaderJob) -> _Open:
        """See :class:`~stoker.bench.loaders.base.LoaderUnderTest`."""
        return _Open(job)
