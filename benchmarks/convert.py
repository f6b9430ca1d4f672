"""Measure converting a folder of images to MDS: how busy the processors are, and against a loop with mosaicml-streaming.

    python3 tools/environments.py mosaic litdata hf grain            # once: the peer's own environment
    python benchmarks/convert.py                # about three minutes

A folder of JPEG files of about 7 kB, a thousand to a class, is made first; what is converted does not lie in the page
cache alone but in memory (``--dir``), so that disks have no part in it. Every measurement is a fresh process, and the
ways take turns within each round. Busy is the processor time of the process and its children, by the time it took and the
number of cores; wanted counts the time, too, in which their threads were ready and other programs had the cores, as Linux'
``schedstat`` tells it every 20 ms, so that it shows what they would use of an idle machine. The bare copy reads every file
and writes the bytes to one file after another of 64 MiB, in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / ".venvs" / "mosaic" / "bin" / "python"
SHARD = 64 << 20
A_CLASS = 1000
DIFFERENT = 500
WAYS = ("bare copy", "mosaicml, jpeg", "mosaicml, bytes", "stoker, 1 process", "stoker, all cores")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", default="/dev/shm", help="where the data lies (default /dev/shm)")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(*options.child)))
        return
    ways = [way for way in WAYS if not way.startswith("mosaicml") or PEER.exists()]
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="convert-") as folder:
        size = make_images(Path(folder, "images"), options.images)
        print(f"{options.images} images, {size / 1e6:.0f} MB; {cores} cores, load {os.getloadavg()[0]:.1f}", flush=True)
        found: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way in ways:
                found[way].append(run(way, folder))
        for way in ways:
            best = min(found[way], key=lambda one: one["wall"])
            spent = statistics.median(one["cpu"] for one in found[way])
            print(
                f"  {way:20} {options.images / best['wall']:9,.0f} images/s {size / best['wall'] / 1e6:6.0f} MB/s   "
                f"busy {best['cpu'] / best['wall'] / cores:4.0%}, wanted "
                f"{best['wanted'] / best['wall'] / cores:4.0%} of {cores} cores   {spent / options.images * 1e6:5.1f} us "
                f"of processor an image (median)"
            )


def make_images(folder: Path, count: int) -> int:
    """JPEG files that decode and are all different, ``class/number.jpg``; their bytes."""
    from PIL import Image

    rng = np.random.default_rng(0)
    different = []
    for _ in range(min(DIFFERENT, count)):
        small = Image.fromarray(rng.integers(0, 256, (12, 12, 3), np.uint8)).resize(
            (128, 128), Image.Resampling.BICUBIC
        )
        noise = rng.integers(-12, 13, (128, 128, 3))
        out = io.BytesIO()
        Image.fromarray(np.clip(np.asarray(small, np.int16) + noise, 0, 255).astype(np.uint8)).save(
            out, "JPEG", quality=80
        )
        different.append(out.getvalue())
    size = 0
    for first in range(0, count, A_CLASS):
        (place := folder / f"class{first // A_CLASS:04}").mkdir(parents=True)
        for number in range(first, min(count, first + A_CLASS)):
            # What follows the end of the image is no part of it.
            data = different[number % len(different)] + number.to_bytes(8, "little")
            (place / f"{number:06}.jpg").write_bytes(data)
            size += len(data)
    return size


def run(way: str, folder: str) -> dict[str, float]:
    """Wall and processor seconds of one conversion, in a fresh process, of which the start is not counted."""
    out = Path(folder, "out")
    python = PEER if way.startswith("mosaicml") else Path(sys.executable)
    try:
        done = subprocess.run(
            [str(python), __file__, "--child", way, str(Path(folder, "images")), str(out)],
            check=True,
            capture_output=True,
            text=True,
        )
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found
    finally:
        shutil.rmtree(out, ignore_errors=True)


def measure(way: str, source: str, out: str) -> dict[str, float]:
    """Convert. Imports of the way's library are not counted, processes that it starts are."""
    wanted = Wanted()
    action = {"bare copy": copy, "mosaicml, jpeg": mosaic, "mosaicml, bytes": mosaic}.get(way, stoker)
    prepared = prepare(way)
    wanted.start()
    began, before = perf_counter(), os.times()
    action(source, out, prepared)
    after, wall = os.times(), perf_counter() - began
    return {"wall": wall, "cpu": sum(after[:4]) - sum(before[:4]), "wanted": wanted.stop()}


