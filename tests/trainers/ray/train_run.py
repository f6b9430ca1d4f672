"""Trains for an epoch under Ray Train; see ``trainers.launch``.

``--variant`` has words: ``prepared`` (by ``ray.train.torch.prepare_data_loader``), ``killed`` (a worker dies after the
checkpoint, and Ray Train starts all anew), ``elastic`` (a node of two is lost after the checkpoint: one worker goes on),
``ends`` (a checkpoint of the epoch's end).
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train.torch import TorchTrainer, prepare_data_loader, prepare_model

from ray_start import start_ray
from stoker import StreamingDataLoader, StreamingDataset
from trainers.launch import arguments, record


def train(options: dict[str, Any]) -> None:
    """The training function of each worker."""
    words = options["variant"].split()
    rank, world_size = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    dataset = StreamingDataset(options["data"], shuffle=True, batch_size=options["batch_size"])
    loader = StreamingDataLoader(dataset, num_workers=options["workers"])
    assert (loader.world.rank, loader.world.world_size) == (rank, world_size)
    model = prepare_model(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen: list[Any] = []
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            loader.load_state_dict(json.loads(Path(folder, "loader.json").read_text()))
            if rank == 0 and not options["resume"]:  # the same run goes on: what all ranks saw before
                seen = [step for path in Path(folder).glob("seen*.json") for step in json.loads(path.read_text())]
    batches = prepare_data_loader(loader) if "prepared" in words else loader
    for number, batch in enumerate(batches, 1):
        loss = model(batch["x"]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(batch["id"].tolist())
        if number != options["stop_after"] or (checkpoint is not None and not options["resume"]):
            continue
        save(loader, rank, seen)
        ray.train.get_all_reported_checkpoints()  # waits for the checkpoint to be whole
        if "killed" in words and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if "elastic" in words:
            Path(options["out"], "saved").touch()
            time.sleep(600)  # until the node is lost, and with it this worker's peer
        if "killed" not in words:
            break
    if "ends" in words and checkpoint is None:
        save(loader, rank, seen)
    record(options["out"], rank, seen)
    # No worker ends while another still trains: the killed one is to be missed.
    torch.distributed.barrier()


def save(loader: StreamingDataLoader, rank: int, seen: list[Any]) -> None:
    """Report a checkpoint: each rank's files come together in one."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"seen{rank}.json").write_text(json.dumps(seen))
        if rank == 0:
            Path(folder, "loader.json").write_text(json.dumps(loader.state_dict()))
        ray.train.report({"batches": len(seen)}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def main() -> None:
    options = arguments(__doc__)
    ranks = int(os.environ["STOKER_RANKS"])
    elastic = "elastic" in options.variant
    path = os.environ["PYTHONPATH"]
    init: dict[str, Any] = {"runtime_env": {"env_vars": {"PYTHONPATH": path}}}
    if elastic:
        lose_a_node(Path(options.out), init)
    else:
        start_ray(num_cpus=ranks + 1, **init)
    with tempfile.TemporaryDirectory() as storage:
        trainer = TorchTrainer(
            train,
            train_loop_config=vars(options),
            scaling_config=ray.train.ScalingConfig(num_workers=(1, 2) if elastic else ranks),
            run_config=ray.train.RunConfig(
                name="run",
                storage_path=options.checkpoint or storage,
                failure_config=ray.train.FailureConfig(max_failures=int("killed" in options.variant or elastic)),
            ),
        )
        trainer.fit()
    ray.shutdown()


def lose_a_node(out: Path, init: dict[str, Any]) -> None:
    """Start a cluster of two nodes with a processor each, one of which goes when the checkpoint is there."""
    from ray.cluster_utils import Cluster

    watch = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": watch}
    )
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    ray.init(address=cluster.address, log_to_driver=False, **init)

    def lose() -> None:
        while not (out / "saved").exists():
            time.sleep(0.1)
        cluster.remove_node(node, allow_graceful=False)

    threading.Thread(target=lose, daemon=True).start()


if __name__ == "__main__":
    main()
