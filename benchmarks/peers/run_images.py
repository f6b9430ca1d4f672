"""JPEG pictures to augmented batches of 224 x 224 by one library, in the environment in which ``images_decode.py`` starts it.

Args: the library, the folder of the pictures, and how many epochs are measured, all of each, after a first one. Prints JSON:
seconds of CPU and clock a picture.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 64
SIDE = 224
Epoch = Callable[[], Iterable[Any]]
"""Gives the batches of an epoch."""


def main() -> None:
    """Take the batches of some epochs."""
    library, folder, epochs = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if library in TORCH:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
    epoch = RUNS[library](folder)
    for _ in epoch():
        pass
    done, begun, cpu = 0, time.perf_counter(), time.process_time()
    for _ in range(epochs):
        for batch in epoch():
            assert sorted(batch.shape[1:]) == [3, SIDE, SIDE], batch.shape
            assert str(batch.dtype).endswith("uint8")
            done += len(batch)
    found = {"clock": (time.perf_counter() - begun) / done, "cpu": (time.process_time() - cpu) / done}
    print(json.dumps({**found, "pictures": done, "version": VERSIONS[library]()}), flush=True)
    os._exit(0)  # what a library leaves running is not measured


def encoded(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((folder / "files").iterdir())]


def bare_decode(folder: Path) -> Epoch:
    """simplejpeg alone: whole pictures, of which nothing is kept."""
    import simplejpeg

    files, out = encoded(folder), np.zeros((BATCH, SIDE, SIDE, 3), np.uint8)

    def epoch() -> Iterator[Any]:
        for first in range(0, len(files), BATCH):
            for data in files[first : first + BATCH]:
                simplejpeg.decode_jpeg(data)
            yield out

    return epoch


def bare(folder: Path) -> Epoch:
    """simplejpeg and OpenCV, called in a loop: each picture is decoded, cut, resized and mirrored into one batch."""
    import cv2
    import simplejpeg

    cv2.setNumThreads(1)
    files, out = encoded(folder), np.zeros((BATCH, SIDE, SIDE, 3), np.uint8)
    rng = np.random.default_rng(0)

    def epoch() -> Iterator[Any]:
        for first in range(0, len(files), BATCH):
            for number, data in enumerate(files[first : first + BATCH]):
                pixels = simplejpeg.decode_jpeg(data)
                x, y, width, height = random_part(pixels.shape[1], pixels.shape[0], rng)
                part = pixels[y : y + height, x : x + width]
                cv2.resize(part, (SIDE, SIDE), dst=out[number], interpolation=cv2.INTER_LINEAR_EXACT)
                if rng.random() < 0.5:
                    cv2.flip(out[number], 1, dst=out[number])
            yield out

    return epoch


def random_part(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    """A part as torchvision's RandomResizedCrop draws it."""
    while True:
        area, ratio = width * height * rng.uniform(0.08, 1), np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
        wide, high = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
        if wide <= width and high <= height:
            return int(rng.integers(width - wide + 1)), int(rng.integers(height - high + 1)), wide, high


def stoker(folder: Path) -> Epoch:
    from stoker import StreamingDataset
    from stoker.image import RandomResizedCrop

    dataset = StreamingDataset(folder / "mds", shuffle=True, batch_size=BATCH)
    dataset = dataset.random_map(RandomResizedCrop(SIDE, flip=0.5))
    return lambda: (batch["image"] for batch in dataset.batches())


def augmentation() -> Callable[[Any], Any]:
    """torchvision's transforms of an image of Pillow."""
    from torchvision import transforms

    steps = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    return transforms.Compose(steps)


def pillow(data: Any) -> Any:
    from PIL import Image

    return (data if isinstance(data, Image.Image) else Image.open(BytesIO(data))).convert("RGB")


def batches_of(dataset: Any, *, shuffle: bool = False) -> Epoch:
    from torch.utils.data import DataLoader

    return lambda: DataLoader(dataset, BATCH, shuffle=shuffle)


