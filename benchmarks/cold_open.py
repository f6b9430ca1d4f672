"""What opening a directory reads of its files, where nothing is in the page cache and nothing is kept from an earlier start.

    python benchmarks/cold_open.py [DIR] [--files 20] [--record-bytes 3000000] [--samples 1]

Writes such files in each format, lets them leave the page cache file by file, and opens the directory in a fresh process.
Prints MB that the process read from the device, of all MB that the files have. DIR is to be on a disk, as /var/tmp mostly is.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from stoker_bench.generation import DatasetSpec, generate

FORMATS = ("npz", "npy", "hdf5", "tfrecord", "tar", "parquet", "arrow", "mds", "png", "megatron", "jsonl", "csv")
OPENS = """
import sys
from stoker import StreamingDataset
def read():
    return next(int(line.split()[1]) for line in open("/proc/self/io") if line.startswith("read_bytes"))
import numpy, h5py, pyarrow.parquet
before = read()
len(StreamingDataset(local=sys.argv[1], batch_size=2))
print(read() - before)
"""


def leave_page_cache(folder: Path) -> int:
    """Let all files leave the page cache; returns their bytes."""
    size = 0
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
            size += path.stat().st_size
    return size


def _spec(name: str, chosen: argparse.Namespace) -> DatasetSpec:
    if name == "png":
        return DatasetSpec(format=name, files=chosen.files, dims=(1000, 1000))
    text: Any = {"megatron": "tokens", "jsonl": "text", "csv": "text"}.get(name, "random")
    return DatasetSpec(
        format=name,
        files=chosen.files,
        samples_per_file=chosen.samples,
        record_bytes=chosen.record_bytes,
        content=text,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", default="/var/tmp")
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--record-bytes", type=int, default=3_000_000)
    chosen = parser.parse_args()
    for name in FORMATS:
        with tempfile.TemporaryDirectory(dir=chosen.directory, prefix="stoker-cold-") as held:
            folder = Path(held)
            generate(_spec(name, chosen), f"{folder}/data")
            size = leave_page_cache(folder)
            opened = [sys.executable, "-c", OPENS, f"{folder}/data"]
            subprocess.run([sys.executable, "-c", "import stoker, numpy, h5py, pyarrow.parquet"], check=True)
            ran = subprocess.run(opened, capture_output=True, text=True, check=False)
            told = f"{int(ran.stdout) / 1e6:8.2f}" if not ran.returncode else ran.stderr.strip().splitlines()[-1]
            print(f"{name:9} {told} MB of {size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
