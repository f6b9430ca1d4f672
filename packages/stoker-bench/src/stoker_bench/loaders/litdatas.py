"""litdata: its own chunks, which the generated files are converted to once, in its own ``StreamingDataLoader``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stoker.cluster import World
from stoker.errors import ConfigError, ObjectNotFoundError
from stoker.storage import is_local
from stoker_bench.loaders.base import LoaderJob, Split
from stoker_bench.loaders.decode import FORMATS, open_samples
from stoker_bench.loaders.listing import data_files
from stoker_bench.loaders.peers import leave_torch, meet_in_torch
from stoker_bench.loaders.torchloading import TorchRankLoader
from stoker_bench.settings.workload import Workload

_CHUNK: Final = 64 << 20
_DONE: Final = "index.json"


def _folder(url: str, split: Split) -> Path:
    """The folder of a split's chunks, next to the generated files."""
    found = is_local(url)
    if found is None:
        raise ConfigError(f"the loader litdata converts and reads directories here, not {url}")
    return found / LitDataLoader.subfolder / split


def _convert(workload: Workload, files: Path, out: Path, names: Sequence[str]) -> None:
    """Write the samples of files of a split as litdata's chunks; whole, or not at all."""
    from litdata.streaming.writer import BinaryWriter

    dataset = workload.dataset
    part = out.with_name(f".{out.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    writer = BinaryWriter(str(part), chunk_bytes=_CHUNK)
    number = 0
    for path in (files / name for name in names):
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


class LitDataLoader(TorchRankLoader):
    """``litdata.StreamingDataset`` in its ``StreamingDataLoader``."""

    name = "litdata"
    formats = tuple(FORMATS)
    batching_workers = True
    packages = (("litdata", "litdata"), ("torch", "torch"))
    recorded = ("litdata", "torch")
    directories = True
    subfolder = "litdata"

    def __init__(self, job: LoaderJob) -> None:
        import litdata

        super().__init__(job)
        folder = _folder(job.url, job.split)
        if not (folder / _DONE).is_file():
            raise ObjectNotFoundError(
                f"{folder} has no chunks of litdata's: run the stage generate with this loader, which converts the files",
                url=str(folder),
            )
        self._met = meet_in_torch(job)
        # What it fetches and unpacks goes to this host's scratch, whatever the user's environment says.
        os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = job.scratch or str(folder.parent / "cache")
        data = litdata.StreamingDataset(
            str(folder),
            shuffle=job.shuffled,
            drop_last=job.workload.reader.last_batch == "drop",
            seed=job.seed(),
        )
        self._loader = self._torch_loader(data, kind=litdata.StreamingDataLoader)
        self.notes.append("the generated files were converted to litdata's own chunks, which are what was read")

    @classmethod
    def prepare(cls, workload: Workload, url: str) -> None:
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
                _convert(workload, files / split, out, data_files(LoaderJob(workload, split, url, World(), 0, 1)))

    def release(self) -> None:
        self._stop_workers()

    def close(self) -> None:
        super().close()
        leave_torch(self._met)

    def _order(self) -> str:
        return "shuffled within and across chunks" if self.job.shuffled else "by number"
