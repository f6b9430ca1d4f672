"""The direction of processes of a node that read one dataset of an object store by memory or files that they share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from scaling import timing
from scaling.direction import Direction, Figures

_PROCESSES = 2
_WIDTHS = {"tokens": 4096, "images": 100_000}
_MB = 1_000_000
_TOGETHER = 8 * _MB


def _write(folder: Path, size: int) -> None:
    """So many MB of rows of tokens, and as many of images, in shards of 16 MB."""
    import numpy as np

    from stoker import MDSWriter

    rng = np.random.default_rng(0)
    for name, width in _WIDTHS.items():
        with MDSWriter({"data": f"ndarray:uint8:{width}"}, folder / "data" / name, size_limit="16mb") as writer:
            for _ in range(0, size * _MB, _TOGETHER):
                writer.write_batch({"data": rng.integers(0, 256, (_TOGETHER // width, width), dtype=np.uint8)})


def _open(name: str, options: dict[str, str], local: str | None) -> Any:
    from stoker import ReadOptions, StreamingDataset

    place: dict[str, Any] = {"read": ReadOptions(cache="memory")} if local is None else {"local": local}
    return StreamingDataset(f"s3://bucket/{name}", storage_options=options, batch_size=32, shuffle=True, **place)


def _workers(name: str, options: dict[str, str], local: str | None) -> tuple[int, float]:
    """Rows that DataLoader workers read, and the seconds."""
    from stoker import StreamingDataLoader

    loader = StreamingDataLoader(_open(name, options, local), batch_size=32, num_workers=_PROCESSES, columnar=True)
    begin = timing.now()
    rows = sum(len(batch["data"]) for batch in loader)
    return rows, timing.now() - begin


def _ranks(name: str, options: dict[str, str], local: str | None) -> tuple[int, float]:
    """Rows that ranks read, which begin together, and the seconds."""
    command = [sys.executable, __file__, json.dumps([name, options, local])]
    world = {"WORLD_SIZE": str(_PROCESSES), "LOCAL_WORLD_SIZE": str(_PROCESSES)}
    ranks = [
        subprocess.Popen(
            command,
            env={**os.environ, **world, "RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(_PROCESSES)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        rank.stdout.readline()
    begin = timing.now()
    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()
    rows = sum(int(rank.stdout.readline()) for rank in ranks if rank.stdout is not None)
    seconds = timing.now() - begin
    for rank in ranks:
        rank.communicate()
    return rows, timing.now() - begin if timing.by_processor() else seconds


def _side(read: Callable[..., tuple[int, float]], *, on_disk: bool) -> Callable[[Path], Figures]:
    def measure(folder: Path) -> Figures:
        from slow_store import asked, slow_store

        figures: Figures = {}
        with slow_store(folder / "data", 0.0) as options:
            for name, width in _WIDTHS.items():
                local = str(folder / f"cache-{time.time_ns()}") if on_disk else None
                rows, seconds = read(name, options, local)
                if local is not None:  # memory is given back by either, which takes a quarter of the time to fill it
                    begin = timing.now()
                    shutil.rmtree(local)
                    seconds += timing.now() - begin
                figures[f"{name}_per_s"] = rows / seconds
                figures[f"{name}_fetched_MB"] = asked(options)[1] / _MB
                assert rows * width <= figures[f"{name}_fetched_MB"] * _MB
        return figures

    return measure


SHARING = (
    Direction(
        "sharing",
        "MB that 2 DataLoader workers, or 2 ranks, read together from an object store",
        (24, 48, 96),
        (96, 192, 384),
        _write,
        {
            "stoker": _side(_workers, on_disk=False),
            "on disk": _side(_workers, on_disk=True),
            "ranks": _side(_ranks, on_disk=False),
            "ranks on disk": _side(_ranks, on_disk=True),
        },
        {"tokens_per_s": 0, "images_per_s": 0, "tokens_fetched_MB": 1, "images_fetched_MB": 1},
        "in memory as on disk; what is fetched is the size",
    ),
)


def main() -> None:
    """One rank: says ``ready``, waits for a line, reads all, says how many rows that were."""
    dataset = _open(*json.loads(sys.argv[1]))
    batches = dataset.batches()
    print("ready", flush=True)
    sys.stdin.readline()
    print(sum(len(batch["data"]) for batch in batches))
    sys.stdout.flush()
    sys.stdin.read()  # what this rank keeps for the others stays until all have read
    dataset.close()


if __name__ == "__main__":
    main()
