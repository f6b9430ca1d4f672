"""Train with JAX on the devices of any number of processes; Orbax keeps the weights and the place in the data.

    python examples/train_jax.py out --stop-after 11
    python examples/train_jax.py out

In several processes, call ``jax.distributed.initialize()`` first. Rows are written first, so that it runs as it is.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec

import stoker.jax
from stoker import MDSWriter, StreamingDataset

BATCH = 16


def write(out: Path) -> None:
    """Rows of a line; text and images are written the same way."""
    x = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    with MDSWriter({"x": "ndarray:float32:8", "y": "ndarray:float32:1"}, str(out), size_limit="8kb") as writer:
        writer.write_batch({"x": x, "y": x.sum(axis=1, keepdims=True)})


@jax.jit  # type: ignore[untyped-decorator]
def step(weights: Any, batch: dict[str, Any]) -> Any:
    """Weights after a step of gradient descent, and the loss."""

    def loss(weights: Any) -> Any:
        return jnp.mean(jnp.square(batch["x"] @ weights - batch["y"]))

    value, gradient = jax.value_and_grad(loss)(weights)
    return weights - 0.05 * gradient, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--stop-after", type=int, default=0, help="steps, after which a checkpoint is saved")
    options = parser.parse_args()
    if jax.process_index() == 0 and not (options.out / "data").exists():
        write(options.out / "data")

    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    dataset = StreamingDataset(str(options.out / "data"), shuffle=True, batch_size=BATCH, remainder="drop")
    weights = jax.device_put(jnp.zeros((8, 1)), NamedSharding(mesh, PartitionSpec()))
    saver, checkpoint = ocp.Checkpointer(ocp.CompositeCheckpointHandler()), options.out.resolve() / "checkpoint"
    if checkpoint.exists():
        wanted = ocp.args.Composite(model=ocp.args.StandardRestore({"weights": weights}), data=ocp.args.JsonRestore())
        saved = saver.restore(checkpoint, args=wanted)
        weights = saved["model"]["weights"]
        dataset.load_state_dict(saved["data"])
    taken = 0
    while dataset.next_epoch < options.epochs:
        epoch = dataset.next_epoch
        for batch in stoker.jax.batches(dataset, sharding):
            weights, loss = step(weights, batch)
            taken += 1
            if taken == options.stop_after:
                model, data = ocp.args.StandardSave({"weights": weights}), ocp.args.JsonSave(dataset.state_dict())
                saver.save(checkpoint, args=ocp.args.Composite(model=model, data=data))
                return
        print(f"epoch {epoch}: {taken} steps in this run, loss {float(loss):.4f}")


if __name__ == "__main__":
    main()
