"""A worker of a coordinated run: works through splits, notes each delivered range in a file, tells how it went.

python coordinated_worker.py '{"url": ..., "run": ..., "rank": ..., "world_size": ..., "positions": ..., ...}'
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

from stoker.coordination import Coordination, CoordinationSettings, LeaseLostError


def main(told: dict[str, Any]) -> None:
    """Work until the epoch is over, or round robin without coordination where that is asked for."""
    out = os.open(told["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    seconds, step, world = told["seconds"], told["step"], told["world_size"]
    if told.get("round_robin"):
        mine = range(told["rank"], told["positions"], world)
        begun = time.monotonic()
        for first in range(0, len(mine), step):
            time.sleep(seconds * len(mine[first : first + step]))
        print(json.dumps({"rank": told["rank"], "took": time.monotonic() - begun}))
        return
    if told["url"].startswith("ray:"):
        import ray

        ray.init(address=told["ray_address"], log_to_driver=False, logging_level=logging.ERROR)
    lost = splits = 0
    waited = 0.0
    with Coordination(
        told["url"],
        told["run"],
        rank=told["rank"],
        world_size=world,
        positions=told["positions"],
        settings=CoordinationSettings(**told["settings"]),
        commit_every=0.2,
    ) as run:
        os.write(out, b"ready\n")
        while not os.path.exists(told["start"]):
            time.sleep(0.01)
        begun = time.monotonic()
        run.begin_epoch(0)
        while True:
            asked = time.perf_counter()
            split = run.next_split(timeout=120)
            waited += time.perf_counter() - asked
            if split is None:
                break
            splits += 1
            try:
                for first in range(split.begin, split.end, step):
                    last = min(first + step, split.end)
                    time.sleep(seconds * (last - first))
                    split.deliver(last)
                    os.write(out, f"{first} {last}\n".encode())
                    split.commit(last)
            except LeaseLostError:
                lost += 1
        took = time.monotonic() - begun
        health = {h.rank: h.state.name for h in run.health()}
    print(
        json.dumps(
            {"rank": told["rank"], "took": took, "splits": splits, "lost": lost, "waited": waited, "health": health}
        )
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
