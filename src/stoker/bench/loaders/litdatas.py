"""litdata: its own chunks, which the generated files are converted to once, in its own ``StreamingDataLoader``."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from stoker.bench.loaders.base import LoadedBatch, LoaderJob, LoaderReport, Split
from stoker.bench.loaders.decode import FORMATS, open_samples, suffixes
from stoker.bench.loaders.peers import leave_torch, meet_in_torch, missing, refuse_settings, versions
from stoker.bench.loaders.torchloading import data_loader, loaded, stop_workers
from stoker.bench.settings.workload import Workload
from stoker.errors import ConfigError, ObjectNotFoundError
from stoker.storage import is_local

__all__ = ["LitDataLoader"]

_CHUNK: Final = 64 << 20
_DONE: Final = "index.json"


def _folder(url: str, split: Split) -> Path:
    """Where the chunks of a split are: beside the generated files."""
    found = is_local(url)
    if found is None:
        raise ConfigError(f"the loader litdata converts and reads directories here, not {url}")
    return found / "litdata" / split


def _convert(workload: Workload, files: Path, out: Path) -> None:
    """Write the samples of all files of a split as litdata's chunks; whole, or not at all."""
    from litdata.streaming.writer import BinaryWriter

    dataset = workload.dataset
    ends = suffixes(dataset.format)
    names = sorted(p for p in files.rglob("*") if p.is_file() and (not ends or p.name.lower().endswith(ends)))
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    writer = BinaryWriter(str(part), chunk_bytes=_CHUNK)
    number = 0
    for path in names:
        found = open_samples(
            dataset.format, path.read_bytes(), dataset.samples_per_file, str(path), dataset.read_columns
        )
        for row in range(dataset.samples_per_file):
            sample = found.get(row)
            writer[number] = sample if isinstance(sample, dict) else {"data": sample}
            number += 1
    writer.done()
    writer.merge(num_workers=1)
    part.replace(out)


class _Open:
    def __init__(self, job: LoaderJob) -> None:
        import litdata

        refuse_settings(job, "litdata", decodes=True)
        folder = _folder(job.url, job.split)
        if not (folder / _DONE).is_file():
            raise ObjectNotFoundError(
                f"{folder} has no chunks of litdata's: run the stage generate with this loader, which converts the files",
                url=str(folder),
            )
        self._met = meet_in_torch(job)
        self._job = job
        reader = job.workload.reader
        self._shuffled = reader.shuffle and job.split == "train"
        # What it fetches and unpacks goes to this host's scratch, whatever the user's environment says.
        os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = job.scratch or str(folder.parent / "cache")
        self._data: Any = litdata.StreamingDataset(
            str(folder),
            shuffle=self._shuffled,
            drop_last=reader.last_batch == "drop",
            seed=job.workload.train.seed & 0x7FFFFFFF,
        )
        self._loader = data_loader(self._data, job, kind=litdata.StreamingDataLoader)

    def epoch(self, number: int) -> Iterator[LoadedBatch]:  # noqa: ARG002 - the loader counts them itself
        yield from loaded(self._loader)

    def release(self) -> None:
        stop_workers(self._loader)
        with contextlib.suppress(AttributeError):
            self._loader._iterator = None

    def report(self) -> LoaderReport:
        job = self._job
        return LoaderReport(
            "arrays",
            f"{job.threads} processes" if job.threads else "none: in the training process",
            "shuffled within and across chunks" if self._shuffled else "by number",
            None,
            versions("litdata", "torch"),
            ("the generated files were converted to litdata's own chunks, which are what was read",),
        )

    def close(self) -> None:
        self.release()
        self._data = self._loader = None
        leave_torch(self._met)


class LitDataLoader:
    """``litdata.StreamingDataset`` in its ``StreamingDataLoader``."""

    name = "litdata"
    formats = tuple(FORMATS)

    def available(self) -> str | None:
        """See :class:`~stoker.bench.loaders.base.LoaderUnderTest`."""
        return missing({"litdata": "litdata", "torch": "torch"})

    def prepare(self, workload: Workload, url: str) -> None:
        """Convert the generated files: litdata reads no format but its own. What is converted already stays.

        Raises:
            ConfigError: they can not be converted.
        """
        if workload.dataset.format not in FORMATS:
            raise ConfigError(
                f"the loader litdata converts files of {', '.join(FORMATS)}, not of {workload.dataset.format!r}"
            )
        splits: tuple[tuple[Split, int], ...] = (
            ("train", workload.dataset.files),
            ("valid", workload.dataset.files_eval),
        )
        for split, count in splits:
            out = _folder(url, split)
            if count and not (out / _DONE).is_file():
                files = is_local(url)
                assert files is not None  # _folder has seen to it
                _convert(workload, files / split, out)

    def open(self, job: LoaderJob) -> _Open:
        """See :class:`~stoker.bench.loaders.base.LoaderUnderTest`."""
        return _Open(job)
