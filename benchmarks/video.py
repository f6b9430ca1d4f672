"""Clips of videos: stoker against bare PyAV, on the same files; frames a second, bytes fetched, memory of 100 open videos.

    python benchmarks/video.py /tmp/videos --rounds 5

Makes 16 videos of 640 x 360 pixels, 30 frames a second and 20 s, H.264 with a key frame every second, unless they are there.
Then 8-frame clips at random times, 64 a round, by these ways in alternation, each in this process with one thread:

* ``bare``: ``av.open(path)``, a seek to the key frame before, decoding to the clip's frames, ``to_ndarray``; the frames'
  times are those of a constant rate, as the caller knows it to be;
* ``stoker``: a ``StreamingDataset`` of the folder with ``format_options={"media": "video"}``, and ``clip``;
* ``stoker, bytes``: ``Video`` of the bytes of the file, read before, as of an MDS or Parquet column;
* ``sequential``: ``av.open(path)``, decoding from the beginning.

Prints frames per second of processor time (median, and its ratio to ``bare`` in the same round), whether frames are equal,
bytes that a clip reads of a store beside those of a bare decoder over a file object, and what 100 open videos take.
torchcodec's wheel is built for CUDA and does not load beside a CPU build of torch, and the videos of Hugging Face's
``datasets`` are decoded by it; both are measured where ``import torchcodec`` works.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import io
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import av
import numpy as np

from stoker import StreamingDataset, Video
from stoker.formats.media.source import BytesOfFile
from stoker.storage.local import LocalStore

VIDEOS, SECONDS, RATE, SIZE, FRAMES = 16, 20, 30, (360, 640), 8
CLIPS = 64


def write(path: Path, seed: int, crf: int) -> None:
    """A video of noise that moves over a gradient."""
    rng = np.random.default_rng(seed)
    rows, columns = SIZE
    wide = np.linspace(0, 120, 2 * columns, dtype=np.uint8)[None, :, None] + rng.integers(
        0, 60, (rows, 2 * columns, 3), dtype=np.uint8
    )
    with av.open(str(path), "w", format="mp4") as out:
        options = {"g": str(RATE), "bf": "2", "preset": "veryfast", "crf": str(crf)}
        stream = out.add_stream("libx264", rate=RATE, options=options)
        stream.height, stream.width, stream.pix_fmt = rows, columns, "yuv420p"
        for number in range(SECONDS * RATE):
            at = number % columns
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(wide[:, at : at + columns]))))
        out.mux(stream.encode())


def bare(file: str | io.IOBase, first: int, *, seek: bool = True) -> np.ndarray:
    """Frames from number ``first`` on, by PyAV alone."""
    with av.open(file) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        step = int(1 / (RATE * stream.time_base))
        if seek:
            container.seek(first * step, stream=stream)
        found = []
        for frame in container.decode(stream):
            if frame.pts >= first * step:
                if seek and not found and frame.pts > first * step:  # by the index of another order than that of times
                    return bare(file, first, seek=False)
                found.append(frame.to_ndarray(format="rgb24"))
                if len(found) == FRAMES:
                    break
        return np.stack(found)


def torchcodec_clip(path: str, first: int) -> np.ndarray:
    """The same by torchcodec."""
    from torchcodec.decoders import VideoDecoder

    return (
        VideoDecoder(path, dimension_order="NHWC", seek_mode="approximate")
        .get_frames_in_range(first, first + FRAMES)
        .data.numpy()
    )


class CountedFile(io.FileIO):
    """A file that counts the bytes that are read."""

    fetched = 0

    def read(self, size: int = -1) -> bytes:
        found = super().read(size)
        CountedFile.fetched += len(found)
        return found


class CountedStore(LocalStore):
    """A directory that counts the bytes and requests."""

    fetched = requests = 0

    def get_ranges(self, key, starts, ends, *, version=""):
        CountedStore.fetched += sum(ends) - sum(starts)
        CountedStore.requests += len(starts)
        return super().get_ranges(key, starts, ends, version=version)


def bytes_of_a_clip(paths: list[Path], draws: list[tuple[int, int]]) -> None:
    """Prints what a clip reads of a file, from opening it on."""
    sizes = statistics.mean(path.stat().st_size for path in paths)
    for video, first in draws:
        path = paths[video]
        with CountedFile(path) as file:
            expected = bare(file, first)
        store = CountedStore(path.parent)
        info = store.head(path.name)
        found = Video.of(BytesOfFile(store, path.name, info.version, 0, info.size)).clip(first / RATE, FRAMES)
        assert np.array_equal(found, expected)
    print(
        f"bytes of a clip, of a file of {sizes / 1e6:.1f} MB: stoker {CountedStore.fetched / len(draws) / 1e3:.0f} kB in "
        f"{CountedStore.requests / len(draws):.1f} requests, bare PyAV over a file object "
        f"{CountedFile.fetched / len(draws) / 1e3:.0f} kB"
    )


def resident() -> float:
    """Resident memory in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def memory(way: str, folder: str) -> None:
    """Prints the memory that 100 open videos take, after a clip of each."""
    paths = sorted(Path(folder).glob("*.mp4"))
    Video(paths[0]).clip(1.0, FRAMES)
    before = resident()
    kept = []
    for number in range(100):
        path = paths[number % len(paths)]
        if way == "bare":
            container = av.open(str(path))
            container.streams.video[0].codec_context.thread_count = 1
            kept.append((container, next(container.decode(video=0))))
        else:
            kept.append(Video(path))
            kept[-1].clip(1.0, FRAMES)
    print(f"100 open videos, {way}: {resident() - before:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the videos are, or are made")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--crf", type=int, default=30, help="quality: 30 gives files of 1 MB, 12 of about 20 MB")
    parser.add_argument("--memory", choices=["bare", "stoker"], help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.memory:
        memory(chosen.memory, str(chosen.folder))
        return
    chosen.folder.mkdir(parents=True, exist_ok=True)
    paths = [chosen.folder / f"{number:02}.mp4" for number in range(VIDEOS)]
    for seed, path in enumerate(paths):
        if not path.exists():
            write(path.with_suffix(".part"), seed, chosen.crf)
            path.with_suffix(".part").rename(path)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("av", "numpy"))
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} processors"
    print(f"{machine}, Python {platform.python_version()}, {versions}")

    dataset = StreamingDataset(chosen.folder, format_options={"media": "video"})
    files = [path.read_bytes() for path in paths]
    ways: dict[str, Callable[[int, int], np.ndarray]] = {
        "bare": lambda video, first: bare(str(paths[video]), first),
        "stoker": lambda video, first: dataset[video]["data"].clip(first / RATE, FRAMES),
        "stoker, bytes": lambda video, first: Video(files[video]).clip(first / RATE, FRAMES),
        "sequential": lambda video, first: bare(str(paths[video]), first, seek=False),
    }
    try:
        import torchcodec  # noqa: F401

        ways["torchcodec"] = lambda video, first: torchcodec_clip(str(paths[video]), first)
    except Exception as error:
        print(f"without torchcodec: {str(error).splitlines()[0] if str(error) else error!r}")
    rng = np.random.default_rng(0)
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(chosen.rounds):
        draws = [(int(rng.integers(VIDEOS)), int(rng.integers(SECONDS * RATE - FRAMES))) for _ in range(CLIPS)]
        seen = set()
        for way, clip in ways.items():
            count = CLIPS if way != "sequential" else CLIPS // 8
            digest = hashlib.sha256()
            used = 0.0
            for number, (video, first) in enumerate(draws[:count]):
                begun = time.process_time()
                frames = clip(video, first)
                used += time.process_time() - begun
                if number < CLIPS // 8:
                    digest.update(frames.tobytes())
            rates[way].append(count * FRAMES / used)
            seen.add(digest.hexdigest())
        print(f"round {turn + 1}: frames {'equal' if len(seen) == 1 else 'DIFFER'}", flush=True)
    for way, each in rates.items():
        ratios = [one / other for one, other in zip(each, rates["bare"], strict=True)]
        spread = f"{statistics.median(ratios):.2f} x bare ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{way:14} {statistics.median(each):7.0f} frames/s, {spread}")
    bytes_of_a_clip(paths, [(int(rng.integers(VIDEOS)), int(rng.integers(600 - FRAMES))) for _ in range(40)])
    for way in ("bare", "stoker"):
        subprocess.run([sys.executable, __file__, str(chosen.folder), "--memory", way], check=True)


if __name__ == "__main__":
    main()
