"""webdataset: POSIX tar shards, read in sequence; shuffling is of the shards and of a buffer of 1000 samples.

The samples are stored as raw members and taken apart with one ``map``, which is faster than ``decode()``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from common import SHARD_BYTES, Collate, Job, Peer, Source, main


def as_tokens(sample: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": np.frombuffer(sample["bin"], np.uint16)}


def as_image(sample: dict[str, Any]) -> dict[str, Any]:
    return {"image": sample["jpg"], "label": int(sample["cls"])}


class Webdataset(Peer):
    distributions: ClassVar[tuple[str, ...]] = ("webdataset", "torch", "numpy")

    def configure(self, job: Job) -> None:  # noqa: ARG002
        import webdataset  # noqa: F401  # an import is not what is measured

    def write(self, job: Job, samples: Source) -> None:
        import webdataset as wds

        Path(job.data).mkdir()
        # mtime given: else the time is asked of the system for each member.
        with wds.ShardWriter(f"{job.data}/%06d.tar", maxcount=1 << 30, maxsize=SHARD_BYTES, verbose=0) as writer:
            if job.kind == "tokens":
                for i, row in enumerate(samples.rows):
                    writer.write({"__key__": f"{i:09d}", "bin": row.tobytes()})
            else:
                for i, image in enumerate(samples.images):
                    writer.write({"__key__": f"{i:09d}", "jpg": image, "cls": str(samples.labels[i]).encode()})

    def dataset(self, job: Job) -> Any:
        import webdataset as wds

        urls = sorted(str(p) for p in Path(job.data).glob("*.tar"))
        pipe = wds.WebDataset(urls, shardshuffle=len(urls) if job.shuffle else False, seed=1)
        if job.shuffle:
            pipe = pipe.shuffle(1000)
        return pipe.map(as_tokens if job.kind == "tokens" else as_image)

    def loader(self, job: Job) -> Any:
        import webdataset as wds
        from torch.utils.data import DataLoader

        if job.variant == "own":  # collated in the pipeline, as its guide has it
            pipe = self.dataset(job).batched(job.batch_size, collation_fn=Collate(self.token_key))
            return wds.WebLoader(pipe, batch_size=None, num_workers=job.workers)
        return DataLoader(
            self.dataset(job),
            batch_size=job.batch_size,
            num_workers=job.workers,
            collate_fn=Collate(self.token_key),
        )


if __name__ == "__main__":
    main(Webdataset())
