"""The bound: what plain NumPy gathers from mapped ``.npy`` files, with no format, index or checks.

``shards``: 64 MiB files, each batch gathered row by row into a new output array.
``file``: one file, each batch one ``take`` into a new output array.
``rows``: rows of one file, one at a time, through torch's DataLoader; ``batches``: what ``file`` gives, through it.
The order is a random permutation within blocks of ``locality`` rows, the blocks in random order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from common import ROW, ROW_BYTES, SHARD_BYTES, Collate, Job, Peer, Source, main, shared_rows
from numpy.typing import NDArray

PER_SHARD = SHARD_BYTES // ROW_BYTES


class Numpy(Peer):
    distributions: ClassVar[tuple[str, ...]] = ("numpy",)

    def write(self, job: Job, samples: Source) -> None:
        folder = Path(job.data)
        folder.mkdir()
        for number, start in enumerate(range(0, job.samples, PER_SHARD)):
            np.save(folder / f"{number:06d}.npy", samples.rows[start : start + PER_SHARD])

    def order(self, job: Job) -> NDArray[np.int64]:
        if not job.shuffle:
            return np.arange(job.samples)
        rng = np.random.default_rng(1)
        starts = rng.permutation(np.arange(0, job.samples, job.locality))
        return np.concatenate([s + rng.permutation(min(job.locality, job.samples - s)) for s in starts])

    def loader(self, job: Job) -> Any:
        from torch.utils.data import DataLoader, IterableDataset, get_worker_info

        order = self.order(job)
        rows = np.load(Path(job.source) / "tokens.npy", mmap_mode="r").view(np.ndarray)
        starts = range(0, job.samples, job.batch_size)

        class Rows(IterableDataset):
            def __iter__(self) -> Iterator[Any]:
                info = get_worker_info()
                for start in starts[info.id :: info.num_workers]:
                    ids = order[start : start + job.batch_size]
                    if job.variant == "rows":
                        yield from map(rows.__getitem__, ids.tolist())
                    else:
                        out = shared_rows(len(ids))
                        rows.take(ids, axis=0, mode="clip", out=out.numpy())
                        yield out

        whole = job.variant == "batches"
        return DataLoader(
            Rows(),
            batch_size=None if whole else job.batch_size,
            num_workers=job.workers,
            collate_fn=None if whole else Collate(None),
        )

    def columns(self, job: Job) -> Callable[[], Iterator[NDArray[np.uint16]]]:
        if job.variant == "file":
            rows = np.load(Path(job.source) / "tokens.npy", mmap_mode="r").view(np.ndarray)
            return lambda: self.from_file(job, rows)
        shards = [np.load(p, mmap_mode="r").view(np.ndarray) for p in sorted(Path(job.data).glob("*.npy"))]
        return lambda: self.from_shards(job, shards)

    def from_file(self, job: Job, rows: NDArray[np.uint16]) -> Iterator[NDArray[np.uint16]]:
        order = self.order(job)
        for start in range(0, job.samples, job.batch_size):
            yield rows.take(order[start : start + job.batch_size], axis=0, mode="clip")

    def from_shards(self, job: Job, shards: list[NDArray[np.uint16]]) -> Iterator[NDArray[np.uint16]]:
        order = self.order(job)
        for start in range(0, job.samples, job.batch_size):
            ids = order[start : start + job.batch_size]
            batch = np.empty((len(ids), ROW), np.uint16)
            shard, row = np.divmod(ids, PER_SHARD)
            # Row by row, each copied once: a fancy index for each shard would copy every row twice.
            for place, (s, r) in enumerate(zip(shard.tolist(), row.tolist(), strict=True)):
                batch[place] = shards[s][r]
            yield batch


if __name__ == "__main__":
    main(Numpy())
