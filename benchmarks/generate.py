"""How fast ``stoker generate`` makes files, against the bare rate of the same bytes, and against pyarrow and NumPy.

    python benchmarks/generate.py                 # the formats against the bound, in turns
    python benchmarks/generate.py --peers         # against pyarrow, and DLIO's ways of making NPZ and Parquet
    python benchmarks/generate.py --memory        # peak memory for a file of 10 GB
    python benchmarks/generate.py --noise         # rates of random bytes
    python benchmarks/generate.py --parts         # what token ids and text take

The bound is made by the same number of threads: each fills a buffer of 1 MiB by stoker's generator of random bytes and writes
it with write(2) to a file in the same directory, which should be memory-backed. Both take turns, several times; rates are
medians, by wall time and by CPU time, of which the latter is less disturbed by what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from stoker.storage.files.copying import write_all
from stoker_bench.generation import DatasetSpec, generate, iterate_file
from stoker_bench.generation.noise import BLOCK, noise_of
from stoker_bench.generation.words import TEXT_RUN, text_block, token_block

GIB = 1 << 30
CASES: dict[str, tuple[float | None, dict[str, Any]]] = {
    "parquet float32[1024]": (0.8, {"format": "parquet", "columns": ("x=float32:1024",), "row": 4096}),
    "parquet 512 KiB blobs": (0.8, {"format": "parquet", "record_bytes": 1 << 19, "row": 1 << 19}),
    "parquet 20 columns": (
        0.8,
        {"format": "parquet", "columns": tuple(f"c{n:02}=float32" for n in range(20)), "row": 80},
    ),
    "npy": (0.8, {"format": "npy", "record_bytes": 4096, "row": 4096}),
    "mds": (0.8, {"format": "mds", "record_bytes": 4096, "row": 4096}),
    "tfrecord 100 KB": (0.6, {"format": "tfrecord", "record_bytes": 100_000, "row": 100_000}),
    "tfrecord 1 MB": (0.6, {"format": "tfrecord", "record_bytes": 1_000_000, "row": 1_000_000}),
    "tar 100 KB": (0.6, {"format": "tar", "record_bytes": 100_000, "row": 100_000}),
    "hdf5": (0.6, {"format": "hdf5", "record_bytes": 4096, "row": 4096}),
    "npz": (None, {"format": "npz", "record_bytes": 4096, "row": 4096}),
    "arrow": (None, {"format": "arrow", "record_bytes": 4096, "row": 4096}),
    "tokens in parquet": (None, {"format": "parquet", "content": "tokens", "row": 8192}),
    "jpeg in tar": (None, {"format": "tar", "content": "images", "row": 75_000}),
    "text in jsonl": (None, {"format": "jsonl", "content": "text", "record_bytes": 4000, "row": 4000}),
}


def measure(work: Callable[[], int]) -> tuple[float, float]:
    """GB/s by wall time and by CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    size = work()
    return size / (time.perf_counter() - wall) / 1e9, size / (time.process_time() - cpu) / 1e9


