"""Starts the reader processes of a job with torchrun's environment, follows them, and ends all of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from demo_record import Record

__all__ = ["Job", "JobError", "Reading", "Shuffle", "run_job"]

_READER = Path(__file__).with_name("demo_reader.py")
_SECONDS_TO_END = 5
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class JobError(Exception):
    """A reader process failed."""


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Settings of the order of samples, the same for every job."""

    seed: int
    canonical_nodes: int


@dataclass(frozen=True, slots=True)
class Job:
    """Settings of one run over the epoch, or a part of it.

    Attributes:
        name: begin of the names of the job's files.
        remote: URL of the dataset.
        folder: for the job's cache, records and logs.
        shuffle: the order.
        world_size: number of processes.
        batch_size: samples of a batch in each process.
        predownload: samples ahead of the current one whose shards each process fetches.
        resume: file of the state to resume from.
        stop_after: batches after which every process stops; ``None`` for the epoch's end.
        save: file to which rank 0 writes its state at the end.
        more_epochs: epochs to read after the recorded one, for speed alone.
    """

    name: str
    remote: str
    folder: Path
    shuffle: Shuffle
    world_size: int
    batch_size: int
    predownload: int
    resume: Path | None = None
    stop_after: int | None = None
    save: Path | None = None
    more_epochs: int = 0

    @property
    def cache(self) -> Path:
        """The directory that the job's processes share."""
        return self.folder / f"cache-{self.name}"

    def file(self, rank: int, suffix: str) -> Path:
        """Path of a file of one rank."""
        return self.folder / f"{self.name}-rank{rank}{suffix}"

    def command(self, rank: int) -> list[str]:
        """The command line of one rank."""
        options = {
            "--remote": self.remote,
            "--local": self.cache,
            "--batch-size": self.batch_size,
            "--seed": self.shuffle.seed,
            "--canonical-nodes": self.shuffle.canonical_nodes,
            "--predownload": self.predownload,
            "--record": self.file(rank, ".npz"),
            "--resume": self.resume,
            "--stop-after": self.stop_after,
            "--save": self.save,
            "--more-epochs": self.more_epochs,
        }
        given = [(name, str(value)) for name, value in options.items() if value is not None]
        return [sys.executable, str(_READER), *(word for pair in given for word in pair)]

    def environment(self, rank: int) -> dict[str, str]:
        """This process's environment and what torchrun would set for one rank."""
        world = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": self.world_size,
            "LOCAL_WORLD_SIZE": self.world_size,
        }
        return {**os.environ, **{name: str(value) for name, value in world.items()}}


@dataclass(frozen=True, slots=True)
class Reading:
    """Results of one rank.

    Attributes:
        rank: its number.
        record: the samples that it got, in order.
        first_batch: seconds from opening the dataset to the first batch.
        total: seconds from opening the dataset to the last batch.
        again: samples per second over the job's further epochs; 0.0 if there were none.
    """

    rank: int
    record: Record
    first_batch: float
    total: float
    again: float

    @property
    def rate(self) -> float:
        """Samples per second, from opening the dataset to the last batch."""
        return len(self.record.ids) / self.total


def run_job(job: Job, tick: Callable[[int, int], None]) -> list[Reading]:
    """Run all ranks to their end.

    Args:
        job: what to run.
        tick: called with a rank and the number of samples that it has got so far, from several threads.

    Raises:
        JobError: a process failed. The others are ended too.
    """
    # Contexts end in reverse order: processes first, so that the threads that follow them do not wait.
    with ThreadPoolExecutor(job.world_size) as threads, _processes(job) as processes:
        followed = [threads.submit(_follow, job, rank, process, tick) for rank, process in enumerate(processes)]
        # The first rank that fails raises here.
        readings = [future.result() for future in as_completed(followed)]
    return sorted(readings, key=lambda reading: reading.rank)


@contextmanager
def _processes(job: Job) -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    try:
        with _signals_wait():
            started.extend(_start(job, rank) for rank in range(job.world_size))
        yield started
    finally:
        with _signals_wait():
            for process in started:
                _end(process)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Defer Ctrl-C and SIGTERM to the end of the block, so that no process is lost between its start and its record."""
    came: list[int] = []
    usual = {number: signal.signal(number, lambda number, _: came.append(number)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
        if came:
            raise KeyboardInterrupt


def _start(job: Job, rank: int) -> subprocess.Popen[str]:
    with job.file(rank, ".log").open("w", encoding="utf-8") as log:
        return subprocess.Popen(
            job.command(rank), env=job.environment(rank), stdout=subprocess.PIPE, stderr=log, text=True
        )


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _follow(job: Job, rank: int, process: subprocess.Popen[str], tick: Callable[[int, int], None]) -> Reading:
    done: dict[str, float] | None = None
    assert process.stdout is not None
    for line in process.stdout:
        news = json.loads(line)
        tick(rank, news["samples"])
        done = news.get("done", done)
    if process.wait() != 0 or done is None:
        said = job.file(rank, ".log").read_text(encoding="utf-8").strip()
        raise JobError(f"rank {rank} of {job.world_size} ended with exit status {process.returncode}:\n{said}")
    return Reading(rank, Record.load(job.file(rank, ".npz")), **done)
