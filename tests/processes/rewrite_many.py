"""Rewrite datasets in place while others read them through shared caches, and kill both with SIGKILL at random moments.

    python tests/processes/rewrite_many.py --seconds 300

Four datasets have shards of the same names and sizes, two of them with hashes. Processes read them through two ``local=``
directories, in memory or in place, while others write them anew. Each sample says which dataset and version it is of.
Prints a JSON object of counts. Ends with an error at the first sample of another dataset or version, and at the first error
of a reader that is not one of a dataset that changed.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import logging
import multiprocessing
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from stoker import MDSWriter, ReadOptions, StreamingDataset
from stoker.errors import DatasetChangedError, IndexFileError, ObjectNotFoundError

DATASETS = 4
CACHES = 2
SAMPLES = 240
COLUMNS = {"dataset": "int", "version": "int", "id": "int", "data": "bytes"}


def content(dataset: int, version: int, number: int) -> bytes:
    """Bytes that no other sample has."""
    return hashlib.shake_128(f"{dataset} {version} {number}".encode()).digest(100)


class Dataset:
    """One of the datasets, and what is known of its versions.

    Args:
        folder: of all.
        number: which.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self.number = number
        self.path = folder / "remote" / str(number)
        self._notes = folder / "notes" / str(number)

    def note(self, what: str) -> int:
        """The last version that was ``begun`` or ``done``."""
        try:
            return int((self._notes / what).read_text())
        except FileNotFoundError:
            return -1

    def rewrite(self) -> None:
        """Write the next version in place, unless another process does."""
        self._notes.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._notes / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return
        version = self.note("begun") + 1
        self._put("begun", version)
        kinds: list[dict[str, Any]] = [
            {"hashes": ()},
            {"hashes": "xxh3_64"},
            {"hashes": (), "compression": "zstd"},
            {"hashes": "xxh3_64", "compression": "zstd"},
        ]
        with MDSWriter(COLUMNS, str(self.path), exist_ok=True, size_limit=3000, **kinds[self.number]) as writer:
            for number in range(SAMPLES):
                data = content(self.number, version, number)
                writer.write({"dataset": self.number, "version": version, "id": number, "data": data})
        self._put("done", version)
        os.close(lock)

    def _put(self, what: str, version: int) -> None:
        beside = self._notes / f"{what}.{os.getpid()}"
        beside.write_text(str(version))
        beside.rename(self._notes / what)

    def read(self, folder: Path, draw: random.Random) -> str:
        """Read it in one of several ways; what came of it.

        Raises:
            AssertionError: a wrong sample.
        """
        oldest = self.note("done")
        cache = folder / "caches" / str(draw.randrange(CACHES))
        way = draw.choice(["disk", "disk", "disk", "limited", "memory", "in place"])
        options: dict[str, Any] = {"remote": str(self.path), "local": str(cache)}
        if way == "limited":
            options["cache_limit"] = 12_000
        elif way == "memory":
            options = {"remote": str(self.path), "read": ReadOptions(cache="memory")}
        elif way == "in place":
            options = {"remote": str(self.path)}
        try:
            dataset = StreamingDataset(**options, shuffle=True, shuffle_seed=draw.randrange(100), batch_size=4)
        except (ObjectNotFoundError, IndexFileError):
            return "being written"  # there is no index, or one that says so
        newest = self.note("begun")
        versions: set[int] = set()
        try:
            for _ in range(draw.choice([1, 1, 2])):
                for sample in dataset:
                    versions.add(self._check(sample))
                    if draw.random() < 0.01:
                        time.sleep(0.01)
        except DatasetChangedError:
            return f"{way}: changed"
        finally:
            assert len(versions) <= 1, f"dataset {self.number}, {way}: versions {versions} were mixed"
            assert all(oldest <= one <= newest for one in versions), (self.number, way, oldest, versions, newest)
        return f"{way}: read"

    def _check(self, sample: dict[str, Any]) -> int:
        version, number = int(sample["version"]), int(sample["id"])
        assert sample["dataset"] == self.number, f"dataset {self.number} gave a sample of {sample['dataset']}"
        assert bytes(sample["data"]) == content(self.number, version, number), (self.number, version, number)
        return version


def work(folder: Path, role: str, seed: int, results: Any) -> None:
    """Read or write until killed."""
    draw = random.Random(seed)
    try:
        while True:
            dataset = Dataset(folder, draw.randrange(DATASETS))
            if role == "writer":
                dataset.rewrite()
                results.send("rewritten")
                time.sleep(draw.uniform(0, 0.8))
            else:
                results.send(dataset.read(folder, draw))
    except (BrokenPipeError, KeyboardInterrupt):
        pass
    except BaseException:
        results.send("FAILED " + traceback.format_exc())
        raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=8, help="of which a quarter write")
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # of limits that are too small
    draw = random.Random(options.seed)
    counts: Counter[str] = Counter()
    context: Any = multiprocessing.get_context("fork")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number in range(DATASETS):
            Dataset(folder, number).rewrite()
        workers: dict[int, tuple[Any, Any]] = {}
        try:
            while time.monotonic() - begin < options.seconds:
                for place in range(options.processes):
                    if place not in workers:
                        ours, theirs = context.Pipe(duplex=False)
                        role = "writer" if place % 4 == 3 else "reader"
                        child = context.Process(target=work, args=(folder, role, draw.randrange(1 << 30), theirs))
                        child.start()
                        theirs.close()
                        workers[place] = child, ours
                time.sleep(0.05)
                for place, (child, ours) in list(workers.items()):
                    _collect(ours, counts)
                    if draw.random() < 0.02:
                        child.kill()
                        child.join()
                        _collect(ours, counts)
                        ours.close()
                        del workers[place]
                        counts["killed"] += 1
        finally:
            for child, ours in workers.values():
                child.kill()
                child.join()
                ours.close()
        held = {path.parent.parent.name for path in (folder / "caches").glob("*/*/.stoker")}
        counts["cache directories at the end"] = sum(1 for _ in (folder / "caches").glob("*/*/.stoker"))
        assert held <= {str(number) for number in range(CACHES)}
    print(json.dumps({"seconds": round(time.monotonic() - begin, 1), **dict(sorted(counts.items()))}))


def _collect(ours: Any, counts: Counter[str]) -> None:
    try:
        while ours.poll():
            said = ours.recv()
            if said.startswith("FAILED"):
                sys.exit(said)
            counts[said] += 1
    except (EOFError, OSError):
        pass


if __name__ == "__main__":
    main()
