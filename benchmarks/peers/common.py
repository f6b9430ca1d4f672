"""The half of a measurement that is the same for every library: the samples, the clock, the checks.

A runner (``run_*.py``) is started by ``compare.py`` in a fresh process of its library's own interpreter
with one JSON job as argument. It measures one thing and prints one JSON line. This module needs NumPy
alone, so that it imports in every one of the environments; torch is imported where a job needs it.

What is timed, for every library alike:

* ``write``: from making the writer to the end of its ``with`` block or its last call; the samples are in
  memory.
* ``read``: whole epochs, from ``iter(dataset)`` on, until a second has gone by, after a warm-up pass over
  5 % of the samples (at most 2 s). A slow library gets a box: so many seconds of one epoch.
* ``load``: batches of a DataLoader, after a warm-up of 16 batches, from the same epoch.
* ``columns``: columnar batches of whole epochs until a second has gone by, after a warm-up over 5 % of the
  samples.
"""

from __future__ import annotations

import json
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

ROW = 2048  # tokens in a row
ROW_BYTES = 2 * ROW
SHARD_BYTES = 64 << 20
WARMUP_FRACTION = 0.05
WARMUP_SECONDS = 2.0
WARMUP_BATCHES = 16
MIN_SECONDS = 1.0  # short epochs are repeated for so long
STRIDE = 256  # samples between two looks at the clock


@dataclass(frozen=True)
class Job:
    """What to measure: ``compare.py`` sends its fields as JSON."""

    action: str  # write, read, ids, load or columns
    kind: str  # tokens or images
    variant: str  # one of the runner's own configurations
    source: str  # folder with the samples as plain .npy
    data: str  # folder of this library's data set: written by `write`, read by the others
    samples: int
    shuffle: bool = False
    seconds: float = 0.0  # stop the clock after so long; 0: a whole epoch
    batch_size: int = 256
    workers: int = 2
    touch: str = "ends"  # ends: first and last element of each sample; copy: copy each sample once
    locality: int = 1 << 18  # rows in a shuffle block, for the bound in plain NumPy


class Peer:
    """What a runner provides. Each method is called at most once in a process."""

    distributions: ClassVar[tuple[str, ...]] = ()
    token_key: str | None = "tokens"  # None: a sample is the bare row

    def configure(self, job: Job) -> None:
        """Import what the job needs, before any clock runs."""

    def write(self, job: Job, samples: Source) -> None:
        raise NotImplementedError

    def dataset(self, job: Job) -> Iterable[Any]:
        raise NotImplementedError

    def loader(self, job: Job) -> Iterable[Any]:
        raise NotImplementedError

    def columns(self, job: Job) -> Callable[[], Iterable[NDArray[np.uint16]]]:
        raise NotImplementedError


class Source:
    """The samples, the same for every library.

    ``rows``: uint16 ``(samples, 2048)``, mapped; ``images``: list of ``bytes``; ``labels``: list of ``int``.
    A row begins with the low and ends with the high half of its number, an image has its number as label.
    """

    def __init__(self, folder: str, kind: str) -> None:
        self.kind = kind
        root = Path(folder)
        if kind == "tokens":
            # A plain array over the map: rows of a numpy.memmap would be memmaps, slow to make.
            self.rows: NDArray[np.uint16] = np.asarray(np.load(root / "tokens.npy", mmap_mode="r")).view(np.ndarray)
            self.rows[:, ::1024].max()  # every page is mapped before a clock runs
            self.bytes = self.rows.nbytes
        else:
            blob = memoryview(np.load(root / "images.npy", mmap_mode="r"))
            cuts = np.load(root / "image_offsets.npy").tolist()
            self.images = [bytes(blob[a:b]) for a, b in pairwise(cuts)]
            self.labels = list(range(len(self.images)))
            self.bytes = cuts[-1]


