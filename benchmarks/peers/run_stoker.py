"""stoker: MDS shards, read through ``StreamingDataset``.

Variants when reading: ``plain``, ``views`` (``bytes`` handed out as memoryviews of the mapped shard, as litdata does), and
``override`` (a subclass that makes its samples in ``__getitem__``).
Variants when writing: ``write`` (sample by sample) and ``write_batch`` (columns); through a DataLoader:
``torch`` (torch's own), ``own`` (stoker's ``StreamingDataLoader``) and ``columnar`` (the same, reading whole
columns, so that there is nothing to collate).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
from common import SHARD_BYTES, Job, Peer, Source, main
from numpy.typing import NDArray

WRITE_ROWS = 4096
WRITE_IMAGES = 256


class Stoker(Peer):
    distributions: ClassVar[tuple[str, ...]] = ("stoker", "numpy")

    def configure(self, job: Job) -> None:
        import stoker  # noqa: F401  # the import is not what is measured

        if job.action == "load":
            import torch  # noqa: F401

    def write(self, job: Job, samples: Source) -> None:
        from stoker import MDSWriter

        if job.kind == "tokens":
            rows = samples.rows
            with MDSWriter(columns={"tokens": "ndarray:uint16:2048"}, out=job.data, size_limit=SHARD_BYTES) as writer:
                if job.variant == "write_batch":
                    for start in range(0, len(rows), WRITE_ROWS):
                        writer.write_batch({"tokens": rows[start : start + WRITE_ROWS]})
                else:
                    for row in rows:
                        writer.write({"tokens": row})
            return
        images, labels = samples.images, samples.labels
        with MDSWriter(columns={"image": "bytes", "label": "int"}, out=job.data, size_limit=SHARD_BYTES) as writer:
            if job.variant == "write_batch":
                for start in range(0, len(images), WRITE_IMAGES):
                    part = slice(start, start + WRITE_IMAGES)
                    writer.write_batch({"image": images[part], "label": np.array(labels[part])})
            else:
                for image, label in zip(images, labels, strict=True):
                    writer.write({"image": image, "label": label})

    def dataset(self, job: Job) -> Any:
        from stoker import ReadOptions, StreamingDataset

        class Overridden(StreamingDataset):
            def __getitem__(self, at: Any) -> dict[str, Any]:
                return {"tokens": super().__getitem__(at)["tokens"]}

        cls = Overridden if job.variant == "override" else StreamingDataset
        return cls(
            local=job.data,
            shuffle=job.shuffle,
            shuffle_seed=1,
            batch_size=job.batch_size,
            read=ReadOptions(views=job.variant == "views"),
        )

    def loader(self, job: Job) -> Any:
        from torch.utils.data import DataLoader

        from stoker import StreamingDataLoader

        if job.variant == "columnar":
            return StreamingDataLoader(
                self.dataset(job), batch_size=job.batch_size, num_workers=job.workers, columnar=True
            )
        cls = StreamingDataLoader if job.variant == "own" else DataLoader
        return cls(self.dataset(job), batch_size=job.batch_size, num_workers=job.workers)

    def columns(self, job: Job) -> Callable[[], Iterator[NDArray[np.uint16]]]:
        dataset = self.dataset(job)
        return lambda: (batch["tokens"] for batch in dataset.batches(job.batch_size))


if __name__ == "__main__":
    main(Stoker())