def bound(folder: Path, size: int, threads: int) -> int:
    """Fill and write, without a format."""
    noise = noise_of(0)

    def work(number: int) -> None:
        buffer = np.empty(BLOCK, np.uint8)
        fd = os.open(folder / f"bare-{number}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for block in range(size // threads // BLOCK):
            noise.fill(buffer, number, 0, block)
            write_all(fd, buffer.data)
        os.fsync(fd)
        os.close(fd)

    run_threads(work, threads)
    return size // threads // BLOCK * BLOCK * threads


def run_threads(work: Callable[[int], None], threads: int) -> None:
    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for one in running:
        one.start()
    for one in running:
        one.join()


def formats(folder: Path, size: int, threads: int, turns: int, names: list[str]) -> None:
    print(f"{'':24} {'wall GB/s':>10} {'of bound':>9} {'CPU GB/s':>10} {'of bound':>9}  wanted")
    for name, (wanted, case) in CASES.items():
        if names and not any(one in name for one in names):
            continue
        row = case["row"]
        spec = DatasetSpec(
            files=2 * threads,
            samples_per_file=max(1, size // (2 * threads) // row),
            **{key: value for key, value in case.items() if key != "row"},
        )
        rates: list[tuple[float, ...]] = []
        for _ in range(turns):
            bare = measure(lambda: bound(folder, size, threads))
            clear(folder)
            ours = measure(lambda spec=spec: generate(spec, folder, threads=threads).bytes)  # type: ignore[misc]
            clear(folder)
            rates.append((ours[0], ours[0] / bare[0], ours[1], ours[1] / bare[1]))
        middle = [statistics.median(column) for column in zip(*rates, strict=True)]
        print(
            f"{name:24} {middle[0]:10.2f} {middle[1]:9.2f} {middle[2]:10.2f} {middle[3]:9.2f}  {wanted or ''}",
            flush=True,
        )


def clear(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


# -- others --------------------------------------------------------------------------------------------------------------


def peers(folder: Path, turns: int) -> None:
    """What others take for the same kinds of files, on as many threads as stoker."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, width = 1 << 22, 16
    threads = 2

    def table() -> int:
        def work(number: int) -> None:
            random = np.random.default_rng(number)
            arrays = [pa.array(random.random(rows // width, np.float32)) for _ in range(width)]
            pq.write_table(pa.table(arrays, names=[f"c{n:02}" for n in range(width)]), folder / f"{number}.parquet")

        run_threads(work, threads)
        return 4 * rows * threads

    def lists() -> int:
        """DLIO (mlcommons/DLIO_local_changes): a list of bytes a sample."""
        count, size = 64, 1 << 16

        def work(number: int) -> None:
            data = np.random.default_rng(number).integers(0, 256, count * size, np.uint8)
            column = pa.FixedSizeListArray.from_arrays(pa.array(data), size)
            pq.write_table(pa.table({"data": column}), folder / f"{number}.parquet", compression="none")

        run_threads(work, threads)
        return count * size * threads

    def npz() -> int:
        """DLIO (argonne-lcf/dlio_benchmark 2.0.0, data_generator/npz_generator.py), with a thread for a rank."""
        side, count = 1024, 64

        def work(number: int) -> None:
            records = np.random.RandomState(10).randint(255, size=(side, side, count), dtype=np.uint8)
            np.savez(folder / f"{number}.npz", x=records, y=[0] * count)

        run_threads(work, threads)
        return side * side * count * threads

    def ours(**spec: Any) -> Callable[[], int]:
        made = DatasetSpec(files=2 * threads, **spec)
        return lambda: generate(made, folder, threads=threads).bytes

    floats = ours(columns=tuple(f"c{n:02}=float32" for n in range(width)), samples_per_file=1 << 22)
    blobs = ours(record_bytes=1 << 16, samples_per_file=4096)
    arrays = ours(format="npz", record_bytes=1 << 20, samples_per_file=256)
    print(f"{'':52} {'wall GB/s':>10} {'CPU GB/s':>10} {'stoker, times as fast':>22}")
    for name, theirs, mine in (
        ("pyarrow.parquet.write_table, default, 16 x float32", table, floats),
        ("DLIO's method for Parquet (a list of bytes a sample)", lists, blobs),
        ("DLIO's method for NPZ (np.savez)", npz, arrays),
    ):
        found = []
        for _ in range(turns):
            other = measure(theirs)
            clear(folder)
            found.append((*other, *(a / b for a, b in zip(measure(mine), other, strict=True))))
            clear(folder)
        wall, cpu, times_wall, times_cpu = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{name:52} {wall:10.2f} {cpu:10.2f} {times_wall:10.1f} wall {times_cpu:6.1f} CPU")


MEMORY = """
import resource, sys
from stoker_bench.generation import DatasetSpec, generate, iterate_file
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
made = generate(DatasetSpec(format=sys.argv[1], samples_per_file={rows}, record_bytes={width}), sys.argv[2], threads=1)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(f"{{sys.argv[1]:10}} {{made.bytes / 1e9:.1f}} GB: peak {{peak >> 10}} MiB, of which {{before >> 10}} before")
"""


def memory(size: int, folder: Path) -> None:
    """Peak memory of a process that makes one file, on a disk: a file in memory would count."""
    for name in ("parquet", "npz", "tfrecord"):
        code = MEMORY.format(rows=size // 100_000, width=100_000)
        subprocess.run([sys.executable, "-c", code, name, str(folder)], check=True)
        clear(folder)


def noises() -> None:
    """Random bytes into a buffer of 1 MiB, on one thread."""
    buffer = np.empty(BLOCK, np.uint8)
    noise = noise_of(0)
    ways: dict[str, Callable[[int], object]] = {"stoker": lambda block: noise.fill(buffer, 0, 0, block)}
    for name in ("SFC64", "PCG64", "Philox"):
        random = np.random.Generator(getattr(np.random, name)(1))
        ways[f"NumPy {name}"] = lambda _, random=random: random.integers(0, 1 << 64, BLOCK // 8, np.uint64)  # type: ignore[misc]
    try:
        import dgen_py
    except ImportError:
        pass
    else:

        def dgen(block: int) -> None:
            dgen_py.Generator(size=BLOCK, seed=block << 32, max_threads=1).fill_chunk(buffer)

        ways["dgen-py, a generator a block"] = dgen
    for name, way in ways.items():

        def work(way: Callable[[int], object] = way) -> int:
            for block in range(2000):
                way(block)
            return 2000 * BLOCK

        wall, cpu = measure(work)
        print(f"{name:30} {wall:6.1f} GB/s wall, {cpu:6.1f} CPU")


def parts() -> None:
    """What a byte of token ids and of text takes on one thread, without writing: the least CPU time of several runs."""
    noise, out = noise_of(0), np.empty(BLOCK, np.uint8)
    pairs = noise.draw(BLOCK // 4, 0, 0, 0).view(np.uint16)
    letters = noise.draw(2 * (BLOCK // TEXT_RUN), 0, 0, 0).view(np.uint16)
    count = BLOCK * 64
    tokens = DatasetSpec(format="parquet", content="tokens", samples_per_file=count // 8192)
    text = DatasetSpec(format="jsonl", content="text", record_bytes=4000, samples_per_file=count // 4000)
    ways: dict[str, Callable[[], object]] = {
        "random words of tokens": lambda: noise.fill(out[: BLOCK // 4], 0, 0, 0),
        "tokens of random words": lambda: token_block(pairs, 12345, tokens.vocabulary, out.view(np.uint32)),
        "tokens in parquet": lambda: sum(map(len, iterate_file(tokens, 0))),
        "random words of text": lambda: noise.fill(out[: 2 * len(letters)], 0, 0, 0),
        "text of random words": lambda: text_block(letters, out),
        "text in jsonl": lambda: sum(map(len, iterate_file(text, 0))),
    }
    print("ns of CPU time for a byte")
    for name, way in ways.items():
        times = 1 if " in " in name else count // BLOCK
        taken = []
        for _ in range(9):
            begin = time.process_time()
            for _ in range(times):
                way()
            taken.append(time.process_time() - begin)
        print(f"{name:24} {min(taken) / count * 1e9:6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="parts of names of cases; default all")
    parser.add_argument("--dir", default="/dev/shm", help="memory-backed directory; default /dev/shm")
    parser.add_argument("--disk", default=None, help="directory for --memory; default the one for temporary files")
    parser.add_argument("--size", type=float, default=1.0, help="GiB for each case; default 1")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    for name in ("peers", "memory", "noise", "parts"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.disk if options.memory else options.dir) as name:
        folder = Path(name)
        if options.noise:
            noises()
        elif options.parts:
            parts()
        elif options.memory:
            memory(10 * 10**9, folder)
        elif options.peers:
            peers(folder, options.turns)
        else:
            formats(folder, int(options.size * GIB), options.threads, options.turns, options.cases)


if __name__ == "__main__":
    main()