class Wanted(threading.Thread):
    """Core seconds that this process and its children ran or waited for a core, at most all cores at any moment."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._total = 0.0
        self._ended = threading.Event()

    def run(self) -> None:
        cores = len(os.sched_getaffinity(0))
        known: dict[str, int] = {}
        at = perf_counter()
        first = True
        while not self._ended.wait(0.02):
            spent = 0
            for name, value in self._threads(os.getpid()):
                spent += value - known.get(name, value if first else 0)
                known[name] = value
            now = perf_counter()
            self._total += 0 if first else min(spent / 1e9, cores * (now - at))
            at, first = now, False

    def stop(self) -> float:
        """The seconds."""
        self._ended.set()
        self.join()
        return self._total

    def _threads(self, process: int) -> Iterator[tuple[str, int]]:
        """Each thread's nanoseconds so far."""
        own = threading.get_native_id()
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with contextlib.suppress(OSError):
                    running, waiting, _ = Path(f"/proc/{process}/task/{thread}/schedstat").read_text().split()
                    if int(thread) != own:
                        yield f"{process}/{thread}", int(running) + int(waiting)
                    for child in Path(f"/proc/{process}/task/{thread}/children").read_text().split():
                        yield from self._threads(int(child))


def prepare(way: str) -> Any:
    """The library."""
    if way.startswith("mosaicml"):
        from streaming import MDSWriter

        return MDSWriter, way.endswith("jpeg")
    if way.startswith("stoker"):
        from stoker.conversion import convert

        return convert, 1 if "1 process" in way else None
    return None


def stoker(source: str, out: str, prepared: Any) -> None:
    """The library under test."""
    convert, processes = prepared
    convert(source, out, processes=processes)


def mosaic(source: str, out: str, prepared: Any) -> None:
    """A loop with one writer, as mosaicml-streaming's own conversion scripts have it.

    Its encoding ``jpeg`` takes an image that Pillow has opened, whose file it then reads; ``bytes`` takes the file's bytes.
    """
    from PIL import Image

    writer_class, jpeg = prepared
    columns = {"image": "jpeg" if jpeg else "bytes", "path": "str", "class": "str", "label": "int"}
    with writer_class(out=out, columns=columns, size_limit=SHARD) as writer:
        for label, name in enumerate(sorted(os.listdir(source))):
            for file in sorted(os.listdir(os.path.join(source, name))):
                path = os.path.join(source, name, file)
                image: Any = Image.open(path) if jpeg else Path(path).read_bytes()
                writer.write({"image": image, "path": f"{name}/{file}", "class": name, "label": label})


def copy(source: str, out: str, _: Any) -> None:
    """All files' bytes into larger files."""
    os.makedirs(out)
    target, size, number = None, SHARD, 0
    for name in sorted(os.listdir(source)):
        for file in sorted(os.listdir(os.path.join(source, name))):
            with open(os.path.join(source, name, file), "rb", buffering=0) as opened:
                data = opened.read()
            if size + len(data) > SHARD:
                if target is not None:
                    target.close()
                target, size, number = open(os.path.join(out, f"{number:05}"), "wb"), 0, number + 1  # noqa: SIM115
            assert target is not None
            target.write(data)
            size += len(data)
    if target is not None:
        target.close()


if __name__ == "__main__":
    main()
