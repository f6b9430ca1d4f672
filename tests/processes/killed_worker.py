"""Reads through DataLoader workers, one of which kills itself: ``killed_worker.py REMOTE CACHE``."""

import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

from stoker import StreamingDataLoader, StreamingDataset

VICTIM = 77


class Die:
    """A transform that kills the worker which has sample 77, once its number is noted."""

    def __init__(self, note: Path) -> None:
        self.note = note

    def __call__(self, sample: Any) -> Any:
        if sample["id"] == VICTIM:
            self.note.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return sample


def main(remote: str, cache: str) -> None:
    note = Path(cache + "-victim")
    dataset = StreamingDataset(remote=remote, local=cache, batch_size=8, transform=Die(note))
    # No tensors: a worker that dies while torch hands over their memory makes for other errors of torch.
    loader = StreamingDataLoader(dataset, num_workers=2, collate_fn=list, multiprocessing_context="fork")
    error = "none"
    try:
        for _ in loader:
            pass
    except RuntimeError as raised:
        error = str(raised)
    print(json.dumps({"error": error, "worker": note.read_text()}), flush=True)
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(0)  # torch may raise once more on the way out


if __name__ == "__main__":
    main(*sys.argv[1:])
