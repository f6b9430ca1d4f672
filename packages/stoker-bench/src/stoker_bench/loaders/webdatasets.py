"""webdataset: tar files, read from one end to the other, and shuffled in a window of samples."""

from __future__ import annotations

from functools import partial
from typing import Any

from stoker_bench.loaders.base import LoaderJob
from stoker_bench.loaders.peers import array_of, files_of_rank
from stoker_bench.loaders.torchloading import TorchRankLoader, collate_or_list
from stoker_bench.settings.workload import DatasetSettings


def _batch(samples: list[dict[str, Any]], *, dataset: DatasetSettings, decode: bool) -> Any:
    """Fields of samples: what webdataset has not decoded itself is an array's bytes. Its own fields are left out."""
    wanted = dataset.read_columns

    def value(name: str, found: Any) -> Any:
        return array_of(found, dataset, name) if decode and isinstance(found, bytes) else found

    return collate_or_list(
        [
            {
                name: value(name, found)
                for name, found in sample.items()
                if not name.startswith("__") and (wanted is None or name in wanted)
            }
            for sample in samples
        ]
    )


class WebDatasetLoader(TorchRankLoader):
    """``webdataset.WebDataset`` in a ``DataLoader``."""

    name = "webdataset"
    formats = ("tar",)
    batching_workers = True
    packages = (("webdataset", "webdataset"), ("torch", "torch"))
    recorded = ("webdataset", "torch")
    directories = whole_files = True
    heeds = frozenset({"reader.decode"})
    window = 1000  # what webdataset's own examples have

    def __init__(self, job: LoaderJob) -> None:
        import webdataset as wds

        super().__init__(job)
        files, left = files_of_rank(job, self.name)
        reader, seed = job.workload.reader, job.workload.train.seed
        self.workers = min(job.threads, len(files))
        # These shuffles count the epochs themselves, in each worker.
        made = wds.WebDataset(
            files,
            shardshuffle=len(files) if job.shuffled else False,
            detshuffle=True,
            nodesplitter=wds.shardlists.single_node_only,
            seed=seed,
            empty_check=False,
        )
        if job.shuffled and self.window > 1:
            made = made.compose(wds.detshuffle(self.window, seed=seed))
        if reader.decode:
            made = made.decode("rgb8")
        collated = partial(_batch, dataset=job.workload.dataset, decode=reader.decode)
        self._loader = self._torch_loader(made, collate_fn=collated)
        if left:
            self.notes.append("each rank reads whole files: ranks may take different numbers of steps")
        if job.shuffled and not job.workload.train.reshuffle:
            self.notes.append("train.reshuffle: false has no effect: each epoch has another order")
        if self.workers > 1 and reader.last_batch == "drop":
            self.notes.append("each worker process drops its own last batch where it is not full")