def make_source(folder: Path, kind: str, samples: int, seed: int = 20260) -> int:
    """Write the samples as plain ``.npy`` files and return their size in bytes."""
    rng = np.random.Generator(np.random.SFC64(seed))
    if kind == "tokens":
        rows = np.lib.format.open_memmap(folder / "tokens.npy", "w+", np.uint16, (samples, ROW))
        for start in range(0, samples, 8192):
            part = rows[start : start + 8192]
            part[:] = rng.integers(0, 50257, part.shape, np.uint16)
        ids = np.arange(samples)
        rows[:, 0] = ids & 0xFFFF
        rows[:, -1] = ids >> 16
        return int(rows.nbytes)
    sizes = rng.integers(100_000, 120_001, samples)
    cuts = np.concatenate(([0], np.cumsum(sizes)))
    blob = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, (int(cuts[-1]),))
    for start in range(0, len(blob), 1 << 26):
        part = blob[start : start + (1 << 26)]
        part[:] = np.frombuffer(rng.bytes(len(part)), np.uint8)
    np.save(folder / "image_offsets.npy", cuts)
    return int(cuts[-1])


def check_counts(counts: NDArray[np.uint16], epochs: int, whole: bool) -> None:
    """Refuse the measurement unless each sample came once an epoch, or at most once where one was cut off."""
    most, least = int(counts.max()), int(counts.min())
    if most > epochs:
        raise SystemExit(f"a sample came {most} times in {epochs} epochs")
    if whole and least != epochs:
        raise SystemExit(f"a sample came {least} times in {epochs} whole epochs")


def each_token(samples: Iterator[Any], key: str | None, touch: str, counts: memoryview) -> int:
    """Take in every sample that ``samples`` has left; returns how many. The loop that is timed."""
    n = 0
    if touch == "copy":
        for sample in samples:
            row = np.array(sample if key is None else sample[key])
            counts[row.item(0) | row.item(-1) << 16] += 1
            n += 1
    elif key is None:
        for row in samples:
            counts[row.item(0) | row.item(-1) << 16] += 1
            n += 1
    else:
        for sample in samples:
            row = sample[key]
            counts[row.item(0) | row.item(-1) << 16] += 1
            n += 1
    return n


def each_image(samples: Iterator[Any], key: str | None, touch: str, counts: memoryview) -> int:
    """The same for images: their number is the label, and the first and last byte are read."""
    del key
    n = 0
    ends = 0
    for sample in samples:
        image = sample["image"]
        if touch == "copy":
            image = bytearray(image)
        ends += image[0] ^ image[-1]
        counts[sample["label"]] += 1
        n += 1
    return n


class ById:
    """A dataset whose samples are asked for one by one, by random ids."""

    def __init__(self, dataset: Any, samples: int) -> None:
        self._dataset = dataset
        self._ids = np.random.default_rng(5).permutation(samples).tolist()

    def __iter__(self) -> Iterator[Any]:
        return map(self._dataset.__getitem__, self._ids)


def until(samples: Iterator[Any], count: float, seconds: float) -> Iterator[Any]:
    """The first of ``samples``: ``count`` of them, or what comes in ``seconds``, looked at every 256."""
    started = perf_counter()
    for n, sample in enumerate(samples, 1):
        yield sample
        if n >= count or (not n % STRIDE and perf_counter() - started > seconds):
            return


def run_read(peer: Peer, job: Job) -> dict[str, Any]:
    each: Callable[..., int] = each_token if job.kind == "tokens" else each_image
    dataset = ById(peer.dataset(job), job.samples) if job.action == "ids" else peer.dataset(job)
    seen = np.zeros(job.samples, np.uint16)
    counts = memoryview(seen)

    handed_out = next(iter(dataset))
    warmup = until(iter(dataset), job.samples * WARMUP_FRACTION, WARMUP_SECONDS)
    warmed = each(warmup, peer.token_key, job.touch, counts)
    del warmup
    seen[:] = 0

    n = epochs = 0
    first_epoch = 0.0
    started = perf_counter()
    while True:
        # A box around the iterator costs 0.05 us a sample, so only those that need one get it.
        samples = until(iter(dataset), job.samples, job.seconds) if job.seconds else iter(dataset)
        n += each(samples, peer.token_key, job.touch, counts)
        epochs += 1
        elapsed = perf_counter() - started
        first_epoch = first_epoch or elapsed
        if elapsed > MIN_SECONDS:
            break
    check_counts(seen, epochs, whole=n == epochs * job.samples)
    return {
        "seconds": elapsed,
        "samples": n,
        "epochs": epochs,
        "first_epoch_s": first_epoch,
        "warmup_samples": warmed,
        "sample": describe(handed_out),
    }


