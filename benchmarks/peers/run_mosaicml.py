"""mosaicml-streaming: MDS shards, read through ``StreamingDataset``.

Variants: ``plain`` keeps the library's defaults; ``ahead`` lets ``predownload`` reach over the whole epoch,
so that the two threads that watch over shards finish early and leave the interpreter to the reader, which is
its fastest for data that is local; ``bytes`` stores tokens as ``bytes`` and makes arrays in ``__getitem__``,
as LLM pipelines do, instead of in an ``ndarray:uint16:2048`` column. An ``-own`` at the end takes the
library's ``StreamingDataLoader`` instead of torch's ``DataLoader``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from common import SHARD_BYTES, Collate, Job, Peer, Source, main


class Mosaicml(Peer):
    distributions: ClassVar[tuple[str, ...]] = ("mosaicml-streaming", "torch", "numpy")

    def configure(self, job: Job) -> None:  # noqa: ARG002
        import streaming  # noqa: F401  # an import is not what is measured

    def write(self, job: Job, samples: Source) -> None:
        from streaming import MDSWriter

        if job.kind == "tokens":
            as_bytes = job.variant == "bytes"
            columns = {"tokens": "bytes" if as_bytes else "ndarray:uint16:2048"}
            with MDSWriter(columns=columns, out=job.data, size_limit=SHARD_BYTES) as writer:
                for row in samples.rows:
                    writer.write({"tokens": row.tobytes() if as_bytes else row})
        else:
            with MDSWriter(columns={"image": "bytes", "label": "int"}, out=job.data, size_limit=SHARD_BYTES) as writer:
                for image, label in zip(samples.images, samples.labels, strict=True):
                    writer.write({"image": image, "label": label})

    def dataset(self, job: Job) -> Any:
        from streaming import StreamingDataset

        class Tokens(StreamingDataset):
            def __getitem__(self, at: Any) -> dict[str, Any]:
                return {"tokens": np.frombuffer(super().__getitem__(at)["tokens"], np.uint16)}

        cls = Tokens if job.kind == "tokens" and job.variant == "bytes" else StreamingDataset
        return cls(
            local=job.data,
            shuffle=job.shuffle,
            shuffle_seed=1,
            batch_size=job.batch_size,
            predownload=job.samples if job.variant.startswith("ahead") else None,
        )

    def loader(self, job: Job) -> Any:
        from streaming import StreamingDataLoader
        from torch.utils.data import DataLoader

        cls = StreamingDataLoader if job.variant.endswith("-own") else DataLoader
        return cls(
            self.dataset(job),
            batch_size=job.batch_size,
            num_workers=job.workers,
            # As it comes, batches are made by torch's default_collate.
            collate_fn=None if job.variant.startswith("plain") else Collate(self.token_key),
        )


if __name__ == "__main__":
    main(Mosaicml())
