"""JPEG pictures of 500 x 375 to augmented batches of 224 x 224 (uint8), in one process: stoker, the bare decoder, and peers.

    python3 tools/environments.py mosaic litdata dali ffcv && python benchmarks/images_decode.py [--rounds 5]

All read the same pictures, draw a part as torchvision's ``RandomResizedCrop`` does, and mirror half of them. ``bare decode``
calls simplejpeg and nothing else; ``bare`` decodes, cuts, resizes and mirrors in a loop, with simplejpeg and OpenCV.
``torch`` is a ``DataLoader`` over files with Pillow and torchvision, ``mosaicml`` and ``litdata`` are their data sets with
the same functions, all without workers. torchvision's own decoder of JPEG is not there beside a torch without CUDA. ``ffcv``
is FFCV, and ``dali`` are DALI's operators of the processor, each in one thread. ``--pictures`` must be a
multiple of 64, the batch size.

Processes come in alternation, and each is measured over ``--epochs`` after its first one. Printed are medians: pictures a
second of a processor, which other programs disturb little, and by the clock, where stoker uses several threads; and how many
times as fast as each other stoker is, of the rounds' ratios, with the least and the largest.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image
from sidebyside.processes import python_of

from stoker import MDSWriter

RUNNER = Path(__file__).parent / "peers" / "run_images.py"
INTERPRETERS = {"torch": "mosaic", "mosaicml": "mosaic", "litdata": "litdata", "ffcv": "ffcv", "dali": "dali"}
LIBRARIES = ("bare decode", "bare", "stoker", *INTERPRETERS)
HEIGHT, WIDTH = 375, 500
DISTINCT = 128  # pictures; others are the same again


def photo(rng: np.random.Generator) -> bytes:
    """A picture like a photograph: smooth colours, texture and noise, as JPEG of 40 to 60 kB."""
    found = np.full((HEIGHT, WIDTH, 3), 120.0)
    for cells, strength in ((5, 50), (20, 30), (70, 16), (170, 9)):
        coarse = rng.normal(0, strength, (cells, cells, 1)) + rng.normal(0, strength / 3, (cells, cells, 3))
        image = Image.fromarray((coarse + 128).clip(0, 255).astype(np.uint8))
        found += np.asarray(image.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.float64) - 128
    pixels = (found + rng.normal(0, 4, (HEIGHT, WIDTH, 1))).clip(0, 255).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


def write(folder: Path, pictures: int) -> float:
    """The pictures as files and as MDS; their mean size."""
    rng = np.random.default_rng(0)
    distinct = [photo(rng) for _ in range(min(DISTINCT, pictures))]
    (folder / "files").mkdir()
    with MDSWriter({"image": "bytes"}, folder / "mds") as out:
        for number in range(pictures):
            data = distinct[number % len(distinct)]
            (folder / "files" / f"{number:06}.jpg").write_bytes(data)
            out.write({"image": data})
    return float(np.mean([len(one) for one in distinct]))


def measure(library: str, folder: Path, epochs: int) -> dict[str, float | str]:
    """One process."""
    interpreter = python_of(INTERPRETERS[library]) if library in INTERPRETERS else Path(sys.executable)
    command = [interpreter, RUNNER, library, folder, epochs]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{library}: {done.stderr[-2000:]}")
    found: dict[str, float | str] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=768)
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, help="default: all that are installed")
    parser.add_argument(
        "--dir", default="/dev/shm" if Path("/dev/shm").is_dir() else None, help="where the pictures lie"
    )
    options = parser.parse_args()
    chosen = options.libraries or [
        one for one in LIBRARIES if one not in INTERPRETERS or python_of(INTERPRETERS[one]).exists()
    ]
    print(f"without: {', '.join(one for one in LIBRARIES if one not in chosen) or 'none'}")
    found: dict[str, list[dict[str, float | str]]] = {library: [] for library in chosen}
    with tempfile.TemporaryDirectory(dir=options.dir) as place:
        folder = Path(place)
        size = write(folder, options.pictures)
        print(
            f"{options.pictures} pictures of {WIDTH} x {HEIGHT}, {size / 1000:.0f} kB on average; {platform.platform()}"
        )
        for number in range(options.rounds):
            for library in found if number % 2 else reversed(found):
                found[library].append(measure(library, folder, options.epochs))
    rates = {
        library: {kind: median(1 / float(one[kind]) for one in runs) for kind in ("cpu", "clock")}
        for library, runs in found.items()
    }
    print(f"{'':12} {'pictures/s':>12} {'pictures/s':>12}   {'stoker is':<24} {'stoker is':<24}")
    print(f"{'':12} {'of one core':>12} {'by the clock':>12}   {'by core':<24} {'by the clock':<24}")
    for library, rate in rates.items():
        times = (
            "".join(f" {ratios(found, library, kind):<24}" for kind in ("cpu", "clock")) if "stoker" in found else ""
        )
        print(f"{library:12} {rate['cpu']:12.0f} {rate['clock']:12.0f}  {times} {found[library][0]['version']}")


def ratios(found: dict[str, list[dict[str, float | str]]], library: str, kind: str) -> str:
    """How many times as fast as another stoker is."""
    pairs = zip(found[library], found["stoker"], strict=True)
    each = [float(other[kind]) / float(ours[kind]) for other, ours in pairs]
    return f"{median(each):.2f} x ({min(each):.2f} to {max(each):.2f})"


if __name__ == "__main__":
    main()
