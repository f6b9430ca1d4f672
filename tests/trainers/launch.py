"""Starts the ranks of a training script in the environment of its trainer, and collects the samples that each rank saw.

A training script takes the arguments of :func:`arguments`, trains for an epoch, and calls :func:`record` at its end.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from patience import PATIENCE
from stoker import MDSWriter

TESTS = Path(__file__).resolve().parents[1]
_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_", "SLURM_", "MASTER_", "ACCELERATE_")


@dataclass(frozen=True)
class Outcome:
    """The samples that came in a run.

    Attributes:
        ranks: of each rank, the ids of each step. Empty if the run did not end well.
        error: the end of what a rank said that failed; ``"hang"`` where the time was up.
    """

    ranks: tuple[tuple[tuple[int, ...], ...], ...] = ()
    error: str = ""

    @property
    def ids(self) -> list[int]:
        """All samples that came, rank after rank."""
        return [one for steps in self.ranks for step in steps for one in step]

    @property
    def unique(self) -> int:
        """Number of different samples."""
        return len(set(self.ids))

    @property
    def twice(self) -> int:
        """Number of samples that came more than once."""
        return sum(count > 1 for count in Counter(self.ids).values())

    @property
    def steps_equal(self) -> bool:
        """Whether all ranks took the same number of steps."""
        return len({len(steps) for steps in self.ranks}) == 1

    def __add__(self, other: Outcome) -> Outcome:
        """Two runs, one after the other; each rank of either counts for itself."""
        return Outcome(self.ranks + other.ranks, self.error or other.error)


def arguments(description: str | None = None) -> argparse.Namespace:
    """The arguments of a training script."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", required=True, help="the dataset, of write_dataset()")
    parser.add_argument("--out", required=True, help="where record() writes")
    parser.add_argument("--workers", type=int, default=0, help="processes of the DataLoader")
    parser.add_argument("--batch-size", type=int, default=4, help="samples a step of one rank")
    parser.add_argument("--stop-after", type=int, help="steps, after which a checkpoint is saved and the run ends")
    parser.add_argument("--checkpoint", help="folder that --stop-after writes and --resume reads")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint to the end of its epoch")
    parser.add_argument("--variant", default="", help="which of the ways that the script knows")
    return parser.parse_args()


def record(out: str, rank: int, steps: Sequence[Any]) -> None:
    """Write the ids that a rank saw, one list a step; ids are ints, or an array or tensor of them."""
    listed = [np.asarray(step).reshape(-1).tolist() for step in steps]
    part = Path(out) / f"rank{rank}.part"
    part.write_text(json.dumps(listed))
    part.rename(part.with_suffix(".json"))
    atexit.register(_end_without_finalisation)


def _end_without_finalisation() -> None:
    """End the process after what is registered for its end, without freeing all that Python still holds.

    A thread of torch's gloo may need Python's lock to let go of the tensors of the last collective. If Python is freeing
    itself then, the process is aborted ("terminate called without an active exception"), or hangs where the process group
    was destroyed (https://github.com/pytorch/pytorch/issues/190489).
    """
    atexit.unregister(_end_without_finalisation)
    failed = hasattr(sys, "last_value")
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(failed)


def write_dataset(out: Path, samples: int) -> Path:
    """Write a dataset whose samples are ``{"id": i, "x": float32 of shape (8,)}``, in several shards."""
    with MDSWriter({"id": "int", "x": "ndarray:float32:8"}, str(out), size_limit=1024) as writer:
        ids = np.arange(samples)
        writer.write_batch({"id": ids, "x": (ids[:, None] % 7 + np.arange(8)).astype(np.float32)})
    return out


def launch(
    python: Path, script: Path, ranks: int, *more: Any, timeout: float = 2 * PATIENCE, by_itself: bool = False
) -> Outcome:
    """Run a training script to its end on so many ranks, as torchrun would start them.

    Args:
        python: the interpreter of the trainer's environment.
        script: the training script.
        ranks: processes to start.
        *more: further arguments of the script, but ``--out``.
        timeout: seconds after which all of them are killed.
        by_itself: the trainer starts its ranks itself: one process, told the number by ``STOKER_RANKS``.
    """
    with tempfile.TemporaryDirectory(prefix="trainers-") as folder:
        out = Path(folder)
        command = [str(python), str(script), "--out", str(out), *map(str, more)]
        port, started = _free_port(), []
        logs: list[IO[str]] = []
        for rank in range(1 if by_itself else ranks):
            log: IO[str] = (out / f"log{rank}.txt").open("w+")
            logs.append(log)
            env = _environment(ranks if by_itself else None, rank, ranks, port)
            started.append(
                subprocess.Popen(
                    command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            )
        error = _wait(started, time.monotonic() + timeout)
        said = []
        for log in logs:
            log.seek(0)
            said.append(log.read())
            log.close()
        if error is not None:
            return Outcome(error=error if error == "hang" else said[int(error)][-3000:] or f"rank {error} failed")
        found = sorted(out.glob("rank*.json"))
        if len(found) != ranks:
            return Outcome(error=f"{len(found)} of {ranks} ranks recorded what they saw: {said[0][-2000:]}")
        seen = [json.loads(path.read_text()) for path in found]
        return Outcome(tuple(tuple(tuple(step) for step in steps) for steps in seen))


def _wait(started: list[subprocess.Popen[bytes]], until: float) -> str | None:
    """Wait for all; ``"hang"``, or the number of the first that failed, after which the others are killed."""
    try:
        waiting = dict(enumerate(started))
        while waiting:
            for rank, process in list(waiting.items()):
                if process.poll() is None:
                    continue
                del waiting[rank]
                if process.returncode:
                    return str(rank)
            if time.monotonic() > until:
                return "hang"
            time.sleep(0.05)
        return None
    finally:
        for process in started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _free_port() -> int:
    """A port that nobody listens on, and that no system gives a program which asks for any: ranks take seconds to begin."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


def _environment(by_itself: int | None, rank: int, ranks: int, port: int) -> dict[str, str]:
    # Python keeps what it compiles, whatever the caller's setting: importing a trainer takes 4 seconds then, and 9 without.
    dropped = (*_LAUNCHERS, "PYTHONDONTWRITEBYTECODE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    path = os.pathsep.join([str(TESTS), *filter(None, [kept.get("PYTHONPATH")])])
    kept |= {
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "ACCELERATE_USE_CPU": "true",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    if by_itself is not None:
        return kept | {"STOKER_RANKS": str(by_itself)}
    world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return kept | {name: str(value) for name, value in world.items()}


if __name__ == "__main__":
    sys.exit("this is a module of the tests; see table.py")