def describe(sample: Any) -> str:
    """What the library hands out, in words: a view costs less than a copy, so it has to be said."""
    if isinstance(sample, dict):
        return ", ".join(f"{k}: {describe(v)}" for k, v in sample.items() if not str(k).startswith("__"))
    name = type(sample).__name__
    if isinstance(sample, np.ndarray):
        return "ndarray" if sample.flags.writeable else "read-only ndarray"
    return name


class Collate:
    """Rows to one torch tensor ``(batch, 2048)``, in a worker straight into shared memory: the same for all.

    It does what torch's ``default_collate`` does, without making a tensor of each row first.
    """

    def __init__(self, key: str | None) -> None:
        self.key = key

    def __call__(self, samples: Sequence[Any]) -> Any:
        import torch
        from torch.utils.data import get_worker_info

        key = self.key
        rows = samples if key is None else [sample[key] for sample in samples]
        if get_worker_info() is None:
            return torch.from_numpy(np.stack(rows))
        out = shared_rows(len(rows))
        np.stack(rows, out=out.numpy())
        return out


def shared_rows(n: int) -> Any:
    """An uninitialised uint16 tensor ``(n, 2048)`` in shared memory, which a worker passes on without a copy."""
    import torch

    shared = torch.UntypedStorage._new_shared(n * ROW_BYTES)
    return torch.empty(0, dtype=torch.uint16).set_(shared, 0, (n, ROW))


def rows_of(batch: Any) -> NDArray[np.uint16]:
    if isinstance(batch, dict):
        batch = batch["tokens"]
    return batch if isinstance(batch, np.ndarray) else batch.numpy()


def run_batches(epoch: Callable[[], Iterable[Any]], job: Job, warmup: int, repeat: bool) -> dict[str, Any]:
    """Time what comes after ``warmup`` samples: the batch that ends the warm-up starts the clock.

    Epochs are repeated until a second has gone by if ``repeat``; else one is taken, cut off after
    ``job.seconds``.
    """
    counts = np.zeros(job.samples, np.uint16)
    made = started = perf_counter()
    first_batch = 0.0
    n = warmed = epochs = 0
    cut = False
    while not epochs or (repeat and perf_counter() - started < MIN_SECONDS):
        epochs += 1
        for batch in epoch():
            rows = rows_of(batch)
            if job.touch == "copy":
                rows = np.array(rows)
            ids = rows[:, 0].astype(np.int64) | rows[:, -1].astype(np.int64) << 16
            np.add.at(counts, ids, 1)
            if not first_batch:
                first_batch = perf_counter() - made
            if warmed < warmup:
                warmed += len(rows)
                started = perf_counter()
                continue
            n += len(rows)
            if job.seconds and perf_counter() - started > job.seconds:
                cut = True
                break
    elapsed = perf_counter() - started
    check_counts(counts, epochs, whole=not cut)
    return {
        "seconds": elapsed,
        "samples": n,
        "epochs": epochs,
        "warmup_samples": warmed,
        "first_batch_s": first_batch,
    }


def run_write(peer: Peer, job: Job) -> dict[str, Any]:
    samples = Source(job.source, job.kind)
    started = perf_counter()
    peer.write(job, samples)
    return {"seconds": perf_counter() - started, "samples": job.samples, "bytes": samples.bytes}


def measure(peer: Peer, job: Job) -> dict[str, Any]:
    peer.configure(job)
    if job.action == "write":
        return run_write(peer, job)
    if job.action in ("read", "ids"):
        return run_read(peer, job)
    if job.action == "load":
        loader = peer.loader(job)
        return run_batches(lambda: loader, job, WARMUP_BATCHES * job.batch_size, repeat=False)
    if job.action == "columns":
        return run_batches(peer.columns(job), job, int(job.samples * WARMUP_FRACTION), repeat=True)
    raise SystemExit(f"no such action: {job.action}")


def main(peer: Peer) -> None:
    """Measure the job given on the command line and print the result as one JSON line."""
    # Also where SIGINT came ignored, as in the background of a shell: it is how a run is called off.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    job = Job(**json.loads(sys.argv[1]))
    try:
        result = measure(peer, job)
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
    result["versions"] = {"python": sys.version.split()[0]} | {d: version(d) for d in peer.distributions}
    print(json.dumps(result), flush=True)
