"""A worker of a coordinated run: works through splits, notes each delivered range in a file, tells what it lost.

python coordinated_worker.py '{"url": ..., "run": ..., "rank": ..., "world_size": ..., "positions": ..., ...}'
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

from patience import PATIENCE
from stoker.coordination import CommitRefusedError, Coordination, CoordinationSettings, LeaseLostError


def main(told: dict[str, Any]) -> None:
    """Work until the epoch is over."""
    out = os.open(told["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    seconds, step = told["seconds"], told["step"]
    if told["url"].startswith("ray:"):
        import ray

        ray.init(address=told["ray_address"], log_to_driver=False, logging_level=logging.ERROR)
    splits = done = 0
    lost: list[tuple[int, int]] = []
    with Coordination(
        told["url"],
        told["run"],
        rank=told["rank"],
        world_size=told["world_size"],
        positions=told["positions"],
        settings=CoordinationSettings(**told["settings"]),
        commit_every=0.2,
        patience=PATIENCE,
    ) as run:
        os.write(out, b"ready\n")
        _wait_for(told["start"])
        run.begin_epoch(0)
        while (split := run.next_split(timeout=PATIENCE)) is not None:
            splits += 1
            last = split.begin
            try:
                for first in range(split.begin, split.end, step):
                    after = min(first + step, split.end)
                    time.sleep(seconds * (after - first))
                    split.deliver(after)
                    done += after - first
                    last = after
                    os.write(out, f"{first} {last}\n".encode())
                    if done >= told["pause"]:  # with a step that is not committed
                        _wait_for(told["on"])
                    split.commit(last)
            except LeaseLostError:
                lost.append((split.committed, last))
        try:
            run.flush(timeout=PATIENCE)
        except CommitRefusedError as error:  # of splits that were lost after their last sample
            lost += [(refused.begin, refused.end) for refused in error.refused]
        health = {h.rank: h.state.name for h in run.health()}
    print(json.dumps({"rank": told["rank"], "splits": splits, "lost": lost, "health": health}))


def _wait_for(path: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not os.path.exists(path):
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.01)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
