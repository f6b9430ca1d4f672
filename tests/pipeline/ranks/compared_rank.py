"""One of two ranks, of a gloo process group, that read datasets which should be the same; see test_rank_comparison.py."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import torch.distributed as dist

from stoker import ReadOptions, StreamingDataLoader, StreamingDataset, World
from stoker.errors import ConfigError


class Warnings(logging.Handler):
    """Keeps what ranks that are out of step are told."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "out of step" in record.getMessage():
            self.said.append(record.getMessage())


def main(data: str, other: str) -> None:
    warnings = Warnings()
    logging.getLogger("stoker").addHandler(warnings)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    off = ReadOptions(compare_ranks=False)
    cases: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "same": ({}, {}),
        "seed": ({"shuffle_seed": 1}, {"shuffle_seed": 2}),
        "order": ({"shuffle_algo": "block"}, {"shuffle_algo": "global"}),
        "batch size": ({"batch_size": 4}, {"batch_size": 8}),
        "data": ({"local": data}, {"local": other}),
        "same rank": ({"world": World(0, 2)}, {"world": World(0, 2)}),
        "each alone": ({"local": data, "world": World()}, {"local": other, "world": World()}),
        "replicated": ({"replication": 2}, {"replication": 2}),
        "not compared": ({"shuffle_seed": 1, "read": off}, {"shuffle_seed": 2, "read": off}),
        "peeks": ({}, {}),
        "state": ({}, {}),
        "peeks, not compared": ({"read": off}, {"read": off}),
    }
    for name, arguments in cases.items():
        for workers in (0, 1):
            given: dict[str, Any] = {"local": data, "batch_size": 4, "shuffle": True} | arguments[rank]
            loader = StreamingDataLoader(StreamingDataset(**given), num_workers=workers)
            if rank == 0 and name.startswith("peeks"):
                next(iter(loader))
            if rank == 0 and name == "state":
                loader.load_state_dict({**loader.state_dict(), "epoch": 1})
            if rank == 1:
                dist.barrier()  # rank 0 has had its first batch, and did not wait for this one
            try:
                epochs = [len(list(loader)) for _ in range(2)]
                said = "" if min(epochs) else "nothing"
            except ConfigError as error:
                said = str(error)
            said += " ".join(warnings.said)
            warnings.said.clear()
            print(json.dumps([name, workers, said]), flush=True)
            if rank == 0:
                dist.barrier()
            loader.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
