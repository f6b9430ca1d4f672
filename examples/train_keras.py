"""Train with Keras, on any of its backends, with validation; a run that was stopped goes on in the middle of an epoch.

    KERAS_BACKEND=jax python examples/train_keras.py out --stop-after 11
    KERAS_BACKEND=torch python examples/train_keras.py out

Rows are written first, so that it runs as it is; put your own dataset in place of ``out/data``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np

from stoker import MDSWriter, StreamingDataLoader, StreamingDataset, train_validation_split

BATCH = 16


def write(out: Path) -> None:
    """Rows of a line; text and images are written the same way."""
    x = np.random.default_rng(0).normal(size=(1000, 8)).astype(np.float32)
    with MDSWriter({"x": "ndarray:float32:8", "y": "ndarray:float32:1"}, str(out), size_limit="8kb") as writer:
        writer.write_batch({"x": x, "y": x.sum(axis=1, keepdims=True)})


def pair(sample: dict[str, Any]) -> tuple[Any, Any]:
    """Input and target, as Keras takes them."""
    return sample["x"], sample["y"]


class Save(keras.callbacks.Callback):  # type: ignore[misc]
    """Saves model and place in the data after some steps, and ends training."""

    def __init__(self, loader: StreamingDataLoader, out: Path, steps: int) -> None:
        super().__init__()
        self.loader, self.out, self.steps = loader, out, steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        if batch + 1 == self.steps:
            (self.out / "loader.json").write_text(json.dumps(self.loader.state_dict()))
            self.model.save(self.out / "model.keras")
            self.model.stop_training = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--stop-after", type=int, default=0, help="steps, after which a checkpoint is saved")
    options = parser.parse_args()
    data, state = options.out / "data", options.out / "loader.json"
    if not data.exists():
        write(data)

    part, held_out = train_validation_split(0.1)
    dataset = StreamingDataset(str(data), shuffle=True, batch_size=BATCH, subset=part, transform=pair)
    loader = StreamingDataLoader(dataset)
    validation = StreamingDataLoader(StreamingDataset(str(data), batch_size=BATCH, subset=held_out, transform=pair))
    if state.exists():
        model = keras.saving.load_model(options.out / "model.keras")
        loader.load_state_dict(json.loads(state.read_text()))
    else:
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), loss="mse", jit_compile=False)

    saving = [Save(loader, options.out, options.stop_after)]
    how = {"initial_epoch": dataset.next_epoch, "epochs": options.epochs, "verbose": 2}
    model.fit(loader, validation_data=validation, shuffle=False, callbacks=saving, **how)  # the dataset shuffles


if __name__ == "__main__":
    main()
