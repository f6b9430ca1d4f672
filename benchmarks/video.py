"""Clips of videos: stoker against bare PyAV, torchcodec and Hugging Face's ``datasets``, on the same files.

    python3 tools/environments.py video && python benchmarks/video.py /tmp/videos --rounds 5

Makes 16 videos of 640 x 360 pixels, 30 frames a second and 20 s, H.264 with a key frame every second, unless they are there.
Then 8-frame clips at random times, 64 a round, by these ways in alternation, each with one thread:

* ``bare``: ``av.open(path)``, a seek to the key frame before, decoding to the clip's frames, ``to_ndarray``; the frames'
  times are those of a constant rate, as the caller knows it to be;
* ``stoker``: a ``StreamingDataset`` of the folder with ``format_options={"media": "video"}``, and ``clip``;
* ``stoker, bytes``: ``Video`` of the bytes of the file, read before, as of an MDS or Parquet column;
* ``sequential``: ``av.open(path)``, decoding from the beginning;
* ``torchcodec``: a ``VideoDecoder`` a clip, ``seek_mode="approximate"``, and ``datasets``: a column of Hugging Face's
  ``Video``, which opens such decoders in its own way. Both in the environment ``video``, where it is there.

Prints frames per second of processor time (median, and its ratio to ``bare`` in the same round), whether the hashes of frames
are equal, and what 100 open videos take. Then the same clips of URLs, of a server that counts the bytes it has sent, each
video opened anew: a whole file is what a library of shards fetches at least, such as litdata.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import av
import numpy as np
from sidebyside.processes import python_of

from stoker import StreamingDataset, Video

RUNNER = Path(__file__).parent / "peers" / "run_video.py"
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


def peer(way: str, places: list[str], draws: list[tuple[int, int]], *, warm: bool = True) -> dict[str, Any]:
    """Clips by a peer, in a process of its own: seconds of its processor, hashes, versions."""
    job = json.dumps({"way": way, "places": places, "draws": draws, "frames": FRAMES, "warm": warm})
    done = subprocess.run([python_of("video"), RUNNER, job], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{way}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def digest(frames: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(frames)).hexdigest()


class CountingServer(ThreadingHTTPServer):
    """Serves the files of a folder, whole and by ranges, and counts the requests and the bytes that it has sent of files."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), FilesHandler)
        self.folder = folder
        self.lock = threading.Lock()
        self.sent = self.requests = 0

    def handle_error(self, *_: object) -> None:
        """A client that has enough ends the connection, as decoders do."""


class FilesHandler(BaseHTTPRequestHandler):
    """Answers ``GET`` and ``HEAD``."""

    protocol_version = "HTTP/1.1"
    server: CountingServer

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path = self.server.folder / Path(self.path).name
        size = path.stat().st_size
        first, last = 0, size - 1
        asked = self.headers.get("Range")
        if asked:
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            if begin:
                first, last = int(begin), min(int(end or last), last)
            else:
                first = size - int(end)
        self.send_response(206 if asked else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
        self.send_header("Last-Modified", self.date_time_string(int(path.stat().st_mtime)))
        self.send_header("Content-Length", str(last + 1 - first))
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        with self.server.lock:
            self.server.requests += 1
        if not body:
            return
        with path.open("rb") as file:
            file.seek(first)
            left = last + 1 - first
            while left:
                sent = self.wfile.write(file.read(min(left, 1 << 14)))
                left -= sent
                with self.server.lock:
                    self.server.sent += sent

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


def bytes_of_a_clip(paths: list[Path], draws: list[tuple[int, int]], peers: Sequence[str]) -> None:
    """Prints what a clip fetches of a URL, from opening it on."""
    server = CountingServer(paths[0].parent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    urls = [f"http://127.0.0.1:{server.server_address[1]}/{path.name}" for path in paths]
    expected = [digest(bare(str(paths[video]), first)) for video, first in draws]
    ways: dict[str, Callable[[], list[str]]] = {
        "stoker": lambda: [digest(Video(urls[video]).clip(first / RATE, FRAMES)) for video, first in draws],
        "bare PyAV": lambda: [digest(bare(urls[video], first)) for video, first in draws],
        **{way: lambda way=way: peer(way, urls, draws, warm=False)["hashes"] for way in peers},  # type: ignore[misc]
    }
    print(f"a clip of a file of {statistics.mean(path.stat().st_size for path in paths) / 1e6:.1f} MB, of a URL:")
    for way, clips in ways.items():
        server.sent = server.requests = 0
        equal = "equal" if clips() == expected else "DIFFER"
        each = f"{server.sent / len(draws) / 1e3:7.0f} kB in {server.requests / len(draws):5.1f} requests"
        print(f"{way:14} {each}, hashes {equal}", flush=True)
    server.shutdown()


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
    peers = ("torchcodec", "datasets") if python_of("video").exists() else ()
    if not peers:
        print("without torchcodec and datasets: python3 tools/environments.py video")
    rng = np.random.default_rng(0)
    rates: dict[str, list[float]] = {way: [] for way in (*ways, *peers)}
    for turn in range(chosen.rounds):
        draws = [(int(rng.integers(VIDEOS)), int(rng.integers(SECONDS * RATE - FRAMES))) for _ in range(CLIPS)]
        seen: dict[str, list[str]] = {}
        for way, clip in ways.items():
            count = CLIPS if way != "sequential" else CLIPS // 8
            used = 0.0
            seen[way] = []
            for video, first in draws[:count]:
                begun = time.process_time()
                frames = clip(video, first)
                used += time.process_time() - begun
                seen[way].append(digest(frames))
            rates[way].append(count * FRAMES / used)
        for way in peers:
            found = peer(way, list(map(str, paths)), draws)
            rates[way].append(CLIPS * FRAMES / found["seconds"])
            seen[way] = found["hashes"]
            if not turn and way == peers[0]:
                print(", ".join(f"{name} {version}" for name, version in found["versions"].items()))
        equal = all(hashes == seen["bare"][: len(hashes)] for hashes in seen.values())
        print(f"round {turn + 1}: hashes of frames {'equal' if equal else 'DIFFER'}", flush=True)
    for way, each in rates.items():
        ratios = [one / other for one, other in zip(each, rates["bare"], strict=True)]
        spread = f"{statistics.median(ratios):.2f} x bare ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"{way:14} {statistics.median(each):7.0f} frames/s, {spread}")
    bytes_of_a_clip(paths, [(int(rng.integers(VIDEOS)), int(rng.integers(600 - FRAMES))) for _ in range(40)], peers)
    for way in ("bare", "stoker"):
        subprocess.run([sys.executable, __file__, str(chosen.folder), "--memory", way], check=True)


if __name__ == "__main__":
    main()
