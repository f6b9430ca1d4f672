"""Trains a small network on images: shards of JPEG files, decoded and augmented in workers, with a checkpoint in mid-epoch.

python examples/image_classification.py --out /tmp/images
python examples/image_classification.py --out /tmp/images --resume    # goes on where the checkpoint is

"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from stoker import MDSWriter, StreamingDataLoader, StreamingDataset

CLASSES, SIZE = 4, 32


def write(out: Path, samples: int = 400) -> None:
    """Images whose colour tells their class."""
    rng = np.random.default_rng(0)
    with MDSWriter({"image": "jpeg", "label": "int"}, str(out), size_limit="64kb") as writer:
        for number in range(samples):
            pixels = rng.integers(0, 80, (SIZE, SIZE, 3), dtype=np.uint8)
            label = number % CLASSES
            pixels[..., label % 3] += 80 + 40 * (label // 3)
            writer.write({"image": Image.fromarray(pixels), "label": label})


def decoded(sample: dict[str, Any]) -> dict[str, Any]:
    """The image as floats of shape (3, SIZE, SIZE), every other one mirrored."""
    pixels = np.asarray(sample["image"].convert("RGB"), np.float32).transpose(2, 0, 1) / 255
    if np.random.default_rng().random() < 0.5:
        pixels = pixels[:, :, ::-1]
    return {"image": np.ascontiguousarray(pixels), "label": sample["label"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    data, checkpoint = options.out / "data", options.out / "checkpoint.pt"
    if not data.exists():
        write(data)

    dataset = StreamingDataset(str(data), shuffle=True, shuffle_seed=1, batch_size=20, transform=decoded)
    loader = StreamingDataLoader(dataset, num_workers=2)
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES))
    model = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    if options.resume:
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])

    seen, right = 0, 0
    for step, batch in enumerate(loader):
        logits = model(batch["image"])
        loss = nn.functional.cross_entropy(logits, batch["label"])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seen, right = seen + len(logits), right + int((logits.argmax(1) == batch["label"]).sum())
        if step == 9 and not options.resume:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
            torch.save(state, checkpoint)
    print(f"{seen} images, {right / seen:.0%} right, last loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
