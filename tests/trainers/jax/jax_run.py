"""Trains for an epoch with JAX; see ``trainers.launch``. The state is saved by Orbax.

``--variant`` has words: ``tensor`` (the mesh's second axis, ``model``, spans the processes: all read the same samples).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import stoker.jax
from stoker import ReadOptions, StreamingDataset
from trainers.launch import arguments, record

RANK, RANKS = int(os.environ.pop("RANK")), int(os.environ.pop("WORLD_SIZE"))  # JAX alone is to say who this is


@jax.jit  # type: ignore[untyped-decorator]
def step(weights: Any, batch: dict[str, Any]) -> Any:
    """One step of gradient descent; filled up rows do not count."""

    def loss(weights: Any) -> Any:
        return jnp.mean(batch["mask"] * jnp.square(batch["x"] @ weights))

    return weights - 0.01 * jax.grad(loss)(weights)


def main() -> None:
    options = arguments(__doc__)
    tensor = "tensor" in options.variant
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 2)
    jax.distributed.initialize(f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}", RANKS, RANK)
    devices = np.array(jax.devices()).reshape(RANKS, 2)
    mesh = Mesh(devices.T if tensor else devices, ("data", "model") if tensor else ("process", "data"))
    sharding = NamedSharding(mesh, PartitionSpec("data" if tensor else ("process", "data")))
    dataset = StreamingDataset(
        options.data,
        shuffle=True,
        batch_size=options.batch_size,
        read=ReadOptions(read_threads=options.workers),
        world=stoker.jax.world(sharding) if tensor else None,
    )
    if not tensor:
        assert (dataset.world.rank, dataset.world.world_size) == (RANK, RANKS)
        assert dataset.world.source == "jax.distributed"
    weights = jax.device_put(jnp.ones(8), NamedSharding(mesh, PartitionSpec()))
    checkpoint = Path(options.checkpoint or ".").resolve() / "step"
    saver = ocp.Checkpointer(ocp.CompositeCheckpointHandler("weights", "data"))
    if options.resume:
        args = ocp.args.Composite(weights=ocp.args.StandardRestore({"w": weights}), data=ocp.args.JsonRestore())
        restored = saver.restore(checkpoint, args=args)
        weights = restored["weights"]["w"]
        dataset.load_state_dict(restored["data"])
    seen = []
    for number, batch in enumerate(stoker.jax.batches(dataset, sharding, mask="mask"), 1):
        weights = step(weights, batch)
        assert batch["x"].shape == (dataset.world.world_size * options.batch_size, 8)
        # Each process looks at the rows that its devices hold.
        parts = zip(batch["id"].addressable_shards, batch["mask"].addressable_shards, strict=True)
        seen.append(np.concatenate([np.asarray(ids.data)[np.asarray(mask.data)] for ids, mask in parts]))
        if number == options.stop_after:
            state = ocp.args.JsonSave(dataset.state_dict())
            saver.save(checkpoint, args=ocp.args.Composite(weights=ocp.args.StandardSave({"w": weights}), data=state))
            break
    record(options.out, RANK, seen)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
