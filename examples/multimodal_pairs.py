"""Trains two small encoders on pairs of image and caption, from WebDataset tars and MDS shards mixed three to one.

python examples/multimodal_pairs.py --out /tmp/pairs
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn

from stoker import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from stoker.writers import TarWriter

WORDS, SIZE, LENGTH = 12, 16, 4
COLUMNS = {"jpg": "jpeg", "txt": "str"}


def pair(number: int) -> dict[str, Any]:
    """An image of a grey level, and a caption that names it."""
    level = number % WORDS
    pixels = np.full((SIZE, SIZE, 3), 20 * level, np.uint8)
    return {"jpg": Image.fromarray(pixels), "txt": f"a level of {level}"}


def write(out: Path) -> None:
    with TarWriter(COLUMNS, str(out / "web"), size_limit="100kb") as writer:
        for number in range(300):
            writer.write(pair(number))
    with MDSWriter(COLUMNS, str(out / "curated"), size_limit="20kb") as writer:
        for number in range(100):
            writer.write(pair(7 * number))


def tensors(sample: dict[str, Any]) -> dict[str, Any]:
    """The image as floats of shape (3, SIZE, SIZE), the caption as LENGTH numbers of words."""
    image = np.asarray(sample["jpg"].convert("RGB"), np.float32).transpose(2, 0, 1) / 255
    words = sample["txt"].split()[:LENGTH]
    ids = [int(word) if word.isdigit() else WORDS + len(word) for word in words]
    return {"image": image, "words": np.array(ids + [0] * (LENGTH - len(ids)))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if not options.out.exists():
        write(options.out)

    streams = [Stream(str(options.out / "web"), proportion=0.75), Stream(str(options.out / "curated"), proportion=0.25)]
    order: dict[str, Any] = {"epoch_size": 400, "shuffle": True, "batch_size": 16, "batching_method": "stratified"}
    dataset = StreamingDataset(streams=streams, columns=list(COLUMNS), transform=tensors, **order)
    torch.manual_seed(0)
    images = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 32), nn.ReLU(), nn.Linear(32, 16))
    captions = nn.Sequential(nn.EmbeddingBag(2 * WORDS, 16, mode="mean"), nn.Linear(16, 16))
    optimizer = torch.optim.Adam([*images.parameters(), *captions.parameters()], lr=0.01)
    losses = []
    for batch in StreamingDataLoader(dataset, num_workers=2):  # each batch has 12 pairs of the web, and 4 curated
        one = nn.functional.normalize(images(batch["image"]), dim=1)
        two = nn.functional.normalize(captions(batch["words"]), dim=1)
        logits, target = 10 * one @ two.T, torch.arange(len(one))
        loss = nn.functional.cross_entropy(logits, target) + nn.functional.cross_entropy(logits.T, target)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    print(f"{len(losses)} batches, loss {losses[0]:.2f} to {losses[-1]:.2f}")


if __name__ == "__main__":
    main()
