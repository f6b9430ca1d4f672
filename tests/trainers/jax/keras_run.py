"""Trains for an epoch with Keras; see ``trainers.launch``.

``--variant`` has words: ``jax`` (the backend, else torch), ``two`` (two epochs, and validation), ``ahead`` (as on an
accelerator, to which Keras sends one batch ahead).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stoker import KeepIds, StreamingDataLoader, StreamingDataset
from trainers.launch import arguments, record


def pair(sample: dict[str, Any]) -> tuple[Any, Any]:
    """Input and target: the target is the sample's id, which the loss hands out."""
    return sample["x"], np.float32(sample["id"])


def main() -> None:
    options = arguments(__doc__)
    words = options.variant.split()
    os.environ["KERAS_BACKEND"] = "jax" if "jax" in words else "torch"
    import keras

    if "ahead" in words:
        jax.default_backend = lambda: "gpu"
    dataset = StreamingDataset(options.data, shuffle=True, batch_size=options.batch_size, transform=pair)
    loader = StreamingDataLoader(dataset, num_workers=options.workers)
    checkpoint = Path(options.checkpoint or ".") / "loader.json"
    if options.resume:
        loader.load_state_dict(json.loads(checkpoint.read_text()))
    model = keras.Sequential([keras.layers.Dense(1)])
    seen: list[list[int]] = []

    begun = False  # before, Keras calls the loss with values of its own, to build the model

    def see(values: Any) -> None:
        if begun:
            seen.append(np.asarray(values).reshape(-1).astype(int).tolist())

    def begin(logs: Any = None) -> None:
        nonlocal begun
        begun = True

    def loss(target: Any, predicted: Any) -> Any:
        """A loss that notes the targets that it is computed of."""
        if hasattr(target, "detach"):
            see(target.detach().cpu())
        else:
            jax.debug.callback(see, target)
        return keras.ops.mean(keras.ops.square(predicted)) + 0 * keras.ops.mean(target)

    def save(step: int, logs: Any = None) -> None:
        if step + 1 == options.stop_after:
            checkpoint.write_text(json.dumps(loader.state_dict()))
            model.stop_training = True

    model.compile(optimizer="sgd", loss=loss, run_eagerly=True)
    more: dict[str, Any] = {}
    if "two" in words:
        held_out = StreamingDataset(
            options.data, batch_size=options.batch_size, transform=pair, subset=KeepIds(range(20))
        )
        more = {"epochs": 2, "validation_data": StreamingDataLoader(held_out)}
    callbacks = [keras.callbacks.LambdaCallback(on_train_begin=begin, on_train_batch_end=save)]
    history = model.fit(loader, verbose=0, shuffle=False, callbacks=callbacks, **more).history
    jax.effects_barrier()
    assert len(history["loss"]) == (2 if more else 1)
    assert ("val_loss" in history) == bool(more)
    record(options.out, loader.world.rank, seen)


if __name__ == "__main__":
    main()
