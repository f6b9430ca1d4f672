"""One worker of leased work, for tests: ``adaptive_worker.py '{"rank": 0, ...}'``.

It notes each sample in a file of its own before it goes on, and prints how it went as JSON at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from patience import PATIENCE, wait_until
from stoker import StreamingDataset
from stoker.coordination import CommitRefusedError, CoordinationSettings
from stoker.loaders.shard_loader import Adaptive, StreamingConfig, StreamingShardLoader
from stoker.partitions import Contiguous, RoundRobin
from support import cache_of, check_sample

BASES = {"elastic": None, "contiguous": Contiguous(), "round_robin": RoundRobin()}


def main(told: dict[str, Any]) -> None:
    dataset = StreamingDataset(remote=told["remote"], local=told["cache"], shuffle=True, shuffle_seed=7)
    base = BASES[told.get("base", "elastic")]
    engine = told.get("engine")
    config = StreamingConfig(
        told["world_size"],
        told["rank"],
        base if engine is None else Adaptive(base),
        coordinator=engine,
        coordination=CoordinationSettings(**told["settings"]) if engine else CoordinationSettings(),
        patience=PATIENCE,
        commit_every=0.25,
        prefetch_buffer_size=told.get("buffer", 16),
        fault_tolerant=engine is not None,
        replication_factor=told.get("replication", 1),
        remainder=None if engine else "uneven",
    )
    loader = StreamingShardLoader(dataset, config)
    out = os.open(told["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if told.get("replication", 1) > 1:
        # All have what they are to hold for others before the work begins.
        loader.prefetch(1)
        wait_until(lambda: all((cache_of(Path(told["cache"])) / name).exists() for name in told["held"]))
    os.write(out, b"ready\n")
    wait_until(Path(told["start"]).exists)
    fetched = loader.get_stats().bytes_fetched
    seconds, owed, done = told["seconds"], 0.0, 0
    while (sample := loader.next()) is not None:
        os.write(out, f"{check_sample(sample)}\n".encode())
        owed += seconds
        done += 1
        if done == told["pause"]:
            wait_until(Path(told["on"]).exists)
        if owed > 0.005:  # short sleeps are much longer than they should be
            time.sleep(owed)
            owed = 0.0
    with suppress(CommitRefusedError):
        loader.commit()  # so that a lease that was lost at the very end is counted
    stats = loader.get_stats()
    said = {"samples": stats.samples_loaded, "fetched": stats.bytes_fetched - fetched}
    said |= {"replicated": stats.replicated_shards, "leases": stats.leases, "lost": stats.leases_lost}
    loader.close()
    print(json.dumps(said))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
