"""Writes, reads, stops and resumes where torch can not be imported: ``without_torch.py DATA FOLDER``."""

import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from itertools import islice
from pathlib import Path
from typing import Any

BLOCKED = {"torch", "torchdata", "torchvision"}


class Blocker(MetaPathFinder):
    """Makes some packages look as if they were not installed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def main(data: str, folder: str) -> None:
    sys.meta_path.insert(0, Blocker())
    from stoker import StreamingDataset, World
    from support import cache_of, check_sample, ids_of, make_dataset

    make_dataset(Path(folder) / "data", 100)
    written = StreamingDataset(local=Path(folder) / "data")
    assert ids_of(written) == list(range(100))
    assert check_sample(written[-1]) == 99
    assert [check_sample(sample) for sample in written[10:20:3]] == [10, 13, 16, 19]

    options: dict[str, Any] = {"shuffle": True, "batch_size": 8}
    dataset = StreamingDataset(remote=data, local=Path(folder) / "cache", **options)
    ids = ids_of(dataset.batches())
    running = iter(dataset)
    begun = ids_of(islice(running, 80))
    rest: list[int] = []
    for rank in range(2):
        other = StreamingDataset(local=cache_of(Path(folder) / "cache"), world=World(rank, 2), **options)
        other.load_state_dict(dataset.state_dict())
        rest += ids_of(other)
    assert sorted(begun + rest) == sorted(ids)
    try:
        import stoker.loaders.dataloader
    except ImportError as error:
        print(
            json.dumps(
                {
                    "missing": str(error),
                    "modules": sorted(BLOCKED.intersection(sys.modules)),
                    "samples": len(ids),
                }
            )
        )
    else:
        raise AssertionError(f"{stoker.loaders.dataloader} was imported")


if __name__ == "__main__":
    main(*sys.argv[1:])
