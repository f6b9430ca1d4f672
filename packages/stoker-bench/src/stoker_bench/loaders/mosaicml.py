"""mosaicml-streaming: MDS shards, in a ``DataLoader``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from stoker.errors import ConfigError
from stoker.index.index import INDEX_NAME, load_index
from stoker.storage import is_local, open_store
from stoker_bench.loaders.base import LoadedBatch, LoaderJob
from stoker_bench.loaders.peers import leave_torch, meet_in_torch
from stoker_bench.loaders.torchloading import TorchRankLoader

_KEYS = {
    "endpoint": "S3_ENDPOINT_URL",
    "access_key_id": "AWS_ACCESS_KEY_ID",
    "secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "session_token": "AWS_SESSION_TOKEN",
    "region": "AWS_DEFAULT_REGION",
}


class MosaicLoader(TorchRankLoader):
    """``streaming.StreamingDataset`` in a ``DataLoader``."""

    name = "mosaicml"
    formats = ("mds",)
    packages = (("streaming", "mosaicml-streaming"), ("torch", "torch"))
    recorded = ("mosaicml-streaming", "torch")

    def __init__(self, job: LoaderJob) -> None:
        super().__init__(job)
        self._settings, self.options = self.options, {}  # they are the data set's, not the DataLoader's
        self._folder = is_local(job.split_url)
        self.notes.append("samples are repeated where they do not divide among ranks")
        if self._folder is None:
            self.notes.append("each epoch begins with an empty cache")
            for name, value in job.workload.storage.options.items():
                variable = _KEYS.get(name.lower().removeprefix("aws_"))
                if variable is None:
                    raise ConfigError(
                        f"storage.options.{name} can not be passed on to mosaicml-streaming; {', '.join(_KEYS)} can"
                    )
                os.environ[variable] = str(value)
        self._met = meet_in_torch(job)
        self._folders: list[Path] = []
        self._sizes: dict[Path, int] = {}
        self._open(0)

    def _open(self, epoch: int) -> None:
        import streaming

        job = self.job
        there = self._folder is not None
        if not there:
            self._folders.append(Path(job.scratch) / f"{job.split}-{epoch}")
        try:
            data = streaming.StreamingDataset(
                remote=None if there else job.split_url,
                local=str(self._folder if there else self._folders[-1]),
                batch_size=job.batch_size,
                shuffle=job.shuffled,
                shuffle_seed=(job.workload.train.seed + (0 if there else epoch)) & 0x7FFFFFFF,
                **self._settings,
            )
        except TypeError as error:
            raise ConfigError(f"reader.options: {error}") from None
        self._loader = self._torch_loader(data)

    def epoch(self, number: int) -> Iterator[LoadedBatch]:
        if self._loader is None:
            self._open(number)
        return super().epoch(number)

    def _fetched(self) -> int | None:
        """By the files that were downloaded, which ranks of a host share: its first rank tells all of them."""
        if self._folder is not None or self._settings.get("cache_limit") is not None:
            return None
        if self.job.world.rank % self.job.world.local_world_size:
            return 0
        folder = self._folders[-1]
        self._sizes[folder] = max(self._sizes.get(folder, 0), _downloaded(folder))  # it is removed after its epoch
        return sum(self._sizes.values())

    def release(self) -> None:
        if self._folder is None:  # the next epoch fetches all anew, into another folder
            super().close()

    def close(self) -> None:
        super().close()
        leave_torch(self._met)
        self._met = False

    def _order(self) -> str:
        return "shuffled by py1e or reader.options.shuffle_algo" if self.job.shuffled else "by number"


def _downloaded(folder: Path) -> int:
    """Bytes that were fetched into a folder: of a shard that was decompressed there, those of its compressed file."""
    if not (folder / INDEX_NAME).exists():
        return 0
    total = (folder / INDEX_NAME).stat().st_size
    for shard in load_index(open_store(str(folder))).shards:
        if all((folder / file.basename).exists() for file in shard.raw):
            total += sum(file.bytes for file in shard.stored)
    return total