def torch_loader(folder: Path) -> Epoch:
    from torch.utils.data import Dataset

    files, augment = sorted((folder / "files").iterdir()), augmentation()

    class Files(Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, number: int) -> Any:
            return augment(pillow(files[number].read_bytes()))

    return batches_of(Files(), shuffle=True)


def mosaicml(folder: Path) -> Epoch:
    from streaming import StreamingDataset

    augment = augmentation()

    class Pictures(StreamingDataset):
        def __getitem__(self, number: Any) -> Any:
            return augment(pillow(super().__getitem__(number)["image"]))

    return batches_of(Pictures(local=str(folder / "mds"), shuffle=True, shuffle_seed=1, batch_size=BATCH))


def litdata(folder: Path) -> Epoch:
    from litdata import StreamingDataset
    from litdata.streaming import Cache

    place = folder / "litdata"
    if not place.exists():
        cache = Cache(str(place), chunk_bytes=64 << 20)
        for number, data in enumerate(encoded(folder)):
            cache[number] = {"image": data}
        cache.done()
        cache.merge()
    augment = augmentation()

    class Pictures(StreamingDataset):
        def __getitem__(self, number: Any) -> Any:
            return augment(pillow(super().__getitem__(number)["image"]))

    return batches_of(Pictures(str(place), shuffle=True, seed=1))


def dali(folder: Path) -> Epoch:
    """DALI's operators of the processor, in one thread: the part alone is decoded, and resized by four pixels each."""
    from nvidia.dali import fn, pipeline_def, types

    files = [str(path) for path in sorted((folder / "files").iterdir())]

    @pipeline_def(batch_size=BATCH, num_threads=1, device_id=None, seed=0)
    def pipeline() -> Any:
        data, _ = fn.readers.file(files=files, random_shuffle=True)
        part = fn.decoders.image_random_crop(data, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
        small = fn.resize(part, size=[SIDE, SIDE], interp_type=types.INTERP_LINEAR, antialias=False)
        return fn.flip(small, horizontal=fn.random.coin_flip())

    made = pipeline()
    made.build()
    return lambda: (np.asarray(made.run()[0].as_array()) for _ in range(len(files) // BATCH))


def ffcv(folder: Path) -> Epoch:
    """FFCV in one thread. It encodes the pictures anew as it writes them, in the same quality, and resizes by areas."""
    from ffcv.fields import RGBImageField
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip
    from ffcv.writer import DatasetWriter

    place = str(folder / "ffcv")
    if not os.path.exists(place):
        samples = [(pillow(data),) for data in encoded(folder)]
        writer = DatasetWriter(place, {"image": RGBImageField(write_mode="jpg", jpeg_quality=90)}, num_workers=1)
        writer.from_indexed_dataset(samples)
    steps = {"image": [RandomResizedCropRGBImageDecoder((SIDE, SIDE)), RandomHorizontalFlip()]}
    loader = Loader(place, BATCH, num_workers=1, os_cache=True, order=OrderOption.QUASI_RANDOM, pipelines=steps)
    return lambda: (images for (images,) in loader)


TORCH = ("torch", "mosaicml", "litdata")
RUNS: dict[str, Callable[[Path], Epoch]] = {
    "bare decode": bare_decode,
    "bare": bare,
    "stoker": stoker,
    "torch": torch_loader,
    "mosaicml": mosaicml,
    "litdata": litdata,
    "ffcv": ffcv,
    "dali": dali,
}
VERSIONS: dict[str, Callable[[], str]] = {
    "bare decode": lambda: f"simplejpeg {version('simplejpeg')}",
    "bare": lambda: f"simplejpeg {version('simplejpeg')}, opencv {version('opencv-python-headless')}",
    "stoker": lambda: f"stoker {version('stoker')}",
    "torch": lambda: f"torch {version('torch')}, torchvision {version('torchvision')}, Pillow {version('pillow')}",
    "mosaicml": lambda: f"mosaicml-streaming {version('mosaicml-streaming')}",
    "litdata": lambda: f"litdata {version('litdata')}",
    "ffcv": lambda: f"ffcv {version('ffcv')}",
    "dali": lambda: f"nvidia-dali-cuda120 {version('nvidia-dali-cuda120')}",
}


if __name__ == "__main__":
    main()
