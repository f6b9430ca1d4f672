"""litdata: binary chunks, read through its ``StreamingDataset``, which maps a local folder's chunks in place.

Variants for tokens: ``tokens`` (``TokensLoader``, made for rows of one length), ``tree`` (the default item
loader, as one NumPy leaf) and ``raw`` (the default item loader on ``bytes``). For images the default item
loader is the one there is: ``tree`` leaves its ``batch_decode`` at ``auto``, ``item`` decodes item by item,
``all`` a chunk at once. An ``-own`` at the end takes litdata's ``StreamingDataLoader`` instead of torch's
``DataLoader``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from common import ROW, SHARD_BYTES, Collate, Job, Peer, Source, main


class Litdata(Peer):
    distributions: ClassVar[tuple[str, ...]] = ("litdata", "torch", "numpy")
    token_key = None

    def configure(self, job: Job) -> None:  # noqa: ARG002
        import litdata  # noqa: F401  # an import is not what is measured

    def write(self, job: Job, samples: Source) -> None:
        from litdata.streaming import Cache
        from litdata.streaming.item_loader import TokensLoader

        loader = TokensLoader(block_size=ROW) if job.variant == "tokens" else None
        cache = Cache(job.data, chunk_bytes=SHARD_BYTES, item_loader=loader)
        if job.kind == "images":
            for i, image in enumerate(samples.images):
                cache[i] = {"image": image, "label": samples.labels[i]}
        elif job.variant == "raw":
            for i, row in enumerate(samples.rows):
                cache[i] = row.tobytes()
        else:
            for i, row in enumerate(samples.rows):
                cache[i] = row
        cache.done()
        cache.merge()

    def dataset(self, job: Job) -> Any:
        from litdata import StreamingDataset
        from litdata.streaming.item_loader import TokensLoader

        variant = job.variant.removesuffix("-own")
        transform = as_row if job.kind == "tokens" and variant == "raw" else None
        return StreamingDataset(
            job.data,
            shuffle=job.shuffle,
            seed=1,
            item_loader=TokensLoader(block_size=ROW) if variant == "tokens" else None,
            batch_decode={"item": 0, "all": "all"}.get(variant, "auto"),
            **({"transform": transform} if transform else {}),
        )

    def loader(self, job: Job) -> Iterator[Any]:
        from litdata import StreamingDataLoader
        from torch.utils.data import DataLoader

        cls = StreamingDataLoader if job.variant.endswith("-own") else DataLoader
        return cls(
            self.dataset(job),
            batch_size=job.batch_size,
            num_workers=job.workers,
            # As it comes, batches are made by torch's default_collate.
            collate_fn=None if job.variant.startswith("tokens") else Collate(self.token_key),
        )


def as_row(data: Any) -> Any:
    return np.frombuffer(data, np.uint16)


if __name__ == "__main__":
    main(Litdata())
