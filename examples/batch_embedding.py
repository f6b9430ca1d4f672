"""Embeds a dataset on workers of unequal speed: each leases samples when it is free, and a killed one loses nothing.

    python examples/batch_embedding.py --out /tmp/embed                    # three workers, one of which dies
    python examples/batch_embedding.py --out /tmp/embed --worker 7         # one more, in another terminal or machine

Workers share nothing but the coordinator: here a file, between machines redis://host (see docs/coordination/settings.md).
"""

import argparse
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stoker import Adaptive, MDSWriter, StreamingConfig, StreamingDataset, StreamingShardLoader
from stoker.coordination import CommitRefusedError

SAMPLES, WORKERS = 600, 16


def embed(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Stands for a model: float32 of shape (2,)."""
    return np.array([rows.sum(), rows.max()], np.float32)


def work(out: Path, rank: int, dies_after: int | None) -> None:
    """Embed samples until none is left; a result is a file that is named by its sample, so one that comes twice is one."""
    (out / "vectors").mkdir(exist_ok=True)
    config = StreamingConfig(
        world_size=WORKERS,
        rank=rank,
        partition=Adaptive(),
        coordinator=f"sqlite://{out}/leases.db",
        run_id="embed",
        commit="explicit",
    )
    done = 0
    with StreamingShardLoader(StreamingDataset(str(out / "data")), config) as loader:
        while (sample := loader.next()) is not None:
            part = out / "vectors" / f"{sample['id']}.{rank}.part"
            part.write_bytes(embed(sample["x"]).tobytes())
            part.rename(out / "vectors" / f"{sample['id']}.f32")
            done += 1
            if done == dies_after:
                os._exit(1)  # before the commit: another worker does this sample again
            with suppress(CommitRefusedError):  # this worker was silent for too long, and another one took over
                loader.commit()
    print(f"worker {rank}: {done} samples")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--worker", type=int, help="be one worker of this rank")
    parser.add_argument("--dies-after", type=int, help="samples, after which the worker is lost")
    options = parser.parse_args()
    if options.worker is not None:
        work(options.out, options.worker, options.dies_after)
        return
    with MDSWriter({"id": "int", "x": "ndarray:float32:8"}, str(options.out / "data"), size_limit="4kb") as writer:
        numbers = np.arange(SAMPLES)
        writer.write_batch({"id": numbers, "x": (numbers[:, None] + np.arange(8)).astype(np.float32)})
    command = [sys.executable, __file__, "--out", str(options.out), "--worker"]
    workers = [subprocess.Popen([*command, "0", "--dies-after", "1"])]
    workers += [subprocess.Popen([*command, str(rank)]) for rank in (1, 2)]
    codes = [worker.wait() for worker in workers]
    found = {int(path.stem): np.fromfile(path, np.float32) for path in (options.out / "vectors").glob("*.f32")}
    assert all(found[number][1] == number + 7 for number in range(SAMPLES))
    print(f"{len(found)} vectors of {SAMPLES} samples; the workers ended with {codes}")


if __name__ == "__main__":
    main()
